//! The order in which a program sees the stores of its peer: a host that records every store, and a
//! requester whose messages have their number in every word.

use crate::LIMIT;
use urxe_spec_tests::rng::Rng;
use urxe_spec_tests::simulation::host::RECV_WR_ID;
use urxe_spec_tests::simulation::memory::Store;
use urxe_spec_tests::simulation::queues::{Entry, send_wqe};
use urxe_spec_tests::simulation::scenario::{self, Connection, NetworkProfile, PD};
use urxe_spec_tests::simulation::seeds::Family;
use urxe_spec_tests::simulation::wide::Wide;
use urxe_spec_tests::simulation::world::{Mr, everything};
use urxe_types::{Extra, Lkey, RecvWqe, Rkey, SendOp, SendWqe, Sge};

const MESSAGES: usize = 60;
const SLOTS: usize = 4;
/// Words of the longest message.
const MAX_WORDS: usize = 1_100;
/// Words of the longest READ: so few that all of them can be kept.
const LONGEST_READ: usize = 33;

/// The first word of the slot that a message of this number is about.
fn slot_of(number: usize) -> usize {
    number % SLOTS * MAX_WORDS
}

/// What a message stores at the responder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// So many words, each the message's number.
    Words(usize),
    /// One word: its number.
    AtomicWrite,
    /// One word: how many were added to it so far.
    FetchAdd,
    /// Nothing: a READ of so many words.
    Nothing(usize),
}

impl Kind {
    fn stores(self) -> bool {
        !matches!(self, Kind::Nothing(_) | Kind::Words(0))
    }
}

/// Replays the recorded stores as a program that polls could see them.
struct Replay<'a> {
    messages: &'a [Kind],
    /// The message whose stores are next.
    message: usize,
    /// Words of it that are stored, and where the next has to be.
    words: usize,
    next_at: usize,
    /// Since the last word of a message was stored, nothing has ordered what follows.
    unordered: bool,
    added: u64,
}

impl Replay<'_> {
    /// The next message that stores anything.
    fn next_message(&self) -> Option<(usize, Kind)> {
        let mut rest = self.messages.iter().copied().enumerate().skip(self.message);
        rest.find(|(_, kind)| kind.stores())
    }

    fn apply(&mut self, store: &Store) {
        match store {
            Store::Barrier | Store::Sync => self.unordered = false,
            Store::Write { at, bytes, .. } => self.apply_write(*at, bytes),
            Store::Atomic { value, .. } => self.apply_atomic(*value),
        }
    }

    fn apply_write(&mut self, at: usize, bytes: &[u8]) {
        let Some((number, Kind::Words(count))) = self.next_message() else {
            panic!("{} bytes at {at} are of no message", bytes.len());
        };
        let (words, rest) = bytes.as_chunks::<8>();
        assert!(rest.is_empty(), "packets have whole words");
        for word in words {
            assert_eq!(u64::from_ne_bytes(*word), number as u64, "messages keep their order");
        }
        match self.words {
            0 => assert!(!self.unordered, "message {number} may be seen before the one before it"),
            _ => assert_eq!(at, self.next_at, "message {number}: packets keep their order"),
        }
        self.words += words.len();
        self.next_at = at + bytes.len();
        assert!(self.words <= count, "message {number}: no byte is stored twice");
        if self.words == count {
            (self.message, self.words, self.unordered) = (number + 1, 0, true);
        }
    }

    fn apply_atomic(&mut self, value: u64) {
        let Some((number, kind)) = self.next_message() else { panic!("{value} is of no message") };
        match kind {
            Kind::AtomicWrite => assert_eq!(value, number as u64, "atomics keep their places"),
            Kind::FetchAdd => {
                self.added += 1;
                assert_eq!(value, self.added, "atomics keep their places");
            }
            _ => panic!("message {number}, a {kind:?}, is overtaken by an atomic"),
        }
        assert!(!self.unordered, "atomic {number} may be seen before the message before it");
        self.message = number + 1;
    }
}

/// The work request of message `number`, and what it stores.
fn draw_message(
    rng: &mut Rng,
    number: usize,
    (window, local): (&Mr, &Mr),
    has_atomics: bool,
) -> (SendWqe, Kind) {
    let words = rng.pick(&[0, 1, 1, 3, 32, 33, 300, MAX_WORDS]);
    let slot = slot_of(number) as u64 * 8;
    let rkey = Rkey(window.key);
    let at = |slot: u64| window.addr + slot;
    let atomic_at = at((SLOTS * MAX_WORDS * 8) as u64);
    let write = |imm| SendOp::Write { remote_addr: at(slot), rkey, imm };
    let (op, kind) = match rng.range(0..=if has_atomics { 7 } else { 3 }) {
        0 | 1 => (write(None), Kind::Words(words)),
        2 => (write(Some(number as u32)), Kind::Words(words)),
        3 => (SendOp::Send(Extra::None), Kind::Words(words)),
        4 => (SendOp::AtomicWrite { remote_addr: atomic_at, rkey }, Kind::AtomicWrite),
        5 | 6 => (SendOp::FetchAdd { remote_addr: atomic_at + 8, rkey, add: 1 }, Kind::FetchAdd),
        _ => (SendOp::Read { remote_addr: at(slot), rkey }, Kind::Nothing(words.min(LONGEST_READ))),
    };
    let stamp = |count: usize| Some((number as u64).to_ne_bytes().repeat(count));
    // Each answer has its own place; what is stored at the peer comes with the work request.
    let answer = |words: usize| {
        let addr = local.addr + (number * LONGEST_READ * 8) as u64;
        vec![Sge { addr, length: 8 * words as u32, lkey: Lkey(local.key) }]
    };
    let (inline, sges) = match kind {
        Kind::Words(count) => (stamp(count), Vec::new()),
        Kind::AtomicWrite => (stamp(1), Vec::new()),
        Kind::FetchAdd => (None, answer(1)),
        Kind::Nothing(count) => (None, answer(count)),
    };
    let mut wqe = SendWqe { inline, ..send_wqe(number as u64, op, sges) };
    wqe.wr.fence = rng.percent(5);
    wqe.wr.signaled = rng.percent(50);
    (wqe, kind)
}

