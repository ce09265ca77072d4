//! Memory windows, invalidation, FLUSH and ATOMIC WRITE between two daemons, over real sockets.

use crate::harness::{ALL, CAPS, Client, End, Kind, Random, connected, eventually, start};
use rustix::io::Errno;
use std::os::fd::AsFd;
use urxe_daemon::Handle;
use urxe_shm::control::{BoundTo, Request, ResourceDetail, ResourceKind};
use urxe_shm::ring::layout::WC_WITH_INV;
use urxe_types::{
    Access, Extra, FlushPlacement, FlushSelectivity, Lkey, MwType, QpAttr, QpState, Rkey, SendData,
    SendOp, WcOpcode,
};

const LOCAL_QP_OPERATION: u32 = 2;
const BIND_FAILED: u32 = 6;
const REMOTE_INVALID_REQUEST: u32 = 9;
const REMOTE_ACCESS: u32 = 10;

/// What an MR needs so that windows can be bound to it and be flushed through.
const WINDOWED: Access = Access::from_bits_retain(0x1 | 0x10 | 0x100);
const WRITE: Access = Access::REMOTE_WRITE;
const READ: Access = Access::REMOTE_READ;

/// Two connected ends, the second with an MR that only windows open to its peer.
fn with_windowed_mr(first: &Handle, second: &Handle, kind: Kind) -> (End, End) {
    let (a, mut b) = connected(first, second, kind, 4096);
    b.mr = b.client.mr_with(b.pd, kind, 4096, WINDOWED);
    (a, b)
}

/// Binds a window, on the end's QP, to what begins at an address of an MR. Returns its new rkey,
/// and how it ended.
fn bind(end: &mut End, mw: Rkey, mr: Lkey, addr: u64, length: u64, access: Access) -> (Rkey, u32) {
    let new_rkey = Rkey(mw.0 & !0xff | mw.0.wrapping_add(1) & 0xff);
    let op = SendOp::BindMw { mw, new_rkey, mr, addr, length, access };
    end.post_send(50, op, SendData::Sges(&[]));
    let entry = end.cq.wait(1)[0];
    assert_eq!(entry.wr_id, 50);
    if entry.status == 0 {
        assert_eq!(entry.opcode, WcOpcode::BindMw as u32);
    }
    (new_rkey, entry.status)
}

/// Binds a window to a part of the end's own MR.
fn bound(end: &mut End, mw: Rkey, offset: u64, length: u64, access: Access) -> Rkey {
    let (mr, addr) = (end.mr.lkey, end.mr.addr + offset);
    let (rkey, status) = bind(end, mw, mr, addr, length, access);
    assert_eq!(status, 0);
    rkey
}

/// Writes 8 bytes through a key; returns how it ended.
fn write(end: &mut End, remote_addr: u64, rkey: Rkey, bytes: &[u8; 8]) -> u32 {
    end.post_send(60, SendOp::Write { remote_addr, rkey, imm: None }, SendData::Inline(bytes));
    end.cq.wait(1)[0].status
}

/// Takes both QPs back to RTS after a failure.
fn reconnect(a: &mut End, b: &mut End) {
    for end in [&mut *a, &mut *b] {
        let reset = QpAttr { state: Some(QpState::Reset), ..QpAttr::default() };
        end.client.modify(&end.qp, reset).unwrap();
        end.qp.sq.reset();
        end.qp.rq().reset();
        end.cq.poll();
    }
    a.connect(b.addr, b.qp.created.qpn);
    b.connect(a.addr, a.qp.created.qpn);
}

#[test]
fn a_window_opens_what_it_is_bound_to_and_nothing_else() {
    for kind in [Kind::Shared, Kind::Process] {
        let (first, second) = (start(1), start(1));
        let (mut a, mut b) = with_windowed_mr(&first, &second, kind);
        for mw_type in [MwType::One, MwType::Two] {
            let (mw, rkey) = b.client.alloc_mw(b.pd, mw_type);
            let (lkey, addr) = (b.mr.lkey, b.mr.addr);
            let rkey = bound(&mut b, rkey, 100, 200, WRITE);
            assert_eq!(write(&mut a, addr + 100, rkey, b"through!"), 0);
            assert_eq!(b.mr.read(100, 8), b"through!");
            assert_eq!(write(&mut a, addr + 292, rkey, b"the end!"), 0);
            // Beyond it, before it, through the MR's own key, another right.
            for (at, key) in [(addr + 293, rkey), (addr + 99, rkey), (addr + 100, Rkey(lkey.0))] {
                assert_eq!(write(&mut a, at, key, b"no entry"), REMOTE_ACCESS);
                reconnect(&mut a, &mut b);
            }
            let sge = a.mr.sge(0, 8);
            let read = SendOp::Read { remote_addr: addr + 100, rkey };
            a.post_send(1, read, SendData::Sges(&[sge]));
            assert_eq!(a.cq.wait(1)[0].status, REMOTE_ACCESS);
            reconnect(&mut a, &mut b);

            // The MR stays as long as the window is bound to it.
            let mr = b.mr.handle;
            let refused = b.client.call(Request::DeregMr { mr }).unwrap_err();
            assert_eq!(refused.errno, Errno::BUSY.raw_os_error());
            assert!(refused.message.contains("window"), "{refused:?}");
            b.client.call(Request::DeallocMw { mw }).unwrap();
            assert_eq!(write(&mut a, addr + 100, rkey, b"no entry"), REMOTE_ACCESS);
            reconnect(&mut a, &mut b);
        }
        b.client.call(Request::DeregMr { mr: b.mr.handle }).unwrap();
    }
}

