//! What a check is written with: packets out, packets expected, and the program on the device.

mod answers;
mod evidence;
mod management;
mod program;
mod requests;
mod work;

pub use evidence::{Direction, Evidence, Record};
pub use management::management;
pub use program::{AddressHandle, MemoryWindow};
pub use requests::{OUR_ADDR, OUR_RKEY};
pub use work::our_memory;

use crate::Arrived;
use crate::agent::{Event, Wc};
use crate::check::{Outcome, Stop};
use crate::device::{Device, End, OurEnd, RemoteMemory, Setup, TheirEnd};
use crate::expect::{self, Expect};
use crate::link::Link;
use crate::pace::Pace;
use crate::packet::{Packet, Sequence};
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng, SeedableRng};
use std::cell::Cell;
use std::collections::{BTreeSet, VecDeque};
use std::time::{Duration, Instant};
use urxe_wire::icrc::{Checker, Verdict};
use urxe_wire::mad::Mad;
use urxe_wire::{Bth, Flow, NakCode, OuterHeaders, icrc};

/// How long answers are waited for.
#[derive(Clone, Copy, Debug)]
pub struct Waits {
    /// An answer that is due comes within this.
    pub reply: Duration,
    /// What has not come within this does not come.
    pub quiet: Duration,
}

/// Silence is not waited for longer than this: what a device sends again after the ACK timeout that
/// most programs set, 67 ms, is no answer.
const MOST_QUIET: Duration = Duration::from_millis(50);

impl Waits {
    /// With as much time for an answer, and with the time for silence that belongs to it.
    pub fn for_replies_within(reply: Duration) -> Waits {
        let usual = Waits::default();
        let quiet = usual.quiet.mul_f64(reply.as_secs_f64() / usual.reply.as_secs_f64());
        Waits { reply, quiet: quiet.min(MOST_QUIET) }
    }

    /// For a device with this pace. Programs take longer than what was measured; one answer that
    /// took very long does not have a silent device waited for without end.
    pub fn for_pace(pace: Pace) -> Waits {
        const MOST_REPLY: Duration = Duration::from_secs(1);
        const REPLY: u32 = 10;
        const QUIET: u32 = 3;
        let usual = Waits::default();
        Waits {
            reply: usual.reply.max(pace.slowest * REPLY).min(MOST_REPLY),
            quiet: usual.quiet.max(pace.slowest * QUIET).min(MOST_QUIET),
        }
    }

    /// For one more attempt after so many that failed, perhaps because the answer was late.
    pub(crate) fn after(self, failed: u32) -> Waits {
        const DOUBLINGS: u32 = 2;
        Waits { reply: self.reply * (1 << (failed / 2).min(DOUBLINGS)), ..self }
    }
}

impl Default for Waits {
    /// For a network of one site.
    fn default() -> Waits {
        Waits { reply: Duration::from_millis(250), quiet: Duration::from_millis(20) }
    }
}

/// One run of a check: the tester's end of its connections.
///
/// PSNs in packets and expectations count from the first of the connection, in the direction of
/// the requests that they belong to. The connection that was made or selected last is meant.
pub struct Script<'a> {
    link: &'a mut dyn Link,
    device: &'a mut dyn Device,
    rng: Xoshiro256PlusPlus,
    waits: Waits,
    connections: Vec<Connection>,
    selected: usize,
    /// Datagrams for none of our QPs.
    strays: VecDeque<Arrived>,
    /// Messages of the device's connection manager that were not waited for yet.
    mads: VecDeque<(Arrived, Mad)>,
    checker: Checker,
    evidence: Evidence,
    variations: Vec<String>,
    /// An answer has come in the place of another, of which no loss on the way is the cause.
    is_contradicted: Cell<bool>,
    /// Numbers what is made on the device by name.
    next_name: u32,
    /// Events that the program has told of and that were not waited for yet.
    events: VecDeque<Event>,
}

