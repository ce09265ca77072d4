//! Malformed and forged packets reach an engine while it works: it never panics and never hangs,
//! every packet is counted, and the connections that were not attacked neither fail nor find a
//! wrong byte.

use crate::{Draw, LIMIT, check_connected};
use urxe_engine::{Counters, PdId};
use urxe_spec_tests::rng::Rng;
use urxe_spec_tests::simulation::hostile::Forger;
use urxe_spec_tests::simulation::scenario::NetworkProfile;
use urxe_spec_tests::simulation::seeds::Family;
use urxe_spec_tests::simulation::workloads::datagram::DatagramWorkloads;
use urxe_spec_tests::simulation::workloads::rc::{Expects, RcWorkload};
use urxe_spec_tests::simulation::workloads::traffic::Traffic;
use urxe_spec_tests::simulation::world::{End, EndAttr};
use urxe_types::{PathMtu, QpState, Qpn};
use urxe_wire::Flow;

/// The attacked connection has a protection domain of its own: forged packets are accepted
/// like real ones, so its memory may change in any way that its peer may change it.
const ATTACKED_PD: PdId = PdId(7);

/// QPs without a program, in every state; packets come to them too.
fn idle_qps(traffic: &mut Traffic, node: usize) -> Vec<End> {
    let host = &mut traffic.world.nodes[node].host;
    let cq = host.add_cq(100);
    let attr = EndAttr::generous();
    let peer = traffic.workloads[1].end;
    let mut ends = Vec::new();
    for state in 0..5 {
        let world = &mut traffic.world;
        let end = world.create_qp(node, ATTACKED_PD, (cq, cq), (4, 4));
        if state >= 1 {
            world.to_init(&end, &attr);
        }
        if state >= 2 {
            world.to_rts(&end, &attr, &peer, &attr, PathMtu::Mtu1024);
        }
        match state {
            3 => world.set_state(&end, QpState::Sqd),
            4 => world.set_state(&end, QpState::Err),
            _ => {}
        }
        ends.push(end);
    }
    ends
}

/// Programs of the other transports, all of which may be attacked. Returns those on this node that
/// can be.
fn attacked_datagram_workloads(
    rng: &mut Rng,
    profile: &NetworkProfile,
    traffic: &mut Traffic,
    node: usize,
) -> Vec<Qpn> {
    let mut datagrams = DatagramWorkloads::draw(rng, &mut traffic.world, profile, ATTACKED_PD);
    datagrams.attacked = true;
    let here = datagrams.workloads.iter().filter(|workload| workload.end.node == node);
    let qpns = here.map(|workload| workload.end.qpn).chain([Qpn::MULTICAST]).collect();
    traffic.datagrams = datagrams;
    qpns
}

fn sum(counters: &Counters) -> u64 {
    counters.iter().map(|(_, value, _)| value).sum()
}

fn run(seed: u64, prints: bool) {
    let mut rng = Rng::new(seed);
    let calm = rng.percent(50);
    let profile =
        if calm { NetworkProfile::calm(&mut rng) } else { NetworkProfile::stormy(&mut rng) };
    let mut draw = Draw::new(&mut rng, profile, 3).enrich(seed);
    draw.connections[0].pd = ATTACKED_PD;
    draw.connections[0].nodes = [0, 1];
    // What adds to the shared counters needs a key of the others' protection domain.
    for style in &mut draw.connections[0].styles {
        style.mix.fetch_add = 0;
    }
    let mut traffic = draw.make(&mut rng, prints);
    for workload in &mut traffic.workloads[..2] {
        workload.expects = Expects::Anything;
    }
    let node = traffic.workloads[0].end.node;
    let mut targets: Vec<Qpn> = idle_qps(&mut traffic, node).iter().map(|end| end.qpn).collect();
    let attacked = traffic.workloads[0].end.qpn;
    targets.extend([attacked; 10]);
    targets.extend(attacked_datagram_workloads(&mut rng, &draw.profile, &mut traffic, node));
    let [here, there] = [0, 1].map(|number| traffic.world.nodes[number].addr);
    let flow = Flow {
        src: there,
        dst: here,
        src_port: 0xc000,
        traffic_class: 0,
        hop_limit: 64,
        flow_label: 0,
    };

    let mut forger = Forger::new(rng.fork());
    traffic.world.watch(node);
    for _ in 0..rng.range(1..=60) {
        traffic.run_for(rng.micros(0..=200));
        for (flow, bytes) in traffic.world.take_watched() {
            forger.see(&flow, &bytes);
        }
        for _ in 0..rng.range(1..=20) {
            let (outer, bytes) = forger.forge(&flow, &targets);
            let before = sum(traffic.world.nodes[node].device.counters());
            traffic.world.inject(node, &outer, &bytes);
            assert!(sum(traffic.world.nodes[node].device.counters()) > before, "not counted");
        }
    }
    traffic.run_until(LIMIT, |traffic| traffic.workloads[2..].iter().all(RcWorkload::is_done));
    for side in [0, 1] {
        traffic.workloads[side].stop();
        let end = traffic.workloads[side].end;
        traffic.world.set_state(&end, QpState::Err);
    }
    traffic.datagrams.end(&mut traffic.world);
    traffic.run_to_rest();
    traffic.datagrams.check_end(&traffic.world);
    traffic.check_memory();
    check_connected(&traffic, &traffic.workloads[2..]);
    for workload in &traffic.workloads[..2] {
        for progress in [&workload.send_progress, &workload.recv_progress] {
            assert_eq!(progress.ended, progress.posted, "something never completed");
        }
    }
}

/// One node of two is attacked.
pub(crate) const FAMILY: Family = Family {
    name: "forged_packets_affect_only_the_attacked_connection",
    first: 70_000,
    runs: 1_000,
    run,
};

#[test]
fn forged_packets_affect_only_the_attacked_connection() {
    FAMILY.check();
}

/// A forged SEND took a receive, so that the last SEND was refused without end. Each time was a
/// loss for its path, and each repeat put off the next packet of all others.
#[test]
fn seed_101332242_sends_that_were_refused_without_end_kept_another_qp_waiting() {
    run(101_332_242, false);
}
