//! What a program does with the memory that it registers.

use super::program::CAPS;
use super::{Attack, Result, Setting, forever, program, wait};
use rustix::process::getgid;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;
use urxe_shm::control::{Backing, Request, WhyCopied};
use urxe_shm::memory::region::{Mapping, create_memfd};
use urxe_types::{SendData, SendOp, SendWr, Sge};

pub(super) const ATTACKS: &[Attack] = &[
    Attack::new(
        "address-space",
        address_space,
        "128 sessions map a sparse file of 1 TiB and halves of that",
    )
    .found("C2"),
    Attack::new(
        "locked-memory",
        locked_memory,
        "has its own memory written to while it forks, which locks its page table",
    )
    .found("C4"),
    Attack::new(
        "sparse-memory",
        sparse_memory,
        "has a sparse file of its own written to, page by page",
    )
    .found("M9"),
    Attack::new("cut-memory", cut_memory, "cuts its file short while a peer writes to it")
        .found("T12"),
    Attack::new("mr-churn", mr_churn, "registers and deregisters a gigabyte"),
    Attack::new(
        "mr-storm",
        mr_storm,
        "registers as many files as it may, deregisters them, and again",
    ),
    Attack::new("unmapped-memory", unmapped_memory, "unmaps its memory while a peer writes to it")
        .found("T9"),
];

fn address_space(setting: &Setting, ready: &mut dyn FnMut()) -> Result {
    let mut programs = Vec::new();
    for _ in 0..setting.many(128, 128) {
        let Ok(mut program) = program(setting) else { break };
        let mut len = 1u64 << 40;
        while len >= 1 << 21 {
            if program.shared_mr(len).is_err() {
                len /= 2;
            }
        }
        programs.push(program);
    }
    ready();
    wait()
}

fn locked_memory(setting: &Setting, ready: &mut dyn FnMut()) -> Result {
    let mut program = program(setting)?;
    let mut pair = program.connected_pair(setting.addrs[0], CAPS)?;
    // Pages that are there: a fork copies the table of all of them.
    let memory = vec![1u8; setting.many(2 << 30, 512 << 20)];
    let none = create_memfd("none", 4096)?;
    let addr = memory.as_ptr() as u64;
    let target =
        program.register(&none, addr, 1 << 20, Backing::Process { why: WhyCopied::NotAsked })?;
    let (source, _memfd) = program.shared_mr(1 << 16)?;
    std::thread::spawn(|| {
        loop {
            // With a group to change to, it forks.
            let _ = Command::new("/bin/true").gid(getgid().as_raw()).status();
        }
    });
    ready();
    let [a, _] = &mut pair;
    forever(|| {
        program.write(a, &source, &target, 0, 1 << 16);
        std::thread::sleep(Duration::from_micros(100));
        Ok(())
    })
}

fn sparse_memory(setting: &Setting, ready: &mut dyn FnMut()) -> Result {
    let len = setting.many(1 << 30, 256 << 20) as u64;
    let mut program = program(setting)?;
    let mut pair = program.connected_pair(setting.addrs[0], CAPS)?;
    let (target, _target) = program.shared_mr(len)?;
    let (source, _source) = program.shared_mr(4096)?;
    let [a, _] = &mut pair;
    let (mut at, mut is_ready) = (0, false);
    forever(|| {
        program.forget_completions()?;
        if at == len / 2 && !std::mem::replace(&mut is_ready, true) {
            ready();
        }
        // Unsignaled ones keep their places until one behind them has completed.
        let wr = SendWr {
            op: SendOp::Write { remote_addr: at, rkey: target.rkey, imm: None },
            signaled: true,
            ..SendWr::default()
        };
        let sge = Sge { addr: 0, length: 8, lkey: source.lkey };
        if a.sends.push(&wr, SendData::Sges(&[sge])).is_ok() {
            at = (at + 4096) % len;
            a.sends.publish();
            program.ring(a.created.doorbell_slot);
        } else {
            std::thread::sleep(Duration::from_micros(20));
        }
        Ok(())
    })
}

fn cut_memory(setting: &Setting, ready: &mut dyn FnMut()) -> Result {
    let mut program = program(setting)?;
    let mut pair = program.connected_pair(setting.addrs[0], CAPS)?;
    let (target, memfd) = program.shared_mr(1 << 20)?;
    let (source, _source) = program.shared_mr(1 << 20)?;
    let [a, _] = &mut pair;
    ready();
    forever(|| {
        program.write(a, &source, &target, 0, 1 << 20);
        // Refused, if it was sealed.
        let _ = rustix::fs::ftruncate(&memfd, 0);
        let _ = rustix::fs::ftruncate(&memfd, 1 << 20);
        std::thread::sleep(Duration::from_micros(20));
        Ok(())
    })
}

fn mr_churn(setting: &Setting, ready: &mut dyn FnMut()) -> Result {
    let mut program = program(setting)?;
    ready();
    forever(|| {
        let (mr, _memfd) = program.shared_mr(1 << 30)?;
        program.call(&Request::DeregMr { mr: mr.handle }).map(drop)
    })
}

fn mr_storm(setting: &Setting, ready: &mut dyn FnMut()) -> Result {
    let mut program = program(setting)?;
    let memfd = create_memfd("attack", 1 << 20)?;
    ready();
    forever(|| {
        let mut mrs = Vec::new();
        while let Ok(mr) = program.register(&memfd, 0, 4096, Backing::Shared { offset: 0 }) {
            mrs.push(mr);
        }
        for mr in mrs {
            program.call(&Request::DeregMr { mr: mr.handle })?;
        }
        Ok(())
    })
}

fn unmapped_memory(setting: &Setting, ready: &mut dyn FnMut()) -> Result {
    const LEN: usize = 1 << 20;
    let mut program = program(setting)?;
    let memfd = create_memfd("target", LEN as u64)?;
    let (source, _source) = program.shared_mr(LEN as u64)?;
    ready();
    forever(|| {
        // A WRITE that finds nothing there ends its QP.
        let mut pair = program.connected_pair(setting.addrs[0], CAPS)?;
        let mapping = Mapping::new(&memfd, 0, LEN)?;
        let addr = mapping.base().addr().get() as u64;
        let target = program.register(
            &memfd,
            addr,
            LEN as u64,
            Backing::Process { why: WhyCopied::NotAsked },
        )?;
        for _ in 0..CAPS.max_send_wr {
            program.write(&mut pair[0], &source, &target, 0, LEN as u32);
        }
        std::thread::sleep(Duration::from_micros(200));
        drop(mapping);
        for qp in pair {
            program.call(&Request::DestroyQp { qp: qp.created.qp })?;
        }
        program.call(&Request::DeregMr { mr: target.handle }).map(drop)
    })
}
