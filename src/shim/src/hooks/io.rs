//! Reading and writing. What is written to a device is a command; what is read from a completion
//! channel, or from the asynchronous events of a context, is an event.

use super::{answer, answer_uncancelled, fail, hooks, socket};
use crate::descriptors::{DESCRIPTORS, Descriptor};
use crate::next;
use crate::ucma::Done;
use crate::uverbs::MAX_EVENT_LEN;
use libc::{c_int, c_void, iovec, size_t, ssize_t};
use rustix::io::Errno;
use std::ptr;
use urxe_shm::client::cancellation::cancellation_point;
use urxe_shm::control::event::{EventRecord, RECORD_LEN};
use urxe_shm::control::{CmChannelHandle, CompChannelHandle, ContextHandle};

hooks! {
    fn read(fd: c_int, buf: *mut c_void, len: size_t) -> ssize_t {
        if !DESCRIPTORS.has(fd) {
            return next::read(fd, buf, len);
        }
        read_ours(fd, buf, len, || next::read(fd, buf, len))
    }

    fn __read_chk(fd: c_int, buf: *mut c_void, len: size_t, room: size_t) -> ssize_t {
        // Where there is less room than is to be read, libc ends the program.
        if !DESCRIPTORS.has(fd) || room < len {
            return next::__read_chk(fd, buf, len, room);
        }
        read_ours(fd, buf, len, || next::read(fd, buf, len))
    }

    fn readv(fd: c_int, parts: *const iovec, count: c_int) -> ssize_t {
        match first_part(fd, parts, count) {
            None => next::readv(fd, parts, count),
            // One event goes into one part; like any read, this one may end early.
            Some(part) => read_ours(fd, part.iov_base, part.iov_len, || {
                next::readv(fd, parts, count)
            }),
        }
    }

    fn write(fd: c_int, buf: *const c_void, len: size_t) -> ssize_t {
        if !DESCRIPTORS.has(fd) {
            return next::write(fd, buf, len);
        }
        write_ours(fd, buf, len, || next::write(fd, buf, len))
    }

    fn writev(fd: c_int, parts: *const iovec, count: c_int) -> ssize_t {
        match first_part(fd, parts, count) {
            None => next::writev(fd, parts, count),
            // One command is one part; like any write, this one may end early.
            Some(part) => write_ours(fd, part.iov_base, part.iov_len, || {
                next::writev(fd, parts, count)
            }),
        }
    }
}

/// The first part that is not empty, if `fd` is ours.
///
/// # Safety
/// `parts` must be `count` parts.
unsafe fn first_part(fd: c_int, parts: *const iovec, count: c_int) -> Option<iovec> {
    if !DESCRIPTORS.has(fd) || parts.is_null() {
        return None;
    }
    // What libc refuses, it may.
    let count = usize::try_from(count).ok().filter(|&count| count <= libc::UIO_MAXIOV as usize)?;
    // SAFETY: the caller's promise.
    let parts = unsafe { std::slice::from_raw_parts(parts, count) };
    parts.iter().find(|part| part.iov_len != 0).copied()
}

/// Reads from a descriptor that the table has, or natively if it is not ours after all.
///
/// # Safety
/// Nobody else may use the `len` bytes at `buf` meanwhile, unless it is null.
unsafe fn read_ours(
    fd: c_int,
    buf: *mut c_void,
    len: size_t,
    native: impl FnOnce() -> ssize_t,
) -> ssize_t {
    let mut events = None;
    let checked = answer(|| {
        events = events_of(fd, len)?;
        Ok(0)
    });
    match (checked, events) {
        (0, Some(_)) if buf.is_null() => fail(Errno::FAULT),
        // SAFETY: the caller's promise; an event fits.
        (0, Some(events)) => unsafe { read_event(fd, buf, events) },
        (0, None) => {
            let got = native();
            socket::note_read(fd, got);
            got
        }
        (failure, _) => failure,
    }
}

/// Events that a thread waits for.
#[derive(Clone, Copy)]
enum Events {
    /// Of a completion channel of a context.
    Completion(ContextHandle, CompChannelHandle),
    Async,
}

