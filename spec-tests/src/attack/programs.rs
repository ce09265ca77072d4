//! What a program does that may open the daemon's socket.

use super::program::{CAPS, Program, Result, init, to};
use super::{Attack, Setting};
use crate::rng::Rng;
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix,
    SocketFlags, SocketType,
};
use rustix::process::{Signal, getgid, getpid, kill_process};
use std::io::{IoSlice, Write};
use std::mem::MaybeUninit;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;
use urxe_shm::control::channel::Channel;
use urxe_shm::control::{
    Backing, CmPortSpace, CmReply, CmRequest, Cursor, QpCaps, Reply, Request, ResourceKind, SrqAttr,
};
use urxe_shm::memory::region::create_memfd;
use urxe_shm::ring::doorbell::DOORBELL_SIZE;
use urxe_types::{
    AddressVector, DatagramPath, Destination, Extra, Gid, Qkey, QpState, QpType, Qpn, SendData,
    SendOp, SendWr, Sge,
};

macro_rules! attacks {
    ($($name:literal $run:ident $what:literal;)*) => {
        /// The attacks.
        pub const ATTACKS: &[Attack] = &[$(Attack {
            name: $name,
            what: $what,
            run: |setting, ready| match $run(setting, ready) {
                Ok(()) => "it ended".to_owned(),
                Err(error) => error.to_string(),
            },
        }),*];
    };
}

attacks! {
    "event-pipe" event_pipe "fills its event pipe, shrunk to a page, and destroys what events wait for";
    "address-space" address_space "128 sessions map a sparse file of 1 TiB and halves of that";
    "slow-close" slow_close "sends sockets whose close waits for unsent data";
    "locked-memory" locked_memory "has its own memory written to while it forks, which locks its page table";
    "doorbells" doorbells "rings the doorbells of thousands of QPs every millisecond";
    "freeing" freeing "creates and destroys send queues of hundreds of megabytes";
    "silent-sessions" silent_sessions "opens 1,100 connections and says nothing";
    "cm-channels" cm_channels "takes descriptors as channels of the connection manager";
    "sparse-memory" sparse_memory "has a sparse file of its own written to, page by page";
    "multicast" multicast "sends to a group in which hundreds of its QPs are";
    "rights" rights "sends 250 descriptors at a time";
    "frozen" frozen "stops in the midst of traffic";
    "requests" requests "asks as fast as it is answered";
    "connections" connections "connects and goes, without end";
    "ring-scribble" ring_scribble "writes into its send queue while it is read";
    "doorbell-scribble" doorbell_scribble "writes into its doorbell pages without end";
    "cut-memory" cut_memory "cuts its file short while a peer writes to it";
    "mr-churn" mr_churn "registers and deregisters a gigabyte";
    "qp-churn" qp_churn "creates, changes and destroys QPs";
    "cm-ids" cm_ids "creates ids of the connection manager";
    "listings" listings "asks for statistics and listings without end";
    "groups" groups "joins and leaves multicast groups";
    "cq-overrun" cq_overrun "never polls a CQ of one entry";
    "greedy" greedy "moves as much as it can";
    "never-ready" never_ready "sends to QPs that have no receives, to try for ever";
}

/// Until it is ended.
fn forever(mut step: impl FnMut() -> Result) -> Result {
    loop {
        step()?;
    }
}

fn wait() -> Result {
    forever(|| {
        std::thread::sleep(Duration::from_secs(1));
        Ok(())
    })
}

fn program(setting: &Setting) -> Result<Program> {
    Program::new(&setting.socket, "urxe0")
}

fn event_pipe(setting: &Setting, ready: &mut dyn FnMut()) -> Result {
    ready();
    forever(|| {
        let mut program = program(setting)?;
        rustix::pipe::fcntl_setpipe_size(&program.events, 4096)?;
        let attr = SrqAttr { max_wr: 16, max_sge: 1, limit: 0 };
        let request = Request::CreateSrq { pd: program.pd, attr, user_handle: 0 };
        let Reply::Srq { srq, .. } = program.call(&request)? else { return Ok(()) };
        let a = program.create_qp(QpType::Rc, CAPS, Some(srq))?;
        let b = program.create_qp(QpType::Rc, CAPS, Some(srq))?;
        for at in 0..260 {
            let qp = if at == 250 { &a } else { &b };
            program.modify(qp, init())?;
            program.modify(qp, to(QpState::Err))?;
            program.modify(qp, to(QpState::Reset))?;
            if at == 250 {
                program.call(&Request::DestroyQp { qp: a.created.qp })?;
            }
        }
        Ok(())
    })
}

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

