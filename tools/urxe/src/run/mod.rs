//! `urxe run`: an unmodified verbs program on urxe.
//!
//! Nothing of the program or of its libraries is replaced. The loader is told to load
//! `liburxe_shim.so` first, which was installed with this binary or is unpacked from it, and stands
//! where the kernel's verbs devices would be; a daemon is found or started; and then this process
//! becomes the program, so that signals and the exit status are its own.

mod address;
mod background;
mod carried;
mod elf;
mod library;
mod package;
mod program;
mod sanitizer;
mod trust;

pub(crate) use address::{choose as choose_address, free_loopback};
pub(crate) use library::{
    Missing as MissingLibrary, find as find_library, forget as forget_library,
};

use crate::output;
use clap::Args;
use std::ffi::OsString;
use std::fmt;
use std::io;
use std::net::IpAddr;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::str::FromStr;
use urxe_daemon::Wire;
use urxe_port::fault::{FaultSpec, FaultSpecError};

const EXAMPLES: &str = "\
Examples:
  urxe run ib_write_bw                in one terminal, and
  urxe run ib_write_bw localhost      in another: RDMA on this machine, by stock programs.
  urxe run ibv_devinfo -v
      Look at the device that programs see.
  urxe run ib_write_bw 10.0.0.1
      The peer is another machine, where `urxe run ib_write_bw` waits.
  urxe run --addr 127.0.0.1 -- ibv_rc_pingpong -g 0                 in one terminal, and
  urxe run --addr 127.0.0.2 -- ibv_rc_pingpong -g 0 localhost       in another:
      two devices, each with a daemon of its own.
  urxe run --wire strict ib_write_bw 10.0.0.1
      The peer is to see the packets that rdma_rxe would send.
  urxe run --fault drop=1% --capture lossy.pcapng ./my_program
      On a network that loses packets, recorded for Wireshark.
  urxe run --in-process ib_write_bw 10.0.0.1
      The program sends and receives by itself, without the daemon's help.
  urxe run --explain ./my_program
      A line on stderr for each verb that is refused and each work request that fails: why, and
      what to change.
  urxe run -- bash
      Every program that is started in this shell.

If no daemon runs, one is started for the address with which this machine reaches the network, or,
if another user's daemon has that, for a loopback address; it ends by itself 10 seconds after its
last program (one with --capture). All users share the daemon that root runs with `urxed --mode
666`. `urxe doctor` tells what is missing if something is. The program keeps its name, its terminal,
its signals and its exit code; if it cannot be run, the exit code is 127 (not found), 126 (cannot be
executed) or 125 (anything else).

When the daemon ends before the program, outstanding work requests complete with
IBV_WC_WR_FLUSH_ERR, then ibv_poll_cq fails; IBV_EVENT_DEVICE_FATAL comes, and a line on stderr says
so (URXE_QUIET=1 keeps it away, and all that --explain says). A program that looks only at memory
which its peer writes to cannot be told. The shared runtime of a sanitizer (gcc -fsanitize=address)
is loaded before the shim if PROGRAM itself asks for it; in a script, set
ASAN_OPTIONS=verify_asan_link_order=0.

URXE_MR=copy leaves all memory of the program as it is, URXE_MR=remap has the daemon map more of it;
URXE_SHIM=PATH loads this library in place of the one that `urxe` finds.";

