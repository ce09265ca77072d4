//! Memory windows.

use super::answers::invalidation_fails;
use crate::agent::{SendWr, State, Status};
use crate::check::{Check, Outcome, ensure};
use crate::device::Setup;
use crate::expect::nak;
use crate::packet::packet;
use crate::script::Script;
use urxe_types::Access;
use urxe_wire::NakCode;
use urxe_wire::Opcode::*;

pub(super) const CHECKS: &[Check] = &[
    Check::new(
        "windows/type-1-opens-what-it-is-bound-to",
        "MW-001",
        "A bound window of type 1 lets the peer WRITE to its part of the memory.",
        |t| opens(t, 1),
    ),
    Check::new(
        "windows/type-2-opens-what-it-is-bound-to",
        "MW-001",
        "A bound window of type 2 lets the peer WRITE to its part of the memory.",
        |t| opens(t, 2),
    ),
    Check::new(
        "windows/nothing-outside-of-its-part",
        "MW-001",
        "A WRITE that reaches past the end of a window is a remote access error.",
        |t| refused(t, 2, Access::REMOTE_WRITE, 1024 + 508),
    ),
    Check::new(
        "windows/nothing-before-its-part",
        "MW-001",
        "A WRITE before the beginning of a window is a remote access error.",
        |t| refused(t, 1, Access::REMOTE_WRITE, 1020),
    ),
    Check::new(
        "windows/rights-are-those-of-the-bind",
        "MW-002",
        "A window that was bound for READs takes no WRITE.",
        |t| refused(t, 2, Access::REMOTE_READ, 1024),
    ),
    Check::new(
        "windows/unbound-opens-nothing",
        "MW-005",
        "A window that was never bound opens nothing.",
        unbound,
    ),
    Check::new(
        "windows/rebind-ends-the-old-key",
        "MW-006",
        "When a window of type 1 is bound again, its former key opens nothing.",
        rebind,
    ),
    Check::new(
        "windows/invalidated-opens-nothing",
        "MW-023",
        "A window of type 2 that its program has invalidated opens nothing.",
        invalidated,
    ),
    Check::new(
        "windows/send-with-invalidate-closes-it",
        "MW-025",
        "A SEND with invalidate closes a window of type 2, and its completion tells the key.",
        send_with_invalidate,
    ),
    Check::new(
        "windows/type-2-is-of-its-qp",
        "MW-009",
        "A window of type 2 opens to the QP that it was bound on, and to no other.",
        of_its_qp,
    ),
    Check::new(
        "windows/peer-does-not-invalidate-memory",
        "MW-026",
        "A SEND with invalidate of a region's key is refused with a remote access error.",
        region_stays,
    ),
];

/// The part of the memory that is bound.
const PART: usize = 1024;
const LEN: usize = 512;

fn setup() -> Setup {
    Setup { windows: true, ..Setup::rc().write().read() }
}

/// Binds a window of this type; its key.
fn bind(t: &mut Script<'_>, kind: u8, access: Access) -> Outcome<u32> {
    let window = t.alloc_window(kind)?;
    let part = t.part(PART, LEN, access)?;
    let rkey = match kind {
        1 => t.bind_type_1(60, &window, part)?,
        _ => t.post(&[SendWr::bind(60, &window.name, part)])?.first().copied().unwrap_or(0),
    };
    let wc = t.expect_completion(60, Status::Success)?;
    ensure(wc.op == "BIND_MW", "the opcode BIND_MW", || wc.op.clone())?;
    Ok(rkey)
}

/// Sends a WRITE of eight bytes.
fn write(t: &mut Script<'_>, at: i32, offset: u64, rkey: u32) -> Outcome {
    let addr = t.addr(offset);
    t.send(packet(RC_WRITE_ONLY).at(at).reth(addr, rkey, 8).payload(&[0xa5; 8]).ack_req())
}

fn expect_access_error(t: &mut Script<'_>, at: i32) -> Outcome {
    t.expect_answer(nak(NakCode::RemoteAccess, at))?;
    t.expect_state(State::Err)
}

