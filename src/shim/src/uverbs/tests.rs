//! Commands as a program writes them, against a daemon: bytes in, bytes out.

use super::abi::{self, CommandHeader, EXTENDED, ExtendedHeader, number};
use super::{AsyncEvents, CompletionEvents, Context};
use crate::descriptors::{DESCRIPTORS, Descriptor};
use crate::session;
use rustix::io::Errno;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::{BorrowedFd, RawFd};
use std::sync::{Arc, OnceLock};
use urxe_daemon::{Config, Daemon, Handle, StartError};
use urxe_shm::control::RingLocation;
use urxe_shm::control::event::{EventRecord, RECORD_LEN};
use urxe_shm::ring::RqProducer;
use urxe_shm::ring::geometry::Geometry;
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// The daemon of this process: all contexts share a session, and so all tests a daemon.
fn daemon() -> &'static Handle {
    static DAEMON: OnceLock<Handle> = OnceLock::new();
    DAEMON.get_or_init(|| {
        let pid = std::process::id();
        let socket = std::env::temp_dir().join(format!("urxe-shim-test-{pid}.sock"));
        // SAFETY: nobody else in this test program sets variables, and this happens once, before
        // anybody asks for the socket.
        unsafe { std::env::set_var("URXE_SOCKET", &socket) };
        // SAFETY: the function is as long there as the program.
        unsafe { libc::atexit(clean_up) };
        let mut last = pid;
        loop {
            let [subnet, host] = [(last / 254 % 250) as u8, (last % 254 + 1) as u8];
            let addr = IpAddr::from(Ipv4Addr::new(127, 29, subnet, host));
            let mut config = Config::new([addr]);
            config.socket.clone_from(&socket);
            match Daemon::start(config) {
                Ok(handle) => return handle,
                Err(StartError::Port(urxe_port::OpenError::PortTaken { .. })) => last += 1,
                Err(error) => panic!("{error}"),
            }
        }
    })
}

/// Removes what the daemon has, for it ends with the process, and has no chance to.
extern "C" fn clean_up() {
    let socket = urxe_shm::socket_path();
    let _ = std::fs::remove_dir_all(urxe_shm::sysfs_directory(&socket));
    let _ = std::fs::remove_file(socket);
}

/// A program with an opened device.
struct Program {
    context: Arc<Context>,
    async_fd: RawFd,
}

/// A ring of a program's.
type Ring = abi::MmInfo;

impl Program {
    fn start() -> Program {
        let program = Program::before_get_context();
        let response: abi::GetContextResp =
            program.ask(number::GET_CONTEXT, &abi::GetContext::default()).unwrap();
        assert_eq!(response.num_comp_vectors, 1);
        Program { async_fd: response.async_fd as RawFd, ..program }
    }

    fn before_get_context() -> Program {
        daemon();
        let context = Arc::new(Context::open(session::current().unwrap(), 0));
        Program { context, async_fd: -1 }
    }

    /// Writes a command whose request begins with the response's address.
    fn ask<T: FromBytes + IntoBytes + Default>(
        &self,
        command: u32,
        request: &(impl IntoBytes + Immutable),
    ) -> Result<T, Errno> {
        Ok(self.ask_driver::<T, [u8; 0]>(command, request)?.0)
    }

    /// The same where a driver's part belongs to the response.
    fn ask_driver<T: FromBytes + IntoBytes + Default, D: FromBytes + IntoBytes + Default>(
        &self,
        command: u32,
        request: &(impl IntoBytes + Immutable),
    ) -> Result<(T, D), Errno> {
        let mut room = vec![0xa5; size_of::<T>() + size_of::<D>()];
        let mut body = request.as_bytes().to_vec();
        let address = room.as_mut_ptr().expose_provenance() as u64;
        body[..8].copy_from_slice(&address.to_ne_bytes());
        self.write(command, &body, room.len())?;
        let (core, driver) = T::read_from_prefix(&room).unwrap();
        Ok((core, D::read_from_bytes(driver).unwrap()))
    }

    /// Writes a command without a response.
    fn order(&self, command: u32, request: &(impl IntoBytes + Immutable)) -> Result<(), Errno> {
        self.write(command, request.as_bytes(), 0)
    }

    fn write(&self, command: u32, body: &[u8], room: usize) -> Result<(), Errno> {
        let in_words = (size_of::<CommandHeader>() + body.len()) / 4;
        let header =
            CommandHeader { command, in_words: in_words as u16, out_words: (room / 4) as u16 };
        let bytes = [header.as_bytes(), body].concat();
        assert_eq!(self.context.write(&bytes)?, bytes.len());
        Ok(())
    }

