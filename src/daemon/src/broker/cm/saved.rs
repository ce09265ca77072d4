//! What programs have of the connection manager, as it is read from a state.

use super::Cm;
use super::channel::PendingEvent;
use super::id::Phase;
use crate::upgrade::ImageError;
use std::collections::HashMap;

impl Cm {
    /// Checks what was read, for a daemon with so many devices.
    pub(crate) fn check(&self, devices: usize) -> Result<(), ImageError> {
        let mut waiting: HashMap<u32, u32> = HashMap::new();
        let mut named = Vec::new();
        for queued in self.channels.waiting() {
            *waiting.entry(queued.id).or_default() += 1;
            if let PendingEvent::Request(request) = &queued.event {
                named.push(request.device);
            }
        }
        for (key, id) in self.ids.iter() {
            named.extend(id.device);
            match &id.phase {
                Phase::Listening(on) => named.extend(on.iter().map(|(device, _)| *device)),
                Phase::Connected { device, .. } => named.push(*device),
                _ => {}
            }
            if waiting.remove(&key).unwrap_or(0) != id.waiting {
                let (what, expected) = ("events of an id", "as many as wait in its channel");
                return Err(ImageError::Number { what, number: id.waiting.into(), expected });
            }
        }
        if let Some(key) = waiting.keys().next() {
            let (what, expected) = ("event of id", "one that is there");
            return Err(ImageError::Number { what, number: (*key).into(), expected });
        }
        match named.into_iter().find(|device| *device >= devices) {
            Some(device) => {
                let (what, expected) = ("device", "one that is there");
                Err(ImageError::Number { what, number: device as u64, expected })
            }
            None => Ok(()),
        }
    }

    /// Counts again which user has how many ids.
    pub(crate) fn recount(&mut self) {
        for (_, id) in self.ids.iter() {
            self.id_account.take(id.program.uid);
        }
    }
}