/// A socket that is not closed before what was written to it has been read, which it never is.
fn lingering_socket(listener: &TcpListener) -> Result<(OwnedFd, TcpStream)> {
    let mut socket = TcpStream::connect(listener.local_addr()?)?;
    let (reader, _) = listener.accept()?;
    rustix::net::sockopt::set_socket_linger(&socket, Some(Duration::from_secs(5)))?;
    socket.set_nonblocking(true)?;
    while socket.write(&[0; 1 << 16]).is_ok() {}
    socket.set_nonblocking(false)?;
    Ok((socket.into(), reader))
}

fn slow_close(setting: &Setting, ready: &mut dyn FnMut()) -> Result {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let mut program = program(setting)?;
    let mut readers = Vec::new();
    ready();
    forever(|| {
        let (socket, reader) = lingering_socket(&listener)?;
        readers.push(reader);
        let (pd, length) = (program.pd, 4096);
        let access = urxe_types::Access::LOCAL_WRITE;
        let backing = Backing::Shared { offset: 0 };
        let requests = [
            Request::ListDevices,
            Request::RegMr { pd, addr: 0, length, iova: 0, access, backing },
        ];
        let request = &requests[readers.len() % 2];
        let fds = [socket.as_fd()];
        program.channel.send(request, &fds)?;
        // From now on the daemon has the only one.
        drop(socket);
        if program.channel.recv::<Reply>().is_err() {
            program = self::program(setting)?;
        }
        Ok(())
    })
}

