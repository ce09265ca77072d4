//! `urxe conform`, from the outside. Against a device: `interop/programs`.

mod common;

use common::{Directory, documented, run, text, urxe};
use std::net::{TcpListener, UdpSocket};
use std::path::Path;

/// A loopback address whose UDP port 4791 is free.
fn free_address() -> String {
    let number = std::process::id() % 250;
    let mut addresses = (1..250).map(|last| format!("127.62.{number}.{last}"));
    let is_free = |address: &String| UdpSocket::bind((address.as_str(), 4791)).is_ok();
    addresses.find(is_free).expect("a free address")
}

#[test]
fn the_list_tells_each_check_with_its_rule_and_where_that_comes_from() {
    let output = run(urxe("conform --list --only write/wrong-key-is-refused"));
    assert!(output.status.success());
    let list = text(&output.stdout);
    for part in ["write/wrong-key-is-refused\n", "RC-RESP-011 (IBTA 9.9.3): ", "1 checks"] {
        assert!(list.contains(part), "{part}: {list}");
    }
    let all = text(&run(urxe("conform --list")).stdout);
    let safe = text(&run(urxe("conform --list --safe")).stdout);
    assert!(all.contains("(not with --safe)") && !safe.contains("(not with --safe)"));
    let of_rules = text(&run(urxe("conform --list --only rc-resp")).stdout);
    assert!(of_rules.contains("write/wrong-key-is-refused") && !of_rules.contains("UD-0"));
}

#[test]
fn a_command_line_that_makes_no_sense_ends_with_code_2() {
    for (line, part) in [
        ("conform", "which device"),
        ("conform --list --only no-such-area", "no-such-area"),
        ("conform 127.0.0.1 --wait 0", "--addr"),
        (
            "conform 127.0.0.9 --addr 127.0.0.8 --wait 0 --known Cargo.toml",
            "line 1: there is no check",
        ),
    ] {
        let output = run(urxe(line));
        let says = text(&output.stderr);
        assert_eq!((output.status.code(), says.contains(part)), (Some(2), true), "{line}: {says}");
    }
}

#[test]
fn servers_are_printed_as_a_script() {
    let output = run(urxe("conform 127.0.0.9 --servers --port 7000 --device mlx5_1"));
    let script = text(&output.stdout);
    assert!(
        script.contains("ib_read_bw -d mlx5_1 -q 32 -s 32768 --mr_per_qp -p 7001;"),
        "{script}"
    );
    assert!(script.ends_with("wait\n"), "{script}");
}

#[test]
fn a_device_without_servers_is_reported_as_one_that_was_asked_nothing() {
    let directory = Directory::new();
    let file = |name: &str| directory.path().join(name).display().to_string();
    let port = TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().port();
    let mut command = urxe("conform 127.0.0.1 --backend udp --only write --wait 0 --port");
    command.arg(port.to_string()).args(["--addr", &free_address()]);
    command.args(["--json", &file("json"), "--junit", &file("xml"), "--html", &file("html")]);
    let output = run(command);
    let says = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{says}");
    assert!(says.contains("the device was asked nothing"), "{says}");
    assert!(text(&output.stdout).contains("ib_write_bw -q 32"), "{}", text(&output.stdout));
    let read = |name: &str| std::fs::read_to_string(Path::new(&file(name))).unwrap();
    let report: serde_json::Value = serde_json::from_str(&read("json")).unwrap();
    documented::check("conform", &[&report]);
    assert_eq!(report["counts"]["needs-agent"], report["checks"].as_array().unwrap().len());
    assert!(read("xml").contains("<skipped") && read("html").contains("Not asked"));
}
