//! A daemon, and a program that asks it anything, in any order, with any descriptors.

use super::Input;
use rustix::event::EventfdFlags;
use rustix::fs::MemfdFlags;
use rustix::pipe::PipeFlags;
use std::cell::Cell;
use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use urxe_daemon::{Config, Daemon, Handle};
use urxe_shm::control::channel::{Channel, ChannelError};
use urxe_shm::control::{
    AhHandle, Backing, CmChannelHandle, CmConnParam, CmIdHandle, CmMulticastHandle, CmPortSpace,
    CmRequest, CompChannelHandle, ContextHandle, CqHandle, Cursor, MAX_MESSAGE, MrHandle, MwHandle,
    PdHandle, QpCaps, QpHandle, Reply, Request, ResourceKind, SrqAttr, SrqHandle, WhyCopied,
    decode,
};
use urxe_shm::memory::process_memory;
use urxe_types::{
    Access, AddressVector, Gid, MwType, PathMtu, Psn, Qkey, QpAttr, QpState, QpType, Qpn,
};

/// Requests of one run.
const REQUESTS: usize = 100;

/// Requests that a program has outstanding at most. To wait for each reply takes far longer than to
/// answer a request, and a program need not.
const MAX_OUTSTANDING: usize = 32;

/// Requests that were sent in this process.
static ASKED: AtomicU64 = AtomicU64::new(0);

/// How many requests the inputs of this process have come to so far.
pub fn asked() -> u64 {
    ASKED.load(Ordering::Relaxed)
}

/// The daemon of this process, and its address.
fn daemon() -> &'static (Handle, IpAddr) {
    static DAEMON: OnceLock<(Handle, IpAddr)> = OnceLock::new();
    DAEMON.get_or_init(|| {
        let process = std::process::id();
        let [.., high, low] = process.to_be_bytes();
        let addr = Ipv4Addr::new(127, 77, high, low.clamp(1, 254)).into();
        let mut config = Config::new([addr]);
        config.socket = socket();
        // It has one program at a time, and the next.
        config.slots = 1;
        (Daemon::start(config).expect("a daemon can be started"), addr)
    })
}

fn socket() -> PathBuf {
    std::env::temp_dir().join(format!("urxe-fuzz-{}/urxed.sock", std::process::id()))
}

/// A program.
struct Program {
    channel: Channel,
    /// What it has asked and has no reply to yet.
    outstanding: VecDeque<Request>,
    /// Descriptors that came with replies: to have them again with requests is one more thing to
    /// try.
    fds: Vec<OwnedFd>,
}

impl Program {
    fn new() -> Program {
        let channel = Channel::connect(daemon().0.socket());
        let channel = channel.expect("the daemon takes connections");
        Program { channel, outstanding: VecDeque::new(), fds: Vec::new() }
    }

    /// One that has done nothing wrong, and is served.
    fn honest() -> Program {
        let mut program = Program::new();
        let own = process_memory::open_own().expect("one's own memory can be opened");
        let hello = Request::Hello { program: "fuzzed".into() };
        let from = Cursor { slot: 0, after: None };
        // What the broker is asked too, and makes nothing that stays.
        let shown = Request::Resources { device: "urxe0".into(), kind: ResourceKind::Mr, from };
        for (request, with) in [(hello, Some(own.as_fd())), (shown, None)] {
            let answer = program.channel.call(&request, with.as_slice());
            let (reply, _) = answer.expect("who does nothing wrong is answered");
            assert!(!matches!(reply, Reply::Error(_)), "{request:?} was refused: {reply:?}");
        }
        program
    }

