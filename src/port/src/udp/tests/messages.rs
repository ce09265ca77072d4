//! How datagrams and packets lie in the messages of calls.

use super::*;

#[test]
fn a_request_and_an_ack_cross_in_one_datagram_and_come_out_as_two() {
    let (mut a, mut b) = pair();
    let mut batch = batch(&a.caps());
    let flow = flow(&a.caps(), b.caps().addrs[0]);
    push(&mut batch, &flow, Opcode::RC_SEND_ONLY, 7, 8);
    push(&mut batch, &flow, Opcode::RC_ACK, 9, 0);
    assert!(batch.join_ack());
    let arrived = carry(&mut a, &mut batch, &mut b, 2);
    let came: Vec<_> = arrived.iter().map(|came| (came.psn(), came.verdict)).collect();
    assert_eq!(came, [(9, Verdict::Exact), (7, Verdict::Exact)]);
}

#[test]
fn a_port_that_was_polled_in_vain_takes_one_message_first_and_then_all_others_in_order() {
    let (mut a, mut b) = pair();
    let (now, mut rx) = (Instant::now(), RxBatch::new(16));
    for _ in 0..POLLING {
        assert_eq!(b.recv(now, &mut rx).unwrap(), 0);
    }
    let mut batch = batch(&a.caps());
    let flow = flow(&a.caps(), b.caps().addrs[0]);
    for (number, len) in [64, 32, 96, 4, 8].into_iter().enumerate() {
        push(&mut batch, &flow, Opcode::RC_SEND_ONLY, number as u32, len);
    }
    let runs = batch.runs().count();
    assert!(runs > 2, "each is a message");
    assert_eq!(a.send(now, &mut batch).unwrap(), SendOutcome::Done);
    wait_readable(&b);
    let (mut psns, mut calls) = (Vec::new(), 0);
    while b.recv(now, &mut rx).unwrap() > 0 {
        calls += 1;
        while let Some((_, bytes)) = rx.next_datagram() {
            psns.push(urxe_wire::Packet::parse(bytes).unwrap().headers.bth.psn.get());
        }
    }
    assert_eq!((psns, calls), (vec![0, 1, 2, 3, 4], 2));
}
