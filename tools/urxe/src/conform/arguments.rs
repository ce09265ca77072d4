//! The command line.

use clap::{Args, ValueEnum};
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;
use urxe_conform::device::Services;
use urxe_conform::pace::Pace;
use urxe_conform::run::Plan;
use urxe_conform::script::Waits;

const LONG_ABOUT: &str = "\
Check whether a RoCEv2 device does what the standard says: hardware, kernel rxe, urxe, or your own.

The tester plays the other end of a connection, packet by packet: right ones, wrong ones, repeated
ones, late ones; and judges what the device answers. Nothing of urxe is installed at the device.
Its QPs are made by stock servers and clients, perftest's and those of libibverbs' and librdmacm's
examples, which are started there in one of two ways:
  --run \"ssh HOST\"      starts them as they are needed, with the options that are needed; or
  --servers             prints a shell script that keeps the usual ones running at the device.
Clients call this machine over TCP, at ports from --port + 20 on, or any that is free with --run.
Checks that need more are listed as such. A program at the device that does what it is told makes
all possible: --agent.

Each verdict comes with the sentence that was checked, the rule and its source, what was expected
and what was seen; --html writes all of it, with the packets, into one file to send to a vendor.";

const EXAMPLES: &str = "\
Examples:
  urxe conform 10.0.0.2 --run \"ssh 10.0.0.2\" --html report.html
      All checks of the device at 10.0.0.2, whose servers are started over ssh.
  urxe conform 10.0.0.2 --servers | ssh 10.0.0.2 sh      in one terminal, and
  urxe conform 10.0.0.2 --html report.html               in another: the usual servers only.
  urxe conform 10.0.0.2 --run \"ssh 10.0.0.2\" --only write --pcap packets
      The checks of one area, and a capture of each that does not pass.
  urxe conform --list --only RC-RESP
      What is checked of the rules for responders, and where they come from.
  urxe conform 127.0.0.2 --addr 127.0.0.3 --run \"urxe run --addr 127.0.0.2 --\"
      urxe itself, on this machine.

Nothing here needs root: the udp port needs no privilege, and neither sees nor sends another hop
limit, traffic class, source port or IP length; checks of these are `needs-raw`. With CAP_NET_RAW
the raw port writes and sees every byte.

Exit codes: 0 if nothing is wrong but what --known lists, and all of that is still so; 1 if not;
2 if the command line makes no sense.";

/// How packets are sent and received.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Backend {
    /// Raw sockets if this program may use them, else plain ones.
    Auto,
    /// Plain UDP sockets: no privilege.
    Udp,
    /// Raw sockets: every byte of the headers is written and seen. Needs CAP_NET_RAW.
    Raw,
}