#[test]
fn windows_are_listed_with_what_they_open() {
    let (first, second) = (start(1), start(1));
    let (_a, mut b) = with_windowed_mr(&first, &second, Kind::Shared);
    let (_, one) = b.client.alloc_mw(b.pd, MwType::One);
    let (_, two) = b.client.alloc_mw(b.pd, MwType::Two);
    b.client.alloc_mw(b.pd, MwType::Two);
    let one = bound(&mut b, one, 0, 10, WRITE | READ);
    let two = bound(&mut b, two, 5, 7, READ);
    let listed = b.client.resources("urxe0", ResourceKind::Mw);
    assert_eq!(listed.len(), 3);
    let detail = |rkey: Rkey| {
        let found = listed.iter().find(|resource| resource.number == rkey.0);
        found.map(|resource| resource.detail.clone())
    };
    let bound_to = |offset, length, access, qpn| {
        let (mr, addr) = (b.mr.lkey, b.mr.addr + offset);
        Some(BoundTo { mr: mr.0, addr, length, access, qpn })
    };
    let (mw_type, bound) = (MwType::One, bound_to(0, 10, WRITE | READ, None));
    assert_eq!(detail(one), Some(ResourceDetail::Mw { mw_type, bound }));
    let (mw_type, bound) = (MwType::Two, bound_to(5, 7, READ, Some(b.qp.created.qpn.get())));
    assert_eq!(detail(two), Some(ResourceDetail::Mw { mw_type, bound }));
    let unbound = ResourceDetail::Mw { mw_type: MwType::Two, bound: None };
    assert_eq!(listed.iter().filter(|resource| resource.detail == unbound).count(), 1);
}

#[test]
fn a_type_2_window_opens_to_its_qp_until_somebody_invalidates_it() {
    let (first, second) = (start(1), start(1));
    let (mut a, mut b) = with_windowed_mr(&first, &second, Kind::Shared);
    let addr = b.mr.addr;
    let (_, rkey) = b.client.alloc_mw(b.pd, MwType::Two);

    // By its owner.
    let rkey = bound(&mut b, rkey, 0, 100, WRITE);
    assert_eq!(write(&mut a, addr, rkey, b"it works"), 0);
    let entry = b.exchange(SendOp::LocalInvalidate { key: rkey }, &[]);
    assert_eq!(entry.opcode, WcOpcode::LocalInvalidate as u32);
    assert_eq!(write(&mut a, addr, rkey, b"no entry"), REMOTE_ACCESS);
    reconnect(&mut a, &mut b);

    // By its peer.
    let rkey = bound(&mut b, rkey, 0, 100, WRITE);
    b.post_recv(1, &[]);
    a.exchange(SendOp::Send(Extra::Invalidate(rkey)), &[]);
    let received = b.cq.wait(1)[0];
    assert_eq!((received.status, received.wc_flags), (0, WC_WITH_INV));
    assert_eq!(received.imm_or_rkey, rkey.0);
    assert_eq!(write(&mut a, addr, rkey, b"no entry"), REMOTE_ACCESS);
    reconnect(&mut a, &mut b);

    // By the end of its QP; and no other QP ever could use it.
    let rkey = bound(&mut b, rkey, 0, 100, WRITE);
    let (mut stranger, mut other) = connected(&first, &second, Kind::Shared, 64);
    assert_eq!(write(&mut stranger, addr, rkey, b"no entry"), REMOTE_ACCESS);
    other.client.call(Request::DestroyQp { qp: other.qp.created.qp }).unwrap();
    assert_eq!(write(&mut a, addr, rkey, b"it works"), 0);
    b.client.call(Request::DestroyQp { qp: b.qp.created.qp }).unwrap();
    b.client.call(Request::DeregMr { mr: b.mr.handle }).unwrap();
}

