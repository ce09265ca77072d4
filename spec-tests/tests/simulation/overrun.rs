//! A CQ too small for what completes: completions are lost, the QP that lost them goes to ERR and
//! says so, and other QPs go on.

use crate::{Draw, LIMIT, check_connected};
use urxe_engine::{AsyncEvent, Counter};
use urxe_spec_tests::rng::Rng;
use urxe_spec_tests::simulation::scenario::{self, NetworkProfile};
use urxe_spec_tests::simulation::seeds::Family;
use urxe_spec_tests::simulation::wide::Wide;
use urxe_spec_tests::simulation::workloads::rc::{Expects, RcWorkload};
use urxe_types::QpState;

fn run(seed: u64, prints: bool) {
    let mut rng = Rng::new(seed);
    let profile = NetworkProfile::stormy(&mut rng);
    let draw = Draw::new(&mut rng, profile, 2).enrich(seed);
    let mut traffic = draw.make(&mut rng, prints);

    let others = 0..traffic.workloads.len();
    let tight = others.end..others.end + 2;
    let mut connection = scenario::Connection::draw(&mut rng);
    if let Some(mut wide) = Wide::of(seed) {
        wide.timeouts(std::slice::from_mut(&mut connection), &draw.profile);
    }
    connection.eager = true;
    connection.styles[0].signaled = 100;
    // What the requests with lost completions have added is not known.
    connection.styles.iter_mut().for_each(|style| style.mix.fetch_add = 0);
    let world = &mut traffic.world;
    let ends = connection.nodes.map(|node| {
        let host = &mut world.nodes[node].host;
        let cqs = (host.add_cq(rng.range(1..=4) as usize), host.add_cq(rng.range(1..=4) as usize));
        world.create_qp(node, connection.pd, cqs, (64, 64))
    });
    let counters = traffic.counters.clone();
    let number = draw.connections.len() as u64;
    let workloads = connection.make_on(&mut rng, &mut traffic.world, number, &counters, ends);
    for mut workload in workloads {
        workload.expects = Expects::Anything;
        traffic.add(workload);
    }

    traffic.run_until(LIMIT, |traffic| {
        let is_err =
            |workload: &RcWorkload| traffic.world.state(&workload.end) == Some(QpState::Err);
        let tight = &traffic.workloads[tight.clone()];
        let tight_is_over = tight.iter().any(is_err) || tight.iter().all(RcWorkload::is_done);
        tight_is_over && traffic.workloads[others.clone()].iter().all(RcWorkload::is_done)
    });
    for workload in tight.clone() {
        let end = traffic.workloads[workload].end;
        traffic.workloads[workload].stop();
        let device = &traffic.world.nodes[end.node].device;
        let counters = device.qp_counters(end.qpn).expect("the QP is there");
        let count = |counter| counters.get(counter);
        if count(Counter::CqOverruns) > 0 {
            assert_eq!(traffic.world.state(&end), Some(QpState::Err));
            // It was in ERR already if its peer stopped responding before.
            let events = &traffic.world.nodes[end.node].host.events;
            let is_reported = events.contains(&AsyncEvent::QpFatal(end.qpn));
            assert!(is_reported || count(Counter::RetriesExceeded) > 0);
        }
        traffic.world.set_state(&end, QpState::Err);
    }
    traffic.run_to_rest();
    traffic.check_memory();
    check_connected(&traffic, &traffic.workloads[others]);
}

/// CQs of one to four places.
pub(crate) const FAMILY: Family =
    Family { name: "a_cq_that_overruns_ends_its_qp_and_no_other", first: 80_000, runs: 100, run };

#[test]
fn a_cq_that_overruns_ends_its_qp_and_no_other() {
    FAMILY.check();
}
