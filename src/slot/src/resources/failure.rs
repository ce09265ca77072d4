//! Why work requests fail, in sentences.

use super::qp;
use crate::refusal::no_such;
use crate::session::{Answer, Session, SlotCtx};
use std::fmt::Write;
use urxe_engine::{Cause, Counter, Counters, QpInfo};
use urxe_port::PortCounters;
use urxe_shm::control::{ControlError, QpHandle, Reply};

/// Says why a work request of a QP has completed with this number.
pub(super) fn explain(
    session: &Session,
    ctx: &SlotCtx,
    qp: QpHandle,
    cause: u32,
) -> Result<Answer, ControlError> {
    let (device, qpn) = qp::place(session, qp)?;
    let nic = &ctx.devices[device].nic;
    let info = nic.device().query_qp(qpn).ok_or_else(|| no_such("qp", qp.0))?;
    let none = Counters::default();
    let counters = nic.device().qp_counters(qpn).unwrap_or(&none);
    Ok(Reply::Reason(reason(&info, counters, nic.port_counters(), cause)).into())
}

/// What has come of what a QP has sent.
struct Seen<'a> {
    qp: &'a Counters,
    port: PortCounters,
}

/// Why something of a QP has ended with this number: the cause with what to do, the peer, and what
/// was seen of it where that matters.
pub(crate) fn reason(info: &QpInfo, qp: &Counters, port: PortCounters, cause: u32) -> String {
    let seen = Seen { qp, port };
    let known = Cause::from_number(cause);
    let mut said = known.map_or_else(|| format!("Cause {cause}."), |known| known.text().into());
    // WHY-020
    if let (Some(av), Some(qpn)) = (&info.attr.av, info.attr.dest_qpn) {
        let _ = write!(said, " The peer is QP {qpn} at {}.", av.dgid);
    }
    // WHY-021
    if let Some(Cause::AckTimeout | Cause::SequenceRetries | Cause::RnrRetries) = known {
        let _ = write!(said, " {}", seen.sentence());
    }
    said
}

impl Seen<'_> {
    fn sentence(&self) -> String {
        let of = |counter| self.qp.get(counter);
        let sent = of(Counter::SentPackets);
        let came = of(Counter::ReceivedPackets);
        let mut said = match came {
            0 => format!("This QP has sent {sent} packets, and nothing at all has come back."),
            _ => format!(
                "This QP has sent {sent} packets, and {came} have come back: {} ACKs, {} NAKs of \
                 what was missed, {} RNR NAKs, {} CNPs.",
                of(Counter::AcksReceived),
                of(Counter::SequenceNaksReceived),
                of(Counter::RnrNaksReceived),
                of(Counter::CnpsReceived),
            ),
        };
        let foreign = of(Counter::GhostResponses) + of(Counter::StaleResponses);
        if foreign > 0 && foreign >= came {
            let _ = write!(
                said,
                " All were answers to PSNs that this QP is not waiting for: its sq_psn and the \
                 peer's rq_psn must be the same."
            );
        }
        let PortCounters { tx_refused, tx_unreachable, .. } = self.port;
        if tx_refused > 0 {
            let _ = write!(
                said,
                " {tx_refused} times this device was told that a machine has no RoCE port open."
            );
        }
        if tx_unreachable > 0 {
            let _ = write!(
                said,
                " {tx_unreachable} packets of this device had no route to their host."
            );
        }
        said
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_that_is_silent_is_told_from_one_that_answers() {
        let mut counters = Counters::default();
        counters.add(Counter::SentPackets, 3);
        let port = PortCounters::default();
        let silent = Seen { qp: &counters, port };
        assert_eq!(
            silent.sentence(),
            "This QP has sent 3 packets, and nothing at all has come back."
        );
        let refused = Seen { qp: &counters, port: PortCounters { tx_refused: 2, ..port } };
        assert!(refused.sentence().contains("2 times this device was told that a machine has no"));
        counters.add(Counter::ReceivedPackets, 2);
        counters.add(Counter::RnrNaksReceived, 2);
        let said = Seen { qp: &counters, port }.sentence();
        assert!(said.contains("2 have come back: 0 ACKs") && said.contains("2 RNR NAKs"), "{said}");
        assert!(!said.contains("sq_psn"), "{said}");
        counters.add(Counter::GhostResponses, 1);
        counters.add(Counter::StaleResponses, 1);
        let said = Seen { qp: &counters, port }.sentence();
        assert!(said.contains("its sq_psn and the peer's rq_psn must be the same"), "{said}");
    }
}
