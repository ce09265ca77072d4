//! The program on the simulated device.

use super::cm::Programs;
use super::names::{state_name, state_of, vector};
use crate::simulation::host::RECV_WR_ID;
use crate::simulation::queues::Entry;
use crate::simulation::world::{End, Mr, World};
use serde_json::{Value, json};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use urxe_cm::ConnId;
use urxe_conform::agent::{
    Agent, AgentError, Command, Connect, Event, EventKind, ModifyQp, Operation, RecvWr, SendWr,
    State, Status, Window, number, opcode_name,
};
use urxe_engine::{AsyncEvent, CqId, PdId, QueueId, RecvSource, SrqId, SrqInit};
use urxe_types::{
    Access, AhId, Completion, DatagramPath, Destination, Extra, FlushPlacement, FlushSelectivity,
    Lkey, MwType, Psn, Qkey, QpAttr, QpState, QpType, Qpn, RecvWqe, Rkey, SendOp, SendWqe, Sge,
};

/// A program that does what it is told, on the engine of a [`World`]'s first node.
pub struct SimAgent {
    world: Rc<RefCell<World>>,
    programs: Rc<RefCell<Programs>>,
    addr: IpAddr,
    things: BTreeMap<String, Thing>,
    /// The numbers that its work requests have for those who gave them, by those that the host
    /// knows them by: it wants them to differ.
    ids: BTreeMap<u64, u64>,
    next_id: u64,
    /// Where the next memory lies.
    next_addr: u64,
    /// Events that were told of.
    told: usize,
}

#[derive(Clone, Copy)]
enum Thing {
    Mr(Mr, usize),
    Cq(CqId),
    Srq(SrqId, QueueId),
    Qp(End, QpType),
    Ah(AhId),
    /// A window, and its present key.
    Mw(u32),
    /// A connection of the connection manager.
    Call(ConnId),
}

const NODE: usize = 0;
const PD: PdId = PdId(1);
/// Places of every queue.
const PLACES: usize = 256;
const EINVAL: i32 = 22;
const ENOENT: i32 = 2;

/// Why a verb failed: words, and the number in errno.
type Refusal = (String, i32);
type Done<T = Value> = Result<T, Refusal>;

fn refusal(error: impl ToString) -> Refusal {
    (error.to_string(), EINVAL)
}

macro_rules! find {
    ($($find:ident: $kind:pat => $found:expr, $what:ty;)*) => {
        $(fn $find(&self, name: &str) -> Done<$what> {
            match self.things.get(name).copied() {
                Some($kind) => Ok($found),
                _ => Err((format!("there is no {name} of that kind"), ENOENT)),
            }
        })*
    };
}

impl SimAgent {
    pub(super) fn new(
        world: Rc<RefCell<World>>,
        programs: Rc<RefCell<Programs>>,
        addr: IpAddr,
    ) -> SimAgent {
        SimAgent {
            world,
            programs,
            addr,
            things: BTreeMap::new(),
            ids: BTreeMap::new(),
            next_id: 0,
            next_addr: 0x10_0000,
            told: 0,
        }
    }

    find! {
        mr: Thing::Mr(mr, len) => (mr, len), (Mr, usize);
        cq: Thing::Cq(cq) => cq, CqId;
        srq: Thing::Srq(srq, queue) => (srq, queue), (SrqId, QueueId);
        qp: Thing::Qp(end, transport) => (end, transport), (End, QpType);
        ah: Thing::Ah(ah) => ah, AhId;
        mw: Thing::Mw(rkey) => rkey, u32;
    }

