//! Our engine in place of a captured host: one device, with a QP for each direction that is
//! replayed to it.
//!
//! The engine chooses its own QPNs and keys, so those of the capture are translated. Beside that
//! only AckReq is changed: it is set in every request, so that the engine acknowledges each packet,
//! whatever the requester asked for.

use crate::memory::{Key, Keys, MemoryRange, named_range};
use crate::program::{GONE, Program, SINK, SINK_LEN};
use crate::survey::{Outcome, Survey};
use crate::trace::Captured;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::net::IpAddr;
use std::time::{Duration, Instant};
use urxe_engine::{
    Counter, CqId, Device, DeviceConfig, MrSpec, PdId, QpInit, QueueId, RecvSource, ShareId, Tuning,
};
use urxe_types::{
    Access, AddressVector, Extra, Lkey, MwType, PathMtu, Psn, Qkey, QpAttr, QpState, QpType, Qpn,
    Rkey, SendOp, SendWqe, SendWr, Slot,
};
use urxe_wire::batch::{TxBatch, TxLimits};
use urxe_wire::{
    Body, DONT_FRAGMENT, Headers, Ident, Outer, Packet, Part, Request, SourcePorts, Transport,
    UcRequest, icrc,
};

const PD: PdId = PdId(1);
const CQ: CqId = CqId(1);

/// Bytes of packets in one transmit batch.
const BATCH: usize = 64 << 10;

/// The destination QPNs of our QPs count from here, so that a response names its survey.
const FIRST_PEER: u32 = 0x1000;

/// A response packet of the engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct EngineResponse {
    /// The survey of its direction.
    pub(crate) survey: usize,
    pub(crate) headers: Headers,
    pub(crate) payload: Vec<u8>,
}

/// A key of the capture, and the engine's keys in its place.
struct TranslatedKey {
    spec: Key,
    mr: u32,
    /// The window's present key, where it is one.
    window: Option<u32>,
    /// The key with which the window was allocated, or last bound.
    allocated: u32,
    deregistered: bool,
}

impl TranslatedKey {
    fn key(&self) -> u32 {
        match (self.deregistered, self.spec.is_window) {
            (true, _) => NO_KEY,
            (_, false) => self.mr,
            (_, true) => self.window.unwrap_or(NO_KEY),
        }
    }
}

/// A key that grants nothing: no key of the engine has index 0.
const NO_KEY: u32 = 0;

/// A host of the capture.
pub(crate) struct ReferenceHost {
    device: Device,
    pub(crate) program: Program,
    keys: HashMap<Rkey, TranslatedKey>,
    /// By survey.
    qps: HashMap<usize, Qpn>,
    epoch: Instant,
    now: Instant,
    tx: TxBatch,
    /// Why something could not be set up.
    pub(crate) setup_errors: Vec<String>,
    /// Keys that were deregistered.
    pub(crate) closed: HashSet<Rkey>,
}

impl ReferenceHost {
    /// A host with this address and these keys.
    pub(crate) fn new(addr: IpAddr, keys: Keys, epoch: Instant) -> ReferenceHost {
        let mut device = Device::new(DeviceConfig {
            gids: vec![Some(addr)],
            source_ports: SourcePorts::All,
            active_mtu: PathMtu::Mtu4096,
            local_addrs: BTreeSet::new(),
            guarded_addrs: BTreeSet::new(),
            slot: Slot::ALONE,
            seed: 1,
            min_probe: Duration::from_millis(1),
            tuning: Tuning::default(),
        });
        let mut program = Program::default();
        let mut setup_errors = Vec::new();
        let mut register = |addr, length, access, region| {
            let access = access | Access::LOCAL_WRITE | Access::MW_BIND;
            device.reg_mr(MrSpec { pd: PD, addr, length, access, region }).map(|keys| keys.lkey.0)
        };
        let own = Access::empty();
        program.sink = Lkey(register(0, SINK_LEN.into(), own, SINK).unwrap_or(NO_KEY));
        program.gone = Lkey(register(0, SINK_LEN.into(), own, GONE).unwrap_or(NO_KEY));
        let mut translated = HashMap::new();
        let mut keys: Vec<_> = keys.into_iter().collect();
        keys.sort_unstable_by_key(|(rkey, _)| rkey.0);
        for (rkey, spec) in keys {
            let region = program.add(rkey, &spec);
            let length = (spec.last - spec.first).saturating_add(1);
            let mr = register(spec.first, length, spec.access, region).unwrap_or_else(|error| {
                setup_errors.push(format!("rkey {rkey}: {error}"));
                NO_KEY
            });
            let (window, allocated) = (None, NO_KEY);
            let key = TranslatedKey { spec, mr, window, allocated, deregistered: false };
            translated.insert(rkey, key);
        }
        ReferenceHost {
            device,
            program,
            keys: translated,
            qps: HashMap::new(),
            epoch,
            now: epoch,
            tx: TxBatch::new(TxLimits::SINGLE, BATCH),
            setup_errors,
            closed: HashSet::new(),
        }
    }

