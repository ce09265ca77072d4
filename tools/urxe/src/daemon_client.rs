//! The client of the commands that ask a daemon for what it counts, has and captures.

use crate::asking::{ANSWER_TIMEOUT, Asked, Deadline, GATHER_TIMEOUT};
use crate::cli::DaemonArguments;
use crate::error::Error;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;
use urxe_shm::control::channel::{Channel, ChannelError};
use urxe_shm::control::{
    CaptureSpec, CaptureStream, CounterInfo, Cursor, DeviceInfo, HistorySubject, PathState,
    QpHistory, QpStats, Reply, Request, Resource, ResourceKind,
};

/// A session with a daemon that only looks.
///
/// A daemon that is stopped fails what is asked of it ([`Error::Silent`]); then nothing can be
/// asked any more.
pub(crate) struct DaemonClient {
    socket: PathBuf,
    channel: Channel,
    /// How long an answer may take.
    wait: Duration,
    /// The user has ended the command: answers are not waited for any more.
    stop: Arc<AtomicBool>,
}

/// Everything that a device has counted.
#[derive(Clone, Debug, Default)]
pub(crate) struct DeviceStats {
    /// The device's own counters.
    pub(crate) counters: Vec<(CounterInfo, u64)>,
    /// What the numbers of each QP count.
    pub(crate) qp_counters: Vec<CounterInfo>,
    /// QPs, by rising QPN.
    pub(crate) qps: Vec<QpStats>,
    /// Paths that QPs use.
    pub(crate) paths: Vec<PathState>,
}

impl DeviceStats {
    /// The device's own counter of this name; 0 if it has none.
    pub(crate) fn get(&self, name: &str) -> u64 {
        self.counters.iter().find(|(info, _)| info.name == name).map_or(0, |&(_, value)| value)
    }
}

impl DaemonClient {
    /// Connects to a daemon, which knows this session by the command that it is for.
    pub(crate) fn connect(daemon: &DaemonArguments, command: &str) -> Result<Self, Error> {
        DaemonClient::connect_unless_stopped(daemon, command, Arc::default())
    }

    /// The same for a command that catches signals: one sets `stop`.
    pub(crate) fn connect_unless_stopped(
        daemon: &DaemonArguments,
        command: &str,
        stop: Arc<AtomicBool>,
    ) -> Result<Self, Error> {
        // A daemon that is stopped lets only so many programs connect.
        let named = daemon.socket.clone();
        let asked = Asked::begin(move || urxe_shm::connect_to_daemon(named.as_deref()));
        let found = asked.unless_stopped(ANSWER_TIMEOUT, &stop).map_err(|_| {
            let sockets = daemon.sockets();
            let sockets: Vec<String> = sockets.iter().map(|it| it.display().to_string()).collect();
            Error::Silent(sockets.join(" or "))
        })?;
        let (socket, channel) = found.map_err(urxe_verbs::Error::from)?;
        let mut client = DaemonClient { socket, channel, wait: ANSWER_TIMEOUT, stop };
        match client.call(&Request::Hello { program: format!("urxe {command}") })? {
            Reply::Hello { .. } => Ok(DaemonClient { wait: GATHER_TIMEOUT, ..client }),
            _ => Err(client.unexpected()),
        }
    }

    /// Where the daemon listens.
    pub(crate) fn socket(&self) -> &Path {
        &self.socket
    }

    /// The devices that there are.
    pub(crate) fn devices(&mut self) -> Result<Vec<DeviceInfo>, Error> {
        match self.call(&Request::ListDevices)? {
            Reply::Devices(devices) => Ok(devices),
            _ => Err(self.unexpected()),
        }
    }

    /// The device of this name, or all if none is asked for.
    pub(crate) fn devices_named(&mut self, name: Option<&str>) -> Result<Vec<DeviceInfo>, Error> {
        let mut devices = self.devices()?;
        let Some(name) = name else { return Ok(devices) };
        let names =
            devices.iter().map(|device| device.name.as_str()).collect::<Vec<_>>().join(", ");
        devices.retain(|device| device.name == name);
        match devices.is_empty() {
            true => Err(Error::Failed(format!("device {name:?}: expected one of {names}"))),
            false => Ok(devices),
        }
    }

    /// All that one device has counted.
    pub(crate) fn stats(&mut self, device: &str) -> Result<DeviceStats, Error> {
        let mut of_device = None;
        let qps = self.pages(
            |from| Request::Stats { device: device.to_owned(), from },
            |reply| match reply {
                Reply::Stats(page) => {
                    of_device.get_or_insert((page.device, page.qp_counters));
                    Some((page.qps, page.next))
                }
                _ => None,
            },
        )?;
        let (counters, qp_counters) = of_device.unwrap_or_default();
        let mut paths = self.paths(device)?;
        paths.retain(|path| path.qps > 0);
        Ok(DeviceStats { counters, qp_counters, qps, paths })
    }

