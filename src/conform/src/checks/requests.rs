//! Requests that many checks begin with. All ask for an acknowledgement, and are of path MTU 1024.

use crate::packet::{Packet, message, packet, send_message, write_message};
use crate::script::Script;
use urxe_types::PathMtu;
use urxe_wire::Opcode;

/// Bytes of a full packet.
pub(super) const MTU: usize = 1024;

/// A WRITE of one packet.
pub(super) fn write_only(t: &Script<'_>, psn: i32, offset: u64, data: &[u8]) -> Packet {
    let len = data.len() as u32;
    packet(Opcode::RC_WRITE_ONLY)
        .at(psn)
        .reth(t.addr(offset), t.rkey(), len)
        .payload(data)
        .ack_req()
}

/// A WRITE of one packet that asks for no acknowledgement.
pub(super) fn silent_write(t: &Script<'_>, psn: i32, offset: u64, data: &[u8]) -> Packet {
    Packet { ack_req: false, ..write_only(t, psn, offset, data) }
}

/// The packets of a WRITE.
pub(super) fn writes(t: &Script<'_>, psn: i32, offset: u64, data: &[u8]) -> Vec<Packet> {
    write_message(psn, t.addr(offset), t.rkey(), data, PathMtu::Mtu1024)
}

/// The packets of a WRITE that takes a receive.
pub(super) fn writes_with_imm(t: &Script<'_>, psn: i32, data: &[u8]) -> Vec<Packet> {
    use Opcode::{RC_WRITE_FIRST, RC_WRITE_LAST_IMM, RC_WRITE_MIDDLE, RC_WRITE_ONLY_IMM};
    let opcodes = [RC_WRITE_FIRST, RC_WRITE_MIDDLE, RC_WRITE_LAST_IMM, RC_WRITE_ONLY_IMM];
    let (addr, rkey, len) = (t.addr(0), t.rkey(), data.len() as u32);
    let mut packets =
        message(opcodes, psn, data, PathMtu::Mtu1024, |first| first.reth(addr, rkey, len));
    if let Some(last) = packets.pop() {
        packets.push(last.imm(0x1234_5678));
    }
    packets
}

/// A SEND of one packet.
pub(super) fn send_only(psn: i32, data: &[u8]) -> Packet {
    packet(Opcode::RC_SEND_ONLY).at(psn).payload(data).ack_req()
}

/// The packets of a SEND.
pub(super) fn sends(psn: i32, data: &[u8]) -> Vec<Packet> {
    send_message(psn, data, PathMtu::Mtu1024)
}

/// A READ.
pub(super) fn read(t: &Script<'_>, psn: i32, offset: u64, len: usize) -> Packet {
    packet(Opcode::RC_READ_REQUEST).at(psn).reth(t.addr(offset), t.rkey(), len as u32)
}

/// Adds to eight bytes.
pub(super) fn fetch_add(t: &Script<'_>, psn: i32, offset: u64, add: u64) -> Packet {
    packet(Opcode::RC_FETCH_ADD).at(psn).atomic(t.addr(offset), t.rkey(), add, 0)
}

/// Swaps eight bytes if they are as expected.
pub(super) fn compare_swap(
    t: &Script<'_>,
    psn: i32,
    offset: u64,
    compare: u64,
    swap: u64,
) -> Packet {
    packet(Opcode::RC_COMPARE_SWAP).at(psn).atomic(t.addr(offset), t.rkey(), swap, compare)
}
