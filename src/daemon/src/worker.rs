//! A worker: a slot in a process of its own, for the programs of one user.
//!
//! The broker executes its own program again under the name [`NAME`], with the number of the user
//! and of the group, how it is to log, its end of the link as standard input, and as standard
//! output a pipe that is closed when it has begun. The process becomes that user's as far as the
//! broker may do so, gives up every right that it does not need, and serves ([`urxe_slot::serve`]).
//! Nothing of the user's is executed in it, and the user cannot look into it.

use crate::log::{self, SLOT, Style};
use rustix::io::Errno;
use rustix::process::{
    DumpableBehavior, Gid, Resource, Rlimit, Signal, Uid, getrlimit, getuid, set_dumpable_behavior,
    set_parent_process_death_signal, setrlimit, setsid,
};
use rustix::thread::{
    CapabilitySet, CapabilitySets, capability_is_in_ambient_set, set_capabilities,
    set_no_new_privs, set_thread_groups, set_thread_res_gid, set_thread_res_uid,
};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::process::ExitCode;

/// What a worker is called: its first argument, by which the program knows what it is to be.
pub(crate) const NAME: &str = "urxed-worker";

/// By how much a worker is more likely to be ended for want of memory than the broker is.
const OOM_SCORE_MORE: i32 = 200;

/// The most that the kernel knows.
const OOM_SCORE_MAX: i32 = 1000;

/// Serves one user's programs, if that is what this process was started for; `None` if it was
/// started for anything else.
///
/// To be called first in `main` of a program that names itself as [`Config::worker`].
///
/// [`Config::worker`]: crate::Config::worker
pub fn run_if_worker() -> Option<ExitCode> {
    let mut arguments = std::env::args_os();
    if arguments.next()? != NAME {
        return None;
    }
    let mut arguments = arguments.map(|argument| argument.to_string_lossy().into_owned());
    let mut id = || arguments.next()?.parse().ok().filter(|id| *id != u32::MAX);
    let ids = (id(), id());
    let style = arguments.next().and_then(|name| Style::named(&name));
    let filter = arguments.next().and_then(|filter| filter.parse().ok());
    log::begin_with(style.unwrap_or(Style::Text), filter.unwrap_or_default());
    let (Some(uid), Some(gid)) = ids else {
        tracing::error!(
            target: SLOT,
            "{NAME} is started by urxed alone, with a user and a group"
        );
        return Some(ExitCode::FAILURE);
    };
    let served = prepare(Uid::from_raw(uid), Gid::from_raw(gid)).map_err(|(step, error)| {
        tracing::error!(
            target: SLOT,
            uid,
            "a worker for user {uid} cannot begin: {step}: {error}"
        );
    });
    let served = served.and_then(|link| {
        urxe_slot::serve(link, None).map_err(|error| {
            tracing::error!(
                target: SLOT,
                uid,
                "the worker of user {uid} has ended, because {error}"
            );
        })
    });
    Some(served.map_or(ExitCode::FAILURE, |()| ExitCode::SUCCESS))
}

/// What could not be done, and why.
type Failure = (&'static str, io::Error);

fn step<T, E: Into<io::Error>>(name: &'static str, done: Result<T, E>) -> Result<T, Failure> {
    done.map_err(|error| (name, error.into()))
}

/// Makes this process what it is to be, and returns its end of the link.
fn prepare(uid: Uid, gid: Gid) -> Result<OwnedFd, Failure> {
    let link = step("taking the link", std::io::stdin().as_fd().try_clone_to_owned())?;
    let null = step("opening /dev/null", File::options().read(true).write(true).open("/dev/null"))?;
    step("closing the standard input", rustix::stdio::dup2_stdin(&null))?;
    // SLOT-128: by this the broker knows that it has begun.
    step("closing the standard output", rustix::stdio::dup2_stdout(null))?;
    step("leaving the directory", std::env::set_current_dir("/"))?;
    // Keys that are pressed at the broker's terminal are not for its workers. It is refused to one
    // that has a session of its own already.
    let _ = setsid();
    let _ = rustix::thread::set_name(c"urxed-worker");
    allow_many_descriptors();
    let _ = setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) });
    // Both are refused to the user that this process is going to be. Without them it only lives
    // longer than it should.
    let _ = offer_itself_when_memory_ends();
    if may_change_user()
        && let Err(errno) = become_user(uid, gid)
    {
        let uid = uid.as_raw();
        tracing::warn!(
            target: SLOT,
            uid,
            "the worker of user {uid} stays with urxed's own user: {errno}"
        );
    }
    let none = CapabilitySet::empty();
    let none = CapabilitySets { effective: none, permitted: none, inheritable: none };
    step("giving up capabilities", set_capabilities(None, none))?;
    step("giving up privileges", set_no_new_privs(true))?;
    // SLOT-104: by this its user cannot look into it. A change of user undoes both, so that they
    // come after it.
    let hidden = set_dumpable_behavior(DumpableBehavior::NotDumpable);
    step("hiding its memory", hidden)?;
    // SLOT-108: if it has ended already, so has the link.
    let bound = set_parent_process_death_signal(Some(Signal::KILL));
    step("being ended with the broker", bound)?;
    Ok(link)
}

/// Whether this process has the right to change its user from whom it was started by, and not from
/// the file that it executes: that would be a right for whoever executes it.
fn may_change_user() -> bool {
    let inherited = |right| capability_is_in_ambient_set(right).unwrap_or(false);
    getuid().is_root() || inherited(CapabilitySet::SETUID) && inherited(CapabilitySet::SETGID)
}

/// Changes to a user, for good. If it is refused halfway, there are fewer rights than before.
fn become_user(uid: Uid, gid: Gid) -> Result<(), Errno> {
    // This process has one thread.
    set_thread_groups(&[])?;
    set_thread_res_gid(gid, gid, gid)?;
    set_thread_res_uid(uid, uid, uid)
}

/// Every program takes a few descriptors, and the usual soft limit is 1,024. Where it cannot be
/// raised, fewer programs can connect.
pub(crate) fn allow_many_descriptors() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    let _ = setrlimit(Resource::Nofile, limit);
}

/// When there is no memory left, the kernel ends a worker rather than the broker.
fn offer_itself_when_memory_ends() -> io::Result<()> {
    const FILE: &str = "/proc/self/oom_score_adj";
    let own: i32 = std::fs::read_to_string(FILE)?.trim().parse().map_err(io::Error::other)?;
    std::fs::write(FILE, (own + OOM_SCORE_MORE).min(OOM_SCORE_MAX).to_string())
}
