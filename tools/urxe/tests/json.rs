//! What the commands print for programs is what `JSON.md` says. Tests of single commands check
//! theirs: `demo`, `replay`, `conform`, `perf-connect`, `doctor`, and `why` of a QP that failed.

mod common;

use common::{Daemon, Process, documented, json, perf_server, run, text, urxe};
use serde_json::Value;
use urxe_verbs::{Context, MwType, OpenOptions, SrqInit};

/// What a command prints with this daemon.
fn ask(daemon: &Daemon, line: &str) -> Value {
    json(daemon.urxe(&format!("{line} --json")))
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
    let (_server, client) = perf_server(&far, "write-bw");
    let _client = Process::start(near.urxe(&format!("{client} --duration 1m")));
    near.wait_for_qps(1);
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
    let (_server, client) = perf_server(&far, "write-bw");
    let _client = Process::start(near.urxe(&format!("{client} --duration 1m")));
    near.wait_for_qps(1);
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
    let mut watching = command.stdout(std::process::Stdio::piped()).spawn().unwrap();
    let lines = std::io::BufReader::new(watching.stdout.take().unwrap());
    let lines = std::io::BufRead::lines(lines).take(2);
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
