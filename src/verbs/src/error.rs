//! What can go wrong, in sentences.

use crate::{QpState, WcStatus};
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use urxe_shm::NoDaemon;
use urxe_shm::memory::process_memory::Fault;
use urxe_shm::ring::entry;
use urxe_types::EntryError;

/// Why a call failed. Each message names the parameter, its value and what was expected.
///
/// [`errno`](Self::errno) gives the number that the C verbs would have failed with.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No daemon answers at any of the sockets that were tried.
    #[error("{0}; start one with `urxed`, or name its socket in URXE_SOCKET")]
    Connect(#[from] NoDaemon),
    /// The daemon ended, or ended this session. Every object of the context is lost.
    #[error(
        "the urxe daemon at {} is gone, or has ended the session{}; all objects of the context are \
         lost", path.display(), of_own_slot(reason.as_deref())
    )]
    DaemonGone {
        /// The socket that it was reached by.
        path: Arc<Path>,
        /// Why this program's own slot has ended, if it did so by itself.
        reason: Option<String>,
    },
    /// The object was made before a `fork`, and this is the child. Only the parent may use it.
    #[error(
        "this object was opened by process {owner} and cannot be used by its fork, process \
         {child}; open a context of its own there"
    )]
    Forked {
        /// The process that opened the context.
        owner: u32,
        /// The process that called.
        child: u32,
    },
    /// The daemon refused.
    #[error("{call} failed: {reason} (errno {errno})")]
    Refused {
        /// What was asked of it.
        call: &'static str,
        /// The errno that the C verbs would return.
        errno: i32,
        /// Why, in the daemon's words.
        reason: String,
    },
    /// An argument is outside what the call takes.
    #[error("{name} is {value}, expected {expected}")]
    InvalidArgument {
        /// The parameter.
        name: &'static str,
        /// Its value.
        value: String,
        /// What would have been right.
        expected: String,
    },
    /// A range reaches beyond the memory it is of, or ends before it begins.
    #[error("bytes {start} to {end} do not lie within a buffer of {size} bytes")]
    OutOfBounds {
        /// First byte of the range.
        start: u64,
        /// First byte behind it.
        end: u64,
        /// The length of the buffer in bytes.
        size: u64,
    },
    /// Two objects that must belong together do not.
    #[error("{what} belongs to another context; objects work together only inside one")]
    ForeignObject {
        /// The argument that is of another context.
        what: &'static str,
    },
    /// Memory to be registered is not there, or not writable though its rights ask for that.
    #[error(
        "memory to be registered: {len} bytes at {addr:#x} in the program cannot be reached: {}",
        io::Error::from_raw_os_error(*errno)
    )]
    Memory {
        /// Address of the first byte that is not reached.
        addr: u64,
        /// Bytes from there on.
        len: usize,
        /// What the system says.
        errno: i32,
    },
    /// An atomic access to a place that is no multiple of 8.
    #[error("8-byte atomic at offset {offset} of a memory region, expected a multiple of 8")]
    Misaligned {
        /// Where it is.
        offset: usize,
    },
    /// The daemon's side of a completion queue is nonsense; the queue cannot be used any more.
    #[error("completion queue: {0}")]
    BrokenQueue(String),
    /// A work request was not taken.
    #[error(transparent)]
    Post(#[from] PostError),
    /// A work request failed; made by [`Wc::check`](crate::Wc::check).
    #[error(transparent)]
    Completion(#[from] WcError),
    /// The peer refuses a connection.
    #[error("{peer} refuses the connection: {} (reason {reason})", rejection_text(*reason))]
    Rejected {
        /// The peer.
        peer: SocketAddr,
        /// Its reason, as it stands in the message: 8 if nobody listens, 28 if its program refuses.
        reason: i32,
        /// What its program says to it.
        private_data: Vec<u8>,
    },
    /// The peer has no such service for datagrams, or refuses it.
    #[error("{peer} offers no such service: {} (status {status})", service_text(*status))]
    NoService {
        /// The peer.
        peer: SocketAddr,
        /// Its reason, as it stands in the message: 1 if nobody listens, 2 if its program refuses.
        status: i32,
        /// What its program says to it.
        private_data: Vec<u8>,
    },
    /// A connection, service or group could not be had.
    #[error("{peer} is not reached: {}", io::Error::from_raw_os_error(*errno))]
    Unreachable {
        /// The peer, or the group.
        peer: SocketAddr,
        /// What kept it: `ETIMEDOUT` if there was no answer in time.
        errno: i32,
    },
    /// A text that stands for a value could not be read.
    #[error("{text:?} is no {what}, expected {expected}")]
    Parse {
        /// What it should be.
        what: &'static str,
        /// The text.
        text: String,
        /// The form it should have.
        expected: &'static str,
    },
    /// The operating system refused something that is no fault of the caller.
    #[error("{call}: {source}")]
    System {
        /// What was attempted.
        call: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// The daemon said something that this library does not understand.
    #[error("the daemon is not understood: {0}")]
    Protocol(String),
}

fn of_own_slot(reason: Option<&str>) -> String {
    reason.map_or_else(String::new, |reason| {
        format!(": the slot of this program has ended, because {reason}")
    })
}

impl Error {
    /// The number that the C verbs would have left in `errno`; `EIO` where they have none.
    pub fn errno(&self) -> i32 {
        match self {
            // Of the socket that comes first, which a daemon of the user's own would have.
            Error::Connect(NoDaemon { tried }) => {
                tried.first().and_then(|(_, error)| error.raw_os_error()).unwrap_or(libc::EIO)
            }
            Error::System { source, .. } => source.raw_os_error().unwrap_or(libc::EIO),
            Error::Refused { errno, .. }
            | Error::Unreachable { errno, .. }
            | Error::Memory { errno, .. } => *errno,
            Error::Rejected { .. } | Error::NoService { .. } => libc::ECONNREFUSED,
            Error::InvalidArgument { .. }
            | Error::OutOfBounds { .. }
            | Error::ForeignObject { .. }
            | Error::Misaligned { .. }
            | Error::Parse { .. } => libc::EINVAL,
            Error::Post(error) => error.errno(),
            Error::DaemonGone { .. }
            | Error::Forked { .. }
            | Error::Completion(_)
            | Error::BrokenQueue(_)
            | Error::Protocol(_) => libc::EIO,
        }
    }

    pub(crate) fn invalid(
        name: &'static str,
        value: impl ToString,
        expected: impl Into<String>,
    ) -> Error {
        Error::InvalidArgument { name, value: value.to_string(), expected: expected.into() }
    }

    /// For `map_err`: memory to be registered is not reached.
    pub(crate) fn memory(fault: Fault) -> Error {
        let Fault { addr, len, errno } = fault;
        Error::Memory { addr, len, errno: errno.raw_os_error() }
    }

    /// For `map_err`: the system refused `call`.
    pub(crate) fn system<E: Into<io::Error>>(call: &'static str) -> impl FnOnce(E) -> Error {
        move |source| Error::System { call, source: source.into() }
    }
}

/// The reasons of a rejection that say something to a program.
fn rejection_text(reason: i32) -> &'static str {
    match reason {
        8 => "nobody listens there",
        28 => "its program says no",
        _ => "its connection manager says no",
    }
}

/// The same for services.
fn service_text(status: i32) -> &'static str {
    match status {
        1 => "nobody listens there",
        2 => "its program says no",
        _ => "its connection manager says no",
    }
}

