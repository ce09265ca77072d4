//! The connection manager of a device whose program connects to us.

use super::cm_call::{DEPTH, carries_data, program_time, words};
use crate::Arrived;
use crate::check::{Check, Outcome, Stop, ensure};
use crate::device::{OurEnd, Setup, TheirEnd};
use crate::packet::refusal;
use crate::script::Script;
use std::time::Duration;
use urxe_types::{Psn, Qkey, Qpn, TimeCode};
use urxe_wire::NakCode;
use urxe_wire::mad::{
    Ari, CommId, Drep, IpCmHeader, Mad, Message, Mra, PortSpace, Reason, Received, Rej, Rejected,
    Rep, Req, ServiceId, TransportService,
};

pub(super) const CHECKS: &[Check] = &[
    Check::new(
        "cm-caller/req-names-the-service",
        "CM-007",
        "A REQ to a port of TCP's space asks for its service ID, for RC.",
        |t| {
            called(t, |_, call| {
                let service = ServiceId::ip(PortSpace::Tcp, call.port);
                let right =
                    (call.req.service_id, call.req.transport) == (service, TransportService::Rc);
                ensure(right, &format!("{service}, RC"), || call.req.to_string())
            })
        },
    ),
    Check::new(
        "cm-caller/req-begins-with-both-addresses",
        "CM-004",
        "The private data of a REQ begin with the header of the RDMA IP CM service: version 0.0, \
         both addresses.",
        header,
    ),
    Check::new(
        "cm-caller/req-names-both-gids",
        "CM-007",
        "The primary path of a REQ has the GIDs of both addresses.",
        |t| {
            called(t, |t, call| {
                let (us, device) = t.addresses();
                let path = call.req.primary;
                ensure((path.local_gid, path.remote_gid) == (device, us), "both addresses", || {
                    format!("{} and {}", path.local_gid, path.remote_gid)
                })
            })
        },
    ),
    Check::new(
        "cm-caller/req-names-a-qp-and-a-path-mtu",
        "CM-007",
        "A REQ has the caller's QP, and a path MTU that means something.",
        |t| {
            called(t, |_, call| {
                let Req { local_qpn, path_mtu, .. } = call.req;
                ensure(local_qpn.get() > 1, "a QP above 1", || local_qpn.to_string())?;
                ensure(path_mtu.is_some(), "a path MTU", || "a code that means nothing".into())
            })
        },
    ),
    Check::new(
        "cm-caller/req-is-repeated",
        "CM-009",
        "A REQ that is not answered is repeated, the same to the byte, within a few of the response \
         times that it announces.",
        repeated,
    ),
    Check::new(
        "cm-caller/mra-stops-the-repeats",
        "CM-011",
        "After an MRA the caller waits longer, and takes a REP then.",
        mra,
    ),
    Check::new(
        "cm-caller/rep-is-confirmed",
        "CM-008",
        "A REP is confirmed by an RTU with both communication IDs.",
        |t| established(t, |_, _| Ok(())),
    ),
    Check::new(
        "cm-caller/duplicate-rep-is-confirmed-again",
        "CM-010",
        "A REP that comes again, since the RTU was lost, is confirmed again.",
        |t| established(t, |t, call| call.confirmed(t)),
    ),
    Check::new(
        "cm-caller/connection-carries-data",
        "CM-029",
        "The caller's QP takes requests that begin at the PSN of its REQ.",
        |t| {
            established(t, |t, call| {
                call.adopt(t);
                carries_data(t)
            })
        },
    ),
    Check::new(
        "cm-caller/rep-of-a-stranger-is-not-taken",
        "CM-025",
        "A REP that names another communication ID is not confirmed.",
        stranger,
    ),
    Check::new(
        "cm-caller/rejected-caller-is-quiet",
        "CM-014",
        "A caller that was rejected does not repeat its REQ, and does not answer.",
        rejected,
    ),
    Check::new(
        "cm-caller/program-ends-its-connection",
        "CM-018",
        "Who disconnects sends a DREQ with both communication IDs and our QP.",
        |t| {
            established(t, |t, call| {
                call.hang_up(t)?;
                let within = program_time(t);
                call.dreq(t, within).map(drop)
            })
        },
    ),
    Check::new(
        "cm-caller/dreq-is-repeated",
        "CM-009",
        "A DREQ that is not answered is repeated, the same to the byte.",
        |t| {
            established(t, |t, call| {
                call.hang_up(t)?;
                let within = program_time(t);
                let first = call.dreq(t, within)?;
                let within = call.time_of_repeats(t);
                match call.next(t, within)? {
                    Some(again) if again == first => Ok(()),
                    // A stock program ends when it has disconnected.
                    None if call.name.is_none() => {
                        t.allow("a DREQ is not repeated once its program has ended");
                        Ok(())
                    }
                    other => Err(Stop::failed(first.to_string(), words(other))),
                }
            })
        },
    ),
    Check::new(
        "cm-caller/drep-stops-the-repeats-of-a-dreq",
        "CM-018",
        "A DREQ is not repeated after its DREP.",
        confirmed_end,
    ),
];

