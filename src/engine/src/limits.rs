//! Every bound of the engine, with its reason.

use std::time::Duration;
use urxe_types::{Rate, SLAB_CAPACITY};

/// Largest message in bytes: IBTA gives the length field 31 bits of use (`max_msg_sz`).
pub const MAX_MESSAGE: u64 = 1 << 31;

/// QPs of one device: no fewer than rxe has, if it is not one slot of several, which has numbers
/// for a quarter of them.
pub const MAX_QP: usize = 1 << 20;

/// SRQs of one device: no fewer than rxe has.
pub const MAX_SRQ: usize = SLAB_CAPACITY;

/// Address handles of one device: no fewer than rxe has.
pub const MAX_AH: usize = SLAB_CAPACITY;

/// Multicast groups that a device is in (`max_mcast_grp`), as in rxe.
pub const MAX_MULTICAST_GROUPS: usize = 8192;

/// QPs of one multicast group (`max_mcast_qp_attach`). Each of them gets a copy of every datagram,
/// so this bounds what one packet makes us do.
pub const MAX_GROUP_MEMBERS: usize = 1024;

/// Entries of the GID table.
pub const GID_TABLE_LEN: usize = 32;

/// Management datagrams that may wait for the port.
pub const MAX_WAITING_MADS: usize = 256;

/// Peers of which a device remembers what they understand beside the standard.
pub const MAX_KNOWN_PEERS: usize = 4096;

/// Answers to questions about extensions of the protocol, and questions back, to one address, which
/// may be forged. A peer asks five times at most for each time that it is started.
pub const CAPABILITY_REPLIES_EACH: Rate = Rate { per_second: 256, at_once: 1024 };

/// The same to all addresses together: thousands of peers may begin at once.
pub const CAPABILITY_REPLIES_IN_ALL: Rate = Rate { per_second: 2048, at_once: 4096 };

/// Turns in which a QP sends an ACK together with requests before its peer is asked whether the ACK
/// may go behind them: there is little to gain where it is seldom so.
pub const ACKS_BEFORE_QUESTION: u8 = 64;

/// How often a peer that is silent is asked what it understands beside the standard.
pub const MAX_CAPABILITY_TRIES: u32 = 5;

/// How long after the first question a peer that is silent may be asked again; eight times as long
/// after each further one. The first ones are lost where many peers begin at once.
pub const MIN_CAPABILITY_INTERVAL: Duration = Duration::from_millis(2);

/// How long the answer of a peer that is asked for the first time is waited for before it is taken
/// for one that keeps to the standard, where the two would be told different things.
pub const FIRST_CAPABILITY_WAIT: Duration = MIN_CAPABILITY_INTERVAL;

/// How long an answer is not asked for again: the peer may be another one by then.
pub const CAPABILITIES_VALID: Duration = Duration::from_secs(60);

/// MRs of one device: as many as the daemon can number.
pub const MAX_MR: usize = 1 << 20;

/// Memory windows of one device: as many as MRs.
pub const MAX_MW: usize = 1 << 20;

/// READs, atomics and ATOMIC WRITEs outstanding in either direction on one QP (`max_qp_rd_atom`),
/// as in rxe.
pub const MAX_RD_ATOMIC: u8 = 128;

/// Replies that may wait for the port before no more NAKs join them. A peer that asks for one NAK
/// after the other while nothing can be sent must not fill our memory; it takes a NAK that is not
/// sent for one that was lost.
pub const MAX_WAITING_REPLIES: usize = 512;

/// Requests ahead of the expected one that a QP keeps. It bounds how long it takes to find the
/// place of one among them.
pub const MAX_EARLY_PACKETS: usize = 8192;

/// How far ahead of the expected PSN a request may be to be kept: a gigabyte at a path MTU of
/// 1,024.
pub const MAX_EARLY_PSNS: i32 = 1 << 20;

/// How long a QP asks for no missing request again when one ahead came from another UDP source port
/// than those in their turn. Who forges them makes the peer repeat all that is under way no more
/// often, and a peer that does change its port is asked often enough.
pub const FOREIGN_NAK_INTERVAL: Duration = Duration::from_millis(10);

/// Bytes of READ answers that a QP keeps because a later request stores something where they come
/// from: four packets of the largest path MTU.
pub const KEPT_READ_BYTES: usize = 16 << 10;

/// Work requests that a requester takes from its send queue ahead of their completion. More would
/// only copy the ring, which is no longer than this; fewer would stall small messages on a long
/// path.
pub const MAX_TAKEN_SENDS: usize = 16 << 10;

/// Packets that may overtake one another on the way: one is taken for lost when another has arrived
/// that was sent so many after it (RFC 5681).
pub const REORDER_TOLERANCE: u32 = 3;

/// Bytes of the longest packet on the wire: of the largest path MTU, with headers.
pub const LONGEST_PACKET: u64 = 4160;

/// Records of finished work requests that a device keeps to reuse them and their vectors.
pub const MAX_SPARE_SENDS: usize = 4096;

/// Packets that one QP may put into a batch before the next QP has its turn. A segmented send takes
/// 62 of a path MTU of 1024 and 15 of 4096, so that of these none or many are left for the last
/// one: a short one costs almost as much as a full one.
pub const PACKETS_PER_TURN: u32 = 60;

/// A batch with so many packets and so many bytes of datagrams is sent although there is room for
/// more, so that the peer works on it while the next one is made: with a path MTU of 1024 it is one
/// full segmented send. Longer packets are less work for as many bytes, so that fewer and larger
/// batches are better.
pub const TX_PACKETS: usize = PACKETS_PER_TURN as usize;

/// See [`TX_PACKETS`].
pub const TX_BYTES: usize = 60 << 10;

