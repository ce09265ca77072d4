use super::*;
use crate::fault::Fault;
use crate::headers;
use crate::sim::{Link, SimNetwork};
use crate::testing::*;
use crate::udp::{UdpOptions, UdpPort};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::{Arc, Mutex};
use urxe_wire::Opcode;

/// A file in memory that the test can read while the capture has it.
#[derive(Clone, Default)]
struct Shared(Arc<Mutex<Vec<u8>>>);

impl Write for Shared {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A packet that was read back.
#[derive(Debug)]
struct Read {
    nanoseconds: u64,
    flags: u32,
    outer: Outer,
    bytes: Vec<u8>,
}

/// Reads a capture, strictly: lengths agree, padding is there, options end.
fn read(file: &Shared) -> (String, Vec<Read>) {
    let bytes = file.0.lock().unwrap().clone();
    let mut rest = &bytes[..];
    let mut take_block = || {
        let kind = u32_at(rest, 0);
        let len = u32_at(rest, 4) as usize;
        assert_eq!((len % 4, u32_at(rest, len - 4) as usize), (0, len));
        let body = &rest[8..len - 4];
        rest = &rest[len..];
        (kind, body, rest.is_empty())
    };
    let (kind, section, _) = take_block();
    assert_eq!((kind, u32_at(section, 0)), (0x0a0d_0d0a, 0x1a2b_3c4d));
    assert_eq!(section[4..16], [1, 0, 0, 0, 255, 255, 255, 255, 255, 255, 255, 255]);

    let (kind, interface, mut is_last) = take_block();
    assert_eq!((kind, interface[..8].to_vec()), (1, vec![101, 0, 0, 0, 0, 0, 0, 0]));
    let options = options(&interface[8..]);
    assert_eq!(options[1], (9, vec![9]));
    let name = String::from_utf8(options[0].1.clone()).unwrap();

    let mut packets = Vec::new();
    while !is_last {
        let (kind, body, last) = take_block();
        is_last = last;
        assert_eq!((kind, u32_at(body, 0)), (6, 0));
        let len = u32_at(body, 12) as usize;
        assert_eq!(u32_at(body, 16) as usize, len);
        let options = self::options(&body[20 + len.next_multiple_of(4)..]);
        assert_eq!(options[0].0, 2);
        let parsed = headers::parse(&body[20..20 + len]).unwrap();
        packets.push(Read {
            nanoseconds: u64::from(u32_at(body, 4)) << 32 | u64::from(u32_at(body, 8)),
            flags: u32_at(&options[0].1, 0),
            outer: parsed.outer,
            bytes: body[20 + parsed.start..][..parsed.len].to_vec(),
        });
    }
    (name, packets)
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap())
}

fn options(mut bytes: &[u8]) -> Vec<(u16, Vec<u8>)> {
    let mut options = Vec::new();
    loop {
        let head = u32_at(bytes, 0);
        let (code, len) = (head as u16, (head >> 16) as usize);
        if code == 0 {
            assert_eq!((len, bytes.len()), (0, 4), "the end is the end");
            return options;
        }
        options.push((code, bytes[4..4 + len].to_vec()));
        bytes = &bytes[4 + len.next_multiple_of(4)..];
    }
}

fn capture<P: Port>(port: P) -> (Capture<P, Shared>, Shared, Instant) {
    let (file, now) = (Shared::default(), Instant::now());
    let wall = SystemTime::UNIX_EPOCH + Duration::from_nanos(1_700_000_000_123_456_789);
    (Capture::new(port, file.clone(), now, wall), file, now)
}

