//! What a daemon does that is told to read its configuration file again.

use crate::broker::Changeable;
use crate::config::{Config, Settings};
use crate::config_file::{CHANGEABLE, ConfigFile, differing, differing_in_log};
use crate::daemon::{Handle, StartError, listen_for_scrapers};
use crate::metrics::Metrics;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use std::io;
use std::os::fd::AsFd;

impl Config {
    /// What the broker can go on with while it runs.
    pub(crate) fn changeable(&self) -> Changeable {
        Changeable {
            linger: self.linger,
            drain: self.drain,
            sessions_per_user: self.sessions_per_user,
            cm_ids_per_user: self.cm_ids_per_user,
        }
    }
}

impl Handle {
    /// Waits until the daemon has ended, or one of two descriptors is readable. Returns whether it
    /// goes on.
    pub(crate) fn wait_or(&self, told: [impl AsFd; 2]) -> io::Result<bool> {
        let [one, other] = &told;
        let mut fds = [
            PollFd::new(&self.ended, PollFlags::empty()),
            PollFd::new(one, PollFlags::IN),
            PollFd::new(other, PollFlags::IN),
        ];
        loop {
            match poll(&mut fds, None) {
                Ok(_) => return Ok(fds[0].revents().is_empty()),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    /// Goes on with what can be changed while it runs. All else stays as it was.
    ///
    /// # Errors
    /// If metrics cannot be served there. Nothing has changed then.
    fn change(&mut self, to: &Config) -> Result<(), StartError> {
        let Some((asker, changer, _)) = self.broker.clone() else { return Ok(()) };
        if to.metrics != self.config.metrics {
            // The old place and the new one may be the same port.
            self.metrics = None;
            let serve = |config: &Config| -> Result<Option<Metrics>, StartError> {
                let Some(address) = &config.metrics else { return Ok(None) };
                let listener = listen_for_scrapers(address, self.config.mode)?;
                let served = Metrics::serve(listener, asker.clone());
                let step = "starting a thread for metrics";
                Ok(Some(served.map_err(|source| StartError::System { step, source })?))
            };
            match serve(to) {
                Ok(metrics) => self.metrics = metrics,
                Err(error) => {
                    // It was free a moment ago.
                    self.metrics = serve(&self.config).ok().flatten();
                    return Err(error);
                }
            }
        }
        let changeable = to.changeable();
        changer.change(changeable);
        self.config.metrics = to.metrics.clone();
        // By its fields, so that none is forgotten: the next reload would find it changed again.
        let Changeable { linger, drain, sessions_per_user, cm_ids_per_user } = changeable;
        self.config.linger = linger;
        self.config.drain = drain;
        self.config.sessions_per_user = sessions_per_user;
        self.config.cm_ids_per_user = cm_ids_per_user;
        Ok(())
    }
}

/// Has a daemon go on with what its configuration file says now. `options` are those that it was
/// started with, which win, and `file` is what is in effect of the file. Returns a line for each
/// setting that is another now, or would be after a restart.
///
/// # Errors
/// What is wrong with the file, or cannot be had. Nothing has changed then.
pub(crate) fn reload(
    daemon: &mut Handle,
    options: &Settings,
    file: &mut ConfigFile,
) -> Result<Vec<String>, StartError> {
    let new = ConfigFile::read(file.path())?;
    let settings = new.below(options);
    let config = Config::try_from(settings.clone())?;
    let mut differs = differing(&daemon.config, &config);
    differs.extend(differing_in_log(&file.below(options), &settings));
    // SLOT-126
    daemon.change(&config)?;
    let mut lines = Vec::new();
    for key in differs {
        let (was, is) = (file.said(key), new.said(key));
        // SLOT-125
        if CHANGEABLE.contains(&key) {
            lines.push(format!("{key} is {is} now, and was {was}"));
            file.take(key, &new);
        } else {
            lines.push(format!("{key} {is} needs a restart, and stays {was} until then"));
        }
    }
    let by_file = new.settings.clone().or(options.clone());
    let mut overridden = differing_in_log(&by_file, &settings);
    overridden.extend(differing(&Config::unchecked(by_file), &config));
    for key in overridden.into_iter().filter(|key| new.names(key)) {
        lines.push(format!("{key} {} has no effect: an option says otherwise", new.said(key)));
    }
    if lines.is_empty() {
        lines.push("nothing has changed".to_owned());
    }
    Ok(lines)
}
