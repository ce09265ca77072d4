//! Why work requests fail, in sentences.

use super::qp;
use crate::refusal::no_such;
use crate::session::{Answer, Session, SlotCtx};
use std::fmt::Write;
use urxe_engine::{Cause, Counter, Counters};
use urxe_nic::Nic;
use urxe_port::PortCounters;
use urxe_shm::control::{ControlError, QpHandle, Reply};
use urxe_types::Qpn;

/// Says why a work request of a QP has completed with this number.
pub(super) fn explain(
    session: &Session,
    ctx: &SlotCtx,
    qp: QpHandle,
    cause: u32,
) -> Result<Answer, ControlError> {
    let (device, qpn) = qp::place(session, qp)?;
    let nic = &ctx.devices[device].nic;
    let said = reason(nic, qpn, cause).ok_or_else(|| no_such("qp", qp.0))?;
    Ok(Reply::Reason(said).into())
}

/// What has come of what a QP has sent.
struct Seen<'a> {
    qp: &'a Counters,
    port: PortCounters,
    /// Packets that its device has dropped because they were damaged.
    damaged: u64,
    size: Option<Size>,
}

/// Of messages and packets of a QP, in bytes.
#[derive(Clone, Copy)]
struct Size {
    /// The longest message that was done.
    done: u32,
    /// The first message that failed.
    failed: u32,
    /// The payload of the longest packet.
    mtu: u32,
}

/// Why something of a QP has ended with this number: the cause with what to do, the peer, and what
/// was seen of it where that matters. `None` if there is no such QP.
pub(crate) fn reason(nic: &Nic, qpn: Qpn, cause: u32) -> Option<String> {
    let device = nic.device();
    let (info, history) = (device.query_qp(qpn)?, device.qp_history(qpn)?);
    let size = history.failed_request().zip(info.attr.path_mtu).map(|(failed, mtu)| Size {
        done: history.longest_done(),
        failed: failed.length,
        mtu: mtu.bytes() as u32,
    });
    let damaged = device.counters().get(Counter::DropBadIcrc);
    let qp = device.qp_counters(qpn)?;
    let seen = Seen { qp, port: nic.port_counters(), damaged, size };
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
    Some(said)
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
        // WHY-022
        if let Some(Size { done, failed, mtu }) = self.size
            && done > 0
            && done < failed.min(mtu)
        {
            let packet = failed.min(mtu);
            let _ = write!(
                said,
                " Messages of up to {done} bytes were done, and this one has {failed}: maybe \
                 packets with {packet} bytes do not pass, and a smaller path MTU does."
            );
        }
        // WHY-023
        if self.damaged > 0 {
            let damaged = self.damaged;
            let _ = write!(
                said,
                " This device has dropped {damaged} packets whose ICRC was wrong: something on the \
                 way changes them."
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

    fn seen(qp: &Counters, port: PortCounters) -> Seen<'_> {
        Seen { qp, port, damaged: 0, size: None }
    }

    #[test]
    fn a_peer_that_is_silent_is_told_from_one_that_answers() {
        let mut counters = Counters::default();
        counters.add(Counter::SentPackets, 3);
        let port = PortCounters::default();
        let silent = seen(&counters, port);
        assert_eq!(
            silent.sentence(),
            "This QP has sent 3 packets, and nothing at all has come back."
        );
        let refused = seen(&counters, PortCounters { tx_refused: 2, ..port });
        assert!(refused.sentence().contains("2 times this device was told that a machine has no"));
        counters.add(Counter::ReceivedPackets, 2);
        counters.add(Counter::RnrNaksReceived, 2);
        let said = seen(&counters, port).sentence();
        assert!(said.contains("2 have come back: 0 ACKs") && said.contains("2 RNR NAKs"), "{said}");
        assert!(!said.contains("sq_psn"), "{said}");
        counters.add(Counter::GhostResponses, 1);
        counters.add(Counter::StaleResponses, 1);
        let said = seen(&counters, port).sentence();
        assert!(said.contains("its sq_psn and the peer's rq_psn must be the same"), "{said}");
    }

    #[test]
    fn messages_that_fail_because_they_are_long_are_told_from_others() {
        let counters = Counters::default();
        let said = |done, failed| {
            let size = Some(Size { done, failed, mtu: 4096 });
            Seen { qp: &counters, port: PortCounters::default(), damaged: 0, size }.sentence()
        };
        let long = said(512, 65536);
        assert!(long.contains("up to 512 bytes were done, and this one has 65536"), "{long}");
        assert!(long.contains("packets with 4096 bytes do not pass"), "{long}");
        for (done, failed) in [(0, 65536), (65536, 65536), (4096, 65536), (512, 64)] {
            let said = said(done, failed);
            assert!(!said.contains("path MTU"), "{said}");
        }
    }

    #[test]
    fn damaged_packets_are_told_of() {
        let (qp, port) = (&Counters::default(), PortCounters::default());
        let said = Seen { qp, port, damaged: 3, size: None }.sentence();
        assert!(said.contains("dropped 3 packets whose ICRC was wrong"), "{said}");
    }
}