    /// All objects of one kind that a device has.
    pub(crate) fn resources(
        &mut self,
        device: &str,
        kind: ResourceKind,
    ) -> Result<Vec<Resource>, Error> {
        self.pages(
            |from| Request::Resources { device: device.to_owned(), kind, from },
            |reply| match reply {
                Reply::Resources(page) => Some((page.resources, page.next)),
                _ => None,
            },
        )
    }

    /// What a device knows of its ways to peers; nothing for users who may not see that.
    pub(crate) fn paths(&mut self, device: &str) -> Result<Vec<PathState>, Error> {
        self.pages(
            |from| Request::Paths { device: device.to_owned(), from },
            |reply| match reply {
                Reply::Paths(page) => Some((page.paths, page.next)),
                _ => None,
            },
        )
    }

    /// What happened to QPs of a device, of those that may be seen.
    pub(crate) fn histories(
        &mut self,
        device: &str,
        of: HistorySubject,
    ) -> Result<Vec<QpHistory>, Error> {
        self.pages(
            |from| Request::Histories { device: device.to_owned(), of, from },
            |reply| match reply {
                Reply::Histories(page) => Some((page.histories, page.next)),
                _ => None,
            },
        )
    }

    /// All of a list, page by page. `page_of` says what a reply has of it and where the next page
    /// begins; nothing of a reply of another kind.
    fn pages<T>(
        &mut self,
        request: impl Fn(Cursor) -> Request,
        mut page_of: impl FnMut(Reply) -> Option<(Vec<T>, Option<Cursor>)>,
    ) -> Result<Vec<T>, Error> {
        let (mut all, mut from) = (Vec::new(), Cursor::default());
        loop {
            let reply = self.call(&request(from))?;
            let (page, next) = page_of(reply).ok_or_else(|| self.unexpected())?;
            all.extend(page);
            match from.advanced_to(next) {
                Some(next) => from = next,
                None => return Ok(all),
            }
        }
    }

    /// Begins to capture packets. Returns the counters that records of them name by their places.
    pub(crate) fn begin_capture(&mut self, spec: CaptureSpec) -> Result<Vec<CounterInfo>, Error> {
        match self.call(&Request::BeginCapture(spec))? {
            Reply::CaptureBegun { counters } => Ok(counters),
            _ => Err(self.unexpected()),
        }
    }

    /// The next stream of what is captured that was not handed out yet, and its pipe.
    pub(crate) fn next_capture_stream(
        &mut self,
    ) -> Result<Option<(CaptureStream, OwnedFd)>, Error> {
        let (reply, mut fds) = self.call_with_fds(&Request::NextCaptureStream)?;
        match (reply, fds.pop()) {
            (Reply::CaptureStream(None), None) => Ok(None),
            (Reply::CaptureStream(Some(stream)), Some(pipe)) => Ok(Some((stream, pipe))),
            _ => Err(self.unexpected()),
        }
    }

    fn call(&mut self, request: &Request) -> Result<Reply, Error> {
        self.call_with_fds(request).map(|(reply, _)| reply)
    }

    fn call_with_fds(&mut self, request: &Request) -> Result<(Reply, Vec<OwnedFd>), Error> {
        let is_there = |socket: BorrowedFd<'_>| can_be_read(socket, self.wait, &self.stop);
        match self.channel.call_while(request, &[], is_there) {
            Ok((Reply::Error(error), _)) => Err(Error::Failed(error.to_string())),
            Ok(answer) => Ok(answer),
            Err(ChannelError::Closed) => Err(urxe_verbs::Error::DaemonGone {
                path: self.socket.as_path().into(),
                reason: None,
            }
            .into()),
            Err(ChannelError::WouldBlock) => Err(Error::Silent(self.socket.display().to_string())),
            Err(error) => Err(Error::Failed(format!("{}: {error}", self.socket.display()))),
        }
    }

    fn unexpected(&self) -> Error {
        let socket = self.socket.display();
        Error::Failed(format!("{socket}: the daemon answered with another kind of reply"))
    }
}

/// Waits until there is something to read, but not longer than this, or than the user does.
fn can_be_read(socket: BorrowedFd<'_>, wait: Duration, stop: &AtomicBool) -> bool {
    let mut deadline = Deadline::new(wait, stop);
    while let Some(slice) = deadline.next_slice() {
        let slice = Timespec::try_from(slice).unwrap_or_default();
        match poll(&mut [PollFd::new(&socket, PollFlags::IN)], Some(&slice)) {
            Ok(0) | Err(Errno::INTR) => {}
            // What is wrong, if something is, reading says.
            Ok(_) | Err(_) => return true,
        }
    }
    false
}
