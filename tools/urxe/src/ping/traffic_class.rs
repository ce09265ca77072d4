//! Whether the network keeps the traffic class: the DSCP, by which switches choose the queue of a
//! packet (and its priority flow control), and ECN, by which they tell of congestion.
//!
//! An ICMP echo tells it where the host answers with the class that it was asked with, as Linux
//! does. Where one comes back without it, nobody knows from here who has cleared it.

use super::report::{Facts, Finding, Found};
use super::route::Route;
use std::io;
use std::time::Duration;
use urxe_port::echo::Echo;
use urxe_wire::ecn;

/// The DSCP that is tried: AF31, which many networks use for RoCE, and which means nothing bad to
/// others.
const DSCP: u8 = 26;

/// What is sent: may be marked.
const SENT: u8 = DSCP << 2 | ecn::CAPABLE;

/// How long an echo may take.
const WAIT: Duration = Duration::from_secs(1);

const HOW_TO_SEE: &str = "to see it, capture what arrives there (`urxed --capture FILE`, or tcpdump) \
                          while something is sent with a traffic class, and look at it with `urxe \
                          capture -r FILE` or Wireshark";

/// Sends an echo with a traffic class, and looks with which one it comes back.
pub(super) fn find(route: &Route) -> Found<()> {
    let echo = Echo::open(route.probe.source(), route.peer());
    let back = echo.and_then(|mut echo| echo.class_back(SENT, WAIT));
    let facts =
        Facts::TrafficClass { class_sent: SENT, class_back: *back.as_ref().unwrap_or(&None) };
    (judge(back).with(facts), Some(()))
}

/// What the class of the answer tells.
fn judge(back: io::Result<Option<u8>>) -> Finding {
    let class = match back {
        Err(error) => {
            let says =
                format!("it is not known whether DSCP and ECN are kept: no ICMP echo: {error}");
            return Finding::unknown(
                says,
                format!("net.ipv4.ping_group_range says who may send some; or {HOW_TO_SEE}"),
            );
        }
        Ok(None) => {
            let says = "it is not known whether DSCP and ECN are kept: no ICMP echo came back";
            return Finding::unknown(says, HOW_TO_SEE);
        }
        Ok(Some(class)) => class,
    };
    let (dscp, bits) = (class >> 2, class & ecn::MASK);
    let sent = format!("an ICMP echo with DSCP {DSCP} and ECT(0)");
    match (dscp, ecn::is_marked(class), bits == SENT & ecn::MASK) {
        (DSCP, false, true) => Finding::ok(format!("{sent} came back with both")),
        (DSCP, true, _) => Finding::ok(format!(
            "{sent} came back with the DSCP, and marked: the network tells of congestion"
        )),
        (0, false, false) => Finding::unknown(
            format!(
                "{sent} came back with neither: the network clears them, or the host answers so \
                 (Linux would not)"
            ),
            HOW_TO_SEE,
        ),
        (DSCP, false, false) => Finding::warning(
            format!("{sent} came back without ECT(0): the network clears ECN"),
            "nothing on the way can tell of congestion before it drops packets: have routers and \
             tunnels there keep the ECN bits (RFC 6040)",
        ),
        (dscp, ..) => Finding::warning(
            format!("{sent} came back with DSCP {dscp}: the network changes it"),
            "packets may be put into queues without the priority flow control or ECN that is meant \
             for RoCE: have switches trust the DSCP (trust mode L3)",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::super::report::State;
    use super::*;

    #[test]
    fn an_echo_is_judged_by_its_class_and_nothing_is_guessed() {
        let state = |class| judge(Ok(class)).state;
        assert_eq!(state(Some(SENT)), State::Ok);
        assert_eq!(state(Some(DSCP << 2 | 3)), State::Ok, "marked on the way");
        assert_eq!(state(Some(DSCP << 2)), State::Warning, "ECN is cleared");
        assert_eq!(state(Some(SENT & ecn::MASK)), State::Warning, "DSCP is cleared");
        assert_eq!(state(Some(46 << 2)), State::Warning, "DSCP is changed");
        assert_eq!(state(Some(0)), State::Unknown, "who cleared it?");
        assert_eq!(state(None), State::Unknown);
        let refused = judge(Err(io::ErrorKind::PermissionDenied.into()));
        assert_eq!(refused.state, State::Unknown);
        assert!(refused.advice.unwrap().contains("ping_group_range"));
    }
}
