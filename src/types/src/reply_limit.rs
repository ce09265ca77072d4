//! How many replies those get who have proven nothing.
//!
//! A sender's address can be forged, and a reply goes to that address. So replies to who is not
//! known yet are sent at a bounded rate: to each address, and to all together.

use siphasher::sip::SipHasher13;
use std::hash::Hasher;
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// Buckets, which addresses share: about as many addresses as this have one of their own.
const BUCKETS: usize = 1 << 10;

/// How many there may be of something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// In a second; not 0.
    pub per_second: u32,
    /// At once, when there were none for long enough; not 0.
    pub at_once: u32,
}

impl Rate {
    fn interval(self) -> u64 {
        1_000_000_000 / u64::from(self.per_second)
    }

    /// Takes one, if there may be one now. `full` is when as many as possible may be there at once
    /// again; both times are in nanoseconds.
    fn take(self, now: u64, full: u64) -> Option<u64> {
        let (interval, full) = (self.interval(), full.max(now) + self.interval());
        (full - now <= interval * u64::from(self.at_once)).then_some(full)
    }
}

/// A bound for replies, by address.
///
/// It has a table of fixed size, in which addresses may share a place; which ones cannot be
/// foreseen by who does not know the secret. IPv6 addresses count by their first 64 bits, since one
/// host has all of those that begin alike.
#[derive(Clone, Debug)]
pub struct ReplyLimit {
    hasher: SipHasher13,
    each: Rate,
    all: Rate,
    /// When it was asked first: times are counted from there.
    begun: Option<Instant>,
    /// When each bucket is full again, and the one of all.
    full: Box<[u64; BUCKETS]>,
    all_full: u64,
}

impl ReplyLimit {
    /// `each` bounds the replies to one address, `all` those to all of them together.
    pub fn new(secret: [u64; 2], each: Rate, all: Rate) -> ReplyLimit {
        ReplyLimit {
            hasher: SipHasher13::new_with_keys(secret[0], secret[1]),
            each,
            all,
            begun: None,
            full: Box::new([0; BUCKETS]),
            all_full: 0,
        }
    }

    /// Whether a reply may be sent to this address; it counts as sent then. `now` does not run
    /// backwards.
    pub fn take(&mut self, now: Instant, addr: IpAddr) -> bool {
        let begun = *self.begun.get_or_insert(now);
        let now = nanoseconds(now.saturating_duration_since(begun));
        let bucket = self.bucket(addr);
        let Some(full) = self.each.take(now, self.full[bucket]) else { return false };
        let Some(all_full) = self.all.take(now, self.all_full) else { return false };
        (self.full[bucket], self.all_full) = (full, all_full);
        true
    }

    fn bucket(&self, addr: IpAddr) -> usize {
        let mut hasher = self.hasher;
        match addr {
            IpAddr::V4(addr) => hasher.write(&addr.octets()),
            IpAddr::V6(addr) => hasher.write(&addr.octets()[..8]),
        }
        hasher.finish() as usize % BUCKETS
    }
}

/// A time in nanoseconds; centuries are cut short.
fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX).min(u64::MAX / 2)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{Ipv4Addr, Ipv6Addr};

    const EACH: Rate = Rate { per_second: 10, at_once: 4 };
    const ALL: Rate = Rate { per_second: 100, at_once: 50 };

    fn limit(secret: u64) -> ReplyLimit {
        ReplyLimit::new([secret, 7], EACH, ALL)
    }

    fn host(number: u32) -> IpAddr {
        Ipv4Addr::from_bits(0x0a00_0000 + number).into()
    }

    #[expect(clippy::disallowed_methods, reason = "time must begin somewhere")]
    fn beginning() -> Instant {
        Instant::now()
    }

    fn taken(limit: &mut ReplyLimit, now: Instant, addr: IpAddr, tries: usize) -> usize {
        (0..tries).filter(|_| limit.take(now, addr)).count()
    }

    #[test]
    fn one_address_gets_some_at_once_and_then_its_rate() {
        let (mut limit, begun) = (limit(1), beginning());
        assert_eq!(taken(&mut limit, begun, host(1), 100), 4);
        let mut later = 0;
        for ms in 1..=10_000 {
            later += taken(&mut limit, begun + Duration::from_millis(ms), host(1), 3);
        }
        assert_eq!(later, 100);
        let rested = begun + Duration::from_secs(1_000_000);
        assert_eq!(taken(&mut limit, rested, host(1), 100), 4, "rest is no credit beyond that");
    }

    #[test]
    fn one_address_takes_nothing_from_another() {
        let (mut limit, now) = (limit(1), beginning());
        taken(&mut limit, now, host(1), 10_000);
        let others = (2..12).filter(|&number| limit.take(now, host(number))).count();
        assert!(others >= 9, "{others} of 10, one of which may share a bucket");
    }

    #[test]
    fn all_together_are_bounded_however_many_addresses_there_are() {
        let (mut limit, begun) = (limit(1), beginning());
        let mut sent = 0;
        for number in 0..100_000 {
            let now = begun + Duration::from_micros(20) * number;
            sent += usize::from(limit.take(now, host(number)));
        }
        assert!((200..=250).contains(&sent), "{sent} in two seconds");
    }

    #[test]
    fn the_addresses_of_one_network_of_ipv6_are_one() {
        let (mut limit, now) = (limit(1), beginning());
        let hosts = (0..100).map(|n| IpAddr::from(Ipv6Addr::new(0x2001, 1, 1, 1, n, 0, 0, n)));
        assert_eq!(hosts.filter(|&addr| limit.take(now, addr)).count(), 4);
        let other = Ipv6Addr::new(0x2001, 1, 1, 2, 0, 0, 0, 1);
        assert!(limit.take(now, other.into()));
    }

    #[test]
    fn which_addresses_share_a_bucket_is_another_for_each_secret() {
        let sharing = |secret| {
            let limit = limit(secret);
            let same = |number: &u32| limit.bucket(host(*number)) == limit.bucket(host(0));
            (1..100_000).filter(same).collect::<Vec<_>>()
        };
        let (a, b) = (sharing(1), sharing(2));
        assert!(a.len() > 50 && b.len() > 50, "{} and {}", a.len(), b.len());
        assert!(a.iter().filter(|number| b.contains(number)).count() < 10);
    }
}
