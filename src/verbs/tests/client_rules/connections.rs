//! The steps of connections that the library takes by itself.

use crate::fake_daemon::FakeDaemon;
use crate::{NOT_AT_ALL, WAIT};
use urxe_shm::control::{CmConnParam, CmEventKind, CmEventParam, CmRequest, Request};
use urxe_types::QpAttr;
use urxe_verbs::cm::{ConnParam, Connection, Event, EventChannel};
use urxe_verbs::{Access, Context, Error, InitAttr, Qp, QpInit};

/// What was asked of the daemon since the last time, in a word each.
fn asked(daemon: &FakeDaemon) -> Vec<String> {
    let requests = std::mem::take(&mut daemon.state.lock().unwrap().requests);
    requests.iter().filter_map(word).collect()
}

fn word(request: &Request) -> Option<String> {
    Some(match request {
        Request::Cm(CmRequest::GetEvent { .. }) => return None,
        Request::Cm(CmRequest::QpAttr { state, .. }) => format!("{state:?}?"),
        Request::Cm(request) => {
            let text = format!("{request:?}");
            text.split([' ', '{']).next().unwrap_or_default().to_owned()
        }
        Request::ModifyQp { attr: QpAttr { state: Some(state), .. }, .. } => format!("{state:?}!"),
        Request::DestroyQp { .. } => "DestroyQp".into(),
        _ => return None,
    })
}

/// The id of every request, and so of what is accepted.
const REQUEST_ID: u32 = 7777;

/// The id that the program made last.
fn last_id(daemon: &FakeDaemon) -> u32 {
    let state = daemon.state.lock().unwrap();
    state.cm_ids.keys().copied().filter(|id| *id != REQUEST_ID).max().unwrap()
}

fn tell(daemon: &FakeDaemon, id: u32, kind: CmEventKind) {
    let param = match kind {
        CmEventKind::ConnectRequest | CmEventKind::ConnectResponse => {
            CmEventParam::Conn(CmConnParam::default())
        }
        _ => CmEventParam::None,
    };
    // A request is about an id of its own.
    let about = if kind == CmEventKind::ConnectRequest { REQUEST_ID } else { id };
    daemon.state.lock().unwrap().tell(id, kind, about, param);
}

fn new_qp(context: &Context) -> Qp {
    let cq = context.create_cq(8, None).unwrap();
    context.alloc_pd().unwrap().create_qp(&QpInit::new(&cq)).unwrap()
}

fn connect(channel: &EventChannel, qp: &Qp) -> Connection {
    channel.connect("192.0.2.2:7471".parse().unwrap(), qp, &ConnParam::default()).unwrap()
}

#[test]
fn the_steps_of_the_side_that_asks() {
    let daemon = FakeDaemon::start();
    let context = daemon.open();
    let (channel, qp) = (context.create_event_channel().unwrap(), new_qp(&context));
    asked(&daemon);
    let connection = connect(&channel, &qp);
    let steps = ["CreateChannel", "CreateId", "ResolveAddr", "ResolveRoute", "MigrateId"];
    assert_eq!(asked(&daemon), [&steps[..], &["Connect"]].concat());
    assert!(connection.peer_param().is_none() && channel.try_next_event().unwrap().is_none());
    let id = last_id(&daemon);
    tell(&daemon, id, CmEventKind::ConnectResponse);
    let connection = connection.wait_established(WAIT).unwrap();
    let steps = ["Init?", "Init!", "Rtr?", "Rtr!", "Rts?", "Rts!", "Establish"];
    assert_eq!(asked(&daemon), steps);
    assert!(connection.peer_param().is_some());
    // The peer ends it, and is answered; that we end it too costs nothing more.
    tell(&daemon, id, CmEventKind::Disconnected);
    assert!(connection.wait_disconnected(WAIT).unwrap());
    connection.disconnect().unwrap();
    assert_eq!(asked(&daemon), ["Err!", "Disconnect"]);
    drop((channel, context, connection));
    assert_eq!(asked(&daemon), ["DestroyId", "DestroyChannel", "DestroyChannel"]);
    // The next one of a channel finds its way where the first did.
    let context = qp.pd().context();
    let channel = context.create_event_channel().unwrap();
    let other = new_qp(&context);
    drop(connect(&channel, &qp));
    asked(&daemon);
    let _connection = connect(&channel, &other);
    assert_eq!(asked(&daemon)[0], "CreateId");
}

