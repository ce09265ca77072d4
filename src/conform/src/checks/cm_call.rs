//! What the checks of the connection manager are made of: a REQ of ours, its answers, and the
//! connection that comes of them.

use crate::Arrived;
use crate::check::{Outcome, Stop, ensure};
use crate::device::{OurEnd, Setup, TheirEnd};
use crate::packet::packet;
use crate::script::Script;
use std::time::Duration;
use urxe_types::{PathMtu, Pkey, Psn, Qkey, Qpn, TimeCode};
use urxe_wire::Opcode;
use urxe_wire::mad::{
    CmPath, CommId, Dreq, IpCmHeader, Mad, Message, PortSpace, Reason, Rej, Rep, Req, Rtu,
    ServiceId, TransportService,
};

/// A port at which nobody listens: a reserved one.
pub(super) const NOBODY: u16 = 1;
/// READs and atomics that we offer and ask for.
pub(super) const DEPTH: u8 = 1;
/// LIDs, which RoCE has not.
const NO_LID: u16 = 0xffff;

/// Our end of a connection that is to be.
#[derive(Clone, Copy)]
pub(super) struct Call {
    pub(super) id: CommId,
    pub(super) tid: u64,
    pub(super) qpn: u32,
    /// The PSN at which the device is to begin.
    pub(super) psn: u32,
    /// Which adapter we are.
    pub(super) guid: u64,
}

impl Call {
    pub(super) fn new(t: &mut Script<'_>) -> Call {
        Call {
            id: CommId(t.unique().max(1)),
            tid: u64::from(t.unique()) << 32 | u64::from(t.random()),
            // 0 and 1 are special; the top bit keeps it apart from those of other checks.
            qpn: t.unique() & 0x7f_ffff | 0x80_0000,
            psn: t.random() & 0xff_ffff,
            guid: u64::from(t.unique()) << 32 | 0x1234_5678,
        }
    }

    /// Another connection of the same adapter.
    pub(super) fn other(&self, t: &mut Script<'_>) -> Call {
        Call { guid: self.guid, ..Call::new(t) }
    }

    /// A sound REQ to a port of TCP's port space.
    pub(super) fn req(&self, t: &Script<'_>, port: u16) -> Req {
        self.req_to(t, ServiceId::ip(PortSpace::Tcp, port))
    }

    pub(super) fn req_to(&self, t: &Script<'_>, service_id: ServiceId) -> Req {
        let (local_gid, remote_gid) = t.addresses();
        Req {
            local_comm_id: self.id,
            service_id,
            local_ca_guid: self.guid,
            local_qkey: Qkey::default(),
            local_qpn: Qpn::new(self.qpn),
            responder_resources: DEPTH,
            initiator_depth: DEPTH,
            remote_response_timeout: TimeCode::new(20),
            transport: TransportService::Rc,
            flow_control: false,
            starting_psn: Psn::new(self.psn),
            local_response_timeout: TimeCode::new(18),
            retry_count: 7,
            pkey: Pkey::DEFAULT,
            path_mtu: Some(PathMtu::Mtu1024),
            rnr_retry_count: 7,
            max_cm_retries: 15,
            srq: false,
            extended_transport: 0,
            primary: CmPath {
                local_lid: NO_LID,
                remote_lid: NO_LID,
                local_gid,
                remote_gid,
                flow_label: 0,
                packet_rate: 0,
                traffic_class: 0,
                hop_limit: 64,
                service_level: 0,
                subnet_local: false,
                local_ack_timeout: TimeCode::new(14),
            },
            alternate: None,
            private_data: with_header(t),
        }
    }

    /// A message of the same transaction.
    pub(super) fn mad(&self, message: impl Into<Message>) -> Mad {
        Mad::new(self.tid, message)
    }

    /// Whether a message is meant for us.
    pub(super) fn concerns(&self, mad: &Mad) -> bool {
        let id = match &mad.message {
            Message::Rep(rep) => rep.remote_comm_id,
            Message::Rej(rej) => rej.remote_comm_id,
            Message::Mra(mra) => mra.remote_comm_id,
            Message::Rtu(rtu) => rtu.remote_comm_id,
            Message::Dreq(dreq) => dreq.remote_comm_id,
            Message::Drep(drep) => drep.remote_comm_id,
            Message::Apr(apr) => apr.remote_comm_id,
            Message::Lap(lap) => lap.remote_comm_id,
            Message::SidrRep(rep) => rep.request_id,
            Message::Req(_) | Message::SidrReq(_) => return false,
        };
        id == self.id
    }
}

