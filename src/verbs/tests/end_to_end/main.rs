//! Programs, daemon and wire together: what a verbs program relies on.

mod connections;
mod datagram_services;
mod in_process;
mod many_connections;
mod memory;
mod memory_order;
mod objects;
mod restart;
mod transports;

use std::net::IpAddr;
use std::path::Path;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;
use urxe_daemon::{Config, Daemon, Handle, StartError};
use urxe_verbs::*;

/// Long enough that nothing that works reaches it.
const WAIT: Option<Duration> = Some(Duration::from_secs(30));
const ALL: Access = Access::from_bits_retain(15);

/// Two devices of one daemon, and a connected queue pair at each.
struct Net {
    daemon: Option<Handle>,
    near: Side,
    far: Side,
}

/// What a program has at one device.
struct Side {
    context: Context,
    pd: Pd,
    cq: Cq,
    mr: Mr,
    qp: Qp,
}

const MR_LENGTH: usize = 1 << 20;

impl Net {
    /// Started, and connected.
    fn new() -> Net {
        let net = Net::unconnected();
        net.connect();
        net
    }

    fn unconnected() -> Net {
        static COUNT: AtomicU8 = AtomicU8::new(0);
        let net = COUNT.fetch_add(1, Ordering::Relaxed);
        let subnet = 40 + kind_of_run();
        let daemon = start([[127, subnet, net, 1].into(), [127, subnet, net, 2].into()]).unwrap();
        let [near, far] = ["urxe0", "urxe1"].map(|name| Side::of(&daemon, name));
        Net { daemon: Some(daemon), near, far }
    }

    fn connect(&self) {
        self.near.qp.connect(&self.far.qp.endpoint().unwrap(), ALL).unwrap();
        self.far.qp.connect(&self.near.qp.endpoint().unwrap(), ALL).unwrap();
    }
}

/// A number below 4: a test may run in a process of its own beside the others, by other ways.
fn kind_of_run() -> u8 {
    u8::from(urxe_shm::memory::remap::longest_wanted(0) > 0) + 2 * u8::from(in_process::is_wanted())
}

/// Starts a daemon with a device at each of the addresses.
fn start(addrs: impl IntoIterator<Item = IpAddr>) -> Result<Handle, StartError> {
    static COUNT: AtomicU8 = AtomicU8::new(0);
    let daemon = COUNT.fetch_add(1, Ordering::Relaxed);
    let name = format!("urxe-verbs-test-{}-{daemon}.sock", std::process::id());
    start_at(&std::env::temp_dir().join(name), addrs)
}

/// The same at a certain socket.
fn start_at(socket: &Path, addrs: impl IntoIterator<Item = IpAddr>) -> Result<Handle, StartError> {
    let mut config = Config::new(addrs);
    config.socket = socket.to_owned();
    Daemon::start(config)
}

impl Side {
    fn of(daemon: &Handle, name: &str) -> Side {
        let options = OpenOptions::new().socket(daemon.socket()).device(name);
        Side::new(&if in_process::is_wanted() { options.in_process() } else { options })
    }

    fn new(options: &OpenOptions) -> Side {
        let context = Context::open(options).unwrap();
        let pd = context.alloc_pd().unwrap();
        let channel = context.create_comp_channel().unwrap();
        let cq = context.create_cq(1000, Some(&channel)).unwrap();
        let mr = pd.alloc_mr(MR_LENGTH, ALL).unwrap();
        let qp = pd.create_qp(&QpInit::new(&cq)).unwrap();
        Side { context, pd, cq, mr, qp }
    }

    /// The next completion, however it ended.
    fn next(&self) -> Wc {
        let mut wc = [Wc::default()];
        assert_eq!(self.cq.wait(&mut wc, WAIT).unwrap(), 1, "nothing completed");
        wc[0]
    }

    /// The next completion, which is a success.
    fn done(&self) -> Wc {
        *self.next().check().unwrap()
    }

