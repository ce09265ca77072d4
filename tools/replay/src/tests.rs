//! The captures of kernel rxe, as they are and damaged on purpose.

use super::*;
use crate::finding::Tolerance;
use proptest::prelude::*;
use std::path::Path;
use trace::Captured;
use urxe_port::capture::{Content, Frame};
use urxe_types::Msn;
use urxe_wire::{Aeth, Body, NakCode, Response, Syndrome, icrc};

fn trace(file: &str) -> Trace {
    let captures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../interop/captures");
    Trace::read(&captures.join(file)).unwrap()
}

fn replayed(trace: Trace) -> Report {
    judge("a test".to_owned(), trace)
}

/// The fields that differ in a capture after something was done to one of its responses.
fn differences(file: &str, is_it: fn(&Captured) -> bool, change: fn(&mut Captured)) -> Vec<String> {
    let mut trace = trace(file);
    let packet = trace.packets.iter_mut().filter(|packet| !packet.is_request()).find(|p| is_it(p));
    change(packet.expect("there is such a response"));
    replayed(trace).fields()
}

fn is_ack(packet: &Captured) -> bool {
    matches!(packet.headers.body, Body::RcResponse(Response::Ack(_)))
}

fn is_read_response(packet: &Captured) -> bool {
    matches!(packet.headers.body, Body::RcResponse(response) if response.is_read())
}

/// The AETH of an ACK.
fn aeth(packet: &mut Captured) -> &mut Aeth {
    match &mut packet.headers.body {
        Body::RcResponse(Response::Ack(aeth)) => aeth,
        body => panic!("{} is no ACK", body.opcode()),
    }
}

/// File, responses compared, differences.
const CAPTURES: [(&str, u64, u64); 28] = [
    ("6.1/cm-rdma_client.pcap", 2, 0),
    ("6.1/cm-reject-no-listener.pcap", 0, 0),
    ("6.1/cm-rping-kernel-asks-v6.pcap", 8, 0),
    ("6.1/cm-rping-urxe-asks.pcap", 6, 0),
    ("6.1/cm-rping-v6-refused.pcap", 0, 0),
    ("6.1/cm-rping-v6.pcap", 18, 0),
    ("6.1/cm-rping.pcap", 18, 0),
    ("6.1/cm-sidr-udaddy.pcap", 0, 0),
    ("6.1/cm-ucmatose-v6.pcap", 4, 0),
    ("6.1/cm-ucmatose.pcap", 8, 0),
    ("6.1/loss-10pct-rc.pcap", 17, 0),
    ("6.1/mcast-mckey.pcap", 0, 0),
    ("6.1/perftest-atomic-lat.pcap", 5, 0),
    ("6.1/userspace-peer.pcap", 6, 0),
    ("6.1/vectors-err-v4.pcap", 7, 0),
    ("6.1/vectors-err-v6.pcap", 7, 0),
    ("6.1/vectors-rc-v4-mtu4096.pcap", 62, 0),
    ("6.1/vectors-rc-v4-tclass0x69.pcap", 74, 0),
    ("6.1/vectors-rc-v4.pcap", 74, 0),
    ("6.1/vectors-rc-v6-tclass0x69.pcap", 74, 0),
    ("6.1/vectors-uc-v4.pcap", 0, 0),
    ("6.1/vectors-ud-v4.pcap", 0, 0),
    ("6.1/vectors-ud-v6.pcap", 0, 0),
    ("6.12/cm-rping.pcap", 18, 0),
    ("6.12/cm-sidr-udaddy.pcap", 0, 0),
    ("6.12/vectors-err-v4.pcap", 7, 0),
    ("6.12/vectors-rc-v4.pcap", 74, 0),
    ("6.12/vectors-ud-v4.pcap", 0, 0),
];

#[test]
fn kernel_rxe_responds_as_our_engine_does() {
    for (file, compared, differences) in CAPTURES {
        let report = replayed(trace(file));
        let found = (report.compared, report.differences);
        assert_eq!(found, (compared, differences), "{file}\n{report}");
    }
}

#[test]
fn a_wrong_psn_is_found() {
    let further = |packet: &mut Captured| packet.headers.bth.psn = packet.headers.bth.psn + 3;
    assert_eq!(differences("6.1/vectors-rc-v4.pcap", is_ack, further), ["psn"]);
    assert_eq!(differences("6.1/vectors-rc-v4.pcap", is_read_response, further), ["psn"]);
}

#[test]
fn a_wrong_msn_is_found() {
    let change = |packet: &mut Captured| {
        let aeth = aeth(packet);
        aeth.msn = Msn::new(aeth.msn.get() + 1);
    };
    assert_eq!(differences("6.1/vectors-rc-v4.pcap", is_ack, change), ["msn"]);
}

/// The first READ of some memory only shows its content; what was written or read before and not
/// touched since can be wrong.
#[test]
fn wrong_data_is_found_if_the_capture_shows_what_is_right() {
    let whole = trace("6.1/vectors-rc-v4.pcap");
    let with_data = |packet: &Captured| is_read_response(packet) && !packet.payload.is_empty();
    let mut found = 0;
    let reads: Vec<usize> =
        (0..whole.packets.len()).filter(|&i| with_data(&whole.packets[i])).collect();
    for &i in &reads {
        let mut trace = whole.clone();
        trace.packets[i].payload[0] ^= 0x10;
        let fields = replayed(trace).fields();
        assert!(fields.iter().all(|field| field == "payload"), "{fields:?}");
        found += u32::from(!fields.is_empty());
    }
    assert_eq!((reads.len(), found), (24, 18));
}

