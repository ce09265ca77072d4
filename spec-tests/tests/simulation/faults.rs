//! Faults of a connection while it works: memory goes away, a queue breaks, a program takes its QP
//! to ERR or RESET, the peer is gone. Every work request still completes, once and in order, with
//! an error that names the reason; other QPs go on.

use crate::{Draw, LIMIT, check_connected};
use urxe_engine::AsyncEvent;
use urxe_spec_tests::rng::Rng;
use urxe_spec_tests::simulation::scenario::NetworkProfile;
use urxe_spec_tests::simulation::seeds::Family;
use urxe_spec_tests::simulation::workloads::rc::{Expects, Progress, RcWorkload};
use urxe_spec_tests::simulation::workloads::traffic::Traffic;
use urxe_types::{Lkey, QpAttr, QpState, Rkey, WcStatus};

/// A fault. A is the end that it happens to, B its peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// A's program deregisters memory of its own work requests.
    DeregLocal,
    /// A's program deregisters the memory that B writes to and reads.
    DeregWindow,
    /// A's program unmaps memory of its own work requests; `late`: only sync finds out.
    UnmapLocal { late: bool },
    /// A's program unmaps the memory that B writes to and reads.
    UnmapWindow { late: bool },
    /// A's program overwrites the cursors of its send queue.
    BreakSends,
    /// A's program overwrites the cursors of its receive queue.
    BreakRecvs,
    /// A's program takes its QP to ERR.
    ToErr,
    /// A's program takes its QP to RESET.
    ToReset,
    /// A's program destroys its QP.
    Destroy,
    /// A's program lets its SQ drain, and goes on.
    Drain,
}

use Fault::*;

const ALL: [Fault; 12] = [
    DeregLocal,
    DeregWindow,
    UnmapLocal { late: false },
    UnmapLocal { late: true },
    UnmapWindow { late: false },
    UnmapWindow { late: true },
    BreakSends,
    BreakRecvs,
    ToErr,
    ToReset,
    Destroy,
    Drain,
];

/// How the first failed work request of each queue may complete.
struct Endings {
    a_sends: &'static [WcStatus],
    a_recvs: &'static [WcStatus],
    b_sends: &'static [WcStatus],
}

use WcStatus::{
    LocalAccess, LocalProtection, LocalQpOperation, RemoteAccess, RemoteOperation, RetryExceeded,
    WrFlush,
};

impl Fault {
    /// B learns of it only by A's responses, so B's receives are at most flushed. An A that fails
    /// for a local reason sends no response, and neither does one whose NAK is lost.
    fn endings(self) -> Endings {
        match self {
            DeregLocal => Endings {
                a_sends: &[LocalProtection, WrFlush],
                a_recvs: &[LocalProtection, WrFlush],
                b_sends: &[RemoteOperation, RetryExceeded],
            },
            // A does not answer a repeated READ again whose memory has gone: B gives up, and no
            // more answers A.
            DeregWindow => Endings {
                a_sends: &[WrFlush, RetryExceeded],
                a_recvs: &[LocalAccess, WrFlush],
                b_sends: &[RemoteAccess, RetryExceeded],
            },
            UnmapLocal { .. } => Endings {
                a_sends: &[LocalProtection, WrFlush],
                a_recvs: &[LocalProtection, LocalQpOperation, WrFlush],
                b_sends: &[RemoteOperation, RetryExceeded],
            },
            UnmapWindow { .. } => Endings {
                // A failed sync does not name the writes that are lost: a READ that ends with it
                // fails.
                a_sends: &[LocalProtection, WrFlush, RetryExceeded],
                a_recvs: &[LocalProtection, LocalQpOperation, LocalAccess, WrFlush],
                b_sends: &[RemoteOperation, RemoteAccess, RetryExceeded],
            },
            BreakRecvs => Endings {
                a_sends: &[WrFlush],
                a_recvs: &[WrFlush],
                b_sends: &[RemoteOperation, RetryExceeded],
            },
            BreakSends | ToErr | ToReset | Destroy => {
                Endings { a_sends: &[WrFlush], a_recvs: &[WrFlush], b_sends: &[RetryExceeded] }
            }
            Drain => Endings { a_sends: &[], a_recvs: &[WrFlush], b_sends: &[] },
        }
    }

