//! `urxe replay`, from the outside.

mod common;

use common::{documented, exit_code_unread, urxe};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn capture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../interop/captures").join(name)
}

fn replay(file: &Path, options: &[&str]) -> (i32, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_urxe"));
    let Output { status, stdout, stderr } =
        command.arg("replay").arg(file).args(options).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (status.code().unwrap(), text(stdout), text(stderr))
}

#[test]
fn the_exit_status_says_whether_anything_differs() {
    let file = capture("6.1/vectors-err-v4.pcap");
    let (code, text, _) = replay(&file, &[]);
    assert_eq!(code, 0, "{text}");
    assert!(text.contains("Same: 7 responses compared"), "{text}");
    assert!(text.contains("no receive was posted"), "{text}");

    // The last byte but four of the second frame is the MSN of an RNR NAK.
    let mut bytes = std::fs::read(&file).unwrap();
    let second = 24 + 16 + 158;
    bytes[second + 16 + 62 - 5] ^= 1;
    let damaged = std::env::temp_dir().join(format!("urxe-replay-{}.pcap", std::process::id()));
    std::fs::write(&damaged, bytes).unwrap();
    let mut unread = urxe("replay");
    unread.arg(&damaged);
    assert_eq!(exit_code_unread(unread), Some(1));
    let (code, json, _) = replay(&damaged, &["--json"]);
    std::fs::remove_file(&damaged).unwrap();
    assert_eq!(code, 1, "{json}");
    let report: serde_json::Value = serde_json::from_str(&json).unwrap();
    documented::check("replay", &[&report]);
    let difference = &report["directions"][0]["differences"][0];
    assert_eq!((&difference["frame"], &difference["field"]), (&2.into(), &"icrc".into()));

    let (code, _, says) = replay(&capture("README.md"), &[]);
    assert_eq!(code, 2);
    assert!(says.contains("README.md: is no capture"), "{says}");
    let (code, _, says) = replay(Path::new("/nowhere.pcap"), &[]);
    assert_eq!((code, says.contains("/nowhere.pcap: ")), (2, true), "{says}");
}
