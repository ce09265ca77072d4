//! What a script takes in, and what it says of the tester's own end.

use super::*;
use crate::packet::{packet, positive_ack};
use crate::testing::{DEVICE, FakeDevice, FakeLink, finding, twisted};
use crate::verdict::Verdict;
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use urxe_types::PathMtu;
use urxe_wire::Opcode;

const SOMEBODY: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 9));

fn silent() -> (FakeLink, FakeDevice) {
    twisted(|_, _, _| Some(Vec::new()))
}

fn script((link, device): &mut (FakeLink, FakeDevice)) -> Script<'_> {
    Script::new(link, device, Waits::default(), 1)
}

#[test]
fn packets_of_others_for_none_of_our_qps_are_not_the_devices() {
    let mut ends = silent();
    let wire = std::rc::Rc::clone(&ends.0.wire);
    let mut t = script(&mut ends);
    t.connect(&Setup::rc()).unwrap();
    let other = t.our_qpn() ^ 1;
    let stray = packet(Opcode::RC_SEND_ONLY).to(other);
    wire.borrow_mut().deliver(SOMEBODY, &stray);
    t.expect_no_answer_at_all().unwrap();
    assert!(t.evidence.records.is_empty());
    wire.borrow_mut().deliver(DEVICE, &stray);
    assert!(matches!(t.expect_no_answer_at_all(), Err(Stop::Failed { .. })));
    // One for a QP of ours is looked at, whoever sends it.
    wire.borrow_mut().deliver(SOMEBODY, &positive_ack(0, 1));
    assert_eq!(t.expect(expect::ack(0)).unwrap().flow().src, SOMEBODY);
}

#[test]
fn an_answer_that_is_too_short_for_its_headers_is_no_silence() {
    for len in [1, 4, 15] {
        let mut ends = silent();
        let wire = std::rc::Rc::clone(&ends.0.wire);
        let mut t = script(&mut ends);
        t.connect(&Setup::rc()).unwrap();
        wire.borrow_mut().deliver_bytes(SOMEBODY, vec![0x11; len]);
        t.expect_nothing().unwrap();
        wire.borrow_mut().deliver_bytes(DEVICE, vec![0x11; len]);
        assert!(matches!(t.expect_nothing(), Err(Stop::Failed { .. })), "{len} bytes");
        assert_eq!(t.evidence.records.len(), 1);
        let _ = t.evidence.records[0].to_string();
    }
}

#[test]
fn a_packet_that_was_not_sent_is_no_evidence_and_no_fault_of_the_device() {
    let mut ends = silent();
    ends.0.wire.borrow_mut().fails = Some(io::ErrorKind::PermissionDenied);
    for name in ["write/only-is-acknowledged", "icrc/wrong-is-dropped"] {
        let found = finding(name, &mut ends);
        assert_eq!(found.verdict, Verdict::Inconclusive, "{name}: {}", found.seen);
        assert!(found.evidence.records.is_empty());
    }
}

#[test]
fn packets_that_the_testers_link_does_not_carry_are_not_asked_for() {
    for (largest, name, expected) in [
        (1500, "memory/path-mtu-4096", Verdict::NotSupported),
        (1500, "read/path-mtu-4096", Verdict::NotSupported),
        (1500, "hostile/longer-than-any-path-mtu", Verdict::NotSupported),
        (1500, "write/only-is-acknowledged", Verdict::Pass),
        (9000, "memory/path-mtu-4096", Verdict::Pass),
    ] {
        let mut ends = twisted(|_, _, _| None);
        ends.0.wire.borrow_mut().largest_packet = Some(largest);
        let found = finding(name, &mut ends);
        assert_eq!(found.verdict, expected, "{name}: {}", found.seen);
    }
    assert!(PathMtu::Mtu1024.bytes() + MOST_HEADERS + OuterHeaders::MAX_LEN < 1280);
}
