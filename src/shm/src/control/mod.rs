//! Requests of a program and replies of the daemon.
//!
//! One request, one reply, in order; a request that fails is answered by [`Reply::Error`] and
//! has changed nothing. All limits, states and rights are the daemon's to judge, so that every
//! kind of client behaves alike.
//!
//! Objects are named by handles. A handle means something only in the session that got it, and
//! **no number is used twice in one session** for the same kind of object: a handle kept too long
//! names nothing, and never something else. When the connection ends, the daemon frees
//! everything that the session made.
//!
//! Any request may be answered by an error with one of these numbers, besides those that it
//! names itself: `EPROTO` (a reply's worth of nonsense: wrong descriptors, or not yet
//! [`Request::Hello`]), `ENOENT` (no such handle in this session), `ENOMEM` (the session's
//! quota, or the device's limit for this kind of object, is used up).
//!
//! [`channel`]: the socket that messages travel on. [`event`]: what the daemon says unasked, through
//! pipes.

mod attr;
pub mod channel;
mod cm;
mod codec;
pub mod event;
mod handle;
mod rate;
mod resource;
mod socket;
pub(crate) mod socket_path;
mod stats;

pub use attr::{
    AddressVector, DeviceAttr, DeviceInfo, Gid, OdpCaps, PortAttr, QpAttr, QpCaps, QpQueried,
    SrqAttr,
};
pub use cm::{
    CM_MAX_PRIVATE_DATA, CmConnParam, CmEvent, CmEventKind, CmEventParam, CmOption, CmPath,
    CmPortSpace, CmReply, CmRequest, CmRoute, CmSubject, CmUdParam,
};
pub use codec::{DecodeError, TooLong, decode, encode};
pub use handle::{
    AhHandle, CmChannelHandle, CmIdHandle, CmMulticastHandle, CompChannelHandle, ContextHandle,
    CqHandle, MrHandle, MwHandle, PdHandle, QpHandle, SrqHandle,
};
pub use rate::LinkRate;
pub use resource::{BoundTo, CmIdState, Resource, ResourceDetail, ResourceKind, ResourcePage};
pub use stats::{CounterInfo, QpStats, StatsPage};

use serde::{Deserialize, Serialize};
use urxe_types::{Access, MwType, QpType};

/// Version of everything this crate lays down: messages, rings and doorbells. It stands, outside
/// of the encoding, at the head of each message; two sides with different versions do not talk.
pub const PROTOCOL_VERSION: u16 = 3;

/// Longest message in bytes. The longest that exists is a page of statistics, with a name and a
/// meaning for each counter; 64 KiB hold several hundred, and are well below the 208 KiB that a
/// Unix socket takes at once by default.
pub const MAX_MESSAGE: usize = 64 * 1024;

/// Most file descriptors that travel with one message: the [`Reply::Hello`] has two, everything
/// else at most one.
pub const MAX_FDS: usize = 2;

