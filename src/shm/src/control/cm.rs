//! The connection manager's requests: what librdmacm asks of `/dev/infiniband/rdma_cm`.
//!
//! A program makes channels, and ids that tell their events there. An id belongs to no context:
//! it is the daemon that finds out, from the addresses, which device a connection is on. The ports
//! are the machine's as this daemon knows it: all its programs and devices share them.
//!
//! The daemon touches no QP on behalf of an id. What a QP is to be set to, [`CmRequest::QpAttr`]
//! says, and the program does it.

use super::{CmChannelHandle, CmIdHandle, CmMulticastHandle, socket};
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;
use urxe_types::{AddressVector, Gid, PathMtu, Qkey, QpAttr, QpState, QpType};

/// Most bytes of private data in any direction; how much really fits depends on the message:
/// 56 in a request for a connection, 196 in an acceptance, 148 in a rejection, and with datagrams
/// 180 in a request and 136 in its answer.
pub const CM_MAX_PRIVATE_DATA: usize = 256;

/// What a program asks of the connection manager.
///
/// Besides what each one names itself: `EINVAL` if the id is not at that point of its life.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CmRequest {
    /// Makes an event channel: `rdma_create_event_channel`. Answered by [`CmReply::Channel`] with
    /// one descriptor: the read end of a pipe that holds a byte whenever events wait. Who has read
    /// a byte asks for an event; the daemon sees to it that there is a byte for the next one.
    CreateChannel,
    /// Destroys a channel with all ids that are in it. Answered by [`Reply::Done`](super::Reply).
    DestroyChannel { channel: CmChannelHandle },
    /// Takes the oldest event: `rdma_get_cm_event`. Answered by [`CmReply::Event`]. `EAGAIN` if
    /// there is none: what was announced was taken by another thread, or its id was destroyed.
    GetEvent { channel: CmChannelHandle },
    /// Makes an id: `rdma_create_id`. Answered by [`CmReply::Id`]. `EINVAL` if the port space has
    /// no such transport.
    CreateId {
        /// Where its events are told.
        channel: CmChannelHandle,
        /// The program's own number, given back in the id's events.
        user_handle: u64,
        space: CmPortSpace,
        /// The transport of its QP.
        qp_type: QpType,
    },
    /// Destroys an id: `rdma_destroy_id`. What it listens for or is connected with ends, as does
    /// its membership in groups; no event of it is told any more, and connections that wait to be
    /// told are refused. Answered by [`CmReply::Events`]: how many of its events were taken, those
    /// of its memberships included.
    DestroyId { id: CmIdHandle },
    /// Has an id's events told in another channel, those included that wait: `rdma_migrate_id`.
    /// Answered by [`CmReply::Events`]: how many of its events were taken before.
    MigrateId {
        id: CmIdHandle,
        /// The new channel.
        channel: CmChannelHandle,
    },
    /// Gives an id an address, or the wildcard, and a port: `rdma_bind_addr`. A loopback address
    /// that no device serves means the wildcard. Port 0: any that is free. Answered by
    /// [`Reply::Done`](super::Reply). `EADDRINUSE` if another id has them, `EADDRNOTAVAIL` if that
    /// is so because one of the two has the wildcard, if no port is free, or if the machine has no
    /// such address, `ENODEV` if no device serves it, `EACCES` for a port below 1,024 if the
    /// program is not root's.
    Bind {
        id: CmIdHandle,
        /// The address and the port.
        #[serde(with = "socket")]
        addr: SocketAddr,
    },
    /// Finds the device that leads to an address, and gives the id an address of it:
    /// `rdma_resolve_addr`. Answered by [`Reply::Done`](super::Reply);
    /// [`CmEventKind::AddrResolved`] or [`CmEventKind::AddrError`] follows.
    ResolveAddr {
        id: CmIdHandle,
        /// From which address, if the program wants a certain one; binds the id.
        #[serde(with = "socket::optional")]
        src: Option<SocketAddr>,
        /// To whom.
        #[serde(with = "socket")]
        dst: SocketAddr,
        /// How long it may take, in milliseconds.
        timeout_ms: u32,
    },
    /// Finds the path: `rdma_resolve_route`. Answered by [`Reply::Done`](super::Reply);
    /// [`CmEventKind::RouteResolved`] or [`CmEventKind::RouteError`] follows.
    ResolveRoute {
        id: CmIdHandle,
        /// How long it may take, in milliseconds.
        timeout_ms: u32,
    },
    /// Asks what an id knows of itself. Answered by [`CmReply::Route`].
    Query { id: CmIdHandle },
    /// Listens: `rdma_listen`; on the wildcard, on every device. An id without an address is given
    /// the wildcard and any port. Answered by [`Reply::Done`](super::Reply). `EADDRINUSE` or
    /// `EADDRNOTAVAIL` if it was bound with [`CmOption::ReuseAddr`] to a port that others have.
    Listen {
        id: CmIdHandle,
        /// How many requests may wait to be told; 0: as many as the daemon allows.
        backlog: u32,
    },
    /// Asks the peer for a connection, or for the QP of its service if the id is for datagrams:
    /// `rdma_connect`. Answered by [`Reply::Done`](super::Reply).
    Connect {
        /// The id, with its route resolved.
        id: CmIdHandle,
        /// What the program says of its QP.
        param: CmConnParam,
    },
    /// Accepts what a peer asked for: `rdma_accept` on the passive side. Answered by
    /// [`Reply::Done`](super::Reply).
    Accept {
        /// The id that came with [`CmEventKind::ConnectRequest`].
        id: CmIdHandle,
        /// The program's own number of the new id.
        user_handle: u64,
        /// What the program says of its QP.
        param: CmConnParam,
    },
    /// Confirms the peer's acceptance after [`CmEventKind::ConnectResponse`]: what librdmacm does
    /// on the active side when the QP is ready. Answered by [`Reply::Done`](super::Reply).
    Establish { id: CmIdHandle },
    /// Refuses what a peer asked for, or its acceptance: `rdma_reject`. Answered by
    /// [`Reply::Done`](super::Reply).
    Reject {
        id: CmIdHandle,
        /// What the peer is told.
        private_data: Vec<u8>,
    },
    /// Ends a connection: `rdma_disconnect`. Answered by [`Reply::Done`](super::Reply), also if it
    /// is over already; one that is not established yet stays as it is, as with the kernel.
    Disconnect { id: CmIdHandle },
    /// Asks what the id's QP is to be set to on its way to a state: `rdma_init_qp_attr`. Answered
    /// by [`CmReply::QpAttr`].
    QpAttr {
        id: CmIdHandle,
        /// INIT, RTR or RTS.
        state: QpState,
    },
    /// Sets an option: `rdma_set_option`. Answered by [`Reply::Done`](super::Reply).
    SetOption { id: CmIdHandle, option: CmOption },
    /// Joins a multicast group: `rdma_join_multicast`. Answered by [`CmReply::Multicast`];
    /// [`CmEventKind::MulticastJoin`] or [`CmEventKind::MulticastError`] follows. The program
    /// attaches its QP itself.
    JoinMulticast {
        /// The id, bound to a device.
        id: CmIdHandle,
        /// The program's own number, given back in the group's events.
        user_handle: u64,
        /// The group.
        #[serde(with = "socket")]
        group: SocketAddr,
    },
    /// Leaves it: `rdma_leave_multicast`. Answered by [`CmReply::Events`]: how many of its events
    /// were taken.
    LeaveMulticast {
        /// The membership.
        multicast: CmMulticastHandle,
    },
}