    /// Injects it at A.
    fn inject(self, rng: &mut Rng, traffic: &mut Traffic) {
        let world = &mut traffic.world;
        let [a, b, ..] = &mut traffic.workloads[..] else { unreachable!("three connections") };
        let node = &mut world.nodes[a.end.node];
        let local = rng.pick(&a.arena.mrs().collect::<Vec<_>>());
        let window = b.window.mr;
        match self {
            DeregLocal => {
                node.device.dereg_mr(Lkey(local.key)).expect("it is registered");
            }
            DeregWindow => {
                for &open_window in &b.window.open_windows {
                    assert!(node.device.dealloc_mw(Rkey(open_window)));
                }
                node.device.dereg_mr(Lkey(window.key)).expect("its windows are unbound");
            }
            UnmapLocal { late: false } => {
                node.host.memory.unmap_after(local.region, rng.range(1..=5) as u32);
            }
            UnmapLocal { late: true } => node.host.memory.unmap(local.region, true),
            UnmapWindow { late: false } => {
                node.host.memory.unmap_after(window.region, rng.range(1..=5) as u32);
            }
            UnmapWindow { late: true } => node.host.memory.unmap(window.region, true),
            BreakSends => {
                node.host.send_queue(a.end.send_queue).break_cursors();
                a.stop_sending();
                world.ring(&a.end);
            }
            BreakRecvs => {
                node.host.recv_queue(a.end.recv_queue).break_cursors();
                a.stop_receiving();
            }
            ToErr => world.set_state(&a.end, QpState::Err),
            ToReset => {
                world.set_state(&a.end, QpState::Reset);
                a.abandon();
            }
            Destroy => {
                assert!(world.destroy_qp(&a.end));
                a.abandon();
            }
            Drain => {
                world.set_state(&a.end, QpState::Sqd);
                traffic.run_until(LIMIT, |traffic| {
                    let end = &traffic.workloads[0].end;
                    let events = &traffic.world.nodes[end.node].host.events;
                    events.contains(&AsyncEvent::SqDrained(end.qpn))
                });
                let end = traffic.workloads[0].end;
                let rts = QpAttr { state: Some(QpState::Rts), ..QpAttr::default() };
                traffic.world.modify(&end, &rts);
            }
        }
    }
}

fn draw(rng: &mut Rng, seed: u64) -> Draw {
    let calm = rng.percent(50);
    let profile = if calm { NetworkProfile::calm(rng) } else { NetworkProfile::stormy(rng) };
    let mut draw = Draw::new(rng, profile, 3).enrich(seed);
    for style in &mut draw.connections[0].styles {
        style.count = 60;
    }
    draw
}

fn run(seed: u64, prints: bool) {
    fault_and_effect(seed, prints);
}

