//! Faults that can be seeded into the engine, to see whether the conformance checks find them.
//!
//! Without the feature `seeded-faults` nothing of this is left: `is` is constantly false. Nothing
//! switches the feature on but the test of the checks (`spec-tests/tests/seeded.rs`), and even with
//! it an engine is right until a test sets a fault on its thread.
//!
//! Each fault is a condition at the line of the engine that decides: `fault!(Name)`. Where several
//! lines would have to decide alike, or more than a condition is needed, a function here says what
//! the faulty engine does.

use urxe_types::{Access, Extra};
use urxe_wire::{Packet, Request};

/// Whether this fault is seeded.
macro_rules! fault {
    ($name:ident) => {
        $crate::seeded::is($crate::seeded::Fault::$name)
    };
}

macro_rules! faults {
    ($($name:ident: $says:literal,)*) => {
        /// Something that a faulty engine does.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Fault {
            $(#[doc = $says] $name,)*
        }

        impl Fault {
            /// All there are.
            pub const ALL: &[Fault] = &[$(Fault::$name,)*];

            /// What the faulty engine does, in a sentence.
            pub const fn says(self) -> &'static str {
                match self {
                    $(Fault::$name => $says,)*
                }
            }
        }
    };
}

faults! {
    // Packets as such.
    IcrcNotChecked: "A packet with a wrong ICRC is taken.",
    PkeyNotChecked: "A packet of another partition is taken.",
    LimitedMemberDropped: "A packet of a limited member of the partition is dropped.",
    PadTakenForPayload: "The pad count is ignored: pad bytes are taken for payload.",
    ReservedOpcodeDropped: "A reserved opcode in the place of the next request is not refused.",
    ReplyOfOtherPartition: "Replies carry another P_Key.",
    ReplyWithBecn: "Replies tell of congestion that there was not.",
    ReplyAsksForAck: "Replies ask for an acknowledgement.",

    // Acknowledgements.
    AckMissing: "A request that asks for an ACK gets none.",
    AckMissingAmidMessage: "AckReq counts only in the last packet of a message.",
    AckBesideAnswer: "A READ or atomic that asks for an ACK gets one beside its answer.",
    AckPsnAhead: "ACKs carry the PSN of the next request.",
    MsnCountsPackets: "The MSN counts packets, not messages.",
    MsnWithoutSingles: "READs and atomics do not count in the MSN.",
    MsnCountsRefused: "A request that is refused counts in the MSN.",

    // PSNs, gaps and NAKs.
    GapNotTold: "A gap is answered by silence.",
    SequenceNakRepeated: "Each packet behind a gap draws a NAK.",
    NextGapNotTold: "Only the first gap of a connection is told.",
    NakPsnAhead: "NAKs name the PSN after the missing one.",
    PsnWithoutWrap: "PSNs are compared as plain numbers.",
    PsnWindowQuarter: "A PSN more than a quarter of the space ahead is taken for an old one.",
    PsnBeforeDropped: "The PSN right before the expected one is taken for neither old nor new.",
    AccessErrorAsInvalidRequest: "What memory refuses gets the NAK of an invalid request.",
    InvalidRequestAsOperational: "An invalid request gets the NAK of a remote operational error.",

    // Duplicates.
    DuplicateSendDelivered: "A duplicate SEND is delivered again.",
    DuplicateWriteDone: "A duplicate WRITE is done again.",
    DuplicateAtomicDone: "A duplicate atomic is done again.",
    DuplicateNotAcknowledged: "A duplicate SEND or WRITE is not acknowledged.",
    DuplicateAtomicNotAnswered: "A duplicate atomic is not answered.",
    DuplicateReadNotAnswered: "A duplicate READ is not answered.",
    DuplicateReadFromItsStart: "A request for the rest of a READ is answered from its start.",
    DuplicateAtomicNewMsn: "The answer to a duplicate atomic carries the newest MSN.",

    // Order and lengths of requests.
    PartWithoutFirstTaken: "A MIDDLE or LAST without a FIRST is acknowledged.",
    StartInsideSendTaken: "A SEND may begin inside a SEND.",
    OtherInsideMessageTaken: "A message may be interrupted by a request of another kind.",
    FirstShortTaken: "FIRST and MIDDLE may be shorter than the path MTU.",
    FirstLongTaken: "FIRST and MIDDLE may be longer than the path MTU.",
    LastEmptyTaken: "LAST may be empty.",
    OnlyLongTaken: "ONLY may be longer than the path MTU.",
    DmaLengthNotChecked: "The payloads of a WRITE need not add up to its DMA length.",

    // Memory.
    WriteRightNotChecked: "WRITEs need no right.",
    ReadRightNotChecked: "READs need no right.",
    AtomicRightNotChecked: "Atomics need no right.",
    QpRightsNotChecked: "What a QP allows its peer is not asked for.",
    RegionRightsNotChecked: "What a region allows peers is not asked for.",
    WriteBoundsNotChecked: "A WRITE past the end of memory is done at its start.",
    ReadBoundsNotChecked: "A READ past the end of memory is answered from its start.",
    AtomicBoundsNotChecked: "An atomic past the end of memory is done at its start.",
    KeyLowByteNotChecked: "The low byte of an R_Key is ignored.",
    KeyOfNothingChecked: "A request for no bytes with a bad key is refused.",
    FlushKeyNotChecked: "A FLUSH with any key is answered.",
    ReadSeesLaterWrites: "A READ answers with what a later WRITE stored.",

    // Atomics.
    AtomicMisalignedTaken: "An atomic may be misaligned.",
    CompareSwapSwapsOperands: "COMPARE SWAP compares with what it is to store.",
    AtomicReturnsNewValue: "Atomics return what they have stored.",
    FetchAddOf32Bits: "FETCH ADD adds the low 32 bits only.",

    // Receives.
    RnrNotTold: "A SEND that finds no receive is dropped.",
    RnrTimerOfItsOwn: "RNR NAKs carry another timer than the QP has.",
    RnrFollowedBySequenceNak: "What follows a SEND that found no receive draws a sequence NAK.",
    RnrConsumesMessage: "A SEND that finds no receive is passed over.",
    ImmediateNeedsNoReceive: "A WRITE with immediate data takes no receive.",
    ImmediateLost: "Immediate data does not reach the program.",
    ImmediateSwapped: "Immediate data reaches the program with its bytes swapped.",
    ImmediateLengthLost: "A WRITE with immediate data completes with length 0.",
    InvalidateNotDone: "SEND WITH INVALIDATE closes nothing.",
    InvalidateNotChecked: "SEND WITH INVALIDATE takes any key.",
    TooLongAsProtectionError: "A receive that is too short completes with a protection error.",

    // READ responses.
    ReadEndsWithMiddle: "The last of several READ responses is a MIDDLE, without an AETH.",
    ReadGoesOnWithFirst: "A READ response in the midst is a FIRST, with an AETH.",
    ReadResponseShort: "READ responses carry 4 bytes less than the path MTU.",
    ReadResponsePsnStays: "All responses to a READ carry its own PSN.",
    ReadTakesOnePsn: "A READ takes one PSN, however many responses it has.",
    ReadsBeyondLimitTaken: "More READs are taken than may be outstanding.",

    // Windows.
    WindowTwiceAsLong: "A window opens twice as many bytes as it was bound to.",
    WindowRightsOfRegion: "A window gives the rights of its region.",
    WindowOpensToOthers: "A type 2 window opens to QPs that it was not bound on.",

    // Unreliable services.
    UcHoleTaken: "A UC message with a hole is delivered.",
    UcStaysAtGap: "A UC QP that has met a gap waits for what is lost.",
    UdQkeyNotChecked: "A datagram with another Q_Key is taken.",
    UdWithoutGrh: "The 40 bytes before a datagram stay empty.",
    UdAtStartOfReceive: "A datagram is put at the start of its receive.",
    UdLengthWithoutGrh: "The completion of a datagram does not count the 40 bytes before it.",
    UdTooLongCut: "A datagram that is too long for its receive is completed.",
    UdControlledQkeySent: "A controlled Q_Key is sent instead of the QP's own.",
    UdAsksForAck: "Datagrams ask for an ACK.",
    UdSourceMissing: "Datagrams do not say which QP they come from.",
    MulticastToOne: "Of several members of a group only one gets a copy.",

    // Congestion.
    CnpNever: "A marked packet draws no CNP.",
    CnpForMarkable: "A packet that could be marked and is not draws a CNP.",
    CnpMarkable: "CNPs are sent such that switches may mark them.",
    CnpWithoutBecn: "CNPs lack the BECN bit.",

    // Requests.
    AckReqMissing: "The last packet of a message does not ask for an ACK.",
    PsnSkipped: "Each message leaves out a PSN.",
    ReadRequestTakesOnePsn: "The request after a READ has the PSN after the first answer's.",
    SolicitedInAll: "Each packet of a message is solicited.",
    MigreqCleared: "Requests are sent with MigReq cleared.",
    ImmediateSentSwapped: "The immediate data of a SEND goes out with its bytes swapped.",
    WriteAddressStays: "Each packet of a long WRITE names the address of the first.",
    MaxRdAtomicExceeded: "READs and atomics are not held back at max_rd_atomic.",
    FenceIgnored: "A fence does not hold back.",

    // Retries.
    RetryCntOneLess: "There is one try less than retry_cnt.",
    RetryCntSeven: "There are seven tries, whatever retry_cnt says.",
    RnrRetryOneMore: "There is one try more than rnr_retry.",
    RnrSevenIsFinite: "rnr_retry 7 ends after seven tries.",
    RnrUsesRetryCnt: "RNR NAKs use up retry_cnt.",
    ProgressRestoresNothing: "Progress does not give tries back.",
    TimeoutNever: "Nothing ends for want of an answer.",
    TimeoutEarly: "Timeouts are an eighth of what they should be.",
    TimeoutOfCodeZero: "A timeout of code 0 is the shortest, not none.",
    RnrWaitShort: "The wait after an RNR NAK is a sixteenth of what was asked for.",
    SequenceNakIgnored: "A sequence NAK changes nothing.",
    SequenceNakAcknowledgesNothing: "A sequence NAK does not acknowledge what is before it.",
    SequenceNakRepeatsForEver: "Each sequence NAK is followed, for ever.",

    // Answers.
    AckStandsForAnswer: "An ACK stands for the answer to a READ or atomic.",
    AtomicAnswerToAnythingTaken: "The answer to an atomic is taken for any request.",
    GhostAckTaken: "An ACK for what was never sent ends all that is under way.",
    PartEndsMessage: "An ACK of a part of a message ends it.",
    ResponseLengthNotChecked: "READ responses may have any length.",
    ResponseOrderNotChecked: "READ responses may be FIRST, MIDDLE or LAST as they like.",
    ReservedSyndromeAcknowledges: "A reserved syndrome is taken for an ACK.",
    AccessNakAsInvalidRequest: "A remote access error completes as an invalid request.",

    // Completions, states and events.
    UnsignaledCompletes: "Unsignaled requests complete.",
    UnsignaledErrorNotTold: "Unsignaled requests that fail complete not.",
    UnsignaledNotFlushed: "Unsignaled requests are not flushed.",
    ReceivesNotFlushed: "Receives are not flushed.",
    ErrAnswers: "A QP in ERR answers requests.",
    SqdBeginsAnew: "A QP in SQD begins new requests.",
    SqdDrainedNotTold: "The program is not told that the SQ has drained.",
    EstablishedNotTold: "The program is not told of the first packet in RTR.",
    EstablishedToldAgain: "The program is told of each packet in RTR.",
    AccessErrorNotTold: "The program is not told of an access error of its peer.",
    RequestErrorNotTold: "The program is not told of an invalid request of its peer.",
    LastWqeNotTold: "The program is not told of the last receive of an SRQ.",
    SrqLimitNotTold: "The program is not told of the limit of an SRQ.",
    SrqLimitToldAgain: "The program is told of the limit of an SRQ with each receive.",
}

