//! Managers that are written down and go on elsewhere.

use crate::script::*;
use proptest::prelude::*;
use std::time::Duration;
use urxe_cm::*;
use urxe_wire::mad::*;

/// All that is known of a manager that is to be the same elsewhere.
fn bytes(t: &Script) -> Vec<u8> {
    postcard::to_stdvec(&t.cm.save(t.now)).unwrap()
}

/// Has the manager go on as another process would, at a time that is another one there.
fn go_on_elsewhere(t: &mut Script) {
    let saved = postcard::from_bytes(&bytes(t)).unwrap();
    t.now += Duration::from_secs(1000);
    t.cm = Manager::restore(Config { seed: 99, ..config() }, t.now, saved).unwrap();
}

fn lingering() -> (Script, ConnId) {
    let (mut t, conn) = Script::req_received();
    t.cm.destroy(t.now, conn);
    assert_eq!(t.sent().name(), "REJ");
    (t, conn)
}

fn in_timewait() -> (Script, ConnId) {
    let (mut t, conn) = Script::established_passive();
    t.receive(dreq(conn));
    t.all_sent();
    while t.cm.poll_event().is_some() {}
    (t, conn)
}

fn asked_to_wait() -> (Script, ConnId) {
    let (mut t, conn, _) = Script::req_sent();
    t.receive(mra(conn, Received::Req, 20));
    t.advance(Duration::from_millis(5));
    (t, conn)
}

type Make = fn() -> (Script, ConnId);

const BEGINNINGS: [Make; 10] = [
    || {
        let (t, conn, _) = Script::req_sent();
        (t, conn)
    },
    Script::rep_received,
    Script::established_active,
    Script::req_received,
    Script::rep_sent,
    Script::established_passive,
    lingering,
    in_timewait,
    asked_to_wait,
    || {
        let (mut t, conn) = Script::established_active();
        t.cm.disconnect(t.now, conn, b"bye").unwrap();
        assert_eq!(t.sent().name(), "DREQ");
        t.advance(Duration::from_millis(1));
        (t, conn)
    },
];

const ACTIONS: [fn(&mut Script, ConnId); 11] = [
    |_, _| (),
    |t, _| t.receive(req()),
    |t, conn| t.receive(rep(conn)),
    |t, conn| t.receive(rtu(conn)),
    |t, conn| t.receive(dreq(conn)),
    |t, conn| t.receive(drep(conn)),
    |t, conn| t.receive(mra(conn, Received::Req, 22)),
    |t, conn| t.receive(rej(CommId(conn.0), Rejected::Req, Reason::InvalidServiceId)),
    |t, conn| {
        let _ = t.cm.accept(t.now, conn, &ACCEPT);
    },
    |t, conn| {
        let _ = t.cm.disconnect(t.now, conn, b"bye");
    },
    |t, conn| t.cm.destroy(t.now, conn),
];

/// What becomes of a manager when something happens, to the end of all its timers.
fn becomes(mut t: Script, conn: ConnId, action: fn(&mut Script, ConnId)) -> String {
    let mut said = String::new();
    action(&mut t, conn);
    for _ in 0..100 {
        let sent: Vec<_> = t.all_sent().iter().map(Message::name).collect();
        let events: Vec<_> = std::iter::from_fn(|| t.cm.poll_event())
            .map(|event| format!("{event:?}").split(' ').next().unwrap_or_default().to_owned())
            .collect();
        let (state, len, pending) = (t.cm.state(conn), t.cm.len(), t.cm.pending_requests());
        said += &format!("{sent:?} {events:?} {state:?} {len} {pending}\n");
        if t.cm.poll_timeout().is_none() {
            break;
        }
        said += &format!("{:?}: ", t.run_next_timer());
    }
    let counted = t.cm.counters().iter().filter(|(_, value, _)| *value > 0);
    counted.for_each(|(name, value, _)| said += &format!("{name} {value}\n"));
    said
}

/// UPGRADE-009
#[test]
fn a_manager_goes_on_elsewhere_as_it_would_have_here() {
    for make in BEGINNINGS {
        for action in ACTIONS {
            let ((here, conn), (mut there, same)) = (make(), make());
            assert_eq!(conn, same, "the same seed");
            go_on_elsewhere(&mut there);
            assert_eq!(becomes(there, conn, action), becomes(here, conn, action));
        }
    }
}

/// UPGRADE-009
#[test]
fn listeners_go_on_elsewhere_with_their_backlogs() {
    let mut t = Script::new();
    let listener = t.cm.listen(t.now, &listen()).unwrap();
    t.receive(req());
    let first = t.requested();
    go_on_elsewhere(&mut t);
    // There is room for two, and one waits.
    let other = |id: u32| Req { local_comm_id: CommId(id), local_qpn: PEER_QPN, ..req() };
    t.receive_from(
        STRANGER,
        Req {
            primary: CmPath { local_gid: STRANGER, ..req().primary },
            private_data: with_ip_cm_header(socket(STRANGER, 50001), LOCAL, b"hello"),
            ..other(7)
        },
    );
    let second = t.requested();
    assert_ne!(first, second);
    assert_eq!(t.cm.pending_requests(), 2);
    let in_use = t.cm.listen(t.now, &listen());
    assert!(matches!(in_use, Err(ListenError::AddressInUse(_))));
    // A number that is given now was never given before.
    let next = t.cm.listen(t.now, &Listen { port: PORT + 1, ..listen() }).unwrap();
    assert!(next > listener);
    t.cm.unlisten(t.now, listener);
    assert_eq!(t.cm.pending_requests(), 0, "also what came before is refused");
    assert!(t.cm.listen(t.now, &listen()).unwrap() > next);
}

/// UPGRADE-008
#[test]
fn tables_that_name_what_is_not_there_are_refused() {
    let (t, conn) = Script::established_passive();
    let (good, id) = (bytes(&t), postcard::to_stdvec(&conn).unwrap());
    let places: Vec<usize> = (0..good.len()).filter(|at| good[*at..].starts_with(&id)).collect();
    assert!(places.len() >= 3, "itself, by its request and by its QP: {places:?}");
    for at in places {
        let mut bad = good.clone();
        bad[at] ^= 1;
        let saved = postcard::from_bytes(&bad).unwrap();
        let refused = Manager::restore(config(), t.now, saved).err().unwrap();
        assert!(matches!(refused, RestoreError::NoConnection(_)), "{refused}");
    }
}

proptest! {
    /// UPGRADE-008
    #[test]
    fn a_manager_of_any_bytes_is_one_that_runs_or_an_error(
        beginning in 0..BEGINNINGS.len(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
    ) {
        let (mut t, conn) = BEGINNINGS[beginning]();
        let mut bytes = bytes(&t);
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        let Ok(saved) = postcard::from_bytes(&bytes) else { return Ok(()) };
        let Ok(cm) = Manager::restore(config(), t.now, saved) else { return Ok(()) };
        t.cm = cm;
        t.receive(req());
        t.receive(dreq(conn));
        t.cm.destroy(t.now, conn);
        for _ in 0..100 {
            t.all_sent();
            while t.cm.poll_event().is_some() {}
            if t.cm.poll_timeout().is_none_or(|at| at < t.now) {
                break;
            }
            t.run_next_timer();
        }
    }
}