/// Private data that begin with the header of the RDMA IP CM service.
pub(super) fn with_header<const N: usize>(t: &Script<'_>) -> [u8; N] {
    let (src, dst) = t.addresses();
    let mut data = [0; N];
    if let Some((header, _)) = data.split_first_chunk_mut() {
        IpCmHeader { src_port: 40_000, src, dst }.emit(header);
    }
    data
}

/// How long a program on the device may take.
pub(super) fn program_time(t: &Script<'_>) -> Duration {
    t.waits().reply * 6
}

/// The next message for us, whatever it is.
pub(super) fn next(t: &mut Script<'_>, call: &Call, within: Duration) -> Outcome<Option<Mad>> {
    Ok(t.next_mad(within, |mad| call.concerns(mad))?.map(|(_, mad)| mad))
}

/// What the device says in the end: all but "wait".
pub(super) fn answer(t: &mut Script<'_>, call: &Call) -> Outcome<Option<(Arrived, Mad)>> {
    let wanted = |mad: &Mad| call.concerns(mad) && !matches!(mad.message, Message::Mra(_));
    t.next_mad(program_time(t), wanted)
}

/// What was seen, in words.
pub(super) fn words(mad: Option<Mad>) -> String {
    mad.map_or("nothing".into(), |mad| mad.to_string())
}

/// Says REQ to a program, and returns what is answered in the end. A program that has ended with
/// the connection of an earlier check is waited for: a person keeps it running in a loop.
fn ask(t: &mut Script<'_>, call: &Call, req: Req) -> Outcome<Option<(Arrived, Mad)>> {
    const TRIES: u32 = 30;
    for _ in 0..TRIES {
        t.send_mad(&call.mad(req))?;
        match answer(t, call)? {
            Some((_, mad)) if is_nobody(&mad) => t.wait(t.waits().reply / 2)?,
            other => return Ok(other),
        }
    }
    Err(Stop::Inconclusive(format!("nobody listens at {}", req.service_id)))
}

fn is_nobody(mad: &Mad) -> bool {
    matches!(mad.message, Message::Rej(rej) if rej.reason == Reason::InvalidServiceId)
}

/// Says REQ to a program, and expects a REP.
pub(super) fn request(t: &mut Script<'_>, call: &Call, req: Req) -> Outcome<(Arrived, Mad, Rep)> {
    match ask(t, call, req)? {
        Some((arrived, mad)) => match mad.message {
            Message::Rep(rep) => Ok((arrived, mad, rep)),
            _ => Err(Stop::failed("REP", mad.to_string())),
        },
        None => Err(Stop::failed("REP", "nothing")),
    }
}

/// Says REQ, and expects a REJ, for one of these reasons; others are right too, but not as good.
pub(super) fn rejected(
    t: &mut Script<'_>,
    call: &Call,
    req: Req,
    reason: Reason,
    others: &[Reason],
) -> Outcome<(Mad, Rej)> {
    let expected = format!("REJ: {reason}");
    let answered =
        if reason == Reason::InvalidServiceId || others.contains(&Reason::InvalidServiceId) {
            t.send_mad(&call.mad(req))?;
            answer(t, call)?
        } else {
            ask(t, call, req)?
        };
    let Some((_, mad)) = answered else { return Err(Stop::failed(expected, "nothing")) };
    match mad.message {
        Message::Rej(rej) if rej.reason == reason => Ok((mad, rej)),
        Message::Rej(rej) if others.contains(&rej.reason) => {
            t.allow(format!("rejects with {} where {reason} says more", rej.reason));
            Ok((mad, rej))
        }
        _ => Err(Stop::failed(expected, mad.to_string())),
    }
}

/// Whether the device has a connection manager at all, and still has.
pub(super) fn is_there(t: &mut Script<'_>) -> Outcome {
    let call = Call::new(t);
    let req = call.req(t, NOBODY);
    t.send_mad(&call.mad(req))?;
    match answer(t, &call)? {
        Some(_) => Ok(()),
        None => {
            Err(Stop::NotSupported("a REQ to a port without a listener is not answered".into()))
        }
    }
}

