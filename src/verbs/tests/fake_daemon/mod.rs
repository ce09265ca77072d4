//! A daemon without a NIC: it answers requests and hands out rings, and leaves the daemon's ends
//! of them to the test, which so decides what happens when.

#![allow(dead_code, unreachable_pub, reason = "each user needs a part of it")]

use rustix::event::{PollFd, PollFlags, poll};
use rustix::pipe::{PipeFlags, pipe_with};
use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use urxe_shm::control::channel::{Channel, ChannelError, Listener};
use urxe_shm::control::event::{COMPLETION, EventRecord};
use urxe_shm::control::*;
use urxe_shm::memory::arena::Arena;
use urxe_shm::ring::doorbell::DoorbellReader;
use urxe_shm::ring::entry::Taken;
use urxe_shm::ring::geometry::Geometry;
use urxe_shm::ring::layout::CqEntry;
use urxe_shm::ring::{CqProducer, RqConsumer, SqConsumer};
use urxe_types::{AhId, Gid, Lkey, PathMtu, QpAttr, QpState, QpType, Qpn, Rkey, SendWqe};
use urxe_verbs::{Context, OpenOptions};

/// Serves one session, on a thread of its own.
pub struct FakeDaemon {
    path: PathBuf,
    /// What the test and the serving thread share.
    pub state: Arc<Mutex<State>>,
    stop: Option<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

/// The daemon's ends of everything.
#[derive(Default)]
pub struct State {
    /// Every request so far, in order.
    pub requests: Vec<Request>,
    pub doorbells: Option<DoorbellReader>,
    pub qps: HashMap<u32, FakeQp>,
    pub cqs: HashMap<u32, FakeCq>,
    pub srqs: HashMap<u32, FakeSrq>,
    /// The GID table, from index 0 on.
    pub gids: Vec<IpAddr>,
    pub pipes: HashMap<u32, OwnedFd>,
    /// The write end of the asynchronous events' pipe.
    pub async_events: Option<OwnedFd>,
    pub wake: Option<OwnedFd>,
    /// What the connection manager has to tell, by channel.
    pub cm_channels: HashMap<u32, FakeCmChannel>,
    /// Of each id its channel and its number in the program.
    pub cm_ids: HashMap<u32, (u32, u64)>,
    /// No QP can change its state any more.
    pub refuses_modify: bool,
    arena: Option<Arena>,
    last_handle: u32,
}

pub struct FakeQp {
    pub send_queue: SqConsumer,
    /// None of a QP with an SRQ.
    pub recv_queue: Option<RqConsumer>,
    pub send_cq: CqHandle,
    pub slot: u32,
    pub token: u64,
}

pub struct FakeSrq {
    pub queue: RqConsumer,
    pub attr: SrqAttr,
    pub token: u64,
}

pub struct FakeCmChannel {
    pub pipe: OwnedFd,
    pub events: VecDeque<CmEvent>,
}

pub struct FakeCq {
    pub ring: CqProducer,
    pub channel: Option<CompChannelHandle>,
    pub token: u64,
}

impl FakeDaemon {
    pub fn start() -> FakeDaemon {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("urxe-verbs-fake-{}-{number}.sock", std::process::id());
        let path = std::env::temp_dir().join(name);
        let listener = Listener::bind(&path, 0o600).unwrap();
        let state = Arc::new(Mutex::new(State::default()));
        let (stopped, stop) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC).unwrap();
        let shared = state.clone();
        let thread = std::thread::spawn(move || serve(&listener, &shared, stopped.as_fd()));
        FakeDaemon { path, state, stop: Some(stop), thread: Some(thread) }
    }

    pub fn open(&self) -> Context {
        Context::open(&OpenOptions::new().socket(&self.path)).unwrap()
    }

    /// Dies as a process would: everything that it holds is closed.
    pub fn kill(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let ended = thread.join();
            assert!(ended.is_ok() || std::thread::panicking(), "the fake daemon failed");
        }
        // A test may have failed while it held this.
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.pipes.clear();
        (state.async_events, state.wake) = (None, None);
        state.cm_channels.clear();
    }
}

