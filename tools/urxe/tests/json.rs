//! What the commands print for programs.

mod common;

use common::{Daemon, Process, json, perf_server, urxe};
use serde_json::Value;

/// Objects whose keys are names of counters, or of fields of verbs.
const BY_NAME: [&str; 3] = ["counters", "meanings", "limits"];

/// The keys of an object, and of all objects in it.
fn keys(value: &Value, found: &mut Vec<String>) {
    match value {
        Value::Object(object) => {
            for (key, value) in object {
                found.push(key.clone());
                if !BY_NAME.contains(&key.as_str()) {
                    keys(value, found);
                }
            }
        }
        Value::Array(values) => values.iter().for_each(|value| keys(value, found)),
        _ => {}
    }
}

#[test]
fn each_command_says_the_version_and_only_keys_that_are_documented() {
    let documented = include_str!("../JSON.md");
    let [near, far] = [Daemon::start(), Daemon::start()];
    let (_server, client) = perf_server(&far, "write-bw");
    let _client = Process::start(near.urxe(&format!("{client} --duration 1m")));
    near.wait_for_qps(1);
    let qpn = near.stat()["qps"][0]["qpn"].as_u64().unwrap();
    let of_daemon = ["devinfo", "stat", "top", "res qp", "res cq", "res mr", "res path", "why"];
    let of_daemon = of_daemon.map(str::to_owned).into_iter().chain([format!("why {qpn}")]);
    let of_daemon = of_daemon.map(|command| near.urxe(&format!("{command} --json")));
    let others = ["explain 0x6 --json", "explain IBV_WC_RETRY_EXC_ERR --json"].map(urxe);
    for command in of_daemon.chain(others) {
        let named = format!("{command:?}");
        let printed = json(command);
        assert_eq!(printed["version"], 1, "{named}");
        let mut found = Vec::new();
        keys(&printed, &mut found);
        found.retain(|key| !documented.contains(&format!("`{key}`")));
        assert!(found.is_empty(), "{named}: JSON.md does not name {found:?}");
    }
}
