//! What kernel rxe put on the wire, read and written again.
//!
//! The captures and how they were made: `interop/captures/README.md`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::path::{Path, PathBuf};
use urxe_port::capture::{self, Content};
use urxe_types::{PathMtu, Qkey, Qpn};
use urxe_wire::icrc::{self, Checker, Verdict};
use urxe_wire::mad::{self, IpCmHeader, Mad, Message, PortSpace, Reason};
use urxe_wire::{Body, Datagram, Deth, Flow, Ident, Opcode, Outer, Packet};

/// File, RoCE packets in it, other frames in it.
const CAPTURES: [(&str, usize, usize); 33] = [
    ("6.1/cm-rdma_client.pcap", 10, 0),
    ("6.1/cm-reject-no-listener.pcap", 2, 0),
    ("6.1/cm-rejected-by-urxe.pcap", 2, 0),
    ("6.1/cm-rping-kernel-asks-v6.pcap", 21, 0),
    ("6.1/cm-rping-urxe-asks.pcap", 17, 0),
    ("6.1/cm-rping-v6-refused.pcap", 2, 0),
    ("6.1/cm-rping-v6.pcap", 41, 0),
    ("6.1/cm-rping.pcap", 41, 0),
    ("6.1/cm-sidr-udaddy.pcap", 6, 0),
    ("6.1/cm-sidr-udaddy-kernel-asks.pcap", 4, 0),
    ("6.1/cm-sidr-udaddy-urxe-asks-v6.pcap", 4, 0),
    ("6.1/cm-ucmatose.pcap", 26, 0),
    ("6.1/cm-ucmatose-v6.pcap", 13, 0),
    ("6.1/loss-10pct-rc.pcap", 110, 0),
    ("6.1/mcast-mckey.pcap", 3, 7),
    ("6.1/perftest-atomic-lat.pcap", 10, 0),
    ("6.1/userspace-peer.pcap", 13, 0),
    ("6.1/vectors-err-v4.pcap", 16, 0),
    ("6.1/vectors-err-v6.pcap", 16, 0),
    ("6.1/vectors-rc-v4-mtu4096.pcap", 124, 0),
    ("6.1/vectors-rc-v4-tclass0x69.pcap", 158, 0),
    ("6.1/vectors-rc-v4.pcap", 158, 0),
    ("6.1/vectors-rc-v6-tclass0x69.pcap", 158, 0),
    ("6.1/vectors-uc-v4.pcap", 66, 0),
    ("6.1/vectors-ud-v4.pcap", 10, 0),
    ("6.1/vectors-ud-v6.pcap", 10, 0),
    ("6.12/atomic-write-v4.pcap", 40, 0),
    ("6.12/cm-rping.pcap", 41, 0),
    ("6.12/cm-sidr-udaddy.pcap", 6, 0),
    ("6.12/send-invalidate-v4.pcap", 3, 0),
    ("6.12/vectors-err-v4.pcap", 17, 0),
    ("6.12/vectors-rc-v4.pcap", 158, 0),
    ("6.12/vectors-ud-v4.pcap", 10, 0),
];

fn captures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../interop/captures")
}

/// A RoCE packet with all that a raw socket would show of it.
struct Captured {
    flow: Flow,
    /// `None` on IPv6.
    ident: Option<(u16, u16)>,
    udp_payload: Vec<u8>,
}

/// All RoCE packets of a file, and how many other frames there are.
fn read(file: &str) -> (Vec<Captured>, usize) {
    let (mut packets, mut others) = (Vec::new(), 0);
    let result =
        capture::read(File::open(captures().join(file)).unwrap(), |frame| match frame.content {
            Content::Roce { outer: Outer { flow, ident }, bytes } => {
                let ident = match ident {
                    Ident::Known { ident, fragment } if flow.src.is_ipv4() => {
                        Some((ident, fragment))
                    }
                    _ => None,
                };
                packets.push(Captured { flow, ident, udp_payload: bytes.to_vec() });
            }
            Content::Other => others += 1,
            Content::Unusable(why) => panic!("{file}: frame {}: {why}", frame.number),
        });
    result.unwrap_or_else(|error| panic!("{file}: {error}"));
    (packets, others)
}

