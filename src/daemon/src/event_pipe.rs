//! The daemon's end of the pipes that carry events to programs.

use crate::limits::MAX_WAITING_EVENTS;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::pipe::PipeFlags;
use std::collections::VecDeque;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use urxe_shm::event::{EventRecord, RECORD_LEN};

/// Records on their way to one program. A program that does not read makes its records wait here,
/// up to [`MAX_WAITING_EVENTS`] of them, and nobody else.
#[derive(Debug)]
pub(crate) struct EventPipe {
    write_end: OwnedFd,
    waiting: VecDeque<[u8; RECORD_LEN]>,
}

/// As many bytes of whole records as a pipe takes whole or not at all: no more than PIPE_BUF.
const PIECE: usize = 4096 / RECORD_LEN * RECORD_LEN;

/// What became of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Delivery {
    /// It is in the pipe, or waits behind others that do.
    Delivered,
    /// The pipe has just become full: have [`EventPipe::flush`] called when it is writable.
    Blocked,
    /// It is lost, because the reader does not read, or is gone.
    Lost,
}

impl EventPipe {
    /// Makes a pipe; returns our end and the program's.
    pub(crate) fn new() -> Result<(EventPipe, OwnedFd), Errno> {
        let (read_end, write_end) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
        // The read end stays blocking: it is the program's, and `read` must mean what it does.
        rustix::io::ioctl_fionbio(&write_end, true)?;
        Ok((EventPipe { write_end, waiting: VecDeque::new() }, read_end))
    }

    /// Sends a record, or lets it wait.
    pub(crate) fn send(&mut self, record: EventRecord) -> Delivery {
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
        if self.waiting.len() >= MAX_WAITING_EVENTS {
            return Delivery::Lost;
        }
        self.waiting.push_back(record);
        Delivery::Delivered
    }

    /// Takes back what was sent of an object that is no more, so that the pipe is readable only if
    /// there is something to read. Who reads just now may find it empty for a moment, or get such
    /// a record all the same.
    pub(crate) fn withdraw(&mut self, object: u32) {
        let is_other =
            |record: &[u8; RECORD_LEN]| EventRecord::from_bytes(*record).object != object.into();
        self.waiting.retain(is_other);
        if rustix::io::ioctl_fionread(&self.write_end) == Ok(0) {
            return;
        }
        let mut others = Vec::new();
        drain(&self.write_end, &mut [0; PIECE], |records| {
            let records = records.as_chunks().0.iter();
            others.extend(records.copied().filter(is_other));
        });
        // There is room: nobody else writes.
        for records in others.as_flattened().chunks(PIECE) {
            let _ = rustix::io::write(&self.write_end, records);
        }
    }

    /// Sends what waits. Returns whether nothing is left waiting.
    pub(crate) fn flush(&mut self) -> bool {
        while let Some(record) = self.waiting.front() {
            match rustix::io::write(&self.write_end, record) {
                Ok(_) => {
                    self.waiting.pop_front();
                }
                Err(Errno::AGAIN | Errno::INTR) => return false,
                // The reader is gone; its session will follow.
                Err(_) => self.waiting.clear(),
            }
        }
        true
    }
}

/// Reads a pipe of ours empty, in pieces.
pub(crate) fn drain<const N: usize>(
    write_end: &OwnedFd,
    piece: &mut [u8; N],
    mut on_piece: impl FnMut(&[u8]),
) {
    // A read end of our own, since the program's may be one that waits.
    let name = format!("/proc/self/fd/{}", write_end.as_raw_fd());
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let Ok(read_end) = rustix::fs::open(name, flags, Mode::empty()) else { return };
    while let Ok(len @ 1..) = rustix::io::read(&read_end, &mut piece[..]) {
        on_piece(&piece[..len]);
    }
}

impl AsFd for EventPipe {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.write_end.as_fd()
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
        pipe.withdraw(1);
        assert_eq!([(); 3].map(|()| read(&read_end)), [0, 2, 4]);
        assert_eq!(rustix::io::ioctl_fionread(&read_end), Ok(0));
        // Also of those that wait.
        while pipe.send(of(7, 0)) != Delivery::Blocked {}
        assert_eq!(pipe.send(of(8, 1)), Delivery::Delivered);
        pipe.withdraw(7);
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
        assert_eq!(waiting, MAX_WAITING_EVENTS);
    }

    #[test]
    fn a_reader_that_is_gone_loses_its_records_and_does_no_harm() {
        let (mut pipe, read_end) = EventPipe::new().unwrap();
        drop(read_end);
        assert_eq!(pipe.send(record(0)), Delivery::Lost);
        assert!(pipe.flush());
    }
}
