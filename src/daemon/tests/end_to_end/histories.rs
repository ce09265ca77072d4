//! What happened to QPs, and who may see it.

use crate::harness::*;
use rustix::io::Errno;
use urxe_engine::Cause;
use urxe_shell::testing::needs_root;
use urxe_shm::control::{
    Cursor, Happening, HistoryPage, HistorySubject, QpHistory, Reply, Request,
};
use urxe_types::{Extra, QpAttr, QpState, SendData, SendOp, WcStatus};

fn page(client: &mut Client, of: HistorySubject, from: Cursor) -> HistoryPage {
    let reply = client.call(Request::Histories { device: "urxe0".into(), of, from }).unwrap();
    let Reply::Histories(page) = reply else { panic!("{reply:?}") };
    page
}

/// All pages.
pub(crate) fn histories(client: &mut Client, of: HistorySubject) -> Vec<QpHistory> {
    let (mut all, mut from) = (Vec::new(), Some(Cursor::default()));
    while let Some(cursor) = from {
        let page = page(client, of, cursor);
        all.extend(page.histories);
        from = page.next;
    }
    all
}

/// Connects an end to where nobody answers, and lets a SEND fail there.
pub(crate) fn fail(end: &mut End) {
    let [init, rtr, rts] = attrs(fresh_addr(), urxe_types::Qpn::new(0x11));
    let rts = QpAttr { timeout: Some(8), retry_cnt: Some(1), ..rts };
    for attr in [init, rtr, rts] {
        end.client.modify(&end.qp, attr).unwrap();
    }
    end.post_send(7, SendOp::Send(Extra::None), SendData::Inline(b"anybody?"));
    let completion = end.cq.wait(1).remove(0);
    assert_eq!(completion.status, WcStatus::RetryExceeded as u32);
}

#[test]
fn a_qp_whose_peer_is_not_there_says_so_also_after_it_has_ended() {
    let daemon = start(1);
    let mut end = End::new(&daemon, 0, Kind::Shared, 4096);
    let mut other = Client::connect(daemon.socket());
    fail(&mut end);
    let of = HistorySubject::Qp(end.qp.created.qpn.get());
    let [history] = &histories(&mut other, of)[..] else { panic!() };
    assert_eq!((history.state, history.gone, history.heard), (QpState::Err, None, None));
    let first = history.failed.unwrap();
    assert_eq!((first.wr_id, first.status), (7, WcStatus::RetryExceeded as u32));
    assert_eq!(first.vendor_err, Cause::AckTimeout as u32);
    let reason = history.reason.as_deref().unwrap();
    assert!(reason.contains("nothing at all has come back"), "{reason}");
    let timeouts = history.entries.iter();
    let mut timeouts =
        timeouts.filter(|entry| entry.what == Happening::Counted("ack_timeouts".into()));
    assert_eq!(timeouts.next().unwrap().times, 2);
    assert!(history.entries.is_sorted_by(|first, second| first.at >= second.at));
    let (entries, counters) = (history.entries.clone(), history.counters.clone());
    assert!(counters.iter().any(|(name, value)| name == "retries_exceeded" && *value == 1));

    drop(end);
    let ended = eventually("the QP's end", || {
        let found = histories(&mut other, of).pop()?;
        found.gone.is_some().then_some(found)
    });
    assert_eq!(
        ended.entries.len(),
        entries.len(),
        "nothing is forgotten, nothing happens any more"
    );
    assert!(ended.reason.unwrap().contains("nothing at all has come back"));
    let failed = histories(&mut other, HistorySubject::Failed);
    assert_eq!(failed.len(), 1);
}

#[test]
fn histories_of_other_users_are_not_shown() {
    if !rustix::process::geteuid().is_root() {
        return needs_root("needs root, to be two users");
    }
    let daemon = start(1);
    let mut end = End::new(&daemon, 0, Kind::Shared, 4096);
    fail(&mut end);
    let of = HistorySubject::Qp(end.qp.created.qpn.get());
    let mut stranger = Client::of_ordinary_user(daemon.socket());
    // HISTORY-013
    assert_eq!(histories(&mut stranger, of), []);
    assert_eq!(histories(&mut stranger, HistorySubject::Failed), []);
    assert_eq!(histories(&mut end.client, of).len(), 1);
    drop(end);
    let mut own = Client::connect(daemon.socket());
    eventually("the QP's end", || histories(&mut own, of).pop()?.gone);
    assert_eq!(histories(&mut stranger, of), [], "nor after they have ended");
}

#[test]
fn of_the_qps_that_ended_as_many_are_remembered_as_there_is_room_for() {
    let daemon = start(1);
    let mut end = End::new(&daemon, 0, Kind::Shared, 4096);
    fail(&mut end);
    let mut quiet = Vec::new();
    for _ in 0..40 {
        let qp = end.client.create_qp(end.pd, end.cq.handle, CAPS);
        quiet.push(qp.created.qpn.get());
        end.client.call(Request::DestroyQp { qp: qp.created.qp }).unwrap();
    }
    // HISTORY-011
    let mut known = |qpn| histories(&mut end.client, HistorySubject::Qp(qpn)).len();
    assert_eq!(quiet.iter().map(|&qpn| known(qpn)).sum::<usize>(), 32);
    assert_eq!((known(quiet[0]), known(quiet[39])), (0, 1));
    assert_eq!(known(0xff_fff0), 0, "no such QP");
    let failed = histories(&mut end.client, HistorySubject::Failed);
    assert_eq!(failed.len(), 1, "those that ended well are no failures");
}

#[test]
fn failures_come_in_pages_and_of_no_device_are_refused() {
    let daemon = start(1);
    let mut client = Client::connect(daemon.socket());
    let ends: Vec<End> = (0..20)
        .map(|_| {
            let mut end = End::new(&daemon, 0, Kind::Shared, 4096);
            fail(&mut end);
            end
        })
        .collect();
    let mut qpns: Vec<u32> = ends.iter().map(|end| end.qp.created.qpn.get()).collect();
    qpns.sort_unstable();
    let failed = histories(&mut client, HistorySubject::Failed);
    let mut told: Vec<u32> = failed.iter().map(|history| history.qpn).collect();
    told.sort_unstable();
    assert_eq!(told, qpns);
    assert!(page(&mut client, HistorySubject::Failed, Cursor::default()).next.is_some());
    let request = Request::Histories {
        device: "urxe7".into(),
        of: HistorySubject::Failed,
        from: Cursor::default(),
    };
    assert_eq!(client.call(request).unwrap_err().errno, Errno::NODEV.raw_os_error());
}
