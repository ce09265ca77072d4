//! Sources that send so much that is of no use that the kernel is to drop it.
//!
//! To receive a packet takes ten times as long as to find out that it is none of ours. So who sends
//! such packets as fast as can be keeps a data path busy, and programs waiting for it. A source, an
//! address and a UDP port, is refused for [`REFUSED_FOR`] when [`FLOOD_PACKETS`] of its packets
//! were dropped within [`FLOOD_WINDOW`] and none was taken, and for twice as long as the last time
//! if it has gone on meanwhile: each time that it is heard again it has a data path busy for a
//! moment. What it sends to the management QP is one matter, and what to other QPs another: no
//! requests for connections are refused for data that somebody has sent in that host's name. Who
//! changes its port or address with every packet is not refused; nor is one from where something
//! may come that would be missed ([`may_refuse`](urxe_engine::Device::may_refuse)), or no longer
//! than until that is looked at again.

use crate::limits::{FLOOD_PACKETS, FLOOD_SOURCES, FLOOD_WINDOW, MAX_REFUSED_FOR, REFUSED_FOR};
use std::time::{Duration, Instant};
use urxe_port::PacketSource;

/// What is known of a source of packets that were dropped.
struct Seen {
    source: PacketSource,
    /// Since when they are counted; in the future if they are not until then.
    since: Instant,
    dropped: u32,
}

impl Seen {
    fn is_over(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.since) > FLOOD_WINDOW
    }

    fn is_flood(&self) -> bool {
        self.dropped >= FLOOD_PACKETS
    }
}

/// A source that is refused, or was until lately.
struct Refused {
    source: PacketSource,
    until: Instant,
    /// For how long in all.
    length: Duration,
}

/// Sources that may be refused, and those that are.
#[derive(Default)]
pub(crate) struct Floods {
    seen: Vec<Seen>,
    refused: Vec<Refused>,
    /// When it was looked last who may be refused.
    looked: Option<Instant>,
    /// Packets of all sources that were dropped, and since when they are counted.
    dropped_since: Option<(Instant, u32)>,
    /// Until then so many were that they are a flood, wherever they come from.
    under_way_until: Option<Instant>,
}

impl Floods {
    /// A packet from a source was of use, or was dropped for a reason that is not the sender's; or
    /// it was not. While nobody is watched, it does not matter from where one of use came.
    #[inline]
    pub(crate) fn judge(
        &mut self,
        now: Instant,
        is_of_use: bool,
        source: impl FnOnce() -> PacketSource,
    ) {
        match is_of_use {
            true if self.seen.is_empty() => {}
            true => self.on_taken(now, source()),
            false => self.on_dropped(now, source()),
        }
    }

    /// A packet from there was dropped, for a reason that is the sender's.
    fn on_dropped(&mut self, now: Instant, source: PacketSource) {
        let (since, dropped) = self.dropped_since.get_or_insert((now, 0));
        if now.saturating_duration_since(*since) > FLOOD_WINDOW {
            (*since, *dropped) = (now, 0);
        }
        *dropped += 1;
        if *dropped >= FLOOD_PACKETS {
            self.dropped_since = None;
            self.under_way_until = Some(now + FLOOD_WINDOW);
        }
        self.seen.retain(|seen| !seen.is_over(now));
        let at = self.seen.iter().position(|seen| seen.source == source).unwrap_or(self.seen.len());
        if at == FLOOD_SOURCES {
            return;
        }
        if at == self.seen.len() {
            self.seen.push(Seen { source, since: now, dropped: 0 });
        }
        let seen = &mut self.seen[at];
        if seen.since <= now {
            seen.dropped += 1;
        }
    }

    /// Packets from there are of use.
    fn on_taken(&mut self, now: Instant, source: PacketSource) {
        self.seen.retain(|seen| seen.source != source && !seen.is_over(now));
    }

    /// Whether there is something to [change](Self::change).
    pub(crate) fn is_due(&self, now: Instant) -> bool {
        self.seen.iter().any(Seen::is_flood) || self.deadline().is_some_and(|at| at <= now)
    }

    /// Whether as many packets were dropped just now as make one source a flood, wherever they come
    /// from.
    pub(crate) fn are_under_way(&self, now: Instant) -> bool {
        self.under_way_until.is_some_and(|until| now <= until)
    }

