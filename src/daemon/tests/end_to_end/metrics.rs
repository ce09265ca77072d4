//! Metrics: what scrapers are answered, and that none of them is in the way of another.

use crate::harness::{End, Kind, connected, eventually, fresh_path, start_with, try_start};
use rustix::process::geteuid;
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::Duration;
use urxe_daemon::{Handle, MetricsAddress, SocketMode, StartError, counter_meanings};
use urxe_types::SendOp;

const GET: &[u8] = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n";

/// How long a scrape may take before a test gives up.
const WAIT: Duration = Duration::from_secs(60);

/// Connections that say nothing. If none gave way to others, those would be waited for longer than
/// a scrape may take.
const SILENT: usize = 256;

/// A daemon of so many devices with metrics at a port that is free.
fn measured(devices: usize) -> Handle {
    start_with(devices, |config| {
        config.metrics = Some("127.0.0.1:0".parse().unwrap());
        config.slots = 2;
    })
}

fn connect(daemon: &Handle) -> TcpStream {
    let Some(MetricsAddress::Tcp(address)) = daemon.metrics() else { panic!() };
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(WAIT)).unwrap();
    stream
}

/// Asks for metrics, and returns head and body of the answer.
fn ask(mut stream: impl Read + Write, request: &[u8]) -> (String, String) {
    stream.write_all(request).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.to_owned(), body.to_owned())
}

/// The metrics of a daemon.
fn scrape(daemon: &Handle) -> String {
    let (head, body) = ask(connect(daemon), GET);
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
    body
}

/// All samples, by name and labels.
fn samples(text: &str) -> BTreeMap<String, u64> {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let sample = |line: &str| {
        let (name, value) = line.rsplit_once(' ').unwrap();
        (name.to_owned(), value.parse().unwrap())
    };
    lines.map(sample).collect()
}

/// What all slots of a device have counted together.
fn sum(text: &str, counter: &str, device: &str) -> u64 {
    let begin = format!("urxe_{counter}_total{{device=\"{device}\",");
    samples(text).iter().filter(|(name, _)| name.starts_with(&begin)).map(|(_, value)| value).sum()
}

#[test]
fn a_scrape_has_every_counter_with_its_sentence() {
    let daemon = measured(2);
    let _program = End::new(&daemon, 1, Kind::Shared, 4096);
    let (head, text) = ask(connect(&daemon), GET);
    let media = "Content-Type: application/openmetrics-text; version=1.0.0; charset=utf-8";
    assert!(head.lines().any(|line| line == media), "{head}");
    assert!(head.contains(&format!("Content-Length: {}", text.len())), "{head}");
    for (name, meaning) in counter_meanings() {
        assert!(text.contains(&format!("# TYPE urxe_{name} counter\n")), "{name}");
        assert!(text.contains(&format!("# HELP urxe_{name} {meaning}\n")), "{name}");
        assert!(text.contains(&format!("\nurxe_{name}_total")), "{name}");
    }
    assert!(text.ends_with("# EOF\n"));
    let user = geteuid().as_raw();
    let samples = samples(&text);
    assert_eq!(samples[&format!("urxe_sessions{{slot=\"1\",user=\"{user}\"}}")], 1);
    // The broker's own slot, and the one that runs.
    for slot in 0..2 {
        let name =
            format!("urxe_tx_bytes_total{{device=\"urxe1\",slot=\"{slot}\",user=\"{user}\"}}");
        assert_eq!(samples.get(&name), Some(&0), "{text}");
    }
}

#[test]
fn two_scrapes_differ_by_what_was_counted_between_them() {
    let daemon = measured(1);
    let (mut a, b) = connected(&daemon, &daemon, Kind::Shared, 4096);
    let before = scrape(&daemon);
    let write = SendOp::Write { remote_addr: b.mr.addr, rkey: b.mr.rkey, imm: None };
    for _ in 0..5 {
        a.exchange(write, &[a.mr.sge(0, 1000)]);
    }
    // The same may be told for a moment.
    let is_told = || {
        let after = scrape(&daemon);
        (sum(&after, "sent_messages", "urxe0") >= 5).then_some(after)
    };
    let after = eventually("the next scrape shows them", is_told);
    let grown = |counter| sum(&after, counter, "urxe0") - sum(&before, counter, "urxe0");
    assert_eq!(grown("sent_messages"), 5);
    assert!(grown("received_bytes") >= 5000);
    // They are in different slots, each of which has counted its part.
    let of_slot = |slot: &str| {
        let samples = samples(&after);
        let of = samples.iter().filter(|(name, _)| {
            name.starts_with("urxe_sent_messages_total") && name.contains(slot)
        });
        of.map(|(_, value)| *value).sum::<u64>()
    };
    assert_eq!([of_slot("slot=\"1\""), of_slot("slot=\"2\"")], [5, 0]);
}