/// Run a program that uses libibverbs, unmodified, on urxe.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// Use a device on this address of this machine, and if no daemon has it, start one for it.
    #[arg(long, value_name = "ADDR")]
    addr: Option<IpAddr>,

    /// Use a device of this name, and if no daemon has it, start one that does: for programs that
    /// insist on one such as mlx5_0.
    #[arg(long, value_name = "NAME")]
    name: Option<String>,

    /// Use a daemon that sends RC messages in this form, and if none was started for it, start one;
    /// `urxe daemon --help` tells more [default: any that runs].
    #[arg(long, value_name = "FORM", value_enum)]
    wire: Option<Wire>,

    /// Use a daemon that breaks the network so, and if none was started for it, start one; `urxe
    /// daemon --help` tells more [default: any that runs].
    ///
    /// What PROGRAM sends and receives is lost, repeated, delayed or damaged, as the comma list
    /// says: `drop=1%,seed=7`, `drop:write:3`. A daemon that runs is left as it is; where it has
    /// this machine's address, the new one is on a loopback address.
    #[arg(long, value_name = "SPEC")]
    fault: Option<FaultText>,

    /// Use a daemon that records all packets in a pcapng file, and if none was started for it,
    /// start one.
    ///
    /// A daemon that runs is left as it is, as with --fault; `urxe capture` shows its packets. The
    /// file is whole a second after PROGRAM has ended.
    #[arg(long, value_name = "FILE")]
    capture: Option<PathBuf>,

    /// The daemon: `auto` takes one that runs ($URXE_SOCKET, this user's, the system's) or starts
    /// one; a path is the socket of one that runs.
    #[arg(long, value_name = "auto|PATH", default_value_t)]
    daemon: DaemonChoice,

    /// Run the data path in PROGRAM itself, in a thread of the shim's, and not in the daemon.
    ///
    /// It takes a daemon of one's own user; where there can be no such slot, a line on stderr says
    /// why and the daemon serves the program as usual. The thread has descriptors of its own and
    /// gets no signals; a process that PROGRAM forks has a slot of its own when it opens a device.
    /// While PROGRAM is stopped its device is silent. URXE_IN_PROCESS=1 means the same.
    #[arg(long)]
    in_process: bool,

    /// Say on stderr why a verb is refused and why a work request fails, each cause once.
    ///
    /// LEVEL is error (refusals and failures), warn (also flushed work requests and what the device
    /// does not have), info or debug. URXE_LOG=LEVEL means the same. A program that has replaced
    /// its stderr by a file of its own is told nothing.
    #[arg(
        long, value_name = "LEVEL", value_enum, num_args = 0..=1, require_equals = true,
        default_missing_value = "warn"
    )]
    explain: Option<LogLevel>,

    /// The program and its arguments.
    #[arg(required = true, trailing_var_arg = true, value_name = "PROGRAM")]
    command: Vec<OsString>,
}

/// Faults as they were asked for, which are some that there are.
#[derive(Clone, Debug, PartialEq, Eq)]
struct FaultText(String);

impl FromStr for FaultText {
    type Err = FaultSpecError;

    fn from_str(text: &str) -> Result<Self, FaultSpecError> {
        text.parse::<FaultSpec>().map(|_| FaultText(text.into()))
    }
}

/// How much is said of what was refused, and of what has failed: values of `URXE_LOG`.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
enum LogLevel {
    Error,
    Warn,
    Info,
    Debug,
}

impl LogLevel {
    fn name(self) -> &'static str {
        match self {
            LogLevel::Error => "error",
            LogLevel::Warn => "warn",
            LogLevel::Info => "info",
            LogLevel::Debug => "debug",
        }
    }
}

/// Which daemon a program is to have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
enum DaemonChoice {
    /// One that runs, or else one that is started.
    #[default]
    Auto,
    /// The one that answers at this socket.
    At(PathBuf),
}

impl FromStr for DaemonChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "" => Err("expected `auto` or the path of a daemon's socket".into()),
            "auto" => Ok(DaemonChoice::Auto),
            path => Ok(DaemonChoice::At(path.into())),
        }
    }
}

impl fmt::Display for DaemonChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DaemonChoice::Auto => f.write_str("auto"),
            DaemonChoice::At(path) => path.display().fmt(f),
        }
    }
}

