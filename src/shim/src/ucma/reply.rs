//! What a command is answered: bytes in the program.

use super::abi::{
    self, ConnParam, EventResp, PathRecData, QueryAddrResp, QueryPathResp, QueryRouteResp, UdParam,
    UserPathRec,
};
use super::address::{encode, encode_gid, encode_sized};
use super::command::View;
use crate::uverbs::{ah_attr, qp_attr};
use std::net::SocketAddr;
use urxe_shm::control::{
    CmConnParam, CmEvent, CmEventParam, CmPath, CmReply, CmRoute, CmSubject, CmUdParam,
};
use urxe_types::Gid;
use zerocopy::IntoBytes;

/// The only P_Key.
const PKEY: u16 = 0xffff;

/// The kernel may say which of its devices an id is bound to. There are no such numbers here, and
/// librdmacm goes by the GUID.
const NO_INDEX: u32 = u32::MAX;

/// "Exactly so much", of an MTU, a rate or a time in a path.
const EXACTLY: u8 = 2;

/// How long a packet lives, 4.096 us << 16: what the kernel says of every RoCE path.
const PACKET_LIFE_TIME: u8 = 16;

/// The bytes of a reply.
pub(super) fn bytes(reply: &CmReply) -> Vec<u8> {
    let number = match reply {
        CmReply::Id(id) => id.0,
        CmReply::Multicast(multicast) => multicast.0,
        &CmReply::Events(count) => count,
        CmReply::QpAttr(attr) => return qp_attr(attr).as_bytes().to_vec(),
        CmReply::Event(event) => return event_resp(event).as_bytes().to_vec(),
        CmReply::Route(route) => return route_resp(route, View::Route),
        // Nobody asks for one by a command.
        CmReply::Channel(_) => return Vec::new(),
    };
    number.to_ne_bytes().to_vec()
}

/// The bytes of what an id knows of itself.
pub(super) fn route_resp(route: &CmRoute, view: View) -> Vec<u8> {
    match view {
        View::Route => query_route_resp(route).as_bytes().to_vec(),
        View::Addresses => {
            let (src, dst) = (encode_sized(route.src), encode_sized(route.dst));
            query_addr_resp(route, src, dst).as_bytes().to_vec()
        }
        View::Gids => {
            let [sgid, dgid] = gids(route).map(|gid| encode_gid(gid.0, pkey(route)));
            query_addr_resp(route, sgid, dgid).as_bytes().to_vec()
        }
        View::Path => {
            let count = QueryPathResp { num_paths: route.path.iter().count() as u32, reserved: 0 };
            let path = route.path.as_ref().map(path_rec_data);
            [count.as_bytes(), path.as_ref().map_or(&[][..], |path| path.as_bytes())].concat()
        }
    }
}

fn query_route_resp(route: &CmRoute) -> QueryRouteResp {
    // Before there is a path, the kernel tells its ends.
    let first = match &route.path {
        Some(path) => user_path_rec(path),
        None if is_bound(route) => {
            let [sgid, dgid] = gids(route).map(|gid| gid.0);
            UserPathRec { dgid, sgid, pkey: pkey(route), ..UserPathRec::default() }
        }
        None => UserPathRec::default(),
    };
    QueryRouteResp {
        node_guid: route.node_guid,
        ib_route: [first, UserPathRec::default()],
        src_addr: encode(route.src),
        dst_addr: encode(route.dst),
        num_paths: route.path.iter().count() as u32,
        port_num: route.port,
        ibdev_index: NO_INDEX,
        ..QueryRouteResp::default()
    }
}

fn query_addr_resp(
    route: &CmRoute,
    (src_addr, src_size): (abi::SockaddrStorage, u16),
    (dst_addr, dst_size): (abi::SockaddrStorage, u16),
) -> QueryAddrResp {
    QueryAddrResp {
        node_guid: route.node_guid,
        port_num: route.port,
        pkey: pkey(route),
        src_size,
        dst_size,
        src_addr,
        dst_addr,
        ibdev_index: NO_INDEX,
        ..QueryAddrResp::default()
    }
}

