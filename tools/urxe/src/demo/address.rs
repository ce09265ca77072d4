//! Which loopback addresses the demo uses.

use crate::error::Error;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};
use urxe_wire::ROCE_PORT;

/// Pairs that are tried beside the first one.
const OTHER_PAIRS: u8 = 16;

/// The addresses of the daemons: two, or one that serves both programs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Addresses(Vec<IpAddr>);

impl Addresses {
    /// The addresses to try, the best first.
    pub(super) fn candidates(ipv6: bool) -> Result<Vec<Addresses>, Error> {
        if !ipv6 {
            return Ok(Addresses::pairs(std::process::id()));
        }
        let addr = IpAddr::from(Ipv6Addr::LOCALHOST);
        match UdpSocket::bind((addr, 0)) {
            Ok(_) => Ok(vec![Addresses(vec![addr])]),
            Err(source) => Err(Error::Failed(format!(
                "--ipv6 needs the address ::1, which this machine does not have: {source}. \
                 `ip -6 addr show dev lo` shows it where IPv6 is turned on"
            ))),
        }
    }

    /// 127.0.0.1 and 127.0.0.2, and then other pairs. Where those begin depends on `seed`, so that
    /// demos that run at the same time hardly use the same ones.
    fn pairs(seed: u32) -> Vec<Addresses> {
        let pair = |second, third| {
            Addresses([1, 2].map(|last| Ipv4Addr::new(127, second, third, last).into()).to_vec())
        };
        let [third, second, ..] = seed.to_le_bytes();
        let others = (0..OTHER_PAIRS).map(|i| pair(second.max(1), third.wrapping_add(i)));
        std::iter::once(pair(0, 0)).chain(others).collect()
    }

    /// The addresses themselves.
    pub(super) fn list(&self) -> &[IpAddr] {
        &self.0
    }

    /// One of them on which the port of RoCEv2 is taken.
    pub(super) fn busy(&self) -> Option<IpAddr> {
        self.0.iter().copied().find(|&addr| {
            let bound = UdpSocket::bind((addr, ROCE_PORT));
            bound.is_err_and(|error| error.kind() == io::ErrorKind::AddrInUse)
        })
    }

    /// What is unusual about them, if anything is.
    pub(super) fn remark(&self, taken: &[IpAddr]) -> Option<String> {
        if let [only] = self.0[..] {
            return Some(format!(
                "loopback has no IPv6 address but {only}: one daemon serves both programs"
            ));
        }
        let free = list(&self.0);
        (!taken.is_empty())
            .then(|| format!("UDP port 4791 is taken on {}: using {free} instead", list(taken)))
    }
}

/// Addresses with commas between them.
pub(super) fn list(addresses: &[IpAddr]) -> String {
    addresses.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_pairs_are_different_loopback_addresses_and_the_usual_ones_come_first() {
        for seed in [0, 1, 255, 256, 65_535, u32::MAX] {
            let pairs = Addresses::pairs(seed);
            assert_eq!(list(pairs[0].list()), "127.0.0.1, 127.0.0.2");
            let mut all: Vec<_> = pairs.iter().flat_map(Addresses::list).collect();
            assert!(all.iter().all(|addr| addr.is_loopback()));
            all.sort_unstable();
            all.dedup();
            assert_eq!(all.len(), pairs.len() * 2);
        }
    }

    #[test]
    fn a_taken_port_is_noticed() {
        let addr = IpAddr::from([127, 203, 0, 113]);
        let addresses = Addresses(vec![addr]);
        assert_eq!(addresses.busy(), None);
        let _socket = UdpSocket::bind((addr, ROCE_PORT)).unwrap();
        assert_eq!(addresses.busy(), Some(addr));
    }
}
