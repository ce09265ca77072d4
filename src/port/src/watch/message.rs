//! Route netlink messages as bytes: what the kernel says, and the two questions that it is asked.
//!
//! Layouts are from linux/netlink.h, linux/rtnetlink.h, linux/if_link.h and linux/if_addr.h. All
//! numbers are in the machine's byte order. The kernel is to be trusted more than a packet is, but
//! nothing here relies on that: what is too short or contradicts itself is skipped.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Messages and attributes begin at multiples of this.
const ALIGNMENT: usize = 4;
/// Bytes of a `struct nlmsghdr`.
const HEADER_LEN: usize = 16;
/// Bytes of a `struct ifinfomsg`.
const LINK_HEADER_LEN: usize = 16;
/// Bytes of a `struct ifaddrmsg`.
const ADDRESS_HEADER_LEN: usize = 8;
/// Bytes of a `struct rtattr`.
const ATTRIBUTE_HEADER_LEN: usize = 4;

/// What is said about a link or an address, or about the conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Message {
    /// There is a link, or it has changed.
    Link {
        index: u32,
        /// `IFF_*`.
        flags: u32,
        /// What was not said is as it was.
        name: Option<String>,
        mtu: Option<u32>,
        mac: Option<[u8; 6]>,
    },
    /// A link is no more.
    LinkGone { index: u32 },
    /// A link has an address, or what is known about it has changed.
    Address { link: u32, addr: IpAddr, prefix: u8, standing: Standing },
    /// A link has an address no more; it may have it still with a prefix of another length.
    AddressGone { link: u32, addr: IpAddr, prefix: u8 },
    /// All that was asked for has been said.
    Done,
    /// The question was refused; an `errno`.
    Refused { errno: i32 },
    /// Something was lost.
    Overrun,
    /// Something else, which does not matter here.
    Other,
}

/// Whether an address can be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// It can.
    Usable,
    /// Not yet: another machine may have it, which the kernel is finding out.
    Tentative,
    /// It cannot: another machine has it.
    Duplicate,
}

/// What can be asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Question {
    /// All links.
    Links,
    /// All addresses.
    Addresses,
}

impl Question {
    /// The message that asks.
    pub(super) fn to_bytes(self) -> [u8; HEADER_LEN + LINK_HEADER_LEN] {
        let kind = match self {
            Question::Links => libc::RTM_GETLINK,
            Question::Addresses => libc::RTM_GETADDR,
        };
        let mut bytes = [0; HEADER_LEN + LINK_HEADER_LEN];
        // An all-zero header of either kind behind the first asks for everything.
        let len = bytes.len() as u32;
        bytes[..4].copy_from_slice(&len.to_ne_bytes());
        bytes[4..6].copy_from_slice(&kind.to_ne_bytes());
        let flags = (libc::NLM_F_REQUEST | libc::NLM_F_DUMP) as u16;
        bytes[6..8].copy_from_slice(&flags.to_ne_bytes());
        bytes
    }
}

/// Takes the first message off the front of a datagram; `None` when nothing is left that could be
/// one.
pub(super) fn take(datagram: &mut &[u8]) -> Option<Message> {
    let len = u32_at(datagram, 0)? as usize;
    let message = datagram.get(..len).filter(|message| message.len() >= HEADER_LEN)?;
    let rest = len.next_multiple_of(ALIGNMENT).min(datagram.len());
    *datagram = &datagram[rest..];
    let body = &message[HEADER_LEN..];
    let understood = match u16_at(message, 4)? {
        libc::RTM_NEWLINK => link(body),
        // Of another family it says that the link has left a bridge, for example.
        libc::RTM_DELLINK => link(body).map(|message| match message {
            Message::Link { index, .. } => Message::LinkGone { index },
            other => other,
        }),
        libc::RTM_NEWADDR => address(body),
        libc::RTM_DELADDR => address(body).map(|message| match message {
            Message::Address { link, addr, prefix, .. } => {
                Message::AddressGone { link, addr, prefix }
            }
            other => other,
        }),
        kind => match i32::from(kind) {
            libc::NLMSG_DONE => Some(Message::Done),
            libc::NLMSG_ERROR => u32_at(body, 0)
                .map(|errno| Message::Refused { errno: (errno as i32).wrapping_neg() }),
            libc::NLMSG_OVERRUN => Some(Message::Overrun),
            _ => None,
        },
    };
    Some(understood.unwrap_or(Message::Other))
}

