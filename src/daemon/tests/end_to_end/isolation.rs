//! Programs do not harm each other: not by dying, not by scribbling over what they share with the
//! daemon.

use crate::harness::{
    CAPS, Client, End, Kind, Random, Running, attrs, connected, datagram_attrs, eventually,
    fresh_addr, fresh_path, start, start_with, unreliable_attrs,
};
use rustix::fs::MemfdFlags;
use rustix::process::geteuid;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsFd;
use std::process::{Command, Stdio};
use urxe_shell::testing::{alone, needs_root};
use urxe_shm::control::event::{CQ_ERR, EventRecord, QP_FATAL, RECORD_LEN};
use urxe_shm::control::{Backing, Reply, Request, WhyCopied};
use urxe_shm::memory::region::{Mapping, create_memfd};
use urxe_types::{
    Access, Extra, FlushPlacement, FlushSelectivity, MwType, QpAttr, QpState, QpType, Rkey,
    SendData, SendOp, SendWr,
};

/// Offsets into a ring's header.
const PRODUCER: u64 = 128;
const CONSUMER: u64 = 256;
const FIRST_ELEMENT: u64 = 384;

const FLUSHED: u32 = 5;

const MIB: usize = 1 << 20;

/// Two ends that show that others are served.
struct Witness(End, End);

impl Witness {
    fn new(first: &urxe_daemon::Handle, second: &urxe_daemon::Handle) -> Witness {
        let (a, b) = connected(first, second, Kind::Shared, 100_000);
        Witness(a, b)
    }

    fn is_served(&mut self) {
        let Witness(a, b) = self;
        for _ in 0..3 {
            b.post_recv(5, &[b.mr.sge(0, 100_000)]);
            a.exchange(SendOp::Send(Extra::None), &[a.mr.sge(0, 100_000)]);
            assert_eq!(b.cq.wait(1)[0].status, 0);
        }
    }
}

/// How often a memfd of this name is mapped in this process, which the daemons are part of.
fn mappings(name: &str) -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines().filter(|line| line.contains(name)).count()
}

#[test]
fn death_frees_what_the_program_owned_and_nothing_else() {
    let (first, second) = (start(1), start(1));
    let mut witness = Witness::new(&first, &second);
    let name = "dies-with-its-program";
    let memfd = create_memfd(name, 1 << 20).unwrap();
    let before = mappings(name);
    let mut observer = Client::connect(first.socket());
    let qps_before = observer.stats("urxe0").qps.len();

    let mut dying: Vec<End> = (0..5).map(|_| End::new(&first, 0, Kind::Process, 4096)).collect();
    for end in &mut dying {
        for _ in 0..20 {
            end.client.create_qp(end.pd, end.cq.handle, CAPS);
        }
        let request = Request::RegMr {
            pd: end.pd,
            addr: 0,
            length: 1 << 20,
            iova: 0,
            access: crate::harness::ALL,
            backing: Backing::Shared { offset: 0 },
        };
        end.client.call_with(&request, &[memfd.as_fd()]).unwrap();
    }
    assert_eq!(mappings(name), before + 5);
    assert_eq!(observer.stats("urxe0").qps.len(), qps_before + 5 * 21);
    witness.is_served();

    drop(dying);
    eventually("the QPs are gone", || {
        (observer.stats("urxe0").qps.len() == qps_before).then_some(())
    });
    eventually("the mappings are gone", || (mappings(name) == before).then_some(()));
    assert_eq!(observer.counter("urxe0", "sessions_closed"), 5);
    witness.is_served();
}

/// Set for the child of the next test: where it is to connect.
const SOCKET: &str = "URXE_TEST_SOCKET";

/// No test of its own: what the next one starts in another process and kills.
#[test]
fn as_a_program_that_is_killed() {
    let Some(socket) = std::env::var_os(SOCKET) else { return };
    let end = |device| End::at(socket.as_ref(), device, Kind::Process, MIB);
    let (mut a, mut b) = (end("urxe0"), end("urxe1"));
    a.connect(b.addr, b.qp.created.qpn);
    b.connect(a.addr, a.qp.created.qpn);
    let (remote_addr, rkey) = (b.mr.addr, b.mr.rkey);
    let mut completed = 0;
    for wr_id in 0.. {
        let write = SendOp::Write { remote_addr, rkey, imm: None };
        let sge = a.mr.sge(0, MIB);
        a.post_send(wr_id, write, SendData::Sges(&[sge]));
        while completed + 10 < wr_id {
            completed += a.cq.poll().len() as u64;
        }
        if wr_id == 30 {
            writeln!(std::io::stdout(), "in the middle of it").unwrap();
        }
    }
}