#[test]
fn the_steps_of_the_side_that_is_asked() {
    let daemon = FakeDaemon::start();
    let context = daemon.open();
    let (channel, qp) = (context.create_event_channel().unwrap(), new_qp(&context));
    // A QP that is in INIT already keeps what it was given there.
    qp.to_init(InitAttr::new(Access::REMOTE_READ)).unwrap();
    asked(&daemon);
    let listener = channel.listen("192.0.2.1:7471".parse().unwrap(), 1).unwrap();
    assert_eq!(asked(&daemon), ["CreateId", "Bind", "Listen", "Query"]);
    tell(&daemon, last_id(&daemon), CmEventKind::ConnectRequest);
    let request = listener.wait(WAIT).unwrap().unwrap();
    assert_eq!(request.peer_addr(), "192.0.2.2:7471".parse().unwrap());
    let connection = request.accept(&qp, &ConnParam::default()).unwrap();
    assert_eq!(asked(&daemon), ["Query", "Rtr?", "Rtr!", "Rts?", "Rts!", "Accept"]);
    tell(&daemon, REQUEST_ID, CmEventKind::Established);
    let event = channel.next_event(WAIT).unwrap().unwrap();
    assert!(matches!(event, Event::Established(other) if other == connection));
    // It is known without another event.
    let connection = connection.wait_established(NOT_AT_ALL).unwrap();
    drop(connection);
    assert_eq!(asked(&daemon), ["Err!", "DestroyId"], "who lets go of a connection ends it");
}

#[test]
fn a_connection_whose_queue_pair_cannot_be_made_ready_fails_at_both_ends() {
    let daemon = FakeDaemon::start();
    let context = daemon.open();
    let (channel, qp) = (context.create_event_channel().unwrap(), new_qp(&context));
    let connection = connect(&channel, &qp);
    daemon.state.lock().unwrap().refuses_modify = true;
    tell(&daemon, last_id(&daemon), CmEventKind::ConnectResponse);
    asked(&daemon);
    let event = channel.next_event(WAIT).unwrap().unwrap();
    let Event::ConnectFailed(failed, error) = event else { panic!("{event:?}") };
    assert!(failed == connection && error.to_string().contains("not this QP"), "{error}");
    assert_eq!(asked(&daemon), ["Init?", "Init!", "Reject"]);
    let error = connection.wait_established(NOT_AT_ALL).unwrap_err();
    assert_eq!(error.errno(), libc::ENOTCONN, "{error}");
    // The other side: who asked is refused, because its id goes.
    let listener = channel.listen("192.0.2.1:7471".parse().unwrap(), 1).unwrap();
    tell(&daemon, last_id(&daemon), CmEventKind::ConnectRequest);
    let request = listener.wait(WAIT).unwrap().unwrap();
    asked(&daemon);
    assert!(request.accept(&qp, &ConnParam::default()).is_err());
    assert_eq!(asked(&daemon), ["Init?", "Init!", "DestroyId"]);
}

