//! Data between two daemons, over real sockets: every operation, both kinds of memory.

use crate::harness::{
    End, Kind, attrs, connected, eventually, fresh_path, pattern, start, start_with,
};
use std::net::{Ipv6Addr, UdpSocket};
use urxe_daemon::Loopback;
use urxe_port::OpenError;
use urxe_shell::testing::{could_not_run, needs_root};
use urxe_shm::control::event::{COMPLETION, EventRecord, RECORD_LEN};
use urxe_shm::ring::layout::WC_WITH_IMM;
use urxe_types::{Extra, QpAttr, QpState, SendData, SendOp, WcOpcode};
use urxe_wire::ROCE_PORT;

const MIB: usize = 1 << 20;

/// The sizes at which something changes: nothing, one packet, its end, more, and very many.
const SIZES: [usize; 8] = [0, 1, 63, 1024, 1025, 65_536, 65_537, MIB];

#[test]
fn sends_arrive_in_receives() {
    for kind in [Kind::Shared, Kind::Process] {
        let (first, second) = (start(1), start(1));
        let (mut a, mut b) = connected(&first, &second, kind, MIB);
        for (round, size) in (0..).zip(SIZES) {
            let data = pattern(size, round);
            a.mr.write(0, &data);
            b.post_recv(round, &[b.mr.sge(0, MIB)]);
            let sge = a.mr.sge(0, size);
            let sent = a.exchange(SendOp::Send(Extra::Imm(0x0102_0304)), &[sge]);
            assert_eq!(sent.opcode, WcOpcode::Send as u32);
            let received = b.cq.wait(1)[0];
            assert_eq!((received.status, received.wr_id), (0, round));
            assert_eq!((received.opcode, received.byte_len), (WcOpcode::Recv as u32, size as u32));
            assert_eq!(received.wc_flags, WC_WITH_IMM);
            assert_eq!(received.imm_or_rkey.to_ne_bytes(), [1, 2, 3, 4]);
            assert_eq!(received.qp_num, b.qp.created.qpn.get());
            assert!(b.mr.read(0, size) == data, "{kind:?}, {size} bytes");
        }
    }
}

/// TRAIN-030
#[test]
fn an_ack_that_waits_for_an_answer_leaves_without_one_too() {
    let (first, second) = (start(1), start(1));
    let (mut a, mut b) = connected(&first, &second, Kind::Shared, 4096);
    for round in 0..20u64 {
        a.mr.write(0, &round.to_ne_bytes());
        let (remote_addr, rkey) = (b.mr.addr, b.mr.rkey);
        a.exchange(SendOp::Write { remote_addr, rkey, imm: None }, &[a.mr.sge(0, 8)]);
        assert_eq!(b.mr.read(0, 8), round.to_ne_bytes());
    }
    // One daemon is told of all, of whichever slot they are.
    let held = b.client.counter("urxe0", "acks_held");
    let in_vain = b.client.counter("urxe0", "acks_held_in_vain");
    assert!(held > 0 && in_vain > 0 && in_vain <= held, "{in_vain} of {held}");
}

#[test]
fn writes_and_reads_move_the_bytes_they_name() {
    for kind in [Kind::Shared, Kind::Process] {
        let (first, second) = (start(1), start(1));
        let (mut a, b) = connected(&first, &second, kind, 3 * MIB);
        let rkey = b.mr.rkey;
        for (round, size) in (0..).zip(SIZES) {
            let data = pattern(size, round);
            a.mr.write(0, &data);
            let sge = a.mr.sge(0, size);
            let remote_addr = b.mr.addr + 5;
            let write = a.exchange(SendOp::Write { remote_addr, rkey, imm: None }, &[sge]);
            assert_eq!(write.opcode, WcOpcode::RdmaWrite as u32);
            assert!(b.mr.read(5, size) == data, "WRITE, {kind:?}, {size} bytes");

            // Scattered into three pieces on the way back.
            let at = MIB + 7;
            let third = size / 3;
            let sges = [
                a.mr.sge(at, third),
                a.mr.sge(at + third, third),
                a.mr.sge(at + 2 * third, size - 2 * third),
            ];
            let read = a.exchange(SendOp::Read { remote_addr, rkey }, &sges);
            assert_eq!((read.opcode, read.byte_len), (WcOpcode::RdmaRead as u32, size as u32));
            assert!(a.mr.read(at, size) == data, "READ, {kind:?}, {size} bytes");
        }
    }
}

