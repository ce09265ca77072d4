//! Faults, and what is to be read of each from the history of the QP that it hits.

use crate::harness::*;
use crate::histories::histories;
use std::net::IpAddr;
use urxe_daemon::Handle;
use urxe_engine::Cause;
use urxe_shm::control::{Happening, HistorySubject, QpHistory};
use urxe_types::{Extra, PathMtu, QpAttr, Qpn, SendData, SendOp, WcStatus};

const SEND: SendOp = SendOp::Send(Extra::None);

/// What the requester's history must tell.
struct Story {
    /// Why the QP failed; `None`: it did not.
    cause: Option<Cause>,
    /// What has an entry with its time.
    events: &'static [&'static str],
    /// Whether anything came from the peer.
    is_heard: bool,
    /// What the reason says.
    says: &'static [&'static str],
    /// What it does not say, for it would lead astray.
    says_not: &'static [&'static str],
}

/// A QP that never had an answer.
const NO_ANSWER: Story = Story {
    cause: Some(Cause::AckTimeout),
    events: &["ack_timeouts", "retransmitted_packets", "retries_exceeded"],
    is_heard: false,
    says: &["nothing at all has come back"],
    says_not: &["by ICMP", "ICRC", "smaller path MTU", "The last came"],
};

/// One that went on.
const NO_FAILURE: Story =
    Story { cause: None, events: &[], is_heard: true, says: &[], says_not: &[] };

/// What the responder's history or device must tell.
enum Other {
    Nothing,
    /// Its history has entries of these.
    Events(&'static [&'static str]),
    /// Its device has counted these.
    Counted(&'static str),
}

struct Fault {
    name: &'static str,
    /// What the requester's daemon does to packets.
    spec: &'static str,
    /// What happens otherwise.
    run: fn(&mut Pair),
    story: Story,
    other: Other,
}

/// The two ends, each with a daemon of its own.
struct Pair {
    requester: End,
    /// `None`: gone.
    responder: Option<End>,
    daemon: Handle,
}

impl Pair {
    fn new(of_requester: &Handle, daemon: Handle) -> Pair {
        const LEN: usize = 1 << 16;
        let requester = End::new(of_requester, 0, Kind::Shared, LEN);
        let responder = Some(End::new(&daemon, 0, Kind::Shared, LEN));
        Pair { requester, responder, daemon }
    }

    fn responder(&mut self) -> &mut End {
        self.responder.as_mut().unwrap()
    }

    /// Connects the requester, which gives up soon unless the timeout is another.
    fn connect_requester(&mut self, peer: (IpAddr, Qpn), rts: QpAttr) {
        let [init, rtr, patient] = attrs(peer.0, peer.1);
        let rtr = QpAttr { path_mtu: Some(PathMtu::Mtu4096), ..rtr };
        let rts = QpAttr {
            timeout: rts.timeout.or(Some(8)),
            retry_cnt: rts.retry_cnt.or(Some(3)),
            rnr_retry: rts.rnr_retry.or(patient.rnr_retry),
            ..patient
        };
        for attr in [init, rtr, rts] {
            self.requester.client.modify(&self.requester.qp, attr).unwrap();
        }
    }

    fn connect_responder(&mut self) {
        let (addr, qpn) = (self.requester.addr, self.requester.qp.created.qpn);
        let responder = self.responder();
        let [init, rtr, rts] = attrs(addr, qpn);
        let rtr = QpAttr { path_mtu: Some(PathMtu::Mtu4096), min_rnr_timer: Some(1), ..rtr };
        for attr in [init, rtr, rts] {
            responder.client.modify(&responder.qp, attr).unwrap();
        }
    }

    /// Where the responder is.
    fn responders_place(&mut self) -> (IpAddr, Qpn) {
        let responder = self.responder();
        (responder.addr, responder.qp.created.qpn)
    }

    fn connect_with(&mut self, rts: QpAttr) {
        let peer = self.responders_place();
        self.connect_responder();
        self.connect_requester(peer, rts);
    }

    fn connect(&mut self) {
        self.connect_with(QpAttr::default());
    }

