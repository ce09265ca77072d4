//! What programs have of the connection manager, as it is read from a state.

use super::Cm;
use super::channel::PendingEvent;
use super::id::Phase;
use crate::upgrade::ImageError;
use std::collections::BTreeSet;

impl Cm {
    /// Checks what was read, for a daemon with so many devices.
    pub(crate) fn check(&self, devices: usize) -> Result<(), ImageError> {
        let (mut numbers, mut named) = (BTreeSet::new(), Vec::new());
        for (channel, number, queued) in self.channels.waiting() {
            let id = self.ids.get(queued.id).filter(|id| id.channel == channel);
            let is_its = id.is_some_and(|id| id.waiting.contains(&number));
            if !is_its || number > self.channels.last_event() || !numbers.insert(number) {
                let (what, expected) = ("event", "one of an id that is there, and not two alike");
                return Err(ImageError::Number { what, number, expected });
            }
            if let PendingEvent::Request(request) = &queued.event {
                named.push(request.device);
            }
        }
        let mut waiting = 0;
        for (_, id) in self.ids.iter() {
            waiting += id.waiting.len();
            named.extend(id.device);
            match &id.phase {
                Phase::Listening(on) => named.extend(on.iter().map(|(device, _)| *device)),
                Phase::Connected { device, .. } => named.push(*device),
                _ => {}
            }
        }
        if waiting != numbers.len() {
            let (what, expected) = ("events of ids", "as many as wait in channels");
            return Err(ImageError::Number { what, number: waiting as u64, expected });
        }
        match named.into_iter().find(|device| *device >= devices) {
            Some(device) => {
                let (what, expected) = ("device", "one that is there");
                Err(ImageError::Number { what, number: device as u64, expected })
            }
            None => Ok(()),
        }
    }

    /// Counts again which user has how many ids, and how many of them listen.
    pub(crate) fn recount(&mut self) {
        for (_, id) in self.ids.iter() {
            self.id_account.take(id.program.uid);
            if let Phase::Listening(_) = id.phase {
                self.listener_account.take(id.program.uid);
            }
        }
    }
}
