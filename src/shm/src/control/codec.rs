//! A message's bytes: four that mark protocol and version, then postcard.

use super::{MAX_MESSAGE, PROTOCOL_VERSION};
use serde::{Deserialize, Serialize};

/// Bytes before the encoding proper: two that mark the protocol, and the version.
pub(super) const PREFIX_LEN: usize = 4;
pub(super) const MARK: [u8; 2] = *b"ux";

/// A message could not be encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the message is longer than {MAX_MESSAGE} bytes")]
pub struct TooLong;

/// What arrived is no message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// It does not even begin like one.
    #[error("a message of {len} bytes does not begin with the protocol's mark")]
    NotOurs {
        /// Its length in bytes.
        len: usize,
    },
    /// The other side is of another version.
    #[error("the other side speaks protocol version {theirs}, this side {PROTOCOL_VERSION}")]
    Version {
        /// The other side's version.
        theirs: u16,
    },
    /// The head is right, the rest is not.
    #[error("a message of {len} bytes cannot be decoded")]
    Malformed {
        /// Its length in bytes.
        len: usize,
    },
}

/// Writes a message into `buf`, and returns how many bytes it takes.
pub fn encode<T: Serialize>(message: &T, buf: &mut [u8]) -> Result<usize, TooLong> {
    let (prefix, body) = buf.split_at_mut_checked(PREFIX_LEN).ok_or(TooLong)?;
    prefix[..2].copy_from_slice(&MARK);
    prefix[2..].copy_from_slice(&PROTOCOL_VERSION.to_le_bytes());
    // Our messages hold nothing that postcard could refuse; what remains is lack of room.
    let body = postcard::to_slice(message, body).map_err(|_| TooLong)?;
    Ok(PREFIX_LEN + body.len())
}

/// Reads a message. Never panics, and believes no length before the bytes are there: for a list
/// that promises too much, at most 1 MiB is set aside (serde's own bound), for text nothing.
pub fn decode<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<T, DecodeError> {
    let len = bytes.len();
    let Some((&[m0, m1, v0, v1], body)) = bytes.split_first_chunk::<PREFIX_LEN>() else {
        return Err(DecodeError::NotOurs { len });
    };
    if [m0, m1] != MARK {
        return Err(DecodeError::NotOurs { len });
    }
    let theirs = u16::from_le_bytes([v0, v1]);
    if theirs != PROTOCOL_VERSION {
        return Err(DecodeError::Version { theirs });
    }
    match postcard::take_from_bytes(body) {
        Ok((message, [])) => Ok(message),
        _ => Err(DecodeError::Malformed { len }),
    }
}
