//! Memory windows, as scripts: what they open, to whom, and how they are closed.

mod script;

use script::*;
use urxe_engine::{AsyncEvent, Cause, Counter, DeregMrError, PdId};
use urxe_types::{
    Access, Extra, Lkey, MwType, QpAttr, QpState, QpType, Qpn, Rkey, SendOp, WcStatus,
};
use urxe_wire::{NakCode, Opcode};

const READ_WRITE: Access = Access::REMOTE_READ.union(Access::REMOTE_WRITE);

fn write(va: u64, rkey: u32, psn: u32, data: &[u8]) -> Pkt {
    let packet = pkt(Opcode::RC_WRITE_ONLY, psn).reth(va, rkey, data.len() as u32);
    packet.payload(data).ack_req()
}

/// A WRITE of the peer is carried out.
fn opens(t: &mut Script, va: u64, rkey: u32) {
    t.receive(&[write(va, rkey, 100, b"w")]);
    t.expect(ack(100, 1));
}

/// A WRITE of the peer is refused, and nothing is written.
fn refuses(t: &mut Script, va: u64, rkey: u32) {
    let before = t.program.memory.clone();
    t.receive(&[write(va, rkey, 100, b"w")]);
    t.expect(nak(NakCode::RemoteAccess, 100, 0));
    assert_eq!(t.program.memory, before);
    assert!(t.program.events.contains(&AsyncEvent::QpAccessError(t.qpn)));
}

// What a window opens.

#[test]
fn a_window_opens_what_it_is_bound_to() {
    for mw_type in [MwType::One, MwType::Two] {
        let mut t = Script::new();
        let mw = t.alloc_mw(mw_type);
        let rkey = t.bound(mw, 100, 50, READ_WRITE);
        t.fill(100, &bytes(1, 50));
        t.receive(&[
            write(VA + 149, rkey, 100, b"w"),
            pkt(Opcode::RC_READ_REQUEST, 101).reth(VA + 100, rkey, 50),
        ]);
        t.expect(ack(100, 1));
        let data = [&bytes(1, 49)[..], b"w"].concat();
        let response = pkt(Opcode::RC_READ_RESPONSE_ONLY, 101);
        t.expect(response.aeth(urxe_wire::Syndrome::ACK, 2).payload(&data));
        assert_eq!(t.counted(Counter::WindowsBound), 1);
    }
}

#[test]
fn the_bounds_are_those_of_the_window_and_not_of_its_mr() {
    for (va, len) in [(VA + 99, 1), (VA + 150, 1), (VA + 149, 2), (u64::MAX, 2), (VA, 65_536)] {
        let mut t = Script::new();
        let rkey = t.window(100, 50, READ_WRITE);
        t.receive(&[pkt(Opcode::RC_READ_REQUEST, 100).reth(va, rkey, len)]);
        t.expect(nak(NakCode::RemoteAccess, 100, 0));
    }
}

#[test]
fn a_window_gives_the_rights_it_is_bound_with() {
    let mut t = Script::new();
    let rkey = t.window(0, 64, Access::REMOTE_READ);
    refuses(&mut t, VA, rkey);
    let mut t = Script::new();
    let rkey = t.window(0, 64, Access::REMOTE_WRITE);
    t.receive(&[pkt(Opcode::RC_FETCH_ADD, 100).atomic(VA, rkey, 1, 0)]);
    t.expect(nak(NakCode::RemoteAccess, 100, 0));
}

#[test]
fn a_window_may_give_more_than_its_mr_gives_itself() {
    let mut t = Script::new();
    let closed = t.reg_mr(PD, Access::LOCAL_WRITE | Access::MW_BIND);
    t.key = closed;
    let rkey = t.window(0, 64, READ_WRITE);
    opens(&mut t, VA, rkey);
    t.receive(&[write(VA, closed, 101, b"w")]);
    t.expect(nak(NakCode::RemoteAccess, 101, 1));
}

#[test]
fn the_qp_must_let_its_peer_do_it_as_well() {
    let attr = QpAttr { access: Some(Access::REMOTE_READ), ..usual() };
    let mut t = Script::with(attr);
    let rkey = t.window(0, 64, READ_WRITE);
    t.receive(&[write(VA, rkey, 100, b"w")]);
    t.expect(nak(NakCode::InvalidRequest, 100, 0));
}

