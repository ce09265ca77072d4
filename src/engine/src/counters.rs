//! What the engine counts. Every packet dropped, NAK sent or received, and retry has a line here.

use std::sync::LazyLock;
use urxe_types::SendOp;

urxe_types::counters! {
    /// Something that is counted, per device and per QP.
    pub enum Counter;
    /// A set of counters, all of them from zero.
    pub struct Counters;

    // Traffic.
    SentPackets = "sent_packets", "Packets put on the wire, acknowledgements included.";
    SentBytes = "sent_bytes", "Payload bytes put on the wire, repeats included.";
    ReceivedPackets = "received_packets", "Packets received that were well formed and belonged to a QP.";
    ReceivedBytes = "received_bytes", "Payload bytes of these packets.";
    SentMessages = "sent_messages", "Send-queue work requests that completed successfully.";
    ReceivedMessages = "received_messages", "Request messages that arrived whole; one for each part of a WRITE that comes as WRITE ONLYs.";
    AcksSent = "acks_sent", "ACK packets sent; one may acknowledge many packets.";
    AcksReceived = "acks_received", "ACK packets received.";

    // Posted.
    PostedSends = "posted_sends", "SENDs taken from send queues to be sent.";
    PostedWrites = "posted_writes", "RDMA WRITEs taken from send queues to be sent.";
    PostedReads = "posted_reads", "RDMA READs taken from send queues to be sent.";
    PostedAtomics = "posted_atomics", "Compare-and-swaps, fetch-and-adds and ATOMIC WRITEs taken from send queues to be sent.";
    PostedFlushes = "posted_flushes", "FLUSHes taken from send queues to be sent.";
    PostedLocal = "posted_local", "Binds of memory windows and local invalidations taken from send queues to be done.";

    // Dropped on arrival.
    DropBadIcrc = "drop_bad_icrc", "Dropped: the ICRC does not match. The packet was damaged on its way, or something rewrote a header that the ICRC covers.";
    DropTooShort = "drop_too_short", "Dropped: shorter than its headers and ICRC. Something that is no RoCEv2 sends to port 4791.";
    DropUnknownOpcode = "drop_unknown_opcode", "Dropped: an opcode that IBTA does not define or this device does not implement.";
    DropMalformed = "drop_malformed", "Dropped: the BTH is not valid (header version, or more padding than payload).";
    DropBadPkey = "drop_bad_pkey", "Dropped: the P_Key is not in the table. Both sides must use the default, 0xffff.";
    DropBadQkey = "drop_bad_qkey", "Dropped: the Q_Key of the datagram is not that of the QP. Both sides must be given the same qkey.";
    DropUnknownQp = "drop_unknown_qp", "Dropped: no such QP. It was destroyed, or the peer was given a wrong QPN.";
    DropOtherSlot = "drop_other_slot", "Dropped: for a QP of another slot of this device. A NIC joined datagrams for several slots, or what tells the slots' datagrams apart is gone; an RC peer repeats them.";
    DropWrongTransport = "drop_wrong_transport", "Dropped: the opcode is of another service (RC, UC, UD) than the QP.";
    DropWrongAddress = "drop_wrong_address", "Dropped: the addresses are not those the QP is connected with.";
    DropQpNotReady = "drop_qp_not_ready", "Dropped: the QP is not in a state that takes this packet (RESET, INIT, ERR, or a response before RTS).";
    DropForgedLocal = "drop_forged_local", "Dropped: from an address of this daemon's own, by a UDP source port that it does not send from. A program of this machine forges packets.";
    DropNoMulticastMember = "drop_no_multicast_member", "Dropped: no QP is attached to the multicast group that the datagram was addressed to.";
    DropMulticastShare = "drop_multicast_share", "Dropped: copies of multicast datagrams for QPs of a program that has had its share of what arrived together. Attach fewer QPs to the group.";
    DropMemoryStalls = "drop_memory_stalls", "Dropped: for a QP of a program that rests because its memory kept others waiting again and again (see memory_stalls). urxe res mr says why its memory is copied; memory that is mapped is not waited for.";
    DropBadMad = "drop_bad_mad", "Dropped: a datagram for QP1 that is not 256 bytes long, so no management datagram.";
    CnpsReceived = "cnps_received", "Congestion notification packets received: what was sent met congestion, and less is sent unless congestion control is off.";
    CnpsSent = "cnps_sent", "Congestion notification packets sent, because what arrived was marked by a switch or met a receive buffer that filled.";
    MarksEchoed = "marks_echoed", "Replies that told a urxe peer that what it sent was marked or met a receive buffer that filled.";
    CutsByMark = "cuts_by_mark", "Times that a path's window was cut because what was sent was marked.";
    CutsByNotification = "cuts_by_notification", "Times that a path's rate was cut by a congestion notification packet.";
    CutsByDelay = "cuts_by_delay", "Times that a path's window was cut because answers took too long: a queue on the way is long, or short messages of other programs wait in it.";
    CutsByLoss = "cuts_by_loss", "Times that a path's window was cut because packets were lost: a queue on the way is full.";
    EcnMarked = "ecn_marked", "Packets received that a switch marked as having met congestion.";

    // UC and UD: what is dropped there is lost for good, and nobody is told.
    DropNoReceive = "drop_no_receive", "Dropped: no receive was posted for the message (UC, UD). Post receives earlier, or more of them.";
    DropReceiveTooShort = "drop_receive_too_short", "Dropped: the message is longer than the receive posted for it (UC, UD). A UD receive needs 40 bytes more than the message.";
    DropDatagramTooLong = "drop_datagram_too_long", "Dropped: a datagram longer than the MTU of this device's link.";
    DropInvalidRequest = "drop_invalid_request", "Dropped: a UC request that breaks the rules (packet lengths, or not enabled by the QP's access flags).";
    DropRemoteAccess = "drop_remote_access", "Dropped: a UC WRITE that the memory key does not allow.";
    UcGaps = "uc_gaps", "UC packets whose PSN was not the next one: something before them was lost or overtaken.";
    UcMessagesDropped = "uc_messages_dropped", "UC messages given up in their midst, because a packet of them was lost or refused.";
    DropMessagePart = "drop_message_part", "Dropped: a UC packet of a message whose beginning was lost or refused.";

    // QP1.
    MadsSent = "mads_sent", "Management datagrams sent.";
    MadsReceived = "mads_received", "Management datagrams received.";
    DropUnexpectedCapabilities = "drop_unexpected_capabilities", "Dropped: an answer to a question about protocol extensions that was not asked, or not any more.";
    CapabilityRepliesHeldBack = "capability_replies_held_back", "Questions about protocol extensions not answered because their sender, or all senders together, had asked as often as they may. A peer asks again; a flood of them is of somebody who forges that address.";
    MadsNotSent = "mads_not_sent", "Management datagrams dropped because too many were waiting for the port.";

    // Responder.
    DuplicateRequests = "duplicate_requests", "Requests that had arrived before; acknowledged or answered again.";
    DropUnknownDuplicate = "drop_unknown_duplicate", "Dropped: a READ, atomic or ATOMIC WRITE repeated so late that its answer is no longer kept, or its memory no longer open.";
    OutOfSequence = "out_of_sequence", "Requests ahead of the expected PSN: something before them was lost or overtaken.";
    EarlyKept = "early_kept", "Requests ahead of the expected PSN that were kept until what was missing before them came.";
    EarlyDuplicates = "early_duplicates", "Dropped: requests ahead of the expected PSN that were kept already.";
    EarlyForeign = "early_foreign", "Dropped: requests ahead of the expected PSN from another UDP source port than those that came in their turn; either the peer changes its port, or somebody forges packets.";
    EarlyDropped = "early_dropped", "Dropped: requests ahead of the expected PSN for which there was no room (of the QP, or of the device); the peer sends them again.";
    SelectiveAcksSent = "selective_acks_sent", "Acknowledgements sent to a urxe peer that name what is kept beyond a missing packet.";
    SequenceNaksSent = "sequence_naks_sent", "NAKs sent to ask for a lost packet; one per gap.";
    RnrNaksSent = "rnr_naks_sent", "NAKs sent because no receive was posted.";
    InvalidRequestNaksSent = "invalid_request_naks_sent", "NAKs sent for a request that breaks the rules; the QP is in ERR.";
    RemoteAccessNaksSent = "remote_access_naks_sent", "NAKs sent for a request that the memory key does not allow; the QP is in ERR.";
    RemoteOperationalNaksSent = "remote_operational_naks_sent", "NAKs sent because our own side could not do what was asked; the QP is in ERR.";
    NaksHeldBack = "naks_held_back", "NAKs not sent because too many replies were waiting for the port; the peer asks again. The link takes less than the peer provokes.";
    ForeignNaksHeldBack = "foreign_naks_held_back", "NAKs not sent for requests ahead of the expected PSN from another UDP source port than those in their turn, because one was sent just before; see early_foreign.";
    ReadsReplayed = "reads_replayed", "READ requests answered again.";
    ReadsOvertaken = "reads_overtaken", "Packets that stored something where an earlier READ of the same QP, too long to be kept, had yet to take its answer from: it shows the newer bytes. Fence the later request (IBV_SEND_FENCE).";
    AtomicsReplayed = "atomics_replayed", "Atomics and ATOMIC WRITEs answered again from the kept result.";
    FlushesReplayed = "flushes_replayed", "FLUSHes answered again.";
    FlushesHeldBack = "flushes_held_back", "Dropped: FLUSHes that came while too many replies were waiting for the port; the peer asks again. The link takes less than the peer provokes.";

    // Windows.
    WindowsBound = "windows_bound", "Memory windows bound, or closed by a bind to 0 bytes.";
    KeysInvalidated = "keys_invalidated", "Memory windows closed by a local invalidation or by the peer's SEND with invalidate.";

    // Requester and completer.
    RetransmittedPackets = "retransmitted_packets", "Request packets sent again.";
    AckTimeouts = "ack_timeouts", "Times that the ACK timeout ran out.";
    Probes = "probes", "Packets repeated early because the acknowledgement was unusually late.";
    NeedlessRepeats = "needless_repeats", "Times that something was repeated because its answer was late, and the answer came all the same: the peer is waited for longer then.";
    SequenceNaksReceived = "sequence_naks_received", "NAKs received for a packet that the peer missed.";
    SelectiveAcksReceived = "selective_acks_received", "Acknowledgements of a urxe peer that named what it has beyond a packet that it misses.";
    RnrNaksReceived = "rnr_naks_received", "NAKs received because the peer had no receive posted.";
    FatalNaksReceived = "fatal_naks_received", "NAKs received that end the connection (invalid request, access, operation).";
    UniformFormGivenUp = "uniform_form_given_up", "Peers that took the first part of a WRITE and refused a later one; QPs connected to them later send FIRST to LAST. If that helps, give --wire strict.";
    ImpliedNaks = "implied_naks", "Responses that skipped an expected READ or atomic response: it was lost and is asked for again.";
    StaleResponses = "stale_responses", "Dropped: responses to something that had been acknowledged before.";
    GhostResponses = "ghost_responses", "Dropped: responses to something that was never sent.";
    BadResponses = "bad_responses", "Responses that do not fit the request (opcode, length); the QP is in ERR.";
    RetriesExceeded = "retries_exceeded", "Work requests ended because retry_cnt tries had no answer.";
    RnrRetriesExceeded = "rnr_retries_exceeded", "Work requests ended because the peer had no receive posted for rnr_retry tries.";

    // What ended badly, and on our own side.
    LocalErrors = "local_errors", "Work requests ended by an error of our own side (keys, lengths, memory gone).";
    FlushedRequests = "flushed_requests", "Work requests flushed from a QP in ERR.";
    CqOverruns = "cq_overruns", "Completions lost because the CQ was full, or had been before; its QPs are in ERR.";
}

