//! Management datagrams of connection management: how two sides agree on a connection.
//!
//! They go from QP 1 to QP 1 as SENDs of 256 bytes with the Q_Key
//! [`Qkey::GSI`](urxe_types::Qkey::GSI).
//! One message per file; the offsets in their diagrams count from the end of the common header:
//!
//! ```text
//!  0                   1                   2                   3
//!  0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//! +---------------+---------------+---------------+---------------+
//! | base version 1|    class 7    |class version 2|   method 3    |  0
//! +---------------+---------------+---------------+---------------+
//! |            status             |               0               |  4
//! +-------------------------------+-------------------------------+
//! |                        transaction ID                         |  8
//! |                                                               | 12
//! +-------------------------------+-------------------------------+
//! |         attribute ID          |               0               | 16
//! +-------------------------------+-------------------------------+
//! |                      attribute modifier                       | 20
//! +---------------------------------------------------------------+
//! ```
//!
//! Reserved fields are ignored, and sent as 0. So is the attribute modifier, in which adapters of
//! one vendor tell each other of options of their own.

mod apr;
mod body;
mod comm_id;
mod drep;
mod dreq;
mod ip_header;
mod lap;
mod mra;
mod path;
mod reason;
mod rej;
mod rep;
mod req;
mod rtu;
mod service;
mod sidr_rep;
mod sidr_req;

pub use apr::{Apr, AprStatus};
pub use comm_id::CommId;
pub use drep::Drep;
pub use dreq::Dreq;
pub use ip_header::{IpCmError, IpCmHeader};
pub use lap::Lap;
pub use mra::{Mra, Received};
pub use path::CmPath;
pub use reason::Reason;
pub use rej::{Ari, Rej, Rejected};
pub use rep::Rep;
pub use req::{Req, TransportService};
pub use rtu::Rtu;
pub use service::{PortSpace, ServiceId};
pub use sidr_rep::{SidrRep, SidrStatus};
pub use sidr_req::SidrReq;

use crate::Flow;
use body::Body;
use std::fmt;
use urxe_types::Qpn;

/// Bytes of a management datagram.
pub const MAD_LEN: usize = 256;

const HEADER_LEN: usize = 24;
const BASE_VERSION: u8 = 1;
const CLASS: u8 = 7;
const CLASS_VERSION: u8 = 2;
const METHOD_SEND: u8 = 3;

/// A management datagram of connection management.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mad {
    /// 0, unless something on the way could not make sense of it.
    pub status: u16,
    /// Transaction ID: an answer has that of its question.
    pub tid: u64,
    /// What it says.
    pub message: Message,
}

/// Where a management datagram came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MadSource {
    /// The headers it came with: an answer goes from `dst` to `src`.
    pub flow: Flow,
    /// The QP that sent it, and that an answer goes to.
    pub src_qpn: Qpn,
}

/// Why 256 bytes are no message of connection management.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MadError {
    /// Another format altogether.
    #[error("management datagram of base version {0}; only 1 is known")]
    WrongBaseVersion(u8),
    /// For another agent.
    #[error("management datagram of class {0:#04x}; connection management is class 0x07")]
    WrongClass(u8),
    /// Another version of the messages.
    #[error("connection management of class version {0}; only 2 is known")]
    WrongClassVersion(u8),
    /// Not a message, but a question to the agent itself.
    #[error("connection management with method {0:#04x}; only messages, 0x03, are known")]
    WrongMethod(u8),
    /// No message of connection management.
    #[error("connection management with attribute {0:#06x}, which is no message")]
    UnknownAttribute(u16),
}

