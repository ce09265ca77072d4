//! How a thread that polls shares the processor.

use crate::Cq;

/// Remembers how polling in a loop went, for a thread that shares its processor.
///
/// To poll again at once is the fastest way to wait where each program and each daemon has a
/// processor of its own. Where they share one, it keeps the daemon from completing anything. So a
/// thread whose poll was in vain [pauses](Self::pause): it yields the processor, and once it has
/// waited long where others want the processor, it sleeps until the daemon has completed
/// something. No channel is needed for that.
///
/// ```no_run
/// # fn wait(cq: &urxe_verbs::Cq, wcs: &mut [urxe_verbs::Wc]) -> Result<usize, urxe_verbs::Error> {
/// let mut patience = urxe_verbs::Patience::default();
/// loop {
///     match cq.poll(wcs)? {
///         0 => patience.pause(cq),
///         count => return Ok(count),
///     }
/// }
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct Patience(urxe_shm::patience::Patience);

impl Patience {
    /// Something was found: the next wait is a new one.
    pub fn found(&mut self) {
        self.0.found();
    }

    /// Nothing was found, in `cq` or any other completion queue of its session that the thread
    /// polls. Returns after a moment: 200 us, or one turn of the others on this processor.
    pub fn pause(&mut self, cq: &Cq) {
        self.0.pause(|| Some(cq.news()));
    }
}