#[test]
fn a_zero_based_window_counts_from_its_first_byte() {
    let mut t = Script::new();
    let rkey = t.window(100, 50, READ_WRITE | Access::ZERO_BASED);
    opens(&mut t, 49, rkey);
    assert_eq!(t.memory(149, 1), b"w");
    t.receive(&[write(50, rkey, 101, b"w")]);
    t.expect(nak(NakCode::RemoteAccess, 101, 1));
}

#[test]
fn a_window_that_is_not_bound_opens_nothing() {
    let mut t = Script::new();
    let mw = t.alloc_mw(MwType::Two);
    refuses(&mut t, VA, mw);
}

#[test]
fn only_the_key_of_the_last_bind_opens_a_window() {
    let mut t = Script::new();
    let mw = t.alloc_mw(MwType::One);
    t.bound(mw, 0, 64, READ_WRITE);
    refuses(&mut t, VA, mw);
}

#[test]
fn a_window_is_no_lkey() {
    let mut t = Script::new();
    let rkey = t.window(0, 64, READ_WRITE);
    let mut sge = t.sge(0, 8);
    sge.lkey = Lkey(rkey);
    t.post(1, SendOp::Send(Extra::None), &[sge]);
    t.expect_nothing();
    assert_eq!(t.expect_send(1, WcStatus::LocalProtection).vendor_err, Cause::LocalKey as u32);
}

// To whom.

#[test]
fn a_type_1_window_opens_to_every_qp_of_its_protection_domain() {
    let mut t = Script::new();
    let mw = t.alloc_mw(MwType::One);
    let rkey = t.bound(mw, 0, 64, READ_WRITE);
    t.another(QpType::Rc, None);
    opens(&mut t, VA, rkey);
}

#[test]
fn a_type_2_window_opens_only_to_the_qp_it_was_bound_on() {
    let mut t = Script::new();
    let rkey = t.window(0, 64, READ_WRITE);
    let bound_on = t.qpn;
    t.another(QpType::Rc, None);
    refuses(&mut t, VA, rkey);
    t.select(bound_on);
    opens(&mut t, VA, rkey);
}

// What cannot be bound.

/// A bind that is refused for this reason; the QP is in ERR and what comes after is flushed.
fn refused(t: &mut Script, cause: Cause, op: SendOp) {
    t.post(1, op, &[]);
    t.post(2, SendOp::Send(Extra::None), &[]);
    t.expect_nothing();
    assert_eq!(t.expect_send(1, WcStatus::MwBind).vendor_err, cause as u32);
    t.expect_send(2, WcStatus::WrFlush);
    assert_eq!(t.state(), QpState::Err);
    assert_eq!(t.counted(Counter::LocalErrors), 1);
}

/// What the usual bind asks for: 64 bytes of the usual MR, to be written.
struct Asked {
    mw: u32,
    new_rkey: u32,
    mr: u32,
    addr: u64,
    length: u64,
    access: Access,
}

/// A bind that would be good but for the change is refused for this reason, and changes nothing.
fn refused_if(mw_type: MwType, cause: Cause, change: impl FnOnce(&mut Script, &mut Asked)) {
    let mut t = Script::new();
    let mw = t.alloc_mw(mw_type);
    let (new_rkey, mr) = (next_key(mw), t.key);
    let access = Access::REMOTE_WRITE;
    let mut asked = Asked { mw, new_rkey, mr, addr: VA, length: 64, access };
    change(&mut t, &mut asked);
    let before = t.device.query_mw(Rkey(mw));
    let Asked { mw: named, new_rkey, mr, addr, length, access } = asked;
    let (named, new_rkey) = (Rkey(named), Rkey(new_rkey));
    let op = SendOp::BindMw { mw: named, new_rkey, mr: Lkey(mr), addr, length, access };
    refused(&mut t, cause, op);
    assert_eq!(t.device.query_mw(Rkey(mw)), before);
}

#[test]
fn a_bind_names_the_window_by_its_present_key() {
    refused_if(MwType::One, Cause::BindNoWindow, |_, asked| asked.mw ^= 1);
    refused_if(MwType::One, Cause::BindNoWindow, |t, asked| asked.mw = t.key);
    refused_if(MwType::Two, Cause::BindNoWindow, |t, asked| {
        t.device.dealloc_mw(Rkey(asked.mw));
        t.alloc_mw(MwType::Two);
    });
}