#[test]
fn objects_and_sums_of_paths_come_and_go() {
    let daemon = measured(1);
    let user = geteuid().as_raw();
    let told = |gauge: &str| {
        let text = scrape(&daemon);
        let of_slot =
            |slot| format!("urxe_{gauge}{{device=\"urxe0\",slot=\"{slot}\",user=\"{user}\"}}");
        let samples = samples(&text);
        [1, 2].map(|slot| samples.get(&of_slot(slot)).copied().unwrap_or(0))
    };
    let becomes = |gauge: &str, values: [u64; 2]| {
        eventually(gauge, || (told(gauge) == values).then_some(()));
    };
    let (a, b) = connected(&daemon, &daemon, Kind::Shared, 4096);
    for gauge in ["qps", "cqs", "mrs", "pds", "paths"] {
        becomes(gauge, [1, 1]);
    }
    assert_eq!(told("srqs"), [0, 0]);
    assert!(told("path_outward_window_bytes").iter().all(|bytes| *bytes > 4096));
    drop(a);
    becomes("qps", [0, 1]);
    drop(b);
    for gauge in ["qps", "mrs", "paths"] {
        becomes(gauge, [0, 0]);
    }
}

#[test]
fn a_scraper_that_takes_nothing_of_its_answer_keeps_no_other_waiting() {
    let path = fresh_path();
    // So many that an answer is longer than what a socket holds.
    let daemon = start_with(32, |config| {
        config.metrics = Some(path.to_str().unwrap().parse().unwrap());
    });
    let ask_only = |_| {
        let mut stream = UnixStream::connect(&path).unwrap();
        stream.write_all(GET).unwrap();
        stream
    };
    let slow: Vec<UnixStream> = (0..3).map(ask_only).collect();
    let (head, text) = ask(UnixStream::connect(&path).unwrap(), GET);
    assert!(head.contains(&format!("Content-Length: {}", text.len())), "{head}");
    assert!(text.len() > 300_000 && text.ends_with("# EOF\n"), "{} bytes", text.len());
    drop(slow);
    drop(daemon);
}

#[test]
fn scrapers_that_say_nothing_or_too_much_are_in_nobodys_way() {
    let daemon = measured(1);
    let silent: Vec<TcpStream> = (0..SILENT).map(|_| connect(&daemon)).collect();
    scrape(&daemon);
    let mut endless = connect(&daemon);
    // It is refused once it was too long, and may be cut off before all was sent.
    let mut sent = endless.write_all(b"GET /metrics HTTP/1.1\r\n");
    for _ in 0..1024 {
        sent = sent.and_then(|()| endless.write_all(&[b'a'; 1024]));
    }
    let mut answer = Vec::new();
    let _ = endless.read_to_end(&mut answer);
    let answer = String::from_utf8(answer).unwrap();
    assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 431 "), "{answer}");
    scrape(&daemon);
    // All are let go of in the end.
    for mut silent in silent {
        assert_eq!(silent.read(&mut [0; 16]).unwrap_or(0), 0);
    }
}

/// A program may take a slot of its own and do nothing with it.
#[test]
fn a_slot_that_does_not_answer_is_left_out() {
    let daemon = measured(1);
    let program = End::new(&daemon, 0, Kind::Shared, 4096);
    let silent = crate::hosted::asked(daemon.socket()).unwrap();
    for _ in 0..2 {
        let text = scrape(&daemon);
        for (slot, is_there) in [(0, true), (1, true), (3, false)] {
            let name = format!("urxe_sent_packets_total{{device=\"urxe0\",slot=\"{slot}\"");
            assert_eq!(text.contains(&name), is_there, "{slot}: {text}");
        }
    }
    drop((silent, program));
}

#[test]
fn anything_else_than_metrics_is_refused_with_a_sentence() {
    let daemon = measured(1);
    for (request, status, sentence) in [
        ("GET / HTTP/1.1", "404", "metrics are under /metrics"),
        ("DELETE /metrics HTTP/1.1", "405", "by GET"),
        ("\0\0\0", "400", "expected GET /metrics"),
    ] {
        let (head, body) = ask(connect(&daemon), format!("{request}\r\n\r\n").as_bytes());
        assert!(head.starts_with(&format!("HTTP/1.1 {status} ")), "{head}");
        assert!(body.contains(sentence), "{body}");
    }
}

#[test]
fn a_unix_socket_has_the_permissions_of_the_daemons_and_goes_with_it() {
    let path = fresh_path();
    // One that a killed daemon left.
    drop(UnixListener::bind(&path).unwrap());
    let special = |config: &mut urxe_daemon::Config| {
        config.metrics = Some(path.to_str().unwrap().parse().unwrap());
        config.mode = SocketMode(0o620);
    };
    let daemon = start_with(1, special);
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o620);
    let (_, text) = ask(UnixStream::connect(&path).unwrap(), GET);
    assert!(text.contains("urxe_sent_packets_total{device=\"urxe0\",slot=\"0\""), "{text}");
    let error = try_start(1, special).unwrap_err();
    assert!(matches!(error, StartError::Metrics { .. }), "{error}");
    assert!(error.to_string().contains(path.to_str().unwrap()), "{error}");
    drop(daemon);
    assert!(!path.exists());
    std::fs::write(&path, "precious").unwrap();
    let error = try_start(1, special).unwrap_err();
    assert!(error.to_string().contains("is not a socket"), "{error}");
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "precious");
    std::fs::remove_file(path).unwrap();
}