    fn execute(&mut self, command: &Command) -> Done {
        match command {
            Command::Hello => Ok(json!({"device": "the engine of urxe", "mtu": 4096,
                "atomics": true, "gids": {self.addr.to_string(): 0}, "system": "a simulated network"})),
            Command::RegMr { name, len, access } => self.register(name, *len, *access),
            Command::Write { mr, off, hex } => self.write(mr, *off, hex),
            Command::Read { mr, off, len } => self.read(mr, *off, *len),
            Command::CreateCq { name } => {
                let cq = self.world.borrow_mut().nodes[NODE].host.add_cq(PLACES);
                self.add(name, Thing::Cq(cq))
            }
            Command::CreateSrq { name } => {
                let thing = {
                    let node = &mut self.world.borrow_mut().nodes[NODE];
                    let queue = node.host.add_recv_queue(PLACES);
                    let init = SrqInit { pd: PD, queue, limit: 0 };
                    Thing::Srq(node.device.create_srq(init).map_err(refusal)?, queue)
                };
                self.add(name, thing)
            }
            Command::ModifySrq { srq, limit } => {
                let (srq, _) = self.srq(srq)?;
                let node = &mut self.world.borrow_mut().nodes[NODE];
                node.device.modify_srq(&mut node.host, srq, *limit).map_err(refusal)?;
                Ok(json!({}))
            }
            Command::CreateQp { name, transport, cq, srq } => {
                self.create_qp(name, *transport, cq, srq.as_deref())
            }
            Command::Connect(connect) => self.connect(connect),
            Command::StartDatagrams { qp, qkey, sq_psn } => {
                let (end, _) = self.qp(qp)?;
                let mut world = self.world.borrow_mut();
                world.start_datagrams(&end, Qkey(*qkey), Psn::new(*sq_psn));
                Ok(json!({}))
            }
            Command::ModifyQp(change) => self.modify(change),
            Command::QueryQp { qp } => self.query(qp),
            Command::CreateAh { name, path } => {
                let node = &mut self.world.borrow_mut().nodes[NODE];
                let ah = node.device.create_ah(PD, &vector(path)).map_err(refusal)?;
                self.things.insert(name.clone(), Thing::Ah(ah));
                Ok(json!({}))
            }
            Command::AttachMcast { qp, gid } => {
                let (end, _) = self.qp(qp)?;
                self.world.borrow_mut().attach_mcast(&end, *gid);
                Ok(json!({}))
            }
            Command::DetachMcast { qp, gid } => {
                let (end, _) = self.qp(qp)?;
                let node = &mut self.world.borrow_mut().nodes[NODE];
                node.device.detach_mcast(end.qpn, *gid).map_err(refusal)?;
                Ok(json!({}))
            }
            Command::PostRecv { to, mr, wrs } => self.post_recv(to, mr, wrs),
            Command::PostSend { qp, mr, wrs } => self.post_send(qp, mr, wrs),
            Command::Poll { cq, count, .. } => self.poll(cq, *count),
            Command::Events => Ok(self.events()),
            Command::AllocMw { name, kind } => {
                let kind = if *kind == 1 { MwType::One } else { MwType::Two };
                let rkey = self.world.borrow_mut().nodes[NODE].alloc_mw(PD, kind);
                self.things.insert(name.clone(), Thing::Mw(rkey));
                Ok(json!({ "rkey": rkey }))
            }
            Command::BindMw { qp, id, mw, window } => {
                let bind = SendWr::bind(*id, mw, window.clone());
                let rkeys = self.post_send(qp, &window.of, &[bind])?;
                Ok(json!({"rkey": rkeys["rkeys"][0]}))
            }
            Command::CmConnect { name, to, port } => {
                let (to, world) = (SocketAddr::new(*to, *port), Rc::clone(&self.world));
                let called = self.programs.borrow_mut().connect(&mut world.borrow_mut(), to);
                self.add(name, Thing::Call(called.map_err(refusal)?))
            }
            Command::Close { names } => {
                names.iter().for_each(|name| self.close(name));
                Ok(json!({}))
            }
        }
    }

    fn add(&mut self, name: &str, thing: Thing) -> Done {
        self.things.insert(name.to_string(), thing);
        Ok(json!({}))
    }

    fn register(&mut self, name: &str, len: usize, access: u32) -> Done {
        let addr = self.next_addr;
        self.next_addr += len.next_multiple_of(1 << 20) as u64 + (1 << 20);
        let access = Access::from_bits_retain(access);
        let mr = self.world.borrow_mut().nodes[NODE].reg_mr(PD, addr, access, vec![0; len]);
        self.things.insert(name.to_string(), Thing::Mr(mr, len));
        Ok(json!({"addr": mr.addr, "rkey": mr.key, "lkey": mr.key}))
    }

