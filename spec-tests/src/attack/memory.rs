//! What a program does with the memory that it registers.

use super::fuse::Mount;
use super::program::CAPS;
use super::{Attack, Result, Setting, forever, program, wait};
use crate::rng::Rng;
use rustix::fs::FallocateFlags;
use rustix::process::getgid;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;
use urxe_shm::control::{Backing, MwHandle, Reply, Request, WhyCopied};
use urxe_shm::memory::region::{Mapping, create_memfd};
use urxe_types::{MwType, SendData, SendOp, SendWr, Sge};

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
    // What to compare it with.
    Attack::new("forks", forks, "none: forks as that does, and has no session").of_strangers(),
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
    Attack::new(
        "cut-rings",
        cut_rings,
        "cuts the file of its rings and doorbells short, and punches holes into it, under traffic",
    ),
    Attack::new(
        "swapped-memory",
        swapped_memory,
        "deregisters and registers its memory without end while peers write to it",
    ),
    Attack::new(
        "killed-registrations",
        killed_registrations,
        "its programs are killed in the midst of registering a gigabyte",
    ),
    Attack::new(
        "unanswered-memory",
        unanswered_memory,
        "has its own memory written to, which is a file whose server does not answer",
    )
    .found("T3")
    .of_workers(),
    Attack::new("windows", windows, "takes as many memory windows as it may, and gives them back"),
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
    let memory = much_memory(setting);
    let none = create_memfd("none", 4096)?;
    let addr = memory.as_ptr() as u64;
    let target =
        program.register(&none, addr, 1 << 20, Backing::Process { why: WhyCopied::NotAsked })?;
    let (source, _memfd) = program.shared_mr(1 << 16)?;
    std::thread::spawn(fork_forever);
    ready();
    let [a, _] = &mut pair;
    forever(|| {
        program.write(a, &source, &target, 0, 1 << 16);
        std::thread::sleep(Duration::from_micros(100));
        Ok(())
    })
}

fn forks(setting: &Setting, ready: &mut dyn FnMut()) -> Result {
    let _memory = much_memory(setting);
    ready();
    fork_forever()
}

/// Memory whose pages are there: a fork copies the table of all of them.
fn much_memory(setting: &Setting) -> Vec<u8> {
    vec![1; setting.many(2 << 30, 512 << 20)]
}

fn fork_forever() -> ! {
    loop {
        // With a group to change to, it forks.
        let _ = Command::new("/bin/true").gid(getgid().as_raw()).status();
    }
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

fn cut_rings(setting: &Setting, ready: &mut dyn FnMut()) -> Result {
    let mut program = program(setting)?;
    let (target, _target) = program.shared_mr(4096)?;
    ready();
    forever(|| {
        let mut pair = program.connected_pair(setting.addrs[0], CAPS)?;
        for _ in 0..50 {
            program.write(&mut pair[0], &target, &target, 0, 4096);
            // Refused, if it was sealed; else the next access to it is the end of this program.
            let _ = rustix::fs::ftruncate(&program.arena, 0);
            let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            let _ = rustix::fs::fallocate(&program.arena, punch, 0, 1 << 24);
        }
        for qp in pair {
            program.call(&Request::DestroyQp { qp: qp.created.qp })?;
        }
        Ok(())
    })
}

fn swapped_memory(setting: &Setting, ready: &mut dyn FnMut()) -> Result {
    const LEN: u64 = 1 << 20;
    let addr = setting.addrs[0];
    let mut program = program(setting)?;
    let memfd = create_memfd("target", LEN)?;
    let (source, _source) = program.shared_mr(LEN)?;
    let [mut a, mut b] = program.connected_pair(addr, CAPS)?;
    ready();
    forever(|| {
        let target = program.register(&memfd, 0, LEN, Backing::Shared { offset: 0 })?;
        for _ in 0..4 {
            program.write(&mut a, &source, &target, 0, LEN as u32);
        }
        program.call(&Request::DeregMr { mr: target.handle })?;
        // A WRITE that finds no memory ends both QPs.
        for qp in [&mut a, &mut b] {
            program.reset(qp)?;
        }
        program.connect(&a, addr, b.created.qpn)?;
        program.connect(&b, addr, a.created.qpn)
    })
}

fn killed_registrations(setting: &Setting, ready: &mut dyn FnMut()) -> Result {
    let mut rng = Rng::new(1);
    ready();
    forever(|| {
        let start = |_| setting.other_attacker("mr-churn").spawn();
        for mut child in (0..4).map(start).collect::<std::io::Result<Vec<_>>>()? {
            std::thread::sleep(Duration::from_millis(rng.range(1..=20)));
            // It may have ended by itself.
            let _ = child.kill();
            child.wait()?;
        }
        Ok(())
    })
}

fn unanswered_memory(setting: &Setting, ready: &mut dyn FnMut()) -> Result {
    let mount = Mount::new(setting, "unanswered-memory")?;
    let mut program = program(setting)?;
    let mut pair = program.connected_pair(setting.addrs[0], CAPS)?;
    let mapping = Mapping::new(mount.open()?, 0, 4096)?;
    mount.stop_answering();
    ready();
    let none = create_memfd("none", 4096)?;
    let addr = mapping.base().addr().get() as u64;
    let target =
        program.register(&none, addr, 4096, Backing::Process { why: WhyCopied::NotAsked })?;
    let (source, _source) = program.shared_mr(4096)?;
    program.write(&mut pair[0], &source, &target, 0, 4096);
    wait()
}

fn windows(setting: &Setting, ready: &mut dyn FnMut()) -> Result {
    let mut program = program(setting)?;
    ready();
    forever(|| {
        let mut windows: Vec<MwHandle> = Vec::new();
        let request = Request::AllocMw { pd: program.pd, mw_type: MwType::Two };
        while let Ok(Reply::Mw { mw, .. }) = program.call(&request) {
            windows.push(mw);
        }
        for mw in windows {
            program.call(&Request::DeallocMw { mw })?;
        }
        Ok(())
    })
}