    /// A WRITE of so many bytes.
    fn write(&mut self, length: usize) {
        let mr = &self.responder().mr;
        let op = SendOp::Write { remote_addr: mr.addr, rkey: mr.rkey, imm: None };
        let sge = self.requester.mr.sge(0, length);
        self.requester.post_send(1, op, SendData::Sges(&[sge]));
    }

    /// How the oldest work request of the requester's ends.
    fn expect(&mut self, status: WcStatus) {
        assert_eq!(self.requester.cq.wait(1)[0].status, status as u32);
    }

    fn fails(&mut self, status: WcStatus) {
        self.requester.post_send(1, SEND, SendData::Inline(b"anybody?"));
        self.expect(status);
    }

    /// SENDs that arrive.
    fn sends(&mut self, count: usize) {
        let sges = [self.responder().mr.sge(0, 64)];
        for _ in 0..count {
            self.responder().post_recv(1, &sges);
            self.requester.post_send(1, SEND, SendData::Inline(b"good day"));
        }
        for completion in self.requester.cq.wait(count) {
            assert_eq!(completion.status, 0);
        }
    }
}

fn no_answer(pair: &mut Pair) {
    pair.connect();
    pair.fails(WcStatus::RetryExceeded);
}

fn program_ends(pair: &mut Pair) {
    pair.connect();
    pair.sends(1);
    pair.responder = None;
    let mut other = Client::connect(pair.daemon.socket());
    eventually("the end of its QP", || {
        let listed = other.resources("urxe0", urxe_shm::control::ResourceKind::Qp);
        listed.is_empty().then_some(())
    });
    pair.fails(WcStatus::RetryExceeded);
}

fn wrong_qpn(pair: &mut Pair) {
    let (addr, qpn) = pair.responders_place();
    pair.connect_responder();
    pair.connect_requester((addr, Qpn::new(qpn.get() ^ 0x800)), QpAttr::default());
    pair.fails(WcStatus::RetryExceeded);
}

fn in_reset(pair: &mut Pair) {
    let peer = pair.responders_place();
    pair.connect_requester(peer, QpAttr::default());
    pair.fails(WcStatus::RetryExceeded);
}

fn no_daemon(pair: &mut Pair) {
    pair.connect_requester((fresh_addr(), Qpn::new(0x11)), QpAttr::default());
    pair.fails(WcStatus::RetryExceeded);
}

fn wrong_key(pair: &mut Pair) {
    pair.connect();
    let mr = &pair.responder().mr;
    let rkey = urxe_types::Rkey(mr.rkey.0 ^ 0x100);
    let op = SendOp::Write { remote_addr: mr.addr, rkey, imm: None };
    pair.requester.post_send(1, op, SendData::Inline(b"a key"));
    pair.expect(WcStatus::RemoteAccess);
}

fn no_receive(pair: &mut Pair) {
    pair.connect_with(QpAttr { rnr_retry: Some(2), ..QpAttr::default() });
    pair.fails(WcStatus::RnrRetryExceeded);
}

fn no_receive_for_ever(pair: &mut Pair) {
    pair.connect();
    pair.requester.post_send(1, SEND, SendData::Inline(b"for ever"));
    let of = HistorySubject::Qp(pair.requester.qp.created.qpn.get());
    eventually("an RNR NAK again", || {
        let told = histories(&mut pair.requester.client, of).pop()?;
        told.counters.iter().any(|(name, n)| name == "rnr_naks_received" && *n > 2).then_some(())
    });
}

fn short_receive(pair: &mut Pair) {
    pair.connect();
    let sges = [pair.responder().mr.sge(0, 2)];
    pair.responder().post_recv(1, &sges);
    pair.fails(WcStatus::RemoteInvalidRequest);
}

fn long_after_short(pair: &mut Pair) {
    pair.connect();
    pair.write(1);
    pair.expect(WcStatus::Success);
    pair.write(60_000);
    pair.expect(WcStatus::RetryExceeded);
}

fn sends_arrive(pair: &mut Pair) {
    pair.connect_with(QpAttr { timeout: Some(14), retry_cnt: Some(7), ..QpAttr::default() });
    pair.sends(20);
}