fn link(body: &[u8]) -> Option<Message> {
    let family = *body.first()?;
    if i32::from(family) != libc::AF_UNSPEC {
        return None;
    }
    let (index, flags) = (u32_at(body, 4)?, u32_at(body, 8)?);
    let (mut name, mut mtu, mut mac) = (None, None, None);
    for (kind, value) in attributes(body.get(LINK_HEADER_LEN..)?) {
        match kind {
            libc::IFLA_IFNAME => name = text(value),
            libc::IFLA_MTU => mtu = u32_at(value, 0),
            libc::IFLA_ADDRESS => mac = value.try_into().ok(),
            _ => {}
        }
    }
    Some(Message::Link { index, flags, name, mtu, mac })
}

fn address(body: &[u8]) -> Option<Message> {
    let &[family, prefix, flags, ..] = body else { return None };
    let link = u32_at(body, 4)?;
    let (mut local, mut other, mut flags) = (None, None, u32::from(flags));
    for (kind, value) in attributes(body.get(ADDRESS_HEADER_LEN..)?) {
        match kind {
            libc::IFA_LOCAL => local = ip(family, value),
            // The peer's on a point-to-point link, where there is a local one too.
            libc::IFA_ADDRESS => other = ip(family, value),
            libc::IFA_FLAGS => flags = u32_at(value, 0).unwrap_or(flags),
            _ => {}
        }
    }
    let addr = local.or(other)?;
    let has = |flag: u32| flags & flag != 0;
    let standing = if has(libc::IFA_F_DADFAILED) {
        Standing::Duplicate
    } else if has(libc::IFA_F_TENTATIVE) && !has(libc::IFA_F_OPTIMISTIC) {
        Standing::Tentative
    } else {
        Standing::Usable
    };
    Some(Message::Address { link, addr, prefix, standing })
}

/// The attributes behind a header, each with its kind.
fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let len = usize::from(u16_at(bytes, 0)?);
        let kind = u16_at(bytes, 2)?;
        let value = bytes.get(ATTRIBUTE_HEADER_LEN..len)?;
        bytes = &bytes[len.next_multiple_of(ALIGNMENT).min(bytes.len())..];
        Some((kind, value))
    })
}

fn ip(family: u8, value: &[u8]) -> Option<IpAddr> {
    match i32::from(family) {
        libc::AF_INET => Some(Ipv4Addr::from(<[u8; 4]>::try_from(value).ok()?).into()),
        libc::AF_INET6 => Some(Ipv6Addr::from(<[u8; 16]>::try_from(value).ok()?).into()),
        _ => None,
    }
}

