//! Messages of strangers, and any bytes.

use crate::script::*;
use proptest::prelude::*;
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;
use urxe_cm::limits::*;
use urxe_cm::*;
use urxe_types::{Qpn, Rate};
use urxe_wire::mad::*;

#[test]
fn malformed_messages_are_dropped() {
    let mut t = Script::new();
    t.receive_bytes(PEER, &[0; MAD_LEN]);
    t.assert_dropped(CmCounter::DropNoMessage, 0);
}

/// SHARE-136
#[test]
fn messages_that_nobody_has_a_use_for_are_told_from_others() {
    let mut t = Script::new();
    let is_of_use = |t: &mut Script, message: Message| {
        t.cm.handle_mad(t.now, &source(PEER), &Mad::new(TID, message).bytes())
    };
    assert!(!t.cm.handle_mad(t.now, &source(PEER), &[0; MAD_LEN]));
    assert!(!is_of_use(&mut t, req().into()), "nobody listens");
    assert!(!is_of_use(&mut t, dreq(ConnId(9)).into()));
    t.cm.listen(t.now, &listen()).unwrap();
    assert!(is_of_use(&mut t, req().into()));
    // Lost answers are no flood.
    assert!(is_of_use(&mut t, req().into()));
}

#[test]
fn messages_for_unknown_connections_are_dropped() {
    let mut t = Script::new();
    let nothing = ConnId(9);
    let messages: [Message; 5] = [
        rtu(nothing).into(),
        drep(nothing).into(),
        mra(nothing, Received::Req, 24).into(),
        rej(CommId(9), Rejected::Req, Reason::Consumer).into(),
        rej(CommId::NONE, Rejected::Nothing, Reason::Timeout).into(),
    ];
    for (before, message) in (0..).zip(messages) {
        t.receive(message);
        t.assert_dropped(CmCounter::DropUnknown, before);
    }
}

#[test]
fn messages_from_another_address_or_comm_id_change_no_connection() {
    let (mut t, conn) = Script::established_active();
    let mut before = 0;
    let mut ends_nothing = |peer, message: Message| {
        t.receive_from(peer, message);
        t.assert_dropped(CmCounter::DropForeign, before);
        before += 1;
        assert_eq!(t.cm.state(conn), Some(State::Established));
    };
    let ours = CommId(conn.0);
    ends_nothing(STRANGER, rej(ours, Rejected::Nothing, Reason::Timeout).into());
    ends_nothing(STRANGER, rep(conn).into());
    ends_nothing(STRANGER, drep(conn).into());
    let other = CommId(0x6666);
    let rej = Rej { local_comm_id: other, ..rej(ours, Rejected::Nothing, Reason::Timeout) };
    ends_nothing(PEER, rej.into());
    ends_nothing(PEER, Rep { local_comm_id: other, ..rep(conn) }.into());

    // A DREQ is answered, but disconnects nothing.
    t.receive_from(STRANGER, dreq(conn));
    assert_eq!(t.sent_to().0, STRANGER);
    t.receive(Dreq { local_comm_id: other, ..dreq(conn) });
    assert_eq!(t.sent().name(), "DREP");
    assert_eq!((t.cm.state(conn), t.cm.poll_event()), (Some(State::Established), None));
}

#[test]
fn replies_from_another_address_are_dropped() {
    let (mut t, conn, _) = Script::req_sent();
    t.receive_from(STRANGER, rep(conn));
    t.assert_dropped(CmCounter::DropForeign, 0);
    t.receive_from(STRANGER, rej(CommId(conn.0), Rejected::Req, Reason::Consumer));
    t.assert_dropped(CmCounter::DropForeign, 1);
    assert_eq!(t.cm.state(conn), Some(State::ReqSent));
}

#[test]
fn comm_ids_are_unpredictable() {
    let mut t = Script::new();
    let ids: Vec<u32> = (0..100)
        .map(|n| {
            let connect = Connect { src: socket(LOCAL, 40000 + n), ..connect() };
            t.cm.connect(t.now, &connect).unwrap().0
        })
        .collect();
    assert!(ids.windows(2).all(|pair| pair[0].abs_diff(pair[1]) > 100));
    let other = Manager::new(Config { seed: 2, ..config() }).connect(t.now, &connect()).unwrap();
    assert!(!ids.contains(&other.0));
}

