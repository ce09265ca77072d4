//! RDMA WRITE at the responder of a reliable connection.

use crate::check::{Check, Outcome, Risk};
use crate::device::Setup;
use crate::expect::nak;
use crate::packet::{packet, write_message};
use crate::script::Script;
use urxe_types::PathMtu;
use urxe_wire::{NakCode, Opcode};

pub(super) const CHECKS: &[Check] = &[
    Check {
        name: "write/only-is-acknowledged",
        rule: "RC-RESP-009",
        says: "A WRITE ONLY that asks for it is acknowledged with its PSN and counts as a message.",
        risk: Risk::None,
        run: only_is_acknowledged,
    },
    Check {
        name: "write/in-packets-is-one-message",
        rule: "RC-RESP-009",
        says: "A WRITE of several packets counts as one message, and its last PSN is acknowledged.",
        risk: Risk::None,
        run: in_packets_is_one_message,
    },
    Check {
        name: "write/wrong-key-is-refused",
        rule: "RC-RESP-011",
        says: "A WRITE with an R_Key that opens nothing gets a remote access error.",
        risk: Risk::None,
        run: wrong_key_is_refused,
    },
];

fn only_is_acknowledged(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc().write())?;
    let data = t.bytes(100);
    t.send_all(&write_message(0, t.addr(0), t.rkey(), &data, PathMtu::Mtu1024))?;
    t.expect_acked(0, 1)?;
    t.expect_nothing()
}

fn in_packets_is_one_message(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc().write())?;
    let data = t.bytes(2500);
    t.send_all(&write_message(0, t.addr(0), t.rkey(), &data, PathMtu::Mtu1024))?;
    t.expect_acked(2, 1)?;
    t.expect_nothing()
}

fn wrong_key_is_refused(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc().write())?;
    let wrong = t.rkey() ^ 0x1000_0001;
    t.send(packet(Opcode::RC_WRITE_ONLY).reth(t.addr(0), wrong, 8).payload(&[7; 8]).ack_req())?;
    t.expect(nak(NakCode::RemoteAccess, 0))?;
    t.expect_nothing()
}
