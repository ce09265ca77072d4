//! The order in which a program that polls its memory sees what a peer writes there.

mod script;

use script::*;
use urxe_engine::Counter;
use urxe_types::{Rkey, SendOp};
use urxe_wire::{Opcode, Syndrome};

fn write(at: u64, len: usize) -> Store {
    Store::Write { at, len }
}

fn write_only(t: &Script, psn: u32, at: u64, len: usize) -> Pkt {
    pkt(Opcode::RC_WRITE_ONLY, psn).reth(VA + at, t.key, len as u32).payload(&bytes(1, len))
}

/// A WRITE of `2 * MTU + 8` bytes.
fn write_of_three(t: &Script, psn: u32, at: u64) -> [Pkt; 3] {
    let len = 2 * MTU as u32 + 8;
    [
        pkt(Opcode::RC_WRITE_FIRST, psn).reth(VA + at, t.key, len).payload(&bytes(1, MTU)),
        pkt(Opcode::RC_WRITE_MIDDLE, psn + 1).payload(&bytes(2, MTU)),
        pkt(Opcode::RC_WRITE_LAST, psn + 2).payload(&bytes(3, 8)),
    ]
}

#[test]
fn writes_are_stored_packet_by_packet_with_a_barrier_after_each_message() {
    let mut t = Script::new();
    let mut packets = write_of_three(&t, 100, 0).to_vec();
    packets.push(write_only(&t, 103, 1024, 8));
    packets.push(write_only(&t, 104, 0, 1).ack_req());
    t.receive(&packets);
    t.expect(ack(104, 3));
    let (mtu, barrier) = (MTU as u64, Store::Barrier);
    let data = [write(0, MTU), write(mtu, MTU), write(2 * mtu, 8), barrier];
    let flags = [write(1024, 8), barrier, write(0, 1), barrier, Store::Sync];
    assert_eq!(t.program.stores, [&data[..], &flags[..]].concat());
}

#[test]
fn a_message_that_arrives_in_two_batches_has_its_barrier_where_it_ends() {
    let mut t = Script::new();
    let [first, middle, last] = write_of_three(&t, 100, 0);
    t.receive(&[first, middle]);
    t.receive(&[last]);
    let mtu = MTU as u64;
    let before = [write(0, MTU), write(mtu, MTU), Store::Sync];
    let after = [write(2 * mtu, 8), Store::Barrier, Store::Sync];
    assert_eq!(t.program.stores, [before, after].concat());
}

#[test]
fn atomics_keep_their_places_among_writes() {
    let mut t = Script::new();
    let key = t.key;
    t.receive(&[
        write_only(&t, 100, 0, 64),
        pkt(Opcode::RC_FETCH_ADD, 101).atomic(VA + 64, key, 1, 0),
        write_only(&t, 102, 0, 64),
        pkt(Opcode::RC_ATOMIC_WRITE, 103).reth(VA + 72, key, 8).payload(&[7; 8]),
        write_only(&t, 104, 0, 64).ack_req(),
    ]);
    let (data, barrier) = (write(0, 64), Store::Barrier);
    let expected = [
        data,
        barrier,
        Store::Atomic { at: 64 },
        data,
        barrier,
        Store::Atomic { at: 72 },
        data,
        barrier,
        Store::Sync,
    ];
    assert_eq!(t.program.stores, expected);
}

#[test]
fn a_receive_is_visible_before_its_completion_and_before_the_write_behind_it() {
    let mut t = Script::new();
    t.post_recv(1, &[t.sge(512, 64)]);
    t.receive(&[
        write_only(&t, 100, 0, 64),
        pkt(Opcode::RC_SEND_ONLY, 101).payload(&bytes(2, 64)),
        write_only(&t, 102, 0, 8).ack_req(),
    ]);
    let before = [write(0, 64), Store::Barrier, write(512, 64), Store::Sync];
    let after = [write(0, 8), Store::Barrier, Store::Sync];
    assert_eq!(t.program.stores, [&before[..], &after[..]].concat());
}

#[test]
fn a_write_with_immediate_ends_with_a_barrier_too() {
    let mut t = Script::new();
    t.post_recv(1, &[]);
    t.receive(&[write_of_three(&t, 100, 0)[0].clone()]);
    t.receive(&[
        pkt(Opcode::RC_WRITE_MIDDLE, 101).payload(&bytes(2, MTU)),
        pkt(Opcode::RC_WRITE_LAST_IMM, 102).imm(5).payload(&bytes(3, 8)),
    ]);
    let mtu = MTU as u64;
    let first = [write(0, MTU), Store::Sync];
    let rest = [write(mtu, MTU), write(2 * mtu, 8), Store::Barrier, Store::Sync];
    assert_eq!(t.program.stores, [&first[..], &rest[..]].concat());
}

