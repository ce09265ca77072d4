//! Waiting for completions: by polling, yielding or events.

use crate::error::Error;
use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use std::time::Duration;
use urxe_verbs::{Context, Cq, PollBackoff, Wc};

/// How to wait for completions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum PollMode {
    /// Poll again at once: the fastest, where each program and each daemon has a core of its own.
    Spin,
    /// Poll again a few times, then yield the core; sleep where the data path is kept from one.
    #[default]
    Yield,
    /// Sleep until the completion channel says that there is one.
    Event,
}

/// Empty polls before the core is yielded: a tenth of a microsecond, as in stock programs. The data
/// path may share it, and what it brings comes sooner then.
const SPINS: u32 = 8;

/// Empty polls after which a wait returns, so that its caller can check other things. Those cost
/// little, so this is often.
const SPINS_PER_LOOK: u32 = 256;

/// How long one wait sleeps at most, for the same reason.
const SLEEP_PER_LOOK: Duration = Duration::from_millis(100);

/// What to do between two looks at memory in which something has not happened yet.
#[derive(Debug)]
pub(crate) struct Idle {
    mode: PollMode,
    looks: u32,
}

impl Idle {
    pub(crate) fn new(mode: PollMode) -> Self {
        Idle { mode, looks: 0 }
    }

    /// It has not; waits a moment. Returns `true` now and then: time to check other things.
    pub(crate) fn pause(&mut self) -> bool {
        self.looks = self.looks.wrapping_add(1);
        if self.mode == PollMode::Spin || self.looks < SPINS {
            std::hint::spin_loop();
        } else {
            std::thread::yield_now();
        }
        self.looks.is_multiple_of(SPINS_PER_LOOK)
    }
}

/// A completion queue and the way to wait for it.
pub(crate) struct Completions {
    cq: Cq,
    mode: PollMode,
    backoff: PollBackoff,
    wcs: Vec<Wc>,
}

/// Completions taken at a time.
const BATCH: usize = 64;

impl Completions {
    /// Makes a completion queue of `depth`, with a channel if it is to be waited for by events.
    pub(crate) fn new(context: &Context, depth: u32, mode: PollMode) -> Result<Self, Error> {
        let channel = match mode {
            PollMode::Event => Some(context.create_comp_channel()?),
            PollMode::Spin | PollMode::Yield => None,
        };
        let cq = context.create_cq(depth, channel.as_ref())?;
        let (backoff, wcs) = (PollBackoff::new(), vec![Wc::default(); BATCH]);
        Ok(Completions { cq, mode, backoff, wcs })
    }

    /// The completion queue.
    pub(crate) fn cq(&self) -> &Cq {
        &self.cq
    }

    /// The completions that are there, without waiting.
    pub(crate) fn poll(&mut self) -> Result<&[Wc], Error> {
        let count = self.cq.poll(&mut self.wcs)?;
        Ok(&self.wcs[..count])
    }

    /// Waits for completions. There may be none: then it is time to check other things, such as a
    /// clock or the peer, and to wait again.
    pub(crate) fn wait(&mut self) -> Result<&[Wc], Error> {
        let count = match self.mode {
            PollMode::Event => self.cq.wait(&mut self.wcs, Some(SLEEP_PER_LOOK))?,
            PollMode::Spin | PollMode::Yield => self.poll_for_a_while()?,
        };
        Ok(&self.wcs[..count])
    }

    /// Polls until there are completions, or it is time to check other things.
    fn poll_for_a_while(&mut self) -> Result<usize, Error> {
        for look in 1..=SPINS_PER_LOOK {
            let count = self.cq.poll(&mut self.wcs)?;
            if count > 0 {
                self.backoff.found();
                return Ok(count);
            }
            if self.mode == PollMode::Spin || look < SPINS {
                std::hint::spin_loop();
            } else if self.backoff.pause(&self.cq) {
                break;
            }
        }
        Ok(0)
    }
}