    /// When a source is refused no more, or it is to be looked whether it still may be.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        let look = self.looked? + REFUSED_FOR;
        self.now_refused().map(|refused| refused.until.min(look)).min()
    }

    /// Those that are refused since it was looked last.
    fn now_refused(&self) -> impl Iterator<Item = &Refused> {
        self.refused.iter().filter(|refused| self.looked.is_some_and(|at| at < refused.until))
    }

    /// Decides who is refused from now on, of those that `may_refuse` allows. Returns all, and how
    /// many of them were not before.
    pub(crate) fn change(
        &mut self,
        now: Instant,
        may_refuse: impl Fn(PacketSource) -> bool,
    ) -> (Vec<PacketSource>, u64) {
        self.looked = Some(now);
        for refused in self.refused.iter_mut().filter(|refused| now < refused.until) {
            if !may_refuse(refused.source) {
                refused.until = now;
            }
        }
        // For so long it is remembered, to be refused for longer if it goes on.
        self.refused.retain(|refused| now < refused.until + REFUSED_FOR);
        let mut more = 0;
        for at in 0..self.seen.len() {
            if !self.seen[at].is_flood() {
                continue;
            }
            let source = self.seen[at].source;
            let mut length = REFUSED_FOR;
            if self.now_refused().count() < FLOOD_SOURCES && may_refuse(source) {
                if let Some(last) = self.refused.iter().position(|refused| refused.source == source)
                {
                    length = (self.refused.swap_remove(last).length * 2).min(MAX_REFUSED_FOR);
                }
                let until = now + length;
                self.refused.push(Refused { source, until, length });
                more += 1;
            }
            (self.seen[at].since, self.seen[at].dropped) = (now + length, 0);
        }
        (self.now_refused().map(|refused| refused.source).collect(), more)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{IpAddr, Ipv4Addr, SocketAddr};
    use urxe_port::Receivers;
    use urxe_types::Qpn;

    const FLOOD: PacketSource = source(1);

    const fn source(port: u16) -> PacketSource {
        let from = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port);
        PacketSource { from, to: Receivers::AllBut(Qpn::GSI) }
    }

    /// Who is refused, if that has changed.
    fn change(floods: &mut Floods, now: Instant) -> Option<Vec<PacketSource>> {
        floods.is_due(now).then(|| floods.change(now, |_| true).0)
    }

    fn drop_from(floods: &mut Floods, now: Instant, source: PacketSource, packets: u32) {
        (0..packets).for_each(|_| floods.on_dropped(now, source));
    }

    /// SHARE-135
    #[test]
    fn a_source_of_much_that_is_dropped_is_refused_for_a_while() {
        let (mut floods, start) = (Floods::default(), Instant::now());
        drop_from(&mut floods, start, FLOOD, FLOOD_PACKETS - 1);
        assert_eq!(change(&mut floods, start), None);
        floods.on_dropped(start + FLOOD_WINDOW, FLOOD);
        assert_eq!(change(&mut floods, start), Some(vec![FLOOD]));
        assert_eq!(floods.deadline(), Some(start + REFUSED_FOR));
        // What was in the queue already.
        drop_from(&mut floods, start + FLOOD_WINDOW, FLOOD, 2 * FLOOD_PACKETS);
        assert_eq!(change(&mut floods, start + FLOOD_WINDOW), None);
        let over = start + REFUSED_FOR;
        assert_eq!(change(&mut floods, over), Some(vec![]));
        assert_eq!(floods.deadline(), None);
        drop_from(&mut floods, over, FLOOD, FLOOD_PACKETS);
        assert_eq!(change(&mut floods, over), Some(vec![FLOOD]));
    }

    #[test]
    fn a_source_of_what_is_of_use_or_of_little_is_not_refused() {
        let (mut floods, mut now) = (Floods::default(), Instant::now());
        for _ in 0..10 {
            drop_from(&mut floods, now, FLOOD, FLOOD_PACKETS - 1);
            floods.on_taken(now, source(2));
            floods.on_taken(now, FLOOD);
            assert_eq!(change(&mut floods, now), None);
        }
        for _ in 0..10 {
            drop_from(&mut floods, now, FLOOD, FLOOD_PACKETS - 1);
            now += FLOOD_WINDOW + Duration::from_nanos(1);
            assert_eq!(change(&mut floods, now), None);
        }
    }

    /// SHARE-135
    #[test]
    fn a_source_that_goes_on_is_refused_for_longer_each_time_but_no_longer_than_it_may_be() {
        let (mut floods, mut now) = (Floods::default(), Instant::now());
        let mut lengths = Vec::new();
        for _ in 0..7 {
            drop_from(&mut floods, now, FLOOD, FLOOD_PACKETS);
            assert_eq!(change(&mut floods, now), Some(vec![FLOOD]));
            let begun = now;
            // It is looked again and again whether it may be.
            while let Some(at) = floods.deadline() {
                assert!(at <= now + REFUSED_FOR);
                now = at;
                let is_over = change(&mut floods, now) == Some(vec![]);
                assert_eq!(is_over, floods.deadline().is_none());
            }
            lengths.push(now.duration_since(begun).div_duration_f64(REFUSED_FOR));
            now += FLOOD_WINDOW;
        }
        assert_eq!(lengths, [1.0, 2.0, 4.0, 8.0, 16.0, 16.0, 16.0]);
        // A peer is there from now on.
        drop_from(&mut floods, now, FLOOD, FLOOD_PACKETS);
        assert_eq!(change(&mut floods, now), Some(vec![FLOOD]));
        now += REFUSED_FOR;
        assert!(floods.is_due(now));
        assert_eq!(floods.change(now, |_| false), (vec![], 0));
        assert_eq!(floods.deadline(), None);
        // One that was silent for a while begins anew.
        now += 2 * MAX_REFUSED_FOR;
        drop_from(&mut floods, now, FLOOD, FLOOD_PACKETS);
        assert_eq!(change(&mut floods, now), Some(vec![FLOOD]));
        assert_eq!(change(&mut floods, now + REFUSED_FOR), Some(vec![]));
    }

    #[test]
    fn a_source_that_may_not_be_refused_is_not_judged_again_at_once() {
        let (mut floods, now) = (Floods::default(), Instant::now());
        drop_from(&mut floods, now, FLOOD, FLOOD_PACKETS);
        assert_eq!(floods.change(now, |_| false), (vec![], 0));
        drop_from(&mut floods, now, FLOOD, FLOOD_PACKETS);
        assert!(!floods.is_due(now));
        drop_from(&mut floods, now + REFUSED_FOR, FLOOD, FLOOD_PACKETS);
        assert_eq!(floods.change(now + REFUSED_FOR, |_| true), (vec![FLOOD], 1));
    }

    /// SHARE-138
    #[test]
    fn packets_of_many_sources_are_a_flood_together_while_they_go_on() {
        let (mut floods, mut now) = (Floods::default(), Instant::now());
        let drop = |floods: &mut Floods, now, packets: u32| {
            (0..packets).for_each(|packet| floods.on_dropped(now, source(packet as u16)));
        };
        drop(&mut floods, now, FLOOD_PACKETS - 1);
        now += FLOOD_WINDOW + Duration::from_nanos(1);
        drop(&mut floods, now, FLOOD_PACKETS - 1);
        assert!(!floods.are_under_way(now), "they are not so many at a time");
        drop(&mut floods, now + FLOOD_WINDOW, 1);
        now += FLOOD_WINDOW;
        // As long as there are as many in each while, and a while longer.
        for _ in 0..3 {
            assert!(floods.are_under_way(now + FLOOD_WINDOW));
            now += FLOOD_WINDOW;
            drop(&mut floods, now, FLOOD_PACKETS);
        }
        assert!(!floods.are_under_way(now + FLOOD_WINDOW + Duration::from_nanos(1)));
        assert_eq!(floods.deadline(), None);
    }

    #[test]
    fn there_is_a_bound_to_how_many_are_watched() {
        let (mut floods, now) = (Floods::default(), Instant::now());
        for port in 1..=100 {
            drop_from(&mut floods, now, source(port), FLOOD_PACKETS);
        }
        let first: Vec<_> = (1..=FLOOD_SOURCES as u16).map(source).collect();
        assert_eq!(change(&mut floods, now), Some(first));
        // Others are when these have been over for long.
        let later = now + REFUSED_FOR + 2 * FLOOD_WINDOW;
        drop_from(&mut floods, later, source(100), FLOOD_PACKETS);
        assert_eq!(change(&mut floods, later), Some(vec![source(100)]));
    }
}
