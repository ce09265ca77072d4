//! The arguments of `urxe perf`.

use super::plan::{Amount, Atomic, Plan, Test, Transport, Verb};
use crate::cli::DaemonArguments;
use crate::completions::PollMode;
use crate::error::Error;
use crate::units::{parse_duration, parse_size};
use clap::{Args, FromArgMatches, ValueEnum};
use serde::Serialize;
use std::path::PathBuf;
use std::time::Duration;
use urxe_verbs::OpenOptions;

const EXAMPLES: &str = "\
Examples:
  urxe perf write-bw                       on the server, and
  urxe perf write-bw 10.0.0.1              on the client: bandwidth between the two.
  urxe perf send-lat 10.0.0.1 --all --json
      Latency of SEND for sizes from 1 byte to 1 MiB, for a script.
  urxe perf send-lat 10.0.0.1 --plot
      How latencies are distributed, as a curve in the terminal.
  urxe perf write-bw 10.0.0.1 --all --svg sweep.svg
      Bandwidth and message rate over sizes, also as a picture.
  urxe perf read-bw 10.0.0.1 --size 1M --qps 4 --depth 16 --duration 10s
      Four connections, 16 READs of 1 MiB under way on each, for 10 seconds.
  urxe perf send-bw 10.0.0.1 --transport ud
      Datagrams as long as the path MTU: how many are sent, arrive and are lost.
  urxe perf send-bw 10.0.0.1 --size 64 --qps 1000 --depth 16 --srq
      A thousand connections used in turn, whose receives are shared.
  urxe perf write-bw --socket /run/a.sock & urxe perf write-bw --socket /run/b.sock localhost
      Both ends on one machine, over two daemons.

The server needs only the name of the test; the client decides about the rest and tells it. How
each end waits and which memory it uses (--poll, --events, --memory) it decides itself.";

/// Measure bandwidth and latency between two programs, as perftest does.
///
/// Without SERVER this is the server, and waits for one client; with SERVER, the client. The two
/// connect over TCP, and then exchange data by RDMA.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// What to measure.
    #[arg(value_enum)]
    pub(super) test: Test,

    /// Host name or address of the server, for TCP. (The addresses for RDMA are exchanged over it.)
    #[arg(value_name = "SERVER")]
    pub(super) server: Option<String>,

    /// TCP port of the server; 0 lets it choose a free one, which it prints.
    #[arg(long, value_name = "PORT", default_value_t = 18515)]
    pub(super) port: u16,

    #[command(flatten)]
    daemon: DaemonArguments,

    /// Run the device's data path in a thread of this process in place of the daemon's, whose user
    /// this has to be.
    #[arg(long)]
    in_process: bool,

    /// Device to use [default: the daemon's first].
    #[arg(long, value_name = "NAME")]
    device: Option<String>,

    /// Transport of the queue pairs. With uc and ud messages can be lost; both ends then print
    /// what was sent and what arrived.
    #[arg(long, value_enum, default_value_t)]
    transport: Transport,

    /// Index of the address to use in the device's GID table, which `urxe devinfo` shows [default:
    /// that of the TCP connection's address; else the first of its family].
    #[arg(long, value_name = "N")]
    gid_index: Option<u8>,

    /// Length of a message: bytes, or with a unit such as 64K or 1M [default: 65536, or with ud
    /// the path MTU; for latency 8].
    #[arg(long, value_name = "BYTES", value_parser = parse_message_size, conflicts_with = "all")]
    size: Option<u32>,

    /// All lengths from 1 byte to MAX, in powers of two.
    #[arg(
        long, value_name = "MAX", value_parser = parse_message_size, require_equals = true,
        num_args = 0..=1, default_missing_value = "1M"
    )]
    all: Option<u32>,

    /// Messages for each length and queue pair [default: as many as --duration allows].
    #[arg(long, value_name = "N", conflicts_with = "duration")]
    iters: Option<u64>,

    /// How long each length is measured [default: 1s].
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    duration: Option<Duration>,

    /// Messages under way at a time on each queue pair. With 128 of 4 KiB, the network waits for
    /// the program for a part of the time.
    #[arg(
        long, value_name = "N", default_value_t = 256,
        value_parser = clap::value_parser!(u32).range(1..=i64::from(super::plan::MAX_DEPTH))
    )]
    depth: u32,

    /// Queue pairs, each a connection of its own.
    #[arg(
        long, value_name = "N", default_value_t = 1,
        value_parser = clap::value_parser!(u32).range(1..=i64::from(super::plan::MAX_QPS))
    )]
    qps: u32,

    /// Let all queue pairs of an end share their receives.
    #[arg(long)]
    srq: bool,

    /// Create so many additional queue pairs at each end that stay idle, and print how much memory
    /// the daemon needs for each.
    #[arg(long, value_name = "N", default_value_t = 0)]
    idle: u32,

    /// Path MTU: 256, 512, 1024, 2048 or 4096 [default: the largest that both ends support].
    #[arg(long, value_name = "BYTES")]
    mtu: Option<u16>,

    /// Send messages up to this length inline: they are copied into the work request.
    #[arg(long, value_name = "BYTES", default_value_t = 0)]
    inline: u32,

    /// Signal every Nth message, and post as many as a list [default: up to 32 for messages to
    /// 8 KiB, 1 for longer ones].
    #[arg(long, value_name = "N")]
    cq_mod: Option<u32>,

    /// Check what arrives: SENDs, READs and atomics each, WRITEs by what the memory holds at the
    /// end. Takes time that is measured too.
    #[arg(long)]
    verify: bool,

    /// The atomic operation.
    #[arg(long, value_enum, default_value_t)]
    atomic: Atomic,

    /// How to wait for completions (and, with write-lat, for memory to change).
    #[arg(long, value_enum, default_value_t)]
    poll: PollMode,

    /// Sleep until a completion channel reports completions: the same as --poll event.
    #[arg(long, conflicts_with = "poll")]
    events: bool,

    /// The memory of messages.
    #[arg(long, value_enum, default_value_t)]
    memory: Memory,

    /// Print one JSON object in place of a table.
    #[arg(long)]
    pub(super) json: bool,

    /// Print curves under the table: bandwidth over time or the distribution of latencies; with
    /// --all, figures over lengths.
    #[arg(long, requires = "server", conflicts_with = "json")]
    pub(super) plot: bool,

    /// Draw the same curves as an SVG.
    #[arg(long, value_name = "FILE", requires = "server")]
    pub(super) svg: Option<PathBuf>,
}