    /// Creates and connects the responder of a direction, or resets and connects it again. `first`
    /// is its first request.
    pub(crate) fn connect(&mut self, number: usize, survey: &Survey, first: &Captured) {
        let (qp_type, id) = match survey.transport {
            Transport::Uc => (QpType::Uc, 1),
            Transport::Ud => (QpType::Ud, 2),
            _ => (QpType::Rc, 0),
        };
        let created = match self.qps.get(&number) {
            Some(&qpn) => Ok(qpn),
            None => self.device.create_qp(QpInit {
                qp_type,
                pd: PD,
                send_cq: CQ,
                recv_cq: CQ,
                send_queue: QueueId(number as u32),
                recv: RecvSource::Own(QueueId(number as u32)),
                share: ShareId::default(),
            }),
        };
        let qpn = match created {
            Ok(qpn) => qpn,
            Err(error) => return self.setup_errors.push(error.to_string()),
        };
        self.qps.insert(number, qpn);
        let attr = attributes(number, survey, first);
        let steps = [QpState::Reset, QpState::Init, QpState::Rtr, QpState::Rts];
        for state in steps {
            let attr = step(state, id, &attr);
            if let Err(error) = self.device.modify_qp(self.now, &mut self.program, qpn, &attr) {
                return self.setup_errors.push(error.to_string());
            }
        }
        let group = first.outer.flow.dst;
        if group.is_multicast()
            && let Err(error) = self.device.attach_mcast(qpn, group)
        {
            self.setup_errors.push(error.to_string());
        }
    }

    /// The PSN that a responder expects next.
    pub(crate) fn expected(&self, number: usize) -> Option<Psn> {
        Some(self.device.query_qp(*self.qps.get(&number)?)?.rq_psn)
    }

    /// Whether a responder's QP is in ERR.
    pub(crate) fn has_failed(&self, number: usize) -> bool {
        let info = self.qps.get(&number).and_then(|&qpn| self.device.query_qp(qpn));
        info.is_some_and(|info| info.state == QpState::Err)
    }

    /// A counter of a QP.
    pub(crate) fn counter(&self, number: usize, counter: Counter) -> u64 {
        let counters = self.qps.get(&number).and_then(|&qpn| self.device.qp_counters(qpn));
        counters.map_or(0, |counters| counters.get(counter))
    }

