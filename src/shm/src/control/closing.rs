//! Closing what others have had their hands on, without waiting for what they have prepared.
//!
//! The last close of a TCP socket waits, if its owner has said so (`SO_LINGER`), until the peer has
//! taken what is under way; and the last close of a Unix socket closes all that was sent to it and
//! not received. The kernel does not wait where a thread closes by ending. So a thread takes the
//! descriptors into a table of its own, and ends.
//!
//! A program that is executed has copies of all of them, which it closes when it begins. Its close
//! must not be the last, or it would be the one that waits: while one begins, nothing is closed.

use crate::control::MAX_FDS;
use crate::descriptor_table::{close_all_but, unshare};
use parking_lot::{Mutex, RwLock, RwLockReadGuard};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::pipe::{PipeFlags, pipe_with};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

/// Descriptors that are closed at a time; with so many there is no room for more.
const BATCH: usize = 64;

/// How long others are waited for, to be closed with the first: each batch costs a thread.
const GATHER: Duration = Duration::from_millis(2);

/// For how long at most nothing is closed because a program begins.
const BEGIN: Duration = Duration::from_secs(1);

/// How often it is looked whether programs have begun.
const LOOK: Duration = Duration::from_micros(200);

/// How long a program that is to be executed waits for what is being closed: a few times what that
/// takes, unless it is a file whose server does not answer.
const CLOSE: Duration = Duration::from_millis(10);

/// Read while descriptors are closed.
static CLOSING: RwLock<()> = RwLock::new(());

/// The programs that are executed and have not begun, as far as is known.
static BEGINNING: Mutex<Vec<Beginning>> = Mutex::new(Vec::new());

/// A program that begins.
struct Beginning {
    /// Hangs up when it has begun, or ended.
    pipe: OwnedFd,
    since: Instant,
}

impl Beginning {
    fn is_over(&self) -> bool {
        has_hung_up(&self.pipe) || self.since.elapsed() >= BEGIN
    }
}

/// Whether the other end of a pipe or socket is closed everywhere.
pub fn has_hung_up(descriptor: &impl AsFd) -> bool {
    let mut polled = [PollFd::new(descriptor, PollFlags::empty())];
    let found = poll(&mut polled, Some(&Timespec::default()));
    found.is_ok() && polled[0].revents().contains(PollFlags::HUP)
}

/// Executes a program by `execute`, without having it wait for what is closed by it. The descriptor
/// is for the program alone, which is to close it when it begins: nothing of this process is closed
/// until then. What is being closed and takes long is not waited for.
///
/// # Errors
/// Those of `execute`, and if there is no descriptor for it.
pub fn execute<T>(execute: impl FnOnce(OwnedFd) -> io::Result<T>) -> io::Result<T> {
    let (pipe, of_program) = pipe_with(PipeFlags::CLOEXEC)?;
    BEGINNING.lock().push(Beginning { pipe, since: Instant::now() });
    // SLOT-129: closers that come now see that it begins.
    drop(CLOSING.try_write_for(CLOSE));
    execute(of_program)
}

/// Waits until no program begins. The next is executed when the guard is dropped, or a little later
/// than it would have been.
fn while_nothing_begins() -> RwLockReadGuard<'static, ()> {
    loop {
        let closing = CLOSING.read();
        let mut beginning = BEGINNING.lock();
        beginning.retain(|program| !program.is_over());
        if beginning.is_empty() {
            return closing;
        }
        drop((beginning, closing));
        std::thread::sleep(LOOK);
    }
}

/// Where descriptors go to be closed: a thread of its own, which does not wait either, since what
/// is to be closed after one would wait with it.
#[derive(Debug)]
pub struct Closer {
    thread: Sender<OwnedFd>,
    /// How many it has that are not closed.
    open: Arc<AtomicUsize>,
}

impl Closer {
    /// Starts the thread, which calls `first` first of all. It ends after the last has been closed,
    /// for which nobody waits.
    ///
    /// # Errors
    /// If there can be no further thread.
    pub fn new(first: fn()) -> io::Result<Closer> {
        let (thread, descriptors) = channel();
        let open = Arc::new(AtomicUsize::new(0));
        let of_thread = Arc::clone(&open);
        let closer = std::thread::Builder::new().name("urxed-closer".into());
        closer.spawn(move || {
            first();
            close_all(&descriptors, &of_thread);
        })?;
        Ok(Closer { thread, open })
    }

