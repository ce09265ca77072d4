//! Refusals: what the program's library is told, and a sentence for who runs the program.

use crate::reasons::Level;
use rustix::io::Errno;
use std::borrow::Cow;
use std::fmt::Display;
use urxe_shm::client::CallError;
use urxe_shm::control::errnos;

/// A command was not done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refused {
    /// The number that the kernel would give.
    pub(crate) errno: Errno,
    /// Parameter, value and what was expected, if that is known.
    reason: Option<Cow<'static, str>>,
    level: Level,
}

/// Where there is nothing to say but the number.
impl From<Errno> for Refused {
    fn from(errno: Errno) -> Refused {
        Refused { errno, reason: None, level: level_of(errno) }
    }
}

/// What the daemon refuses has the errno that the kernel would give.
impl From<CallError> for Refused {
    fn from(error: CallError) -> Refused {
        let errno = match &error {
            CallError::Refused(error) => errno_of(error.errno),
            CallError::System { source, .. } => Errno::from_io_error(source).unwrap_or(Errno::IO),
            _ => Errno::IO,
        };
        Refused::new(errno, error.to_string())
    }
}

impl Refused {
    /// For this reason.
    pub(crate) fn new(errno: Errno, reason: impl Into<Cow<'static, str>>) -> Refused {
        Refused { reason: Some(reason.into()), ..Refused::from(errno) }
    }

    /// `EINVAL`: a parameter has a value that it cannot have.
    pub(crate) fn invalid(parameter: &str, value: impl Display, expected: &str) -> Refused {
        Refused::new(Errno::INVAL, format!("{parameter} {value}: expected {expected}"))
    }

    /// Libraries ask for this only to find out what there is.
    pub(crate) fn into_probe(self) -> Refused {
        Refused { level: Level::Debug, ..self }
    }

    /// Why, in a sentence.
    pub(crate) fn sentence(&self) -> Cow<'_, str> {
        match &self.reason {
            Some(reason) => Cow::Borrowed(reason),
            None => Cow::Owned(errnos::meaning(self.errno)),
        }
    }

    /// Who wants to know of it.
    pub(crate) fn level(&self) -> Level {
        self.level
    }
}

/// The errno of this number, which may be any: `EIO` if there is none, whatever its sign.
pub(crate) fn errno_of(number: i32) -> Errno {
    match number.unsigned_abs() {
        number @ 1..4096 => Errno::from_raw_os_error(number as i32),
        _ => Errno::IO,
    }
}

/// What a device does not have, a program may do without; and there may be nothing to take.
fn level_of(errno: Errno) -> Level {
    match errno {
        Errno::OPNOTSUPP | Errno::NOSYS => Level::Warn,
        Errno::AGAIN => Level::Debug,
        _ => Level::Error,
    }
}

/// A result with the number alone, for what tests compare.
#[cfg(test)]
pub(crate) trait NumberOnly<T> {
    fn number_only(self) -> Result<T, Errno>;
}

#[cfg(test)]
impl<T> NumberOnly<T> for Result<T, Refused> {
    fn number_only(self) -> Result<T, Errno> {
        self.map_err(|refused| refused.errno)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use urxe_shm::control::ControlError;

    #[test]
    fn a_refusal_of_the_daemon_keeps_its_number_and_its_sentence() {
        let error = ControlError { errno: libc::EBUSY, message: "pd: still used by 2 QPs".into() };
        let refused = Refused::from(CallError::Refused(error));
        assert_eq!((refused.errno, &*refused.sentence()), (Errno::BUSY, "pd: still used by 2 QPs"));
        let nonsense = ControlError { errno: i32::MIN, message: String::new() };
        assert_eq!(Refused::from(CallError::Refused(nonsense)).errno, Errno::IO);
    }

    #[test]
    fn a_bare_number_is_told_with_its_usual_meaning() {
        let refused = Refused::from(Errno::BUSY);
        assert_eq!(refused.sentence(), errnos::meaning(Errno::BUSY));
        let refused = Refused::invalid("port", 2, "1");
        assert_eq!((refused.errno, &*refused.sentence()), (Errno::INVAL, "port 2: expected 1"));
    }

    #[test]
    fn probes_of_libraries_are_no_failures_of_a_program() {
        assert_eq!(Refused::from(Errno::INVAL).level(), Level::Error);
        assert_eq!(Refused::from(Errno::INVAL).into_probe().level(), Level::Debug);
        assert_eq!(Refused::from(Errno::OPNOTSUPP).level(), Level::Warn);
    }
}
