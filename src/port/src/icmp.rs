//! What routers, peers and this machine say of datagrams that were sent (ICMP), by peer.

use crate::sys::QueuedError;
use std::net::IpAddr;
use std::time::Instant;

/// Of how many peers it is remembered.
const MOST_PEERS: usize = 16;

/// Why a datagram did not reach the RoCE port of a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IcmpReason {
    /// The peer has no RoCE port open.
    PortClosed,
    /// There is no way to the peer, or nobody there.
    Unreachable,
    /// The datagram is longer than a link on the way carries.
    TooLong,
    /// A firewall does not let it pass.
    Forbidden,
}

impl IcmpReason {
    /// What an errno stands for, as the kernel has it for ICMP and ICMPv6.
    fn of(errno: i32) -> Option<IcmpReason> {
        match errno {
            libc::ECONNREFUSED => Some(IcmpReason::PortClosed),
            libc::EHOSTUNREACH | libc::ENETUNREACH | libc::EHOSTDOWN | libc::ENONET => {
                Some(IcmpReason::Unreachable)
            }
            libc::EMSGSIZE => Some(IcmpReason::TooLong),
            libc::EACCES | libc::EPERM => Some(IcmpReason::Forbidden),
            _ => None,
        }
    }
}

/// What was said last of datagrams to a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IcmpError {
    /// Why they do not arrive.
    pub reason: IcmpReason,
    /// The router or host that says so: the peer itself, perhaps, or this machine.
    pub said_by: IpAddr,
    /// How often it was said without anything else between.
    pub times: u64,
    /// When it was read last: with the next send, which may be long after it came.
    pub last: Instant,
}

/// The same of the peers of which it was said last.
#[derive(Debug, Default)]
pub(crate) struct IcmpErrors(Vec<(IpAddr, IcmpError)>);

impl IcmpErrors {
    /// Takes note of an error.
    pub(crate) fn note(&mut self, now: Instant, queued: QueuedError) {
        let QueuedError { errno, said_by, destination, .. } = queued;
        let (Some(reason), Some(said_by)) = (IcmpReason::of(errno), said_by) else { return };
        let Some(peer) = destination else { return };
        let new = IcmpError { reason, said_by, times: 1, last: now };
        // WHY-025
        let known = self.0.iter_mut().find(|(known, _)| *known == peer);
        if let Some((_, error)) = known {
            let again = (error.reason, error.said_by) == (reason, said_by);
            let times = if again { error.times.saturating_add(1) } else { 1 };
            *error = IcmpError { times, ..new };
            return;
        }
        if self.0.len() >= MOST_PEERS {
            let oldest = self.0.iter().enumerate().min_by_key(|(_, (_, error))| error.last);
            if let Some((index, _)) = oldest {
                self.0.swap_remove(index);
            }
        }
        self.0.push((peer, new));
    }

    /// What was said last of datagrams to a peer.
    pub(crate) fn of(&self, peer: IpAddr) -> Option<IcmpError> {
        self.0.iter().find(|(known, _)| *known == peer).map(|(_, error)| *error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;
    use std::time::Duration;

    fn queued(errno: i32, peer: u8) -> QueuedError {
        let addr = |last| Some(Ipv4Addr::new(10, 0, 0, last).into());
        QueuedError { errno, is_icmp: true, said_by: addr(1), destination: addr(peer) }
    }

    #[test]
    fn repeats_are_counted_and_the_newest_stays() {
        let (begin, mut errors) = (Instant::now(), IcmpErrors::default());
        let peer = Ipv4Addr::new(10, 0, 0, 2).into();
        for second in 0..3 {
            errors.note(begin + Duration::from_secs(second), queued(libc::ECONNREFUSED, 2));
        }
        let error = errors.of(peer).unwrap();
        assert_eq!((error.reason, error.times), (IcmpReason::PortClosed, 3));
        assert_eq!(error.last, begin + Duration::from_secs(2));
        errors.note(begin, queued(libc::EHOSTUNREACH, 2));
        let error = errors.of(peer).unwrap();
        assert_eq!((error.reason, error.times), (IcmpReason::Unreachable, 1));
        errors.note(begin, queued(libc::EIO, 3));
        assert_eq!(errors.of(Ipv4Addr::new(10, 0, 0, 3).into()), None, "it says nothing");
    }

    #[test]
    fn as_many_peers_are_remembered_as_there_is_room_for() {
        let (begin, mut errors) = (Instant::now(), IcmpErrors::default());
        for peer in 0..100 {
            let now = begin + Duration::from_secs(peer.into());
            errors.note(now, queued(libc::ECONNREFUSED, peer));
        }
        let known = |peer| errors.of(Ipv4Addr::new(10, 0, 0, peer).into()).is_some();
        let known: Vec<u8> = (0..100).filter(|&peer| known(peer)).collect();
        assert_eq!(known, Vec::from_iter(84..100));
    }
}
