//! Polling, waiting, and completion queues of another size.

use crate::fake_daemon::FakeDaemon;
use crate::{NOT_AT_ALL, WAIT};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use urxe_verbs::{CompChannel, Wc};

#[test]
fn completions_come_out_in_order_and_only_as_many_as_fit() {
    let daemon = FakeDaemon::start();
    let context = daemon.open();
    let cq = context.create_cq(8, None).unwrap();
    let token = daemon.state.lock().unwrap().cqs.values().next().unwrap().token;
    for wr_id in 1..=5 {
        daemon.state.lock().unwrap().complete(token, wr_id, false);
    }
    let mut wcs = [Wc::default(); 2];
    assert_eq!(cq.poll(&mut wcs).unwrap(), 2);
    assert_eq!(wcs.map(|wc| wc.wr_id), [1, 2]);
    assert_eq!(cq.poll(&mut []).unwrap(), 0);
    let mut rest = vec![Wc::default()];
    assert_eq!(cq.poll_into(&mut rest).unwrap(), 3);
    assert_eq!(rest[1..].iter().map(|wc| wc.wr_id).collect::<Vec<_>>(), [3, 4, 5]);
    assert_eq!(cq.poll(&mut wcs).unwrap(), 0);
}

#[test]
fn wait_finds_completions_from_before_and_from_after_it_began() {
    let daemon = FakeDaemon::start();
    let context = daemon.open();
    let channel = context.create_comp_channel().unwrap();
    let cq = context.create_cq(8, Some(&channel)).unwrap();
    let token = daemon.state.lock().unwrap().cqs.values().next().unwrap().token;
    let mut wcs = [Wc::default(); 4];
    assert_eq!(cq.wait(&mut wcs, NOT_AT_ALL).unwrap(), 0);
    daemon.state.lock().unwrap().complete(token, 1, false);
    // That one made an event, the CQ being armed still; it must not be mistaken for the next.
    assert_eq!(cq.wait(&mut wcs, WAIT).unwrap(), 1);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(20));
            daemon.state.lock().unwrap().complete(token, 2, false);
        });
        assert_eq!(cq.wait(&mut wcs, WAIT).unwrap(), 1);
        assert_eq!(wcs[0].wr_id, 2);
    });
    assert_eq!(cq.wait(&mut wcs, Some(Duration::from_millis(5))).unwrap(), 0);
    let unheard = context.create_cq(8, None).unwrap();
    assert!(unheard.wait(&mut wcs, WAIT).unwrap_err().to_string().contains("channel"));
}

#[test]
fn threads_that_share_a_channel_each_wake_for_their_own_queue() {
    const ROUNDS: u64 = 200;
    let daemon = FakeDaemon::start();
    let context = daemon.open();
    let channel = context.create_comp_channel().unwrap();
    std::thread::scope(|scope| {
        let state = &daemon.state;
        let queues: Vec<_> = (0..3)
            .map(|_| {
                let cq = context.create_cq(8, Some(&channel)).unwrap();
                let (say, hear) = std::sync::mpsc::channel();
                scope.spawn(move || {
                    for round in 0..ROUNDS {
                        let mut wcs = [Wc::default()];
                        assert_eq!(cq.wait(&mut wcs, WAIT).unwrap(), 1, "nobody woke us");
                        assert_eq!(wcs[0].wr_id, round);
                        say.send(()).unwrap();
                    }
                });
                hear
            })
            .collect();
        let mut tokens: Vec<_> = state.lock().unwrap().cqs.values().map(|cq| cq.token).collect();
        tokens.sort_unstable();
        for round in 0..ROUNDS {
            for &token in &tokens {
                state.lock().unwrap().complete(token, round, false);
            }
            for hear in &queues {
                hear.recv().unwrap();
            }
        }
    });
}

#[test]
fn threads_that_wait_for_one_queue_each_get_a_completion() {
    const THREADS: u64 = 4;
    let mut daemon = FakeDaemon::start();
    let context = daemon.open();
    let channel = context.create_comp_channel().unwrap();
    let cq = context.create_cq(8, Some(&channel)).unwrap();
    let token = daemon.state.lock().unwrap().cqs.values().next().unwrap().token;
    let wait = |timeout| {
        let mut wcs = [Wc::default()];
        cq.wait(&mut wcs, timeout).map(|count| (count == 1).then_some(wcs[0].wr_id))
    };
    std::thread::scope(|scope| {
        let (say, hear) = std::sync::mpsc::channel();
        for _ in 0..THREADS {
            let say = say.clone();
            // Without a timeout, when it would look once more.
            scope.spawn(move || say.send(wait(None)).unwrap());
        }
        // Meanwhile they go to sleep. Who waits beside them for a while only is not kept longer.
        assert_eq!(wait(Some(Duration::from_millis(20))).unwrap(), None);
        // All at once, so that there is one event.
        let mut state = daemon.state.lock().unwrap();
        (0..THREADS).for_each(|wr_id| state.complete(token, wr_id, false));
        drop(state);
        let woken = || hear.recv_timeout(WAIT.unwrap()).ok()?.unwrap();
        let mut ids: Vec<_> = (0..THREADS).map_while(|_| woken()).collect();
        // Who sleeps still is woken by this.
        daemon.kill();
        ids.sort_unstable();
        assert_eq!(ids, Vec::from_iter(0..THREADS));
    });
}

