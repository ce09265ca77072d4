//! Waiting in tasks of [tokio](https://docs.rs/tokio), with the feature `tokio`: for completions,
//! for connections, for peers that connect.
//!
//! Posting work never waits and is as it is without a runtime; what waits is here, and waits for
//! the same descriptors that other programs poll. Nothing is lost by a future that is dropped
//! before it is ready, and several tasks may wait for one object.
//!
//! ```no_run
//! use urxe_verbs::asynchronous::{AsyncConnection, AsyncCq, AsyncListener};
//! use urxe_verbs::cm::ConnParam;
//! use urxe_verbs::{Access, Context, Error, InitAttr, QpInit, RecvWr, SendWr};
//!
//! /// Sends each message back that comes over one connection.
//! async fn echo(context: &Context, listener: &AsyncListener) -> Result<(), Error> {
//!     let (pd, cq) = (context.alloc_pd()?, AsyncCq::new(context, 16)?);
//!     let mr = pd.alloc_mr(4096, Access::LOCAL_WRITE)?;
//!     let request = listener.next().await?;
//!     let qp = pd.create_qp(&QpInit::new(cq.get()))?;
//!     qp.to_init(InitAttr::new(Access::default()))?;
//!     qp.post_recv(&[RecvWr::new(1, &[mr.sge(..)?])])?;
//!     let connection = request.accept(&qp, &ConnParam::default()).await?;
//!     loop {
//!         let received = cq.next().await?;
//!         if received.check().is_err() {
//!             return connection.disconnected().await;
//!         }
//!         let len = received.byte_len as usize;
//!         qp.post_send(&[SendWr::send(2, &[mr.sge(..len)?]).signaled()])?;
//!         cq.next().await?.check()?;
//!         qp.post_recv(&[RecvWr::new(1, &[mr.sge(..)?])])?;
//!     }
//! }
//! ```
//!
//! A task that wants the shortest latency polls its completion queue ([`AsyncCq::get`]) for a while
//! before it waits: to be woken costs some tens of microseconds.

use crate::{CompChannel, Context, Cq, Error, Wc};
use std::future::{Future, poll_fn};
use std::os::fd::{AsFd, OwnedFd};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::Notify;

pub use crate::cm::asynchronous::{AsyncConnectRequest, AsyncConnection, AsyncListener};

/// A descriptor that several tasks wait for, each to find something of its own behind it.
#[derive(Debug)]
pub(crate) struct Readiness<T> {
    of: T,
    fd: AsyncFd<OwnedFd>,
    /// What was read from the descriptor may be for any of them.
    changed: Notify,
}

impl<T: AsFd> Readiness<T> {
    pub(crate) fn new(of: T) -> Result<Readiness<T>, Error> {
        const CALL: &str = "watching a channel";
        let fd = of.as_fd().try_clone_to_owned().map_err(Error::system(CALL))?;
        // SAFETY: the descriptor is our own, is always the same, and is open until it is dropped.
        let fd = unsafe { AsyncFd::register_with_interest(fd, Interest::READABLE) };
        let fd = fd.map_err(Error::system(CALL))?;
        Ok(Readiness { of, fd, changed: Notify::new() })
    }

    pub(crate) fn get(&self) -> &T {
        &self.of
    }

    /// Has all who wait make another attempt.
    pub(crate) fn tell_others(&self) {
        self.changed.notify_waiters();
    }

    /// Makes an attempt now, and again whenever the descriptor becomes readable, which `drain` is
    /// told of first, or others have been told that something changed.
    pub(crate) async fn until<R>(
        &self,
        mut attempt: impl FnMut() -> Result<Option<R>, Error>,
        mut drain: impl FnMut(&T) -> Result<(), Error>,
    ) -> Result<R, Error> {
        loop {
            let mut changed = pin!(self.changed.notified());
            // What changes from now on is not missed, though nobody waits yet.
            changed.as_mut().enable();
            if let Some(found) = attempt()? {
                return Ok(found);
            }
            let mut readable = pin!(self.fd.readable());
            let is_readable = poll_fn(|cx| {
                if changed.as_mut().poll(cx).is_ready() {
                    return Poll::Ready(Ok(false));
                }
                readable.as_mut().poll(cx).map_ok(|mut guard| {
                    // First, so that what comes while it is drained is told of once more.
                    guard.clear_ready();
                    true
                })
            });
            if is_readable.await.map_err(Error::system("waiting for a channel"))? {
                drain(self.get())?;
                self.tell_others();
            }
        }
    }
}

/// A completion queue with a channel of its own, whose completions tasks wait for.
#[derive(Debug)]
pub struct AsyncCq {
    cq: Cq,
    channel: Readiness<CompChannel>,
}

impl AsyncCq {
    /// Makes a completion queue of at least `depth` entries. To be called within a runtime.
    ///
    /// # Errors
    /// As [`Context::create_comp_channel`] and [`Context::create_cq`].
    pub fn new(context: &Context, depth: u32) -> Result<AsyncCq, Error> {
        let channel = context.create_comp_channel()?;
        let cq = context.create_cq(depth, Some(&channel))?;
        Ok(AsyncCq { cq, channel: Readiness::new(channel)? })
    }

    /// The completion queue, to create queue pairs with and to poll. It is not to be
    /// [waited](Cq::wait) for.
    pub fn get(&self) -> &Cq {
        &self.cq
    }

    /// The next completion. Who drops the future loses none.
    ///
    /// # Errors
    /// As [`poll`](Self::poll).
    pub async fn next(&self) -> Result<Wc, Error> {
        let mut wc = [Wc::default()];
        self.poll(&mut wc).await?;
        let [wc] = wc;
        Ok(wc)
    }

    /// Waits until there is a completion, and takes as many as there are and `wcs` has room for.
    /// Returns how many: at least one, unless `wcs` is empty. Who drops the future loses none.
    ///
    /// # Errors
    /// As [`Cq::poll`]; [`Error::DaemonGone`].
    pub async fn poll(&self, wcs: &mut [Wc]) -> Result<usize, Error> {
        if wcs.is_empty() {
            return Ok(0);
        }
        let attempt = || {
            let count = self.cq.poll(wcs)?;
            if count > 0 {
                return Ok(Some(count));
            }
            self.cq.req_notify(false)?;
            // What came between the two causes no event.
            let count = self.cq.poll(wcs)?;
            Ok((count > 0).then_some(count))
        };
        let drain = |channel: &CompChannel| {
            while channel.wait(Some(Duration::ZERO))?.is_some() {}
            Ok(())
        };
        self.channel.until(attempt, drain).await
    }
}