    /// Hands a request to its responder. Returns the responses, about `limit` packets at most.
    pub(crate) fn request(
        &mut self,
        number: usize,
        index: usize,
        packet: &Captured,
        outcome: Option<Outcome>,
        limit: usize,
    ) -> Vec<EngineResponse> {
        let Some(&qpn) = self.qps.get(&number) else { return Vec::new() };
        self.now = self.now.max(self.epoch + packet.at);
        self.device.handle_timeout(self.now, &mut self.program);
        self.program.now = index + 1;
        self.update_keys(qpn, index, packet, outcome);
        let headers = self.translate(qpn, packet);
        let mut bytes = vec![0; headers.len()];
        headers.emit(&mut bytes);
        bytes.extend(&packet.payload);
        bytes.resize(bytes.len().next_multiple_of(4) + icrc::LEN, 0);
        let flow = packet.outer.flow;
        icrc::stamp(&flow, 0, &mut bytes);
        let ident = Ident::Known { ident: 0, fragment: DONT_FRAGMENT };
        self.program.outcome = outcome;
        self.program.receive_posted = true;
        let invalidates = packet.request().and_then(|request| request.invalidates());
        let invalidated = self.device.counters().get(Counter::KeysInvalidated);
        let (device, program) = (&mut self.device, &mut self.program);
        device.handle_datagram(self.now, program, &Outer { flow, ident }, &bytes);
        device.end_of_batch(self.now, program);
        let responses = self.responses(limit);
        self.program.outcome = None;
        if self.device.counters().get(Counter::KeysInvalidated) > invalidated
            && let Some(key) = invalidates.and_then(|rkey| self.keys.get_mut(&rkey))
        {
            key.window = None;
        }
        responses
    }

    /// Destroys a responder.
    pub(crate) fn disconnect(&mut self, number: usize) {
        if let Some(qpn) = self.qps.remove(&number) {
            self.device.destroy_qp(self.now, qpn);
        }
    }

    /// What the engine transmits.
    fn responses(&mut self, limit: usize) -> Vec<EngineResponse> {
        let mut responses = Vec::new();
        loop {
            let more = self.device.poll_transmit(self.now, &mut self.program, &mut self.tx);
            for sent in self.tx.datagrams() {
                let Ok(Packet { headers, payload }) = Packet::parse(sent.bytes) else { continue };
                let survey = headers.bth.dest_qp.get().saturating_sub(FIRST_PEER) as usize;
                responses.push(EngineResponse { survey, headers, payload: payload.to_vec() });
            }
            self.tx.clear();
            if !more || responses.len() >= limit {
                return responses;
            }
        }
    }

    /// The headers of a request with the engine's QPN and keys.
    fn translate(&self, qpn: Qpn, packet: &Captured) -> Headers {
        let key = |rkey: Rkey| Rkey(self.keys.get(&rkey).map_or(NO_KEY, TranslatedKey::key));
        let mut headers = packet.headers;
        if headers.bth.dest_qp != Qpn::MULTICAST {
            headers.bth.dest_qp = qpn;
        }
        headers.bth.ack_req = true;
        if let Some(rkey) = rkey_mut(&mut headers.body) {
            *rkey = key(*rkey);
        }
        headers
    }

    /// Deregisters keys and binds windows, as the responder's program must have done before this
    /// request.
    fn update_keys(&mut self, qpn: Qpn, index: usize, packet: &Captured, outcome: Option<Outcome>) {
        let Some(request) = packet.request() else { return };
        let named = named_range(&request);
        if let Some(MemoryRange { rkey, addr, len }) = named
            && let Some(key) = self.keys.get_mut(&rkey)
        {
            let is_revoked = outcome == Some(Outcome::Refused) && index > key.spec.last_use;
            if is_revoked && key.spec.grants(addr, len, crate::survey::rights(packet)) {
                key.deregistered = true;
                self.closed.insert(rkey);
            }
        }
        if outcome != Some(Outcome::Refused) {
            let rkeys = [named.map(|named| named.rkey), request.invalidates()];
            for rkey in rkeys.into_iter().flatten() {
                self.bind(qpn, rkey);
            }
        }
    }

    /// Binds a window that must be bound and is not.
    fn bind(&mut self, qpn: Qpn, rkey: Rkey) {
        let Some(key) = self.keys.get_mut(&rkey) else { return };
        if !key.spec.is_window || key.window.is_some() || key.mr == NO_KEY {
            return;
        }
        if key.allocated == NO_KEY {
            key.allocated = self.device.alloc_mw(PD, MwType::Two).map_or(NO_KEY, |rkey| rkey.0);
        }
        let next = key.allocated & !0xff | key.allocated.wrapping_add(1) & 0xff;
        let op = SendOp::BindMw {
            mw: Rkey(key.allocated),
            new_rkey: Rkey(next),
            mr: Lkey(key.mr),
            addr: key.spec.first,
            length: (key.spec.last - key.spec.first).saturating_add(1),
            access: key.spec.access,
        };
        key.allocated = next;
        key.window = Some(next);
        let wr = SendWr { op, ..SendWr::default() };
        self.program.sends.push_back(SendWqe { wr, ..SendWqe::default() });
        self.device.ring_doorbell(qpn);
        // A bind sends nothing.
        self.responses(0);
    }
}

