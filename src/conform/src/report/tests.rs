//! The outputs, of a run that was never made.

use super::*;
use crate::check::{Check, Risk};
use crate::packet::packet;
use crate::script::{Direction, Evidence, Record};
use urxe_port::capture::{Content, read};
use urxe_wire::{DONT_FRAGMENT, Flow, Opcode, icrc};

static CHECKS: [Check; 3] = [
    check("area/right", "RC-RESP-009"),
    check("area/wrong", "RC-RESP-009"),
    check("other/not-asked", "RC-RESP-010"),
];

const fn check(name: &'static str, rule: &'static str) -> Check {
    Check { name, rule, says: "It is <right>.", risk: Risk::None, run: |_| Ok(()) }
}

fn report() -> Report {
    let began = (SystemTime::UNIX_EPOCH + Duration::from_secs(951_782_400), Instant::now());
    let finding = |at: usize, verdict, expected: Option<&str>, seen: &str| Finding {
        check: &CHECKS[at],
        verdict,
        expected: expected.map(str::to_owned),
        seen: seen.into(),
        attempts: 1,
        passed: 0,
        is_late: false,
        evidence: evidence(began.1),
    };
    let wrong = finding(1, Verdict::Fail, Some("an \"ACK\""), "<script>\u{1} & more");
    Report {
        device: "a <device>".into(),
        tester: "a tester".into(),
        options: vec![("seed".into(), "7".into())],
        began,
        took: Duration::from_secs(2),
        findings: vec![
            finding(0, Verdict::Pass, None, ""),
            wrong,
            finding(2, Verdict::NeedsAgent, None, "needs a program"),
        ],
    }
}

/// A packet out, and the same in a millisecond later.
fn evidence(began: Instant) -> Evidence {
    let (src, dst) = ([10, 0, 0, 1].into(), [10, 0, 0, 2].into());
    let flow = Flow { src, dst, src_port: 0xc000, traffic_class: 0, hop_limit: 64, flow_label: 0 };
    let mut bytes = packet(Opcode::UC_SEND_ONLY).payload(&[1; 8]).to_bytes(0x11, 5);
    icrc::stamp(&flow, 9, &mut bytes);
    let out = Record {
        way: Direction::Out,
        at: began + Duration::from_millis(3),
        flow,
        ident: 9,
        fragment: DONT_FRAGMENT,
        bytes,
        icrc_is_right: true,
    };
    let back = Record { way: Direction::In, at: out.at + Duration::from_millis(1), ..out.clone() };
    Evidence { records: vec![out, back], left_out: 3 }
}

#[test]
fn results_are_counted_by_area_and_verdict() {
    let areas = report().areas();
    let counted = |area: &str, verdict| areas[area].of(verdict);
    assert_eq!((counted("area", Verdict::Pass), counted("area", Verdict::Fail)), (1, 1));
    assert_eq!((counted("other", Verdict::NeedsAgent), report().count().all()), (1, 3));
}

#[test]
fn the_table_tells_what_is_wrong_with_its_rule_and_why_something_was_not_asked() {
    let text = table::text(&report());
    for part in [
        "area/wrong fail",
        "RC-RESP-009 (IBTA 9.4.3): A plain WRITE",
        "expected  an \"ACK\"",
        "1  needs a program",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(!text.contains("area/right"), "{text}");
}

#[test]
fn json_has_each_check_with_its_rule_and_the_packets_of_what_is_wrong() {
    let value = json::value(&report());
    assert_eq!(value["date"], "2000-02-29T00:00:00Z");
    assert_eq!((&value["counts"]["fail"], &value["options"]["seed"]), (&1.into(), &"7".into()));
    let [right, wrong, _] = value["checks"].as_array().unwrap().as_slice() else { panic!() };
    assert_eq!(right["packets"].as_array().unwrap().len(), 0);
    assert_eq!((&wrong["verdict"], &wrong["source"]), (&"fail".into(), &"IBTA 9.4.3".into()));
    let packets = wrong["packets"].as_array().unwrap();
    let second = packets[1].as_str().unwrap();
    assert!(second.starts_with("    1.000 ms  came  UC SEND ONLY"), "{second}");
    assert_eq!(packets[2], "and 3 more");
}

#[test]
fn a_device_cannot_put_markup_into_a_report() {
    for text in [html::text(&report()), junit::text(&report())] {
        assert!(text.contains("&lt;script&gt;\u{fffd} &amp; more"), "{text}");
        assert!(!text.contains("<script>") && !text.contains("a <device>"), "{text}");
    }
}

#[test]
fn junit_counts_what_failed_and_what_was_skipped() {
    let text = junit::text(&report());
    let suite = "<testsuite name=\"area\" tests=\"2\" failures=\"1\" errors=\"0\" skipped=\"0\"";
    assert!(text.contains(suite), "{text}");
    assert!(text.contains("<skipped message=\"needs-agent: needs a program\"/>"), "{text}");
}

#[test]
fn the_report_for_a_vendor_shows_what_is_wrong_first_and_its_packets() {
    let text = html::text(&report());
    let at = |part: &str| text.find(part).unwrap_or_else(|| panic!("{part}: {text}"));
    assert!(at("area/wrong") < at("area/right"));
    assert!(at("sent  UC SEND ONLY") < at("area/right"));
    assert!(text.contains("<details open>"), "{text}");
}

#[test]
fn packets_are_written_as_a_capture_with_their_times_and_icrcs() {
    let report = report();
    let mut file = Vec::new();
    evidence::write(&report.findings[1].evidence, report.began, &mut file).unwrap();
    let mut packets = Vec::new();
    read(file.as_slice(), |frame| match frame.content {
        Content::Roce { outer, bytes } => packets.push((frame.time, outer.flow, bytes.to_vec())),
        other => panic!("{other:?}"),
    })
    .unwrap();
    let began = report.began.0.duration_since(SystemTime::UNIX_EPOCH).unwrap();
    let record = &report.findings[1].evidence.records[0];
    let packet = |after| (began + Duration::from_millis(after), record.flow, record.bytes.clone());
    assert_eq!(packets, [packet(3), packet(4)]);
}
