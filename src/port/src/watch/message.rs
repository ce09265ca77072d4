//! Route netlink messages: what the kernel says of links and addresses, and how it is asked.
//!
//! The kernel is to be trusted more than a packet is, but nothing here relies on that: what is too
//! short or contradicts itself is skipped. So is, by itself, an attribute that the library cannot
//! read: those of links are many, and each kernel has new ones.

use netlink_packet_core::{
    ErrorBuffer, NLM_F_DUMP, NLM_F_DUMP_INTR, NLM_F_REQUEST, NLMSG_ALIGNTO, NLMSG_DONE,
    NLMSG_ERROR, NLMSG_OVERRUN, NetlinkBuffer, NetlinkMessage, NlasIterator, Parseable,
    ParseableParametrized,
};
use netlink_packet_route::address::{
    AddressAttribute, AddressFlags, AddressHeader, AddressMessage, AddressMessageBuffer,
};
use netlink_packet_route::link::{
    LinkAttribute, LinkFlags, LinkHeader, LinkMessage, LinkMessageBuffer,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use std::net::IpAddr;

/// What a message tells of a link or an address, or of the exchange itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Message {
    /// There is a link, or it has changed.
    Link {
        index: u32,
        flags: LinkFlags,
        /// What was not told is as it was.
        name: Option<String>,
        mtu: Option<u32>,
        mac: Option<[u8; 6]>,
    },
    /// A link was removed.
    LinkGone { index: u32 },
    /// A link has an address, or what is known about it has changed.
    Address { link: u32, addr: IpAddr, prefix: u8, state: AddressState },
    /// An address was removed from a link, which may still have it with another prefix length.
    AddressGone { link: u32, addr: IpAddr, prefix: u8 },
    /// The end of an answer.
    Done,
    /// The request was refused; an `errno`.
    Refused { errno: i32 },
    /// Messages were lost.
    Overrun,
    /// Something else, which does not matter here.
    Other,
}

/// Whether an address can be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AddressState {
    /// It can.
    Usable,
    /// Not yet: another machine may have it, which the kernel is finding out.
    Tentative,
    /// It cannot: another machine has it.
    Duplicate,
}

/// What can be asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Request {
    /// All links.
    Links,
    /// All addresses.
    Addresses,
}

impl Request {
    /// The message that asks.
    pub(super) fn to_bytes(self) -> Vec<u8> {
        let mut message = NetlinkMessage::from(match self {
            Request::Links => RouteNetlinkMessage::GetLink(LinkMessage::default()),
            Request::Addresses => RouteNetlinkMessage::GetAddress(AddressMessage::default()),
        });
        message.header.flags = NLM_F_REQUEST | NLM_F_DUMP;
        message.finalize();
        let mut bytes = vec![0; message.buffer_len()];
        message.serialize(&mut bytes);
        bytes
    }
}

/// Whether the message at the front of a datagram is part of an answer in which something may be
/// missing, because it changed while the kernel went through it.
pub(super) fn is_interrupted(datagram: &[u8]) -> bool {
    NetlinkBuffer::new_checked(datagram).is_ok_and(|message| message.flags() & NLM_F_DUMP_INTR != 0)
}

/// Takes the first message off the front of a datagram; `None` when nothing is left that could be
/// one.
pub(super) fn take(datagram: &mut &[u8]) -> Option<Message> {
    let message = NetlinkBuffer::new_checked(*datagram).ok()?;
    let end = (message.length() as usize).next_multiple_of(NLMSG_ALIGNTO.into());
    *datagram = datagram.get(end..).unwrap_or_default();
    let body = message.payload();
    let understood = match message.message_type() {
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
        NLMSG_DONE => Some(Message::Done),
        NLMSG_ERROR => ErrorBuffer::new_checked(body).ok().map(|error| Message::Refused {
            errno: error.code().map_or(0, |code| code.get().wrapping_neg()),
        }),
        NLMSG_OVERRUN => Some(Message::Overrun),
        _ => None,
    };
    Some(understood.unwrap_or(Message::Other))
}

fn link(body: &[u8]) -> Option<Message> {
    let header = LinkHeader::parse(body).ok()?;
    if header.interface_family != AddressFamily::Unspec {
        return None;
    }
    let (mut name, mut mtu, mut mac) = (None, None, None);
    for attribute in NlasIterator::new(&body[size_of::<LinkMessageBuffer>()..]).flatten() {
        match LinkAttribute::parse_with_param(&attribute, header.interface_family) {
            Ok(LinkAttribute::IfName(value)) => name = Some(value),
            Ok(LinkAttribute::Mtu(value)) => mtu = Some(value),
            Ok(LinkAttribute::Address(value)) => mac = value.try_into().ok(),
            _ => {}
        }
    }
    Some(Message::Link { index: header.index, flags: header.flags, name, mtu, mac })
}

