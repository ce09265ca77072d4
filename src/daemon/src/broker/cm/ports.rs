//! Ports in use: one table for all programs and devices of the daemon, with the rules of the
//! kernel's `rdma_cm`.

use crate::broker::account::Account;
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use urxe_shm::control::{CmPortSpace, ControlError};

/// From where the kernel takes ports that programs do not choose, unless told otherwise.
const LOCAL_PORTS: RangeInclusive<u16> = 32_768..=60_999;

/// What an id claims of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Claim {
    /// The id's key.
    pub(super) id: u32,
    /// Its program's user.
    pub(super) user: u32,
    /// On which address, perhaps the wildcard.
    pub(super) addr: IpAddr,
    /// The wildcard means its own family only.
    pub(super) family_only: bool,
    /// Others who say so too may have the port.
    pub(super) reuse_addr: bool,
}

impl Claim {
    /// Why both cannot be. The kernel has another number where a wildcard is involved.
    fn conflict(&self, other: &Claim) -> Option<Errno> {
        let (one, two) = (self.addr, other.addr);
        let apart = one.is_ipv4() != two.is_ipv4() && self.family_only && other.family_only;
        match () {
            () if self.id == other.id || apart => None,
            () if self.reuse_addr && other.reuse_addr => None,
            () if one.is_unspecified() || two.is_unspecified() => Some(Errno::ADDRNOTAVAIL),
            () if one == two => Some(Errno::ADDRINUSE),
            () => None,
        }
    }
}

/// The ports in use.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(from = "Claims", into = "Claims")]
pub(super) struct Ports {
    claims: HashMap<(CmPortSpace, u16), Vec<Claim>>,
    /// Ports that programs do not choose are of these.
    local: RangeInclusive<u16>,
    /// Where to begin to look for the next.
    next: u16,
    /// How many claims of those each user has, in all port spaces.
    account: Account,
}

/// What is written down of them: all else is found anew.
#[derive(Serialize, Deserialize)]
struct Claims(Vec<((CmPortSpace, u16), Vec<Claim>)>);

impl From<Ports> for Claims {
    fn from(ports: Ports) -> Claims {
        Claims(ports.claims.into_iter().collect())
    }
}

impl From<Claims> for Ports {
    fn from(Claims(claims): Claims) -> Ports {
        let mut ports = Ports::new();
        for ((_, port), claims) in &claims {
            let of_account = claims.iter().filter(|_| ports.local.contains(port));
            of_account.for_each(|claim| ports.account.take(claim.user));
        }
        ports.claims = claims.into_iter().collect();
        ports
    }
}

impl Ports {
    pub(super) fn new() -> Ports {
        let range = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range");
        let local = range.ok().and_then(|range| parse_range(&range)).unwrap_or(LOCAL_PORTS);
        // Anywhere: a daemon that is started again shall not meet its own old connections.
        let next = getrandom::u32().unwrap_or_default() as u16;
        Ports::with_local(local, next)
    }

    fn with_local(local: RangeInclusive<u16>, next: u16) -> Ports {
        let account = Account::new("ports that programs do not choose", local.len());
        Ports { claims: HashMap::new(), local, next, account }
    }

    /// Whether none is in use.
    pub(super) fn is_empty(&self) -> bool {
        self.claims.is_empty()
    }

    /// Claims a port.
    pub(super) fn claim(
        &mut self,
        space: CmPortSpace,
        port: u16,
        claim: Claim,
    ) -> Result<(), Errno> {
        self.check(space, port, &claim)?;
        if self.local.contains(&port) {
            self.account.take(claim.user);
        }
        self.claims.entry((space, port)).or_default().push(claim);
        Ok(())
    }

    /// Claims any port that is free.
    pub(super) fn claim_any(&mut self, space: CmPortSpace, claim: Claim) -> Result<u16, Errno> {
        // There is no port 0, so they are less than 65,536.
        let (low, count) = (*self.local.start(), self.local.len() as u16);
        for _ in 0..count {
            let port = low + self.next % count;
            self.next = self.next.wrapping_add(1);
            if let Entry::Vacant(free) = self.claims.entry((space, port)) {
                free.insert(vec![claim]);
                self.account.take(claim.user);
                return Ok(port);
            }
        }
        Err(Errno::ADDRNOTAVAIL)
    }

    /// Refuses a port that programs need not choose, 0 for any, to a user that has as many of those
    /// as it may.
    pub(super) fn check_account(&self, port: u16, user: u32) -> Result<(), ControlError> {
        // SHARE-104
        if port == 0 || self.local.contains(&port) {
            self.account.check(user)?;
        }
        Ok(())
    }

    /// Whether a claim could stand beside those of others.
    pub(super) fn check(&self, space: CmPortSpace, port: u16, claim: &Claim) -> Result<(), Errno> {
        let others = self.claims.get(&(space, port)).into_iter().flatten();
        others.filter_map(|other| claim.conflict(other)).next().map_or(Ok(()), Err)
    }

    /// Puts a claim in the place of an id's earlier one.
    pub(super) fn replace(&mut self, space: CmPortSpace, port: u16, claim: Claim) {
        let claims = self.claims.get_mut(&(space, port)).into_iter().flatten();
        claims.filter(|known| known.id == claim.id).for_each(|known| *known = claim);
    }

    /// Gives an id's claim up.
    pub(super) fn release(&mut self, space: CmPortSpace, port: u16, id: u32) {
        let Entry::Occupied(mut claims) = self.claims.entry((space, port)) else { return };
        let is_local = self.local.contains(&port);
        claims.get_mut().retain(|claim| {
            let is_given_up = claim.id == id;
            if is_given_up && is_local {
                self.account.give_back(claim.user);
            }
            !is_given_up
        });
        if claims.get().is_empty() {
            claims.remove();
        }
    }
}