impl Counter {
    /// By what a work request is counted that is taken from a send queue.
    pub(crate) const fn of_posted(op: SendOp) -> Counter {
        match op {
            SendOp::Send(_) => Counter::PostedSends,
            SendOp::Write { .. } => Counter::PostedWrites,
            SendOp::Read { .. } => Counter::PostedReads,
            SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. } | SendOp::AtomicWrite { .. } => {
                Counter::PostedAtomics
            }
            SendOp::Flush { .. } => Counter::PostedFlushes,
            SendOp::BindMw { .. } | SendOp::LocalInvalidate { .. } => Counter::PostedLocal,
        }
    }

    /// Whether this is counted while nothing out of the ordinary happens.
    pub const fn is_ordinary(self) -> bool {
        matches!(
            self,
            Counter::SentPackets
                | Counter::SentBytes
                | Counter::ReceivedPackets
                | Counter::ReceivedBytes
                | Counter::SentMessages
                | Counter::ReceivedMessages
                | Counter::AcksSent
                | Counter::AcksReceived
                | Counter::PostedSends
                | Counter::PostedWrites
                | Counter::PostedReads
                | Counter::PostedAtomics
                | Counter::PostedFlushes
                | Counter::PostedLocal
                | Counter::EcnMarked
                | Counter::MarksEchoed
                | Counter::WindowsBound
                | Counter::KeysInvalidated
        )
    }
}

/// What one of very many counts: room for it is there from the first time on.
#[derive(Debug, Default)]
pub(crate) struct LazyCounters(Option<Box<Counters>>);

impl LazyCounters {
    /// Counts.
    pub(crate) fn add(&mut self, counter: Counter, amount: u64) {
        // SHARE-010
        self.0.get_or_insert_default().add(counter, amount);
    }

    /// What was counted.
    pub(crate) fn get(&self) -> &Counters {
        static NONE: LazyLock<Counters> = LazyLock::new(Counters::default);
        self.0.as_deref().unwrap_or(&NONE)
    }
}

#[cfg(test)]
mod tests {
    use super::Counter;
    use std::collections::BTreeSet;

    #[test]
    fn names_are_unique_and_meanings_are_sentences() {
        let names: BTreeSet<_> = Counter::ALL.iter().map(|c| c.name()).collect();
        assert_eq!(names.len(), Counter::ALL.len());
        assert!(Counter::ALL.iter().all(|c| c.meaning().ends_with('.')));
    }
}
