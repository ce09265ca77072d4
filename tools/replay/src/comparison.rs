//! One direction of a connection: the captured responses compared with those of our engine.

use crate::finding::{Difference, Findings, Tolerance};
use crate::program::Program;
use crate::survey::Survey;
use crate::trace::Captured;
use std::collections::{HashMap, HashSet, VecDeque};
use urxe_types::{Msn, Pkey, Psn, Rkey};
use urxe_wire::{Aeth, Body, Credits, Headers, NakCode, Syndrome};

/// A response of our engine.
#[derive(Clone, Debug)]
pub(crate) struct Response {
    pub(crate) headers: Headers,
    pub(crate) payload: Vec<u8>,
    /// The number of the request that it answers.
    pub(crate) to: usize,
    /// Where its data is from, and the packet that had touched that memory before.
    pub(crate) source: Option<(Rkey, u64, usize)>,
}

/// A part of a connection that is replayed without interruption: from its first message, or the
/// first after packets that the capture lacks.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) first: Psn,
    /// Our engine's responses by PSN, the newest last.
    pub(crate) responses: HashMap<Psn, Vec<Response>>,
    /// Requests executed that asked for an ACK and are not acknowledged yet.
    unacked: VecDeque<Psn>,
    /// PSNs of READ and atomic responses that the capture has not shown yet.
    unanswered_data: HashSet<Psn>,
    msns: Vec<CapturedMsn>,
    /// The highest MSN that our engine has sent.
    msn: Msn,
    /// PSNs that had an ACK of their own.
    acked: HashSet<Psn>,
    /// The highest PSN that a response was for.
    highest: Option<Psn>,
}

/// The MSN of a response.
#[derive(Clone, Copy, Debug)]
struct CapturedMsn {
    frame: u64,
    captured: Msn,
    /// The MSN of our engine's first response at this PSN.
    first: Msn,
    /// How many messages it had completed since, if the request was repeated.
    since: u32,
}

/// How far an MSN is ahead of another.
fn ahead(a: Msn, b: Msn) -> u32 {
    Msn::new(a.get().wrapping_sub(b.get())).get()
}

impl Session {
    pub(crate) fn new(first: Psn) -> Session {
        Session {
            first,
            responses: HashMap::new(),
            unacked: VecDeque::new(),
            unanswered_data: HashSet::new(),
            msns: Vec::new(),
            msn: Msn::new(0),
            acked: HashSet::new(),
            highest: None,
        }
    }

    /// Adds a response of our engine. `ack_req`: the requester asked for an ACK.
    pub(crate) fn add(&mut self, response: Response, ack_req: bool) {
        let psn = response.headers.bth.psn;
        if let Some(aeth) = response.headers.body.aeth()
            && ahead(aeth.msn, self.msn) < 1 << 23
        {
            self.msn = aeth.msn;
        }
        if is_data(&response.headers) {
            self.unanswered_data.insert(psn);
        } else if ack_req && !is_nak(&response.headers) && !self.responses.contains_key(&psn) {
            self.unacked.push_back(psn);
        }
        self.responses.entry(psn).or_default().push(response);
    }

    /// A response acknowledges everything before this PSN. Returns how many ACKs it replaces.
    fn ack_before(&mut self, psn: Psn) -> u64 {
        let mut count = 0;
        while self.unacked.front().is_some_and(|front| front.precedes(psn)) {
            self.unacked.pop_front();
            count += 1;
        }
        if self.highest.is_none_or(|highest| highest.precedes(psn)) {
            self.highest = Some(psn);
        }
        count
    }
}

/// One direction of a connection.
pub(crate) struct Comparison {
    pub(crate) survey: Survey,
    pub(crate) findings: Findings,
    /// `None` until a message begins that can be replayed.
    pub(crate) session: Option<Session>,
    /// The P_Key of the requests.
    pub(crate) pkey: Option<Pkey>,
    /// How many more packets our engine may send.
    pub(crate) budget: usize,
    /// Requests replayed.
    pub(crate) replayed: u64,
    pub(crate) last_frame: u64,
}

/// What a response is compared under.
pub(crate) struct Context<'a> {
    /// The PSN that our responder expects next.
    pub(crate) expected: Option<Psn>,
    /// The last packet with which the responder's program was active.
    pub(crate) active: usize,
    /// The number of the response.
    pub(crate) number: usize,
    /// The responder's program, whose memory it is.
    pub(crate) program: &'a mut Program,
}

/// How the replay goes on after a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    Continue,
    /// Captured and replayed responder disagree on what was executed: end the session.
    Resync,
}

impl Comparison {
    pub(crate) fn new(survey: Survey) -> Comparison {
        let budget = 4096 + 8 * survey.responses.len();
        Comparison {
            survey,
            findings: Findings::default(),
            session: None,
            pkey: None,
            budget,
            replayed: 0,
            last_frame: 0,
        }
    }

