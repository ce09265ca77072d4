//! What a command asks for.

use super::abi::{self, CommandHeader, number, query};
use super::address::{decode, decode_optional, decode_sized};
use crate::refused::Refused;
use crate::uverbs::qp_state;
use rustix::io::Errno;
use std::mem::offset_of;
use std::os::fd::RawFd;
use urxe_shm::control::{
    CmChannelHandle, CmConnParam, CmIdHandle, CmMulticastHandle, CmPortSpace, CmRequest,
};
use urxe_types::{Qkey, QpType};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

/// A command, decoded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Command {
    pub(super) task: Task,
    pub(super) answer: ResponseBuf,
}

/// Where in the program a command's answer is wanted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ResponseBuf {
    pub(super) address: u64,
    /// The bytes that the program gets: all of the answer, or as much as it knows of, if it was
    /// built when there was less.
    pub(super) len: usize,
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Task {
    /// This is the daemon's to do.
    Ask(CmRequest),
    /// What an id knows of itself, in one of its forms.
    Query(CmIdHandle, View),
    /// The next event.
    GetEvent,
    /// Something happened to the QP that the manager may not know of.
    Notify,
    /// Has an id's events told in the channel to which this is written.
    Migrate {
        id: CmIdHandle,
        /// Where its events were told.
        from: RawFd,
    },
    SetOption {
        id: CmIdHandle,
        /// Level of the option.
        level: u32,
        /// The option.
        name: u32,
        /// Where in the program its value is.
        value: u64,
        /// Bytes of the value.
        len: u32,
    },
}

/// The forms in which an id tells of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum View {
    /// `QUERY_ROUTE`: all in one.
    Route,
    /// `QUERY`: device and addresses.
    Addresses,
    /// `QUERY`: the path.
    Path,
    /// `QUERY`: device and GIDs.
    Gids,
}

