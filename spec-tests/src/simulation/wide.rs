//! What the runs of a soak draw beyond those of CI: round trips from 2 us to 200 ms, bursts of
//! losses, links that differ by direction, slow links with short queues; more machines, more
//! connections; devices that are tuned differently.

use crate::rng::Rng;
use crate::simulation::scenario::{self, Connection, NetworkProfile};
use crate::simulation::seeds::WIDE;
use crate::simulation::world::NodeConfig;
use std::time::Duration;
use urxe_engine::{
    CongestionControl, CongestionParameters, EarlyLimits, Ecn, RateParameters, Tuning, WireForm,
};
use urxe_port::sim::Link;
use urxe_port::{Chance, Impairment};

/// A wider choice for the runs of some seeds.
#[derive(Debug)]
pub struct Wide {
    rng: Rng,
}

impl Wide {
    /// For the run of this seed; `None` if it is not one of a soak.
    pub fn of(seed: u64) -> Option<Wide> {
        (seed >= WIDE).then(|| Wide { rng: Rng::new(!seed) })
    }

    /// Draws a network again; one that loses nothing will lose nothing.
    pub fn network(&mut self, profile: &mut NetworkProfile) {
        let is_calm = profile.is_calm();
        // One way.
        let micros = self.rng.pick(&[1, 3, 10, 30, 100, 500, 2_500, 10_000, 30_000, 100_000]);
        let jitter = self.rng.pick(&[0, micros / 20, micros / 4]);
        let most = if micros < 100_000 { micros + jitter } else { micros };
        let delay = Duration::from_micros(micros)..=Duration::from_micros(most);
        if is_calm {
            profile.link.impairment.delay = delay;
            return;
        }
        profile.link = self.link(&delay);
        profile.back = self.rng.percent(30).then(|| self.link(&delay));
        profile.partitions.clear();
        let round_trip = 2 * micros;
        let (most_bursts, longest_burst) = (self.rng.pick(&[0, 0, 3, 12]), 100 + round_trip / 2);
        for _ in 0..most_bursts {
            let from = self.rng.micros(0..=20_000 + 10 * round_trip);
            profile.partitions.push((from, self.rng.micros(0..=longest_burst)));
        }
        for _ in 0..self.rng.pick(&[0, 0, 0, 1, 2]) {
            let from = self.rng.micros(0..=10_000 + 4 * round_trip);
            profile.partitions.push((from, self.rng.micros(0..=30_000 + 4 * round_trip)));
        }
    }

    fn link(&mut self, delay: &std::ops::RangeInclusive<Duration>) -> Link {
        let mut chance = |percents: &[f64]| Chance::percent(self.rng.pick(percents));
        let impairment = Impairment {
            drop: chance(&[0.0, 0.0, 0.01, 0.1, 1.0, 5.0, 10.0]),
            duplicate: chance(&[0.0, 0.0, 1.0, 10.0, 50.0]),
            reorder: chance(&[0.0, 0.0, 1.0, 10.0, 50.0]),
            corrupt: chance(&[0.0, 0.0, 0.0, 1.0]),
            delay: delay.clone(),
        };
        let mut link = Link { impairment, ..Link::default() };
        if self.rng.percent(40) {
            link.rate = Some(self.rng.pick(&[100, 1_000, 10_000, 100_000]) * 1_000_000);
            // At the slowest rate the longest packet takes 350 us.
            link.queue_limit = Some(self.rng.micros(1_000..=10_000));
            link.mark_above = self.rng.pick(&[None, Some(Duration::from_micros(100))]);
        }
        link
    }

    /// Draws machines again.
    pub fn nodes(&mut self, count: usize) -> Vec<NodeConfig> {
        let mut nodes = scenario::draw_nodes::<4>(&mut self.rng)[..count].to_vec();
        nodes.iter_mut().for_each(|node| node.tuning = self.tuning());
        nodes
    }

    /// Draws machines again, one or two more than a connection needs.
    pub fn more_nodes(&mut self) -> Vec<NodeConfig> {
        let count = self.rng.pick(&[2, 2, 3, 4]);
        self.nodes(count)
    }

    /// Draws what the standard leaves open.
    pub fn tuning(&mut self) -> Tuning {
        let default = EarlyLimits::default();
        Tuning {
            wire: self.rng.pick(&[WireForm::Uniform, WireForm::Strict]),
            early: EarlyLimits {
                bytes_per_qp: self.rng.pick(&[0, 10_000, default.bytes_per_qp]),
                bytes_per_device: self.rng.pick(&[30_000, default.bytes_per_device]),
            },
            congestion: self.congestion(),
        }
    }

    fn congestion(&mut self) -> CongestionControl {
        if self.rng.percent(25) {
            return CongestionControl::Off;
        }
        let rate = self.rng.pick(&[RateParameters::PAPER, RateParameters::MLX5]);
        CongestionControl::On(CongestionParameters {
            ecn: self.rng.pick(&[Ecn::Off, Ecn::Agreed, Ecn::On]),
            delay_target: self.rng.micros(1..=1_000),
            rate,
            ..CongestionParameters::default()
        })
    }

    /// Draws more connections, and where their ends are among so many machines.
    pub fn connections(&mut self, connections: &mut Vec<Connection>, nodes: usize) {
        for _ in 0..self.rng.pick(&[0, 0, 0, 2, 12]) {
            let mut connection = Connection::draw(&mut self.rng);
            // So that the run does not take too long.
            for style in &mut connection.styles {
                style.count = style.count.min(30);
                style.budget = style.budget.min(100_000);
            }
            connections.push(connection);
        }
        for connection in connections {
            let first = self.rng.index(nodes);
            // Sometimes both ends are on one machine.
            let second = match self.rng.percent(90) {
                true => first + 1 + self.rng.index(nodes - 1),
                false => first,
            };
            connection.nodes = [first, second % nodes];
        }
    }

    /// Makes the timeouts of connections long enough for a network.
    pub fn timeouts(&mut self, connections: &mut [Connection], profile: &NetworkProfile) {
        let least = profile.least_timeout();
        for attr in connections.iter_mut().flat_map(|connection| &mut connection.attrs) {
            attr.timeout = attr.timeout.max(least + self.rng.range(0..=2) as u8);
        }
    }
}