    fn alloc_pd(&self) -> u32 {
        let pd: abi::AllocPdResp = self.ask(number::ALLOC_PD, &abi::AllocPd::default()).unwrap();
        pd.pd_handle
    }

    fn create_channel(&self) -> RawFd {
        let request = abi::CreateCompChannel::default();
        let channel: abi::CreateCompChannelResp =
            self.ask(number::CREATE_COMP_CHANNEL, &request).unwrap();
        channel.fd as RawFd
    }

    fn create_cq(&self, user_handle: u64, channel: RawFd) -> (u32, Ring) {
        let request = abi::CreateCq {
            user_handle,
            cqe: 10,
            comp_channel: channel,
            ..abi::CreateCq::default()
        };
        let (cq, ring): (abi::CreateCqResp, Ring) =
            self.ask_driver(number::CREATE_CQ, &request).unwrap();
        assert_eq!(cq.cqe, 15);
        (cq.cq_handle, ring)
    }

    fn destroy_cq(&self, cq_handle: u32) -> Result<abi::DestroyCqResp, Errno> {
        self.ask(number::DESTROY_CQ, &abi::DestroyCq { cq_handle, ..Default::default() })
    }

    fn create_qp(
        &self,
        pd_handle: u32,
        cq: u32,
        qp_type: u8,
    ) -> Result<(abi::CreateQpResp, abi::RxeCreateQpResp), Errno> {
        let request = abi::CreateQp {
            user_handle: 0xabc,
            pd_handle,
            send_cq_handle: cq,
            recv_cq_handle: cq,
            max_send_wr: 10,
            max_recv_wr: 3,
            max_send_sge: 2,
            max_recv_sge: 1,
            qp_type,
            ..abi::CreateQp::default()
        };
        self.ask_driver(number::CREATE_QP, &request)
    }

    fn destroy_qp(&self, qp_handle: u32) -> Result<abi::DestroyQpResp, Errno> {
        self.ask(number::DESTROY_QP, &abi::DestroyQp { qp_handle, ..Default::default() })
    }

    fn to_error(&self, qp_handle: u32) {
        let request =
            abi::ModifyQp { qp_handle, attr_mask: 1, qp_state: 6, ..abi::ModifyQp::default() };
        self.order(number::MODIFY_QP, &request).unwrap();
    }

    fn doorbell(&self, qp_handle: u32) -> Option<Result<usize, Errno>> {
        let header = CommandHeader { command: number::POST_SEND, in_words: 8, out_words: 1 };
        let body = abi::PostSend { qp_handle, ..abi::PostSend::default() };
        self.context.doorbell(&[header.as_bytes(), body.as_bytes()].concat())
    }

    fn async_events(&self) -> Arc<AsyncEvents> {
        match DESCRIPTORS.genuine(self.async_fd) {
            Some(Descriptor::AsyncEvents(events)) => events,
            other => panic!("{other:?}"),
        }
    }
}

fn completion_events(fd: RawFd) -> Arc<CompletionEvents> {
    match DESCRIPTORS.genuine(fd) {
        Some(Descriptor::CompletionChannel(events)) => events,
        other => panic!("{other:?}"),
    }
}

/// Closes a descriptor that a command gave.
fn close(fd: RawFd) {
    DESCRIPTORS.remove(fd);
    // SAFETY: it is the test's, and used no more.
    unsafe { rustix::io::close(fd) };
}

/// Whether a descriptor has something to read.
fn is_readable(fd: RawFd) -> bool {
    // SAFETY: it is the test's, and open.
    let fd = unsafe { BorrowedFd::borrow_raw(fd) };
    rustix::io::ioctl_fionread(fd) != Ok(0)
}

/// The next record in a pipe, as the program's `read` finds it.
fn next_record(fd: RawFd) -> EventRecord {
    let mut bytes = [0; RECORD_LEN];
    // SAFETY: it is the test's, and open.
    let pipe = unsafe { BorrowedFd::borrow_raw(fd) };
    assert_eq!(rustix::io::read(pipe, &mut bytes), Ok(RECORD_LEN));
    EventRecord::from_bytes(bytes)
}