/// A program of the device connects to us.
struct Called {
    /// Its name for the connection, if it is told what to do.
    name: Option<String>,
    port: u16,
    tid: u64,
    /// Its REQ, for a service that only this check is called for.
    req: Req,
    /// Our communication ID, and our QP.
    id: CommId,
    qpn: u32,
    /// The PSN at which the device is to begin.
    psn: u32,
}

fn is_req(mad: &Mad, port: u16) -> bool {
    matches!(mad.message, Message::Req(req) if req.service_id.0 as u16 == port)
}

/// Is called, and ends that, whatever comes of the check.
fn called(t: &mut Script<'_>, check: impl FnOnce(&mut Script<'_>, &Called) -> Outcome) -> Outcome {
    let port = 20_000 + (t.unique() % 20_000) as u16;
    let name = t.be_called(port)?;
    let within = program_time(t);
    let found: Option<(Arrived, Mad)> = t.next_mad(within, |mad| is_req(mad, port))?;
    let Some((_, Mad { message: Message::Req(req), tid, .. })) = found else {
        return Err(Stop::failed("REQ", "nothing"));
    };
    let (id, qpn) = (CommId(t.unique().max(1)), t.unique() & 0x7f_ffff | 0x80_0000);
    let psn = t.random() & 0xff_ffff;
    let call = Called { name, port, tid, req, id, qpn, psn };
    let outcome = check(t, &call);
    // One that was not answered is to end too.
    t.send_mad(&Mad::new(tid, call.rej()))?;
    outcome
}

impl Called {
    fn rep(&self) -> Rep {
        Rep {
            local_comm_id: self.id,
            remote_comm_id: self.req.local_comm_id,
            local_qkey: Qkey::default(),
            local_qpn: Qpn::new(self.qpn),
            starting_psn: Psn::new(self.psn),
            responder_resources: DEPTH,
            initiator_depth: DEPTH.min(self.req.responder_resources),
            target_ack_delay: TimeCode::new(15),
            failover: 0,
            flow_control: false,
            rnr_retry_count: 7,
            srq: false,
            local_ca_guid: 0x1234_5678,
            private_data: [0; Rep::PRIVATE_LEN],
        }
    }

    fn rej(&self) -> Rej {
        Rej {
            local_comm_id: self.id,
            remote_comm_id: self.req.local_comm_id,
            rejected: Rejected::Req,
            ari: Ari::NONE,
            reason: Reason::Consumer,
            private_data: [0; Rej::PRIVATE_LEN],
        }
    }

    /// The next message that is ours, but for a REQ that was under way.
    fn next(&self, t: &mut Script<'_>, within: Duration) -> Outcome<Option<Mad>> {
        let id = self.id;
        let ours = |mad: &Mad| match &mad.message {
            Message::Rtu(rtu) => rtu.remote_comm_id == id,
            Message::Dreq(dreq) => dreq.remote_comm_id == id,
            Message::Rej(rej) => rej.remote_comm_id == id,
            Message::Drep(drep) => drep.remote_comm_id == id,
            _ => false,
        };
        Ok(t.next_mad(within, ours)?.map(|(_, mad)| mad))
    }

    /// Says REP, and expects an RTU.
    fn confirmed(&self, t: &mut Script<'_>) -> Outcome {
        t.send_mad(&Mad::new(self.tid, self.rep()))?;
        let within = program_time(t);
        let found = self.next(t, within)?;
        let right = matches!(found, Some(Mad { message: Message::Rtu(rtu), .. })
            if rtu.local_comm_id == self.req.local_comm_id);
        ensure(right, "RTU with both numbers", || words(found))
    }

    /// Within what a message of the caller that is not answered comes again: the response time that
    /// it has announced, and what devices add for the network; then the next one, for a loss.
    fn time_of_repeats(&self, t: &Script<'_>) -> Duration {
        let announced = self.req.remote_response_timeout.duration();
        (announced * 4).min(Duration::from_secs(30)).max(program_time(t))
    }

    fn dreq(&self, t: &mut Script<'_>, within: Duration) -> Outcome<Mad> {
        let found = self.next(t, within)?;
        match found {
            Some(mad) => {
                let right = matches!(mad.message, Message::Dreq(dreq)
                    if dreq.local_comm_id == self.req.local_comm_id
                        && dreq.remote_qpn == Qpn::new(self.qpn));
                ensure(right, "DREQ with both numbers and our QP", || mad.to_string())?;
                Ok(mad)
            }
            None => Err(Stop::failed("DREQ", "nothing")),
        }
    }