/// WIRE-201, WIRE-202
#[test]
fn qps_of_one_device_reach_each_other_through_memory_unless_the_kernel_is_to_see_it() {
    for (slots, loopback, fault) in [
        (1, Loopback::Memory, None),
        (1, Loopback::Memory, Some("drop=2%,corrupt=1%,seed=7")),
        (1, Loopback::Kernel, None),
        // The second program is in the second slot.
        (2, Loopback::Memory, None),
        (2, Loopback::Kernel, None),
    ] {
        let capture = fresh_path();
        let daemon = start_with(1, |config| {
            (config.slots, config.loopback) = (slots, loopback);
            config.fault = fault.map(|spec| spec.parse().unwrap());
            config.capture = Some(capture.clone());
        });
        let (mut a, mut b) = connected(&daemon, &daemon, Kind::Shared, 2 * MIB);
        let (remote_addr, rkey) = (b.mr.addr, b.mr.rkey);
        for (round, size) in (0..).zip(SIZES) {
            let data = pattern(size, round);
            a.mr.write(0, &data);
            b.post_recv(round, &[b.mr.sge(MIB, MIB)]);
            a.exchange(SendOp::Send(Extra::None), &[a.mr.sge(0, size)]);
            assert_eq!((b.cq.wait(1)[0].status, b.mr.read(MIB, size) == data), (0, true));
            a.exchange(SendOp::Write { remote_addr, rkey, imm: None }, &[a.mr.sge(0, size)]);
            a.exchange(SendOp::Read { remote_addr, rkey }, &[a.mr.sge(MIB, size)]);
            assert!(a.mr.read(MIB, size) == data, "{loopback:?} {fault:?}, {size} bytes");
        }
        let [looped, sent, captured, dropped] =
            ["loopback_datagrams", "tx_datagrams", "captured", "fault_dropped"]
                .map(|counter| a.client.counter("urxe0", counter));
        match loopback {
            // What has to do with the broker goes through the kernel.
            Loopback::Memory => assert!(looped > 1000 && looped + 100 > sent, "{looped} of {sent}"),
            Loopback::Kernel => assert_eq!(looped, 0),
        }
        // Each is seen as it leaves and as it comes.
        assert!(captured >= 2 * looped && captured > sent, "{captured} of {sent}");
        assert_eq!(dropped > 0, fault.is_some());
        drop(daemon);
        std::fs::remove_file(&capture).unwrap();
    }
}

/// WIRE-202
#[test]
fn qps_of_two_devices_reach_each_other_through_memory_in_whichever_slots_they_are() {
    for (slots, loopback) in [(1, Loopback::Memory), (2, Loopback::Memory), (1, Loopback::Kernel)] {
        let daemon = start_with(2, |config| (config.slots, config.loopback) = (slots, loopback));
        let mut a = End::new(&daemon, 0, Kind::Shared, 2 * MIB);
        let mut b = End::new(&daemon, 1, Kind::Shared, 2 * MIB);
        a.connect(b.addr, b.qp.created.qpn);
        b.connect(a.addr, a.qp.created.qpn);
        let (remote_addr, rkey) = (b.mr.addr, b.mr.rkey);
        for (round, size) in (0..).zip(SIZES) {
            let data = pattern(size, round);
            a.mr.write(0, &data);
            a.exchange(SendOp::Write { remote_addr, rkey, imm: None }, &[a.mr.sge(0, size)]);
            assert!(b.mr.read(0, size) == data, "{slots} slots, {size} bytes");
            a.exchange(SendOp::Read { remote_addr, rkey }, &[a.mr.sge(MIB, size)]);
            assert!(a.mr.read(MIB, size) == data, "{slots} slots, {size} bytes");
        }
        // One has sent the WRITEs, the other one what was read.
        for device in ["urxe0", "urxe1"] {
            let [looped, sent] = ["loopback_datagrams", "tx_datagrams"]
                .map(|counter| a.client.counter(device, counter));
            match loopback {
                Loopback::Memory => {
                    assert!(looped > 500 && looped + 100 > sent, "{looped} of {sent}")
                }
                Loopback::Kernel => assert!(looped == 0 && sent > 500, "{sent}"),
            }
        }
    }
}

