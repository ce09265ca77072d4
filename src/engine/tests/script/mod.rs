//! Scripts of packets: one device under test, and a peer that is nothing but the script.
//!
//! The QP under test has QPN [`Script::qpn`], sends from PSN 200, expects PSN 100, and its path
//! MTU is 256. Its program has one MR of 64 KiB at [`VA`] with all rights. The device may have
//! more QPs; the script [selects](Script::select) the one that it goes on with.

// Each test file uses its own part.
#![allow(dead_code, unreachable_pub, unused_imports)]

mod memory;

pub use memory::{BIND_WR_ID, invalidate, next_key};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};
use urxe_engine::*;
use urxe_types::*;
use urxe_wire::batch::{TxBatch, TxLimits};
use urxe_wire::mad::{Capabilities, CapabilityMad, CapabilityMessage, MAD_LEN, MadSource};
use urxe_wire::*;

pub const VA: u64 = 0x10_0000;
pub const MTU: usize = 256;
pub const PEER_QPN: u32 = 0x22;
pub const PD: PdId = PdId(1);
pub const QKEY: Qkey = Qkey(0x1111_1111);
pub const SCQ: CqId = CqId(1);
pub const RCQ: CqId = CqId(2);
pub const LOCAL: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));
pub const PEER: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2));

/// Something that a program sees of its memory, at the earliest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Store {
    /// Bytes, in any order until the next barrier.
    Write { at: u64, len: usize },
    /// A number, after all before and before all after it.
    Atomic { at: u64 },
    /// Everything before comes before everything after.
    Barrier,
    /// Everything before is visible.
    Sync,
}

/// The program behind the QP, in plain vectors.
#[derive(Default)]
pub struct Program {
    pub memory: Vec<u8>,
    pub sends: BTreeMap<QueueId, VecDeque<SendWqe>>,
    pub recvs: BTreeMap<QueueId, VecDeque<RecvWqe>>,
    /// Queues whose cursors make no sense any more.
    pub broken: BTreeSet<QueueId>,
    pub completions: VecDeque<(CqId, Completion)>,
    pub events: Vec<AsyncEvent>,
    pub mads: Vec<(MadSource, [u8; MAD_LEN])>,
    /// Send queue entries whose places are free again; and how many were with each completion.
    pub retired: u32,
    pub retired_when_completed: Vec<u32>,
    /// CQs that take no completion.
    pub full: BTreeSet<CqId>,
    /// The memory is gone.
    pub unmapped: bool,
    /// Writes are held back, and lost when the program goes: `sync` fails then.
    pub sync_fails: bool,
    /// What was done to memory, in order.
    pub stores: Vec<Store>,
}

impl Program {
    fn at(&mut self, offset: u64, len: usize) -> Result<&mut [u8], MemoryFault> {
        let offset = offset as usize;
        match self.unmapped {
            false => Ok(&mut self.memory[offset..offset + len]),
            true => Err(MemoryFault),
        }
    }

    fn word(&mut self, offset: u64) -> Result<&mut [u8; 8], MemoryFault> {
        Ok(self.at(offset, 8)?.try_into().unwrap())
    }
}

impl Host for Program {
    fn read(&mut self, _: RegionId, offset: u64, buf: &mut [u8]) -> Result<(), MemoryFault> {
        buf.copy_from_slice(self.at(offset, buf.len())?);
        Ok(())
    }

    fn write(&mut self, _: RegionId, offset: u64, data: &[u8]) -> Result<(), MemoryFault> {
        self.at(offset, data.len())?.copy_from_slice(data);
        self.stores.push(Store::Write { at: offset, len: data.len() });
        Ok(())
    }

    fn write_barrier(&mut self) {
        self.stores.push(Store::Barrier);
    }

    fn sync(&mut self) -> Result<(), MemoryFault> {
        self.stores.push(Store::Sync);
        if self.sync_fails { Err(MemoryFault) } else { Ok(()) }
    }

    fn atomic(&mut self, _: RegionId, offset: u64, op: AtomicOp) -> Result<u64, MemoryFault> {
        let word = self.word(offset)?;
        let original = u64::from_ne_bytes(*word);
        *word = op.apply(original).to_ne_bytes();
        self.stores.push(Store::Atomic { at: offset });
        Ok(original)
    }

