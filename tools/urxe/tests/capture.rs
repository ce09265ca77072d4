//! `urxe capture`, from the outside.

use serde_json::Value;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

fn capture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../interop/captures").join(name)
}

fn urxe_capture(file: &Path, options: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_urxe"));
    command.args(["capture", "--read"]).arg(file).args(options);
    command
}

fn lines(file: &Path, options: &[&str]) -> Vec<String> {
    let Output { status, stdout, stderr } = urxe_capture(file, options).output().unwrap();
    assert!(status.success() && stderr.is_empty(), "{}", String::from_utf8_lossy(&stderr));
    String::from_utf8(stdout).unwrap().lines().map(str::to_owned).collect()
}

#[test]
fn every_packet_is_a_line_in_the_words_of_the_verbs() {
    let all = lines(&capture("6.1/vectors-rc-v4.pcap"), &[]);
    assert_eq!(all.len(), 158);
    assert!(all.iter().all(|line| line.contains(" > ") && line.contains(" RC ")), "{all:#?}");
    assert!(!all.iter().any(|line| line.contains("ICRC wrong")), "{all:#?}");
    let refused = lines(&capture("6.1/vectors-err-v4.pcap"), &["--opcode", "ack"]);
    assert!(refused.iter().all(|line| line.contains(" RC ACK ")), "{refused:#?}");
    assert!(refused.iter().any(|line| line.contains("NAK remote access error")), "{refused:#?}");
}

#[test]
fn every_packet_of_a_file_is_an_object_for_programs() {
    let file = capture("6.1/vectors-rc-v4.pcap");
    let objects = lines(&file, &["--json"]);
    let objects: Vec<Value> =
        objects.iter().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(objects.len(), 158);
    for (object, line) in objects.iter().zip(lines(&file, &[])) {
        assert_eq!(object["version"], 1);
        assert!(line.contains(object["opcode"].as_str().unwrap()), "{object} {line}");
        let number = |key: &str| object[key].as_u64().unwrap();
        let at = format!("qp {:#08x} psn {:#08x}", number("dest_qpn"), number("psn"));
        assert!(line.contains(&at), "{object} {line}");
        if let Some(rkey) = object["rkey"].as_str() {
            let target = format!("va {} rkey {rkey}", object["va"].as_str().unwrap());
            assert!(line.contains(&target), "{object} {line}");
        }
        if let Some(syndrome) = object["syndrome"].as_str() {
            let told = format!("{syndrome} msn {}", number("msn"));
            assert!(line.to_lowercase().contains(&told.to_lowercase()), "{object} {line}");
        }
    }
    assert!(objects.iter().all(|object| object["icrc_wrong"] == false));
}

#[test]
fn a_damaged_packet_says_so() {
    let mut bytes = std::fs::read(capture("6.1/vectors-err-v4.pcap")).unwrap();
    let second = 24 + 16 + 158;
    bytes[second + 16 + 62 - 5] ^= 1;
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(&bytes).unwrap();
    let all = lines(file.path(), &[]);
    let wrong: Vec<usize> =
        (0..all.len()).filter(|&line| all[line].ends_with(", ICRC wrong")).collect();
    assert_eq!(wrong, [1], "{all:#?}");
}

#[test]
fn only_what_was_asked_for_is_shown() {
    let file = capture("6.1/vectors-err-v4.pcap");
    let all = lines(&file, &[]);
    let qp = |line: &String| line.split(" qp ").nth(1).unwrap()[..8].to_owned();
    let first = qp(&all[0]);
    let expected: Vec<_> = all.iter().filter(|line| qp(line) == first).cloned().collect();
    assert!(!expected.is_empty() && expected.len() < all.len());
    assert_eq!(lines(&file, &["--qp", &first]), expected);
    assert_eq!(lines(&file, &["--peer", "192.0.2.1"]), [""; 0]);
    assert_eq!(lines(&file, &["--count", "3"]), all[..3]);
}

/// A program that is ended with the test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_capture_comes_through_a_pipe_that_stays_open_as_well() {
    let bytes = std::fs::read(capture("6.1/vectors-rc-v4.pcap")).unwrap();
    let mut command = urxe_capture(Path::new("-"), &["--count", "20"]);
    let mut reader = Running(command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap());
    let mut pipe = reader.0.stdin.take().unwrap();
    pipe.write_all(&bytes).unwrap();
    let shown = BufReader::new(reader.0.stdout.take().unwrap()).lines();
    assert_eq!(shown.map(Result::unwrap).count(), 20);
    assert!(reader.0.wait().unwrap().success());
}

#[test]
fn a_file_that_is_no_capture_is_refused_by_name() {
    for (file, code, says) in [("README.md", 2, "is no capture"), ("nothing.pcap", 1, "No such")] {
        let output = urxe_capture(&capture(file), &[]).output().unwrap();
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(error.contains(file) && error.contains(says), "{error}");
        assert_eq!(output.status.code(), Some(code), "{error}");
    }
}
