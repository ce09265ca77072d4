//! What a command asks for.

use super::abi::{self, number};
use super::attr;
use super::frame::Frame;
use crate::refused::Refused;
use rustix::io::Errno;
use std::os::fd::RawFd;
use urxe_shm::control::{
    AhHandle, CqHandle, MrHandle, MwHandle, PdHandle, QpCaps, SrqAttr, SrqHandle,
};
use urxe_types::{Access, AddressVector, Gid, MwType, QpAttr, QpType};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

/// A command, decoded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Command {
    /// `GET_CONTEXT`: opens the device; the first of all.
    GetContext,
    /// `QUERY_DEVICE`.
    QueryDevice,
    /// `QUERY_PORT`.
    QueryPort {
        /// Port number, from 1.
        port: u8,
    },
    /// `ALLOC_PD`.
    AllocPd,
    /// `DEALLOC_PD`.
    DeallocPd(PdHandle),
    /// `CREATE_AH`.
    CreateAh {
        pd: PdHandle,
        /// The path.
        av: AddressVector,
    },
    /// `DESTROY_AH`.
    DestroyAh(AhHandle),
    /// `REG_MR`.
    RegMr(Registration),
    /// `DEREG_MR`.
    DeregMr(MrHandle),
    /// `ALLOC_MW`.
    AllocMw {
        pd: PdHandle,
        /// Its kind.
        mw_type: MwType,
    },
    /// `DEALLOC_MW`.
    DeallocMw(MwHandle),
    /// `CREATE_COMP_CHANNEL`.
    CreateCompChannel,
    /// `CREATE_CQ`.
    CreateCq {
        /// The program's own number of it.
        user_handle: u64,
        /// Completions that it must hold.
        cqe: u32,
        comp_vector: u32,
        /// The descriptor of its completion channel.
        channel: Option<RawFd>,
    },
    /// `RESIZE_CQ`.
    ResizeCq {
        cq: CqHandle,
        /// Completions that it must hold.
        cqe: u32,
    },
    /// `REQ_NOTIFY_CQ`.
    ReqNotifyCq {
        cq: CqHandle,
        /// Only completions that are solicited, or errors, count.
        solicited_only: bool,
    },
    /// `DESTROY_CQ`.
    DestroyCq(CqHandle),
    /// `CREATE_QP`.
    CreateQp(NewQp),
    /// `QUERY_QP`.
    QueryQp(QpSlot),
    /// `MODIFY_QP`.
    ModifyQp {
        qp: QpSlot,
        /// What is to change.
        attr: QpAttr,
    },
    /// `DESTROY_QP`.
    DestroyQp(QpSlot),
    /// `POST_SEND`: the doorbell, in whatever form.
    PostSend(QpSlot),
    /// `ATTACH_MCAST`.
    AttachMcast {
        qp: QpSlot,
        /// The group.
        gid: Gid,
    },
    /// `DETACH_MCAST`.
    DetachMcast {
        qp: QpSlot,
        /// The group.
        gid: Gid,
    },
    /// `CREATE_SRQ`.
    CreateSrq {
        pd: PdHandle,
        /// What it must hold.
        attr: SrqAttr,
        /// The program's own number of it.
        user_handle: u64,
    },
    /// `MODIFY_SRQ`.
    ModifySrq {
        srq: SrqHandle,
        /// Work requests that it must hold.
        max_wr: Option<u32>,
        /// When it warns.
        limit: Option<u32>,
        /// Where in the program a new ring's place is wanted.
        ring_place: u64,
    },
    /// `QUERY_SRQ`.
    QuerySrq(SrqHandle),
    /// `DESTROY_SRQ`.
    DestroySrq(SrqHandle),
}

/// A QP, as programs know it: by the slot of its doorbell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct QpSlot(pub(crate) u32);

/// What `REG_MR` asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Registration {
    pub(crate) pd: PdHandle,
    /// Address of the first byte.
    pub(crate) start: u64,
    /// Bytes.
    pub(crate) length: u64,
    /// Address by which work requests and peers name it.
    pub(crate) iova: u64,
    /// What is allowed.
    pub(crate) access: Access,
}

