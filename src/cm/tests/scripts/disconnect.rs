//! The end of connections.

use crate::script::*;
use std::time::Duration;
use urxe_cm::*;
use urxe_types::{Qpn, TimeCode};
use urxe_wire::mad::*;

/// The ACK timeouts that the script's connections have.
const OURS: Duration = TimeCode::new(17).duration();
const THEIRS: Duration = TimeCode::new(19).duration();

#[test]
fn confirmed_disconnect_enters_timewait() {
    let (mut t, conn) = Script::established_active();
    t.cm.disconnect(t.now, conn, b"bye").unwrap();
    let Message::Dreq(dreq) = t.sent() else { panic!() };
    assert_eq!((dreq.local_comm_id, dreq.remote_comm_id), (CommId(conn.0), PEER_ID));
    assert_eq!((dreq.remote_qpn, dreq.private_data), (PEER_QPN, padded(b"bye")));
    t.receive(drep(conn));
    let cause = DisconnectCause::Confirmed { private_data: padded(b"bye bye") };
    assert_eq!(t.event(), Event::Disconnected { conn, cause });
    // A second disconnect is no error.
    t.cm.disconnect(t.now, conn, b"").unwrap();
    t.assert_silent();
    assert_eq!(t.run_next_timer(), OURS);
    assert_eq!(t.event(), Event::TimewaitExit { conn });
    assert!(t.cm.is_empty());
}

#[test]
fn dreq_is_answered_in_every_state() {
    let check = |make: fn() -> (Script, ConnId), is_reported: bool| {
        let (mut t, conn) = make();
        t.receive(dreq(conn));
        let Message::Drep(answer) = t.sent() else { panic!() };
        assert_eq!((answer.local_comm_id, answer.remote_comm_id), (CommId(conn.0), PEER_ID));
        if is_reported {
            let cause = DisconnectCause::Peer { private_data: padded(b"bye") };
            let mut events: Vec<Event> = std::iter::from_fn(|| t.cm.poll_event()).collect();
            assert_eq!(events.pop(), Some(Event::Disconnected { conn, cause }));
            // A peer that disconnects was connected, even if its RTU was lost.
            let private_data = [0; Rtu::PRIVATE_LEN];
            let established = [Event::Established { conn, private_data }];
            assert!(events.is_empty() || events == established);
            assert_eq!(t.cm.state(conn), Some(State::TimeWait));
        }
        // The DREP was lost.
        t.receive(dreq(conn));
        assert_eq!(t.sent(), Message::Drep(answer));
        assert_eq!(t.cm.poll_event(), None);
    };
    check(Script::rep_received, true);
    check(Script::established_active, true);
    check(Script::rep_sent, true);
    check(Script::established_passive, true);
    let disconnecting = || {
        let (mut t, conn) = Script::established_passive();
        t.cm.disconnect(t.now, conn, b"").unwrap();
        t.sent();
        (t, conn)
    };
    check(disconnecting, true);
    let over = || {
        let (mut t, conn) = Script::established_passive();
        t.cm.disconnect(t.now, conn, b"").unwrap();
        t.sent();
        t.receive(drep(conn));
        t.event();
        t.run_next_timer();
        t.event();
        assert!(t.cm.is_empty());
        (t, conn)
    };
    check(over, false);
    check(|| (Script::new(), ConnId(9)), false);
}

#[test]
fn both_sides_may_disconnect_at_once() {
    let (mut t, conn) = Script::established_active();
    t.cm.disconnect(t.now, conn, b"").unwrap();
    t.sent();
    t.peer_disconnects(conn);
    t.receive(drep(conn));
    t.assert_dropped(CmCounter::DropOutOfPlace, 0);
    assert_eq!(t.run_all_timers(), (OURS, vec![]));
    assert_eq!(t.event(), Event::TimewaitExit { conn });
}