#[test]
fn a_repeated_write_is_not_stored_again() {
    let mut t = Script::new();
    t.receive(&[write_only(&t, 100, 0, 64), write_only(&t, 101, 64, 8).ack_req()]);
    t.program.stores.clear();
    t.receive(&[write_only(&t, 100, 0, 64), write_only(&t, 101, 64, 8).ack_req()]);
    t.expect(ack(101, 2));
    assert!(t.program.stores.iter().all(|store| *store == Store::Sync), "{:?}", t.program.stores);
}

#[test]
fn the_answer_to_a_read_is_visible_before_its_completion() {
    let mut t = Script::new();
    let remote = SendOp::Read { rkey: Rkey(9), remote_addr: 0 };
    t.post(1, remote, &[t.sge(128, 32)]);
    t.expect(pkt(Opcode::RC_READ_REQUEST, 200).reth(0, 9, 32).ack_req());
    t.receive(&[pkt(Opcode::RC_READ_RESPONSE_ONLY, 200)
        .aeth(Syndrome::ACK, 1)
        .payload(&bytes(1, 32))]);
    assert_eq!(t.program.stores, [write(128, 32), Store::Sync]);
}

fn read(t: &Script, psn: u32, len: u32) -> Pkt {
    pkt(Opcode::RC_READ_REQUEST, psn).reth(VA, t.key, len)
}

fn answer(psn: u32, msn: u32, data: &[u8]) -> Pkt {
    pkt(Opcode::RC_READ_RESPONSE_ONLY, psn).aeth(Syndrome::ACK, msn).payload(data)
}

#[test]
fn a_read_does_not_see_what_a_later_request_stores() {
    let mut t = Script::new();
    let key = t.key;
    t.fill(0, &[1; 8]);
    t.receive(&[
        read(&t, 100, 8),
        pkt(Opcode::RC_WRITE_ONLY, 101).reth(VA + 4, key, 8).payload(&[2; 8]),
        read(&t, 102, 12),
        pkt(Opcode::RC_ATOMIC_WRITE, 103).reth(VA, key, 8).payload(&[3; 8]),
    ]);
    t.expect(answer(100, 1, &[1; 8]));
    t.expect(answer(102, 3, &[1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 2, 2]));
    t.expect(pkt(Opcode::RC_READ_RESPONSE_ONLY, 103).aeth(Syndrome::ACK, 4));
    t.receive(&[
        read(&t, 104, 8),
        pkt(Opcode::RC_FETCH_ADD, 105).atomic(VA, key, 1, 0),
        read(&t, 106, 1),
    ]);
    t.expect(answer(104, 5, &[3; 8]));
    let original = u64::from_ne_bytes([3; 8]);
    t.expect(pkt(Opcode::RC_ATOMIC_ACK, 105).aeth(Syndrome::ACK, 6).original(original));
    t.expect(answer(106, 7, &[(original + 1).to_ne_bytes()[0]]));
}

#[test]
fn a_read_of_several_packets_is_kept_as_a_whole() {
    let mut t = Script::new();
    let key = t.key;
    let before = t.memory(0, 2 * MTU + 5).to_vec();
    t.receive(&[
        read(&t, 100, 2 * MTU as u32 + 5),
        pkt(Opcode::RC_WRITE_ONLY, 103).reth(VA + 2 * MTU as u64, key, 1).payload(&[!before[512]]),
        pkt(Opcode::RC_WRITE_ONLY, 104).reth(VA, key, 1).payload(&[!before[0]]),
    ]);
    let sent = t.sent();
    let data: Vec<u8> = sent.iter().flat_map(|packet| packet.payload.clone()).collect();
    assert_eq!((sent.len(), data), (3, before));
}

#[test]
fn a_read_that_is_repeated_sees_what_is_there_by_then() {
    let mut t = Script::new();
    let key = t.key;
    t.fill(0, &[1; 8]);
    let write = pkt(Opcode::RC_WRITE_ONLY, 101).reth(VA, key, 8).payload(&[2; 8]);
    t.receive(&[read(&t, 100, 8), write]);
    t.expect(answer(100, 1, &[1; 8]));
    t.receive(&[read(&t, 100, 8)]);
    t.expect(answer(100, 2, &[2; 8]));
}

#[test]
fn a_read_too_long_to_be_kept_is_counted() {
    let mut t = Script::new();
    let key = t.key;
    let len = 20 << 10;
    let psn = 100 + len / MTU as u32;
    t.receive(&[
        read(&t, 100, len),
        pkt(Opcode::RC_WRITE_ONLY, psn).reth(VA + 5, key, 1).payload(&[7]),
    ]);
    assert_eq!(t.counted(Counter::ReadsOvertaken), 1);
    assert_eq!(t.sent()[0].payload[5], 7);
}