    /// Asks, and takes all replies once `max_outstanding` of them are missing. `Err` when the
    /// daemon has ended the session.
    fn ask(
        &mut self,
        request: Request,
        fds: &[BorrowedFd<'_>],
        max_outstanding: usize,
    ) -> Result<(), ChannelError> {
        self.channel.send(&request, fds)?;
        ASKED.fetch_add(1, Ordering::Relaxed);
        self.outstanding.push_back(request);
        if self.outstanding.len() < max_outstanding { Ok(()) } else { self.take_replies() }
    }

    /// Takes the replies to all that was asked.
    fn take_replies(&mut self) -> Result<(), ChannelError> {
        while let Some(request) = self.outstanding.pop_front() {
            let (reply, fds) = self.channel.recv()?;
            self.fds.extend(fds);
            self.fds.truncate(8);
            if let Reply::Error(error) = reply {
                assert!(!error.message.is_empty(), "{request:?} was refused without a word");
            }
        }
        Ok(())
    }
}

/// A descriptor of a kind that a program may have.
fn descriptor(input: &mut Input<'_>) -> Option<OwnedFd> {
    Some(match input.u8() % 8 {
        0 => process_memory::open_own().ok()?,
        1 => {
            let memfd = rustix::fs::memfd_create("fuzzed", MemfdFlags::ALLOW_SEALING).ok()?;
            rustix::fs::ftruncate(&memfd, u64::from(input.u16()) * 64).ok()?;
            memfd
        }
        2 => rustix::pipe::pipe_with(PipeFlags::NONBLOCK).ok()?.0,
        3 => rustix::pipe::pipe_with(PipeFlags::NONBLOCK).ok()?.1,
        4 => rustix::event::eventfd(0, EventfdFlags::NONBLOCK).ok()?,
        5 => std::fs::File::open("/dev/zero").ok()?.into(),
        6 => std::fs::File::open("/proc/self/maps").ok()?.into(),
        _ => std::net::UdpSocket::bind("127.0.0.1:0").ok()?.into(),
    })
}

/// A handle: mostly one of the few that there may be.
fn handle(input: &mut Input<'_>) -> u32 {
    match input.u8() {
        number @ 0..240 => u32::from(number % 8),
        _ => input.u32(),
    }
}

fn socket_addr(input: &mut Input<'_>) -> SocketAddr {
    let ip = match input.u8() % 4 {
        0 => Ipv4Addr::UNSPECIFIED.into(),
        1 => Ipv6Addr::LOCALHOST.into(),
        _ => daemon().1,
    };
    SocketAddr::new(ip, 20_000 + u16::from(input.u8() % 4))
}

fn path(input: &mut Input<'_>) -> AddressVector {
    AddressVector {
        sgid_index: input.u8() % 3,
        traffic_class: input.u8(),
        ..AddressVector::to(socket_addr(input).ip())
    }
}

fn qp_attr(input: &mut Input<'_>) -> QpAttr {
    use QpState::{Err, Init, Reset, Rtr, Rts, Sqd, Sqe};
    let state = input.one_of(&[Init, Rtr, Rts, Init, Rtr, Rts, Err, Reset, Sqd, Sqe]);
    let is = |of| state == of;
    // What a change needs as a rule, less and more than that where the bytes say so.
    let mut attr = QpAttr {
        state: Some(state),
        pkey_index: is(Init).then_some(0),
        port: is(Init).then_some(1),
        access: is(Init).then_some(Access::from_bits_retain(u32::from(input.u8()))),
        av: is(Rtr).then(|| path(input)),
        path_mtu: is(Rtr).then_some(PathMtu::Mtu1024),
        dest_qpn: is(Rtr).then(|| Qpn::new(u32::from(input.u16()))),
        rq_psn: is(Rtr).then_some(Psn::new(0)),
        max_dest_rd_atomic: is(Rtr).then(|| input.u8()),
        min_rnr_timer: is(Rtr).then_some(12),
        sq_psn: is(Rts).then_some(Psn::new(0)),
        max_rd_atomic: is(Rts).then_some(1),
        timeout: is(Rts).then(|| input.u8()),
        retry_cnt: is(Rts).then_some(1),
        rnr_retry: is(Rts).then_some(1),
        ..QpAttr::default()
    };
    match input.u8() {
        0 => attr.qkey = Some(Qkey(1)),
        1 => attr.av = Some(path(input)),
        2 => attr.timeout = None,
        3 => attr.cur_state = Some(input.one_of(&[Init, Rts, Err])),
        4 => attr.path_mtu = Some(PathMtu::Mtu4096),
        _ => {}
    }
    attr
}

/// A page of a list may be asked for that begins nowhere.
fn cursor(input: &mut Input<'_>) -> Cursor {
    Cursor { slot: input.u8() % 4, after: (input.u8() & 1 == 0).then(|| handle(input)) }
}

fn cm_request(input: &mut Input<'_>) -> CmRequest {
    let channel = CmChannelHandle(handle(input));
    let id = CmIdHandle(handle(input));
    match input.u8() % 22 {
        0 | 1 => CmRequest::CreateChannel,
        2 => CmRequest::DestroyChannel { channel },
        3 => CmRequest::GetEvent { channel },
        4..=6 => {
            let space = input.one_of(&[CmPortSpace::Tcp, CmPortSpace::Udp]);
            let qp_type = input.one_of(&[QpType::Rc, QpType::Uc, QpType::Ud]);
            CmRequest::CreateId { channel, user_handle: 1, space, qp_type }
        }
        7 => CmRequest::DestroyId { id },
        8 => CmRequest::MigrateId { id, channel },
        9 => CmRequest::Bind { id, addr: socket_addr(input) },
        10 => CmRequest::Listen { id, backlog: u32::from(input.u8()) },
        11 => {
            let src = (input.u8() & 1 == 0).then(|| socket_addr(input));
            CmRequest::ResolveAddr { id, src, dst: socket_addr(input), timeout_ms: 1 }
        }
        12 => CmRequest::ResolveRoute { id, timeout_ms: 1 },
        13 => CmRequest::Connect { id, param: conn_param(input) },
        14 => CmRequest::Accept { id, user_handle: 2, param: conn_param(input) },
        15 => CmRequest::Establish { id },
        16 => CmRequest::Reject { id, private_data: vec![2; usize::from(input.u8())] },
        17 => CmRequest::Disconnect { id },
        18 => CmRequest::Query { id },
        19 => {
            let state = input.one_of(&[QpState::Init, QpState::Rtr, QpState::Rts]);
            CmRequest::QpAttr { id, state }
        }
        20 => {
            let group = SocketAddr::new(Ipv4Addr::new(239, 1, 2, input.u8() % 4).into(), 1);
            CmRequest::JoinMulticast { id, user_handle: 3, group }
        }
        _ => CmRequest::LeaveMulticast { multicast: CmMulticastHandle(handle(input)) },
    }
}

fn conn_param(input: &mut Input<'_>) -> CmConnParam {
    CmConnParam {
        qpn: u32::from(input.u16()),
        responder_resources: input.u8(),
        initiator_depth: 1,
        private_data: vec![1; usize::from(input.u8() % 70)],
        ..CmConnParam::default()
    }
}

/// A request, mostly one that could be granted.
fn request(input: &mut Input<'_>) -> Request {
    let context = ContextHandle(handle(input));
    let pd = PdHandle(handle(input));
    let cq = CqHandle(handle(input));
    let qp = QpHandle(handle(input));
    let srq = SrqHandle(handle(input));
    match input.u8() % 40 {
        0 => Request::Hello { program: "again".into() },
        1 => Request::ListDevices,
        2..=4 => Request::OpenDevice { name: "urxe0".into() },
        5 => Request::CloseDevice { context },
        6 => Request::QueryPort { context, port: input.u8() % 3 },
        7 => Request::QueryGid { context, port: 1, index: handle(input) },
        8 | 9 => Request::AllocPd { context },
        10 => Request::DeallocPd { pd },
        11 | 12 => Request::RegMr {
            pd,
            addr: input.u64(),
            length: u64::from(input.u32()),
            iova: 0,
            access: Access::from_bits_retain(u32::from(input.u8())),
            backing: match input.u8() & 1 {
                0 => Backing::Shared { offset: u64::from(input.u16()) * 4096 },
                _ => Backing::Process { why: WhyCopied::NotAsked },
            },
        },
        13 => Request::DeregMr { mr: MrHandle(handle(input)) },
        14 => Request::CreateCompChannel { context },
        15 => Request::DestroyCompChannel { channel: CompChannelHandle(handle(input)) },
        16 | 17 => Request::CreateCq {
            context,
            cqe: u32::from(input.u16()),
            channel: (input.u8() & 1 == 0).then(|| CompChannelHandle(handle(input))),
            user_handle: 0,
            comp_vector: u32::from(input.u8() & 1),
        },
        18 => Request::DestroyCq { cq },
        19 => Request::ResizeCq { cq, cqe: u32::from(input.u16()) },
        20 => {
            let max_wr = u32::from(input.u16());
            let attr = SrqAttr { max_wr, max_sge: u32::from(input.u8() % 40), limit: 0 };
            Request::CreateSrq { pd, attr, user_handle: 0 }
        }
        21 => Request::ModifySrq {
            srq,
            max_wr: (input.u8() & 1 == 0).then(|| u32::from(input.u16())),
            limit: (input.u8() & 1 == 0).then(|| u32::from(input.u8())),
        },
        22 => Request::DestroySrq { srq },
        23 => Request::CreateAh { pd, av: path(input) },
        24 => Request::DestroyAh { ah: AhHandle(handle(input)) },
        25 => {
            let mw_type = input.one_of(&[MwType::One, MwType::Two]);
            Request::AllocMw { pd, mw_type }
        }
        26 => Request::DeallocMw { mw: MwHandle(handle(input)) },
        27 => Request::AttachMcast { qp, gid: Gid(input.array()) },
        28 => Request::DetachMcast { qp, gid: Gid(input.array()) },
        29..=31 => Request::CreateQp {
            pd,
            qp_type: input.one_of(&[QpType::Rc, QpType::Uc, QpType::Ud]),
            send_cq: cq,
            recv_cq: CqHandle(handle(input)),
            srq: (input.u8() & 7 == 0).then_some(srq),
            caps: QpCaps {
                max_send_wr: u32::from(input.u8()),
                max_recv_wr: u32::from(input.u8()),
                max_send_sge: u32::from(input.u8() % 40),
                max_recv_sge: u32::from(input.u8() % 40),
                max_inline_data: u32::from(input.u16() % 600),
            },
            sq_sig_all: false,
            user_handle: 0,
        },
        32 | 33 => Request::ModifyQp { qp, attr: qp_attr(input) },
        34 => Request::QueryQp { qp },
        35 => Request::DestroyQp { qp },
        36 => {
            let kind = input.one_of(&[ResourceKind::Qp, ResourceKind::Cq, ResourceKind::Mr]);
            Request::Resources { device: "urxe0".into(), kind, from: cursor(input) }
        }
        37 => Request::Stats { device: "urxe0".into(), from: cursor(input) },
        38 => Request::Cm(cm_request(input)),
        _ => Request::CmWithin {
            channel: CmChannelHandle(handle(input)),
            request: cm_request(input),
        },
    }
}

/// What is sent: a request made of decisions, or bytes that are one by themselves.
fn next_request(input: &mut Input<'_>) -> Option<Request> {
    if input.u8() != 0xff {
        return Some(request(input));
    }
    let len = usize::from(input.u8());
    let mut message = [&b"ux"[..], &urxe_shm::control::PROTOCOL_VERSION.to_le_bytes()].concat();
    message.extend(input.bytes(len));
    message.truncate(MAX_MESSAGE);
    decode(&message).ok()
}

thread_local! {
    /// The program that was served after the last run: this one's.
    static NEXT: Cell<Option<Program>> = const { Cell::new(None) };
}

/// Plays a program as the bytes say, and then has another greet the daemon, which must be served.
pub fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let kind = input.u8();
    let mut program = match kind {
        0xff => Program::new(),
        _ => NEXT.take().unwrap_or_else(Program::honest),
    };
    let max_outstanding = if kind & 7 == 0 { 1 } else { MAX_OUTSTANDING };
    for _ in 0..REQUESTS {
        if input.is_empty() {
            break;
        }
        let Some(request) = next_request(&mut input) else { continue };
        let with = match input.u8() {
            0..=15 => descriptor(&mut input),
            16..=20 => program.fds.pop(),
            _ => None,
        };
        let with: Vec<BorrowedFd<'_>> = with.iter().map(AsFd::as_fd).collect();
        if program.ask(request, &with, max_outstanding).is_err() {
            break;
        }
    }
    // Some end amid what they have asked.
    if kind & 3 != 3 {
        let _ = program.take_replies();
    }
    drop(program);
    NEXT.set(Some(Program::honest()));
}