fn opens(t: &mut Script<'_>, kind: u8) -> Outcome {
    t.connect(&setup())?;
    let rkey = bind(t, kind, Access::REMOTE_WRITE)?;
    write(t, 0, PART as u64, rkey)?;
    write(t, 1, (PART + LEN - 8) as u64, rkey)?;
    t.expect_acked(1, 2)?;
    let found = t.memory_at(PART + LEN - 8, 8)?;
    ensure(found == [0xa5; 8], "the data in memory", || "other bytes".into())
}

fn refused(t: &mut Script<'_>, kind: u8, access: Access, offset: u64) -> Outcome {
    t.connect(&setup())?;
    let rkey = bind(t, kind, access)?;
    write(t, 0, offset, rkey)?;
    expect_access_error(t, 0)?;
    let found = t.memory_at(PART - 8, LEN + 16)?;
    ensure(found.iter().all(|&byte| byte == 0), "nothing written", || "some bytes".into())
}

fn unbound(t: &mut Script<'_>) -> Outcome {
    t.connect(&setup())?;
    let window = t.alloc_window(2)?;
    write(t, 0, PART as u64, window.rkey)?;
    expect_access_error(t, 0)
}

fn rebind(t: &mut Script<'_>) -> Outcome {
    t.connect(&setup())?;
    let window = t.alloc_window(1)?;
    let part = t.part(PART, LEN, Access::REMOTE_WRITE)?;
    let first = t.bind_type_1(1, &window, part.clone())?;
    t.expect_success([1])?;
    let second = t.bind_type_1(2, &window, part)?;
    t.expect_success([2])?;
    write(t, 0, PART as u64, second)?;
    t.expect_acked(0, 1)?;
    write(t, 1, PART as u64, first)?;
    expect_access_error(t, 1)
}

fn invalidated(t: &mut Script<'_>) -> Outcome {
    t.connect(&setup())?;
    let rkey = bind(t, 2, Access::REMOTE_WRITE)?;
    write(t, 0, PART as u64, rkey)?;
    t.expect_acked(0, 1)?;
    t.post(&[SendWr::local_inv(2, rkey)])?;
    t.expect_success([2])?;
    write(t, 1, PART as u64, rkey)?;
    expect_access_error(t, 1)
}

fn send_with_invalidate(t: &mut Script<'_>) -> Outcome {
    t.connect(&setup().exactly(1, 64))?;
    let rkey = bind(t, 2, Access::REMOTE_WRITE)?;
    t.send(packet(RC_SEND_ONLY_INV).invalidate(rkey).payload(&[1; 8]).ack_req())?;
    t.expect_acked(0, 1)?;
    let wc = t.expect_completion(0, Status::Success)?;
    const WITH_INV: u32 = 8;
    ensure(wc.inv == Some(rkey) && wc.flags & WITH_INV != 0, "the key, and WITH_INV", || {
        format!("key {:x?}, flags {:#x}", wc.inv, wc.flags)
    })?;
    write(t, 1, PART as u64, rkey)?;
    expect_access_error(t, 1)
}

fn of_its_qp(t: &mut Script<'_>) -> Outcome {
    let a = t.connect(&setup())?;
    let rkey = bind(t, 2, Access::REMOTE_WRITE)?;
    let addr = t.addr(PART as u64);
    let request = || packet(RC_WRITE_ONLY).reth(addr, rkey, 8).payload(&[0xa5; 8]).ack_req();
    t.connect(&setup())?;
    t.send(request())?;
    expect_access_error(t, 0)?;
    t.select(a);
    t.send(request())?;
    t.expect_acked(0, 1).map(drop)
}

fn region_stays(t: &mut Script<'_>) -> Outcome {
    t.connect(&setup().exactly(1, 64))?;
    let rkey = t.rkey();
    t.send(packet(RC_SEND_ONLY_INV).invalidate(rkey).payload(&[1; 8]).ack_req())?;
    invalidation_fails(t, 0)
}