#[test]
fn events_of_a_queue_that_is_gone_are_not_kept() {
    let daemon = FakeDaemon::start();
    let context = daemon.open();
    let channel = context.create_comp_channel().unwrap();
    let kept = context.create_cq(8, Some(&channel)).unwrap();
    let kept_token = daemon.state.lock().unwrap().cqs.values().next().unwrap().token;
    // An event is read on behalf of the one, before and after the other has gone.
    for is_gone_first in [false, true] {
        let lost = context.create_cq(8, Some(&channel)).unwrap();
        lost.req_notify(false).unwrap();
        let mut state = daemon.state.lock().unwrap();
        let token = state.cqs.values().map(|cq| cq.token).find(|token| *token != kept_token);
        state.complete(token.unwrap(), 1, false);
        state.cqs.retain(|_, cq| cq.token == kept_token);
        drop(state);
        if is_gone_first {
            drop(lost);
            assert_eq!(kept.wait(&mut [Wc::default()], NOT_AT_ALL).unwrap(), 0);
        } else {
            assert_eq!(kept.wait(&mut [Wc::default()], NOT_AT_ALL).unwrap(), 0);
            assert!(!is_empty(&channel));
            drop(lost);
        }
        assert!(is_empty(&channel));
    }
}

/// Whether a channel keeps no event that was read, which only this shows.
fn is_empty(channel: &CompChannel) -> bool {
    let text = format!("{channel:?}");
    assert!(text.contains("events: ["), "{text}");
    text.contains("events: []")
}

#[test]
fn a_channel_names_the_queue_and_forgets_those_that_are_gone() {
    let daemon = FakeDaemon::start();
    let context = daemon.open();
    let channel = context.create_comp_channel().unwrap();
    let kept = context.create_cq(8, Some(&channel)).unwrap();
    let kept_token = daemon.state.lock().unwrap().cqs.values().next().unwrap().token;
    let lost = context.create_cq(8, Some(&channel)).unwrap();
    let tokens: Vec<_> = daemon.state.lock().unwrap().cqs.values().map(|cq| cq.token).collect();
    let lost_token = tokens.into_iter().find(|&token| token != kept_token).unwrap();

    lost.req_notify(false).unwrap();
    kept.req_notify(true).unwrap();
    daemon.state.lock().unwrap().complete(lost_token, 1, false);
    daemon.state.lock().unwrap().complete(kept_token, 1, false);
    drop(lost);
    assert!(channel.wait(NOT_AT_ALL).unwrap().is_none(), "only solicited events were asked for");
    daemon.state.lock().unwrap().complete(kept_token, 2, true);
    assert!(channel.wait(WAIT).unwrap() == Some(kept));
    assert!(channel.wait(NOT_AT_ALL).unwrap().is_none());
}

#[test]
fn another_size_keeps_what_is_unread() {
    let daemon = FakeDaemon::start();
    let context = daemon.open();
    let cq = context.create_cq(3, None).unwrap();
    assert_eq!(cq.depth(), 3);
    let token = daemon.state.lock().unwrap().cqs.values().next().unwrap().token;
    let complete = |wr_id| daemon.state.lock().unwrap().complete(token, wr_id, false);
    (1..=3).for_each(complete);
    assert_eq!(cq.poll(&mut [Wc::default()]).unwrap(), 1);
    cq.resize(1000).unwrap();
    assert_eq!(cq.depth(), 1023);
    (4..=1000).for_each(complete);
    let mut rest = Vec::new();
    cq.poll_into(&mut rest).unwrap();
    assert!(rest.iter().map(|wc| wc.wr_id).eq(2..=1000));
}

#[test]
fn another_size_keeps_it_armed() {
    let daemon = FakeDaemon::start();
    let context = daemon.open();
    let channel = context.create_comp_channel().unwrap();
    let cq = context.create_cq(3, Some(&channel)).unwrap();
    let token = daemon.state.lock().unwrap().cqs.values().next().unwrap().token;
    cq.req_notify(false).unwrap();
    cq.resize(100).unwrap();
    daemon.state.lock().unwrap().complete(token, 1, false);
    assert!(channel.wait(WAIT).unwrap() == Some(cq));
}

#[test]
fn threads_that_poll_while_the_size_changes_see_each_completion_once() {
    let daemon = FakeDaemon::start();
    let context = daemon.open();
    let cq = context.create_cq(63, None).unwrap();
    let token = daemon.state.lock().unwrap().cqs.values().next().unwrap().token;
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let poller = scope.spawn(|| {
            let mut seen = Vec::new();
            while !done.load(Ordering::Acquire) {
                cq.poll_into(&mut seen).unwrap();
            }
            cq.poll_into(&mut seen).unwrap();
            seen
        });
        for round in 0..50 {
            daemon.state.lock().unwrap().complete(token, round, false);
            cq.resize(if round % 2 == 0 { 100 } else { 200 }).unwrap();
        }
        done.store(true, Ordering::Release);
        assert!(poller.join().unwrap().iter().map(|wc| wc.wr_id).eq(0..50));
    });
}