#[cfg(feature = "seeded-faults")]
thread_local! {
    static SEEDED: std::cell::Cell<Option<Fault>> = const { std::cell::Cell::new(None) };
}

/// Seeds a fault into all engines of this thread, or none.
#[cfg(feature = "seeded-faults")]
pub fn set(fault: Option<Fault>) {
    SEEDED.set(fault);
}

/// Whether this fault is seeded.
#[cfg(feature = "seeded-faults")]
pub(crate) fn is(fault: Fault) -> bool {
    SEEDED.get() == Some(fault)
}

/// Whether this fault is seeded.
#[inline]
#[cfg(not(feature = "seeded-faults"))]
pub(crate) const fn is(_: Fault) -> bool {
    false
}

/// Whether requests that need this right may do without.
pub(crate) fn takes_without_right(right: Access) -> bool {
    (fault!(WriteRightNotChecked) && right == Access::REMOTE_WRITE)
        || (fault!(ReadRightNotChecked) && right == Access::REMOTE_READ)
        || (fault!(AtomicRightNotChecked) && right == Access::REMOTE_ATOMIC)
}

/// Whether requests that need this right may reach outside.
pub(crate) fn takes_outside(right: Access) -> bool {
    (fault!(WriteBoundsNotChecked) && right == Access::REMOTE_WRITE)
        || (fault!(ReadBoundsNotChecked) && right == Access::REMOTE_READ)
        || (fault!(AtomicBoundsNotChecked) && right == Access::REMOTE_ATOMIC)
}

/// Whether a duplicate of this request is done again.
pub(crate) fn does_again(request: &Request) -> bool {
    match request {
        Request::Send(_) => fault!(DuplicateSendDelivered),
        Request::Write(_) => fault!(DuplicateWriteDone),
        Request::CompareSwap(_) | Request::FetchAdd(_) => fault!(DuplicateAtomicDone),
        _ => false,
    }
}

/// What the program gets of what a message brings.
pub(crate) fn delivered(extra: Extra) -> Extra {
    match extra {
        Extra::Imm(_) if fault!(ImmediateLost) => Extra::None,
        Extra::Imm(imm) if fault!(ImmediateSwapped) => Extra::Imm(imm.swap_bytes()),
        extra => extra,
    }
}

/// A packet as it was parsed from these bytes.
pub(crate) fn parsed<'a>(packet: Packet<'a>, bytes: &'a [u8]) -> Packet<'a> {
    let pad = usize::from(packet.headers.bth.pad);
    if !fault!(PadTakenForPayload) || pad == 0 {
        return packet;
    }
    let end = bytes.len() - urxe_wire::icrc::LEN;
    Packet { payload: &bytes[end - pad - packet.payload.len()..end], ..packet }
}