#[test]
fn nothing_is_done_before_get_context_and_that_only_once() {
    let program = Program::before_get_context();
    let refused = program.ask::<abi::AllocPdResp>(number::ALLOC_PD, &abi::AllocPd::default());
    assert_eq!(refused, Err(Errno::INVAL));
    let program = Program::start();
    let refused =
        program.ask::<abi::GetContextResp>(number::GET_CONTEXT, &abi::GetContext::default());
    assert_eq!(refused, Err(Errno::INVAL));
    close(program.async_fd);
}

#[test]
fn a_device_that_is_not_there_is_not_opened() {
    daemon();
    let context = Arc::new(Context::open(session::current().unwrap(), 7));
    let program = Program { context, async_fd: -1 };
    let refused =
        program.ask::<abi::GetContextResp>(number::GET_CONTEXT, &abi::GetContext::default());
    assert_eq!(refused, Err(Errno::NODEV));
}

#[test]
fn devices_and_ports_are_described() {
    let program = Program::start();
    let device: abi::QueryDeviceResp =
        program.ask(number::QUERY_DEVICE, &abi::QueryDevice::default()).unwrap();
    assert_eq!((device.phys_port_cnt, device.vendor_id, device.atomic_cap), (1, 0xff_ffff, 1));
    let port = |port_num| {
        let request = abi::QueryPort { port_num, ..abi::QueryPort::default() };
        program.ask::<abi::QueryPortResp>(number::QUERY_PORT, &request)
    };
    let first = port(1).unwrap();
    assert_eq!((first.state, first.link_layer, first.pkey_tbl_len), (4, 2, 1));
    assert_eq!((port(0), port(2)), (Err(Errno::INVAL), Err(Errno::INVAL)));
    close(program.async_fd);
}

#[test]
fn an_extended_command_is_answered_with_its_length() {
    let program = Program::start();
    let mut room = [0xa5u8; 184];
    let header = CommandHeader {
        command: EXTENDED | number::QUERY_DEVICE,
        in_words: 1,
        out_words: (room.len() / 8) as u16,
    };
    let response = room.as_mut_ptr().expose_provenance() as u64;
    let extended = ExtendedHeader { response, ..ExtendedHeader::default() };
    let body = abi::ExQueryDevice::default();
    let bytes = [header.as_bytes(), extended.as_bytes(), body.as_bytes()].concat();
    assert_eq!(program.context.write(&bytes), Ok(bytes.len()));
    assert_eq!(room[180..184], 184u32.to_ne_bytes());
    close(program.async_fd);
}

#[test]
fn an_answer_that_cannot_be_given_is_found_out_before_anything_is_done() {
    let program = Program::start();
    let request = abi::AllocPd { response: 4096 };
    assert_eq!(program.write(number::ALLOC_PD, request.as_bytes(), 4), Err(Errno::FAULT));
    // The next PD has the next number: none was made in between, unless by another test.
    let pd = program.alloc_pd();
    program.order(number::DEALLOC_PD, &abi::DeallocPd { pd_handle: pd }).unwrap();
    let again = program.order(number::DEALLOC_PD, &abi::DeallocPd { pd_handle: pd });
    assert_eq!(again, Err(Errno::NOENT));
    close(program.async_fd);
}

#[test]
fn a_qp_is_made_rung_modified_queried_and_destroyed() {
    let program = Program::start();
    let pd = program.alloc_pd();
    let (cq, _) = program.create_cq(1, -1);
    let (qp, rings) = program.create_qp(pd, cq, 2).unwrap();
    assert_eq!((qp.max_send_wr, qp.max_recv_wr, qp.max_recv_sge), (15, 3, 1));
    let geometry = Geometry::send(qp.max_send_wr, qp.max_send_sge, qp.max_inline_data).unwrap();
    assert_eq!(rings.sq_mi.size, geometry.size());
    assert!(rings.rq_mi.size > 0 && rings.rq_mi.offset != rings.sq_mi.offset);

    let other = Program::start();
    assert_eq!(other.doorbell(qp.qp_handle), Some(Err(Errno::NOENT)), "another context's QP");
    assert_eq!(program.doorbell(qp.qp_handle), Some(Err(Errno::INVAL)), "it cannot send yet");

    let init = abi::ModifyQp {
        qp_handle: qp.qp_handle,
        attr_mask: 1 | 1 << 3 | 1 << 4 | 1 << 5,
        qp_state: 1,
        port_num: 1,
        qp_access_flags: 7,
        ..abi::ModifyQp::default()
    };
    program.order(number::MODIFY_QP, &init).unwrap();
    let request = abi::QueryQp { qp_handle: qp.qp_handle, ..abi::QueryQp::default() };
    let state: abi::QueryQpResp = program.ask(number::QUERY_QP, &request).unwrap();
    assert_eq!((state.qp_state, state.qp_access_flags, state.max_send_wr), (1, 7, 15));
    program.to_error(qp.qp_handle);
    assert_eq!(program.doorbell(qp.qp_handle), Some(Ok(32)));

    assert_eq!(program.destroy_cq(cq), Err(Errno::BUSY));
    assert_eq!(program.destroy_qp(qp.qp_handle).unwrap().events_reported, 0);
    assert_eq!(program.doorbell(qp.qp_handle), Some(Err(Errno::NOENT)));
    assert_eq!(program.destroy_qp(qp.qp_handle), Err(Errno::NOENT));
    program.destroy_cq(cq).unwrap();
    close(program.async_fd);
    close(other.async_fd);
}