#[test]
fn outgoing_messages_are_bounded() {
    let mut t = Script::new();
    for number in 0..MAX_OUTGOING as u32 + 3 {
        t.receive_from(host(number), req_from(host(number)));
    }
    assert_eq!(t.count(CmCounter::DropNotSent), 3);
    assert_eq!(std::iter::from_fn(|| t.cm.poll_mad()).count(), MAX_OUTGOING);
}

/// One of many addresses.
fn host(number: u32) -> IpAddr {
    Ipv4Addr::from_bits(0x0b00_0000 + number).into()
}

/// The peer's REQ for another connection.
fn another_req(number: u32) -> Req {
    let local_qpn = Qpn::new(0x1000 + number);
    Req { local_comm_id: CommId(0x1_0000 + number), local_qpn, ..req() }
}

#[test]
fn refusals_to_one_address_come_at_a_bounded_rate() {
    let mut t = Script::new();
    let messages: [Message; 3] = [req().into(), rep(ConnId(9)).into(), dreq(ConnId(9)).into()];
    let answered = |t: &mut Script, times: u32| {
        let mut sent = 0;
        for message in messages.iter().cycle().take(times as usize) {
            t.receive(*message);
            sent += t.all_sent().len() as u32;
        }
        sent
    };
    let Rate { per_second, at_once } = REFUSALS_EACH;
    assert_eq!(answered(&mut t, at_once + 500), at_once);
    assert_eq!(t.count(CmCounter::RefusalsHeldBack), 500);
    t.advance(Duration::from_secs(1));
    assert_eq!(answered(&mut t, at_once), per_second, "who asks again is told");
    t.receive_from(STRANGER, dreq(ConnId(9)));
    assert_eq!(t.sent_to().0, STRANGER, "whoever else asks is told at once");
}

#[test]
fn refusals_to_all_addresses_together_are_bounded() {
    let mut t = Script::new();
    let mut sent = 0;
    for number in 0..REFUSALS_IN_ALL.at_once + 1000 {
        t.receive_from(host(number), dreq(ConnId(9)));
        sent += t.all_sent().len() as u32;
    }
    // Some share a bucket with others, none of which is empty then.
    assert_eq!(sent, REFUSALS_IN_ALL.at_once);
    assert_eq!(t.count(CmCounter::RefusalsHeldBack), 1000);
}

#[test]
fn a_flood_of_refused_requests_keeps_no_connection_of_that_address_from_being_made() {
    let mut t = Script::new();
    for number in 0..10_000 {
        t.receive(Req { service_id: ServiceId(number), ..req() });
        t.all_sent();
    }
    assert!(t.count(CmCounter::RefusalsHeldBack) > 0);
    t.cm.listen(t.now, &listen()).unwrap();
    t.receive(req());
    let conn = t.requested();
    t.cm.accept(t.now, conn, &ACCEPT).unwrap();
    assert_eq!(t.sent().name(), "REP");
    t.run_next_timer();
    assert_eq!(t.sent().name(), "REP", "repeats are bounded by themselves");
    t.receive(rtu(conn));
    assert!(matches!(t.event(), Event::Established { .. }));
    t.receive(dreq(conn));
    assert_eq!(t.sent().name(), "DREP");
}

#[test]
fn replies_to_requests_whose_address_is_forged_are_repeated_at_a_bounded_rate() {
    let mut t = Script::new();
    let count: u32 = 4000;
    t.cm.listen(t.now, &Listen { backlog: count as usize, ..listen() }).unwrap();
    let begun = t.now;
    let mut repeats = 0;
    for number in 0..count {
        t.receive(another_req(number));
        let conn = t.requested();
        t.cm.accept(t.now, conn, &ACCEPT).unwrap();
        repeats += t.all_sent().len() as u32 - 1;
        t.advance(Duration::from_micros(100));
    }
    while t.now < begun + Duration::from_secs(3) {
        repeats += t.all_sent().len() as u32;
        t.run_next_timer();
    }
    let seconds = (t.now - begun).as_secs() as u32 + 1;
    let Rate { per_second, at_once } = REPEATS_EACH;
    assert!(repeats <= at_once + seconds * per_second, "{repeats} repeats in {seconds} s");
    assert!(t.count(CmCounter::RepeatsHeldBack) > 0);

    let answered_again = |t: &mut Script| {
        let mut again = 0;
        for number in 0..count {
            t.receive(another_req(number));
            again += t.all_sent().len() as u32;
        }
        again
    };
    let again = answered_again(&mut t);
    assert!(again <= at_once, "{again} answers to requests that came again");
    t.advance(Duration::from_secs(1));
    let later = t.all_sent().len() as u32 + answered_again(&mut t);
    assert!((per_second..=per_second + 1).contains(&later), "{later} a second later");
}

