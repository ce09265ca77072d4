//! Programs on the simulated device that connect, and wait to be connected to, by its connection
//! manager.

use crate::simulation::host::RECV_WR_ID;
use crate::simulation::queues::Entry;
use crate::simulation::world::{End, World, everything};
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::Instant;
use urxe_cm::{
    Accept, Config, ConnId, Connect, ConnectError, Event, Listen, ListenOn, ListenerId, Manager,
    Qp, Service, SidrAnswer, Timing,
};
use urxe_conform::device::{REJECTION, Services};
use urxe_engine::limits::MAX_RD_ATOMIC;
use urxe_engine::{CqId, PdId};
use urxe_types::{PathMtu, Qkey, QpAttr, QpState, QpType, RecvWqe};
use urxe_wire::mad::{PortSpace, SidrStatus};

/// The ports that they listen at.
pub(super) const SERVICES: Services = Services {
    accepts: Some(7471),
    rejects: Some(7472),
    hesitates: Some(7473),
    datagrams: Some(7474),
};

const NODE: usize = 0;
const PD: PdId = PdId(1);
const CQ_PLACES: usize = 256;
/// Receives of these programs, whose numbers the host wants to differ from all others.
const RECEIVES: u64 = RECV_WR_ID | 1 << 40;

/// The connection manager, and the programs.
pub(super) struct Programs {
    manager: Manager,
    accepts: ListenerId,
    rejects: ListenerId,
    cqs: (CqId, CqId),
    ends: BTreeMap<ConnId, End>,
    /// Who is not to go on with its connection.
    closed: BTreeSet<ConnId>,
    /// The QP for datagrams.
    datagrams: End,
}

impl Programs {
    pub(super) fn new(world: &mut World, seed: u64) -> Programs {
        let mut manager = Manager::new(Config {
            guid: 1,
            seed,
            active_mtu: PathMtu::Mtu4096,
            max_rd_atomic: MAX_RD_ATOMIC,
            timing: Timing::default(),
        });
        let mut listen = |space, port: Option<u16>, service| {
            let port = port.expect("there are all of them");
            let listen = Listen { space, port, on: ListenOn::Any, service, backlog: 16 };
            manager.listen(world.now(), &listen).expect("the port is free")
        };
        let connected = Service::Connected(QpType::Rc);
        let accepts = listen(PortSpace::Tcp, SERVICES.accepts, connected);
        let rejects = listen(PortSpace::Tcp, SERVICES.rejects, connected);
        listen(PortSpace::Tcp, SERVICES.hesitates, connected);
        listen(PortSpace::Udp, SERVICES.datagrams, Service::Datagrams);
        let host = &mut world.nodes[NODE].host;
        let cqs = (host.add_cq(CQ_PLACES), host.add_cq(CQ_PLACES));
        let datagrams = world.create_qp(NODE, PD, cqs, (1, 1));
        let (ends, closed) = (BTreeMap::new(), BTreeSet::new());
        Programs { manager, accepts, rejects, cqs, ends, closed, datagrams }
    }

    /// When something is to be done.
    pub(super) fn timeout(&self) -> Option<Instant> {
        self.manager.poll_timeout()
    }

    /// Handles what has come, and sends what is to be sent.
    pub(super) fn process(&mut self, world: &mut World) {
        let now = world.now();
        for (from, mad) in std::mem::take(&mut world.nodes[NODE].host.mads) {
            self.manager.handle_mad(now, &from, &mad);
        }
        self.manager.handle_timeout(now);
        while let Some(event) = self.manager.poll_event() {
            self.on_event(world, event);
        }
        let device = &mut world.nodes[NODE].device;
        while let Some(out) = self.manager.poll_mad() {
            let av = out.path.address_vector(device.gids()).expect("it is our own address");
            device.send_mad(&av, out.qpn, &out.mad).expect("the path leads somewhere");
        }
    }

