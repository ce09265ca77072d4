//! `rdma` of iproute2 shows of a daemon what `urxe` shows.

use crate::faults::Fault;
use crate::testbed::{Side, TIMEOUT, Testbed};
use serde_json::{Value, json};
use std::time::{Duration, Instant};
use urxe_shell::Result;

pub(crate) const ALL: [(&str, Fault); 3] = [
    ("rdma dev, link and statistic", devices),
    ("rdma resource", resources),
    ("rdma asks for what there is not", refusals),
];

/// A kind of object: what `rdma` and `urxe res` call it and its number, and what else is compared.
struct Kind {
    name: (&'static str, &'static str),
    number: (&'static str, &'static str),
    others: &'static [(&'static str, &'static str)],
}

const KINDS: [Kind; 4] = [
    Kind {
        name: ("qp", "qp"),
        number: ("lqpn", "qpn"),
        others: &[("type", "type"), ("state", "state"), ("rqpn", "peer_qpn"), ("pdn", "pd")],
    },
    Kind { name: ("cq", "cq"), number: ("cqn", "cq"), others: &[("cqe", "cqe"), ("users", "qps")] },
    Kind {
        name: ("mr", "mr"),
        number: ("mrn", "key"),
        others: &[("mrlen", "length"), ("pdn", "pd")],
    },
    Kind {
        name: ("cm_id", "cm-id"),
        number: ("cm-idn", "cm_id"),
        others: &[("state", "state"), ("ps", "ports")],
    },
];

/// What `rdma -j` prints, which is a list.
fn rdma(testbed: &Testbed, words: &str) -> Result<Vec<Value>> {
    let all: Vec<&str> = ["rdma", "-j"].into_iter().chain(words.split(' ')).collect();
    let output = testbed.run(Side::A, &all, TIMEOUT)?.success()?;
    serde_json::from_str(&output).map_err(|error| format!("rdma -j {words}: {error}: {output}"))
}

fn expect(what: &str, found: &Value, expected: &Value) -> Result {
    match found == expected {
        true => Ok(()),
        false => Err(format!("{what}: {found}, expected {expected}")),
    }
}

fn devices(testbed: &Testbed) -> Result<String> {
    let devices = rdma(testbed, "dev")?;
    let names: Vec<&Value> = devices.iter().map(|device| &device["ifname"]).collect();
    expect("rdma dev", &json!(names), &json!(["urxe0"]))?;
    let listed = testbed.run(Side::A, &["ibv_devices"], TIMEOUT)?.success()?;
    let guid = devices[0]["node_guid"].as_str().unwrap_or_default().replace(':', "");
    if guid.len() != 16 || !listed.contains(&guid) {
        return Err(format!("rdma dev has node_guid {guid:?}, ibv_devices {listed}"));
    }
    let links = rdma(testbed, "link")?;
    expect("rdma link", &json!(links.len()), &json!(1))?;
    expect("rdma link, state", &links[0]["state"], &json!("ACTIVE"))?;
    expect("rdma link, netdev", &links[0]["netdev"], &json!("lo"))?;
    let counters = rdma(testbed, "statistic show")?;
    match counters.first().and_then(|link| link["sent_pkts"].as_u64()) {
        Some(_) => Ok(String::new()),
        None => Err(format!("rdma statistic has no sent_pkts: {counters:?}")),
    }
}

/// A number of `urxe res`, which may be written in hexadecimal.
fn plain(value: &Value) -> Value {
    let hex = value.as_str().and_then(|text| text.strip_prefix("0x"));
    match hex.and_then(|digits| u64::from_str_radix(digits, 16).ok()) {
        Some(number) => json!(number),
        None => value.clone(),
    }
}

fn resources(testbed: &Testbed) -> Result<String> {
    let words = ["ib_write_bw", "-D", "60", "-q", "3", "-s", "64"];
    let _pair = testbed.start_pair((Side::A, Side::A), &words)?;
    let (address, port) = (testbed.address(Side::A).to_string(), Testbed::next_port().to_string());
    let _listener = testbed.start(Side::A, &["rping", "-s", "-a", &address, "-p", &port])?;
    let deadline = Instant::now() + TIMEOUT;
    loop {
        // While programs begin, one is shown what the other was not yet.
        match compare(testbed) {
            Ok(count) => return Ok(format!("{count} objects")),
            Err(reason) if Instant::now() > deadline => return Err(reason),
            Err(_) => std::thread::sleep(Duration::from_millis(100)),
        }
    }
}

fn compare(testbed: &Testbed) -> Result<usize> {
    let ours = testbed.devices(Side::A, &["res"])?;
    let ours = ours.first().ok_or("urxe res shows no device")?;
    let summary = rdma(testbed, "resource")?;
    let summary = summary.first().ok_or("rdma resource shows no device")?;
    let mut compared = 0;
    for Kind { name, number, others } in KINDS {
        let expected = ours[name.1].as_array().ok_or_else(|| format!("no {} of ours", name.1))?;
        let found = rdma(testbed, &format!("resource show {}", name.0))?;
        expect(name.0, &json!(found.len()), &json!(expected.len()))?;
        expect(name.0, &summary[name.0], &json!(expected.len()))?;
        for own in expected {
            let wanted = plain(&own[number.1]);
            let it = found.iter().find(|it| plain(&it[number.0]) == wanted);
            let it = it.ok_or_else(|| format!("rdma does not show {} {wanted}", name.0))?;
            for (theirs, key) in others {
                expect(theirs, &plain(&it[*theirs]), &plain(&own[*key]))?;
            }
            let program = format!("{}[{}]", it["comm"].as_str().unwrap_or_default(), it["pid"]);
            expect("program", &json!(program), &own["program"])?;
            compared += 1;
        }
    }
    let domains = rdma(testbed, "resource show pd")?;
    expect("pd", &json!(domains.len()), &summary["pd"])?;
    // Three QPs and an MR at each end, and the listener.
    let expected = 3 * 2 + 2 + 2 + 1;
    match compared {
        count if count < expected => Err(format!("only {count} objects")),
        count => Ok(count),
    }
}

/// Refusals have the kernel's errno, and nothing hangs.
fn refusals(testbed: &Testbed) -> Result<String> {
    let refused = [
        ("rdma link add x type rxe netdev lo", "Operation not supported"),
        ("rdma statistic qp show", "Operation not supported"),
        ("rdma dev show urxe9", ""),
    ];
    for (words, reason) in refused {
        let words: Vec<&str> = words.split(' ').collect();
        let ended = testbed.run(Side::A, &words, TIMEOUT)?;
        if ended.success().is_ok() || !ended.output().contains(reason) {
            return Err(format!("{}: {}", words.join(" "), ended.output()));
        }
    }
    Ok(String::new())
}