#[test]
fn answers_to_requests_that_come_again_are_bounded_for_all_addresses_together() {
    const HOSTS: u32 = 40;
    let mut t = Script::new();
    t.cm.listen(t.now, &Listen { backlog: HOSTS as usize, ..listen() }).unwrap();
    for number in 0..HOSTS {
        t.receive_from(host(number), req_from(host(number)));
        let conn = t.requested();
        t.cm.accept(t.now, conn, &ACCEPT).unwrap();
        assert_eq!(t.sent_to().0, host(number));
    }
    // So few of each that three of them may share a bucket.
    let answered_again = |t: &mut Script| {
        let mut again = 0;
        for number in (0..HOSTS).cycle().take((HOSTS * REPEATS_EACH.at_once / 3) as usize) {
            t.receive_from(host(number), req_from(host(number)));
            again += t.all_sent().len() as u32;
        }
        again
    };
    let Rate { per_second, at_once } = REPEATS_IN_ALL;
    assert_eq!(answered_again(&mut t), at_once);
    t.advance(Duration::from_secs(1));
    // Some are repeated because no answer has come.
    let repeated = t.all_sent().len() as u32;
    assert_eq!(repeated + answered_again(&mut t), per_second);
}

#[test]
fn a_peer_that_has_our_number_is_told_again_whatever_others_ask_in_its_name() {
    let (mut t, conn) = Script::rep_sent();
    t.receive(mra(conn, Received::Rep, 20));
    t.cm.listen(t.now, &Listen { port: PORT + 1, backlog: 9000, ..listen() }).unwrap();
    let service_id = ServiceId::ip(PortSpace::Tcp, PORT + 1);
    let just_before = t.cm.poll_timeout().unwrap() - t.now - Duration::from_micros(1);
    t.advance(just_before);
    for number in 0..MAX_REQUESTS as u32 {
        t.receive(Req { service_id, ..another_req(number) });
        t.receive(Req { service_id, ..another_req(number) });
        t.all_sent();
    }
    assert!(t.count(CmCounter::RepeatsHeldBack) > 0);
    t.run_next_timer();
    assert_eq!(t.sent().name(), "REP");
}

/// Something that happens to a manager with a few connections.
#[derive(Clone, Debug)]
enum Step {
    /// A message of random bytes, from the peer or a stranger, about one of the connections or
    /// none.
    Receive {
        attribute: u16,
        body: Vec<u8>,
        peer: bool,
        ours: usize,
        theirs: u32,
    },
    Command {
        which: u8,
        conn: usize,
    },
    Wait,
}

fn step() -> impl Strategy<Value = Step> {
    let body = proptest::collection::vec(any::<u8>(), 232);
    prop_oneof![
        4 => (0x10u16..0x1b, body, any::<bool>(), 0usize..8, 0u32..4).prop_map(
            |(attribute, body, peer, ours, theirs)| Step::Receive {
                attribute, body, peer, ours, theirs
            }
        ),
        3 => (0u8..9, 0usize..8).prop_map(|(which, conn)| Step::Command { which, conn }),
        1 => Just(Step::Wait),
    ]
}