impl CmRequest {
    /// The id or the membership that it is about, if that is there already.
    pub fn subject(&self) -> Option<CmSubject> {
        match *self {
            CmRequest::CreateChannel
            | CmRequest::DestroyChannel { .. }
            | CmRequest::GetEvent { .. }
            | CmRequest::CreateId { .. } => None,
            CmRequest::DestroyId { id }
            | CmRequest::MigrateId { id, .. }
            | CmRequest::Bind { id, .. }
            | CmRequest::ResolveAddr { id, .. }
            | CmRequest::ResolveRoute { id, .. }
            | CmRequest::Query { id }
            | CmRequest::Listen { id, .. }
            | CmRequest::Connect { id, .. }
            | CmRequest::Accept { id, .. }
            | CmRequest::Establish { id }
            | CmRequest::Reject { id, .. }
            | CmRequest::Disconnect { id }
            | CmRequest::QpAttr { id, .. }
            | CmRequest::SetOption { id, .. }
            | CmRequest::JoinMulticast { id, .. } => Some(CmSubject::Id(id)),
            CmRequest::LeaveMulticast { multicast } => Some(CmSubject::Multicast(multicast)),
        }
    }
}

/// What only the connection manager answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CmReply {
    /// Answer to [`CmRequest::CreateChannel`].
    Channel(CmChannelHandle),
    /// Answer to [`CmRequest::CreateId`].
    Id(CmIdHandle),
    /// Answer to [`CmRequest::GetEvent`].
    Event(CmEvent),
    /// How many events of what was destroyed, moved or left the program has taken: whoever
    /// destroys it waits until so many are acknowledged.
    Events(u32),
    /// Answer to [`CmRequest::Query`].
    Route(CmRoute),
    /// Answer to [`CmRequest::QpAttr`].
    QpAttr(QpAttr),
    /// Answer to [`CmRequest::JoinMulticast`].
    Multicast(CmMulticastHandle),
}

