//! What a program asks.

#[cfg(doc)]
use super::Reply;
use super::{
    AhHandle, CaptureSpec, CmChannelHandle, CmRequest, CompChannelHandle, ContextHandle, CqHandle,
    Cursor, HistorySubject, MrHandle, MwHandle, PdHandle, QpCaps, QpHandle, ResourceKind, SrqAttr,
    SrqHandle,
};
use serde::{Deserialize, Serialize};
use urxe_types::{Access, AddressVector, Gid, MwType, QpAttr, QpType};

/// What a program asks. Said in each case: what it does, when it is legal, how it is answered,
/// and which errors it gives.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Request {
    /// Begins the session; must be the first request, and the only one of its kind. May bring
    /// one descriptor: the program's own `/proc/self/mem`, opened for reading and writing,
    /// without which [`Backing::Process`] and [`Backing::WholePages`] are refused. Answered by
    /// [`Reply::Hello`]. `EPROTO` if repeated; `EINVAL` if the descriptor is something else.
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
    CloseDevice { context: ContextHandle },
    /// Asks for the device's limits: `ibv_query_device`. Answered by [`Reply::Device`].
    QueryDevice { context: ContextHandle },
    /// Asks for a port's state: `ibv_query_port`. Answered by [`Reply::Port`]. `EINVAL` for any
    /// port but 1.
    QueryPort {
        context: ContextHandle,
        /// Port number, from 1.
        port: u8,
    },
    /// Asks for an entry of a port's GID table: `ibv_query_gid`. Answered by [`Reply::Gid`].
    /// `EINVAL` for any port but 1, or an index beyond the table.
    QueryGid {
        context: ContextHandle,
        /// Port number, from 1.
        port: u8,
        /// Index into the table, from 0.
        index: u32,
    },
    /// Makes a protection domain: `ibv_alloc_pd`. Answered by [`Reply::Pd`].
    AllocPd { context: ContextHandle },
    /// Frees a protection domain: `ibv_dealloc_pd`. Answered by [`Reply::Done`]. `EBUSY` while
    /// an MR, a memory window, a QP, an SRQ or an address handle is in it.
    DeallocPd { pd: PdHandle },
    /// Registers memory: `ibv_reg_mr`, or `ibv_reg_mr_iova` if `iova` is not `addr`. Brings one
    /// descriptor if the backing is [`Backing::Shared`] or [`Backing::WholePages`]. Answered by
    /// [`Reply::Mr`]. `EINVAL` if the rights contradict each other (remote write or atomic without
    /// local write), if the range wraps around, if whole pages do not lie within it, or if the
    /// descriptor is not what [`Backing::Shared`] asks for; `EFAULT` if what is not shared cannot
    /// be reached, or the program has passed no `/proc/self/mem`.
    RegMr {
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
    DeregMr { mr: MrHandle },
    /// Makes a completion channel: `ibv_create_comp_channel`. Answered by [`Reply::CompChannel`]
    /// with one descriptor: the pipe that completion events are read from
    /// ([`EventRecord`](crate::control::event::EventRecord)).
    CreateCompChannel { context: ContextHandle },
    /// Destroys a completion channel: `ibv_destroy_comp_channel`. Answered by [`Reply::Done`].
    /// `EBUSY` while a CQ uses it.
    DestroyCompChannel { channel: CompChannelHandle },
    /// Makes a completion queue: `ibv_create_cq`. Answered by [`Reply::Cq`]. `EINVAL` if `cqe`
    /// is 0 or above the device's `max_cqe`, or if there is no such vector.
    CreateCq {
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
    DestroyCq { cq: CqHandle },
    /// Gives a completion queue another size: `ibv_resize_cq`. Unread completions are moved to a
    /// new ring, and the program goes on there; until the answer has come it must not touch the
    /// old ring, whose place is given up with it. Answered by [`Reply::CqResized`]. `EINVAL` if
    /// `cqe` is 0, above the device's `max_cqe`, or less than there are unread completions.
    ResizeCq {
        cq: CqHandle,
        /// Completions it must hold at least.
        cqe: u32,
    },
    /// Makes a shared receive queue: `ibv_create_srq`. Answered by [`Reply::Srq`]. `EINVAL` if a
    /// capacity is 0 or above the device's limit, or the limit above the capacity.
    CreateSrq {
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
        srq: SrqHandle,
        /// Work requests it must hold at least.
        max_wr: Option<u32>,
        /// The new limit; 0 disarms.
        limit: Option<u32>,
    },
    /// Asks what a shared receive queue holds: `ibv_query_srq`. Answered by [`Reply::SrqAttr`].
    QuerySrq { srq: SrqHandle },
    /// Destroys a shared receive queue: `ibv_destroy_srq`. Answered by [`Reply::Done`]. `EBUSY`
    /// while a QP uses it.
    DestroySrq { srq: SrqHandle },
    /// Makes an address handle: `ibv_create_ah`. Answered by [`Reply::Ah`]. `EINVAL` if the path
    /// makes no sense.
    CreateAh {
        pd: PdHandle,
        /// The path; the destination may be a multicast group.
        av: AddressVector,
    },
    /// Destroys an address handle: `ibv_destroy_ah`. Answered by [`Reply::Done`].
    DestroyAh { ah: AhHandle },
    /// Makes a memory window, bound to nothing: `ibv_alloc_mw`. Answered by [`Reply::Mw`].
    AllocMw {
        pd: PdHandle,
        /// Its kind.
        mw_type: MwType,
    },
    /// Frees a memory window, bound or not: `ibv_dealloc_mw`. Answered by [`Reply::Done`].
    DeallocMw { mw: MwHandle },
    /// Lets a UD queue pair receive what is sent to a multicast group: `ibv_attach_mcast`.
    /// Answered by [`Reply::Done`], also when it is attached already. `EINVAL` if the queue pair
    /// is not UD or the GID is no multicast address; what the system says if it does not let the
    /// port join the group.
    AttachMcast {
        qp: QpHandle,
        /// The group.
        gid: Gid,
    },
    /// Takes that back: `ibv_detach_mcast`. Answered by [`Reply::Done`]. `EINVAL` if it is not
    /// attached.
    DetachMcast {
        qp: QpHandle,
        /// The group.
        gid: Gid,
    },
    /// Makes a queue pair in the RESET state: `ibv_create_qp`. Answered by [`Reply::Qp`].
    /// `EINVAL` if a capacity is above the device's limit, or if the CQs are of another context
    /// than the protection domain, or the SRQ is.
    CreateQp {
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
        qp: QpHandle,
        /// What is to change.
        attr: QpAttr,
    },
    /// Asks for a queue pair's state and attributes: `ibv_query_qp`. Answered by
    /// [`Reply::QpAttr`].
    QueryQp { qp: QpHandle },
    /// Asks why a work request of a queue pair has failed, which has completed with this
    /// `vendor_err`. Answered by [`Reply::Reason`].
    ExplainFailure {
        qp: QpHandle,
        /// `vendor_err` of its completion.
        cause: u32,
    },
    /// Destroys a queue pair: `ibv_destroy_qp`. Once answered, its rings are no more, and no
    /// further completion of it appears. Answered by [`Reply::Done`].
    DestroyQp { qp: QpHandle },
    /// Asks what objects of one kind a device has, of those that may be seen: one's own user's, or
    /// all for root and the user that the daemon runs as. Needs no context. Answered by
    /// [`Reply::Resources`], page by page. `ENODEV` if there is no such device.
    Resources {
        /// The device's name.
        device: String,
        /// What kind of object.
        kind: ResourceKind,
        /// Where the page begins.
        from: Cursor,
    },
    /// Asks what a device knows of its ways to peers: windows, rates, round trips. Root and the
    /// user that the daemon runs as see all of them, others none. Needs no context. Answered by
    /// [`Reply::Paths`], page by page. `ENODEV` if there is no such device.
    Paths {
        /// The device's name.
        device: String,
        /// Where the page begins.
        from: Cursor,
    },
    /// Asks what happened to QPs, of those that may be seen as with
    /// [`Resources`](Self::Resources): retries, NAKs, drops, changes of state and the first error,
    /// each with its time. Needs no context. Answered by [`Reply::Histories`], page by page.
    /// `ENODEV` if there is no such device.
    Histories {
        /// The device's name.
        device: String,
        /// Of which QPs.
        of: HistorySubject,
        /// Where the page begins.
        from: Cursor,
    },
    /// Asks for a device's counters, and those of the QPs that may be seen: one's own user's, or
    /// all for root and the user that the daemon runs as. Needs no context. Answered by
    /// [`Reply::Stats`], page by page. `ENODEV` if there is no such device.
    Stats {
        /// The device's name.
        device: String,
        /// Where the page begins.
        from: Cursor,
    },
    /// Asks something of the connection manager. Answered by [`Reply::Done`], or by [`Reply::Cm`]
    /// if there is more to tell.
    Cm(CmRequest),
    /// The same in the name of one event channel: `EINVAL` if the id or the membership that it is
    /// about is in another. So the kernel has it, where a channel is an open file.
    CmWithin {
        channel: CmChannelHandle,
        /// What is asked.
        request: CmRequest,
    },
    /// Begins to capture packets as they are sent and received, and what became of them: those of
    /// QPs that may be seen, one's own user's, or all, with those of QP1 and of no QP, for root and
    /// the user that the daemon runs as. Goes on until the session ends. Answered by
    /// [`Reply::CaptureBegun`]. `EINVAL` if a list is too long, or an opcode does not exist;
    /// `ENODEV` if there is no such device; `EBUSY` if the session captures already, or too many
    /// of the user's or of all do.
    BeginCapture(CaptureSpec),
    /// Asks for a stream of what is captured that was not handed out yet: there is one for each
    /// data path and device, and more may come while programs do. Answered by
    /// [`Reply::CaptureStream`]. `EINVAL` if the session does not capture.
    NextCaptureStream,
    /// Asks for a slot that this process runs itself, and for a session in it: the only request of
    /// its connection, in the place of [`Request::Hello`]. Answered by [`Reply::HostSlot`]. `EPERM`
    /// if the user is not the daemon's own; `EOPNOTSUPP` if one slot serves all programs of this
    /// daemon; `ENOSPC` if there is no slot left.
    HostSlot,
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
    Process {
        /// Why it is not shared, for people.
        why: WhyCopied,
    },
    /// The whole pages of the memory are part of a memfd that comes with the request, as with
    /// [`Backing::Shared`]. What lies before and behind them, in pages with something else of the
    /// program's, is reached as with [`Backing::Process`].
    WholePages {
        /// Where in the memfd they begin, in bytes.
        offset: u64,
        /// Bytes of the registered memory before them.
        before: u64,
        /// Bytes of them, at least 1.
        len: u64,
    },
}

/// Why registered memory is reached by system calls, which copy, and not mapped by the daemon.
/// A word each; what a program could do about it is in the documentation of
/// [`remap`](crate::memory::remap).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum WhyCopied {
    /// Nobody asked for anything else: a Rust program without `URXE_MR=remap`, any with
    /// `URXE_MR=copy`.
    NotAsked,
    /// Less than 4 KiB.
    Short,
    /// Not whole pages: something else of the program lies in the first or in the last. If there
    /// are enough whole ones between them, those are mapped.
    PartialPages,
    /// Longer than what is remapped without being asked for.
    Long,
    /// Its pages are to come on demand.
    OnDemand,
    /// Not private anonymous memory that can be read and written: a file, shared memory, huge
    /// pages.
    OtherMemory,
    /// The stack of the thread that registers it.
    OwnStack,
    /// The program has several threads, and is not privileged.
    Threads,
    /// Some of it is registered already, and is reached by system calls.
    RegisteredBefore,
    /// Somebody may hold on to its pages: `io_uring`, a real RDMA device, a GPU, `mlock`.
    PagesHeld,
    /// As much is mapped as can be: by the program, or by the daemon.
    TooMany,
    /// The thread that registers it was just remapping something.
    Busy,
    /// The system refused.
    System,
}