    fn write_atomic(&mut self, _: RegionId, offset: u64, data: [u8; 8]) -> Result<(), MemoryFault> {
        *self.word(offset)? = data;
        self.stores.push(Store::Atomic { at: offset });
        Ok(())
    }

    fn posted_recvs(&mut self, queue: QueueId) -> u32 {
        self.recvs.get(&queue).map_or(0, VecDeque::len) as u32
    }

    fn next_send(&mut self, queue: QueueId, wqe: &mut SendWqe) -> Taken {
        let next = self.sends.get_mut(&queue).and_then(VecDeque::pop_front);
        taken(self.broken.contains(&queue), next, wqe)
    }

    fn retire_send(&mut self, _: QueueId) {
        self.retired += 1;
    }

    fn next_recv(&mut self, queue: QueueId, wqe: &mut RecvWqe) -> Taken {
        let next = self.recvs.get_mut(&queue).and_then(VecDeque::pop_front);
        taken(self.broken.contains(&queue), next, wqe)
    }

    fn complete(&mut self, cq: CqId, completion: &Completion) -> Result<(), CqOverrun> {
        if self.full.contains(&cq) {
            return Err(CqOverrun);
        }
        self.completions.push_back((cq, completion.clone()));
        self.retired_when_completed.push(self.retired);
        Ok(())
    }

    fn event(&mut self, event: AsyncEvent) {
        self.events.push(event);
    }

    fn mad(&mut self, from: &MadSource, mad: &[u8; MAD_LEN]) {
        self.mads.push((*from, *mad));
    }
}

fn taken<T>(broken: bool, next: Option<T>, wqe: &mut T) -> Taken {
    match (broken, next) {
        (true, _) => Taken::Broken,
        (false, Some(next)) => {
            *wqe = next;
            Taken::Ready
        }
        (false, None) => Taken::Empty,
    }
}

/// A packet of the script: what the peer sends, or what is expected of the device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pkt {
    pub headers: Headers,
    pub payload: Vec<u8>,
}

/// A packet of this opcode and PSN.
pub fn pkt(opcode: Opcode, psn: u32) -> Pkt {
    let bth = Bth::new(Qpn::new(0), Psn::new(psn));
    Pkt { headers: Headers::new(bth, Body::zeroed(opcode)), payload: vec![] }
}

/// An ACK of everything up to `psn`.
pub fn ack(psn: u32, msn: u32) -> Pkt {
    pkt(Opcode::RC_ACK, psn).aeth(Syndrome::ACK, msn)
}

/// A NAK for `psn`.
pub fn nak(code: NakCode, psn: u32, msn: u32) -> Pkt {
    pkt(Opcode::RC_ACK, psn).aeth(Syndrome::Nak(code), msn)
}

/// An RNR NAK for `psn`.
pub fn rnr(timer: u8, psn: u32, msn: u32) -> Pkt {
    pkt(Opcode::RC_ACK, psn).aeth(Syndrome::RnrNak { timer: RnrTimer::new(timer) }, msn)
}

impl Pkt {
    pub fn ack_req(mut self) -> Pkt {
        self.headers.bth.ack_req = true;
        self
    }

    pub fn solicited(mut self) -> Pkt {
        self.headers.bth.solicited = true;
        self
    }

    pub fn aeth(mut self, syndrome: Syndrome, msn: u32) -> Pkt {
        use Response::{Ack, AtomicAck, ReadFirst, ReadLast, ReadOnly, SelectiveAck};
        match &mut self.headers.body {
            Body::RcResponse(
                Ack(aeth)
                | ReadFirst(aeth)
                | ReadLast(aeth)
                | ReadOnly(aeth)
                | AtomicAck { aeth, .. }
                | SelectiveAck { aeth },
            ) => *aeth = Aeth { syndrome, msn: Msn::new(msn) },
            body => panic!("{} has no AETH", body.opcode()),
        }
        self
    }

    pub fn reth(mut self, va: u64, rkey: u32, len: u32) -> Pkt {
        use {Part::*, Request::*};
        match &mut self.headers.body {
            Body::RcRequest(
                Write(First(reth) | Only(reth, _))
                | Read(reth)
                | AtomicWrite(reth)
                | Flush { reth, .. },
            )
            | Body::Uc(UcRequest::Write(First(reth) | Only(reth, _))) => {
                *reth = Reth { va, rkey: Rkey(rkey), len };
            }
            body => panic!("{} has no RETH", body.opcode()),
        }
        self
    }

