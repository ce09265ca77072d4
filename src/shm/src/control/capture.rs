//! Live captures, as [`Request::BeginCapture`](super::Request::BeginCapture) asks for them.

use serde::{Deserialize, Serialize};
use std::net::IpAddr;

/// Items that each list of a [`CaptureSpec`] has at most.
pub const MAX_CAPTURE_ITEMS: usize = 64;

/// Bytes of the longest name in one.
pub const MAX_CAPTURE_NAME: usize = 128;

/// Which packets are captured: those that have one of each list that is not empty.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CaptureSpec {
    /// Names of devices.
    pub devices: Vec<String>,
    /// QPs that a packet is for or from.
    pub qps: Vec<u32>,
    /// Addresses that it is from or to.
    pub peers: Vec<IpAddr>,
    /// Opcodes, as the first byte of a packet has them.
    pub opcodes: Vec<u8>,
    /// Programs whose QPs it is for or from: process ids, or names.
    pub programs: Vec<String>,
    /// Bytes that are kept of a packet at most, from its BTH on.
    pub snaplen: u32,
}

impl CaptureSpec {
    /// Whether it is as short as one may be.
    ///
    /// # Errors
    /// What is too long, in a sentence.
    pub fn check(&self) -> Result<(), String> {
        let CaptureSpec { devices, qps, peers, opcodes, programs, snaplen: _ } = self;
        let lens = [devices.len(), qps.len(), peers.len(), opcodes.len(), programs.len()];
        let lists = ["devices", "qps", "peers", "opcodes", "programs"];
        if let Some((list, len)) = lists.iter().zip(lens).find(|(_, len)| *len > MAX_CAPTURE_ITEMS)
        {
            return Err(format!("{list}: {len} items, expected {MAX_CAPTURE_ITEMS} at most"));
        }
        let mut names = devices.iter().chain(programs);
        match names.find(|name| name.len() > MAX_CAPTURE_NAME) {
            Some(name) => {
                Err(format!("a name of {} bytes: expected {MAX_CAPTURE_NAME} at most", name.len()))
            }
            None => Ok(()),
        }
    }
}

/// What one data path captures.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CaptureStream {
    /// The device.
    pub device: String,
    /// The slot whose data path it is.
    pub slot: u8,
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::control::{CounterInfo, Reply, Request};
    use proptest::prelude::*;

    fn text() -> impl Strategy<Value = String> {
        "\\PC{0,20}"
    }

    fn texts() -> impl Strategy<Value = Vec<String>> {
        prop::collection::vec(text(), 0..4)
    }

    pub(in crate::control) fn request() -> impl Strategy<Value = Request> {
        let lists = any::<(Vec<u32>, Vec<IpAddr>, Vec<u8>, u32)>();
        let spec = ([texts(), texts()], lists).prop_map(
            |([devices, programs], (qps, peers, opcodes, snaplen))| {
                let spec = CaptureSpec { devices, qps, peers, opcodes, programs, snaplen };
                Request::BeginCapture(spec)
            },
        );
        prop_oneof![spec, Just(Request::NextCaptureStream)]
    }

    pub(in crate::control) fn reply() -> impl Strategy<Value = Reply> {
        let stream = prop::option::of((text(), any::<u8>())).prop_map(|stream| {
            Reply::CaptureStream(stream.map(|(device, slot)| CaptureStream { device, slot }))
        });
        let counters = prop::collection::vec((text(), text()), 0..4).prop_map(|counters| {
            let info = |(name, meaning)| CounterInfo { name, meaning };
            Reply::CaptureBegun { counters: counters.into_iter().map(info).collect() }
        });
        prop_oneof![stream, counters]
    }

    #[test]
    fn the_longest_spec_fits_into_a_message_with_room_around_it() {
        let name = "n".repeat(MAX_CAPTURE_NAME);
        let spec = CaptureSpec {
            devices: vec![name.clone(); MAX_CAPTURE_ITEMS],
            qps: vec![u32::MAX; MAX_CAPTURE_ITEMS],
            peers: vec![IpAddr::from([0xff; 16]); MAX_CAPTURE_ITEMS],
            opcodes: vec![0xff; MAX_CAPTURE_ITEMS],
            programs: vec![name; MAX_CAPTURE_ITEMS],
            snaplen: u32::MAX,
        };
        assert_eq!(spec.check(), Ok(()));
        let mut room = [0; crate::control::MAX_MESSAGE / 2];
        crate::control::encode(&Request::BeginCapture(spec.clone()), &mut room).unwrap();
        let longer = CaptureSpec { qps: vec![0; MAX_CAPTURE_ITEMS + 1], ..spec.clone() };
        assert!(longer.check().unwrap_err().contains("qps: 65 items"));
        let name = "n".repeat(MAX_CAPTURE_NAME + 1);
        assert!(CaptureSpec { programs: vec![name], ..spec }.check().is_err());
    }
}