/// What `CREATE_QP` asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NewQp {
    pub(crate) pd: PdHandle,
    /// The transport.
    pub(crate) qp_type: QpType,
    /// Where send completions go.
    pub(crate) send_cq: CqHandle,
    /// Where receive completions go.
    pub(crate) recv_cq: CqHandle,
    /// Where receives come from, if it has no RQ of its own.
    pub(crate) srq: Option<SrqHandle>,
    /// What its queues must hold.
    pub(crate) caps: QpCaps,
    /// Whether every send completes with a CQE.
    pub(crate) sq_sig_all: bool,
    /// The program's own number of it.
    pub(crate) user_handle: u64,
}

impl Command {
    /// Decodes a command. Its errors are those of the kernel; what only the daemon can judge is
    /// left to it.
    pub(crate) fn decode(frame: &Frame<'_>) -> Result<Command, Refused> {
        if frame.extended {
            return extended(frame);
        }
        Ok(match frame.number {
            number::GET_CONTEXT => Command::GetContext,
            number::QUERY_DEVICE => Command::QueryDevice,
            number::QUERY_PORT => {
                Command::QueryPort { port: request::<abi::QueryPort>(frame)?.port_num }
            }
            number::ALLOC_PD => Command::AllocPd,
            number::DEALLOC_PD => {
                Command::DeallocPd(PdHandle(request::<abi::DeallocPd>(frame)?.pd_handle))
            }
            number::CREATE_AH => {
                let it: abi::CreateAh = request(frame)?;
                let av = attr::path_of_ah(&it.attr)?;
                Command::CreateAh { pd: PdHandle(it.pd_handle), av }
            }
            number::DESTROY_AH => {
                Command::DestroyAh(AhHandle(request::<abi::DestroyAh>(frame)?.ah_handle))
            }
            number::REG_MR => Command::RegMr(registration(&request(frame)?)),
            number::DEREG_MR => {
                let mr = MrHandle(request::<abi::DeregMr>(frame)?.mr_handle);
                Command::DeregMr(mr)
            }
            number::ALLOC_MW => {
                let it: abi::AllocMw = request(frame)?;
                Command::AllocMw { pd: PdHandle(it.pd_handle), mw_type: mw_type(it.mw_type)? }
            }
            number::DEALLOC_MW => {
                Command::DeallocMw(MwHandle(request::<abi::DeallocMw>(frame)?.mw_handle))
            }
            number::CREATE_COMP_CHANNEL => Command::CreateCompChannel,
            number::CREATE_CQ | number::RESIZE_CQ | number::DESTROY_CQ | number::REQ_NOTIFY_CQ => {
                completion_queue(frame)?
            }
            number::CREATE_QP
            | number::QUERY_QP
            | number::MODIFY_QP
            | number::DESTROY_QP
            | number::POST_SEND
            | number::ATTACH_MCAST
            | number::DETACH_MCAST => queue_pair(frame)?,
            number::CREATE_SRQ | number::MODIFY_SRQ | number::QUERY_SRQ | number::DESTROY_SRQ => {
                shared_receive_queue(frame)?
            }
            _ => return Err(Errno::OPNOTSUPP.into()),
        })
    }
}

fn extended(frame: &Frame<'_>) -> Result<Command, Refused> {
    Ok(match frame.number {
        number::QUERY_DEVICE => {
            let it: abi::ExQueryDevice = request(frame)?;
            if it.comp_mask != 0 || it.reserved != 0 {
                return Err(Errno::INVAL.into());
            }
            Command::QueryDevice
        }
        number::CREATE_CQ => {
            let it: abi::ExCreateCq = request(frame)?;
            if it.comp_mask != 0 || it.reserved != 0 {
                return Err(Errno::INVAL.into());
            }
            if it.flags != 0 {
                let reason =
                    format!("flags {:#x}: this device has no timestamps, expected 0", it.flags);
                return Err(Refused::new(Errno::OPNOTSUPP, reason));
            }
            let abi::ExCreateCq { user_handle, cqe, comp_vector, comp_channel, .. } = it;
            needs_driver_room::<abi::MmInfo>(frame)?;
            Command::CreateCq { user_handle, cqe, comp_vector, channel: channel(comp_channel) }
        }
        number::CREATE_QP => create_qp(frame, &request(frame)?)?,
        number::MODIFY_QP => {
            let it: abi::ExModifyQp = request(frame)?;
            // A rate limit is the only thing that this form has more, and we have none.
            let attr = attr::to_change(&it.base)?;
            Command::ModifyQp { qp: QpSlot(it.base.qp_handle), attr }
        }
        _ => return Err(Errno::OPNOTSUPP.into()),
    })
}