    pub fn feth(mut self, placement: u8, selectivity: u8) -> Pkt {
        let Body::RcRequest(Request::Flush { feth, .. }) = &mut self.headers.body else {
            panic!("{} has no FETH", self.headers.body.opcode());
        };
        *feth = Feth {
            placement: FlushPlacement::from_bits_retain(placement),
            selectivity: FlushSelectivity::from_code(selectivity),
        };
        self
    }

    pub fn atomic(mut self, va: u64, rkey: u32, swap_or_add: u64, compare: u64) -> Pkt {
        let (Body::RcRequest(Request::CompareSwap(atomic))
        | Body::RcRequest(Request::FetchAdd(atomic))) = &mut self.headers.body
        else {
            panic!("{} has no AtomicETH", self.headers.body.opcode());
        };
        *atomic = AtomicEth { va, rkey: Rkey(rkey), swap_or_add, compare };
        self
    }

    pub fn original(mut self, found: u64) -> Pkt {
        let Body::RcResponse(Response::AtomicAck { original, .. }) = &mut self.headers.body else {
            panic!("{} has no AtomicAckETH", self.headers.body.opcode());
        };
        *original = found;
        self
    }

    pub fn imm(mut self, data: u32) -> Pkt {
        use {Part::*, Request::*};
        match &mut self.headers.body {
            Body::RcRequest(
                Send(Last(Extra::Imm(imm)) | Only((), Extra::Imm(imm)))
                | Write(Last(Some(imm)) | Only(_, Some(imm))),
            )
            | Body::Uc(
                UcRequest::Send(Last(Some(imm)) | Only((), Some(imm)))
                | UcRequest::Write(Last(Some(imm)) | Only(_, Some(imm))),
            )
            | Body::Ud(Datagram { imm: Some(imm), .. }) => *imm = data,
            body => panic!("{} has no immediate data", body.opcode()),
        }
        self
    }

    pub fn invalidate(mut self, key: u32) -> Pkt {
        use Part::{Last, Only};
        let Body::RcRequest(Request::Send(
            Last(Extra::Invalidate(rkey)) | Only((), Extra::Invalidate(rkey)),
        )) = &mut self.headers.body
        else {
            panic!("{} has no IETH", self.headers.body.opcode());
        };
        *rkey = Rkey(key);
        self
    }

    pub fn deth(mut self, qkey: Qkey, src_qp: u32) -> Pkt {
        let Body::Ud(Datagram { deth, .. }) = &mut self.headers.body else {
            panic!("{} has no DETH", self.headers.body.opcode());
        };
        *deth = Deth { qkey, src_qp: Qpn::new(src_qp) };
        self
    }

    pub fn to(mut self, qpn: Qpn) -> Pkt {
        self.headers.bth.dest_qp = qpn;
        self
    }

    pub fn payload(mut self, payload: &[u8]) -> Pkt {
        self.payload = payload.to_vec();
        self
    }
}

/// `len` bytes that differ from place to place: byte i is `seed + i`.
pub fn bytes(seed: u8, len: usize) -> Vec<u8> {
    (0..len).map(|i| seed.wrapping_add(i as u8)).collect()
}

pub struct Script {
    pub device: Device,
    pub program: Program,
    pub qpn: Qpn,
    pub key: u32,
    pub now: Instant,
    sent: VecDeque<(Flow, Pkt)>,
}

/// The attributes that the scripts' QPs go to RTS with.
pub fn usual() -> QpAttr {
    QpAttr {
        access: Some(
            Access::LOCAL_WRITE
                | Access::REMOTE_WRITE
                | Access::REMOTE_READ
                | Access::REMOTE_ATOMIC,
        ),
        pkey_index: Some(0),
        port: Some(1),
        av: Some(AddressVector {
            dgid: PEER,
            sgid_index: 0,
            traffic_class: 0,
            hop_limit: 64,
            flow_label: 0,
        }),
        path_mtu: Some(PathMtu::Mtu256),
        dest_qpn: Some(Qpn::new(PEER_QPN)),
        rq_psn: Some(Psn::new(100)),
        sq_psn: Some(Psn::new(200)),
        max_rd_atomic: Some(4),
        max_dest_rd_atomic: Some(4),
        min_rnr_timer: Some(12),
        timeout: Some(14),
        retry_cnt: Some(2),
        rnr_retry: Some(2),
        ..QpAttr::default()
    }
}

