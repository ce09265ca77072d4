//! Turns of threads that poll: what they take for the time, and for late.

#[expect(dead_code, reason = "other tests use the rest")]
mod node;

use node::{Node, connect, connected};
use std::io;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use urxe_engine::Counter;
use urxe_port::sim::{Link, SimNetwork, SimPort};
use urxe_port::{Port, SendOutcome, Wrapper};
use urxe_wire::batch::TxBatch;

/// RC-REQ-055
#[test]
fn an_answer_that_waits_in_the_port_when_its_timer_runs_out_is_not_late() {
    let now = Instant::now();
    let network = SimNetwork::new(7, Link::default());
    let [mut a, mut b] = connected(&network, now);
    b.post_recv(2, 10);
    a.send(1, 10);
    a.turn(now);
    b.turn(now + Duration::from_secs(1));
    a.nic.poller_turn(now + Duration::from_secs(10), true).unwrap();
    assert_eq!(a.poll().map(|entry| (entry.wr_id, entry.status)), Some((1, 0)));
    let counted = |counter| a.nic.device().counters().get(counter);
    assert_eq!((counted(Counter::Probes), counted(Counter::AckTimeouts)), (0, 0));
}

/// How long it takes to send.
const SENDING: Duration = Duration::from_millis(2);

/// A port that takes long to send, and whose peer answers meanwhile.
struct SlowPort {
    port: SimPort,
    peer: Arc<Mutex<Node>>,
}

impl Wrapper for SlowPort {
    type Inner = SimPort;

    fn inner(&self) -> &SimPort {
        &self.port
    }

    fn inner_mut(&mut self) -> &mut SimPort {
        &mut self.port
    }

    fn wrap_send(&mut self, now: Instant, batch: &mut TxBatch) -> io::Result<SendOutcome> {
        let outcome = self.port.send(now, batch);
        std::thread::sleep(SENDING / 2);
        self.peer.lock().unwrap().turn(Instant::now());
        std::thread::sleep(SENDING / 2);
        outcome
    }
}

/// CONG-029
#[test]
fn a_round_trip_takes_no_less_than_the_time_that_it_took_to_send() {
    let now = Instant::now();
    let network = SimNetwork::new(7, Link::default());
    let [addr_a, addr_b] = ["10.0.0.1", "10.0.0.2"].map(|addr| addr.parse().unwrap());
    let b = Arc::new(Mutex::new(Node::new(&network, addr_b, now)));
    let port = SlowPort { port: network.attach(addr_a).unwrap(), peer: Arc::clone(&b) };
    let mut a = Node::on(Box::new(port), addr_a, now);
    connect(now, [&mut a, &mut b.lock().unwrap()]);
    b.lock().unwrap().post_recv(2, 10);
    a.send(1, 10);
    a.nic.poller_turn(Instant::now(), true).unwrap();
    assert!(a.poll().is_some(), "it was answered within the turn");
    let path = a.nic.device().paths().next().unwrap();
    assert!(path.round_trip.unwrap().least >= SENDING, "{:?}", path.round_trip);
}
