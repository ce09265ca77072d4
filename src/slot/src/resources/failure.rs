//! Why work requests fail, in sentences.

use super::qp;
use crate::refusal::no_such;
use crate::session::{Answer, Session, SlotCtx};
use std::fmt::Write;
use std::net::IpAddr;
use std::time::Duration;
use urxe_engine::{Cause, Counter, Counters};
use urxe_nic::Nic;
use urxe_port::{IcmpError, IcmpReason, PortCounters};
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
    /// How long nothing had come when it failed, if the peer had answered before.
    silence: Option<Duration>,
    /// What ICMP said last of packets to the peer at this address.
    icmp: Option<(IpAddr, IcmpError)>,
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
    let known = Cause::from_number(cause);
    let failed_at = history.failed_request().map(|failed| failed.at);
    let silence = history.heard().zip(failed_at).filter(|_| known == Some(Cause::AckTimeout));
    let silence = silence.and_then(|(heard, failed)| failed.checked_duration_since(heard));
    // What was said before there was this QP may be true no longer.
    let began = history.entries().next().map(|entry| entry.at);
    let icmp = info.attr.av.as_ref().and_then(|av| Some((av.dgid, nic.icmp_error(av.dgid)?)));
    let icmp = icmp.filter(|(_, error)| began.is_some_and(|began| error.last >= began));
    let damaged = device.counters().get(Counter::DropBadIcrc);
    let qp = device.qp_counters(qpn)?;
    let seen = Seen { qp, port: nic.port_counters(), damaged, size, silence, icmp };
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
        // What came when it had failed already was not looked at.
        let unseen = of(Counter::DropQpNotReady);
        if foreign > 0 && foreign + unseen >= came {
            let _ = write!(
                said,
                " All were answers to PSNs that this QP is not waiting for: its sq_psn and the \
                 peer's rq_psn must be the same."
            );
        }
        // WHY-024
        if let Some(silence) = self.silence.filter(|_| foreign == 0) {
            let _ = write!(
                said,
                " The last came {} ms before this work request failed.",
                silence.as_millis()
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
                " Since it began, this device has dropped {damaged} packets whose ICRC was wrong: \
                 if they become more, something on the way changes them."
            );
        }
        // WHY-025
        if let Some((peer, error)) = self.icmp {
            let _ = write!(said, " {}", icmp_sentence(peer, error));
        }
        let PortCounters { tx_unreachable, .. } = self.port;
        if tx_unreachable > 0 {
            let _ = write!(
                said,
                " Since it began, {tx_unreachable} packets of this device had no route to their \
                 host."
            );
        }
        said
    }
}

fn icmp_sentence(peer: IpAddr, error: IcmpError) -> String {
    let IcmpError { reason, said_by, times, .. } = error;
    let times = if times == 1 { "once".to_owned() } else { format!("{times} times") };
    let (meaning, advice) = match reason {
        IcmpReason::PortClosed => (
            "nobody has UDP port 4791 open there",
            "start urxed, or the RDMA device, on that machine",
        ),
        IcmpReason::Unreachable => {
            ("there is no way to that address, or nobody there", "look at it with urxe ping")
        }
        IcmpReason::TooLong => {
            ("packets are too long for a link on the way", "use a smaller path MTU")
        }
        IcmpReason::Forbidden => ("a firewall forbids it", "open UDP port 4791 there"),
    };
    format!("Of packets to {peer}, {said_by} has said {times} by ICMP that {meaning}: {advice}.")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(qp: &Counters, port: PortCounters) -> Seen<'_> {
        Seen { qp, port, damaged: 0, size: None, silence: None, icmp: None }
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
        counters.add(Counter::ReceivedPackets, 2);
        counters.add(Counter::RnrNaksReceived, 2);
        let said = seen(&counters, port).sentence();
        assert!(said.contains("2 have come back: 0 ACKs") && said.contains("2 RNR NAKs"), "{said}");
        assert!(!said.contains("sq_psn"), "{said}");
        counters.add(Counter::GhostResponses, 1);
        counters.add(Counter::StaleResponses, 1);
        let said = seen(&counters, port).sentence();
        let mistake = "its sq_psn and the peer's rq_psn must be the same";
        assert!(said.contains(mistake), "{said}");
        // Nothing is known of an answer that came when all was over.
        counters.add(Counter::ReceivedPackets, 1);
        counters.add(Counter::DropQpNotReady, 1);
        let said = seen(&counters, port).sentence();
        assert!(said.contains(mistake), "{said}");
        counters.add(Counter::ReceivedPackets, 1);
        assert!(!seen(&counters, port).sentence().contains(mistake));
    }

    #[test]
    fn messages_that_fail_because_they_are_long_are_told_from_others() {
        let counters = Counters::default();
        let said = |done, failed| {
            let size = Some(Size { done, failed, mtu: 4096 });
            Seen { size, ..seen(&counters, PortCounters::default()) }.sentence()
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
        let said = Seen { damaged: 3, ..seen(qp, port) }.sentence();
        assert!(said.contains("dropped 3 packets whose ICRC was wrong"), "{said}");
    }

    #[test]
    fn a_peer_that_falls_silent_is_told_from_one_that_still_answers() {
        let mut counters = Counters::default();
        counters.add(Counter::ReceivedPackets, 2);
        let silence = Some(Duration::from_millis(470));
        let said = |counters: &Counters| {
            Seen { silence, ..seen(counters, PortCounters::default()) }.sentence()
        };
        let silent = said(&counters);
        assert!(silent.contains("The last came 470 ms before this work request"), "{silent}");
        counters.add(Counter::GhostResponses, 2);
        assert!(!said(&counters).contains("The last came"));
    }

    #[test]
    fn an_icmp_error_of_a_peer_is_told_with_what_to_do() {
        let (qp, peer) = (Counters::default(), IpAddr::from([10, 0, 0, 2]));
        let last = std::time::Instant::now();
        let said = |reason, said_by: [u8; 4], times| {
            let icmp = Some((peer, IcmpError { reason, said_by: said_by.into(), times, last }));
            Seen { icmp, ..seen(&qp, PortCounters::default()) }.sentence()
        };
        for (reason, part) in [
            (IcmpReason::PortClosed, "UDP port 4791 open there: start urxed"),
            (IcmpReason::Unreachable, "no way to that address"),
            (IcmpReason::TooLong, "too long for a link on the way: use a smaller path MTU"),
            (IcmpReason::Forbidden, "a firewall forbids it"),
        ] {
            let said = said(reason, [10, 0, 0, 1], 3);
            let by = "Of packets to 10.0.0.2, 10.0.0.1 has said 3 times by ICMP that";
            assert!(said.contains(by) && said.contains(part), "{said}");
        }
        assert!(said(IcmpReason::PortClosed, [10, 0, 0, 2], 1).contains("said once by ICMP"));
    }
}
