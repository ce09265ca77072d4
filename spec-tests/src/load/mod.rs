//! Many engines under load on one simulated network: how much arrives, when, and at what cost.
//!
//! It is made for speed: a machine does something only when something has arrived for it or its
//! timer has run out, and there is no memory. What the bytes must be is not its business; see
//! [`crate::simulation`].

pub mod flow;
pub mod host;
pub mod machine;

use crate::load::flow::{Flow, FlowSpec, Operation};
use crate::load::host::Progress;
use crate::load::machine::{Endpoint, Machine};
use crate::simulation::world::{EndAttr, NodeConfig, everything};
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::{Duration, Instant};
use urxe_engine::{Counter, CqId, MrSpec, PdId, QpInit, QueueId, RecvSource, RegionId, ShareId};
use urxe_port::RxBatch;
use urxe_port::sim::{Link, SimNetwork};
use urxe_types::{Access, Lkey, PathMtu, Psn, QpType, Qpn, Rkey, Sge, WcStatus};

const PD: PdId = PdId(1);
const CQ: CqId = CqId(1);

/// Steps that may happen at one time.
const MAX_STEPS_AT_ONCE: usize = 1_000_000;

/// Machines, their programs, and the network between them.
pub struct Load {
    pub network: SimNetwork,
    pub flows: Vec<Flow>,
    start: Instant,
    now: Instant,
    engines: Vec<Machine>,
    /// What else is at the ends of the network.
    others: Vec<Box<dyn Endpoint>>,
    addrs: Vec<IpAddr>,
    by_addr: BTreeMap<IpAddr, usize>,
    /// The next timer of each endpoint; the engines come first.
    timers: Vec<Option<Instant>>,
    due: BTreeSet<(Instant, usize)>,
    /// What the programs and the machines do by themselves, and when.
    plan: BTreeMap<(Duration, usize), Planned>,
    /// How many there were.
    planned: usize,
    /// Steps since time went on.
    steps_now: usize,
    rx: RxBatch,
}

/// What happens at its time.
#[derive(Clone, Copy, Debug)]
enum Planned {
    /// A program begins.
    Start(usize),
    /// A machine is busy with something else.
    Busy(usize, Duration),
}

/// Memory that was registered.
#[derive(Clone, Copy, Debug)]
struct Registered {
    region: RegionId,
    key: u32,
}

impl Load {
    /// These machines, on a network in which every link is like `link`; all chance follows from
    /// `seed`.
    pub fn new(seed: u64, link: Link, nodes: &[NodeConfig]) -> Load {
        // The one look at the clock: where virtual time begins means nothing.
        let start = Instant::now();
        let network = SimNetwork::new(seed, link);
        let machine = |config: &NodeConfig| {
            let port = network.attach(config.addr).expect("every machine has its own address");
            Machine::new(config, port, start)
        };
        let engines: Vec<_> = nodes.iter().map(machine).collect();
        let addrs: Vec<_> = nodes.iter().map(|config| config.addr).collect();
        Load {
            network,
            flows: Vec::new(),
            start,
            now: start,
            timers: vec![None; engines.len()],
            engines,
            others: Vec::new(),
            by_addr: addrs.iter().copied().zip(0..).collect(),
            addrs,
            due: BTreeSet::new(),
            plan: BTreeMap::new(),
            planned: 0,
            steps_now: 0,
            rx: RxBatch::new(4),
        }
    }

    /// The time.
    pub fn now(&self) -> Instant {
        self.now
    }

    /// How long it runs already.
    pub fn elapsed(&self) -> Duration {
        self.now - self.start
    }

    /// The address of a node.
    pub fn addr(&self, node: usize) -> IpAddr {
        self.addrs[node]
    }

    /// An engine.
    pub fn engine(&self, node: usize) -> &Machine {
        &self.engines[node]
    }

    /// Makes a connection with a program that uses it; its number. `access` of the memory is its
    /// own: nothing else is written there.
    pub fn add_flow(&mut self, spec: FlowSpec, attr: &EndAttr, mtu: PathMtu) -> usize {
        let local = self.register(spec.from, spec.len, Access::LOCAL_WRITE);
        let remote = self.register(spec.to, spec.len, everything());
        self.connect(spec, attr, mtu, local, remote)
    }