fn locked_memory(setting: &Setting, ready: &mut dyn FnMut()) -> Result {
    let mut program = program(setting)?;
    let mut pair = program.connected_pair(setting.addrs[0], CAPS)?;
    // Pages that are there: a fork copies the table of all of them.
    let memory = vec![1u8; setting.many(2 << 30, 512 << 20)];
    let none = create_memfd("none", 4096)?;
    let addr = memory.as_ptr() as u64;
    let target = program.register(&none, addr, 1 << 20, Backing::Process)?;
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

fn doorbells(setting: &Setting, ready: &mut dyn FnMut()) -> Result {
    let mut program = program(setting)?;
    let mut slots = Vec::new();
    for _ in 0..setting.many(60_000, 4_000) {
        let Ok(qp) = program.create_qp(QpType::Rc, CAPS, None) else { break };
        slots.push(qp.created.doorbell_slot);
    }
    ready();
    forever(|| {
        slots.iter().for_each(|slot| program.ring(*slot));
        std::thread::sleep(Duration::from_millis(1));
        Ok(())
    })
}

fn freeing(setting: &Setting, ready: &mut dyn FnMut()) -> Result {
    let mut program = program(setting)?;
    let max_send_wr = setting.many(1 << 19, 1 << 17) as u32;
    let caps = QpCaps { max_send_wr, max_send_sge: 32, max_inline_data: 512, ..CAPS };
    let mut is_ready = false;
    forever(|| {
        let qp = program.create_qp(QpType::Rc, caps, None)?;
        let ring = qp.created.send_ring;
        for at in (0..u64::from(ring.size)).step_by(4096) {
            // Behind the header, so that the ring stays one.
            let at = (ring.offset + at + 2048).min(ring.offset + u64::from(ring.size) - 1);
            program.memory.write(at, &[1])?;
        }
        if !std::mem::replace(&mut is_ready, true) {
            ready();
        }
        program.call(&Request::DestroyQp { qp: qp.created.qp }).map(drop)
    })
}

fn silent_sessions(setting: &Setting, ready: &mut dyn FnMut()) -> Result {
    let channels: Vec<_> =
        (0..1_100).map_while(|_| Channel::connect(&setting.socket).ok()).collect();
    ready();
    wait()?;
    drop(channels);
    Ok(())
}

fn cm_channels(setting: &Setting, ready: &mut dyn FnMut()) -> Result {
    let mut programs = vec![program(setting)?, program(setting)?];
    for program in &mut programs {
        for _ in 0..10_000 {
            // The descriptor that comes with it is let go.
            if program.call(&Request::Cm(CmRequest::CreateChannel)).is_err() {
                break;
            }
        }
    }
    ready();
    wait()
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

fn multicast(setting: &Setting, ready: &mut dyn FnMut()) -> Result {
    let group = Ipv4Addr::new(239, 7, 7, 7);
    let gid = Gid::from(std::net::IpAddr::from(group));
    let mut program = program(setting)?;
    let mut sender = program.datagram_qp()?;
    for _ in 0..setting.many(1_024, 256) {
        let qp = program.datagram_qp()?;
        program.call(&Request::AttachMcast { qp: qp.created.qp, gid })?;
    }
    ready();
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

fn rights(setting: &Setting, ready: &mut dyn FnMut()) -> Result {
    let (pipe, _other) = rustix::pipe::pipe()?;
    let fds: Vec<BorrowedFd<'_>> = vec![pipe.as_fd(); 250];
    ready();
    forever(|| {
        let kind = SocketType::SEQPACKET;
        let flags = SocketFlags::CLOEXEC;
        let socket = rustix::net::socket_with(AddressFamily::UNIX, kind, flags, None)?;
        rustix::net::connect(&socket, &SocketAddrUnix::new(&setting.socket)?)?;
        for _ in 0..4 {
            let mut space = [MaybeUninit::uninit(); 2048];
            let mut ancillary = SendAncillaryBuffer::new(&mut space);
            ancillary.push(SendAncillaryMessage::ScmRights(&fds));
            let bytes = [IoSlice::new(b"ux")];
            let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
            let _ = rustix::net::sendmsg(&socket, &bytes, &mut ancillary, flags);
        }
        Ok(())
    })
}

fn frozen(setting: &Setting, ready: &mut dyn FnMut()) -> Result {
    let mut program = program(setting)?;
    let caps = QpCaps { max_send_wr: 256, ..CAPS };
    let mut pair = program.connected_pair(setting.addrs[0], caps)?;
    let none = create_memfd("none", 4096)?;
    let memory = vec![0u8; 1 << 20];
    let addr = memory.as_ptr() as u64;
    let target = program.register(&none, addr, 1 << 20, Backing::Process)?;
    let (source, _memfd) = program.shared_mr(1 << 20)?;
    let [a, _] = &mut pair;
    for _ in 0..200 {
        program.write(a, &source, &target, 0, 1 << 20);
    }
    ready();
    kill_process(getpid(), Signal::STOP)?;
    wait()
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

fn ring_scribble(setting: &Setting, ready: &mut dyn FnMut()) -> Result {
    let mut program = program(setting)?;
    let pair = program.connected_pair(setting.addrs[0], CAPS)?;
    let ring = pair[0].created.send_ring;
    let mut rng = Rng::new(1);
    ready();
    forever(|| {
        let at = ring.offset + rng.range(0..=u64::from(ring.size) - 8);
        program.memory.write(at, &rng.next_u64().to_ne_bytes())?;
        program.ring(pair[0].created.doorbell_slot);
        Ok(())
    })
}

fn doorbell_scribble(setting: &Setting, ready: &mut dyn FnMut()) -> Result {
    let mut program = program(setting)?;
    for _ in 0..setting.many(1_000, 100) {
        program.create_qp(QpType::Rc, CAPS, None)?;
    }
    ready();
    let ones = [0xff; DOORBELL_SIZE as usize];
    forever(|| Ok(program.memory.write(0, &ones)?))
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

fn qp_churn(setting: &Setting, ready: &mut dyn FnMut()) -> Result {
    let mut program = program(setting)?;
    ready();
    forever(|| {
        let [a, b] = program.connected_pair(setting.addrs[0], CAPS)?;
        program.call(&Request::DestroyQp { qp: a.created.qp })?;
        program.call(&Request::DestroyQp { qp: b.created.qp }).map(drop)
    })
}

fn cm_ids(setting: &Setting, ready: &mut dyn FnMut()) -> Result {
    let mut programs = Vec::new();
    for _ in 0..4 {
        let mut program = program(setting)?;
        let reply = program.call(&Request::Cm(CmRequest::CreateChannel))?;
        let Reply::Cm(CmReply::Channel(channel)) = reply else { return Ok(()) };
        let (space, qp_type) = (CmPortSpace::Tcp, QpType::Rc);
        let request = CmRequest::CreateId { channel, user_handle: 0, space, qp_type };
        for _ in 0..setting.many(40_000, 5_000) {
            if program.call(&Request::Cm(request.clone())).is_err() {
                break;
            }
        }
        programs.push(program);
    }
    ready();
    wait()
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

fn cq_overrun(setting: &Setting, ready: &mut dyn FnMut()) -> Result {
    let mut program = program(setting)?;
    ready();
    forever(|| {
        program.change_cq(1)?;
        let mut pair = program.connected_pair(setting.addrs[0], CAPS)?;
        let wr = SendWr { op: SendOp::Send(Extra::None), signaled: true, ..SendWr::default() };
        for _ in 0..CAPS.max_send_wr {
            let _ = pair[0].sends.push(&wr, SendData::Inline(&[1]));
        }
        pair[0].sends.publish();
        program.ring(pair[0].created.doorbell_slot);
        for qp in pair {
            program.modify(&qp, to(QpState::Err))?;
            program.call(&Request::DestroyQp { qp: qp.created.qp })?;
        }
        program.call(&Request::DestroyCq { cq: program.cq }).map(drop)
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