const FAULTS: &[Fault] = &[
    Fault {
        name: "a firewall that drops all",
        spec: "drop=100%",
        run: no_answer,
        story: NO_ANSWER,
        other: Other::Nothing,
    },
    Fault {
        name: "a firewall that drops what comes back",
        spec: "drop=100%,dir=rx",
        run: |pair| {
            pair.connect();
            pair.write(8);
            pair.expect(WcStatus::RetryExceeded);
        },
        story: NO_ANSWER,
        // Where the peer can be asked, it says that everything came.
        other: Other::Events(&["heard", "duplicate_requests"]),
    },
    Fault {
        name: "the peer's program is gone",
        spec: "",
        run: program_ends,
        story: Story {
            is_heard: true,
            says: &["have come back: 1 ACKs", "The last came", "It is gone"],
            says_not: &["nothing at all", "by ICMP", "smaller path MTU"],
            ..NO_ANSWER
        },
        other: Other::Counted("drop_unknown_qp"),
    },
    Fault {
        name: "a wrong QPN",
        spec: "",
        run: wrong_qpn,
        story: NO_ANSWER,
        other: Other::Counted("drop_unknown_qp"),
    },
    Fault {
        name: "a peer in RESET",
        spec: "",
        run: in_reset,
        story: NO_ANSWER,
        other: Other::Counted("drop_qp_not_ready"),
    },
    Fault {
        name: "no daemon at the peer's address",
        spec: "",
        run: no_daemon,
        story: Story {
            says: &["nothing at all has come back", "by ICMP that nobody has UDP port 4791 open"],
            says_not: &["ICRC", "The last came"],
            ..NO_ANSWER
        },
        other: Other::Nothing,
    },
    Fault {
        name: "a wrong rkey",
        spec: "",
        run: wrong_key,
        story: Story {
            cause: Some(Cause::PeerRemoteAccess),
            events: &["heard", "fatal_naks_received"],
            is_heard: true,
            says: &["the rkey is wrong or was deregistered"],
            says_not: &["timeout"],
        },
        other: Other::Events(&["remote_access_naks_sent"]),
    },
    Fault {
        name: "a SEND longer than the receive",
        spec: "",
        run: short_receive,
        story: Story {
            cause: Some(Cause::PeerInvalidRequest),
            events: &["heard", "fatal_naks_received"],
            is_heard: true,
            says: &["longer than its receive"],
            says_not: &["timeout"],
        },
        other: Other::Events(&["invalid_request_naks_sent"]),
    },
    Fault {
        name: "no receive",
        spec: "",
        run: no_receive,
        story: Story {
            cause: Some(Cause::RnrRetries),
            events: &["heard", "rnr_naks_received", "rnr_retries_exceeded"],
            is_heard: true,
            says: &["no receive posted for rnr_retry tries", "RNR NAKs"],
            says_not: &["did not answer", "The last came"],
        },
        other: Other::Events(&["rnr_naks_sent"]),
    },
    Fault {
        name: "no receive, and rnr_retry 7",
        spec: "",
        run: no_receive_for_ever,
        story: Story { events: &["heard", "rnr_naks_received"], ..NO_FAILURE },
        other: Other::Events(&["rnr_naks_sent"]),
    },
    Fault {
        name: "a path MTU that is too large",
        // The first is the short one.
        spec: "drop:write-only:2-,dir=tx",
        run: long_after_short,
        story: Story {
            is_heard: true,
            says: &["Messages of up to 1 bytes were done", "a smaller path MTU does"],
            says_not: &["nothing at all", "by ICMP"],
            ..NO_ANSWER
        },
        other: Other::Events(&["heard"]),
    },
    Fault {
        name: "answers that are damaged",
        spec: "corrupt=100%,dir=rx",
        run: |pair| {
            pair.connect();
            pair.write(8);
            pair.expect(WcStatus::RetryExceeded);
        },
        story: Story {
            says: &["nothing at all has come back", "packets whose ICRC was wrong"],
            says_not: &["by ICMP", "smaller path MTU"],
            ..NO_ANSWER
        },
        other: Other::Events(&["heard"]),
    },
    Fault {
        name: "requests that are damaged",
        spec: "corrupt:send-only:1-,dir=tx",
        run: no_answer,
        // Only the peer's device can know.
        story: NO_ANSWER,
        other: Other::Counted("drop_bad_icrc"),
    },
    Fault {
        name: "a request that is lost",
        spec: "drop:send-only:3,dir=tx",
        run: sends_arrive,
        story: Story { events: &["heard", "retransmitted_packets"], ..NO_FAILURE },
        other: Other::Events(&["heard"]),
    },
    Fault {
        name: "reordering",
        spec: "reorder:send-only:3,dir=tx",
        run: sends_arrive,
        story: NO_FAILURE,
        other: Other::Events(&["out_of_sequence"]),
    },
    Fault {
        name: "duplication",
        spec: "dup:send-only:3,dir=tx",
        run: sends_arrive,
        story: NO_FAILURE,
        other: Other::Events(&["duplicate_requests"]),
    },
    Fault {
        name: "a delay longer than the timeout",
        spec: "delay=200ms,dir=tx",
        run: |pair| {
            pair.connect_with(QpAttr {
                // 17 ms, and four times that while nothing is known of the path.
                timeout: Some(12),
                retry_cnt: Some(7),
                ..QpAttr::default()
            });
            pair.sends(1);
        },
        story: Story { events: &["ack_timeouts", "retransmitted_packets", "heard"], ..NO_FAILURE },
        other: Other::Events(&["heard"]),
    },
];

