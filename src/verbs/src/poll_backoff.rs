//! How a thread that polls in vain shares the processor.

use crate::Cq;
use urxe_shm::client::poll_backoff;

/// What a thread that polls in a loop does when it has found nothing: so that it takes no processor
/// that the data path, or anybody else, needs to give it something.
///
/// ```no_run
/// # fn main() -> Result<(), urxe_verbs::Error> {
/// # let context = urxe_verbs::Context::open(&urxe_verbs::OpenOptions::new())?;
/// # let cq = context.create_cq(16, None)?;
/// use urxe_verbs::{PollBackoff, Wc};
///
/// let (mut backoff, mut wcs) = (PollBackoff::new(), [Wc::default(); 16]);
/// let count = loop {
///     match cq.poll(&mut wcs)? {
///         0 => backoff.pause(&cq),
///         count => break count,
///     };
/// };
/// backoff.found();
/// # Ok(())
/// # }
/// ```
///
/// Where each thread and each data path has a processor of its own, that is polling. Where they
/// share some, the thread yields the processor; and it sleeps when it has waited for long, or when
/// the data path is kept from the processor. A completion in any queue of the same context wakes it
/// up. For whatever else it waits, it sleeps for no more than 100 us at a time, or for as long as
/// it has waited already, and never for more than 10 ms. Where the data path is kept from the
/// processor, it is woken for up to 32 completions together, within 0.5 ms; and for whatever else,
/// every 0.5 ms, or 5 us for each program that the data path serves if that is longer. Stock
/// programs have that by `urxe run`, but do not sleep, or for 100 us only, where they do something
/// else between their polls.
///
/// There is one for each thread, whatever it polls.
#[derive(Debug, Default)]
pub struct PollBackoff(poll_backoff::PollBackoff);

impl PollBackoff {
    /// Of a thread that has not waited yet.
    pub const fn new() -> PollBackoff {
        PollBackoff(poll_backoff::PollBackoff::new())
    }

    /// Something was found: the next wait is another one.
    pub fn found(&mut self) {
        self.0.found();
    }

    /// Nothing was found since the last call, in any queue that the thread polls; `cq` is one of
    /// them. Returns whether the thread has slept.
    pub fn pause(&mut self, cq: &Cq) -> bool {
        let session = &cq.0.context.session;
        let waiter = || Some(session.waiter().clone());
        self.0.pause(waiter, || session.about_to_wait(), session.turns_are_taken())
    }
}