#[test]
fn the_owner_cannot_close_what_is_not_a_window_of_his() {
    let (first, second) = (start(1), start(1));
    let (mut a, mut b) = with_windowed_mr(&first, &second, Kind::Shared);
    for key in [b.mr.lkey.0, 0, 0xdead_beef] {
        b.post_send(1, SendOp::LocalInvalidate { key: Rkey(key) }, SendData::Sges(&[]));
        let status = b.cq.wait(1)[0].status;
        assert!([LOCAL_QP_OPERATION, BIND_FAILED].contains(&status), "{key:#x}: {status}");
        reconnect(&mut a, &mut b);
    }
}

#[test]
fn memory_and_windows_of_others_cannot_be_bound() {
    let (first, second) = (start(1), start(1));
    let (mut a, mut b) = with_windowed_mr(&first, &second, Kind::Shared);
    let mut other = Client::connect(second.socket());
    let context = other.open("urxe0");
    let pd = other.alloc_pd(context);
    let foreign_mr = other.mr_with(pd, Kind::Shared, 4096, WINDOWED);
    let (_, foreign_mw) = other.alloc_mw(pd, MwType::One);
    let (_, own_mw) = b.client.alloc_mw(b.pd, MwType::One);
    let own_mr = b.client.mr_with(b.pd, Kind::Shared, 4096, WINDOWED);
    for (mw, mr) in [(own_mw, &foreign_mr), (foreign_mw, &own_mr), (foreign_mw, &foreign_mr)] {
        let (_, status) = bind(&mut b, mw, mr.lkey, mr.addr, 100, WRITE);
        assert_eq!(status, BIND_FAILED);
        reconnect(&mut a, &mut b);
    }
    assert_eq!(bind(&mut b, own_mw, own_mr.lkey, own_mr.addr, 100, WRITE).1, 0);
    let listed = other.resources("urxe0", ResourceKind::Mw);
    let bound = listed
        .iter()
        .filter(|resource| matches!(resource.detail, ResourceDetail::Mw { bound: Some(_), .. }));
    assert_eq!(bound.count(), 1);
}

#[test]
fn random_binds_and_invalidations_harm_no_other_program() {
    let (first, second) = (start(1), start(1));
    let (mut witness_a, mut witness_b) = with_windowed_mr(&first, &second, Kind::Shared);
    let (_, rkey) = witness_b.client.alloc_mw(witness_b.pd, MwType::Two);
    let rkey = bound(&mut witness_b, rkey, 0, 100, WRITE);
    let (mut a, mut b) = with_windowed_mr(&first, &second, Kind::Shared);
    let mut keys: Vec<u32> = (0..4).map(|_| b.client.alloc_mw(b.pd, MwType::Two).1.0).collect();
    keys.extend([b.mr.lkey.0, rkey.0, witness_b.mr.lkey.0]);
    let mut random = Random::new(21);
    let mut ends = [0; 32];
    for _ in 0..500 {
        let window = random.below(keys.len() as u64) as usize;
        let mw = keys[window] ^ if random.below(4) == 0 { random.next() as u32 & 0xff } else { 0 };
        let new_rkey = mw ^ random.next() as u32 & if random.below(4) == 0 { 0x1ff } else { 0xff };
        let op = match random.below(3) {
            0 => SendOp::LocalInvalidate { key: Rkey(mw) },
            _ => SendOp::BindMw {
                mw: Rkey(mw),
                new_rkey: Rkey(new_rkey),
                mr: if random.below(4) == 0 {
                    Lkey(keys[4 + random.below(3) as usize])
                } else {
                    b.mr.lkey
                },
                addr: b.mr.addr.wrapping_add(random.below(5000)),
                length: random.below(2000),
                access: if random.below(4) == 0 {
                    Access::from_bits_retain(random.below(64) as u32)
                } else {
                    WRITE | READ
                },
            },
        };
        b.post_send(1, op, SendData::Sges(&[]));
        let status = b.cq.wait(1)[0].status;
        ends[status as usize] += 1;
        match (status, op) {
            (0, SendOp::BindMw { .. }) => keys[window] = new_rkey,
            (0, _) => {}
            _ => reconnect(&mut a, &mut b),
        }
    }
    assert!(ends[0] > 20 && ends[BIND_FAILED as usize] > 100, "{ends:?}");
    assert_eq!(write(&mut witness_a, witness_b.mr.addr, rkey, b"it works"), 0);
}

