//! What programs ask for, one kind of object in each file: a request comes in, is judged, and
//! becomes an action on the device.
//!
//! The rules are the same everywhere. A request that fails has changed nothing. An object that
//! another one uses cannot be destroyed (`EBUSY`). Quotas are in [`limits`](crate::limits); what
//! goes beyond them is `ENOMEM`. Every refusal is a sentence that names the parameter, its value,
//! and what was expected.

mod ah;
mod comp_channel;
mod context;
mod cq;
mod listing;
mod mr;
mod multicast;
mod mw;
mod pd;
mod qp;
mod rings;
mod srq;
mod stats;
mod teardown;

pub(crate) use ah::Ah;
pub(crate) use comp_channel::CompChannel;
pub(crate) use context::Context;
pub(crate) use cq::Cq;
pub(crate) use mr::{Mr, MrRequest};
pub(crate) use mw::Mw;
pub(crate) use pd::{Pd, PdUser};
pub(crate) use qp::{Qp, QpRequest, av_from_engine, from_engine};
pub(crate) use rings::ArenaRings;
pub(crate) use srq::Srq;
pub(crate) use teardown::PendingFree;

use rustix::io::Errno;
use rustix::process::Resource;
use std::collections::BTreeMap;
use std::fmt::Display;
use urxe_shm::control::ControlError;

/// A request is refused, for this reason.
pub(crate) fn refuse(errno: Errno, sentence: impl Into<String>) -> ControlError {
    ControlError { errno: errno.raw_os_error(), message: without_number(&sentence.into()) }
}

/// A sentence without the number that the text of a system's error ends with: the refusal's own
/// number goes with it, and would stand there twice.
fn without_number(sentence: &str) -> String {
    let text = sentence.rsplit_once(" (os error ").filter(|(_, number)| number.ends_with(')'));
    text.map_or(sentence, |(text, _)| text).to_owned()
}

/// Turns the error of something that a request needed into its refusal.
pub(crate) trait Refusal<T> {
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

/// Refuses what would go beyond a quota of this session.
pub(crate) fn check_quota(what: &str, have: usize, max: usize) -> Result<(), ControlError> {
    // HOST-015
    if have < max {
        return Ok(());
    }
    let sentence = format!("{what}: this session has {have}, and can have no more than {max}");
    Err(refuse(Errno::NOMEM, sentence))
}

/// The device has no room for another.
fn device_full(what: &str) -> ControlError {
    refuse(Errno::NOMEM, format!("{what}: the device can have no more"))
}

/// Looks a handle up.
pub(crate) fn find<'a, T>(
    table: &'a BTreeMap<u32, T>,
    what: &str,
    handle: u32,
) -> Result<&'a T, ControlError> {
    // HOST-013, CLIENT-015: the table is the session's own.
    table.get(&handle).ok_or_else(|| no_such(what, handle))
}

fn no_such(what: &str, handle: u32) -> ControlError {
    refuse(Errno::NOENT, format!("{what} handle {handle}: does not exist in this session"))
}

/// Refuses to destroy what is in use.
fn check_unused(what: &str, users: usize, of: &str) -> Result<(), ControlError> {
    if users == 0 {
        return Ok(());
    }
    Err(refuse(Errno::BUSY, format!("{what}: still used by {users} {of}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_says_its_number_once() {
        let refused: Result<(), _> = Err(Errno::MFILE);
        let refused = refused.or_refuse(Errno::MFILE, "event pipe").unwrap_err();
        assert_eq!(refused.errno, Errno::MFILE.raw_os_error());
        let limit = rustix::process::getrlimit(Resource::Nofile).current.unwrap().to_string();
        for part in ["event pipe: Too many open files; ", &limit, "ulimit -n"] {
            assert!(refused.message.contains(part), "{}", refused.message);
        }
        let error = format!("port 7: {}", Errno::ACCESS);
        assert_eq!(refuse(Errno::ACCESS, error).message, "port 7: Permission denied");
        assert_eq!(refuse(Errno::INVAL, "7 (seven)").message, "7 (seven)");
    }
}
