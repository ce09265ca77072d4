//! What is asked of a device whose program says what it does, and of one that does not say.

use super::*;
use crate::agent::{ModifyQp, SendWr};
use crate::check::{Outcome, Stop};
use crate::checks;
use crate::packet::{Packet, send_message, write_message};
use crate::run::{Plan, play};
use crate::script::{Script, Waits};
use crate::testing::{DEVICE, FakeLink, TESTER, Wire, twisted};
use crate::verdict::Verdict;
use serde_json::json;
use std::cell::RefCell;
use std::rc::Rc;
use urxe_types::PathMtu;
use urxe_wire::Opcode;

/// Which packets of some messages ask for an acknowledgement.
#[derive(Clone, Copy, Debug)]
enum Asks {
    Each,
    LastOfAll,
    Nowhere,
}

/// A program that says this, refuses this command, and whose QP sends what is posted.
struct FakeAgent {
    hello: Value,
    refuses: Option<&'static str>,
    asks: Asks,
    connection: (u32, u32),
    wire: Rc<RefCell<Wire>>,
    said: Rc<RefCell<Vec<Command>>>,
    posted: Vec<u64>,
}

impl FakeAgent {
    fn send(&mut self, wrs: &[SendWr]) {
        let mut packets: Vec<Packet> = Vec::new();
        for wr in wrs {
            let (at, data) = (packets.len() as i32, vec![0; wr.sges[0].1]);
            packets.extend(match (wr.raddr, wr.rkey) {
                (Some(addr), Some(rkey)) => write_message(at, addr, rkey, &data, PathMtu::Mtu1024),
                _ => send_message(at, &data, PathMtu::Mtu1024),
            });
            self.posted.push(wr.id);
        }
        let last = packets.len() - 1;
        for (at, mut packet) in packets.into_iter().enumerate() {
            packet.ack_req &= match self.asks {
                Asks::Each => true,
                Asks::LastOfAll => at == last,
                Asks::Nowhere => false,
            };
            let psn = self.connection.1.wrapping_add(at as u32) & 0xff_ffff;
            self.wire.borrow_mut().deliver_sound(packet.to_bytes(self.connection.0, psn));
        }
    }
}

impl Agent for FakeAgent {
    fn call(&mut self, command: &Command) -> Result<Value, AgentError> {
        self.said.borrow_mut().push(command.clone());
        if self.refuses == Some(command.name().as_str()) {
            let (command, reason) = (command.name(), "Invalid argument".into());
            return Err(AgentError::Refused { command, reason, errno: Some(22) });
        }
        Ok(match command {
            Command::Hello => self.hello.clone(),
            Command::RegMr { .. } => json!({"addr": 0x1000, "rkey": 5, "lkey": 5}),
            Command::CreateQp { .. } => json!({"qpn": 0x77}),
            Command::Read { len, .. } => json!({"hex": "00".repeat(*len)}),
            Command::Connect(connect) => {
                self.connection = (connect.dqpn, connect.sq_psn);
                json!({})
            }
            Command::PostSend { wrs, .. } => {
                self.send(wrs);
                json!({"rkeys": []})
            }
            // Nothing is acknowledged before it has come.
            Command::Poll { .. } if self.wire.borrow().is_under_way() => json!({"wcs": []}),
            Command::Poll { .. } => {
                let done = |id| json!({"id": id, "status": "SUCCESS"});
                json!({"wcs": self.posted.drain(..).map(done).collect::<Vec<_>>()})
            }
            _ => json!({}),
        })
    }
}

type Said = Rc<RefCell<Vec<Command>>>;

fn device(
    hello: &Value,
    refuses: Option<&'static str>,
    asks: Asks,
) -> (FakeLink, AgentDevice<FakeAgent>, Said) {
    let (link, _) = twisted(|_, _, _| None);
    let said = Said::default();
    let agent = FakeAgent {
        hello: hello.clone(),
        refuses,
        asks,
        connection: (0, 0),
        wire: Rc::clone(&link.wire),
        said: Rc::clone(&said),
        posted: Vec::new(),
    };
    (link, AgentDevice::new(agent, DEVICE).expect("it has the address"), said)
}

fn hello() -> Value {
    json!({"device": "mlx5_0", "mtu": 4096, "gids": {"10.0.0.1": 3}})
}

fn connects(hello: &Value, setup: &Setup) -> Result<(), Unavailable> {
    let mut device = device(hello, None, Asks::Each).1;
    let mut ours = OurEnd { addr: TESTER, qpn: 0x123, psn: 9 };
    device.connect(setup, &mut ours).map(drop)
}

fn is_lacking(connected: Result<(), Unavailable>) -> bool {
    match connected {
        Ok(()) => false,
        Err(Unavailable::NotSupported(_)) => true,
        Err(other) => panic!("{other}"),
    }
}

