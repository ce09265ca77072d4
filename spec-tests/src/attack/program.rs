//! A program that speaks to the daemon by itself, so that it can do what no library would.

use super::Result;
use rustix::io::write;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use urxe_shm::control::channel::Channel;
use urxe_shm::control::{
    Backing, CompChannelHandle, ContextHandle, CqHandle, MrHandle, PdHandle, QpCaps, QpCreated,
    Reply, Request, RingLocation, SrqHandle,
};
use urxe_shm::memory::process_memory;
use urxe_shm::memory::region::{Mapping, Window, create_memfd};
use urxe_shm::ring::doorbell::DoorbellWriter;
use urxe_shm::ring::geometry::Geometry;
use urxe_shm::ring::{CqConsumer, SqProducer};
use urxe_types::{
    Access, AddressVector, Lkey, PathMtu, Psn, Qkey, QpAttr, QpState, QpType, Qpn, Rkey, SendData,
    SendOp, SendWr, Sge,
};

pub(super) struct Program {
    pub(super) channel: Channel,
    /// What it shares with the daemon: doorbells and rings.
    pub(super) memory: Arc<Mapping>,
    /// The file of that.
    pub(super) arena: OwnedFd,
    doorbells: DoorbellWriter,
    pub(super) wake: OwnedFd,
    pub(super) context: ContextHandle,
    /// Where its asynchronous events come.
    pub(super) events: OwnedFd,
    pub(super) pd: PdHandle,
    pub(super) cq: CqHandle,
    completions: CqConsumer,
}

pub(super) struct Qp {
    pub(super) created: QpCreated,
    pub(super) sends: SqProducer,
}

pub(super) struct Mr {
    pub(super) handle: MrHandle,
    pub(super) lkey: Lkey,
    pub(super) rkey: Rkey,
    pub(super) addr: u64,
}

pub(super) const CAPS: QpCaps = QpCaps {
    max_send_wr: 16,
    max_recv_wr: 16,
    max_send_sge: 1,
    max_recv_sge: 1,
    max_inline_data: 64,
};

impl Program {
    /// A program with a device, a protection domain and a CQ.
    pub(super) fn new(socket: &Path, device: &str) -> Result<Program> {
        let mut channel = Channel::connect(socket)?;
        let own = process_memory::open_own()?;
        let hello = Request::Hello { program: "attacker".into() };
        let (reply, fds) = channel.call(&hello, &[own.as_fd()])?;
        let Reply::Hello { memory_limit } = reply else { return Err(unexpected(&reply)) };
        let [memfd, wake] = <[OwnedFd; 2]>::try_from(fds).map_err(|_| "no descriptors")?;
        let arena = memfd.try_clone()?;
        let memory = Arc::new(Mapping::new(memfd, 0, memory_limit as usize)?);
        let doorbells = DoorbellWriter::new(Arc::clone(&memory))?;
        let (reply, mut fds) = channel.call(&Request::OpenDevice { name: device.into() }, &[])?;
        let Reply::Context(context) = reply else { return Err(unexpected(&reply)) };
        let events = fds.pop().ok_or("no event pipe")?;
        let (reply, _) = channel.call(&Request::AllocPd { context }, &[])?;
        let Reply::Pd(pd) = reply else { return Err(unexpected(&reply)) };
        let (cq, _, completions) = create_cq(&mut channel, &memory, context, None, 4096)?;
        Ok(Program {
            channel,
            memory,
            arena,
            doorbells,
            wake,
            context,
            events,
            pd,
            cq,
            completions,
        })
    }

    pub(super) fn call(&mut self, request: &Request) -> Result<Reply> {
        Ok(self.call_with(request, &[])?.0)
    }

