//! Work requests that are not taken: what the user is told.
//!
//! The provider judges them in the program's own process and gives back a number. Why it did is
//! found out again here, by the same rules that a Rust program's posts are judged by, and with
//! their sentences. The provider's functions are wrapped only where somebody is to be told.

use crate::descriptors::{DESCRIPTORS, Descriptor};
use crate::memory;
use crate::provider::{VerbsContext, op, remembered, wrap};
use crate::reasons::{self, Level};
use crate::refused::errno_of;
use libc::{c_int, c_void};
use rustix::io::Errno;
use std::mem::{offset_of, transmute};
use std::ptr::null_mut;
use std::sync::atomic::AtomicPtr;
use urxe_shm::control::{QpCaps, errnos};
use urxe_shm::ring::layout::{MAX_MESSAGE_LEN, SEND_INLINE, WR_COMPARE_SWAP, WR_FETCH_ADD};
use urxe_types::{EntryError, QpState, Sge};
use urxe_verbs::PostReason;
use zerocopy::{FromBytes, IntoBytes};

/// `post_send`, `post_recv` or `post_srq_recv` of a provider: a queue, a list, and the place for
/// the first of it that was not taken.
type Post = unsafe extern "C-unwind" fn(*mut c_void, *mut c_void, *mut *mut c_void) -> c_int;

/// `librxe`'s. There is one library of the name in a process.
static POST_SEND: AtomicPtr<c_void> = AtomicPtr::new(null_mut());
static POST_RECV: AtomicPtr<c_void> = AtomicPtr::new(null_mut());
static POST_SRQ_RECV: AtomicPtr<c_void> = AtomicPtr::new(null_mut());

/// What every program may know of `struct ibv_qp`.
#[repr(C)]
struct VerbsQp {
    context: *const VerbsContext,
    qp_context: *mut c_void,
    pd: *mut c_void,
    send_cq: *mut c_void,
    recv_cq: *mut c_void,
    srq: *mut c_void,
    handle: u32,
    qp_num: u32,
    state: u32,
    qp_type: u32,
}

/// The beginning of `struct ibv_send_wr`.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes)]
#[repr(C)]
struct SendWr {
    wr_id: u64,
    next: u64,
    sg_list: u64,
    num_sge: u32,
    opcode: u32,
    send_flags: u32,
    imm_data: u32,
    remote_addr: u64,
}

/// The beginning of `struct ibv_recv_wr`, which a send begins with too.
const RECV_WR_LEN: usize = offset_of!(SendWr, opcode);

/// Has the posts of a context go through us, if somebody is told.
pub(crate) fn wrap_posts(context: u64) {
    if !reasons::is_told(Level::Error) {
        return;
    }
    let ours: [(usize, &AtomicPtr<c_void>, Post); 3] = [
        (op::POST_SEND, &POST_SEND, post_send),
        (op::POST_RECV, &POST_RECV, post_recv),
        (op::POST_SRQ_RECV, &POST_SRQ_RECV, post_srq_recv),
    ];
    for (at, provider, ours) in ours {
        let offset = offset_of!(VerbsContext, ops) + at * size_of::<usize>();
        wrap(context, offset, provider, ours as *mut c_void);
    }
}

/// `ibv_post_send` of contexts of ours.
unsafe extern "C-unwind" fn post_send(
    qp: *mut c_void,
    wr: *mut c_void,
    bad: *mut *mut c_void,
) -> c_int {
    // SAFETY: the caller promises what the provider's function asks for.
    unsafe {
        let failed = provider(&POST_SEND)(qp, wr, bad);
        if failed != 0 && !bad.is_null() {
            let (qp, wr) = (&*qp.cast::<VerbsQp>(), if (*bad).is_null() { wr } else { *bad });
            tell("ibv_post_send", qp, failed, |caps| why_not_sent(qp, wr as u64, caps), wr as u64);
        }
        failed
    }
}

/// `ibv_post_recv` of contexts of ours.
unsafe extern "C-unwind" fn post_recv(
    qp: *mut c_void,
    wr: *mut c_void,
    bad: *mut *mut c_void,
) -> c_int {
    // SAFETY: the caller promises what the provider's function asks for.
    unsafe {
        let failed = provider(&POST_RECV)(qp, wr, bad);
        if failed != 0 && !bad.is_null() {
            let (qp, wr) = (&*qp.cast::<VerbsQp>(), if (*bad).is_null() { wr } else { *bad });
            tell(
                "ibv_post_recv",
                qp,
                failed,
                |caps| why_not_posted(qp, wr as u64, caps),
                wr as u64,
            );
        }
        failed
    }
}

/// `ibv_post_srq_recv` of contexts of ours.
unsafe extern "C-unwind" fn post_srq_recv(
    srq: *mut c_void,
    wr: *mut c_void,
    bad: *mut *mut c_void,
) -> c_int {
    // SAFETY: the caller promises what the provider's function asks for.
    let failed = unsafe { provider(&POST_SRQ_RECV)(srq, wr, bad) };
    if failed != 0 {
        let errno = errno_of(failed);
        let what = match errno {
            Errno::NOMEM => "the queue is full: wait for completions, or ask for more max_wr",
            _ => "num_sge is more than the max_sge that the SRQ was made for",
        };
        let name = errnos::name(errno);
        reasons::say(level(errno), &format!("ibv_post_srq_recv: {what} ({name})"));
    }
    failed
}