/// As [`usual`], those that a UC QP has.
pub fn usual_uc() -> QpAttr {
    let QpAttr { access, pkey_index, port, av, path_mtu, dest_qpn, rq_psn, sq_psn, .. } = usual();
    QpAttr { access, pkey_index, port, av, path_mtu, dest_qpn, rq_psn, sq_psn, ..QpAttr::default() }
}

/// As [`usual`], those that a UD QP has.
pub fn usual_ud() -> QpAttr {
    let QpAttr { pkey_index, port, sq_psn, .. } = usual();
    QpAttr { pkey_index, port, qkey: Some(QKEY), sq_psn, ..QpAttr::default() }
}

/// The usual attributes of a QP of this type.
pub fn usual_of(qp_type: QpType) -> QpAttr {
    match qp_type {
        QpType::Rc => usual(),
        QpType::Uc => usual_uc(),
        QpType::Ud => usual_ud(),
    }
}

/// When the ACK timeout of [`usual`] runs out on a path that nothing is known of: four times 67 ms,
/// but no later than every answer comes.
pub const ACK_TIMEOUT: Duration = limits::UNKNOWN_ROUND_TRIP;

impl Script {
    /// A QP in RTS with the usual attributes.
    pub fn new() -> Script {
        Script::with(usual())
    }

    /// A QP in RTS with these attributes.
    pub fn with(attr: QpAttr) -> Script {
        let mut script = Script::in_reset();
        script.connect(&attr);
        script
    }

    /// A QP of this type in RTS with the usual attributes.
    pub fn of(qp_type: QpType) -> Script {
        let mut script = Script::in_reset_of(qp_type);
        script.connect(&usual_of(qp_type));
        script
    }

    /// Takes the QP from RESET to RTS.
    pub fn connect(&mut self, attr: &QpAttr) {
        self.enter_init(attr).unwrap();
        self.enter_rtr(attr).unwrap();
        self.enter_rts(attr).unwrap();
    }

    /// A QP in RESET.
    pub fn in_reset() -> Script {
        Script::in_reset_of(QpType::Rc)
    }

    /// A QP of this type in RESET.
    pub fn in_reset_of(qp_type: QpType) -> Script {
        // Probes have tests of their own.
        Script::make(qp_type, Duration::from_secs(3600), WireForm::Strict)
    }

    /// A QP of this type in RTS with the usual attributes, on a device that sends packets of one
    /// size where it can.
    pub fn uniform(qp_type: QpType) -> Script {
        let mut script = Script::make(qp_type, Duration::from_secs(3600), WireForm::Uniform);
        script.connect(&usual_of(qp_type));
        script
    }

    /// A QP in RESET that probes for lost tails after this time.
    pub fn probing(min_probe: Duration) -> Script {
        Script::make(QpType::Rc, min_probe, WireForm::Strict)
    }

    /// A QP in RTS whose responder keeps so much of what comes before its turn.
    pub fn keeping(early: EarlyLimits) -> Script {
        let tuning = Tuning { wire: WireForm::Strict, early, ..Tuning::default() };
        let mut script = Script::tuned(QpType::Rc, Duration::from_secs(3600), tuning);
        // As many atomics may be under way as a script likes.
        script.connect(&QpAttr { max_dest_rd_atomic: Some(128), ..usual() });
        script
    }

    /// A QP of this type in RESET, on a device with this congestion control.
    pub fn controlled(qp_type: QpType, congestion: CongestionControl) -> Script {
        let tuning = Tuning { wire: WireForm::Strict, congestion, ..Tuning::default() };
        Script::tuned(qp_type, Duration::from_secs(3600), tuning)
    }

    fn make(qp_type: QpType, min_probe: Duration, wire: WireForm) -> Script {
        Script::tuned(qp_type, min_probe, Tuning { wire, ..Tuning::default() })
    }

    /// An RC QP in RTS with the usual attributes, of a device that is one slot of several.
    pub fn in_slot(slot: Slot) -> Script {
        let mut script = Script::made(slot, QpType::Rc, Duration::ZERO, Tuning::default());
        script.connect(&usual());
        script
    }

    fn tuned(qp_type: QpType, min_probe: Duration, tuning: Tuning) -> Script {
        Script::made(Slot::ALONE, qp_type, min_probe, tuning)
    }

