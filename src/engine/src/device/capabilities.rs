//! What peers understand beside the standard, asked by a management datagram to their QP1.
//!
//! Only who was asked is believed, and only for the number of the question: a datagram from
//! somebody else must not make us send what the peer drops. A peer that does not answer is one
//! that keeps to the standard.

use super::Device;
use crate::attr::DeviceConfig;
use crate::counters::Counter;
use crate::limits::{
    CAPABILITIES_VALID, CAPABILITY_REPLIES_EACH, CAPABILITY_REPLIES_IN_ALL, FIRST_CAPABILITY_WAIT,
    MAX_CAPABILITY_TRIES, MAX_KNOWN_PEERS, MAX_WAITING_MADS, MIN_CAPABILITY_INTERVAL,
};
use crate::tuning::WireForm;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};
use urxe_types::{AddressVector, Qpn, ReplyLimit};
use urxe_wire::mad::{Capabilities, CapabilityMad, CapabilityMessage, MAD_LEN, MadSource};
use urxe_wire::{Flow, datagram_source_port};

/// What we understand ourselves.
fn ours(form: WireForm) -> Capabilities {
    Capabilities {
        selective_ack: true,
        echoes_marks: true,
        // TRAIN-023
        answers_in_onlys: form == WireForm::Uniform,
        takes_ack_first: true,
        takes_joined: form == WireForm::Uniform,
    }
}

/// The peers that were asked.
#[derive(Debug)]
pub(crate) struct Peers {
    by_addr: BTreeMap<IpAddr, Peer>,
    /// What was looked up last, which each packet to and from the same peer asks for again. Nothing
    /// once what is known of any has changed.
    looked_up: Cell<Option<(IpAddr, Option<Capabilities>)>>,
    /// Questions that wait for the port.
    questions: Vec<(Flow, [u8; MAD_LEN])>,
    /// What is sent because somebody has asked.
    replies: ReplyLimit,
    /// Makes transaction IDs that nobody guesses.
    rng: ChaCha8Rng,
}

#[derive(Debug)]
struct Peer {
    /// What it said last.
    capabilities: Option<Capabilities>,
    /// When it said so; `None`: it may say otherwise by now.
    answered_at: Option<Instant>,
    /// Of the last question, while it waits for an answer.
    tid: Option<u64>,
    asked_at: Instant,
    /// Questions since something was heard of it.
    tries: u32,
}

impl Peers {
    /// Knows nobody.
    pub(super) fn new(config: &DeviceConfig) -> Peers {
        let mut rng = ChaCha8Rng::seed_from_u64(config.seed);
        // The first stream makes keys.
        rng.set_stream(2);
        let secret = [rng.next_u64(), rng.next_u64()];
        let replies = ReplyLimit::new(secret, CAPABILITY_REPLIES_EACH, CAPABILITY_REPLIES_IN_ALL);
        rng.set_stream(1);
        rng.set_word_pos(0);
        let (by_addr, looked_up) = (BTreeMap::new(), Cell::new(None));
        Peers { by_addr, looked_up, questions: Vec::new(), replies, rng }
    }

    /// What the peer at this address understands, if it has told.
    pub(crate) fn capabilities(&self, addr: IpAddr) -> Option<Capabilities> {
        match self.looked_up.get() {
            Some((of, capabilities)) if of == addr => capabilities,
            _ => {
                let capabilities = self.by_addr.get(&addr).and_then(|peer| peer.capabilities);
                self.looked_up.set(Some((addr, capabilities)));
                capabilities
            }
        }
    }

    /// What is known of peers, to be changed.
    fn known(&mut self) -> &mut BTreeMap<IpAddr, Peer> {
        self.looked_up.set(None);
        &mut self.by_addr
    }

    /// Whether the peer at this address was asked not long ago, for the first time, and has not
    /// answered yet.
    pub(crate) fn is_about_to_answer(&self, now: Instant, addr: IpAddr) -> bool {
        self.by_addr.get(&addr).is_some_and(|peer| {
            let waited = now.saturating_duration_since(peer.asked_at);
            peer.tid.is_some() && peer.tries == 1 && waited < FIRST_CAPABILITY_WAIT
        })
    }

