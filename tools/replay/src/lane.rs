//! One direction of a connection in replay: what our engine has said, and what the captured
//! responder says beside it.

use crate::finding::{Difference, Findings, Freedom};
use crate::program::Program;
use crate::survey::Survey;
use crate::trace::Captured;
use std::collections::{HashMap, HashSet, VecDeque};
use urxe_types::{Msn, Pkey, Psn, Rkey};
use urxe_wire::{Aeth, Headers, NakCode, Operation, Syndrome};

/// Something that our engine said.
#[derive(Clone, Debug)]
pub(crate) struct Said {
    pub(crate) headers: Headers,
    pub(crate) payload: Vec<u8>,
    /// The number of the request that it answers.
    pub(crate) to: usize,
    /// Where its data is from, and the packet that had touched that before.
    pub(crate) from: Option<(Rkey, u64, usize)>,
}

/// From the beginning of a connection, or the place where the replay found it again, to where it
/// was lost.
#[derive(Debug)]
pub(crate) struct Life {
    pub(crate) first: Psn,
    /// By PSN, the newest last.
    pub(crate) said: HashMap<Psn, Vec<Said>>,
    /// Requests done that asked for an ACK, of which none has spoken yet.
    unspoken: VecDeque<Psn>,
    /// PSNs of data (READs, atomics) that the capture has not answered yet.
    awaited: HashSet<Psn>,
    msns: Vec<MsnSeen>,
    /// The highest MSN that our engine has told.
    msn: Msn,
    /// PSNs that were acknowledged by themselves.
    spoken: HashSet<Psn>,
    /// The furthest PSN that a response was for.
    reached: Option<Psn>,
}

/// The MSN of a response.
#[derive(Clone, Copy, Debug)]
struct MsnSeen {
    frame: u64,
    captured: Msn,
    /// What our engine told at this PSN first.
    first: Msn,
    /// How many messages it had done since, if the request was repeated.
    since: u32,
}

/// How far an MSN is ahead of another.
fn ahead(a: Msn, b: Msn) -> u32 {
    Msn::new(a.get().wrapping_sub(b.get())).get()
}

impl Life {
    pub(crate) fn new(first: Psn) -> Life {
        Life {
            first,
            said: HashMap::new(),
            unspoken: VecDeque::new(),
            awaited: HashSet::new(),
            msns: Vec::new(),
            msn: Msn::new(0),
            spoken: HashSet::new(),
            reached: None,
        }
    }

    /// Our engine has said something. `asked`: the requester wanted an ACK.
    pub(crate) fn says(&mut self, said: Said, asked: bool) {
        let psn = said.headers.bth.psn;
        if let Some(aeth) = said.headers.aeth
            && ahead(aeth.msn, self.msn) < 1 << 23
        {
            self.msn = aeth.msn;
        }
        match said.headers.bth.opcode.operation() {
            Operation::Ack => {
                let is_ack = matches!(syndrome(&said.headers), Some(Syndrome::Ack { .. }));
                if asked && is_ack && !self.said.contains_key(&psn) {
                    self.unspoken.push_back(psn);
                }
            }
            _ => {
                self.awaited.insert(psn);
            }
        }
        self.said.entry(psn).or_default().push(said);
    }

    /// A response speaks for everything before this PSN. Returns how many ACKs it made needless.
    fn spoken_before(&mut self, psn: Psn) -> u64 {
        let mut count = 0;
        while self.unspoken.front().is_some_and(|front| front.precedes(psn)) {
            self.unspoken.pop_front();
            count += 1;
        }
        if self.reached.is_none_or(|reached| reached.precedes(psn)) {
            self.reached = Some(psn);
        }
        count
    }
}

