//! `urxe conform` asks urxe, through stock programs that are started as they are needed.

use crate::faults::Fault;
use crate::testbed::{Side, Testbed};
use serde_json::Value;
use std::net::{IpAddr, Ipv4Addr};
use urxe_shell::{Result, output, root};

/// All tests.
pub(crate) const ALL: [(&str, Fault); 1] =
    [("urxe conform, by perftest, ibverbs-utils and rdmacm-utils", by_stock_programs)];

/// Areas that need each kind of server: for WRITEs, READs and atomics, with receives, with a
/// counted number of them, and with none; clients that SEND and that READ; and who listens for
/// connections, for datagrams, and connects.
const AREAS: [&str; 10] = [
    "write",
    "read",
    "atomics",
    "send",
    "rnr",
    "requester-rnr",
    "requester-read",
    "cm-listener",
    "cm-sidr",
    "cm-caller",
];

/// The first TCP port of the servers.
const FIRST_PORT: &str = "28515";

fn by_stock_programs(testbed: &Testbed) -> Result<String> {
    let number = (std::process::id() % 250) as u8;
    let tester: IpAddr = Ipv4Addr::new(127, 77, number, 4).into();
    let socket = testbed.socket(Side::A);
    let urxe = testbed.binary("urxe");
    let run = format!("{} run --daemon {} --", urxe.display(), socket.display());
    let known = root().join("src/conform/known/urxe.txt");
    let report = testbed.binary("../run/conform.json");
    let mut command = testbed.command(&urxe);
    command.arg("conform").arg(testbed.address(Side::A).to_string());
    command.args(["--backend", "udp", "--port", FIRST_PORT, "--run", &run]);
    command.arg("--addr").arg(tester.to_string()).arg("--known").arg(known);
    command.arg("--json").arg(&report).args(AREAS.iter().flat_map(|area| ["--only", area]));
    output(&mut command)?;
    let text = std::fs::read_to_string(&report).map_err(|error| error.to_string())?;
    let report: Value = serde_json::from_str(&text).map_err(|error| error.to_string())?;
    for area in AREAS {
        let checks = report["checks"].as_array().into_iter().flatten();
        let passed = |check: &Value| check["area"] == area && check["verdict"] == "pass";
        if !checks.into_iter().any(passed) {
            return Err(format!("no check of {area} was played"));
        }
    }
    testbed.wait_until_no_objects_left()?;
    Ok(format!("{} checks pass", report["counts"]["pass"]))
}
