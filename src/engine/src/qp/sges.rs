//! Walking a scatter/gather list: message offsets to registered memory.

use crate::cause::Cause;
use crate::host::Host;
use crate::ids::PdId;
use crate::memory::{KeyTable, Span};
use urxe_types::{Access, Sge};

/// A place in a scatter/gather list. Messages are walked front to back, so the place is kept from
/// one packet to the next; going back (a retransmission) starts over.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SgeWalk {
    index: usize,
    within: u64,
    offset: u64,
}

impl SgeWalk {
    /// Moves to `offset` bytes into the list.
    fn seek(&mut self, sges: &[Sge], offset: u64) {
        if offset < self.offset {
            *self = SgeWalk::default();
        }
        let skip = offset - self.offset;
        self.advance(sges, skip);
    }

    fn advance(&mut self, sges: &[Sge], mut bytes: u64) {
        self.offset += bytes;
        while let Some(sge) = sges.get(self.index) {
            let left = u64::from(sge.length) - self.within;
            if bytes < left {
                self.within += bytes;
                return;
            }
            bytes -= left;
            self.index += 1;
            self.within = 0;
        }
    }

    /// The stretch at this place, of at most `max` bytes; `None` at the end of the list.
    fn stretch(&self, sges: &[Sge], max: usize) -> Option<Sge> {
        let sge = sges.get(self.index)?;
        let left = u64::from(sge.length) - self.within;
        let length = left.min(max as u64) as u32;
        Some(Sge { addr: sge.addr.wrapping_add(self.within), length, lkey: sge.lkey })
    }
}

/// The length of the list in bytes.
pub(crate) fn total(sges: &[Sge]) -> u64 {
    sges.iter().map(|sge| u64::from(sge.length)).sum()
}

/// Checks every entry that is to be read against its MR.
pub(crate) fn check(keys: &KeyTable, pd: PdId, sges: &[Sge]) -> Result<(), Cause> {
    let mut entries = sges.iter().filter(|sge| sge.length > 0);
    entries.try_for_each(|sge| span(keys, pd, sge, Access::default()).map(drop))
}

/// Where the memory of an entry lies.
fn span(keys: &KeyTable, pd: PdId, sge: &Sge, access: Access) -> Result<Span, Cause> {
    keys.local(sge.lkey, pd, sge.addr, u64::from(sge.length), access)
        .map_err(|error| error.local_cause())
}

/// Where a list's bytes live: what a copy needs besides the list.
pub(crate) struct Space<'a, H> {
    pub(crate) keys: &'a KeyTable,
    pub(crate) pd: PdId,
    pub(crate) host: &'a mut H,
}

impl<H: Host> Space<'_, H> {
    /// Where the list's bytes from `offset` on lie, if `len` of them lie together in memory that
    /// may be read.
    pub(crate) fn locate(
        &self,
        walk: &mut SgeWalk,
        sges: &[Sge],
        offset: u64,
        len: u64,
    ) -> Option<Span> {
        walk.seek(sges, offset);
        let sge = walk.stretch(sges, len as usize)?;
        if u64::from(sge.length) < len {
            return None;
        }
        span(self.keys, self.pd, &sge, Access::default()).ok()
    }

    /// Copies from the list at `offset` to `buf`, which the list must fill. The host is told that
    /// `ahead` bytes from here are about to be read.
    pub(crate) fn gather(
        &mut self,
        walk: &mut SgeWalk,
        sges: &[Sge],
        offset: u64,
        buf: &mut [u8],
        ahead: u64,
    ) -> Result<(), Cause> {
        walk.seek(sges, offset);
        let mut done = 0;
        while done < buf.len() {
            let sge = walk.stretch(sges, buf.len() - done).ok_or(Cause::LocalLength)?;
            let len = sge.length as usize;
            if len > 0 {
                let span = span(self.keys, self.pd, &sge, Access::default())?;
                if ahead > 0 && done == 0 {
                    let left = u64::from(sges[walk.index].length) - walk.within;
                    self.host.read_ahead(span.region, span.offset, ahead.min(left));
                }
                self.host
                    .read(span.region, span.offset, &mut buf[done..done + len])
                    .map_err(|_| Cause::LocalMemory)?;
            }
            done += len;
            walk.advance(sges, len as u64);
        }
        Ok(())
    }

    /// Copies `data` into the list at `offset`; the list must have room for it.
    pub(crate) fn scatter(
        &mut self,
        walk: &mut SgeWalk,
        sges: &[Sge],
        offset: u64,
        data: &[u8],
    ) -> Result<(), Cause> {
        walk.seek(sges, offset);
        let mut done = 0;
        // RC-RESP-056, SRQ-020, UC-026, UD-035: what the data does not reach is not looked at.
        while done < data.len() {
            let sge = walk.stretch(sges, data.len() - done).ok_or(Cause::ReceiveTooShort)?;
            let len = sge.length as usize;
            if len > 0 {
                let span = span(self.keys, self.pd, &sge, Access::LOCAL_WRITE)?;
                self.host
                    .write(span.region, span.offset, &data[done..done + len])
                    .map_err(|_| Cause::LocalMemory)?;
            }
            done += len;
            walk.advance(sges, len as u64);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use urxe_types::Lkey;

    fn list(lengths: &[u32]) -> Vec<Sge> {
        let mut addr = 0;
        lengths
            .iter()
            .map(|&length| {
                let sge = Sge { addr, length, lkey: Lkey(1) };
                addr += 0x1_0000;
                sge
            })
            .collect()
    }

    /// Every byte of the list, found one by one.
    fn byte_addresses(sges: &[Sge]) -> Vec<u64> {
        sges.iter().flat_map(|sge| (0..u64::from(sge.length)).map(|i| sge.addr + i)).collect()
    }

    #[test]
    fn a_walk_finds_every_byte_in_any_order_of_packets() {
        let sges = list(&[3, 0, 5, 1, 0, 7]);
        let bytes = byte_addresses(&sges);
        let mut walk = SgeWalk::default();
        for offset in [0, 4, 2, 15, 8, 9, 0, 3] {
            walk.seek(&sges, offset as u64);
            for (i, &addr) in bytes.iter().enumerate().skip(offset) {
                let mut stretch = walk.stretch(&sges, 1).unwrap();
                while stretch.length == 0 {
                    walk.advance(&sges, 0);
                    stretch = walk.stretch(&sges, 1).unwrap();
                }
                assert_eq!(stretch.addr, addr, "byte {i} from {offset}");
                walk.advance(&sges, 1);
            }
            assert_eq!(walk.stretch(&sges, 1), None);
        }
    }
}