/// Both sides of a connection that is requested and accepted, with queue pairs in INIT, and what
/// their events are told of.
fn begun(daemon: &FakeDaemon, context: &Context, channel: &EventChannel) -> [(Connection, u32); 2] {
    let [near, far] = [(); 2].map(|()| {
        let qp = new_qp(context);
        qp.to_init(InitAttr::new(Access::default())).unwrap();
        qp
    });
    let listener = channel.listen("192.0.2.1:7471".parse().unwrap(), 1).unwrap();
    tell(daemon, last_id(daemon), CmEventKind::ConnectRequest);
    let request = listener.wait(WAIT).unwrap().unwrap();
    let accepted = request.accept(&far, &ConnParam::default()).unwrap();
    let asked_for = connect(channel, &near);
    drop(listener);
    asked(daemon);
    [(asked_for, last_id(daemon)), (accepted, REQUEST_ID)]
}

#[test]
fn a_connection_that_fails_flushes_what_was_posted() {
    let daemon = FakeDaemon::start();
    let context = daemon.open();
    let channel = context.create_event_channel().unwrap();
    for kind in [CmEventKind::Rejected, CmEventKind::Unreachable, CmEventKind::ConnectError] {
        for (connection, id) in begun(&daemon, &context, &channel) {
            tell(&daemon, id, kind);
            connection.clone().wait_established(WAIT).unwrap_err();
            assert_eq!(asked(&daemon), ["Err!"], "{kind:?}");
            drop(connection);
            assert_eq!(asked(&daemon), ["DestroyId", "DestroyQp"], "once is enough");
        }
    }
    // So does one that is given up,
    for (connection, _) in begun(&daemon, &context, &channel) {
        drop(connection);
        assert_eq!(asked(&daemon), ["Err!", "DestroyId", "DestroyQp"]);
    }
    // and where nothing could be posted nothing happens.
    let qp = new_qp(&context);
    let connection = connect(&channel, &qp);
    tell(&daemon, last_id(&daemon), CmEventKind::Rejected);
    asked(&daemon);
    connection.wait_established(WAIT).unwrap_err();
    assert_eq!(asked(&daemon), ["DestroyId"]);
}

#[test]
fn a_connection_that_is_ended_before_it_is_established_is_ended_then() {
    let daemon = FakeDaemon::start();
    let context = daemon.open();
    let channel = context.create_event_channel().unwrap();
    let [(near, near_id), (far, far_id)] = begun(&daemon, &context, &channel);
    for connection in [&near, &far] {
        connection.disconnect().unwrap();
        assert_eq!(asked(&daemon), ["Err!", "Disconnect"]);
        connection.disconnect().unwrap();
        assert_eq!(asked(&daemon), ["Disconnect"], "it may help now");
        let error = connection.clone().wait_established(NOT_AT_ALL).unwrap_err();
        assert_eq!(error.errno(), libc::ENOTCONN, "{error}");
        assert!(!connection.wait_disconnected(NOT_AT_ALL).unwrap());
    }
    // The side that asked needs not confirm.
    tell(&daemon, near_id, CmEventKind::ConnectResponse);
    let event = channel.next_event(WAIT).unwrap().unwrap();
    assert!(matches!(event, Event::Disconnected(end) if end == near));
    assert_eq!(asked(&daemon), ["Reject"]);
    // The other one was confirmed.
    tell(&daemon, far_id, CmEventKind::Established);
    assert!(channel.try_next_event().unwrap().is_none());
    assert_eq!(asked(&daemon), ["Disconnect"]);
    tell(&daemon, far_id, CmEventKind::Disconnected);
    let event = channel.next_event(WAIT).unwrap().unwrap();
    assert!(matches!(event, Event::Disconnected(end) if end == far));
    assert!(asked(&daemon).is_empty());
}

#[test]
fn all_who_wait_for_the_end_of_a_connection_are_told() {
    let daemon = FakeDaemon::start();
    let context = daemon.open();
    let channel = context.create_event_channel().unwrap();
    for kind in [CmEventKind::Disconnected, CmEventKind::Rejected] {
        let [_, (connection, id)] = begun(&daemon, &context, &channel);
        std::thread::scope(|scope| {
            let threads = [(); 3].map(|()| scope.spawn(|| connection.wait_disconnected(WAIT)));
            tell(&daemon, id, kind);
            for thread in threads {
                assert!(thread.join().unwrap().unwrap(), "{kind:?}");
            }
        });
        // And who asks later.
        assert!(connection.wait_disconnected(WAIT).unwrap());
        assert!(channel.try_next_event().unwrap().is_none(), "it was told");
    }
}

