//! Senders of cross traffic, and the receivers that answer them.

use super::PAYLOAD;
use super::dcqcn::{NOTIFICATION_INTERVAL, Rate};
use super::packet::Packet;
use super::window::{Algorithm, Window};
use crate::load::machine::Endpoint;
use std::collections::VecDeque;
use std::net::IpAddr;
use std::time::{Duration, Instant};
use urxe_port::sim::SimPort;
use urxe_port::{Port, RxBatch, SendOutcome};
use urxe_wire::batch::TxBatch;
use urxe_wire::{Flow, OuterHeaders, ecn};

/// A packet is lost when one was acknowledged that was sent so many later.
const DUPLICATE_THRESHOLD: u64 = 3;

/// The least retransmission timeout: small, as in data centres.
const MIN_TIMEOUT: Duration = Duration::from_millis(5);

/// What sends packets to one address.
struct Line {
    port: SimPort,
    flow: Flow,
    batch: TxBatch,
}

impl Line {
    fn new(port: SimPort, to: IpAddr, traffic_class: u8) -> Line {
        let caps = port.caps();
        let flow = Flow {
            src: caps.addrs[0],
            dst: to,
            src_port: 50_000,
            traffic_class,
            hop_limit: 64,
            flow_label: 0,
        };
        Line { batch: TxBatch::new(caps.tx_limits, 1 << 16), port, flow }
    }

    fn send(&mut self, now: Instant, packet: Packet) {
        self.batch.push_raw(&self.flow, &packet.bytes());
        let outcome = self.port.send(now, &mut self.batch).expect("the simulated port works");
        assert_eq!(outcome, SendOutcome::Done, "a simulated port takes everything");
    }

    /// What has arrived, and whether each was marked.
    fn receive(&mut self, now: Instant, rx: &mut RxBatch) -> Vec<(Packet, bool)> {
        let mut packets = Vec::new();
        while self.port.recv(now, rx).expect("the simulated port works") > 0 {
            while let Some((outer, bytes)) = rx.next_datagram() {
                let marked = ecn::is_marked(outer.flow.traffic_class);
                packets.extend(Packet::parse(bytes).map(|packet| (packet, marked)));
            }
        }
        packets
    }
}

/// Sends at the rate that DCQCN allows, without end.
pub struct DcqcnSender {
    line: Line,
    rate: Rate,
    next: Instant,
    number: u64,
}

impl DcqcnSender {
    /// Begins at `start`, at the rate of its line.
    pub fn new(port: SimPort, to: IpAddr, line: u64, start: Instant) -> DcqcnSender {
        DcqcnSender {
            line: Line::new(port, to, ecn::CAPABLE),
            rate: Rate::new(line),
            next: start,
            number: 0,
        }
    }
}

impl Endpoint for DcqcnSender {
    fn turn(&mut self, now: Instant, rx: &mut RxBatch) {
        self.rate.on_timer(now);
        for (packet, _) in self.line.receive(now, rx) {
            if packet == Packet::Cnp {
                self.rate.on_cnp(now);
            }
        }
        while self.next <= now {
            let packet = Packet::Data(self.number);
            self.number += 1;
            self.line.send(now, packet);
            let len = packet.bytes().len() + OuterHeaders::len(false);
            self.rate.on_sent(len);
            self.next += Duration::from_secs_f64(len as f64 * 8.0 / self.rate.current());
        }
    }

    fn next_timer(&self) -> Option<Instant> {
        self.rate.next_timer().into_iter().chain([self.next]).min()
    }

    fn received(&self) -> u64 {
        0
    }
}

/// How a receiver answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Each packet, and whether it was marked.
    Acks,
    /// Marks alone, now and then: the notification point of DCQCN.
    Notifications,
}

/// Receives and answers.
pub struct Receiver {
    line: Line,
    answer: Answer,
    notified: Option<Instant>,
    received: u64,
}

impl Receiver {
    pub fn new(port: SimPort, to: IpAddr, answer: Answer) -> Receiver {
        Receiver { line: Line::new(port, to, 0), answer, notified: None, received: 0 }
    }
}

