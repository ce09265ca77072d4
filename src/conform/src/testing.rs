//! A device of a few lines, right but for a twist, to see what checks make of it.

use crate::Arrived;
use crate::agent::Agent;
use crate::checks;
use crate::device::{Device, OurEnd, RemoteMemory, Setup, TheirEnd, Unavailable};
use crate::link::Link;
use crate::packet::{Packet, Sequence, atomic_response, positive_ack, read_responses, refusal};
use crate::run::{Plan, play};
use crate::verdict::Finding;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::rc::Rc;
use std::time::Instant;
use urxe_types::PathMtu;
use urxe_wire::{DONT_FRAGMENT, Flow, Ident, NakCode, Opcode, Outer, icrc};

pub(crate) const TESTER: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2));
pub(crate) const DEVICE: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));
const BASE: u64 = 0x10_0000;
const RKEY: u32 = 0x1234_5678;

/// What a device does instead of what is right: some answers, or `None` to do what is right.
pub(crate) type Twist = Box<dyn FnMut(&mut Model, &Arrived, i32) -> Option<Vec<Packet>>>;

/// The responder of a reliable connection.
#[derive(Default)]
pub(crate) struct Model {
    ours: Option<OurEnd>,
    /// The PSN that it expects next, from the first on.
    pub(crate) next: i32,
    pub(crate) msn: u32,
    pub(crate) has_failed: bool,
    pub(crate) memory: Vec<u8>,
}

impl Model {
    /// A NAK, after which nothing is done any more.
    pub(crate) fn refuse(&mut self, code: NakCode, at: i32) -> Vec<Packet> {
        self.has_failed = true;
        vec![refusal(code, at, self.msn)]
    }

    /// What is right of the requests that the tests need.
    fn answer(&mut self, request: &Arrived, at: i32) -> Vec<Packet> {
        let opcode = Opcode::from_byte(request.opcode());
        if self.has_failed || request.is_response() || at > self.next {
            return Vec::new();
        }
        let is_new = at == self.next;
        match opcode {
            Some(Opcode::RC_READ_REQUEST) => {
                let (_, len) = self.range(request);
                if is_new {
                    self.next += len.div_ceil(1024).max(1) as i32;
                    self.msn += 1;
                }
                self.read(request, at, self.msn)
            }
            Some(Opcode::RC_FETCH_ADD) => {
                self.next += i32::from(is_new);
                self.msn += u32::from(is_new);
                vec![atomic_response(at, self.msn, 0)]
            }
            _ => {
                if is_new {
                    self.next += 1;
                    self.msn += u32::from(request.ends_message());
                    self.store(request);
                }
                if request.ack_req() { vec![positive_ack(self.next - 1, self.msn)] } else { vec![] }
            }
        }
    }

    /// The responses to a READ of what stands there.
    pub(crate) fn read(&self, request: &Arrived, at: i32, msn: u32) -> Vec<Packet> {
        let (from, len) = self.range(request);
        read_responses(at, &self.memory[from..from + len], PathMtu::Mtu1024, msn)
    }

    fn store(&mut self, request: &Arrived) {
        if request.opcode() == Opcode::RC_WRITE_ONLY as u8 {
            let (from, payload) = (self.range(request).0, request.payload());
            self.memory[from..from + payload.len()].copy_from_slice(payload);
        }
    }

    fn range(&self, request: &Arrived) -> (usize, usize) {
        let (addr, _, len) = request.reth().unwrap_or_default();
        (addr.saturating_sub(BASE) as usize, len as usize)
    }
}

/// The network, and the device at its end.
pub(crate) struct Wire {
    pub(crate) model: Model,
    twist: Twist,
    inbox: VecDeque<(Outer, Vec<u8>)>,
    /// Everything that is sent is lost with this error.
    pub(crate) fails: Option<io::ErrorKind>,
    pub(crate) largest_packet: Option<usize>,
    pub(crate) has_atomics: Option<bool>,
}

impl Wire {
    /// The device answers, or somebody else does; `psn` counts from the tester's first.
    pub(crate) fn deliver(&mut self, from: IpAddr, packet: &Packet) {
        let ours = self.model.ours.expect("there is a connection");
        let psn = match packet.psn {
            Sequence::At(at) => ours.psn.wrapping_add_signed(at) & 0xff_ffff,
            Sequence::Absolute(psn) => psn,
        };
        let mut bytes = packet.to_bytes(ours.qpn, psn);
        icrc::stamp(&flow(from), 0, &mut bytes);
        self.deliver_bytes(from, bytes);
    }

