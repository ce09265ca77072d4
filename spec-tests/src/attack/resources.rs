//! What a daemon and its workers have: as the kernel counts it, and as the daemon says itself.

use super::Result;
use rustix::process::{Pid, Signal, kill_process};
use serde::Serialize;
use std::path::Path;
use urxe_shm::control::channel::Channel;
use urxe_shm::control::{Cursor, Reply, Request, ResourceKind};

/// What there is.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Resources {
    /// Mebibytes that are resident in the daemon itself.
    pub of_daemon: i64,
    /// Mebibytes that are resident in the daemon and the workers.
    pub memory: i64,
    /// Open descriptors of them.
    pub descriptors: i64,
    /// Their threads.
    pub threads: i64,
    /// Programs that are connected.
    pub sessions: i64,
    /// Objects on both devices: QPs, CQs, SRQs, MRs, windows, ids of the connection manager.
    pub objects: i64,
}

/// More mebibytes than this are growth, and not tables that were made once, or what the allocator
/// keeps of the buffers that as many sessions had as there can be: 64 KiB each.
const MEMORY: i64 = 80;

/// More descriptors than this are: sockets for source ports are opened when they are first used.
const DESCRIPTORS: i64 = 48;

/// More threads than this are: one that closes descriptors ends a little later.
const THREADS: i64 = 2;

impl Resources {
    /// What there is more than there was.
    pub fn minus(self, before: &Resources) -> Resources {
        Resources {
            of_daemon: self.of_daemon - before.of_daemon,
            memory: self.memory - before.memory,
            descriptors: self.descriptors - before.descriptors,
            threads: self.threads - before.threads,
            sessions: self.sessions - before.sessions,
            objects: self.objects - before.objects,
        }
    }

    /// As a difference, what of it is growth.
    pub fn growth(&self) -> impl Iterator<Item = &'static str> {
        let candidates = [
            (self.memory.max(self.of_daemon) > MEMORY, "memory left"),
            (self.descriptors > DESCRIPTORS, "descriptors left"),
            (self.threads > THREADS, "threads left"),
            (self.sessions > 0, "sessions left"),
            (self.objects > 0, "objects left"),
        ];
        candidates.into_iter().filter(|(is_so, _)| *is_so).map(|(_, problem)| problem)
    }

    /// As a difference, whether there is no growth.
    pub fn is_nothing(&self) -> bool {
        self.growth().next().is_none()
    }
}

/// Looks at a daemon from outside.
pub(super) struct Watcher {
    channel: Channel,
}

impl Watcher {
    /// Of the daemon's own user, to whom it shows everything.
    pub(super) fn new(socket: &Path) -> Result<Watcher> {
        let mut channel = Channel::connect(socket)?;
        channel.call(&Request::Hello { program: "watcher".into() }, &[])?;
        Ok(Watcher { channel })
    }

    /// What a daemon has and those of its workers that serve one of these users.
    pub(super) fn look(&mut self, daemon: u32, users: &[u32]) -> Result<Resources> {
        let (sessions, objects) = (self.sessions()?, self.objects()?);
        Ok(Resources { sessions, objects, ..of_processes(daemon, users) })
    }

    fn sessions(&mut self) -> Result<i64> {
        let request = Request::Stats { device: "urxe0".into(), from: Cursor::default() };
        let Reply::Stats(page) = self.channel.call(&request, &[])?.0 else {
            return Err("no counters".into());
        };
        let count = |name: &str| {
            let counter = page.device.iter().find(|(info, _)| info.name == name);
            counter.map(|(_, count)| *count as i64).ok_or(format!("no counter {name}"))
        };
        Ok(count("sessions_opened")? - count("sessions_closed")?)
    }

    fn objects(&mut self) -> Result<i64> {
        use ResourceKind::*;
        let mut count = 0;
        for kind in [Qp, Cq, Srq, Mr, Mw, CmId] {
            for device in ["urxe0", "urxe1"] {
                let mut next = Some(Cursor::default());
                while let Some(from) = next {
                    let request = Request::Resources { device: device.into(), kind, from };
                    let Reply::Resources(page) = self.channel.call(&request, &[])?.0 else {
                        return Err("no list of objects".into());
                    };
                    count += page.resources.len() as i64;
                    next = page.next;
                }
            }
        }
        Ok(count)
    }
}

/// What the kernel counts of a daemon and of its workers that serve one of these users.
pub(super) fn of_processes(daemon: u32, users: &[u32]) -> Resources {
    let workers = workers_of(daemon).into_iter();
    let of_users = workers.filter(|worker| user(*worker).is_some_and(|u| users.contains(&u)));
    let all: Vec<u32> = of_users.chain([daemon]).collect();
    let sum = |count: fn(u32) -> i64| all.iter().map(|process| count(*process)).sum();
    Resources {
        of_daemon: resident(daemon),
        memory: sum(resident),
        descriptors: sum(descriptors),
        threads: sum(threads),
        ..Resources::default()
    }
}

/// The processes that a daemon has started, whichever of its threads did.
pub(super) fn workers_of(daemon: u32) -> Vec<u32> {
    let threads = std::fs::read_dir(format!("/proc/{daemon}/task")).into_iter().flatten();
    let children = threads.flatten().map(|thread| thread.path().join("children"));
    let children: String = children.flat_map(std::fs::read_to_string).collect();
    children.split_whitespace().filter_map(|number| number.parse().ok()).collect()
}

/// Ends the worker of a user.
pub(super) fn kill_worker_of(daemon: u32, of: u32) {
    let workers = workers_of(daemon).into_iter().filter(|worker| user(*worker) == Some(of));
    for worker in workers.filter_map(|worker| Pid::from_raw(worker as i32)) {
        // It may have ended meanwhile.
        let _ = kill_process(worker, Signal::KILL);
    }
}

/// The first word behind a name in a process's status.
fn status(process: u32, name: &str) -> Option<String> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    Some(line.split_whitespace().next()?.to_owned())
}

fn number(process: u32, name: &str) -> Option<i64> {
    status(process, name)?.parse().ok()
}

fn user(process: u32) -> Option<u32> {
    number(process, "Uid:")?.try_into().ok()
}

/// In mebibytes.
fn resident(process: u32) -> i64 {
    number(process, "VmRSS:").unwrap_or(0) / 1024
}

fn threads(process: u32) -> i64 {
    number(process, "Threads:").unwrap_or(0)
}

fn descriptors(process: u32) -> i64 {
    std::fs::read_dir(format!("/proc/{process}/fd")).map_or(0, Iterator::count) as i64
}