impl Command {
    /// Decodes a command that was written to `channel`. Its errors are those of the kernel; what
    /// only the daemon can judge is left to it.
    pub(super) fn decode(bytes: &[u8], channel: CmChannelHandle) -> Result<Command, Refused> {
        let (header, rest) = CommandHeader::read_from_prefix(bytes).map_err(|_| Errno::INVAL)?;
        let request = Request {
            bytes: rest.get(..header.r#in.into()).ok_or(Errno::INVAL)?,
            room: header.out.into(),
        };
        match header.cmd {
            number::CREATE_ID => {
                let it: abi::CreateId = request.read()?;
                let (space, qp_type) = transport(it.ps, it.qp_type)?;
                let user_handle = it.uid;
                let asked = CmRequest::CreateId { channel, user_handle, space, qp_type };
                request.answered::<abi::CreateIdResp>(it.response, Task::Ask(asked))
            }
            number::DESTROY_ID => {
                let it: abi::DestroyId = request.read()?;
                let asked = CmRequest::DestroyId { id: CmIdHandle(it.id) };
                request.answered::<abi::DestroyIdResp>(it.response, Task::Ask(asked))
            }
            number::QUERY_ROUTE => {
                let it: abi::Query = request.read()?;
                request.queried(&it, View::Route)
            }
            number::QUERY => {
                let it: abi::Query = request.read()?;
                match it.option {
                    query::ADDR => request.queried(&it, View::Addresses),
                    query::PATH => request.queried(&it, View::Path),
                    query::GID => request.queried(&it, View::Gids),
                    _ => Err(Errno::NOSYS.into()),
                }
            }
            number::INIT_QP_ATTR => {
                let it: abi::InitQpAttr = request.read()?;
                let state = u8::try_from(it.qp_state).map_err(|_| Errno::INVAL)?;
                let asked = CmRequest::QpAttr { id: CmIdHandle(it.id), state: qp_state(state)? };
                request.answered::<abi::QpAttr>(it.response, Task::Ask(asked))
            }
            number::GET_EVENT => {
                let it: abi::GetEvent = request.read()?;
                let least = offset_of!(abi::EventResp, reserved);
                request.answered_in(it.response, least, size_of::<abi::EventResp>(), Task::GetEvent)
            }
            number::JOIN_IP_MCAST => {
                let it: abi::JoinIpMcast = request.read()?;
                let (id, user_handle) = (CmIdHandle(it.id), it.uid);
                let group = decode(&it.addr)?;
                let asked = CmRequest::JoinMulticast { id, user_handle, group };
                request.answered::<abi::CreateIdResp>(it.response, Task::Ask(asked))
            }
            number::JOIN_MCAST => {
                let it: abi::JoinMcast = request.read()?;
                // Who only sends is as well a member whose QP is attached to nothing.
                if !matches!(it.join_flags, abi::JOIN_FULL_MEMBER | abi::JOIN_SEND_ONLY) {
                    return Err(Errno::INVAL.into());
                }
                let (id, user_handle) = (CmIdHandle(it.id), it.uid);
                let group = decode_sized(&it.addr, it.addr_size)?;
                let asked = CmRequest::JoinMulticast { id, user_handle, group };
                request.answered::<abi::CreateIdResp>(it.response, Task::Ask(asked))
            }
            number::LEAVE_MCAST => {
                let it: abi::DestroyId = request.read()?;
                let asked = CmRequest::LeaveMulticast { multicast: CmMulticastHandle(it.id) };
                request.answered::<abi::DestroyIdResp>(it.response, Task::Ask(asked))
            }
            number::MIGRATE_ID => {
                let it: abi::MigrateId = request.read()?;
                let task = Task::Migrate { id: CmIdHandle(it.id), from: it.fd.cast_signed() };
                request.answered_in(it.response, 0, size_of::<abi::MigrateResp>(), task)
            }
            number::GET_OPTION => Err(Errno::NOSYS.into()),
            command => {
                let task = request.unanswered(command)?;
                Ok(Command { task, answer: ResponseBuf::default() })
            }
        }
    }
}

/// The function of librdmacm that a program has called, if these bytes are what the library has
/// made of that.
pub(super) fn verb(bytes: &[u8]) -> &'static str {
    let header = CommandHeader::read_from_prefix(bytes).map(|(header, _)| header.cmd);
    match header {
        Ok(number::CREATE_ID) => "rdma_create_id",
        Ok(number::DESTROY_ID) => "rdma_destroy_id",
        Ok(number::BIND_IP | number::BIND) => "rdma_bind_addr",
        Ok(number::RESOLVE_IP | number::RESOLVE_ADDR) => "rdma_resolve_addr",
        Ok(number::RESOLVE_ROUTE) => "rdma_resolve_route",
        Ok(number::QUERY_ROUTE | number::QUERY) => "a query of librdmacm's",
        Ok(number::CONNECT) => "rdma_connect",
        Ok(number::LISTEN) => "rdma_listen",
        Ok(number::ACCEPT) => "rdma_accept",
        Ok(number::REJECT) => "rdma_reject",
        Ok(number::DISCONNECT) => "rdma_disconnect",
        Ok(number::INIT_QP_ATTR) => "rdma_init_qp_attr",
        Ok(number::GET_EVENT) => "rdma_get_cm_event",
        Ok(number::GET_OPTION) => "rdma_get_option",
        Ok(number::SET_OPTION) => "rdma_set_option",
        Ok(number::NOTIFY) => "rdma_notify",
        Ok(number::JOIN_IP_MCAST | number::JOIN_MCAST) => "rdma_join_multicast",
        Ok(number::LEAVE_MCAST) => "rdma_leave_multicast",
        Ok(number::MIGRATE_ID) => "rdma_migrate_id",
        _ => "a command of librdmacm's",
    }
}

/// What follows the header.
#[derive(Clone, Copy)]
struct Request<'a> {
    bytes: &'a [u8],
    /// What the program has for an answer.
    room: usize,
}