/// Check whether a RoCEv2 device does what the standard says.
#[derive(Args, Debug)]
#[command(long_about = LONG_ABOUT, after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// The device's RoCE address, or a name of it.
    pub(super) peer: Option<String>,

    /// The address of this machine to test from [default: that of the route to PEER].
    #[arg(long, value_name = "ADDR")]
    pub(super) addr: Option<IpAddr>,

    /// How packets are sent and received.
    #[arg(long, value_enum, default_value = "auto")]
    pub(super) backend: Backend,

    /// Only these checks: an area (write), a check (write/only-is-acknowledged), a rule
    /// (RC-RESP-009) or all rules of a list (RC-RESP). May be given several times.
    #[arg(long, value_name = "NAME")]
    pub(super) only: Vec<String>,

    /// Print the checks, what each says, and its rule with its source; play none.
    #[arg(long)]
    pub(super) list: bool,

    /// Leave out checks that may disturb others on the network or harm a device that is in use:
    /// malformed, forged and very many packets.
    #[arg(long)]
    pub(super) safe: bool,

    /// What is chosen by chance follows from this number.
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    pub(super) seed: u64,

    /// How often a check is tried that never passes, as networks lose packets; one that passes now
    /// and then, up to eight times as often.
    #[arg(long, value_name = "NUMBER", default_value_t = 5,
          value_parser = clap::value_parser!(u32).range(1..))]
    attempts: u32,

    /// How long an answer that is due may take, in milliseconds; all other waits follow from it.
    /// Who fails gets up to four times as long in further attempts [default: 250, or more if that
    /// is too short for the answers that are measured at first].
    #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u64).range(1..))]
    reply_timeout: Option<u64>,

    /// Words that run a program at the device, such as `ssh HOST`: servers and clients are started
    /// with them [default: they are there already, see --servers].
    #[arg(long, value_name = "WORDS", value_parser = words)]
    pub(super) run: Option<String>,

    /// Print a shell script that keeps the usual servers and clients running at the device, those
    /// of --cm and --cm-datagrams too; play nothing.
    #[arg(long, conflicts_with = "run")]
    pub(super) servers: bool,

    /// Where the program waits that does what it is told: the device is used by it, not by stock
    /// servers, and every check can be played. `interop/agent` of urxe's sources has it.
    #[arg(long, value_name = "HOST:PORT", conflicts_with_all = ["run", "servers"])]
    pub(super) agent: Option<String>,

    /// How long a server is waited for that somebody is to start, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    wait: u64,

    /// Where servers are reached over TCP, if not at PEER; perftest listens over IPv4 only.
    #[arg(long, value_name = "HOST")]
    pub(super) host: Option<String>,

    /// The first of the TCP ports at which servers listen.
    #[arg(long, value_name = "PORT", default_value_t = 18_515)]
    pub(super) port: u16,

    /// The device's name there, such as mlx5_0 [default: its first].
    #[arg(long, value_name = "NAME")]
    pub(super) device: Option<String>,

    /// The index of PEER among the device's GIDs [default: perftest chooses, and for other servers
    /// it is looked for].
    #[arg(long, value_name = "INDEX")]
    pub(super) gid_index: Option<u8>,

    /// The port of a program at the device that accepts connections by the connection manager, such
    /// as `while :; do rping -s -P -p 7471; done`: most checks of it need one, and some make rping
    /// end [default: with --run, an rping that is started; else none].
    #[arg(long, value_name = "PORT")]
    cm: Option<u16>,

    /// The port of a program at the device that takes datagrams by the connection manager, such as
    /// `udaddy`, which listens at 7174 [default: with --run, a udaddy that is started; else none].
    #[arg(long, value_name = "PORT")]
    cm_datagrams: Option<u16>,

    /// Write all results as JSON.
    #[arg(long, value_name = "FILE")]
    pub(super) json: Option<PathBuf>,

    /// Write all results as JUnit XML.
    #[arg(long, value_name = "FILE")]
    pub(super) junit: Option<PathBuf>,

    /// Write a report as one HTML file.
    #[arg(long, value_name = "FILE")]
    pub(super) html: Option<PathBuf>,

    /// Write the packets of each check that does not pass to a pcapng file in this directory.
    #[arg(long, value_name = "DIR")]
    pub(super) pcap: Option<PathBuf>,

    /// Known results, a line each: check, verdict, reason. Nothing else may be wrong, and all of
    /// them must still be so. A check whose verdict there is `stops` stops the device, and is left
    /// out.
    #[arg(long, value_name = "FILE")]
    pub(super) known: Option<PathBuf>,
}

fn words(text: &str) -> Result<String, String> {
    match text.split_whitespace().next() {
        Some(_) => Ok(text.into()),
        None => Err("expected a command such as `ssh HOST`".into()),
    }
}

impl Arguments {
    pub(super) fn wait(&self) -> Duration {
        Duration::from_secs(self.wait)
    }

    /// The programs that wait to be connected to.
    pub(super) fn services(&self) -> Services {
        Services { accepts: self.cm, datagrams: self.cm_datagrams, ..Services::default() }
    }

    /// How checks are run on a device with this pace.
    pub(super) fn plan(&self, pace: Option<Pace>) -> Plan {
        let waits = match (self.reply_timeout, pace) {
            (Some(reply), _) => Waits::for_replies_within(Duration::from_millis(reply)),
            (None, Some(pace)) => Waits::for_pace(pace),
            (None, None) => Waits::default(),
        };
        Plan { seed: self.seed, waits, pace, attempts: self.attempts }
    }

    /// What who wants to have the same results has to know.
    pub(super) fn worth_telling(&self, plan: &Plan) -> Vec<(String, String)> {
        let mut options = vec![
            ("seed".to_owned(), self.seed.to_string()),
            ("attempts".to_owned(), self.attempts.to_string()),
            ("reply timeout".to_owned(), format!("{} ms", plan.waits.reply.as_millis())),
        ];
        let mut option = |name: &str, value: Option<String>| {
            options.extend(value.map(|value| (name.to_owned(), value)));
        };
        let slowest = |pace: Pace| format!("{:.1?}", pace.slowest);
        option("slowest answer of some", plan.pace.map(slowest));
        option("run", self.run.clone());
        option("agent", self.agent.clone());
        option("only", (!self.only.is_empty()).then(|| self.only.join(", ")));
        option("safe", self.safe.then(|| "hostile checks left out".into()));
        options
    }
}