    fn bytes(&self, offset: usize, len: usize) -> Vec<u8> {
        let mut buf = vec![0; len];
        self.mr.read_at(offset, &mut buf).unwrap();
        buf
    }
}

/// Bytes that tell where they belong.
fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|index| (index * 7 + index / 256) as u8).collect()
}

#[test]
fn a_write_and_a_read_carry_any_length_to_any_place() {
    let Net { near, far, daemon: _daemon } = Net::new();
    for (len, at, to) in
        [(0, 0, 0), (1, 0, 7), (63, 5, 1), (1024, 0, 0), (4097, 3, 2), (300_001, 1, 700_000)]
    {
        let data = pattern(len);
        near.mr.write_at(at, &data).unwrap();
        let there = far.mr.remote_buf(to..to + len).unwrap();
        let from = near.mr.sge(at..at + len).unwrap();
        near.qp.post_send(&[SendWr::write(1, &[from], there).signaled()]).unwrap();
        let wc = near.done();
        assert_eq!((wc.wr_id, wc.opcode, wc.qpn), (1, WcOpcode::RdmaWrite, near.qp.qpn()));
        assert!(far.bytes(to, len) == data, "{len} bytes written");

        near.mr.fill(.., 0).unwrap();
        near.qp.post_send(&[SendWr::read(2, &[from], there).signaled()]).unwrap();
        let wc = near.done();
        assert_eq!((wc.wr_id, wc.opcode), (2, WcOpcode::RdmaRead));
        assert!(near.bytes(at, len) == data, "{len} bytes read");
    }
}

#[test]
fn sends_fill_receives_in_order_with_what_they_carry() {
    let Net { near, far, daemon: _daemon } = Net::new();
    let room = |wr_id: u64| far.mr.sge(wr_id as usize * 100..).unwrap();
    let (one, two, three) = ([room(1)], [room(2)], [room(3)]);
    far.qp
        .post_recv(&[RecvWr::new(1, &one), RecvWr::new(2, &two), RecvWr::new(3, &three)])
        .unwrap();
    near.mr.write_at(0, b"gathered from pieces").unwrap();
    let pieces = [near.mr.sge(9..14).unwrap(), near.mr.sge(..9).unwrap()];
    let there = far.mr.remote_buf(1000..).unwrap();
    near.qp
        .post_send(&[
            SendWr::send(1, &pieces),
            SendWr::send_imm(2, Inline(b"inline"), 0xdead_beef),
            SendWr::write_imm(3, Inline(b"written"), there, 7).signaled(),
        ])
        .unwrap();
    let (first, second, third) = (far.done(), far.done(), far.done());
    assert_eq!((first.wr_id, first.opcode, first.byte_len), (1, WcOpcode::Recv, 14));
    assert_eq!((first.imm, first.qpn), (None, far.qp.qpn()));
    assert_eq!(far.bytes(100, 14), b"from gathered ");
    assert_eq!((second.wr_id, second.byte_len, second.imm), (2, 6, Some(0xdead_beef)));
    assert_eq!(far.bytes(200, 6), b"inline");
    assert_eq!((third.wr_id, third.opcode), (3, WcOpcode::RecvRdmaWithImm));
    assert_eq!((third.byte_len, third.imm), (7, Some(7)));
    assert_eq!(far.bytes(1000, 7), b"written");
    assert_eq!(near.done().wr_id, 3, "only what was signaled completes");
}

#[test]
fn two_queue_pairs_of_one_device_can_be_connected() {
    let Net { near, daemon: _daemon, .. } = Net::unconnected();
    let other = near.pd.create_qp(&QpInit::new(&near.cq)).unwrap();
    near.qp.connect(&other.endpoint().unwrap(), Access::default()).unwrap();
    other.connect(&near.qp.endpoint().unwrap(), Access::REMOTE_WRITE).unwrap();
    let there = near.mr.remote_buf(100..).unwrap();
    near.qp.post_send(&[SendWr::write(1, Inline(b"hello"), there).signaled()]).unwrap();
    assert_eq!(near.done().wr_id, 1);
    assert_eq!(near.bytes(100, 5), b"hello");
}

