//! The scoreboard: what is sent when, and what is in flight.

use super::*;
use crate::limits::PACKET_OVERHEAD;
use proptest::prelude::*;
use urxe_types::{Rkey, SendOp};

const MTU: u32 = 1000;
/// Bytes in flight of a full packet.
const FULL: u64 = MTU as u64 + PACKET_OVERHEAD;

fn read() -> SendOp {
    SendOp::Read { remote_addr: 0, rkey: Rkey(0) }
}

/// A queue of WRITEs, or of what `op` says, of so many full packets each.
fn queue_of(first: u32, requests: &[(SendOp, u32)]) -> SendQueue {
    let mut queue = SendQueue::new(Psn::new(first));
    for &(op, packets) in requests {
        let mut pending = Box::new(Pending::new());
        pending.packets = packets;
        pending.mtu = MTU;
        pending.length = u64::from(packets * MTU);
        pending.wqe.wr.op = op;
        queue.push(pending);
    }
    queue
}

fn writes(first: u32, packets: &[u32]) -> SendQueue {
    let write = SendOp::Write { remote_addr: 0, rkey: Rkey(0), imm: None };
    queue_of(first, &packets.iter().map(|&packets| (write, packets)).collect::<Vec<_>>())
}

/// Sends all there is, READs in requests of at most `most` packets; each as its first PSN and the
/// PSNs that it takes.
fn send(queue: &mut SendQueue, most: u32) -> Vec<(u32, u32)> {
    let mut sent = Vec::new();
    loop {
        queue.skip_arrived();
        if queue.current().is_none() {
            return sent;
        }
        queue.start_current();
        let end = queue.end_of_current(most);
        let (pending, packet) = queue.current().unwrap();
        sent.push(((pending.first_psn + packet).get(), end - packet));
        queue.sent_current(end);
    }
}

/// The same for what was lost.
fn repeat(queue: &mut SendQueue) -> Vec<(u32, u32)> {
    let mut sent = Vec::new();
    while let Some(psn) = queue.first_lost() {
        let end = queue.end_of_repeat_at(psn).unwrap();
        let (_, packet) = queue.find(psn).unwrap();
        sent.push((psn.get(), end - packet));
        queue.on_repeated(psn, psn + (end - packet));
    }
    sent
}

/// Lets what is done go.
fn advance(queue: &mut SendQueue) {
    while let Some(front) = queue.pending.front().filter(|front| front.started) {
        let (to, end) = (queue.done_to(front), front.first_psn + front.packets);
        if to != end {
            queue.advance_una(to);
            return;
        }
        queue.pop_front();
    }
}

fn acknowledge(queue: &mut SendQueue, before: u32) {
    queue.on_executed(Psn::new(before));
    advance(queue);
}

fn arrive(queue: &mut SendQueue, psns: impl IntoIterator<Item = u32>) {
    for psn in psns {
        queue.on_arrived_psn(Psn::new(psn));
    }
}

#[test]
fn psns_run_on_over_the_wrap() {
    let mut queue = writes(0xff_fffe, &[1, 3, 1]);
    let sent: Vec<u32> = send(&mut queue, 1).into_iter().map(|(psn, _)| psn).collect();
    assert_eq!(sent, [0xff_fffe, 0xff_ffff, 0, 1, 2]);
    assert_eq!(queue.outstanding(), 5);
    assert!(queue.is_outstanding(Psn::new(2)));
    assert!(!queue.is_outstanding(Psn::new(3)));
    assert!(!queue.is_outstanding(Psn::new(0xff_fffd)));
}

#[test]
fn a_rewind_resends_exactly_what_is_not_acknowledged() {
    let mut queue = writes(10, &[2, 4]);
    send(&mut queue, 1);
    acknowledge(&mut queue, 13);
    queue.rewind();
    assert_eq!(queue.resent_to(), Some(Psn::new(13)));
    assert_eq!(send(&mut queue, 1), [(13, 1), (14, 1), (15, 1)]);
    assert_eq!(queue.outstanding(), 3);
}

#[test]
fn a_rewind_leaves_out_what_has_arrived() {
    let mut queue = writes(0, &[3, 3]);
    send(&mut queue, 1);
    arrive(&mut queue, [1, 3, 4]);
    queue.rewind();
    assert_eq!(send(&mut queue, 1), [(0, 1), (2, 1), (5, 1)]);
}

fn assert_asked(queue: &SendQueue, requests: usize) {
    assert!(queue.has_asked(requests), "fewer than {requests}");
    assert!(!queue.has_asked(requests + 1), "more than {requests}");
}

#[test]
fn a_long_read_is_asked_for_in_parts_and_repeated_within_them() {
    let mut queue = queue_of(0xff_fffe, &[(read(), 10)]);
    assert_eq!(send(&mut queue, 4), [(0xff_fffe, 4), (2, 4), (6, 2)]);
    assert_asked(&queue, 3);
    arrive(&mut queue, [0xff_fffe, 0xff_ffff, 0]);
    advance(&mut queue);
    assert_eq!(queue.una(), Psn::new(1));
    queue.rewind();
    assert_eq!(send(&mut queue, 10), [(1, 1), (2, 4), (6, 2)]);
    // The oldest is not answered in full.
    assert_asked(&queue, 3);
    arrive(&mut queue, [1]);
    advance(&mut queue);
    assert_asked(&queue, 2);
}

