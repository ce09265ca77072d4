//! The index protocol, the armed word and the doorbells, under every interleaving that loom
//! finds, in tiny sizes. Run with:
//!
//! ```sh
//! RUSTFLAGS="--cfg loom" cargo test -p urxe-shm --release --lib loom_tests
//! ```

use crate::ring::cursor::{ConsumerCursor, Indices, ProducerCursor, arm, take_armed};
use crate::ring::doorbell::{Bells, Position, fall_asleep, ring, take};
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use loom::thread;

/// A ring of two or four slots, each holding a number that loom watches for races.
struct Ring {
    producer: AtomicU32,
    consumer: AtomicU32,
    armed: AtomicU32,
    slots: Vec<UnsafeCell<u32>>,
}

impl Indices for Ring {
    fn producer(&self) -> &AtomicU32 {
        &self.producer
    }
    fn consumer(&self) -> &AtomicU32 {
        &self.consumer
    }
}

impl Ring {
    fn new(slots: u32) -> Arc<Self> {
        let slots = (0..slots).map(|_| UnsafeCell::new(0)).collect();
        let [producer, consumer, armed] = [(); 3].map(|()| AtomicU32::new(0));
        Arc::new(Self { producer, consumer, armed, slots })
    }

    fn push(&self, cursor: &mut ProducerCursor, value: u32) -> bool {
        let Some(slot) = cursor.claim(self).expect("the consumer is honest") else { return false };
        // SAFETY: a claimed slot is the producer's alone; loom fails the test if it is not.
        self.slots[slot as usize].with_mut(|place| unsafe { *place = value });
        true
    }

    fn pop(&self, cursor: &mut ConsumerCursor) -> Option<u32> {
        let slot = cursor.take(self).expect("the producer is honest")?;
        // SAFETY: a slot taken is the consumer's alone; loom fails the test if it is not.
        let value = self.slots[slot as usize].with(|place| unsafe { *place });
        cursor.release(self, 1);
        Some(value)
    }
}

#[test]
fn entries_arrive_once_and_in_order_and_are_not_overwritten_while_in_use() {
    loom::model(|| {
        let ring = Ring::new(2);
        let producer = thread::spawn({
            let ring = ring.clone();
            move || {
                let mut cursor = ProducerCursor::new(2);
                for value in 1..=3 {
                    while !ring.push(&mut cursor, value) {
                        thread::yield_now();
                    }
                    cursor.publish(&*ring);
                }
            }
        });
        let mut cursor = ConsumerCursor::new(2);
        for expected in 1..=3 {
            let value = loop {
                match ring.pop(&mut cursor) {
                    Some(value) => break value,
                    None => thread::yield_now(),
                }
            };
            assert_eq!(value, expected);
        }
        producer.join().unwrap();
    });
}

#[test]
fn a_batch_is_seen_as_far_as_it_was_published() {
    loom::model(|| {
        let ring = Ring::new(4);
        let producer = thread::spawn({
            let ring = ring.clone();
            move || {
                let mut cursor = ProducerCursor::new(4);
                assert!(ring.push(&mut cursor, 1));
                assert!(ring.push(&mut cursor, 2));
                cursor.publish(&*ring);
                assert!(ring.push(&mut cursor, 3));
            }
        });
        let mut cursor = ConsumerCursor::new(4);
        let mut seen = Vec::new();
        while let Some(value) = ring.pop(&mut cursor) {
            seen.push(value);
        }
        assert!(seen.is_empty() || seen == [1, 2], "{seen:?}");
        producer.join().unwrap();
    });
}

/// After arming, a consumer that finds nothing gets an event for what comes.
fn no_completion_is_lost(solicited_only: bool) {
    loom::model(move || {
        let ring = Ring::new(2);
        let producer = thread::spawn({
            let ring = ring.clone();
            move || {
                let mut cursor = ProducerCursor::new(2);
                assert!(ring.push(&mut cursor, 7));
                cursor.publish(&*ring);
                take_armed(&ring.armed, true)
            }
        });
        let mut cursor = ConsumerCursor::new(2);
        arm(&ring.armed, solicited_only);
        let found = ring.pop(&mut cursor).is_some();
        let event = producer.join().unwrap();
        assert!(found || event, "neither polled nor told");
        assert_eq!(event, ring.armed.load(Ordering::Relaxed) == 0, "an event disarms");
    });
}

#[test]
fn an_armed_consumer_polls_or_is_told() {
    no_completion_is_lost(false);
}

#[test]
fn a_consumer_armed_for_solicited_polls_or_is_told() {
    no_completion_is_lost(true);
}

/// Two words of bells, and beside each bell a number that is posted before it is rung.
struct Session {
    asleep: AtomicU32,
    summary: [AtomicU64; 1],
    bells: [AtomicU64; 2],
    posted: [AtomicU32; 2],
    /// The eventfd.
    wakeups: AtomicU32,
}

