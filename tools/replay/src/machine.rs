//! A host whose responders are ours: a device of the engine, with a QP for each direction that is
//! replayed to it.
//!
//! The engine chooses its own QPNs and keys, so those of the capture are translated; nothing else
//! of a request is changed but AckReq, which is set on all of them: so the engine tells with each
//! packet where it stands, whatever the requester asked for.

use crate::memory::{Key, Keys, Stretch, stretch};
use crate::program::{GONE, Program, SINK, SINK_LEN};
use crate::survey::{Fate, Survey};
use crate::trace::Captured;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::net::IpAddr;
use std::time::{Duration, Instant};
use urxe_engine::{Counter, CqId, Device, DeviceConfig, MrSpec, PdId, QpInit, QueueId, RecvSource};
use urxe_types::{
    Access, AddressVector, Lkey, MwType, PathMtu, Psn, Qkey, QpAttr, QpState, QpType, Qpn, Rkey,
    SendOp, SendWqe,
};
use urxe_wire::batch::{TxBatch, TxLimits};
use urxe_wire::{DONT_FRAGMENT, Headers, Ident, Outer, Packet, Transport, icrc};

const PD: PdId = PdId(1);
const CQ: CqId = CqId(1);

/// Bytes of packets that the engine gives at once.
const BATCH: usize = 64 << 10;

/// No QP of the capture: the peers of ours are numbered from here, so that their packets can be
/// told apart.
const FIRST_PEER: u32 = 0x1000;

/// A packet of the engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    /// The survey that it is of.
    pub(crate) survey: usize,
    pub(crate) headers: Headers,
    pub(crate) payload: Vec<u8>,
}

/// What a key of the capture has become.
struct Translated {
    spec: Key,
    mr: u32,
    /// The window's present key, where it is one.
    window: Option<u32>,
    /// What the window was allocated as.
    allocated: u32,
    deregistered: bool,
}

impl Translated {
    fn key(&self) -> u32 {
        match (self.deregistered, self.spec.is_window) {
            (true, _) => NO_KEY,
            (_, false) => self.mr,
            (_, true) => self.window.unwrap_or(NO_KEY),
        }
    }
}

/// A key that opens nothing: no key of the engine has index 0.
const NO_KEY: u32 = 0;

/// A host.
pub(crate) struct Machine {
    device: Device,
    pub(crate) program: Program,
    keys: HashMap<Rkey, Translated>,
    /// By survey.
    qps: HashMap<usize, Qpn>,
    epoch: Instant,
    now: Instant,
    tx: TxBatch,
    /// What could not be set up, and why.
    pub(crate) troubles: Vec<String>,
    /// Keys that stopped to open what they had opened.
    pub(crate) closed: HashSet<Rkey>,
}