/// What a program asks. Said in each case: what it does, when it is legal, how it is answered,
/// and which errors it gives.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Request {
    /// Begins the session; must be the first request, and the only one of its kind. May bring
    /// one descriptor: the program's own `/proc/self/mem`, opened for reading and writing,
    /// without which [`Backing::Process`] is refused. Answered by [`Reply::Hello`]. `EPROTO` if
    /// repeated; `EINVAL` if the descriptor is something else.
    Hello {
        /// Name of the program, for people who look at the daemon. Cut at 64 bytes.
        program: String,
    },
    /// Names the devices that can be opened. Answered by [`Reply::Devices`]. Their order is a
    /// promise: it never changes while the daemon lives, and the device at index N is the
    /// `uverbsN` of the daemon's [`sysfs_directory`](crate::sysfs_directory).
    ListDevices,
    /// Asks what the numbers in a completion's `vendor_err` mean. Answered by [`Reply::Causes`].
    ListCauses,
    /// Opens a device: makes a context, in which all other objects live. A device may be opened
    /// several times. Answered by [`Reply::Context`] with one descriptor: the pipe that
    /// asynchronous events of the context's objects are read from
    /// ([`EventRecord`](crate::control::event::EventRecord)). `ENODEV` if there is no such device.
    OpenDevice {
        /// The device's name, as [`Request::ListDevices`] gives it.
        name: String,
    },
    /// Closes a context and destroys all that lives in it. Answered by [`Reply::Done`].
    CloseDevice {
        /// The context.
        context: ContextHandle,
    },
    /// Asks for the device's limits: `ibv_query_device`. Answered by [`Reply::Device`].
    QueryDevice {
        /// The context.
        context: ContextHandle,
    },
    /// Asks for a port's state: `ibv_query_port`. Answered by [`Reply::Port`]. `EINVAL` for any
    /// port but 1.
    QueryPort {
        /// The context.
        context: ContextHandle,
        /// Port number, from 1.
        port: u8,
    },
    /// Asks for an entry of a port's GID table: `ibv_query_gid`. Answered by [`Reply::Gid`].
    /// `EINVAL` for any port but 1, or an index beyond the table.
    QueryGid {
        /// The context.
        context: ContextHandle,
        /// Port number, from 1.
        port: u8,
        /// Index into the table, from 0.
        index: u32,
    },
    /// Makes a protection domain: `ibv_alloc_pd`. Answered by [`Reply::Pd`].
    AllocPd {
        /// The context.
        context: ContextHandle,
    },
    /// Frees a protection domain: `ibv_dealloc_pd`. Answered by [`Reply::Done`]. `EBUSY` while
    /// an MR, a memory window, a QP, an SRQ or an address handle is in it.
    DeallocPd {
        /// The protection domain.
        pd: PdHandle,
    },
    /// Registers memory: `ibv_reg_mr`, or `ibv_reg_mr_iova` if `iova` is not `addr`. Brings one
    /// descriptor if the backing is [`Backing::Shared`]. Answered by [`Reply::Mr`]. `EINVAL` if
    /// the rights contradict each other (remote write or atomic without local write), if the
    /// range wraps around, or if the descriptor is not what [`Backing::Shared`] asks for;
    /// `EFAULT` if a process backing cannot be reached, or the program has passed no
    /// `/proc/self/mem`.
    RegMr {
        /// The protection domain.
        pd: PdHandle,
        /// The program's own address of the first byte.
        addr: u64,
        /// Length in bytes; nothing is reached, or mapped, for 0.
        length: u64,
        /// Address by which work requests and peers name the first byte.
        iova: u64,
        /// What is allowed: `ibv_access_flags` bits.
        access: Access,
        /// How the daemon reaches it.
        backing: Backing,
    },
    /// Takes a registration back: `ibv_dereg_mr`. Once answered, the daemon touches the memory
    /// no more. Answered by [`Reply::Done`]. `EBUSY` while memory windows are bound to it.
    DeregMr {
        /// The registration.
        mr: MrHandle,
    },
    /// Makes a completion channel: `ibv_create_comp_channel`. Answered by [`Reply::CompChannel`]
    /// with one descriptor: the pipe that completion events are read from
    /// ([`EventRecord`](crate::control::event::EventRecord)).
    CreateCompChannel {
        /// The context.
        context: ContextHandle,
    },
    /// Destroys a completion channel: `ibv_destroy_comp_channel`. Answered by [`Reply::Done`].
    /// `EBUSY` while a CQ uses it.
    DestroyCompChannel {
        /// The channel.
        channel: CompChannelHandle,
    },
    /// Makes a completion queue: `ibv_create_cq`. Answered by [`Reply::Cq`]. `EINVAL` if `cqe`
    /// is 0 or above the device's `max_cqe`, or if there is no such vector.
    CreateCq {
        /// The context.
        context: ContextHandle,
        /// Completions it must hold at least.
        cqe: u32,
        /// Where its events go, once armed.
        channel: Option<CompChannelHandle>,
        /// The program's own number, given back in the CQ's events.
        user_handle: u64,
        /// Completion vector: only 0 exists.
        comp_vector: u32,
    },
    /// Destroys a completion queue: `ibv_destroy_cq`. Once answered, its ring is no more, no
    /// further event of it is written, and those that nobody has read are taken back. A reader
    /// that was quicker recognises them by the handle, and drops them. How many events the
    /// program has *read* is known to the reader alone, so the counts that `ibv_destroy_cq` waits
    /// for are kept there. Answered by [`Reply::Done`]. `EBUSY` while a QP uses it.
    DestroyCq {
        /// The completion queue.
        cq: CqHandle,
    },
    /// Gives a completion queue another size: `ibv_resize_cq`. Unread completions are moved to a
    /// new ring, and the program goes on there; until the answer has come it must not touch the
    /// old ring, whose place is given up with it. Answered by [`Reply::CqResized`]. `EINVAL` if
    /// `cqe` is 0, above the device's `max_cqe`, or less than there are unread completions.
    ResizeCq {
        /// The completion queue.
        cq: CqHandle,
        /// Completions it must hold at least.
        cqe: u32,
    },
    /// Makes a shared receive queue: `ibv_create_srq`. Answered by [`Reply::Srq`]. `EINVAL` if a
    /// capacity is 0 or above the device's limit, or the limit above the capacity.
    CreateSrq {
        /// The protection domain.
        pd: PdHandle,
        /// What it must hold at least, and its first limit, which is looked at when receives are
        /// taken.
        attr: SrqAttr,
        /// The program's own number, given back in the SRQ's events.
        user_handle: u64,
    },
    /// Changes a shared receive queue: `ibv_modify_srq`. A new size moves the receives that are
    /// posted to a new ring, as [`Request::ResizeCq`] does. Answered by [`Reply::SrqModified`].
    /// `EINVAL` if the size is less than there are receives posted or above the device's limit,
    /// or the limit above the size.
    ModifySrq {
        /// The shared receive queue.
        srq: SrqHandle,
        /// Work requests it must hold at least.
        max_wr: Option<u32>,
        /// The new limit; 0 disarms.
        limit: Option<u32>,
    },
    /// Asks what a shared receive queue holds: `ibv_query_srq`. Answered by [`Reply::SrqAttr`].
    QuerySrq {
        /// The shared receive queue.
        srq: SrqHandle,
    },
    /// Destroys a shared receive queue: `ibv_destroy_srq`. Answered by [`Reply::Done`]. `EBUSY`
    /// while a QP uses it.
    DestroySrq {
        /// The shared receive queue.
        srq: SrqHandle,
    },
    /// Makes an address handle: `ibv_create_ah`. Answered by [`Reply::Ah`]. `EINVAL` if the path
    /// makes no sense.
    CreateAh {
        /// The protection domain.
        pd: PdHandle,
        /// The path; the destination may be a multicast group.
        av: AddressVector,
    },
    /// Destroys an address handle: `ibv_destroy_ah`. Answered by [`Reply::Done`].
    DestroyAh {
        /// The address handle.
        ah: AhHandle,
    },
    /// Makes a memory window, bound to nothing: `ibv_alloc_mw`. Answered by [`Reply::Mw`].
    AllocMw {
        /// The protection domain.
        pd: PdHandle,
        /// Its kind.
        mw_type: MwType,
    },
    /// Frees a memory window, bound or not: `ibv_dealloc_mw`. Answered by [`Reply::Done`].
    DeallocMw {
        /// The window.
        mw: MwHandle,
    },
    /// Lets a UD queue pair receive what is sent to a multicast group: `ibv_attach_mcast`.
    /// Answered by [`Reply::Done`], also when it is attached already. `EINVAL` if the queue pair
    /// is not UD or the GID is no multicast address; what the system says if it does not let the
    /// port join the group.
    AttachMcast {
        /// The queue pair.
        qp: QpHandle,
        /// The group.
        gid: Gid,
    },
    /// Takes that back: `ibv_detach_mcast`. Answered by [`Reply::Done`]. `EINVAL` if it is not
    /// attached.
    DetachMcast {
        /// The queue pair.
        qp: QpHandle,
        /// The group.
        gid: Gid,
    },
    /// Makes a queue pair in the RESET state: `ibv_create_qp`. Answered by [`Reply::Qp`].
    /// `EINVAL` if a capacity is above the device's limit, or if the CQs are of another context
    /// than the protection domain, or the SRQ is.
    CreateQp {
        /// The protection domain.
        pd: PdHandle,
        /// The transport.
        qp_type: QpType,
        /// Where send completions go.
        send_cq: CqHandle,
        /// Where receive completions go; may be the same.
        recv_cq: CqHandle,
        /// Where it takes its receives from, if it is to have no RQ of its own.
        srq: Option<SrqHandle>,
        /// What it must hold at least.
        caps: QpCaps,
        /// Whether every send completes with a CQE, signalled or not.
        sq_sig_all: bool,
        /// The program's own number, given back in the QP's events.
        user_handle: u64,
    },
    /// Changes a queue pair's state or attributes: `ibv_modify_qp`. Going to RESET empties both
    /// rings and rewinds them; the program's ends must be reset too. Answered by
    /// [`Reply::Done`]. `EINVAL` if the step from the present state does not exist, lacks an
    /// attribute, or has one too many, or if a value is out of range. `EPERM` if the Q_Key has its
    /// highest bit set and the program is not root's.
    ModifyQp {
        /// The queue pair.
        qp: QpHandle,
        /// What is to change.
        attr: QpAttr,
    },
    /// Asks for a queue pair's state and attributes: `ibv_query_qp`. Answered by
    /// [`Reply::QpAttr`].
    QueryQp {
        /// The queue pair.
        qp: QpHandle,
    },
    /// Destroys a queue pair: `ibv_destroy_qp`. Once answered, its rings are no more, and no
    /// further completion of it appears. Answered by [`Reply::Done`].
    DestroyQp {
        /// The queue pair.
        qp: QpHandle,
    },
    /// Asks what objects of one kind a device has, of those that may be seen: one's own user's, or
    /// all for root and the user that the daemon runs as. Needs no context. Answered by
    /// [`Reply::Resources`], page by page. `ENODEV` if there is no such device.
    Resources {
        /// The device's name.
        device: String,
        /// What kind of object.
        kind: ResourceKind,
        /// Begins behind the object of this number; `None` for the first page.
        after: Option<u32>,
    },
    /// Asks for a device's counters, and those of the QPs that may be seen: one's own user's, or
    /// all for root and the user that the daemon runs as. Needs no context. Answered by
    /// [`Reply::Stats`], page by page. `ENODEV` if there is no such device.
    Stats {
        /// The device's name.
        device: String,
        /// Begins behind this QPN; `None` for the first page.
        after_qpn: Option<u32>,
    },
    /// Asks something of the connection manager. Answered by [`Reply::Done`], or by [`Reply::Cm`]
    /// if there is more to tell.
    Cm(CmRequest),
    /// The same in the name of one event channel: `EINVAL` if the id or the membership that it is
    /// about is in another. So the kernel has it, where a channel is an open file.
    CmWithin {
        /// The channel.
        channel: CmChannelHandle,
        /// What is asked.
        request: CmRequest,
    },
}

