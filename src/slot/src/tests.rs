//! A whole slot, and programs that ask it something.

use crate::link::{DeviceBeginning, DeviceState, Link, LinkState, SlotBeginning, ToBroker, ToSlot};
use crate::numbering::Numbering;
use crate::port_plan::{PortKind, PortPlan, WithinProcess};
use crate::unmapper::{LARGE, LARGE_AT_REQUEST};
use crate::{Runner, RunningSlot, SlotError};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Instant;
use urxe_engine::Tuning;
use urxe_shm::control::channel::{Channel, ChannelError};
use urxe_shm::control::{Backing, ContextHandle, PdHandle, Reply, Request};
use urxe_shm::memory::region::{create_memfd, create_memfd_of_fixed_size};
use urxe_types::{Access, PathMtu};

/// A slot of one device, in a thread of this process.
struct Slot {
    broker: Link<ToSlot, ToBroker>,
    thread: JoinHandle<Result<(), SlotError>>,
    programs: u64,
}

impl Slot {
    /// Every further thread of it calls `first`.
    fn new(first: fn()) -> Slot {
        let (mut broker, socket) = Link::<ToSlot, ToBroker>::pair().unwrap();
        let thread = std::thread::spawn(move || {
            let within = |_| WithinProcess::default();
            RunningSlot::begin(socket, Runner::Daemon, within, first)?.run()
        });
        let start = SlotBeginning {
            slot: 1,
            slots: 2,
            devices: 1,
            tuning: Tuning::default(),
            numbering: Numbering { first: 0, step: 1 },
            max_mapped_mrs: 16,
        };
        let port = PortPlan {
            kind: PortKind::Udp,
            interface: "lo".into(),
            source_ports: 1,
            loopback: true,
            fault: None,
        };
        let state = DeviceState {
            gids: Vec::new(),
            shown_gids: Vec::new(),
            mtu: PathMtu::Mtu1024,
            link: LinkState::default(),
            local_addrs: Vec::new(),
        };
        let device = DeviceBeginning { name: "urxe0".into(), guid: [0; 8], seed: 0, port, state };
        broker.send(Instant::now(), ToSlot::Start(start), Vec::new()).unwrap();
        broker.send(Instant::now(), ToSlot::Open(device), Vec::new()).unwrap();
        Slot { broker, thread, programs: 0 }
    }

    /// A program that has said who it is, and opened the device.
    fn program(&mut self) -> Program {
        let (session, program) = Channel::pair_with_program().unwrap();
        self.programs += 1;
        let begin = ToSlot::Session { number: self.programs, uid: 0, pid: 0 };
        self.broker.send(Instant::now(), begin, vec![session]).unwrap();
        let mut channel = Channel::new(program);
        let (hello, _) = channel.call(&Request::Hello { program: "test".into() }, &[]).unwrap();
        assert!(matches!(hello, Reply::Hello { .. }), "{hello:?}");
        let mut program = Program { channel, context: ContextHandle(0), pd: PdHandle(0) };
        program.open();
        program
    }

    /// Waits until it has had turns enough to look at all that it looks at.
    fn has_turns(&mut self) {
        for _ in 0..30 {
            self.broker.send(Instant::now(), ToSlot::AreYouThere, Vec::new()).unwrap();
            while !matches!(self.broker.recv().unwrap(), Some((ToBroker::Here, _))) {
                std::thread::yield_now();
            }
        }
    }

    fn end(self) {
        drop(self.broker);
        self.thread.join().unwrap().unwrap();
    }
}

struct Program {
    channel: Channel,
    context: ContextHandle,
    pd: PdHandle,
}

impl Program {
    fn open(&mut self) {
        let Reply::Context(context) = self.ask(Request::OpenDevice { name: "urxe0".into() }) else {
            panic!()
        };
        let Reply::Pd(pd) = self.ask(Request::AllocPd { context }) else { panic!() };
        (self.context, self.pd) = (context, pd);
    }

    fn ask(&mut self, request: Request) -> Reply {
        self.channel.call(&request, &[]).unwrap().0
    }

    /// Registers a page of a file. Returns what deregisters it.
    fn register(&mut self, file: &OwnedFd) -> Request {
        self.register_first(file, 4096)
    }

    /// The same for so many bytes.
    fn register_first(&mut self, file: &OwnedFd, length: u64) -> Request {
        let request = Request::RegMr {
            pd: self.pd,
            addr: 0,
            length,
            iova: 0,
            access: Access::LOCAL_WRITE,
            backing: Backing::Shared { offset: 0 },
        };
        let (reply, _) = self.channel.call(&request, &[file.as_fd()]).unwrap();
        let Reply::Mr { mr, .. } = reply else { panic!("{reply:?}") };
        Request::DeregMr { mr }
    }

    /// Asks something with a descriptor of a pipe, which is refused. Returns whether that is
    /// answered.
    fn sends_a_pipe(&mut self, slot: &mut Slot) -> bool {
        let (read_end, _write_end) = std::io::pipe().unwrap();
        self.channel.send(&Request::ListDevices, &[read_end.as_fd()]).unwrap();
        slot.has_turns();
        !self.waits()
    }

    /// Whether a request is under way that is not answered.
    fn waits(&mut self) -> bool {
        rustix::io::ioctl_fionbio(&self.channel, true).unwrap();
        let waits = matches!(self.channel.recv::<Reply>(), Err(ChannelError::WouldBlock));
        rustix::io::ioctl_fionbio(&self.channel, false).unwrap();
        waits
    }
}