fn parse_range(text: &str) -> Option<RangeInclusive<u16>> {
    let mut numbers = text.split_whitespace().map(str::parse);
    let (low, high) = (numbers.next()?.ok()?, numbers.next()?.ok()?);
    (low > 0 && low <= high).then_some(low..=high)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TCP: CmPortSpace = CmPortSpace::Tcp;

    fn claim(id: u32, addr: &str) -> Claim {
        let addr: IpAddr = addr.parse().unwrap();
        Claim { id, user: 7, addr, family_only: addr.is_ipv4(), reuse_addr: false }
    }

    fn claim_both(first: Claim, second: Claim) -> Result<(), Errno> {
        let mut ports = Ports::new();
        ports.claim(TCP, 7174, first).unwrap();
        let result = ports.claim(TCP, 7174, second);
        // It does not matter which was first.
        let mut ports = Ports::new();
        ports.claim(TCP, 7174, second).unwrap();
        assert_eq!(ports.claim(TCP, 7174, first), result, "{first:?}, {second:?}");
        result
    }

    #[test]
    fn the_rules_are_those_of_the_kernel() {
        let (in_use, not_available) = (Err(Errno::ADDRINUSE), Err(Errno::ADDRNOTAVAIL));
        let cases = [
            ("10.0.0.1", "10.0.0.1", in_use),
            ("10.0.0.1", "10.0.0.2", Ok(())),
            ("10.0.0.1", "0.0.0.0", not_available),
            ("0.0.0.0", "0.0.0.0", not_available),
            ("10.0.0.1", "fd00::1", Ok(())),
            ("fd00::1", "::", not_available),
            // The wildcard of IPv6 means IPv4 too.
            ("10.0.0.1", "::", not_available),
            ("0.0.0.0", "::", not_available),
        ];
        for (one, two, expected) in cases {
            assert_eq!(claim_both(claim(1, one), claim(2, two)), expected, "{one}, {two}");
            assert_eq!(claim_both(claim(1, one), claim(1, two)), Ok(()), "the same id");
            let reused = |id, addr| Claim { reuse_addr: true, ..claim(id, addr) };
            assert_eq!(claim_both(reused(1, one), reused(2, two)), Ok(()), "{one}, {two}");
            assert_eq!(claim_both(reused(1, one), claim(2, two)), expected, "one will not share");
        }
        let only = |id, addr| Claim { family_only: true, ..claim(id, addr) };
        assert_eq!(claim_both(claim(1, "0.0.0.0"), only(2, "::")), Ok(()));
        assert_eq!(claim_both(claim(1, "10.0.0.1"), only(2, "::")), Ok(()));
        assert_eq!(claim_both(claim(1, "fd00::1"), only(2, "::")), not_available);
    }

    #[test]
    fn port_spaces_have_nothing_to_do_with_each_other() {
        let mut ports = Ports::new();
        ports.claim(TCP, 7174, claim(1, "0.0.0.0")).unwrap();
        assert_eq!(ports.claim(CmPortSpace::Udp, 7174, claim(2, "0.0.0.0")), Ok(()));
    }

    #[test]
    fn a_port_that_was_given_up_can_be_had_again() {
        let mut ports = Ports::new();
        ports.claim(TCP, 7174, claim(1, "10.0.0.1")).unwrap();
        ports.claim(TCP, 7174, claim(2, "10.0.0.2")).unwrap();
        ports.release(TCP, 7174, 1);
        assert_eq!(ports.claim(TCP, 7174, claim(3, "10.0.0.2")), Err(Errno::ADDRINUSE));
        assert_eq!(ports.claim(TCP, 7174, claim(3, "10.0.0.1")), Ok(()));
        ports.release(TCP, 7174, 2);
        ports.release(TCP, 7174, 3);
        assert!(ports.is_empty());
    }

    #[test]
    fn any_port_is_another_each_time_until_there_is_none() {
        let mut ports = Ports::with_local(50_000..=50_009, 0);
        let mut had: Vec<u16> =
            (0..10).map(|id| ports.claim_any(TCP, claim(id, "0.0.0.0")).unwrap()).collect();
        had.sort_unstable();
        assert_eq!(had, (50_000..=50_009).collect::<Vec<_>>());
        let more = claim(10, "0.0.0.0");
        assert_eq!(ports.claim_any(TCP, more), Err(Errno::ADDRNOTAVAIL));
        ports.release(TCP, 50_004, had.iter().position(|port| *port == 50_004).unwrap() as u32);
    }

    #[test]
    fn one_user_leaves_ports_to_others() {
        // SHARE-104
        let mut ports = Ports::with_local(10_000..=13_199, 0);
        let had = (0..3200).take_while(|&id| {
            let has_room = ports.check_account(0, 7).is_ok();
            has_room && ports.claim_any(TCP, claim(id, "0.0.0.0")).is_ok()
        });
        let had = had.count();
        assert!((2100..2500).contains(&had), "{had}");
        // Nor by naming them; what is nobody's by chance is whose it is.
        assert!(ports.check_account(13_199, 7).is_err());
        assert!(ports.check_account(9_999, 7).is_ok());
        assert!(ports.check_account(0, 8).is_ok());
        ports.release(TCP, 10_000, 0);
        assert!(ports.check_account(0, 7).is_ok());
    }

    #[test]
    fn the_range_of_local_ports_is_that_of_the_system() {
        assert_eq!(parse_range("32768\t60999\n"), Some(LOCAL_PORTS));
        assert_eq!(parse_range("9 3"), None);
        assert_eq!(parse_range("0 3"), None);
        assert_eq!(parse_range("x"), None);
    }
}
