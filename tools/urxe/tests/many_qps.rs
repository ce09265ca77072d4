//! `urxe ping`, `top`, `capture`, `res` and `why` where a daemon has a thousand QPs with traffic.

mod common;

use common::{Daemon, Directory, Process, TIMEOUT, json, perf_server, run, text};
use serde_json::Value;
use std::collections::BTreeSet;
use std::time::Instant;

/// QPs of each of the two daemons.
const QPS: usize = 1000;

/// A client of `urxe perf` that uses all QPs in turn until it is dropped, and its server.
fn traffic(from: &Daemon, to: &Daemon) -> (Process, Process) {
    let (server, client) = perf_server(to, "write-bw");
    let options = format!("--size 64 --qps {QPS} --depth 4 --duration 1000s");
    let client = Process::start(from.urxe(&format!("{client} {options}")));
    for daemon in [from, to] {
        daemon.wait_for_qps(QPS);
    }
    from.wait_for_answers();
    (server, client)
}

fn objects(lines: &[u8]) -> Vec<Value> {
    text(lines).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn numbers(values: &[Value], key: &str) -> BTreeSet<u64> {
    values.iter().filter_map(|value| value[key].as_u64()).collect()
}

#[test]
fn a_thousand_qps_under_load_are_all_shown() {
    let (from, to) = (Daemon::start(), Daemon::start());
    let traffic = traffic(&from, &to);

    let ping = run(from.urxe(&format!("ping {} -c 3", to.address)));
    assert!(ping.status.success(), "{}{}", text(&ping.stdout), text(&ping.stderr));
    assert!(text(&ping.stdout).contains("RoCEv2 works to"), "{}", text(&ping.stdout));

    let top = json(from.urxe("top --json --interval 2s"));
    let qps = top["qps"].as_array().unwrap();
    let qpns = numbers(qps, "qpn");
    assert_eq!((qps.len(), qpns.len()), (QPS, QPS));
    assert!(qps.iter().all(|qp| qp["state"] == "RTS"), "{top}");
    let rate = |qp: &Value| qp["messages_per_s"].as_f64().unwrap();
    assert!(qps.iter().map(rate).sum::<f64>() > 0.0, "{top}");
    let table = run(from.urxe("top --once"));
    let rows = text(&table.stdout).lines().filter(|line| line.contains(" RTS ")).count();
    assert_eq!(rows, QPS, "{}", text(&table.stdout));
    let directory = Directory::new();
    let picture = directory.path().join("top.svg");
    let drawn = run(from.urxe(&format!("top --svg {}", picture.display())));
    assert!(drawn.status.success(), "{}", text(&drawn.stderr));
    assert!(std::fs::read_to_string(&picture).unwrap().contains("</svg>"));

    let shown = json(from.urxe("res qp --json"));
    assert_eq!(shown["devices"][0]["qp"].as_array().unwrap().len(), QPS);

    // What is not shown is told.
    let capture = run(to.urxe("capture --json --seconds 3"));
    assert!(capture.status.success(), "{}", text(&capture.stderr));
    let seen = objects(&capture.stdout);
    let lost: u64 = seen.iter().filter_map(|object| object["not_captured"].as_u64()).sum();
    let packets = seen.iter().filter(|object| object["not_captured"].is_null()).count();
    let summary = format!("urxe capture: {packets} packets, {lost} not captured");
    assert!(text(&capture.stderr).contains(&summary), "{summary}: {}", text(&capture.stderr));
    let since = Instant::now();
    let mut all = BTreeSet::new();
    // Each has its turn.
    while all.len() < QPS {
        assert!(since.elapsed() < TIMEOUT, "packets of {} QPs came", all.len());
        let capture = run(to.urxe("capture --json --opcode write --count 20000"));
        let seen = objects(&capture.stdout);
        all.extend(numbers(&seen, "qpn"));
    }
    let one = *qpns.first().unwrap();
    let capture = run(from.urxe(&format!("capture --json --qp {one} --count 5")));
    let seen = objects(&capture.stdout);
    assert_eq!(seen.iter().filter(|object| object["not_captured"].is_null()).count(), 5);

    let why = run(from.urxe(&format!("why {one}")));
    assert!(text(&why.stdout).contains("It has not failed."), "{}", text(&why.stdout));
    assert!(text(&why.stdout).contains("WRITEs posted"), "{}", text(&why.stdout));
    drop(traffic);
}