    /// The device sends this, with the right ICRC.
    pub(crate) fn deliver_sound(&mut self, mut bytes: Vec<u8>) {
        icrc::stamp(&flow(DEVICE), 0, &mut bytes);
        self.deliver_bytes(DEVICE, bytes);
    }

    pub(crate) fn deliver_bytes(&mut self, from: IpAddr, bytes: Vec<u8>) {
        let ident = Ident::Known { ident: 0, fragment: DONT_FRAGMENT };
        self.inbox.push_back((Outer { flow: flow(from), ident }, bytes));
    }

    /// Whether the tester has not taken in all that was sent.
    pub(crate) fn is_under_way(&self) -> bool {
        !self.inbox.is_empty()
    }

    fn receive(&mut self, request: &Arrived) {
        let Some(ours) = self.model.ours else { return };
        let at = crate::expect::relative(request.psn(), ours.psn);
        let answers = match (self.twist)(&mut self.model, request, at) {
            Some(answers) => answers,
            None => self.model.answer(request, at),
        };
        answers.iter().for_each(|answer| self.deliver(DEVICE, answer));
    }
}

fn flow(src: IpAddr) -> Flow {
    let (dst, src_port) = (TESTER, 0xc001);
    Flow { src, dst, src_port, traffic_class: 0, hop_limit: 64, flow_label: 0 }
}

/// The tester's end, in virtual time.
pub(crate) struct FakeLink {
    pub(crate) wire: Rc<RefCell<Wire>>,
    now: Instant,
}

/// The device's end.
pub(crate) struct FakeDevice {
    wire: Rc<RefCell<Wire>>,
}

/// A device with this twist.
pub(crate) fn twisted(
    twist: impl FnMut(&mut Model, &Arrived, i32) -> Option<Vec<Packet>> + 'static,
) -> (FakeLink, FakeDevice) {
    let wire = Rc::new(RefCell::new(Wire {
        model: Model::default(),
        twist: Box::new(twist),
        inbox: VecDeque::new(),
        fails: None,
        largest_packet: None,
        has_atomics: None,
    }));
    (FakeLink { wire: Rc::clone(&wire), now: Instant::now() }, FakeDevice { wire })
}

/// What comes of this check, tried once.
pub(crate) fn finding(name: &str, (link, device): &mut (FakeLink, FakeDevice)) -> Finding {
    let check = checks::all().find(|check| check.name == name).expect("there is such a check");
    play(check, link, device, &Plan { attempts: 1, ..Plan::default() })
}

impl Link for FakeLink {
    fn local(&self) -> IpAddr {
        TESTER
    }

    fn now(&self) -> Instant {
        self.now
    }

    fn send(&mut self, datagrams: &[(Flow, Vec<u8>, u32)]) -> io::Result<()> {
        let wire = &mut *self.wire.borrow_mut();
        if let Some(kind) = wire.fails {
            return Err(kind.into());
        }
        for (flow, bytes, damage) in datagrams {
            let (at, ident) = (self.now, Ident::Hidden { guess: 0 });
            let outer = Outer { flow: *flow, ident };
            let (bytes, icrc_is_right) = (bytes.clone(), *damage == 0);
            wire.receive(&Arrived { at, outer, bytes, icrc_is_right });
        }
        Ok(())
    }

    fn receive(&mut self, until: Instant) -> io::Result<Option<(Outer, Vec<u8>)>> {
        let came = self.wire.borrow_mut().inbox.pop_front();
        if came.is_none() {
            self.now = self.now.max(until);
        }
        Ok(came)
    }

    fn unique(&self) -> u32 {
        7
    }

    fn sees_headers(&self) -> bool {
        true
    }

    fn largest_packet(&self) -> Option<usize> {
        self.wire.borrow().largest_packet
    }
}

impl Device for FakeDevice {
    fn describe(&self) -> String {
        "a model".into()
    }

    fn addr(&self) -> IpAddr {
        DEVICE
    }

    fn connect(&mut self, setup: &Setup, ours: &mut OurEnd) -> Result<TheirEnd, Unavailable> {
        let memory = vec![0; setup.memory];
        self.wire.borrow_mut().model = Model { ours: Some(*ours), memory, ..Model::default() };
        let memory = RemoteMemory { addr: BASE, rkey: RKEY, len: setup.memory };
        let memory = (setup.memory > 0).then_some(memory);
        Ok(TheirEnd { qpn: 0x321, psn: 0x10, memory, handle: None })
    }

    fn agent(&mut self) -> Option<&mut dyn Agent> {
        None
    }

    fn has_atomics(&self) -> Option<bool> {
        self.wire.borrow().has_atomics
    }

    fn end_check(&mut self) {}
}