/// How a request ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reply {
    /// The request failed, and has changed nothing.
    Error(ControlError),
    /// The request did what it says; there is nothing more to tell.
    Done,
    /// Answer to [`Request::Hello`]. Comes with two descriptors, in this order: the session's
    /// memfd, with the doorbells at [`DOORBELL_OFFSET`](crate::ring::doorbell::DOORBELL_OFFSET) and
    /// rings elsewhere; and the eventfd to write to when a doorbell asks for a wake-up.
    Hello {
        /// How long the memfd may ever grow, in bytes: a program maps this much once. What lies
        /// beyond the present end must not be touched.
        memory_limit: u64,
    },
    /// Answer to [`Request::ListDevices`].
    Devices(Vec<DeviceInfo>),
    /// Answer to [`Request::ListCauses`]: each number with a sentence that a person can act on.
    Causes(Vec<(u32, String)>),
    /// Answer to [`Request::OpenDevice`]. Comes with one descriptor: the read end of the
    /// asynchronous event pipe.
    Context(ContextHandle),
    /// Answer to [`Request::QueryDevice`].
    Device(DeviceAttr),
    /// Answer to [`Request::QueryPort`].
    Port(PortAttr),
    /// Answer to [`Request::QueryGid`].
    Gid(Gid),
    /// Answer to [`Request::AllocPd`].
    Pd(PdHandle),
    /// Answer to [`Request::RegMr`].
    Mr {
        /// The registration.
        mr: MrHandle,
        /// Key for the program's own work requests.
        lkey: u32,
        /// Key for peers.
        rkey: u32,
    },
    /// Answer to [`Request::CreateCompChannel`]. Comes with one descriptor: the read end of the
    /// pipe.
    CompChannel(CompChannelHandle),
    /// Answer to [`Request::CreateCq`].
    Cq {
        /// The completion queue.
        cq: CqHandle,
        /// Completions it holds: what was asked for, or more.
        cqe: u32,
        /// Its ring, of shape [`Geometry::completion`](crate::ring::geometry::Geometry::completion).
        ring: RingLocation,
    },
    /// Answer to [`Request::ResizeCq`].
    CqResized {
        /// Completions it holds: what was asked for, or more.
        cqe: u32,
        /// Its new ring, with the unread completions from index 0 on.
        ring: RingLocation,
    },
    /// Answer to [`Request::CreateSrq`].
    Srq {
        /// The shared receive queue.
        srq: SrqHandle,
        /// Its number.
        srqn: u32,
        /// What it holds: what was asked for, or more.
        attr: SrqAttr,
        /// Its ring, of shape [`Geometry::recv`](crate::ring::geometry::Geometry::recv).
        ring: RingLocation,
    },
    /// Answer to [`Request::ModifySrq`].
    SrqModified {
        /// What it holds now.
        attr: SrqAttr,
        /// Its new ring, if the size was changed, with the posted receives from index 0 on.
        ring: Option<RingLocation>,
    },
    /// Answer to [`Request::QuerySrq`].
    SrqAttr(SrqAttr),
    /// Answer to [`Request::CreateAh`].
    Ah {
        /// The address handle.
        ah: AhHandle,
        /// Its number in work requests (`ah_num`), never 0.
        ah_num: u32,
    },
    /// Answer to [`Request::AllocMw`].
    Mw {
        /// The window.
        mw: MwHandle,
        /// Its first rkey, which opens nothing.
        rkey: u32,
    },
    /// Answer to [`Request::CreateQp`].
    Qp(QpCreated),
    /// Answer to [`Request::QueryQp`].
    QpAttr(QpQueried),
    /// Answer to [`Request::Resources`].
    Resources(ResourcePage),
    /// Answer to [`Request::Stats`].
    Stats(StatsPage),
    /// Answer to [`Request::Cm`].
    Cm(CmReply),
}

