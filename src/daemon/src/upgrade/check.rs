//! Whether another program understands the state of this one: it is executed as a child, with the
//! arguments of this one and one more, and reads at its standard input what it would go on with.

use super::error::UpgradeError;
use super::execute::Program;
use super::image::{self, State};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io::{self, Read, Write};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

/// The argument by which a program is asked.
pub(crate) const ARGUMENT: &str = "--check-upgrade";

/// What it answers if it understands.
const UNDERSTOOD: &str = "understood";

/// How long it may take: a state is read in milliseconds.
const LIMIT: Duration = Duration::from_secs(10);

/// The most that it may say.
const MAX_ANSWER: usize = 4096;

/// Answers who asks whether this program understands the state at its standard input.
pub(crate) fn answer() -> ExitCode {
    let understood = image::read(io::stdin()).and_then(|bytes| State::decode(&bytes));
    let understood = understood.and_then(|state| state.config_file().map(drop));
    let (line, code) = match understood {
        Ok(()) => (UNDERSTOOD.to_owned(), ExitCode::SUCCESS),
        Err(error) => (error.to_string(), ExitCode::FAILURE),
    };
    // Who asked does without it if it is gone.
    let _ = writeln!(io::stdout(), "{line}");
    code
}

/// Asks a program whether it understands a state.
///
/// # Errors
/// If it does not say so, in time.
pub(crate) fn understands(program: &Program, state: &[u8]) -> Result<(), UpgradeError> {
    understands_within(program, state, LIMIT)
}

fn understands_within(
    program: &Program,
    state: &[u8],
    limit: Duration,
) -> Result<(), UpgradeError> {
    let path = || program.path().to_path_buf();
    let state = image::sealed(state).map_err(UpgradeError::Write)?;
    let mut command = Command::new(program.path());
    command.args(program.arguments()).arg(ARGUMENT);
    command.env_remove(super::execute::VARIABLE).env_remove("NOTIFY_SOCKET");
    command.stdin(Stdio::from(state)).stdout(Stdio::piped()).stderr(Stdio::null());
    let started = command.spawn();
    let mut child = started.map_err(|source| UpgradeError::Start { program: path(), source })?;
    let said = said_within(&mut child, limit);
    // It has said all that it has to say.
    let _ = child.kill();
    let _ = child.wait();
    match said {
        Ok(Some(said)) if said.trim_end() == UNDERSTOOD => Ok(()),
        Ok(Some(said)) => {
            let line = said.lines().next().unwrap_or("it says nothing").trim().to_owned();
            Err(UpgradeError::NotUnderstood { program: path(), said: line })
        }
        Ok(None) => Err(UpgradeError::Silent { program: path(), limit }),
        Err(source) => Err(UpgradeError::Start { program: path(), source }),
    }
}

/// All that a process says until it closes its standard output; `None` if it takes too long.
fn said_within(child: &mut Child, limit: Duration) -> io::Result<Option<String>> {
    let until = Instant::now() + limit;
    let Some(mut output) = child.stdout.take() else { return Ok(Some(String::new())) };
    let mut said = Vec::new();
    loop {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(None);
        }
        let timeout =
            Timespec { tv_sec: left.as_secs().cast_signed(), tv_nsec: left.subsec_nanos().into() };
        let mut fds = [PollFd::new(&output, PollFlags::IN)];
        match poll(&mut fds, Some(&timeout)) {
            Ok(0) => return Ok(None),
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => continue,
            Err(errno) => return Err(errno.into()),
        }
        let mut some = [0; 512];
        match output.read(&mut some)? {
            0 => return Ok(Some(String::from_utf8_lossy(&said).into_owned())),
            len => said.extend_from_slice(&some[..len]),
        }
        if said.len() > MAX_ANSWER {
            said.truncate(MAX_ANSWER);
            return Ok(Some(String::from_utf8_lossy(&said).into_owned()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(program: &str, arguments: &[&str], limit: u64) -> String {
        let program = Program::for_tests(program, arguments);
        let limit = Duration::from_millis(limit);
        understands_within(&program, b"state", limit).unwrap_err().to_string()
    }

    #[test]
    fn a_program_that_is_no_urxed_does_not_understand() {
        let said = asked("/bin/true", &[], 60_000);
        assert!(said.contains("/bin/true: does not understand") && said.contains("says nothing"));
        let said = asked("/bin/echo", &["hello"], 60_000);
        assert!(said.ends_with("hello --check-upgrade"), "{said}");
        let said = asked("/nonexistent/urxed", &[], 60_000);
        assert!(said.starts_with("/nonexistent/urxed: No such file"), "{said}");
    }

    #[test]
    fn a_program_that_says_nothing_is_not_waited_for() {
        let said = asked("/bin/sh", &["-c", "exec sleep 1000"], 100);
        assert!(said.contains("did not say within 0 seconds"), "{said}");
        let said = asked("/usr/bin/yes", &[], 60_000);
        assert!(said.contains("does not understand"), "{said}");
    }
}