/// Runs `check` on every packet, and tells where it failed if it does.
fn for_each_packet(mut check: impl FnMut(&Captured) -> Result<(), String>) {
    for (file, _, _) in CAPTURES {
        for (i, captured) in read(file).0.iter().enumerate() {
            if let Err(what) = check(captured) {
                panic!("{file}: RoCE packet {i}: {what}");
            }
        }
    }
}

#[test]
fn every_file_is_here_and_whole() {
    let mut expected = BTreeSet::new();
    for (file, packets, others) in CAPTURES {
        let (found, found_others) = read(file);
        assert_eq!((found.len(), found_others), (packets, others), "{file}");
        expected.insert(captures().join(file));
    }
    let mut found = BTreeSet::new();
    for kernel in ["6.1", "6.12"] {
        for entry in std::fs::read_dir(captures().join(kernel)).unwrap() {
            found.insert(entry.unwrap().path());
        }
    }
    assert_eq!(found, expected, "a capture that no test reads");
}

#[test]
fn icrcs_are_right_where_the_identification_is_seen() {
    let mut checker = Checker::new();
    for_each_packet(|captured| {
        let (ident, fragment) = captured.ident.unwrap_or_default();
        let outer = Outer { flow: captured.flow, ident: Ident::Known { ident, fragment } };
        match checker.check(&outer, &captured.udp_payload) {
            Verdict::Exact => Ok(()),
            verdict => Err(format!("{verdict:?}")),
        }
    });
}

#[test]
fn identifications_are_recovered_where_they_are_hidden() {
    let mut checker = Checker::new();
    let mut recovered = 0;
    for_each_packet(|captured| {
        let outer = Outer { flow: captured.flow, ident: Ident::Hidden { guess: 0 } };
        let verdict = checker.check(&outer, &captured.udp_payload);
        match captured.ident {
            None | Some((0, _)) if verdict == Verdict::Exact => Ok(()),
            Some((ident, _)) if verdict == (Verdict::Recovered { ident }) => {
                recovered += 1;
                Ok(())
            }
            ident => Err(format!("{verdict:?}, but the identification is {ident:04x?}")),
        }
    });
    assert!(recovered > 900, "only {recovered}");
}

#[test]
fn packets_are_rebuilt_byte_for_byte() {
    for_each_packet(|captured| {
        let original = &captured.udp_payload;
        let packet = Packet::parse(original).map_err(|error| error.to_string())?;
        let (ident, _) = captured.ident.unwrap_or_default();

        let icrc_at = original.len() - icrc::LEN;
        let payload_at = packet.headers.len();
        let pad_at = payload_at + packet.payload.len();
        let mut rebuilt = vec![0xa5; original.len()];
        packet.headers.emit(&mut rebuilt);
        rebuilt[payload_at..pad_at].copy_from_slice(packet.payload);
        rebuilt[pad_at..icrc_at].fill(0);
        icrc::stamp(&captured.flow, ident, &mut rebuilt);
        if rebuilt == *original { Ok(()) } else { Err(format!("became {}", packet.headers)) }
    });
}

#[test]
fn the_captures_hold_every_opcode_but_four() {
    let mut missing: Vec<Opcode> = Opcode::ALL.to_vec();
    for_each_packet(|captured| {
        let opcode = Packet::parse(&captured.udp_payload).unwrap().headers.body.opcode();
        missing.retain(|other| *other != opcode);
        Ok(())
    });
    let never_sent =
        [Opcode::RC_SEND_LAST_INV, Opcode::RC_FLUSH, Opcode::CNP, Opcode::URXE_SELECTIVE_ACK];
    assert_eq!(missing, never_sent);
}