/// Port spaces: `rdma_port_space`, with the same numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[repr(u16)]
pub enum CmPortSpace {
    /// `RDMA_PS_IPOIB`: datagrams.
    Ipoib = 0x0002,
    /// `RDMA_PS_TCP`: connections.
    Tcp = 0x0106,
    /// `RDMA_PS_UDP`: datagrams.
    Udp = 0x0111,
    /// `RDMA_PS_IB`: either.
    Ib = 0x013f,
}

/// What a program says of its QP, or the peer of its own: `rdma_conn_param`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CmConnParam {
    pub qpn: u32,
    /// Datagrams: what they must carry, if not the port space's own.
    pub qkey: Qkey,
    /// READs and atomics that its responder takes at a time.
    pub responder_resources: u8,
    /// READs and atomics that its requester wants to have outstanding.
    pub initiator_depth: u8,
    /// It obeys credits.
    pub flow_control: bool,
    /// Tries after a timeout or a sequence error: 0 to 7.
    pub retry_count: u8,
    /// Tries after an RNR NAK: 0 to 6; 7 is for ever.
    pub rnr_retry_count: u8,
    /// It receives from an SRQ.
    pub srq: bool,
    /// What the other program is told. What came from a peer has the length that its message has,
    /// however much of it the other program filled.
    pub private_data: Vec<u8>,
}

/// Where datagrams for a service or a group go: `rdma_ud_param`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CmUdParam {
    /// The QP that takes them; 0xffffff for a group.
    pub qpn: u32,
    /// What they must carry.
    pub qkey: u32,
    /// The path.
    pub av: AddressVector,
    /// What the other program said.
    pub private_data: Vec<u8>,
}

/// Kinds of event: `rdma_cm_event_type`, with the same numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[repr(u32)]
pub enum CmEventKind {
    /// The device is found.
    AddrResolved = 0,
    /// It is not: the status says why.
    AddrError = 1,
    /// The path is found.
    RouteResolved = 2,
    /// It is not: the status says why.
    RouteError = 3,
    /// A peer asks for a connection, or for the QP of a service.
    ConnectRequest = 4,
    /// The peer accepts; the QP is to be made ready.
    ConnectResponse = 5,
    /// The connection cannot be made: the status says why.
    ConnectError = 6,
    /// Nobody answers, or a service is not to be had.
    Unreachable = 7,
    /// The peer refuses; the status is the reason on the wire.
    Rejected = 8,
    /// The connection stands, or the QP of a service is known.
    Established = 9,
    /// The connection is over.
    Disconnected = 10,
    /// The device is gone.
    DeviceRemoval = 11,
    /// The group is joined.
    MulticastJoin = 12,
    /// It is not, or is no longer.
    MulticastError = 13,
    /// An address of the device has changed.
    AddrChange = 14,
    /// Nothing of the connection can still be under way.
    TimewaitExit = 15,
}