/// Binds 64 bytes of the usual MR under this key.
fn bind_as(t: &mut Script, mw: u32, new_rkey: u32) {
    let op = SendOp::BindMw {
        mw: Rkey(mw),
        new_rkey: Rkey(new_rkey),
        mr: Lkey(t.key),
        addr: VA,
        length: 64,
        access: READ_WRITE,
    };
    t.post(1, op, &[]);
    t.expect_nothing();
    t.expect_send(1, WcStatus::Success);
}

#[test]
fn a_bind_takes_the_low_eight_bits_of_the_key_asked_for_and_no_others() {
    for mw_type in [MwType::One, MwType::Two] {
        for asked in [0x5a, 0xffff_ff5a, 0x1234_565a] {
            let mut t = Script::new();
            let mw = t.alloc_mw(mw_type);
            bind_as(&mut t, mw, asked);
            let rkey = mw & !0xff | 0x5a;
            assert_eq!(t.device.query_mw(Rkey(mw)).unwrap().rkey, Rkey(rkey));
            opens(&mut t, VA, rkey);
        }
    }
}

#[test]
fn a_bind_that_asks_for_the_key_of_another_object_leaves_that_alone() {
    let mut t = Script::new();
    let (mw, mr) = (t.alloc_mw(MwType::Two), t.key);
    bind_as(&mut t, mw, mr);
    opens(&mut t, VA + 1000, mr);
    t.receive(&[write(VA, mw & !0xff | mr & 0xff, 101, b"w")]);
    t.expect(ack(101, 2));
}

#[test]
fn window_mr_and_qp_of_a_bind_are_of_one_protection_domain() {
    let all = Access::LOCAL_WRITE | Access::MW_BIND;
    for mw_type in [MwType::One, MwType::Two] {
        refused_if(mw_type, Cause::BindPd, |t, asked| asked.mr = t.reg_mr(PdId(2), all));
        refused_if(mw_type, Cause::BindPd, |t, asked| {
            asked.mw = t.device.alloc_mw(PdId(2), mw_type).unwrap().0;
            asked.new_rkey = next_key(asked.mw);
        });
        refused_if(mw_type, Cause::BindPd, |t, asked| {
            // Window and MR belong together, but not to the QP.
            asked.mw = t.device.alloc_mw(PdId(2), mw_type).unwrap().0;
            asked.new_rkey = next_key(asked.mw);
            asked.mr = t.reg_mr(PdId(2), all);
        });
    }
}

#[test]
fn a_bind_needs_an_mr() {
    refused_if(MwType::One, Cause::BindNoMr, |_, asked| asked.mr ^= 1);
    refused_if(MwType::One, Cause::BindNoMr, |_, asked| asked.mr = asked.mw);
    refused_if(MwType::Two, Cause::BindNoMr, |t, asked| {
        t.device.dereg_mr(Lkey(asked.mr)).unwrap();
    });
}

#[test]
fn the_mr_must_let_windows_be_bound_to_it() {
    let without = |access| {
        refused_if(MwType::Two, Cause::BindRights, |t, asked| asked.mr = t.reg_mr(PD, access));
    };
    without(Access::LOCAL_WRITE);
    without(Access::MW_BIND | Access::LOCAL_WRITE | Access::ZERO_BASED);
}

#[test]
fn a_window_gives_writing_only_where_the_owner_may_write() {
    for access in [Access::REMOTE_WRITE, Access::REMOTE_ATOMIC] {
        refused_if(MwType::Two, Cause::BindRights, |t, asked| {
            asked.mr = t.reg_mr(PD, Access::MW_BIND);
            asked.access = access;
        });
    }
    let mut t = Script::new();
    t.key = t.reg_mr(PD, Access::MW_BIND);
    t.window(0, 64, Access::REMOTE_READ);
}

#[test]
fn a_window_gives_flushing_only_if_its_mr_does() {
    refused_if(MwType::Two, Cause::BindRights, |_, asked| asked.access = Access::FLUSH_GLOBAL);
}