/// One direction.
pub(crate) struct Lane {
    pub(crate) survey: Survey,
    pub(crate) findings: Findings,
    /// `None` while the replay waits for a message to begin with.
    pub(crate) life: Option<Life>,
    /// The P_Key of the requests.
    pub(crate) pkey: Option<Pkey>,
    /// How many packets our engine may still give.
    pub(crate) budget: usize,
    /// Requests replayed.
    pub(crate) replayed: u64,
    pub(crate) last_frame: u64,
}

/// What the replay knows beside a lane while it judges a response.
pub(crate) struct Surroundings<'a> {
    /// The PSN that our responder expects.
    pub(crate) expected: Option<Psn>,
    /// The last packet with which the responder's program was active.
    pub(crate) active: usize,
    /// The number of the response.
    pub(crate) number: usize,
    /// The responder's program, whose memory it is.
    pub(crate) program: &'a mut Program,
}

/// What follows for the replay from a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum After {
    GoOn,
    /// Captured and replayed responder do not agree on what was done: begin anew.
    LostTrack,
}

impl Lane {
    pub(crate) fn new(survey: Survey) -> Lane {
        let budget = 4096 + 8 * survey.responses.len();
        Lane {
            survey,
            findings: Findings::default(),
            life: None,
            pkey: None,
            budget,
            replayed: 0,
            last_frame: 0,
        }
    }

    /// Compares a response.
    pub(crate) fn judge(&mut self, packet: &Captured, around: &mut Surroundings<'_>) -> After {
        let frame = packet.frame;
        self.last_frame = frame;
        if !packet.intact {
            self.findings.compared += 1;
            self.differ(
                frame,
                ("icrc", "wrong", "right"),
                "The ICRC does not match: the responder computes it otherwise, or the packet was changed on its way.",
            );
            return After::GoOn;
        }
        let psn = packet.headers.bth.psn;
        let Some(life) = &mut self.life else {
            let why = "response to a request that is not replayed".to_owned();
            self.findings.unused.add(why, frame, 1);
            return After::GoOn;
        };
        if psn.precedes(life.first) && life.reached.is_none() {
            let why = "response to a request from before the capture".to_owned();
            self.findings.unused.add(why, frame, 1);
            return After::GoOn;
        }
        self.findings.compared += 1;
        self.judge_frame(packet);
        match (packet.headers.bth.opcode.operation(), packet.headers.aeth) {
            (Operation::Ack, Some(aeth)) => match aeth.syndrome {
                Syndrome::Ack { .. } => self.judge_ack(packet, aeth, around),
                _ => self.judge_nak(packet, aeth),
            },
            _ => self.judge_data(packet, around),
        }
    }