    fn made(slot: Slot, qp_type: QpType, min_probe: Duration, tuning: Tuning) -> Script {
        let mut device = Device::new(DeviceConfig {
            gids: vec![Some(LOCAL)],
            source_ports: SourcePorts::All,
            active_mtu: PathMtu::Mtu1024,
            local_addrs: BTreeSet::new(),
            guarded_addrs: BTreeSet::new(),
            slot,
            seed: 1,
            min_probe,
            tuning,
        });
        let access = usual().access.unwrap() | Access::MW_BIND;
        let spec = MrSpec { pd: PD, addr: VA, length: 65_536, access, region: RegionId(0) };
        let key = device.reg_mr(spec).unwrap().lkey.0;
        let program = Program { memory: vec![0; 65_536], ..Program::default() };
        #[expect(clippy::disallowed_methods, reason = "time must begin somewhere")]
        let now = Instant::now();
        let mut script =
            Script { device, program, qpn: Qpn::new(0), key, now, sent: VecDeque::new() };
        script.create(qp_type, None);
        script
    }

    /// A connected QP that probes after so long, the path's round trip being known: no time at all.
    /// Its next PSN is 200.
    pub fn probing_after(margin: Duration, attr: QpAttr) -> Script {
        let mut t = Script::probing(margin);
        t.connect(&QpAttr { sq_psn: Some(Psn::new(199)), ..attr });
        t.post(0, SendOp::Send(Extra::None), &[]);
        t.sent();
        t.receive(&[ack(199, 0)]);
        t.expect_send(0, WcStatus::Success);
        t
    }

    /// A connected QP on a path on which an answer to a READ has come, so that it asks for more
    /// than a few packets at once. Its next PSN is 200.
    pub fn reading() -> Script {
        let mut t = Script::with(QpAttr { sq_psn: Some(Psn::new(199)), ..usual() });
        t.post(0, SendOp::Read { remote_addr: 0, rkey: Rkey(0) }, &[t.sge(0, 1)]);
        t.sent();
        let answer = pkt(Opcode::RC_READ_RESPONSE_ONLY, 199).aeth(Syndrome::ACK, 1);
        t.receive(&[answer.payload(&[0])]);
        t.expect_send(0, WcStatus::Success);
        t
    }

    /// Makes another QP, in RESET, and goes on with it. It receives from this SRQ, or has a
    /// receive queue of its own.
    pub fn create(&mut self, qp_type: QpType, srq: Option<SrqId>) -> Qpn {
        self.create_with(|init| QpInit {
            qp_type,
            recv: srq.map_or(init.recv, RecvSource::Shared),
            ..init
        })
    }

    /// As [`create`](Self::create), with a change to what an RC QP is usually made with.
    pub fn create_with(&mut self, change: impl FnOnce(QpInit) -> QpInit) -> Qpn {
        let number = self.device.qpns().count() as u32;
        let init = QpInit {
            qp_type: QpType::Rc,
            pd: PD,
            send_cq: SCQ,
            recv_cq: RCQ,
            send_queue: QueueId(2 * number),
            recv: RecvSource::Own(QueueId(2 * number + 1)),
            share: ShareId::default(),
        };
        self.qpn = self.device.create_qp(change(init)).unwrap();
        self.qpn
    }

    /// Makes another QP in RTS with the usual attributes, and goes on with it.
    pub fn another(&mut self, qp_type: QpType, srq: Option<SrqId>) -> Qpn {
        let qpn = self.create(qp_type, srq);
        self.connect(&usual_of(qp_type));
        qpn
    }

    /// Goes on with this QP.
    pub fn select(&mut self, qpn: Qpn) {
        self.qpn = qpn;
    }

    pub fn modify(&mut self, attr: &QpAttr) -> Result<(), ModifyQpError> {
        self.device.modify_qp(self.now, &mut self.program, self.qpn, attr)
    }

    pub fn enter_init(&mut self, attr: &QpAttr) -> Result<(), ModifyQpError> {
        let QpAttr { access, pkey_index, port, qkey, .. } = *attr;
        let state = Some(QpState::Init);
        self.modify(&QpAttr { state, access, pkey_index, port, qkey, ..QpAttr::default() })
    }

    pub fn enter_rtr(&mut self, attr: &QpAttr) -> Result<(), ModifyQpError> {
        let QpAttr { av, path_mtu, dest_qpn, rq_psn, .. } = *attr;
        let QpAttr { max_dest_rd_atomic, min_rnr_timer, .. } = *attr;
        let state = Some(QpState::Rtr);
        self.modify(&QpAttr {
            state,
            av,
            path_mtu,
            dest_qpn,
            rq_psn,
            max_dest_rd_atomic,
            min_rnr_timer,
            ..QpAttr::default()
        })
    }