#[test]
fn a_bind_stays_inside_of_its_mr() {
    let outside = |addr, length| {
        refused_if(MwType::Two, Cause::BindBounds, |_, asked| {
            (asked.addr, asked.length) = (addr, length);
        });
        refused_if(MwType::Two, Cause::BindBounds, |_, asked| {
            (asked.addr, asked.length) = (addr, length);
            asked.access = Access::REMOTE_READ | Access::ZERO_BASED;
        });
    };
    outside(VA - 1, 2);
    outside(VA, 65_537);
    outside(VA + 65_535, 2);
    outside(VA, u64::MAX);
    outside(u64::MAX, 1);
    outside(u64::MAX - VA, u64::MAX);
}

#[test]
fn a_window_gives_no_rights_of_the_owner() {
    for access in [Access::MW_BIND, Access::from_bits_retain(1 << 31)] {
        refused_if(MwType::Two, Cause::BindAccess, |_, asked| asked.access = access);
    }
}

#[test]
fn the_owners_right_to_write_may_be_asked_for_and_gives_the_peer_none() {
    let mut t = Script::new();
    let rkey = t.window(0, 64, Access::LOCAL_WRITE);
    refuses(&mut t, VA, rkey);
}

#[test]
fn a_type_1_window_is_not_zero_based() {
    refused_if(MwType::One, Cause::BindAccess, |_, asked| asked.access = Access::ZERO_BASED);
}

#[test]
fn a_type_2_window_is_invalidated_before_it_is_bound_again() {
    let mut t = Script::new();
    let rkey = t.window(0, 64, READ_WRITE);
    let binding = t.device.query_mw(Rkey(rkey));
    t.bind(rkey, 64, 64, READ_WRITE);
    let completion = t.expect_send(BIND_WR_ID, WcStatus::MwBind);
    assert_eq!(completion.vendor_err, Cause::BindTwice as u32);
    assert_eq!(t.device.query_mw(Rkey(rkey)), binding, "it stays bound as it was");
}

#[test]
fn a_type_2_window_is_not_bound_to_nothing() {
    refused_if(MwType::Two, Cause::BindNothing, |_, asked| asked.length = 0);
}

// Binding again, and closing.

#[test]
fn a_type_1_window_that_is_bound_again_opens_only_the_new_part() {
    let mut t = Script::new();
    let mw = t.alloc_mw(MwType::One);
    let first = t.bound(mw, 0, 64, READ_WRITE);
    let second = t.bound(first, 64, 64, READ_WRITE);
    opens(&mut t, VA + 64, second);
    t.receive(&[write(VA, second, 101, b"w")]);
    t.expect(nak(NakCode::RemoteAccess, 101, 1));
}

#[test]
fn a_type_1_window_bound_to_nothing_is_closed_whatever_the_mr() {
    let mut t = Script::new();
    let mw = t.alloc_mw(MwType::One);
    let rkey = t.bound(mw, 0, 64, READ_WRITE);
    t.key = 0;
    let closed = t.bound(rkey, 0, 0, READ_WRITE);
    assert!(!t.is_bound(closed));
    refuses(&mut t, VA, closed);
}

#[test]
fn an_invalidated_window_opens_nothing_until_it_is_bound_again() {
    let mut t = Script::new();
    let rkey = t.window(0, 64, READ_WRITE);
    t.post(1, invalidate(rkey), &[]);
    t.expect_nothing();
    t.expect_send(1, WcStatus::Success);
    assert_eq!(t.counted(Counter::KeysInvalidated), 1);
    let again = t.bound(rkey, 0, 64, READ_WRITE);
    opens(&mut t, VA, again);
    t.post(2, invalidate(again), &[]);
    t.expect_nothing();
    t.receive(&[write(VA, again, 101, b"w")]);
    t.expect(nak(NakCode::RemoteAccess, 101, 1));
}

/// The key cannot be invalidated by the program's own work request.
fn not_invalidated(t: &mut Script, key: u32) {
    t.post(1, invalidate(key), &[]);
    t.expect_nothing();
    let completion = t.expect_send(1, WcStatus::LocalQpOperation);
    assert_eq!(completion.vendor_err, Cause::InvalidateKey as u32);
    assert_eq!(t.state(), QpState::Err);
}