    fn write(&mut self, mr: &str, off: usize, hex: &str) -> Done {
        let (mr, len) = self.mr(mr)?;
        let byte = |at| u8::from_str_radix(hex.get(at..at + 2)?, 16).ok();
        let bytes: Option<Vec<u8>> = (0..hex.len()).step_by(2).map(byte).collect();
        let bytes = bytes.filter(|bytes| off + bytes.len() <= len);
        let bytes = bytes.ok_or_else(|| refusal("bytes that are none, or have no room"))?;
        let host = &mut self.world.borrow_mut().nodes[NODE].host;
        host.memory.program_write(mr.region, off, &bytes);
        Ok(json!({}))
    }

    fn read(&self, mr: &str, off: usize, len: usize) -> Done {
        let (mr, _) = self.mr(mr)?;
        let world = self.world.borrow();
        let memory = world.nodes[NODE].host.memory.program(mr.region);
        let bytes = memory.get(off..off + len).ok_or_else(|| refusal("outside of the memory"))?;
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        Ok(json!({ "hex": hex }))
    }

    fn create_qp(&mut self, name: &str, transport: QpType, cq: &str, srq: Option<&str>) -> Done {
        let cq = self.cq(cq)?;
        let srq = srq.map(|srq| self.srq(srq)).transpose()?;
        let end = {
            let mut world = self.world.borrow_mut();
            let recv = match srq {
                Some((srq, _)) => RecvSource::Shared(srq),
                None => RecvSource::Own(world.nodes[NODE].host.add_recv_queue(PLACES)),
            };
            world.create_qp_of(NODE, transport, PD, (cq, cq), PLACES, recv)
        };
        self.things.insert(name.to_string(), Thing::Qp(end, transport));
        Ok(json!({"qpn": end.qpn.get()}))
    }

    fn change(&self, end: &End, attr: &QpAttr) -> Done<()> {
        let world = &mut *self.world.borrow_mut();
        let now = world.now();
        let node = &mut world.nodes[NODE];
        node.device.modify_qp(now, &mut node.host, end.qpn, attr).map_err(refusal)?;
        if attr.state == Some(QpState::Reset) {
            node.host.send_queue(end.send_queue).rewind();
            node.host.recv_queue(end.recv_queue).rewind();
        }
        Ok(())
    }

    fn connect(&mut self, connect: &Connect) -> Done {
        let (end, transport) = self.qp(&connect.qp)?;
        let reliable = transport == QpType::Rc;
        let init = QpAttr {
            state: Some(QpState::Init),
            pkey_index: Some(0),
            port: Some(1),
            access: Some(Access::from_bits_retain(connect.access)),
            ..QpAttr::default()
        };
        let rtr = QpAttr {
            state: Some(QpState::Rtr),
            av: Some(vector(&connect.path)),
            path_mtu: Some(connect.mtu),
            dest_qpn: Some(Qpn::new(connect.dqpn)),
            rq_psn: Some(Psn::new(connect.rq_psn)),
            max_dest_rd_atomic: reliable.then_some(connect.max_dest_rd_atomic),
            min_rnr_timer: reliable.then_some(connect.min_rnr_timer),
            ..QpAttr::default()
        };
        let rts = QpAttr {
            state: Some(QpState::Rts),
            sq_psn: Some(Psn::new(connect.sq_psn)),
            timeout: reliable.then_some(connect.timeout),
            retry_cnt: reliable.then_some(connect.retry_cnt),
            rnr_retry: reliable.then_some(connect.rnr_retry),
            max_rd_atomic: reliable.then_some(connect.max_rd_atomic),
            ..QpAttr::default()
        };
        let steps = match connect.until {
            State::Init => &[init][..],
            State::Rtr => &[init, rtr],
            _ => &[init, rtr, rts],
        };
        steps.iter().try_for_each(|step| self.change(&end, step))?;
        Ok(json!({}))
    }