#[test]
fn connected_queue_pairs_may_have_as_many_reads_under_way_as_the_device_serves() {
    let Net { near, daemon: _daemon, .. } = Net::new();
    let most = Some(near.context.query_device().unwrap().max_qp_rd_atom);
    let attr = near.qp.query().unwrap().attr;
    assert_eq!((attr.max_rd_atomic, attr.max_dest_rd_atomic), (most, most));
}

#[test]
fn two_sides_of_different_path_mtu_are_told_of_it() {
    const SMALL: PathMtu = PathMtu::Mtu512;
    const LARGE: PathMtu = PathMtu::Mtu1024;
    let ends = |mtus: [PathMtu; 2], read: bool| {
        let Net { near, far, daemon: _daemon } = Net::unconnected();
        let endpoint = |of: &Qp, mtu| QpEndpoint { mtu, ..of.endpoint().unwrap() };
        near.qp.connect(&endpoint(&far.qp, mtus[0]), ALL).unwrap();
        far.qp.connect(&endpoint(&near.qp, mtus[1]), ALL).unwrap();
        let sges = [near.mr.sge(..10_000).unwrap()];
        let there = far.mr.remote_buf(..10_000).unwrap();
        let wr = if read { SendWr::read(1, &sges, there) } else { SendWr::write(1, &sges, there) };
        near.qp.post_send(&[wr.signaled()]).unwrap();
        near.next()
    };
    for wc in [ends([LARGE, SMALL], false), ends([SMALL, LARGE], true)] {
        assert!(wc.status != WcStatus::Success && wc.cause.contains("path MTU"), "{wc:?}");
    }
    // TRAIN-015: its parts are no shorter than messages may be.
    assert_eq!(ends([SMALL, LARGE], false).status, WcStatus::Success);
}

#[test]
fn unsignaled_sends_make_room_for_others_by_themselves() {
    let Net { near, far, daemon: _daemon } = Net::new();
    let there = far.mr.remote_buf(..8).unwrap();
    for number in 0..2000u64 {
        let data = number.to_ne_bytes();
        let write = SendWr::write(number, Inline(&data), there);
        while let Err(error) = near.qp.post_send(&[write]) {
            assert!(matches!(error.reason, PostReason::QueueFull { .. }), "{error}");
            std::thread::yield_now();
        }
    }
    while near.qp.post_send(&[SendWr::write(1, Inline(b""), there).signaled()]).is_err() {
        std::thread::yield_now();
    }
    assert_eq!(near.done().wr_id, 1);
    assert!(near.next_is_nothing());
    assert_eq!(far.mr.atomic_u64(0).unwrap().load(Ordering::Acquire), 1999);
}

/// Fills a send queue of this depth again as soon as the completion of its last send was polled,
/// very often. Only the last one of each round is signaled.
fn refill_after_each_poll(depth: u32) {
    let Net { near, far, daemon: _daemon } = Net::unconnected();
    let caps = QpCaps { max_send_wr: depth, max_inline_data: 8, ..QpCaps::default() };
    let qp = near.pd.create_qp(&QpInit { caps, ..QpInit::new(&near.cq) }).unwrap();
    assert_eq!(qp.caps().max_send_wr, depth);
    qp.connect(&far.qp.endpoint().unwrap(), ALL).unwrap();
    far.qp.connect(&qp.endpoint().unwrap(), ALL).unwrap();
    let there = far.mr.remote_buf(..8).unwrap();
    let mut wc = [Wc::default()];
    for round in 0..5000 {
        for number in 1..depth {
            let write = SendWr::write(number.into(), Inline(b"unsigned"), there);
            qp.post_send(&[write]).unwrap_or_else(|error| panic!("round {round}: {error}"));
        }
        let write = SendWr::write(0, Inline(b"signaled"), there).signaled();
        qp.post_send(&[write]).unwrap_or_else(|error| panic!("round {round}: {error}"));
        while near.cq.poll(&mut wc).unwrap() == 0 {
            std::thread::yield_now();
        }
        wc[0].check().unwrap();
    }
}