#[test]
fn both_ways_are_in_the_file_with_time_direction_and_every_byte() {
    for addrs in [
        [IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1)), Ipv4Addr::new(10, 0, 0, 2).into()],
        [IpAddr::V6(Ipv6Addr::LOCALHOST), Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1).into()],
    ] {
        let network = SimNetwork::new(0, Link::default());
        let (mut a, file, now) = capture(network.attach(addrs[0]).unwrap());
        let mut b = network.attach(addrs[1]).unwrap();
        let out = Flow { traffic_class: 0x69, ..flow(&a.caps(), addrs[1]) };
        let mut batch = batch(&a.caps());
        push_write(&mut batch, &out, 0, 5, 1024);
        push(&mut batch, &out, Opcode::RC_SEND_ONLY, 5, 1);
        let sent: Vec<_> = batch.datagrams().map(|d| d.bytes.to_vec()).collect();
        assert_eq!(a.send(now, &mut batch).unwrap(), SendOutcome::Done);
        let back = flow(&b.caps(), addrs[0]);
        push_write(&mut batch, &back, 100, 3, 256);
        assert_eq!(b.send(now, &mut batch).unwrap(), SendOutcome::Done);
        let received = recv_all(&mut a, now + Duration::from_nanos(1_000_000_007));
        assert_eq!(received.len(), 3);
        assert_eq!(a.counters().captured, 9);
        drop(a);

        let (name, packets) = read(&file);
        assert_eq!(name, "sim");
        assert_eq!(packets.len(), 9);
        let mut checker = Checker::new();
        for (packet, bytes) in packets[..6].iter().zip(&sent) {
            assert_eq!((packet.flags, packet.nanoseconds), (2, 1_700_000_000_123_456_789));
            assert_eq!((packet.outer.flow, &packet.bytes), (out, bytes));
            assert_eq!(checker.check(&packet.outer, &packet.bytes), Verdict::Exact);
        }
        for (packet, received) in packets[6..].iter().zip(&received) {
            assert_eq!((packet.flags, packet.nanoseconds), (1, 1_700_000_001_123_456_796));
            assert_eq!((packet.outer.flow, &packet.bytes), (back, &received.bytes));
            assert_eq!(checker.check(&packet.outer, &packet.bytes), Verdict::Exact);
        }
    }
}

#[test]
fn an_identification_hidden_from_the_port_is_captured() {
    let options = UdpOptions::default();
    let (mut a, file, now) = capture(UdpPort::open(fresh_addr(), &options).unwrap());
    let mut b = UdpPort::open(fresh_addr(), &options).unwrap();
    let mut batch = batch(&b.caps());
    let flow = flow(&b.caps(), a.caps().addrs[0]);
    push(&mut batch, &flow, Opcode::RC_SEND_ONLY, 0, 100);
    let mut bytes = batch.datagrams().next().unwrap().bytes.to_vec();
    batch.clear();
    // As from a peer that numbers its packets in another way than urxe. (The kernel sends 0, which
    // nobody sees; what counts is what the ICRC was made for.)
    urxe_wire::icrc::stamp(&flow, 0x1234, &mut bytes);
    batch.push_raw(&flow, &bytes).copy_from_slice(&bytes);
    carry(&mut b, &mut batch, &mut a, 1);
    assert!(a.send(now, &mut batch).is_ok());
    drop(a);
    let (name, packets) = read(&file);
    assert_eq!((name.as_str(), packets.len()), ("lo", 1));
    let ident = Ident::Known { ident: 0x1234, fragment: DONT_FRAGMENT };
    assert_eq!(packets[0].outer.ident, ident);
}

#[test]
fn an_ack_that_comes_out_first_is_captured_where_it_came() {
    let options = UdpOptions::default();
    let (mut a, file, _) = capture(UdpPort::open(fresh_addr(), &options).unwrap());
    let mut b = UdpPort::open(fresh_addr(), &options).unwrap();
    let (mut batch, flow) = (batch(&b.caps()), flow(&b.caps(), a.caps().addrs[0]));
    for psn in 0..3 {
        push(&mut batch, &flow, Opcode::RC_SEND_ONLY, psn, 100);
    }
    push(&mut batch, &flow, Opcode::RC_ACK, 3, 0);
    let taken: Vec<u32> =
        carry(&mut b, &mut batch, &mut a, 4).iter().map(|arrived| arrived.psn()).collect();
    // Only what the kernel has gathered in one buffer is put into another order.
    assert!([[3, 0, 1, 2], [0, 1, 2, 3]].iter().any(|order| taken == order), "{taken:?}");
    drop(a);
    let captured = read(&file).1.into_iter().map(|packet| packet.bytes[11]);
    assert_eq!(captured.collect::<Vec<u8>>(), [0, 1, 2, 3]);
}