/// The provider's function, which was remembered before ours was put there.
unsafe fn provider(place: &AtomicPtr<c_void>) -> Post {
    // SAFETY: what is remembered of that place is the provider's function for it.
    unsafe { transmute::<*mut c_void, Post>(remembered(place)) }
}

/// Tells why a work request of a QP was not taken.
#[cold]
fn tell(
    verb: &str,
    qp: &VerbsQp,
    failed: c_int,
    why: impl FnOnce(Option<QpCaps>) -> Option<PostReason>,
    wr: u64,
) {
    let errno = errno_of(failed);
    // SAFETY: a QP has a context as long as it lives, and the caller has just posted to it.
    let cmd_fd = unsafe { (*qp.context).cmd_fd };
    let caps = match DESCRIPTORS.genuine(cmd_fd) {
        Some(Descriptor::Uverbs(context)) => context.caps_of(qp.qp_num),
        _ => None,
    };
    let wr_id = read::<SendWr>(wr, 8).map_or(0, |wr| wr.wr_id);
    let (qpn, name) = (qp.qp_num, errnos::name(errno));
    let reason = why(caps).map_or_else(|| errnos::meaning(errno), |why| why.to_string());
    // WHY-006
    let cause = reasons::key_of(&(verb, errno.raw_os_error(), &reason));
    reasons::say_with(level(errno), cause, || {
        format!("{verb}: wr_id {wr_id} of QP {qpn:#08x} was not posted: {reason} ({name})")
    });
}

/// A full queue is nothing that a program could not live with.
fn level(errno: Errno) -> Level {
    if errno == Errno::NOMEM { Level::Warn } else { Level::Error }
}

/// What is wrong with a send, as far as it can be seen.
fn why_not_sent(qp: &VerbsQp, wr: u64, caps: Option<QpCaps>) -> Option<PostReason> {
    const RESET_TO_RTR: std::ops::RangeInclusive<u32> = 0..=2;
    if RESET_TO_RTR.contains(&qp.state) {
        let expected = "RTS, SQD, SQE or ERR";
        return Some(PostReason::State { state: state(qp.state)?, expected });
    }
    let (wr, caps) = (read::<SendWr>(wr, size_of::<SendWr>())?, caps?);
    if let Some(too_many) = too_many_sges(&wr, caps.max_send_sge) {
        return Some(too_many);
    }
    let length: u64 = sges(&wr).map(|sge| u64::from(sge.length)).sum();
    if wr.send_flags & SEND_INLINE != 0 && length > u64::from(caps.max_inline_data) {
        let (length, max_inline) = (length as u32, caps.max_inline_data);
        return Some(PostReason::Entry(EntryError::InlineTooLong { length, max_inline }));
    }
    if matches!(wr.opcode, WR_COMPARE_SWAP | WR_FETCH_ADD) {
        if wr.remote_addr % 8 != 0 {
            return Some(PostReason::AtomicAlignment { addr: wr.remote_addr });
        }
        if length != 8 {
            return Some(PostReason::AtomicLength { length });
        }
    }
    if length > MAX_MESSAGE_LEN {
        return Some(PostReason::MessageTooLong { length, max: MAX_MESSAGE_LEN });
    }
    Some(PostReason::QueueFull { capacity: caps.max_send_wr })
}

/// What is wrong with a receive.
fn why_not_posted(qp: &VerbsQp, wr: u64, caps: Option<QpCaps>) -> Option<PostReason> {
    if !qp.srq.is_null() {
        return Some(PostReason::SharedReceives);
    }
    let (wr, caps) = (read::<SendWr>(wr, RECV_WR_LEN)?, caps?);
    let too_many = too_many_sges(&wr, caps.max_recv_sge);
    Some(too_many.unwrap_or(PostReason::QueueFull { capacity: caps.max_recv_wr }))
}

fn too_many_sges(wr: &SendWr, max_sge: u32) -> Option<PostReason> {
    let num_sge = wr.num_sge;
    (num_sge > max_sge).then_some(PostReason::Entry(EntryError::TooManySges { num_sge, max_sge }))
}

/// The scatter/gather list, as far as it can be read.
fn sges(wr: &SendWr) -> impl Iterator<Item = Sge> {
    let list = wr.sg_list;
    let at = move |index: u32| list.checked_add(u64::from(index) * size_of::<Sge>() as u64);
    (0..wr.num_sge).map_while(move |index| read::<Sge>(at(index)?, size_of::<Sge>()))
}

/// The first bytes of a structure of the program's, read by the system.
fn read<T: FromBytes + IntoBytes>(address: u64, len: usize) -> Option<T> {
    let mut value = T::new_zeroed();
    memory::read(address, &mut value.as_mut_bytes()[..len]).ok()?;
    Some(value)
}

/// `ibv_qp_state` of those in which nothing is sent.
fn state(number: u32) -> Option<QpState> {
    crate::uverbs::qp_state(u8::try_from(number).ok()?).ok()
}