/// Why a request failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
pub struct ControlError {
    /// The error number that the kernel would give.
    pub errno: i32,
    /// What was wrong, in a sentence that names the parameter, its value and what was expected.
    pub message: String,
}

/// How the daemon reaches registered memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Backing {
    /// The memory is part of a memfd that comes with the request, sealed with `F_SEAL_SHRINK`
    /// and not of huge pages. The daemon maps it: loads and stores, no system calls.
    Shared {
        /// Where in the memfd the registered memory begins, in bytes: any offset.
        offset: u64,
    },
    /// The memory is whatever the program has at the address, reached through the
    /// `/proc/self/mem` descriptor of [`Request::Hello`]. The program must have populated the
    /// range first ([`populate`](crate::memory::process_memory::populate)).
    Process,
}

/// Where a ring lies in the session's memfd: the kernel's `mminfo`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RingLocation {
    /// Offset in bytes, a multiple of the page size.
    pub offset: u64,
    /// Length in bytes, a multiple of the page size.
    pub size: u32,
}

/// A QP was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QpCreated {
    /// The queue pair.
    pub qp: QpHandle,
    /// Its number on the wire.
    pub qpn: u32,
    /// What its queues hold: what was asked for, or more.
    pub caps: QpCaps,
    /// Its SQ, of shape [`Geometry::send`](crate::ring::geometry::Geometry::send).
    pub send_ring: RingLocation,
    /// Its RQ, of shape [`Geometry::recv`](crate::ring::geometry::Geometry::recv), unless it has an SRQ.
    pub recv_ring: Option<RingLocation>,
    /// Its doorbell: what to [`ring`](crate::ring::doorbell::DoorbellWriter::ring) after posting sends.
    pub doorbell_slot: u32,
}

