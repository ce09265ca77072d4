//! What the data paths of a daemon capture: many pipes, and their packets in the order of time.

use crate::daemon_client::DaemonClient;
use crate::error::Error;
use crate::output;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};
use urxe_port::capture::{Captured, Record};
use urxe_shm::control::CaptureStream;

/// How long a packet waits for earlier ones of other data paths.
const HOLD: Duration = Duration::from_millis(50);

/// How long one look at the pipes takes at most.
const LOOK: Duration = Duration::from_millis(20);

/// How often the daemon is asked for streams of programs that have come meanwhile.
const ASK: Duration = Duration::from_millis(100);

/// Packets that wait at most.
const MAX_WAITING: usize = 100_000;

/// Bytes that one read takes from a pipe at most.
const READ_LEN: usize = 256 * 1024;

/// Something that was captured, in its turn.
pub(super) enum Item<'a> {
    /// A packet of a device of this name.
    Packet(&'a str, Captured<'a>),
    /// So many packets were not captured.
    Lost(u64),
}

/// All streams of a capture.
pub(super) struct Streams {
    client: DaemonClient,
    streams: Vec<Stream>,
    asked_at: Option<Instant>,
    /// Records, by their times and the order in which they came.
    waiting: BTreeMap<(u64, u64), Waiting>,
    came: u64,
    buffer: Vec<u8>,
}

struct Stream {
    of: CaptureStream,
    /// `None` when it has ended.
    pipe: Option<OwnedFd>,
    /// What was read, and is no whole record yet.
    unread: Vec<u8>,
    /// The time of the last packet.
    time: u64,
}

struct Waiting {
    stream: usize,
    since: Instant,
    record: Vec<u8>,
}

impl Streams {
    /// The streams of a capture that was begun.
    pub(super) fn new(client: DaemonClient) -> Streams {
        let (streams, waiting) = (Vec::new(), BTreeMap::new());
        let buffer = vec![0; READ_LEN];
        Streams { client, streams, asked_at: None, waiting, came: 0, buffer }
    }

    /// Waits a moment for packets.
    pub(super) fn look(&mut self) -> Result<(), Error> {
        if self.asked_at.is_none_or(|at| at.elapsed() >= ASK) {
            self.take_new()?;
        }
        let open = self.open();
        self.read_ready(&open, LOOK)?;
        Ok(())
    }

    /// Takes the streams that there are meanwhile.
    pub(super) fn take_new(&mut self) -> Result<(), Error> {
        while let Some((of, pipe)) = self.client.next_capture_stream()? {
            let (unread, time) = (Vec::new(), 0);
            self.streams.push(Stream { of, pipe: Some(pipe), unread, time });
        }
        self.asked_at = Some(Instant::now());
        Ok(())
    }

    /// Those that have not ended.
    pub(super) fn open(&self) -> Vec<usize> {
        let is_open = |&index: &usize| self.streams[index].pipe.is_some();
        (0..self.streams.len()).filter(is_open).collect()
    }

    /// Waits so long for some streams, and takes of what they hold then as much as one read does.
    /// Returns those that had something.
    pub(super) fn read_ready(
        &mut self,
        streams: &[usize],
        wait: Duration,
    ) -> Result<Vec<usize>, Error> {
        let pipe = |&index: &usize| Some((index, self.streams[index].pipe.as_ref()?));
        let (open, mut polled): (Vec<usize>, Vec<PollFd<'_>>) = streams
            .iter()
            .filter_map(pipe)
            .map(|(index, pipe)| (index, PollFd::new(pipe, PollFlags::IN)))
            .unzip();
        match poll(&mut polled, Some(&Timespec::try_from(wait).unwrap_or_default())) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(Error::system("waiting for packets")(errno.into())),
        }
        let is_ready: Vec<bool> = polled.iter().map(|fd| !fd.revents().is_empty()).collect();
        let ready = open.into_iter().zip(is_ready).filter(|&(_, is_ready)| is_ready);
        let ready: Vec<usize> = ready.map(|(index, _)| index).collect();
        ready.iter().for_each(|&index| self.read(index));
        Ok(ready)
    }

    /// Takes what a pipe holds.
    fn read(&mut self, index: usize) {
        let stream = &mut self.streams[index];
        let Some(pipe) = &stream.pipe else { return };
        match rustix::io::read(pipe, &mut self.buffer) {
            Ok(0) => stream.pipe = None,
            Ok(len) => stream.unread.extend(&self.buffer[..len]),
            Err(Errno::INTR) => {}
            Err(_) => stream.pipe = None,
        }
        let mut taken = 0;
        loop {
            match Record::read(&stream.unread[taken..]) {
                Ok(None) => break,
                Ok(Some((record, len))) => {
                    if let Record::Packet(packet) = record {
                        stream.time = packet.time;
                    }
                    self.came += 1;
                    let record = stream.unread[taken..taken + len].to_vec();
                    let waiting = Waiting { stream: index, since: Instant::now(), record };
                    self.waiting.insert((stream.time, self.came), waiting);
                    taken += len;
                }
                Err(error) => {
                    let CaptureStream { device, slot } = &stream.of;
                    output::note(format_args!(
                        "urxe capture: slot {slot} of {device} is left out: {error}"
                    ));
                    stream.pipe = None;
                    taken = stream.unread.len();
                    break;
                }
            }
        }
        stream.unread.drain(..taken);
    }

    /// Shows what has waited long enough, or all, in the order of time, as long as `show` wants
    /// more.
    pub(super) fn show(
        &mut self,
        all: bool,
        mut show: impl FnMut(Item<'_>) -> Result<bool, Error>,
    ) -> Result<bool, Error> {
        while let Some(first) = self.waiting.first_entry() {
            let is_due = first.get().since.elapsed() >= HOLD;
            if !all && !is_due && self.waiting.len() <= MAX_WAITING {
                break;
            }
            let Some((_, Waiting { stream, record, .. })) = self.waiting.pop_first() else { break };
            let item = match Record::read(&record) {
                Ok(Some((Record::Packet(packet), _))) => {
                    Item::Packet(&self.streams[stream].of.device, packet)
                }
                Ok(Some((Record::Lost(lost), _))) => Item::Lost(lost),
                _ => continue,
            };
            if !show(item)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// How the streams are called.
    pub(super) fn names(&self) -> String {
        let mut names: Vec<&str> =
            self.streams.iter().map(|stream| stream.of.device.as_str()).collect();
        names.sort_unstable();
        names.dedup();
        names.join(", ")
    }
}
