//! How another thread has the broker write its state down, or be replaced by another program that
//! goes on with it.

use super::EventLoop;
use crate::upgrade::{Descriptors, Fd, Program, State, StateOfControl, Times, UpgradeError};
use mio::Waker;
use std::convert::Infallible;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::time::Instant;

/// What the thread that asks goes on with in the next program.
#[derive(Debug)]
pub(crate) struct ControlToPass {
    /// The configuration file, if there is one, and what is in effect of it, as TOML.
    pub(crate) file: Option<(PathBuf, String)>,
    /// How many slots there are for the daemon's own user.
    pub(crate) slots: u8,
    /// The socket that programs connect to.
    pub(crate) socket: PathBuf,
    /// Where metrics are to be had.
    pub(crate) metrics: Option<String>,
    /// Both ends of the pipes by which signals come.
    pub(crate) pipes: [[OwnedFd; 2]; 3],
}

/// What is asked for, and of what. Without a program, the state as it would be.
struct Wanted {
    control: Arc<ControlToPass>,
    program: Option<Program>,
    answer: SyncSender<Result<Vec<u8>, UpgradeError>>,
}

/// By this another thread asks.
#[derive(Clone, Debug)]
pub(crate) struct Upgrader {
    waker: Arc<Waker>,
    wanted: Sender<Wanted>,
}

impl Upgrader {
    /// The state that another program would be given now.
    pub(crate) fn state(&self, control: &Arc<ControlToPass>) -> Result<Vec<u8>, UpgradeError> {
        self.ask(control, None)
    }

    /// Has a program go on in the place of this one. Returns only if that cannot be had.
    pub(crate) fn upgrade(
        &self,
        control: &Arc<ControlToPass>,
        program: Program,
    ) -> Result<(), UpgradeError> {
        self.ask(control, Some(program)).map(drop)
    }

    fn ask(
        &self,
        control: &Arc<ControlToPass>,
        program: Option<Program>,
    ) -> Result<Vec<u8>, UpgradeError> {
        let (answer, answered) = sync_channel(1);
        let wanted = Wanted { control: Arc::clone(control), program, answer };
        let is_asked = self.wanted.send(wanted).is_ok() && self.waker.wake().is_ok();
        let answered = is_asked.then(|| answered.recv().ok()).flatten();
        answered.unwrap_or(Err(UpgradeError::Ending))
    }
}

/// Where questions arrive.
pub(super) struct Upgrades {
    upgrader: Upgrader,
    arrived: Receiver<Wanted>,
}

impl Upgrades {
    /// `waker` wakes the broker.
    pub(super) fn new(waker: Arc<Waker>) -> Upgrades {
        let (wanted, arrived) = channel();
        Upgrades { upgrader: Upgrader { waker, wanted }, arrived }
    }
}

impl EventLoop {
    /// By this another thread has the broker replaced.
    pub(crate) fn upgrader(&self) -> Upgrader {
        self.upgrades.upgrader.clone()
    }

    /// Does what was asked for. To be called between two turns.
    pub(super) fn heed_upgrades(&mut self) {
        // A slot that has failed is to be seen to first, which is the next thing to happen.
        if self.slots.has_failed() {
            return;
        }
        while let Ok(Wanted { control, program, answer }) = self.upgrades.arrived.try_recv() {
            let result = match program {
                None => self.state(&control).and_then(|(state, _)| state.encode()),
                Some(program) => match self.execute(&control, &program) {
                    Ok(never) => match never {},
                    Err(error) => Err(error),
                },
            };
            // It is the only one for which there is room.
            let _ = answer.try_send(result);
        }
    }

    fn execute(
        &self,
        control: &ControlToPass,
        program: &Program,
    ) -> Result<Infallible, UpgradeError> {
        let (state, fds) = self.state(control)?;
        program.execute(&state.encode()?, &fds)
    }

    fn state<'a>(
        &'a self,
        control: &'a ControlToPass,
    ) -> Result<(State, Descriptors<'a>), UpgradeError> {
        let (times, mut fds) = (Times(Instant::now()), Descriptors::default());
        let broker = self.save(times, &mut fds)?;
        let pipes = control.pipes.each_ref();
        let pipes: [[Fd; 2]; 3] = pipes.map(|ends| ends.each_ref().map(|end| fds.add(end.as_fd())));
        let control = StateOfControl {
            file: control.file.clone(),
            slots: control.slots,
            socket: control.socket.clone(),
            metrics: control.metrics.clone(),
            pipes,
        };
        Ok((State::new(times, control, broker), fds))
    }
}