/// What an event is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum CmSubject {
    /// An id; with [`CmEventKind::ConnectRequest`] the new one, which was made for the request.
    Id(CmIdHandle),
    /// A membership in a group.
    Multicast(CmMulticastHandle),
}

/// An event: `rdma_cm_event`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CmEvent {
    /// The program's own number of the id or membership; with [`CmEventKind::ConnectRequest`] that
    /// of the listening id, in whose name it is counted.
    pub user_handle: u64,
    /// What it is about.
    pub subject: CmSubject,
    /// What happened.
    pub kind: CmEventKind,
    /// 0, a negative error number, or the reason of a rejection.
    pub status: i32,
    /// What belongs to it.
    pub param: CmEventParam,
}

/// What belongs to an event.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CmEventParam {
    /// Nothing.
    None,
    /// Of a connection.
    Conn(CmConnParam),
    /// Of datagrams.
    Ud(CmUdParam),
}

/// What an id knows of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CmRoute {
    /// The device that it is bound to, as an index into [`Request::ListDevices`](super::Request);
    /// none with the wildcard.
    pub device: Option<u32>,
    /// The device's EUI-64, in network byte order; zeroes without one.
    pub node_guid: [u8; 8],
    /// The device's port; 0 without one.
    pub port: u8,
    /// Its own address.
    #[serde(with = "socket::optional")]
    pub src: Option<SocketAddr>,
    /// The peer's.
    #[serde(with = "socket::optional")]
    pub dst: Option<SocketAddr>,
    /// The path, once it is resolved.
    pub path: Option<CmPath>,
}

/// A path: the part of `ibv_path_record` that RoCEv2 has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CmPath {
    /// The peer's GID.
    pub dgid: Gid,
    pub sgid: Gid,
    pub pkey: u16,
    pub mtu: PathMtu,
    /// Speed of the link in Mbit/s, if known.
    pub speed_mbps: Option<u32>,
    /// Traffic class or type of service.
    pub traffic_class: u8,
    /// Hop limit or time to live.
    pub hop_limit: u8,
    /// Flow label, 20 bits.
    pub flow_label: u32,
}

/// Options: `rdma_set_option`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CmOption {
    /// `RDMA_OPTION_ID_TOS`: traffic class or type of service of its packets.
    TypeOfService(u8),
    /// `RDMA_OPTION_ID_REUSEADDR`: its port may be another's too, unless both listen.
    ReuseAddr(bool),
    /// `RDMA_OPTION_ID_AFONLY`: the wildcard of IPv6 does not mean IPv4 too.
    FamilyOnly(bool),
    /// `RDMA_OPTION_ID_ACK_TIMEOUT`: code (0 to 31) of the ACK timeout, 4.096 us << code.
    AckTimeout(u8),
}