#[test]
fn a_send_queue_of_one_place_can_be_posted_to_after_each_poll() {
    refill_after_each_poll(1);
}

#[test]
fn the_places_of_unsignaled_sends_are_free_after_the_poll_of_the_signaled_one() {
    refill_after_each_poll(3);
}

#[test]
fn with_signal_all_every_send_completes() {
    let Net { near, far, daemon: _daemon } = Net::unconnected();
    let init = QpInit { signal_all: true, ..QpInit::new(&near.cq) };
    let qp = near.pd.create_qp(&init).unwrap();
    qp.connect(&far.qp.endpoint().unwrap(), ALL).unwrap();
    far.qp.connect(&qp.endpoint().unwrap(), ALL).unwrap();
    let there = far.mr.remote_buf(..1).unwrap();
    qp.post_send(&[SendWr::write(1, Inline(b"x"), there)]).unwrap();
    assert_eq!(near.done().wr_id, 1);
}

#[test]
fn atomics_give_what_was_there() {
    let Net { near, far, daemon: _daemon } = Net::new();
    let word = far.mr.atomic_u64(64).unwrap();
    word.store(40, Ordering::Release);
    let there = far.mr.remote_buf(64..72).unwrap();
    let result = [near.mr.sge(8..16).unwrap()];
    let was = |wr: SendWr<'_>| {
        near.qp.post_send(&[wr.signaled()]).unwrap();
        near.done();
        near.mr.atomic_u64(8).unwrap().load(Ordering::Acquire)
    };
    assert_eq!(was(SendWr::fetch_add(1, &result, there, 2)), 40);
    assert_eq!(was(SendWr::compare_swap(2, &result, there, 42, 7)), 42);
    assert_eq!(was(SendWr::compare_swap(3, &result, there, 42, 8)), 7);
    assert_eq!(word.load(Ordering::Acquire), 7);
}

#[test]
fn a_peer_cannot_invalidate_the_key_of_a_memory_region() {
    let Net { near, far, daemon: _daemon } = Net::new();
    far.qp.post_recv(&[RecvWr::new(1, &[])]).unwrap();
    near.qp.post_send(&[SendWr::send_inv(1, Inline(b""), far.mr.rkey())]).unwrap();
    assert_eq!(near.next().status, WcStatus::RemoteAccess);
    assert_ne!(far.next().status, WcStatus::Success);
}

#[test]
fn memory_from_elsewhere_works_like_memory_of_ours() {
    let Net { near, far, daemon: _daemon } = Net::new();
    let data = pattern(100_000);
    let mut source = data.clone();
    let mut target = vec![0u8; data.len()];
    let register = |side: &Side, buf: &mut Vec<u8>| {
        // SAFETY: both buffers outlive their regions, and are not touched before the completion.
        unsafe { side.pd.reg_mr(buf.as_mut_ptr(), buf.len(), ALL) }.unwrap()
    };
    let (from, to) = (register(&near, &mut source), register(&far, &mut target));
    let list = [from.sge(..).unwrap()];
    let there = to.remote_buf(..).unwrap();
    near.qp.post_send(&[SendWr::write(1, &list, there).signaled()]).unwrap();
    near.done();
    let mut back = vec![0; data.len()];
    to.read_at(0, &mut back).unwrap();
    assert!(back == data, "written");
    from.fill(.., 0).unwrap();
    near.qp.post_send(&[SendWr::read(2, &list, there).signaled()]).unwrap();
    near.done();
    drop((from, to));
    assert!(source == data && target == data, "read back");
}

