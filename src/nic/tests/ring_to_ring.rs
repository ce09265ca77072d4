//! Two data paths and nothing else: no daemon, no session, no socket. A program's work request goes
//! into a ring of one, over a simulated network, and comes out of a ring of the other.

mod node;

use node::{MEMORY, Node, OWNER, connected, run};
use std::time::Instant;
use urxe_port::sim::{Link, SimNetwork};
use urxe_shm::control::event::{self, EventRecord, RECORD_LEN};

impl Node {
    /// The objects of its one kind of owner, as a listing has them.
    fn listed(&mut self) -> [usize; 3] {
        let is_meant = |owner| owner == OWNER;
        let nic = &mut self.nic;
        let qps = nic.qps_behind(None, is_meant).count();
        let mrs = nic.mrs_behind(None, is_meant).count();
        [qps, nic.cqs_behind(None, is_meant).count(), mrs]
    }
}

#[test]
fn a_message_goes_from_ring_to_ring_without_a_daemon() {
    let mut now = Instant::now();
    let network = SimNetwork::new(7, Link::default());
    let [mut a, mut b] = connected(&network, now);
    assert_eq!((a.listed(), b.listed()), ([1; 3], [1; 3]));

    let message: Vec<u8> = (0..MEMORY).map(|at| (at / 7) as u8).collect();
    a.memory.write(0, &message).unwrap();
    b.completions.arm(false);
    b.post_recv(2, MEMORY as u32);
    a.send(1, MEMORY as u32);
    run(&network, [&mut a, &mut b], &mut now);

    let (sent, received) = (a.poll().unwrap(), b.poll().unwrap());
    assert_eq!((sent.wr_id, sent.status), (1, 0));
    assert_eq!((received.wr_id, received.status, received.byte_len), (2, 0, MEMORY as u32));
    let mut arrived = vec![0; MEMORY];
    b.memory.read(0, &mut arrived).unwrap();
    assert!(arrived == message);
    let mut record = [0; RECORD_LEN];
    assert_eq!(rustix::io::read(&b.events, &mut record), Ok(RECORD_LEN));
    let record = EventRecord::from_bytes(record);
    assert_eq!((record.kind, record.object), (event::COMPLETION, 5), "the CQ was armed");

    // Everything goes again, and what was in flight finds nobody.
    b.nic.destroy_qp(now, b.qpn);
    b.nic.dereg_mr(b.lkey).unwrap();
    assert_eq!(b.listed(), [0, 1, 0]);
    assert!(b.nic.query_qp(b.qpn).is_none());
}