    /// Whether those of one message more, at least, can be closed soon. Who takes descriptors from
    /// programs takes none while there is no room: where they are sent faster than they are closed,
    /// they would take all that there are.
    pub fn has_room(&self) -> bool {
        self.open.load(Ordering::Relaxed) + MAX_FDS < BATCH
    }

    /// Closes a descriptor some time. Nobody waits for it.
    pub fn close(&self, descriptor: OwnedFd) {
        self.open.fetch_add(1, Ordering::Relaxed);
        // SLOT-001: the thread lives as long as this end.
        let _ = self.thread.send(descriptor);
    }
}

fn close_all(descriptors: &Receiver<OwnedFd>, open: &AtomicUsize) {
    while let Ok(first) = descriptors.recv() {
        std::thread::sleep(GATHER);
        let batch: Vec<_> =
            std::iter::once(first).chain(descriptors.try_iter().take(BATCH)).collect();
        let count = batch.len();
        // SHARE-105
        close_by_exit(batch);
        open.fetch_sub(count, Ordering::Relaxed);
    }
}

/// Closes descriptors, by a thread that nobody waits for. If there can be no such thread, they are
/// closed here.
pub fn close_by_exit(descriptors: Vec<OwnedFd>) {
    let mut numbers: Vec<RawFd> = descriptors.iter().map(AsRawFd::as_raw_fd).collect();
    numbers.sort_unstable();
    let (taken, until_taken) = channel::<()>();
    let (dropped, until_dropped) = channel::<()>();
    // SLOT-128
    let _none_begins = while_nothing_begins();
    let thread = std::thread::Builder::new().name("urxed-closing".into()).spawn(move || {
        // If it cannot have a table of its own, it ends without effect.
        let _ = keep_only(&numbers);
        drop(taken);
        // Its own close is to be the last. Nothing is ever sent, so this ends when the other end
        // is dropped, as above.
        let _ = until_dropped.recv();
    });
    if thread.is_ok() {
        let _ = until_taken.recv();
    }
    drop(descriptors);
    drop(dropped);
}

