//! Packets that nobody should send reach an engine while it works: it never panics and never
//! hangs, every packet is counted, and the connections that were not attacked neither fail nor
//! find a wrong byte.

use crate::{Draw, LIMIT, check_connected};
use urxe_engine::{Counters, PdId, QpState};
use urxe_spec_tests::hostile::Forger;
use urxe_spec_tests::messenger::Messengers;
use urxe_spec_tests::party::{Expects, Party};
use urxe_spec_tests::rng::Rng;
use urxe_spec_tests::scene::Weather;
use urxe_spec_tests::seeds::for_each_seed;
use urxe_spec_tests::traffic::Traffic;
use urxe_spec_tests::world::{End, EndAttr};
use urxe_wire::{Flow, PathMtu, Qpn};

/// The attacked connection has a protection domain of its own: forged packets are as good as real
/// ones, so whatever it lets its peer do is lost.
const ATTACKED_PD: PdId = PdId(7);

/// QPs without a program, in every state; packets come to them too.
fn idle_qps(traffic: &mut Traffic, node: usize) -> Vec<End> {
    let host = &mut traffic.world.nodes[node].host;
    let cq = host.add_cq(100);
    let attr = EndAttr::generous();
    let peer = traffic.parties[1].end;
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

/// Programs of the other transports, all of which may be deceived. Returns who on this node can be
/// told something.
fn attacked_messengers(
    rng: &mut Rng,
    weather: &Weather,
    traffic: &mut Traffic,
    node: usize,
) -> Vec<Qpn> {
    let mut messengers = Messengers::draw(rng, &mut traffic.world, weather, ATTACKED_PD);
    messengers.attacked = true;
    let here = messengers.messengers.iter().filter(|messenger| messenger.end.node == node);
    let qpns = here.map(|messenger| messenger.end.qpn).chain([Qpn::MULTICAST]).collect();
    traffic.messengers = messengers;
    qpns
}

fn sum(counters: &Counters) -> u64 {
    counters.iter().map(|(_, value, _)| value).sum()
}

fn run(seed: u64, prints: bool) {
    let mut rng = Rng::new(seed);
    let calm = rng.percent(50);
    let weather = if calm { Weather::calm(&mut rng) } else { Weather::stormy(&mut rng) };
    let mut draw = Draw::new(&mut rng, weather, 3).enrich(seed);
    draw.connections[0].pd = ATTACKED_PD;
    draw.connections[0].nodes = [0, 1];
    // What adds to the shared counters needs a key of the others' protection domain.
    for style in &mut draw.connections[0].styles {
        style.mix.fetch_add = 0;
    }
    let mut traffic = draw.make(&mut rng, prints);
    for party in &mut traffic.parties[..2] {
        party.expects = Expects::Anything;
    }
    let node = traffic.parties[0].end.node;
    let mut targets: Vec<Qpn> = idle_qps(&mut traffic, node).iter().map(|end| end.qpn).collect();
    let attacked = traffic.parties[0].end.qpn;
    targets.extend([attacked; 10]);
    targets.extend(attacked_messengers(&mut rng, &draw.weather, &mut traffic, node));
    let [here, there] = [0, 1].map(|number| traffic.world.nodes[number].addr);
    let flow =
        Flow { src: there, dst: here, src_port: 0xc000, tclass: 0, hop_limit: 64, flow_label: 0 };

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
    traffic.run_until(LIMIT, |traffic| traffic.parties[2..].iter().all(Party::is_done));
    for side in [0, 1] {
        traffic.parties[side].stop();
        let end = traffic.parties[side].end;
        traffic.world.set_state(&end, QpState::Err);
    }
    traffic.messengers.end(&mut traffic.world);
    traffic.run_to_rest();
    traffic.messengers.check_end(&traffic.world);
    traffic.check_memory();
    check_connected(&traffic, &traffic.parties[2..]);
    for party in &traffic.parties[..2] {
        for progress in [&party.send_progress, &party.recv_progress] {
            assert_eq!(progress.ended, progress.posted, "something never completed");
        }
    }
}

#[test]
fn forged_packets_harm_nobody_else() {
    for_each_seed("forged_packets_harm_nobody_else", 70_000, 1_000, run);
}
