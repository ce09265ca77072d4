//! Many objects and deep queues in one program.

use crate::harness::{CAPS, Client, End, Kind, connected, eventually, start};
use rustix::io::Errno;
use urxe_shm::control::{Backing, ControlError, QpCaps, Reply, Request, ResourceKind, WhyCopied};
use urxe_slot::limits;

use urxe_types::{
    Access, Extra, MwType, QpAttr, QpState, QpType, Qpn, SendData, SendOp, SendWr, WcOpcode,
};

const FLUSHED: u32 = 5;

#[test]
fn ten_thousand_qps_in_one_program_leave_the_others_served() {
    const QPS: usize = 10_000;
    let (first, second) = (start(1), start(1));
    let (mut a, mut b) = connected(&first, &second, Kind::Shared, 4096);
    let mut large = Client::connect(first.socket());
    let caps = QpCaps { max_send_wr: 1, max_recv_wr: 1, max_send_sge: 1, ..QpCaps::default() };
    // They go with their context, and then with their program.
    for closes in [true, false] {
        let context = large.open("urxe0");
        let pd = large.alloc_pd(context);
        let cq = large.create_cq(context, 10, None).handle;
        let mut slots = Vec::new();
        for _ in 0..QPS {
            slots.push(large.try_create_qp(pd, cq, cq, caps).unwrap().doorbell_slot);
        }
        slots.sort_unstable();
        assert!(slots.is_sorted_by(|a, b| a < b), "each has a doorbell of its own");
        // The daemon sleeps although they are there.
        let sleeps = a.client.counter("urxe0", "sleeps");
        eventually("it sleeps", || (a.client.counter("urxe0", "sleeps") > sleeps).then_some(()));
        for slot in slots {
            large.ring_slot(slot);
        }
        serve(&mut a, &mut b);
        assert_eq!(large.resources("urxe0", ResourceKind::Qp).len(), QPS + 1);
        if closes {
            assert_eq!(large.call(Request::CloseDevice { context }), Ok(Reply::Done));
            assert_eq!(large.resources("urxe0", ResourceKind::Qp).len(), 1);
            let error = large.call(Request::CloseDevice { context }).unwrap_err();
            assert!(error.message.contains("does not exist"), "{error:?}");
        }
    }
    drop(large);
    for _ in 0..100 {
        serve(&mut a, &mut b);
    }
    eventually("they are buried", || {
        (a.client.resources("urxe0", ResourceKind::Qp).len() == 1).then_some(())
    });
}

fn serve(a: &mut End, b: &mut End) {
    b.post_recv(1, &[b.mr.sge(0, 64)]);
    a.exchange(SendOp::Send(Extra::None), &[a.mr.sge(0, 64)]);
    assert_eq!(b.cq.wait(1)[0].status, 0);
}

#[test]
fn deep_queues_are_flushed_whole_and_in_order() {
    const DEPTH: u32 = 10_000;
    let (first, second) = (start(1), start(1));
    let (mut a, mut b) = connected(&first, &second, Kind::Shared, 4096);
    for (sends, recvs) in [(DEPTH, 0), (0, DEPTH), (DEPTH, DEPTH)] {
        let mut end = End::new(&first, 0, Kind::Shared, 64);
        let mut cq = end.client.create_cq(end.context, sends + recvs, None);
        let caps = QpCaps { max_send_wr: DEPTH, max_recv_wr: DEPTH, ..CAPS };
        end.qp = end.client.create_qp(end.pd, cq.handle, caps);
        let [init, ..] = crate::harness::attrs(end.addr, Qpn::new(1));
        end.client.modify(&end.qp, init).unwrap();
        for wr_id in 0..recvs.into() {
            end.qp.rq().push(wr_id, &[]).unwrap();
        }
        assert!(!end.qp.rq().publish());
        for wr_id in 0..sends.into() {
            let op = SendOp::Send(Extra::None);
            let (fence, signaled, solicited) = (false, true, false);
            let wr = SendWr { wr_id, op, to: None, fence, signaled, solicited };
            end.qp.sq.push(&wr, SendData::Sges(&[])).unwrap();
        }
        end.qp.sq.publish();
        let err = QpAttr { state: Some(QpState::Err), ..QpAttr::default() };
        end.client.modify(&end.qp, err).unwrap();
        serve(&mut a, &mut b);

        let (mut next_send, mut next_recv) = (0, 0);
        for entry in cq.wait((sends + recvs) as usize) {
            assert_eq!(entry.status, FLUSHED);
            let is_recv = entry.opcode & WcOpcode::Recv as u32 != 0;
            let next = if is_recv { &mut next_recv } else { &mut next_send };
            assert_eq!(entry.wr_id, *next);
            *next += 1;
        }
        assert_eq!((next_send, next_recv), (sends.into(), recvs.into()));
    }
}