/// Any request and any reply, for the tests of the encoding.
#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::control::ResourceDetail;
    use proptest::prelude::*;
    use urxe_types::{Psn, Qpn};

    fn space() -> impl Strategy<Value = CmPortSpace> {
        use CmPortSpace::*;
        prop::sample::select(vec![Ipoib, Tcp, Udp, Ib])
    }

    fn qp_type() -> impl Strategy<Value = QpType> {
        prop::sample::select(vec![QpType::Rc, QpType::Uc, QpType::Ud])
    }

    fn state() -> impl Strategy<Value = QpState> {
        prop::sample::select(vec![QpState::Init, QpState::Rtr, QpState::Rts, QpState::Err])
    }

    fn data() -> impl Strategy<Value = Vec<u8>> {
        prop::collection::vec(any::<u8>(), 0..=CM_MAX_PRIVATE_DATA)
    }

    fn conn_param() -> impl Strategy<Value = CmConnParam> {
        (any::<([u32; 2], [u8; 4], [bool; 2])>(), data()).prop_map(
            |(([qpn, qkey], [resources, depth, retry, rnr], [flow_control, srq]), private_data)| {
                CmConnParam {
                    qpn,
                    qkey: Qkey(qkey),
                    responder_resources: resources,
                    initiator_depth: depth,
                    flow_control,
                    retry_count: retry,
                    rnr_retry_count: rnr,
                    srq,
                    private_data,
                }
            },
        )
    }

    fn option() -> impl Strategy<Value = CmOption> {
        prop_oneof![
            any::<u8>().prop_map(CmOption::TypeOfService),
            any::<bool>().prop_map(CmOption::ReuseAddr),
            any::<bool>().prop_map(CmOption::FamilyOnly),
            any::<u8>().prop_map(CmOption::AckTimeout),
        ]
    }

    /// With the interface of a link-local one, and without a flow label, which nobody needs.
    fn addr() -> impl Strategy<Value = SocketAddr> {
        any::<(SocketAddr, u32)>().prop_map(|(mut addr, scope)| {
            if let SocketAddr::V6(addr) = &mut addr {
                addr.set_flowinfo(0);
                addr.set_scope_id(scope);
            }
            addr
        })
    }

    /// An id in a list of objects.
    pub(in super::super) fn id_detail() -> impl Strategy<Value = ResourceDetail> {
        use crate::control::CmIdState::*;
        let states = vec![Bound, AddrResolved, RouteResolved, Listening, Connected, Over];
        let addrs = any::<[Option<(std::net::IpAddr, u16)>; 2]>();
        let state = prop::sample::select(states);
        (space(), qp_type(), state, any::<Option<u32>>(), addrs).prop_map(
            |(space, qp_type, state, qpn, addrs)| {
                let [local, peer] = addrs.map(|addr| addr.map(SocketAddr::from));
                ResourceDetail::CmId { space, qp_type, state, qpn, local, peer }
            },
        )
    }

    pub(in super::super) fn request() -> impl Strategy<Value = CmRequest> {
        let id = || any::<u32>().prop_map(CmIdHandle);
        let channel = || any::<u32>().prop_map(CmChannelHandle);
        let about_ids = prop_oneof![
            (channel(), any::<u64>(), space(), qp_type()).prop_map(
                |(channel, user_handle, space, qp_type)| {
                    CmRequest::CreateId { channel, user_handle, space, qp_type }
                }
            ),
            id().prop_map(|id| CmRequest::DestroyId { id }),
            (id(), channel()).prop_map(|(id, channel)| CmRequest::MigrateId { id, channel }),
            (id(), addr()).prop_map(|(id, addr)| CmRequest::Bind { id, addr }),
            (id(), prop::option::of(addr()), addr(), any::<u32>()).prop_map(
                |(id, src, dst, timeout_ms)| CmRequest::ResolveAddr { id, src, dst, timeout_ms }
            ),
            (id(), any::<u32>())
                .prop_map(|(id, timeout_ms)| CmRequest::ResolveRoute { id, timeout_ms }),
            id().prop_map(|id| CmRequest::Query { id }),
            (id(), option()).prop_map(|(id, option)| CmRequest::SetOption { id, option }),
        ];
        let about_connections = prop_oneof![
            (id(), any::<u32>()).prop_map(|(id, backlog)| CmRequest::Listen { id, backlog }),
            (id(), conn_param()).prop_map(|(id, param)| CmRequest::Connect { id, param }),
            (id(), any::<u64>(), conn_param()).prop_map(|(id, user_handle, param)| {
                CmRequest::Accept { id, user_handle, param }
            }),
            id().prop_map(|id| CmRequest::Establish { id }),
            (id(), data()).prop_map(|(id, private_data)| CmRequest::Reject { id, private_data }),
            id().prop_map(|id| CmRequest::Disconnect { id }),
            (id(), state()).prop_map(|(id, state)| CmRequest::QpAttr { id, state }),
        ];
        prop_oneof![
            Just(CmRequest::CreateChannel),
            channel().prop_map(|channel| CmRequest::DestroyChannel { channel }),
            channel().prop_map(|channel| CmRequest::GetEvent { channel }),
            about_ids,
            about_connections,
            (id(), any::<u64>(), addr()).prop_map(|(id, user_handle, group)| {
                CmRequest::JoinMulticast { id, user_handle, group }
            }),
            any::<u32>().prop_map(|multicast| CmRequest::LeaveMulticast {
                multicast: CmMulticastHandle(multicast)
            }),
        ]
    }

    fn event() -> impl Strategy<Value = CmEvent> {
        use CmEventKind::*;
        let kinds = vec![
            AddrResolved,
            AddrError,
            RouteResolved,
            RouteError,
            ConnectRequest,
            ConnectResponse,
            ConnectError,
            Unreachable,
            Rejected,
            Established,
            Disconnected,
            DeviceRemoval,
            MulticastJoin,
            MulticastError,
            AddrChange,
            TimewaitExit,
        ];
        let subject = prop_oneof![
            any::<u32>().prop_map(|id| CmSubject::Id(CmIdHandle(id))),
            any::<u32>().prop_map(|of| CmSubject::Multicast(CmMulticastHandle(of))),
        ];
        let ud = (any::<([u32; 2], [u8; 16], [u8; 3], u32)>(), data()).prop_map(
            |(([qpn, qkey], dgid, [sgid_index, traffic_class, hop_limit], flow_label), data)| {
                let dgid = Gid(dgid).to_ip();
                let av = AddressVector { dgid, sgid_index, traffic_class, hop_limit, flow_label };
                CmUdParam { qpn, qkey, av, private_data: data }
            },
        );
        let param = prop_oneof![
            Just(CmEventParam::None),
            conn_param().prop_map(CmEventParam::Conn),
            ud.prop_map(CmEventParam::Ud),
        ];
        (any::<(u64, i32)>(), subject, prop::sample::select(kinds), param).prop_map(
            |((user_handle, status), subject, kind, param)| CmEvent {
                user_handle,
                subject,
                kind,
                status,
                param,
            },
        )
    }

    fn route() -> impl Strategy<Value = CmRoute> {
        let mtu = prop::sample::select(PathMtu::ALL.to_vec());
        let path = (any::<([[u8; 16]; 2], u16, Option<u32>, [u8; 2], u32)>(), mtu).prop_map(
            |(([dgid, sgid], pkey, speed_mbps, [traffic_class, hop_limit], flow_label), mtu)| {
                let (dgid, sgid) = (Gid(dgid), Gid(sgid));
                CmPath { dgid, sgid, pkey, mtu, speed_mbps, traffic_class, hop_limit, flow_label }
            },
        );
        let ends = (prop::option::of(addr()), prop::option::of(addr()));
        (any::<(Option<u32>, [u8; 8], u8)>(), ends, prop::option::of(path)).prop_map(
            |((device, node_guid, port), (src, dst), path)| CmRoute {
                device,
                node_guid,
                port,
                src,
                dst,
                path,
            },
        )
    }

    pub(in super::super) fn reply() -> impl Strategy<Value = CmReply> {
        prop_oneof![
            any::<u32>().prop_map(|channel| CmReply::Channel(CmChannelHandle(channel))),
            any::<u32>().prop_map(|id| CmReply::Id(CmIdHandle(id))),
            event().prop_map(CmReply::Event),
            any::<u32>().prop_map(CmReply::Events),
            route().prop_map(CmReply::Route),
            (any::<[Option<u32>; 3]>(), any::<[Option<u8>; 3]>(), state()).prop_map(
                |([dest_qpn, rq_psn, sq_psn], [timeout, retry_cnt, rnr_retry], state)| {
                    let state = Some(state);
                    CmReply::QpAttr(QpAttr {
                        state,
                        dest_qpn: dest_qpn.map(Qpn::new),
                        rq_psn: rq_psn.map(Psn::new),
                        sq_psn: sq_psn.map(Psn::new),
                        timeout,
                        retry_cnt,
                        rnr_retry,
                        ..QpAttr::default()
                    })
                }
            ),
            any::<u32>().prop_map(|of| CmReply::Multicast(CmMulticastHandle(of))),
        ]
    }
}