impl Request<'_> {
    /// The structure that the request is.
    fn read<T: FromBytes>(&self) -> Result<T, Refused> {
        T::read_from_prefix(self.bytes).map(|(it, _)| it).map_err(|_| Errno::INVAL.into())
    }

    /// The same, if the fields from `end` on came later.
    fn read_grown<T: FromBytes + FromZeros + IntoBytes>(&self, end: usize) -> Result<T, Refused> {
        if self.bytes.len() < end {
            return Err(Errno::INVAL.into());
        }
        let mut it = T::new_zeroed();
        let place = it.as_mut_bytes();
        let common = place.len().min(self.bytes.len());
        place[..common].copy_from_slice(&self.bytes[..common]);
        Ok(it)
    }

    /// A task with an answer that must have room.
    fn answered<T>(&self, address: u64, task: Task) -> Result<Command, Refused> {
        self.answered_in(address, size_of::<T>(), size_of::<T>(), task)
    }

    /// The same with an answer of which as much as `least` must have room: `ENOSPC`.
    fn answered_in(
        &self,
        address: u64,
        least: usize,
        most: usize,
        task: Task,
    ) -> Result<Command, Refused> {
        if self.room < least {
            return Err(Errno::NOSPC.into());
        }
        Ok(Command { task, answer: ResponseBuf { address, len: self.room.min(most) } })
    }

    fn queried(&self, it: &abi::Query, view: View) -> Result<Command, Refused> {
        use abi::{PathRecData, QueryAddrResp, QueryPathResp, QueryRouteResp};
        let one_path = size_of::<QueryPathResp>() + size_of::<PathRecData>();
        let (least, most) = match view {
            View::Route => (offset_of!(QueryRouteResp, ibdev_index), size_of::<QueryRouteResp>()),
            View::Addresses | View::Gids => {
                (offset_of!(QueryAddrResp, ibdev_index), size_of::<QueryAddrResp>())
            }
            View::Path => (size_of::<QueryPathResp>(), one_path),
        };
        self.answered_in(it.response, least, most, Task::Query(CmIdHandle(it.id), view))
    }

    /// The task of a command that has no answer. `EINVAL` if there is no such command.
    fn unanswered(&self, command: u32) -> Result<Task, Refused> {
        Ok(Task::Ask(match command {
            number::BIND_IP => {
                let it: abi::BindIp = self.read()?;
                CmRequest::Bind { id: CmIdHandle(it.id), addr: decode(&it.addr)? }
            }
            number::BIND => {
                let it: abi::Bind = self.read()?;
                let addr = decode_sized(&it.addr, it.addr_size)?;
                must_be_zero(it.reserved.into())?;
                CmRequest::Bind { id: CmIdHandle(it.id), addr }
            }
            number::RESOLVE_IP => {
                let it: abi::ResolveIp = self.read()?;
                CmRequest::ResolveAddr {
                    id: CmIdHandle(it.id),
                    src: decode_optional(&it.src_addr)?,
                    dst: decode(&it.dst_addr)?,
                    timeout_ms: it.timeout_ms,
                }
            }
            number::RESOLVE_ADDR => {
                let it: abi::ResolveAddr = self.read()?;
                must_be_zero(it.reserved)?;
                let src = match it.src_size {
                    0 => None,
                    size => Some(decode_sized(&it.src_addr, size)?),
                };
                CmRequest::ResolveAddr {
                    id: CmIdHandle(it.id),
                    src,
                    dst: decode_sized(&it.dst_addr, it.dst_size)?,
                    timeout_ms: it.timeout_ms,
                }
            }
            number::RESOLVE_ROUTE => {
                let it: abi::ResolveRoute = self.read()?;
                CmRequest::ResolveRoute { id: CmIdHandle(it.id), timeout_ms: it.timeout_ms }
            }
            number::CONNECT => {
                let it: abi::Connect = self.read_grown(offset_of!(abi::Connect, ece))?;
                if it.conn_param.valid == 0 {
                    return Err(Errno::INVAL.into());
                }
                CmRequest::Connect { id: CmIdHandle(it.id), param: conn_param(&it.conn_param) }
            }
            number::LISTEN => {
                let it: abi::Listen = self.read()?;
                // As the kernel has it: a number below zero is as good as none.
                let backlog = it.backlog.cast_signed().max(0).cast_unsigned();
                CmRequest::Listen { id: CmIdHandle(it.id), backlog }
            }
            number::ACCEPT => {
                let it: abi::Accept = self.read_grown(offset_of!(abi::Accept, ece))?;
                let id = CmIdHandle(it.id);
                match it.conn_param.valid {
                    // The active side: the peer has accepted, and the QP is ready.
                    0 => CmRequest::Establish { id },
                    _ => {
                        let param = conn_param(&it.conn_param);
                        CmRequest::Accept { id, user_handle: it.uid, param }
                    }
                }
            }
            number::REJECT => {
                let it: abi::Reject = self.read()?;
                reject(&it)?
            }
            number::DISCONNECT => {
                let it: abi::Disconnect = self.read()?;
                CmRequest::Disconnect { id: CmIdHandle(it.id) }
            }
            number::NOTIFY => {
                let _: abi::Notify = self.read()?;
                return Ok(Task::Notify);
            }
            number::SET_OPTION => {
                let it: abi::SetOption = self.read()?;
                return Ok(Task::SetOption {
                    id: CmIdHandle(it.id),
                    level: it.level,
                    name: it.optname,
                    value: it.optval,
                    len: it.optlen,
                });
            }
            _ => return Err(Errno::INVAL.into()),
        }))
    }
}

