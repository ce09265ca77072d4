//! Starting daemons, and being a program with nothing but messages, rings and doorbells, so that a
//! test can also do what no library would.

use rustix::process::{Gid, Uid, geteuid};
use rustix::thread::{set_thread_gid, set_thread_uid};
use std::fs::Permissions;
use std::io::{ErrorKind, Read};
use std::net::{IpAddr, Ipv4Addr};
use std::ops::{Deref, DerefMut};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use urxe_daemon::{Config, Daemon, Handle, StartError};
use urxe_port::OpenError;
use urxe_port::sim;
use urxe_shm::control::channel::Channel;
use urxe_shm::control::event::{EventRecord, RECORD_LEN};
use urxe_shm::control::{
    AhHandle, Backing, CompChannelHandle, ContextHandle, ControlError, CqHandle, Cursor, MrHandle,
    MwHandle, PdHandle, QpCaps, QpCreated, Reply, Request, Resource, ResourceKind, RingLocation,
    SrqAttr, SrqHandle, StatsPage, WhyCopied,
};
use urxe_shm::memory::process_memory;
use urxe_shm::memory::region::{Mapping, Window, create_memfd};
use urxe_shm::ring::doorbell::DoorbellWriter;
use urxe_shm::ring::geometry::Geometry;
use urxe_shm::ring::layout::CqEntry;
use urxe_shm::ring::{CqConsumer, RqProducer, SqProducer};
use urxe_types::{
    Access, AddressVector, AhId, DatagramPath, Destination, Extra, Lkey, MwType, PathMtu, Psn,
    Qkey, QpAttr, QpState, QpType, Qpn, Rkey, SendData, SendOp, SendWr, Sge,
};

/// How long anything may take before a test gives up. No test depends on it to pass.
const WAIT: Duration = Duration::from_secs(60);

/// All rights.
pub(crate) const ALL: Access = Access::from_bits_retain(15);

static NEXT: AtomicU32 = AtomicU32::new(0);

/// An address of the loopback network that nobody else uses, most likely; never one twice.
pub(crate) fn fresh_addr() -> IpAddr {
    let number = std::process::id() * 512 + NEXT.fetch_add(1, Ordering::Relaxed);
    let [net, subnet] = [number / 254 / 256 % 16 + 30, number / 254];
    Ipv4Addr::new(127, net as u8, subnet as u8, (number % 254 + 1) as u8).into()
}

/// A path for a socket that nobody else uses.
pub(crate) fn fresh_path() -> PathBuf {
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    std::env::temp_dir().join(format!("urxed-test-{}-{number}.sock", std::process::id()))
}

/// A user that nobody else is.
pub(crate) fn fresh_uid() -> u32 {
    1_000_000 + std::process::id() % 100_000 * 1000 + NEXT.fetch_add(1, Ordering::Relaxed) % 1000
}

/// Starts a daemon with so many devices.
pub(crate) fn start(devices: usize) -> Handle {
    start_with(devices, |_| ())
}

/// Starts a daemon with so many devices and something special.
pub(crate) fn start_with(devices: usize, special: impl Fn(&mut Config)) -> Handle {
    try_start(devices, special).unwrap_or_else(|error| panic!("{error}"))
}

/// Starts a daemon, if nothing but an address that somebody else has is in the way.
pub(crate) fn try_start(
    devices: usize,
    special: impl Fn(&mut Config),
) -> Result<Handle, StartError> {
    loop {
        let mut config = Config::new((0..devices).map(|_| fresh_addr()));
        config.socket = fresh_path();
        // As in `urxed` itself.
        config.worker = Some(env!("CARGO_BIN_EXE_urxed").into());
        special(&mut config);
        match Daemon::start(config) {
            Err(StartError::Port(OpenError::PortTaken { .. })) => {}
            result => return result,
        }
    }
}

/// What can be read from an event pipe now.
pub(crate) fn read_events(pipe: &OwnedFd) -> Vec<EventRecord> {
    rustix::io::ioctl_fionbio(pipe, true).unwrap();
    let mut records = Vec::new();
    let mut bytes = [0; RECORD_LEN];
    while rustix::io::read(pipe, &mut bytes).is_ok_and(|len| len == RECORD_LEN) {
        records.push(EventRecord::from_bytes(bytes));
    }
    records
}

/// Waits until something is the case.
pub(crate) fn eventually<T>(what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    let since = Instant::now();
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(since.elapsed() < WAIT, "never happened: {what}");
        std::thread::yield_now();
    }
}