    fn modify(&mut self, change: &ModifyQp) -> Done {
        let (end, _) = self.qp(&change.qp)?;
        let attr = QpAttr {
            state: change.state.map(state_of),
            access: change.access.map(Access::from_bits_retain),
            qkey: change.qkey.map(Qkey),
            sq_psn: change.sq_psn.map(Psn::new),
            timeout: change.timeout,
            retry_cnt: change.retry_cnt,
            rnr_retry: change.rnr_retry,
            max_rd_atomic: change.max_rd_atomic,
            min_rnr_timer: change.min_rnr_timer,
            ..QpAttr::default()
        };
        self.change(&end, &attr)?;
        Ok(json!({}))
    }

    fn query(&self, qp: &str) -> Done {
        let (end, _) = self.qp(qp)?;
        let world = self.world.borrow();
        let info = world.nodes[NODE].device.query_qp(end.qpn);
        let info = info.ok_or_else(|| refusal("the QP is gone"))?;
        let state = state_name(info.state);
        Ok(json!({"state": state, "sq_psn": info.sq_psn.get(), "rq_psn": info.rq_psn.get()}))
    }

    fn post_recv(&mut self, to: &str, mr: &str, wrs: &[RecvWr]) -> Done {
        let (queue, end) = match self.srq(to) {
            Ok((_, queue)) => (queue, None),
            Err(_) => self.qp(to).map(|(end, _)| (end.recv_queue, Some(end)))?,
        };
        for wr in wrs {
            let sges = self.sges(mr, &wr.sges)?;
            let wr_id = self.name_id(wr.id) | RECV_WR_ID;
            let ring = &mut self.world.borrow_mut().nodes[NODE].host;
            let ring = ring.recv_queue(queue);
            if ring.room() == 0 {
                return Err(refusal("the receive queue is full"));
            }
            ring.post(Entry::Good(RecvWqe { wr_id, sges }));
        }
        if let Some(end) = end {
            self.world.borrow_mut().ring(&end);
        }
        Ok(json!({}))
    }

    fn post_send(&mut self, qp: &str, mr: &str, wrs: &[SendWr]) -> Done {
        let (end, _) = self.qp(qp)?;
        let mut rkeys = Vec::new();
        for wr in wrs {
            let mut wqe = self.work_request(mr, wr)?;
            wqe.wr.wr_id = self.name_id(wr.id);
            if let (SendOp::BindMw { new_rkey, .. }, Some(mw)) = (&wqe.wr.op, &wr.mw) {
                rkeys.push(new_rkey.0);
                self.things.insert(mw.clone(), Thing::Mw(new_rkey.0));
            }
            let host = &mut self.world.borrow_mut().nodes[NODE].host;
            let ring = host.send_queue(end.send_queue);
            if ring.room() == 0 {
                return Err(refusal("the send queue is full"));
            }
            ring.post(Entry::Good(wqe));
        }
        self.world.borrow_mut().ring(&end);
        Ok(json!({ "rkeys": rkeys }))
    }

