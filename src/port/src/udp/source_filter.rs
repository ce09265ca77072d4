//! Which sources the kernel is to drop packets of before a socket has them: a classic BPF program.
//! What it drops is paid for by who brings it, on this machine the sender itself.

use crate::packet_source::{PacketSource, Receivers};
use libc::{BPF_ABS, BPF_ALU, BPF_AND, BPF_H, BPF_JEQ, BPF_JMP, BPF_K, BPF_LD, BPF_RET, BPF_W};
use socket2::SockFilter;
use std::net::IpAddr;
use urxe_types::Qpn;

/// Pseudo offset of the IP header. Other offsets count from the UDP header.
const IP: u32 = libc::SKF_NET_OFF as u32;
const UDP_SOURCE_PORT: u32 = 0;
/// The word of the BTH that ends with the destination QPN.
const DEST_QP_WORD: u32 = 8 + 4;

/// Where an IP header has the source address.
const IPV4_SOURCE: u32 = 12;
const IPV6_SOURCE: u32 = 8;

/// Lets through all but what comes from these, to a socket of this address's family. What is too
/// short to have a QPN does not come from there either.
pub(super) fn all_but(sources: &[PacketSource], family: IpAddr) -> Vec<SockFilter> {
    let mut program = Vec::new();
    for PacketSource { from, to } in sources.iter().filter(|s| s.from.is_ipv4() == family.is_ipv4())
    {
        let port = (BPF_H, UDP_SOURCE_PORT, u32::from(from.port()));
        let addr: Vec<_> = match from.ip() {
            IpAddr::V4(addr) => vec![(BPF_W, IP + IPV4_SOURCE, addr.into())],
            IpAddr::V6(addr) => (0..4)
                .map(|i| {
                    let word = (addr.to_bits() >> (96 - 32 * i)) as u32;
                    (BPF_W, IP + IPV6_SOURCE + 4 * i, word)
                })
                .collect(),
        };
        // Two steps for each that is compared, three for the QPN, and one that drops the packet.
        let mut left = 2 * (1 + addr.len()) as u8 + 3 + 1;
        for (size, offset, value) in [port].into_iter().chain(addr) {
            left -= 2;
            program.push(step(BPF_LD | size | BPF_ABS, offset));
            // Where it differs, on to what is behind this source.
            program.push(jump_if_equal(value, 0, left));
        }
        program.push(step(BPF_LD | BPF_W | BPF_ABS, DEST_QP_WORD));
        program.push(step(BPF_ALU | BPF_AND | BPF_K, Qpn::MULTICAST.get()));
        program.push(match to {
            Receivers::Only(qpn) => jump_if_equal(qpn.get(), 0, 1),
            Receivers::AllBut(qpn) => jump_if_equal(qpn.get(), 1, 0),
        });
        program.push(step(BPF_RET | BPF_K, 0));
    }
    program.push(step(BPF_RET | BPF_K, u32::MAX));
    program
}

fn step(operation: u32, value: u32) -> SockFilter {
    SockFilter::new(operation as u16, 0, 0, value)
}

/// Skips so many steps if what was loaded last is this value, and so many if not.
fn jump_if_equal(value: u32, if_equal: u8, if_not: u8) -> SockFilter {
    SockFilter::new((BPF_JMP | BPF_JEQ | BPF_K) as u16, if_equal, if_not, value)
}
