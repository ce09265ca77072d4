//! Why a connection is rejected.

use super::layout::numbers;
use std::fmt;

macro_rules! reasons {
    ($($variant:ident = $code:literal, $text:literal;)*) => {
        /// Why a connection is rejected: the reason of a REJ.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Reason {
            $(#[doc = $text] $variant,)*
            /// A code that the specification leaves open.
            Other(u16),
        }

        impl Reason {
            /// All that the specification names.
            pub const ALL: &[Reason] = &[$(Reason::$variant),*];

            /// The reason of a code.
            pub const fn from_code(code: u16) -> Reason {
                match code { $($code => Reason::$variant,)* other => Reason::Other(other) }
            }

            /// Its code.
            pub const fn code(self) -> u16 {
                match self { $(Reason::$variant => $code,)* Reason::Other(code) => code }
            }

            /// What it means, in a sentence.
            pub const fn text(self) -> &'static str {
                match self {
                    $(Reason::$variant => $text,)*
                    Reason::Other(_) => "A reason that the specification does not name.",
                }
            }
        }
    };
}

reasons! {
    NoQp = 1, "There is no QP to be had.";
    NoEec = 2, "There is no end-to-end context to be had.";
    NoResources = 3, "There is no room for another connection. Try again later.";
    Timeout = 4, "The other side gave up waiting.";
    Unsupported = 5, "What was asked for is not supported.";
    InvalidCommId = 6, "There is no connection of this number. The other side has forgotten it, or its program is gone.";
    InvalidCommInstance = 7, "The connection of this number is another one.";
    InvalidServiceId = 8, "Nobody listens there. Is the program running, on this address and port?";
    InvalidTransport = 9, "The service is there, but not over this transport (RC, UC).";
    StaleConnection = 10, "The QP is still known from an earlier connection. Try again with another QP, or later.";
    NoRdc = 11, "There is no reliable datagram channel.";
    InvalidGid = 12, "The address of the receiving port is not one of its own.";
    InvalidLid = 13, "The LID of the receiving port is not its own.";
    InvalidServiceLevel = 14, "The service level is not to be had.";
    InvalidTrafficClass = 15, "The traffic class is not to be had.";
    InvalidHopLimit = 16, "The hop limit is not to be had.";
    InvalidPacketRate = 17, "The packet rate is not to be had.";
    InvalidAlternateGid = 18, "The address of the alternate path is not one of the receiver's.";
    InvalidAlternateLid = 19, "The LID of the alternate path is not one of the receiver's.";
    InvalidAlternateServiceLevel = 20, "The service level of the alternate path is not to be had.";
    InvalidAlternateTrafficClass = 21, "The traffic class of the alternate path is not to be had.";
    InvalidAlternateHopLimit = 22, "The hop limit of the alternate path is not to be had.";
    InvalidAlternatePacketRate = 23, "The packet rate of the alternate path is not to be had.";
    PortAndCmRedirect = 24, "The service is at another port, with another connection manager.";
    PortRedirect = 25, "The service is at another port.";
    InvalidPathMtu = 26, "The path MTU is larger than the receiver's.";
    InsufficientResources = 27, "The receiver takes fewer READs and atomics at a time than it must.";
    Consumer = 28, "The program on the other side refused.";
    RnrRetryCount = 29, "The RNR retry count is refused.";
    DuplicateCommId = 30, "The sender uses one number for two connections.";
    InvalidClassVersion = 31, "The other side speaks another version of connection management.";
    InvalidFlowLabel = 32, "The flow label is not to be had.";
    InvalidAlternateFlowLabel = 33, "The flow label of the alternate path is not to be had.";
    VendorOptionNotSupported = 35, "The adapter's own options are not supported.";
}

numbers! { Reason: 16, |code| Reason::from_code(code as u16), |reason| reason.code().into(); }

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} ({})", self, self.code())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_survives_and_every_reason_is_a_sentence() {
        for code in 0..=u16::MAX {
            assert_eq!(Reason::from_code(code).code(), code);
        }
        for reason in Reason::ALL {
            assert!(!matches!(Reason::from_code(reason.code()), Reason::Other(_)));
            assert!(reason.text().ends_with(['.', '?']));
        }
    }
}