/// The port of the program that accepts.
pub(super) fn listener(t: &mut Script<'_>) -> Outcome<u16> {
    needed(t.services().accepts, "accepts connections (`rping -s -P` in a loop, named with --cm)")
}

/// The port of a program.
pub(super) fn needed(port: Option<u16>, what: &str) -> Outcome<u16> {
    port.ok_or_else(|| Stop::NeedsAgent(format!("no program is known at the device that {what}")))
}

/// A connection, of our call and the device's answer.
#[derive(Clone, Copy)]
pub(super) struct Agreed {
    pub(super) call: Call,
    pub(super) rep: Rep,
}

impl Agreed {
    pub(super) fn rtu(&self) -> Mad {
        self.call.mad(Rtu {
            local_comm_id: self.call.id,
            remote_comm_id: self.rep.local_comm_id,
            private_data: [0; Rtu::PRIVATE_LEN],
        })
    }

    /// The end, in a transaction of its own.
    pub(super) fn dreq(&self) -> Mad {
        let dreq = Dreq {
            local_comm_id: self.call.id,
            remote_comm_id: self.rep.local_comm_id,
            remote_qpn: self.rep.local_qpn,
            private_data: [0; Dreq::PRIVATE_LEN],
        };
        Mad::new(self.call.tid ^ 1 << 40, dreq)
    }

    /// The QPs' connection, which data go over.
    pub(super) fn adopt(&self, t: &mut Script<'_>) {
        let (ours, theirs) = t.addresses();
        debug_assert_ne!(ours, theirs);
        let ours = OurEnd { addr: ours, qpn: self.call.qpn, psn: self.rep.starting_psn.get() };
        let theirs = TheirEnd {
            qpn: self.rep.local_qpn.get(),
            psn: self.call.psn,
            memory: None,
            handle: None,
        };
        t.adopt(ours, theirs, &Setup::rc());
    }
}

/// Up to the device's REP, which is not confirmed; what comes of the check, it ends it.
pub(super) fn accepted(
    t: &mut Script<'_>,
    change: impl FnOnce(Req) -> Req,
    check: impl FnOnce(&mut Script<'_>, &Agreed) -> Outcome,
) -> Outcome {
    let port = listener(t)?;
    let call = Call::new(t);
    let req = change(call.req(t, port));
    let (_, _, rep) = request(t, &call, req)?;
    let agreed = Agreed { call, rep };
    agreed.adopt(t);
    let outcome = check(t, &agreed);
    t.send_mad(&agreed.dreq())?;
    outcome
}

/// A connection that is established; what comes of the check, it ends it.
pub(super) fn connected(
    t: &mut Script<'_>,
    check: impl FnOnce(&mut Script<'_>, &Agreed) -> Outcome,
) -> Outcome {
    accepted(
        t,
        |req| req,
        |t, agreed| {
            t.send_mad(&agreed.rtu())?;
            check(t, agreed)
        },
    )
}

/// The device's QP answers a SEND of nothing: with an ACK, or "not ready" if it has no receive.
pub(super) fn carries_data(t: &mut Script<'_>) -> Outcome {
    t.send(packet(Opcode::RC_SEND_ONLY).ack_req())?;
    let expected = "an ACK or RNR NAK of a SEND at the PSN that the device has named";
    let answered = loop {
        let Some(arrived) = t.next(program_time(t))? else {
            return Err(Stop::failed(expected, "nothing"));
        };
        // The program may send something of its own.
        if arrived.is_response() {
            break arrived;
        }
    };
    let sound = answered.opcode() == Opcode::RC_ACK as u8
        && answered.nak().is_none()
        && t.place(&answered) == 0;
    ensure(sound, expected, || answered.to_string())
}

/// Nothing of the connection manager comes for us for a while.
pub(super) fn silent(t: &mut Script<'_>, call: &Call, within: Duration) -> Outcome {
    match next(t, call, within)? {
        None => Ok(()),
        Some(mad) => Err(Stop::failed("nothing", mad.to_string())),
    }
}
