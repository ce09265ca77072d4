//! Acknowledgements: their fields, when they come, and what they stand for.

use super::answers::atomic_answer;
use super::requests::{fetch_add, read, silent_write, write_only, writes};
use crate::Arrived;
use crate::check::{Check, Outcome, Risk, Stop, ensure};
use crate::device::Setup;
use crate::expect::{ack, atomic_result};
use crate::packet::Packet;
use crate::script::Script;
use urxe_wire::{Bth, Syndrome, icrc};

pub(super) const CHECKS: &[Check] = &[
    Check {
        name: "acks/partition-is-the-connections",
        rule: "WIRE-022",
        says: "An ACK carries the partition of its connection.",
        risk: Risk::None,
        run: partition_is_the_connections,
    },
    Check {
        name: "acks/migreq-is-set",
        rule: "WIRE-003",
        says: "An ACK has MigReq set: a QP without an alternate path is in the migrated state.",
        risk: Risk::None,
        run: migreq_is_set,
    },
    Check {
        name: "acks/version-is-0",
        rule: "WIRE-004",
        says: "An ACK is of transport header version 0.",
        risk: Risk::None,
        run: version_is_0,
    },
    Check {
        name: "acks/reserved-bits-are-0",
        rule: "WIRE-001",
        says: "The reserved bits of an ACK are 0.",
        risk: Risk::None,
        run: reserved_bits_are_0,
    },
    Check {
        name: "acks/congestion-bits-are-0",
        rule: "WIRE-002",
        says: "FECN and BECN of an ACK are 0 where nothing was marked.",
        risk: Risk::None,
        run: congestion_bits_are_0,
    },
    Check {
        name: "acks/neither-solicited-nor-asking",
        rule: "WIRE-002",
        says: "An ACK asks for no acknowledgement and is not solicited.",
        risk: Risk::None,
        run: neither_solicited_nor_asking,
    },
    Check {
        name: "acks/nothing-but-headers",
        rule: "WIRE-010",
        says: "An ACK is a BTH, an AETH and the ICRC, without payload and padding.",
        risk: Risk::None,
        run: nothing_but_headers,
    },
    Check {
        name: "acks/source-port-is-of-the-range-for-roce",
        rule: "WIRE-030",
        says: "An ACK comes from a UDP source port of the range for RoCEv2 senders.",
        risk: Risk::None,
        run: source_port_is_of_the_range_for_roce,
    },
    Check {
        name: "acks/source-port-stays",
        rule: "WIRE-030",
        says: "The ACKs of a connection come from one source port, so that all take one path.",
        risk: Risk::None,
        run: source_port_stays,
    },
    Check {
        name: "acks/source-address-is-the-devices",
        rule: "COUNT-008",
        says: "An ACK comes from the address that the request went to.",
        risk: Risk::None,
        run: source_address_is_the_devices,
    },
    Check {
        name: "acks/hop-limit-reaches-us",
        rule: "ADDR-006",
        says: "An ACK has a hop limit that is left when it arrives.",
        risk: Risk::None,
        run: hop_limit_reaches_us,
    },
    Check {
        name: "acks/traffic-class-is-the-connections",
        rule: "ADDR-006",
        says: "The traffic class of ACKs is the connection's, whatever a request came with.",
        risk: Risk::None,
        run: traffic_class_is_the_connections,
    },
    Check {
        name: "acks/credits-are-not-told",
        rule: "RC-RESP-050",
        says: "An ACK tells credits only if the device counts them; 31 says that it does not.",
        risk: Risk::None,
        run: credits_are_not_told,
    },
    Check {
        name: "acks/none-where-none-is-asked-for",
        rule: "RC-RESP-037",
        says: "A request without AckReq need not be acknowledged.",
        risk: Risk::None,
        run: none_where_none_is_asked_for,
    },
    Check {
        name: "acks/in-the-midst-of-a-message",
        rule: "RC-RESP-037",
        says: "AckReq in the midst of a message is answered, before the message counts.",
        risk: Risk::None,
        run: in_the_midst_of_a_message,
    },
    Check {
        name: "acks/at-the-first-packet-of-a-message",
        rule: "RC-RESP-037",
        says: "AckReq in the first packet of a message is answered.",
        risk: Risk::None,
        run: at_the_first_packet_of_a_message,
    },
    Check {
        name: "acks/the-last-of-many-speaks-for-all",
        rule: "RC-RESP-036",
        says: "Many requests that come at once are acknowledged up to the last, by one ACK or \
               by several.",
        risk: Risk::None,
        run: the_last_of_many_speaks_for_all,
    },
    Check {
        name: "acks/stands-for-those-that-did-not-ask",
        rule: "RC-RESP-036",
        says: "An ACK stands for the requests before it that asked for none, and its MSN counts \
               them.",
        risk: Risk::None,
        run: stands_for_those_that_did_not_ask,
    },
    Check {
        name: "acks/do-not-overtake-read-responses",
        rule: "RC-RESP-019",
        says: "The ACK of a WRITE behind a READ comes after the READ's responses.",
        risk: Risk::None,
        run: do_not_overtake_read_responses,
    },
    Check {
        name: "acks/msn-counts-reads",
        rule: "RC-RESP-055",
        says: "A READ counts as one message in the MSN, whatever number of responses it has.",
        risk: Risk::None,
        run: msn_counts_reads,
    },
    Check {
        name: "acks/msn-counts-atomics",
        rule: "RC-RESP-055",
        says: "An atomic counts as a message in the MSN.",
        risk: Risk::None,
        run: msn_counts_atomics,
    },
    Check {
        name: "acks/msn-of-many-messages",
        rule: "RC-RESP-036",
        says: "The MSN counts up by one for each message.",
        risk: Risk::None,
        run: msn_of_many_messages,
    },
];