#[test]
fn requests_that_nobody_will_answer_are_refused() {
    let daemon = FakeDaemon::start();
    let context = daemon.open();
    let channel = context.create_event_channel().unwrap();
    let at = "192.0.2.1:7471".parse().unwrap();
    let destroyed = |daemon: &FakeDaemon| {
        let requests = std::mem::take(&mut daemon.state.lock().unwrap().requests);
        let destroyed = requests.iter().filter_map(|request| match request {
            Request::Cm(CmRequest::DestroyId { id }) => Some(id.0),
            _ => None,
        });
        destroyed.collect::<Vec<_>>()
    };
    // Taken and dropped.
    let listener = channel.listen(at, 1).unwrap();
    let id = last_id(&daemon);
    tell(&daemon, id, CmEventKind::ConnectRequest);
    drop(listener.wait(WAIT).unwrap().unwrap());
    assert_eq!(destroyed(&daemon), [REQUEST_ID]);
    // Read on behalf of another object, and left behind by the listener.
    let qp = new_qp(&context);
    let connection = connect(&channel, &qp);
    tell(&daemon, id, CmEventKind::ConnectRequest);
    assert!(!connection.wait_disconnected(NOT_AT_ALL).unwrap());
    drop(listener);
    assert_eq!(destroyed(&daemon), [REQUEST_ID, id]);
    // Not even read.
    let listener = channel.listen(at, 1).unwrap();
    let id = last_id(&daemon);
    drop(listener);
    tell(&daemon, id, CmEventKind::ConnectRequest);
    assert!(channel.try_next_event().unwrap().is_none());
    assert_eq!(destroyed(&daemon), [id, REQUEST_ID]);
}

#[test]
fn events_of_what_has_gone_and_bytes_without_events_are_nothing() {
    let daemon = FakeDaemon::start();
    let context = daemon.open();
    let (channel, qp) = (context.create_event_channel().unwrap(), new_qp(&context));
    let connection = connect(&channel, &qp);
    let id = last_id(&daemon);
    {
        let state = daemon.state.lock().unwrap();
        let (place, _) = state.cm_ids[&id];
        rustix::io::write(&state.cm_channels[&place].pipe, &[1]).unwrap();
    }
    assert!(channel.try_next_event().unwrap().is_none());
    drop(connection);
    tell(&daemon, id, CmEventKind::ConnectResponse);
    assert!(channel.try_next_event().unwrap().is_none());
    // The same of what was read, but not told.
    let connection = connect(&channel, &qp);
    let id = last_id(&daemon);
    tell(&daemon, id, CmEventKind::ConnectResponse);
    assert!(!connection.wait_disconnected(NOT_AT_ALL).unwrap());
    drop(connection);
    assert!(channel.try_next_event().unwrap().is_none());
}

#[test]
fn the_daemons_death_wakes_who_waits_for_a_peer() {
    let mut daemon = FakeDaemon::start();
    let context = daemon.open();
    let (channel, qp) = (context.create_event_channel().unwrap(), new_qp(&context));
    let connection = connect(&channel, &qp);
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| connection.wait_established(WAIT).map(drop));
        daemon.kill();
        assert!(matches!(waiting.join().unwrap(), Err(Error::DaemonGone { .. })));
    });
    assert!(matches!(channel.next_event(WAIT), Err(Error::DaemonGone { .. })));
    let again = channel.listen("192.0.2.1:7471".parse().unwrap(), 1);
    assert!(matches!(again, Err(Error::DaemonGone { .. })));
}