fn completion_queue(frame: &Frame<'_>) -> Result<Command, Refused> {
    Ok(match frame.number {
        number::CREATE_CQ => {
            let it: abi::CreateCq = request(frame)?;
            needs_driver_room::<abi::MmInfo>(frame)?;
            let abi::CreateCq { user_handle, cqe, comp_vector, comp_channel, .. } = it;
            Command::CreateCq { user_handle, cqe, comp_vector, channel: channel(comp_channel) }
        }
        number::RESIZE_CQ => {
            let it: abi::ResizeCq = request(frame)?;
            needs_driver_room::<abi::MmInfo>(frame)?;
            Command::ResizeCq { cq: CqHandle(it.cq_handle), cqe: it.cqe }
        }
        number::DESTROY_CQ => {
            Command::DestroyCq(CqHandle(request::<abi::DestroyCq>(frame)?.cq_handle))
        }
        _ => {
            let it: abi::ReqNotifyCq = request(frame)?;
            let solicited_only = it.solicited_only != 0;
            Command::ReqNotifyCq { cq: CqHandle(it.cq_handle), solicited_only }
        }
    })
}

fn queue_pair(frame: &Frame<'_>) -> Result<Command, Refused> {
    Ok(match frame.number {
        number::CREATE_QP => {
            // Behind the response's address it is the beginning of an extended one.
            let extended = &frame.core[size_of::<u64>()..];
            create_qp(frame, &request(&Frame { core: extended, ..*frame })?)?
        }
        number::QUERY_QP => Command::QueryQp(QpSlot(request::<abi::QueryQp>(frame)?.qp_handle)),
        number::MODIFY_QP => {
            let it: abi::ModifyQp = request(frame)?;
            Command::ModifyQp { qp: QpSlot(it.qp_handle), attr: attr::to_change(&it)? }
        }
        number::DESTROY_QP => {
            Command::DestroyQp(QpSlot(request::<abi::DestroyQp>(frame)?.qp_handle))
        }
        number::POST_SEND => Command::PostSend(QpSlot(request::<abi::PostSend>(frame)?.qp_handle)),
        attach_or_detach => {
            let it: abi::AttachMcast = request(frame)?;
            let (qp, gid) = (QpSlot(it.qp_handle), Gid(it.gid));
            match attach_or_detach {
                number::ATTACH_MCAST => Command::AttachMcast { qp, gid },
                _ => Command::DetachMcast { qp, gid },
            }
        }
    })
}

fn create_qp(frame: &Frame<'_>, it: &abi::ExCreateQp) -> Result<Command, Refused> {
    if it.reserved != 0 {
        return Err(Errno::INVAL.into());
    }
    // An indirection table, or flags: not with this device.
    if it.comp_mask != 0 || it.create_flags != 0 || it.source_qpn != 0 {
        let reason = "comp_mask, create_flags or source_qpn: expected none of them";
        return Err(Refused::new(Errno::OPNOTSUPP, reason));
    }
    needs_driver_room::<abi::RxeCreateQpResp>(frame)?;
    Ok(Command::CreateQp(NewQp {
        pd: PdHandle(it.pd_handle),
        qp_type: attr::qp_type(it.qp_type)?,
        send_cq: CqHandle(it.send_cq_handle),
        recv_cq: CqHandle(it.recv_cq_handle),
        srq: (it.is_srq != 0).then_some(SrqHandle(it.srq_handle)),
        caps: QpCaps {
            max_send_wr: it.max_send_wr,
            max_recv_wr: it.max_recv_wr,
            max_send_sge: it.max_send_sge,
            max_recv_sge: it.max_recv_sge,
            max_inline_data: it.max_inline_data,
        },
        sq_sig_all: it.sq_sig_all != 0,
        user_handle: it.user_handle,
    }))
}

