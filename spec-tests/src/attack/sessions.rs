//! What a program does with sessions: many, silent ones, none that end as they should.

use super::program::Program;
use super::{Attack, Result, Setting, forever, program, wait};
use rustix::fs::{Mode, OFlags};
use rustix::process::{Pid, Signal, kill_process};
use std::os::fd::AsRawFd;
use std::time::Duration;
use urxe_shm::control::channel::{Channel, ChannelError};
use urxe_shm::control::{CaptureSpec, Cursor, Request, ResourceKind};

pub(super) const ATTACKS: &[Attack] = &[
    Attack::new(
        "computing",
        computing,
        "computes on every processor and asks for nothing, for comparison",
    ),
    Attack::new("silent-sessions", silent_sessions, "opens 1,100 connections and says nothing")
        .found("H8"),
    Attack::new("requests", requests, "asks as fast as it is answered"),
    Attack::new("connections", connections, "connects and goes, without end"),
    Attack::new("listings", listings, "asks for statistics and listings without end"),
    Attack::new(
        "unread-capture",
        unread_capture,
        "captures all packets, and reads none of them; some pipes it fills itself",
    ),
    Attack::new("session-bomb", session_bomb, "four threads open devices and go, without end"),
    Attack::new(
        "session-forks",
        session_forks,
        "dozens of processes ask as fast as they are answered",
    ),
    Attack::new(
        "unread-replies",
        unread_replies,
        "asks and reads no reply, in hundreds of sessions",
    ),
    Attack::new(
        "killed-programs",
        killed_programs,
        "its programs die of signals in the midst of traffic",
    ),
];

/// What the scheduler makes of a neighbour, without any doing of the daemon's.
fn computing(_: &Setting, ready: &mut dyn FnMut()) -> Result {
    let processors = std::thread::available_parallelism()?.get();
    for _ in 1..processors {
        std::thread::spawn(|| {
            loop {
                std::hint::spin_loop();
            }
        });
    }
    ready();
    loop {
        std::hint::spin_loop();
    }
}

fn silent_sessions(setting: &Setting, ready: &mut dyn FnMut()) -> Result {
    let channels: Vec<_> =
        (0..1_100).map_while(|_| Channel::connect(&setting.socket).ok()).collect();
    ready();
    wait()?;
    drop(channels);
    Ok(())
}

fn requests(setting: &Setting, ready: &mut dyn FnMut()) -> Result {
    let mut program = program(setting)?;
    let context = program.context;
    ready();
    forever(|| program.call(&Request::QueryDevice { context }).map(drop))
}

fn connections(setting: &Setting, ready: &mut dyn FnMut()) -> Result {
    ready();
    forever(|| {
        // One that is refused is tried again.
        drop(Channel::connect(&setting.socket));
        Ok(())
    })
}

fn listings(setting: &Setting, ready: &mut dyn FnMut()) -> Result {
    let mut program = program(setting)?;
    ready();
    let device = || "urxe0".to_owned();
    forever(|| {
        program.call(&Request::Stats { device: device(), from: Cursor::default() })?;
        program.call(&Request::Paths { device: device(), from: Cursor::default() })?;
        let kind = ResourceKind::Qp;
        let all = Request::Resources { device: device(), kind, from: Cursor::default() };
        program.call(&all).map(drop)
    })
}

fn unread_capture(setting: &Setting, ready: &mut dyn FnMut()) -> Result {
    let mut program = program(setting)?;
    let spec = CaptureSpec { snaplen: u32::MAX, ..CaptureSpec::default() };
    program.call(&Request::BeginCapture(spec))?;
    let mut pipes = Vec::new();
    while let Some(pipe) = program.call_with(&Request::NextCaptureStream, &[])?.1.pop() {
        if pipes.len() % 2 == 1 {
            let path = format!("/proc/self/fd/{}", pipe.as_raw_fd());
            let flags = OFlags::WRONLY | OFlags::NONBLOCK;
            // A pipe of another user's making may not be opened again.
            if let Ok(own) = rustix::fs::open(path, flags, Mode::empty()) {
                while rustix::io::write(&own, &[0xa5; 4096]).is_ok() {}
            }
        }
        pipes.push(pipe);
    }
    ready();
    wait()
}

fn session_bomb(setting: &Setting, ready: &mut dyn FnMut()) -> Result {
    let socket = &setting.socket;
    std::thread::scope(|scope| {
        for _ in 0..4 {
            // One that is refused tries again.
            scope.spawn(|| {
                loop {
                    drop(Program::new(socket, "urxe0"));
                }
            });
        }
        ready();
    });
    Ok(())
}

fn session_forks(setting: &Setting, ready: &mut dyn FnMut()) -> Result {
    let start = |_| setting.other_attacker("requests").spawn();
    let children = (0..setting.many(128, 24)).map(start).collect::<std::io::Result<Vec<_>>>()?;
    ready();
    wait()?;
    drop(children);
    Ok(())
}

fn unread_replies(setting: &Setting, ready: &mut dyn FnMut()) -> Result {
    let mut programs = Vec::new();
    for _ in 0..setting.many(256, 32) {
        let Ok(program) = program(setting) else { break };
        programs.push(program);
    }
    ready();
    forever(|| {
        for program in &mut programs {
            let request = Request::ListCauses;
            match program.channel.send(&request, &[]) {
                Ok(()) | Err(ChannelError::WouldBlock) => {}
                // It has lost its session, and has another.
                Err(_) => *program = self::program(setting)?,
            }
        }
        Ok(())
    })
}

fn killed_programs(setting: &Setting, ready: &mut dyn FnMut()) -> Result {
    let mut is_ready = false;
    let ends = [Signal::KILL, Signal::SEGV, Signal::STOP];
    for signal in ends.into_iter().cycle() {
        let start = |_| setting.other_attacker("greedy").spawn();
        let children = (0..4).map(start).collect::<std::io::Result<Vec<_>>>()?;
        std::thread::sleep(Duration::from_millis(100));
        if !std::mem::replace(&mut is_ready, true) {
            ready();
        }
        for mut child in children {
            // It may have ended by itself.
            let _ = kill_process(Pid::from_child(&child), signal);
            std::thread::sleep(Duration::from_millis(10));
            let _ = child.kill();
            child.wait()?;
        }
    }
    Ok(())
}
