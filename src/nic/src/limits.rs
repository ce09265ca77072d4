//! Every bound of one data path, with its reason. Limits of the protocol itself are the engine's.

use std::time::Duration;

/// Event records that wait for one program to read its pipe. What comes beyond waits once for each
/// object and kind: a program that has so many CQs or QPs is told of each, and one that arms a CQ
/// again and again and never reads costs no more.
pub(crate) const MAX_WAITING_EVENTS: usize = 8192;

/// Work requests taken from one queue in one call of the engine: more than the datagrams that one
/// receive call brings. What is flushed beyond that is flushed in the next calls.
pub(crate) const TAKES_PER_CALL: u32 = 2048;

/// Batches sent by one device in one turn; then packets, doorbells and requests have theirs.
pub(crate) const BATCHES_PER_TURN: usize = 8;

/// First interval at which a QP in ERR is looked at for receives to flush. A program that knows
/// of our ring flags rings the doorbell; the stock librxe has none for receives.
pub(crate) const FLUSH_INTERVAL_MIN: Duration = Duration::from_millis(1);

/// QPs in ERR that are looked at in one turn; the others are in the next.
pub(crate) const LOOKS_PER_TURN: usize = 1024;

/// Those of one program.
pub(crate) const LOOKS_PER_OWNER: usize = 64;

/// Longest such interval, reached by doubling while nothing is posted: ten looks a second cost
/// nothing to speak of.
pub(crate) const FLUSH_INTERVAL_MAX: Duration = Duration::from_millis(100);

/// Bytes of a batch of datagrams on their way to a port: four full segmented sends.
pub(crate) const TX_BATCH_BYTES: usize = 256 * 1024;

/// Packets from one source (address and UDP port) that are dropped, each for a reason that is the
/// sender's, while none is taken, and the time in which, after which it is refused: 51,000 a second
/// take a tenth of a processor. Who is only late to learn that a QP is gone sends fewer.
pub(crate) const FLOOD_PACKETS: u32 = 512;
pub(crate) const FLOOD_WINDOW: Duration = Duration::from_millis(10);

/// How long a source is refused after that, or not judged again if it may not be refused. A flood
/// that goes on then costs a tenth of what it would; who means well has lost one retry. Of a source
/// that is refused for longer it is looked so often whether it still may be; and for so long one
/// that is heard again is known to have been refused.
pub(crate) const REFUSED_FOR: Duration = Duration::from_millis(100);

/// How long at most, if it goes on and on: the moments in which it is heard are then a thousandth
/// of the time, and of the messages of others less than one in a hundred meets one.
pub(crate) const MAX_REFUSED_FOR: Duration = Duration::from_millis(1600);

/// Sources that are watched, and that are refused, at a time. Each that is refused costs every
/// packet a few steps of a filter.
pub(crate) const FLOOD_SOURCES: usize = 8;

/// Buffers of 64 KiB that one receive call can fill.
pub(crate) const RX_BUFFERS: usize = 16;

/// Bytes joined into one write at most: what one receive buffer can bring.
pub(crate) const HELD_WRITE_LEN: usize = 64 * 1024;

/// Bytes of process memory fetched by one read at most: what one segmented send can take.
pub(crate) const READ_AHEAD_LEN: usize = 64 * 1024;

/// Bytes fetched by one read at least, however little was used of the last: below this the copy
/// costs nothing beside the system call.
pub(crate) const READ_AHEAD_LEN_MIN: usize = 4 * 1024;

/// Inline buffers kept for work requests to come.
pub(crate) const SPARE_INLINE_BUFFERS: usize = 64;

/// What an acknowledgement may take longer than usual, at least, before a requester repeats a
/// packet for it. How much answers vary on a path is learned and comes on top.
pub(crate) const MIN_PROBE: Duration = Duration::from_micros(100);

/// Bytes of records that a tap keeps while its reader is slow, beside those in the pipe: the
/// longest record, and as much as some batches of packets without their payload.
pub(crate) const TAP_BUFFER: usize = 256 * 1024;

/// How long a tap waits, if no packets come meanwhile, before it tries a pipe again that was full.
pub(crate) const TAP_FLUSH: Duration = Duration::from_millis(5);

/// How long memory that is reached by system calls may keep the data path waiting without being
/// counted: some hundred copies.
pub(crate) const MEMORY_STALL: Duration = Duration::from_millis(1);

/// So many such stalls of one program, each less than [`STALLS_KEPT`] after the one before, may be
/// accidents: it has forked, or pages came from a disk.
pub(crate) const STALLS_FORGIVEN: u32 = 3;
pub(crate) const STALLS_KEPT: Duration = Duration::from_secs(3);

/// How many times as long as it kept others waiting a program rests after each stall beyond that.
pub(crate) const RESTS_PER_STALL: u32 = 10;

/// How long that is at least: of the messages of others, one in hundreds waits then. And at most,
/// however long the stall was: less than peers with usual timeouts and retries have.
pub(crate) const MEMORY_REST: Duration = Duration::from_millis(100);
pub(crate) const MAX_MEMORY_REST: Duration = Duration::from_millis(500);

/// QPs of programs that have rested which are looked at at a time; the others are next.
pub(crate) const DEFERRED_PER_TURN: usize = 64;