#[test]
fn unanswered_dreq_is_retried_and_the_connection_ends_all_the_same() {
    let (mut t, conn) = Script::established_passive();
    t.cm.disconnect(t.now, conn, b"").unwrap();
    let dreq = t.sent();
    assert_eq!(dreq.name(), "DREQ");
    let (waited, sent) = t.run_all_timers();
    assert_eq!(sent, ["DREQ"; 15]);
    assert_eq!(waited, Timing::default().give_up() + THEIRS);
    let cause = DisconnectCause::Unconfirmed;
    assert_eq!(t.cm.poll_event(), Some(Event::Disconnected { conn, cause }));
    assert_eq!(t.event(), Event::TimewaitExit { conn });
    assert!(t.cm.is_empty());
}

#[test]
fn destroy_of_an_established_connection_sends_a_dreq() {
    let (mut t, conn) = Script::established_passive();
    t.cm.destroy(t.now, conn);
    assert_eq!(t.sent().name(), "DREQ");
    assert_eq!((t.cm.state(conn), t.cm.len()), (None, 1));
    t.receive(drep(conn));
    t.run_next_timer();
    t.assert_silent();
    assert!(t.cm.is_empty());
}

#[test]
fn timewait_lasts_the_ack_timeout_within_bounds() {
    let mut t = Script::new();
    t.cm.listen(t.now, &listen()).unwrap();
    let primary = CmPath { local_ack_timeout: TimeCode::MAX, ..req().primary };
    t.receive(Req { primary, ..req() });
    let conn = t.requested();
    t.cm.accept(t.now, conn, &ACCEPT).unwrap();
    t.sent();
    t.receive(dreq(conn));
    t.sent();
    assert_eq!(t.run_next_timer(), TimeCode::new(24).duration());
}

#[test]
fn rej_ends_an_established_connection() {
    let (mut t, conn) = Script::established_active();
    t.receive(rej(CommId(conn.0), Rejected::Nothing, Reason::Timeout));
    assert!(matches!(t.event(), Event::Rejected { reason: Reason::Timeout, .. }));
    assert_eq!((t.cm.state(conn), t.run_next_timer()), (None, OURS));
    assert!(t.cm.is_empty());
}

#[test]
fn rej_of_a_dreq_counts_as_disconnected() {
    let (mut t, conn) = Script::established_active();
    t.cm.disconnect(t.now, conn, b"").unwrap();
    t.sent();
    t.receive(rej(CommId(conn.0), Rejected::Nothing, Reason::InvalidCommId));
    assert_eq!(t.event(), Event::Disconnected { conn, cause: DisconnectCause::Unconfirmed });
}

#[test]
fn dreq_for_another_qp_is_dropped() {
    let (mut t, conn) = Script::established_active();
    t.receive(Dreq { remote_qpn: Qpn::new(0x99), ..dreq(conn) });
    t.assert_dropped(CmCounter::DropWrongQpn, 0);
    assert_eq!(t.cm.state(conn), Some(State::Established));
}

#[test]
fn alternate_paths_are_refused() {
    let (mut t, conn) = Script::established_active();
    let lap = Lap {
        local_comm_id: PEER_ID,
        remote_comm_id: CommId(conn.0),
        remote_qpn: QPN,
        remote_response_timeout: TimeCode::new(20),
        alternate: req().primary,
        private_data: [0; Lap::PRIVATE_LEN],
    };
    t.receive(lap);
    let Message::Apr(apr) = t.sent() else { panic!() };
    assert_eq!((apr.remote_comm_id, apr.status), (PEER_ID, AprStatus::Unsupported));
    t.receive(Lap { remote_comm_id: CommId(1), ..lap });
    let Message::Apr(apr) = t.sent() else { panic!() };
    assert_eq!(apr.status, AprStatus::InvalidCommId);
    t.receive(apr);
    t.assert_dropped(CmCounter::DropOutOfPlace, 0);
}