/// The memory of messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Memory {
    /// Memory allocated by the client library, which the daemon maps: the fast way.
    #[default]
    Shared,
    /// Ordinary memory of the program, as any verbs program registers it. With URXE_MR=remap in the
    /// environment it becomes shared when it is registered.
    Process,
}

/// The options that each end decides for itself.
#[derive(Clone, Debug)]
pub(super) struct Local {
    pub(super) device: OpenOptions,
    /// Index into the device's GID table, if it is not to be chosen.
    pub(super) gid_index: Option<u8>,
    pub(super) poll: PollMode,
    pub(super) memory: Memory,
}

fn parse_message_size(text: &str) -> Result<u32, String> {
    let size = parse_size(text)?;
    let fits = u32::try_from(size).ok().filter(|&size| size <= super::plan::MAX_SIZE);
    fits.ok_or_else(|| format!("{text:?} is too long for a message, expected at most 1G"))
}

impl Arguments {
    /// The client's plan, on a device with this active MTU.
    pub(super) fn plan(&self, active_mtu: u16) -> Result<Plan, Error> {
        let is_datagram = self.transport == Transport::Ud;
        let longest = u32::from(self.mtu.unwrap_or(active_mtu));
        let size = match self.test.verb() {
            Verb::Atomic => 8,
            _ if self.test.is_latency() => 8,
            _ if is_datagram => longest,
            _ => 65_536,
        };
        let sizes = match (self.all, self.test.verb()) {
            (Some(_), Verb::Atomic) => {
                return Err(Error::Usage("--all: not expected; atomics have 8 bytes".into()));
            }
            (Some(max), _) => {
                let max = if is_datagram { max.min(longest) } else { max };
                (0..31).map(|i| 1 << i).take_while(|&size| size <= max).collect()
            }
            (None, _) => vec![self.size.unwrap_or(size)],
        };
        let duration = self.duration.unwrap_or(Duration::from_secs(1));
        let limit = duration.as_millis().clamp(1, u128::from(u32::MAX)) as u64;
        let plan = Plan {
            test: self.test,
            transport: self.transport,
            sizes,
            amount: self.iters.map_or(Amount::Milliseconds(limit), Amount::Iterations),
            depth: self.depth,
            qps: self.qps,
            srq: self.srq,
            idle: self.idle,
            mtu: self.mtu,
            inline: self.inline,
            cq_mod: self.cq_mod,
            verify: self.verify,
            atomic: self.atomic,
        };
        plan.check().map_err(Error::Usage)?;
        Ok(plan)
    }