    pub(super) fn call_with(
        &mut self,
        request: &Request,
        fds: &[BorrowedFd<'_>],
    ) -> Result<(Reply, Vec<OwnedFd>)> {
        match self.channel.call(request, fds)? {
            (Reply::Error(error), _) => Err(error.into()),
            answer => Ok(answer),
        }
    }

    /// Has another CQ for QPs that are created from now on; returns it and its ring.
    pub(super) fn change_cq(&mut self, cqe: u32) -> Result<(CqHandle, RingLocation)> {
        let ring;
        (self.cq, ring, self.completions) =
            create_cq(&mut self.channel, &self.memory, self.context, None, cqe)?;
        Ok((self.cq, ring))
    }

    /// The same with a completion channel, whose pipe is returned.
    pub(super) fn change_channel(&mut self, cqe: u32) -> Result<OwnedFd> {
        let request = Request::CreateCompChannel { context: self.context };
        let (reply, mut fds) = self.call_with(&request, &[])?;
        let Reply::CompChannel(channel) = reply else { return Err(unexpected(&reply)) };
        (self.cq, _, self.completions) =
            create_cq(&mut self.channel, &self.memory, self.context, Some(channel), cqe)?;
        Ok(fds.pop().ok_or("no pipe")?)
    }

    /// Throws away all completions, and asks for an event with the next.
    pub(super) fn arm(&mut self) -> Result {
        self.completions.arm(false);
        self.forget_completions()
    }

    /// Throws away all completions.
    pub(super) fn forget_completions(&mut self) -> Result {
        while self.completions.poll(64, |_| ())? > 0 {}
        Ok(())
    }

    pub(super) fn create_qp(
        &mut self,
        qp_type: QpType,
        caps: QpCaps,
        srq: Option<SrqHandle>,
    ) -> Result<Qp> {
        let (pd, cq) = (self.pd, self.cq);
        let request = Request::CreateQp {
            pd,
            qp_type,
            send_cq: cq,
            recv_cq: cq,
            srq,
            caps,
            sq_sig_all: false,
            user_handle: 0,
        };
        let Reply::Qp(created) = self.call(&request)? else { return Err("no QP".into()) };
        let caps = created.caps;
        let shape = Geometry::send(caps.max_send_wr, caps.max_send_sge, caps.max_inline_data)?;
        let ring = created.send_ring;
        let window = Window::new(Arc::clone(&self.memory), ring.offset, ring.size.into())?;
        Ok(Qp { created, sends: SqProducer::attach(window, shape)? })
    }

    pub(super) fn modify(&mut self, qp: &Qp, attr: QpAttr) -> Result {
        self.call(&Request::ModifyQp { qp: qp.created.qp, attr }).map(drop)
    }

    /// Takes a QP from RESET to RTS.
    pub(super) fn connect(&mut self, qp: &Qp, to: IpAddr, peer: Qpn) -> Result {
        self.modify(qp, init())?;
        let rtr = QpAttr {
            state: Some(QpState::Rtr),
            av: Some(AddressVector::to(to)),
            path_mtu: Some(PathMtu::Mtu4096),
            dest_qpn: Some(peer),
            rq_psn: Some(Psn::new(0)),
            max_dest_rd_atomic: Some(16),
            min_rnr_timer: Some(1),
            ..QpAttr::default()
        };
        self.modify(qp, rtr)?;
        let rts = QpAttr {
            state: Some(QpState::Rts),
            sq_psn: Some(Psn::new(0)),
            max_rd_atomic: Some(16),
            timeout: Some(14),
            retry_cnt: Some(7),
            rnr_retry: Some(7),
            ..QpAttr::default()
        };
        self.modify(qp, rts)
    }

    /// Takes a QP back to RESET from wherever it is, so that it can be connected again.
    pub(super) fn reset(&mut self, qp: &mut Qp) -> Result {
        for state in [QpState::Err, QpState::Reset] {
            self.modify(qp, to(state))?;
        }
        qp.sends.reset();
        Ok(())
    }

    /// Two connected QPs, both on this address.
    pub(super) fn connected_pair(&mut self, addr: IpAddr, caps: QpCaps) -> Result<[Qp; 2]> {
        let a = self.create_qp(QpType::Rc, caps, None)?;
        let b = self.create_qp(QpType::Rc, caps, None)?;
        self.connect(&a, addr, b.created.qpn)?;
        self.connect(&b, addr, a.created.qpn)?;
        Ok([a, b])
    }

    /// A UD QP in RTS.
    pub(super) fn datagram_qp(&mut self) -> Result<Qp> {
        let qp = self.create_qp(QpType::Ud, CAPS, None)?;
        let states = [QpState::Init, QpState::Rtr, QpState::Rts];
        for state in states {
            let is_init = state == QpState::Init;
            let attr = QpAttr {
                state: Some(state),
                pkey_index: is_init.then_some(0),
                port: is_init.then_some(1),
                qkey: is_init.then_some(Qkey(7)),
                sq_psn: (state == QpState::Rts).then_some(Psn::new(0)),
                ..QpAttr::default()
            };
            self.modify(&qp, attr)?;
        }
        Ok(qp)
    }

    /// Registers a memfd of so many bytes, none of which has a page yet.
    pub(super) fn shared_mr(&mut self, len: u64) -> Result<(Mr, OwnedFd)> {
        let memfd = create_memfd("attack", len)?;
        let mr = self.register(&memfd, 0, len, Backing::Shared { offset: 0 })?;
        Ok((mr, memfd))
    }

    /// Registers a memfd, or the program's own memory.
    pub(super) fn register(
        &mut self,
        memfd: &OwnedFd,
        addr: u64,
        length: u64,
        backing: Backing,
    ) -> Result<Mr> {
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
        let request = Request::RegMr { pd: self.pd, addr, length, iova: addr, access, backing };
        let fd = memfd.as_fd();
        let fds: &[BorrowedFd<'_>] =
            if matches!(backing, Backing::Shared { .. }) { &[fd] } else { &[] };
        match self.call_with(&request, fds)?.0 {
            Reply::Mr { mr: handle, lkey, rkey } => Ok(Mr { handle, lkey, rkey, addr }),
            reply => Err(unexpected(&reply)),
        }
    }

    /// Posts a WRITE, if there is room, and says so.
    pub(super) fn write(&self, qp: &mut Qp, from: &Mr, to: &Mr, at: u64, length: u32) -> bool {
        let op = SendOp::Write { remote_addr: to.addr + at, rkey: to.rkey, imm: None };
        let sge = Sge { addr: from.addr, length, lkey: from.lkey };
        self.post(qp, op, &[sge])
    }

    /// Posts anything unsignaled, if there is room, and rings.
    pub(super) fn post(&self, qp: &mut Qp, op: SendOp, sges: &[Sge]) -> bool {
        let wr = SendWr { op, ..SendWr::default() };
        let is_posted = qp.sends.push(&wr, SendData::Sges(sges)).is_ok();
        qp.sends.publish();
        self.ring(qp.created.doorbell_slot);
        is_posted
    }

    pub(super) fn ring(&self, slot: u32) {
        if self.doorbells.ring(slot) {
            let _ = write(&self.wake, &1u64.to_ne_bytes());
        }
    }
}

fn create_cq(
    channel: &mut Channel,
    memory: &Arc<Mapping>,
    context: ContextHandle,
    events: Option<CompChannelHandle>,
    cqe: u32,
) -> Result<(CqHandle, RingLocation, CqConsumer)> {
    let request =
        Request::CreateCq { context, cqe, channel: events, user_handle: 0, comp_vector: 0 };
    match channel.call(&request, &[])?.0 {
        Reply::Cq { cq, cqe, ring } => {
            let window = Window::new(Arc::clone(memory), ring.offset, ring.size.into())?;
            Ok((cq, ring, CqConsumer::attach(window, Geometry::completion(cqe)?)?))
        }
        reply => Err(unexpected(&reply)),
    }
}

/// What a QP needs to go to INIT.
pub(super) fn init() -> QpAttr {
    QpAttr {
        state: Some(QpState::Init),
        pkey_index: Some(0),
        port: Some(1),
        access: Some(Access::REMOTE_WRITE | Access::REMOTE_READ),
        ..QpAttr::default()
    }
}

/// What a QP needs to go to a state that needs nothing else.
pub(super) fn to(state: QpState) -> QpAttr {
    QpAttr { state: Some(state), ..QpAttr::default() }
}

fn unexpected(reply: &Reply) -> Box<dyn std::error::Error> {
    format!("an unexpected reply: {reply:?}").into()
}