#[test]
fn transports_that_we_have_not_are_told_apart_from_nonsense() {
    let program = Program::start();
    let (pd, (cq, _)) = (program.alloc_pd(), program.create_cq(1, -1));
    let refused = |qp_type| program.create_qp(pd, cq, qp_type).unwrap_err();
    assert_eq!(refused(9), Errno::OPNOTSUPP, "XRC");
    assert_eq!(refused(77), Errno::INVAL);
    close(program.async_fd);
}

/// Arms a CQ, and lets it have a completion: a receive that is flushed.
fn complete(program: &Program, fd: RawFd, cq_handle: u32, pd: u32) {
    let notify = abi::ReqNotifyCq { cq_handle, solicited_only: 0 };
    program.order(number::REQ_NOTIFY_CQ, &notify).unwrap();
    let (qp, rings) = program.create_qp(pd, cq_handle, 2).unwrap();
    let geometry = Geometry::recv(qp.max_recv_wr, qp.max_recv_sge).unwrap();
    let ring = RingLocation { offset: rings.rq_mi.offset, size: rings.rq_mi.size };
    let window = program.context.window(ring);
    let mut receives = RqProducer::attach(window, geometry).unwrap();
    receives.push(1, &[]).unwrap();
    // Nobody reads it yet.
    let _ = receives.publish();
    program.to_error(qp.qp_handle);
    while !is_readable(fd) {
        std::thread::yield_now();
    }
    program.destroy_qp(qp.qp_handle).unwrap();
}

#[test]
fn cq_events_count_when_they_are_read_and_only_then() {
    let program = Program::start();
    let (pd, fd) = (program.alloc_pd(), program.create_channel());
    let events = completion_events(fd);
    let (read_once, _) = program.create_cq(0x1111, fd);
    let (never_read, _) = program.create_cq(0x2222, fd);
    complete(&program, fd, read_once, pd);
    let mut event = [0; 24];
    assert_eq!(events.check_read(7), Err(Errno::INVAL));
    assert_eq!(events.hand_out(&next_record(fd), &mut event), Some(8));
    assert_eq!(event[..8], 0x1111u64.to_ne_bytes());
    assert!(!is_readable(fd));

    complete(&program, fd, never_read, pd);
    assert_eq!(program.destroy_cq(never_read).unwrap().comp_events_reported, 0);
    assert!(!is_readable(fd), "what nobody read is taken back");
    complete(&program, fd, read_once, pd);
    let late = next_record(fd);
    assert_eq!(program.destroy_cq(read_once).unwrap().comp_events_reported, 1);
    assert_eq!(events.hand_out(&late, &mut event), None, "its CQ is no more");
    close(fd);
    close(program.async_fd);
}

#[test]
fn a_channel_lives_as_long_as_a_cq_that_uses_it() {
    let program = Program::start();
    let fd = program.create_channel();
    let (cq, _) = program.create_cq(1, fd);
    close(fd);
    program.destroy_cq(cq).unwrap();
    // A number that is no channel, and one of another context.
    let request = |channel| abi::CreateCq { cqe: 1, comp_channel: channel, ..Default::default() };
    let create = |channel| {
        program.ask_driver::<abi::CreateCqResp, Ring>(number::CREATE_CQ, &request(channel))
    };
    assert_eq!(create(program.async_fd), Err(Errno::BADF));
    let other = Program::start();
    let fd = other.create_channel();
    assert_eq!(create(fd), Err(Errno::BADF));
    for fd in [fd, program.async_fd, other.async_fd] {
        close(fd);
    }
}