    /// Whether the options of this end, on a device with this active MTU, ask for something else
    /// than the client's plan.
    pub(super) fn are_overruled_by(&self, plan: &Plan, active_mtu: u16) -> bool {
        let command = Self::augment_args(clap::Command::new("perf").no_binary_name(true));
        let plain = command.try_get_matches_from([self.test.name()]);
        let plain = plain.and_then(|matches| Self::from_arg_matches(&matches));
        let plain = plain.ok().and_then(|arguments| arguments.plan(active_mtu).ok());
        self.plan(active_mtu).is_ok_and(|ours| ours != *plan && Some(ours) != plain)
    }

    /// The options that each end decides for itself.
    pub(super) fn local(&self) -> Result<Local, Error> {
        let poll = if self.events { PollMode::Event } else { self.poll };
        if poll == PollMode::Event && self.test == Test::WriteLat {
            return Err(Error::Usage(
                "--poll is event, expected spin or yield: write-lat waits for a byte in memory, \
                 which no event reports; send-lat can wait for events"
                    .into(),
            ));
        }
        let device = self.daemon.open_options();
        let device = if self.in_process { device.in_process() } else { device };
        let device = match &self.device {
            Some(name) => device.device(name),
            None => device,
        };
        Ok(Local { device, gid_index: self.gid_index, poll, memory: self.memory })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        arguments: Arguments,
    }

    const MTU: u16 = 1024;

    fn parse(line: &str) -> Arguments {
        let words = std::iter::once("perf").chain(line.split(' '));
        Line::try_parse_from(words).unwrap_or_else(|error| panic!("{error}")).arguments
    }

    #[test]
    fn the_server_needs_only_the_test() {
        let arguments = parse("write-bw");
        assert_eq!((arguments.test, &arguments.server), (Test::WriteBw, &None));
        assert_eq!(arguments.plan(MTU).unwrap().sizes, [65_536]);
        assert_eq!(parse("read-lat host").plan(MTU).unwrap().sizes, [8]);
    }

    #[test]
    fn all_sizes_are_powers_of_two_and_take_no_server_name() {
        let arguments = parse("send-bw --all 10.0.0.1");
        assert_eq!(arguments.server.as_deref(), Some("10.0.0.1"));
        let sizes = arguments.plan(MTU).unwrap().sizes;
        assert_eq!((sizes.len(), sizes[0], sizes[20]), (21, 1, 1 << 20));
        assert_eq!(parse("send-bw --all=8M host").plan(MTU).unwrap().sizes.len(), 24);
        assert!(parse("atomic-bw --all host").plan(MTU).is_err());
    }

    #[test]
    fn datagrams_are_at_most_as_long_as_the_path_mtu() {
        let sizes = |line| parse(line).plan(MTU).unwrap().sizes;
        assert_eq!(sizes("send-bw host --transport ud"), [1024]);
        assert_eq!(sizes("send-bw host --transport ud --mtu 512"), [512]);
        assert_eq!(sizes("send-bw host --transport ud --all").last(), Some(&1024));
        assert_eq!(sizes("send-bw host --transport uc"), [65_536]);
    }

    #[test]
    fn the_amount_is_one_second_by_default() {
        let amount = |line| parse(line).plan(MTU).unwrap().amount;
        assert_eq!(amount("send-bw host"), Amount::Milliseconds(1000));
        assert_eq!(amount("send-bw host --duration 2.5s"), Amount::Milliseconds(2500));
        assert_eq!(amount("send-bw host --iters 7"), Amount::Iterations(7));
    }

    #[test]
    fn options_of_a_server_that_differ_from_the_plan_are_overruled() {
        let client = parse("write-bw host --size 4K --poll spin").plan(MTU).unwrap();
        assert!(!parse("write-bw").are_overruled_by(&client, MTU));
        assert!(!parse("write-bw --memory process --json").are_overruled_by(&client, MTU));
        assert!(!parse("write-bw --size 4K").are_overruled_by(&client, MTU));
        assert!(parse("write-bw --size 8K").are_overruled_by(&client, MTU));
    }

    #[test]
    fn events_are_refused_for_tests_that_poll_memory() {
        assert_eq!(parse("send-lat host --events").local().unwrap().poll, PollMode::Event);
        let error = parse("write-lat host --events").local().unwrap_err();
        assert!(matches!(&error, Error::Usage(text) if text.contains("expected spin or yield")));
    }
}