#[test]
fn a_killed_program_is_buried_while_its_packets_are_still_flying() {
    let daemon = start(2);
    let mut witness = Witness::new(&daemon, &daemon);
    let mut observer = Client::connect(daemon.socket());
    let qps_before = observer.stats("urxe0").qps.len();
    for _ in 0..3 {
        let mut child = alone("isolation::as_a_program_that_is_killed")
            .env(SOCKET, daemon.socket())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert!(lines.map_while(Result::ok).any(|line| line.contains("in the middle of it")));
        witness.is_served();
        child.kill().unwrap();
        child.wait().unwrap();
        witness.is_served();
        eventually("its QPs are gone", || {
            (observer.stats("urxe0").qps.len() == qps_before).then_some(())
        });
    }
    witness.is_served();
}

/// As beside the containers of a pod: the daemon cannot see the programs' processes.
#[test]
fn programs_in_another_pid_namespace_are_served() {
    if !geteuid().is_root() {
        return needs_root("only root may make a pid namespace");
    }
    let socket = fresh_path();
    let mut command = Command::new("unshare");
    command.args(["--pid", "--fork", "--kill-child", env!("CARGO_BIN_EXE_urxed")]);
    command.args(["--addr", &fresh_addr().to_string(), "--ready-fd", "1", "--socket"]);
    let mut daemon = Running::start(command.arg(&socket).stdout(Stdio::piped()));
    let mut line = String::new();
    BufReader::new(daemon.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    if line.is_empty() {
        return needs_root("unshare cannot make a pid namespace");
    }
    for kind in [Kind::Shared, Kind::Process] {
        let end = || End::at(&socket, "urxe0", kind, MIB);
        let (mut a, mut b) = (end(), end());
        a.connect(b.addr, b.qp.created.qpn);
        b.connect(a.addr, a.qp.created.qpn);
        let (remote_addr, rkey) = (b.mr.addr, b.mr.rkey);
        let write = SendOp::Write { remote_addr, rkey, imm: None };
        let sge = a.mr.sge(0, MIB);
        a.post_send(1, write, SendData::Sges(&[sge]));
        assert_eq!(a.cq.wait(1)[0].status, 0);
    }
    let _ = std::fs::remove_file(socket);
}

#[test]
fn death_in_the_middle_of_traffic_hurts_only_the_peer() {
    let (first, second) = (start(1), start(1));
    let mut witness = Witness::new(&first, &second);
    for kind in [Kind::Shared, Kind::Process] {
        for round in 0..10u64 {
            let (mut a, mut b) = connected(&first, &second, kind, MIB);
            for end in [&mut a, &mut b] {
                for _ in 0..10 {
                    end.post_recv(1, &[end.mr.sge(0, 1 << 20)]);
                    let sge = end.mr.sge(0, 1 << 20);
                    end.post_send(2, SendOp::Send(Extra::None), SendData::Sges(&[sge]));
                }
            }
            let mut random = Random::new(round);
            for _ in 0..random.below(200) {
                std::thread::yield_now();
            }
            // The survivor's completions are its own affair; the daemons' is to live.
            if random.next() & 1 == 0 {
                drop(a)
            } else {
                drop(b)
            }
            witness.is_served();
        }
    }
}

#[test]
fn a_program_that_dies_in_the_middle_of_any_operation_harms_no_other() {
    let (first, second) = (start(1), start(1));
    let mut witness = Witness::new(&first, &second);
    for round in 0..20u64 {
        let mut random = Random::new(round);
        let qp_type = [QpType::Rc, QpType::Uc, QpType::Ud][random.below(3) as usize];
        let kind = if random.below(2) == 0 { Kind::Shared } else { Kind::Process };
        let [mut a, mut b] = [&first, &second]
            .map(|daemon| End::of_type(daemon.socket(), "urxe0", qp_type, kind, MIB));
        let addresses = [(b.addr, b.qp.created.qpn), (a.addr, a.qp.created.qpn)];
        for (end, (peer, qpn)) in [&mut a, &mut b].into_iter().zip(addresses) {
            let way = match qp_type {
                QpType::Rc => attrs(peer, qpn),
                QpType::Uc => unreliable_attrs(peer, qpn),
                QpType::Ud => datagram_attrs(),
            };
            way.into_iter().for_each(|attr| end.client.modify(&end.qp, attr).unwrap());
        }
        let to = b.destination();
        let (_, window) = a.client.alloc_mw(a.pd, MwType::Two);
        for wr_id in 0..100 {
            b.post_recv(wr_id, &[b.mr.sge(0, MIB)]);
            let (remote_addr, rkey) = (b.mr.addr, b.mr.rkey);
            let sge = a.mr.sge(0, if wr_id % 5 == 0 { 8 } else { 4096 });
            let mr = a.mr.lkey;
            let op = match wr_id % 6 {
                _ if qp_type == QpType::Ud => {
                    a.post_datagram(wr_id, to, SendData::Sges(&[a.mr.sge(0, 4096)]));
                    continue;
                }
                1 => SendOp::AtomicWrite { remote_addr, rkey },
                2 => SendOp::Flush {
                    remote_addr,
                    rkey,
                    length: 8,
                    placement: FlushPlacement::GLOBAL,
                    selectivity: FlushSelectivity::Range,
                },
                3 => SendOp::BindMw {
                    mw: window,
                    new_rkey: Rkey(window.0 ^ 1),
                    mr,
                    addr: a.mr.addr,
                    length: 8,
                    access: Access::REMOTE_WRITE,
                },
                4 => SendOp::Write { remote_addr, rkey, imm: Some(1) },
                _ => SendOp::Send(Extra::None),
            };
            // Some of these fail the QP, which is as good a moment to die as any.
            a.post_send(wr_id, op, SendData::Sges(&[sge]));
        }
        for _ in 0..random.below(200) {
            std::thread::yield_now();
        }
        match random.below(3) {
            0 => drop(a),
            1 => drop(b),
            _ => drop((a, b)),
        }
        witness.is_served();
    }
}

#[test]
fn memory_that_is_unmapped_fails_the_qp_that_uses_it() {
    let (first, second) = (start(1), start(1));
    let mut witness = Witness::new(&first, &second);
    let (mut a, mut b) = connected(&first, &second, Kind::Shared, 4096);
    // Its pages go away, while its addresses stay taken: this process is all programs at once.
    let page = urxe_shm::memory::region::page_size();
    let memfd = rustix::fs::memfd_create("gone", MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&memfd, page as u64).unwrap();
    let mapping = Mapping::new(&memfd, 0, page).unwrap();
    let addr = mapping.base().addr().get() as u64;
    let request = Request::RegMr {
        pd: b.pd,
        addr,
        length: page as u64,
        iova: addr,
        access: crate::harness::ALL,
        backing: Backing::Process { why: WhyCopied::NotAsked },
    };
    let Ok(Reply::Mr { rkey, .. }) = b.client.call(request) else { panic!() };
    rustix::fs::ftruncate(&memfd, 0).unwrap();

    let sges = [a.mr.sge(0, 64)];
    let read = SendOp::Read { remote_addr: addr, rkey };
    a.post_send(1, read, SendData::Sges(&sges));
    const REMOTE_ACCESS: u32 = 10;
    assert_eq!(a.cq.wait(1)[0].status, REMOTE_ACCESS);
    assert!(b.client.counter("urxe0", "memory_faults") > 0);
    assert_eq!(b.client.state(&b.qp), QpState::Err);
    witness.is_served();
}

#[test]
fn nonsense_indices_break_one_queue_and_are_counted() {
    let (first, second) = (start(1), start(1));
    let mut witness = Witness::new(&first, &second);
    for (round, nonsense) in (1..).zip([128u32, 1 << 20, u32::MAX, 1 << 31]) {
        let (mut a, b) = connected(&first, &second, Kind::Shared, 4096);
        // A neighbour in the same program, with the same CQ.
        let neighbour = a.client.create_qp(a.pd, a.cq.handle, CAPS);

        let at = a.qp.created.send_ring.offset + PRODUCER;
        a.client.memory.write(at, &nonsense.to_ne_bytes()).unwrap();
        a.client.ring(&a.qp);
        eventually("the QP has failed", || (a.client.state(&a.qp) == QpState::Err).then_some(()));
        assert_eq!(a.client.counter("urxe0", "broken_send_queues"), round);
        let mut bytes = [0; RECORD_LEN];
        rustix::io::read(&a.events, &mut bytes).unwrap();
        let record = EventRecord::from_bytes(bytes);
        assert_eq!((record.kind, record.user_handle), (QP_FATAL, 0xaa));
        assert_eq!(record.object, u64::from(a.qp.created.qp.0));

        // The neighbour and the peer's program know nothing of it.
        assert_eq!(a.client.state(&neighbour), QpState::Reset);
        drop(b);
        witness.is_served();
    }
}

#[test]
fn a_broken_receive_queue_gives_no_more_receives() {
    let (first, second) = (start(1), start(1));
    let mut witness = Witness::new(&first, &second);
    let (mut a, mut b) = connected(&first, &second, Kind::Shared, 4096);
    let at = b.qp.created.recv_ring.unwrap().offset + PRODUCER;
    b.client.memory.write(at, &0xdead_beefu32.to_ne_bytes()).unwrap();
    a.post_send(1, SendOp::Send(Extra::None), SendData::Sges(&[]));
    eventually("it is noticed", || {
        (b.client.counter("urxe0", "broken_receive_queues") == 1).then_some(())
    });
    witness.is_served();
    drop(a);
    witness.is_served();
}

#[test]
fn a_full_or_broken_completion_queue_fails_its_qps_and_tells() {
    let (first, second) = (start(1), start(1));
    let mut witness = Witness::new(&first, &second);
    for breaks in [false, true] {
        let mut a = End::new(&first, 0, Kind::Shared, 4096);
        let b = End::new(&second, 0, Kind::Shared, 4096);
        let cq = a.client.create_cq(a.context, 3, None);
        a.qp = a.client.create_qp(a.pd, cq.handle, CAPS);
        a.connect(b.addr, b.qp.created.qpn);
        let mut b = b;
        b.connect(a.addr, a.qp.created.qpn);
        if breaks {
            let at = cq.offset + CONSUMER;
            a.client.memory.write(at, &77u32.to_ne_bytes()).unwrap();
        }
        let (remote_addr, rkey) = (b.mr.addr, b.mr.rkey);
        for wr_id in 0..8 {
            let write = SendOp::Write { remote_addr, rkey, imm: None };
            a.post_send(wr_id, write, SendData::Inline(b"x"));
        }
        eventually("the QP has failed", || (a.client.state(&a.qp) == QpState::Err).then_some(()));
        let mut bytes = [0; RECORD_LEN];
        rustix::io::read(&a.events, &mut bytes).unwrap();
        let record = EventRecord::from_bytes(bytes);
        assert_eq!((record.kind, record.object), (CQ_ERR, u64::from(cq.handle.0)));
        let broken = a.client.counter("urxe0", "broken_completion_queues");
        assert_eq!(broken, u64::from(breaks));
        witness.is_served();
    }
}

#[test]
fn ten_thousand_random_ring_entries_are_counted_by_cause() {
    const SLOTS: u64 = 128;
    let (first, second) = (start(1), start(1));
    let mut witness = Witness::new(&first, &second);
    let (mut a, b) = connected(&first, &second, Kind::Shared, 4096);
    let mut random = Random::new(2026);
    let ring = a.qp.created.send_ring;
    let element = (u64::from(ring.size) - FIRST_ELEMENT) / SLOTS;
    let element = 1 << element.ilog2();
    let mut entries = 0;
    while entries < 10_000 {
        for slot in 0..SLOTS {
            let mut bytes = random.bytes(element as usize);
            // The first fails the QP, and all others are looked at because they are flushed.
            if slot > 0 && random.below(4) > 0 {
                // Closer to the truth, so that more than the opcode is looked at.
                let opcode = random.below(16) as u32;
                bytes[12..16].copy_from_slice(&opcode.to_ne_bytes());
                bytes[16..20].copy_from_slice(&(random.below(16) as u32).to_ne_bytes());
                bytes[184..188].copy_from_slice(&(random.below(200) as u32).to_ne_bytes());
                bytes[196..200].copy_from_slice(&(random.below(12) as u32).to_ne_bytes());
            }
            let at = ring.offset + FIRST_ELEMENT + slot * element;
            a.client.memory.write(at, &bytes).unwrap();
        }
        let producer = (SLOTS - 1) as u32;
        a.client.memory.write(ring.offset + PRODUCER, &producer.to_ne_bytes()).unwrap();
        a.client.ring(&a.qp);
        entries += SLOTS - 1;
        eventually("all entries are taken", || {
            a.cq.poll();
            let mut consumer = [0; 4];
            a.client.memory.read(ring.offset + CONSUMER, &mut consumer).unwrap();
            (u32::from_ne_bytes(consumer) == producer).then_some(())
        });
        assert_eq!(a.client.state(&a.qp), QpState::Err);
        let reset = QpAttr { state: Some(QpState::Reset), ..QpAttr::default() };
        a.client.modify(&a.qp, reset).unwrap();
        a.connect(b.addr, b.qp.created.qpn);
        a.cq.poll();
    }
    for name in [
        "malformed_opcode",
        "malformed_num_sge",
        "malformed_inline_length",
        "malformed_inline_opcode",
    ] {
        let count = a.client.counter("urxe0", name);
        assert!(count > 100, "{name} is {count}");
    }
    witness.is_served();
}

#[test]
fn random_receives_harm_no_other_program() {
    const SLOTS: u64 = 128;
    let (first, second) = (start(1), start(1));
    let mut witness = Witness::new(&first, &second);
    let mut random = Random::new(7);
    let mut flushed = 0;
    for _ in 0..20 {
        let (mut a, mut b) = connected(&first, &second, Kind::Shared, 4096);
        let ring = b.qp.created.recv_ring.unwrap();
        let element = 1u64 << ((u64::from(ring.size) - FIRST_ELEMENT) / SLOTS).ilog2();
        for slot in 0..SLOTS {
            let mut bytes = random.bytes(element as usize);
            bytes[28..32].copy_from_slice(&(random.below(8) as u32).to_ne_bytes());
            let at = ring.offset + FIRST_ELEMENT + slot * element;
            b.client.memory.write(at, &bytes).unwrap();
        }
        let producer = ((SLOTS - 1) as u32).to_ne_bytes();
        b.client.memory.write(ring.offset + PRODUCER, &producer).unwrap();
        a.post_send(1, SendOp::Send(Extra::None), SendData::Inline(b"hello?"));
        // Either the first random receive takes nothing, or it names no memory.
        let entry = a.cq.wait(1)[0];
        assert_ne!(entry.status, 0, "{entry:?}");
        eventually("its receives are flushed", || {
            let entries = b.cq.poll();
            flushed += entries.iter().filter(|entry| entry.status == FLUSHED).count();
            let mut consumer = [0; 4];
            b.client.memory.read(ring.offset + CONSUMER, &mut consumer).unwrap();
            (consumer == producer).then_some(())
        });
    }
    assert!(flushed > 1000, "{flushed}");
    witness.is_served();
}

#[test]
fn scribbled_doorbells_ring_only_the_programs_own_bells() {
    // In one slot, which looks at the doorbells of all these programs.
    let (first, second) = (start_with(1, |config| config.slots = 1), start(1));
    let mut witness = Witness::new(&first, &second);
    let (mut other, peer) = connected(&first, &second, Kind::Shared, 64);
    let (remote_addr, rkey) = (peer.mr.addr, peer.mr.rkey);
    let op = SendOp::Write { remote_addr, rkey, imm: None };
    let wr = SendWr { wr_id: 7, op, to: None, fence: false, signaled: true, solicited: false };
    other.qp.sq.push(&wr, SendData::Inline(b"not yet")).unwrap();
    other.qp.sq.publish();
    let end = End::new(&first, 0, Kind::Shared, 64);
    let mut random = Random::new(11);
    for _ in 0..200 {
        end.client.memory.write(0, &random.bytes(12288)).unwrap();
        end.client.ring_slot(random.below(1 << 17) as u32);
    }
    witness.is_served();
    end.client.memory.write(0, &[0xff; 12288]).unwrap();
    witness.is_served();
    assert_eq!((other.cq.poll(), peer.mr.read(0, 7)), (vec![], vec![0; 7]));
    other.client.ring(&other.qp);
    assert_eq!(other.cq.wait(1)[0].wr_id, 7);
    assert_eq!(peer.mr.read(0, 7), b"not yet");
}