/// A process that does not outlive its test, and that a test does not wait for in vain.
pub(crate) struct Running(Child);

impl Running {
    pub(crate) fn start(command: &mut Command) -> Running {
        Running(eventually("the program can be started", || match command.spawn() {
            // Another test forks while this one has written the program: its child has that file
            // open until it is another program.
            Err(error) if error.kind() == ErrorKind::ExecutableFileBusy => None,
            child => Some(child.unwrap()),
        }))
    }

    /// Waits until it has ended.
    pub(crate) fn wait(&mut self) -> ExitStatus {
        eventually("the process ended", || self.0.try_wait().unwrap())
    }

    /// What it has said on a piped standard error, once it has ended.
    pub(crate) fn rest_of_stderr(&mut self) -> String {
        let mut said = String::new();
        self.0.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        said
    }
}

impl Deref for Running {
    type Target = Child;

    fn deref(&self) -> &Child {
        &self.0
    }
}

impl DerefMut for Running {
    fn deref_mut(&mut self) -> &mut Child {
        &mut self.0
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A program with a session.
pub(crate) struct Client {
    pub(crate) channel: Channel,
    /// The memory shared with the daemon.
    pub(crate) memory: Arc<Mapping>,
    doorbells: DoorbellWriter,
    wake: OwnedFd,
}

impl Client {
    /// Connects and says hello.
    pub(crate) fn connect(socket: &Path) -> Client {
        Client::over(Channel::connect(socket).unwrap())
    }

    /// As [`connect`](Self::connect), as a program of another user than root.
    pub(crate) fn of_ordinary_user(socket: &Path) -> Client {
        Client::of_user(socket, 65_534)
    }

    /// As [`connect`](Self::connect), as a program of a user, if we are root.
    pub(crate) fn of_user(socket: &Path, uid: u32) -> Client {
        Client::over(Client::channel_of_user(socket, uid).unwrap())
    }

    /// A connection of a program of a user, if we are root, if there can be one.
    pub(crate) fn channel_of_user(socket: &Path, uid: u32) -> Option<Channel> {
        let socket = socket.to_owned();
        std::fs::set_permissions(&socket, Permissions::from_mode(0o666)).unwrap();
        let connect = move || {
            if geteuid().is_root() {
                // Of this thread alone, and for good.
                set_thread_gid(Gid::from_raw(uid)).unwrap();
                set_thread_uid(Uid::from_raw(uid)).unwrap();
            }
            Channel::connect(&socket).ok()
        };
        std::thread::spawn(connect).join().unwrap()
    }

    fn over(channel: Channel) -> Client {
        Client::try_over(channel).unwrap()
    }

    /// Says hello, if it is served.
    pub(crate) fn try_over(mut channel: Channel) -> Option<Client> {
        let own = process_memory::open_own().unwrap();
        let hello = Request::Hello { program: "test".into() };
        let (reply, fds) = channel.call(&hello, &[own.as_fd()]).ok()?;
        let Reply::Hello { memory_limit } = reply else { return None };
        let [memfd, wake] = <[OwnedFd; 2]>::try_from(fds).unwrap();
        let memory = Arc::new(Mapping::new(memfd, 0, memory_limit as usize).unwrap());
        let doorbells = DoorbellWriter::new(memory.clone()).unwrap();
        Some(Client { channel, memory, doorbells, wake })
    }

    /// Asks something.
    pub(crate) fn call_with(
        &mut self,
        request: &Request,
        fds: &[BorrowedFd<'_>],
    ) -> Result<(Reply, Vec<OwnedFd>), ControlError> {
        match self.channel.call(request, fds).unwrap() {
            (Reply::Error(error), _) => Err(error),
            answer => Ok(answer),
        }
    }

    /// Asks something without descriptors.
    pub(crate) fn call(&mut self, request: Request) -> Result<Reply, ControlError> {
        self.call_with(&request, &[]).map(|(reply, _)| reply)
    }

    pub(crate) fn open(&mut self, device: &str) -> ContextHandle {
        self.open_with_events(device).0
    }

    pub(crate) fn open_with_events(&mut self, device: &str) -> (ContextHandle, OwnedFd) {
        let request = Request::OpenDevice { name: device.into() };
        match self.call_with(&request, &[]).unwrap() {
            (Reply::Context(context), mut fds) => (context, fds.pop().unwrap()),
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn alloc_pd(&mut self, context: ContextHandle) -> PdHandle {
        match self.call(Request::AllocPd { context }).unwrap() {
            Reply::Pd(pd) => pd,
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn comp_channel(&mut self, context: ContextHandle) -> (CompChannelHandle, OwnedFd) {
        match self.call_with(&Request::CreateCompChannel { context }, &[]).unwrap() {
            (Reply::CompChannel(channel), mut fds) => (channel, fds.pop().unwrap()),
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn create_cq(
        &mut self,
        context: ContextHandle,
        cqe: u32,
        channel: Option<CompChannelHandle>,
    ) -> Cq {
        let request =
            Request::CreateCq { context, cqe, channel, user_handle: 0xc0, comp_vector: 0 };
        let Reply::Cq { cq, cqe, ring } = self.call(request).unwrap() else { panic!() };
        let geometry = Geometry::completion(cqe).unwrap();
        let window = Window::new(self.memory.clone(), ring.offset, ring.size.into()).unwrap();
        Cq { handle: cq, ring: CqConsumer::attach(window, geometry).unwrap(), offset: ring.offset }
    }

    /// Gives a CQ another size, and goes on with its new ring.
    pub(crate) fn resize_cq(&mut self, cq: &mut Cq, cqe: u32) -> Result<u32, ControlError> {
        let reply = self.call(Request::ResizeCq { cq: cq.handle, cqe })?;
        let Reply::CqResized { cqe, ring } = reply else { panic!("{reply:?}") };
        let geometry = Geometry::completion(cqe).unwrap();
        let window = Window::new(self.memory.clone(), ring.offset, ring.size.into()).unwrap();
        cq.ring = CqConsumer::attach(window, geometry).unwrap();
        cq.offset = ring.offset;
        Ok(cqe)
    }

    /// All objects of a kind, page by page.
    pub(crate) fn resources(&mut self, device: &str, kind: ResourceKind) -> Vec<Resource> {
        let (mut all, mut from) = (Vec::new(), Cursor::default());
        loop {
            let request = Request::Resources { device: device.into(), kind, from };
            let Reply::Resources(page) = self.call(request).unwrap() else { panic!() };
            all.extend(page.resources);
            match page.next {
                Some(next) => from = next,
                None => return all,
            }
        }
    }

    pub(crate) fn try_create_qp(
        &mut self,
        pd: PdHandle,
        send_cq: CqHandle,
        recv_cq: CqHandle,
        caps: QpCaps,
    ) -> Result<QpCreated, ControlError> {
        let reply = self.call(Request::CreateQp {
            pd,
            qp_type: QpType::Rc,
            send_cq,
            recv_cq,
            srq: None,
            caps,
            sq_sig_all: true,
            user_handle: 0xaa,
        })?;
        let Reply::Qp(created) = reply else { panic!("{reply:?}") };
        Ok(created)
    }

    pub(crate) fn create_qp(&mut self, pd: PdHandle, cq: CqHandle, caps: QpCaps) -> Qp {
        let created = self.try_create_qp(pd, cq, cq, caps).unwrap();
        self.qp(created)
    }

    /// A QP of any type, with or without an SRQ; its events carry 0xaa.
    pub(crate) fn create_qp_of(
        &mut self,
        pd: PdHandle,
        cq: CqHandle,
        qp_type: QpType,
        srq: Option<SrqHandle>,
    ) -> Result<Qp, ControlError> {
        let reply = self.call(Request::CreateQp {
            pd,
            qp_type,
            send_cq: cq,
            recv_cq: cq,
            srq,
            caps: CAPS,
            sq_sig_all: true,
            user_handle: 0xaa,
        })?;
        let Reply::Qp(created) = reply else { panic!("{reply:?}") };
        Ok(self.qp(created))
    }

    /// The program's ends of a QP.
    fn qp(&self, created: QpCreated) -> Qp {
        let caps = created.caps;
        let send =
            Geometry::send(caps.max_send_wr, caps.max_send_sge, caps.max_inline_data).unwrap();
        let recv = Geometry::recv(caps.max_recv_wr, caps.max_recv_sge).unwrap();
        Qp {
            sq: SqProducer::attach(self.window(created.send_ring), send).unwrap(),
            rq: created.recv_ring.map(|ring| RqProducer::attach(self.window(ring), recv).unwrap()),
            created,
        }
    }

    /// Where a ring lies.
    fn window(&self, ring: RingLocation) -> Window {
        Window::new(self.memory.clone(), ring.offset, ring.size.into()).unwrap()
    }

    /// An SRQ for receives of up to 4 SGEs; its events carry 0x5c.
    pub(crate) fn create_srq(&mut self, pd: PdHandle, max_wr: u32) -> Srq {
        let attr = SrqAttr { max_wr, max_sge: 4, limit: 0 };
        let request = Request::CreateSrq { pd, attr, user_handle: 0x5c };
        let Reply::Srq { srq, srqn, attr, ring } = self.call(request).unwrap() else { panic!() };
        let geometry = Geometry::recv(attr.max_wr, attr.max_sge).unwrap();
        let producer = RqProducer::attach(self.window(ring), geometry).unwrap();
        Srq { handle: srq, number: srqn, attr, ring: producer, offset: ring.offset }
    }

    /// Changes an SRQ, and goes on with its new ring if there is one.
    pub(crate) fn modify_srq(
        &mut self,
        srq: &mut Srq,
        max_wr: Option<u32>,
        limit: Option<u32>,
    ) -> Result<SrqAttr, ControlError> {
        let reply = self.call(Request::ModifySrq { srq: srq.handle, max_wr, limit })?;
        let Reply::SrqModified { attr, ring } = reply else { panic!("{reply:?}") };
        assert_eq!(ring.is_some(), max_wr.is_some());
        if let Some(ring) = ring {
            let geometry = Geometry::recv(attr.max_wr, attr.max_sge).unwrap();
            srq.ring = RqProducer::attach(self.window(ring), geometry).unwrap();
            srq.offset = ring.offset;
        }
        srq.attr = attr;
        Ok(attr)
    }

    /// A memory window, and its first rkey.
    pub(crate) fn alloc_mw(&mut self, pd: PdHandle, mw_type: MwType) -> (MwHandle, Rkey) {
        match self.call(Request::AllocMw { pd, mw_type }).unwrap() {
            Reply::Mw { mw, rkey } => (mw, rkey),
            other => panic!("{other:?}"),
        }
    }

    /// The number of a new address handle in work requests.
    pub(crate) fn create_ah(&mut self, pd: PdHandle, to: IpAddr) -> (AhHandle, AhId) {
        let Reply::Ah { ah, ah_num } = self.call(Request::CreateAh { pd, av: av(to) }).unwrap()
        else {
            panic!()
        };
        assert_ne!(ah_num, AhId(0));
        (ah, ah_num)
    }

    pub(crate) fn modify(&mut self, qp: &Qp, attr: QpAttr) -> Result<(), ControlError> {
        self.call(Request::ModifyQp { qp: qp.created.qp, attr }).map(|_| ())
    }

    pub(crate) fn state(&mut self, qp: &Qp) -> QpState {
        match self.call(Request::QueryQp { qp: qp.created.qp }).unwrap() {
            Reply::QpAttr(queried) => queried.attr.state.unwrap(),
            other => panic!("{other:?}"),
        }
    }

    /// Registers memory that is shared with the daemon.
    pub(crate) fn shared_mr(&mut self, pd: PdHandle, len: usize) -> Mr {
        self.mr_with(pd, Kind::Shared, len, ALL)
    }

    /// Registers any memory.
    pub(crate) fn process_mr(&mut self, pd: PdHandle, len: usize) -> Mr {
        self.mr_with(pd, Kind::Process, len, ALL)
    }

    /// Registers memory with these rights.
    pub(crate) fn mr_with(&mut self, pd: PdHandle, kind: Kind, len: usize, access: Access) -> Mr {
        match kind {
            Kind::Shared => self.shared_mr_with(pd, len, access),
            Kind::Process => self.process_mr_with(pd, len, access),
        }
    }

    fn shared_mr_with(&mut self, pd: PdHandle, len: usize, access: Access) -> Mr {
        let memfd = create_memfd("test", len as u64).unwrap();
        let mapping = Mapping::new(&memfd, 0, len).unwrap();
        let addr = mapping.base().addr().get() as u64;
        let request = Request::RegMr {
            pd,
            addr,
            length: len as u64,
            iova: addr,
            access,
            backing: Backing::Shared { offset: 0 },
        };
        let (reply, _) = self.call_with(&request, &[memfd.as_fd()]).unwrap();
        let Reply::Mr { mr, lkey, rkey } = reply else { panic!("{reply:?}") };
        Mr { handle: mr, lkey, rkey, addr, memory: Memory::Shared(mapping) }
    }

    fn process_mr_with(&mut self, pd: PdHandle, len: usize, access: Access) -> Mr {
        // Never given back: a daemon may write there until it notices that its program is gone,
        // and here the program's memory is everybody's.
        let addr = Vec::leak(vec![0u8; len]).as_mut_ptr() as u64;
        let request = Request::RegMr {
            pd,
            addr,
            length: len as u64,
            iova: addr,
            access,
            backing: Backing::Process { why: WhyCopied::NotAsked },
        };
        let Reply::Mr { mr, lkey, rkey } = self.call(request).unwrap() else { panic!() };
        let own = process_memory::open_own().unwrap();
        let own = process_memory::ProcessMemory::accept(own).unwrap();
        Mr { handle: mr, lkey, rkey, addr, memory: Memory::Process(own) }
    }

    /// Rings a QP's doorbell.
    pub(crate) fn ring(&self, qp: &Qp) {
        self.ring_slot(qp.created.doorbell_slot);
    }

    pub(crate) fn ring_slot(&self, slot: u32) {
        if self.doorbells.ring(slot) {
            rustix::io::write(&self.wake, &1u64.to_ne_bytes()).unwrap();
        }
    }

    /// All pages of a device's statistics.
    pub(crate) fn stats(&mut self, device: &str) -> StatsPage {
        let mut all = StatsPage::default();
        let mut from = Cursor::default();
        loop {
            let request = Request::Stats { device: device.into(), from };
            let Reply::Stats(page) = self.call(request).unwrap() else { panic!() };
            if from == Cursor::default() {
                all.device = page.device;
                all.qp_counters = page.qp_counters;
            }
            all.qps.extend(page.qps);
            match page.next {
                Some(next) => from = next,
                None => return all,
            }
        }
    }

    /// A counter of a device.
    pub(crate) fn counter(&mut self, device: &str, name: &str) -> u64 {
        let stats = self.stats(device);
        let found = stats.device.iter().find(|(info, _)| info.name == name);
        found.unwrap_or_else(|| panic!("no counter {name}")).1
    }
}

pub(crate) struct Cq {
    pub(crate) handle: CqHandle,
    pub(crate) ring: CqConsumer,
    /// Where the ring lies in the session's memory.
    pub(crate) offset: u64,
}

impl Cq {
    /// What is there now.
    pub(crate) fn poll(&mut self) -> Vec<CqEntry> {
        let mut entries = Vec::new();
        self.ring.poll(64, |entry| entries.push(*entry)).unwrap();
        entries
    }

    /// Waits for so many completions.
    pub(crate) fn wait(&mut self, count: usize) -> Vec<CqEntry> {
        let mut entries = Vec::new();
        eventually(&format!("{count} completions"), || {
            entries.extend(self.poll());
            (entries.len() >= count).then_some(())
        });
        assert_eq!(entries.len(), count, "{entries:?}");
        entries
    }
}

pub(crate) struct Qp {
    pub(crate) created: QpCreated,
    pub(crate) sq: SqProducer,
    /// None if it has an SRQ.
    rq: Option<RqProducer>,
}

impl Qp {
    pub(crate) fn rq(&mut self) -> &mut RqProducer {
        self.rq.as_mut().expect("a QP with an SRQ has no receive queue")
    }
}

pub(crate) struct Srq {
    pub(crate) handle: SrqHandle,
    pub(crate) number: u32,
    pub(crate) attr: SrqAttr,
    pub(crate) ring: RqProducer,
    /// Where the ring lies in the session's memory.
    pub(crate) offset: u64,
}

impl Srq {
    pub(crate) fn post(&mut self, wr_id: u64, sges: &[Sge]) {
        self.ring.push(wr_id, sges).unwrap();
        assert!(!self.ring.publish(), "an SRQ has no doorbell");
    }
}

/// Registered memory.
pub(crate) struct Mr {
    pub(crate) handle: MrHandle,
    pub(crate) lkey: Lkey,
    pub(crate) rkey: Rkey,
    pub(crate) addr: u64,
    memory: Memory,
}

enum Memory {
    Shared(Mapping),
    /// Touched through the descriptor, because another thread writes there behind Rust's back.
    Process(process_memory::ProcessMemory),
}

impl Mr {
    pub(crate) fn read(&self, offset: usize, len: usize) -> Vec<u8> {
        let mut buf = vec![0; len];
        match &self.memory {
            Memory::Shared(mapping) => mapping.read(offset as u64, &mut buf).unwrap(),
            Memory::Process(own) => own.read(self.addr + offset as u64, &mut buf).unwrap(),
        }
        buf
    }

    pub(crate) fn write(&self, offset: usize, data: &[u8]) {
        match &self.memory {
            Memory::Shared(mapping) => mapping.write(offset as u64, data).unwrap(),
            Memory::Process(own) => own.write(self.addr + offset as u64, data).unwrap(),
        }
    }

    pub(crate) fn sge(&self, offset: usize, length: usize) -> Sge {
        Sge { addr: self.addr + offset as u64, length: length as u32, lkey: self.lkey }
    }
}

/// How a test wants its memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Shared,
    Process,
}

/// One program with one QP and one MR: half of a connection.
pub(crate) struct End {
    pub(crate) client: Client,
    pub(crate) addr: IpAddr,
    pub(crate) context: ContextHandle,
    pub(crate) events: OwnedFd,
    pub(crate) pd: PdHandle,
    pub(crate) cq: Cq,
    pub(crate) qp: Qp,
    pub(crate) mr: Mr,
}

pub(crate) const CAPS: QpCaps = QpCaps {
    max_send_wr: 127,
    max_recv_wr: 127,
    max_send_sge: 4,
    max_recv_sge: 4,
    max_inline_data: 128,
};

impl End {
    pub(crate) fn new(daemon: &Handle, device: usize, kind: Kind, len: usize) -> End {
        End::at(daemon.socket(), &daemon.devices()[device].name, kind, len)
    }

    /// A program of a daemon that may be anywhere.
    pub(crate) fn at(socket: &Path, device: &str, kind: Kind, len: usize) -> End {
        End::of_type(socket, device, QpType::Rc, kind, len)
    }

    /// A program with a QP of this type.
    pub(crate) fn of_type(
        socket: &Path,
        device: &str,
        qp_type: QpType,
        kind: Kind,
        len: usize,
    ) -> End {
        End::with(Client::connect(socket), device, qp_type, kind, len)
    }

    /// What this program makes at a device.
    pub(crate) fn with(
        mut client: Client,
        device: &str,
        qp_type: QpType,
        kind: Kind,
        len: usize,
    ) -> End {
        let (context, events) = client.open_with_events(device);
        let query = Request::QueryGid { context, port: 1, index: 0 };
        let Ok(Reply::Gid(gid)) = client.call(query) else { panic!() };
        let pd = client.alloc_pd(context);
        let cq = client.create_cq(context, 511, None);
        let qp = client.create_qp_of(pd, cq.handle, qp_type, None).unwrap();
        let mr = match kind {
            Kind::Shared => client.shared_mr(pd, len),
            Kind::Process => client.process_mr(pd, len),
        };
        End { client, addr: gid.to_ip(), context, events, pd, cq, qp, mr }
    }

    /// Takes the QP through INIT and RTR to RTS.
    pub(crate) fn connect(&mut self, peer: IpAddr, peer_qpn: Qpn) {
        for attr in attrs(peer, peer_qpn) {
            self.client.modify(&self.qp, attr).unwrap();
        }
    }

    /// A program with a UD QP that is ready.
    pub(crate) fn datagram(daemon: &Handle, device: usize, kind: Kind, len: usize) -> End {
        let device = &daemon.devices()[device].name;
        let mut end = End::of_type(daemon.socket(), device, QpType::Ud, kind, len);
        for attr in datagram_attrs() {
            end.client.modify(&end.qp, attr).unwrap();
        }
        end
    }

    /// Posts a datagram.
    pub(crate) fn post_datagram(&mut self, wr_id: u64, to: Destination, data: SendData<'_>) {
        let op = SendOp::Send(Extra::None);
        let (fence, signaled, solicited) = (false, true, false);
        let wr = SendWr { wr_id, op, to: Some(to), fence, signaled, solicited };
        self.qp.sq.push(&wr, data).unwrap();
        self.qp.sq.publish();
        self.client.ring(&self.qp);
    }

    /// Where datagrams for its QP go, told with the work request itself.
    pub(crate) fn destination(&self) -> Destination {
        let path = DatagramPath::Vector(av(self.addr));
        Destination { path, qpn: self.qp.created.qpn, qkey: QKEY }
    }

    pub(crate) fn post_send(&mut self, wr_id: u64, op: SendOp, data: SendData<'_>) {
        let wr = SendWr { wr_id, op, to: None, fence: false, signaled: true, solicited: false };
        self.qp.sq.push(&wr, data).unwrap();
        self.qp.sq.publish();
        self.client.ring(&self.qp);
    }

    pub(crate) fn post_recv(&mut self, wr_id: u64, sges: &[Sge]) {
        self.qp.rq().push(wr_id, sges).unwrap();
        if self.qp.rq().publish() {
            self.client.ring(&self.qp);
        }
    }

    /// Posts something and waits for its completion, which must be a success.
    pub(crate) fn exchange(&mut self, op: SendOp, sges: &[Sge]) -> CqEntry {
        self.post_send(77, op, SendData::Sges(sges));
        let entry = self.cq.wait(1)[0];
        assert_eq!((entry.status, entry.wr_id), (0, 77), "{entry:?}");
        entry
    }
}

/// The way from RESET to RTS.
pub(crate) fn attrs(peer: IpAddr, peer_qpn: Qpn) -> [QpAttr; 3] {
    [
        QpAttr {
            state: Some(QpState::Init),
            access: Some(ALL),
            pkey_index: Some(0),
            port: Some(1),
            ..QpAttr::default()
        },
        QpAttr {
            state: Some(QpState::Rtr),
            av: Some(av(peer)),
            path_mtu: Some(PathMtu::Mtu1024),
            dest_qpn: Some(peer_qpn),
            rq_psn: Some(Psn::new(0xff_fff0)),
            max_dest_rd_atomic: Some(16),
            min_rnr_timer: Some(12),
            ..QpAttr::default()
        },
        QpAttr {
            state: Some(QpState::Rts),
            sq_psn: Some(Psn::new(0xff_fff0)),
            max_rd_atomic: Some(16),
            timeout: Some(17),
            retry_cnt: Some(7),
            rnr_retry: Some(7),
            ..QpAttr::default()
        },
    ]
}

/// The Q_Key of all UD QPs.
pub(crate) const QKEY: Qkey = Qkey(0x1111_1111);

/// The way of a UD QP from RESET to RTS.
pub(crate) fn datagram_attrs() -> [QpAttr; 3] {
    let [init, rtr, rts] = [QpState::Init, QpState::Rtr, QpState::Rts]
        .map(|state| QpAttr { state: Some(state), ..QpAttr::default() });
    [
        QpAttr { pkey_index: Some(0), port: Some(1), qkey: Some(QKEY), ..init },
        rtr,
        QpAttr { sq_psn: Some(Psn::new(0xff_fff0)), ..rts },
    ]
}

/// The way of a UC QP from RESET to RTS.
pub(crate) fn unreliable_attrs(peer: IpAddr, peer_qpn: Qpn) -> [QpAttr; 3] {
    let [init, rtr, rts] = attrs(peer, peer_qpn);
    [
        QpAttr { access: Some(Access::REMOTE_WRITE), ..init },
        QpAttr { max_dest_rd_atomic: None, min_rnr_timer: None, ..rtr },
        QpAttr { state: rts.state, sq_psn: rts.sq_psn, ..QpAttr::default() },
    ]
}

/// The plain path to an address.
pub(crate) fn av(to: IpAddr) -> AddressVector {
    AddressVector::to(to)
}

/// Two connected ends, the first on device 0 of the first daemon, the second on device 0 of the
/// second.
pub(crate) fn connected(first: &Handle, second: &Handle, kind: Kind, len: usize) -> (End, End) {
    let (mut a, mut b) = (End::new(first, 0, kind, len), End::new(second, 0, kind, len));
    a.connect(b.addr, b.qp.created.qpn);
    b.connect(a.addr, a.qp.created.qpn);
    (a, b)
}

/// Bytes that are different everywhere.
pub(crate) fn pattern(len: usize, seed: u64) -> Vec<u8> {
    let mut random = Random::new(seed);
    (0..len).map(|_| random.next() as u8).collect()
}

/// Numbers that look random, the same every time: those of the simulated network.
pub(crate) struct Random(sim::Rng);

impl Random {
    pub(crate) fn new(seed: u64) -> Random {
        Random(sim::Rng::new(seed))
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0.next_u64()
    }

    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    pub(crate) fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| self.next() as u8).collect()
    }
}
