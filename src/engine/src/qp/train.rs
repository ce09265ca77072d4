//! Packets between the first and the last of a message. They are alike, so that their headers are
//! made once and their memory is looked up once. A train ends with the QP's turn, within which no
//! MR can be changed or taken back.

use crate::cause::Cause;
use crate::host::Host;
use crate::memory::Span;
use urxe_wire::{HeaderTemplate, Headers};

/// What is known of the next such packet from the one before it.
#[derive(Debug)]
pub(super) struct Train {
    pub(super) headers: HeaderTemplate,
    /// Where its bytes lie, if those of all lie together.
    memory: Option<Span>,
    payload: usize,
}

impl Train {
    /// The packets that follow one with these headers and so much payload, which lies in `memory`
    /// if what follows lies there too.
    pub(super) fn new(headers: &Headers, memory: Option<Span>, payload: usize) -> Train {
        Train { headers: HeaderTemplate::new(headers), memory, payload }
    }

    /// Goes on to the next packet.
    pub(super) fn advance(&mut self) {
        self.headers.advance(self.payload);
        if let Some(memory) = &mut self.memory {
            memory.offset += self.payload as u64;
        }
    }

    /// Copies the packet's bytes to `buf`, and tells the host that `ahead` bytes are about to be
    /// read from there; `None`: they are to be looked up.
    pub(super) fn read(
        &self,
        host: &mut impl Host,
        buf: &mut [u8],
        ahead: u64,
    ) -> Option<Result<(), Cause>> {
        let Span { region, offset } = self.memory?;
        host.read_ahead(region, offset, ahead);
        Some(host.read(region, offset, buf).map_err(|_| Cause::LocalMemory))
    }
}