/// One of our QPs.
struct Connection {
    ours: OurEnd,
    theirs: TheirEnd,
    setup: Setup,
    flow: Flow,
    arrived: VecDeque<Arrived>,
    /// PSNs of the device's requests that have come.
    came: BTreeSet<i32>,
    /// Those of them at which messages have ended.
    ended: BTreeSet<i32>,
    /// The first PSN of them that was not acknowledged by what acknowledges messages as they come.
    acknowledged: i32,
    /// Operations of its work that have succeeded, as far as that is told.
    succeeded: u32,
    /// How its work has ended.
    end: Option<End>,
    /// The PSN furthest on of those that the device wants to have acknowledged.
    asked: Option<i32>,
    /// Completions that the program has told of and that were not waited for yet.
    completed: VecDeque<Wc>,
}

/// Names a connection of a script.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionId(usize);

/// How long after the end of a wait datagrams are taken in that have come already.
const MOST_OVERTIME: Duration = Duration::from_secs(1);

/// Bytes of the longest headers beside a payload: BTH, RETH, immediate data and ICRC.
const MOST_HEADERS: usize = Bth::LEN + 16 + 4 + icrc::LEN;

/// UDP source ports of a RoCEv2 sender begin here.
const SOURCE_PORT: u16 = 0xc000;

