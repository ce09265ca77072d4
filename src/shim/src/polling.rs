//! Programs that look for completions share the processor meanwhile, and notice when there is no
//! daemon any more.
//!
//! A program that polls calls nothing of libc: completions lie in memory. Where there are fewer
//! processors than programs and daemons, it keeps the one that the daemon needs in order to
//! complete anything, until the clock ticks: on two processors a message of 8 bytes took 600 us
//! instead of 20, and one of 64 KiB 69 us instead of 45. And when the daemon is gone, it would poll
//! for ever. So the functions that every poll goes through, `ibv_poll_cq` and `ibv_start_poll` as
//! the provider has them, are wrapped. What they answer is never touched while there is a daemon,
//! but after they have found nothing for a while, the thread backs off ([`PollBackoff`]), and looks
//! whether the daemon is [`lost`].
//!
//! No function of libibverbs is interposed for that, so that debuggers and other preloaded
//! libraries find there what they expect. Instead, the address of the program's `struct ibv_cq`,
//! which `CREATE_CQ` carries as its user handle, leads to its `struct ibv_context` as soon as
//! libibverbs has filled the structure in, which is before the next command.
//!
//! Not covered: memory in which a program looks for what a peer has written.

use crate::descriptors::{DESCRIPTORS, Descriptor};
use crate::failures::{self, FailedWr};
use crate::provider::{VerbsContext, op, read_word, remembered, wrap};
use crate::{lost, memory, own_slot, posting};
use libc::{c_int, c_void};
use std::cell::Cell;
use std::mem::{offset_of, transmute};
use std::ops::RangeInclusive;
use std::ptr::null_mut;
use std::sync::atomic::AtomicPtr;
use urxe_shm::client::lookout::Lookout;
use urxe_shm::client::poll_backoff::PollBackoff;
use urxe_shm::ring::completion_notifier::CompletionWaiter;

/// Polls without a completion after which the thread pauses: a tenth of a microsecond.
const EMPTY_POLLS: u32 = 8;

/// Commands after which a CQ whose context is not found is given up: its user handle is no
/// `struct ibv_cq`, or it is not polled by `ibv_start_poll`.
const TRIES: u8 = 4;

/// What every program may know of `struct ibv_cq_ex`, which begins as `struct ibv_cq` does. From
/// rdma-core 34 on the provider makes room for it also where the program asked for the other; for
/// what it has before that, see [`has_ring_for_start_poll`].
#[repr(C)]
struct VerbsCq {
    context: *mut VerbsContext,
    channel: *mut c_void,
    cq_context: *mut c_void,
    handle: u32,
    cqe: c_int,
    mutex: libc::pthread_mutex_t,
    cond: libc::pthread_cond_t,
    comp_events_completed: u32,
    async_events_completed: u32,
    comp_mask: u32,
    status: u32,
    wr_id: u64,
    start_poll: *mut c_void,
    next_poll: *mut c_void,
    end_poll: *mut c_void,
    read_opcode: Option<ReadWord>,
    read_vendor_err: Option<ReadWord>,
    read_byte_len: *mut c_void,
    read_imm_data: *mut c_void,
    read_qp_num: Option<ReadWord>,
}

/// A function that reads of the present completion of an extended CQ.
type ReadWord = unsafe extern "C-unwind" fn(*mut c_void) -> u32;

/// `poll_cq` of a provider.
type PollCq = unsafe extern "C-unwind" fn(*mut c_void, c_int, *mut c_void) -> c_int;
/// `start_poll` of a provider: 0, `ENOENT` if there is nothing, or why not.
type StartPoll = unsafe extern "C-unwind" fn(*mut c_void, *mut c_void) -> c_int;

/// `librxe`'s. There is one library of the name in a process, so its contexts have all the same.
static POLL: AtomicPtr<c_void> = AtomicPtr::new(null_mut());
/// The same of its extended CQs.
static START_POLL: AtomicPtr<c_void> = AtomicPtr::new(null_mut());

thread_local! {
    static POLLING: Polling = const { Polling::new() };
}

/// How a thread polls.
struct Polling {
    /// Polls without a completion since the last completion or pause.
    empty: Cell<u32>,
    /// There was a pause since the last completion.
    waiting: Cell<bool>,
    backoff: Cell<PollBackoff>,
    lookout: Cell<Lookout>,
}