#[test]
fn only_a_bound_type_2_window_of_this_qp_is_invalidated() {
    let mut t = Script::new();
    let key = t.key;
    not_invalidated(&mut t, key);

    let mut t = Script::new();
    let mw = t.alloc_mw(MwType::Two);
    not_invalidated(&mut t, mw);

    let mut t = Script::new();
    let mw = t.alloc_mw(MwType::One);
    let rkey = t.bound(mw, 0, 64, READ_WRITE);
    not_invalidated(&mut t, rkey);
    assert!(t.is_bound(rkey));

    let mut t = Script::new();
    let rkey = t.window(0, 64, READ_WRITE);
    not_invalidated(&mut t, rkey ^ 1);

    let mut t = Script::new();
    let rkey = t.window(0, 64, READ_WRITE);
    t.another(QpType::Rc, None);
    not_invalidated(&mut t, rkey);
    assert!(t.is_bound(rkey));
}

#[test]
fn a_send_with_invalidate_closes_the_window_and_tells_the_key() {
    let mut t = Script::new();
    let rkey = t.window(0, 64, READ_WRITE);
    t.post_recv(1, &[t.sge(0, 8)]);
    t.receive(&[pkt(Opcode::RC_SEND_ONLY_INV, 100).invalidate(rkey).ack_req()]);
    t.expect(ack(100, 1));
    assert_eq!(t.expect_recv(1, WcStatus::Success).extra, Extra::Invalidate(Rkey(rkey)));
    assert!(!t.is_bound(rkey));
    assert_eq!(t.counted(Counter::KeysInvalidated), 1);
    t.receive(&[write(VA, rkey, 101, b"w")]);
    t.expect(nak(NakCode::RemoteAccess, 101, 1));
}

#[test]
fn a_long_send_closes_the_window_only_at_its_end() {
    let mut t = Script::new();
    let rkey = t.window(0, 64, READ_WRITE);
    t.post_recv(1, &[t.sge(0, 300)]);
    t.receive(&[pkt(Opcode::RC_SEND_FIRST, 100).payload(&bytes(0, MTU))]);
    assert!(t.is_bound(rkey));
    let last = pkt(Opcode::RC_SEND_LAST_INV, 101).invalidate(rkey).payload(b"x").ack_req();
    t.receive(&[last]);
    t.expect(ack(101, 1));
    assert!(!t.is_bound(rkey));
}

/// A SEND of the peer that would close this key is refused, and does not.
fn not_closed(t: &mut Script, rkey: u32) {
    t.post_recv(1, &[t.sge(0, 8)]);
    t.receive(&[pkt(Opcode::RC_SEND_ONLY_INV, 100).invalidate(rkey).ack_req()]);
    t.expect(nak(NakCode::RemoteAccess, 100, 0));
    t.expect_recv(1, WcStatus::WrFlush);
    assert!(t.program.events.contains(&AsyncEvent::QpAccessError(t.qpn)));
}

#[test]
fn a_peer_closes_no_mr() {
    let mut t = Script::new();
    let key = t.key;
    not_closed(&mut t, key);
    t.another(QpType::Rc, None);
    opens(&mut t, VA, key);
}

#[test]
fn a_peer_closes_no_window_of_type_1() {
    let mut t = Script::new();
    let mw = t.alloc_mw(MwType::One);
    let rkey = t.bound(mw, 0, 64, READ_WRITE);
    not_closed(&mut t, rkey);
    assert!(t.is_bound(rkey));
}

#[test]
fn a_peer_closes_no_window_of_another_qp() {
    let mut t = Script::new();
    let rkey = t.window(0, 64, READ_WRITE);
    t.another(QpType::Rc, None);
    not_closed(&mut t, rkey);
    assert!(t.is_bound(rkey));
}

#[test]
fn a_read_ends_in_a_nak_when_its_window_is_closed_meanwhile() {
    let mut t = Script::new();
    let rkey = t.window(0, 1024, READ_WRITE);
    t.receive(&[pkt(Opcode::RC_READ_REQUEST, 100).reth(VA, rkey, 1024)]);
    t.device.dealloc_mw(Rkey(rkey));
    t.expect(nak(NakCode::RemoteAccess, 100, 1));
}

// What a window holds, and what holds a window.

