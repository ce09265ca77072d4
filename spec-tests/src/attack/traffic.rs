//! What a program does on the wire.

use super::program::{CAPS, Program, Qp};
use super::strangers::elsewhere;
use super::{Attack, Result, Setting, VICTIMS_GROUP, forever, program, wait};
use rustix::process::{Signal, getpid, kill_process};
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;
use urxe_shm::control::{Backing, QpCaps, Request, WhyCopied};
use urxe_shm::memory::region::create_memfd;
use urxe_types::{
    AddressVector, DatagramPath, Destination, Extra, Gid, Qkey, QpType, Qpn, SendData, SendOp,
    SendWr, Sge,
};

pub(super) const ATTACKS: &[Attack] = &[
    Attack::new("multicast", multicast, "sends to a group in which hundreds of its QPs are")
        .found("M10"),
    Attack::new("victims-group", victims_group, "joins the group of its victims, and sends there")
        .found("M10"),
    Attack::new("groups", groups, "joins and leaves multicast groups"),
    Attack::new("greedy", greedy, "moves as much as it can").found("T10"),
    Attack::new("never-ready", never_ready, "sends to QPs that have no receives, to try for ever")
        .found("T11"),
    Attack::new("frozen", frozen, "stops in the midst of traffic"),
    Attack::new("greedy-reads", greedy_reads, "has as much as may be outstanding read by READs"),
    Attack::new(
        "closed-port",
        closed_port,
        "sends to a host that has no RoCE port, which says so by ICMP each time",
    ),
    Attack::new(
        "gone-peers",
        gone_peers,
        "writes to QPs that are not there, where others write to",
    ),
];

fn multicast(setting: &Setting, ready: &mut dyn FnMut()) -> Result {
    let group = Ipv4Addr::new(239, 7, 7, 7);
    let gid = Gid::from(std::net::IpAddr::from(group));
    let mut program = program(setting)?;
    let sender = program.datagram_qp()?;
    for _ in 0..setting.many(1_024, 256) {
        let qp = program.datagram_qp()?;
        program.call(&Request::AttachMcast { qp: qp.created.qp, gid })?;
    }
    ready();
    send_to_group(program, sender, group)
}

fn groups(setting: &Setting, ready: &mut dyn FnMut()) -> Result {
    let mut program = program(setting)?;
    let qp = program.datagram_qp()?.created.qp;
    ready();
    forever(|| {
        for number in 0..=255 {
            let gid = Gid::from(std::net::IpAddr::from([239, 8, 8, number]));
            // More than the system has room for are refused.
            let _ = program.call(&Request::AttachMcast { qp, gid });
        }
        for number in 0..=255 {
            let gid = Gid::from(std::net::IpAddr::from([239, 8, 8, number]));
            let _ = program.call(&Request::DetachMcast { qp, gid });
        }
        Ok(())
    })
}

fn greedy(setting: &Setting, ready: &mut dyn FnMut()) -> Result {
    let mut program = program(setting)?;
    let (target, _target) = program.shared_mr(1 << 20)?;
    let (source, _source) = program.shared_mr(1 << 20)?;
    let mut pairs = Vec::new();
    for _ in 0..4 {
        pairs.push(program.connected_pair(setting.addrs[0], CAPS)?);
    }
    ready();
    forever(|| {
        program.forget_completions()?;
        for [a, _] in &mut pairs {
            let op = SendOp::Write { remote_addr: 0, rkey: target.rkey, imm: None };
            let wr = SendWr { op, signaled: true, ..SendWr::default() };
            let sge = Sge { addr: source.addr, length: 1 << 20, lkey: source.lkey };
            while a.sends.push(&wr, SendData::Sges(&[sge])).is_ok() {}
            a.sends.publish();
            program.ring(a.created.doorbell_slot);
        }
        std::thread::sleep(Duration::from_micros(200));
        Ok(())
    })
}

fn never_ready(setting: &Setting, ready: &mut dyn FnMut()) -> Result {
    let mut program = program(setting)?;
    let mut pairs = Vec::new();
    for _ in 0..setting.many(1_000, 100) {
        let mut pair = program.connected_pair(setting.addrs[0], CAPS)?;
        for _ in 0..CAPS.max_send_wr {
            program.post(&mut pair[0], SendOp::Send(Extra::None), &[]);
        }
        pairs.push(pair);
    }
    ready();
    wait()
}