/// A list of work requests was not taken as a whole: `bad_wr`.
///
/// The first [`posted`](Self::posted) work requests *are* posted and will be carried out; the one
/// after them is the bad one, and neither it nor any behind it was posted. Nothing is ever half
/// posted.
#[derive(Debug, thiserror::Error)]
#[error("work request {wr_id} (number {posted} of the list, from 0) was not posted: {reason}")]
pub struct PostError {
    /// How many of the list were posted; also the index of the bad one.
    pub posted: usize,
    /// The bad one's `wr_id`.
    pub wr_id: u64,
    /// What is wrong.
    pub reason: PostReason,
}

impl PostError {
    /// What `ibv_post_send` or `ibv_post_recv` would have returned.
    pub fn errno(&self) -> i32 {
        match self.reason {
            PostReason::QueueFull { .. } => libc::ENOMEM,
            PostReason::DaemonGone { .. } | PostReason::Forked | PostReason::BrokenQueue(_) => {
                libc::EIO
            }
            _ => libc::EINVAL,
        }
    }
}

/// What is wrong with a work request that was not posted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PostReason {
    /// As many work requests are outstanding as the queue holds. Try again when some have ended.
    #[error("the queue is full: it holds {capacity}")]
    QueueFull {
        /// How many it holds.
        capacity: u32,
    },
    /// The queue pair takes no such work in its state.
    #[error("the QP is in {}, expected {expected}", state.name())]
    State {
        /// The state that the last transition led to.
        state: QpState,
        /// The states that would do.
        expected: &'static str,
    },
    /// It does not fit the queue pair: too many scatter/gather entries, or too much inline data.
    #[error(transparent)]
    Entry(EntryError),
    /// A message longer than 2 GiB.
    #[error("a message of {length} bytes, expected at most {max}")]
    MessageTooLong {
        /// Sum of the entries, in bytes.
        length: u64,
        /// The most that a message may have.
        max: u64,
    },
    /// The local side of an atomic is not 8 bytes.
    #[error("{length} bytes in the list of an atomic, expected 8")]
    AtomicLength {
        /// Sum of the entries, in bytes.
        length: u64,
    },
    /// The peer's side of an atomic is not aligned.
    #[error("atomic at address {addr:#x}, expected a multiple of 8")]
    AtomicAlignment {
        /// The remote address.
        addr: u64,
    },
    /// The transport has no such operation.
    #[error("{operation} on a {transport} QP, which has no such operation")]
    Operation {
        /// What was asked for.
        operation: &'static str,
        /// The queue pair's transport.
        transport: &'static str,
    },
    /// A datagram without [`SendWr::to`](crate::SendWr::to).
    #[error("no destination, expected one on a UD QP: SendWr::to names it")]
    NoDestination,
    /// A destination that is not the peer's to choose.
    #[error("a destination on a {transport} QP, which sends to the peer that it is connected to")]
    Destination {
        /// The queue pair's transport.
        transport: &'static str,
    },
    /// No queue pair can have this number there.
    #[error("the destination QPN is {dest_qpn:#08x}, expected {expected}")]
    DestinationQpn {
        /// The number.
        dest_qpn: u32,
        /// What would do.
        expected: &'static str,
    },
    /// An object of another protection domain.
    #[error("{what} is of another protection domain than the QP")]
    ForeignObject {
        /// The object.
        what: &'static str,
    },
    /// The window cannot be bound in this way.
    #[error("the memory window is of another type, expected {expected}")]
    WindowType {
        /// What would do.
        expected: &'static str,
    },
    /// A window's new key differs from its present one in the last 8 bits, and only there.
    #[error(
        "the window's new rkey is {rkey:#010x}, expected one that differs from the present \
         {present:#010x} in its last 8 bits alone, such as Mw::next_rkey"
    )]
    WindowKey {
        /// What was asked for.
        rkey: u32,
        /// What it is now.
        present: u32,
    },
    /// A window of type 2 cannot be bound to nothing; invalidate its key instead.
    #[error("a memory window of 0 bytes, expected at least 1; LOCAL INVALIDATE closes a window")]
    EmptyWindow,
    /// Only windows of type 2 can count addresses from 0.
    #[error("ZERO_BASED on a memory window of type 1, which only type 2 can have")]
    ZeroBasedWindow,
    /// The queue pair has no receive queue of its own.
    #[error("the QP takes its receives from an SRQ; post them there")]
    SharedReceives,
    /// The daemon's side of the queue is nonsense; the queue pair must be reset or destroyed.
    #[error("{0}")]
    BrokenQueue(String),
    /// The daemon is gone.
    #[error("the urxe daemon at {} is gone", path.display())]
    DaemonGone {
        /// The socket that it was reached by.
        path: Arc<Path>,
    },
    /// This process is a fork of the one that opened the context.
    #[error("the QP belongs to the process that this one is a fork of")]
    Forked,
}

impl PostReason {
    /// For `map_err`: the queue did not take it.
    pub(crate) fn not_pushed(error: entry::PostError) -> PostReason {
        match error {
            entry::PostError::QueueFull { capacity } => PostReason::QueueFull { capacity },
            entry::PostError::Entry(error) => PostReason::Entry(error),
            entry::PostError::Index(error) => PostReason::BrokenQueue(error.to_string()),
        }
    }
}

/// A work request that ended badly.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct WcError {
    /// The work request's number.
    pub wr_id: u64,
    /// The queue pair's number.
    pub qpn: u32,
    /// How it ended.
    pub status: WcStatus,
    /// Why, in the daemon's own numbers.
    pub vendor_err: u32,
    /// The same in words that a person can act on; empty if the daemon has none.
    pub cause: &'static str,
}

impl fmt::Display for WcError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let WcError { wr_id, qpn, status, vendor_err, cause } = self;
        write!(f, "work request {wr_id} of QP {qpn:#08x}: {status}: ")?;
        if cause.is_empty() { write!(f, "cause {vendor_err}") } else { f.write_str(cause) }
    }
}