fn is_bound(route: &CmRoute) -> bool {
    route.device.is_some()
}

/// The P_Key in network byte order; zero without a device.
fn pkey(route: &CmRoute) -> [u8; 2] {
    if is_bound(route) { PKEY.to_be_bytes() } else { [0; 2] }
}

/// The GIDs of both ends, as far as they are known.
fn gids(route: &CmRoute) -> [Gid; 2] {
    let gid = |address: Option<SocketAddr>| address.map_or_else(Gid::default, |it| it.ip().into());
    [gid(route.src), gid(route.dst)]
}

fn user_path_rec(path: &CmPath) -> UserPathRec {
    UserPathRec {
        dgid: path.dgid.0,
        sgid: path.sgid.0,
        flow_label: path.flow_label.to_be_bytes(),
        reversible: 1,
        mtu: path.mtu.code().into(),
        pkey: path.pkey.to_be_bytes(),
        hop_limit: path.hop_limit,
        traffic_class: path.traffic_class,
        numb_path: 1,
        mtu_selector: EXACTLY,
        rate_selector: EXACTLY,
        rate: rate_number(path.speed_mbps),
        packet_life_time_selector: EXACTLY,
        packet_life_time: PACKET_LIFE_TIME,
        ..UserPathRec::default()
    }
}

/// The same as in a message to a subnet manager: in network byte order, and packed.
fn path_rec_data(path: &CmPath) -> PathRecData {
    const REVERSIBLE: u8 = 1 << 7;
    const ONE_PATH: u8 = 1;
    let flow_label_hop_limit = path.flow_label << 8 | u32::from(path.hop_limit);
    let selected = |number: u8| EXACTLY << 6 | number;
    let mut path_rec = [0; 64];
    // The service, which is any, and LIDs, which RoCE has not, stay zero.
    path_rec[8..24].copy_from_slice(&path.dgid.0);
    path_rec[24..40].copy_from_slice(&path.sgid.0);
    path_rec[44..48].copy_from_slice(&flow_label_hop_limit.to_be_bytes());
    path_rec[48] = path.traffic_class;
    path_rec[49] = REVERSIBLE | ONE_PATH;
    path_rec[50..52].copy_from_slice(&path.pkey.to_be_bytes());
    path_rec[54] = selected(path.mtu.code());
    path_rec[55] = selected(rate_number(path.speed_mbps));
    path_rec[56] = selected(PACKET_LIFE_TIME);
    PathRecData { flags: abi::PATH_FLAGS, reserved: 0, path_rec }
}

/// `ibv_rate` of a link: the largest of those that the kernel gives RoCE links, or that of the
/// port, whatever it is.
fn rate_number(speed_mbps: Option<u32>) -> u8 {
    const OF_THE_PORT: u8 = 0;
    const RATES: [(u32, u8); 4] = [(40_000, 7), (30_000, 4), (20_000, 6), (10_000, 3)];
    let speed = speed_mbps.unwrap_or(0);
    RATES.iter().find(|(least, _)| speed >= *least).map_or(OF_THE_PORT, |&(_, number)| number)
}

fn event_resp(event: &CmEvent) -> EventResp {
    let mut param = [0; size_of::<UdParam>()];
    match &event.param {
        CmEventParam::None => {}
        CmEventParam::Conn(it) => {
            param[..size_of::<ConnParam>()].copy_from_slice(conn_param(it).as_bytes());
        }
        CmEventParam::Ud(it) => param.copy_from_slice(ud_param(it).as_bytes()),
    }
    EventResp {
        uid: event.user_handle,
        id: match event.subject {
            CmSubject::Id(id) => id.0,
            CmSubject::Multicast(multicast) => multicast.0,
        },
        event: event.kind as u32,
        status: event.status.cast_unsigned(),
        param,
        ..EventResp::default()
    }
}

fn conn_param(it: &CmConnParam) -> ConnParam {
    let (private_data, private_data_len) = private_data(&it.private_data);
    ConnParam {
        qp_num: it.qpn,
        qkey: it.qkey.0,
        private_data,
        private_data_len,
        srq: it.srq.into(),
        responder_resources: it.responder_resources,
        initiator_depth: it.initiator_depth,
        flow_control: it.flow_control.into(),
        retry_count: it.retry_count,
        rnr_retry_count: it.rnr_retry_count,
        valid: 0,
    }
}

