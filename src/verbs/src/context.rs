//! Finding a daemon and opening one of its devices.

use crate::async_event::AsyncEvent;
use crate::causes::Causes;
use crate::cm::EventChannel;
use crate::cq::CqInner;
use crate::event_pipe::{Deadline, EventPipe};
use crate::qp::QpInner;
use crate::session::{Session, descriptors, unexpected};
use crate::srq::SrqInner;
use crate::{CompChannel, Cq, Error, Grh, Pd, Qp, Srq};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;
use urxe_shm::control::event::EventRecord;
use urxe_shm::control::{
    ContextHandle, Cursor, DeviceAttr, DeviceInfo, PortAttr, Reply, Request, Resource, ResourceKind,
};

/// Which daemon, and which of its devices.
///
/// ```no_run
/// use urxe_verbs::{Context, OpenOptions};
///
/// // The first device of the daemon at the usual place.
/// let context = Context::open(&OpenOptions::new())?;
/// // A certain one.
/// let other = Context::open(&OpenOptions::new().socket("/run/lab/urxed.sock").device("urxe1"))?;
/// # Ok::<(), urxe_verbs::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct OpenOptions {
    socket: Option<PathBuf>,
    device: Option<String>,
    #[cfg(feature = "in-process")]
    in_process: bool,
}

impl OpenOptions {
    /// The first device of the daemon at the usual place. That is the socket `$URXE_SOCKET` if it
    /// is set; else the first of these at which a daemon answers: that of this user
    /// (`$XDG_RUNTIME_DIR/urxe/urxed.sock`, or `/tmp/urxe-<uid>/urxed.sock` where that is not
    /// set), and that of the system, `/run/urxe/urxed.sock`. Root has the latter only.
    pub fn new() -> OpenOptions {
        OpenOptions::default()
    }

    /// The daemon at this socket.
    pub fn socket(mut self, path: impl Into<PathBuf>) -> Self {
        self.socket = Some(path.into());
        self
    }

    /// The device of this name, such as `urxe0`.
    pub fn device(mut self, name: impl Into<String>) -> Self {
        self.device = Some(name.into());
        self
    }

    /// The data path runs in this process, in a thread of the library, and not in the daemon: the
    /// context has a *slot* of its own there. For programs of the daemon's own user, each context
    /// that is opened so. Everything works as it does otherwise, and the daemon still has addresses
    /// and connections; but
    ///
    /// - what the data path costs is this process's own, and so are the 1.5 MiB of its buffers;
    /// - while this process is stopped, by a signal or a debugger, its peers get no answer, and
    ///   give up after a while;
    /// - the panic of a thread is the end of a process that was made to abort then, and a defect of
    ///   the data path would be one of this process.
    ///
    /// [`Context::open`] fails with [`Error::Refused`] if the daemon is another user's (`EPERM`),
    /// if as many programs as can be have a slot (`ENOSPC`), or if one slot serves all programs of
    /// the daemon (`EOPNOTSUPP`).
    #[cfg(feature = "in-process")]
    pub fn in_process(mut self) -> Self {
        self.in_process = true;
        self
    }

    fn connect(&self) -> Result<Session, Error> {
        #[cfg(feature = "in-process")]
        if self.in_process {
            return Session::connect_in_process(self.socket.as_deref());
        }
        Session::connect(self.socket.as_deref())
    }
}

/// The devices of a daemon: `ibv_get_device_list`. Which device `options` name makes no difference.
///
/// # Errors
/// [`Error::Connect`] if no daemon answers.
pub fn devices(options: &OpenOptions) -> Result<Vec<DeviceInfo>, Error> {
    list_devices(&Session::connect(options.socket.as_deref())?)
}

fn list_devices(session: &Session) -> Result<Vec<DeviceInfo>, Error> {
    match session.call("list_devices", &Request::ListDevices)? {
        Reply::Devices(devices) => Ok(devices),
        _ => Err(unexpected("list_devices")),
    }
}