/// The events that a descriptor is for, of which one fits into `len` bytes; `None` if for none.
fn events_of(fd: c_int, len: usize) -> Result<Option<Events>, Errno> {
    match DESCRIPTORS.genuine(fd) {
        None | Some(Descriptor::Private | Descriptor::Netlink(_)) => Ok(None),
        // The devices have no `read`.
        Some(Descriptor::Uverbs(_) | Descriptor::RdmaCm(_)) => Err(Errno::INVAL),
        Some(Descriptor::CompletionChannel(events)) => {
            events.check_read(len)?;
            Ok(Some(Events::Completion(events.context(), events.channel())))
        }
        Some(Descriptor::AsyncEvents(events)) => {
            events.check_read(len)?;
            Ok(Some(Events::Async))
        }
    }
}

/// Reads records from a pipe until one is of an object that lives, and hands it out. Waiting, or
/// not, is the pipe's own, and so is what a signal or the thread's cancellation does to it: nothing
/// is held meanwhile.
///
/// # Safety
/// At `buf` there must be room for an event.
unsafe fn read_event(fd: c_int, buf: *mut c_void, events: Events) -> ssize_t {
    /// The object of the event is no more.
    const AGAIN: ssize_t = 0;
    /// Another thread has closed it.
    const CLOSED: ssize_t = 1;
    loop {
        let mut record = [0; RECORD_LEN];
        // SAFETY: a record may be written there.
        let got = unsafe { next::read(fd, record.as_mut_ptr().cast(), RECORD_LEN) };
        if got < 0 {
            return got;
        }
        let mut event = [0; MAX_EVENT_LEN];
        let len = answer(|| {
            if got != RECORD_LEN as ssize_t {
                let len = at_the_end(fd, events, &mut event)?;
                return Ok(len.map_or(CLOSED, |len| len as ssize_t));
            }
            let record = EventRecord::from_bytes(record);
            let handed = DESCRIPTORS.with(fd, |descriptor| match descriptor {
                Descriptor::CompletionChannel(events) => Some(events.hand_out(&record, &mut event)),
                Descriptor::AsyncEvents(events) => Some(events.hand_out(&record, &mut event)),
                Descriptor::Uverbs(_)
                | Descriptor::RdmaCm(_)
                | Descriptor::Netlink(_)
                | Descriptor::Private => None,
            });
            let handed = handed.flatten();
            Ok(handed.map_or(CLOSED, |len| len.map_or(AGAIN, |len| len as ssize_t)))
        });
        match len {
            AGAIN => {}
            // SAFETY: there is nothing to drop here.
            CLOSED => return unsafe { wait_until_closed(events) },
            2.. => {
                // SAFETY: the caller's promise.
                unsafe { ptr::copy_nonoverlapping(event.as_ptr(), buf.cast(), len as usize) };
                return len;
            }
            _ => return len,
        }
    }
}

/// What a program reads at the end of a pipe, which is there when the daemon is gone; `None` if it
/// is there because another thread has closed the descriptor.
fn at_the_end(fd: c_int, waited_for: Events, event: &mut [u8]) -> Result<Option<usize>, Errno> {
    match (DESCRIPTORS.genuine(fd), waited_for) {
        (Some(Descriptor::CompletionChannel(events)), Events::Completion(context, channel))
            if (events.context(), events.channel()) == (context, channel) =>
        {
            events.at_the_end(event).map(Some)
        }
        (Some(Descriptor::AsyncEvents(events)), Events::Async) => {
            events.at_the_end(event).map(Some)
        }
        _ => Ok(None),
    }
}

/// Goes on with waiting for events after another thread has closed their descriptor, and says `EIO`
/// when the device is closed: with the kernel, a channel lasts as long as a thread waits in it. Of
/// asynchronous events there is an end only then.
///
/// # Safety
/// No frame between here and the program may have anything to drop.
unsafe fn wait_until_closed(events: Events) -> ssize_t {
    /// Between two looks whether the device is still open.
    const PAUSE: libc::timespec = libc::timespec { tv_sec: 0, tv_nsec: 20_000_000 };
    // CLIENT-064
    while let Events::Completion(context, _) = events
        && answer(|| Ok(c_int::from(is_open(context)))) == 1
    {
        // SAFETY: it only waits; and the caller's promise, for the thread may be cancelled.
        let interrupted = unsafe { next::nanosleep(&PAUSE, ptr::null_mut()) };
        if interrupted != 0 {
            return interrupted as ssize_t;
        }
    }
    fail(Errno::IO)
}

