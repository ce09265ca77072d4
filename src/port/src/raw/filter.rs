//! Which packets the kernel shows to a raw port: a classic BPF program.

use crate::sys::packet;
use socket2::SockFilter;
use std::net::IpAddr;
use urxe_types::{Qpn, SLOT_BITS, Slot, SlotId};
use urxe_wire::ROCE_PORT;

// Operations, put together from linux/bpf_common.h's parts.
const LOAD_WORD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
const LOAD_HALF: u16 = (libc::BPF_LD | libc::BPF_H | libc::BPF_ABS) as u16;
const LOAD_BYTE: u16 = (libc::BPF_LD | libc::BPF_B | libc::BPF_ABS) as u16;
/// A half word at the index register plus a constant.
const LOAD_HALF_AT_INDEX: u16 = (libc::BPF_LD | libc::BPF_H | libc::BPF_IND) as u16;
const LOAD_WORD_AT_INDEX: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_IND) as u16;
/// The index register becomes four times the lower half of a byte: the length of an IPv4 header.
const INDEX_BY_IPV4_LEN: u16 = (libc::BPF_LDX | libc::BPF_B | libc::BPF_MSH) as u16;
const JUMP_IF_EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
const JUMP_IF_ANY_BIT: u16 = (libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K) as u16;
const JUMP_IF_NOT_LESS: u16 = (libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K) as u16;
const AND: u16 = (libc::BPF_ALU | libc::BPF_AND | libc::BPF_K) as u16;
const SHIFT_RIGHT: u16 = (libc::BPF_ALU | libc::BPF_RSH | libc::BPF_K) as u16;
const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;

/// Pseudo offset of the IP header, whatever link header stands before it.
const IP: u32 = libc::SKF_NET_OFF as u32;
/// Pseudo offsets of what the kernel knows about a packet.
const PACKET_TYPE: u32 = (libc::SKF_AD_OFF + libc::SKF_AD_PKTTYPE) as u32;
const PROTOCOL: u32 = (libc::SKF_AD_OFF + libc::SKF_AD_PROTOCOL) as u32;
const INTERFACE: u32 = (libc::SKF_AD_OFF + libc::SKF_AD_IFINDEX) as u32;

/// Where the UDP length is, and the word with the destination QPN: from the UDP header on.
const UDP_LEN: u32 = 4;
const DEST_QP_WORD: u32 = 8 + 4;
/// UDP lengths from this on have the word.
const HAS_DEST_QP: u32 = DEST_QP_WORD + 4;

/// Lets through RoCEv2 for `addr` and a slot that came to this host over one of two interfaces.
/// What only the loopback interface has, but not of its own network, comes over any.
pub(super) fn roce_for(addr: IpAddr, interface: u32, loopback: u32, slot: Slot) -> Vec<SockFilter> {
    let mut program = Program(Vec::new());
    if interface != loopback || addr.is_loopback() {
        program.require_either(INTERFACE, interface, loopback);
    }
    program.require(LOAD_HALF, PACKET_TYPE, libc::PACKET_HOST.into());
    program.require_roce_for(addr);
    if slot != Slot::ALONE {
        program.require_slot(addr, slot);
    }
    program.end()
}

/// Lets through RoCEv2 for a multicast group that passed an interface, either way: the copies of
/// what this machine sends to itself are not shown to packet sockets, but the originals are.
/// Over the loopback interface every packet comes in, and that is where it counts.
pub(super) fn roce_for_group(group: IpAddr, interface: u32, is_loopback: bool) -> Vec<SockFilter> {
    let mut program = Program(Vec::new());
    program.require(LOAD_WORD, INTERFACE, interface);
    if is_loopback {
        let (host, multicast) = (libc::PACKET_HOST, libc::PACKET_MULTICAST);
        program.require_either(PACKET_TYPE, host.into(), multicast.into());
    } else {
        let (multicast, outgoing) = (libc::PACKET_MULTICAST, libc::PACKET_OUTGOING);
        program.require_either(PACKET_TYPE, multicast.into(), outgoing.into());
    }
    program.require_roce_for(group);
    program.end()
}

/// A program that is a chain of conditions: the first one that does not hold ends it.
struct Program(Vec<Step>);

enum Step {
    /// Goes on in any case.
    Always(SockFilter),
    /// Goes on if the comparison comes out as `wanted`; drops the packet if not.
    If { operation: u16, value: u32, wanted: bool },
}

impl Program {
    fn step(&mut self, operation: u16, offset: u32) {
        self.0.push(Step::Always(SockFilter::new(operation, 0, 0, offset)));
    }

    fn require(&mut self, load: u16, offset: u32, value: u32) {
        self.step(load, offset);
        self.0.push(Step::If { operation: JUMP_IF_EQUAL, value, wanted: true });
    }