    /// Whether questions wait to be sent.
    pub(super) fn has_questions(&self) -> bool {
        !self.questions.is_empty()
    }

    /// Sees that the peer at the end of this flow is asked, unless it need not be: it has
    /// answered not long ago, it was asked just now, or it was asked often enough.
    pub(crate) fn ask(&mut self, now: Instant, flow: &Flow) {
        if self.questions.len() >= MAX_WAITING_MADS {
            return;
        }
        let tid = self.rng.next_u64();
        match self.known().get_mut(&flow.dst) {
            Some(peer) if !peer.is_to_be_asked(now) => return,
            // REPAIR-008
            Some(peer) if peer.tries == MAX_CAPABILITY_TRIES => {
                peer.capabilities = None;
                return;
            }
            Some(peer) => {
                peer.tid = Some(tid);
                peer.asked_at = now;
                peer.tries += 1;
            }
            None => {
                self.make_room();
                let peer = Peer {
                    capabilities: None,
                    answered_at: None,
                    tid: Some(tid),
                    asked_at: now,
                    tries: 1,
                };
                self.known().insert(flow.dst, peer);
            }
        }
        let question = CapabilityMad { tid, message: CapabilityMessage::Get };
        self.questions.push((*flow, question.bytes()));
    }

    /// What went to the peer at the end of this flow in one datagram with something else is not
    /// answered: it may be another one by now, which drops that. It is asked again, and gets no
    /// more of it before it answers.
    pub(crate) fn doubt_joined(&mut self, now: Instant, flow: &Flow) {
        if let Some(peer) = self.known().get_mut(&flow.dst) {
            peer.capabilities.iter_mut().for_each(|said| said.takes_joined = false);
            peer.answered_at = None;
        }
        self.ask(now, flow);
    }

    /// Sees that a peer in doubt is asked as often as it takes. Returns whether it still is.
    pub(crate) fn ask_until_answered(&mut self, now: Instant, flow: &Flow) -> bool {
        let peer = self.by_addr.get(&flow.dst);
        let is_doubted = peer.is_some_and(|peer| peer.answered_at.is_none());
        if is_doubted {
            self.ask(now, flow);
        }
        is_doubted
    }

    /// Forgets the peer that was not asked for longest, if there are too many.
    fn make_room(&mut self) {
        // REPAIR-009
        if self.by_addr.len() < MAX_KNOWN_PEERS {
            return;
        }
        let oldest = self.by_addr.iter().min_by_key(|(_, peer)| peer.asked_at);
        if let Some(addr) = oldest.map(|(&addr, _)| addr) {
            self.known().remove(&addr);
        }
    }

    /// An answer came. Returns whether it is one to our last question.
    fn on_answer(&mut self, now: Instant, from: IpAddr, tid: u64, answer: Capabilities) -> bool {
        // REPAIR-006
        let asked = self.known().get_mut(&from).filter(|peer| peer.tid == Some(tid));
        let Some(peer) = asked else { return false };
        peer.capabilities = Some(answer);
        peer.answered_at = Some(now);
        peer.tid = None;
        peer.tries = 0;
        true
    }

    /// A peer asks. If it has told us something before, it may have been started anew since.
    /// Returns whether it is to be asked back: not while it has a question of ours to answer, which
    /// a further one would make void.
    fn on_question(&mut self, from: IpAddr) -> bool {
        let Some(peer) = self.known().get_mut(&from) else { return true };
        let was_given_up = peer.capabilities.is_none() && peer.tries == MAX_CAPABILITY_TRIES;
        peer.answered_at = None;
        peer.tries = 0;
        was_given_up
    }
}

/// How long a peer is left in peace after so many questions that it did not answer.
fn asked_again_after(tries: u32) -> Duration {
    MIN_CAPABILITY_INTERVAL * 8u32.pow(tries.saturating_sub(1))
}

impl Peer {
    fn is_to_be_asked(&self, now: Instant) -> bool {
        let passed = |since, least| now.saturating_duration_since(since) >= least;
        // REPAIR-007
        passed(self.asked_at, asked_again_after(self.tries))
            && self.answered_at.is_none_or(|answered_at| passed(answered_at, CAPABILITIES_VALID))
    }
}

