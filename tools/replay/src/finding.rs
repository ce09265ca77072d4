//! The results of comparing responses: differences, and deviations that are allowed.

use serde::Serialize;
use std::collections::BTreeMap;

/// Something in a response that is not as the standard requires.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Difference {
    /// The response.
    pub frame: u64,
    /// The field that differs.
    pub field: &'static str,
    /// Its value in the capture.
    pub captured: String,
    /// Its value in our engine's response.
    pub expected: String,
    /// Why that is wrong, in a sentence.
    #[serde(rename = "says")]
    pub explanation: String,
}

/// A deviation that is no error: the standard leaves it open, or a capture cannot decide it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Tolerance {
    /// ACKs that our engine sends and the responder replaced by a later one.
    CoalescedAck,
    /// ACKs that the requester did not ask for.
    UnaskedAck,
    /// ACKs of what was acknowledged before.
    RepeatedAck,
    /// The MSN of responses to repeated requests.
    RepeatedMsn,
    /// Credits in ACKs.
    Credits,
    /// The migration bit.
    MigReq,
    /// The congestion bits.
    Congestion,
    /// Memory that the responder's own program changed.
    ProgramWrote,
    /// Requests that were lost between the capture and the responder.
    RequestLost,
    /// Responses that the capture does not have, though it has later ones.
    AnswerMissing,
    /// Requests without any response, at the end.
    Unanswered,
    /// A failure on the responder's own side.
    LocalFailure,
}

impl Tolerance {
    /// What it is and why it is no error, in a sentence.
    pub const fn explanation(self) -> &'static str {
        match self {
            Tolerance::CoalescedAck => {
                "One ACK acknowledges all requests up to its PSN; these were acknowledged by a later one."
            }
            Tolerance::UnaskedAck => {
                "A responder may acknowledge more often than it is asked to (AckReq)."
            }
            Tolerance::RepeatedAck => {
                "What was acknowledged before may be acknowledged again, and must be when the request is repeated."
            }
            Tolerance::RepeatedMsn => {
                "The response to a repeated request has the current MSN, not that of the first response; a requester can use either."
            }
            Tolerance::Credits => {
                "The ACK carries credits of end-to-end flow control; 31, which our engine sends, means that it is not used."
            }
            Tolerance::MigReq => {
                "The migration bit differs (our engine and hardware set it, kernel rxe does not); without alternate paths it has no meaning."
            }
            Tolerance::Congestion => {
                "A congestion bit of the BTH is set, by the responder or on the way."
            }
            Tolerance::ProgramWrote => {
                "The data differs from what the capture last showed of that memory, but the responder's program was active since and may have written it."
            }
            Tolerance::RequestLost => {
                "The responder asks again for requests that the capture has: they were lost between the capture and the responder."
            }
            Tolerance::AnswerMissing => {
                "Our engine sends a response here that the capture does not have: it was lost on its way, or not captured."
            }
            Tolerance::Unanswered => {
                "These requests have no response until the end of the capture: the responder's QP is gone or in ERR, or the capture ends too early."
            }
            Tolerance::LocalFailure => {
                "The responder reports a failure on its own side (remote operational error), which no packet can prove. Kernel rxe reports it for a SEND longer than the receive, where the standard has an invalid request."
            }
        }
    }
}

/// How often something was seen, and where first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Occurrences {
    /// How often.
    pub count: u64,
    /// The first frame in which it was seen.
    pub first_frame: u64,
}

/// Counts things with the frame in which they were seen first.
#[derive(Clone, Debug)]
pub(crate) struct Tally<K>(pub(crate) BTreeMap<K, Occurrences>);

impl<K> Default for Tally<K> {
    fn default() -> Self {
        Tally(BTreeMap::new())
    }
}

impl<K: Ord> Tally<K> {
    pub(crate) fn add(&mut self, key: K, frame: u64, count: u64) {
        if count > 0 {
            let occurrences =
                self.0.entry(key).or_insert(Occurrences { count: 0, first_frame: frame });
            occurrences.count += count;
        }
    }
}

/// The results of one direction.
#[derive(Clone, Debug, Default)]
pub(crate) struct Findings {
    pub(crate) differences: Vec<Difference>,
    pub(crate) tolerances: Tally<Tolerance>,
    /// Packets that were not replayed or compared, by reason.
    pub(crate) unused: Tally<String>,
    /// State of the responder that was inferred.
    pub(crate) inferred: Vec<String>,
    /// Responses compared.
    pub(crate) compared: u64,
}