#[test]
fn atomics_are_asked_of_a_device_unless_its_program_says_that_there_are_none() {
    for (said, lacks) in [(json!(null), false), (json!(true), false), (json!(false), true)] {
        let mut hello = hello();
        if !said.is_null() {
            hello["atomics"] = said;
        }
        for setup in [Setup::rc().atomic(), Setup::rc().adding()] {
            assert_eq!(is_lacking(connects(&hello, &setup)), lacks, "{hello}");
        }
        for setup in [Setup::rc().write().read(), Setup::rc().sending(8), Setup::ud()] {
            assert!(!is_lacking(connects(&hello, &setup)), "{hello}");
        }
    }
}

#[test]
fn an_atomic_is_not_posted_where_there_are_none() {
    for (atomics, lacks) in [(false, true), (true, false)] {
        let mut hello = hello();
        hello["atomics"] = atomics.into();
        let (mut link, mut device, _) = device(&hello, None, Asks::Each);
        let mut t = Script::new(&mut link, &mut device, Waits::default(), 1);
        t.connect(&Setup::rc()).unwrap();
        let posted = t.post(&[SendWr::fetch_add(1, TARGET, 0, 0, 1)]);
        assert_eq!(matches!(posted, Err(Stop::NotSupported(_))), lacks, "{posted:?}");
    }
}

#[test]
fn a_path_mtu_that_the_link_does_not_carry_is_not_asked_for() {
    for (link, path, lacks) in [
        (1024, PathMtu::Mtu4096, true),
        (1024, PathMtu::Mtu1024, false),
        (4096, PathMtu::Mtu4096, false),
        (512, PathMtu::Mtu1024, true),
    ] {
        let mut hello = hello();
        hello["mtu"] = link.into();
        let setup = Setup { mtu: path, ..Setup::rc().write() };
        assert_eq!(is_lacking(connects(&hello, &setup)), lacks, "{path:?} on {link}");
    }
}

fn modified(state: State) -> Outcome {
    let (mut link, mut device, _) = device(&hello(), Some("modify_qp"), Asks::Each);
    let mut t = Script::new(&mut link, &mut device, Waits::default(), 1);
    t.connect(&Setup::rc())?;
    t.modify(state)
}

#[test]
fn a_device_need_not_have_the_state_sqd() {
    assert!(matches!(modified(State::Sqd), Err(Stop::NotSupported(_))));
    assert!(matches!(modified(State::Err), Err(Stop::Failed { .. })));
    let (mut link, mut device, said) = device(&hello(), None, Asks::Each);
    let mut t = Script::new(&mut link, &mut device, Waits::default(), 1);
    t.connect(&Setup::rc()).unwrap();
    t.modify(State::Sqd).unwrap();
    let told = said.borrow().last().cloned();
    let is_sqd = |change: &ModifyQp| change.state == Some(State::Sqd) && change.qp == "qp0";
    assert!(matches!(&told, Some(Command::ModifyQp(change)) if is_sqd(change)), "{told:?}");
}

/// The packets that the tester has sent when its program had this many SENDs posted.
fn sent_before(messages: usize) -> Vec<Vec<u8>> {
    let (mut link, mut device, _) = device(&hello(), None, Asks::Each);
    let mut t = Script::new(&mut link, &mut device, Waits::default(), 1);
    t.connect(&Setup { their_psn: Some(0x500), ..Setup::rc() }).unwrap();
    t.post_sends(&vec![&[7; 8][..]; messages]).unwrap();
    let (evidence, ..) = t.finish();
    evidence.records.into_iter().map(|record| record.bytes).collect()
}

#[test]
fn credits_are_given_before_several_messages() {
    assert!(sent_before(1).is_empty(), "one may go without");
    let sent = sent_before(2);
    let [ack] = &sent[..] else { panic!("{sent:x?}") };
    assert_eq!(ack[0], Opcode::RC_ACK as u8);
    // The PSN before the first request, as much credit as it likes, and nothing done.
    assert_eq!(ack[9..16], [0, 0x04, 0xff, 0x1f, 0, 0, 0]);
}

#[test]
fn all_messages_that_are_posted_at_once_may_share_one_acknowledgement() {
    for name in [
        "requester-send/last-packet-asks-for-an-acknowledgement",
        "requester-write/long-one-covers-its-range-in-order",
        "requester-write/short-one-is-one-packet",
    ] {
        for (asks, expected) in [
            (Asks::Each, Verdict::Pass),
            (Asks::LastOfAll, Verdict::Variation),
            (Asks::Nowhere, Verdict::Fail),
        ] {
            let (mut link, mut device, _) = device(&hello(), None, asks);
            let check = checks::all().find(|check| check.name == name).unwrap();
            let plan = Plan { attempts: 1, ..Plan::default() };
            let found = play(check, &mut link, &mut device, &plan);
            assert_eq!(found.verdict, expected, "{name}, {asks:?}: {}", found.seen);
        }
    }
}
