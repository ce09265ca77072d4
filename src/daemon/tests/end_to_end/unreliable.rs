//! UC between two daemons, over real sockets.

use crate::harness::{End, Kind, pattern, start, unreliable_attrs};
use urxe_daemon::Handle;
use urxe_shm::ring::layout::WC_WITH_IMM;
use urxe_types::{Extra, QpType, SendData, SendOp, WcOpcode};

const KIB_64: usize = 1 << 16;

const LOCAL_QP_OPERATION: u32 = 2;

fn connected(first: &Handle, second: &Handle, kind: Kind) -> (End, End) {
    let end = |daemon: &Handle| End::of_type(daemon.socket(), "urxe0", QpType::Uc, kind, KIB_64);
    let (mut a, mut b) = (end(first), end(second));
    let [a_is, b_is] = [(a.addr, a.qp.created.qpn), (b.addr, b.qp.created.qpn)];
    for (end, (peer, qpn)) in [(&mut a, b_is), (&mut b, a_is)] {
        for attr in unreliable_attrs(peer, qpn) {
            end.client.modify(&end.qp, attr).unwrap();
        }
    }
    (a, b)
}

#[test]
fn uc_sends_and_writes_arrive() {
    for kind in [Kind::Shared, Kind::Process] {
        let (first, second) = (start(1), start(1));
        let (mut a, mut b) = connected(&first, &second, kind);
        for (round, size) in (0..).zip([0, 1, 1024, 1025, 20_000, KIB_64]) {
            let data = pattern(size, round);
            a.mr.write(0, &data);
            b.post_recv(round, &[b.mr.sge(0, KIB_64)]);
            a.exchange(SendOp::Send(Extra::Imm(5)), &[a.mr.sge(0, size)]);
            let received = b.cq.wait(1)[0];
            assert_eq!(
                (received.status, received.wr_id, received.opcode),
                (0, round, WcOpcode::Recv as u32)
            );
            assert_eq!((received.byte_len, received.wc_flags), (size as u32, WC_WITH_IMM));
            assert!(b.mr.read(0, size) == data, "SEND, {kind:?}, {size} bytes");

            b.mr.write(0, &vec![0; size]);
            b.post_recv(round, &[]);
            let (remote_addr, rkey) = (b.mr.addr, b.mr.rkey);
            let write = SendOp::Write { remote_addr, rkey, imm: Some(6) };
            a.exchange(write, &[a.mr.sge(0, size)]);
            assert_eq!(b.cq.wait(1)[0].opcode, WcOpcode::RecvRdmaWithImm as u32);
            assert!(b.mr.read(0, size) == data, "WRITE, {kind:?}, {size} bytes");
        }
    }
}

#[test]
fn operations_that_uc_lacks_fail_where_they_are_posted() {
    let (first, second) = (start(1), start(1));
    let (mut a, mut b) = connected(&first, &second, Kind::Shared);
    let (remote_addr, rkey) = (b.mr.addr, b.mr.rkey);
    let sge = a.mr.sge(0, 8);
    a.post_send(1, SendOp::Read { remote_addr, rkey }, SendData::Sges(&[sge]));
    let failed = a.cq.wait(1)[0];
    assert_eq!((failed.wr_id, failed.status), (1, LOCAL_QP_OPERATION));
    b.post_recv(1, &[]);
    assert_eq!(b.cq.poll(), []);
}