impl Endpoint for Receiver {
    fn turn(&mut self, now: Instant, rx: &mut RxBatch) {
        for (packet, marked) in self.line.receive(now, rx) {
            let Packet::Data(number) = packet else { continue };
            self.received += PAYLOAD as u64;
            match self.answer {
                Answer::Acks => self.line.send(now, Packet::Ack { number, marked }),
                Answer::Notifications if marked => {
                    if self.notified.is_none_or(|at| now >= at + NOTIFICATION_INTERVAL) {
                        self.notified = Some(now);
                        self.line.send(now, Packet::Cnp);
                    }
                }
                Answer::Notifications => {}
            }
        }
    }

    fn next_timer(&self) -> Option<Instant> {
        None
    }

    fn received(&self) -> u64 {
        self.received
    }
}

/// Sends as a window allows, without end.
pub struct WindowSender {
    line: Line,
    window: Window,
    start: Instant,
    number: u64,
    /// In flight, oldest first: their numbers, and when they were sent.
    in_flight: VecDeque<(u64, Instant)>,
    /// Marks and losses up to this number belong to the last cut.
    cut_up_to: u64,
    round_trip: Option<Duration>,
    /// When it gives up waiting for acknowledgements.
    timeout: Option<Instant>,
}

impl WindowSender {
    /// Begins at `start`; `is_markable`: its packets can be marked.
    pub fn new(
        port: SimPort,
        to: IpAddr,
        algorithm: Algorithm,
        is_markable: bool,
        start: Instant,
    ) -> WindowSender {
        let bits = if is_markable { ecn::CAPABLE } else { ecn::NOT_CAPABLE };
        WindowSender {
            line: Line::new(port, to, bits),
            window: Window::new(algorithm),
            start,
            number: 0,
            in_flight: VecDeque::new(),
            cut_up_to: 0,
            round_trip: None,
            timeout: None,
        }
    }

    fn on_ack(&mut self, now: Instant, number: u64, marked: bool) {
        let Ok(index) = self.in_flight.binary_search_by_key(&number, |(number, _)| *number) else {
            return;
        };
        let (_, sent) = self.in_flight.remove(index).expect("it was found there");
        let sample = now - sent;
        let smoothed = self.round_trip.map_or(sample, |before| before / 8 * 7 + sample / 8);
        self.round_trip = Some(smoothed);
        let mut lost = None;
        while let Some(&(oldest, _)) = self.in_flight.front()
            && oldest + DUPLICATE_THRESHOLD <= number
        {
            lost = Some(oldest);
            self.in_flight.pop_front();
        }
        let congested = marked.then_some(number).into_iter().chain(lost);
        if congested.max().is_some_and(|number| number >= self.cut_up_to) {
            self.cut_up_to = self.number;
            self.window.on_congestion();
        } else if number >= self.cut_up_to {
            self.window.on_ack(now, smoothed);
        }
        self.timeout = Some(now + MIN_TIMEOUT.max(2 * smoothed));
    }
}

impl Endpoint for WindowSender {
    fn turn(&mut self, now: Instant, rx: &mut RxBatch) {
        for (packet, _) in self.line.receive(now, rx) {
            if let Packet::Ack { number, marked } = packet {
                self.on_ack(now, number, marked);
            }
        }
        if self.timeout.is_some_and(|at| at <= now) {
            self.in_flight.clear();
            self.cut_up_to = self.number;
            self.window.on_timeout();
            self.timeout = None;
        }
        while now >= self.start && (self.in_flight.len() as u64) < self.window.packets() {
            self.line.send(now, Packet::Data(self.number));
            self.in_flight.push_back((self.number, now));
            self.number += 1;
            self.timeout.get_or_insert(now + MIN_TIMEOUT);
        }
    }

    fn next_timer(&self) -> Option<Instant> {
        match self.number {
            0 => Some(self.start),
            _ => self.timeout,
        }
    }

    fn received(&self) -> u64 {
        0
    }
}