#[test]
fn a_read_none_of_whose_answers_came_is_asked_for_as_it_was() {
    let mut queue = queue_of(0, &[(read(), 8), (read(), 4)]);
    assert_eq!(send(&mut queue, 8), [(0, 8), (8, 4)]);
    queue.detect_losses(Psn::new(5), 0);
    assert_eq!(repeat(&mut queue), [(0, 8)], "the peer takes it for a request of its own");
    arrive(&mut queue, [8, 11]);
    queue.detect_losses(Psn::new(11), 0);
    assert_eq!(repeat(&mut queue), [(9, 2)], "the peer knows the request");
    assert_asked(&queue, 2);
}

#[test]
fn missing_answers_between_those_that_came_are_lost() {
    let mut queue = queue_of(0, &[(read(), 8)]);
    send(&mut queue, 8);
    arrive(&mut queue, [0, 3, 4, 6]);
    advance(&mut queue);
    assert!(queue.detect_losses(Psn::new(6), 0), "the oldest is among them");
    assert_eq!(repeat(&mut queue), [(1, 2), (5, 1)]);
    arrive(&mut queue, [7]);
    queue.detect_losses(Psn::new(7), 0);
    assert_eq!(repeat(&mut queue), [], "they are under way again");
    arrive(&mut queue, [1, 2, 5]);
    advance(&mut queue);
    assert!(queue.is_empty());
}

#[test]
fn a_repeat_is_lost_when_something_sent_after_it_has_arrived() {
    let mut queue = writes(0, &[4]);
    send(&mut queue, 1);
    arrive(&mut queue, [1, 2, 3]);
    assert!(queue.detect_losses(Psn::new(3), 0));
    assert_eq!(repeat(&mut queue), [(0, 1)]);
    queue.push(writes(0, &[2]).pending.pop_front().unwrap());
    assert_eq!(send(&mut queue, 1), [(4, 1), (5, 1)]);
    arrive(&mut queue, [4]);
    assert!(!queue.detect_losses(Psn::new(4), 0), "it may be close behind");
    arrive(&mut queue, [5]);
    assert!(queue.detect_losses(Psn::new(5), 0));
    assert_eq!(repeat(&mut queue), [(0, 1)]);
}

/// The peer names one of those that were sent before the rewind.
#[test]
fn an_answered_probe_tells_also_of_what_was_sent_again_after_a_rewind() {
    let mut queue = writes(0, &[8]);
    send(&mut queue, 1);
    queue.rewind();
    assert_eq!(queue.sent_to(), Psn::new(0));
    arrive(&mut queue, [7]);
    queue.detect_losses(Psn::new(7), 0);
    assert_eq!(repeat(&mut queue), [], "nothing is under way of which it would tell");
    assert_eq!(send(&mut queue, 1), (0..7).map(|psn| (psn, 1)).collect::<Vec<_>>());
    assert_eq!(queue.sent_to(), Psn::new(8));
    // The probe goes here; and then one of those that are lost is sent again.
    let repeats_made = queue.repeats_made();
    queue.mark_lost(Psn::new(3));
    assert_eq!(repeat(&mut queue), [(3, 1)]);
    queue.detect_losses_before(Psn::new(8), repeats_made);
    assert_eq!(repeat(&mut queue), [0, 1, 2, 4, 5, 6].map(|psn| (psn, 1)));
}

#[test]
fn where_nothing_new_is_sent_an_answered_probe_tells_which_repeats_were_lost() {
    let mut queue = writes(0, &[8]);
    send(&mut queue, 1);
    arrive(&mut queue, [3, 7]);
    queue.detect_losses(Psn::new(7), 0);
    queue.on_repeated(Psn::new(0), Psn::new(3));
    let repeats_made = queue.repeats_made();
    // The probe goes here, and is answered when all of the others have been sent too.
    queue.on_repeated(Psn::new(4), Psn::new(7));
    arrive(&mut queue, [0]);
    assert_eq!(repeat(&mut queue), []);
    queue.detect_losses_before(Psn::new(8), repeats_made);
    assert_eq!(repeat(&mut queue), [(1, 1), (2, 1)], "what followed the probe may be close behind");
}

/// Three READs of four packets each, of which the peer lacks the first, and says to have the
/// others.
fn a_lost_read_request() -> SendQueue {
    let mut queue = queue_of(0, &[(read(), 4), (read(), 4), (read(), 4)]);
    send(&mut queue, 4);
    assert!((4..12).all(|psn| queue.on_kept(Psn::new(psn))));
    assert!(queue.detect_lost_requests(Psn::new(11), 3));
    queue
}

