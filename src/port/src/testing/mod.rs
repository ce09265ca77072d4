//! What the tests of the back-ends and wrappers share.

mod narrow;
pub(crate) mod network;
pub(crate) mod slots;

pub(crate) use narrow::Narrow;

use crate::{Caps, OpenError, Port, RxBatch, SendOutcome};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::convert::Infallible;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use urxe_types::{Psn, Qpn};
use urxe_wire::batch::TxBatch;
use urxe_wire::icrc::{Checker, Verdict};
use urxe_wire::{Body, Bth, Flow, Headers, Opcode, Outer, ROCE_PORT, SourcePorts};

/// Bytes of arena that the tests' batches have.
const CAPACITY: usize = 1 << 20;

/// A loopback address that no other test of this machine is likely to use.
pub(crate) fn fresh_addr() -> IpAddr {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    let (process, n) = (std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
    let [_, _, high, low] = process.to_be_bytes();
    Ipv4Addr::new(127, 64 | high & 0x3f, low, n as u8).into()
}

/// Opens a port on an address that may be in use at the moment: by other tests (there is but one
/// ::1), or by what another test has just forked and that has not executed its program yet, if the
/// address was closed before.
pub(crate) fn open_shared<P>(mut open: impl FnMut() -> Result<P, OpenError>) -> P {
    for _ in 0..600 {
        match open() {
            Err(OpenError::PortTaken { .. }) => std::thread::sleep(Duration::from_millis(50)),
            other => return other.unwrap(),
        }
    }
    panic!("the address stays taken");
}

/// A flow from a port to an address.
pub(crate) fn flow(caps: &Caps, dst: IpAddr) -> Flow {
    let src_port = match caps.source_ports {
        SourcePorts::All => 49441,
        // What every port has.
        SourcePorts::Fixed(_) | SourcePorts::Pool { .. } => ROCE_PORT,
    };
    Flow { src: caps.addrs[0], dst, src_port, traffic_class: 0, hop_limit: 64, flow_label: 0 }
}

/// The headers of a packet with this opcode and PSN.
pub(crate) fn headers(opcode: Opcode, psn: u32) -> Headers {
    Headers::new(Bth::new(Qpn::new(0x11), Psn::new(psn)), Body::zeroed(opcode))
}

/// A batch for a port.
pub(crate) fn batch(caps: &Caps) -> TxBatch {
    TxBatch::new(caps.tx_limits, CAPACITY)
}

/// Adds a packet whose payload is a pattern made of its PSN.
pub(crate) fn push(batch: &mut TxBatch, flow: &Flow, opcode: Opcode, psn: u32, len: usize) {
    let fill = |bytes: &mut [u8]| {
        for (i, byte) in bytes.iter_mut().enumerate() {
            *byte = (psn as usize + i) as u8;
        }
        Ok::<(), Infallible>(())
    };
    let Ok(()) = batch.push(flow, &headers(opcode, psn), len, fill);
}

/// Adds a SEND ONLY to a QP.
pub(crate) fn push_to(batch: &mut TxBatch, flow: &Flow, qpn: Qpn, psn: u32, len: usize) {
    let bth = Bth::new(qpn, Psn::new(psn));
    let headers = Headers::new(bth, Body::zeroed(Opcode::RC_SEND_ONLY));
    let Ok(()) = batch.push(flow, &headers, len, |bytes| {
        bytes.fill(psn as u8);
        Ok::<(), Infallible>(())
    });
}

/// Adds a WRITE of `packets` packets of `mtu` bytes each, the last one half as long.
pub(crate) fn push_write(batch: &mut TxBatch, flow: &Flow, psn: u32, packets: u32, mtu: usize) {
    push(batch, flow, Opcode::RC_WRITE_FIRST, psn, mtu);
    for i in 1..packets - 1 {
        push(batch, flow, Opcode::RC_WRITE_MIDDLE, psn + i, mtu);
    }
    push(batch, flow, Opcode::RC_WRITE_LAST, psn + packets - 1, mtu / 2);
}

/// The same WRITE as WRITE ONLYs.
pub(crate) fn push_write_onlys(
    batch: &mut TxBatch,
    flow: &Flow,
    psn: u32,
    packets: u32,
    mtu: usize,
) {
    for i in 0..packets {
        let len = if i + 1 == packets { mtu / 2 } else { mtu };
        push(batch, flow, Opcode::RC_WRITE_ONLY, psn + i, len);
    }
}

/// A received datagram, kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Arrived {
    pub(crate) outer: Outer,
    pub(crate) bytes: Vec<u8>,
    pub(crate) verdict: Verdict,
}

impl Arrived {
    pub(crate) fn psn(&self) -> u32 {
        urxe_wire::Packet::parse(&self.bytes).unwrap().headers.bth.psn.get()
    }
}

/// The PSNs of what arrived.
pub(crate) fn psns(arrived: &[Arrived]) -> Vec<u32> {
    arrived.iter().map(Arrived::psn).collect()
}

/// Takes what is in the batch, checked.
pub(crate) fn keep(rx: &mut RxBatch, arrived: &mut Vec<Arrived>) {
    let mut checker = Checker::new();
    while let Some((outer, bytes)) = rx.next_datagram() {
        let verdict = checker.check(outer, bytes);
        arrived.push(Arrived { outer: *outer, bytes: bytes.to_vec(), verdict });
    }
}

/// Everything that a port has at `now`.
pub(crate) fn recv_all(port: &mut impl Port, now: Instant) -> Vec<Arrived> {
    let (mut rx, mut arrived) = (RxBatch::default(), Vec::new());
    while port.recv(now, &mut rx).unwrap() > 0 {
        keep(&mut rx, &mut arrived);
    }
    arrived
}

/// Sends a batch through a socket while receiving from another, until `count` datagrams came.
pub(crate) fn carry(
    from: &mut impl Port,
    batch: &mut TxBatch,
    to: &mut impl Port,
    count: usize,
) -> Vec<Arrived> {
    let now = Instant::now();
    let mut arrived = Vec::new();
    let mut outcome = from.send(now, batch).unwrap();
    while arrived.len() < count {
        let new = recv_all(to, now);
        let quiet = new.is_empty();
        arrived.extend(new);
        if outcome == SendOutcome::Blocked {
            outcome = from.send(now, batch).unwrap();
        } else if quiet && arrived.len() < count {
            assert!(is_readable_within(to, 20), "{:?}\n{:?}", from.counters(), to.counters());
        }
    }
    assert_eq!(outcome, SendOutcome::Done);
    assert!(batch.is_empty());
    arrived
}

/// Waits for a socket port to have something.
pub(crate) fn wait_readable(port: &impl Port) {
    // A long while; what has not come then was lost.
    assert!(is_readable_within(port, 20), "nothing arrives: {:?}", port.counters());
}

/// Whether a socket port has something within so many seconds.
pub(crate) fn is_readable_within(port: &impl Port, seconds: i64) -> bool {
    let fd = PollFd::from_borrowed_fd(port.fd().unwrap(), PollFlags::IN);
    poll(&mut [fd], Some(&Timespec { tv_sec: seconds, tv_nsec: 0 })).unwrap() > 0
}