/// Makes a run. Returns its fault, and whether a send of either end failed by it: a fault may come
/// when all is done, or be of memory that nothing uses any more.
fn fault_and_effect(seed: u64, prints: bool) -> (Fault, bool) {
    let mut rng = Rng::new(seed);
    let fault = rng.pick(&ALL);
    let draw = draw(&mut rng, seed);
    let mut traffic = draw.make(&mut rng, prints);
    if fault != Drain {
        traffic.workloads[0].expects = Expects::Failure;
        traffic.workloads[1].expects = Expects::Failure;
    }
    let [ends_a, ends_b] = [0, 1]
        .map(|side: usize| rng.range(0..=traffic.workloads[side].sends.len() as u64) as usize);
    let either = rng.percent(50);
    traffic.run_until(LIMIT, |traffic| {
        let ended = |side: usize| traffic.workloads[side].send_progress.ended;
        if either { ended(0) >= ends_a } else { ended(1) >= ends_b }
    });
    traffic.world.note(&traffic.workloads[0].end, format_args!("meets with {fault:?}"));
    fault.inject(&mut rng, &mut traffic);

    traffic.run_until(LIMIT, |traffic| {
        let (victims, others) = traffic.workloads.split_at(2);
        // Work requests in a broken ring do not complete.
        let a_has_sent = fault == BreakSends || victims[0].has_sent();
        a_has_sent && victims[1].has_sent() && others.iter().all(RcWorkload::is_done)
    });
    for side in [0, 1] {
        traffic.workloads[side].stop();
        let end = traffic.workloads[side].end;
        if ![None, Some(QpState::Reset)].contains(&traffic.world.state(&end)) {
            traffic.world.set_state(&end, QpState::Err);
        }
    }
    traffic.run_to_rest();
    check(fault, &traffic.workloads[0], &traffic.workloads[1]);
    if fault == BreakSends {
        // Some were under way when their ring broke.
        traffic.workloads[0].lose_sends();
    }
    traffic.check_memory();
    check_connected(&traffic, &traffic.workloads[2..]);
    let has_failed = |side: usize| traffic.workloads[side].send_progress.failed.is_some();
    (fault, has_failed(0) || has_failed(1))
}

fn check(fault: Fault, a: &RcWorkload, b: &RcWorkload) {
    let endings = fault.endings();
    let check_queue = |name: &str, progress: &Progress, allowed: &[WcStatus], loses: bool| {
        if let Some(failed) = progress.failed {
            assert!(allowed.contains(&failed.status), "{name}: {failed:?} after {fault:?}");
        }
        assert!(loses || progress.ended == progress.posted, "{name}: something never completed");
    };
    check_queue("A's sends", &a.send_progress, endings.a_sends, fault == BreakSends);
    check_queue("A's receives", &a.recv_progress, endings.a_recvs, fault == BreakRecvs);
    check_queue("B's sends", &b.send_progress, endings.b_sends, false);
    check_queue("B's receives", &b.recv_progress, &[WrFlush], false);
}

/// One fault at one connection of three.
pub(crate) const FAMILY: Family =
    Family { name: "a_fault_ends_one_connection_and_no_other", first: 40_000, runs: 1_000, run };

#[test]
fn a_fault_ends_one_connection_and_no_other() {
    let mut effects = ALL.map(|fault| (fault, 0));
    let all_were_made = FAMILY.check_by(|seed, prints| {
        let (fault, has_effect) = fault_and_effect(seed, prints);
        let effect = effects.iter_mut().find(|(of, _)| *of == fault);
        effect.expect("all are listed").1 += u32::from(has_effect);
    });
    if all_were_made {
        let without: Vec<Fault> =
            effects.into_iter().filter(|&(_, runs)| runs == 0).map(|(fault, _)| fault).collect();
        assert_eq!(without, [Drain], "no run of theirs has failed");
    }
}

/// An unsignaled atomic completed before the sync that lost its response; the flush of what came
/// after it implied its success.
#[test]
fn seed_40000_an_unsignaled_request_succeeded_without_its_response() {
    run(40_000, false);
}

/// The sync before the completion of a receive failed, and the completion reported success.
#[test]
fn seed_40028_a_receive_succeeded_without_its_data() {
    run(40_028, false);
}

/// What was under way when its ring broke never completes, and its effects may be there: the model
/// took them for not done.
#[test]
fn seed_5000010614_a_read_of_a_broken_ring_was_answered_and_did_not_complete() {
    run(5_000_010_614, false);
}

/// Every packet of which the time was taken had been sent again, the first after 250 ms. So a probe
/// was due after 0.5 s, and what waited for it filled the window of the path.
#[test]
fn seed_100765261_a_path_on_which_every_answer_was_doubtful_seemed_endless() {
    run(100_765_261, false);
}

/// Memory was unmapped that only the next repeat of the oldest packet would have shown, and that
/// was given up without a word: the QP ran out of tries.
#[test]
fn seed_100002633_memory_that_had_gone_was_told_as_silence() {
    run(100_002_633, false);
}