#[test]
fn a_read_that_the_peer_keeps_is_not_lost_until_something_after_it_is_answered() {
    let mut queue = a_lost_read_request();
    assert!(queue.has_kept());
    assert_eq!(repeat(&mut queue), [(0, 4)]);
    arrive(&mut queue, [0, 1, 2, 3, 4, 6]);
    advance(&mut queue);
    queue.detect_lost_answers(Psn::new(6));
    assert_eq!(repeat(&mut queue), [(5, 1)]);
    queue.detect_lost_answers(Psn::new(12));
    assert_eq!(repeat(&mut queue), [(7, 1), (8, 4)]);
    assert!(!queue.has_kept());
}

#[test]
fn answers_that_were_never_sent_are_not_lost_on_their_way() {
    let mut queue = a_lost_read_request();
    let moved = queue.take_moved();
    assert_eq!((moved.lost, moved.gone), ([0, 0], [0, 4 * FULL as u32]));
    assert_eq!(queue.scoreboard.in_flight, [0, 8 * FULL]);
}

#[test]
fn requests_that_an_answer_holds_up_are_done_and_not_lost() {
    let write = SendOp::Write { remote_addr: 0, rkey: Rkey(0), imm: None };
    let mut queue = queue_of(0, &[(write, 2), (read(), 1), (write, 2)]);
    send(&mut queue, 1);
    acknowledge(&mut queue, 5);
    assert_eq!(queue.una(), Psn::new(2));
    assert!(queue.detect_losses(Psn::new(5), 0));
    assert_eq!(repeat(&mut queue), [(2, 1)]);
    let moved = queue.take_moved();
    assert_eq!(moved.delivered, [4 * FULL, 0]);
    assert_eq!(moved.lost, [0, FULL]);
    arrive(&mut queue, [2]);
    advance(&mut queue);
    assert!(queue.is_empty());
}

#[test]
fn requests_that_arrived_and_were_not_carried_out_are_not_done() {
    let mut queue = writes(0, &[1, 1, 1]);
    send(&mut queue, 1);
    arrive(&mut queue, [1, 2]);
    acknowledge(&mut queue, 1);
    assert_eq!(queue.una(), Psn::new(1));
    queue.mark_missing(Psn::new(1));
    assert_eq!(repeat(&mut queue), [(1, 1)], "it was refused");
    acknowledge(&mut queue, 3);
    assert!(queue.is_empty());
}

proptest! {
    /// Whatever arrives, is lost, sent again or gone back to: what has left the flight and what is
    /// in it make up what was sent, nothing is sent that has arrived, and all ends.
    #[test]
    fn bytes_in_flight_are_those_sent_and_neither_arrived_nor_lost(
        requests in prop::collection::vec((any::<bool>(), 1..6u32), 1..8),
        steps in prop::collection::vec((0..4u32, 0..40u32), 0..60),
        first in prop_oneof![Just(0u32), Just(0xff_fff0)],
    ) {
        let write = SendOp::Write { remote_addr: 0, rkey: Rkey(0), imm: None };
        let requests: Vec<_> = requests
            .into_iter()
            .map(|(is_read, packets)| (if is_read { read() } else { write }, packets))
            .collect();
        let total: u32 = requests.iter().map(|(_, packets)| packets).sum();
        let mut queue = queue_of(first, &requests);
        let psn = |at: u32| Psn::new((first + at) & 0xff_ffff);
        let mut in_flight = 0i64;
        let mut account = |queue: &mut SendQueue, sent: &[(u32, u32)]| {
            let packets: u32 = sent.iter().map(|(_, packets)| packets).sum();
            in_flight += i64::from(packets) * FULL as i64;
            let moved = queue.take_moved();
            for direction in 0..2 {
                let left = moved.delivered[direction] + moved.lost[direction];
                in_flight -= (left + moved.forgotten[direction]) as i64;
            }
            let held: u64 = queue.scoreboard.in_flight.iter().sum();
            assert_eq!(in_flight, held as i64);
        };
        let sent = send(&mut queue, 3);
        account(&mut queue, &sent);
        for (kind, at) in steps {
            let at = at % total;
            let mut sent = Vec::new();
            if queue.is_outstanding(psn(at)) {
                match kind {
                    0 => {
                        queue.on_arrived_psn(psn(at));
                        queue.on_executed(psn(at));
                        advance(&mut queue);
                    }
                    1 => {
                        queue.on_executed(psn(at).next());
                        advance(&mut queue);
                    }
                    2 => { queue.detect_losses(psn(at), 0); }
                    _ => queue.rewind(),
                }
            }
            account(&mut queue, &[]);
            let lost = (0..total).filter(|&at| queue.scoreboard.lost.contains(psn(at))).count();
            for request in repeat(&mut queue) {
                for after in 0..request.1 {
                    prop_assert!(!queue.has_arrived(Psn::new(request.0) + after));
                }
            }
            sent.push((0, lost as u32));
            sent.extend(send(&mut queue, 3));
            account(&mut queue, &sent);
        }
        for at in 0..total {
            if queue.is_outstanding(psn(at)) {
                queue.on_arrived_psn(psn(at));
            }
        }
        acknowledge(&mut queue, psn(total).get());
        account(&mut queue, &[]);
        prop_assert!(queue.is_empty());
        prop_assert_eq!(queue.scoreboard.in_flight, [0, 0]);
    }
}