/// An open device: `ibv_context`. Everything else is made in one.
///
/// A clone is another name for the same context; it is closed when the last one, and everything
/// made in it, is dropped. Each [`open`](Self::open) is a session of its own with the daemon,
/// and what it made ends with it, whatever way the program ends.
#[derive(Clone, Debug)]
pub struct Context(pub(crate) Arc<ContextInner>);

#[derive(Debug)]
pub(crate) struct ContextInner {
    pub(crate) session: Session,
    pub(crate) handle: ContextHandle,
    /// Those of the daemon, in its order.
    devices: Vec<DeviceInfo>,
    /// Which of them this is.
    index: usize,
    /// What the numbers in completions mean.
    pub(crate) causes: Causes,
    async_events: EventPipe,
    /// What events are of, by the number that they carry.
    objects: Mutex<HashMap<u64, Object>>,
    last_token: AtomicU64,
}

/// Something that the daemon may send events of.
#[derive(Debug)]
pub(crate) enum Object {
    Cq(Weak<CqInner>),
    Qp(Weak<QpInner>),
    Srq(Weak<SrqInner>),
}

impl Context {
    /// Opens a device: `ibv_open_device`.
    ///
    /// # Errors
    /// [`Error::Connect`] if no daemon answers; [`Error::Refused`] if it has no such device.
    pub fn open(options: &OpenOptions) -> Result<Context, Error> {
        const CALL: &str = "open_device";
        let session = options.connect()?;
        let devices = list_devices(&session)?;
        let names =
            devices.iter().map(|device| device.name.as_str()).collect::<Vec<_>>().join(", ");
        let wanted = options.device.as_deref();
        let found = |device: &DeviceInfo| wanted.is_none_or(|name| device.name == name);
        let Some(index) = devices.iter().position(found) else {
            return Err(Error::invalid(
                "device",
                wanted.unwrap_or("any"),
                format!("one of: {names}"),
            ));
        };
        let Reply::Causes(causes) = session.call("list_causes", &Request::ListCauses)? else {
            return Err(unexpected("list_causes"));
        };
        let request = Request::OpenDevice { name: devices[index].name.clone() };
        let (reply, fds) = session.call_with_fds(CALL, &request, &[])?;
        let Reply::Context(handle) = reply else { return Err(unexpected(CALL)) };
        let [async_events] = descriptors(CALL, fds)?;
        Ok(Context(Arc::new(ContextInner {
            session,
            handle,
            devices,
            index,
            causes: Causes::intern(causes),
            async_events: EventPipe::new(async_events)?,
            objects: Mutex::default(),
            last_token: AtomicU64::new(0),
        })))
    }

    /// The daemon's process id, as it is seen from here; `None` if it is in a pid namespace that
    /// cannot be seen from here.
    pub fn daemon_pid(&self) -> Option<u32> {
        self.0.session.daemon_pid()
    }

    /// Which device this is.
    pub fn device(&self) -> &DeviceInfo {
        &self.0.devices[self.0.index]
    }

    /// The device's limits: `ibv_query_device`.
    ///
    /// # Errors
    /// [`Error::DaemonGone`].
    pub fn query_device(&self) -> Result<DeviceAttr, Error> {
        let request = Request::QueryDevice { context: self.0.handle };
        match self.0.session.call("query_device", &request)? {
            Reply::Device(attr) => Ok(attr),
            _ => Err(unexpected("query_device")),
        }
    }

    /// A port's state: `ibv_query_port`. Port 1 is the only one.
    ///
    /// # Errors
    /// [`Error::Refused`] for another port; [`Error::DaemonGone`].
    pub fn query_port(&self, port: u8) -> Result<PortAttr, Error> {
        let request = Request::QueryPort { context: self.0.handle, port };
        match self.0.session.call("query_port", &request)? {
            Reply::Port(attr) => Ok(attr),
            _ => Err(unexpected("query_port")),
        }
    }

