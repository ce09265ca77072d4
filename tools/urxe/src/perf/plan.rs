//! What is to be measured. The client decides, and tells the server.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use std::time::Duration;
use urxe_verbs::{Grh, QpType};

/// Queue pairs of one test: as many as a message of endpoints has room for.
pub(super) const MAX_QPS: u32 = 1024;

/// Idle queue pairs of one test; devices have limits of their own.
pub(super) const MAX_IDLE: u32 = 60_000;

/// Longest message that is measured, in bytes.
pub(super) const MAX_SIZE: u32 = 1 << 30;

/// Most work requests under way on one queue pair; devices have limits of their own.
pub(super) const MAX_DEPTH: u32 = 32_768;

/// Bytes of messages of one queue pair that have memory of their own; further messages share it.
/// Small enough for the cache, so that the NIC is measured and not the memory.
const MEMORY_IN_USE: u64 = 256 << 10;

/// The same when contents are checked, so that messages cannot share memory.
const MEMORY_IN_USE_VERIFIED: u64 = 64 << 20;

/// Bytes of memory that a test takes at most, of each side.
const MAX_MEMORY: u64 = 8 << 30;

/// Alignment of the places of messages.
const ALIGNMENT: u64 = 64;

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Test {
    /// Bandwidth of RDMA WRITE, from client to server.
    WriteBw,
    /// Latency of RDMA WRITE: half a ping-pong, each side waits for a byte in its memory.
    WriteLat,
    /// Bandwidth of RDMA READ, from server to client.
    ReadBw,
    /// Latency of RDMA READ: a full round trip.
    ReadLat,
    /// Bandwidth of SEND, from client to server.
    SendBw,
    /// Latency of SEND: half a ping-pong.
    SendLat,
    /// Rate of atomics.
    AtomicBw,
    /// Latency of atomics: a full round trip.
    AtomicLat,
}

/// The operation of a test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verb {
    Write,
    Read,
    Send,
    Atomic,
}

impl Test {
    pub(super) const fn verb(self) -> Verb {
        match self {
            Test::WriteBw | Test::WriteLat => Verb::Write,
            Test::ReadBw | Test::ReadLat => Verb::Read,
            Test::SendBw | Test::SendLat => Verb::Send,
            Test::AtomicBw | Test::AtomicLat => Verb::Atomic,
        }
    }

    pub(super) const fn is_latency(self) -> bool {
        matches!(self, Test::WriteLat | Test::ReadLat | Test::SendLat | Test::AtomicLat)
    }

    /// What its latency measures.
    pub(super) const fn latency_meaning(self) -> &'static str {
        match self {
            Test::WriteLat | Test::SendLat => "half of a ping-pong",
            _ => "a full round trip, from post to completion",
        }
    }

    /// Its name on the command line.
    pub(super) fn name(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
    }
}

/// The atomic operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Atomic {
    /// COMPARE-AND-SWAP.
    Cas,
    /// FETCH-AND-ADD.
    #[default]
    Faa,
}

/// The transport of the queue pairs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Transport {
    /// Reliable connection: every message arrives.
    #[default]
    Rc,
    /// Unreliable connection: SEND and WRITE; lost messages are not repeated.
    Uc,
    /// Unreliable datagram: SEND of one packet; lost messages are not repeated.
    Ud,
}

impl Transport {
    pub(super) const fn qp_type(self) -> QpType {
        match self {
            Transport::Rc => QpType::Rc,
            Transport::Uc => QpType::Uc,
            Transport::Ud => QpType::Ud,
        }
    }

    pub(super) const fn is_reliable(self) -> bool {
        matches!(self, Transport::Rc)
    }
}

/// How long a size is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Amount {
    /// This many messages on each queue pair.
    Iterations(u64),
    /// This long.
    Milliseconds(u64),
}

impl Amount {
    /// How many more messages, after `messages` on a queue pair and `elapsed`.
    pub(super) fn left(self, messages: u64, elapsed: Duration) -> u64 {
        match self {
            Amount::Iterations(iterations) => iterations.saturating_sub(messages),
            Amount::Milliseconds(limit) if elapsed >= Duration::from_millis(limit) => 0,
            Amount::Milliseconds(_) => u64::MAX,
        }
    }
}

/// The parameters of a test that both ends need.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Plan {
    pub(super) test: Test,
    pub(super) transport: Transport,
    /// Lengths of messages in bytes, one after the other.
    pub(super) sizes: Vec<u32>,
    pub(super) amount: Amount,
    /// Messages under way on each queue pair.
    pub(super) depth: u32,
    /// Queue pairs.
    pub(super) qps: u32,
    /// Whether they share their receives.
    pub(super) srq: bool,
    /// Additional queue pairs that stay idle.
    pub(super) idle: u32,
    /// Path MTU in bytes, if it is to be smaller than what both ends support.
    pub(super) mtu: Option<u16>,
    /// Messages up to this length are sent inline.
    pub(super) inline: u32,
    /// Every Nth message is signaled, and N are posted as a list; by default according to size and
    /// depth.
    pub(super) cq_mod: Option<u32>,
    /// Whether contents are checked.
    pub(super) verify: bool,
    pub(super) atomic: Atomic,
}