    /// Makes so many connections that share their memory.
    pub fn add_flows(&mut self, count: usize, spec: FlowSpec, attr: &EndAttr, mtu: PathMtu) {
        let local = self.register(spec.from, spec.len, Access::LOCAL_WRITE);
        let remote = self.register(spec.to, spec.len, everything());
        for _ in 0..count {
            self.connect(spec, attr, mtu, local, remote);
        }
    }

    fn register(&mut self, node: usize, len: usize, access: Access) -> Registered {
        let Machine { device, host, .. } = &mut self.engines[node];
        let region = host.add_region();
        let spec = MrSpec { pd: PD, addr: 0, length: len as u64, access, region };
        let key = device.reg_mr(spec).expect("the memory can be registered").lkey.0;
        Registered { region, key }
    }

    fn connect(
        &mut self,
        spec: FlowSpec,
        attr: &EndAttr,
        mtu: PathMtu,
        local: Registered,
        remote: Registered,
    ) -> usize {
        let number = self.flows.len();
        let sge = |of: Registered| Sge { addr: 0, length: spec.len as u32, lkey: Lkey(of.key) };
        let ends = [(spec.from, local), (spec.to, remote)]
            .map(|(node, memory)| self.create_qp(node, spec.program, sge(memory)));
        let psn = |n: u32| Psn::new((number as u32).wrapping_mul(0x9e37).wrapping_add(n));
        let attrs = [0, 1].map(|n| EndAttr { sq_psn: psn(n), ..attr.clone() });
        for (side, node) in [spec.from, spec.to].into_iter().enumerate() {
            let dgid = self.addrs[[spec.to, spec.from][side]];
            let (own, peer) = (&attrs[side], &attrs[1 - side]);
            let steps = [own.init(), own.rtr(dgid, ends[1 - side].0, peer, mtu), own.rts()];
            let Machine { device, host, .. } = &mut self.engines[node];
            for step in &steps {
                let qpn = ends[side].0;
                device.modify_qp(self.now, host, qpn, step).expect("a change that is allowed");
            }
        }
        let sink = match spec.operation {
            Operation::Read => (spec.from, local.region),
            Operation::Write | Operation::Send => (spec.to, remote.region),
        };
        let flow = Flow::new(spec, ends[0], (0, Rkey(remote.key)), sge(local), sink);
        self.flows.push(flow);
        self.plan(spec.start, Planned::Start(number));
        number
    }

    fn create_qp(&mut self, node: usize, program: u64, sge: Sge) -> (Qpn, QueueId) {
        let Machine { device, host, .. } = &mut self.engines[node];
        let send_queue = host.add_send_queue();
        let recv = RecvSource::Own(host.add_recv_queue(sge));
        let init = QpInit {
            qp_type: QpType::Rc,
            pd: PD,
            send_cq: CQ,
            recv_cq: CQ,
            send_queue,
            recv,
            share: ShareId(program),
        };
        (device.create_qp(init).expect("there is room for a QP"), send_queue)
    }

    /// Adds something that is no engine, at an address of its own; its number among these.
    pub fn add_endpoint(&mut self, addr: IpAddr, endpoint: Box<dyn Endpoint>) -> usize {
        let number = self.others.len();
        let index = self.engines.len() + number;
        self.by_addr.insert(addr, index);
        self.timers.push(None);
        self.others.push(endpoint);
        self.list_timer(index);
        number
    }

    /// Something that is no engine.
    pub fn endpoint(&self, number: usize) -> &dyn Endpoint {
        &*self.others[number]
    }

    /// From `at` on, a machine does nothing for a while.
    pub fn add_stall(&mut self, node: usize, at: Duration, during: Duration) {
        self.plan(at, Planned::Busy(node, during));
    }

    fn plan(&mut self, at: Duration, planned: Planned) {
        self.plan.insert((at, self.planned), planned);
        self.planned += 1;
    }

