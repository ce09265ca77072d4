//! Programs that look for completions share the processor meanwhile.
//!
//! A program that polls calls nothing of libc: completions lie in memory. Where there are fewer
//! processors than programs and daemons, it keeps the one that the daemon needs in order to
//! complete anything, until the clock ticks: on two processors a message of 8 bytes took 600 us
//! instead of 20, and one of 64 KiB 69 us instead of 45. So the one function that every poll goes
//! through, `ibv_poll_cq` as the provider has it, is wrapped: what it answers is never touched, but
//! after it has found nothing for a while, the thread is taught [`Patience`].
//!
//! Not covered: the extended completion queues (`ibv_start_poll`), and memory in which a program
//! looks for what a peer has written.

use crate::descriptors::{DESCRIPTORS, Descriptor};
use libc::{c_int, c_void};
use std::cell::Cell;
use std::mem::transmute;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};
use urxe_shm::news::News;
use urxe_shm::patience::Patience;

/// Polls without a completion after which the thread pauses: a tenth of a microsecond.
const EMPTY_POLLS: u32 = 8;

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
    /// Polls without a completion since the last completion or pause.
    empty: Cell<u32>,
    /// There was a pause since the last completion.
    waiting: Cell<bool>,
    patience: Cell<Patience>,
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
    // SAFETY: the caller promises that it is a completion queue, and the provider, who has read
    // the same, that it begins with its context, as inline functions of `infiniband/verbs.h` know.
    let context = || unsafe { *cq.cast::<*const VerbsContext>() };
    // SAFETY: contexts are freed after their completion queues.
    MANNERS.with(|manners| manners.polled(found, || unsafe { news_of(&*context()) }));
    found
}

/// What tells of completions in the queues of a context.
fn news_of(context: &VerbsContext) -> Option<News> {
    match DESCRIPTORS.genuine(context.cmd_fd) {
        Some(Descriptor::Uverbs(context)) => Some(context.news()),
        _ => None,
    }
}

impl Manners {
    const fn new() -> Manners {
        Manners {
            empty: Cell::new(0),
            waiting: Cell::new(false),
            patience: Cell::new(Patience::new()),
        }
    }

    /// A poll gave so many completions, or an error.
    #[inline]
    fn polled(&self, found: c_int, news: impl FnOnce() -> Option<News>) {
        if found != 0 {
            self.empty.set(0);
            if self.waiting.replace(false) {
                self.with_patience(Patience::found);
            }
            return;
        }
        let empty = self.empty.get() + 1;
        self.empty.set(empty);
        if empty >= EMPTY_POLLS {
            self.empty.set(0);
            self.waiting.set(true);
            self.with_patience(|patience| patience.pause(news));
        }
    }

    fn with_patience(&self, act: impl FnOnce(&mut Patience)) {
        let mut patience = self.patience.get();
        act(&mut patience);
        self.patience.set(patience);
    }
}