impl Drop for FakeDaemon {
    fn drop(&mut self) {
        self.kill();
    }
}

impl State {
    /// Takes all sends of the only QP and completes them in its send CQ. Returns their numbers.
    pub fn complete_sends(&mut self) -> Vec<u64> {
        let mut done = Vec::new();
        let qp = self.qps.values_mut().next().unwrap();
        let cq = self.cqs.get_mut(&qp.send_cq.0).unwrap();
        let mut wqe = SendWqe::default();
        while qp.send_queue.take(&mut wqe, &mut vec![]).unwrap() == Taken::Ready {
            cq.ring.push(&CqEntry { wr_id: wqe.wr.wr_id, ..Default::default() }, false).unwrap();
            done.push(wqe.wr.wr_id);
        }
        cq.publish(&self.pipes);
        qp.send_queue.retire(done.len() as u32);
        done
    }

    /// Puts a completion on that CQ.
    pub fn complete(&mut self, token: u64, wr_id: u64, solicited: bool) {
        let cq = self.cqs.values_mut().find(|cq| cq.token == token).unwrap();
        cq.ring.push(&CqEntry { wr_id, ..Default::default() }, solicited).unwrap();
        cq.publish(&self.pipes);
    }

    /// Says something in the pipe of asynchronous events.
    pub fn say(&self, user_handle: u64, kind: u32) {
        let record = EventRecord { user_handle, kind, ..Default::default() };
        rustix::io::write(self.async_events.as_ref().unwrap(), &record.to_bytes()).unwrap();
    }

    /// The connection manager tells something of an id, or in its name.
    pub fn tell(&mut self, id: u32, kind: CmEventKind, about: u32, param: CmEventParam) {
        let (channel, user_handle) = self.cm_ids[&id];
        let channel = self.cm_channels.get_mut(&channel).unwrap();
        let subject = CmSubject::Id(CmIdHandle(about));
        channel.events.push_back(CmEvent { user_handle, subject, kind, status: 0, param });
        rustix::io::write(&channel.pipe, &[1]).unwrap();
    }

    fn answer_cm(&mut self, request: CmRequest, fds: &mut Vec<OwnedFd>) -> Reply {
        let reply = match request {
            CmRequest::CreateChannel => {
                let (read, pipe) = pipe_with(PipeFlags::CLOEXEC).unwrap();
                fds.push(read);
                let handle = self.handle();
                let events = VecDeque::new();
                self.cm_channels.insert(handle, FakeCmChannel { pipe, events });
                CmReply::Channel(CmChannelHandle(handle))
            }
            CmRequest::CreateId { channel, user_handle, .. } => {
                let handle = self.handle();
                self.cm_ids.insert(handle, (channel.0, user_handle));
                CmReply::Id(CmIdHandle(handle))
            }
            CmRequest::Accept { id, user_handle, .. } => {
                // The program's own; the next one is where it resolves addresses.
                let channel = *self.cm_channels.keys().min().unwrap();
                self.cm_ids.insert(id.0, (channel, user_handle));
                return Reply::Done;
            }
            CmRequest::GetEvent { channel } => {
                match self.cm_channels.get_mut(&channel.0).unwrap().events.pop_front() {
                    Some(event) => CmReply::Event(event),
                    None => {
                        let errno = rustix::io::Errno::AGAIN.raw_os_error();
                        return Reply::Error(ControlError { errno, message: "nothing".into() });
                    }
                }
            }
            CmRequest::ResolveAddr { id, .. } => {
                self.tell(id.0, CmEventKind::AddrResolved, id.0, CmEventParam::None);
                return Reply::Done;
            }
            CmRequest::ResolveRoute { id, .. } => {
                self.tell(id.0, CmEventKind::RouteResolved, id.0, CmEventParam::None);
                return Reply::Done;
            }
            CmRequest::MigrateId { id, channel } => {
                self.cm_ids.get_mut(&id.0).unwrap().0 = channel.0;
                CmReply::Events(2)
            }
            CmRequest::Query { .. } => {
                let addr = |last| SocketAddr::from(([192, 0, 2, last], 7471));
                let (src, dst) = (Some(addr(1)), Some(addr(2)));
                CmReply::Route(CmRoute { device: Some(0), src, dst, ..CmRoute::default() })
            }
            CmRequest::QpAttr { .. } => CmReply::QpAttr(QpAttr::default()),
            CmRequest::DestroyId { .. } => CmReply::Events(0),
            _ => return Reply::Done,
        };
        Reply::Cm(reply)
    }