    fn work_request(&self, mr: &str, wr: &SendWr) -> Done<SendWqe> {
        let missing = |what: &str| refusal(format!("{:?} without {what}", wr.op));
        let remote = || {
            let rkey = Rkey(wr.rkey.ok_or_else(|| missing("rkey"))?);
            Ok((wr.raddr.ok_or_else(|| missing("raddr"))?, rkey))
        };
        let operand = number(wr.operand.as_deref()).ok_or_else(|| missing("operand"));
        let op = match wr.op {
            Operation::Send => SendOp::Send(Extra::None),
            Operation::SendWithImm => SendOp::Send(Extra::Imm(wr.imm.unwrap_or(0))),
            Operation::SendWithInv => SendOp::Send(Extra::Invalidate(Rkey(wr.inv.unwrap_or(0)))),
            Operation::RdmaWrite | Operation::RdmaWriteWithImm => {
                let (remote_addr, rkey) = remote()?;
                let imm = (wr.op == Operation::RdmaWriteWithImm).then_some(wr.imm.unwrap_or(0));
                SendOp::Write { remote_addr, rkey, imm }
            }
            Operation::RdmaRead => {
                let (remote_addr, rkey) = remote()?;
                SendOp::Read { remote_addr, rkey }
            }
            Operation::CmpSwap => {
                let (remote_addr, rkey) = remote()?;
                let swap = number(wr.swap.as_deref()).ok_or_else(|| missing("swap"))?;
                SendOp::CompareSwap { remote_addr, rkey, compare: operand?, swap }
            }
            Operation::FetchAdd => {
                let (remote_addr, rkey) = remote()?;
                SendOp::FetchAdd { remote_addr, rkey, add: operand? }
            }
            Operation::AtomicWrite => {
                let (remote_addr, rkey) = remote()?;
                SendOp::AtomicWrite { remote_addr, rkey }
            }
            Operation::Flush => {
                let (remote_addr, rkey) = remote()?;
                let length = wr.len.unwrap_or(0) as u32;
                let (placement, selectivity) = (FlushPlacement::GLOBAL, FlushSelectivity::Range);
                SendOp::Flush { remote_addr, rkey, length, placement, selectivity }
            }
            Operation::LocalInv => SendOp::LocalInvalidate { key: Rkey(wr.inv.unwrap_or(0)) },
            Operation::BindMw => {
                let mw = self.mw(wr.mw.as_deref().unwrap_or_default())?;
                self.bind(mw, wr.window.as_ref().ok_or_else(|| missing("window"))?)?
            }
        };
        let mut wqe = SendWqe { sges: self.sges(mr, &wr.sges)?, ..SendWqe::default() };
        wqe.wr.op = op;
        (wqe.wr.signaled, wqe.wr.fence, wqe.wr.solicited) = (wr.signaled, wr.fence, wr.solicited);
        if let Some(ah) = &wr.ah {
            wqe.wr.to = Some(Destination {
                path: DatagramPath::Handle(self.ah(ah)?),
                qpn: Qpn::new(wr.dqpn.unwrap_or(0)),
                qkey: Qkey(wr.qkey.unwrap_or(0)),
            });
        }
        if wr.op == Operation::AtomicWrite {
            let data = number(wr.data.as_deref()).ok_or_else(|| missing("data"))?;
            wqe.inline = Some(data.to_be_bytes().to_vec());
        } else if wr.inline {
            wqe.inline = Some(self.world.borrow().nodes[NODE].host.program_gather(&wqe.sges));
        }
        Ok(wqe)
    }

    /// The bind that gives a window its next key.
    fn bind(&self, mw: u32, window: &Window) -> Done<SendOp> {
        let (mr, _) = self.mr(&window.of)?;
        Ok(SendOp::BindMw {
            mw: Rkey(mw),
            new_rkey: Rkey(mw & !0xff | mw.wrapping_add(1) & 0xff),
            mr: Lkey(mr.key),
            addr: mr.addr + window.off as u64,
            length: window.len as u64,
            access: Access::from_bits_retain(window.access),
        })
    }

    fn sges(&self, mr: &str, list: &[(usize, usize)]) -> Done<Vec<Sge>> {
        let (mr, _) = self.mr(mr)?;
        let sge = |&(off, len): &(usize, usize)| Sge {
            addr: mr.addr + off as u64,
            length: len as u32,
            lkey: Lkey(mr.key),
        };
        Ok(list.iter().map(sge).collect())
    }

    fn name_id(&mut self, id: u64) -> u64 {
        self.next_id += 1;
        self.ids.insert(self.next_id, id);
        self.next_id
    }

    fn poll(&mut self, cq: &str, count: usize) -> Done {
        let cq = self.cq(cq)?;
        let world = &mut *self.world.borrow_mut();
        let ring = world.nodes[NODE].host.cq(cq);
        let polled = std::iter::from_fn(|| ring.poll()).take(count);
        let wcs: Vec<Value> = polled.map(|found| self.completion(&found.completion)).collect();
        Ok(json!({ "wcs": wcs }))
    }