    /// Compares a response.
    pub(crate) fn compare(&mut self, packet: &Captured, context: &mut Context<'_>) -> Next {
        let frame = packet.frame;
        self.last_frame = frame;
        if !packet.intact {
            self.findings.compared += 1;
            self.add_difference(
                frame,
                ("icrc", "wrong", "right"),
                "The ICRC does not match: the responder computes it differently, or the packet was changed on its way.",
            );
            return Next::Continue;
        }
        let psn = packet.headers.bth.psn;
        let Some(session) = &mut self.session else {
            let why = "response to a request that is not replayed".to_owned();
            self.findings.unused.add(why, frame, 1);
            return Next::Continue;
        };
        if psn.precedes(session.first) && session.highest.is_none() {
            let why = "response to a request from before the capture".to_owned();
            self.findings.unused.add(why, frame, 1);
            return Next::Continue;
        }
        self.findings.compared += 1;
        self.compare_headers(packet);
        match packet.headers.body {
            Body::RcResponse(urxe_wire::Response::Ack(aeth)) => match aeth.syndrome {
                Syndrome::Ack { .. } => self.compare_ack(packet, aeth, context),
                _ => self.compare_nak(packet, aeth),
            },
            _ => self.compare_data(packet, context),
        }
    }

    fn add_difference(
        &mut self,
        frame: u64,
        fields: (&'static str, impl ToString, impl ToString),
        explanation: &str,
    ) {
        let (field, captured, expected) = fields;
        self.findings.differences.push(Difference {
            frame,
            field,
            captured: captured.to_string(),
            expected: expected.to_string(),
            explanation: explanation.to_owned(),
        });
    }

    /// Header fields that are checked in every response.
    fn compare_headers(&mut self, packet: &Captured) {
        let (frame, bth) = (packet.frame, &packet.headers.bth);
        if let urxe_wire::Ident::Known { fragment, .. } = packet.outer.ident
            && packet.outer.flow.src.is_ipv4()
            && fragment != urxe_wire::DONT_FRAGMENT
        {
            let fields = ("ip flags", format!("{fragment:#06x}"), "0x4000");
            self.add_difference(
                frame,
                fields,
                "RoCEv2 packets are sent with the don't-fragment bit and are no fragments.",
            );
        }
        if let Some(pkey) = self.pkey.filter(|pkey| !bth.pkey.matches(*pkey)) {
            let fields = ("p_key", format!("{:#06x}", bth.pkey.0), format!("{:#06x}", pkey.0));
            self.add_difference(
                frame,
                fields,
                "The response is of another partition than the requests.",
            );
        }
        if (bth.resv6a, bth.resv7) != (0, 0) {
            let fields = ("reserved", format!("{:#x}, {:#x}", bth.resv6a, bth.resv7), "0, 0");
            self.add_difference(frame, fields, "Reserved bits of the BTH are sent as zeros.");
        }
        let tolerances = &mut self.findings.tolerances;
        tolerances.add(Tolerance::MigReq, frame, u64::from(!bth.migreq));
        tolerances.add(Tolerance::Congestion, frame, u64::from(bth.fecn || bth.becn));
        if let Some(Syndrome::Ack { credits }) = syndrome(&packet.headers) {
            tolerances.add(Tolerance::Credits, frame, u64::from(credits != Credits::NOT_TOLD));
        }
    }

    fn compare_ack(&mut self, packet: &Captured, aeth: Aeth, context: &Context<'_>) -> Next {
        let (frame, psn) = (packet.frame, packet.headers.bth.psn);
        let Some(session) = &mut self.session else { return Next::Continue };
        let ours = session
            .responses
            .get(&psn)
            .and_then(|sent| sent.iter().rev().find(|response| !is_nak(&response.headers)));
        let Some(ours) = ours else {
            let (expected, explanation) = self.why_not_executed(psn, context.expected);
            self.add_difference(
                frame,
                ("psn", format!("{} of {psn}", aeth.syndrome), expected),
                &explanation,
            );
            return Next::Resync;
        };
        if is_data(&ours.headers) && session.unanswered_data.contains(&psn) {
            let fields = ("opcode", "RC ACK", ours.headers.body.opcode().to_string());
            self.add_difference(
                frame,
                fields,
                "A READ or atomic is answered with its data and not with an ACK.",
            );
            return Next::Continue;
        }
        session.note_msn(frame, psn, aeth.msn);
        let coalesced = session.ack_before(psn);
        let tolerances = &mut self.findings.tolerances;
        tolerances.add(Tolerance::CoalescedAck, frame, coalesced);
        match session.unacked.front() == Some(&psn) {
            true => _ = session.unacked.pop_front(),
            false if session.is_repeated(psn) => tolerances.add(Tolerance::RepeatedAck, frame, 1),
            false => tolerances.add(Tolerance::UnaskedAck, frame, 1),
        }
        session.acked.insert(psn);
        Next::Continue
    }

    /// Why our responder has not executed what the captured one acknowledges.
    fn why_not_executed(&self, psn: Psn, expected: Option<Psn>) -> (String, String) {
        let refused =
            self.session.iter().flat_map(|session| session.responses.values().flatten()).find_map(
                |response| match syndrome(&response.headers)? {
                    nak @ Syndrome::Nak(code) if code != NakCode::SequenceError => {
                        Some((response.headers.bth.psn, nak))
                    }
                    _ => None,
                },
            );
        match (refused, expected) {
            (Some((at, nak)), _) => {
                (format!("{nak} of {at}"), "It acknowledges what our engine refuses.".to_owned())
            }
            (None, Some(expected)) if !psn.precedes(expected) => (
                format!("nothing of {expected} or later"),
                "It acknowledges what had not arrived yet.".to_owned(),
            ),
            _ => (
                "no ACK of that".to_owned(),
                "It acknowledges a PSN that was not requested.".to_owned(),
            ),
        }
    }

    fn compare_nak(&mut self, packet: &Captured, aeth: Aeth) -> Next {
        let (frame, psn) = (packet.frame, packet.headers.bth.psn);
        let Some(session) = &mut self.session else { return Next::Continue };
        let sent = session.responses.get(&psn).map(Vec::as_slice).unwrap_or_default();
        let ours = sent.iter().rev().find(|response| is_nak(&response.headers));
        let ours = ours.and_then(|response| response.headers.body.aeth());
        let Some(ours) = ours else {
            let (expected, explanation) = match sent.last() {
                Some(last) => (last.headers.to_string(), "It refuses what our engine carries out."),
                None => ("nothing".to_owned(), "It refuses a PSN that was not requested."),
            };
            self.add_difference(
                frame,
                ("syndrome", format!("{} of {psn}", aeth.syndrome), expected),
                explanation,
            );
            return Next::Resync;
        };
        session.note_msn(frame, psn, aeth.msn);
        let coalesced = session.ack_before(psn);
        let tolerances = &mut self.findings.tolerances;
        tolerances.add(Tolerance::CoalescedAck, frame, coalesced);
        let failed = Syndrome::Nak(NakCode::RemoteOperational);
        tolerances.add(Tolerance::LocalFailure, frame, u64::from(aeth.syndrome == failed));
        if aeth.syndrome != ours.syndrome {
            let fields = ("syndrome", aeth.syndrome, ours.syndrome);
            self.add_difference(frame, fields, "It refuses the request for another reason.");
        }
        Next::Continue
    }

    /// A READ or atomic response.
    fn compare_data(&mut self, packet: &Captured, context: &mut Context<'_>) -> Next {
        let (frame, bth) = (packet.frame, &packet.headers.bth);
        let opcode = packet.headers.body.opcode();
        let Some(session) = &mut self.session else { return Next::Continue };
        let sent = session.responses.get(&bth.psn).map(Vec::as_slice).unwrap_or_default();
        let same = |response: &&Response| response.headers.body.opcode() == opcode;
        let any = |response: &&Response| is_data(&response.headers);
        let ours = sent.iter().rev().find(same).or_else(|| sent.iter().rev().find(any));
        let Some(ours) = ours.cloned() else {
            let (expected, explanation) = match sent.last() {
                Some(last) => (
                    last.headers.to_string(),
                    "It returns data where our engine returns another response.",
                ),
                None => {
                    ("nothing".to_owned(), "It returns data that was not requested at this PSN.")
                }
            };
            self.add_difference(
                frame,
                ("psn", format!("{} of {}", opcode, bth.psn), expected),
                explanation,
            );
            let is_done = context.expected.is_some_and(|expected| bth.psn.precedes(expected));
            return if is_done { Next::Continue } else { Next::Resync };
        };
        session.unanswered_data.remove(&bth.psn);
        let coalesced = session.ack_before(bth.psn);
        if let Some(aeth) = packet.headers.body.aeth() {
            session.note_msn(frame, bth.psn, aeth.msn);
        }
        self.findings.tolerances.add(Tolerance::CoalescedAck, frame, coalesced);
        if ours.headers.body.opcode() != opcode {
            let fields = ("opcode", opcode.to_string(), ours.headers.body.opcode().to_string());
            self.add_difference(
                frame,
                fields,
                "The response is segmented differently than the path MTU requires.",
            );
            return Next::Continue;
        }
        if let Some(aeth) = packet.headers.body.aeth().filter(|aeth| !is_ack(aeth.syndrome)) {
            let fields = ("syndrome", aeth.syndrome, Syndrome::ACK);
            self.add_difference(
                frame,
                fields,
                "A response with data carries the syndrome of an ACK.",
            );
        }
        self.compare_payload(packet, &ours, context);
        Next::Continue
    }

    /// Compares the payload, or the original value of an atomic.
    fn compare_payload(&mut self, packet: &Captured, ours: &Response, context: &mut Context<'_>) {
        let frame = packet.frame;
        let originals = original(&packet.headers).zip(original(&ours.headers));
        let (captured, expected) = match originals {
            Some((captured, ours)) => {
                (captured.to_ne_bytes().to_vec(), ours.to_ne_bytes().to_vec())
            }
            None => (packet.payload.clone(), ours.payload.clone()),
        };
        if captured.len() != expected.len() {
            let fields = ("payload length", captured.len(), expected.len());
            return self.add_difference(
                frame,
                fields,
                "The length of the response is not what the request and the path MTU give.",
            );
        }
        let Some((rkey, addr, touched)) = ours.source else { return };
        let Some(bytes) = context.program.bytes(rkey) else { return };
        if captured == expected {
            return bytes.touch(addr, captured.len(), ours.to);
        }
        // From here on the captured bytes count, whoever changed them.
        bytes.write(addr, &captured, context.number);
        if context.active > touched {
            return self.findings.tolerances.add(Tolerance::ProgramWrote, frame, 1);
        }
        let explanation = "The data is neither what was written there nor what was read there before, and nothing shows that the responder's program was active since.";
        if let Some((captured, ours)) = originals {
            let fields = ("atomic value", format!("{captured:#x}"), format!("{ours:#x}"));
            return self.add_difference(frame, fields, explanation);
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
        self.add_difference(frame, fields, explanation);
    }

    /// Ends the session, and records what only its end shows: MSNs, missing responses.
    pub(crate) fn end(&mut self) {
        let Some(session) = self.session.take() else { return };
        let frame = self.last_frame;
        let offset = session.msn_offset();
        for &CapturedMsn { frame, captured, first, since } in &session.msns {
            let expected = Msn::new(first.get().wrapping_add(offset));
            match ahead(captured, expected) {
                0 => {}
                more if more <= since => {
                    self.findings.tolerances.add(Tolerance::RepeatedMsn, frame, 1);
                }
                _ => self.add_difference(
                    frame,
                    ("msn", captured, expected),
                    "The MSN is not the number of messages completed.",
                ),
            }
        }
        if offset != 0 {
            let inferred = format!(
                "MSN: the responder had completed {offset} messages before the first one replayed"
            );
            self.findings.inferred.push(inferred);
        }
        let is_last = |psn: &&Psn| session.highest.is_none_or(|highest| !psn.precedes(highest));
        let last = session.unanswered_data.iter().filter(is_last).count();
        let unanswered = (session.unacked.len() + last) as u64;
        let missing = (session.unanswered_data.len() - last) as u64;
        self.findings.tolerances.add(Tolerance::Unanswered, frame, unanswered);
        self.findings.tolerances.add(Tolerance::AnswerMissing, frame, missing);
    }
}

impl Session {
    fn note_msn(&mut self, frame: u64, psn: Psn, captured: Msn) {
        let sent = self.responses.get(&psn).map(Vec::as_slice).unwrap_or_default();
        let Some(first) = sent.iter().find_map(|response| response.headers.body.aeth()) else {
            return;
        };
        let since = if sent.len() > 1 { ahead(self.msn, first.msn) } else { 0 };
        self.msns.push(CapturedMsn { frame, captured, first: first.msn, since });
    }

    /// How far the captured MSNs are ahead of ours: the most frequent difference.
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

    /// Whether this PSN was acknowledged or requested before.
    fn is_repeated(&self, psn: Psn) -> bool {
        self.acked.contains(&psn) || self.responses.get(&psn).is_some_and(|sent| sent.len() > 1)
    }
}

fn syndrome(headers: &Headers) -> Option<Syndrome> {
    headers.body.aeth().map(|aeth| aeth.syndrome)
}

fn is_ack(syndrome: Syndrome) -> bool {
    matches!(syndrome, Syndrome::Ack { .. })
}

/// Whether a response is that of a READ or an atomic, not an ACK or NAK.
fn is_data(headers: &Headers) -> bool {
    !matches!(headers.body, Body::RcResponse(urxe_wire::Response::Ack(_)))
}

/// The value that an atomic found.
fn original(headers: &Headers) -> Option<u64> {
    match headers.body {
        Body::RcResponse(urxe_wire::Response::AtomicAck { original, .. }) => Some(original),
        _ => None,
    }
}

fn is_nak(headers: &Headers) -> bool {
    syndrome(headers).is_some_and(|syndrome| !is_ack(syndrome))
}