/// Two slots, in different words.
const SLOT: [u32; 2] = [3, 64];
const SLOTS: u32 = 128;

impl Bells for Session {
    fn asleep(&self) -> &AtomicU32 {
        &self.asleep
    }
    fn summary(&self) -> &[AtomicU64] {
        &self.summary
    }
    fn bells(&self) -> &[AtomicU64] {
        &self.bells
    }
}

impl Session {
    fn new() -> Arc<Self> {
        let [asleep, wakeups] = [(); 2].map(|()| AtomicU32::new(0));
        let posted = [(); 2].map(|()| AtomicU32::new(0));
        let (summary, bells) = ([AtomicU64::new(0)], [(); 2].map(|()| AtomicU64::new(0)));
        Arc::new(Self { asleep, summary, bells, posted, wakeups })
    }

    /// What a program does: post, ring, wake.
    fn post(&self, which: usize) {
        self.posted[which].fetch_add(1, Ordering::Relaxed);
        if ring(self, SLOT[which]) {
            self.wakeups.fetch_add(1, Ordering::Release);
        }
    }

    /// What the daemon does: look at what was posted behind the bells that were rung.
    fn collect(&self, seen: &mut [u32; 2]) {
        self.collect_some(&mut Position::default(), u32::MAX, seen);
    }

    /// The same from where it stopped, as far as a budget goes.
    fn collect_some(&self, position: &mut Position, budget: u32, seen: &mut [u32; 2]) {
        take(self, SLOTS, position, budget, |slot| {
            let which = usize::from(slot == SLOT[1]);
            assert_eq!(slot, SLOT[which]);
            seen[which] = self.posted[which].load(Ordering::Relaxed);
        });
    }
}

#[test]
fn no_ring_is_lost_while_the_daemon_takes() {
    loom::model(|| {
        let session = Session::new();
        let program = thread::spawn({
            let session = session.clone();
            move || {
                session.post(0);
                session.post(0);
                session.post(1);
            }
        });
        let mut seen = [0; 2];
        session.collect(&mut seen);
        program.join().unwrap();
        session.collect(&mut seen);
        assert_eq!(seen, [2, 1]);
        assert_eq!(session.wakeups.load(Ordering::Relaxed), 0, "nobody slept");
    });
}

#[test]
fn no_ring_of_two_threads_is_lost() {
    loom::model(|| {
        let session = Session::new();
        let threads = [0, 1].map(|which| {
            let session = session.clone();
            thread::spawn(move || session.post(which))
        });
        let mut seen = [0; 2];
        session.collect(&mut seen);
        for thread in threads {
            thread.join().unwrap();
        }
        session.collect(&mut seen);
        assert_eq!(seen, [1, 1]);
    });
}

/// If the daemon goes to sleep, then either it has seen everything, or it is woken.
fn a_sleeper_is_woken(threads: &'static [usize]) {
    loom::model(move || {
        let session = Session::new();
        let threads: Vec<_> = threads
            .iter()
            .map(|&which| {
                let session = session.clone();
                thread::spawn(move || session.post(which))
            })
            .collect();
        let mut seen = [0; 2];
        session.collect(&mut seen);
        let sleeps = fall_asleep(&*session, SLOTS);
        let posts = threads.len() as u32;
        for thread in threads {
            thread.join().unwrap();
        }
        if sleeps {
            let wakeups = session.wakeups.load(Ordering::Acquire);
            assert!(wakeups <= 1, "one wake-up is enough");
            assert!(wakeups == 1 || seen.iter().sum::<u32>() == posts, "asleep for ever");
        }
        session.collect(&mut seen);
        assert_eq!(seen.iter().sum::<u32>(), posts);
    });
}

#[test]
fn no_ring_is_lost_where_the_daemon_takes_few_at_a_time() {
    loom::model(|| {
        let session = Session::new();
        let threads = [0, 1].map(|which| {
            let session = session.clone();
            thread::spawn(move || session.post(which))
        });
        let (mut seen, mut position) = ([0; 2], Position::default());
        // SHARE-002: each time one word.
        session.collect_some(&mut position, 1, &mut seen);
        for thread in threads {
            thread.join().unwrap();
        }
        let asleep = fall_asleep(&*session, SLOTS);
        assert!(!asleep || seen == [1, 1], "asleep for ever");
        session.collect_some(&mut position, 1, &mut seen);
        session.collect_some(&mut position, 1, &mut seen);
        assert_eq!(seen, [1, 1]);
    });
}

#[test]
fn a_sleeping_daemon_is_woken() {
    a_sleeper_is_woken(&[0]);
}

#[test]
fn a_sleeping_daemon_is_woken_by_one_of_two() {
    a_sleeper_is_woken(&[0, 1]);
}