#[test]
fn death_closes_the_windows_of_the_dead_and_no_others() {
    let (first, second) = (start(1), start(1));
    let (mut a, mut b) = with_windowed_mr(&first, &second, Kind::Shared);
    let (_, rkey) = b.client.alloc_mw(b.pd, MwType::Two);
    let rkey = bound(&mut b, rkey, 0, 100, WRITE);
    for mw_type in [MwType::One, MwType::Two] {
        let (mut peer, mut dying) = with_windowed_mr(&first, &second, Kind::Shared);
        let mut bound_keys = Vec::new();
        for _ in 0..20 {
            let (_, rkey) = dying.client.alloc_mw(dying.pd, mw_type);
            bound_keys.push(bound(&mut dying, rkey, 0, 100, WRITE));
        }
        let addr = dying.mr.addr;
        for &rkey in &bound_keys {
            let op = SendOp::Write { remote_addr: addr, rkey, imm: None };
            peer.post_send(1, op, SendData::Inline(b"too late"));
        }
        drop(dying);
        eventually("the windows are gone", || {
            (b.client.resources("urxe0", ResourceKind::Mw).len() == 1).then_some(())
        });
        eventually("so is the memory", || {
            (b.client.resources("urxe0", ResourceKind::Mr).len() == 2).then_some(())
        });
        assert_eq!(write(&mut a, b.mr.addr, rkey, b"it works"), 0);
    }
}

#[test]
fn a_flush_makes_what_was_written_visible() {
    for kind in [Kind::Shared, Kind::Process] {
        let (first, second) = (start(1), start(1));
        let (mut a, mut b) = connected(&first, &second, kind, 4096);
        let flushable = b.client.mr_with(b.pd, kind, 4096, ALL | Access::FLUSH_GLOBAL);
        let access = Some(ALL | Access::FLUSH_GLOBAL);
        b.client.modify(&b.qp, QpAttr { access, ..QpAttr::default() }).unwrap();
        let (remote_addr, rkey) = (flushable.addr, flushable.rkey);
        let flush = |rkey, selectivity| SendOp::Flush {
            remote_addr,
            rkey,
            length: 8,
            placement: FlushPlacement::GLOBAL,
            selectivity,
        };
        for selectivity in [FlushSelectivity::Range, FlushSelectivity::Mr] {
            let write = SendOp::Write { remote_addr, rkey, imm: None };
            a.post_send(1, write, SendData::Inline(b"flushed!"));
            a.post_send(2, flush(rkey, selectivity), SendData::Sges(&[]));
            let entries = a.cq.wait(2);
            let ends: Vec<_> = entries.iter().map(|e| (e.wr_id, e.status)).collect();
            assert_eq!(ends, [(1, 0), (2, 0)]);
            assert_eq!(entries[1].opcode, WcOpcode::Flush as u32);
            assert_eq!(flushable.read(0, 8), b"flushed!");
        }
        // An MR that does not say so cannot be flushed.
        a.post_send(3, flush(b.mr.rkey, FlushSelectivity::Mr), SendData::Sges(&[]));
        assert_eq!(a.cq.wait(1)[0].status, REMOTE_ACCESS);
    }
}

#[test]
fn persistent_memory_is_not_promised() {
    let daemon = start(1);
    let mut end = End::new(&daemon, 0, Kind::Shared, 64);
    let memfd = urxe_shm::memory::region::create_memfd("persistent", 4096).unwrap();
    let request = Request::RegMr {
        pd: end.pd,
        addr: 0,
        length: 4096,
        iova: 0,
        access: ALL | Access::FLUSH_PERSISTENT,
        backing: urxe_shm::control::Backing::Shared { offset: 0 },
    };
    let refused = end.client.call_with(&request, &[memfd.as_fd()]).unwrap_err();
    assert_eq!(refused.errno, Errno::OPNOTSUPP.raw_os_error());
    assert!(refused.message.contains("0x20f"), "{refused:?}");
    end.client.create_qp(end.pd, end.cq.handle, CAPS);
}

#[test]
fn an_atomic_write_puts_eight_bytes() {
    for kind in [Kind::Shared, Kind::Process] {
        let (first, second) = (start(1), start(1));
        let (mut a, b) = connected(&first, &second, kind, 4096);
        let (remote_addr, rkey) = (b.mr.addr, b.mr.rkey);
        let op = SendOp::AtomicWrite { remote_addr, rkey };
        a.post_send(1, op, SendData::Inline(b"12345678"));
        let entry = a.cq.wait(1)[0];
        assert_eq!((entry.status, entry.opcode), (0, WcOpcode::AtomicWrite as u32));
        assert_eq!(b.mr.read(0, 9), b"12345678\0");
        a.mr.write(0, b"abcdefgh");
        a.exchange(op, &[a.mr.sge(0, 8)]);
        assert_eq!(b.mr.read(0, 9), b"abcdefgh\0");
        let op = SendOp::AtomicWrite { remote_addr: remote_addr + 4, rkey };
        a.post_send(1, op, SendData::Inline(b"12345678"));
        assert_eq!(a.cq.wait(1)[0].status, REMOTE_INVALID_REQUEST);
    }
}
