//! A packet as an object for programs. `JSON.md` has the keys.

use super::decoded::{Decoded, Fields};
use super::line::FilePacket;
use super::verdict::{Why, names, verdict};
use serde::Serialize;
use std::net::IpAddr;
use urxe_port::capture::{Captured, Frame, PacketDirection};
use urxe_shm::control::CounterInfo;
use urxe_wire::Flow;
use urxe_wire::icrc::Verdict;

/// A packet.
#[derive(Serialize)]
pub(super) struct Object<'a> {
    /// Nanoseconds since 1970.
    time_ns: u64,
    src: IpAddr,
    dst: IpAddr,
    src_port: u16,
    traffic_class: u8,
    /// Bytes of UDP payload.
    length: usize,
    #[serde(flatten)]
    fields: Fields,
    #[serde(flatten)]
    known: Known<'a>,
}

/// What is known of it beside its bytes.
#[derive(Serialize)]
#[serde(untagged)]
enum Known<'a> {
    /// It was sent.
    Sent {
        device: &'a str,
        direction: &'static str,
        qpn: Option<u32>,
        why: &'static str,
        after: Option<&'a str>,
    },
    /// It came.
    Received {
        device: &'a str,
        direction: &'static str,
        qpn: Option<u32>,
        outcome: String,
        counted: Vec<&'a str>,
    },
    /// It stands in a file.
    Filed { frame: u64, icrc_wrong: bool },
}

/// A frame of a file that cannot be used.
#[derive(Serialize)]
struct Unusable {
    time_ns: u64,
    frame: u64,
    error: String,
}

/// How many packets are missing.
#[derive(Serialize)]
pub(super) struct Lost {
    /// Packets.
    pub(super) not_captured: u64,
}

impl<'a> Object<'a> {
    /// A packet of a device, as the daemon tells of it.
    pub(super) fn live(
        device: &'a str,
        packet: &Captured<'_>,
        decoded: &Decoded,
        counters: &'a [CounterInfo],
    ) -> Object<'a> {
        let qpn = packet.qpn.map(|qpn| qpn.get());
        let counted: Vec<&str> = names(counters, packet.counted).collect();
        let known = match packet.direction {
            PacketDirection::Inbound => {
                let outcome = verdict(counters, packet.counted);
                Known::Received { device, direction: "received", qpn, outcome, counted }
            }
            PacketDirection::Outbound => {
                let why = Why::of(decoded.body(), counters, packet.counted);
                let after = why.is_again().then(|| counted.last().copied()).flatten();
                Known::Sent { device, direction: "sent", qpn, why: why.word(), after }
            }
        };
        Object::new(packet.time, &packet.flow, packet.length, decoded, known)
    }

    fn new(
        time_ns: u64,
        flow: &Flow,
        length: usize,
        decoded: &Decoded,
        known: Known<'a>,
    ) -> Object<'a> {
        let &Flow { src, dst, src_port, traffic_class, .. } = flow;
        let fields = decoded.fields();
        Object { time_ns, src, dst, src_port, traffic_class, length, fields, known }
    }
}

/// The line of JSON of a frame.
pub(super) fn of_frame(
    frame: &Frame<'_>,
    shown: &FilePacket<'_>,
) -> Result<String, crate::error::Error> {
    let time_ns = u64::try_from(frame.time.as_nanos()).unwrap_or(u64::MAX);
    match shown {
        FilePacket::Packet { outer, length, decoded, icrc } => {
            let known = Known::Filed { frame: frame.number, icrc_wrong: *icrc == Verdict::Bad };
            let object = Object::new(time_ns, &outer.flow, *length, decoded, known);
            crate::output::json_line(&object)
        }
        FilePacket::Unusable(reason) => {
            let error = reason.to_string();
            crate::output::json_line(&Unusable { time_ns, frame: frame.number, error })
        }
    }
}
