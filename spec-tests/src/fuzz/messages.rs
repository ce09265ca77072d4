//! Control messages: bytes that are one are written as they were read.

use super::Input;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fmt::Debug;
use urxe_shm::control::{MAX_MESSAGE, PROTOCOL_VERSION, Reply, Request, decode, encode};

/// Decodes the bytes as a request of a program, and as a reply, as a daemon that lies sends it.
pub fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    // A few without a right beginning are enough.
    let mut message = match input.u8() {
        0 => Vec::new(),
        _ => [&b"ux"[..], &PROTOCOL_VERSION.to_le_bytes()].concat(),
    };
    message.extend(input.rest());
    message.truncate(MAX_MESSAGE);
    again::<Request>(&message);
    again::<Reply>(&message);
}

/// What was decoded can be encoded, and is the same when it is decoded again.
fn again<T: Serialize + DeserializeOwned + Debug + PartialEq>(message: &[u8]) {
    let Ok(decoded) = decode::<T>(message) else { return };
    let mut buf = vec![0; MAX_MESSAGE];
    // A number may have been written longer than it had to be, never shorter.
    let len = encode(&decoded, &mut buf).expect("it is not longer than it was");
    assert!(len <= message.len());
    assert_eq!(decode::<T>(&buf[..len]).as_ref(), Ok(&decoded));
}
