//! The data path: which doorbells a context may ring.

use super::abi::{CommandHeader, PostSend, number};
use super::command::QpSlot;
use std::mem::offset_of;
use std::sync::atomic::{AtomicU64, Ordering};
use urxe_shm::ring::doorbell::SLOTS;
use urxe_types::QpState;

/// The slot in what `librxe` writes after posting sends, if these bytes are that: a `POST_SEND`
/// of nothing, always of the same length.
#[inline]
pub(crate) fn rung(bytes: &[u8]) -> Option<QpSlot> {
    const LEN: usize = size_of::<CommandHeader>() + size_of::<PostSend>();
    const IN_WORDS: u16 = (LEN / 4) as u16;
    const QP: usize = size_of::<CommandHeader>() + offset_of!(PostSend, qp_handle);
    let bytes: &[u8; LEN] = bytes.try_into().ok()?;
    let word = |at| u32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
    let in_words = u16::from_ne_bytes([bytes[4], bytes[5]]);
    (word(0) == number::POST_SEND && in_words == IN_WORDS).then(|| QpSlot(word(QP)))
}

/// The slots of a context's QPs that may send: one bit for each.
#[derive(Debug)]
pub(crate) struct Doorbells(Box<[AtomicU64]>);

impl Doorbells {
    pub(crate) fn new() -> Doorbells {
        Doorbells((0..SLOTS / 64).map(|_| AtomicU64::new(0)).collect())
    }

    /// Whether the slot is of such a QP.
    #[inline]
    pub(crate) fn has(&self, slot: QpSlot) -> bool {
        let word = self.0.get(slot.0 as usize / 64);
        word.is_some_and(|word| word.load(Ordering::Relaxed) & bit(slot) != 0)
    }

    /// A program moved a QP to another state: it may send from RTS on, as the kernel has it. Where
    /// the daemon moves a QP by itself, to SQE or ERR, that does not change.
    pub(crate) fn follow(&self, slot: QpSlot, state: QpState) {
        match state {
            QpState::Reset | QpState::Init | QpState::Rtr => self.remove(slot),
            QpState::Rts | QpState::Sqd | QpState::Sqe | QpState::Err => self.install(slot),
        }
    }

    /// A QP may send from now on.
    pub(crate) fn install(&self, slot: QpSlot) {
        if let Some(word) = self.0.get(slot.0 as usize / 64) {
            word.fetch_or(bit(slot), Ordering::Relaxed);
        }
    }

    /// A QP may not send any more, or is about to be destroyed.
    pub(crate) fn remove(&self, slot: QpSlot) {
        if let Some(word) = self.0.get(slot.0 as usize / 64) {
            word.fetch_and(!bit(slot), Ordering::Relaxed);
        }
    }
}

fn bit(slot: QpSlot) -> u64 {
    1 << (slot.0 % 64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use zerocopy::IntoBytes;

    /// What `librxe` writes.
    fn doorbell(qp_handle: u32) -> Vec<u8> {
        let header = CommandHeader { command: number::POST_SEND, in_words: 8, out_words: 1 };
        let body = PostSend { response: 0x7fff_0000, qp_handle, ..PostSend::default() };
        [header.as_bytes(), body.as_bytes()].concat()
    }

    #[test]
    fn only_a_doorbell_is_one() {
        assert_eq!(rung(&doorbell(258)), Some(QpSlot(258)));
        let longer = [&doorbell(1)[..], &[0; 4]].concat();
        assert_eq!(rung(&longer), None);
        assert_eq!(rung(&doorbell(1)[..28]), None);
        for at in 0..6 {
            let mut other = doorbell(1);
            other[at] ^= 1;
            assert_eq!(rung(&other), None, "byte {at}");
        }
        assert_eq!(rung(&[]), None);
    }

    #[test]
    fn a_slot_is_ours_from_install_to_remove() {
        let bells = Doorbells::new();
        for slot in [0, 63, 64, SLOTS - 1].map(QpSlot) {
            assert!(!bells.has(slot));
            bells.install(slot);
            assert!(bells.has(slot));
            assert!(!bells.has(QpSlot(slot.0 ^ 1)));
            bells.remove(slot);
            assert!(!bells.has(slot));
        }
        for slot in [SLOTS, u32::MAX].map(QpSlot) {
            bells.install(slot);
            assert!(!bells.has(slot));
        }
    }
    #[test]
    fn a_qp_may_send_from_rts_on() {
        use QpState::*;
        let (bells, slot) = (Doorbells::new(), QpSlot(7));
        for (state, may_send) in
            [(Init, false), (Rtr, false), (Rts, true), (Sqd, true), (Err, true), (Reset, false)]
        {
            bells.follow(slot, state);
            assert_eq!(bells.has(slot), may_send, "{state:?}");
        }
    }
}