fn partition_is_the_connections(t: &mut Script<'_>) -> Outcome {
    let ack = acknowledged(t)?;
    ensure(ack.pkey() & 0x7fff == 0x7fff, "P_Key 0xffff", || format!("{:#06x}", ack.pkey()))
}

fn migreq_is_set(t: &mut Script<'_>) -> Outcome {
    let ack = acknowledged(t)?;
    ensure(ack.flags() & 0x40 != 0, "MigReq set", || "MigReq cleared".into())
}

fn version_is_0(t: &mut Script<'_>) -> Outcome {
    let ack = acknowledged(t)?;
    ensure(ack.flags() & 15 == 0, "version 0", || format!("version {}", ack.flags() & 15))
}

fn reserved_bits_are_0(t: &mut Script<'_>) -> Outcome {
    let ack = acknowledged(t)?;
    let reserved = (ack.congestion() & 0x3f, ack.reserved());
    ensure(reserved == (0, 0), "zeros", || format!("{reserved:02x?}"))
}

fn congestion_bits_are_0(t: &mut Script<'_>) -> Outcome {
    let ack = acknowledged(t)?;
    let bits = ack.congestion() & 0xc0;
    ensure(bits == 0, "FECN and BECN cleared", || format!("{bits:#04x}"))
}

fn neither_solicited_nor_asking(t: &mut Script<'_>) -> Outcome {
    let ack = acknowledged(t)?;
    ensure(!ack.ack_req(), "AckReq cleared", || "AckReq set".into())?;
    ensure(!ack.solicited(), "solicited event cleared", || "solicited event set".into())
}

fn nothing_but_headers(t: &mut Script<'_>) -> Outcome {
    let ack = acknowledged(t)?;
    let len = ack.bytes.len();
    ensure(len == Bth::LEN + 4 + icrc::LEN, "20 bytes", || format!("{len} bytes"))?;
    ensure(ack.pad() == 0, "pad count 0", || ack.pad().to_string())
}

fn source_port_is_of_the_range_for_roce(t: &mut Script<'_>) -> Outcome {
    let port = acknowledged(t)?.flow().src_port;
    if port < 0xc000 {
        t.allow(format!("ACKs come from source port {port}, below 49152"));
    }
    Ok(())
}

fn source_port_stays(t: &mut Script<'_>) -> Outcome {
    let first = acknowledged(t)?.flow().src_port;
    t.send(write_only(t, 1, 0, &[1; 8]))?;
    let second = t.expect_acked(1, 2)?.flow().src_port;
    if first != second {
        t.allow("ACKs of one connection come from different source ports");
    }
    Ok(())
}

fn source_address_is_the_devices(t: &mut Script<'_>) -> Outcome {
    let ack = acknowledged(t)?;
    let (wanted, found) = (t.flow().dst, ack.flow().src);
    ensure(wanted == found, &wanted.to_string(), || found.to_string())
}

