//! The daemon's end of the pipes that carry events to programs.

use crate::limits::MAX_WAITING_EVENTS;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::pipe::PipeFlags;
use std::collections::{BTreeSet, VecDeque};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use urxe_shm::control::event::{EventRecord, RECORD_LEN};

/// Records on their way to one program. A program that does not read makes its records wait here,
/// up to `MAX_WAITING_EVENTS` of them and one of each kind for each of its objects, and holds up no
/// other.
#[derive(Debug)]
pub struct EventPipe {
    write_end: OwnedFd,
    waiting: VecDeque<[u8; RECORD_LEN]>,
    /// Objects and kinds of records that wait beyond `MAX_WAITING_EVENTS`.
    late: BTreeSet<(u64, u32)>,
    /// The event loop is told when the pipe has room. It stays so while records come, go and are
    /// taken back, until [`flush`](Self::flush) has found nothing left waiting.
    watched: bool,
}

/// As many bytes of whole records as a pipe takes whole or not at all: no more than PIPE_BUF.
pub(crate) const PIECE: usize = 4096 / RECORD_LEN * RECORD_LEN;

/// What a pipe holds that its program has not made larger.
pub(crate) const PIPE_LEN: usize = 64 * 1024;

/// What became of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// It is in the pipe, or waits behind others that do.
    Delivered,
    /// The pipe has just become full: it has to be [watched](EventPipe::watch), and
    /// [`EventPipe::flush`] called when it is writable.
    Blocked,
    /// It is lost, because the reader is gone, or has let one of its object and kind wait behind so
    /// many others that it is told all the same.
    Lost,
}

impl EventPipe {
    /// Makes a pipe; returns our end and the program's.
    pub fn new() -> Result<(EventPipe, OwnedFd), Errno> {
        let (read_end, write_end) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
        // The read end stays blocking: it is the program's, and `read` must mean what it does.
        rustix::io::ioctl_fionbio(&write_end, true)?;
        Ok((
            EventPipe {
                write_end,
                waiting: VecDeque::new(),
                late: BTreeSet::new(),
                watched: false,
            },
            read_end,
        ))
    }