#[test]
fn a_refused_access_fails_its_request_and_flushes_the_rest() {
    let Net { near, far, daemon: _daemon } = Net::new();
    let closed = far.pd.alloc_mr(64, Access::LOCAL_WRITE).unwrap();
    let there = closed.remote_buf(..1).unwrap();
    near.qp
        .post_send(&[SendWr::write(1, Inline(b"x"), there), SendWr::send(2, Inline(b"y"))])
        .unwrap();
    let failed = near.next();
    assert_eq!((failed.wr_id, failed.status), (1, WcStatus::RemoteAccess));
    assert_ne!(failed.vendor_err, 0);
    let text = Error::from(failed.check().unwrap_err()).to_string();
    assert!(text.starts_with("work request 1 of QP 0x"), "{text}");
    assert!(text.contains("remote access error: The peer refused access"), "{text}");
    let flushed = near.next();
    assert_eq!((flushed.wr_id, flushed.status), (2, WcStatus::WrFlush));
    assert_eq!(near.qp.query().unwrap().attr.state, Some(QpState::Err));
    // What is posted in the error state is flushed as well, receives too.
    near.qp.post_recv(&[RecvWr::new(3, &[])]).unwrap();
    assert_eq!((near.next().wr_id, near.next_is_nothing()), (3, true));

    // After a reset at both ends all is well again.
    near.qp.to_reset().unwrap();
    far.qp.to_reset().unwrap();
    Net::connect(&Net { daemon: None, near: near.again(), far: far.again() });
    let open = far.mr.remote_buf(..1).unwrap();
    near.qp.post_send(&[SendWr::write(4, Inline(b"z"), open).signaled()]).unwrap();
    assert_eq!(near.done().wr_id, 4);
    assert_eq!(far.bytes(0, 1), b"z");
}

impl Side {
    /// Whether there is no completion now.
    fn next_is_nothing(&self) -> bool {
        self.cq.poll(&mut [Wc::default()]).unwrap() == 0
    }

    /// The same objects once more.
    fn again(&self) -> Side {
        Side {
            context: self.context.clone(),
            pd: self.pd.clone(),
            cq: self.cq.clone(),
            mr: self.mr.clone(),
            qp: self.qp.clone(),
        }
    }
}

#[test]
fn a_queue_pair_tells_what_was_set() {
    let Net { near, far, daemon: _daemon } = Net::unconnected();
    let peer = far.qp.endpoint().unwrap();
    near.qp.to_init(InitAttr::new(Access::REMOTE_READ)).unwrap();
    let rtr = RtrAttr {
        min_rnr_timer: 3,
        path_mtu: Some(PathMtu::Mtu512),
        ..RtrAttr::new(peer.qpn, 77, peer.gid)
    };
    near.qp.to_rtr(rtr).unwrap();
    near.qp.to_rts(RtsAttr { retry_cnt: 2, timeout: 9, ..RtsAttr::new(99) }).unwrap();
    let QpQueried { attr, caps, sq_sig_all, .. } = near.qp.query().unwrap();
    assert_eq!(attr.state, Some(QpState::Rts));
    assert_eq!(attr.access, Some(Access::REMOTE_READ));
    assert_eq!((attr.dest_qpn, attr.rq_psn), (Some(Qpn::new(peer.qpn)), Some(Psn::new(77))));
    assert_eq!((attr.path_mtu, attr.min_rnr_timer), (Some(PathMtu::Mtu512), Some(3)));
    assert_eq!((attr.retry_cnt, attr.timeout, attr.sq_psn), (Some(2), Some(9), Some(Psn::new(99))));
    assert_eq!(attr.av.map(|av| av.dgid), Some(peer.gid));
    assert_eq!((caps, sq_sig_all), (near.qp.caps(), false));
}

#[test]
fn a_wrong_step_is_refused_in_words() {
    let Net { near, far, daemon: _daemon } = Net::unconnected();
    let error = near.qp.to_rts(RtsAttr::new(0)).unwrap_err();
    assert_eq!(error.errno(), libc::EINVAL, "{error}");
    assert!(error.to_string().starts_with("modify_qp failed: "), "{error}");
    near.qp.to_init(InitAttr::new(ALL)).unwrap();
    let peer = far.qp.endpoint().unwrap();
    let odd = RtrAttr { min_rnr_timer: 32, ..RtrAttr::new(peer.qpn, 0, peer.gid) };
    let error = near.qp.to_rtr(odd).unwrap_err();
    assert!(error.to_string().contains("min_rnr_timer 32"), "{error}");
    let error = near.qp.to_rtr(RtrAttr::new(1 << 24, 0, peer.gid)).unwrap_err();
    assert_eq!(error.errno(), libc::EINVAL, "{error}");
    assert!(error.to_string().contains("dest_qpn is 0x1000000, expected"), "{error}");
}

