//! What is found when answers are compared.

use serde::Serialize;
use std::collections::BTreeMap;

/// Something in a response that is not as it must be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Difference {
    /// The response.
    pub(crate) frame: u64,
    /// Which part of it.
    pub(crate) field: &'static str,
    /// What stands there.
    pub(crate) captured: String,
    /// What our engine answers.
    pub(crate) expected: String,
    /// Why that is wrong, in a sentence.
    pub(crate) says: String,
}

/// Something that the standard leaves open, or that a capture cannot show.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Freedom {
    /// ACKs that our engine sends and the responder left to a later one.
    CoalescedAck,
    /// ACKs that the requester did not ask for.
    UnaskedAck,
    /// ACKs of what was acknowledged before.
    RepeatedAck,
    /// The MSN of answers to repeated requests.
    RepeatedMsn,
    /// Credits in ACKs.
    Credits,
    /// The migration bit.
    MigReq,
    /// The congestion bits.
    Congestion,
    /// Memory that the responder's own program changed.
    ProgramWrote,
    /// Requests that were lost behind the place of the capture.
    RequestLost,
    /// Answers that the capture does not have, though it has later ones.
    AnswerMissing,
    /// Requests without any answer, at the end.
    Unanswered,
    /// A failure on the responder's own side.
    LocalFailure,
}

impl Freedom {
    /// What it is and why it is no fault, in a sentence.
    pub(crate) const fn says(self) -> &'static str {
        match self {
            Freedom::CoalescedAck => {
                "One ACK speaks for all requests up to its PSN; these were left to a later one."
            }
            Freedom::UnaskedAck => {
                "A responder may acknowledge more often than it is asked to (AckReq)."
            }
            Freedom::RepeatedAck => {
                "What was acknowledged before may be acknowledged again, and must be when the request is repeated."
            }
            Freedom::RepeatedMsn => {
                "The answer to a request that was repeated tells the messages completed by now, and not those at its first answer; a requester can use either."
            }
            Freedom::Credits => {
                "The ACK tells credits of end-to-end flow control; 31, as our engine sends it, says that it is not used."
            }
            Freedom::MigReq => {
                "The migration bit differs (our engine and hardware set it, kernel rxe does not); without alternate paths nobody looks at it."
            }
            Freedom::Congestion => {
                "A congestion bit of the BTH is set; it may be, on the way as well."
            }
            Freedom::ProgramWrote => {
                "The data differs from what the capture last showed of that memory, but the responder's program was active since and may have written it."
            }
            Freedom::RequestLost => {
                "The responder asks again for requests that the capture has: they were lost between the place of the capture and the responder."
            }
            Freedom::AnswerMissing => {
                "Our engine gives an answer here that the capture does not have: lost on its way, or not captured."
            }
            Freedom::Unanswered => {
                "Nothing answers these requests to the end of the capture: the responder's QP is gone or in ERR, or the capture ends."
            }
            Freedom::LocalFailure => {
                "The responder says that it failed on its own side, which no packet can prove. Kernel rxe says so of a SEND longer than the receive, where the standard has an invalid request."
            }
        }
    }
}

/// How often something was seen, and where first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Seen {
    pub(crate) count: u64,
    pub(crate) first_frame: u64,
}

/// Counts things with the frame in which they were seen first.
#[derive(Clone, Debug)]
pub(crate) struct Tally<K>(pub(crate) BTreeMap<K, Seen>);

impl<K> Default for Tally<K> {
    fn default() -> Self {
        Tally(BTreeMap::new())
    }
}

impl<K: Ord> Tally<K> {
    pub(crate) fn add(&mut self, what: K, frame: u64, count: u64) {
        if count > 0 {
            let seen = self.0.entry(what).or_insert(Seen { count: 0, first_frame: frame });
            seen.count += count;
        }
    }
}

/// All that is found in one direction.
#[derive(Clone, Debug, Default)]
pub(crate) struct Findings {
    pub(crate) differences: Vec<Difference>,
    pub(crate) freedoms: Tally<Freedom>,
    /// Packets that were not replayed or compared, by reason.
    pub(crate) unused: Tally<String>,
    /// What the replay's responder was given.
    pub(crate) inferred: Vec<String>,
    /// Responses compared.
    pub(crate) compared: u64,
}