fn must_be_zero(reserved: u32) -> Result<(), Refused> {
    if reserved == 0 { Ok(()) } else { Err(Errno::INVAL.into()) }
}

/// The port space of a new id, and its transport, which some spaces leave open.
fn transport(space: u16, qp_type: u8) -> Result<(CmPortSpace, QpType), Refused> {
    const IPOIB: u16 = CmPortSpace::Ipoib as u16;
    const TCP: u16 = CmPortSpace::Tcp as u16;
    const UDP: u16 = CmPortSpace::Udp as u16;
    const IB: u16 = CmPortSpace::Ib as u16;
    Ok(match space {
        IPOIB => (CmPortSpace::Ipoib, QpType::Ud),
        TCP => (CmPortSpace::Tcp, QpType::Rc),
        UDP => (CmPortSpace::Udp, QpType::Ud),
        IB => match qp_type {
            2 => (CmPortSpace::Ib, QpType::Rc),
            3 => (CmPortSpace::Ib, QpType::Uc),
            4 => (CmPortSpace::Ib, QpType::Ud),
            _ => return Err(Errno::INVAL.into()),
        },
        _ => return Err(Errno::INVAL.into()),
    })
}

/// What a program says of its QP. What does not fit into the message is cut as the kernel does it,
/// and of the Q_Key it takes no notice: that of the port space it is, where addresses are of IP.
fn conn_param(it: &abi::ConnParam) -> CmConnParam {
    const MOST: u8 = 7;
    CmConnParam {
        qpn: it.qp_num & 0xff_ffff,
        qkey: Qkey(0),
        responder_resources: it.responder_resources,
        initiator_depth: it.initiator_depth,
        flow_control: it.flow_control != 0,
        retry_count: it.retry_count.min(MOST),
        rnr_retry_count: it.rnr_retry_count.min(MOST),
        srq: it.srq != 0,
        private_data: it.private_data[..it.private_data_len.into()].to_vec(),
    }
}