/// Whether the program has an open device that is this context.
fn is_open(context: ContextHandle) -> bool {
    let is_it = |descriptor: &Descriptor| match descriptor {
        Descriptor::Uverbs(device) => device.is(context),
        _ => false,
    };
    let mut next = DESCRIPTORS.next_from(0);
    while let Some(fd) = next {
        if DESCRIPTORS.with(fd, is_it) == Some(true) {
            return true;
        }
        next = DESCRIPTORS.next_from(fd + 1);
    }
    false
}

/// Writes to a descriptor that the table has, or natively if it is not ours after all.
///
/// # Safety
/// Nobody else may change the `len` bytes at `buf` meanwhile, unless it is null.
unsafe fn write_ours(
    fd: c_int,
    buf: *const c_void,
    len: size_t,
    native: impl FnOnce() -> ssize_t,
) -> ssize_t {
    // CLIENT-063: it ends before the command or after it, as with the kernel.
    // SAFETY: neither this nor a hook has anything to drop by now.
    unsafe { cancellation_point() };
    let is_memory = !buf.is_null() && isize::try_from(len).is_ok();
    // SAFETY: the caller's promise.
    let bytes = is_memory.then(|| unsafe { std::slice::from_raw_parts(buf.cast::<u8>(), len) });
    // The data path: a look at the bytes is enough, and a system call would cost more than all
    // the rest.
    let rung = DESCRIPTORS.with(fd, |descriptor| match (descriptor, bytes) {
        (Descriptor::Uverbs(context), Some(bytes)) => context.doorbell(bytes),
        _ => None,
    });
    if let Some(rung) = rung.flatten() {
        return answer_uncancelled(|| Ok(rung? as ssize_t));
    }
    match DESCRIPTORS.genuine(fd) {
        Some(Descriptor::Uverbs(context)) => {
            // Dropped within: it may end there.
            answer(move || Ok(context.write(bytes.ok_or(Errno::FAULT)?)? as ssize_t))
        }
        Some(Descriptor::RdmaCm(channel)) => {
            let mut waits_in = None;
            let needs_event = &mut waits_in;
            let done = answer(move || match channel.write(bytes.ok_or(Errno::FAULT)?)? {
                Done::Taken(count) => Ok(count as ssize_t),
                Done::NeedsEvent(channel) => {
                    *needs_event = Some(channel);
                    Ok(0)
                }
            });
            match (waits_in, bytes) {
                // SAFETY: the caller's promise.
                (Some(channel), Some(bytes)) => unsafe { wait_for_cm_event(fd, channel, bytes) },
                _ => done,
            }
        }
        Some(Descriptor::Netlink(_)) => socket::ask(fd, || bytes.ok_or(Errno::FAULT)),
        // Events cannot be written: they are the read ends of pipes, and libc says so.
        None | Some(_) => native(),
    }
}

/// Reads from the pipe of a channel until there is an event for a command that asks for one. Like
/// [`read_event`], it waits as the pipe does, with nothing held.
///
/// Programs end while a thread of theirs waits for events of a channel that they have closed. It
/// is to find out nothing of that: with the kernel, the channel then lasts as long as it waits.
///
/// # Safety
/// `fd` must be for the program to read from.
unsafe fn wait_for_cm_event(fd: c_int, channel: CmChannelHandle, command: &[u8]) -> ssize_t {
    /// Another thread has closed it.
    const CLOSED: ssize_t = 0;
    /// Another thread was faster, or the event was taken back.
    const AGAIN: ssize_t = 1;
    let opened = || match DESCRIPTORS.genuine(fd) {
        Some(Descriptor::RdmaCm(same)) if same.handle() == channel => Some(same),
        _ => None,
    };
    loop {
        let mut announced = 0u8;
        // SAFETY: a byte may be written there.
        let got = unsafe { next::read(fd, (&raw mut announced).cast(), 1) };
        let done = answer(|| match opened() {
            None => Ok(CLOSED),
            // What the read has said is the answer.
            Some(_) if got < 0 => Ok(got),
            Some(same) if got == 0 => Err(same.at_the_end()),
            Some(same) => match same.take_event(command)? {
                Some(len) => Ok(len as ssize_t),
                // Not without a look: the number may be a stranger's now.
                None => Ok(if opened().is_some() { AGAIN } else { CLOSED }),
            },
        });
        match done {
            AGAIN => {}
            // SAFETY: it only waits for a signal.
            CLOSED => return unsafe { next::pause() } as ssize_t,
            done => return done,
        }
    }
}
