//! What a message costs a data path, for a counter of instructions: one kind of message, many
//! times, between two data paths on a simulated network, with rings and memory. `cargo xtask
//! instructions` runs it where instructions are counted; by itself it shows nothing.
//!
//! Everything that the requester does for its messages happens within [`requester`], what the
//! responder does within [`responder`].

#[allow(dead_code, reason = "the test of the data path needs more of it")]
#[path = "../tests/node/mod.rs"]
mod node;

use node::{Node, connected};
use std::hint::black_box;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};
use urxe_nic::{Owners, TapSpec};
use urxe_port::capture::Filter;
use urxe_port::sim::{Link, SimNetwork};
use urxe_types::{Extra, Rkey, SendOp, WcOpcode};

/// Messages that are posted as a list.
const LIST: u64 = 8;

fn main() {
    let mut words = std::env::args().skip(1).filter(|word| word != "--bench");
    let (Some(verb), Some(bytes), Some(lists)) = (words.next(), words.next(), words.next()) else {
        return;
    };
    let bytes = bytes.parse().expect("bytes of a message");
    let lists: u64 = lists.parse().expect("lists of messages");
    let mut now = Instant::now();
    let network = SimNetwork::new(7, Link::default());
    let [mut a, mut b] = connected(&network, now);
    if verb == "ping-pong" {
        return ping_pong(&network, [&mut a, &mut b], &mut now, bytes, lists * LIST);
    }
    let idle_tap = words.next().is_some_and(|word| word == "tapped");
    let _pipes = idle_tap.then(|| [&mut a, &mut b].map(add_idle_tap));
    let rkey = Rkey(b.lkey);
    let op = match verb.as_str() {
        "write" => SendOp::Write { remote_addr: 0, rkey, imm: None },
        "read" => SendOp::Read { remote_addr: 0, rkey },
        "send" => SendOp::Send(Extra::None),
        _ => panic!("{verb} is not write, read or send"),
    };
    for list in 0..lists {
        let wr_ids = list * LIST..(list + 1) * LIST;
        if verb == "send" {
            wr_ids.clone().for_each(|wr_id| b.post_recv(wr_id, bytes));
        }
        wr_ids.clone().for_each(|wr_id| a.post(wr_id, op, bytes));
        a.ring_doorbell();
        exchange(&network, &mut a, &mut b, &mut now);
        for _ in wr_ids {
            assert_eq!(a.poll().map(|done| done.status), Some(0));
            if verb == "send" {
                assert_eq!(b.poll().map(|received| received.status), Some(0));
            }
        }
    }
}

/// Two programs send each other one message at a time, each when it has the other's. What came is
/// acknowledged together with the answer.
fn ping_pong(
    network: &SimNetwork,
    nodes: [&mut Node; 2],
    now: &mut Instant,
    bytes: u32,
    round_trips: u64,
) {
    let [a, b] = nodes;
    a.post_recv(0, bytes);
    b.post_recv(0, bytes);
    a.send(0, bytes);
    let mut received = 0;
    while received < 2 * round_trips {
        requester(a, *now, poller_turn);
        responder(b, *now, poller_turn);
        for node in [&mut *a, &mut *b] {
            while let Some(done) = node.poll() {
                assert_eq!(done.status, 0);
                if done.opcode == WcOpcode::Recv as u32 {
                    node.post_recv(0, bytes);
                    node.send(0, bytes);
                    received += 1;
                }
            }
        }
        let next = network.next_event().filter(|_| !a.nic.is_due() && !b.nic.is_due());
        *now = next.unwrap_or(*now).max(*now + Duration::from_nanos(1));
    }
}

/// Begins a tap that looks at the headers of all packets and takes none. Returns where it would
/// write them to.
fn add_idle_tap(node: &mut Node) -> OwnedFd {
    let (read_end, pipe) = rustix::pipe::pipe().expect("a pipe");
    let filter = Filter { qps: vec![0xff_fff0], ..Filter::default() };
    node.nic.add_tap(TapSpec { number: 1, owners: Owners::All, filter, snaplen: 64, pipe });
    read_end
}

/// Lets time pass until neither has anything to do.
fn exchange(network: &SimNetwork, a: &mut Node, b: &mut Node, now: &mut Instant) {
    let end = *now + Duration::from_secs(1);
    while *now < end {
        requester(a, *now, Node::turn);
        responder(b, *now, Node::turn);
        let deadlines = [network.next_event(), a.nic.deadline(), b.nic.deadline()];
        let Some(next) = deadlines.into_iter().flatten().min() else { break };
        *now = next.max(*now + Duration::from_nanos(1));
    }
}

#[inline(never)]
fn requester(node: &mut Node, now: Instant, turn: fn(&mut Node, Instant)) {
    black_box("not the same function as the other one, which a compiler may make of them");
    turn(node, now);
}

#[inline(never)]
fn responder(node: &mut Node, now: Instant, turn: fn(&mut Node, Instant)) {
    black_box("responder");
    turn(node, now);
}

/// The turn of a thread that polls: what is to be sent first, so that answers go with what the
/// program sends when it sees what came.
fn poller_turn(node: &mut Node, now: Instant) {
    node.nic.transmit(now).expect("a simulated port does not fail");
    node.nic.receive(now).expect("a simulated port does not fail");
    node.nic.handle_timers(now).expect("a simulated port does not fail");
}