#[test]
fn a_write_with_immediate_takes_a_receive_and_tells_the_length() {
    let (first, second) = (start(1), start(1));
    let (mut a, mut b) = connected(&first, &second, Kind::Shared, 4096);
    b.post_recv(9, &[]);
    let (remote_addr, rkey) = (b.mr.addr, b.mr.rkey);
    a.mr.write(0, b"immediate");
    a.exchange(SendOp::Write { remote_addr, rkey, imm: Some(7) }, &[a.mr.sge(0, 9)]);
    let received = b.cq.wait(1)[0];
    assert_eq!(
        (received.opcode, received.byte_len, received.wr_id),
        (WcOpcode::RecvRdmaWithImm as u32, 9, 9)
    );
    assert_eq!(b.mr.read(0, 9), b"immediate");
}

#[test]
fn atomics_work_on_both_kinds_of_memory() {
    for kind in [Kind::Shared, Kind::Process] {
        let (first, second) = (start(1), start(1));
        let (mut a, b) = connected(&first, &second, kind, 4096);
        let (remote_addr, rkey) = (b.mr.addr, b.mr.rkey);
        b.mr.write(0, &40u64.to_ne_bytes());
        let result = a.mr.sge(64, 8);
        let old =
            |a: &crate::harness::End| u64::from_ne_bytes(a.mr.read(64, 8).try_into().unwrap());

        a.exchange(SendOp::FetchAdd { remote_addr, rkey, add: 2 }, &[result]);
        assert_eq!(old(&a), 40);
        a.exchange(SendOp::CompareSwap { remote_addr, rkey, compare: 42, swap: 7 }, &[result]);
        assert_eq!(old(&a), 42);
        a.exchange(SendOp::CompareSwap { remote_addr, rkey, compare: 42, swap: 8 }, &[result]);
        assert_eq!(old(&a), 7);
        assert_eq!(b.mr.read(0, 8), 7u64.to_ne_bytes());
    }
}

#[test]
fn inline_data_may_change_as_soon_as_it_is_posted() {
    let (first, second) = (start(1), start(1));
    let (mut a, mut b) = connected(&first, &second, Kind::Shared, 4096);
    for round in 0..50u8 {
        b.post_recv(u64::from(round), &[b.mr.sge(usize::from(round) * 64, 64)]);
    }
    let mut data = [0u8; 40];
    for round in 0..50u8 {
        data.fill(round);
        a.post_send(0, SendOp::Send(Extra::None), SendData::Inline(&data));
    }
    a.cq.wait(50);
    b.cq.wait(50);
    for round in 0..50u8 {
        assert_eq!(b.mr.read(usize::from(round) * 64, 40), [round; 40]);
    }
}

