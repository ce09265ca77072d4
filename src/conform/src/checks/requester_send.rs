//! What the requester of a reliable connection sends: packets, headers and numbers.

use crate::agent::{SendWr, Status};
use crate::check::{Check, Outcome, Risk};
use crate::device::{SOURCE, Setup};
use crate::expect::request;
use crate::packet::positive_ack;
use crate::script::Script;
use urxe_wire::Opcode;

pub(super) const CHECKS: &[Check] = &[Check {
    name: "requester-send/short-message-is-one-packet",
    rule: "RC-REQ-001",
    says: "A message that fits into the path MTU is one SEND ONLY that asks for an \
           acknowledgement, and completes when it is acknowledged.",
    risk: Risk::None,
    run: short_message_is_one_packet,
}];

fn short_message_is_one_packet(t: &mut Script<'_>) -> Outcome {
    t.connect(&Setup::rc())?;
    let data = t.bytes(100);
    t.fill(SOURCE, &data)?;
    t.post(&[SendWr::send(1, SOURCE..SOURCE + 100)])?;
    t.expect(request(Opcode::RC_SEND_ONLY, 0).payload(&data).ack_req(true))?;
    t.send(positive_ack(0, 1))?;
    t.expect_completion(1, Status::Success)?;
    t.expect_nothing()
}
