//! Random work, faults and attacks, in virtual time. A failed run prints its seed, and how to
//! repeat it; see [`urxe_spec_tests::simulation::seeds`].

mod bad_requests;
mod connecting;
mod faults;
mod hostile;
mod loss_table;
mod memory_order;
mod messages;
mod neighbours;
mod overrun;
mod pair;
mod reconnect;
mod repeats;
mod retries;
mod shared_path;
mod soak;
mod success;

use std::time::Duration;
use urxe_engine::Counter;
use urxe_spec_tests::rng::Rng;
use urxe_spec_tests::simulation::scenario::{self, Connection, NetworkProfile};
use urxe_spec_tests::simulation::wide::Wide;
use urxe_spec_tests::simulation::workloads::rc::RcWorkload;
use urxe_spec_tests::simulation::workloads::traffic::Traffic;
use urxe_spec_tests::simulation::world::NodeConfig;
use urxe_types::QpState;

/// Longer than the slowest run takes, in virtual time.
const LIMIT: Duration = Duration::from_secs(3_600);

/// The seeds of the runs with names.
const NAMED: [u64; 4] = [31, 30_012, 40_000, 40_028];

/// The parameters of a run.
#[derive(Debug)]
struct Draw {
    profile: NetworkProfile,
    nodes: Vec<NodeConfig>,
    connections: Vec<Connection>,
}

impl Draw {
    fn new(rng: &mut Rng, profile: NetworkProfile, connections: u64) -> Draw {
        let nodes = scenario::draw_nodes::<2>(rng).to_vec();
        let connections = (0..connections).map(|_| Connection::draw(rng)).collect();
        Draw { profile, nodes, connections }
    }

    /// Adds ATOMIC WRITE, FLUSH, local operations and windows, except to the runs with names, which
    /// must stay as they were; for the seeds of a soak it draws more.
    fn enrich(mut self, seed: u64) -> Draw {
        if !NAMED.contains(&seed) {
            let mut rng = Rng::new(!seed);
            self.connections.iter_mut().for_each(|connection| connection.enrich(&mut rng));
        }
        if let Some(mut wide) = Wide::of(seed) {
            wide.network(&mut self.profile);
            self.nodes = wide.more_nodes();
            wide.connections(&mut self.connections, self.nodes.len());
            wide.timeouts(&mut self.connections, &self.profile);
        }
        self
    }

    /// The world, its programs set up and about to begin; connection `n` is that of workloads
    /// `2 * n` and `2 * n + 1`.
    fn make(&self, rng: &mut Rng, prints: bool) -> Traffic {
        if prints {
            eprintln!("{self:#?}");
        }
        let mut world = scenario::world(rng, &self.nodes, &self.profile, prints);
        let counters = scenario::counters(rng, &mut world);
        let mut workloads: Vec<RcWorkload> = Vec::new();
        for (number, connection) in (0..).zip(&self.connections) {
            workloads.extend(connection.make(rng, &mut world, number, &counters));
        }
        Traffic::new(world, workloads, counters, rng.fork())
    }
}

/// The same seed makes the same run, another one another; `run` returns the hash of a run.
fn check_repeats(seed: u64, prints: bool, run: impl Fn(u64, bool) -> u64) {
    let first = run(seed, prints);
    assert_eq!(run(seed, false), first);
    assert_ne!(run(seed + 1, false), first);
}

/// A connection without a fault is still connected.
fn check_connected(traffic: &Traffic, workloads: &[RcWorkload]) {
    for workload in workloads {
        assert_eq!(traffic.world.state(&workload.end), Some(QpState::Rts));
        let counters = traffic.world.nodes[workload.end.node].device.qp_counters(workload.end.qpn);
        let count = |counter| counters.expect("the QP is there").get(counter);
        assert_eq!(
            count(Counter::SentMessages),
            workload.binds_before + workload.sends.len() as u64
        );
        for never in [
            Counter::GhostResponses,
            Counter::BadResponses,
            Counter::FatalNaksReceived,
            Counter::InvalidRequestNaksSent,
            Counter::RemoteAccessNaksSent,
            Counter::RemoteOperationalNaksSent,
            Counter::RetriesExceeded,
            Counter::RnrRetriesExceeded,
            Counter::LocalErrors,
            Counter::FlushedRequests,
            Counter::CqOverruns,
            Counter::DropWrongTransport,
            Counter::DropWrongAddress,
            Counter::DropQpNotReady,
        ] {
            assert_eq!(count(never), 0, "{}", never.name());
        }
    }
}