    /// Lets time pass, for so long.
    pub fn run_for(&mut self, time: Duration) {
        let until = self.now + time;
        while self.step(until) {}
        self.now = until;
    }

    /// Lets time pass until all flows with an end have ended or failed, but no longer than that.
    pub fn run_to_end(&mut self, limit: Duration) {
        let until = self.now + limit;
        let mut running: Vec<usize> = (0..self.flows.len()).collect();
        loop {
            running.retain(|flow| !(self.flows[*flow].is_done() || self.flows[*flow].failed));
            let Some(first) = running.first() else { break };
            // What is looked at often is one flow.
            while !(self.flows[*first].is_done() || self.flows[*first].failed) {
                if !self.step(until) {
                    self.now = until;
                    return;
                }
            }
        }
    }

    /// Goes to the next event; `false`: there is none until then.
    fn step(&mut self, until: Instant) -> bool {
        let planned = self.plan.first_key_value().map(|((at, _), _)| self.start + *at);
        let timer = self.due.first().map(|(at, _)| *at);
        let next = [planned, timer, self.network.next_event()].into_iter().flatten().min();
        let Some(next) = next.filter(|next| *next <= until) else { return false };
        self.steps_now = if next > self.now { 0 } else { self.steps_now + 1 };
        assert!(self.steps_now < MAX_STEPS_AT_ONCE, "time stands still: a timer is due for ever");
        self.now = self.now.max(next);
        while let Some(((at, order), planned)) = self.plan.first_key_value().map(|(k, v)| (*k, *v))
            && self.start + at <= self.now
        {
            self.plan.remove(&(at, order));
            self.execute(planned);
        }
        while let Some((addr, _)) = self.network.take_arrival(self.now) {
            self.turn(self.by_addr[&addr]);
        }
        while let Some(&(_, index)) = self.due.first().filter(|(at, _)| *at <= self.now) {
            self.turn(index);
        }
        true
    }

    fn execute(&mut self, planned: Planned) {
        match planned {
            Planned::Start(number) => {
                let (node, region) = self.flows[number].sink;
                let host = &mut self.engines[node].host;
                host.now = self.now;
                host.await_writes(region);
                let from = self.flows[number].spec.from;
                self.post(number);
                self.engines[from].transmit(self.now);
                self.list_timer(from);
            }
            Planned::Busy(node, during) => {
                self.engines[node].busy_until = self.now + during;
                // It looks around as soon as it is free.
                self.list_timer_at(node, Some(self.now + during));
            }
        }
    }

    /// An endpoint takes in what has arrived, and does what follows.
    fn turn(&mut self, index: usize) {
        match index.checked_sub(self.engines.len()) {
            Some(other) => self.others[other].turn(self.now, &mut self.rx),
            None => {
                if self.now < self.engines[index].busy_until {
                    return self.list_timer_at(index, Some(self.engines[index].busy_until));
                }
                self.engines[index].turn(self.now, &mut self.rx);
                self.poll_completions(index);
            }
        }
        self.list_timer(index);
    }

    fn poll_completions(&mut self, node: usize) {
        loop {
            let mut posted = false;
            for completion in self.engines[node].host.take_completed() {
                let number = completion.wr_id as usize;
                let success = completion.status == WcStatus::Success;
                self.flows[number].on_completion(self.now, success);
                posted |= self.post(number);
            }
            if !posted {
                break;
            }
            self.engines[node].transmit(self.now);
        }
    }

    /// A program posts what it can; whether that was anything.
    fn post(&mut self, number: usize) -> bool {
        let flow = &mut self.flows[number];
        let Machine { device, host, .. } = &mut self.engines[flow.spec.from];
        let mut posted = false;
        while let Some(wqe) = flow.next(self.now, number as u64) {
            host.post(flow.queue, wqe);
            posted = true;
        }
        if posted {
            device.ring_doorbell(flow.qpn);
        }
        posted
    }

    fn list_timer(&mut self, index: usize) {
        let next = match index.checked_sub(self.engines.len()) {
            Some(other) => self.others[other].next_timer(),
            None => self.engines[index].next_timer(),
        };
        self.list_timer_at(index, next);
    }