/// A text with a zero behind it.
fn text(value: &[u8]) -> Option<String> {
    let end = value.iter().position(|byte| *byte == 0).unwrap_or(value.len());
    String::from_utf8(value[..end].to_vec()).ok()
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A message as the kernel writes it.
    pub(crate) fn message(kind: u16, header: &[u8], attributes: &[(u16, &[u8])]) -> Vec<u8> {
        let mut bytes = vec![0; HEADER_LEN];
        bytes.extend(header);
        for (kind, value) in attributes {
            let len = (ATTRIBUTE_HEADER_LEN + value.len()) as u16;
            bytes.extend(len.to_ne_bytes());
            bytes.extend(kind.to_ne_bytes());
            bytes.extend(*value);
            bytes.resize(bytes.len().next_multiple_of(ALIGNMENT), 0);
        }
        let len = bytes.len() as u32;
        bytes[..4].copy_from_slice(&len.to_ne_bytes());
        bytes[4..6].copy_from_slice(&kind.to_ne_bytes());
        bytes
    }

    fn link_header(family: u8, index: u32, flags: u32) -> Vec<u8> {
        let mut header = vec![family, 0, 1, 0];
        header.extend(index.to_ne_bytes());
        header.extend(flags.to_ne_bytes());
        header.extend([0; 4]);
        header
    }

    fn address_header(family: i32, flags: u32, link: u32) -> Vec<u8> {
        let mut header = vec![family as u8, 24, flags as u8, 0];
        header.extend(link.to_ne_bytes());
        header
    }

    /// All that a datagram says.
    fn said(mut datagram: &[u8]) -> Vec<Message> {
        std::iter::from_fn(|| take(&mut datagram)).collect()
    }

    #[test]
    fn a_link_is_told_with_what_matters_and_one_that_goes_too() {
        let attributes: [(u16, &[u8]); 4] = [
            (libc::IFLA_IFNAME, b"eth0\0"),
            (libc::IFLA_MTU, &1500u32.to_ne_bytes()),
            (libc::IFLA_ADDRESS, &[2, 0, 0, 0, 0, 9]),
            (999, b"of tomorrow"),
        ];
        let mut bytes = message(libc::RTM_NEWLINK, &link_header(0, 3, 0x41), &attributes);
        bytes.extend(message(libc::RTM_DELLINK, &link_header(0, 4, 0), &[]));
        bytes.extend(message(libc::NLMSG_DONE as u16, &[0; 4], &[]));
        let link = Message::Link {
            index: 3,
            flags: 0x41,
            name: Some("eth0".into()),
            mtu: Some(1500),
            mac: Some([2, 0, 0, 0, 0, 9]),
        };
        assert_eq!(said(&bytes), [link, Message::LinkGone { index: 4 }, Message::Done]);
    }

    #[test]
    fn messages_of_a_bridge_about_its_ports_are_not_about_links() {
        let bridge = libc::AF_BRIDGE as u8;
        let bytes = message(libc::RTM_DELLINK, &link_header(bridge, 3, 0), &[]);
        assert_eq!(said(&bytes), [Message::Other]);
    }

    #[test]
    fn the_local_address_counts_and_one_that_is_suspected_cannot_be_used() {
        let (own, peer) = ([10, 0, 0, 1], [10, 0, 0, 2]);
        let header = address_header(libc::AF_INET, 0, 7);
        let attributes: [(u16, &[u8]); 2] = [(libc::IFA_ADDRESS, &peer), (libc::IFA_LOCAL, &own)];
        let told = said(&message(libc::RTM_NEWADDR, &header, &attributes));
        let (addr, prefix) = (IpAddr::from(own), 24);
        let standing = Standing::Usable;
        assert_eq!(told, [Message::Address { link: 7, addr, prefix, standing }]);

        let own = Ipv6Addr::LOCALHOST.octets();
        for (flags, expected) in [
            (libc::IFA_F_PERMANENT, Standing::Usable),
            (libc::IFA_F_TENTATIVE, Standing::Tentative),
            (libc::IFA_F_TENTATIVE | libc::IFA_F_OPTIMISTIC, Standing::Usable),
            (libc::IFA_F_DADFAILED, Standing::Duplicate),
            (libc::IFA_F_DEPRECATED, Standing::Usable),
        ] {
            // The flags' own attribute is the one that has room for all of them.
            let wide = flags.to_ne_bytes();
            let attributes: [(u16, &[u8]); 2] =
                [(libc::IFA_ADDRESS, &own), (libc::IFA_FLAGS, &wide)];
            let header = address_header(libc::AF_INET6, 0, 7);
            let told = said(&message(libc::RTM_NEWADDR, &header, &attributes));
            let [Message::Address { standing, .. }] = told[..] else { panic!("{told:?}") };
            assert_eq!(standing, expected, "{flags:#x}");
        }
    }

    #[test]
    fn a_refusal_says_why() {
        let errno = (-libc::EPERM).to_ne_bytes();
        let bytes = message(libc::NLMSG_ERROR as u16, &errno, &[]);
        assert_eq!(said(&bytes), [Message::Refused { errno: libc::EPERM }]);
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic_or_go_on_for_ever(
            bytes in prop::collection::vec(any::<u8>(), 0..200),
        ) {
            prop_assert!(said(&bytes).len() <= bytes.len() / HEADER_LEN);
        }

        #[test]
        fn damage_to_real_messages_is_survived(
            at in 0usize..200, byte: u8, cut in 0usize..200, which in 0usize..4,
        ) {
            let kinds =
                [libc::RTM_NEWLINK, libc::RTM_DELLINK, libc::RTM_NEWADDR, libc::RTM_DELADDR];
            let header = match which {
                0 | 1 => link_header(0, 3, 0x41),
                _ => address_header(libc::AF_INET6, 0, 3),
            };
            let attributes: [(u16, &[u8]); 3] =
                [(libc::IFLA_IFNAME, b"eth0\0"), (libc::IFA_ADDRESS, &[1; 16]), (8, &[0; 4])];
            let mut bytes = message(kinds[which], &header, &attributes);
            bytes.extend(message(kinds[which], &header, &attributes));
            let len = bytes.len();
            bytes[at % len] = byte;
            prop_assert!(said(&bytes[..len - cut % len]).len() <= len / HEADER_LEN);
        }
    }
}