#[test]
fn a_blocked_batch_is_captured_once() {
    let network = SimNetwork::new(0, Link::default());
    let addrs = [1, 2].map(|host| IpAddr::V4(Ipv4Addr::new(10, 0, 0, host)));
    let (mut a, file, now) = capture(Narrow::new(network.attach(addrs[0]).unwrap()));
    let _b = network.attach(addrs[1]).unwrap();
    let flow = flow(&a.caps(), addrs[1]);
    let mut batch = batch(&a.caps());
    push_write(&mut batch, &flow, 0, 100, 1024);
    assert_eq!(a.send(now, &mut batch).unwrap(), SendOutcome::Blocked);
    push_write(&mut batch, &flow, 100, 100, 1024);
    while a.send(now, &mut batch).unwrap() == SendOutcome::Blocked {
        a.inner.runs += 1;
    }
    push_write(&mut batch, &flow, 200, 10, 1024);
    a.inner.runs = 10;
    assert_eq!(a.send(now, &mut batch).unwrap(), SendOutcome::Done);
    drop(a);
    let psn =
        |packet: &Read| urxe_wire::Packet::parse(&packet.bytes).unwrap().headers.bth.psn.get();
    assert_eq!(read(&file).1.iter().map(psn).collect::<Vec<_>>(), (0..210).collect::<Vec<_>>());
}

#[test]
fn a_capture_can_be_read_while_it_grows() {
    let network = SimNetwork::new(0, Link::default());
    let addrs = [1, 2].map(|host| IpAddr::V4(Ipv4Addr::new(10, 0, 0, host)));
    let (mut a, file, now) = capture(network.attach(addrs[0]).unwrap());
    let mut batch = batch(&a.caps());
    push_write(&mut batch, &flow(&a.caps(), addrs[1]), 0, 3, 256);
    assert_eq!(a.send(now, &mut batch).unwrap(), SendOutcome::Done);
    assert_eq!(a.recv(now + FLUSH_INTERVAL, &mut RxBatch::new(1)).unwrap(), 0);
    assert_eq!(read(&file).1.len(), 3);
}

/// TAP-009
#[test]
fn the_last_packets_are_written_though_none_follows() {
    let network = SimNetwork::new(0, Link::default());
    let addrs = [1, 2].map(|host| IpAddr::V4(Ipv4Addr::new(10, 0, 0, host)));
    let (mut a, file, now) = capture(network.attach(addrs[0]).unwrap());
    assert_eq!(a.poll_timeout(), None);
    let mut batch = batch(&a.caps());
    for send_at in [now, now + FLUSH_INTERVAL / 2] {
        push_write(&mut batch, &flow(&a.caps(), addrs[1]), 0, 3, 256);
        assert_eq!(a.send(send_at, &mut batch).unwrap(), SendOutcome::Done);
        assert_eq!(a.poll_timeout(), Some(now + FLUSH_INTERVAL));
    }
    assert_eq!(a.recv(now + FLUSH_INTERVAL, &mut RxBatch::new(1)).unwrap(), 0);
    assert_eq!(read(&file).1.len(), 6);
    assert_eq!(a.poll_timeout(), None);
    // Who is about to end does not wait for it.
    push_write(&mut batch, &flow(&a.caps(), addrs[1]), 0, 3, 256);
    assert_eq!(a.send(now + FLUSH_INTERVAL, &mut batch).unwrap(), SendOutcome::Done);
    a.flush();
    assert_eq!(read(&file).1.len(), 9);
}

/// What several captures append to, write by write.
#[derive(Clone, Default)]
struct Writes(Arc<Mutex<Vec<Vec<u8>>>>);

