//! Which sources the kernel is to drop packets of before a socket has them: a classic BPF program.
//! What it drops is paid for by who brings it, on this machine the sender itself.

use libc::{BPF_ABS, BPF_H, BPF_JEQ, BPF_JMP, BPF_K, BPF_LD, BPF_RET, BPF_W};
use socket2::SockFilter;
use std::net::{IpAddr, SocketAddr};

/// Pseudo offset of the IP header. Other offsets count from the UDP header.
const IP: u32 = libc::SKF_NET_OFF as u32;
const UDP_SOURCE_PORT: u32 = 0;

/// Where an IP header has the source address.
const IPV4_SOURCE: u32 = 12;
const IPV6_SOURCE: u32 = 8;

/// Lets through all but what comes from these, to a socket of this address's family.
pub(super) fn all_but(sources: &[SocketAddr], family: IpAddr) -> Vec<SockFilter> {
    let mut program = Vec::new();
    for source in sources.iter().filter(|source| source.is_ipv4() == family.is_ipv4()) {
        let port = (BPF_H, UDP_SOURCE_PORT, u32::from(source.port()));
        let addr: Vec<_> = match source.ip() {
            IpAddr::V4(addr) => vec![(BPF_W, IP + IPV4_SOURCE, addr.into())],
            IpAddr::V6(addr) => (0..4)
                .map(|i| {
                    let word = (addr.to_bits() >> (96 - 32 * i)) as u32;
                    (BPF_W, IP + IPV6_SOURCE + 4 * i, word)
                })
                .collect(),
        };
        // Two steps for each that is compared, and one that drops the packet.
        let mut left = 2 * (1 + addr.len()) as u8 + 1;
        for (size, offset, value) in [port].into_iter().chain(addr) {
            left -= 2;
            program.push(step(BPF_LD | size | BPF_ABS, 0, offset));
            // Where it differs, on to what is behind this source.
            program.push(step(BPF_JMP | BPF_JEQ | BPF_K, left, value));
        }
        program.push(step(BPF_RET | BPF_K, 0, 0));
    }
    program.push(step(BPF_RET | BPF_K, 0, u32::MAX));
    program
}

fn step(operation: u32, skip_if_not: u8, value: u32) -> SockFilter {
    SockFilter::new(operation as u16, 0, skip_if_not, value)
}
