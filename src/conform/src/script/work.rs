//! The work of a connection's program: it begins, its packets come, it ends.
//!
//! Who does it may tell of each operation, as an agent does, or only how all of it has ended, as a
//! stock client does.

use super::{OUR_ADDR, OUR_RKEY, Script};
use crate::Arrived;
use crate::agent::{Operation, SendWr, State, Status, Wc};
use crate::check::{Outcome, Stop, ensure};
use crate::device::{End, SOURCE, TARGET, Work};
use crate::packet::{atomic_response, read_responses, refusal};
use std::time::Duration;
use urxe_types::TimeCode;
use urxe_wire::{NakCode, Opcode};

/// Bytes between what the operations of an agent take or bring.
const STRIDE: usize = 8 << 10;
/// How often it is looked whether work has ended.
const LOOK_INTERVAL: Duration = Duration::from_millis(1);
/// How long work may take to end, as a multiple of the time for an answer: clients measure their
/// processor's speed meanwhile.
const ENDING: u32 = 20;
/// The code of the ACK timeout that programs set if no other is wanted.
const USUAL_TIMEOUT: u8 = 14;
/// What is found where something is added.
const FOUND: u64 = 7;

/// What stands in our memory from this address on, for who READs it to be answered the same each
/// time.
pub fn our_memory(addr: u64, len: usize) -> Vec<u8> {
    (addr..).take(len).map(|at| (at ^ at >> 8).wrapping_mul(0x9d) as u8).collect()
}