    fn require_no_bit(&mut self, load: u16, offset: u32, bits: u32) {
        self.step(load, offset);
        self.0.push(Step::If { operation: JUMP_IF_ANY_BIT, value: bits, wanted: false });
    }

    fn require_either(&mut self, offset: u32, one: u32, other: u32) {
        self.step(LOAD_WORD, offset);
        // The first one skips the second comparison.
        self.0.push(Step::Always(SockFilter::new(JUMP_IF_EQUAL, 1, 0, one)));
        self.0.push(Step::If { operation: JUMP_IF_EQUAL, value: other, wanted: true });
    }

    /// UDP datagrams for port 4791 of a destination, none of them a fragment.
    fn require_roce_for(&mut self, dst: IpAddr) {
        self.require(LOAD_HALF, PROTOCOL, packet::protocol(dst).into());
        match dst {
            IpAddr::V4(dst) => {
                self.require(LOAD_BYTE, IP + 9, libc::IPPROTO_UDP as u32);
                self.require(LOAD_WORD, IP + 16, dst.into());
                // Neither "more fragments" nor a fragment offset.
                self.require_no_bit(LOAD_HALF, IP + 6, 0x3fff);
                self.step(INDEX_BY_IPV4_LEN, IP);
                self.require(LOAD_HALF_AT_INDEX, IP + 2, ROCE_PORT.into());
            }
            IpAddr::V6(dst) => {
                self.require(LOAD_BYTE, IP + 6, libc::IPPROTO_UDP as u32);
                for (i, word) in (0..).zip(dst.octets().chunks(4)) {
                    let word = u32::from_be_bytes([word[0], word[1], word[2], word[3]]);
                    self.require(LOAD_WORD, IP + 24 + 4 * i, word);
                }
                self.require(LOAD_HALF, IP + 42, ROCE_PORT.into());
            }
        }
    }

    /// Of RoCE for `dst`, what is for a slot: as [`SlotCount::slot_of`](urxe_types::SlotCount)
    /// says. The broker's gets what is too short to be for any, too.
    fn require_slot(&mut self, dst: IpAddr, slot: Slot) {
        // Behind `require_roce_for` the index register is the length of an IPv4 header.
        let (half, word, udp) = match dst {
            IpAddr::V4(_) => (LOAD_HALF_AT_INDEX, LOAD_WORD_AT_INDEX, IP),
            IpAddr::V6(_) => (LOAD_HALF, LOAD_WORD, IP + 40),
        };
        let mut always = |operation, on_true, on_false, value| {
            self.0.push(Step::Always(SockFilter::new(operation, on_true, on_false, value)));
        };
        let (multicast, shift) = (Qpn::MULTICAST.get(), 24 - SLOT_BITS);
        // SLOT-050
        if slot.id() == SlotId::BROKER {
            always(half, 0, 0, udp + UDP_LEN);
            always(JUMP_IF_NOT_LESS, 0, 6, HAS_DEST_QP);
            always(word, 0, 0, udp + DEST_QP_WORD);
            always(AND, 0, 0, multicast);
            always(JUMP_IF_EQUAL, 3, 0, multicast);
            always(SHIFT_RIGHT, 0, 0, shift);
            always(JUMP_IF_EQUAL, 1, 0, SlotId::BROKER.index() as u32);
            let count = slot.count().get() as u32;
            self.0.push(Step::If { operation: JUMP_IF_NOT_LESS, value: count, wanted: true });
        } else {
            always(word, 0, 0, udp + DEST_QP_WORD);
            always(AND, 0, 0, multicast);
            self.0.push(Step::If { operation: JUMP_IF_EQUAL, value: multicast, wanted: false });
            self.step(SHIFT_RIGHT, shift);
            let id = slot.id().index() as u32;
            self.0.push(Step::If { operation: JUMP_IF_EQUAL, value: id, wanted: true });
        }
    }

    /// Resolves the jumps: what passes all steps is taken whole, what does not is dropped.
    fn end(self) -> Vec<SockFilter> {
        let take = self.0.len();
        let mut program: Vec<SockFilter> = self
            .0
            .into_iter()
            .enumerate()
            .map(|(i, step)| match step {
                Step::Always(instruction) => instruction,
                Step::If { operation, value, wanted } => {
                    // Jumps count from the next instruction; "drop" is the one behind "take". The
                    // program has some thirty instructions, so a byte is enough.
                    let drop = (take + 1 - (i + 1)) as u8;
                    let (on_true, on_false) = if wanted { (0, drop) } else { (drop, 0) };
                    SockFilter::new(operation, on_true, on_false, value)
                }
            })
            .collect();
        program.push(SockFilter::new(RETURN, 0, 0, u32::MAX));
        program.push(SockFilter::new(RETURN, 0, 0, 0));
        program
    }
}