impl Write for Writes {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().push(bytes.to_vec());
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn captures_that_share_a_file_write_whole_blocks_and_all_packets_are_read() {
    let network = SimNetwork::new(0, Link::default());
    let addrs = [1, 2].map(|host| IpAddr::V4(Ipv4Addr::new(10, 0, 0, host)));
    let (file, now) = (Writes::default(), Instant::now());
    let capture = |addr| {
        let port = network.attach(addr).unwrap();
        Capture::new(port, file.clone(), now, SystemTime::now())
    };
    let (mut a, mut b) = (capture(addrs[0]), capture(addrs[1]));
    for _ in 0..100 {
        for (port, peer) in [(&mut a, addrs[1]), (&mut b, addrs[0])] {
            let mut batch = batch(&port.caps());
            push_write(&mut batch, &flow(&port.caps(), peer), 0, 3, 1000);
            assert_eq!(port.send(now, &mut batch).unwrap(), SendOutcome::Done);
        }
    }
    drop((a, b));
    let writes = file.0.lock().unwrap();
    assert!(writes.len() > 4, "{}", writes.len());
    for write in &*writes {
        let mut rest = &write[..];
        while !rest.is_empty() {
            let len = u32_at(rest, 4) as usize;
            assert_eq!(u32_at(rest, len - 4) as usize, len, "a block ends where it says");
            rest = &rest[len..];
        }
    }
    let mut packets = 0;
    super::read(&writes.concat()[..], |frame| {
        assert!(matches!(frame.content, Content::Roce { .. }), "{frame:?}");
        packets += 1;
    })
    .unwrap();
    assert_eq!(packets, 2 * 3 * 100);
}

/// Gives a few bytes at a time, as a pipe may.
struct InPieces<'a>(&'a [u8]);

impl io::Read for InPieces<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let piece = buffer.len().min(100);
        self.0.read(&mut buffer[..piece])
    }
}

#[test]
fn a_capture_that_comes_in_pieces_is_read_whole() {
    let mut capture = Vec::new();
    let mut file = PcapNg::begin(&mut capture, "sim").unwrap();
    for packet in 0..3 {
        let way = PacketDirection::Inbound;
        file.packet(&CapturedPacket::whole(packet, way, &[], &[0; 1000])).unwrap();
    }
    let count = |bytes| {
        let mut frames = 0;
        let result = super::read(InPieces(bytes), |_| frames += 1);
        (frames, result.is_ok())
    };
    assert_eq!(count(&capture), (3, true));
    assert_eq!(count(&capture[..capture.len() - 1]), (2, false), "cut off amid a block");
}

/// A file on a full disk.
struct Full;

impl Write for Full {
    fn write(&mut self, _: &[u8]) -> io::Result<usize> {
        Err(io::ErrorKind::StorageFull.into())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_full_disk_ends_the_capture_and_not_the_port() {
    let network = SimNetwork::new(0, Link::default());
    let addrs = [1, 2].map(|host| IpAddr::V4(Ipv4Addr::new(10, 0, 0, host)));
    let now = Instant::now();
    let a = network.attach(addrs[0]).unwrap();
    let mut a = Capture::new(a, Full, now, SystemTime::UNIX_EPOCH);
    let mut b = network.attach(addrs[1]).unwrap();
    let mut batch = batch(&a.caps());
    push_write(&mut batch, &flow(&a.caps(), addrs[1]), 0, 100, 1024);
    assert_eq!(a.send(now, &mut batch).unwrap(), SendOutcome::Done);
    assert_eq!(recv_all(&mut b, now).len(), 100);
    assert_eq!(a.counters().capture_failed, 1);
    assert!(a.counters().captured < 100);
}

#[test]
fn wrappers_go_around_wrappers_and_boxes() {
    let network = SimNetwork::new(0, Link::default());
    let addrs = [1, 2].map(|host| IpAddr::V4(Ipv4Addr::new(10, 0, 0, host)));
    let inner: Box<dyn Port> = Box::new(network.attach(addrs[0]).unwrap());
    let (seen_by_wire, file, now) = capture(inner);
    let faulty = Fault::new(seen_by_wire, "drop:write-last:1".parse().unwrap());
    let mut a: Box<dyn Port> = Box::new(faulty);
    let mut b = network.attach(addrs[1]).unwrap();
    let mut batch = batch(&a.caps());
    push_write(&mut batch, &flow(&a.caps(), addrs[1]), 0, 5, 256);
    assert_eq!(a.send(now, &mut batch).unwrap(), SendOutcome::Done);
    assert_eq!(psns(&recv_all(&mut b, now)), [0, 1, 2, 3]);
    let counters = a.counters();
    assert_eq!((counters.fault_dropped, counters.captured, counters.tx_datagrams), (1, 4, 4));
    drop(a);
    assert_eq!(read(&file).1.len(), 4);
}
