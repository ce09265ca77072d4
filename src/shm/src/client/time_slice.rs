//! How long a thread may keep the processor while others want it.
//!
//! From Linux 6.12 on a thread of the common policy may ask for a shorter turn than others have. It
//! gets no more of the processor than they, but in smaller pieces, and so waits less for the next;
//! and where a yield is taken for the whole of a turn (from 6.18 on) it gives away a short one.

use std::io;
use std::mem::{MaybeUninit, size_of};
use std::time::Duration;

/// Asks for turns of this length for this thread, and returns how long they were before. `None` if
/// nothing has changed: where the thread was given another policy than the common one, and before
/// Linux 6.12. The system takes 0.1 to 100 ms.
///
/// # Errors
/// Where the system forbids it.
pub fn replace(slice: Duration) -> io::Result<Option<Duration>> {
    let mut attributes = attributes()?;
    let before = attributes.sched_runtime;
    // Where all have turns of one length, the system says 0.
    if attributes.sched_policy != libc::SCHED_OTHER as u32 || before == 0 {
        return Ok(None);
    }
    attributes.sched_runtime = slice.as_nanos() as u64;
    // SAFETY: the kernel reads as many bytes of the attributes as they say that they have.
    done(unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) })?;
    Ok(Some(Duration::from_nanos(before)))
}

/// How this thread is scheduled.
fn attributes() -> io::Result<libc::sched_attr> {
    let size = size_of::<libc::sched_attr>();
    let mut attributes = MaybeUninit::<libc::sched_attr>::zeroed();
    // SAFETY: the kernel writes no more than `size` bytes.
    done(unsafe { libc::syscall(libc::SYS_sched_getattr, 0, attributes.as_mut_ptr(), size, 0) })?;
    // SAFETY: all of them are numbers, and 0 where the kernel has written nothing.
    Ok(unsafe { attributes.assume_init() })
}

fn done(result: libc::c_long) -> io::Result<()> {
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::process::{getpriority_process, setpriority_process};

    #[test]
    fn turns_become_shorter_and_as_long_as_before() {
        // In a thread of its own, which ends with it.
        let test = || {
            setpriority_process(None, 3).unwrap();
            let (short, shorter) = (Duration::from_micros(500), Duration::from_micros(200));
            let Some(usual) = replace(short).unwrap() else {
                // All that is left where the system knows of one length only.
                assert_eq!(attributes().unwrap().sched_runtime, 0);
                return;
            };
            assert!(usual > short);
            assert_eq!(replace(shorter).unwrap(), Some(short));
            assert_eq!(replace(usual).unwrap(), Some(shorter));
            assert_eq!(replace(usual).unwrap(), Some(usual));
            // Whatever else was said of the thread stays.
            assert_eq!(getpriority_process(None).unwrap(), 3);
        };
        std::thread::spawn(test).join().unwrap();
    }
}