/// Makes the enum of messages and all that goes by the message from one table.
macro_rules! messages {
    ($($variant:ident = $attribute:literal, $name:literal, $meaning:literal;)*) => {
        /// A message of connection management.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Message {
            $(#[doc = $meaning] $variant($variant),)*
        }

        impl Message {
            /// Its attribute ID.
            pub const fn attribute(&self) -> u16 {
                match self { $(Message::$variant(_) => $attribute,)* }
            }

            /// Its name in the specification.
            pub const fn name(&self) -> &'static str {
                match self { $(Message::$variant(_) => $name,)* }
            }

            fn parse(attribute: u16, body: &Body) -> Option<Message> {
                match attribute {
                    $($attribute => Some(Message::$variant($variant::parse(body))),)*
                    _ => None,
                }
            }

            fn emit(&self, body: &mut Body) {
                match self { $(Message::$variant(message) => message.emit(body),)* }
            }
        }

        $(impl From<$variant> for Message {
            fn from(message: $variant) -> Message {
                Message::$variant(message)
            }
        })*

        impl fmt::Display for Message {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self {
                    $(Message::$variant(message) => write!(f, concat!("CM ", $name, " {}"), message),)*
                }
            }
        }

        #[cfg(test)]
        const ATTRIBUTES: &[u16] = &[$($attribute),*];
    };
}

messages! {
    Req = 0x0010, "REQ", "Asks for a connection.";
    Mra = 0x0011, "MRA", "Asks for more time.";
    Rej = 0x0012, "REJ", "Refuses or gives up a connection.";
    Rep = 0x0013, "REP", "Accepts a REQ.";
    Rtu = 0x0014, "RTU", "Confirms a REP.";
    Dreq = 0x0015, "DREQ", "Ends a connection.";
    Drep = 0x0016, "DREP", "Confirms a DREQ.";
    SidrReq = 0x0017, "SIDR REQ", "Asks for the QP of a service.";
    SidrRep = 0x0018, "SIDR REP", "Names the QP of a service.";
    Lap = 0x0019, "LAP", "Asks for an alternate path.";
    Apr = 0x001a, "APR", "Answers a LAP.";
}

impl Mad {
    /// A message of a transaction.
    pub fn new(tid: u64, message: impl Into<Message>) -> Mad {
        Mad { status: 0, tid, message: message.into() }
    }

    /// Reads a management datagram.
    ///
    /// # Errors
    /// If it is not one of connection management.
    pub fn parse(bytes: &[u8; MAD_LEN]) -> Result<Mad, MadError> {
        // CM-003
        let [base_version, class, class_version, method, s0, s1, _, _, rest @ ..] = *bytes;
        let [t0, t1, t2, t3, t4, t5, t6, t7, a0, a1, _, _, _, _, _, _, body @ ..] = rest;
        if base_version != BASE_VERSION {
            return Err(MadError::WrongBaseVersion(base_version));
        }
        if class != CLASS {
            return Err(MadError::WrongClass(class));
        }
        if class_version != CLASS_VERSION {
            return Err(MadError::WrongClassVersion(class_version));
        }
        if method != METHOD_SEND {
            return Err(MadError::WrongMethod(method));
        }
        let attribute = u16::from_be_bytes([a0, a1]);
        let message =
            Message::parse(attribute, &Body(body)).ok_or(MadError::UnknownAttribute(attribute))?;
        let tid = u64::from_be_bytes([t0, t1, t2, t3, t4, t5, t6, t7]);
        Ok(Mad { status: u16::from_be_bytes([s0, s1]), tid, message })
    }

    /// The bytes of the datagram.
    pub fn bytes(&self) -> [u8; MAD_LEN] {
        let mut body = Body::ZERO;
        self.message.emit(&mut body);
        let mut bytes = [0; MAD_LEN];
        bytes[..4].copy_from_slice(&[BASE_VERSION, CLASS, CLASS_VERSION, METHOD_SEND]);
        bytes[4..6].copy_from_slice(&self.status.to_be_bytes());
        bytes[8..16].copy_from_slice(&self.tid.to_be_bytes());
        bytes[16..18].copy_from_slice(&self.message.attribute().to_be_bytes());
        bytes[HEADER_LEN..].copy_from_slice(&body.0);
        bytes
    }
}

impl fmt::Display for Mad {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.message.fmt(f)
    }
}

#[cfg(test)]
mod tests;