#[cfg(test)]
mod tests {
    use super::codec::{MARK, PREFIX_LEN};
    use super::*;
    use proptest::prelude::*;
    use std::net::IpAddr;

    fn text() -> impl Strategy<Value = String> {
        "\\PC{0,20}"
    }

    fn state() -> impl Strategy<Value = urxe_types::QpState> {
        use urxe_types::QpState::*;
        prop::sample::select(vec![Reset, Init, Rtr, Rts, Sqd, Sqe, Err])
    }

    fn caps() -> impl Strategy<Value = QpCaps> {
        any::<[u32; 5]>().prop_map(|[send_wr, recv_wr, send_sge, recv_sge, inline]| QpCaps {
            max_send_wr: send_wr,
            max_recv_wr: recv_wr,
            max_send_sge: send_sge,
            max_recv_sge: recv_sge,
            max_inline_data: inline,
        })
    }

    fn gid() -> impl Strategy<Value = Gid> {
        any::<[u8; 16]>().prop_map(Gid)
    }

    fn av() -> impl Strategy<Value = AddressVector> {
        (gid(), any::<([u8; 3], u32)>()).prop_map(
            |(dgid, ([sgid_index, traffic_class, hop_limit], flow_label))| AddressVector {
                dgid,
                sgid_index,
                traffic_class,
                hop_limit,
                flow_label,
            },
        )
    }

    fn srq_attr() -> impl Strategy<Value = SrqAttr> {
        any::<[u32; 3]>().prop_map(|[max_wr, max_sge, limit]| SrqAttr { max_wr, max_sge, limit })
    }

    fn qp_type() -> impl Strategy<Value = QpType> {
        prop::sample::select(vec![QpType::Rc, QpType::Uc, QpType::Ud])
    }

    fn mw_type() -> impl Strategy<Value = MwType> {
        prop::sample::select(vec![MwType::One, MwType::Two])
    }

    fn location() -> impl Strategy<Value = RingLocation> {
        any::<(u64, u32)>().prop_map(|(offset, size)| RingLocation { offset, size })
    }

