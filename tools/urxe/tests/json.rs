//! What the commands print for programs is what `JSON.md` says. Tests of single commands check
//! theirs: `demo`, `replay`, `conform`, `perf-connect`, `doctor`, and `why` of a QP that failed.

mod common;

use common::{Daemon, Process, TIMEOUT, documented, json, perf_server, run, text, urxe};
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::thread::sleep;
use std::time::{Duration, Instant};
use urxe_verbs::{Context, MwType, OpenOptions, SrqInit};

/// What a command prints with this daemon.
fn ask(daemon: &Daemon, line: &str) -> Value {
    json(daemon.urxe(&format!("{line} --json")))
}

/// Two programs that write for as long as the test takes. Some of it has been sent.
fn traffic(near: &Daemon, far: &Daemon) -> [Process; 2] {
    let (server, client) = perf_server(far, "write-bw");
    let client = Process::start(near.urxe(&format!("{client} --duration 1m")));
    let deadline = Instant::now() + TIMEOUT;
    while near.stat()["counters"]["sent_packets"] == 0 {
        assert!(Instant::now() < deadline, "nothing was sent: {}", near.stat());
        sleep(Duration::from_millis(20));
    }
    [server, client]
}

#[test]
fn each_command_that_prints_json_has_a_section() {
    let help = text(&run(urxe("--help")).stdout);
    let list = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    let list = list.take_while(|line| !line.is_empty());
    // A description goes on further to the right.
    let names = list.filter_map(|line| line.strip_prefix("  ")?.split(' ').next());
    let names = names.filter(|name| !name.is_empty() && *name != "help");
    let prints_json = |name: &&str| {
        let help = text(&run(urxe(&format!("{name} --help"))).stdout);
        help.lines().any(|line| line.trim_start().starts_with("--json"))
    };
    let mut printing: Vec<&str> = names.filter(prints_json).collect();
    let mut documented = documented::commands();
    printing.sort_unstable();
    documented.sort_unstable();
    assert_eq!(printing, documented);
}

#[test]
fn the_daemon_and_its_queue_pairs_are_told_of_in_documented_keys() {
    let [near, far] = [Daemon::start(), Daemon::start()];
    let _ends = traffic(&near, &far);
    let qpn = near.stat()["qps"][0]["qpn"].as_u64().unwrap();
    documented::check("devinfo", &[&ask(&near, "devinfo")]);
    let [all, one] = ["stat", &format!("stat --qp {qpn}")].map(|line| ask(&near, line));
    documented::check("stat", &[&all, &one]);
    documented::check("top", &[&ask(&near, "top --interval 100ms")]);
    let [failed, one] = ["why", &format!("why {qpn}")].map(|line| ask(&near, line));
    documented::check("why", &[&failed, &one]);
    documented::check("ping", &[&ask(&near, &format!("ping {} -c 1", far.address))]);
}

#[test]
fn objects_of_each_kind_are_listed_in_documented_keys() {
    let [near, far] = [Daemon::start(), Daemon::start()];
    let _ends = traffic(&near, &far);
    let context = Context::open(&OpenOptions::new().socket(&near.socket)).unwrap();
    let pd = context.alloc_pd().unwrap();
    let _mw = pd.alloc_mw(MwType::One).unwrap();
    let _srq = pd.create_srq(&SrqInit { max_wr: 4, max_sge: 1, limit: 0 }).unwrap();
    let channel = context.create_event_channel().unwrap();
    let _listener = channel.listen("[::]:0".parse().unwrap(), 0).unwrap();
    let report = ask(&near, "res");
    for kind in ["qp", "cq", "mr", "mw", "srq", "cm-id", "path"] {
        assert_ne!(report["devices"][0][kind].as_array().unwrap().len(), 0, "{kind}: {report}");
    }
    documented::check("res", &[&report]);
}

#[test]
fn intervals_are_told_of_a_line_each() {
    let near = Daemon::start();
    let mut command = near.urxe("stat --json --watch 10ms");
    let mut watching = command.stdout(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(watching.stdout.take().unwrap()).lines().take(2);
    let lines: Vec<Value> =
        lines.map(|line| serde_json::from_str(&line.unwrap()).unwrap()).collect();
    watching.kill().unwrap();
    watching.wait().unwrap();
    documented::check("stat", &[&lines[0], &lines[1]]);
    assert!(lines.iter().all(|line| line["interval_s"].is_number()), "{lines:?}");
}

#[test]
fn meanings_are_told_in_documented_keys() {
    let [number, name, all] =
        ["explain 0x6 --json", "explain IBV_WC_RETRY_EXC_ERR --json", "explain --list --json"]
            .map(|line| json(urxe(line)));
    documented::check("explain", &[&number, &name, &all]);
}

#[test]
fn figures_of_all_transports_are_told_in_documented_keys() {
    let [near, far] = [Daemon::start(), Daemon::start()];
    for (test, arguments) in [
        ("write-bw", "--size 64 --iters 10 --idle 2"),
        ("send-lat", "--size 64 --duration 10ms"),
        ("send-bw", "--transport ud --size 64 --iters 10"),
    ] {
        let (server, client) = perf_server(&far, test);
        let client = json(near.urxe(&format!("{client} {arguments}")));
        let server = serde_json::from_slice(&server.output().stdout).unwrap();
        for report in [client, server] {
            documented::check("perf", &[&report]);
        }
    }
}