#[test]
fn the_limits_that_are_told_can_be_had() {
    let daemon = start(1);
    let mut client = Client::connect(daemon.socket());
    let context = client.open("urxe0");
    let pd = client.alloc_pd(context);
    let Ok(Reply::Device(device)) = client.call(Request::QueryDevice { context }) else { panic!() };
    let cq = client.create_cq(context, device.max_cqe, None).handle;
    let caps = QpCaps {
        max_send_wr: device.max_qp_wr,
        max_recv_wr: device.max_qp_wr,
        max_send_sge: 1,
        max_recv_sge: 1,
        max_inline_data: 0,
    };
    // And several of them: what they do not use takes no memory.
    let caps =
        [1, device.max_sge].map(|sge| QpCaps { max_send_sge: sge, max_recv_sge: sge, ..caps });
    for caps in [caps[0], caps[1], caps[1], caps[1]] {
        let created = client.try_create_qp(pd, cq, cq, caps).unwrap();
        assert_eq!(created.caps.max_send_wr, limits::MAX_QP_WR);
    }
    let (sge, inline) = (device.max_sge, device.max_inline_data);
    let caps = QpCaps {
        max_send_wr: 1,
        max_recv_wr: 1,
        max_send_sge: sge,
        max_recv_sge: sge,
        max_inline_data: inline,
    };
    client.try_create_qp(pd, cq, cq, caps).unwrap();
    let attr = urxe_shm::control::SrqAttr {
        max_wr: device.max_srq_wr,
        max_sge: device.max_srq_sge,
        limit: device.max_srq_wr,
    };
    let request = Request::CreateSrq { pd, attr, user_handle: 0 };
    let Ok(Reply::Srq { srq, attr, .. }) = client.call(request) else { panic!() };
    assert_eq!(attr.max_wr, device.max_srq_wr);
    for qp_type in [QpType::Rc, QpType::Uc, QpType::Ud] {
        client.create_qp_of(pd, cq, qp_type, Some(srq)).unwrap();
    }
    // Those of rxe, and more where more is useful.
    assert!(device.max_cqe >= 4_194_303 && device.max_mr >= 1_000_000);
    assert!(device.max_qp_wr >= 16_384 && device.max_sge >= 32);
    assert!(device.max_srq_sge >= 27 && device.max_ah >= 32_767 && device.max_inline_data >= 512);
}

/// Asks for something again and again, a few requests at a time, until it is refused. Returns how
/// often it was granted, and what was said in the end.
fn until_refused(client: &mut Client, request: &Request) -> (usize, ControlError) {
    // As many answers as a socket holds that nobody has read yet, wherever this runs.
    const AT_A_TIME: usize = 8;
    let (mut granted, mut refused) = (0, None);
    while refused.is_none() {
        for _ in 0..AT_A_TIME {
            client.channel.send(request, &[]).unwrap();
        }
        for _ in 0..AT_A_TIME {
            match client.channel.recv::<Reply>().unwrap().0 {
                Reply::Error(error) => refused = Some(error),
                _ => {
                    assert_eq!(refused, None, "what was refused is granted later");
                    granted += 1;
                }
            }
        }
    }
    (granted, refused.unwrap())
}

#[test]
fn as_many_objects_as_are_told_can_be_had_and_not_one_more() {
    let daemon = start(1);
    let mut client = Client::connect(daemon.socket());
    let context = client.open("urxe0");
    let Ok(Reply::Device(device)) = client.call(Request::QueryDevice { context }) else { panic!() };
    let pd = client.alloc_pd(context);
    let addr = Vec::leak(vec![0u8; 64]).as_ptr().expose_provenance() as u64;
    let register = Request::RegMr {
        pd,
        addr,
        length: 64,
        iova: addr,
        access: Access::LOCAL_WRITE,
        backing: Backing::Process { why: WhyCopied::NotAsked },
    };
    let cq = client.create_cq(context, 1, None).handle;
    // The usual depth, and more than the rings of as many took up once.
    let caps = QpCaps { max_send_sge: 4, max_recv_sge: 4, ..CAPS };
    let create_qp = Request::CreateQp {
        pd,
        qp_type: QpType::Rc,
        send_cq: cq,
        recv_cq: cq,
        srq: None,
        caps,
        sq_sig_all: false,
        user_handle: 0,
    };
    let create_cq =
        Request::CreateCq { context, cqe: 127, channel: None, user_handle: 0, comp_vector: 0 };
    for (what, request, max) in [
        ("memory registrations", register, device.max_mr),
        ("memory windows", Request::AllocMw { pd, mw_type: MwType::Two }, device.max_mw),
        ("completion queues", create_cq, device.max_cq - 1),
        ("queue pairs", create_qp, device.max_qp),
        ("protection domains", Request::AllocPd { context }, device.max_pd - 1),
    ] {
        let (granted, error) = until_refused(&mut client, &request);
        assert_eq!(granted, max as usize, "{what}: {error}");
        assert_eq!(error.errno, Errno::NOMEM.raw_os_error(), "{error}");
        assert!(error.message.contains("can have no more"), "{error}");
    }
    // Others are served meanwhile.
    let second = start(1);
    let (mut a, mut b) = connected(&daemon, &second, Kind::Shared, 4096);
    serve(&mut a, &mut b);
    drop(client);
    serve(&mut a, &mut b);
}