/// How many descriptors this process has of a memfd of this name, and how many mappings.
fn held(name: &str) -> (usize, usize) {
    let name = format!("memfd:{name} ");
    let links = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
    let links = links.filter_map(|entry| std::fs::read_link(entry.path()).ok());
    let open = links.filter(|link| link.to_string_lossy().contains(&name)).count();
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    (open, maps.matches(&name).count())
}

/// What a thread does first that is to do nothing until the test lets it.
fn wait_for(go: &AtomicBool) {
    while !go.load(Ordering::Relaxed) {
        std::thread::yield_now();
    }
}

/// SHARE-012
#[test]
fn while_enough_is_to_be_closed_no_request_is_looked_at() {
    static GO: AtomicBool = AtomicBool::new(false);
    let mut slot = Slot::new(|| wait_for(&GO));
    let [mut program, mut other] = std::array::from_fn(|_| slot.program());
    let answered = (0..1000).take_while(|_| program.sends_a_pipe(&mut slot)).count();
    assert!((1..1000).contains(&answered), "{answered}");
    other.channel.send(&Request::ListDevices, &[]).unwrap();
    slot.has_turns();
    assert!(other.waits(), "what others ask is not looked at either");
    GO.store(true, Ordering::Relaxed);
    assert!(matches!(other.channel.recv::<Reply>().unwrap().0, Reply::Devices(_)));
    assert!(matches!(program.channel.recv::<Reply>().unwrap().0, Reply::Error(_)));
    slot.end();
}

/// SHARE-122
#[test]
fn while_4_gib_are_to_be_unmapped_no_request_is_looked_at() {
    static GO: AtomicBool = AtomicBool::new(false);
    const HALF: u64 = 1 << 31;
    let mut slot = Slot::new(|| wait_for(&GO));
    let mut other = slot.program();
    let mut ending: [Program; 2] = std::array::from_fn(|_| slot.program());
    // Without pages, for nothing is put there.
    let file = create_memfd_of_fixed_size("half", HALF).unwrap();
    let requests = ending.each_mut().map(|program| program.register_first(&file, HALF));
    for (number, (program, request)) in ending.iter_mut().zip(&requests).enumerate() {
        program.channel.send(request, &[]).unwrap();
        slot.has_turns();
        other.channel.send(&Request::ListDevices, &[]).unwrap();
        slot.has_turns();
        assert_eq!(other.waits(), number == 1, "{number}");
    }
    GO.store(true, Ordering::Relaxed);
    assert!(matches!(other.channel.recv::<Reply>().unwrap().0, Reply::Devices(_)));
    for program in &mut ending {
        assert_eq!(program.channel.recv::<Reply>().unwrap().0, Reply::Done);
    }
    slot.end();
}

/// SHARE-131: of a file that may be large, however little of it is registered.
#[test]
fn a_program_alone_waits_until_memory_of_a_file_that_may_be_large_is_unmapped() {
    static GO: AtomicBool = AtomicBool::new(false);
    let mut slot = Slot::new(|| wait_for(&GO));
    let mut other = slot.program();
    let [mut program, mut second, mut third] = std::array::from_fn(|_| slot.program());
    let files = [
        create_memfd("grows", 4096),
        create_memfd_of_fixed_size("large", LARGE_AT_REQUEST),
        create_memfd_of_fixed_size("small", LARGE_AT_REQUEST - 1),
        create_memfd_of_fixed_size("of-a-device", LARGE),
    ];
    let [grows, large, small, of_device] = files.map(Result::unwrap);
    let deregister = program.register(&small);
    assert_eq!(program.ask(deregister), Reply::Done);
    assert_eq!(held("small"), (1, 0), "it is unmapped at once");

    third.register(&of_device);
    let requests = [
        program.register(&grows),
        second.register(&large),
        Request::CloseDevice { context: third.context },
    ];
    let mut waiting = [program, second, third];
    for (program, request) in waiting.iter_mut().zip(&requests) {
        program.channel.send(request, &[]).unwrap();
    }
    for _ in 0..100 {
        assert!(matches!(other.ask(Request::ListDevices), Reply::Devices(_)));
    }
    assert_eq!(waiting.each_mut().map(Program::waits), [true; 3]);
    let names = ["grows", "large", "of-a-device"];
    assert_eq!(names.map(|name| held(name).1), [1; 3]);
    GO.store(true, Ordering::Relaxed);
    for (program, name) in waiting.iter_mut().zip(names) {
        assert_eq!(program.channel.recv::<Reply>().unwrap().0, Reply::Done);
        assert_eq!(held(name).1, 0, "it is the program's own when that is answered");
    }
    slot.end();
}

/// SHARE-132: it may be the last that is open, and its pages are freed when it is closed.
#[test]
fn files_that_may_be_large_are_closed_by_another_thread_when_a_request_is_refused() {
    static GO: AtomicBool = AtomicBool::new(false);
    let mut slot = Slot::new(|| wait_for(&GO));
    let mut program = slot.program();
    let refused = [
        Request::ListDevices,
        Request::Hello { program: "again".into() },
        Request::DeallocPd { pd: PdHandle(77) },
    ];
    for request in &refused {
        for file in [
            create_memfd("refused-grows", 4096).unwrap(),
            create_memfd_of_fixed_size("refused-small", LARGE_AT_REQUEST - 1).unwrap(),
        ] {
            let (reply, _) = program.channel.call(request, &[file.as_fd()]).unwrap();
            assert!(matches!(reply, Reply::Error(_)), "{reply:?}");
        }
    }
    assert_eq!(held("refused-grows").0, refused.len(), "they are yet to be closed");
    assert_eq!(held("refused-small").0, 0);
    GO.store(true, Ordering::Relaxed);
    while held("refused-grows").0 > 0 {
        std::thread::yield_now();
    }
    slot.end();
}
