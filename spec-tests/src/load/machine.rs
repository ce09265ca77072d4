//! What is at the ends of the network: engines, or anything else that sends and receives.

use crate::load::host::LoadHost;
use crate::simulation::world::NodeConfig;
use std::time::Instant;
use urxe_engine::Device;
use urxe_port::sim::SimPort;
use urxe_port::{Port, RxBatch, SendOutcome};
use urxe_wire::batch::TxBatch;

/// Batches without a packet that an engine may fill one after the other: each stands for many turns
/// of QPs that had nothing to send.
const MAX_EMPTY_BATCHES: usize = 10_000;

/// Something at the end of a line that is no engine.
pub trait Endpoint {
    /// Takes in what has arrived, sees to its timers, and sends.
    fn turn(&mut self, now: Instant, rx: &mut RxBatch);

    /// When its next timer runs out.
    fn next_timer(&self) -> Option<Instant>;

    /// Payload bytes that have arrived for it.
    fn received(&self) -> u64;
}

/// An engine with its host and its port.
pub struct Machine {
    pub device: Device,
    pub host: LoadHost,
    port: SimPort,
    tx: TxBatch,
    /// Datagrams that it takes in before it answers.
    burst: usize,
    /// Until then it does nothing: the machine is busy with something else.
    pub busy_until: Instant,
}

impl Machine {
    pub fn new(config: &NodeConfig, port: SimPort, now: Instant) -> Machine {
        Machine {
            device: config.device(),
            host: LoadHost::new(now),
            tx: TxBatch::new(port.caps().tx_limits, config.tx_capacity),
            port,
            burst: config.burst,
            busy_until: now,
        }
    }

    /// Sends all that the engine has to send.
    ///
    /// # Panics
    /// If it says without end that it has more, and has nothing.
    pub fn transmit(&mut self, now: Instant) {
        let mut empty = 0;
        loop {
            let more = self.device.poll_transmit(now, &mut self.host, &mut self.tx);
            empty = if self.tx.is_empty() { empty + 1 } else { 0 };
            assert!(empty < MAX_EMPTY_BATCHES, "the engine takes turns without end");
            let outcome = self.port.send(now, &mut self.tx).expect("the simulated port works");
            assert_eq!(outcome, SendOutcome::Done, "a simulated port takes everything");
            if !more {
                break;
            }
        }
    }

    /// Takes in what has arrived, sees to the engine's timers, and sends.
    pub fn turn(&mut self, now: Instant, rx: &mut RxBatch) {
        if now < self.busy_until {
            return;
        }
        self.host.now = now;
        while self.port.recv(now, rx).expect("the simulated port works") > 0 {
            if let Some(fill) = self.port.receive_fill(now) {
                self.device.set_receive_fill(fill);
            }
            let mut taken = 0;
            while let Some((outer, bytes)) = rx.next_datagram() {
                self.device.handle_datagram(now, &mut self.host, outer, bytes);
                taken += 1;
                if taken % self.burst == 0 {
                    self.device.end_of_batch(now, &mut self.host);
                    self.transmit(now);
                }
            }
            self.device.end_of_batch(now, &mut self.host);
            self.transmit(now);
        }
        self.device.handle_timeout(now, &mut self.host);
        self.transmit(now);
    }

    /// When the engine's next timer runs out.
    pub fn next_timer(&self) -> Option<Instant> {
        self.device.poll_timeout().map(|at| at.max(self.busy_until))
    }
}
