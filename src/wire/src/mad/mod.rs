//! Management datagrams: of connection management, how two sides agree on a connection; and
//! what a peer understands beside the standard ([`CapabilityMad`]).
//!
//! They go from QP 1 to QP 1 as SENDs of 256 bytes with the Q_Key
//! [`Qkey::GSI`](urxe_types::Qkey::GSI).
//! One message per file, as a table of its fields; the offsets count from the end of the common
//! header.
//!
//! Reserved fields are ignored, and sent as 0. So is the attribute modifier, in which adapters of
//! one vendor tell each other of options of their own.

mod apr;
mod capabilities;
mod comm_id;
mod drep;
mod dreq;
mod ip_header;
mod lap;
mod layout;
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
pub use capabilities::{Capabilities, CapabilityMad, CapabilityMessage};
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
use layout::{Layout, at, fields};
use std::fmt;
use urxe_types::Qpn;

/// Bytes of a management datagram.
pub const MAD_LEN: usize = 256;

const HEADER_LEN: usize = 24;
const BODY_LEN: usize = MAD_LEN - HEADER_LEN;
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

            fn read(attribute: u16, body: &[u8]) -> Option<Message> {
                match attribute {
                    $($attribute => Some(Message::$variant(at(0).read(body))),)*
                    _ => None,
                }
            }

            fn write(&self, body: &mut [u8]) {
                match self { $(Message::$variant(message) => at(0).write(message, body),)* }
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

fields! {
    /// What every management datagram begins with.
    struct Header {
        base_version: u8 = at(0),
        class: u8 = at(1),
        class_version: u8 = at(2),
        method: u8 = at(3),
        status: u16 = at(4),
        tid: u64 = at(8),
        attribute: u16 = at(16),
    }
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
        let (header, body) = bytes.split_at(HEADER_LEN);
        let header: Header = at(0).read(header);
        let Header { base_version, class, class_version, method, status, tid, attribute } = header;
        // CM-003
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
        let message =
            Message::read(attribute, body).ok_or(MadError::UnknownAttribute(attribute))?;
        Ok(Mad { status, tid, message })
    }

    /// The bytes of the datagram.
    pub fn bytes(&self) -> [u8; MAD_LEN] {
        let mut bytes = [0; MAD_LEN];
        let (header, body) = bytes.split_at_mut(HEADER_LEN);
        let common = Header {
            base_version: BASE_VERSION,
            class: CLASS,
            class_version: CLASS_VERSION,
            method: METHOD_SEND,
            status: self.status,
            tid: self.tid,
            attribute: self.message.attribute(),
        };
        at(0).write(&common, header);
        self.message.write(body);
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