fn shared_receive_queue(frame: &Frame<'_>) -> Result<Command, Refused> {
    Ok(match frame.number {
        number::CREATE_SRQ => {
            let it: abi::CreateSrq = request(frame)?;
            needs_driver_room::<abi::RxeCreateSrqResp>(frame)?;
            let abi::CreateSrq { user_handle, pd_handle, max_wr, max_sge, srq_limit, .. } = it;
            let attr = SrqAttr { max_wr, max_sge, limit: srq_limit };
            Command::CreateSrq { pd: PdHandle(pd_handle), attr, user_handle }
        }
        number::MODIFY_SRQ => {
            const MAX_WR: u32 = 1;
            const LIMIT: u32 = 2;
            let it: abi::ModifySrq = request(frame)?;
            if it.attr_mask & !(MAX_WR | LIMIT) != 0 {
                let expected = "IBV_SRQ_MAX_WR (1), IBV_SRQ_LIMIT (2) or both";
                return Err(Refused::invalid("srq_attr_mask", it.attr_mask, expected));
            }
            let (driver, _) =
                abi::RxeModifySrq::read_from_prefix(frame.driver).map_err(|_| Errno::INVAL)?;
            Command::ModifySrq {
                srq: SrqHandle(it.srq_handle),
                max_wr: (it.attr_mask & MAX_WR != 0).then_some(it.max_wr),
                limit: (it.attr_mask & LIMIT != 0).then_some(it.srq_limit),
                ring_place: driver.mmap_info_addr,
            }
        }
        number::QUERY_SRQ => {
            Command::QuerySrq(SrqHandle(request::<abi::QuerySrq>(frame)?.srq_handle))
        }
        _ => Command::DestroySrq(SrqHandle(request::<abi::DestroySrq>(frame)?.srq_handle)),
    })
}

fn registration(it: &abi::RegMr) -> Registration {
    Registration {
        pd: PdHandle(it.pd_handle),
        start: it.start,
        length: it.length,
        iova: it.hca_va,
        access: Access::from_bits_retain(it.access_flags),
    }
}

/// `ibv_mw_type`.
fn mw_type(number: u8) -> Result<MwType, Refused> {
    match number {
        1 => Ok(MwType::One),
        2 => Ok(MwType::Two),
        _ => Err(Refused::invalid("mw type", number, "IBV_MW_TYPE_1 or IBV_MW_TYPE_2")),
    }
}

/// -1 is none.
fn channel(fd: i32) -> Option<RawFd> {
    (fd >= 0).then_some(fd)
}

/// The request as a structure. One that is shorter, from an older library, ends in zeroes; one
/// that is longer, from a newer, may have nothing else there.
fn request<T: FromBytes + IntoBytes + FromZeros>(frame: &Frame<'_>) -> Result<T, Refused> {
    let mut value = T::new_zeroed();
    let common = frame.core.len().min(size_of::<T>());
    value.as_mut_bytes()[..common].copy_from_slice(&frame.core[..common]);
    if frame.core[common..].iter().any(|&byte| byte != 0) {
        return Err(Errno::OPNOTSUPP.into());
    }
    Ok(value)
}

