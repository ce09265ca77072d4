//! The device's requests: what it sends when its program has posted work.

use super::{Connection, Script};
use crate::Arrived;
use crate::agent::{SendWr, Status, Wc};
use crate::check::{Outcome, Stop, ensure};
use crate::device::SOURCE;
use crate::expect::{any, request};
use crate::packet::{positive_ack, read_responses};
use std::time::Duration;
use urxe_types::QpType;
use urxe_wire::Opcode;

/// Where the memory lies that the device's WRITEs and READs are told of. There is none: what comes
/// is looked at, and what is asked for is made up.
pub const OUR_ADDR: u64 = 0x7f00_0123_4000;
/// Its key.
pub const OUR_RKEY: u32 = 0x0055_aa11;

/// Bytes between what messages are sent from.
const STRIDE: usize = 8 << 10;

impl Script<'_> {
    /// Has the program post a SEND for each of these messages, in this order: the completions'
    /// numbers count from 1.
    ///
    /// # Errors
    /// If they are not taken.
    pub fn post_sends(&mut self, messages: &[&[u8]]) -> Outcome {
        if messages.len() > 1 {
            self.grant_credits()?;
        }
        let mut wrs = Vec::new();
        for (i, data) in messages.iter().enumerate() {
            let at = SOURCE + i * STRIDE;
            self.fill(at, data)?;
            wrs.push(SendWr::send(i as u64 + 1, at..at + data.len()));
        }
        self.post(&wrs).map(drop)
    }

    /// Tells the device that it may send as much as it likes. A requester that counts credits sends
    /// one request that takes a receive, and waits with the next until it is told of some.
    ///
    /// # Errors
    /// If the port does not work.
    pub fn grant_credits(&mut self) -> Outcome {
        match self.current().setup.transport {
            QpType::Rc => self.send(positive_ack(-1, 0)),
            _ => Ok(()),
        }
    }

    /// Has the program post so many SENDs of eight bytes, and takes in the packets.
    ///
    /// # Errors
    /// If they are not sent as they should be.
    pub fn take_short_sends(&mut self, count: i32) -> Outcome {
        let data: Vec<Vec<u8>> = (0..count).map(|_| self.bytes(8)).collect();
        self.post_sends(&data.iter().map(Vec::as_slice).collect::<Vec<_>>())?;
        for (at, data) in (0..count).zip(&data) {
            self.expect(request(Opcode::RC_SEND_ONLY, at).payload(data))?;
        }
        Ok(())
    }

    /// These work requests succeed, one after the other.
    ///
    /// # Errors
    /// If they do not.
    pub fn expect_success(&mut self, ids: impl IntoIterator<Item = u64>) -> Outcome {
        ids.into_iter().try_for_each(|id| self.expect_completion(id, Status::Success).map(drop))
    }

    /// These work requests are flushed, one after the other.
    ///
    /// # Errors
    /// If they are not.
    pub fn expect_flushed(&mut self, ids: impl IntoIterator<Item = u64>) -> Outcome {
        ids.into_iter().try_for_each(|id| self.expect_completion(id, Status::WrFlushErr).map(drop))
    }

    /// The requester works: a SEND at this PSN goes out and completes.
    ///
    /// # Errors
    /// If it does not.
    pub fn expect_requester_works(&mut self, at: i32, msn: u32) -> Outcome {
        let data = self.bytes(16);
        self.fill(SOURCE, &data)?;
        self.post(&[SendWr::send(0x7777, SOURCE..SOURCE + 16)])?;
        self.expect(request(Opcode::RC_SEND_ONLY, at).payload(&data))?;
        self.send(positive_ack(at, msn))?;
        self.expect_success([0x7777])
    }

    /// The packets of a request of so many bytes, from this PSN on: one after the other without a
    /// gap, all but the last of the path MTU. A device that wants an ACK in the midst and waits for
    /// it gets it.
    ///
    /// # Errors
    /// If they come otherwise.
    pub fn take_message(&mut self, at: i32, len: usize) -> Outcome<Vec<Arrived>> {
        let mtu = self.current().setup.mtu.bytes();
        self.take_beginning(at, len.div_ceil(mtu).max(1), len)
    }

    /// The first packets of such a message, so many of them.
    ///
    /// # Errors
    /// If they come otherwise.
    pub fn take_beginning(&mut self, at: i32, count: usize, len: usize) -> Outcome<Vec<Arrived>> {
        let mtu = self.current().setup.mtu.bytes();
        let all = len.div_ceil(mtu).max(1);
        let mut packets: Vec<Arrived> = Vec::new();
        for i in 0..count.min(all) {
            let place = at + i as i32;
            let expected = format!("packet {} of {all} of a message, at PSN {place}", i + 1);
            let Some(arrived) = self.next_part(place)? else {
                return Err(Stop::failed(expected, self.silence()));
            };
            let bytes = (len - i * mtu).min(mtu);
            let is_right = !arrived.is_response()
                && arrived.icrc_is_right
                && self.place(&arrived) == place
                && arrived.payload().len() == bytes;
            ensure(is_right, &format!("{expected}, {bytes} bytes"), || arrived.to_string())?;
            packets.push(arrived);
        }
        Ok(packets)
    }

    /// The next packet, which is to be the one at this place. If it does not come, for one before
    /// it waits for its ACK, what has come is acknowledged.
    fn next_part(&mut self, at: i32) -> Outcome<Option<Arrived>> {
        let Connection { asked, acknowledged, .. } = self.current();
        if asked.is_some_and(|asked| asked >= *acknowledged && asked < at) {
            if let Some(arrived) = self.next_new(at, self.waits.quiet)? {
                return Ok(Some(arrived));
            }
            self.acknowledge(at - 1)?;
        }
        self.next_new(at, self.waits.reply)
    }

    /// The next packet, but for those before this place: a device may ask for their ACK once more.
    fn next_new(&mut self, at: i32, within: Duration) -> Outcome<Option<Arrived>> {
        let until = self.now() + within;
        while let Some(arrived) = self.next(until.saturating_duration_since(self.now()))? {
            if arrived.is_response() || self.place(&arrived) >= at {
                return Ok(Some(arrived));
            }
            self.allow("repeats a request before the ACK timeout");
        }
        Ok(None)
    }

    /// Acknowledges what has come, up to this PSN, with the MSN that belongs to it.
    ///
    /// # Errors
    /// If the port does not work.
    pub fn acknowledge(&mut self, at: i32) -> Outcome {
        let ended = self.current().ended.range(..=at).count();
        self.current_mut().acknowledged = at + 1;
        self.send(positive_ack(at, ended as u32))
    }

    /// The first PSN that was not [acknowledged](Self::acknowledge).
    pub fn acknowledged(&self) -> i32 {
        self.current().acknowledged
    }

    /// A message of the device by its opcodes (FIRST, MIDDLE, LAST, ONLY), from this PSN on, with
    /// this content.
    ///
    /// # Errors
    /// If it comes otherwise.
    pub fn expect_message(
        &mut self,
        [first, middle, last, only]: [Opcode; 4],
        at: i32,
        data: &[u8],
    ) -> Outcome<Vec<Arrived>> {
        let packets = self.take_message(at, data.len())?;
        let end = packets.len() - 1;
        let mut received: Vec<u8> = Vec::new();
        for (i, arrived) in packets.iter().enumerate() {
            let opcode = match (i == 0, i == end) {
                (true, true) => only,
                (true, false) => first,
                (false, true) => last,
                (false, false) => middle,
            };
            self.check(&any(opcode), arrived)?;
            received.extend(arrived.payload());
        }
        ensure(received == data, "the bytes that were posted", || "others".into())?;
        Ok(packets)
    }

    /// Answers the READ of so many bytes at [`OUR_ADDR`], whose first PSN is this. It may come in
    /// several requests, each with the PSN and the address of its place. Returns what was made up,
    /// and the PSN after it.
    ///
    /// # Errors
    /// If what comes is no such READ.
    pub fn serve_read(&mut self, at: i32, len: usize, msn: u32) -> Outcome<(Vec<u8>, i32)> {
        let path_mtu = self.current().setup.mtu;
        let mtu = path_mtu.bytes();
        let data = self.bytes(len);
        let mut served = vec![false; len.div_ceil(mtu).max(1)];
        let mut parts = 0;
        while served.contains(&false) {
            let Some(arrived) = self.next(self.waits.reply)? else {
                return Err(Stop::failed("requests for all of the READ", self.silence()));
            };
            self.check(&any(Opcode::RC_READ_REQUEST), &arrived)?;
            let (addr, rkey, asked) = arrived.reth().unwrap_or_default();
            let first = usize::try_from(self.place(&arrived) - at).unwrap_or(usize::MAX);
            let (from, asked) = (first.saturating_mul(mtu), asked as usize);
            let end = from.saturating_add(asked);
            let is_right = first < served.len()
                && (addr, rkey) == (OUR_ADDR + from as u64, OUR_RKEY)
                && end <= len
                && (asked > 0 || len == 0)
                && (end == len || end.is_multiple_of(mtu));
            ensure(is_right, "a request for the READ, or for a part of it", || {
                format!("{arrived}, {asked} bytes, where PSN {at} is of {len} at {OUR_ADDR:#x}")
            })?;
            let place = at + first as i32;
            self.send_all(&read_responses(place, &data[from..end], path_mtu, msn + parts))?;
            let part = &mut served[first..end.div_ceil(mtu).max(first + 1)];
            // One that comes again, because something was lost, is no part.
            parts += u32::from(part.contains(&false));
            part.fill(true);
        }
        if parts > 1 {
            self.allow(format!("asks for a READ of {len} bytes by {parts} requests"));
        }
        Ok((data, at + served.len() as i32))
    }

    /// All packets for this connection that come within this time.
    ///
    /// # Errors
    /// If the port does not work.
    pub fn collect(&mut self, within: Duration) -> Outcome<Vec<Arrived>> {
        self.wait(within)?;
        Ok(self.current_mut().arrived.drain(..).collect())
    }

    /// A response that makes no sense has come for this work request: it must not succeed. Most
    /// devices call it a bad response; to drop it is allowed too.
    ///
    /// # Errors
    /// If the work request succeeds, or another completes.
    pub fn expect_bad_response(&mut self, id: u64) -> Outcome {
        match self.completion(self.waits.reply)? {
            Some(Wc { id: found, status: Status::BadRespErr, .. }) if found == id => {}
            Some(Wc { id: found, status, .. })
                if found == id && !matches!(status, Status::Success | Status::WrFlushErr) =>
            {
                self.allow(format!("ends with {status:?}, not with BadRespErr"));
            }
            None => self.allow("drops a response that makes no sense"),
            Some(wc) => {
                return Err(Stop::failed(
                    format!("work request {id} ends with BadRespErr"),
                    format!("{} with {:?}", wc.id, wc.status),
                ));
            }
        }
        Ok(())
    }

    /// Nothing new is sent for a while. Requests that wait for their acknowledgement, before this
    /// PSN, may be repeated.
    ///
    /// # Errors
    /// If something is.
    pub fn expect_nothing_new(&mut self, from: i32) -> Outcome {
        for arrived in self.collect(self.waits.quiet)? {
            if arrived.is_response() || self.place(&arrived) >= from {
                return Err(Stop::failed("no new request", arrived.to_string()));
            }
            self.allow("repeats a request before the ACK timeout");
        }
        Ok(())
    }
}
