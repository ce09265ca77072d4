//! Asking a daemon for its statistics and its objects.

use crate::cli::DaemonArguments;
use crate::error::Error;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use urxe_shm::control::channel::{Channel, ChannelError};
use urxe_shm::control::{
    CaptureSpec, CaptureStream, CounterInfo, Cursor, DeviceInfo, HistorySubject, PathState,
    QpHistory, QpStats, Reply, Request, Resource, ResourceKind,
};

/// A session with a daemon that only looks.
pub(crate) struct StatClient {
    socket: PathBuf,
    channel: Channel,
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

impl StatClient {
    /// Connects to a daemon.
    pub(crate) fn connect(daemon: &DaemonArguments) -> Result<Self, Error> {
        let (socket, channel) = urxe_shm::connect_to_daemon(daemon.socket.as_deref())
            .map_err(urxe_verbs::Error::from)?;
        let mut client = StatClient { socket, channel };
        match client.call(&Request::Hello { program: "urxe stat".into() })? {
            Reply::Hello { .. } => Ok(client),
            _ => Err(client.unexpected()),
        }
    }

    /// The devices that there are.
    pub(crate) fn devices(&mut self) -> Result<Vec<DeviceInfo>, Error> {
        match self.call(&Request::ListDevices)? {
            Reply::Devices(devices) => Ok(devices),
            _ => Err(self.unexpected()),
        }
    }

    /// All that one device has counted.
    pub(crate) fn stats(&mut self, device: &str) -> Result<DeviceStats, Error> {
        let mut stats = DeviceStats::default();
        let mut from = Cursor::default();
        loop {
            let request = Request::Stats { device: device.to_owned(), from };
            let Reply::Stats(page) = self.call(&request)? else { return Err(self.unexpected()) };
            if from == Cursor::default() {
                stats.counters = page.device;
                stats.qp_counters = page.qp_counters;
            }
            stats.qps.extend(page.qps);
            match behind(from, page.next) {
                Some(next) => from = next,
                None => break,
            }
        }
        stats.paths = self.paths(device)?;
        stats.paths.retain(|path| path.qps > 0);
        Ok(stats)
    }

    /// All objects of one kind that a device has.
    pub(crate) fn resources(
        &mut self,
        device: &str,
        kind: ResourceKind,
    ) -> Result<Vec<Resource>, Error> {
        let (mut all, mut from) = (Vec::<Resource>::new(), Cursor::default());
        loop {
            let request = Request::Resources { device: device.to_owned(), kind, from };
            let Reply::Resources(page) = self.call(&request)? else {
                return Err(self.unexpected());
            };
            all.extend(page.resources);
            match behind(from, page.next) {
                Some(next) => from = next,
                None => return Ok(all),
            }
        }
    }

    /// What a device knows of its ways to peers; nothing for users who may not see that.
    pub(crate) fn paths(&mut self, device: &str) -> Result<Vec<PathState>, Error> {
        let (mut all, mut from) = (Vec::<PathState>::new(), Cursor::default());
        loop {
            let request = Request::Paths { device: device.to_owned(), from };
            let Reply::Paths(page) = self.call(&request)? else { return Err(self.unexpected()) };
            all.extend(page.paths);
            match behind(from, page.next) {
                Some(next) => from = next,
                None => return Ok(all),
            }
        }
    }

    /// What happened to QPs of a device, of those that may be seen.
    pub(crate) fn histories(
        &mut self,
        device: &str,
        of: HistorySubject,
    ) -> Result<Vec<QpHistory>, Error> {
        let (mut all, mut from) = (Vec::<QpHistory>::new(), Cursor::default());
        loop {
            let request = Request::Histories { device: device.to_owned(), of, from };
            let Reply::Histories(page) = self.call(&request)? else {
                return Err(self.unexpected());
            };
            all.extend(page.histories);
            match behind(from, page.next) {
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
        match self.channel.call(request, &[]) {
            Ok((Reply::Error(error), _)) => Err(Error::Failed(error.to_string())),
            Ok(answer) => Ok(answer),
            Err(ChannelError::Closed) => Err(urxe_verbs::Error::DaemonGone {
                path: self.socket.as_path().into(),
                reason: None,
            }
            .into()),
            Err(error) => Err(Error::Failed(format!("{}: {error}", self.socket.display()))),
        }
    }

    fn unexpected(&self) -> Error {
        let socket = self.socket.display();
        Error::Failed(format!("{socket}: the daemon answered with another kind of reply"))
    }
}

/// Where the next page begins, if there is one. Each page must advance, or a faulty daemon would
/// keep us here indefinitely.
fn behind(from: Cursor, next: Option<Cursor>) -> Option<Cursor> {
    next.filter(|next| *next > from)
}
