//! Questions to the kernel that it answers at once: its route to an address, and its neighbours.

use netlink_packet_core::{
    NLM_F_DUMP, NLM_F_REQUEST, NLMSG_ALIGNTO, NetlinkBuffer, NetlinkMessage, NetlinkPayload,
};
use netlink_packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourMessage, NeighbourState,
};
use netlink_packet_route::route::{RouteAddress, RouteAttribute, RouteMessage, RouteType};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use netlink_sys::Socket;
use netlink_sys::protocols::NETLINK_ROUTE;
use std::io;
use std::net::IpAddr;

/// Bytes of the longest datagram that the kernel sends: it fills up to 32 KiB when it is asked.
const DATAGRAM_MAX: usize = 64 * 1024;

/// Where packets to an address go first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Hop {
    /// The number of the interface.
    pub(super) interface: Option<u32>,
    /// The router; `None` if the peer is on the link itself.
    pub(super) gateway: Option<IpAddr>,
    /// The address is one of this machine.
    pub(super) local: bool,
}

/// What the kernel knows of a neighbour.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Neighbour {
    pub(super) state: NeighbourState,
    /// Its hardware address.
    pub(super) link_address: Option<Vec<u8>>,
}

/// The route from one address to another.
pub(super) fn first_hop(source: IpAddr, to: IpAddr, interface: Option<u32>) -> io::Result<Hop> {
    let mut question = RouteMessage::default();
    let bits = if to.is_ipv4() { 32 } else { 128 };
    question.header.address_family = family(to);
    question.header.destination_prefix_length = bits;
    question.header.source_prefix_length = bits;
    question.attributes =
        vec![RouteAttribute::Destination(to.into()), RouteAttribute::Source(source.into())];
    question.attributes.extend(interface.map(RouteAttribute::Oif));
    let answers = ask(RouteNetlinkMessage::GetRoute(question), 0)?;
    let route = answers.into_iter().find_map(|answer| match answer {
        RouteNetlinkMessage::NewRoute(route) => Some(route),
        _ => None,
    });
    let route = route.ok_or(io::ErrorKind::NotFound)?;
    let mut hop = Hop { local: route.header.kind == RouteType::Local, ..Hop::default() };
    for attribute in route.attributes {
        match attribute {
            RouteAttribute::Oif(index) => hop.interface = Some(index),
            RouteAttribute::Gateway(RouteAddress::Inet(addr)) => hop.gateway = Some(addr.into()),
            RouteAttribute::Gateway(RouteAddress::Inet6(addr)) => hop.gateway = Some(addr.into()),
            _ => {}
        }
    }
    Ok(hop)
}

/// A neighbour on an interface; `None` if the kernel does not know it.
pub(super) fn neighbour(interface: u32, addr: IpAddr) -> io::Result<Option<Neighbour>> {
    let mut question = NeighbourMessage::default();
    question.header.family = family(addr);
    let answers = ask(RouteNetlinkMessage::GetNeighbour(question), NLM_F_DUMP)?;
    Ok(answers.into_iter().find_map(|answer| match answer {
        RouteNetlinkMessage::NewNeighbour(message) if message.header.ifindex == interface => {
            about(addr, message)
        }
        _ => None,
    }))
}

/// What a message says of a neighbour; `None` if it is of another.
fn about(addr: IpAddr, message: NeighbourMessage) -> Option<Neighbour> {
    let mut neighbour = Neighbour { state: message.header.state, link_address: None };
    let mut is_it = false;
    for attribute in message.attributes {
        match attribute {
            NeighbourAttribute::Destination(NeighbourAddress::Inet(its)) => is_it = its == addr,
            NeighbourAttribute::Destination(NeighbourAddress::Inet6(its)) => is_it = its == addr,
            NeighbourAttribute::LinkLayerAddress(bytes) => neighbour.link_address = Some(bytes),
            _ => {}
        }
    }
    is_it.then_some(neighbour)
}

fn family(addr: IpAddr) -> AddressFamily {
    if addr.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 }
}

/// Asks, and returns all that is answered.
fn ask(question: RouteNetlinkMessage, flags: u16) -> io::Result<Vec<RouteNetlinkMessage>> {
    let mut socket = Socket::new(NETLINK_ROUTE)?;
    socket.bind_auto()?;
    // All of the answer is there when the question was taken.
    socket.set_non_blocking(true)?;
    let mut message = NetlinkMessage::from(question);
    message.header.flags = NLM_F_REQUEST | flags;
    message.finalize();
    let mut bytes = vec![0; message.buffer_len()];
    message.serialize(&mut bytes);
    socket.send(&bytes, 0)?;
    let (mut answers, mut datagram) = (Vec::new(), vec![0; DATAGRAM_MAX]);
    loop {
        let len = socket.recv(&mut &mut datagram[..], 0)?;
        let mut rest = &datagram[..len];
        while let Some(message) = take(&mut rest) {
            match NetlinkMessage::deserialize(message).map(|message| message.payload) {
                Ok(NetlinkPayload::InnerMessage(answer)) => answers.push(answer),
                Ok(NetlinkPayload::Error(error)) => return Err(error.to_io()),
                Ok(NetlinkPayload::Done(_)) => return Ok(answers),
                // What the library cannot read, of another kernel, is none that is looked for.
                _ => {}
            }
        }
        if flags & NLM_F_DUMP == 0 {
            return Ok(answers);
        }
    }
}

/// Takes the first message off the front of a datagram; `None` when nothing is left that could be
/// one.
fn take<'a>(datagram: &mut &'a [u8]) -> Option<&'a [u8]> {
    let len = NetlinkBuffer::new_checked(*datagram).ok()?.length() as usize;
    let message = datagram.get(..len)?;
    let end = len.next_multiple_of(NLMSG_ALIGNTO.into());
    *datagram = datagram.get(end..).unwrap_or_default();
    Some(message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    #[test]
    fn the_way_to_oneself_is_local_and_over_loopback() {
        let localhost = Ipv4Addr::LOCALHOST.into();
        let hop = first_hop(localhost, [127, 0, 0, 9].into(), None).unwrap();
        assert_eq!((hop.local, hop.gateway), (true, None));
        let loopback = urxe_port::watch::Links::now().unwrap().named("lo").unwrap().index;
        assert_eq!(hop.interface, Some(loopback));
        assert_eq!(neighbour(loopback, [192, 0, 2, 77].into()).unwrap(), None);
    }

    #[test]
    fn a_neighbour_is_known_by_its_address() {
        let mut message = NeighbourMessage::default();
        message.header.state = NeighbourState::Reachable;
        message.attributes = vec![
            NeighbourAttribute::Destination(NeighbourAddress::Inet([10, 0, 0, 2].into())),
            NeighbourAttribute::LinkLayerAddress(vec![2, 0, 0, 0, 0, 9]),
        ];
        let found = about([10, 0, 0, 2].into(), message.clone()).unwrap();
        assert_eq!(found.state, NeighbourState::Reachable);
        assert_eq!(found.link_address.as_deref(), Some(&[2, 0, 0, 0, 0, 9][..]));
        assert_eq!(about([10, 0, 0, 3].into(), message), None);
    }

    #[test]
    fn a_message_that_claims_more_than_there_is_ends_the_datagram() {
        let mut bytes = [0; 16];
        bytes[..4].copy_from_slice(&100u32.to_ne_bytes());
        assert_eq!(take(&mut &bytes[..]), None);
        assert_eq!(take(&mut &bytes[..3]), None);
    }
}