    fn completion(&self, wc: &Completion) -> Value {
        let id = self.ids.get(&(wc.wr_id & !RECV_WR_ID)).copied().unwrap_or(wc.wr_id);
        let status = Status::from(wc.status);
        if status != Status::Success {
            return json!({"id": id, "status": status, "vendor_err": wc.vendor_err});
        }
        let op = opcode_name(wc.opcode);
        let mut told = json!({"id": id, "status": status, "op": op, "qpn": wc.qpn.get()});
        if wc.opcode.is_recv() {
            let grh = if wc.grh.is_some() { 1 } else { 0 };
            let (extra, key, value) = match wc.extra {
                Extra::None => (0, "", 0),
                Extra::Imm(imm) => (2, "imm", imm),
                Extra::Invalidate(Rkey(rkey)) => (8, "inv", rkey),
            };
            told["len"] = wc.byte_len.into();
            told["src_qpn"] = wc.src_qpn.get().into();
            told["flags"] = (grh | extra).into();
            if extra > 0 {
                told[key] = value.into();
            }
        }
        told
    }

    fn events(&mut self) -> Value {
        let world = self.world.borrow();
        let new = &world.nodes[NODE].host.events[self.told..];
        self.told += new.len();
        let events: Vec<Event> = new.iter().map(|event| self.event(*event)).collect();
        json!({ "events": events })
    }

    fn event(&self, event: AsyncEvent) -> Event {
        let of = |is: &dyn Fn(&Thing) -> bool| {
            let found = self.things.iter().find(|(_, thing)| is(thing));
            found.map(|(name, _)| name.clone())
        };
        let qp = |qpn: Qpn| of(&|thing| matches!(thing, Thing::Qp(end, _) if end.qpn == qpn));
        let srq = |id: SrqId| of(&|thing| matches!(thing, Thing::Srq(srq, _) if *srq == id));
        let (event, name) = match event {
            AsyncEvent::QpFatal(qpn) => (EventKind::QpFatal, qp(qpn)),
            AsyncEvent::QpRequestError(qpn) => (EventKind::QpReqErr, qp(qpn)),
            AsyncEvent::QpAccessError(qpn) => (EventKind::QpAccessErr, qp(qpn)),
            AsyncEvent::CommunicationEstablished(qpn) => (EventKind::CommEst, qp(qpn)),
            AsyncEvent::SqDrained(qpn) => (EventKind::SqDrained, qp(qpn)),
            AsyncEvent::LastWqeReached(qpn) => (EventKind::QpLastWqeReached, qp(qpn)),
            AsyncEvent::SrqError(id) => (EventKind::SrqErr, srq(id)),
            AsyncEvent::SrqLimit(id) => (EventKind::SrqLimitReached, srq(id)),
            AsyncEvent::CqError(id) => {
                let cq = of(&|thing| matches!(thing, Thing::Cq(cq) if *cq == id));
                (EventKind::CqErr, cq)
            }
        };
        Event { event, name }
    }

    fn close(&mut self, name: &str) {
        let Some(thing) = self.things.remove(name) else { return };
        let world = &mut *self.world.borrow_mut();
        let device = &mut world.nodes[NODE].device;
        // What cannot go yet stays, as with the verbs of a program that does not look.
        match thing {
            Thing::Mr(mr, _) => drop(device.dereg_mr(Lkey(mr.key))),
            Thing::Cq(cq) => device.release_cq(cq),
            Thing::Srq(srq, _) => drop(device.destroy_srq(srq)),
            Thing::Qp(end, _) => drop(world.destroy_qp(&end)),
            Thing::Ah(ah) => drop(device.destroy_ah(ah)),
            Thing::Mw(rkey) => drop(device.dealloc_mw(Rkey(rkey))),
            Thing::Call(conn) => self.programs.borrow_mut().close(world, conn),
        }
    }
}

impl Agent for SimAgent {
    fn call(&mut self, command: &Command) -> Result<Value, AgentError> {
        self.execute(command).map_err(|(reason, errno)| {
            let name = serde_json::to_value(command).ok();
            let name = name.and_then(|name| Some(name.get("do")?.as_str()?.to_string()));
            let command = name.unwrap_or_default();
            AgentError::Refused { command, reason, errno: Some(errno) }
        })
    }
}