/// A program may say that it does not want to, or that it does not get on with what its peer says
/// of its driver, which ours has nothing to say about: that is the same.
fn reject(it: &abi::Reject) -> Result<CmRequest, Refused> {
    const UNSAID: u8 = 0;
    const CONSUMER: u8 = 28;
    const VENDOR_OPTION: u8 = 35;
    if !matches!(it.reason, UNSAID | CONSUMER | VENDOR_OPTION) {
        return Err(Errno::INVAL.into());
    }
    let private_data = it.private_data[..it.private_data_len.into()].to_vec();
    Ok(CmRequest::Reject { id: CmIdHandle(it.id), private_data })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::refused::NumberOnly;
    use proptest::prelude::*;
    use zerocopy::Immutable;

    const CHANNEL: CmChannelHandle = CmChannelHandle(3);

    fn command(cmd: u32, request: &[u8], room: usize) -> Vec<u8> {
        let header = CommandHeader { cmd, r#in: request.len() as u16, out: room as u16 };
        [header.as_bytes(), request].concat()
    }

    fn decoded(cmd: u32, request: &(impl IntoBytes + Immutable)) -> Result<Task, Errno> {
        let bytes = command(cmd, request.as_bytes(), 512);
        Command::decode(&bytes, CHANNEL).map(|command| command.task).number_only()
    }

    /// The bytes of an address.
    fn v4(port: u16) -> abi::SockaddrIn6 {
        super::super::address::encode(Some(([10, 0, 0, 7], port).into()))
    }

    #[test]
    fn the_port_space_gives_the_transport_unless_it_leaves_it_open() {
        let created = |ps, qp_type| {
            let task = decoded(
                number::CREATE_ID,
                &abi::CreateId { uid: 9, ps, qp_type, ..Default::default() },
            )?;
            let Task::Ask(CmRequest::CreateId { channel, user_handle, space, qp_type }) = task
            else {
                panic!("{task:?}")
            };
            assert_eq!((channel, user_handle), (CHANNEL, 9));
            Ok((space, qp_type))
        };
        assert_eq!(created(0x106, 9), Ok((CmPortSpace::Tcp, QpType::Rc)));
        assert_eq!(created(0x111, 2), Ok((CmPortSpace::Udp, QpType::Ud)));
        assert_eq!(created(2, 2), Ok((CmPortSpace::Ipoib, QpType::Ud)));
        assert_eq!(created(0x13f, 2), Ok((CmPortSpace::Ib, QpType::Rc)));
        assert_eq!(created(0x13f, 3), Ok((CmPortSpace::Ib, QpType::Uc)));
        assert_eq!(created(0x13f, 9), Err(Errno::INVAL), "XRC");
        assert_eq!(created(1, 2), Err(Errno::INVAL));
    }

    #[test]
    fn old_and_new_forms_ask_for_the_same() {
        let addr = ([10, 0, 0, 7], 80).into();
        let (storage, addr_size) = super::super::address::encode_sized(Some(addr));
        let id = CmIdHandle(5);
        let bound = Ok(Task::Ask(CmRequest::Bind { id, addr }));
        let old = abi::BindIp { id: 5, addr: v4(80), ..Default::default() };
        let new = abi::Bind { id: 5, addr_size, addr: storage, ..Default::default() };
        assert_eq!(decoded(number::BIND_IP, &old), bound);
        assert_eq!(decoded(number::BIND, &new), bound);
        let wrong = abi::Bind { addr_size: 28, ..new };
        assert_eq!(decoded(number::BIND, &wrong), Err(Errno::INVAL));
        let wrong = abi::Bind { reserved: 1, ..new };
        assert_eq!(decoded(number::BIND, &wrong), Err(Errno::INVAL));

        let asked =
            |src| Ok(Task::Ask(CmRequest::ResolveAddr { id, src, dst: addr, timeout_ms: 9 }));
        let old = abi::ResolveIp { id: 5, timeout_ms: 9, dst_addr: v4(80), ..Default::default() };
        assert_eq!(decoded(number::RESOLVE_IP, &old), asked(None));
        let old = abi::ResolveIp { src_addr: v4(80), ..old };
        assert_eq!(decoded(number::RESOLVE_IP, &old), asked(Some(addr)));
        let new = abi::ResolveAddr {
            id: 5,
            timeout_ms: 9,
            dst_size: addr_size,
            dst_addr: storage,
            ..Default::default()
        };
        assert_eq!(decoded(number::RESOLVE_ADDR, &new), asked(None));
        let new = abi::ResolveAddr { src_size: addr_size, src_addr: storage, ..new };
        assert_eq!(decoded(number::RESOLVE_ADDR, &new), asked(Some(addr)));

        let old = abi::JoinIpMcast { uid: 6, id: 5, addr: v4(80), ..Default::default() };
        let join = Ok(Task::Ask(CmRequest::JoinMulticast { id, user_handle: 6, group: addr }));
        assert_eq!(decoded(number::JOIN_IP_MCAST, &old), join);
        let new = abi::JoinMcast { uid: 6, id: 5, addr_size, addr: storage, ..Default::default() };
        assert_eq!(decoded(number::JOIN_MCAST, &new), join);
        assert_eq!(decoded(number::JOIN_MCAST, &abi::JoinMcast { join_flags: 1, ..new }), join);
        let wrong = abi::JoinMcast { join_flags: 2, ..new };
        assert_eq!(decoded(number::JOIN_MCAST, &wrong), Err(Errno::INVAL));
    }

    #[test]
    fn probes_of_librdmacm_at_its_start_are_refused() {
        let mut addr = [0; 128];
        addr[0] = 27;
        let bind = abi::Bind { id: 5, addr_size: 48, addr, ..Default::default() };
        assert_eq!(decoded(number::BIND, &bind), Err(Errno::INVAL));
    }

    #[test]
    fn the_description_of_a_qp_is_cut_to_the_message() {
        let mut said = abi::ConnParam {
            qp_num: 0x1200_0034,
            qkey: 77,
            private_data_len: 3,
            srq: 1,
            responder_resources: 4,
            initiator_depth: 5,
            retry_count: 7,
            rnr_retry_count: 255,
            valid: 1,
            ..Default::default()
        };
        said.private_data[..4].copy_from_slice(b"abcd");
        let param = CmConnParam {
            qpn: 0x34,
            qkey: Qkey(0),
            responder_resources: 4,
            initiator_depth: 5,
            flow_control: false,
            retry_count: 7,
            rnr_retry_count: 7,
            srq: true,
            private_data: b"abc".to_vec(),
        };
        let connect = abi::Connect { conn_param: said, id: 5, ..Default::default() };
        let id = CmIdHandle(5);
        let asked = Ok(Task::Ask(CmRequest::Connect { id, param: param.clone() }));
        assert_eq!(decoded(number::CONNECT, &connect), asked);
        // An older program does not know of the last field.
        let bytes = command(number::CONNECT, &connect.as_bytes()[..280], 0);
        assert_eq!(
            Command::decode(&bytes, CHANNEL).map(|command| command.task).number_only(),
            asked
        );
        let bytes = command(number::CONNECT, &connect.as_bytes()[..276], 0);
        assert_eq!(Command::decode(&bytes, CHANNEL).number_only(), Err(Errno::INVAL));
        let invalid = abi::ConnParam { valid: 0, ..said };
        let connect = abi::Connect { conn_param: invalid, ..connect };
        assert_eq!(decoded(number::CONNECT, &connect), Err(Errno::INVAL));

        let accept = abi::Accept { uid: 8, conn_param: said, id: 5, ..Default::default() };
        let asked = Ok(Task::Ask(CmRequest::Accept { id, user_handle: 8, param }));
        assert_eq!(decoded(number::ACCEPT, &accept), asked);
        let confirm = abi::Accept { conn_param: invalid, ..accept };
        let asked = Ok(Task::Ask(CmRequest::Establish { id }));
        assert_eq!(decoded(number::ACCEPT, &confirm), asked);
    }

    #[test]
    fn a_rejection_has_one_of_two_reasons() {
        let mut it = abi::Reject { id: 5, private_data_len: 255, ..Default::default() };
        it.private_data[254] = 1;
        let data = it.private_data[..255].to_vec();
        let asked = Task::Ask(CmRequest::Reject { id: CmIdHandle(5), private_data: data });
        for reason in [0, 28, 35] {
            let it = abi::Reject { reason, ..it };
            assert_eq!(decoded(number::REJECT, &it).as_ref(), Ok(&asked), "{reason}");
        }
        let it = abi::Reject { reason: 8, ..it };
        assert_eq!(decoded(number::REJECT, &it), Err(Errno::INVAL));
    }

    #[test]
    fn answers_are_cut_for_programs_that_know_of_less() {
        let place = |cmd, request: &[u8], room| {
            Command::decode(&command(cmd, request, room), CHANNEL).map(|it| it.answer).number_only()
        };
        let query = abi::Query { response: 0x1000, id: 5, option: 0 };
        let at = |len| Ok(ResponseBuf { address: 0x1000, len });
        assert_eq!(place(number::QUERY_ROUTE, query.as_bytes(), 400), at(208));
        assert_eq!(place(number::QUERY_ROUTE, query.as_bytes(), 200), at(200));
        assert_eq!(place(number::QUERY_ROUTE, query.as_bytes(), 199), Err(Errno::NOSPC));
        assert_eq!(place(number::QUERY, query.as_bytes(), 272), at(272));
        assert_eq!(place(number::QUERY, query.as_bytes(), 271), Err(Errno::NOSPC));
        let path = abi::Query { option: 1, ..query };
        assert_eq!(place(number::QUERY, path.as_bytes(), 512), at(80));
        assert_eq!(place(number::QUERY, path.as_bytes(), 7), Err(Errno::NOSPC));
        let other = abi::Query { option: 3, ..query };
        assert_eq!(place(number::QUERY, other.as_bytes(), 512), Err(Errno::NOSYS));
        let event = abi::GetEvent { response: 0x1000 };
        assert_eq!(place(number::GET_EVENT, event.as_bytes(), 336), at(336));
        assert_eq!(place(number::GET_EVENT, event.as_bytes(), 324), at(324));
        assert_eq!(place(number::GET_EVENT, event.as_bytes(), 323), Err(Errno::NOSPC));
        let destroy = abi::DestroyId { response: 0x1000, id: 5, reserved: 0 };
        assert_eq!(place(number::DESTROY_ID, destroy.as_bytes(), 4), at(4));
        assert_eq!(place(number::DESTROY_ID, destroy.as_bytes(), 0), Err(Errno::NOSPC));
    }

    #[test]
    fn unknown_commands_are_refused_as_the_kernel_does() {
        let refused = |bytes: &[u8]| Command::decode(bytes, CHANNEL).unwrap_err().errno;
        assert_eq!(refused(&[]), Errno::INVAL);
        assert_eq!(refused(&[0; 7]), Errno::INVAL);
        assert_eq!(refused(&command(23, &[0; 64], 0)), Errno::INVAL);
        assert_eq!(refused(&command(u32::MAX, &[0; 64], 0)), Errno::INVAL);
        assert_eq!(refused(&command(number::GET_OPTION, &[0; 64], 0)), Errno::NOSYS);
        let mut longer = command(number::LISTEN, &[0; 8], 0);
        longer[4] = 9;
        assert_eq!(refused(&longer), Errno::INVAL, "there is less than it says");
        assert_eq!(refused(&command(number::LISTEN, &[0; 7], 0)), Errno::INVAL);
        let state = abi::InitQpAttr { qp_state: 7, ..Default::default() };
        assert_eq!(decoded(number::INIT_QP_ATTR, &state), Err(Errno::INVAL));
        let state = abi::InitQpAttr { qp_state: 256, ..Default::default() };
        assert_eq!(decoded(number::INIT_QP_ATTR, &state), Err(Errno::INVAL));
    }

    proptest! {
        #[test]
        fn any_bytes_are_answered(cmd in 0..25u32, len in 0..320usize, room: u16, fill: u8) {
            let bytes = command(cmd, &vec![fill; len], room.into());
            if let Ok(command) = Command::decode(&bytes, CHANNEL) {
                prop_assert!(command.answer.len <= room.into());
            }
        }
    }
}