    fn attr() -> impl Strategy<Value = QpAttr> {
        let states = (prop::option::of(state()), prop::option::of(state()));
        let words = any::<[Option<u32>; 5]>();
        let halves = any::<[Option<u16>; 2]>();
        let bytes = any::<[Option<u8>; 7]>();
        (states, prop::option::of(av()), words, halves, bytes).prop_map(
            |((state, cur_state), av, words, [pkey_index, path_mtu], bytes)| {
                let [access, dest_qpn, qkey, rq_psn, sq_psn] = words;
                let [port, max_rd_atomic, max_dest_rd_atomic, timer, timeout, retry, rnr] = bytes;
                QpAttr {
                    state,
                    cur_state,
                    access: access.map(Access::from_bits_retain),
                    pkey_index,
                    port,
                    av,
                    path_mtu,
                    dest_qpn,
                    qkey,
                    rq_psn,
                    sq_psn,
                    max_rd_atomic,
                    max_dest_rd_atomic,
                    min_rnr_timer: timer,
                    timeout,
                    retry_cnt: retry,
                    rnr_retry: rnr,
                }
            },
        )
    }

    /// Requests about SRQs, address handles, windows, multicast groups and lists of objects.
    fn object_request() -> impl Strategy<Value = Request> {
        use ResourceKind::*;
        let kind = prop::sample::select(vec![Qp, Cq, Srq, Mr, Mw, CmId]);
        prop_oneof![
            (any::<(u32, u64)>(), srq_attr()).prop_map(|((pd, user_handle), attr)| {
                Request::CreateSrq { pd: PdHandle(pd), attr, user_handle }
            }),
            any::<(u32, Option<u32>, Option<u32>)>().prop_map(|(srq, max_wr, limit)| {
                Request::ModifySrq { srq: SrqHandle(srq), max_wr, limit }
            }),
            any::<u32>().prop_map(|srq| Request::QuerySrq { srq: SrqHandle(srq) }),
            any::<u32>().prop_map(|srq| Request::DestroySrq { srq: SrqHandle(srq) }),
            (any::<u32>(), av()).prop_map(|(pd, av)| Request::CreateAh { pd: PdHandle(pd), av }),
            any::<u32>().prop_map(|ah| Request::DestroyAh { ah: AhHandle(ah) }),
            (any::<u32>(), mw_type())
                .prop_map(|(pd, mw_type)| Request::AllocMw { pd: PdHandle(pd), mw_type }),
            any::<u32>().prop_map(|mw| Request::DeallocMw { mw: MwHandle(mw) }),
            (any::<u32>(), gid())
                .prop_map(|(qp, gid)| Request::AttachMcast { qp: QpHandle(qp), gid }),
            (any::<u32>(), gid())
                .prop_map(|(qp, gid)| Request::DetachMcast { qp: QpHandle(qp), gid }),
            (text(), kind, any::<Option<u32>>())
                .prop_map(|(device, kind, after)| Request::Resources { device, kind, after }),
        ]
    }

    fn resource() -> impl Strategy<Value = Resource> {
        let qp = (
            any::<([u32; 4], Option<u32>)>(),
            (qp_type(), state(), prop::option::of((gid(), any::<u32>()))),
        );
        let bound = any::<([u32; 2], [u64; 2], Option<u32>)>().prop_map(
            |([mr, access], [addr, length], qpn)| BoundTo {
                mr,
                addr,
                length,
                access: Access::from_bits_retain(access),
                qpn,
            },
        );
        let detail = prop_oneof![
            qp.prop_map(|(([send_cq, recv_cq, sq_psn, rq_psn], srq), (qp_type, state, peer))| {
                ResourceDetail::Qp { qp_type, state, send_cq, recv_cq, srq, peer, sq_psn, rq_psn }
            }),
            any::<([u32; 3], bool)>().prop_map(|([cqe, unread, qps], failed)| {
                ResourceDetail::Cq { cqe, unread, qps, failed }
            }),
            any::<[u32; 4]>().prop_map(|[max_wr, posted, limit, qps]| {
                ResourceDetail::Srq { max_wr, posted, limit, qps }
            }),
            any::<([u64; 2], u32, bool)>().prop_map(|([iova, length], access, mapped)| {
                ResourceDetail::Mr {
                    iova,
                    length,
                    access: Access::from_bits_retain(access),
                    mapped,
                }
            }),
            (mw_type(), prop::option::of(bound))
                .prop_map(|(mw_type, bound)| ResourceDetail::Mw { mw_type, bound }),
            cm::tests::id_detail(),
        ];
        (any::<[u32; 3]>(), text(), detail).prop_map(|([number, uid, pd], program, detail)| {
            Resource { number, program, uid, pd, detail }
        })
    }