    /// Has the pipe watched by means of `register`, if records wait and it is not watched already.
    pub fn watch<E>(
        &mut self,
        register: impl FnOnce(BorrowedFd<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        if !self.watched && !self.waiting.is_empty() {
            register(self.write_end.as_fd())?;
            self.watched = true;
        }
        Ok(())
    }

    /// Has it watched no longer by means of `deregister`, if no record waits.
    pub fn unwatch(&mut self, deregister: impl FnOnce(BorrowedFd<'_>)) {
        if self.watched && self.waiting.is_empty() {
            deregister(self.write_end.as_fd());
            self.watched = false;
        }
    }

    /// Sends a record, or lets it wait.
    pub fn send(&mut self, record: EventRecord) -> Delivery {
        let record = record.to_bytes();
        if self.waiting.is_empty() {
            match rustix::io::write(&self.write_end, &record) {
                // A pipe takes a record whole or not at all: it divides PIPE_BUF.
                Ok(_) => return Delivery::Delivered,
                Err(Errno::AGAIN | Errno::INTR) => {
                    self.waiting.push_back(record);
                    return Delivery::Blocked;
                }
                Err(_) => return Delivery::Lost,
            }
        }
        self.wait(record)
    }

    /// Lets a record wait, for a [flush](Self::flush), although there may be room.
    pub fn hold(&mut self, record: EventRecord) -> Delivery {
        let is_first = self.waiting.is_empty();
        match self.wait(record.to_bytes()) {
            Delivery::Delivered if is_first => Delivery::Blocked,
            delivery => delivery,
        }
    }

    fn wait(&mut self, record: [u8; RECORD_LEN]) -> Delivery {
        // CQ-033
        if self.waiting.len() >= MAX_WAITING_EVENTS && !self.late.insert(key(record)) {
            return Delivery::Lost;
        }
        self.waiting.push_back(record);
        Delivery::Delivered
    }

    /// Takes back what was sent of an object that is no more, so that the pipe is readable only if
    /// there is something to read. Who reads just now may find it empty for a moment, or get such
    /// a record all the same. Returns whether records of others are left waiting, so that the pipe
    /// has to be [watched](Self::watch).
    pub fn withdraw(&mut self, object: u32) -> bool {
        let is_other =
            |record: &[u8; RECORD_LEN]| EventRecord::from_bytes(*record).object != object.into();
        // CQ-010, CQ-011, CQ-028
        self.waiting.retain(is_other);
        self.late.retain(|&(late, _)| late != object.into());
        let mut others = Vec::new();
        // SHARE-001
        drain(&self.write_end, &mut [0; PIECE], |records| {
            let records = records.as_chunks().0.iter();
            others.extend(records.copied().filter(is_other));
        });
        // Usually there is room, for nobody else should write. But the program may have made the
        // pipe smaller meanwhile, or have written into it.
        for record in others.into_iter().rev() {
            // HOST-027
            self.waiting.push_front(record);
        }
        !self.flush()
    }

    /// Sends what waits. Returns whether nothing is left waiting.
    pub fn flush(&mut self) -> bool {
        while !self.waiting.is_empty() {
            let records = self.waiting.make_contiguous();
            let count = records.len().min(PIECE / RECORD_LEN);
            // A piece goes whole or not at all, and where there is no room for it, there may be
            // for its first record.
            let written = match rustix::io::write(&self.write_end, records[..count].as_flattened())
            {
                Err(Errno::AGAIN) => rustix::io::write(&self.write_end, &records[0]),
                written => written,
            };
            match written {
                Ok(len) => {
                    for record in self.waiting.drain(..len.div_ceil(RECORD_LEN).min(count)) {
                        if !self.late.is_empty() {
                            self.late.remove(&key(record));
                        }
                    }
                }
                Err(Errno::AGAIN | Errno::INTR) => return false,
                // The reader is gone; its session will follow.
                Err(_) => {
                    self.waiting.clear();
                    self.late.clear();
                }
            }
        }
        true
    }
}

/// What a record is about, and what it says of that.
fn key(record: [u8; RECORD_LEN]) -> (u64, u32) {
    let EventRecord { object, kind, .. } = EventRecord::from_bytes(record);
    (object, kind)
}

/// Reads out of a pipe of ours what it holds now, in pieces; not what a program writes into it
/// meanwhile, for that may never end. Nothing is read where it holds more than a pipe that we made:
/// a program that made it larger, and may have filled it itself, is spared no stale record.
pub fn drain<const N: usize>(
    write_end: &OwnedFd,
    piece: &mut [u8; N],
    mut on_piece: impl FnMut(&[u8]),
) {
    let mut left = rustix::io::ioctl_fionread(write_end).unwrap_or(0) as usize;
    if left == 0 || left > PIPE_LEN {
        return;
    }
    // A read end of our own, since the program's may be one that waits. (A thread may have a table
    // of descriptors of its own.)
    let name = format!("/proc/thread-self/fd/{}", write_end.as_raw_fd());
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let Ok(read_end) = rustix::fs::open(name, flags, Mode::empty()) else { return };
    while left > 0
        && let Ok(len @ 1..) = rustix::io::read(&read_end, &mut piece[..left.min(N)])
    {
        left -= len;
        on_piece(&piece[..len]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(number: u64) -> EventRecord {
        EventRecord { user_handle: number, ..EventRecord::default() }
    }

    fn read(read_end: &OwnedFd) -> u64 {
        let mut bytes = [0; RECORD_LEN];
        assert_eq!(rustix::io::read(read_end, &mut bytes), Ok(RECORD_LEN));
        EventRecord::from_bytes(bytes).user_handle
    }

    #[test]
    fn records_that_are_held_come_with_the_next_flush_before_what_is_sent_later() {
        let (mut pipe, read_end) = EventPipe::new().unwrap();
        assert_eq!(pipe.hold(record(0)), Delivery::Blocked, "it has to be flushed");
        assert_eq!(pipe.hold(record(1)), Delivery::Delivered);
        assert_eq!(rustix::io::ioctl_fionread(&read_end), Ok(0));
        assert_eq!(pipe.send(record(2)), Delivery::Delivered);
        assert!(pipe.flush());
        assert_eq!([(); 3].map(|()| read(&read_end)), [0, 1, 2]);
    }

    #[test]
    fn records_that_waited_come_in_order_and_none_is_missing() {
        let (mut pipe, read_end) = EventPipe::new().unwrap();
        let mut sent = 0;
        while pipe.send(record(sent)) != Delivery::Blocked {
            sent += 1;
        }
        sent += 1;
        assert_eq!(pipe.send(record(sent)), Delivery::Delivered);
        sent += 1;
        assert!(!pipe.flush(), "still full");
        let mut expected = 0;
        while expected < sent {
            assert_eq!(read(&read_end), expected);
            expected += 1;
            pipe.flush();
        }
        assert!(pipe.flush());
    }

    #[test]
    fn records_of_an_object_that_is_no_more_are_taken_back() {
        let (mut pipe, read_end) = EventPipe::new().unwrap();
        let of = |object, number| EventRecord { object, ..record(number) };
        for number in 0..6 {
            assert_eq!(pipe.send(of(number % 2, number)), Delivery::Delivered);
        }
        assert!(!pipe.withdraw(1));
        assert_eq!([(); 3].map(|()| read(&read_end)), [0, 2, 4]);
        assert_eq!(rustix::io::ioctl_fionread(&read_end), Ok(0));
        // Also of those that wait.
        while pipe.send(of(7, 0)) != Delivery::Blocked {}
        assert_eq!(pipe.send(of(8, 1)), Delivery::Delivered);
        assert!(!pipe.withdraw(7));
        assert!(pipe.flush());
        assert_eq!(read(&read_end), 1);
        assert_eq!(rustix::io::ioctl_fionread(&read_end), Ok(0));
    }

    #[test]
    fn a_reader_that_never_reads_costs_a_bounded_number_of_records() {
        let (mut pipe, _read_end) = EventPipe::new().unwrap();
        while pipe.send(record(0)) != Delivery::Blocked {}
        let mut waiting = 1;
        while pipe.send(record(0)) == Delivery::Delivered {
            waiting += 1;
        }
        // One of each object and kind has room behind the others.
        assert_eq!(waiting, MAX_WAITING_EVENTS + 1);
        for _ in 0..3 {
            pipe.send(EventRecord { object: 1, ..record(1) });
            pipe.send(EventRecord { kind: 1, ..record(2) });
        }
        assert_eq!(pipe.waiting.len(), MAX_WAITING_EVENTS + 3);
        pipe.withdraw(1);
        pipe.withdraw(0);
        assert_eq!((pipe.waiting.len(), pipe.late.len()), (0, 0));
    }

    #[test]
    fn each_of_very_many_objects_is_told_of_once() {
        const OBJECTS: u64 = 3 * MAX_WAITING_EVENTS as u64;
        let (mut pipe, read_end) = EventPipe::new().unwrap();
        for object in 0..OBJECTS {
            let told = pipe.send(EventRecord { object, ..record(object) });
            assert_ne!(told, Delivery::Lost, "{object}");
        }
        for object in 0..OBJECTS {
            assert_eq!(read(&read_end), object);
            pipe.flush();
        }
        assert!(pipe.flush() && pipe.late.is_empty());
    }

    #[test]
    fn a_reader_that_is_gone_loses_its_records_and_does_no_harm() {
        let (mut pipe, read_end) = EventPipe::new().unwrap();
        drop(read_end);
        assert_eq!(pipe.send(record(0)), Delivery::Lost);
        assert!(pipe.flush());
    }

    #[test]
    fn bytes_of_a_program_in_a_pipe_that_it_made_larger_are_not_read() {
        let (mut pipe, read_end) = EventPipe::new().unwrap();
        rustix::pipe::fcntl_setpipe_size(&read_end, 1 << 20).unwrap();
        assert_eq!(pipe.send(EventRecord { object: 1, ..record(0) }), Delivery::Delivered);
        let program = foreign_write_end(&read_end);
        let foreign = rustix::io::write(&program, &[0xa5; 1 << 20]).unwrap();
        assert!(foreign > PIPE_LEN);
        let mut taken = 0;
        drain(&pipe.write_end, &mut [0; PIECE], |bytes| taken += bytes.len());
        assert_eq!(taken, 0, "SHARE-001");
        assert!(!pipe.withdraw(1));
        assert_eq!(read(&read_end), 0, "the stale record is still there");
    }

    /// The write end that a program makes itself of its read end.
    fn foreign_write_end(read_end: &OwnedFd) -> OwnedFd {
        let name = format!("/proc/self/fd/{}", read_end.as_raw_fd());
        rustix::fs::open(name, OFlags::WRONLY | OFlags::NONBLOCK, Mode::empty()).unwrap()
    }
}
