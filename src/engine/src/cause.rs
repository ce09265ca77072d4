//! Why a work request ended badly, in our own terms: `vendor_err` of the completion.

macro_rules! causes {
    ($($variant:ident = $number:literal, $text:literal;)*) => {
        /// The reason behind an error completion. The number stands in `vendor_err`.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u32)]
        pub enum Cause {
            $(#[doc = $text] $variant = $number,)*
        }

        impl Cause {
            /// All of them.
            pub const ALL: &[Cause] = &[$(Cause::$variant),*];

            /// A sentence that a person can act on.
            pub const fn text(self) -> &'static str {
                match self { $(Cause::$variant => $text),* }
            }

            /// The cause of this number, if there is one.
            pub const fn from_number(number: u32) -> Option<Cause> {
                match number { $($number => Some(Cause::$variant),)* _ => None }
            }
        }
    };
}

causes! {
    None = 0, "No error.";
    Flushed = 1, "The QP was in ERR, or went there, before this work request could be done. Look at the first error of this QP.";
    AckTimeout = 2, "The peer did not answer within timeout x (retry_cnt + 1). It is gone, its QP is not in RTR or RTS, a firewall stands between, or the path MTU is too large for the path.";
    SequenceRetries = 3, "The peer missed packets more often than retry_cnt allows. The path loses too much, or the PSNs of the two sides do not match.";
    RnrRetries = 4, "The peer had no receive posted for rnr_retry tries. Post receives earlier, or raise rnr_retry (7 waits for ever).";
    PeerInvalidRequest = 5, "The peer answered that the request is invalid: longer than its receive, not enabled by its access flags, more READs and atomics than its max_dest_rd_atomic, or cut into packets of another length than its path MTU, which both sides must have alike.";
    PeerRemoteAccess = 6, "The peer refused access: the rkey is wrong or was deregistered, the range is outside of the MR, or the MR lacks the right.";
    PeerRemoteOperation = 7, "The peer failed on its own side while doing what was asked.";
    BadResponse = 8, "The peer's response does not fit the request. It has another path MTU than this QP, it is not a conforming responder, or a QPN is used twice.";
    LocalKey = 9, "An lkey in the scatter/gather list is not valid in this protection domain.";
    LocalBounds = 10, "An entry of the scatter/gather list reaches outside of its MR.";
    LocalRights = 11, "An entry of the scatter/gather list is to be written, but its MR lacks local write access.";
    LocalMemory = 12, "Registered memory could not be reached: it was unmapped, or its program is gone.";
    LocalLength = 13, "The message is too long, or the local buffer of an atomic or ATOMIC WRITE is not 8 bytes.";
    ReceiveTooShort = 14, "The message that arrived is longer than the receive that was posted for it.";
    MalformedEntry = 15, "The work request in the ring is not one: its opcode or one of its lengths makes no sense.";
    BrokenQueue = 16, "The ring's cursors make no sense: the program overwrote them.";
    NoReadsAllowed = 17, "READs, atomics and ATOMIC WRITEs need max_rd_atomic of at least 1; this QP has 0.";
    RequestRefused = 18, "A request of the peer was refused and took the QP to ERR while this receive was in use.";
    NotOfThisTransport = 30, "The transport service of this QP has no such operation: UC has SEND and WRITE, UD has SEND only.";
    DatagramTooLong = 31, "The datagram is longer than the MTU of the device's link. UD does not cut messages into packets; send at most the port's active_mtu.";
    NoSuchAddressHandle = 32, "The address handle does not exist: it was destroyed before the datagram was sent.";
    ForeignAddressHandle = 33, "The address handle belongs to another protection domain than the QP.";
    NoPath = 34, "The address vector leads nowhere: the GID table has nothing at its sgid_index, or the destination is of another address family than the GID or no address to send to.";

    FlushKind = 19, "The FLUSH asks for what does not exist: its placement is global (1), persistent (2) or both, its selectivity the range (0) or the whole MR (1).";
    CqOverrun = 20, "A CQ of this QP was full and takes no more, so the QP went to ERR. Make the CQ larger, or poll it sooner.";

    // Local operations.
    BindNoWindow = 40, "The bind names no window by its present rkey. A window has the rkey that its last bind gave it.";
    BindPd = 42, "Window, MR and QP of the bind are not of one protection domain.";
    BindTwice = 43, "The type 2 window is bound already. It must be invalidated before it is bound again.";
    BindNothing = 44, "A type 2 window cannot be bound to 0 bytes. Invalidate it to close it.";
    BindAccess = 45, "The bind asks for access that a window cannot give: it gives remote write, read and atomic, flush global and, if of type 2, zero-based addresses.";
    BindNoMr = 46, "The bind names no MR by its lkey. It was deregistered, or the key is wrong.";
    BindRights = 47, "The MR does not let this window be bound: it needs window binding and may not be zero-based; local write is needed to give remote write or atomic, flush global to give that.";
    BindBounds = 48, "The bind reaches outside of its MR.";
    InvalidateKey = 49, "The key is none that can be invalidated here: that of a type 2 window that is bound on this QP. MRs are deregistered, type 1 windows bound to 0 bytes.";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_round_trip_and_texts_are_sentences() {
        for &cause in Cause::ALL {
            assert_eq!(Cause::from_number(cause as u32), Some(cause));
            assert!(cause.text().ends_with('.'));
        }
        assert_eq!(Cause::from_number(u32::MAX), None);
    }
}