impl Machine {
    /// A host of this address, with the memory that the capture tells of.
    pub(crate) fn new(addr: IpAddr, keys: Keys, epoch: Instant) -> Machine {
        let mut device = Device::new(DeviceConfig {
            gids: vec![Some(addr)],
            source_port: None,
            active_mtu: PathMtu::Mtu4096,
            local_addrs: BTreeSet::new(),
            seed: 1,
            min_probe: Duration::from_millis(1),
        });
        let mut program = Program::default();
        let mut troubles = Vec::new();
        let mut register = |addr, length, access, region| {
            let access = access | Access::LOCAL_WRITE | Access::MW_BIND;
            device.reg_mr(MrSpec { pd: PD, addr, length, access, region })
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
                troubles.push(format!("rkey {rkey}: {error}"));
                NO_KEY
            });
            let (window, allocated) = (None, NO_KEY);
            let key = Translated { spec, mr, window, allocated, deregistered: false };
            translated.insert(rkey, key);
        }
        Machine {
            device,
            program,
            keys: translated,
            qps: HashMap::new(),
            epoch,
            now: epoch,
            tx: TxBatch::new(TxLimits::SINGLE, BATCH),
            troubles,
            closed: HashSet::new(),
        }
    }

    /// Makes a responder for a direction, or takes the one that it has back to its beginning.
    /// `first` is its first request.
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
            }),
        };
        let qpn = match created {
            Ok(qpn) => qpn,
            Err(error) => return self.troubles.push(error.to_string()),
        };
        self.qps.insert(number, qpn);
        let attr = attributes(number, survey, first);
        let steps = [QpState::Reset, QpState::Init, QpState::Rtr, QpState::Rts];
        for state in steps {
            let attr = step(state, id, &attr);
            if let Err(error) = self.device.modify_qp(self.now, &mut self.program, qpn, &attr) {
                return self.troubles.push(error.to_string());
            }
        }
        let group = first.outer.flow.dst;
        if group.is_multicast()
            && let Err(error) = self.device.attach_mcast(qpn, group)
        {
            self.troubles.push(error.to_string());
        }
    }

    /// The PSN that a responder expects.
    pub(crate) fn expected(&self, number: usize) -> Option<Psn> {
        Some(self.device.query_qp(*self.qps.get(&number)?)?.rq_psn)
    }

    /// Whether a responder has given up its connection.
    pub(crate) fn has_failed(&self, number: usize) -> bool {
        let info = self.qps.get(&number).and_then(|&qpn| self.device.query_qp(qpn));
        info.is_some_and(|info| info.state == QpState::Err)
    }

    /// What a QP has counted.
    pub(crate) fn counted(&self, number: usize, counter: Counter) -> u64 {
        let counters = self.qps.get(&number).and_then(|&qpn| self.device.qp_counters(qpn));
        counters.map_or(0, |counters| counters.get(counter))
    }

    /// Hands a request to its responder. Returns what the engine says, at most `limit` packets.
    pub(crate) fn request(
        &mut self,
        number: usize,
        index: usize,
        packet: &Captured,
        fate: Option<Fate>,
        limit: usize,
    ) -> Vec<Answer> {
        let Some(&qpn) = self.qps.get(&number) else { return Vec::new() };
        self.now = self.now.max(self.epoch + packet.at);
        self.device.handle_timeout(self.now, &mut self.program);
        self.program.now = index + 1;
        self.see_to_keys(qpn, index, packet, fate);
        let headers = self.translate(qpn, packet);
        let mut bytes = vec![0; headers.len()];
        headers.emit(&mut bytes);
        bytes.extend(&packet.payload);
        bytes.resize(bytes.len().next_multiple_of(4) + icrc::LEN, 0);
        let flow = packet.outer.flow;
        icrc::stamp(&flow, 0, &mut bytes);
        let ident = Ident::Known { ident: 0, fragment: DONT_FRAGMENT };
        self.program.fate = fate;
        self.program.receive_posted = true;
        let invalidated = self.device.counters().get(Counter::KeysInvalidated);
        let (device, program) = (&mut self.device, &mut self.program);
        device.handle_datagram(self.now, program, &Outer { flow, ident }, &bytes);
        device.end_of_batch(self.now, program);
        let answers = self.answers(limit);
        self.program.fate = None;
        if self.device.counters().get(Counter::KeysInvalidated) > invalidated
            && let Some(key) = packet.headers.ieth.and_then(|rkey| self.keys.get_mut(&rkey))
        {
            key.window = None;
        }
        answers
    }

    /// Takes a responder away.
    pub(crate) fn disconnect(&mut self, number: usize) {
        if let Some(qpn) = self.qps.remove(&number) {
            self.device.destroy_qp(qpn);
        }
    }

    /// What the engine has to say.
    fn answers(&mut self, limit: usize) -> Vec<Answer> {
        let mut answers = Vec::new();
        loop {
            let more = self.device.poll_transmit(self.now, &mut self.program, &mut self.tx);
            for sent in self.tx.datagrams() {
                let Ok(Packet { headers, payload }) = Packet::parse(sent.bytes) else { continue };
                let survey = headers.bth.dest_qp.get().saturating_sub(FIRST_PEER) as usize;
                answers.push(Answer { survey, headers, payload: payload.to_vec() });
            }
            self.tx.clear();
            if !more || answers.len() >= limit {
                return answers;
            }
        }
    }

    /// A request in the engine's terms.
    fn translate(&self, qpn: Qpn, packet: &Captured) -> Headers {
        let key = |rkey: Rkey| Rkey(self.keys.get(&rkey).map_or(NO_KEY, Translated::key));
        let mut headers = packet.headers;
        if headers.bth.dest_qp != Qpn::MULTICAST {
            headers.bth.dest_qp = qpn;
        }
        headers.bth.ack_req = true;
        headers.reth = headers.reth.map(|reth| urxe_wire::Reth { rkey: key(reth.rkey), ..reth });
        headers.atomic =
            headers.atomic.map(|eth| urxe_wire::AtomicEth { rkey: key(eth.rkey), ..eth });
        headers.ieth = headers.ieth.map(key);
        headers
    }

    /// Opens and closes keys, as the responder's program must have done before this request.
    fn see_to_keys(&mut self, qpn: Qpn, index: usize, packet: &Captured, fate: Option<Fate>) {
        let named = stretch(packet.headers.reth, packet.headers.atomic);
        if let Some(Stretch { rkey, addr, len }) = named
            && let Some(key) = self.keys.get_mut(&rkey)
        {
            let refused_for_good = fate == Some(Fate::Refused) && index > key.spec.last_use;
            if refused_for_good && key.spec.opens(addr, len, crate::survey::rights(packet)) {
                key.deregistered = true;
                self.closed.insert(rkey);
            }
        }
        if fate != Some(Fate::Refused) {
            let rkeys = [named.map(|named| named.rkey), packet.headers.ieth];
            for rkey in rkeys.into_iter().flatten() {
                self.bind(qpn, rkey);
            }
        }
    }

    /// Binds a window that is not, as the capture shows that it must be.
    fn bind(&mut self, qpn: Qpn, rkey: Rkey) {
        let Some(key) = self.keys.get_mut(&rkey) else { return };
        if !key.spec.is_window || key.window.is_some() || key.mr == NO_KEY {
            return;
        }
        if key.allocated == NO_KEY {
            key.allocated = self.device.alloc_mw(PD, MwType::Two).unwrap_or(NO_KEY);
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
        self.program.sends.push_back(SendWqe {
            wr_id: 0,
            op,
            fence: false,
            signaled: false,
            solicited: false,
            to: None,
            sges: Vec::new(),
            inline: None,
        });
        self.device.ring_doorbell(qpn);
        // A bind sends nothing.
        self.answers(0);
    }
}

/// What a responder is connected with.
fn attributes(number: usize, survey: &Survey, first: &Captured) -> QpAttr {
    /// The most that the engine takes: how many the responder took is not in the capture.
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
        qkey: Some(first.headers.deth.map_or(Qkey(0), |deth| deth.qkey)),
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

/// Those of the attributes that go with one change of state, for RC (0), UC (1) or UD (2).
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