impl Script<'_> {
    /// Has the program do the work that the connection was made for.
    ///
    /// # Errors
    /// If it does not.
    pub fn begin(&mut self) -> Outcome {
        if self.work().operation == Operation::Send {
            self.grant_credits()?;
        }
        if let Some(client) = self.device.client() {
            client.begin()?;
            return Ok(());
        }
        let Work { operation, len } = self.work();
        let mut wrs = Vec::new();
        for i in 0..Work::COUNT as usize {
            let (id, at) = (i as u64 + 1, i * STRIDE);
            let (source, raddr) = (SOURCE + at..SOURCE + at + len, OUR_ADDR + at as u64);
            wrs.push(match operation {
                Operation::RdmaRead => {
                    SendWr::read(id, TARGET + at..TARGET + at + len, raddr, OUR_RKEY)
                }
                Operation::FetchAdd => SendWr::fetch_add(id, TARGET + at, raddr, OUR_RKEY, 1),
                Operation::RdmaWrite => SendWr::write(id, source, raddr, OUR_RKEY),
                _ => SendWr::send(id, source),
            });
            if matches!(operation, Operation::RdmaWrite | Operation::Send) {
                let data = self.bytes(len);
                self.fill(SOURCE + at, &data)?;
            }
        }
        self.post(&wrs).map(drop)
    }

    /// The packets of all of the work, which come without an answer: it is short.
    ///
    /// # Errors
    /// If they come otherwise.
    pub fn take_work(&mut self) -> Outcome<Vec<Arrived>> {
        let mut packets = self.take_message(0, self.work().len)?;
        packets.extend(self.take_rest_of_work(packets.len() as i32)?);
        Ok(packets)
    }

    /// The packets behind those of its first operation, from this PSN on.
    ///
    /// # Errors
    /// If they come otherwise.
    pub fn take_rest_of_work(&mut self, at: i32) -> Outcome<Vec<Arrived>> {
        let mut packets = Vec::new();
        for _ in 1..Work::COUNT {
            packets.extend(self.take_message(at + packets.len() as i32, self.work().len)?);
        }
        Ok(packets)
    }

    /// So many operations have succeeded, and no more do for a while.
    ///
    /// # Errors
    /// If it is otherwise.
    pub fn expect_succeeded(&mut self, count: u32) -> Outcome {
        if !self.is_told() {
            return self.expect_repeat_behind(count);
        }
        let until = self.now() + self.waits.reply;
        while self.look()?.is_none() && self.current().succeeded < count && self.now() < until {
            self.receive(until.min(self.now() + LOOK_INTERVAL))?;
        }
        let end = self.end_within(self.waits.quiet)?;
        let succeeded = self.current().succeeded;
        ensure(end.is_none() && succeeded == count, &format!("{count} have succeeded"), || {
            end.map_or(succeeded.to_string(), |end| format!("{end:?}"))
        })
    }

    /// Who does not tell of its operations shows which it still waits for by what it sends again
    /// when the ACK timeout is over: something behind the first `count`.
    fn expect_repeat_behind(&mut self, count: u32) -> Outcome {
        let (work, setup) = (self.work(), self.current().setup.clone());
        let timeout = TimeCode::new(setup.timeout.unwrap_or(USUAL_TIMEOUT)).duration();
        let each = work.len.div_ceil(setup.mtu.bytes()).max(1) as i32;
        self.collect(Duration::ZERO)?;
        let mut came = self.current().came.clone();
        let begin = self.now();
        let until = begin + timeout * 4 + self.waits.reply;
        while self.now() < until {
            if let Some(end) = self.look()? {
                return Err(Stop::failed(format!("no end after {count}"), format!("{end:?}")));
            }
            let Some(request) = self.next(LOOK_INTERVAL)? else { continue };
            let place = self.place(&request);
            if !request.is_response() && !came.insert(place) {
                let operation = place / each;
                let is_right = match setup.max_rd_atomic {
                    // No other is under way.
                    Some(1) => operation == count as i32,
                    _ => operation >= count as i32,
                };
                // It may have been under way when what it is part of was acknowledged.
                if !is_right && request.at < begin + timeout / 2 {
                    continue;
                }
                let expected = format!("a repeat of what is behind {count} operations");
                return ensure(is_right, &expected, || request.to_string());
            }
        }
        Err(Stop::failed(format!("a repeat of what is behind {count} operations"), "none"))
    }

    /// All of the work succeeds. A client may take its time to say so.
    ///
    /// # Errors
    /// If it does not.
    pub fn expect_done(&mut self) -> Outcome {
        let end = self.end_within(self.waits.reply * ENDING)?;
        ensure(end == Some(End::Done), "an end with success", || format!("{end:?}"))
    }

    /// Whether the program tells of its memory and of each of its operations.
    pub fn is_told(&mut self) -> bool {
        self.device.client().is_none()
    }

    /// The work ends in time with the failure of an operation, all before it having succeeded;
    /// those behind it are flushed.
    ///
    /// # Errors
    /// If it does not.
    pub fn expect_failure(&mut self, status: Status) -> Outcome {
        self.expect_failure_within(self.waits.reply, status)
    }

    /// The same, within another time than an answer takes.
    ///
    /// # Errors
    /// If it does not.
    pub fn expect_failure_within(&mut self, within: Duration, status: Status) -> Outcome {
        let expected = format!("an end with {status:?}");
        match self.end_within(within)? {
            Some(End::Failed(Some(found))) if found == status => {}
            Some(End::Failed(None)) => self.allow("how the program failed is not told"),
            Some(end) => return Err(Stop::failed(expected, format!("{end:?}"))),
            None => {
                let seen = format!("none within {} ms", within.as_millis());
                return Err(Stop::failed(expected, seen));
            }
        }
        if self.is_told() {
            let failed = u64::from(self.current().succeeded) + 1;
            self.expect_flushed(failed + 1..=u64::from(Work::COUNT))?;
            self.expect_state(State::Err)?;
        }
        Ok(())
    }

    /// A response that makes no sense has come for the operation after so many: it must not
    /// succeed. Most devices call it a bad response; to drop it is allowed too.
    ///
    /// # Errors
    /// If it succeeds.
    pub fn expect_bad_response_to_work(&mut self, before: u32) -> Outcome {
        let end = self.end_within(self.waits.reply)?;
        let succeeded = self.current().succeeded;
        ensure(succeeded <= before, "no success by it", || format!("{succeeded} succeed"))?;
        match end {
            Some(End::Done) => return Err(Stop::failed("no success", "success")),
            // Who tells the first failure alone would have told another than a flush.
            Some(End::Failed(Some(Status::WrFlushErr))) if !self.is_told() => {
                return Err(Stop::failed("no success", "success; what is behind it is flushed"));
            }
            Some(End::Failed(Some(Status::BadRespErr) | None)) => return Ok(()),
            Some(End::Failed(Some(status))) => {
                self.allow(format!("ends with {status:?}, not with BadRespErr"));
                return Ok(());
            }
            None => self.allow("drops a response that makes no sense"),
        }
        if self.is_told() { Ok(()) } else { self.expect_repeat_behind(before) }
    }

    /// Answers all requests, as a right responder does, until the work is done.
    ///
    /// # Errors
    /// If it fails, or comes to no end.
    pub fn finish_work(&mut self) -> Outcome {
        let until = self.now() + self.waits.reply * ENDING;
        let mut is_due = true;
        loop {
            match self.look()? {
                Some(End::Done) => return Ok(()),
                None if self.now() < until => {}
                end => {
                    let seen = end.map_or("no end".into(), |end| format!("{end:?}"));
                    return Err(Stop::failed("an end with success", seen));
                }
            }
            match self.next(LOOK_INTERVAL)? {
                Some(request) => is_due |= !self.answer(&request)?,
                None if is_due => {
                    is_due = false;
                    self.acknowledge_all()?;
                }
                None => {}
            }
        }
    }

    /// Answers a READ or an atomic; false: it is a request that wants an ACK.
    fn answer(&mut self, request: &Arrived) -> Outcome<bool> {
        let place = self.place(request);
        let msn = self.current().ended.range(..=place).count() as u32;
        match Opcode::from_byte(request.opcode()) {
            Some(Opcode::RC_READ_REQUEST) => {
                let (addr, _, len) = request.reth().unwrap_or_default();
                let data = our_memory(addr, len as usize);
                let answers = read_responses(place, &data, self.current().setup.mtu, msn);
                self.send_all(&answers).map(|()| true)
            }
            Some(Opcode::RC_FETCH_ADD) => {
                self.send(atomic_response(place, msn, FOUND)).map(|()| true)
            }
            _ => Ok(false),
        }
    }

    /// Acknowledges all requests up to the first that has not come.
    fn acknowledge_all(&mut self) -> Outcome {
        let came = &self.current().came;
        match (0..).take_while(|place| came.contains(place)).last() {
            Some(last) if !self.is_answered_with_data() => self.acknowledge(last),
            _ => Ok(()),
        }
    }

    /// Whether an ACK is no answer to its operations.
    fn is_answered_with_data(&self) -> bool {
        matches!(self.work().operation, Operation::RdmaRead | Operation::FetchAdd)
    }

    /// How the work ends, if it does within this time. Packets that come meanwhile are kept.
    ///
    /// # Errors
    /// If the program or the port does not work.
    pub fn end_within(&mut self, within: Duration) -> Outcome<Option<End>> {
        let until = self.now() + within;
        loop {
            let end = self.look()?;
            if end.is_some() || self.now() >= until {
                return Ok(end);
            }
            self.receive(until.min(self.now() + LOOK_INTERVAL))?;
        }
    }

    /// How the work has ended, if it has.
    fn look(&mut self) -> Outcome<Option<End>> {
        if let Some(client) = self.device.client() {
            let end = client.end();
            let connection = self.current_mut();
            connection.end = connection.end.or(end);
            return Ok(connection.end);
        }
        while self.current().end.is_none() {
            let due = u64::from(self.current().succeeded) + 1;
            let end = match self.completion(Duration::ZERO)? {
                None => break,
                Some(Wc { id, status, .. }) if id != due => {
                    let seen = format!("{id} with {status:?}");
                    return Err(Stop::failed(format!("operation {due} ends first"), seen));
                }
                Some(Wc { status: Status::Success, .. }) => {
                    self.current_mut().succeeded += 1;
                    (due == u64::from(Work::COUNT)).then_some(End::Done)
                }
                Some(Wc { status, .. }) => Some(End::Failed(Some(status))),
            };
            self.current_mut().end = end;
        }
        Ok(self.current().end)
    }

    /// Has a client whose work has begun and not ended come to an end, which else it may wait for
    /// without one.
    pub(super) fn stop_work(&mut self) {
        if self.device.client().is_none_or(|client| client.end().is_some()) {
            return;
        }
        if let Some(&last) = self.connections.get(self.selected).and_then(|c| c.came.last()) {
            // That it cannot be told so is no part of the check.
            let _ = self.send(refusal(NakCode::RemoteOperational, last, 0));
        }
    }

    fn work(&self) -> Work {
        self.current().setup.work.expect("the check has asked for work")
    }
}