    pub fn enter_rts(&mut self, attr: &QpAttr) -> Result<(), ModifyQpError> {
        let QpAttr { timeout, retry_cnt, rnr_retry, sq_psn, max_rd_atomic, .. } = *attr;
        let state = Some(QpState::Rts);
        self.modify(&QpAttr {
            state,
            timeout,
            retry_cnt,
            rnr_retry,
            sq_psn,
            max_rd_atomic,
            ..QpAttr::default()
        })
    }

    pub fn enter(&mut self, state: QpState) {
        self.modify(&QpAttr { state: Some(state), ..QpAttr::default() }).unwrap();
    }

    pub fn state(&self) -> QpState {
        self.device.query_qp(self.qpn).unwrap().state
    }

    /// Lets time pass; timers that run out do their work.
    pub fn wait(&mut self, duration: Duration) {
        self.now += duration;
        self.device.handle_timeout(self.now, &mut self.program);
    }

    // The program's side.

    /// A stretch of the MR.
    pub fn sge(&self, offset: u64, length: u32) -> Sge {
        Sge { addr: VA + offset, length, lkey: Lkey(self.key) }
    }

    fn init(&self) -> QpInit {
        self.device.query_qp(self.qpn).unwrap().init
    }

    /// Posts a receive to the QP's own queue or to its SRQ.
    pub fn post_recv(&mut self, wr_id: u64, sges: &[Sge]) {
        let queue = match self.init().recv {
            RecvSource::Own(queue) => queue,
            RecvSource::Shared(srq) => self.device.query_srq(srq).unwrap().init.queue,
        };
        let recv = RecvWqe { wr_id, sges: sges.to_vec() };
        self.program.recvs.entry(queue).or_default().push_back(recv);
    }

    /// Posts a signaled send and rings the doorbell.
    pub fn post(&mut self, wr_id: u64, op: SendOp, sges: &[Sge]) {
        self.post_with(wr_id, op, sges, |_| {});
    }

    pub fn post_with(
        &mut self,
        wr_id: u64,
        op: SendOp,
        sges: &[Sge],
        change: impl FnOnce(&mut SendWqe),
    ) {
        let mut wqe = SendWqe {
            wr: SendWr { wr_id, op, signaled: true, ..SendWr::default() },
            sges: sges.to_vec(),
            inline: None,
        };
        change(&mut wqe);
        self.program.sends.entry(self.init().send_queue).or_default().push_back(wqe);
        self.device.ring_doorbell(self.qpn);
    }

    pub fn memory(&self, offset: usize, len: usize) -> &[u8] {
        &self.program.memory[offset..offset + len]
    }

    pub fn fill(&mut self, offset: usize, data: &[u8]) {
        self.program.memory[offset..offset + data.len()].copy_from_slice(data);
    }

    // The peer's side.

    /// The peer sends packets, which arrive as one batch.
    pub fn receive(&mut self, packets: &[Pkt]) {
        for packet in packets {
            let mut headers = packet.headers;
            headers.bth.dest_qp = self.qpn;
            self.receive_from(PEER, &Pkt { headers, payload: packet.payload.clone() });
        }
        self.device.end_of_batch(self.now, &mut self.program);
    }

    /// A packet as it is arrives from an address.
    pub fn receive_from(&mut self, src: IpAddr, packet: &Pkt) {
        self.receive_along(&flow(src, LOCAL), packet);
    }

    /// A packet as it is arrives with these outer headers.
    pub fn receive_along(&mut self, flow: &Flow, packet: &Pkt) {
        let (outer, datagram) = datagram_along(flow, packet);
        self.device.handle_datagram(self.now, &mut self.program, &outer, &datagram);
    }

    /// The device asks the peer what it understands beside the standard, and that is the answer.
    pub fn agree(&mut self, capabilities: Capabilities) {
        self.device.ask_capabilities(self.now, &flow(LOCAL, PEER));
        self.answer_question(capabilities);
    }

