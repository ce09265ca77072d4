//! Refusals: each a number for the program's library, and a sentence for people that names the
//! parameter, its value and what was expected.

use crate::limits::DESCRIPTORS_LEFT;
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};
use std::fmt::Display;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd};
use urxe_shm::control::ControlError;

/// The longest sentence of a refusal, in bytes. What a program has sent may be part of it, and
/// would make the answer longer than a message can be.
const LONGEST_SENTENCE: usize = 2048;

/// A request is refused, for this reason.
pub fn refuse(errno: Errno, sentence: impl Into<String>) -> ControlError {
    let mut message = without_number(&sentence.into());
    // SLOT-124
    if message.len() > LONGEST_SENTENCE {
        let end = (0..=LONGEST_SENTENCE).rfind(|&at| message.is_char_boundary(at));
        message.truncate(end.unwrap_or(0));
        message.push_str(" ...");
    }
    ControlError { errno: errno.raw_os_error(), message }
}

/// A sentence without the number that the text of a system's error ends with: the refusal's own
/// number goes with it, and would stand there twice.
fn without_number(sentence: &str) -> String {
    let text = sentence.rsplit_once(" (os error ").filter(|(_, number)| number.ends_with(')'));
    text.map_or(sentence, |(text, _)| text).to_owned()
}

/// Whether this process may open one more descriptor for a program. `open` is one that it has.
///
/// # Errors
/// That the rest is for others, in a sentence.
pub fn check_descriptors(open: impl AsFd) -> Result<(), ControlError> {
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let another = || rustix::io::fcntl_dupfd_cloexec(&open, 0);
    // A new descriptor has the lowest number that is free: below it are others. The lowest of all
    // is that of one that was only passed on by the request before.
    let next = [another(), another()].map(|fd| fd.or_refuse(Errno::MFILE, "descriptors"));
    let [passed_on, stays] = next;
    let others = (passed_on?, stays?).1.as_raw_fd() as u64;
    // SHARE-121
    if limit < 4 * DESCRIPTORS_LEFT || others < limit - DESCRIPTORS_LEFT {
        return Ok(());
    }
    let sentence = format!(
        "descriptors: this process has {others} of at most {limit} open, and what is left is not \
         for the programs that it serves"
    );
    Err(refuse(Errno::MFILE, sentence))
}

/// Turns the error of something that a request needed into its refusal.
pub trait Refusal<T> {
    /// Refuses with this number and a sentence of `what` and the error.
    fn or_refuse(self, errno: Errno, what: &str) -> Result<T, ControlError>;
}

impl<T, E: Display> Refusal<T> for Result<T, E> {
    fn or_refuse(self, errno: Errno, what: &str) -> Result<T, ControlError> {
        self.map_err(|error| match errno {
            Errno::MFILE => {
                let limit = rustix::process::getrlimit(Resource::Nofile).current;
                let limit = limit.map_or_else(|| "no limit".into(), |limit| limit.to_string());
                let error = without_number(&error.to_string());
                let sentence = format!(
                    "{what}: {error}; the daemon's limit of open descriptors is {limit}, and each \
                     program takes some: raise it (ulimit -n) where the daemon is started"
                );
                refuse(errno, sentence)
            }
            errno => refuse(errno, format!("{what}: {error}")),
        })
    }
}

/// A handle finds nothing.
pub fn no_such(what: &str, handle: u32) -> ControlError {
    refuse(Errno::NOENT, format!("{what} handle {handle}: does not exist in this session"))
}

/// The number of the device with a name.
pub fn find_device<'a>(
    mut names: impl Iterator<Item = &'a str> + Clone,
    name: &str,
) -> Result<usize, ControlError> {
    let known = names.clone();
    names.position(|known| known == name).ok_or_else(|| {
        let known = known.collect::<Vec<_>>().join(", ");
        refuse(Errno::NODEV, format!("device {name:?}: does not exist; there are {known}"))
    })
}

/// Refuses what would go beyond a quota of a session.
pub fn check_quota(what: &str, have: usize, max: usize) -> Result<(), ControlError> {
    // HOST-015
    if have < max {
        return Ok(());
    }
    let sentence = format!("{what}: this session has {have}, and can have no more than {max}");
    Err(refuse(Errno::NOMEM, sentence))
}

/// The handle after the last one of a session: a number that no object of it ever had.
pub fn next_handle(last: &mut u32) -> Result<u32, ControlError> {
    // HOST-014
    let handle = last.checked_add(1);
    let handle =
        handle.ok_or_else(|| refuse(Errno::NOMEM, "this session has used up all handles"))?;
    *last = handle;
    Ok(handle)
}

/// A multicast group that a port cannot join.
pub fn cannot_join(group: IpAddr, source: &io::Error) -> ControlError {
    let errno = Errno::from_io_error(source).unwrap_or(Errno::INVAL);
    refuse(errno, format!("gid {group}: the port cannot join: {source}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sentence_with_much_of_a_program_in_it_is_cut() {
        for (name, left) in [("x", 2048), ("\u{e9}", 2048), ("\u{20ac}", 2046)] {
            let ControlError { message, .. } = refuse(Errno::NODEV, name.repeat(30_000));
            assert_eq!(message, format!("{} ...", name.repeat(left / name.len())));
        }
        assert_eq!(refuse(Errno::NODEV, "x".repeat(2048)).message.len(), 2048);
    }

    #[test]
    fn a_refusal_says_its_number_once() {
        let refused: Result<(), _> = Err(Errno::MFILE);
        let refused = refused.or_refuse(Errno::MFILE, "event pipe").unwrap_err();
        assert_eq!(refused.errno, Errno::MFILE.raw_os_error());
        let limit = rustix::process::getrlimit(Resource::Nofile).current.unwrap().to_string();
        // glibc and musl have other words for it.
        let words = std::io::Error::from(Errno::MFILE).to_string();
        let said = words.split(" (os error").next().unwrap();
        for part in [&format!("event pipe: {said}; "), &*limit, "ulimit -n"] {
            assert!(refused.message.contains(part), "{}", refused.message);
        }
        let error = format!("port 7: {}", Errno::ACCESS);
        assert_eq!(refuse(Errno::ACCESS, error).message, "port 7: Permission denied");
        assert_eq!(refuse(Errno::INVAL, "7 (seven)").message, "7 (seven)");
    }
}
