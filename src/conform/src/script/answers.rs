//! The answers to requests of several packets, and what they say of the device: its memory, and
//! whether its QP still works.

use super::Script;
use crate::Arrived;
use crate::check::{Outcome, Stop};
use crate::expect::{self, Expect, nak, read_response, rnr_nak};
use crate::packet::{Packet, packet};
use urxe_wire::{NakCode, Opcode, Syndrome};

/// How often [`Script::deliver`] goes back.
const REPEATS: u32 = 8;

impl Script<'_> {
    /// One of these must come in time; ACKs of packets before it may come first. Returns which.
    ///
    /// # Errors
    /// If something else comes, or nothing.
    pub fn expect_one_of(&mut self, expected: &[Expect]) -> Outcome<(usize, Arrived)> {
        loop {
            let Some(arrived) = self.next(self.waits.reply)? else {
                return Err(Stop::failed(describe(expected), self.silence()));
            };
            if let Some(found) = self.found(expected, &arrived)? {
                return Ok((found, arrived));
            }
        }
    }

    /// One of these comes in time, or nothing. Returns which.
    ///
    /// # Errors
    /// If something else comes.
    pub fn expect_nothing_or(&mut self, expected: &[Expect]) -> Outcome<Option<usize>> {
        Ok(self.expect_silence_or(expected)?.map(|(found, _)| found))
    }

    /// The same, with what has come.
    ///
    /// # Errors
    /// If something else comes.
    pub fn expect_silence_or(&mut self, expected: &[Expect]) -> Outcome<Option<(usize, Arrived)>> {
        while let Some(arrived) = self.next(self.waits.reply)? {
            if let Some(found) = self.found(expected, &arrived)? {
                return Ok(Some((found, arrived)));
            }
        }
        Ok(None)
    }

    /// Whether anything comes in time for this connection. It is left to be expected.
    ///
    /// # Errors
    /// If the port does not work.
    pub fn is_answered(&mut self) -> Outcome<bool> {
        let until = self.now() + self.waits.reply;
        while self.current().arrived.is_empty() {
            if !self.receive(until)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Which of these has arrived; `None`: an ACK of packets before them.
    fn found(&self, expected: &[Expect], arrived: &Arrived) -> Outcome<Option<usize>> {
        let first = self.first_psn(arrived);
        let found = expected.iter().position(|one| one.mismatch(arrived, first).is_none());
        let place = self.place(arrived);
        let is_before = expected.iter().all(|one| one.place().is_some_and(|at| place < at));
        if found.is_some() || is_before && expect::any_ack().mismatch(arrived, first).is_none() {
            return Ok(found);
        }
        match expected {
            [one] => self.check(one, arrived).map(|()| None),
            _ => {
                expected.iter().for_each(|one| self.note_contradiction(one, arrived));
                Err(Stop::failed(describe(expected), arrived.to_string()))
            }
        }
    }

    /// This must come in time; ACKs of packets before it may come first.
    ///
    /// # Errors
    /// If something else comes, or nothing.
    pub fn expect_answer(&mut self, expected: Expect) -> Outcome<Arrived> {
        self.expect_one_of(&[expected]).map(|(_, arrived)| arrived)
    }

    /// Our packet at this PSN is refused for good: a NAK, and then nothing is done any more.
    ///
    /// # Errors
    /// If it is not.
    pub fn expect_refused(&mut self, code: NakCode, at: i32) -> Outcome {
        self.expect_answer(nak(code, at))?;
        self.expect_no_service(at)
    }

    /// As [`Self::expect_refused`]. Another code is an allowed variation.
    ///
    /// # Errors
    /// If it is not refused.
    pub fn expect_refused_or(&mut self, code: NakCode, other: NakCode, at: i32) -> Outcome {
        if self.expect_one_of(&[nak(code, at), nak(other, at)])?.0 == 1 {
            self.allow(format!("refuses with {other:?}, not with {code:?}"));
        }
        self.expect_no_service(at)
    }

    /// The QP has failed: it does nothing that it is asked for, from this PSN on. It may say again
    /// why.
    ///
    /// # Errors
    /// If it does something.
    pub fn expect_no_service(&mut self, psn: i32) -> Outcome {
        self.send_all(&[self.probe(psn), self.probe(psn + 1)])?;
        while let Some(arrived) = self.next(self.waits.quiet)? {
            let code = arrived.nak().filter(|&code| code != NakCode::SequenceError);
            if code.is_none() || self.place(&arrived) > psn {
                return Err(Stop::failed("nothing, after a fatal error", arrived.to_string()));
            }
            self.allow("repeats the NAK of a fatal error");
        }
        Ok(())
    }

    /// The QP works: a request at this PSN is carried out, as the message of this number.
    ///
    /// # Errors
    /// If it does not.
    pub fn expect_service(&mut self, psn: i32, msn: u32) -> Outcome {
        self.send(self.probe(psn))?;
        let setup = &self.current().setup;
        let expected = match (setup.write, setup.read) {
            (true, _) => vec![expect::ack(psn).msn(msn)],
            (false, true) => vec![expect::empty_response(psn).msn(msn)],
            // Where there is nothing to be received into, it is the refusal that shows life.
            (false, false) => vec![expect::ack(psn).msn(msn), rnr_nak(psn)],
        };
        self.expect_one_of(&expected).map(|_| ())
    }

    /// A request without effect that a reliable connection set up as ours answers if it works.
    fn probe(&self, psn: i32) -> Packet {
        let connection = self.current();
        let of_nothing = |opcode| {
            let memory = connection.theirs.memory;
            let (addr, rkey) = memory.map_or((0, 0), |memory| (memory.addr, memory.rkey));
            packet(opcode).reth(addr, rkey, 0)
        };
        let probe = match (connection.setup.write, connection.setup.read) {
            (true, _) => of_nothing(Opcode::RC_WRITE_ONLY).ack_req(),
            (false, true) => of_nothing(Opcode::RC_READ_REQUEST),
            (false, false) => packet(Opcode::RC_SEND_ONLY).ack_req(),
        };
        probe.at(psn)
    }

    /// The answer to a READ of so many bytes that was sent at this PSN, the message of number
    /// `msn`: FIRST, MIDDLE ..., LAST, or ONLY. Returns the data.
    ///
    /// # Errors
    /// If something else comes, or not all of it.
    pub fn expect_read(&mut self, psn: i32, len: usize, msn: u32) -> Outcome<Vec<u8>> {
        self.expect_read_among(psn, len, msn, msn)
    }

    /// The same, where requests up to the message of number `newest` were sent at once: a device
    /// that tells of what it has accepted when it answers may have counted these too.
    ///
    /// # Errors
    /// If something else comes, or not all of it.
    pub fn expect_read_among(
        &mut self,
        psn: i32,
        len: usize,
        msn: u32,
        newest: u32,
    ) -> Outcome<Vec<u8>> {
        use Opcode::{
            RC_READ_RESPONSE_FIRST, RC_READ_RESPONSE_LAST, RC_READ_RESPONSE_MIDDLE,
            RC_READ_RESPONSE_ONLY,
        };
        let mtu = self.current().setup.mtu.bytes();
        let last = len.div_ceil(mtu).max(1) - 1;
        let mut data = Vec::new();
        for i in 0..=last {
            let opcode = match (i == 0, i == last) {
                (true, true) => RC_READ_RESPONSE_ONLY,
                (true, false) => RC_READ_RESPONSE_FIRST,
                (false, true) => RC_READ_RESPONSE_LAST,
                (false, false) => RC_READ_RESPONSE_MIDDLE,
            };
            let expected = read_response(opcode, psn + i as i32).len((len - i * mtu).min(mtu));
            let expected = match opcode {
                RC_READ_RESPONSE_MIDDLE => expected,
                // The READ has to be counted in the last response, and may be in the first.
                RC_READ_RESPONSE_FIRST => expected.msns(msn.saturating_sub(1)..=newest),
                _ => expected.msns(msn..=newest),
            };
            // Between the parts nothing else comes.
            let arrived = match i {
                0 => self.expect_answer(expected)?,
                _ => self.expect(expected)?,
            };
            self.allow_newer_msn(&arrived, msn);
            data.extend(arrived.payload());
        }
        Ok(data)
    }

    /// Notes if an answer to the message of number `msn` counts others behind it.
    pub fn allow_newer_msn(&mut self, answer: &Arrived, msn: u32) {
        if answer.aeth().is_some_and(|(_, found)| found > msn) {
            self.allow("the MSN of an answer counts requests behind the one that it answers");
        }
    }

    /// The device's memory, by a READ at this PSN, the message of number `msn`.
    ///
    /// # Errors
    /// If it is not answered as it should be.
    pub fn read_back(&mut self, psn: i32, msn: u32, offset: u64, len: usize) -> Outcome<Vec<u8>> {
        let (addr, rkey) = (self.addr(offset), self.rkey());
        self.send(packet(Opcode::RC_READ_REQUEST).at(psn).reth(addr, rkey, len as u32))?;
        self.expect_read(psn, len, msn)
    }

    /// The device's memory contains this, as a READ at this PSN shows, the message of number `msn`.
    ///
    /// # Errors
    /// If it does not.
    pub fn expect_memory(&mut self, psn: i32, msn: u32, offset: u64, data: &[u8]) -> Outcome {
        let found = self.read_back(psn, msn, offset, data.len())?;
        match found.iter().zip(data).position(|(found, wanted)| found != wanted) {
            None => Ok(()),
            Some(at) => Err(Stop::failed(
                format!("byte {at} of the memory is {:#04x}", data[at]),
                format!("{:#04x}", found[at]),
            )),
        }
    }

    /// Sends packets, and again from there on what is said to be missing, until the last one is
    /// acknowledged with this MSN. Their PSNs begin with `psn`; packets may be left out at first,
    /// or be sent in another order: `first` are those that are sent at first.
    ///
    /// # Errors
    /// If they are refused otherwise, or never acknowledged.
    pub fn deliver(&mut self, psn: i32, all: &[Packet], first: &[Packet], msn: u32) -> Outcome {
        let last = psn + all.len() as i32 - 1;
        self.send_all(first)?;
        for _ in 0..REPEATS {
            let arrived = self.next(self.waits.quiet)?;
            let aeth = arrived.as_ref().and_then(Arrived::aeth);
            let from = match (arrived, aeth) {
                (Some(arrived), Some((Syndrome::Ack { .. }, found)))
                    if self.place(&arrived) == last && found == msn =>
                {
                    return Ok(());
                }
                (Some(arrived), Some((Syndrome::Ack { .. }, _))) if self.place(&arrived) < last => {
                    continue;
                }
                (Some(arrived), _) if arrived.nak() == Some(NakCode::SequenceError) => {
                    self.place(&arrived)
                }
                (Some(arrived), _) => {
                    let wanted = format!("{}, MSN {msn}", expect::ack(last).describe());
                    return Err(Stop::failed(wanted, arrived.to_string()));
                }
                // The end was lost: a timeout.
                (None, _) => psn,
            };
            let Some(rest) = usize::try_from(from - psn).ok().and_then(|from| all.get(from..))
            else {
                return Err(Stop::failed("a packet of the message is missing", "another PSN"));
            };
            self.send_all(rest)?;
        }
        Err(Stop::failed(expect::ack(last).describe(), "never, however often it was repeated"))
    }

    /// Nothing comes for any QP for a while. Management datagrams do not count.
    ///
    /// # Errors
    /// If something does.
    pub fn expect_no_answer_at_all(&mut self) -> Outcome {
        self.expect_nothing()?;
        while let Some(stray) = self.next_stray(std::time::Duration::ZERO)? {
            if stray.dest_qp() > 1 {
                return Err(Stop::failed("nothing", stray.to_string()));
            }
        }
        Ok(())
    }
}

fn describe(expected: &[Expect]) -> String {
    expected.iter().map(Expect::describe).collect::<Vec<_>>().join(", or ")
}