fn ud_param(it: &CmUdParam) -> UdParam {
    let (private_data, private_data_len) = private_data(&it.private_data);
    UdParam {
        qp_num: it.qpn,
        qkey: it.qkey,
        ah_attr: ah_attr(&it.av),
        private_data,
        private_data_len,
        ..UdParam::default()
    }
}

/// Private data in its place, and how much it is: not all that there is room for can be counted.
fn private_data(data: &[u8]) -> ([u8; abi::PRIVATE_DATA], u8) {
    let len = u8::try_from(data.len()).unwrap_or(u8::MAX);
    let mut place = [0; abi::PRIVATE_DATA];
    let data = &data[..len.into()];
    place[..data.len()].copy_from_slice(data);
    (place, len)
}

#[cfg(test)]
mod tests {
    use super::*;
    use urxe_shm::control::{CmEventKind, CmIdHandle, CmMulticastHandle};
    use urxe_types::{AddressVector, PathMtu, QpAttr, QpState};
    use zerocopy::FromBytes;

    fn read<T: FromBytes>(bytes: &[u8]) -> T {
        T::read_from_bytes(bytes).unwrap()
    }

    fn ip(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    fn gid(text: &str) -> Gid {
        ip(text).ip().into()
    }

    fn resolved() -> CmRoute {
        let (src, dst) = (ip("10.0.0.1:1000"), ip("10.0.0.2:2000"));
        CmRoute {
            device: Some(0),
            node_guid: [1, 2, 3, 4, 5, 6, 7, 8],
            port: 1,
            src: Some(src),
            dst: Some(dst),
            path: Some(CmPath {
                dgid: gid("10.0.0.2:0"),
                sgid: gid("10.0.0.1:0"),
                pkey: PKEY,
                mtu: PathMtu::Mtu1024,
                speed_mbps: Some(25_000),
                traffic_class: 0x28,
                hop_limit: 64,
                flow_label: 0x1_2345,
            }),
        }
    }

    #[test]
    fn a_new_object_is_a_number() {
        assert_eq!(bytes(&CmReply::Id(CmIdHandle(7))), 7u32.to_ne_bytes());
        assert_eq!(bytes(&CmReply::Multicast(CmMulticastHandle(8))), 8u32.to_ne_bytes());
        assert_eq!(bytes(&CmReply::Events(9)), 9u32.to_ne_bytes());
    }

    #[test]
    fn an_id_tells_more_as_it_learns_more() {
        let route = resolved();
        let told: QueryRouteResp = read(&route_resp(&route, View::Route));
        let path = told.ib_route[0];
        assert_eq!(told.node_guid, route.node_guid);
        assert_eq!((told.num_paths, told.port_num, told.ibdev_index), (1, 1, u32::MAX));
        assert_eq!((told.src_addr, told.dst_addr), (encode(route.src), encode(route.dst)));
        assert_eq!((path.dgid, path.sgid), (gid("10.0.0.2:0").0, gid("10.0.0.1:0").0));
        assert_eq!((path.mtu, path.rate, path.pkey), (3, 6, [0xff; 2]));
        assert_eq!((path.hop_limit, path.traffic_class), (64, 0x28));
        assert_eq!(path.flow_label, [0, 1, 0x23, 0x45]);

        let route = CmRoute { path: None, ..route };
        let told: QueryRouteResp = read(&route_resp(&route, View::Route));
        assert_eq!(told.num_paths, 0);
        assert_eq!(told.ib_route[0].dgid, gid("10.0.0.2:0").0);
        assert_eq!(told.ib_route[0].pkey, [0xff; 2]);

        let told: QueryRouteResp = read(&route_resp(&CmRoute::default(), View::Route));
        let nothing = QueryRouteResp { ibdev_index: u32::MAX, ..QueryRouteResp::default() };
        assert_eq!(told, nothing);
    }

    #[test]
    fn newer_questions_are_answered_in_parts() {
        let route = resolved();
        let told: QueryAddrResp = read(&route_resp(&route, View::Addresses));
        assert_eq!((told.src_size, told.dst_size, told.port_num), (16, 16, 1));
        assert_eq!(told.dst_addr[..28], encode(route.dst));
        assert_eq!(told.pkey, [0xff; 2]);
        let told: QueryAddrResp = read(&route_resp(&route, View::Gids));
        assert_eq!((told.src_size, told.dst_size), (48, 48));
        assert_eq!(told.src_addr[..4], [27, 0, 0xff, 0xff]);
        assert_eq!(told.dst_addr[8..24], gid("10.0.0.2:0").0);
        let told = route_resp(&route, View::Path);
        assert_eq!(told.len(), 80);
        let record: PathRecData = read(&told[8..]);
        let wire = record.path_rec;
        assert_eq!((told[0], record.flags), (1, 0x2b));
        assert_eq!(
            (&wire[8..24], &wire[24..40]),
            (&gid("10.0.0.2:0").0[..], &gid("10.0.0.1:0").0[..])
        );
        assert_eq!(wire[44..52], [1, 0x23, 0x45, 64, 0x28, 0x81, 0xff, 0xff]);
        assert_eq!(wire[54..57], [0x83, 0x86, 0x90]);
        assert_eq!(route_resp(&CmRoute::default(), View::Path), [0; 8]);
    }

    #[test]
    fn events_say_what_happened_to_whom() {
        let event = CmEvent {
            user_handle: 0x1111,
            subject: CmSubject::Id(CmIdHandle(7)),
            kind: CmEventKind::Rejected,
            status: 28,
            param: CmEventParam::Conn(CmConnParam {
                qpn: 17,
                private_data: b"no".to_vec(),
                ..CmConnParam::default()
            }),
        };
        let told: EventResp = read(&bytes(&CmReply::Event(event.clone())));
        assert_eq!((told.uid, told.id, told.event, told.status), (0x1111, 7, 8, 28));
        let (param, rest) = ConnParam::read_from_prefix(&told.param).unwrap();
        assert_eq!((param.qp_num, param.private_data_len), (17, 2));
        assert_eq!(param.private_data[..3], *b"no\0");
        assert!(rest.iter().all(|&byte| byte == 0));

        let event = CmEvent {
            subject: CmSubject::Multicast(CmMulticastHandle(8)),
            kind: CmEventKind::MulticastJoin,
            status: -libc::ENETUNREACH,
            param: CmEventParam::Ud(CmUdParam {
                qpn: 0xff_ffff,
                qkey: 0x0123_4567,
                av: AddressVector::to(ip("239.1.1.1:0").ip()),
                private_data: vec![5; 256],
            }),
            ..event
        };
        let told: EventResp = read(&bytes(&CmReply::Event(event)));
        assert_eq!((told.id, told.event), (8, 12));
        assert_eq!(told.status.cast_signed(), -libc::ENETUNREACH);
        let param: UdParam = read(&told.param);
        assert_eq!((param.qp_num, param.qkey), (0xff_ffff, 0x0123_4567));
        assert_eq!((param.ah_attr.is_global, param.ah_attr.port_num), (1, 1));
        assert_eq!(param.ah_attr.grh.dgid, gid("239.1.1.1:0").0);
        assert_eq!(param.private_data_len, 255, "more cannot be counted");
    }

    #[test]
    fn attributes_of_a_qp_come_with_their_mask() {
        let attr = QpAttr { state: Some(QpState::Init), port: Some(1), ..QpAttr::default() };
        let told: abi::QpAttr = read(&bytes(&CmReply::QpAttr(attr)));
        assert_eq!((told.qp_attr_mask, told.qp_state, told.port_num), (1 | 1 << 5, 1, 1));
    }

    #[test]
    fn links_have_the_rates_that_the_kernel_gives_them() {
        let rates = [None, Some(1_000), Some(10_000), Some(25_000), Some(30_000), Some(400_000)];
        assert_eq!(rates.map(rate_number), [0, 0, 3, 6, 4, 7]);
    }
}