/// Makes a run. Returns the messages, the stores at the responder, and what the READs brought, each
/// at its place.
fn run(
    seed: u64,
    prints: bool,
    profile: impl Fn(&mut Rng) -> NetworkProfile,
) -> (Vec<(SendOp, Kind)>, Vec<Store>, Vec<u64>) {
    let mut rng = Rng::new(seed);
    let mut profile = profile(&mut rng);
    let mut nodes = scenario::draw_nodes::<2>(&mut rng).to_vec();
    let mut wide = Wide::of(seed);
    if let Some(wide) = &mut wide {
        wide.network(&mut profile);
        nodes = wide.nodes(2);
    }
    let mut world = scenario::world(&mut rng, &nodes, &profile, prints);
    let mut connection = Connection::draw(&mut rng);
    if let Some(wide) = &mut wide {
        wide.timeouts(std::slice::from_mut(&mut connection), &profile);
    }
    let ends = [0, 1].map(|node| {
        let cq = world.nodes[node].host.add_cq(4 * MESSAGES);
        world.create_qp(node, PD, (cq, cq), (MESSAGES, MESSAGES))
    });
    world.connect(&ends, &connection.attrs, connection.mtu);
    let answers = MESSAGES * LONGEST_READ;
    let [local, window, received] = [(0, answers), (1, SLOTS * MAX_WORDS + 2), (1, MAX_WORDS)].map(
        |(node, words): (usize, _)| {
            world.nodes[node].reg_mr(PD, 0x10_0000, everything(), vec![0; 8 * words])
        },
    );
    world.nodes[1].host.memory.record_stores();

    let [requester, responder] = &ends;
    let has_atomics = connection.attrs[0].max_rd_atomic > 0;
    let mut messages = Vec::new();
    for number in 0..MESSAGES {
        let (wqe, kind) = draw_message(&mut rng, number, (&window, &local), has_atomics);
        messages.push((wqe.wr.op, kind));
        let host = &mut world.nodes[1].host;
        let length = 8 * MAX_WORDS as u32;
        let sges = vec![Sge { addr: received.addr, length, lkey: Lkey(received.key) }];
        let recv = RecvWqe { wr_id: RECV_WR_ID | number as u64, sges };
        host.recv_queue(responder.recv_queue).post(Entry::Good(recv));
        world.nodes[0].host.send_queue(requester.send_queue).post(Entry::Good(wqe));
    }
    world.ring(requester);
    let until = world.now() + LIMIT;
    while !world.nodes[0].host.send_queue(requester.send_queue).is_idle() {
        assert!(world.now() < until, "it does not end");
        world.step(until);
    }
    let (words, _) = world.nodes[0].host.memory.program(local.region).as_chunks();
    let answers = words.iter().map(|word| u64::from_ne_bytes(*word)).collect();
    (messages, world.nodes[1].host.memory.take_stores(), answers)
}

fn poll(seed: u64, prints: bool) {
    let (messages, stores, _) = run(seed, prints, NetworkProfile::stormy);
    let messages: Vec<Kind> = messages.into_iter().map(|(_, kind)| kind).collect();
    let mut replay = Replay {
        messages: &messages,
        message: 0,
        words: 0,
        next_at: 0,
        unordered: false,
        added: 0,
    };
    stores.iter().for_each(|store| replay.apply(store));
    assert_eq!(replay.next_message(), None, "every message is stored");
}

/// A program polls the memory that its peer writes to.
pub(crate) const POLL: Family = Family {
    name: "a_polling_program_sees_the_messages_of_a_qp_in_their_order",
    first: 140_000,
    runs: 500,
    run: poll,
};

#[test]
fn a_polling_program_sees_the_messages_of_a_qp_in_their_order() {
    POLL.check();
}

fn read_back(seed: u64, prints: bool) {
    let (messages, _, answers) = run(seed, prints, NetworkProfile::calm);
    let mut model = vec![0; SLOTS * MAX_WORDS];
    for (number, (op, kind)) in messages.into_iter().enumerate() {
        let slot = &mut model[slot_of(number)..];
        match (op, kind) {
            (SendOp::Write { .. }, Kind::Words(count)) => slot[..count].fill(number as u64),
            (_, Kind::Nothing(count)) => {
                let answer = &answers[number * LONGEST_READ..][..count];
                assert_eq!(answer, &slot[..count], "READ {number}");
            }
            _ => {}
        }
    }
}

/// A requester reads what it wrote.
pub(crate) const READ_BACK: Family = Family {
    name: "a_read_sees_what_was_written_before_it_and_nothing_later",
    first: 150_000,
    runs: 300,
    run: read_back,
};

#[test]
fn a_read_sees_what_was_written_before_it_and_nothing_later() {
    READ_BACK.check();
}