impl Plan {
    /// Checks a plan, which may come from an untrusted client.
    pub(super) fn check(&self) -> Result<(), String> {
        let within = |name: &str, value: u64, min: u64, max: u64| {
            let fits = (min..=max).contains(&value);
            fits.then_some(()).ok_or_else(|| format!("{name} is {value}, expected {min} to {max}"))
        };
        within("the number of sizes", self.sizes.len() as u64, 1, 64)?;
        for &size in &self.sizes {
            let min = u64::from(self.test == Test::WriteLat);
            within("--size", size.into(), min, MAX_SIZE.into())?;
            if self.test.verb() == Verb::Atomic && size != 8 {
                return Err(format!("--size is {size}, expected 8: atomics have no other size"));
            }
        }
        self.check_transport()?;
        within("--idle", self.idle.into(), 0, MAX_IDLE.into())?;
        within("--depth", self.depth.into(), 1, MAX_DEPTH.into())?;
        let max_qps = if self.test.is_latency() { 1 } else { MAX_QPS };
        within("--qps", self.qps.into(), 1, max_qps.into())?;
        if let Some(mtu) = self.mtu.filter(|mtu| ![256, 512, 1024, 2048, 4096].contains(mtu)) {
            return Err(format!("--mtu is {mtu}, expected 256, 512, 1024, 2048 or 4096"));
        }
        if let Some(cq_mod) = self.cq_mod {
            within("--cq-mod", cq_mod.into(), 1, self.depth.into())?;
        }
        if let Amount::Iterations(iterations) = self.amount {
            within("--iters", iterations, 1, u64::from(u32::MAX))?;
        }
        if self.inline > 0 && matches!(self.test.verb(), Verb::Read | Verb::Atomic) {
            let test = self.test.name();
            return Err(format!("--inline is {}, expected 0: {test} sends no data", self.inline));
        }
        if self.verify && self.inline > 0 {
            return Err(format!("--inline is {}, expected 0 with --verify", self.inline));
        }
        if self.verify && self.test == Test::WriteLat {
            return Err("--verify: expected another test; write-lat checks only that its last \
                        byte arrives"
                .into());
        }
        let memory = 2 * self.area_len();
        if memory > MAX_MEMORY {
            return Err(format!(
                "--qps {} with messages of {} bytes takes {memory} bytes of memory, expected at \
                 most {MAX_MEMORY}",
                self.qps,
                self.max_size()
            ));
        }
        Ok(())
    }

    /// Whether the transport supports the test.
    fn check_transport(&self) -> Result<(), String> {
        let (test, verb) = (self.test.name(), self.test.verb());
        let refuse = |expected: &str| Err(format!("{test} on this transport: expected {expected}"));
        if self.srq && !self.is_received() {
            return Err(format!("--srq with {test}: expected a test that receives: send-bw"));
        }
        match self.transport {
            Transport::Rc => Ok(()),
            Transport::Uc if matches!(verb, Verb::Read | Verb::Atomic) => {
                refuse("SEND or WRITE, which is all that --transport uc has")
            }
            Transport::Ud if verb != Verb::Send => {
                refuse("SEND, which is all that --transport ud has")
            }
            _ if self.test == Test::WriteLat => {
                refuse("send-lat: a WRITE that is lost would be waited for indefinitely")
            }
            _ if self.verify && verb == Verb::Write => {
                Err("--verify with write-bw on --transport uc: expected send-bw; nothing keeps a \
                     WRITE from overtaking the check of the one before it"
                    .into())
            }
            _ => Ok(()),
        }
    }

    /// Whether the server gets a completion for each message. An unreliable WRITE carries
    /// immediate data, so that the server can count what arrived.
    pub(super) fn is_received(&self) -> bool {
        match self.test.verb() {
            Verb::Send => true,
            Verb::Write => self.transport == Transport::Uc,
            Verb::Read | Verb::Atomic => false,
        }
    }

    /// Bytes before the data of a received message: its GRH.
    pub(super) fn headroom(&self) -> u32 {
        if self.transport == Transport::Ud { Grh::LEN as u32 } else { 0 }
    }

    /// The longest message.
    pub(super) fn max_size(&self) -> u32 {
        self.sizes.iter().copied().max().unwrap_or(0)
    }

    /// Bytes from the place of one message to that of the next.
    pub(super) fn stride(&self) -> u64 {
        let len = u64::from(self.max_size()) + u64::from(self.headroom());
        len.next_multiple_of(ALIGNMENT).max(ALIGNMENT)
    }

    /// Messages that may be under way on each queue pair: the depth, unless they are checked and
    /// there is not enough memory.
    pub(super) fn window(&self) -> u32 {
        let checked = (MEMORY_IN_USE_VERIFIED / 2 / self.stride()).clamp(1, MAX_DEPTH.into());
        if self.verify { self.depth.min(checked as u32) } else { self.depth }
    }

