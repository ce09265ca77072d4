//! Programs that look for completions yield the processor meanwhile.
//!
//! A program that polls calls nothing of libc: completions lie in memory. Where there are fewer
//! processors than programs and daemons, it keeps the one that the daemon needs in order to
//! complete anything, until the clock ticks: on two processors a message of 8 bytes took 600 us
//! instead of 20, and one of 64 KiB 69 us instead of 45. So the one function that every poll goes
//! through, `ibv_poll_cq` as the provider has it, is wrapped: what it answers is never touched, but
//! after it has found nothing for a while, the processor is yielded, as long as there is
//! [`Courtesy`] in return. Among many who poll, yielding gives the daemon but its share: who polls
//! in vain for long, where others want the processor, naps between polls.
//!
//! Not covered: the extended completion queues (`ibv_start_poll`), and memory in which a program
//! looks for what a peer has written.

use libc::{c_int, c_void};
use rustix::thread::{Timespec, nanosleep, sched_yield};
use std::cell::Cell;
use std::mem::transmute;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::time::{Duration, Instant};
use urxe_shm::courtesy::Courtesy;

/// Polls without a completion after which the processor is yielded: a tenth of a microsecond.
const EMPTY_POLLS: u32 = 8;

/// A yield that takes longer has given the processor to somebody.
const ALONE: Duration = Duration::from_micros(2);

/// How long a thread polls in vain before it naps: longer than an exchange of small messages.
const NAP_AFTER: Duration = Duration::from_micros(100);

/// What is slept, with the 50 us that the system adds.
const NAP: Timespec = Timespec { tv_sec: 0, tv_nsec: 20_000 };

/// Where `poll_cq` stands in `struct ibv_context_ops`.
const POLL_CQ: usize = 11;

/// What every program may know of `struct ibv_context`, since inline functions of
/// `infiniband/verbs.h` use it; so it never changes.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct VerbsContext {
    device: *mut c_void,
    ops: [*mut c_void; 32],
    /// The descriptor of `/dev/infiniband/uverbsN`.
    pub(crate) cmd_fd: c_int,
}

/// `poll_cq` of a provider.
type PollCq = unsafe extern "C-unwind" fn(*mut c_void, c_int, *mut c_void) -> c_int;

/// `librxe`'s. There is one library of the name in a process, so its contexts have all the same.
static PROVIDERS: AtomicPtr<c_void> = AtomicPtr::new(null_mut());

thread_local! {
    static MANNERS: Manners = const { Manners::new() };
}

/// How a thread polls.
struct Manners {
    /// Polls without a completion since the last completion or yield.
    empty: Cell<u32>,
    courtesy: Cell<Courtesy>,
    /// Since when nothing was found.
    waiting: Cell<Option<Instant>>,
    /// Somebody else wanted the processor when it was last yielded.
    crowded: Cell<bool>,
}

/// Lets the polls of a context that was opened just now yield.
pub(crate) fn teach(context: &mut VerbsContext) {
    let poll_cq = &mut context.ops[POLL_CQ];
    if poll_cq.is_null() {
        return;
    }
    let (set, unset) = (Ordering::Relaxed, Ordering::Relaxed);
    match PROVIDERS.compare_exchange(null_mut(), *poll_cq, set, unset) {
        // Of a second copy of the library: what it polls with is not known to us.
        Err(other) if other != *poll_cq => (),
        _ => *poll_cq = poll_politely as PollCq as *mut c_void,
    }
}

/// `ibv_poll_cq` of contexts of ours.
unsafe extern "C-unwind" fn poll_politely(cq: *mut c_void, count: c_int, wc: *mut c_void) -> c_int {
    let provider = PROVIDERS.load(Ordering::Relaxed);
    // SAFETY: whoever put us into a context has stored the provider's function of that place
    // before, and the caller promises what that one asks for.
    let found = unsafe { transmute::<*mut c_void, PollCq>(provider)(cq, count, wc) };
    MANNERS.with(|manners| manners.polled(found));
    found
}

impl Manners {
    const fn new() -> Manners {
        Manners {
            empty: Cell::new(0),
            courtesy: Cell::new(Courtesy::new()),
            waiting: Cell::new(None),
            crowded: Cell::new(false),
        }
    }

    /// A poll gave so many completions, or an error.
    #[inline]
    fn polled(&self, found: c_int) {
        if found != 0 {
            self.empty.set(0);
            self.waiting.set(None);
            return;
        }
        let empty = self.empty.get() + 1;
        self.empty.set(empty);
        if empty >= EMPTY_POLLS {
            self.empty.set(0);
            self.make_room();
        }
    }

    /// Lets others have the processor.
    fn make_room(&self) {
        let before = Instant::now();
        let waiting = self.waiting.get().unwrap_or(before);
        self.waiting.set(Some(waiting));
        let mut courtesy = self.courtesy.get();
        if courtesy.is_due(before) {
            sched_yield();
            let now = Instant::now();
            let away = now.duration_since(before);
            courtesy.came_back(now, away);
            self.courtesy.set(courtesy);
            self.crowded.set(away > ALONE);
        }
        if self.crowded.get() && before.duration_since(waiting) > NAP_AFTER {
            // A signal ends it early, and is no less welcome.
            let _ = nanosleep(&NAP);
        }
    }
}