#[test]
fn many_messages_both_ways_at_once_arrive_in_order() {
    const COUNT: u64 = 1000;
    let (first, second) = (start(1), start(1));
    for kind in [Kind::Shared, Kind::Process] {
        let (mut a, mut b) = connected(&first, &second, kind, MIB);
        let run = |end: &mut crate::harness::End| {
            let (mut posted, mut received, mut sent, mut completed) = (0, 0, 0, 0);
            while received < COUNT || completed < COUNT {
                while posted < COUNT && posted < received + 100 {
                    let at = (posted % 100) as usize * 4096;
                    end.post_recv(posted, &[end.mr.sge(at, 4096)]);
                    posted += 1;
                }
                while sent < COUNT && sent < completed + 50 {
                    let at = 512 * 1024 + (sent % 50) as usize * 4096;
                    end.mr.write(at, &sent.to_ne_bytes());
                    let sge = end.mr.sge(at, 8 + (sent % 3000) as usize);
                    end.post_send(sent, SendOp::Send(Extra::None), SendData::Sges(&[sge]));
                    sent += 1;
                }
                for entry in end.cq.poll() {
                    assert_eq!(entry.status, 0, "{entry:?}");
                    if entry.opcode == WcOpcode::Recv as u32 {
                        assert_eq!(entry.wr_id, received);
                        let at = (received % 100) as usize * 4096;
                        assert_eq!(end.mr.read(at, 8), received.to_ne_bytes());
                        assert_eq!(u64::from(entry.byte_len), 8 + received % 3000);
                        received += 1;
                    } else {
                        assert_eq!(entry.wr_id, completed);
                        completed += 1;
                    }
                }
            }
        };
        std::thread::scope(|scope| {
            scope.spawn(|| run(&mut a));
            scope.spawn(|| run(&mut b));
        });
    }
}

#[test]
fn two_devices_of_one_daemon_and_one_device_with_itself() {
    let daemon = start(2);
    for (left, right) in [(0, 1), (0, 0)] {
        let mut a = crate::harness::End::new(&daemon, left, Kind::Shared, 4096);
        let mut b = crate::harness::End::new(&daemon, right, Kind::Process, 4096);
        a.connect(b.addr, b.qp.created.qpn);
        b.connect(a.addr, a.qp.created.qpn);
        a.mr.write(0, b"to and fro");
        b.post_recv(1, &[b.mr.sge(0, 4096)]);
        a.exchange(SendOp::Send(Extra::None), &[a.mr.sge(0, 10)]);
        assert_eq!(b.cq.wait(1)[0].byte_len, 10);
        assert_eq!(b.mr.read(0, 10), b"to and fro");
    }
}

#[test]
fn over_ipv6_as_well() {
    // Somebody else has it, or this machine has no IPv6.
    if let Err(error) = UdpSocket::bind((Ipv6Addr::LOCALHOST, ROCE_PORT)) {
        return could_not_run(&format!("UDP port {ROCE_PORT} of ::1: {error}"));
    }
    let mut config = urxe_daemon::Config::new([Ipv6Addr::LOCALHOST.into()]);
    config.socket = crate::harness::fresh_path();
    let daemon = urxe_daemon::Daemon::start(config).unwrap();
    let (mut a, mut b) = connected(&daemon, &daemon, Kind::Shared, 100_000);
    let data = pattern(100_000, 6);
    a.mr.write(0, &data);
    b.post_recv(1, &[b.mr.sge(0, 100_000)]);
    a.exchange(SendOp::Send(Extra::None), &[a.mr.sge(0, 100_000)]);
    assert_eq!(b.cq.wait(1)[0].status, 0);
    assert!(b.mr.read(0, 100_000) == data);
}

#[test]
fn an_armed_cq_gets_one_event_and_another_only_when_armed_again() {
    let (first, second) = (start(1), start(1));
    let mut a = crate::harness::End::new(&first, 0, Kind::Shared, 4096);
    let mut b = crate::harness::End::new(&second, 0, Kind::Shared, 4096);
    let (channel, pipe) = b.client.comp_channel(b.context);
    let mut cq = b.client.create_cq(b.context, 10, Some(channel));
    b.qp = b.client.create_qp(b.pd, cq.handle, crate::harness::CAPS);
    a.connect(b.addr, b.qp.created.qpn);
    b.connect(a.addr, a.qp.created.qpn);
    let event = || {
        let mut bytes = [0; RECORD_LEN];
        assert_eq!(rustix::io::read(&pipe, &mut bytes).unwrap(), RECORD_LEN);
        EventRecord::from_bytes(bytes)
    };
    for round in 0..3 {
        cq.ring.arm(false);
        for _ in 0..2 {
            b.post_recv(round, &[b.mr.sge(0, 4096)]);
            a.exchange(SendOp::Send(Extra::None), &[a.mr.sge(0, 1)]);
        }
        let record = event();
        assert_eq!((record.kind, record.user_handle), (COMPLETION, 0xc0));
        assert_eq!(record.object, u64::from(cq.handle.0));
        cq.wait(2);
    }
    assert_eq!(b.client.counter("urxe0", "completion_events"), 3);
}