    /// Answers to the requests about objects.
    fn object_reply() -> impl Strategy<Value = Reply> {
        let created = (any::<[u32; 3]>(), caps(), location(), prop::option::of(location()));
        prop_oneof![
            (any::<u32>(), location()).prop_map(|(cqe, ring)| Reply::CqResized { cqe, ring }),
            (any::<[u32; 2]>(), srq_attr(), location()).prop_map(|([srq, srqn], attr, ring)| {
                Reply::Srq { srq: SrqHandle(srq), srqn, attr, ring }
            }),
            (srq_attr(), prop::option::of(location()))
                .prop_map(|(attr, ring)| Reply::SrqModified { attr, ring }),
            srq_attr().prop_map(Reply::SrqAttr),
            any::<[u32; 2]>().prop_map(|[ah, ah_num]| Reply::Ah { ah: AhHandle(ah), ah_num }),
            any::<[u32; 2]>().prop_map(|[mw, rkey]| Reply::Mw { mw: MwHandle(mw), rkey }),
            created.prop_map(|([qp, qpn, doorbell_slot], caps, send_ring, recv_ring)| {
                let qp = QpHandle(qp);
                Reply::Qp(QpCreated { qp, qpn, caps, send_ring, recv_ring, doorbell_slot })
            }),
            (prop::collection::vec(resource(), 0..5), any::<bool>())
                .prop_map(|(resources, more)| Reply::Resources(ResourcePage { resources, more })),
        ]
    }

    fn request() -> impl Strategy<Value = Request> {
        let backing = prop_oneof![
            Just(Backing::Process),
            any::<u64>().prop_map(|offset| Backing::Shared { offset }),
        ];
        prop_oneof![
            text().prop_map(|program| Request::Hello { program }),
            Just(Request::ListDevices),
            Just(Request::ListCauses),
            text().prop_map(|name| Request::OpenDevice { name }),
            any::<(u32, u8, u32)>().prop_map(|(context, port, index)| Request::QueryGid {
                context: ContextHandle(context),
                port,
                index,
            }),
            (any::<(u32, u32, [u64; 3])>(), backing).prop_map(
                |((pd, access, [addr, length, iova]), backing)| Request::RegMr {
                    pd: PdHandle(pd),
                    addr,
                    length,
                    iova,
                    access: Access::from_bits_retain(access),
                    backing,
                }
            ),
            any::<(u32, u32, Option<u32>, u64, u32)>().prop_map(
                |(context, cqe, channel, user_handle, comp_vector)| Request::CreateCq {
                    context: ContextHandle(context),
                    cqe,
                    channel: channel.map(CompChannelHandle),
                    user_handle,
                    comp_vector,
                }
            ),
            any::<(u32, u32)>().prop_map(|(cq, cqe)| Request::ResizeCq { cq: CqHandle(cq), cqe }),
            (any::<([u32; 3], Option<u32>, bool, u64)>(), qp_type(), caps()).prop_map(
                |(([pd, send_cq, recv_cq], srq, sq_sig_all, user_handle), qp_type, caps)| {
                    Request::CreateQp {
                        pd: PdHandle(pd),
                        qp_type,
                        send_cq: CqHandle(send_cq),
                        recv_cq: CqHandle(recv_cq),
                        srq: srq.map(SrqHandle),
                        caps,
                        sq_sig_all,
                        user_handle,
                    }
                }
            ),
            (any::<u32>(), attr())
                .prop_map(|(qp, attr)| Request::ModifyQp { qp: QpHandle(qp), attr }),
            object_request(),
            cm::tests::request().prop_map(Request::Cm),
            (text(), any::<Option<u32>>())
                .prop_map(|(device, after_qpn)| Request::Stats { device, after_qpn }),
        ]
    }

    fn reply() -> impl Strategy<Value = Reply> {
        let info = || (text(), text()).prop_map(|(name, meaning)| CounterInfo { name, meaning });
        let qp = (any::<u32>(), state(), text(), any::<Vec<u64>>())
            .prop_map(|(qpn, state, program, values)| QpStats { qpn, state, program, values });
        let page = (
            prop::collection::vec((info(), any::<u64>()), 0..5),
            prop::collection::vec(info(), 0..5),
            prop::collection::vec(qp, 0..5),
            any::<bool>(),
        );
        prop_oneof![
            (any::<i32>(), text())
                .prop_map(|(errno, message)| Reply::Error(ControlError { errno, message })),
            Just(Reply::Done),
            any::<u64>().prop_map(|memory_limit| Reply::Hello { memory_limit }),
            (text(), any::<([u8; 8], IpAddr)>()).prop_map(|(name, (node_guid, address))| {
                Reply::Devices(vec![DeviceInfo { name, node_guid, address }])
            }),
            any::<[u32; 3]>().prop_map(|[mr, lkey, rkey]| Reply::Mr {
                mr: MrHandle(mr),
                lkey,
                rkey
            }),
            (attr(), caps(), any::<[bool; 2]>()).prop_map(|(attr, caps, flags)| {
                let [sq_sig_all, sq_draining] = flags;
                Reply::QpAttr(QpQueried { attr, caps, sq_sig_all, sq_draining })
            }),
            object_reply(),
            cm::tests::reply().prop_map(Reply::Cm),
            page.prop_map(|(device, qp_counters, qps, more)| {
                Reply::Stats(StatsPage { device, qp_counters, qps, more })
            }),
        ]
    }

