//! The ECN bits of the traffic class.

use super::*;

/// Sends trains of all four values of the ECN bits, and checks that each datagram has its own.
fn send_marked(a: &mut UdpPort, b: &mut UdpPort) {
    let mut out = batch(&a.caps());
    let to = b.caps().addrs[0];
    for train in 0..16 {
        let flow = Flow { traffic_class: 0x68 | (train as u8 % 4), ..flow(&a.caps(), to) };
        push_write(&mut out, &flow, 100 * train, 2 + train, 1024);
    }
    let sent = out.len();
    let arrived = carry(a, &mut out, b, sent);
    for datagram in arrived {
        let traffic_class = 0x68 | ((datagram.psn() / 100) as u8 % 4);
        assert_eq!(datagram.outer.flow.traffic_class, traffic_class);
        assert_eq!(datagram.verdict, Verdict::Exact);
    }
}

#[test]
fn trains_are_received_with_the_ecn_bits_that_they_were_sent_with() {
    let (mut a, mut b) = pair();
    send_marked(&mut a, &mut b);
}

#[test]
fn datagrams_that_the_kernel_joins_on_receipt_keep_their_ecn_bits() {
    let Some(cable) = Cable::new(1500) else { return };
    if !cable.b.set_gro("on") {
        return could_not_run("no ethtool, or it cannot have the kernel join datagrams");
    }
    for addrs in [Cable::V4, Cable::V6] {
        let single = UdpOptions { segmentation: false, ..UdpOptions::default() };
        let mut a = cable.a.run(move || UdpPort::open(addrs[0], &single).unwrap());
        let mut b = cable.b.run(move || open(addrs[1]));
        send_marked(&mut a, &mut b);
    }
}