#[test]
fn a_qp_that_is_reset_starts_with_empty_queues() {
    let (first, second) = (start(1), start(1));
    let (mut a, mut b) = connected(&first, &second, Kind::Shared, 4096);
    for round in 0..3 {
        // Leftovers of both kinds, which must not survive.
        b.post_recv(1000, &[b.mr.sge(0, 1)]);
        for end in [&mut a, &mut b] {
            let reset = QpAttr { state: Some(QpState::Reset), ..QpAttr::default() };
            end.client.modify(&end.qp, reset).unwrap();
            end.qp.sq.reset();
            end.qp.rq().reset();
        }
        a.connect(b.addr, b.qp.created.qpn);
        b.connect(a.addr, a.qp.created.qpn);
        b.post_recv(round, &[b.mr.sge(0, 4096)]);
        a.exchange(SendOp::Send(Extra::None), &[a.mr.sge(0, 100)]);
        let received = b.cq.wait(1)[0];
        assert_eq!((received.wr_id, received.byte_len), (round, 100));
    }
}

#[test]
fn requests_to_a_failed_qp_are_flushed_with_or_without_a_doorbell() {
    const FLUSHED: u32 = 5;
    let daemon = start(1);
    let mut a = crate::harness::End::new(&daemon, 0, Kind::Shared, 4096);
    for attr in attrs(a.addr, a.qp.created.qpn) {
        a.client.modify(&a.qp, attr).unwrap();
    }
    a.post_recv(1, &[a.mr.sge(0, 10)]);
    let failed = QpAttr { state: Some(QpState::Err), ..QpAttr::default() };
    a.client.modify(&a.qp, failed).unwrap();
    assert_eq!(a.cq.wait(1)[0].status, FLUSHED);

    // A program that knows the flags is asked to ring.
    a.qp.rq().push(2, &[]).unwrap();
    assert!(a.qp.rq().publish());
    a.client.ring(&a.qp);
    let flushed = a.cq.wait(1)[0];
    assert_eq!((flushed.wr_id, flushed.status), (2, FLUSHED));

    // The stock librxe does not, and is served all the same.
    a.qp.rq().push(3, &[]).unwrap();
    let _ = a.qp.rq().publish();
    let flushed = a.cq.wait(1)[0];
    assert_eq!((flushed.wr_id, flushed.status), (3, FLUSHED));

    a.post_send(4, SendOp::Send(Extra::None), SendData::Inline(b"too late"));
    let flushed = a.cq.wait(1)[0];
    assert_eq!((flushed.wr_id, flushed.status), (4, FLUSHED));
    eventually("the state", || (a.client.state(&a.qp) == QpState::Err).then_some(()));
}

#[test]
fn over_raw_sockets_as_well() {
    let mut config = urxe_daemon::Config::new([crate::harness::fresh_addr()]);
    config.socket = crate::harness::fresh_path();
    config.port_backend = urxe_daemon::PortBackend::Raw;
    let raw = match urxe_daemon::Daemon::start(config) {
        Err(urxe_daemon::StartError::Port(error @ OpenError::NoPrivilege)) => {
            return needs_root(&error.to_string());
        }
        started => started.unwrap(),
    };
    let udp = start(1);
    for (first, second) in [(&raw, &udp), (&udp, &raw)] {
        let (mut a, mut b) = connected(first, second, Kind::Shared, MIB);
        let data = pattern(MIB, 1);
        a.mr.write(0, &data);
        b.post_recv(1, &[b.mr.sge(0, MIB)]);
        a.exchange(SendOp::Send(Extra::None), &[a.mr.sge(0, MIB)]);
        assert_eq!(b.cq.wait(1)[0].status, 0);
        assert!(b.mr.read(0, MIB) == data);
    }
}
