//! Executing a program in the place of this one, and finding oneself executed so.

use super::error::{ImageError, UpgradeError};
use super::image::{self, State};
use super::parcel::{self, Descriptors, ReceivedDescriptors};
use nix::sys::signal::{SigSet, Signal};
use nix::unistd::execve;
use std::convert::Infallible;
use std::ffi::{CString, OsString};
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The variable by which a program knows that it is to go on where another one was.
pub(super) const VARIABLE: &str = "URXED_GOES_ON";

/// What this process executes, now and at an upgrade.
#[derive(Clone, Debug)]
pub(crate) struct Program {
    path: PathBuf,
    arguments: Vec<OsString>,
}

impl Program {
    /// What this process was started as. To be called before its file is replaced.
    ///
    /// # Errors
    /// If the system does not say.
    pub(crate) fn own() -> io::Result<Program> {
        let mut arguments = std::env::args_os();
        let name = arguments.next().map(PathBuf::from).unwrap_or_default();
        let own = std::env::current_exe()?;
        let identity = |path: &Path| std::fs::metadata(path).map(|file| (file.dev(), file.ino()));
        // By the path that was named: a link there may be to another file after an upgrade.
        let is_named = name.components().count() > 1
            && identity(&name).is_ok_and(|found| identity(&own).is_ok_and(|own| own == found));
        let path = if is_named { std::path::absolute(name)? } else { own };
        Ok(Program { path, arguments: arguments.collect() })
    }

    #[cfg(test)]
    pub(super) fn for_tests(path: &str, arguments: &[&str]) -> Program {
        let arguments = arguments.iter().map(OsString::from).collect();
        Program { path: path.into(), arguments }
    }

    /// Its file.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// What it is given, without its name.
    pub(super) fn arguments(&self) -> &[OsString] {
        &self.arguments
    }

    /// Executes it in the place of this one, and has it go on with a state. Returns only if that
    /// cannot be had; all is as before then.
    ///
    /// To be called in the thread that has started the workers, or they would end with it.
    pub(crate) fn execute(
        &self,
        state: &[u8],
        fds: &Descriptors<'_>,
    ) -> Result<Infallible, UpgradeError> {
        let pass = |error: rustix::io::Errno| UpgradeError::Pass(error.into());
        let image = image::sealed(state).map_err(UpgradeError::Write)?;
        let parcel = parcel::packed(&image, fds).map_err(pass)?;
        let stdin = io::stdin().as_fd().try_clone_to_owned().map_err(UpgradeError::Pass)?;
        let c_string = |bytes: OsString| CString::new(bytes.into_vec()).map_err(io::Error::from);
        let start = |source| UpgradeError::Start { program: self.path.clone(), source };
        let path = c_string(self.path.clone().into()).map_err(start)?;
        let name = std::env::args_os().next().unwrap_or_default();
        let arguments = [name].into_iter().chain(self.arguments.iter().cloned());
        let arguments = arguments.map(c_string).collect::<io::Result<Vec<_>>>().map_err(start)?;
        let variables = std::env::vars_os().filter(|(name, _)| name != VARIABLE);
        let variables = variables.chain([(VARIABLE.into(), "1".into())]);
        let variables = variables.map(|(mut name, value)| {
            name.push("=");
            name.push(value);
            c_string(name)
        });
        let variables = variables.collect::<io::Result<Vec<_>>>().map_err(start)?;
        rustix::stdio::dup2_stdin(&parcel).map_err(pass)?;
        // One that comes while the next program does not know it yet would end it.
        let signals = signals();
        let blocked = signals.thread_block();
        let executed = blocked.and_then(|()| execve(&path, &arguments, &variables));
        let _ = signals.thread_unblock();
        let restored = rustix::stdio::dup2_stdin(&stdin);
        match executed {
            Ok(never) => match never {},
            Err(errno) => restored.map_err(pass).and(Err(start(errno.into()))),
        }
    }
}

/// The signals that mean something to a daemon.
fn signals() -> SigSet {
    SigSet::from_iter([Signal::SIGHUP, Signal::SIGINT, Signal::SIGTERM, Signal::SIGUSR2])
}

/// Has the signals come that were held back while this program began.
pub(crate) fn let_signals_come() -> io::Result<()> {
    Ok(signals().thread_unblock()?)
}

/// What this program goes on with.
pub(crate) struct Resumed {
    pub(crate) state: State,
    pub(crate) fds: ReceivedDescriptors,
}

impl Resumed {
    /// Takes what another program has left for this one, if it was executed for that. To be called
    /// before anything is read from standard input.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(crate) fn take() -> Result<Option<Resumed>, ImageError> {
        if std::env::var_os(VARIABLE).is_none() {
            return Ok(None);
        }
        let (image, fds) = parcel::receive(io::stdin().as_fd())?;
        let null = File::open("/dev/null").map_err(ImageError::Parcel)?;
        rustix::stdio::dup2_stdin(null).map_err(|errno| ImageError::Parcel(errno.into()))?;
        let state = State::decode(&image::read(image)?)?;
        Ok(Some(Resumed { state, fds }))
    }
}