    fn differ(
        &mut self,
        frame: u64,
        fields: (&'static str, impl ToString, impl ToString),
        says: &str,
    ) {
        let (field, captured, expected) = fields;
        self.findings.differences.push(Difference {
            frame,
            field,
            captured: captured.to_string(),
            expected: expected.to_string(),
            says: says.to_owned(),
        });
    }

    /// What every response must have in its headers.
    fn judge_frame(&mut self, packet: &Captured) {
        let (frame, bth) = (packet.frame, &packet.headers.bth);
        if let urxe_wire::Ident::Known { fragment, .. } = packet.outer.ident
            && packet.outer.flow.src.is_ipv4()
            && fragment != urxe_wire::DONT_FRAGMENT
        {
            let fields = ("ip flags", format!("{fragment:#06x}"), "0x4000");
            self.differ(
                frame,
                fields,
                "RoCEv2 packets are sent with the don't-fragment bit and are no fragments.",
            );
        }
        if let Some(pkey) = self.pkey.filter(|pkey| !bth.pkey.matches(*pkey)) {
            let fields = ("p_key", format!("{:#06x}", bth.pkey.0), format!("{:#06x}", pkey.0));
            self.differ(frame, fields, "The response is of another partition than the requests.");
        }
        if (bth.resv6a, bth.resv7) != (0, 0) {
            let fields = ("reserved", format!("{:#x}, {:#x}", bth.resv6a, bth.resv7), "0, 0");
            self.differ(frame, fields, "Reserved bits of the BTH are sent as zeros.");
        }
        let freedoms = &mut self.findings.freedoms;
        freedoms.add(Freedom::MigReq, frame, u64::from(!bth.migreq));
        freedoms.add(Freedom::Congestion, frame, u64::from(bth.fecn || bth.becn));
        if let Some(Syndrome::Ack { credits }) = syndrome(&packet.headers) {
            freedoms.add(Freedom::Credits, frame, u64::from(credits != 0x1f));
        }
    }

    fn judge_ack(&mut self, packet: &Captured, aeth: Aeth, around: &Surroundings<'_>) -> After {
        let (frame, psn) = (packet.frame, packet.headers.bth.psn);
        let Some(life) = &mut self.life else { return After::GoOn };
        let said = life.said.get(&psn).and_then(|said| {
            said.iter()
                .rev()
                .find(|said| matches!(syndrome(&said.headers), Some(Syndrome::Ack { .. }) | None))
        });
        let Some(said) = said else {
            let (expected, says) = self.why_not_done(psn, around.expected);
            self.differ(frame, ("psn", format!("{} of {psn}", aeth.syndrome), expected), &says);
            return After::LostTrack;
        };
        let is_data = said.headers.bth.opcode.operation() != Operation::Ack;
        if is_data && life.awaited.contains(&psn) {
            let fields = ("opcode", "RC ACK", said.headers.bth.opcode.to_string());
            self.differ(
                frame,
                fields,
                "A READ or atomic is answered with its data and not with an ACK.",
            );
            return After::GoOn;
        }
        life.note_msn(frame, psn, aeth.msn);
        let coalesced = life.spoken_before(psn);
        let freedoms = &mut self.findings.freedoms;
        freedoms.add(Freedom::CoalescedAck, frame, coalesced);
        match life.unspoken.front() == Some(&psn) {
            true => _ = life.unspoken.pop_front(),
            false if life.is_repeated(psn) => freedoms.add(Freedom::RepeatedAck, frame, 1),
            false => freedoms.add(Freedom::UnaskedAck, frame, 1),
        }
        life.spoken.insert(psn);
        After::GoOn
    }

    /// Why our responder has not done what the captured one acknowledges.
    fn why_not_done(&self, psn: Psn, expected: Option<Psn>) -> (String, String) {
        let refused =
            self.life.iter().flat_map(|life| life.said.values().flatten()).find_map(|said| {
                match syndrome(&said.headers)? {
                    nak @ Syndrome::Nak(code) if code != NakCode::SequenceError => {
                        Some((said.headers.bth.psn, nak))
                    }
                    _ => None,
                }
            });
        match (refused, expected) {
            (Some((at, nak)), _) => {
                (format!("{nak} of {at}"), "It acknowledges what our engine refuses.".to_owned())
            }
            (None, Some(expected)) if !psn.precedes(expected) => (
                format!("nothing of {expected} or later"),
                "It acknowledges what had not arrived yet.".to_owned(),
            ),
            _ => ("no ACK of that".to_owned(), "It acknowledges what nobody requested.".to_owned()),
        }
    }

    fn judge_nak(&mut self, packet: &Captured, aeth: Aeth) -> After {
        let (frame, psn) = (packet.frame, packet.headers.bth.psn);
        let Some(life) = &mut self.life else { return After::GoOn };
        let said = life.said.get(&psn).map(Vec::as_slice).unwrap_or_default();
        let is_nak =
            |said: &&Said| !matches!(syndrome(&said.headers), Some(Syndrome::Ack { .. }) | None);
        let ours = said.iter().rev().find(is_nak).and_then(|said| said.headers.aeth);
        let Some(ours) = ours else {
            let (expected, says) = match said.last() {
                Some(said) => (said.headers.to_string(), "It refuses what our engine carries out."),
                None => ("nothing".to_owned(), "It refuses what nobody requested."),
            };
            self.differ(frame, ("syndrome", format!("{} of {psn}", aeth.syndrome), expected), says);
            return After::LostTrack;
        };
        life.note_msn(frame, psn, aeth.msn);
        let coalesced = life.spoken_before(psn);
        let freedoms = &mut self.findings.freedoms;
        freedoms.add(Freedom::CoalescedAck, frame, coalesced);
        let failed = Syndrome::Nak(NakCode::RemoteOperational);
        freedoms.add(Freedom::LocalFailure, frame, u64::from(aeth.syndrome == failed));
        if aeth.syndrome != ours.syndrome {
            let fields = ("syndrome", aeth.syndrome, ours.syndrome);
            self.differ(frame, fields, "It refuses the request for another reason.");
        }
        After::GoOn
    }

    /// A READ response or the answer to an atomic.
    fn judge_data(&mut self, packet: &Captured, around: &mut Surroundings<'_>) -> After {
        let (frame, bth) = (packet.frame, &packet.headers.bth);
        let Some(life) = &mut self.life else { return After::GoOn };
        let said = life.said.get(&bth.psn).map(Vec::as_slice).unwrap_or_default();
        let same = |said: &&Said| said.headers.bth.opcode == bth.opcode;
        let any = |said: &&Said| said.headers.bth.opcode.operation() != Operation::Ack;
        let ours = said.iter().rev().find(same).or_else(|| said.iter().rev().find(any));
        let Some(ours) = ours.cloned() else {
            let (expected, says) = match said.last() {
                Some(said) => {
                    (said.headers.to_string(), "It brings data where our engine answers otherwise.")
                }
                None => ("nothing".to_owned(), "It brings data that nobody asked for at this PSN."),
            };
            self.differ(frame, ("psn", format!("{} of {}", bth.opcode, bth.psn), expected), says);
            let is_done = around.expected.is_some_and(|expected| bth.psn.precedes(expected));
            return if is_done { After::GoOn } else { After::LostTrack };
        };
        life.awaited.remove(&bth.psn);
        let coalesced = life.spoken_before(bth.psn);
        if let Some(aeth) = packet.headers.aeth {
            life.note_msn(frame, bth.psn, aeth.msn);
        }
        self.findings.freedoms.add(Freedom::CoalescedAck, frame, coalesced);
        if ours.headers.bth.opcode != bth.opcode {
            let fields = ("opcode", bth.opcode.to_string(), ours.headers.bth.opcode.to_string());
            self.differ(
                frame,
                fields,
                "The answer is cut into packets in another way than the path MTU says.",
            );
            return After::GoOn;
        }
        if let Some(aeth) = packet.headers.aeth.filter(|aeth| !is_ack(aeth.syndrome)) {
            let fields = ("syndrome", aeth.syndrome, Syndrome::ACK);
            self.differ(frame, fields, "Data comes with an ACK.");
        }
        self.judge_content(packet, &ours, around);
        After::GoOn
    }

    /// The data itself.
    fn judge_content(&mut self, packet: &Captured, ours: &Said, around: &mut Surroundings<'_>) {
        let frame = packet.frame;
        let of_atomic = packet.headers.atomic_ack.map(|ack| ack.original);
        let (captured, expected) = match (of_atomic, ours.headers.atomic_ack) {
            (Some(original), Some(ours)) => {
                (original.to_ne_bytes().to_vec(), ours.original.to_ne_bytes().to_vec())
            }
            _ => (packet.payload.clone(), ours.payload.clone()),
        };
        if captured.len() != expected.len() {
            let fields = ("payload length", captured.len(), expected.len());
            return self.differ(
                frame,
                fields,
                "The answer has another length than the request and the path MTU say.",
            );
        }
        let Some((rkey, addr, touched)) = ours.from else { return };
        let Some(bytes) = around.program.bytes(rkey) else { return };
        if captured == expected {
            return bytes.touch(addr, captured.len(), ours.to);
        }
        // From here on the capture is right, whoever changed it.
        bytes.write(addr, &captured, around.number);
        if around.active > touched {
            return self.findings.freedoms.add(Freedom::ProgramWrote, frame, 1);
        }
        let says = "The data is not what was written there or read there before, and nothing shows that the responder's program was active since.";
        if let (Some(captured), Some(ours)) = (of_atomic, ours.headers.atomic_ack) {
            let fields =
                ("atomic value", format!("{captured:#x}"), format!("{:#x}", ours.original));
            return self.differ(frame, fields, says);
        }
        let first = captured.iter().zip(&expected).position(|(a, b)| a != b).unwrap_or(0);
        let count = captured.iter().zip(&expected).filter(|(a, b)| a != b).count();
        let fields = (
            "payload",
            format!(
                "{:#04x} at byte {first}, {count} of {} differ",
                captured[first],
                captured.len()
            ),
            format!("{:#04x}", expected[first]),
        );
        self.differ(frame, fields, says);
    }

    /// Ends the life of the connection: what is left is told.
    pub(crate) fn end(&mut self) {
        let Some(life) = self.life.take() else { return };
        let frame = self.last_frame;
        let offset = life.msn_offset();
        for &MsnSeen { frame, captured, first, since } in &life.msns {
            let expected = Msn::new(first.get().wrapping_add(offset));
            match ahead(captured, expected) {
                0 => {}
                more if more <= since => {
                    self.findings.freedoms.add(Freedom::RepeatedMsn, frame, 1);
                }
                _ => self.differ(
                    frame,
                    ("msn", captured, expected),
                    "The MSN is not the number of messages completed.",
                ),
            }
        }
        if offset != 0 {
            let says = format!(
                "MSN: the responder had completed {offset} messages before the first that is replayed"
            );
            self.findings.inferred.push(says);
        }
        let is_behind = |psn: &&Psn| life.reached.is_none_or(|reached| !psn.precedes(reached));
        let behind = life.awaited.iter().filter(is_behind).count();
        let unanswered = (life.unspoken.len() + behind) as u64;
        let missing = (life.awaited.len() - behind) as u64;
        self.findings.freedoms.add(Freedom::Unanswered, frame, unanswered);
        self.findings.freedoms.add(Freedom::AnswerMissing, frame, missing);
    }
}

impl Life {
    fn note_msn(&mut self, frame: u64, psn: Psn, captured: Msn) {
        let said = self.said.get(&psn).map(Vec::as_slice).unwrap_or_default();
        let Some(first) = said.iter().find_map(|said| said.headers.aeth) else { return };
        let since = if said.len() > 1 { ahead(self.msn, first.msn) } else { 0 };
        self.msns.push(MsnSeen { frame, captured, first: first.msn, since });
    }

    /// How far the captured MSNs are ahead of ours: as most of them are.
    fn msn_offset(&self) -> u32 {
        let mut counts: HashMap<u32, u64> = HashMap::new();
        let repeated = self.msns.iter().all(|seen| seen.since > 0);
        for seen in self.msns.iter().filter(|seen| repeated || seen.since == 0) {
            let offset = ahead(seen.captured, seen.first);
            *counts.entry(offset).or_insert(0) += 1;
        }
        let best =
            counts.into_iter().max_by_key(|&(offset, count)| (count, std::cmp::Reverse(offset)));
        best.map_or(0, |(offset, _)| offset)
    }

    /// Whether an ACK of this PSN is one again, or the request was.
    fn is_repeated(&self, psn: Psn) -> bool {
        self.spoken.contains(&psn) || self.said.get(&psn).is_some_and(|said| said.len() > 1)
    }
}

fn syndrome(headers: &Headers) -> Option<Syndrome> {
    headers.aeth.map(|aeth| aeth.syndrome)
}

fn is_ack(syndrome: Syndrome) -> bool {
    matches!(syndrome, Syndrome::Ack { .. })
}