/// A CQ that was made just now.
#[derive(Debug)]
pub(crate) struct NewCq {
    /// Where the program has its structure, or so it seems.
    address: u64,
    tries: u8,
}

/// Whether the polls of a CQ go through us.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wrapped {
    /// They do, as far as they can.
    Done,
    /// The structure is not filled in yet.
    NotYet,
}

impl NewCq {
    pub(crate) fn at(address: u64) -> NewCq {
        NewCq { address, tries: 0 }
    }

    pub(crate) fn is_at(&self, address: u64) -> bool {
        self.address == address
    }

    /// Has the polls of the CQ and of its context go through us, if its structure leads to the
    /// descriptor of an opened device that `is_ours`.
    pub(crate) fn wrap(&mut self, is_ours: impl Fn(c_int) -> bool) -> Wrapped {
        self.tries += 1;
        let later = if self.tries < TRIES { Wrapped::NotYet } else { Wrapped::Done };
        // The address is only a number so far, and read by the system.
        let Some(context) = read_word(self.address, offset_of!(VerbsCq, context)) else {
            return later;
        };
        let mut cmd_fd = [0; size_of::<c_int>()];
        let place = context.wrapping_add(offset_of!(VerbsContext, cmd_fd) as u64);
        if memory::read(place, &mut cmd_fd).is_err() || !is_ours(c_int::from_ne_bytes(cmd_fd)) {
            return later;
        }
        let poll_cq = offset_of!(VerbsContext, ops) + op::POLL_CQ * size_of::<usize>();
        wrap(context, poll_cq, &POLL, poll_cq_and_wait as PollCq as *mut c_void);
        posting::wrap_posts(context);
        if has_ring_for_start_poll(self.address) {
            return Wrapped::Done;
        }
        let start_poll = offset_of!(VerbsCq, start_poll);
        let ours = start_poll_and_wait as StartPoll as *mut c_void;
        match wrap(self.address, start_poll, &START_POLL, ours) {
            true => Wrapped::Done,
            // No extended CQ, or not yet.
            false => later,
        }
    }
}

/// Whether a CQ has the address of its ring where a `struct ibv_cq_ex` has `start_poll`: before
/// rdma-core 34, `librxe` puts what is its own behind a `struct ibv_cq`.
fn has_ring_for_start_poll(address: u64) -> bool {
    /// A ring begins with the logarithm of its element size. No function begins with such a word:
    /// x86-64 has no instruction of that kind there that makes sense, arm64 has none at all.
    const LOG2_ELEM_SIZES: RangeInclusive<u32> = 1..=31;
    let Some(place) = read_word(address, offset_of!(VerbsCq, start_poll)) else { return false };
    let mut log2_elem_size = [0; size_of::<u32>()];
    // CLIENT-062
    memory::read(place, &mut log2_elem_size).is_ok()
        && LOG2_ELEM_SIZES.contains(&u32::from_ne_bytes(log2_elem_size))
}

/// `ibv_poll_cq` of contexts of ours.
unsafe extern "C-unwind" fn poll_cq_and_wait(
    cq: *mut c_void,
    count: c_int,
    wc: *mut c_void,
) -> c_int {
    /// What `ibv_poll_cq` says of a CQ that is no use.
    const FAILED: c_int = -1;
    let provider = remembered(&POLL);
    // SAFETY: what is remembered of that place is the provider's function for it, and the caller
    // promises what that one asks for.
    let poll = || unsafe { transmute::<*mut c_void, PollCq>(provider)(cq, count, wc) };
    let mut found = poll();
    // OWN-030
    if found == 0 && count > 0 && own_slot::polled_in_vain() {
        found = poll();
    }
    // SAFETY: the caller promises that it is a completion queue.
    match unsafe { POLLING.with(|polling| polling.polled(found != 0, cq)) } {
        false => {
            // SAFETY: the provider has filled so many in, and the caller promises that the queue
            // is one.
            unsafe { failures::tell_polled(cmd_fd_of, cq, wc, found) };
            found
        }
        // What was flushed; when all that has been found, nothing will ever come.
        true => match poll() {
            0 if count > 0 => FAILED,
            found => found,
        },
    }
}