    fn encoded(message: &impl Serialize) -> Vec<u8> {
        let mut buf = vec![0xa5; MAX_MESSAGE];
        let len = encode(message, &mut buf).unwrap();
        buf.truncate(len);
        buf
    }

    proptest! {
        #[test]
        fn a_request_arrives_as_it_was_sent(request in request()) {
            prop_assert_eq!(decode(&encoded(&request)), Ok(request));
        }

        #[test]
        fn a_reply_arrives_as_it_was_sent(reply in reply()) {
            prop_assert_eq!(decode(&encoded(&reply)), Ok(reply));
        }

        /// A message that was cut or has grown is none: nothing is believed in part.
        #[test]
        fn a_message_of_another_length_is_refused(request in request(), tail: u8) {
            let mut bytes = encoded(&request);
            bytes.push(tail);
            let len = bytes.len();
            prop_assert_eq!(decode::<Request>(&bytes), Err(DecodeError::Malformed { len }));
            for len in PREFIX_LEN..len - 1 {
                let cut = decode::<Request>(&bytes[..len]);
                prop_assert_eq!(cut, Err(DecodeError::Malformed { len }));
            }
        }

        #[test]
        fn any_bytes_are_decoded(bytes: Vec<u8>) {
            let message = [&MARK[..], &PROTOCOL_VERSION.to_le_bytes(), &bytes].concat();
            let _ = decode::<Request>(&bytes);
            let _ = decode::<Request>(&message);
            let _ = decode::<Reply>(&message);
        }
    }

    #[test]
    fn another_version_is_told_apart_from_nonsense() {
        let mut bytes = encoded(&Request::ListDevices);
        bytes[2] ^= 0x40;
        let theirs = PROTOCOL_VERSION ^ 0x40;
        assert_eq!(decode::<Request>(&bytes), Err(DecodeError::Version { theirs }));
        bytes[0] = 0;
        assert_eq!(decode::<Request>(&bytes), Err(DecodeError::NotOurs { len: bytes.len() }));
        assert_eq!(decode::<Request>(b"ux"), Err(DecodeError::NotOurs { len: 2 }));
        assert_eq!(decode::<Request>(b""), Err(DecodeError::NotOurs { len: 0 }));
    }

    #[test]
    fn a_qp_type_that_does_not_exist_is_refused() {
        let create = |qp_type| {
            encoded(&Request::CreateQp {
                pd: PdHandle(1),
                qp_type,
                send_cq: CqHandle(1),
                recv_cq: CqHandle(1),
                srq: None,
                caps: QpCaps::default(),
                sq_sig_all: false,
                user_handle: 0,
            })
        };
        let (mut bytes, other) = (create(QpType::Rc), create(QpType::Ud));
        let at = (0..bytes.len()).find(|&at| bytes[at] != other[at]).unwrap();
        for unknown in other[at] + 1..0x80 {
            bytes[at] = unknown;
            let len = bytes.len();
            assert_eq!(decode::<Request>(&bytes), Err(DecodeError::Malformed { len }));
        }
    }

    /// A length that promises more than there is is not believed.
    #[test]
    fn a_promised_length_costs_nothing() {
        let mut bytes = encoded(&Reply::Devices(Vec::new()));
        let last = bytes.len() - 1;
        bytes.splice(last.., [0xff, 0xff, 0xff, 0xff, 0x7f]);
        let len = bytes.len();
        assert_eq!(decode::<Reply>(&bytes), Err(DecodeError::Malformed { len }));
    }

    #[test]
    fn a_message_that_does_not_fit_is_refused() {
        let mut buf = [0; MAX_MESSAGE];
        let request = Request::Hello { program: "x".repeat(MAX_MESSAGE) };
        assert_eq!(encode(&request, &mut buf), Err(TooLong));
        assert_eq!(encode(&Request::ListDevices, &mut buf[..4]), Err(TooLong));
        assert_eq!(encode(&Request::ListDevices, &mut buf[..3]), Err(TooLong));
        assert_eq!(encode(&Request::ListDevices, &mut buf[..5]), Ok(5));
    }
}