    fn list_timer_at(&mut self, index: usize, at: Option<Instant>) {
        if self.timers[index] != at {
            if let Some(before) = self.timers[index] {
                self.due.remove(&(before, index));
            }
            self.due.extend(at.map(|at| (at, index)));
            self.timers[index] = at;
        }
    }

    /// What has arrived of a flow.
    pub fn progress(&self, flow: usize) -> Progress {
        let (node, region) = self.flows[flow].sink;
        self.engines[node].host.written(region)
    }

    /// Bytes that have arrived of each flow.
    pub fn arrived(&self) -> Vec<u64> {
        (0..self.flows.len()).map(|flow| self.progress(flow).bytes).collect()
    }

    /// A counter, of all engines together.
    pub fn count(&self, counter: Counter) -> u64 {
        self.engines.iter().map(|machine| machine.device.counters().get(counter)).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use urxe_port::sim::{Queue, QueueId};
    use urxe_port::{Chance, Impairment};

    const MS: Duration = Duration::from_millis(1);

    fn spec(count: Option<u64>) -> FlowSpec {
        let start = Duration::ZERO;
        FlowSpec {
            from: 0,
            to: 1,
            operation: Operation::Write,
            len: 4096,
            depth: 8,
            count,
            start,
            program: 0,
        }
    }

    /// Two machines, losses and a slow line between them.
    fn load() -> Load {
        let configs = [1, 2].map(|host| NodeConfig::plain(IpAddr::from([10, 0, 0, host])));
        let impairment = Impairment { drop: Chance::percent(1.0), ..Impairment::default() };
        let load = Load::new(5, Link { impairment, ..Link::default() }, &configs);
        let downlink = QueueId::Downlink(load.addr(1));
        load.network.set_queue(downlink, Queue::taildrop(1_000_000_000, 200_000));
        load
    }

    /// A flow of so many messages to its end.
    fn run(count: u64) -> Load {
        let mut load = load();
        load.add_flow(spec(Some(count)), &EndAttr::generous(), PathMtu::Mtu1024);
        load.run_to_end(1000 * MS);
        load
    }

    #[test]
    fn a_flow_ends_when_its_last_message_has_completed() {
        let load = run(100);
        let flow = &load.flows[0];
        assert!(flow.is_done() && !flow.failed);
        assert_eq!(flow.latencies.len(), 100);
        assert_eq!(flow.ended, Some(load.now()));
        assert!(load.progress(0).bytes >= 100 * 4096);
        assert!(load.elapsed() >= 3 * MS, "400 KB at 1 Gbit/s: {:?}", load.elapsed());
    }

    #[test]
    fn the_same_seed_gives_the_same_run() {
        let (one, other) = (run(300), run(300));
        assert_eq!(one.elapsed(), other.elapsed());
        assert_eq!(one.flows[0].latencies, other.flows[0].latencies);
        assert_eq!(one.network.counters(), other.network.counters());
    }

    #[test]
    fn a_machine_that_is_busy_receives_nothing_until_it_is_free_again() {
        let mut load = load();
        load.add_flow(spec(None), &EndAttr::generous(), PathMtu::Mtu1024);
        load.add_stall(1, 10 * MS, 5 * MS);
        load.run_for(10 * MS);
        let before = load.progress(0).bytes;
        assert!(before > 0);
        load.run_for(4 * MS);
        assert_eq!(load.progress(0).bytes, before);
        load.run_for(2 * MS);
        assert!(load.progress(0).bytes > before);
        assert!(load.progress(0).longest_gap(load.now()) >= 5 * MS);
    }

    #[test]
    fn a_flow_begins_at_its_time() {
        let mut load = load();
        let start = 3 * MS;
        let late = FlowSpec { start, ..spec(Some(1)) };
        load.add_flow(late, &EndAttr::generous(), PathMtu::Mtu1024);
        load.run_for(2 * MS);
        assert_eq!(load.arrived(), [0]);
        load.run_to_end(100 * MS);
        assert!(load.flows[0].is_done() && load.elapsed() >= start);
        assert!(load.progress(0).longest_gap(load.now()) < start, "counted from its begin");
    }
}