    /// The device has asked the peer what it understands, and that is the answer.
    pub fn answer_question(&mut self, capabilities: Capabilities) {
        let question: [u8; MAD_LEN] = self.next_sent().1.payload.try_into().unwrap();
        let tid = CapabilityMad::parse(&question).unwrap().tid;
        let message = CapabilityMessage::GetResp(capabilities);
        let answer = CapabilityMad { tid, message }.bytes();
        let packet = pkt(Opcode::UD_SEND_ONLY, 9).deth(Qkey::GSI, 1).payload(&answer);
        self.receive_from(PEER, &packet.to(Qpn::GSI));
        assert_eq!(self.device.peer_capabilities(PEER), Some(capabilities));
    }

    /// The next packet that the device sends must be this one.
    pub fn expect(&mut self, packet: Pkt) {
        self.drain();
        let mut expected = packet;
        expected.headers.bth.dest_qp = Qpn::new(PEER_QPN);
        let (flow, sent) = self.sent.pop_front().expect("the device must send a packet");
        assert_eq!(sent, expected);
        assert_eq!((flow.src, flow.dst), (LOCAL, PEER));
    }

    /// The next packet that the device sends, with its outer headers.
    pub fn next_sent(&mut self) -> (Flow, Pkt) {
        self.drain();
        self.sent.pop_front().expect("the device must send a packet")
    }

    pub fn expect_nothing(&mut self) {
        self.drain();
        assert_eq!(self.sent.pop_front(), None, "the device must send nothing");
    }

    /// All packets that the device sends now.
    pub fn sent(&mut self) -> Vec<Pkt> {
        self.drain();
        self.sent.drain(..).map(|(_, packet)| packet).collect()
    }

    /// The opcodes of all packets that the device sends now.
    pub fn sent_opcodes(&mut self) -> Vec<Opcode> {
        self.sent().iter().map(|packet| packet.headers.body.opcode()).collect()
    }

    fn drain(&mut self) {
        loop {
            let mut tx = TxBatch::new(TxLimits::SINGLE, 1 << 18);
            let more = self.device.poll_transmit(self.now, &mut self.program, &mut tx);
            for run in tx.runs() {
                for datagram in run.datagrams() {
                    let packet = Packet::parse(datagram.bytes).unwrap();
                    let mut headers = packet.headers;
                    headers.bth.pad = 0;
                    let packet = Pkt { headers, payload: packet.payload.to_vec() };
                    self.sent.push_back((*datagram.flow, packet));
                }
            }
            if !more {
                return;
            }
        }
    }

    // What the program is told.

    pub fn completion(&mut self) -> (CqId, Completion) {
        self.program.completions.pop_front().expect("there must be a completion")
    }

    /// The next completion is of this send.
    pub fn expect_send(&mut self, wr_id: u64, status: WcStatus) -> Completion {
        let (cq, completion) = self.completion();
        assert_eq!((cq, completion.wr_id, completion.status), (SCQ, wr_id, status));
        completion
    }

    /// The next completion is of this receive.
    pub fn expect_recv(&mut self, wr_id: u64, status: WcStatus) -> Completion {
        let (cq, completion) = self.completion();
        assert_eq!((cq, completion.wr_id, completion.status), (RCQ, wr_id, status));
        completion
    }

    pub fn expect_no_completion(&mut self) {
        assert_eq!(self.program.completions.pop_front(), None);
    }

    pub fn counted(&self, counter: Counter) -> u64 {
        self.device.counters().get(counter)
    }
}

/// The outer headers between two addresses.
pub fn flow(src: IpAddr, dst: IpAddr) -> Flow {
    Flow { src, dst, src_port: 0xc000, traffic_class: 0, hop_limit: 64, flow_label: 0 }
}

/// A packet as it stands on the wire, from this address to the device's.
pub fn datagram(src: IpAddr, packet: &Pkt) -> (Outer, Vec<u8>) {
    datagram_along(&flow(src, LOCAL), packet)
}

/// A packet as it stands on the wire.
pub fn datagram_along(flow: &Flow, packet: &Pkt) -> (Outer, Vec<u8>) {
    let mut tx = TxBatch::new(TxLimits::SINGLE, 8192);
    let Ok(()) = tx.push(flow, &packet.headers, packet.payload.len(), |buf| {
        buf.copy_from_slice(&packet.payload);
        Ok::<(), std::convert::Infallible>(())
    });
    let run = tx.runs().next().unwrap();
    let bytes = run.bytes.to_vec();
    let ident = Ident::Known { ident: run.first_ident, fragment: DONT_FRAGMENT };
    (Outer { flow: *flow, ident }, bytes)
}