/// `ibv_start_poll` of CQs of ours.
unsafe extern "C-unwind" fn start_poll_and_wait(cq: *mut c_void, attr: *mut c_void) -> c_int {
    let provider = remembered(&START_POLL);
    // SAFETY: as above.
    let poll = || unsafe { transmute::<*mut c_void, StartPoll>(provider)(cq, attr) };
    let mut found = poll();
    if found == libc::ENOENT && own_slot::polled_in_vain() {
        found = poll();
    }
    // SAFETY: the caller promises that it is a completion queue.
    match unsafe { POLLING.with(|polling| polling.polled(found != libc::ENOENT, cq)) } {
        false => {
            if found == 0 {
                // SAFETY: the caller promises that it is a completion queue, and it has a
                // completion just now.
                unsafe { tell_present(cq) };
            }
            found
        }
        true => match poll() {
            libc::ENOENT => libc::EIO,
            found => found,
        },
    }
}

/// Tells why the work request of the present completion of an extended CQ has failed, if so.
///
/// # Safety
/// It must be such a queue, and have a completion.
unsafe fn tell_present(cq: *mut c_void) {
    if !failures::are_told() {
        return;
    }
    // SAFETY: the caller's promise.
    let queue = unsafe { &*cq.cast::<VerbsCq>() };
    let (Some(vendor_err), Some(opcode), Some(qpn)) =
        (queue.read_vendor_err, queue.read_opcode, queue.read_qp_num)
    else {
        return;
    };
    if queue.status != 0 {
        // SAFETY: the functions are the provider's, for just such a queue.
        let [vendor_err, opcode, qp_num] = unsafe { [vendor_err(cq), opcode(cq), qpn(cq)] };
        let (wr_id, status) = (queue.wr_id, queue.status);
        let failed = FailedWr { wr_id, status, opcode, vendor_err, qp_num };
        // SAFETY: the caller's promise.
        failures::tell(unsafe { cmd_fd_of(cq) }, &failed);
    }
}

/// The descriptor that a completion queue's context is opened by.
///
/// # Safety
/// It must be a completion queue.
unsafe fn cmd_fd_of(cq: *mut c_void) -> c_int {
    // SAFETY: the caller's promise; it begins with its context, which is freed after it, as inline
    // functions of `infiniband/verbs.h` know.
    unsafe { (**cq.cast::<*const VerbsContext>()).cmd_fd }
}

/// What tells of completions in the queues of a context.
fn waiter_of(cmd_fd: c_int) -> Option<CompletionWaiter> {
    match DESCRIPTORS.genuine(cmd_fd) {
        Some(Descriptor::Uverbs(context)) => Some(context.waiter()),
        _ => None,
    }
}

/// Whether a context has lost its daemon. What was outstanding is completed then.
#[cold]
fn is_lost(cmd_fd: c_int) -> bool {
    let is_lost = match DESCRIPTORS.genuine(cmd_fd) {
        Some(Descriptor::Uverbs(context)) => context.is_lost(),
        _ => false,
    };
    if is_lost {
        lost::flush_all();
    }
    is_lost
}

impl Polling {
    const fn new() -> Polling {
        Polling {
            empty: Cell::new(0),
            waiting: Cell::new(false),
            backoff: Cell::new(PollBackoff::unasked()),
            lookout: Cell::new(Lookout::new()),
        }
    }

    /// A poll of a CQ has found something, or failed, or neither. Returns whether there is no
    /// daemon any more, and so nothing to wait for but what was flushed now.
    ///
    /// # Safety
    /// It must be a completion queue.
    #[inline]
    unsafe fn polled(&self, found: bool, cq: *mut c_void) -> bool {
        if found {
            self.empty.set(0);
            if self.waiting.replace(false) {
                self.with_backoff(PollBackoff::found);
            }
            return false;
        }
        let mut lookout = self.lookout.get();
        if lookout.is_due() {
            // SAFETY: the caller's promise.
            if is_lost(unsafe { cmd_fd_of(cq) }) {
                return true;
            }
            lookout.seen();
            self.lookout.set(lookout);
        }
        let empty = self.empty.get() + 1;
        self.empty.set(empty);
        if empty >= EMPTY_POLLS {
            self.empty.set(0);
            self.waiting.set(true);
            self.with_backoff(|backoff| {
                // SAFETY: the caller's promise.
                let waiter = || waiter_of(unsafe { cmd_fd_of(cq) });
                backoff.pause(waiter, own_slot::about_to_wait, own_slot::turns_are_taken());
            });
        }
        false
    }

    fn with_backoff(&self, act: impl FnOnce(&mut PollBackoff)) {
        let mut backoff = self.backoff.get();
        act(&mut backoff);
        self.backoff.set(backoff);
    }
}
