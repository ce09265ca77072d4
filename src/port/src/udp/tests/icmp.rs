//! What is said of datagrams that do not arrive.

use super::*;
use crate::IcmpReason;

// WHY-025, COUNT-018
#[test]
fn a_closed_port_is_heard_of_and_costs_other_flows_nothing() {
    const TURNS: u32 = 5;
    let (mut a, mut b) = pair();
    let closed = fresh_addr();
    let open = b.caps().addrs[0];
    let from_pool = |to| Flow { src_port: FIRST_SOURCE_PORT, ..flow(&a.caps(), to) };
    let flows = [from_pool(closed), from_pool(open)];
    assert_eq!(a.icmp_error(closed), None);
    let mut batch = batch(&a.caps());
    for psn in 0..TURNS {
        for flow in &flows {
            push(&mut batch, flow, Opcode::RC_SEND_ONLY, psn, 8);
        }
    }
    let arrived = carry(&mut a, &mut batch, &mut b, TURNS as usize);
    assert_eq!(psns(&arrived), Vec::from_iter(0..TURNS));
    // And one batch after the other: what is said of the first is told to the second.
    for psn in TURNS..2 * TURNS {
        push(&mut batch, &flows[0], Opcode::RC_SEND_ONLY, psn, 8);
        assert_eq!(a.send(Instant::now(), &mut batch).unwrap(), SendOutcome::Done);
        push(&mut batch, &flows[1], Opcode::RC_SEND_ONLY, psn, 8);
        assert_eq!(psns(&carry(&mut a, &mut batch, &mut b, 1)), [psn]);
    }
    let error = a.icmp_error(closed).unwrap();
    assert_eq!((error.reason, error.said_by), (IcmpReason::PortClosed, closed));
    let PortCounters { icmp_errors, tx_datagrams, tx_refused, .. } = a.counters();
    assert_eq!((icmp_errors, tx_refused), (error.times, 0));
    assert_eq!(tx_datagrams, u64::from(4 * TURNS), "nothing is lost");
    assert_eq!(a.icmp_error(open), None);
}
