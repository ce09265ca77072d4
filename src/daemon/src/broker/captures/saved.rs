//! Captures as they are written down for a process that takes the place of this one.

use super::{Capture, Captures};
use crate::broker::BrokerCtx;
use crate::upgrade::{Descriptors, Fd, ImageError, ReceivedDescriptors};
use serde::{Deserialize, Serialize};
use std::os::fd::AsFd;
use urxe_shm::control::{CaptureSpec, CaptureStream};
use urxe_slot::link::Viewer;

/// All captures, by the sessions of their programs.
#[derive(Default, Serialize, Deserialize)]
pub(crate) struct SavedCaptures {
    last: u64,
    open: Vec<(u64, SavedCapture)>,
}

#[derive(Serialize, Deserialize)]
struct SavedCapture {
    number: u64,
    uid: u32,
    viewer: Viewer,
    spec: CaptureSpec,
    devices: Vec<usize>,
    waiting: Vec<(CaptureStream, Fd)>,
}

impl Captures {
    /// Writes them down.
    pub(crate) fn save<'a>(&'a self, fds: &mut Descriptors<'a>) -> SavedCaptures {
        let open = self.open.iter().map(|(&session, capture)| {
            let waiting = capture.waiting.iter();
            let waiting = waiting.map(|(stream, fd)| (stream.clone(), fds.add(fd.as_fd())));
            let saved = SavedCapture {
                number: capture.number,
                uid: capture.uid,
                viewer: capture.viewer,
                spec: capture.spec.clone(),
                devices: capture.devices.clone(),
                waiting: waiting.collect(),
            };
            (session, saved)
        });
        SavedCaptures { last: self.last, open: open.collect() }
    }

    /// Goes on with them. Slots go on by themselves; what the broker's own data paths capture comes
    /// in further streams, if there are descriptors for that.
    pub(crate) fn restore(
        &mut self,
        saved: SavedCaptures,
        ctx: &mut BrokerCtx,
        fds: &mut ReceivedDescriptors,
    ) -> Result<(), ImageError> {
        self.last = saved.last;
        for (session, saved) in saved.open {
            let SavedCapture { number, uid, viewer, spec, devices, waiting } = saved;
            let mut capture =
                Capture { number, uid, viewer, spec, devices, waiting: Default::default() };
            for (stream, fd) in waiting {
                capture.waiting.push_back((stream, fds.take(fd)?));
            }
            let _ = capture.tap_own(&mut ctx.devices);
            self.open.insert(session, capture);
        }
        Ok(())
    }
}

impl SavedCaptures {
    /// Checks what was read, for a daemon with so many devices.
    pub(crate) fn check(&self, devices: usize) -> Result<(), ImageError> {
        let named = self.open.iter().flat_map(|(_, capture)| &capture.devices);
        match named.copied().find(|device| *device >= devices) {
            Some(device) => {
                let (what, expected) = ("device of a capture", "one that is there");
                Err(ImageError::Number { what, number: device as u64, expected })
            }
            None => Ok(()),
        }
    }
}