    /// Doorbells rung since the last time.
    pub fn rung(&self) -> Vec<u32> {
        let mut rung = Vec::new();
        self.doorbells.as_ref().unwrap().take(u32::MAX, |slot| rung.push(slot));
        rung
    }

    fn handle(&mut self) -> u32 {
        self.last_handle += 1;
        self.last_handle
    }
}

impl FakeCq {
    fn publish(&mut self, pipes: &HashMap<u32, OwnedFd>) {
        if self.ring.publish() {
            let record =
                EventRecord { user_handle: self.token, kind: COMPLETION, ..Default::default() };
            let pipe = &pipes[&self.channel.unwrap().0];
            rustix::io::write(pipe, &record.to_bytes()).unwrap();
        }
    }
}

/// Answers one program until it or the test ends.
fn serve(listener: &Listener, state: &Mutex<State>, stopped: BorrowedFd<'_>) {
    if !wait(listener.as_fd(), stopped) {
        return;
    }
    let mut channel = Channel::new(listener.accept().unwrap().unwrap());
    while wait(channel.as_fd(), stopped) {
        match channel.recv() {
            Ok((request, _fds)) => answer(&mut channel, &mut state.lock().unwrap(), request),
            Err(ChannelError::Closed) => return,
            Err(error) => panic!("{error}"),
        }
    }
}

/// Whether the descriptor became readable before the end.
fn wait(fd: BorrowedFd<'_>, stopped: BorrowedFd<'_>) -> bool {
    let mut fds = [PollFd::new(&fd, PollFlags::IN), PollFd::new(&stopped, PollFlags::IN)];
    poll(&mut fds, None).unwrap();
    fds[1].revents().is_empty()
}

