//! What the scenarios have in common: machines, lines and how results are read.

use crate::load::Load;
use crate::load::flow::{FlowSpec, Operation};
use crate::simulation::world::{EndAttr, NodeConfig};
use std::net::IpAddr;
use std::time::Duration;
use urxe_engine::Tuning;
use urxe_port::Impairment;
use urxe_port::sim::{Link, Queue, QueueId};
use urxe_types::PathMtu;

/// The bandwidth of a line, in bits per second, unless a scenario says otherwise.
pub(super) const RATE: u64 = 25_000_000_000;

/// How long a datagram takes from one machine to another, unless a scenario says otherwise.
pub(super) const DELAY: Duration = Duration::from_micros(10);

/// What waits before a receiver at most: the socket buffer of an unprivileged one, in bytes.
pub(super) const SOCKET_BUFFER: usize = 200_000;

pub(super) const MTU: PathMtu = PathMtu::Mtu1024;

/// Seed of the networks.
const SEED: u64 = 1;

/// Bytes of IP, UDP and transport headers and ICRC around the payload of a MIDDLE packet.
const OVERHEAD: usize = 20 + 8 + 12 + 4;

/// The address of a machine.
pub(super) fn addr(node: usize) -> IpAddr {
    IpAddr::from([10, 0, (node / 200) as u8, (node % 200) as u8 + 1])
}

/// So many machines with a line of [`RATE`] to one switch, [`SOCKET_BUFFER`] each.
pub(super) fn switch(nodes: usize, impairment: Impairment) -> Load {
    switch_with(&vec![Tuning::default(); nodes], impairment)
}

/// As [`switch`], machines that behave so on the wire.
pub(super) fn switch_with(tunings: &[Tuning], impairment: Impairment) -> Load {
    let config = |(node, tuning): (usize, &Tuning)| NodeConfig {
        seed: 1 + node as u64,
        tuning: *tuning,
        ..NodeConfig::plain(addr(node))
    };
    let configs: Vec<_> = tunings.iter().enumerate().map(config).collect();
    let load = Load::new(SEED, Link { impairment, ..Link::default() }, &configs);
    for node in 0..configs.len() {
        let queue = Queue::taildrop(RATE, SOCKET_BUFFER);
        load.network.set_queue(QueueId::Downlink(load.addr(node)), queue);
    }
    load
}

/// The hosts' lines to the switch have a rate too: what they send queues in themselves.
pub(super) fn limit_uplinks(load: &Load, nodes: usize, rate: u64) {
    for node in 0..nodes {
        load.network.set_queue(QueueId::Uplink(load.addr(node)), Queue::unlimited(rate));
    }
}

/// A delay, and nothing else that is bad.
pub(super) fn delay(delay: Duration) -> Impairment {
    Impairment { delay: delay..=delay, ..Impairment::default() }
}

/// Attributes of a QP as a careful program sets them.
pub(super) fn attr() -> EndAttr {
    EndAttr::generous()
}

/// A flow from node 0 to node 1 without an end.
pub(super) fn endless(operation: Operation, len: usize, depth: u64) -> FlowSpec {
    FlowSpec {
        from: 0,
        to: 1,
        operation,
        len,
        depth,
        count: None,
        start: Duration::ZERO,
        program: 0,
    }
}

/// Bits of payload that a line of this rate carries in a second, at best.
pub(super) fn payload_rate(rate: u64, mtu: PathMtu) -> f64 {
    rate as f64 * mtu.bytes() as f64 / (mtu.bytes() + OVERHEAD) as f64
}

/// Gbit/s.
pub(super) fn gbits(bytes: u64, time: Duration) -> f64 {
    bytes as f64 * 8.0 / time.as_nanos().max(1) as f64
}

/// How much of a line's payload rate was used.
pub(super) fn share_of(rate: u64, mtu: PathMtu, bytes: u64, time: Duration) -> f64 {
    gbits(bytes, time) * 1e9 / payload_rate(rate, mtu)
}

/// Jain's index: 1 where all have the same, 1/n where one has everything.
pub(super) fn jain(amounts: &[u64]) -> f64 {
    let sum: f64 = amounts.iter().map(|a| *a as f64).sum();
    let squares: f64 = amounts.iter().map(|a| (*a as f64).powi(2)).sum();
    match squares {
        0.0 => 0.0,
        _ => sum * sum / (amounts.len() as f64 * squares),
    }
}

/// What each flow got between two looks.
pub(super) fn since(before: &[u64], after: &[u64]) -> Vec<u64> {
    after.iter().zip(before).map(|(after, before)| after - before).collect()
}

/// The value that `share` of the values do not exceed; they are sorted by this.
pub(super) fn percentile<T: Copy + Ord>(values: &mut [T], share: f64) -> Option<T> {
    values.sort_unstable();
    let last = values.len().checked_sub(1)?;
    Some(values[(last as f64 * share).round() as usize])
}

/// The same of times, in microseconds; infinite if there are none.
pub(super) fn percentile_micros(times: &mut [Duration], share: f64) -> f64 {
    percentile(times, share).map_or(f64::INFINITY, |time| time.as_nanos() as f64 / 1e3)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_index_of_jain_is_1_for_equals_and_the_inverse_of_the_count_for_one_alone() {
        assert_eq!(jain(&[5, 5, 5, 5]), 1.0);
        assert_eq!(jain(&[8, 0, 0, 0]), 0.25);
        assert_eq!(jain(&[0, 0]), 0.0);
    }

    #[test]
    fn a_percentile_is_one_of_the_values() {
        let mut values: Vec<u64> = (0..=100).rev().collect();
        assert_eq!(percentile(&mut values, 0.99), Some(99));
        assert_eq!(percentile::<u64>(&mut [], 0.99), None);
    }
}
