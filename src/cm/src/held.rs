//! Requests that come between two listeners of a port: a server that takes connections one at a
//! time listens anew for each, and its client's next request may be there first.

use crate::limits::MAX_HELD;
use crate::manager::RequestKey;
use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};
use urxe_wire::mad::{Mad, MadSource};

/// A request without a listener, at a port at which there just was one.
#[derive(Debug)]
pub(crate) struct HeldRequest {
    port: u16,
    until: Instant,
    key: RequestKey,
    pub(crate) from: MadSource,
    pub(crate) mad: Mad,
}

/// Ports whose listeners just ended, and the requests that wait for the next ones there.
#[derive(Debug)]
pub(crate) struct Held {
    /// How long a port is remembered, and a request waits.
    wait: Duration,
    /// Whatever the port space: perftest agrees by a connection on what it then does by datagrams.
    ended: HashMap<u16, Instant>,
    /// The same in their order; a port at which listeners ended several times is there as often.
    in_order: VecDeque<(Instant, u16)>,
    /// In the order of their deadlines.
    requests: VecDeque<HeldRequest>,
}

impl Held {
    pub(crate) fn new(wait: Duration) -> Held {
        Held { wait, ended: HashMap::new(), in_order: VecDeque::new(), requests: VecDeque::new() }
    }

    /// A listener at this port has ended.
    pub(crate) fn listener_ended(&mut self, now: Instant, port: u16) {
        // SHARE-126: only those are looked at that are forgotten.
        while let Some(&(at, port)) = self.in_order.front()
            && at + self.wait <= now
        {
            self.in_order.pop_front();
            // It may have ended again since.
            if self.ended.get(&port) == Some(&at) {
                self.ended.remove(&port);
            }
        }
        self.ended.insert(port, now);
        self.in_order.push_back((now, port));
    }

    /// Keeps a request for this port, if a listener just ended there; returns whether it did.
    pub(crate) fn hold(
        &mut self,
        now: Instant,
        port: u16,
        key: RequestKey,
        from: &MadSource,
        mad: &Mad,
    ) -> bool {
        let recent = self.ended.get(&port).is_some_and(|at| now < *at + self.wait);
        if !recent || self.requests.len() >= MAX_HELD {
            return false;
        }
        let until = now + self.wait;
        self.requests.push_back(HeldRequest { port, until, key, from: *from, mad: *mad });
        true
    }

    /// Whether this request waits already.
    pub(crate) fn contains(&self, key: RequestKey) -> bool {
        self.requests.iter().any(|request| request.key == key)
    }

    /// The requests for this port, which has a listener again.
    pub(crate) fn take_for(&mut self, port: u16) -> VecDeque<HeldRequest> {
        let requests = std::mem::take(&mut self.requests);
        let (here, elsewhere) = requests.into_iter().partition(|request| request.port == port);
        self.requests = elsewhere;
        here
    }

    /// The next request that has waited long enough.
    pub(crate) fn take_expired(&mut self, now: Instant) -> Option<HeldRequest> {
        if self.requests.front()?.until > now {
            return None;
        }
        self.requests.pop_front()
    }

    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        self.requests.front().map(|request| request.until)
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "time must begin somewhere")]
mod tests {
    use super::*;

    /// SHARE-126
    #[test]
    fn a_port_is_forgotten_when_its_last_listener_ended_long_enough_ago() {
        let (begin, wait) = (Instant::now(), Duration::from_millis(100));
        let mut held = Held::new(wait);
        let mut known = |after, port| {
            held.listener_ended(begin + Duration::from_millis(after), port);
            assert!(held.in_order.len() >= held.ended.len());
            let mut known: Vec<u16> = held.ended.keys().copied().collect();
            known.sort_unstable();
            known
        };
        assert_eq!(known(0, 1), [1]);
        assert_eq!(known(10, 2), [1, 2]);
        assert_eq!(known(50, 1), [1, 2]);
        assert_eq!(known(110, 3), [1, 3], "it ended again");
        assert_eq!(known(149, 3), [1, 3]);
        assert_eq!(known(150, 4), [3, 4]);
        assert_eq!(known(1000, 5), [5]);
        assert_eq!(held.in_order.len(), 1);
    }
}
