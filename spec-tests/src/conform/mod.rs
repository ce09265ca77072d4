//! Our own engine as a device under test: in the simulated network, in virtual time.

mod agent;
mod cm;
mod names;

pub use agent::SimAgent;

use self::cm::{Programs, SERVICES};
use crate::simulation::world::{NodeConfig, World};
use std::cell::RefCell;
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::rc::Rc;
use std::time::Instant;
use urxe_conform::device::AgentDevice;
use urxe_conform::link;
use urxe_port::sim::{Link, SimPort};
use urxe_port::{Port, RxBatch, SendOutcome};
use urxe_wire::batch::TxBatch;
use urxe_wire::{Flow, Outer};

/// The device's address.
const DEVICE: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));
/// The tester's address.
const TESTER: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2));

/// The engine under test, by a program on it.
pub type SimDevice = AgentDevice<SimAgent>;

/// The tester's end of the simulated network.
pub struct SimLink {
    world: Rc<RefCell<World>>,
    programs: Rc<RefCell<Programs>>,
    port: SimPort,
    tx: TxBatch,
    rx: RxBatch,
}

/// An engine and a tester on a network whose links are like `link`.
pub fn laboratory(seed: u64, link: Link) -> (SimLink, SimDevice) {
    let mut world = World::new(seed, link, &[NodeConfig::plain(DEVICE)], false);
    let port = world.network.attach(TESTER).expect("two addresses");
    let programs = Rc::new(RefCell::new(Programs::new(&mut world, seed)));
    let world = Rc::new(RefCell::new(world));
    let tx = TxBatch::new(port.caps().tx_limits, 1 << 20);
    let agent = SimAgent::new(Rc::clone(&world), Rc::clone(&programs), DEVICE);
    let device = AgentDevice::new(agent, DEVICE).expect("the simulated program answers");
    let device = device.with_services(SERVICES);
    (SimLink { world, programs, port, tx, rx: RxBatch::new(1) }, device)
}

impl link::Link for SimLink {
    fn local(&self) -> IpAddr {
        TESTER
    }

    fn now(&self) -> Instant {
        self.world.borrow().now()
    }

    fn send(&mut self, datagrams: &[(Flow, Vec<u8>, u32)]) -> io::Result<()> {
        link::push_damaged(&mut self.tx, datagrams);
        let outcome = self.port.send(self.world.borrow().now(), &mut self.tx)?;
        assert_eq!(outcome, SendOutcome::Done, "a simulated port takes everything");
        Ok(())
    }

    fn receive(&mut self, until: Instant) -> io::Result<Option<(Outer, Vec<u8>)>> {
        loop {
            if let Some((outer, bytes)) = self.rx.next_datagram() {
                return Ok(Some((*outer, bytes.to_vec())));
            }
            // What the device has to send is under way before time passes.
            self.programs.borrow_mut().process(&mut self.world.borrow_mut());
            self.world.borrow_mut().transmit();
            let now = self.world.borrow().now();
            if self.port.recv(now, &mut self.rx)? > 0 {
                continue;
            }
            if now >= until {
                return Ok(None);
            }
            let timers = [self.port.poll_timeout(), self.programs.borrow().timeout()];
            let next = timers.into_iter().flatten().min().map_or(until, |next| next.min(until));
            self.world.borrow_mut().step(next);
        }
    }

    fn unique(&self) -> u32 {
        self.world.borrow().elapsed().as_micros() as u32
    }

    fn sees_headers(&self) -> bool {
        true
    }
}
