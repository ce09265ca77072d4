//! What a user does with the worker that serves its programs: a process of that user.

use super::program::Program;
use super::{Attack, Result, Setting, forever, program};
use rustix::process::{Pid, Resource, Rlimit, Signal, getuid, kill_process, prlimit};
use std::fs;
use std::time::Duration;
use urxe_shm::control::Request;

pub(super) const ATTACKS: &[Attack] = &[
    Attack::new("killed-worker", killed_worker, "kills its worker as often as it is started")
        .found("T17")
        .of_workers(),
    Attack::new("crashed-worker", crashed_worker, "has its worker end by a fault of memory")
        .found("T17")
        .of_workers(),
    Attack::new("stopped-worker", stopped_worker, "stops its worker, and goes on asking")
        .of_workers(),
    Attack::new(
        "starved-worker",
        starved_worker,
        "takes descriptors and addresses from its worker",
    )
    .of_workers(),
];

/// The worker of this user, if it runs.
fn worker() -> Option<Pid> {
    let is_own_worker = |process: &fs::DirEntry| {
        let status = fs::read_to_string(process.path().join("status")).unwrap_or_default();
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name))?;
            line.split_whitespace().next()
        };
        field("Name:") == Some("urxed-worker")
            && field("Uid:") == Some(&*getuid().as_raw().to_string())
    };
    let processes = fs::read_dir("/proc").ok()?.flatten();
    let own =
        processes.filter(is_own_worker).find_map(|process| process.file_name().into_string().ok());
    Pid::from_raw(own?.parse().ok()?)
}

/// A program of this user and its worker, as soon as they can be had: one that has just been ended
/// is not started again at once.
fn served(setting: &Setting) -> Result<(Program, Pid)> {
    for _ in 0..100 {
        if let (Ok(program), Some(worker)) = (program(setting), worker()) {
            return Ok((program, worker));
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    Err("no worker".into())
}

/// Sends a signal to the worker, again when there is a new one, and asks for one meanwhile.
fn send_to_worker(setting: &Setting, ready: &mut dyn FnMut(), signal: Signal) -> Result {
    let mut is_ready = false;
    forever(|| {
        // It is refused while the worker is not started again.
        let program = program(setting);
        if let Some(worker) = worker() {
            // It may have ended meanwhile.
            let _ = kill_process(worker, signal);
            if !std::mem::replace(&mut is_ready, true) {
                ready();
            }
        }
        drop(program);
        std::thread::sleep(Duration::from_millis(20));
        Ok(())
    })
}

fn killed_worker(setting: &Setting, ready: &mut dyn FnMut()) -> Result {
    send_to_worker(setting, ready, Signal::KILL)
}

fn crashed_worker(setting: &Setting, ready: &mut dyn FnMut()) -> Result {
    send_to_worker(setting, ready, Signal::SEGV)
}

fn stopped_worker(setting: &Setting, ready: &mut dyn FnMut()) -> Result {
    let (mut program, worker) = served(setting)?;
    kill_process(worker, Signal::STOP)?;
    program.channel.send(&Request::ListDevices, &[])?;
    ready();
    forever(|| {
        let another = urxe_shm::control::channel::Channel::connect(&setting.socket);
        std::thread::sleep(Duration::from_millis(10));
        drop(another);
        Ok(())
    })
}

fn starved_worker(setting: &Setting, ready: &mut dyn FnMut()) -> Result {
    let (program, worker) = served(setting)?;
    for resource in [Resource::Nofile, Resource::As, Resource::Fsize] {
        let none = Rlimit { current: Some(0), maximum: Some(0) };
        prlimit(Some(worker), resource, none)?;
    }
    drop(program);
    ready();
    forever(|| {
        drop(self::program(setting));
        std::thread::sleep(Duration::from_millis(1));
        Ok(())
    })
}