/// Every management datagram in the captures, with its packet.
fn for_each_mad(mut check: impl FnMut(&Captured, &[u8; mad::MAD_LEN], &Mad) -> Result<(), String>) {
    for_each_packet(|captured| {
        let packet = Packet::parse(&captured.udp_payload).map_err(|error| error.to_string())?;
        if packet.headers.bth.dest_qp != Qpn::GSI {
            return Ok(());
        }
        let Body::Ud(Datagram { deth, .. }) = packet.headers.body else {
            return Err(packet.headers.to_string());
        };
        assert_eq!(deth, GSI);
        let bytes = packet.payload.try_into().map_err(|_| "not 256 bytes".to_owned())?;
        let mad = Mad::parse(bytes).map_err(|error| error.to_string())?;
        check(captured, bytes, &mad)
    });
}

const GSI: Deth = Deth { qkey: Qkey::GSI, src_qp: Qpn::GSI };

#[test]
fn management_datagrams_are_rebuilt_byte_for_byte() {
    let mut count = BTreeMap::new();
    for_each_mad(|_, bytes, mad| {
        *count.entry(mad.message.name()).or_insert(0) += 1;
        if mad.bytes() == *bytes { Ok(()) } else { Err(format!("became {mad}")) }
    });
    let expected = [
        ("DREP", 9),
        ("DREQ", 10),
        ("REJ", 3),
        ("REP", 9),
        ("REQ", 12),
        ("RTU", 9),
        ("SIDR REP", 4),
        ("SIDR REQ", 4),
    ];
    assert_eq!(count, expected.into());
}

#[test]
fn requests_of_kernel_rxe() {
    for_each_mad(|captured, _, mad| {
        let flow = captured.flow;
        let (header, service) = match &mad.message {
            Message::Req(req) => {
                assert_eq!((req.primary.local_gid, req.primary.remote_gid), (flow.src, flow.dst));
                assert_eq!((req.max_cm_retries, req.remote_response_timeout.code()), (15, 20));
                let kernel_612 = 17;
                let kernel_61 = 19;
                assert!([kernel_612, kernel_61].contains(&req.primary.local_ack_timeout.code()));
                assert_eq!(
                    (req.alternate, req.pkey.0, req.path_mtu),
                    (None, 0xffff, Some(PathMtu::Mtu1024))
                );
                // How the kernel chooses the flow label, and with it the UDP source port.
                let header = IpCmHeader::parse(req.private_data.first_chunk().unwrap()).unwrap();
                let Some((_, port)) = req.service_id.port() else { panic!() };
                let label = (u32::from(header.src_port) * 31 + u32::from(port)) & 0xf_ffff;
                assert_eq!(req.primary.flow_label, label);
                (header, (req.service_id, PortSpace::Tcp))
            }
            Message::SidrReq(req) => {
                let header = IpCmHeader::parse(req.private_data.first_chunk().unwrap()).unwrap();
                (header, (req.service_id, PortSpace::Udp))
            }
            Message::Rej(rej) => {
                assert!(matches!(rej.reason, Reason::InvalidServiceId | Reason::Consumer));
                return Ok(());
            }
            _ => return Ok(()),
        };
        assert_eq!((header.src, header.dst), (flow.src, flow.dst));
        assert_eq!(service.0.port().map(|(space, _)| space), Some(service.1));
        Ok(())
    });
}

#[test]
fn requests_begin_at_the_psn_that_the_peer_of_a_connection_has_named() {
    let mut begun = 0;
    for (file, _, _) in CAPTURES {
        let mut told = BTreeMap::new();
        for captured in read(file).0 {
            let packet = Packet::parse(&captured.udp_payload).unwrap();
            let bth = &packet.headers.bth;
            let from = captured.flow.src;
            match packet.payload.try_into().map(Mad::parse) {
                Ok(Ok(Mad { message: Message::Req(req), .. })) => {
                    told.insert((from, req.local_qpn), req.starting_psn);
                }
                Ok(Ok(Mad { message: Message::Rep(rep), .. })) => {
                    told.insert((from, rep.local_qpn), rep.starting_psn);
                }
                _ if !packet.headers.body.is_request() => {}
                _ => {
                    if let Some(psn) = told.remove(&(captured.flow.dst, bth.dest_qp)) {
                        assert_eq!(bth.psn, psn, "{file}: requests to {}", bth.dest_qp);
                        begun += 1;
                    }
                }
            }
        }
    }
    assert!(begun > 10, "only {begun}");
}