/// Whether a history has an entry of this.
fn tells(history: &QpHistory, event: &str) -> bool {
    history.entries.iter().any(|entry| match &entry.what {
        Happening::Counted(name) => name == event,
        Happening::Heard => event == "heard",
        Happening::Modified(_) | Happening::Failed { .. } | Happening::SlotEnded(_) => false,
    })
}

fn check(fault: &Fault) {
    let Fault { name, spec, run, story, other } = fault;
    let parsed = (!spec.is_empty()).then(|| spec.parse().unwrap());
    let faulty = start_with(1, |config| config.fault.clone_from(&parsed));
    let mut pair = Pair::new(&faulty, start(1));
    run(&mut pair);
    let of = HistorySubject::Qp(pair.requester.qp.created.qpn.get());
    let told = histories(&mut pair.requester.client, of).pop().unwrap();
    let Story { cause, events, is_heard, says, says_not } = story;

    let failed = told.entries.iter().find_map(|entry| match entry.what {
        Happening::Failed { cause, .. } => Cause::from_number(cause),
        _ => None,
    });
    assert_eq!(failed, *cause, "{name}: {told:?}");
    assert_eq!(told.failed.and_then(|failed| Cause::from_number(failed.vendor_err)), *cause);
    for event in *events {
        assert!(tells(&told, event), "{name}: {event} is not in {:?}", told.entries);
    }
    assert_eq!(told.heard.is_some(), *is_heard, "{name}");
    let reason = told.reason.unwrap_or_default();
    assert_eq!(reason.is_empty(), cause.is_none(), "{name}: {reason}");
    for part in *says {
        assert!(reason.contains(part), "{name}: {part:?} is not in {reason:?}");
    }
    for part in *says_not {
        assert!(!reason.contains(part), "{name}: {part:?} is in {reason:?}");
    }
    match other {
        Other::Nothing => {}
        Other::Events(events) => {
            let of = HistorySubject::Qp(pair.responder().qp.created.qpn.get());
            let told = histories(&mut pair.responder().client, of).pop().unwrap();
            for event in *events {
                assert!(tells(&told, event), "{name}, responder: {event}: {:?}", told.entries);
            }
        }
        Other::Counted(counter) => {
            let mut client = Client::connect(pair.daemon.socket());
            assert!(client.counter("urxe0", counter) > 0, "{name}: {counter}");
        }
    }
}

// HISTORY-014, WHY-024, WHY-025
#[test]
fn a_fault_can_be_read_from_the_history_of_the_qp_that_it_hit() {
    for fault in FAULTS {
        check(fault);
    }
}