/// Gives the calling thread a descriptor table of its own, with nothing but these, which are in
/// order.
fn keep_only(numbers: &[RawFd]) -> io::Result<()> {
    let Some(last) = numbers.last() else { return Ok(()) };
    // First the copy, which has none above.
    unshare(last + 1)?;
    // SAFETY: the table is the calling thread's own now, which knows of nothing in it.
    unsafe { close_all_but(0, numbers) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::sockopt::{
        set_socket_linger, set_socket_recv_buffer_size, set_socket_send_buffer_size,
    };
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::process::{Command, Stdio};
    use std::sync::atomic::AtomicBool;

    /// A socket whose last close waits for as long, unless the other end is read from.
    fn lingering(listener: &TcpListener, linger: Duration) -> (TcpStream, TcpStream) {
        let mut stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (other, _) = listener.accept().unwrap();
        // What is under way costs little memory.
        set_socket_send_buffer_size(&stream, 1 << 14).unwrap();
        set_socket_recv_buffer_size(&other, 1 << 14).unwrap();
        set_socket_linger(&stream, Some(linger)).unwrap();
        stream.set_nonblocking(true).unwrap();
        while stream.write(&[7; 65_536]).is_ok() {}
        stream.set_nonblocking(false).unwrap();
        (stream, other)
    }

    #[test]
    fn a_socket_that_lingers_keeps_nobody_waiting() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (stream, mut other) = lingering(&listener, Duration::from_secs(60));
        let (mut read_end, write_end) = std::io::pipe().unwrap();
        let since = Instant::now();
        close_by_exit(vec![stream.into()]);
        close_by_exit(vec![write_end.into()]);
        assert_eq!(read_end.read(&mut [0]).unwrap(), 0, "it is closed");
        // All that was under way arrives, and then the end: the socket is closed too.
        let mut under_way = Vec::new();
        other.read_to_end(&mut under_way).unwrap();
        assert!(!under_way.is_empty());
        assert!(since.elapsed() < Duration::from_secs(30), "it has lingered");
    }

    /// SLOT-128
    #[test]
    fn a_program_that_is_executed_waits_for_nothing_that_is_closed_meanwhile() {
        let linger = Duration::from_secs(20);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                // As many as one process may have open.
                let mut others = Vec::new();
                while others.len() < 400 && !is_over.load(Ordering::Relaxed) {
                    let (stream, other) = lingering(&listener, linger);
                    others.push(other);
                    close_by_exit(vec![stream.into()]);
                }
                while !is_over.load(Ordering::Relaxed) {
                    std::thread::sleep(LOOK);
                }
            });
            let slowest = (0..300).map(|_| {
                let since = Instant::now();
                // It closes the descriptor when it ends.
                let spawn = |begun| Command::new("/bin/true").stdout(Stdio::from(begun)).spawn();
                execute(spawn).unwrap().wait().unwrap();
                since.elapsed()
            });
            let slowest = slowest.max();
            is_over.store(true, Ordering::Relaxed);
            assert!(slowest.unwrap() < linger / 2, "{slowest:?}");
        });
    }

    #[test]
    fn nothing_is_closed_while_a_program_begins() {
        let begin = || execute(Ok).unwrap();
        let (first, second) = (begin(), begin());
        let (mut read_end, write_end) = std::io::pipe().unwrap();
        let (closed, until_closed) = channel();
        let closing = std::thread::spawn(move || {
            close_by_exit(vec![write_end.into()]);
            closed.send(()).unwrap();
        });
        drop(first);
        let soon = Duration::from_millis(20);
        assert!(until_closed.recv_timeout(soon).is_err(), "the second has not begun");
        drop(second);
        closing.join().unwrap();
        assert_eq!(read_end.read(&mut [0]).unwrap(), 0);
        // One that never begins keeps what is closed waiting for a while only.
        let _never = begin();
        close_by_exit(vec![read_end.into()]);
    }

    /// SLOT-129
    #[test]
    fn a_close_that_is_held_up_holds_up_no_program_and_no_other_close() {
        let held_up = while_nothing_begins();
        let since = Instant::now();
        let begun = execute(Ok).unwrap();
        assert!(since.elapsed() < BEGIN, "{:?}", since.elapsed());
        drop(begun);
        let (mut read_end, write_end) = std::io::pipe().unwrap();
        close_by_exit(vec![write_end.into()]);
        assert_eq!(read_end.read(&mut [0]).unwrap(), 0);
        drop(held_up);
    }

    /// SHARE-012
    #[test]
    fn a_closer_with_enough_to_do_says_so_and_nobody_waits_for_it() {
        // Nothing is closed here.
        let (thread, descriptors) = channel();
        let busy = Closer { thread, open: Arc::default() };
        let mut closed = 0;
        while busy.has_room() {
            for _ in 0..MAX_FDS {
                busy.close(std::io::pipe().unwrap().0.into());
            }
            closed += MAX_FDS;
        }
        assert!((MAX_FDS..=BATCH).contains(&closed), "{closed}");
        for _ in 0..2 * BATCH {
            busy.close(std::io::pipe().unwrap().0.into());
        }
        assert_eq!(descriptors.try_iter().count(), closed + 2 * BATCH);

        let closer = Closer::new(|| ()).unwrap();
        let since = Instant::now();
        for _ in 0..4 * BATCH {
            closer.close(std::io::pipe().unwrap().0.into());
        }
        while closer.open.load(Ordering::Relaxed) > 0 {
            assert!(since.elapsed() < Duration::from_secs(60), "they are never closed");
            std::thread::yield_now();
        }
        assert!(closer.has_room());
    }

    #[test]
    fn the_descriptors_of_this_process_stay_as_they_are() {
        let kept: Vec<_> = (0..5).map(|_| std::io::pipe().unwrap()).collect();
        let (closed, _) = std::io::pipe().unwrap();
        close_by_exit(vec![closed.into()]);
        for (mut read_end, mut write_end) in kept {
            write_end.write_all(&[1]).unwrap();
            read_end.read_exact(&mut [0]).unwrap();
        }
    }
}
