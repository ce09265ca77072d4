//! `urxe stat`, `res`, `why` and `devinfo`, from the outside.

mod common;

use common::{Daemon, documented, json, perf_server, run, text, urxe};

#[test]
fn counters_and_their_meanings_are_shown() {
    let [near, far] = [Daemon::start(), Daemon::start()];
    let before = near.stat();
    assert_eq!(before["counters"]["sent_packets"], 0);
    let (server, client) = perf_server(&far, "write-bw");
    assert!(run(near.urxe(&format!("{client} --size 4K --iters 100"))).status.success());
    assert!(server.output().status.success());

    let (near_stat, far_stat) = (near.stat(), far.stat());
    assert!(near_stat["counters"]["sent_packets"].as_u64().unwrap() >= 100);
    assert!(far_stat["counters"]["received_packets"].as_u64().unwrap() >= 100);
    assert!(far_stat["counters"]["received_bytes"].as_u64().unwrap() >= 100 * 4096);
    assert!(near_stat["counters"]["tx_datagrams"].as_u64().unwrap() >= 100);

    let all = json(near.urxe("stat --json"));
    assert!(all["meanings"]["sent_packets"].as_str().unwrap().contains("Packets"));
    let nonzero = json(near.urxe("stat --json --nonzero"));
    let counters = nonzero["devices"][0]["counters"].as_object().unwrap();
    assert!(!counters.is_empty() && counters.values().all(|value| *value != 0));
    let table = text(&run(near.urxe("stat --nonzero")).stdout);
    assert!(table.contains("sent_packets") && table.contains("Packets put on the wire"), "{table}");
}

#[test]
fn one_qp_is_shown_while_it_exists() {
    let [near, far] = [Daemon::start(), Daemon::start()];
    let (_server, client) = perf_server(&far, "write-bw");
    let mut client = common::Process::start(near.urxe(&format!("{client} --duration 1m")));
    near.wait_for_qps(1);
    let qpn = near.stat()["qps"][0]["qpn"].as_u64().unwrap();
    let one = json(near.urxe(&format!("stat --json --qp {qpn}")));
    assert_eq!(one["devices"][0]["qps"].as_array().unwrap().len(), 1);
    assert!(one["devices"][0]["qps"][0]["program"].as_str().unwrap().starts_with("urxe"));
    let none = run(near.urxe("stat --qp 0xfffff0"));
    assert_eq!(none.status.code(), Some(1));
    assert!(text(&none.stderr).contains("0xfffff0"), "{}", text(&none.stderr));
    client.kill();
}

#[test]
fn objects_are_listed_with_owner_and_state() {
    let [near, far] = [Daemon::start(), Daemon::start()];
    let (_server, client) = perf_server(&far, "send-bw");
    let mut client = common::Process::start(near.urxe(&format!("{client} --duration 1m --srq")));
    near.wait_for_qps(1);
    let device = json(near.urxe("res --json"))["devices"][0].clone();
    let qp = &device["qp"][0];
    assert_eq!((&qp["type"], &qp["srq"]), (&"RC".into(), &device["srq"][0]["srq"]));
    assert!(qp["program"].as_str().unwrap().starts_with("urxe"), "{qp}");
    let cqs = device["cq"].as_array().unwrap();
    assert!(cqs.len() == 2 && cqs.iter().all(|cq| cq["qps"] == 1), "{device}");
    assert!(device["mr"][0]["length"].as_u64().unwrap() > 0, "{device}");
    assert_eq!(device["mw"].as_array().unwrap().len(), 0);
    let one = json(near.urxe("res srq --json"))["devices"][0].clone();
    assert!(one["srq"].is_array() && one.get("qp").is_none(), "{one}");
    let table = text(&run(near.urxe("res")).stdout);
    assert!(table.contains("1 queue pairs") && table.contains("no memory windows"), "{table}");
    client.kill();
    let none = run(near.urxe("res --device urxe9"));
    assert!(text(&none.stderr).contains("urxe9"), "{}", text(&none.stderr));
}

#[test]
fn a_qp_whose_peer_falls_silent_is_told_of_also_after_it_has_ended() {
    let [near, far] = [Daemon::start(), Daemon::start()];
    let none = text(&run(near.urxe("why")).stdout);
    assert!(none.contains("No QP that may be seen has failed"), "{none}");
    let (_server, client) = perf_server(&far, "write-bw");
    let client = common::Process::start(near.urxe(&format!("{client} --duration 1m")));
    near.wait_for_qps(1);
    let qpn = near.stat()["qps"][0]["qpn"].as_u64().unwrap();
    near.wait_for_answers();
    far.process.signal(rustix::process::Signal::STOP);
    assert!(!client.output().status.success());

    let failures = text(&run(near.urxe("why")).stdout);
    assert!(failures.contains(&format!("QP {qpn:#08x} on urxe0")), "{failures}");
    let told = text(&run(near.urxe(&format!("why {qpn:#x}"))).stdout);
    for part in ["destroyed", "took it to RTS", "The first packet", "went to ERR", "Why: "] {
        assert!(told.contains(part), "{part:?} in\n{told}");
    }
    let last = json(near.urxe("why --last --json"));
    documented::check("why", &[&last]);
    let last = &last["histories"][0];
    assert_eq!(last["qpn"], format!("{qpn:#08x}"));
    assert_eq!(last["failed"]["opcode"], "IBV_WC_RDMA_WRITE", "{last}");
    assert!(last["counters"]["sent_packets"].as_u64().unwrap() > 0, "{last}");

    let none = run(near.urxe("why 0xfffff0"));
    assert_eq!(none.status.code(), Some(1));
    assert!(text(&none.stderr).contains("0xfffff0"), "{}", text(&none.stderr));
    let none = run(near.urxe("why --device urxe9"));
    assert!(text(&none.stderr).contains("urxe9"), "{}", text(&none.stderr));
}

#[test]
fn devices_show_addresses_state_and_limits() {
    let daemon = Daemon::start();
    let info = json(daemon.urxe("devinfo --json"));
    let device = &info["devices"][0];
    assert_eq!(device["name"], "urxe0");
    assert_eq!(device["ports"][0]["state"], "ACTIVE");
    assert_eq!(device["ports"][0]["gids"][0]["address"], daemon.address.as_str());
    assert!(device["limits"]["max_qp"].as_u64().unwrap() > 0);
    let table = text(&run(daemon.urxe("devinfo")).stdout);
    assert!(table.contains("PORT_ACTIVE") && table.contains(&daemon.address), "{table}");
}

#[test]
fn without_a_daemon_the_exit_code_says_so() {
    let directory = common::Directory::new();
    for command in ["devinfo", "stat", "perf write-bw", "perf write-bw localhost"] {
        let mut command = urxe(command);
        command.arg("--socket").arg(directory.path().join("nobody.sock"));
        let output = run(command);
        assert_eq!(output.status.code(), Some(3), "{}", text(&output.stderr));
        assert!(text(&output.stderr).contains("nobody.sock"), "{}", text(&output.stderr));
    }
}
