//! The engine's QPs, as a program there would make them.

use crate::simulation::queues::Entry;
use crate::simulation::world::World;
use std::cell::RefCell;
use std::net::IpAddr;
use std::rc::Rc;
use urxe_conform::agent::Agent;
use urxe_conform::device::{Device, OurEnd, RemoteMemory, Setup, TheirEnd, Unavailable};
use urxe_engine::{PdId, RecvSource};
use urxe_types::{Access, AddressVector, Lkey, Psn, QpAttr, QpState, QpType, Qpn, RecvWqe, Sge};

/// The engine under test, and the program that makes its QPs.
pub struct SimDevice {
    world: Rc<RefCell<World>>,
    addr: IpAddr,
    tester: IpAddr,
    /// Where the next memory lies.
    next_addr: u64,
    /// The first PSN of the next QP.
    next_psn: u32,
}

const NODE: usize = 0;
const PD: PdId = PdId(1);
/// Places of every queue.
const PLACES: usize = 256;

impl SimDevice {
    pub(super) fn new(world: Rc<RefCell<World>>, addr: IpAddr, tester: IpAddr) -> SimDevice {
        SimDevice { world, addr, tester, next_addr: 0x10_0000, next_psn: 0x00ab_cdef }
    }

    fn access(setup: &Setup) -> Access {
        let right = |wanted: bool, right| if wanted { right } else { Access::empty() };
        Access::LOCAL_WRITE
            | right(setup.write, Access::REMOTE_WRITE)
            | right(setup.read, Access::REMOTE_READ)
            | right(setup.atomic, Access::REMOTE_ATOMIC)
            | right(setup.flush, Access::FLUSH_GLOBAL)
    }
}

impl Device for SimDevice {
    fn describe(&self) -> String {
        "the engine of urxe, in the simulated network".into()
    }

    fn addr(&self) -> IpAddr {
        self.addr
    }

    fn connect(&mut self, setup: &Setup, ours: &mut OurEnd) -> Result<TheirEnd, Unavailable> {
        let world = &mut *self.world.borrow_mut();
        let host = &mut world.nodes[NODE].host;
        let cqs = (host.add_cq(PLACES), host.add_cq(PLACES));
        let recv = RecvSource::Own(host.add_recv_queue(PLACES));
        let end = world.create_qp_of(NODE, setup.transport, PD, cqs, PLACES, recv);
        let access = SimDevice::access(setup);
        let mut register = |bytes: usize| {
            let addr = self.next_addr;
            self.next_addr += bytes.next_multiple_of(1 << 20) as u64 + (1 << 20);
            world.nodes[NODE].reg_mr(PD, addr, access, vec![0; bytes])
        };
        let memory = (setup.memory > 0).then(|| {
            let mr = register(setup.memory);
            RemoteMemory { addr: mr.addr, rkey: mr.key, len: setup.memory }
        });
        let receive_len = setup.receive_len + if setup.transport == QpType::Ud { 40 } else { 0 };
        let receives =
            (setup.receives > 0).then(|| register((setup.receives * receive_len.max(1)) as usize));
        let psn = setup.their_psn.unwrap_or(self.next_psn);
        self.next_psn = self.next_psn.wrapping_mul(5).wrapping_add(77) & 0xff_ffff;
        let connected = setup.transport != QpType::Ud;
        let reliable = setup.transport == QpType::Rc;
        world.modify(
            &end,
            &QpAttr {
                state: Some(QpState::Init),
                pkey_index: Some(0),
                port: Some(1),
                access: connected.then_some(access),
                qkey: (!connected).then_some(urxe_types::Qkey(setup.qkey)),
                ..QpAttr::default()
            },
        );
        for i in 0..setup.receives {
            let mr = receives.expect("registered above");
            let addr = mr.addr + u64::from(i * receive_len);
            let sges = vec![Sge { addr, length: receive_len, lkey: Lkey(mr.key) }];
            let wqe = RecvWqe { wr_id: i.into(), sges };
            let host = &mut world.nodes[NODE].host;
            host.learn_sink(wqe.wr_id, &wqe.sges);
            host.recv_queue(end.recv_queue).post(Entry::Good(wqe));
        }
        let av = AddressVector {
            dgid: self.tester,
            sgid_index: 0,
            traffic_class: 0,
            hop_limit: 64,
            flow_label: 0,
        };
        world.modify(
            &end,
            &QpAttr {
                state: Some(QpState::Rtr),
                av: connected.then_some(av),
                path_mtu: connected.then_some(setup.mtu),
                dest_qpn: connected.then_some(Qpn::new(ours.qpn)),
                rq_psn: connected.then_some(Psn::new(ours.psn)),
                max_dest_rd_atomic: reliable.then_some(setup.max_dest_rd_atomic.unwrap_or(16)),
                min_rnr_timer: reliable.then_some(setup.min_rnr_timer.unwrap_or(12)),
                ..QpAttr::default()
            },
        );
        world.modify(
            &end,
            &QpAttr {
                state: Some(QpState::Rts),
                sq_psn: Some(Psn::new(psn)),
                timeout: reliable.then_some(setup.timeout.unwrap_or(14)),
                retry_cnt: reliable.then_some(setup.retry_cnt.unwrap_or(7)),
                rnr_retry: reliable.then_some(setup.rnr_retry.unwrap_or(7)),
                max_rd_atomic: reliable.then_some(setup.max_rd_atomic.unwrap_or(16)),
                ..QpAttr::default()
            },
        );
        Ok(TheirEnd { qpn: end.qpn.get(), psn, memory })
    }

    fn agent(&mut self) -> Option<&mut dyn Agent> {
        None
    }

    fn end_check(&mut self) {}
}