    /// An entry of a port's GID table: `ibv_query_gid`. In RoCEv2 a GID is an IP address; an entry
    /// that is not in use is `::`.
    ///
    /// # Errors
    /// [`Error::Refused`] for a port other than 1, or an index beyond the table
    /// ([`PortAttr::gid_tbl_len`]); [`Error::DaemonGone`].
    pub fn query_gid(&self, port: u8, index: u32) -> Result<IpAddr, Error> {
        let request = Request::QueryGid { context: self.0.handle, port, index };
        match self.0.session.call("query_gid", &request)? {
            Reply::Gid(gid) => Ok(gid.to_ip()),
            _ => Err(unexpected("query_gid")),
        }
    }

    /// The GIDs that a port has now, each with its index: an address of the machine that goes
    /// leaves a hole in the table, and one that comes takes the first hole.
    ///
    /// # Errors
    /// As [`query_port`](Self::query_port).
    pub fn gids(&self, port: u8) -> Result<Vec<(u8, IpAddr)>, Error> {
        let count = u8::try_from(self.query_port(port)?.gid_tbl_len).unwrap_or(u8::MAX);
        let entries = (0..count).map(|index| Ok((index, self.query_gid(port, index.into())?)));
        let filled = |entry: &Result<(u8, IpAddr), Error>| {
            !entry.as_ref().is_ok_and(|(_, gid)| gid.is_unspecified())
        };
        entries.filter(filled).collect()
    }

    /// The GID from which a datagram is answered: the one that it came to; or if it went to a
    /// multicast group, the first that the sender can be reached from.
    pub(crate) fn gid_index_for(&self, grh: &Grh) -> Result<u8, Error> {
        let gids = self.gids(1)?;
        let found = gids
            .iter()
            .find(|(_, gid)| *gid == grh.destination)
            .or_else(|| gids.iter().find(|(_, gid)| reaches(*gid, grh.source)));
        found.map(|&(index, _)| index).ok_or_else(|| {
            Error::invalid("source of the datagram", grh.source, "one that a GID of ours reaches")
        })
    }

    /// The address of the device from which another is reached: its first, if that will do.
    pub(crate) fn address_for(&self, to: IpAddr) -> Result<IpAddr, Error> {
        let DeviceInfo { name, address, .. } = self.device();
        if reaches(*address, to) {
            return Ok(*address);
        }
        let found = self.gids(1)?.into_iter().find(|(_, gid)| reaches(*gid, to));
        found.map(|(_, gid)| gid).ok_or_else(|| {
            let expected =
                format!("one that an address of {name} ({address} and its GIDs) reaches");
            Error::invalid("destination", to, expected)
        })
    }

    /// What objects of a kind the device has, of all programs: those of one's own user, or of all
    /// users for root and for the user that the daemon runs as.
    ///
    /// # Errors
    /// [`Error::DaemonGone`].
    pub fn resources(&self, kind: ResourceKind) -> Result<Vec<Resource>, Error> {
        const CALL: &str = "resources";
        let (mut all, mut from) = (Vec::<Resource>::new(), Cursor::default());
        loop {
            let device = self.device().name.clone();
            let request = Request::Resources { device, kind, from };
            let Reply::Resources(page) = self.0.session.call(CALL, &request)? else {
                return Err(unexpected(CALL));
            };
            all.extend(page.resources);
            match from.advanced_to(page.next) {
                Some(next) => from = next,
                None => return Ok(all),
            }
        }
    }

    /// Makes a protection domain: `ibv_alloc_pd`.
    ///
    /// # Errors
    /// [`Error::Refused`] if there are too many; [`Error::DaemonGone`].
    pub fn alloc_pd(&self) -> Result<Pd, Error> {
        Pd::alloc(&self.0)
    }

    /// Makes a completion channel: `ibv_create_comp_channel`.
    ///
    /// # Errors
    /// [`Error::Refused`] if there are too many; [`Error::DaemonGone`].
    pub fn create_comp_channel(&self) -> Result<CompChannel, Error> {
        CompChannel::create(&self.0)
    }