/// The key that a request names.
fn rkey_mut(body: &mut Body) -> Option<&mut Rkey> {
    use {Part::*, Request::*};
    match body {
        Body::RcRequest(Send(
            Last(Extra::Invalidate(rkey)) | Only((), Extra::Invalidate(rkey)),
        )) => Some(rkey),
        Body::RcRequest(
            Write(First(reth) | Only(reth, _))
            | Read(reth)
            | AtomicWrite(reth)
            | Flush { reth, .. },
        )
        | Body::Uc(UcRequest::Write(First(reth) | Only(reth, _))) => Some(&mut reth.rkey),
        Body::RcRequest(CompareSwap(atomic) | FetchAdd(atomic)) => Some(&mut atomic.rkey),
        _ => None,
    }
}

/// The attributes of a responder.
fn attributes(number: usize, survey: &Survey, first: &Captured) -> QpAttr {
    /// The most that the engine accepts: the responder's value is not in the capture.
    const READS: u8 = urxe_engine::limits::MAX_RD_ATOMIC;
    let allowed = [
        Access::LOCAL_WRITE,
        Access::REMOTE_WRITE,
        Access::REMOTE_READ,
        Access::REMOTE_ATOMIC,
        Access::FLUSH_GLOBAL,
    ];
    let allowed = allowed.into_iter().filter(|right| !survey.denied.intersects(*right));
    QpAttr {
        access: Some(allowed.fold(Access::empty(), |all, right| all | right)),
        pkey_index: Some(0),
        port: Some(1),
        av: Some(AddressVector {
            dgid: first.outer.flow.src,
            sgid_index: 0,
            traffic_class: first.outer.flow.traffic_class,
            hop_limit: 64,
            flow_label: 0,
        }),
        path_mtu: Some(survey.mtu),
        dest_qpn: Some(Qpn::new(FIRST_PEER + number as u32)),
        qkey: Some(match first.headers.body {
            Body::Ud(datagram) => datagram.deth.qkey,
            _ => Qkey(0),
        }),
        rq_psn: Some(first.headers.bth.psn),
        sq_psn: Some(Psn::new(0)),
        max_rd_atomic: Some(1),
        max_dest_rd_atomic: Some(READS),
        min_rnr_timer: Some(survey.min_rnr_timer.unwrap_or(0)),
        timeout: Some(0),
        retry_cnt: Some(0),
        rnr_retry: Some(0),
        ..QpAttr::default()
    }
}

/// The attributes of one change of state, for RC (0), UC (1) or UD (2).
fn step(state: QpState, id: u8, all: &QpAttr) -> QpAttr {
    let all = all.clone();
    let to = QpAttr { state: Some(state), ..QpAttr::default() };
    let (rc, connected) = (id == 0, id != 2);
    match state {
        QpState::Init => QpAttr {
            pkey_index: all.pkey_index,
            port: all.port,
            access: all.access.filter(|_| connected),
            qkey: all.qkey.filter(|_| !connected),
            ..to
        },
        QpState::Rtr if connected => QpAttr {
            av: all.av,
            path_mtu: all.path_mtu,
            dest_qpn: all.dest_qpn,
            rq_psn: all.rq_psn,
            max_dest_rd_atomic: all.max_dest_rd_atomic.filter(|_| rc),
            min_rnr_timer: all.min_rnr_timer.filter(|_| rc),
            ..to
        },
        QpState::Rts => QpAttr {
            sq_psn: all.sq_psn,
            max_rd_atomic: all.max_rd_atomic.filter(|_| rc),
            timeout: all.timeout.filter(|_| rc),
            retry_cnt: all.retry_cnt.filter(|_| rc),
            rnr_retry: all.rnr_retry.filter(|_| rc),
            ..to
        },
        _ => to,
    }
}