fn answer(channel: &mut Channel, state: &mut State, request: Request) {
    let mut fds: Vec<OwnedFd> = Vec::new();
    state.requests.push(request.clone());
    let reply = match request {
        Request::Hello { .. } => {
            let arena = Arena::new(16 << 20).unwrap();
            let flags =
                rustix::event::EventfdFlags::CLOEXEC | rustix::event::EventfdFlags::NONBLOCK;
            let wake = rustix::event::eventfd(0, flags).unwrap();
            let mut doorbells = DoorbellReader::new(arena.doorbells().clone()).unwrap();
            doorbells.set_slots(64);
            state.doorbells = Some(doorbells);
            fds.push(arena.fd().try_clone_to_owned().unwrap());
            fds.push(wake.try_clone().unwrap());
            state.wake = Some(wake);
            let memory_limit = arena.limit();
            state.arena = Some(arena);
            Reply::Hello { memory_limit }
        }
        Request::ListDevices => {
            let address = "192.0.2.1".parse().unwrap();
            Reply::Devices(vec![DeviceInfo { name: "fake0".into(), node_guid: [0; 8], address }])
        }
        Request::ListCauses => Reply::Causes(vec![]),
        Request::OpenDevice { .. } => {
            let (read, write) = pipe_with(PipeFlags::CLOEXEC).unwrap();
            fds.push(read);
            state.async_events = Some(write);
            Reply::Context(ContextHandle(state.handle()))
        }
        Request::QueryPort { .. } => Reply::Port(PortAttr {
            active: true,
            max_mtu: PathMtu::Mtu4096,
            active_mtu: PathMtu::Mtu1024,
            gid_tbl_len: state.gids.len().max(1) as u32,
            pkey_tbl_len: 1,
            max_msg_sz: 1 << 31,
            interface: None,
            speed_mbps: None,
        }),
        Request::QueryGid { index, .. } => Reply::Gid(match state.gids.get(index as usize) {
            Some(&gid) => Gid::from(gid),
            None => Gid::from("192.0.2.1".parse::<IpAddr>().unwrap()),
        }),
        Request::AllocPd { .. } => Reply::Pd(PdHandle(state.handle())),
        Request::RegMr { .. } => {
            let mr = state.handle();
            Reply::Mr { mr: MrHandle(mr), lkey: Lkey(0x100 + mr), rkey: Rkey(0x100 + mr) }
        }
        Request::CreateCompChannel { .. } => {
            let (read, write) = pipe_with(PipeFlags::CLOEXEC).unwrap();
            fds.push(read);
            let handle = state.handle();
            state.pipes.insert(handle, write);
            Reply::CompChannel(CompChannelHandle(handle))
        }
        Request::CreateCq { cqe, channel, user_handle, .. } => {
            let geometry = Geometry::completion(cqe).unwrap();
            let (extent, window) =
                state.arena.as_mut().unwrap().alloc(geometry.size().into()).unwrap();
            let ring = CqProducer::create(window, geometry).unwrap();
            let handle = state.handle();
            state.cqs.insert(handle, FakeCq { ring, channel, token: user_handle });
            let ring = RingLocation { offset: extent.offset, size: geometry.size() };
            Reply::Cq { cq: CqHandle(handle), cqe: geometry.capacity(), ring }
        }
        Request::ResizeCq { cq, cqe } => {
            let geometry = Geometry::completion(cqe).unwrap();
            let (extent, window) =
                state.arena.as_mut().unwrap().alloc(geometry.size().into()).unwrap();
            state.cqs.get_mut(&cq.0).unwrap().ring.move_to(window, geometry).unwrap();
            let ring = RingLocation { offset: extent.offset, size: geometry.size() };
            Reply::CqResized { cqe: geometry.capacity(), ring }
        }
        Request::CreateSrq { attr, user_handle, .. } => {
            let (queue, attr, ring) = recv_ring(state, attr);
            let handle = state.handle();
            state.srqs.insert(handle, FakeSrq { queue, attr, token: user_handle });
            Reply::Srq { srq: SrqHandle(handle), srqn: 0x21, attr, ring }
        }
        Request::ModifySrq { srq, max_wr, limit } => {
            let fake = state.srqs.get_mut(&srq.0).unwrap();
            fake.attr.limit = limit.unwrap_or(fake.attr.limit);
            let ring = max_wr.map(|max_wr| {
                let geometry = Geometry::recv(max_wr, fake.attr.max_sge).unwrap();
                let arena = state.arena.as_mut().unwrap();
                let (extent, window) = arena.alloc(geometry.size().into()).unwrap();
                fake.queue.move_to(window, geometry).unwrap();
                fake.attr.max_wr = geometry.capacity();
                RingLocation { offset: extent.offset, size: geometry.size() }
            });
            Reply::SrqModified { attr: fake.attr, ring }
        }
        Request::QuerySrq { srq } => Reply::SrqAttr(state.srqs[&srq.0].attr),
        Request::CreateAh { .. } => {
            let handle = state.handle();
            Reply::Ah { ah: AhHandle(handle), ah_num: AhId(0x100 + handle) }
        }
        Request::AllocMw { .. } => {
            let handle = state.handle();
            Reply::Mw { mw: MwHandle(handle), rkey: Rkey(handle << 8 | 0xfe) }
        }
        Request::Resources { from, .. } => {
            let number = from.after.map_or(1, |after| after + 1);
            let detail = ResourceDetail::Cq { cqe: 7, unread: 0, qps: 0, failed: false };
            let program = "fake 1".into();
            let resource = Resource { number, program, uid: 0, pd: 0, detail };
            let next = (number < 3).then_some(Cursor { slot: 0, after: Some(number) });
            Reply::Resources(ResourcePage { resources: vec![resource], next })
        }
        Request::CreateQp { qp_type, caps, send_cq, srq, user_handle, .. } => {
            let send =
                Geometry::send(caps.max_send_wr, caps.max_send_sge, caps.max_inline_data).unwrap();
            let arena = state.arena.as_mut().unwrap();
            let (send_extent, send_window) = arena.alloc(send.size().into()).unwrap();
            let is_datagram = qp_type == QpType::Ud;
            let mut granted = SrqAttr::default();
            let (recv_queue, recv_ring) = match srq {
                Some(_) => (None, None),
                None => {
                    let (max_wr, max_sge) = (caps.max_recv_wr, caps.max_recv_sge);
                    let wanted = SrqAttr { max_wr, max_sge, limit: 0 };
                    let (queue, attr, ring) = recv_ring(state, wanted);
                    granted = attr;
                    (Some(queue), Some(ring))
                }
            };
            let handle = state.handle();
            let qp = FakeQp {
                send_queue: SqConsumer::create(send_window, send, is_datagram).unwrap(),
                recv_queue,
                send_cq,
                slot: handle,
                token: user_handle,
            };
            state.qps.insert(handle, qp);
            Reply::Qp(QpCreated {
                qp: QpHandle(handle),
                qpn: Qpn::new(0x11),
                caps: QpCaps {
                    max_send_wr: send.capacity(),
                    max_recv_wr: granted.max_wr,
                    max_send_sge: send.max_sge(),
                    max_recv_sge: granted.max_sge,
                    max_inline_data: send.max_inline(),
                },
                send_ring: RingLocation { offset: send_extent.offset, size: send.size() },
                recv_ring,
                doorbell_slot: handle,
            })
        }
        Request::Cm(request) => state.answer_cm(request, &mut fds),
        Request::ModifyQp { .. } if state.refuses_modify => Reply::Error(ControlError {
            errno: rustix::io::Errno::INVAL.raw_os_error(),
            message: "not this QP".into(),
        }),
        Request::ModifyQp { qp, attr } => {
            let qp = state.qps.get_mut(&qp.0).unwrap();
            if attr.state == Some(QpState::Reset) {
                qp.send_queue.reset();
            }
            if let Some(recv_queue) = &mut qp.recv_queue {
                if attr.state == Some(QpState::Reset) {
                    recv_queue.reset();
                }
                recv_queue.set_ring_after_post(attr.state == Some(QpState::Err));
            }
            Reply::Done
        }
        Request::AttachMcast { .. }
        | Request::DetachMcast { .. }
        | Request::DestroySrq { .. }
        | Request::DestroyAh { .. }
        | Request::DeallocMw { .. }
        | Request::DestroyQp { .. }
        | Request::DestroyCq { .. }
        | Request::DestroyCompChannel { .. }
        | Request::DeregMr { .. }
        | Request::DeallocPd { .. }
        | Request::CloseDevice { .. } => Reply::Done,
        other => Reply::Error(ControlError {
            errno: rustix::io::Errno::NOSYS.raw_os_error(),
            message: format!("the fake daemon has no {other:?}"),
        }),
    };
    let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
    channel.send(&reply, &fds).unwrap();
}

/// A ring for receives.
fn recv_ring(state: &mut State, wanted: SrqAttr) -> (RqConsumer, SrqAttr, RingLocation) {
    let geometry = Geometry::recv(wanted.max_wr, wanted.max_sge).unwrap();
    let (extent, window) = state.arena.as_mut().unwrap().alloc(geometry.size().into()).unwrap();
    let (max_wr, max_sge) = (geometry.capacity(), geometry.max_sge());
    let location = RingLocation { offset: extent.offset, size: geometry.size() };
    let queue = RqConsumer::create(window, geometry).unwrap();
    (queue, SrqAttr { max_wr, max_sge, ..wanted }, location)
}