fn frozen(setting: &Setting, ready: &mut dyn FnMut()) -> Result {
    let mut program = program(setting)?;
    let caps = QpCaps { max_send_wr: 256, ..CAPS };
    let mut pair = program.connected_pair(setting.addrs[0], caps)?;
    let none = create_memfd("none", 4096)?;
    let memory = vec![0u8; 1 << 20];
    let addr = memory.as_ptr() as u64;
    let target =
        program.register(&none, addr, 1 << 20, Backing::Process { why: WhyCopied::NotAsked })?;
    let (source, _memfd) = program.shared_mr(1 << 20)?;
    let [a, _] = &mut pair;
    for _ in 0..200 {
        program.write(a, &source, &target, 0, 1 << 20);
    }
    ready();
    kill_process(getpid(), Signal::STOP)?;
    wait()
}

fn victims_group(setting: &Setting, ready: &mut dyn FnMut()) -> Result {
    let gid = Gid::from(std::net::IpAddr::from(VICTIMS_GROUP));
    let mut program = program(setting)?;
    let sender = program.datagram_qp()?;
    for _ in 0..setting.many(256, 64) {
        let qp = program.datagram_qp()?;
        program.call(&Request::AttachMcast { qp: qp.created.qp, gid })?;
    }
    ready();
    send_to_group(program, sender, VICTIMS_GROUP)
}

fn send_to_group(mut program: Program, mut sender: Qp, group: Ipv4Addr) -> Result {
    forever(|| {
        program.forget_completions()?;
        let path = DatagramPath::Vector(AddressVector::to(group.into()));
        let to = Some(Destination { path, qpn: Qpn::MULTICAST, qkey: Qkey(7) });
        let op = SendOp::Send(Extra::None);
        let wr = SendWr { op, to, signaled: true, ..SendWr::default() };
        let _ = sender.sends.push(&wr, SendData::Inline(&[1; 8]));
        sender.sends.publish();
        program.ring(sender.created.doorbell_slot);
        std::thread::sleep(Duration::from_micros(50));
        Ok(())
    })
}

fn greedy_reads(setting: &Setting, ready: &mut dyn FnMut()) -> Result {
    const LEN: u32 = 1 << 20;
    let mut program = program(setting)?;
    let (mr, _memfd) = program.shared_mr(LEN.into())?;
    let mut pairs = Vec::new();
    for _ in 0..setting.many(64, 8) {
        pairs.push(program.connected_pair(setting.addrs[0], CAPS)?);
    }
    ready();
    forever(|| {
        program.forget_completions()?;
        for qp in pairs.iter_mut().flatten() {
            let op = SendOp::Read { remote_addr: 0, rkey: mr.rkey };
            let wr = SendWr { op, signaled: true, ..SendWr::default() };
            let sge = Sge { addr: mr.addr, length: LEN, lkey: mr.lkey };
            while qp.sends.push(&wr, SendData::Sges(&[sge])).is_ok() {}
            qp.sends.publish();
            program.ring(qp.created.doorbell_slot);
        }
        std::thread::sleep(Duration::from_millis(1));
        Ok(())
    })
}

fn closed_port(setting: &Setting, ready: &mut dyn FnMut()) -> Result {
    write_to_nobody(setting, elsewhere(setting), 4096, ready)
}

fn gone_peers(setting: &Setting, ready: &mut dyn FnMut()) -> Result {
    write_to_nobody(setting, setting.addrs[1], 65_536, ready)
}

/// WRITEs of a length to QPs of a host that are not there, again and again.
fn write_to_nobody(setting: &Setting, host: IpAddr, len: u32, ready: &mut dyn FnMut()) -> Result {
    let mut program = program(setting)?;
    let (source, _memfd) = program.shared_mr(len.into())?;
    let mut qps = Vec::new();
    for _ in 0..setting.many(500, 50) {
        qps.push(program.create_qp(QpType::Rc, CAPS, None)?);
    }
    let mut is_ready = false;
    forever(|| {
        for qp in &mut qps {
            program.connect(qp, host, Qpn::new(0x123))?;
            for _ in 0..CAPS.max_send_wr {
                program.write(qp, &source, &source, 0, len);
            }
        }
        if !std::mem::replace(&mut is_ready, true) {
            ready();
        }
        std::thread::sleep(Duration::from_millis(200));
        for qp in &mut qps {
            program.reset(qp)?;
        }
        Ok(())
    })
}