    /// Has the program disconnect: because it is told to, or since what it sends is refused.
    fn hang_up(&self, t: &mut Script<'_>) -> Outcome {
        if let Some(name) = &self.name {
            return t.close(name.clone());
        }
        self.adopt(t);
        let within = program_time(t);
        let sent = t.next(within)?;
        ensure(sent.is_some(), "something that the program sends", || "nothing".into())?;
        t.send(refusal(NakCode::RemoteOperational, 0, 0))
    }

    fn adopt(&self, t: &mut Script<'_>) {
        let psn = self.req.starting_psn.get();
        let ours = OurEnd { addr: t.addresses().0, qpn: self.qpn, psn };
        let qpn = self.req.local_qpn.get();
        let theirs = TheirEnd { qpn, psn: self.psn, memory: None, handle: None };
        t.adopt(ours, theirs, &Setup::rc());
    }

    /// The REQ again, if it comes within this time.
    fn again(&self, t: &mut Script<'_>, within: Duration) -> Outcome<Option<Mad>> {
        Ok(t.next_mad(within, |mad| is_req(mad, self.port))?.map(|(_, mad)| mad))
    }
}

/// Is called, and accepts.
fn established(
    t: &mut Script<'_>,
    check: impl FnOnce(&mut Script<'_>, &Called) -> Outcome,
) -> Outcome {
    called(t, |t, call| {
        call.confirmed(t)?;
        check(t, call)
    })
}

fn header(t: &mut Script<'_>) -> Outcome {
    called(t, |t, call| {
        let (us, device) = t.addresses();
        let expected = format!("version 0.0, from {device} to {us}");
        let header = call.req.private_data.first_chunk().map(IpCmHeader::parse);
        let right = matches!(header, Some(Ok(header)) if (header.src, header.dst) == (device, us));
        ensure(right, &expected, || format!("{header:?}"))
    })
}

fn repeated(t: &mut Script<'_>) -> Outcome {
    called(t, |t, call| {
        let within = call.time_of_repeats(t);
        match call.again(t, within)? {
            Some(mad) if mad.message == Message::Req(call.req) && mad.tid == call.tid => Ok(()),
            other => Err(Stop::failed("the same REQ again", words(other))),
        }
    })
}

fn mra(t: &mut Script<'_>) -> Outcome {
    called(t, |t, call| {
        t.send_mad(&Mad::new(
            call.tid,
            Mra {
                local_comm_id: call.id,
                remote_comm_id: call.req.local_comm_id,
                received: Received::Req,
                service_timeout: TimeCode::new(20),
                private_data: [0; Mra::PRIVATE_LEN],
            },
        ))?;
        quiet(t, call)?;
        call.confirmed(t)
    })
}

/// No REQ comes for half a second.
fn quiet(t: &mut Script<'_>, call: &Called) -> Outcome {
    match call.again(t, Duration::from_millis(500))? {
        None => Ok(()),
        Some(mad) => Err(Stop::failed("no REQ", mad.to_string())),
    }
}

fn stranger(t: &mut Script<'_>) -> Outcome {
    called(t, |t, call| {
        let other = CommId(call.req.local_comm_id.0 ^ 0x55);
        t.send_mad(&Mad::new(call.tid, Rep { remote_comm_id: other, ..call.rep() }))?;
        let reply = t.waits().reply;
        match call.next(t, reply)? {
            None => {}
            Some(mad) => {
                let refused = matches!(mad.message, Message::Rej(_));
                ensure(refused, "REJ, or nothing", || mad.to_string())?;
            }
        }
        call.confirmed(t)
    })
}

fn rejected(t: &mut Script<'_>) -> Outcome {
    called(t, |t, call| {
        t.send_mad(&Mad::new(call.tid, call.rej()))?;
        quiet(t, call)
    })
}

fn confirmed_end(t: &mut Script<'_>) -> Outcome {
    established(t, |t, call| {
        call.hang_up(t)?;
        let within = program_time(t);
        let dreq = call.dreq(t, within)?;
        t.send_mad(&Mad::new(
            dreq.tid,
            Drep {
                local_comm_id: call.id,
                remote_comm_id: call.req.local_comm_id,
                private_data: [0; Drep::PRIVATE_LEN],
            },
        ))?;
        match call.next(t, Duration::from_millis(500))? {
            None => Ok(()),
            Some(mad) => Err(Stop::failed("nothing more", mad.to_string())),
        }
    })
}