#[test]
fn a_wrong_syndrome_is_found() {
    for code in [NakCode::RemoteAccess, NakCode::InvalidRequest, NakCode::RemoteOperational] {
        let mut trace = trace("6.1/vectors-rc-v4.pcap");
        let packet = trace.packets.iter_mut().find(|packet| is_ack(packet)).unwrap();
        aeth(packet).syndrome = Syndrome::Nak(code);
        assert_ne!(replayed(trace).differences, 0, "{code:?}");
    }
    let change = |packet: &mut Captured| {
        aeth(packet).syndrome = Syndrome::Nak(NakCode::InvalidRd);
    };
    assert!(differences("6.1/vectors-err-v4.pcap", is_ack, change).contains(&"syndrome".into()));
}

#[test]
fn a_wrong_atomic_value_is_found() {
    let mut trace = trace("6.1/perftest-atomic-lat.pcap");
    let mut values = trace.packets.iter_mut().filter_map(|packet| match &mut packet.headers.body {
        Body::RcResponse(Response::AtomicAck { original, .. }) => Some(original),
        _ => None,
    });
    *values.nth(1).unwrap() += 1;
    assert_eq!(replayed(trace).fields()[0], "atomic value");
}

#[test]
fn errors_in_any_response_are_found() {
    for (field, change) in [
        ("icrc", (|packet: &mut Captured| packet.intact = false) as fn(&mut Captured)),
        ("p_key", |packet| packet.headers.bth.pkey = urxe_types::Pkey(0x8001)),
        ("reserved", |packet| packet.headers.bth.resv7 = 1),
        ("ip flags", |packet| {
            packet.outer.ident = urxe_wire::Ident::Known { ident: 0, fragment: 0 };
        }),
    ] {
        assert_eq!(differences("6.1/vectors-rc-v4.pcap", is_ack, change), [field]);
    }
}

#[test]
fn a_coalesced_ack_is_allowed() {
    let mut trace = trace("6.1/vectors-rc-v4.pcap");
    let first = trace.packets.iter().position(is_ack).unwrap();
    trace.packets.remove(first);
    let report = replayed(trace);
    assert_eq!(report.differences, 0, "{report}");
    assert_eq!(report.tolerances(Tolerance::CoalescedAck), 1, "{report}");
}

#[test]
fn a_capture_that_begins_within_a_connection_or_has_a_gap_is_replayed() {
    let whole = trace("6.1/vectors-rc-v4.pcap");
    for gap in [0..11, 0..40, 30..37, 61..62, 100..131] {
        let mut trace = whole.clone();
        trace.packets.drain(gap.clone());
        let report = replayed(trace);
        assert_eq!(report.differences, 0, "{gap:?}\n{report}");
        assert!(report.compared > 20, "{gap:?}\n{report}");
    }
}

#[test]
fn a_capture_of_requests_alone_reports_that_nothing_was_compared() {
    let mut trace = trace("6.1/vectors-rc-v4.pcap");
    trace.packets.retain(Captured::is_request);
    let report = replayed(trace);
    assert_eq!((report.compared, report.differences), (0, 0));
    assert!(report.to_string().contains("Nothing to compare"), "{report}");
}

/// The packets of a capture as bytes, each with its outer headers.
fn datagrams(trace: &Trace) -> Vec<(urxe_wire::Outer, Vec<u8>)> {
    let bytes = |packet: &Captured| {
        let mut bytes = vec![0; packet.headers.len()];
        packet.headers.emit(&mut bytes);
        bytes.extend(&packet.payload);
        bytes.resize(bytes.len().next_multiple_of(4) + icrc::LEN, 0);
        bytes
    };
    trace.packets.iter().map(|packet| (packet.outer, bytes(packet))).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    /// Headers are damaged and the ICRC corrected, so that every packet is parsed.
    #[test]
    fn no_capture_causes_a_panic(
        file in prop::sample::select(CAPTURES.map(|(file, ..)| file).to_vec()),
        damage in prop::collection::vec(
            (any::<prop::sample::Index>(), any::<prop::sample::Index>(), any::<u8>()), 1..60,
        ),
        moves in prop::collection::vec(
            (any::<prop::sample::Index>(), any::<prop::sample::Index>()), 0..10,
        ),
    ) {
        let mut packets = datagrams(&trace(file));
        let len = packets.len();
        for (packet, place, byte) in damage {
            let (_, bytes) = &mut packets[packet.index(len)];
            // Damage to headers finds the most.
            let place = place.index(bytes.len().min(44));
            bytes[place] = byte;
        }
        for (from, to) in moves {
            packets.swap(from.index(len), to.index(len));
        }
        let mut trace = Trace::default();
        for (number, (outer, bytes)) in packets.iter_mut().enumerate() {
            icrc::stamp(&outer.flow, 0, bytes);
            let ident = urxe_wire::Ident::Known { ident: 0, fragment: urxe_wire::DONT_FRAGMENT };
            let outer = urxe_wire::Outer { ident, ..*outer };
            let time = std::time::Duration::from_micros(number as u64);
            let content = Content::Roce { outer, bytes };
            trace.push(&Frame { number: number as u64 + 1, time, content });
        }
        let report = replayed(trace);
        prop_assert!(report.to_string().len() > 10);
        prop_assert!(serde_json::to_string(&report).is_ok());
    }
}
