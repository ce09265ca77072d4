//! What can be chosen anew while the daemon runs, by another thread.

use super::EventLoop;
use mio::Waker;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::time::Duration;

/// What can be chosen anew.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Changeable {
    /// The daemon ends so long after its last program went.
    pub(crate) linger: Option<Duration>,
    /// How long the daemon waits for its programs when it is told to end.
    pub(crate) drain: Option<Duration>,
    /// Sessions that one user may have.
    pub(crate) sessions_per_user: Option<usize>,
    /// Ids of the connection manager that one user may have.
    pub(crate) cm_ids_per_user: Option<usize>,
}

/// What is chosen, and who waits for that.
type Change = (Changeable, SyncSender<()>);

/// By this another thread makes changes.
#[derive(Clone, Debug)]
pub(crate) struct Changer {
    waker: Arc<Waker>,
    changes: Sender<Change>,
}

impl Changer {
    /// Has the broker go on with this, and waits until it does. There is nothing to change in a
    /// daemon that has ended.
    pub(crate) fn change(&self, to: Changeable) {
        let (done, is_done) = sync_channel(1);
        if self.changes.send((to, done)).is_ok() && self.waker.wake().is_ok() {
            let _ = is_done.recv();
        }
    }
}

/// Where changes arrive.
pub(super) struct Changes {
    changer: Changer,
    arrived: Receiver<Change>,
}

impl Changes {
    /// `waker` wakes the broker.
    pub(super) fn new(waker: Arc<Waker>) -> Changes {
        let (changes, arrived) = channel();
        Changes { changer: Changer { waker, changes }, arrived }
    }
}

impl EventLoop {
    /// By this other threads make changes.
    pub(crate) fn changer(&self) -> Changer {
        self.changes.changer.clone()
    }

    /// Makes the changes that were asked for.
    pub(super) fn heed_changes(&mut self) {
        while let Ok((to, done)) = self.changes.arrived.try_recv() {
            self.change(to);
            // It is the only one for which there is room.
            let _ = done.try_send(());
        }
    }

    /// Goes on with this.
    pub(super) fn change(&mut self, to: Changeable) {
        self.changeable = to;
        self.admission.limit_sessions(to.sessions_per_user);
        self.ctx.cm.limit_ids(to.cm_ids_per_user);
    }
}