/// Why a program was not run.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RunError {
    /// Arguments that contradict each other.
    #[error("--{option} {value} and --daemon {}: the daemon that runs there is as it was started; \
             give one of the two", .socket.display())]
    PropertyOfDaemon { option: &'static str, value: String, socket: PathBuf },
    #[error(transparent)]
    Library(#[from] library::Missing),
    #[error(transparent)]
    Program(#[from] program::Unfit),
    #[error(transparent)]
    Daemon(#[from] background::NoDaemon),
    #[error("{}: command not found{}", .program.display(), whence(.program))]
    NotFound { program: PathBuf },
    /// The system does not execute it.
    #[error("{}: {source}", .program.display())]
    Exec { program: PathBuf, source: io::Error },
}

impl RunError {
    /// The exit code, as `env` and `nohup` have it: the program's own are other ones.
    fn exit_code(&self) -> u8 {
        match self {
            RunError::NotFound { .. } | RunError::Program(program::Unfit::NoInterpreter { .. }) => {
                127
            }
            RunError::Exec { source, .. } if source.kind() == io::ErrorKind::NotFound => 127,
            RunError::Exec { .. } | RunError::Program(_) => 126,
            _ => 125,
        }
    }
}

/// Where a program is to be had, if that is known, to follow what is missing.
fn whence(program: &Path) -> String {
    package::of(program.as_os_str()).map_or_else(String::new, |package| {
        format!("; it is in the Debian package {package} (apt-get install {package})")
    })
}

/// Becomes the program; returns only if that fails.
pub(crate) fn run(arguments: &Arguments) -> ExitCode {
    let error = become_program(arguments);
    output::note(format_args!("urxe run: {error}"));
    error.exit_code().into()
}

fn become_program(arguments: &Arguments) -> RunError {
    match prepare(arguments) {
        Ok((mut command, daemon)) => {
            daemon.hold_for_ever();
            let source = command.exec();
            RunError::Exec { program: command.get_program().into(), source }
        }
        Err(error) => error,
    }
}

/// The program as it is to be executed, and the daemon that it will use.
fn prepare(arguments: &Arguments) -> Result<(Command, background::Daemon), RunError> {
    let Some((name, rest)) = arguments.command.split_first() else {
        unreachable!("clap requires a program");
    };
    let library = library::find()?;
    let Some(path) = program::search(name) else {
        let (program, source) = (PathBuf::from(name), rustix::io::Errno::NOENT.into());
        return Err(match name.as_encoded_bytes().contains(&b'/') {
            true => RunError::Exec { program, source },
            false => RunError::NotFound { program },
        });
    };
    // Before a daemon is started for nothing.
    if let Some(warning) = program::check(&path, &library)? {
        output::note(format_args!("urxe run: {warning}"));
    }
    let capture = arguments.capture.as_deref().map(absolute);
    let wanted = background::Wanted {
        addr: arguments.addr,
        name: arguments.name.as_deref(),
        wire: arguments.wire,
        fault: arguments.fault.as_ref().map(|FaultText(text)| text.as_str()),
        capture: capture.as_deref(),
    };
    let daemon = match &arguments.daemon {
        DaemonChoice::Auto => background::find_or_start(&wanted)?,
        DaemonChoice::At(socket) => {
            if let Some((option, value)) = wanted.first() {
                let socket = socket.clone();
                return Err(RunError::PropertyOfDaemon { option, value, socket });
            }
            background::find(socket)?
        }
    };
    let mut command = Command::new(name);
    command.args(rest);
    let (runtime, before) = (sanitizer::runtime_of(&path), std::env::var_os("LD_PRELOAD"));
    command.env("LD_PRELOAD", library::preload(runtime.as_deref(), &library, before));
    command.env("URXE_SOCKET", daemon.socket());
    if arguments.in_process {
        command.env("URXE_IN_PROCESS", "1");
    }
    if let Some(level) = arguments.explain {
        command.env("URXE_LOG", level.name());
    }
    Ok((command, daemon))
}

/// A path that means the same in every directory.
fn absolute(path: &Path) -> PathBuf {
    // It fails for an empty path only, and for one in a directory that is gone.
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}
