//! `urxe perf`, from the outside: that it measures something and checks data, never how much.

mod common;

use common::{Daemon, Process, documented, perf_server, run, text};
use serde_json::Value;

/// Runs both ends, and returns their reports.
fn measure(test: &str, arguments: &str) -> [Value; 2] {
    let [near, far] = [Daemon::start(), Daemon::start()];
    let (server, client) = perf_server(&far, test);
    let client = run(near.urxe(&format!("{client} {arguments}")));
    let server = server.output();
    [client, server].map(|output| {
        assert!(output.status.success(), "{test} {arguments}: {}", text(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap()
    })
}

#[test]
fn every_bandwidth_test_measures_and_checks() {
    for (test, arguments) in [
        ("write-bw", "--all=64K --iters 200 --verify"),
        ("write-bw", "--size 64 --inline 64 --iters 500 --qps 3 --cq-mod 7"),
        ("read-bw", "--size 20K --iters 200 --verify --qps 2"),
        ("send-bw", "--all=8K --iters 1500 --verify --qps 2 --depth 32"),
        ("send-bw", "--size 1M --duration 200ms --memory process --events"),
        ("atomic-bw", "--iters 500 --verify --atomic cas --qps 2"),
        ("atomic-bw", "--iters 500 --verify --atomic faa --depth 1"),
    ] {
        let [client, server] = measure(test, arguments);
        assert_eq!(client["plan"]["test"], test);
        assert_eq!(client["verified"], arguments.contains("--verify"));
        let rows = client["results"].as_array().unwrap();
        assert!(!rows.is_empty());
        for row in rows {
            assert!(row["messages_per_s"].as_f64().unwrap() > 0.0, "{test}: {row}");
            assert!(row["bandwidth_gbit_s"].as_f64().unwrap() > 0.0, "{test}: {row}");
        }
        assert_eq!(client["results"], server["results"], "both ends say the same");
    }
}

#[test]
fn both_ends_of_an_unreliable_test_report_what_arrived() {
    for (test, arguments) in [
        ("send-bw", "--transport ud --all --iters 500 --verify --qps 2 --srq"),
        ("send-bw", "--transport uc --size 20K --iters 300 --verify"),
        ("write-bw", "--transport uc --size 20K --iters 300"),
        ("send-bw", "--transport ud --duration 100ms"),
    ] {
        let [client, server] = measure(test, arguments);
        assert_eq!(client["results"], server["results"], "both ends say the same");
        for row in client["results"].as_array().unwrap() {
            let number = |name: &str| row["received"][name].as_u64().unwrap();
            let sent = row["iterations"].as_u64().unwrap();
            assert_eq!(number("messages") + number("lost"), sent, "{row}");
            assert!(number("messages") > 0 || sent == 0, "nothing arrived: {row}");
        }
    }
}

#[test]
fn queue_pairs_share_receives_and_the_memory_of_idle_ones_is_reported() {
    let [client, server] =
        measure("send-bw", "--size 1K --iters 300 --verify --qps 20 --srq --idle 50");
    for report in [client, server] {
        assert_eq!(report["results"][0]["iterations"], 20 * 300);
        assert_eq!(report["idle"]["qps"], 50);
        assert!(report["idle"]["own_bytes_per_qp"].is_number(), "{report}");
    }
}

#[test]
fn every_latency_test_measures() {
    for (test, arguments) in [
        ("write-lat", "--all=8K --iters 100"),
        ("write-lat", "--size 16 --inline 16 --iters 300 --memory process"),
        ("read-lat", "--size 4K --iters 200 --verify"),
        ("send-lat", "--all=8K --iters 100 --verify"),
        ("send-lat", "--size 64 --iters 100 --events"),
        ("send-lat", "--transport uc --iters 100"),
        ("send-lat", "--transport ud --iters 100 --verify"),
        ("atomic-lat", "--iters 200 --verify"),
    ] {
        let [client, _] = measure(test, arguments);
        for row in client["results"].as_array().unwrap() {
            let [min, median, max] =
                ["min", "median", "max"].map(|key| row["latency_us"][key].as_f64().unwrap());
            assert!(0.0 < min && min <= median && median <= max, "{test}: {row}");
        }
    }
}

#[test]
fn iterations_are_as_many_as_requested() {
    let [client, _] = measure("write-bw", "--size 64 --iters 777 --qps 2");
    assert_eq!(client["results"][0]["iterations"], 2 * 777);
}

#[test]
fn figures_are_drawn_as_a_picture_and_as_text() {
    let folder = tempfile::tempdir().unwrap();
    let svg = folder.path().join("picture.svg");
    for (test, arguments, captions) in [
        ("write-bw", "--size 4K --iters 3000", ["seconds", "messages of 4096 bytes"]),
        ("write-bw", "--all=4K --iters 100", ["bytes", "messages a second"]),
        ("send-lat", "--iters 300", ["percentile", "messages of 8 bytes"]),
        ("read-lat", "--all=64 --iters 100", ["p99.9", "microseconds"]),
    ] {
        let [near, far] = [Daemon::start(), Daemon::start()];
        let (server, client) = perf_server(&far, test);
        let client = client.replace("--json", "--plot");
        let client = run(near.urxe(&format!("{client} {arguments} --svg {}", svg.display())));
        assert!(client.status.success(), "{test} {arguments}: {}", text(&client.stderr));
        assert!(server.output().status.success());
        let (printed, drawn) = (text(&client.stdout), std::fs::read_to_string(&svg).unwrap());
        for caption in captions {
            assert!(printed.contains(caption), "{caption}: {printed}");
            assert!(drawn.contains(caption), "{caption}: {drawn}");
        }
        assert!(printed.contains(&format!("{test}: 1 RC QP")), "{printed}");
        assert!(drawn.contains(&format!("{test}: 1 RC QP")), "{drawn}");
        std::fs::remove_file(&svg).unwrap();
    }
}

#[test]
fn the_end_that_does_not_measure_draws_nothing() {
    for option in ["--plot", "--svg a.svg"] {
        let output = run(common::urxe(&format!("perf write-bw {option}")));
        assert_eq!(output.status.code(), Some(2));
        assert!(text(&output.stderr).contains("SERVER"), "{}", text(&output.stderr));
    }
}

#[test]
fn both_ends_of_different_tests_report_the_difference() {
    let [near, far] = [Daemon::start(), Daemon::start()];
    let (server, client) = perf_server(&far, "write-bw");
    let client = run(near.urxe(&client.replace("write-bw", "read-bw")));
    let server = server.output();
    for output in [client, server] {
        assert_ne!(output.status.code(), Some(0));
        let error = text(&output.stderr);
        assert!(error.contains("read-bw") && error.contains("write-bw"), "{error}");
    }
}

#[test]
fn a_limit_of_the_device_is_reported_by_name_and_value() {
    let daemon = Daemon::start();
    for (arguments, code, parts) in [
        ("perf write-bw 127.0.0.1 --device urxe7", 1, ["urxe7", "urxe0"]),
        ("perf write-bw 127.0.0.1 --mtu 1500", 2, ["--mtu is 1500", "expected"]),
        ("perf read-bw 127.0.0.1 --transport ud", 2, ["read-bw", "expected SEND"]),
        ("perf send-lat 127.0.0.1 --qps 2", 2, ["--qps is 2", "expected 1"]),
        ("perf write-lat 127.0.0.1 --events", 2, ["--poll is event", "expected spin or yield"]),
    ] {
        let output = run(daemon.urxe(arguments));
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{error}");
        assert!(parts.iter().all(|part| error.contains(part)), "{error}");
    }
}

#[test]
fn a_server_goes_on_waiting_after_a_connection_that_is_no_client() {
    use std::io::Write;
    let [near, far] = [Daemon::start(), Daemon::start()];
    let (server, client) = perf_server(&far, "send-lat");
    let port = client.split_whitespace().nth(4).unwrap().parse::<u16>().unwrap();
    let mut stranger = std::net::TcpStream::connect(("127.0.0.1", port)).unwrap();
    stranger.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    let client = run(near.urxe(&format!("{client} --iters 10")));
    assert!(client.status.success(), "{}", text(&client.stderr));
    assert!(server.output().status.success());
}

#[test]
fn connections_are_opened_used_and_closed_by_address() {
    let [near, far] = [Daemon::start(), Daemon::start()];
    let mut server = Process::start(far.urxe("perf-connect --port 0"));
    let waiting = server.wait_for("waiting for a client");
    let port = waiting.trim().rsplit(' ').next().unwrap();
    let line = format!("perf-connect {} --port {port} --count 150 --json", far.address);
    let client = run(near.urxe(&line));
    let server = server.output();
    for output in [&client, &server] {
        assert!(output.status.success(), "{}", text(&output.stderr));
    }
    let report: Value = serde_json::from_slice(&client.stdout).unwrap();
    documented::check("perf-connect", &[&report]);
    assert_eq!(report["connections"], 150);
    for phase in ["opened", "used", "closed", "all"] {
        assert!(report[phase]["connections_per_s"].as_f64().unwrap() > 0.0, "{report}");
    }
    // The server has ended, which is reported.
    let refused = run(near.urxe(&line));
    assert_eq!(refused.status.code(), Some(1));
    assert!(text(&refused.stderr).contains("nobody listens there"), "{}", text(&refused.stderr));
}