/// Makes a message of random bytes, but with the communication IDs of a connection; and a REQ that
/// passes the first checks.
fn aimed(attribute: u16, body: &[u8], ours: u32, theirs: u32) -> [u8; MAD_LEN] {
    let mut bytes = [0; MAD_LEN];
    bytes[..4].copy_from_slice(&[1, 7, 2, 3]);
    bytes[16..18].copy_from_slice(&attribute.to_be_bytes());
    bytes[24..].copy_from_slice(body);
    bytes[24..28].copy_from_slice(&theirs.to_be_bytes());
    let mut mad = Mad::parse(&bytes).unwrap();
    match &mut mad.message {
        Message::Req(random) => {
            let private_data = req().private_data;
            let primary = CmPath { local_gid: PEER, remote_gid: LOCAL, ..random.primary };
            let transport = TransportService::Rc;
            *random = Req {
                service_id: SERVICE,
                path_mtu: req().path_mtu,
                primary,
                private_data,
                transport,
                ..*random
            };
        }
        Message::Rep(rep) => rep.remote_comm_id = CommId(ours),
        Message::Rtu(rtu) => rtu.remote_comm_id = CommId(ours),
        Message::Rej(rej) => rej.remote_comm_id = CommId(ours),
        Message::Mra(mra) => mra.remote_comm_id = CommId(ours),
        Message::Dreq(dreq) => {
            dreq.remote_comm_id = CommId(ours);
            dreq.remote_qpn = QPN;
        }
        Message::Drep(drep) => drep.remote_comm_id = CommId(ours),
        Message::SidrRep(rep) => rep.request_id = CommId(ours),
        Message::SidrReq(_) | Message::Lap(_) | Message::Apr(_) => {}
    }
    mad.bytes()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// Of a stranger, with another number of either side, or no message at all.
    #[test]
    fn any_bytes_do_no_harm(
        kind in 0u8..7,
        attribute in 0x10u16..0x1b,
        bytes in proptest::collection::vec(any::<u8>(), MAD_LEN),
        other in any::<u32>(),
    ) {
        let (mut t, conn) = Script::established_active();
        let (ours, theirs) = (conn.0, PEER_ID.0);
        prop_assume!(![0, ours, theirs].contains(&other));
        let aimed = |ours, theirs| aimed(attribute, &bytes[24..], ours, theirs);
        let (peer, mad) = match kind {
            0 | 1 => (STRANGER, aimed(ours, theirs)),
            2 | 3 => (PEER, aimed(ours, other)),
            4 | 5 => (PEER, aimed(other, theirs)),
            _ => (PEER, bytes.clone().try_into().unwrap()),
        };
        let before = t.cm.counters().clone();
        t.receive_bytes(peer, &mad);
        prop_assert_eq!((t.cm.state(conn), t.cm.poll_event()), (Some(State::Established), None));
        prop_assert!(*t.cm.counters() != before, "it is counted");
    }

    /// After any steps, no connection is left once the programs have destroyed theirs and the
    /// timers have expired; and no event of a connection follows its last.
    #[test]
    fn every_connection_ends_whatever_happens(steps in proptest::collection::vec(step(), 1..60)) {
        let mut t = Script::new();
        t.cm.listen(t.now, &listen()).unwrap();
        let mut conns: Vec<ConnId> = Vec::new();
        let mut over: Vec<ConnId> = Vec::new();
        for step in steps {
            let pick = |conns: &[ConnId], n: usize| conns.iter().rev().nth(n).copied();
            match step {
                Step::Receive { attribute, body, peer, ours, theirs } => {
                    let ours = pick(&conns, ours).map_or(0, |conn| conn.0);
                    let peer = if peer { PEER } else { STRANGER };
                    t.receive_bytes(peer, &aimed(attribute, &body, ours, theirs));
                }
                Step::Command { which: 0, .. } => {
                    conns.push(t.cm.connect(t.now, &connect()).unwrap());
                }
                Step::Command { which, conn } => {
                    let Some(conn) = pick(&conns, conn) else { continue };
                    let _ = match which {
                        1 => t.cm.accept(t.now, conn, &ACCEPT),
                        2 => t.cm.establish(t.now, conn, b""),
                        3 => t.cm.reject(t.now, conn, b""),
                        4 => t.cm.disconnect(t.now, conn, b""),
                        5 => { t.cm.destroy(t.now, conn); over.push(conn); Ok(()) }
                        6 => { t.cm.communication_established(t.now, conn); Ok(()) }
                        _ => { t.cm.take_request(conn); Ok(()) }
                    };
                }
                Step::Wait => {
                    if let Some(at) = t.cm.poll_timeout() {
                        t.now = at;
                        t.cm.handle_timeout(at);
                    }
                }
            }
            while t.cm.poll_mad().is_some() {}
            while let Some(event) = t.cm.poll_event() {
                let (conn, last) = match event {
                    Event::ConnectRequest { conn, .. } | Event::SidrRequest { conn, .. } => {
                        conns.push(conn);
                        (conn, false)
                    }
                    Event::Unreachable { conn }
                    | Event::Rejected { conn, .. }
                    | Event::TimewaitExit { conn }
                    | Event::SidrReply { conn, .. } => (conn, true),
                    Event::ConnectResponse { conn, .. }
                    | Event::Established { conn, .. }
                    | Event::Disconnected { conn, .. } => (conn, false),
                };
                prop_assert!(!over.contains(&conn), "{event:?} after the last");
                if last {
                    over.push(conn);
                    prop_assert_eq!(t.cm.state(conn), None);
                }
            }
        }
        for conn in conns {
            t.cm.destroy(t.now, conn);
        }
        t.run_all_timers();
        prop_assert!(t.cm.is_empty());
        prop_assert_eq!((t.cm.pending_requests(), t.cm.poll_event()), (0, None));
    }
}