#[test]
fn asynchronous_events_are_counted_with_their_object() {
    let program = Program::start();
    let (pd, (cq, _)) = (program.alloc_pd(), program.create_cq(1, -1));
    let request = abi::CreateSrq {
        user_handle: 0x3333,
        pd_handle: pd,
        max_wr: 10,
        max_sge: 1,
        ..abi::CreateSrq::default()
    };
    let (srq, driver): (abi::CreateSrqResp, abi::RxeCreateSrqResp) =
        program.ask_driver(number::CREATE_SRQ, &request).unwrap();
    assert_eq!((srq.max_wr, srq.srqn), (15, driver.srq_num));
    let request = abi::CreateQp {
        user_handle: 0xabc,
        pd_handle: pd,
        send_cq_handle: cq,
        recv_cq_handle: cq,
        srq_handle: srq.srq_handle,
        is_srq: 1,
        qp_type: 2,
        ..abi::CreateQp::default()
    };
    let create = || {
        let (qp, rings): (abi::CreateQpResp, abi::RxeCreateQpResp) =
            program.ask_driver(number::CREATE_QP, &request).unwrap();
        assert_eq!((qp.max_recv_wr, rings.rq_mi.size), (0, 0));
        program.to_error(qp.qp_handle);
        while !is_readable(program.async_fd) {
            std::thread::yield_now();
        }
        qp.qp_handle
    };
    let read = create();
    let mut event = [0; 100];
    let record = next_record(program.async_fd);
    assert_eq!(program.async_events().hand_out(&record, &mut event), Some(16));
    let event = abi::AsyncEvent::read_from_prefix(&event).unwrap().0;
    assert_eq!((event.element, event.event_type), (0xabc, 16), "the last WQE was reached");
    let unread = create();
    assert_eq!(program.destroy_qp(unread).unwrap().events_reported, 0);
    assert!(!is_readable(program.async_fd));
    assert_eq!(program.destroy_qp(read).unwrap().events_reported, 1);
    let destroy = abi::DestroySrq { srq_handle: srq.srq_handle, ..Default::default() };
    let destroyed: abi::DestroySrqResp = program.ask(number::DESTROY_SRQ, &destroy).unwrap();
    assert_eq!(destroyed.events_reported, 0);
    close(program.async_fd);
}

#[test]
fn memory_is_registered_where_the_program_may_do_what_it_asks_for() {
    let program = Program::start();
    let pd_handle = program.alloc_pd();
    let buffer = vec![0u8; 10_000];
    let register_some = |start: u64, length: u64, access_flags| {
        let request = abi::RegMr {
            start,
            hca_va: start,
            length,
            pd_handle,
            access_flags,
            ..abi::RegMr::default()
        };
        program.ask::<abi::RegMrResp>(number::REG_MR, &request)
    };
    let register = |start, access_flags| register_some(start, 10_000, access_flags);
    for start in [0, 1, buffer.as_ptr().expose_provenance() as u64] {
        let mr = register_some(start, 0, 7).unwrap().mr_handle;
        program.order(number::DEREG_MR, &abi::DeregMr { mr_handle: mr }).unwrap();
    }
    let mr = register(buffer.as_ptr().expose_provenance() as u64, 7).unwrap();
    assert_eq!(mr.lkey, mr.rkey);
    program.order(number::DEREG_MR, &abi::DeregMr { mr_handle: mr.mr_handle }).unwrap();
    assert_eq!(register(4096, 7), Err(Errno::FAULT));
    close(program.async_fd);
}

#[test]
fn a_resized_cq_is_elsewhere_and_keeps_its_arming() {
    let program = Program::start();
    let (pd, fd) = (program.alloc_pd(), program.create_channel());
    let (cq_handle, old) = program.create_cq(0x4444, fd);
    let request = abi::ResizeCq { cq_handle, cqe: 100, ..abi::ResizeCq::default() };
    let (resized, new): (abi::ResizeCqResp, Ring) =
        program.ask_driver(number::RESIZE_CQ, &request).unwrap();
    assert_eq!(resized.cqe, 127);
    assert!(new.offset != old.offset && new.size > old.size);
    complete(&program, fd, cq_handle, pd);
    assert_eq!(completion_events(fd).hand_out(&next_record(fd), &mut [0; 8]), Some(8));
    assert_eq!(program.destroy_cq(cq_handle).unwrap().comp_events_reported, 1);
    close(fd);
    close(program.async_fd);
}