impl<'a> Script<'a> {
    /// A script on this link, for this device. What it chooses by chance follows from `seed`.
    pub fn new(
        link: &'a mut dyn Link,
        device: &'a mut dyn Device,
        waits: Waits,
        seed: u64,
    ) -> Script<'a> {
        Script {
            link,
            device,
            rng: Xoshiro256PlusPlus::seed_from_u64(seed),
            waits,
            connections: Vec::new(),
            selected: 0,
            strays: VecDeque::new(),
            mads: VecDeque::new(),
            checker: Checker::new(),
            evidence: Evidence::default(),
            variations: Vec::new(),
            is_contradicted: Cell::new(false),
            next_name: 0,
            events: VecDeque::new(),
        }
    }

    // Connections.

    /// Makes a QP on the device, connected with one of ours, and goes on with it.
    ///
    /// # Errors
    /// If there is none to be had.
    pub fn connect(&mut self, setup: &Setup) -> Outcome<ConnectionId> {
        self.ensure_fits(&self.usual_flow(), setup.mtu.bytes() + MOST_HEADERS)?;
        let psn = setup.our_psn.unwrap_or_else(|| self.rng.next_u32() & 0xff_ffff);
        let qpn = self.unused_qpn();
        let mut ours = OurEnd { addr: self.link.local(), qpn, psn };
        let theirs = self.device.connect(setup, &mut ours)?;
        Ok(self.adopt(ours, theirs, setup))
    }

    /// Goes on with a connection that came about in another way.
    pub fn adopt(&mut self, ours: OurEnd, theirs: TheirEnd, setup: &Setup) -> ConnectionId {
        let flow = self.usual_flow();
        self.connections.push(Connection {
            ours,
            theirs,
            setup: setup.clone(),
            flow,
            arrived: VecDeque::new(),
            came: BTreeSet::new(),
            ended: BTreeSet::new(),
            acknowledged: 0,
            succeeded: 0,
            end: None,
            asked: None,
            completed: VecDeque::new(),
        });
        self.selected = self.connections.len() - 1;
        ConnectionId(self.selected)
    }

    fn usual_flow(&self) -> Flow {
        Flow {
            src: self.link.local(),
            dst: self.device.addr(),
            src_port: SOURCE_PORT,
            traffic_class: 0,
            hop_limit: 64,
            flow_label: 0,
        }
    }

    /// Goes on with this connection.
    pub fn select(&mut self, connection: ConnectionId) {
        self.selected = connection.0;
    }

    /// The number of the QP at the other end.
    pub fn their_qpn(&self) -> u32 {
        self.current().theirs.qpn
    }

    /// Our QP's number.
    pub fn our_qpn(&self) -> u32 {
        self.current().ours.qpn
    }

    /// The outer headers of what is sent.
    pub fn flow(&self) -> Flow {
        self.current().flow
    }

    /// Sends with other outer headers from now on, on this connection.
    pub fn set_flow(&mut self, flow: Flow) {
        let selected = self.selected;
        self.connections[selected].flow = flow;
    }

    /// The memory of the device that this connection may use.
    ///
    /// # Panics
    /// If the check has not asked for any.
    pub fn memory(&self) -> RemoteMemory {
        self.current().theirs.memory.expect("the check asked for memory")
    }

    /// An address of the device's memory.
    pub fn addr(&self, offset: u64) -> u64 {
        self.memory().addr + offset
    }

    /// The key of the device's memory.
    pub fn rkey(&self) -> u32 {
        self.memory().rkey
    }

    // Packets.

    /// Sends one packet.
    ///
    /// # Errors
    /// If the port does not work.
    pub fn send(&mut self, packet: Packet) -> Outcome {
        self.send_all(&[packet])
    }

    /// Sends packets, one after the other without a pause.
    ///
    /// # Errors
    /// If the port does not work.
    pub fn send_all(&mut self, packets: &[Packet]) -> Outcome {
        let connection = &self.connections[self.selected];
        let mut datagrams = Vec::new();
        for packet in packets {
            let bytes = connection.datagram(packet);
            let ecn = packet.ecn & 3;
            let traffic_class = connection.flow.traffic_class & !3 | ecn;
            let flow = Flow { traffic_class, ..connection.flow };
            datagrams.push((flow, bytes, packet.icrc_damage));
        }
        self.transmit(&datagrams)
    }

    /// Sends datagrams, and keeps them as evidence once they are sent.
    fn transmit(&mut self, datagrams: &[(Flow, Vec<u8>, u32)]) -> Outcome {
        for (flow, bytes, _) in datagrams {
            self.ensure_fits(flow, bytes.len())?;
        }
        let now = self.link.now();
        self.link.send(datagrams)?;
        for (flow, bytes, damage) in datagrams {
            self.evidence.sent(now, flow, bytes, *damage);
        }
        Ok(())
    }

    /// A datagram of so many bytes can be sent and received on the tester's link.
    fn ensure_fits(&self, flow: &Flow, len: usize) -> Outcome {
        let (len, most) = (OuterHeaders::len(flow.src.is_ipv6()) + len, self.link.largest_packet());
        match most.filter(|&most| len > most) {
            Some(most) => Err(Stop::NotSupported(format!(
                "a packet of {len} bytes: the tester's link takes {most} at most"
            ))),
            None => Ok(()),
        }
    }

    /// The next packet for this connection, if one comes within this time.
    ///
    /// # Errors
    /// If the port does not work.
    pub fn next(&mut self, within: Duration) -> Outcome<Option<Arrived>> {
        let until = self.link.now() + within;
        loop {
            if let Some(arrived) = self.connections[self.selected].arrived.pop_front() {
                return Ok(Some(arrived));
            }
            if !self.receive(until)? {
                return Ok(None);
            }
        }
    }

    /// The next packet must come in time, and be this one.
    ///
    /// # Errors
    /// If it is not.
    pub fn expect(&mut self, expected: Expect) -> Outcome<Arrived> {
        match self.next(self.waits.reply)? {
            Some(arrived) => self.check(&expected, &arrived).map(|()| arrived),
            None => Err(Stop::failed(expected.describe(), self.silence())),
        }
    }

    /// The packets up to this PSN are acknowledged, by one ACK or by several.
    ///
    /// # Errors
    /// If something else comes, or nothing.
    pub fn expect_acked(&mut self, at: i32, msn: u32) -> Outcome<Arrived> {
        loop {
            let Some(arrived) = self.next(self.waits.reply)? else {
                return Err(Stop::failed(expect::ack(at).describe(), self.silence()));
            };
            let before = expect::relative(arrived.psn(), self.first_psn(&arrived)) < at;
            let wanted = if before { expect::any_ack() } else { expect::ack(at).msn(msn) };
            self.check(&wanted, &arrived)?;
            if !before {
                return Ok(arrived);
            }
        }
    }

    /// Nothing comes for a while.
    ///
    /// # Errors
    /// If something does.
    pub fn expect_nothing(&mut self) -> Outcome {
        match self.next(self.waits.quiet)? {
            Some(arrived) => Err(Stop::failed("nothing", arrived.to_string())),
            None => Ok(()),
        }
    }

    /// The next datagram that is for none of our connections (a management datagram for QP 1, or
    /// one for a QP that does not exist), if one comes within this time.
    ///
    /// # Errors
    /// If the port does not work.
    pub fn next_stray(&mut self, within: Duration) -> Outcome<Option<Arrived>> {
        let until = self.link.now() + within;
        loop {
            if let Some(arrived) = self.strays.pop_front() {
                return Ok(Some(arrived));
            }
            if !self.receive(until)? {
                return Ok(None);
            }
        }
    }

    /// The datagram that a packet becomes, for a check that damages it.
    pub fn datagram(&self, packet: &Packet) -> Vec<u8> {
        self.current().datagram(packet)
    }

    /// Sends a datagram as it is: UDP payload, with room for the ICRC, which becomes right.
    ///
    /// # Errors
    /// If the port does not work.
    pub fn send_raw(&mut self, flow: &Flow, bytes: &[u8]) -> Outcome {
        self.transmit(&[(*flow, bytes.to_vec(), 0)])
    }

    /// Whether a packet is as expected.
    ///
    /// # Errors
    /// If it is not.
    pub fn check(&self, expected: &Expect, arrived: &Arrived) -> Outcome {
        match expected.mismatch(arrived, self.first_psn(arrived)) {
            None => Ok(()),
            Some(wrong) => {
                self.note_contradiction(expected, arrived);
                Err(Stop::failed(expected.describe(), format!("{arrived}: {wrong}")))
            }
        }
    }

    /// Remembers an answer that stands in the place of this one. Where another place is answered,
    /// or a gap is told of, packets may have been lost, or come late.
    fn note_contradiction(&self, expected: &Expect, arrived: &Arrived) {
        let is_in_its_place = expected.place() == Some(self.place(arrived));
        let is_of_a_loss = arrived.nak() == Some(NakCode::SequenceError);
        if arrived.is_response() && arrived.icrc_is_right && is_in_its_place && !is_of_a_loss {
            self.is_contradicted.set(true);
        }
    }

    /// Where a packet stands in the sequence of the requests that it belongs to.
    pub fn place(&self, arrived: &Arrived) -> i32 {
        expect::relative(arrived.psn(), self.first_psn(arrived))
    }

    // The rest.

    /// The time.
    pub fn now(&self) -> Instant {
        self.link.now()
    }

    /// How long is waited for answers.
    pub fn waits(&self) -> Waits {
        self.waits
    }

    /// Lets time pass; what comes meanwhile is kept.
    ///
    /// # Errors
    /// If the port does not work.
    pub fn wait(&mut self, duration: Duration) -> Outcome {
        let until = self.link.now() + duration;
        while self.receive(until)? {}
        Ok(())
    }

    /// Bytes by chance.
    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.rng.fill_bytes(&mut bytes);
        bytes
    }

    /// A number by chance.
    pub fn random(&mut self) -> u32 {
        self.rng.next_u32()
    }

    /// Whether the device does atomics, if its program tells.
    pub fn has_atomics(&self) -> Option<bool> {
        self.device.has_atomics()
    }

    /// Whether outer headers are seen byte for byte.
    pub fn sees_headers(&self) -> bool {
        self.link.sees_headers()
    }

    /// The device does something that the standard allows and that a reader should know of.
    pub fn allow(&mut self, variation: impl Into<String>) {
        let variation = variation.into();
        if !self.variations.contains(&variation) {
            self.variations.push(variation);
        }
    }

    /// What was sent and received, and the variations that were seen; whether the device has given
    /// an answer that no loss explains.
    pub(crate) fn finish(mut self) -> (Evidence, Vec<String>, bool) {
        self.stop_work();
        self.device.end_check();
        (self.evidence, self.variations, self.is_contradicted.get())
    }

    fn current(&self) -> &Connection {
        self.connections.get(self.selected).expect("the check has connected")
    }

    fn current_mut(&mut self) -> &mut Connection {
        self.connections.get_mut(self.selected).expect("the check has connected")
    }

    /// A number of a QP that is none of ours yet; 0 and 1 are special.
    fn unused_qpn(&mut self) -> u32 {
        loop {
            let qpn = self.rng.next_u32() & 0xff_ffff;
            if qpn > 0xff && self.connections.iter().all(|other| other.ours.qpn != qpn) {
                return qpn;
            }
        }
    }

    /// Takes in one datagram; false: none came until then. What came in time may be taken in a
    /// little later, but who sends without a pause does not keep the check for ever.
    fn receive(&mut self, until: Instant) -> Outcome<bool> {
        if self.link.now() > until + MOST_OVERTIME {
            return Ok(false);
        }
        let Some((outer, bytes)) = self.link.receive(until)? else { return Ok(false) };
        let at = self.link.now();
        let is_the_devices = outer.flow.src == self.device.addr();
        if bytes.len() < Bth::LEN + icrc::LEN {
            if !is_the_devices {
                return Ok(true);
            }
            self.evidence.received(at, &outer, &bytes, Verdict::Bad);
            let seen = format!("one of {} bytes: {bytes:02x?}", bytes.len());
            return Err(Stop::failed("datagrams with a BTH and an ICRC", seen));
        }
        let verdict = self.checker.check(&outer, &bytes);
        let icrc_is_right = verdict != Verdict::Bad;
        let arrived = Arrived { at, outer, bytes, icrc_is_right };
        let qpn = arrived.dest_qp();
        let ours = self.connections.iter().position(|connection| connection.ours.qpn == qpn);
        // Others on the network may still send to QPs that somebody had at this address.
        if ours.is_none() && !is_the_devices {
            return Ok(true);
        }
        self.evidence.received(at, &arrived.outer, &arrived.bytes, verdict);
        match ours {
            Some(ours) => self.connections[ours].take_in(arrived),
            None => self.strays.push_back(arrived),
        }
        Ok(true)
    }

    fn first_psn(&self, arrived: &Arrived) -> u32 {
        let connection = self.current();
        if arrived.is_response() { connection.ours.psn } else { connection.theirs.psn }
    }

    fn silence(&self) -> String {
        format!("nothing within {} ms", self.waits.reply.as_millis())
    }
}

impl Connection {
    fn datagram(&self, packet: &Packet) -> Vec<u8> {
        packet.to_bytes(self.theirs.qpn, self.number(packet))
    }

    fn take_in(&mut self, arrived: Arrived) {
        let place = expect::relative(arrived.psn(), self.theirs.psn);
        if arrived.icrc_is_right && !arrived.is_response() {
            self.came.insert(place);
            if arrived.ends_message() {
                self.ended.insert(place);
            }
        }
        if arrived.asks_for_an_ack() {
            self.asked = self.asked.max(Some(place));
        }
        self.arrived.push_back(arrived);
    }

    /// The PSN of a packet that is sent.
    fn number(&self, packet: &Packet) -> u32 {
        let first = if packet.is_response() { self.theirs.psn } else { self.ours.psn };
        match packet.psn {
            Sequence::At(offset) => first.wrapping_add_signed(offset) & 0xff_ffff,
            Sequence::Absolute(psn) => psn & 0xff_ffff,
        }
    }
}

#[cfg(test)]
mod tests;
