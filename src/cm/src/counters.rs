//! What a connection manager counts. Every message dropped and every request refused has a line.

urxe_types::counters! {
    /// Something that a connection manager counts.
    pub enum CmCounter;
    /// A set of counters of a connection manager, all of them from zero.
    pub struct CmCounters;

    // What happened.
    Listens = "cm_listens", "Times that a program here began to listen.";
    RequestsSent = "cm_requests_sent", "Connections and resolutions of services that programs here asked for.";
    RequestsReceived = "cm_requests_received", "Connections and resolutions of services that peers asked for, shown to a program.";
    RequestsHeld = "cm_requests_held", "Requests that came when a listener had just ended, and waited for the next one at its port.";
    Begun = "cm_begun", "Connections and resolutions that began, on either side; what is refused at once is not among them.";
    Forgotten = "cm_forgotten", "Those of them of which nothing is kept any more.";
    Established = "cm_established", "Connections established, on either side.";
    Disconnected = "cm_disconnected", "Established connections that ended.";
    Repeats = "cm_repeats", "Messages sent again because no answer had come.";
    AnsweredAgain = "cm_answered_again", "Answers given again because the question had come again.";
    MoreTimeAsked = "cm_more_time_asked", "Times that a peer was asked to wait for a program of ours (MRA).";
    MoreTimeGiven = "cm_more_time_given", "Times that a peer asked us to wait for its program (MRA).";
    LossesAsked = "cm_losses_asked", "Times that a peer was asked whether it has lost a connection, since a request named that connection's QP or number.";
    GivenUp = "cm_given_up", "Messages given up because no answer had come to any of their retries.";
    RejectionsReceived = "cm_rejections_received", "Rejections by peers.";

    // Refused.
    RefusedNoListener = "cm_refused_no_listener", "Requests refused: nobody listens there (reason 8).";
    RefusedTransport = "cm_refused_transport", "Requests refused: the listener is of another transport (reason 9).";
    RefusedAddresses = "cm_refused_addresses", "Requests refused: the addresses in them are not those they came with (reason 12).";
    RefusedHeader = "cm_refused_header", "Requests refused: they do not begin with the RDMA IP CM service's header (reason 28).";
    RefusedPathMtu = "cm_refused_path_mtu", "Requests refused: the path MTU is larger than ours (reason 26).";
    RefusedStale = "cm_refused_stale", "Requests and replies refused: the peer's QP, or its number of the connection, is still known from an earlier one (reason 10).";
    RefusedFull = "cm_refused_full", "Requests refused: there are too many connections (reason 3).";
    RefusedByProgram = "cm_refused_by_program", "Requests and replies refused by a program here, or because it went away (reason 28).";
    RefusedUnknown = "cm_refused_unknown", "Replies refused: what they answer is not known any more (reason 6).";
    RefusedAlternatePath = "cm_refused_alternate_path", "Alternate paths refused: there are none.";

    // Dropped.
    DropNoMessage = "cm_drop_no_message", "Dropped: management datagrams that are no messages of connection management.";
    DropBacklog = "cm_drop_backlog", "Dropped: requests to a listener whose backlog is full; the peer asks again. Take requests faster, or listen with a larger backlog.";
    DropTooManyRequests = "cm_drop_too_many_requests", "Dropped: requests while programs had left too many of them without an answer; the peer asks again.";
    DropUnknown = "cm_drop_unknown", "Dropped: messages about a connection that is not known.";
    DropForeign = "cm_drop_foreign", "Dropped: messages about a connection from another address than its peer's, or with another number than its peer's.";
    DropWrongQpn = "cm_drop_wrong_qpn", "Dropped: a DREQ for another QP than the connection's.";
    DropDuplicate = "cm_drop_duplicate", "Dropped: messages that had come before, and whose answer is under way.";
    DropOutOfPlace = "cm_drop_out_of_place", "Dropped: messages that the connection, as it stands, does not wait for.";
    DropNotSent = "cm_drop_not_sent", "Dropped: messages of ours, because too many were waiting to be sent.";
    RefusalsHeldBack = "cm_refusals_held_back", "Refusals, and answers about connections that are not known, not sent because their receiver, or all receivers together, had had as many as they may have. A peer asks again; a flood of them is of somebody who forges that address.";
    RepeatsHeldBack = "cm_repeats_held_back", "Repeats of an answer not sent because their receiver, or all receivers together, had had as many as they may have before it is known that they get our messages. Somebody may have forged that address.";
    ForgottenEarly = "cm_forgotten_early", "Ended connections forgotten before their time because there were too many of them.";
}

impl CmCounters {
    /// Messages that nobody here has a use for, and that no peer sends often that means well.
    pub(crate) fn of_no_use(&self) -> u64 {
        // SHARE-136
        [
            CmCounter::DropNoMessage,
            CmCounter::DropUnknown,
            CmCounter::DropForeign,
            CmCounter::DropWrongQpn,
            CmCounter::DropOutOfPlace,
            CmCounter::RefusedNoListener,
            CmCounter::RefusedTransport,
            CmCounter::RefusedAddresses,
            CmCounter::RefusedHeader,
            CmCounter::RefusedPathMtu,
            CmCounter::RefusedUnknown,
            CmCounter::RefusedAlternatePath,
        ]
        .map(|counter| self.get(counter))
        .iter()
        .sum()
    }
}

#[cfg(test)]
mod tests {
    use super::CmCounter;
    use std::collections::BTreeSet;

    #[test]
    fn names_are_unique_and_meanings_are_sentences() {
        let names: BTreeSet<_> = CmCounter::ALL.iter().map(|c| c.name()).collect();
        assert_eq!(names.len(), CmCounter::ALL.len());
        assert!(CmCounter::ALL.iter().all(|c| c.meaning().ends_with('.')));
    }
}
