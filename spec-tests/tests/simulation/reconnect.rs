//! Both ends of a connection are reset in the middle of their work and connected again with other
//! PSNs, while packets of the earlier connection are still under way: the new one ignores them.

use crate::{Draw, LIMIT};
use urxe_spec_tests::rng::Rng;
use urxe_spec_tests::simulation::scenario::NetworkProfile;
use urxe_spec_tests::simulation::seeds::Family;
use urxe_spec_tests::simulation::workloads::rc::Expects;
use urxe_types::QpState;

fn run(seed: u64, prints: bool) {
    let mut rng = Rng::new(seed);
    let profile = NetworkProfile::stormy(&mut rng);
    let mut draw = Draw::new(&mut rng, profile, 2).enrich(seed);
    draw.connections[0].styles[0].count = 60;
    let mut traffic = draw.make(&mut rng, prints);
    for life in 1..=3 {
        let first = if life == 1 { 0 } else { traffic.workloads.len() - 2 };
        let sides = [first, first + 1];
        let ended = rng.range(0..=traffic.workloads[first].sends.len() as u64) as usize;
        traffic.run_until(LIMIT, |traffic| traffic.workloads[first].send_progress.ended >= ended);
        for side in sides {
            let end = traffic.workloads[side].end;
            traffic.world.set_state(&end, QpState::Reset);
            traffic.workloads[side].abandon();
        }
        traffic.run_for(rng.micros(0..=100));

        let mut connection = draw.connections[0].clone();
        for attr in &mut connection.attrs {
            // Far from the PSNs of the earlier connection.
            attr.sq_psn = attr.sq_psn + life * (1 << 21) + rng.range(0..=1 << 16) as u32;
        }
        let ends = sides.map(|side| traffic.workloads[side].end);
        let counters = traffic.counters.clone();
        let number = draw.connections.len() as u64 + u64::from(life);
        let workloads = connection.make_on(&mut rng, &mut traffic.world, number, &counters, ends);
        workloads.into_iter().for_each(|workload| traffic.add(workload));
    }
    traffic.run_until(LIMIT, |traffic| {
        traffic.workloads.iter().all(|workload| workload.is_done() || workload.is_abandoned())
    });
    traffic.run_to_rest();
    traffic.check_memory();
    for workload in &traffic.workloads {
        assert_eq!(workload.expects, Expects::Success);
        assert_eq!(traffic.world.state(&workload.end), Some(QpState::Rts));
    }
}

/// Three lives of a connection.
pub(crate) const FAMILY: Family = Family {
    name: "a_qp_that_is_reset_and_connected_again_ignores_earlier_packets",
    first: 90_000,
    runs: 200,
    run,
};

#[test]
fn a_qp_that_is_reset_and_connected_again_ignores_earlier_packets() {
    FAMILY.check();
}