#[test]
fn an_operation_the_device_lacks_is_refused_with_a_sentence() {
    let Net { near, daemon: _daemon, .. } = Net::unconnected();
    let limits = near.context.query_device().unwrap();
    let mut init = QpInit::new(&near.cq);
    init.caps.max_send_wr = limits.max_qp_wr + 1;
    let error = near.pd.create_qp(&init).unwrap_err();
    assert!(error.to_string().contains("max_send_wr"), "{error}");
    assert!(near.context.create_cq(limits.max_cqe + 1, None).is_err());
    assert!(near.context.create_cq(0, None).is_err());
    let contradiction = near.pd.alloc_mr(64, Access::REMOTE_WRITE).unwrap_err();
    assert_eq!(contradiction.errno(), libc::EINVAL, "{contradiction}");
    assert!(near.context.query_port(2).is_err() && near.context.query_gid(1, 99).is_err());
}

#[test]
fn the_devices_of_a_daemon_are_listed_by_name_and_address() {
    let net = Net::unconnected();
    let handle = net.daemon.as_ref().unwrap();
    let listed = devices(&OpenOptions::new().socket(handle.socket())).unwrap();
    assert_eq!(
        listed.iter().map(|device| device.name.as_str()).collect::<Vec<_>>(),
        ["urxe0", "urxe1"]
    );
    assert_eq!(net.far.context.device(), &listed[1]);
    assert_eq!(net.far.context.query_gid(1, 0).unwrap(), listed[1].address);
    assert!(net.near.context.query_port(1).unwrap().active);
    let unknown = OpenOptions::new().socket(handle.socket()).device("mlx5_0");
    let error = Context::open(&unknown).unwrap_err().to_string();
    assert!(error.contains("mlx5_0") && error.contains("urxe0, urxe1"), "{error}");
}

#[test]
fn only_a_solicited_message_wakes_who_asked_for_such() {
    let Net { near, far, daemon: _daemon } = Net::new();
    let channel = far.cq.channel().unwrap();
    far.qp.post_recv(&[RecvWr::new(1, &[]), RecvWr::new(2, &[])]).unwrap();
    far.cq.req_notify(true).unwrap();
    near.qp.post_send(&[SendWr::send(1, Inline(b"")).signaled()]).unwrap();
    near.done();
    assert_eq!(channel.wait(Some(Duration::ZERO)).unwrap(), None);
    near.qp.post_send(&[SendWr::send(2, Inline(b"")).solicited()]).unwrap();
    assert_eq!(channel.wait(WAIT).unwrap().as_ref(), Some(&far.cq));
    let mut wcs = vec![];
    assert_eq!(far.cq.poll_into(&mut wcs).unwrap(), 2);
}

#[test]
fn sleeping_programs_miss_no_wake_up() {
    const ROUNDS: u64 = 1000;
    let Net { near, far, daemon: _daemon } = Net::new();
    let bounce = |side: &Side, first: bool| {
        for round in 0..ROUNDS {
            side.qp.post_recv(&[RecvWr::new(round, &[])]).unwrap();
            if !first {
                assert_eq!(side.done().wr_id, round);
            }
            side.qp.post_send(&[SendWr::send(round, Inline(b""))]).unwrap();
            if first {
                assert_eq!(side.done().wr_id, round);
            }
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| bounce(&far, false));
        bounce(&near, true);
    });
}