impl Device {
    /// What the peer at this address understands beside the standard, if it has told.
    pub fn peer_capabilities(&self, addr: IpAddr) -> Option<Capabilities> {
        self.tables.peers.capabilities(addr)
    }

    /// Asks a peer what it understands beside the standard, unless it has answered not long ago,
    /// was asked just now, or was asked several times and was silent.
    pub fn ask_capabilities(&mut self, now: Instant, flow: &Flow) {
        self.tables.peers.ask(now, flow);
    }

    /// A datagram about capabilities came.
    pub(super) fn handle_capability_mad(
        &mut self,
        now: Instant,
        from: &MadSource,
        mad: &CapabilityMad,
    ) {
        let addr = from.flow.src;
        let answer = match mad.message {
            CapabilityMessage::Get => return self.on_capability_question(now, from, mad.tid),
            CapabilityMessage::GetResp(capabilities) => capabilities,
            // REPAIR-005: it keeps to the standard.
            CapabilityMessage::Refused => Capabilities::default(),
        };
        if !self.tables.peers.on_answer(now, addr, mad.tid, answer) {
            self.tables.counters.add(Counter::DropUnexpectedCapabilities, 1);
        }
    }

    /// Answers a question and asks back, as far as whoever is said to ask may be sent something.
    fn on_capability_question(&mut self, now: Instant, from: &MadSource, tid: u64) {
        let addr = from.flow.src;
        if !self.may_reply(now, addr) {
            return;
        }
        let is_unknown = self.tables.peers.on_question(addr);
        self.tell_capabilities(from, tid);
        if is_unknown && self.may_reply(now, addr) {
            self.ask_back(now, from);
        }
    }

    fn may_reply(&mut self, now: Instant, addr: IpAddr) -> bool {
        // HOSTILE-008, COUNT-019
        let may_reply = self.tables.peers.replies.take(now, addr);
        let counters = &mut self.tables.counters;
        counters.add(Counter::CapabilityRepliesHeldBack, u64::from(!may_reply));
        may_reply
    }

    /// Answers a question. Nothing is remembered of who asked.
    fn tell_capabilities(&mut self, from: &MadSource, tid: u64) {
        let MadSource { flow: Flow { src, dst, .. }, src_qpn } = *from;
        let sgid_index = self.gids().iter().position(|gid| *gid == Some(dst));
        let to = sgid_index.and_then(|index| u8::try_from(index).ok()).map(|sgid_index| {
            let (hop_limit, traffic_class, flow_label) = (0, 0, 0);
            AddressVector { dgid: src, sgid_index, traffic_class, hop_limit, flow_label }
        });
        let message = CapabilityMessage::GetResp(ours(self.tables.config.tuning.wire));
        let mad = CapabilityMad { tid, message }.bytes();
        // REPAIR-004: from the address that was asked, to the one that asks, if it is a host's.
        let sent = to.is_some_and(|to| self.send_mad(&to, src_qpn, &mad).is_ok());
        if !sent {
            self.tables.counters.add(Counter::DropWrongAddress, 1);
        }
    }

    /// Asks who asks, if it is not known what it understands: what it wants to hear of our side it
    /// will be told of on its own side.
    fn ask_back(&mut self, now: Instant, from: &MadSource) {
        let Flow { src, dst, .. } = from.flow;
        // REPAIR-058
        if self.tables.config.tuning.wire == WireForm::Uniform && self.gids().contains(&Some(dst)) {
            self.tables.peers.ask(now, &Flow { src: dst, dst: src, ..from.flow });
        }
    }

    /// Hands what is to be asked to QP1.
    pub(super) fn send_questions(&mut self) {
        let config = &self.tables.config;
        for (flow, mad) in self.tables.peers.questions.drain(..) {
            let src_port = config.source_port(flow.dst, datagram_source_port(Qpn::GSI));
            let flow = Flow { src_port, ..flow };
            self.management.send(&mut self.tables.counters, flow, Qpn::GSI, &mad);
        }
    }
}