/// Without the driver's part of the response, the program cannot find the ring.
fn needs_driver_room<T>(frame: &Frame<'_>) -> Result<(), Refused> {
    if frame.driver_out >= size_of::<T>() { Ok(()) } else { Err(Errno::INVAL.into()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::uverbs::abi::EXTENDED;
    use crate::uverbs::method::Method;
    use proptest::prelude::*;

    fn decode(number: u32, extended: bool, core: &[u8], driver: &[u8]) -> Result<Command, Errno> {
        let driver_out = 64;
        let frame =
            Frame { number, extended, core, driver, response: 1, core_out: 512, driver_out };
        Command::decode(&frame).map_err(|refused| refused.errno)
    }

    #[test]
    fn commands_say_what_they_ask_for() {
        let pd = abi::DeallocPd { pd_handle: 5 };
        let expected = Command::DeallocPd(PdHandle(5));
        assert_eq!(decode(number::DEALLOC_PD, false, pd.as_bytes(), &[]), Ok(expected));

        let notify = abi::ReqNotifyCq { cq_handle: 3, solicited_only: 1 };
        let expected = Command::ReqNotifyCq { cq: CqHandle(3), solicited_only: true };
        assert_eq!(decode(number::REQ_NOTIFY_CQ, false, notify.as_bytes(), &[]), Ok(expected));

        let srq = abi::ModifySrq { srq_handle: 9, attr_mask: 2, max_wr: 7, srq_limit: 4 };
        let place = abi::RxeModifySrq { mmap_info_addr: 0x7000 };
        let expected = Command::ModifySrq {
            srq: SrqHandle(9),
            max_wr: None,
            limit: Some(4),
            ring_place: 0x7000,
        };
        let decoded = decode(number::MODIFY_SRQ, false, srq.as_bytes(), place.as_bytes());
        assert_eq!(decoded, Ok(expected));
        let without = decode(number::MODIFY_SRQ, false, srq.as_bytes(), &[]);
        assert_eq!(without, Err(Errno::INVAL), "librxe says where it wants the ring's place");
    }

    #[test]
    fn a_channel_of_minus_one_is_none() {
        let create = |comp_channel| {
            let request = abi::CreateCq { cqe: 4, comp_channel, ..abi::CreateCq::default() };
            match decode(number::CREATE_CQ, false, request.as_bytes(), &[]) {
                Ok(Command::CreateCq { channel, .. }) => channel,
                other => panic!("{other:?}"),
            }
        };
        assert_eq!([-1, 0, 8].map(create), [None, Some(0), Some(8)]);
    }

    /// A legacy `CREATE_QP` and an extended one are the same, but for where the response goes.
    #[test]
    fn both_forms_of_create_qp_ask_for_the_same() {
        let it = abi::ExCreateQp {
            user_handle: 1,
            pd_handle: 2,
            send_cq_handle: 3,
            recv_cq_handle: 4,
            srq_handle: 5,
            max_send_wr: 6,
            max_inline_data: 7,
            sq_sig_all: 1,
            qp_type: 4,
            is_srq: 1,
            ..abi::ExCreateQp::default()
        };
        let extended = decode(number::CREATE_QP, true, it.as_bytes(), &[]).unwrap();
        let legacy = [&[0xff; 8], &it.as_bytes()[..48]].concat();
        assert_eq!(decode(number::CREATE_QP, false, &legacy, &[]), Ok(extended.clone()));
        let Command::CreateQp(qp) = extended else { panic!("{extended:?}") };
        assert_eq!((qp.srq, qp.qp_type, qp.sq_sig_all), (Some(SrqHandle(5)), QpType::Ud, true));
        assert_eq!((qp.caps.max_send_wr, qp.caps.max_inline_data), (6, 7));
    }

    #[test]
    fn fields_that_a_newer_library_adds_must_be_zero() {
        let it = abi::ExCreateCq { cqe: 4, ..abi::ExCreateCq::default() };
        let longer = |byte| {
            let core = [it.as_bytes(), &[byte; 8]].concat();
            decode(number::CREATE_CQ, true, &core, &[]).map(|_| ())
        };
        assert_eq!((longer(0), longer(1)), (Ok(()), Err(Errno::OPNOTSUPP)));
        let flags = abi::ExCreateCq { flags: 1, ..it };
        let decoded = decode(number::CREATE_CQ, true, flags.as_bytes(), &[]);
        assert_eq!(decoded, Err(Errno::OPNOTSUPP), "timestamps");
    }

    proptest! {
        /// Whatever stands in a request of the right length, it is decoded or refused.
        #[test]
        fn any_request_is_answered(
            number in 0..60u32, extended: bool, bytes: [u8; 32], driver: Vec<u8>,
        ) {
            let flag = if extended { EXTENDED } else { 0 };
            if let Ok(method) = Method::find(number | flag) {
                let core: Vec<u8> = bytes.into_iter().cycle().take(method.request).collect();
                let _ = decode(number, extended, &core, &driver);
            }
        }
    }
}