    /// Makes an event channel of the connection manager: `rdma_create_event_channel`.
    ///
    /// # Errors
    /// [`Error::Refused`] if there are too many; [`Error::DaemonGone`].
    pub fn create_event_channel(&self) -> Result<EventChannel, Error> {
        EventChannel::create(&self.0)
    }

    /// Makes a completion queue for `depth` completions, or more, that announces them in
    /// `channel` when asked to: `ibv_create_cq`.
    ///
    /// # Errors
    /// [`Error::Refused`] if `depth` is 0 or above the device's `max_cqe`;
    /// [`Error::ForeignObject`] if the channel is of another context; [`Error::DaemonGone`].
    pub fn create_cq(&self, depth: u32, channel: Option<&CompChannel>) -> Result<Cq, Error> {
        Cq::create(&self.0, depth, channel)
    }

    /// Waits for something that no completion can tell: `ibv_get_async_event`. `None` if there is
    /// nothing within `timeout`; without a timeout, waits for ever. There is nothing to
    /// acknowledge.
    ///
    /// # Errors
    /// [`Error::DaemonGone`].
    pub fn async_event(&self, timeout: Option<Duration>) -> Result<Option<AsyncEvent>, Error> {
        let deadline = Deadline::after(timeout);
        while let Some(record) = self.0.async_events.read(&self.0.session, deadline)? {
            let record = EventRecord::from_bytes(record);
            if let Some(event) = AsyncEvent::from_record(record, &self.0) {
                return Ok(Some(event));
            }
        }
        Ok(None)
    }

    /// Becomes readable when there is an [`async_event`](Self::async_event).
    pub fn async_fd(&self) -> BorrowedFd<'_> {
        self.0.async_events.as_fd()
    }
}

impl ContextInner {
    /// The name of one of the daemon's devices, by its place in the list of them.
    pub(crate) fn device_name(&self, index: u32) -> &str {
        self.devices.get(index as usize).map_or("another", |device| &device.name)
    }

    /// The place of this device in the list.
    pub(crate) fn device_index(&self) -> u32 {
        self.index as u32
    }

    /// A number for the events of a new object; never given twice.
    pub(crate) fn new_token(&self) -> u64 {
        self.last_token.fetch_add(1, Ordering::Relaxed) + 1
    }

    pub(crate) fn register(&self, token: u64, object: Object) {
        self.objects.lock().insert(token, object);
    }

    pub(crate) fn forget(&self, token: u64) {
        // In a fork, another thread of the parent may hold the lock for ever.
        if self.session.check_process().is_ok() {
            self.objects.lock().remove(&token);
        }
    }

    /// Whether the object of that number is still there.
    pub(crate) fn has(&self, token: u64) -> bool {
        self.objects.lock().contains_key(&token)
    }

    /// The completion queue of an event, if it is still there.
    pub(crate) fn cq(&self, token: u64) -> Option<Cq> {
        match self.objects.lock().get(&token)? {
            Object::Cq(cq) => cq.upgrade().map(Cq),
            _ => None,
        }
    }

    /// The queue pair of an event, if it is still there.
    pub(crate) fn qp(&self, token: u64) -> Option<Qp> {
        match self.objects.lock().get(&token)? {
            Object::Qp(qp) => qp.upgrade().map(Qp),
            _ => None,
        }
    }

    /// The shared receive queue of an event, if it is still there.
    pub(crate) fn srq(&self, token: u64) -> Option<Srq> {
        match self.objects.lock().get(&token)? {
            Object::Srq(srq) => srq.upgrade().map(Srq),
            _ => None,
        }
    }
}

/// Whether packets from one address can go to another at all.
fn reaches(from: IpAddr, to: IpAddr) -> bool {
    let link_local = |ip: IpAddr| matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local());
    from.is_ipv4() == to.is_ipv4() && link_local(from) == link_local(to)
}

impl Drop for ContextInner {
    fn drop(&mut self) {
        // COUNT-022: the end of the session would do, but nobody waits for that.
        self.session.destroy("close_device", &Request::CloseDevice { context: self.handle });
    }
}