/// Turns without a packet in one call of `poll_transmit`. What QPs do in them (local operations,
/// flushes) fills no batch, which would end the call, and others are to have their turn too.
pub const IDLE_TURNS: u32 = 32;

/// What a round of one share costs at most, beyond its last turn: each turn one, and each packet
/// one. Then the QPs of other shares have their turns. Two full turns, so that trains stay long.
pub const ROUND_COST: usize = 2 * PACKETS_PER_TURN as usize;

/// Copies of multicast datagrams that the QPs of one share get of one batch of packets, at most:
/// a group of one share may have no more members, so the first datagram reaches them all. A copy
/// takes about 0.2 us.
pub const COPIES_PER_BATCH: usize = MAX_GROUP_MEMBERS;

/// QPs whose timers are looked at in one call; those of thousands that have lost their peer run
/// out together.
pub const TIMERS_PER_CALL: usize = 128;

/// What a requester keeps in flight on a path that it knows nothing of, in bytes. It fits several
/// times into the default socket buffer of an unprivileged peer (212,992 bytes).
pub const INITIAL_WINDOW: u64 = 64 << 10;

/// Bytes of answers to READs that a path is asked for before the first has come. Many peers that
/// are asked at once must not lose all their answers in front of us: nothing would be known of any
/// path.
pub const FIRST_ANSWERS: u64 = 1 << 10;

/// What is in flight at most in one direction of a path, in bytes: 25 Gbit/s for 160 ms.
pub const MAX_WINDOW: u64 = 512 << 20;

/// What is in flight at most in one direction of a path without congestion control.
pub const FIXED_WINDOW: u64 = 1 << 20;

/// Bytes that a QP may send when its turn has come on a path that has room for no more.
pub const LANE_TURN_BYTES: u64 = 64 << 10;

/// What each packet counts in flight beyond its payload: its headers.
pub const PACKET_OVERHEAD: u64 = 64;

/// PSNs that one QP has outstanding at most: far below half the PSN space, so that old and new
/// PSNs can be told apart (IBTA 9.7.3.1).
pub const MAX_OUTSTANDING: u32 = 1 << 20;

/// QPs that may try at once on a path that is silent, and of which nothing is known yet: as many
/// packets of 4 KiB as there are in [`INITIAL_WINDOW`].
pub const FIRST_TRIED: u32 = (INITIAL_WINDOW / 4096) as u32;

/// Paths without QPs whose knowledge is kept for those that come back.
pub const MAX_UNUSED_PATHS: usize = 1024;

/// Within this time every answer comes on a path of which nothing is known yet: the way around the
/// Earth, with some queues.
pub const UNKNOWN_ROUND_TRIP: Duration = Duration::from_millis(250);

/// READ requests that a long READ is asked for with at once, each with its share of the window.
pub const READS_IN_WINDOW: u32 = 4;

/// Packets after which a requester asks for an acknowledgement at the latest, if no message has
/// ended: so that a window of any size moves on smoothly.
pub const PACKETS_PER_ACK: u64 = 64;

/// The first packet of a message of more packets asks for an acknowledgement where nothing is known
/// of the path.
pub const FIRST_ACK_PACKETS: u32 = 8;

/// A READ of no more packets is asked for in parts of [`UNIFORM_READ_PACKETS`]: whatever is gained
/// for short ones by answers of one size is lost for long ones by the requests.
pub const SHORT_READ_PACKETS: u32 = 8;

/// The answers to a READ request of two packets are a FIRST and a LAST, which are equally long.
pub const UNIFORM_READ_PACKETS: u32 = 2;

/// The shortest ACK timeout that is kept: one tick of the clock that kernel rxe's timers have. The
/// standard's codes go down to 8 us, in which a program on a machine cannot answer.
pub const MIN_ACK_TIMEOUT: Duration = Duration::from_millis(4);

/// The longest that a shorter ACK timeout becomes where no round trip could be measured yet, for
/// everything was repeated before its answer came.
pub const MAX_UNKNOWN_ACK_TIMEOUT: Duration = Duration::from_millis(64);

/// The longest that an RNR wait soon becomes because the same request was refused before: so that
/// a peer that is slow is asked some thousands of times a second and no more, and loses little time
/// by it. (Kernel rxe waits far longer always: for a tick of its timers, which is 1 ms or more.)
pub const SHORT_RNR_BACKOFF: Duration = Duration::from_micros(160);

/// While a peer stays without a receive, RNR waits go on to grow: one is that part of the time
/// since it refused the request first. So who is late loses a little of that time more, and
/// thousands of QPs that wait for a program that does not come leave the others most of the time.
pub const RNR_BACKOFF_SHARE: u32 = 8;

/// The longest that an RNR wait becomes in that way.
pub const MAX_RNR_BACKOFF: Duration = Duration::from_millis(10);

/// The longest a requester waits between two probes for a lost tail.
pub const MAX_PROBE_INTERVAL: Duration = Duration::from_millis(500);

#[cfg(test)]
mod tests {
    use super::*;
    use urxe_types::PathMtu;
    use urxe_wire::MAX_UDP_PAYLOAD;

    #[test]
    fn a_turn_leaves_no_short_segmented_send_behind_full_ones() {
        for mtu in [PathMtu::Mtu1024, PathMtu::Mtu2048, PathMtu::Mtu4096] {
            // BTH, RETH and ICRC, which each packet of a long WRITE has.
            let full = (MAX_UDP_PAYLOAD / (mtu.bytes() + 32)).min(64) as u32;
            let last = PACKETS_PER_TURN % full;
            assert!(last == 0 || last > full / 2, "{last} of {full} packets of {mtu:?}");
        }
    }
}