fn address(body: &[u8]) -> Option<Message> {
    let header = AddressHeader::parse(body).ok()?;
    let is_of_family = |addr: &IpAddr| match header.family {
        AddressFamily::Inet => addr.is_ipv4(),
        AddressFamily::Inet6 => addr.is_ipv6(),
        _ => false,
    };
    let mut flags = AddressFlags::from_bits_retain(header.flags.bits().into());
    let (mut local, mut other) = (None, None);
    for attribute in NlasIterator::new(&body[size_of::<AddressMessageBuffer>()..]).flatten() {
        match AddressAttribute::parse(&attribute) {
            Ok(AddressAttribute::Local(value)) => local = Some(value),
            // The peer's on a point-to-point link, where there is a local one too.
            Ok(AddressAttribute::Address(value)) => other = Some(value),
            Ok(AddressAttribute::Flags(value)) => flags = value,
            _ => {}
        }
    }
    let addr = local.or(other).filter(is_of_family)?;
    let state = if flags.contains(AddressFlags::Dadfailed) {
        AddressState::Duplicate
    } else if flags.contains(AddressFlags::Tentative) && !flags.contains(AddressFlags::Optimistic) {
        AddressState::Tentative
    } else {
        AddressState::Usable
    };
    Some(Message::Address { link: header.index, addr, prefix: header.prefix_len, state })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::net::Ipv6Addr;

    // From linux/netlink.h and linux/rtnetlink.h.
    const ALIGNMENT: usize = 4;
    const HEADER_LEN: usize = 16;
    const ATTRIBUTE_HEADER_LEN: usize = 4;

    /// A message as the kernel writes it.
    fn message(kind: u16, header: &[u8], attributes: &[(u16, &[u8])]) -> Vec<u8> {
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

    /// All messages of a datagram.
    fn parsed(mut datagram: &[u8]) -> Vec<Message> {
        std::iter::from_fn(|| take(&mut datagram)).collect()
    }

    #[test]
    fn a_new_link_and_one_that_is_removed_are_read_whatever_else_they_come_with() {
        let attributes: [(u16, &[u8]); 5] = [
            (libc::IFLA_IFNAME, b"eth0\0"),
            (libc::IFLA_MTU, &1500u32.to_ne_bytes()),
            (libc::IFLA_ADDRESS, &[2, 0, 0, 0, 0, 9]),
            (libc::IFLA_STATS64, b"shorter than statistics ever were"),
            (999, b"of tomorrow"),
        ];
        let mut bytes = message(libc::RTM_NEWLINK, &link_header(0, 3, 0x41), &attributes);
        bytes.extend(message(libc::RTM_DELLINK, &link_header(0, 4, 0), &[]));
        bytes.extend(message(libc::NLMSG_DONE as u16, &[0; 4], &[]));
        let link = Message::Link {
            index: 3,
            flags: LinkFlags::Up | LinkFlags::Running,
            name: Some("eth0".into()),
            mtu: Some(1500),
            mac: Some([2, 0, 0, 0, 0, 9]),
        };
        assert_eq!(parsed(&bytes), [link, Message::LinkGone { index: 4 }, Message::Done]);
    }

    #[test]
    fn bridge_messages_about_ports_are_not_about_links() {
        let bridge = libc::AF_BRIDGE as u8;
        let bytes = message(libc::RTM_DELLINK, &link_header(bridge, 3, 0), &[]);
        assert_eq!(parsed(&bytes), [Message::Other]);
    }

    #[test]
    fn the_local_address_counts_and_a_tentative_one_is_not_usable() {
        let (own, peer) = ([10, 0, 0, 1], [10, 0, 0, 2]);
        let header = address_header(libc::AF_INET, 0, 7);
        let attributes: [(u16, &[u8]); 2] = [(libc::IFA_ADDRESS, &peer), (libc::IFA_LOCAL, &own)];
        let messages = parsed(&message(libc::RTM_NEWADDR, &header, &attributes));
        let (addr, prefix) = (IpAddr::from(own), 24);
        let state = AddressState::Usable;
        assert_eq!(messages, [Message::Address { link: 7, addr, prefix, state }]);

        let own = Ipv6Addr::LOCALHOST.octets();
        for (flags, expected) in [
            (libc::IFA_F_PERMANENT, AddressState::Usable),
            (libc::IFA_F_TENTATIVE, AddressState::Tentative),
            (libc::IFA_F_TENTATIVE | libc::IFA_F_OPTIMISTIC, AddressState::Usable),
            (libc::IFA_F_DADFAILED, AddressState::Duplicate),
            (libc::IFA_F_DEPRECATED, AddressState::Usable),
        ] {
            // The flags' own attribute is the one that has room for all of them.
            let wide = flags.to_ne_bytes();
            let attributes: [(u16, &[u8]); 2] =
                [(libc::IFA_ADDRESS, &own), (libc::IFA_FLAGS, &wide)];
            let header = address_header(libc::AF_INET6, 0, 7);
            let messages = parsed(&message(libc::RTM_NEWADDR, &header, &attributes));
            let [Message::Address { state, .. }] = messages[..] else { panic!("{messages:?}") };
            assert_eq!(state, expected, "{flags:#x}");
        }
    }

    #[test]
    fn a_refusal_carries_its_errno() {
        let errno = (-libc::EPERM).to_ne_bytes();
        let bytes = message(libc::NLMSG_ERROR as u16, &errno, &[]);
        assert_eq!(parsed(&bytes), [Message::Refused { errno: libc::EPERM }]);
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic_or_go_on_for_ever(
            bytes in prop::collection::vec(any::<u8>(), 0..200),
        ) {
            prop_assert!(parsed(&bytes).len() <= bytes.len() / HEADER_LEN);
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
            prop_assert!(parsed(&bytes[..len - cut % len]).len() <= len / HEADER_LEN);
        }
    }
}