    /// Receives that are posted on each queue pair: more than can be under way, so that the server
    /// may be slower than its client for a moment.
    pub(super) fn receives(&self) -> u32 {
        let most = MAX_DEPTH - 1;
        if self.verify { self.window() * 2 } else { (self.depth * 2).max(512).min(most) }
    }

    /// Places for messages on each queue pair and side. Messages whose contents are checked do
    /// not share one while they are under way, nor with those that are received next; a ping-pong
    /// of WRITEs looks at one only.
    pub(super) fn slots(&self) -> u32 {
        if self.test == Test::WriteLat {
            return 1;
        }
        let in_cache = (MEMORY_IN_USE / self.stride()).clamp(1, self.depth.into());
        if self.verify { self.window() * 2 } else { in_cache as u32 }
    }

    /// Bytes of one area: all places of all queue pairs, in one direction.
    pub(super) fn area_len(&self) -> u64 {
        self.stride() * u64::from(self.slots()) * u64::from(self.qps)
    }

    /// Messages of `size` that are posted as one list, of which the last is signaled.
    pub(super) fn burst(&self, size: u32) -> u32 {
        /// Above this, posting and polling one by one costs hardly anything.
        const SMALL: u32 = 8192;
        let small = (self.window() / 4).clamp(1, 32);
        let wanted = self.cq_mod.unwrap_or(if size <= SMALL { small } else { 1 });
        wanted.min(self.window())
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(crate) fn plan(test: Test, size: u32) -> Plan {
        Plan {
            test,
            transport: Transport::Rc,
            sizes: vec![size],
            amount: Amount::Iterations(1000),
            depth: 128,
            qps: 1,
            srq: false,
            idle: 0,
            mtu: None,
            inline: 0,
            cq_mod: None,
            verify: false,
            atomic: Atomic::Faa,
        }
    }

    #[test]
    fn invalid_values_are_named() {
        let good = plan(Test::WriteBw, 4096);
        assert_eq!(good.check(), Ok(()));
        let wrong: [(&str, Plan); 9] = [
            ("--depth is 0", Plan { depth: 0, ..good.clone() }),
            ("--qps is 2000", Plan { qps: 2000, ..good.clone() }),
            ("--qps is 2", Plan { qps: 2, ..plan(Test::SendLat, 8) }),
            ("--mtu is 1500", Plan { mtu: Some(1500), ..good.clone() }),
            ("--size is 16", plan(Test::AtomicBw, 16)),
            ("--size is 0", plan(Test::WriteLat, 0)),
            ("--inline is 8", Plan { inline: 8, ..plan(Test::ReadBw, 8) }),
            ("--cq-mod is 129", Plan { cq_mod: Some(129), ..good.clone() }),
            ("--qps 1000", Plan { qps: 1000, sizes: vec![MAX_SIZE], ..good }),
        ];
        for (part, plan) in wrong {
            let error = plan.check().unwrap_err();
            assert!(error.starts_with(part) && error.contains("expected"), "{error}");
        }
    }

    #[test]
    fn operations_that_a_transport_lacks_are_refused() {
        let on = |transport, test, verify| {
            Plan { transport, verify, ..plan(test, 8) }.check().map_err(drop)
        };
        for (test, uc, ud) in [
            (Test::SendBw, Ok(()), Ok(())),
            (Test::SendLat, Ok(()), Ok(())),
            (Test::WriteBw, Ok(()), Err(())),
            (Test::WriteLat, Err(()), Err(())),
            (Test::ReadBw, Err(()), Err(())),
            (Test::AtomicLat, Err(()), Err(())),
        ] {
            assert_eq!((on(Transport::Uc, test, false), on(Transport::Ud, test, false)), (uc, ud));
            assert_eq!(on(Transport::Rc, test, false), Ok(()));
        }
        assert_eq!(on(Transport::Uc, Test::WriteBw, true), Err(()));
        let shared = |test| Plan { srq: true, ..plan(test, 8) }.check().is_ok();
        assert!(shared(Test::SendBw) && !shared(Test::ReadBw));
    }

    #[test]
    fn a_datagram_has_room_for_its_grh() {
        let datagram = Plan { transport: Transport::Ud, ..plan(Test::SendBw, 4096) };
        assert!(datagram.stride() >= 4096 + 40);
    }

    #[test]
    fn places_fit_the_messages_and_checked_messages_share_none() {
        for verify in [false, true] {
            for size in [0, 1, 64, 65, 4096, 1 << 20, MAX_SIZE] {
                let plan = Plan { verify, ..plan(Test::SendBw, size) };
                assert!(
                    plan.stride() >= u64::from(size) && plan.stride().is_multiple_of(ALIGNMENT)
                );
                assert!(plan.window() >= 1 && plan.window() <= plan.depth && plan.slots() >= 1);
                assert!(plan.receives() > plan.window());
                assert!(plan.burst(size) >= 1 && plan.burst(size) <= plan.window());
                if verify {
                    assert!(plan.slots() >= plan.receives());
                }
            }
        }
    }
}