fn hop_limit_reaches_us(t: &mut Script<'_>) -> Outcome {
    let ack = acknowledged(t)?;
    if !t.sees_headers() {
        return Err(Stop::NeedsRaw("this port does not show the hop limit".into()));
    }
    ensure(ack.flow().hop_limit > 0, "a hop limit above 0", || "0".into())
}

fn traffic_class_is_the_connections(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc().write())?;
    if !t.sees_headers() {
        return Err(Stop::NeedsRaw("this port does not show the traffic class".into()));
    }
    let mut classes = Vec::new();
    for (psn, traffic_class) in [(0, 0), (1, 0x68)] {
        let mut flow = t.flow();
        flow.traffic_class = traffic_class;
        t.set_flow(flow);
        t.send(write_only(t, psn, 0, &[1; 8]))?;
        classes.push(t.expect_acked(psn, psn as u32 + 1)?.flow().traffic_class >> 2);
    }
    if classes[0] != classes[1] {
        t.allow("an ACK has the traffic class of the request that it answers");
    }
    Ok(())
}

fn credits_are_not_told(t: &mut Script<'_>) -> Outcome {
    let ack = acknowledged(t)?;
    match ack.aeth() {
        Some((Syndrome::Ack { credits }, _)) if credits.code() != 31 => {
            t.allow(format!("tells credits: code {}", credits.code()));
            Ok(())
        }
        _ => Ok(()),
    }
}

fn none_where_none_is_asked_for(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc().write())?;
    t.send(silent_write(t, 0, 0, &[1; 8]))?;
    if t.expect_nothing_or(&[ack(0).msn(1)])?.is_some() {
        t.allow("acknowledges what does not ask for it");
    }
    t.expect_service(1, 2)
}

fn in_the_midst_of_a_message(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc().write())?;
    let data = t.bytes(3000);
    let mut packets = writes(t, 0, 0, &data);
    packets[1].ack_req = true;
    t.send_all(&packets[..2])?;
    t.expect_acked(1, 0)?;
    t.send(packets[2].clone())?;
    t.expect_acked(2, 1)?;
    t.expect_nothing()
}

fn at_the_first_packet_of_a_message(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc().write())?;
    let data = t.bytes(2000);
    let mut packets = writes(t, 0, 0, &data);
    packets[0].ack_req = true;
    t.send(packets[0].clone())?;
    t.expect_acked(0, 0)?;
    t.send(packets[1].clone())?;
    t.expect_acked(1, 1)?;
    Ok(())
}

fn the_last_of_many_speaks_for_all(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc().write())?;
    let packets: Vec<Packet> = (0..10).map(|psn| write_only(t, psn, 0, &[1; 8])).collect();
    t.send_all(&packets)?;
    t.expect_acked(9, 10)?;
    t.expect_nothing()
}

fn stands_for_those_that_did_not_ask(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc().write())?;
    let mut packets: Vec<Packet> = (0..3).map(|psn| silent_write(t, psn, 0, &[1; 8])).collect();
    packets.push(write_only(t, 3, 0, &[1; 8]));
    t.send_all(&packets)?;
    t.expect_acked(3, 4)?;
    t.expect_nothing()
}

fn do_not_overtake_read_responses(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc().write().read())?;
    let write = write_only(t, 3, 8192, &[1; 8]);
    t.send_all(&[read(t, 0, 0, 3000), write])?;
    t.expect_read_among(0, 3000, 1, 2)?;
    t.expect_acked(3, 2)?;
    Ok(())
}

fn msn_counts_reads(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc().read())?;
    t.send(read(t, 0, 0, 2500))?;
    t.expect_read(0, 2500, 1)?;
    t.send(read(t, 3, 0, 10))?;
    t.expect_read(3, 10, 2)?;
    Ok(())
}

fn msn_counts_atomics(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc().atomic())?;
    for i in 0..2 {
        t.send(fetch_add(t, i, 0, 0))?;
        atomic_answer(t, atomic_result(i).msn(i as u32 + 1))?;
    }
    Ok(())
}

fn msn_of_many_messages(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc().write())?;
    for psn in 0..5 {
        t.expect_service(psn, psn as u32 + 1)?;
    }
    Ok(())
}

/// The ACK of a simple WRITE.
fn acknowledged(t: &mut Script<'_>) -> Outcome<Arrived> {
    t.connect(&Setup::rc().write())?;
    t.send(write_only(t, 0, 0, &[1; 8]))?;
    t.expect_acked(0, 1)
}