    fn on_event(&mut self, world: &mut World, event: Event) {
        let now = world.now();
        // What a peer has ended meanwhile is no error.
        match event {
            Event::ConnectRequest { listener, conn, .. } => {
                self.manager.take_request(conn);
                if listener == self.accepts {
                    self.accept(world, conn);
                } else if listener == self.rejects {
                    let _ = self.manager.reject(now, conn, REJECTION);
                }
            }
            Event::ConnectResponse { conn, .. } => {
                let Some(&end) = self.ends.get(&conn) else { return };
                self.set_qp(world, conn, &end);
                let _ = self.manager.establish(now, conn, b"");
                if self.closed.contains(&conn) {
                    let _ = self.manager.disconnect(now, conn, b"");
                }
            }
            Event::SidrRequest { conn, .. } => {
                self.manager.take_request(conn);
                let answer = SidrAnswer {
                    status: SidrStatus::Valid,
                    qpn: self.datagrams.qpn,
                    qkey: Qkey(0x0123_4567),
                    private_data: b"",
                };
                let _ = self.manager.answer(now, conn, &answer);
            }
            Event::Disconnected { conn, .. }
            | Event::Rejected { conn, .. }
            | Event::Unreachable { conn } => self.forget(world, conn),
            Event::Established { .. } | Event::TimewaitExit { .. } | Event::SidrReply { .. } => {}
        }
    }

    fn forget(&mut self, world: &mut World, conn: ConnId) {
        if let Some(end) = self.ends.remove(&conn) {
            world.destroy_qp(&end);
        }
    }

    fn accept(&mut self, world: &mut World, conn: ConnId) {
        let end = self.create_qp(world);
        self.ends.insert(conn, end);
        self.set_qp(world, conn, &end);
        let accept = Accept { qp: qp(&end), private_data: b"welcome" };
        let _ = self.manager.accept(world.now(), conn, &accept);
    }

    /// Connects to a port.
    pub(super) fn connect(
        &mut self,
        world: &mut World,
        to: SocketAddr,
    ) -> Result<ConnId, ConnectError> {
        let end = self.create_qp(world);
        let connect = Connect {
            qp_type: QpType::Rc,
            space: PortSpace::Tcp,
            src: SocketAddr::new(world.nodes[NODE].addr, 40_000),
            dst: to,
            traffic_class: 0,
            path_mtu: PathMtu::Mtu1024,
            qp: qp(&end),
            retry_count: 7,
            ack_timeout: None,
            private_data: b"hello",
        };
        let conn = self.manager.connect(world.now(), &connect)?;
        self.ends.insert(conn, end);
        Ok(conn)
    }

    /// Ends a connection, or what is to become one.
    pub(super) fn close(&mut self, world: &mut World, conn: ConnId) {
        self.closed.insert(conn);
        let _ = self.manager.disconnect(world.now(), conn, b"");
        self.process(world);
    }

    fn create_qp(&mut self, world: &mut World) -> End {
        let end = world.create_qp(NODE, PD, self.cqs, (1, 1));
        let init = QpAttr {
            state: Some(QpState::Init),
            pkey_index: Some(0),
            port: Some(1),
            access: Some(everything()),
            ..QpAttr::default()
        };
        world.modify(&end, &init);
        let receive = RecvWqe { wr_id: RECEIVES | u64::from(end.qpn.get()), sges: Vec::new() };
        world.nodes[NODE].host.recv_queue(end.recv_queue).post(Entry::Good(receive));
        end
    }

    fn set_qp(&mut self, world: &mut World, conn: ConnId, end: &End) {
        for state in [QpState::Rtr, QpState::Rts] {
            if let Some(attr) = self.manager.qp_attr(conn, state, 0) {
                world.modify(end, &attr);
            }
        }
    }
}

fn qp(end: &End) -> Qp {
    Qp {
        qpn: end.qpn,
        responder_resources: 1,
        initiator_depth: 1,
        flow_control: false,
        rnr_retry_count: 7,
        srq: false,
    }
}