#[test]
fn an_mr_with_windows_bound_to_it_is_not_deregistered() {
    let mut t = Script::new();
    let key = t.key;
    let one = t.alloc_mw(MwType::One);
    t.bound(one, 0, 64, READ_WRITE);
    let two = t.window(0, 64, READ_WRITE);
    let held_by = |windows| Err(DeregMrError::WindowsBound { key: Lkey(key), windows });
    assert_eq!(t.device.dereg_mr(Lkey(key)), held_by(2));
    t.post(1, invalidate(two), &[]);
    t.expect_nothing();
    assert_eq!(t.device.dereg_mr(Lkey(key)), held_by(1));
    assert!(t.device.dealloc_mw(Rkey(one)), "by a key that it had before");
    assert!(t.device.dereg_mr(Lkey(key)).is_ok());
    assert_eq!(t.device.dereg_mr(Lkey(key)), Err(DeregMrError::NoSuchMr(Lkey(key))));
}

#[test]
fn a_window_that_is_bound_to_another_mr_lets_go_of_the_first() {
    let mut t = Script::new();
    let first = t.key;
    let mw = t.alloc_mw(MwType::One);
    let rkey = t.bound(mw, 0, 64, READ_WRITE);
    t.key = t.reg_mr(PD, Access::LOCAL_WRITE | Access::MW_BIND);
    t.bound(rkey, 0, 64, READ_WRITE);
    assert!(t.device.dereg_mr(Lkey(first)).is_ok());
    assert!(t.device.dereg_mr(Lkey(t.key)).is_err());
}

#[test]
fn a_freed_window_is_nobodys() {
    let mut t = Script::new();
    let rkey = t.window(0, 64, READ_WRITE);
    assert!(t.device.dealloc_mw(Rkey(rkey)));
    assert!(!t.device.dealloc_mw(Rkey(rkey)));
    assert_eq!(t.device.query_mw(Rkey(rkey)), None);
    assert!(!t.device.dealloc_mw(Rkey(t.key)), "an MR is no window");
    refuses(&mut t, VA, rkey);
}

#[test]
fn type_2_windows_are_closed_with_the_qp_they_were_bound_on() {
    let mut t = Script::new();
    let key = t.key;
    let other = t.window(0, 64, READ_WRITE);
    let survivor = t.qpn;
    t.another(QpType::Rc, None);
    let windows = [0, 64, 128].map(|offset| t.window(offset, 64, READ_WRITE));
    let type_1 = t.alloc_mw(MwType::One);
    t.bound(type_1, 0, 64, READ_WRITE);
    assert!(t.device.destroy_qp(t.now, t.qpn));
    assert!(windows.iter().all(|&rkey| !t.is_bound(rkey)));
    assert!(t.is_bound(type_1) && t.is_bound(other));
    t.device.dealloc_mw(Rkey(type_1));
    t.select(survivor);
    t.post(1, invalidate(other), &[]);
    t.expect_nothing();
    assert!(t.device.dereg_mr(Lkey(key)).is_ok());
}

#[test]
fn a_window_says_what_it_is_bound_to() {
    let mut t = Script::new();
    let rkey = t.window(100, 50, READ_WRITE);
    let info = t.device.query_mw(Rkey(rkey)).unwrap();
    assert_eq!((info.pd, info.mw_type, info.rkey), (PD, MwType::Two, Rkey(rkey)));
    let bound = info.bound.unwrap();
    assert_eq!((bound.mr, bound.addr, bound.length), (Lkey(t.key), VA + 100, 50));
    assert_eq!((bound.access, bound.qpn), (READ_WRITE, t.qpn));
    assert_ne!(bound.qpn, Qpn::new(0));
}

#[test]
fn a_window_that_is_closed_while_a_repeated_read_waits_does_not_end_the_connection() {
    let mut t = Script::new();
    let rkey = t.window(0, 64, READ_WRITE);
    t.fill(0, b"data");
    t.post_recv(1, &[]);
    let read = pkt(Opcode::RC_READ_REQUEST, 100).reth(VA, rkey, 4);
    t.receive(std::slice::from_ref(&read));
    let response = pkt(Opcode::RC_READ_RESPONSE_ONLY, 100).aeth(urxe_wire::Syndrome::ACK, 1);
    t.expect(response.payload(b"data"));
    // The answer was late, so that it was asked for again. It came, and all was said.
    let done = pkt(Opcode::RC_SEND_ONLY_INV, 101).invalidate(rkey).ack_req();
    t.receive(&[read, done]);
    t.expect(ack(101, 2));
    t.expect_nothing();
    assert_eq!(t.state(), QpState::Rts);
    assert_eq!(t.counted(Counter::DropUnknownDuplicate), 1);
    t.expect_recv(1, WcStatus::Success);
}