#[test]
fn a_drained_queue_pair_says_so_and_goes_on_when_told() {
    let Net { near, far, daemon: _daemon } = Net::new();
    let there = far.mr.remote_buf(..).unwrap();
    let all = [near.mr.sge(..).unwrap()];
    near.qp.post_send(&[SendWr::write(1, &all, there).signaled()]).unwrap();
    near.qp.to_sqd().unwrap();
    near.qp.post_send(&[SendWr::write(2, Inline(b"x"), there).signaled()]).unwrap();
    let event = near.context.async_event(WAIT).unwrap();
    assert!(matches!(event, Some(AsyncEvent::SqDrained(qp)) if qp == near.qp));
    let rts = QpAttr { state: Some(QpState::Rts), ..QpAttr::default() };
    near.qp.modify(&rts).unwrap();
    let mut done = [near.done().wr_id, near.done().wr_id];
    done.sort_unstable();
    assert_eq!(done, [1, 2]);
}

#[test]
fn many_threads_may_post_to_one_queue_pair_and_poll_one_queue() {
    const THREADS: u64 = 4;
    const EACH: u64 = 500;
    let Net { near, far, daemon: _daemon } = Net::new();
    let there = far.mr.remote_buf(..8).unwrap();
    let seen = std::sync::Mutex::new(vec![]);
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (near, seen) = (&near, &seen);
            scope.spawn(move || {
                for number in 0..EACH {
                    let result = [near.mr.sge(..8).unwrap()];
                    let wr = SendWr::fetch_add(thread * EACH + number, &result, there, 1);
                    // Full means: others are quicker.
                    while near.qp.post_send(&[wr.signaled()]).is_err() {
                        std::thread::yield_now();
                    }
                    let mut wcs = [Wc::default(); 8];
                    let count = near.cq.poll(&mut wcs).unwrap();
                    seen.lock()
                        .unwrap()
                        .extend(wcs[..count].iter().map(|wc| wc.check().unwrap().wr_id));
                }
            });
        }
    });
    let mut seen = seen.into_inner().unwrap();
    while seen.len() < (THREADS * EACH) as usize {
        seen.push(near.done().wr_id);
    }
    seen.sort_unstable();
    assert!(seen.into_iter().eq(0..THREADS * EACH), "each completes once");
    assert_eq!(far.mr.atomic_u64(0).unwrap().load(Ordering::Acquire), THREADS * EACH);
}

#[test]
fn the_end_of_the_daemon_is_an_error_and_no_hang() {
    let Net { near, far, daemon } = Net::new();
    std::thread::scope(|scope| {
        let sleeper = scope.spawn(|| near.cq.wait(&mut [Wc::default()], WAIT));
        let event = scope.spawn(|| far.context.async_event(WAIT));
        std::thread::sleep(Duration::from_millis(20));
        drop(daemon);
        assert!(matches!(sleeper.join().unwrap(), Err(Error::DaemonGone { .. })));
        assert!(matches!(event.join().unwrap(), Err(Error::DaemonGone { .. })));
    });
    let polls = (0..1_000_000).find_map(|_| far.cq.poll(&mut [Wc::default()]).err());
    assert!(matches!(polls, Some(Error::DaemonGone { .. })));
    assert!(matches!(near.qp.query(), Err(Error::DaemonGone { .. })));
}

#[test]
fn resources_of_an_ended_program_are_free_for_the_next() {
    let Net { near, far, daemon } = Net::new();
    let gone = far.qp.endpoint().unwrap();
    let key = far.mr.remote_buf(..1).unwrap();
    drop(far);
    // Its peer gets no answer any more.
    near.qp.post_send(&[SendWr::write(1, Inline(b"x"), key)]).unwrap();
    near.qp.to_error().unwrap();
    assert_eq!(near.next().status, WcStatus::WrFlush);
    // And another can be where it was.
    let far = Side::of(daemon.as_ref().unwrap(), "urxe1");
    assert_ne!(far.mr.rkey(), key.rkey);
    assert_eq!(far.qp.endpoint().unwrap().gid, gone.gid);
}
