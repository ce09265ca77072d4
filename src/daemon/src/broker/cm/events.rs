//! Events of the devices' managers become events of programs.

use super::channel::{PendingEvent, Request};
use super::id::{Id, Phase};
use super::{Cm, ConnOwner};
use crate::broker::device::RdmaDevice;
use rustix::io::Errno;
use std::net::SocketAddr;
use std::time::Instant;
use urxe_cm::{ConnId, DisconnectCause, Event, ListenerId, Path, Qp, SidrReply};
use urxe_shm::control::{
    CmConnParam, CmEvent, CmEventKind, CmEventParam, CmIdHandle, CmMulticastHandle, CmSubject,
    CmUdParam,
};
use urxe_types::{Qkey, Qpn};
use urxe_wire::mad::SidrStatus;

impl Cm {
    /// Lets a device's manager handle what came for it, and queues its events for programs.
    pub(crate) fn poll(&mut self, now: Instant, index: usize, device: &mut RdmaDevice) {
        device.take_mads(now);
        while let Some(event) = device.cm.poll_event() {
            self.on_event(now, index, device, event);
        }
        device.send_mads();
    }

    /// Data has come for a QP: if its program has accepted a connection for it, the peer is ready.
    pub(crate) fn on_data(&self, now: Instant, index: usize, device: &mut RdmaDevice, qpn: Qpn) {
        let keys = self.accepted.range((index, qpn, 0)..=(index, qpn, u32::MAX));
        for &(_, _, key) in keys {
            if let Some(Phase::Connected { conn, .. }) = self.ids.get(key).map(|id| &id.phase) {
                device.cm.communication_established(now, *conn);
            }
        }
    }

    fn on_event(&mut self, now: Instant, index: usize, device: &mut RdmaDevice, event: Event) {
        let none = CmEventParam::None;
        match event {
            Event::ConnectRequest { listener, conn, request } => {
                let mut param = conn_param(&request.offered, &request.private_data);
                param.retry_count = request.retry_count;
                let (src, dst) = (request.dst, request.src);
                let param = CmEventParam::Conn(param);
                self.on_request(now, index, device, listener, conn, (src, dst), param);
            }
            Event::SidrRequest { listener, conn, request } => {
                // Of the QP that asks nothing is known.
                let path = Path::between(request.dst, request.src, 0);
                let param = ud_param(device, &path, Qpn::new(0), Qkey(0), &request.private_data);
                let sockets = (request.dst, request.src);
                self.on_request(now, index, device, listener, conn, sockets, param);
            }
            Event::ConnectResponse { conn, response } => {
                let param =
                    CmEventParam::Conn(conn_param(&response.offered, &response.private_data));
                self.on_progress(index, conn, CmEventKind::ConnectResponse, 0, param);
            }
            Event::Established { conn, .. } => {
                if let Some(ConnOwner::Id(key)) = self.conn_owners.get(&(index, conn)).copied() {
                    self.confirmed(key);
                }
                self.on_progress(index, conn, CmEventKind::Established, 0, none);
            }
            Event::Disconnected { conn, cause } => {
                let status = match cause {
                    DisconnectCause::Peer { .. } | DisconnectCause::Confirmed { .. } => 0,
                    DisconnectCause::Unconfirmed => timed_out(),
                };
                self.on_progress(index, conn, CmEventKind::Disconnected, status, none);
            }
            Event::Rejected { conn, reason, private_data, .. } => {
                let private_data = private_data.to_vec();
                let param = CmConnParam { private_data, ..CmConnParam::default() };
                let status = i32::from(reason.code());
                self.on_end(index, conn, CmEventKind::Rejected, status, CmEventParam::Conn(param));
            }
            Event::Unreachable { conn } => {
                self.on_end(index, conn, CmEventKind::Unreachable, timed_out(), none);
            }
            Event::TimewaitExit { conn } => {
                self.on_end(index, conn, CmEventKind::TimewaitExit, 0, none);
            }
            Event::SidrReply { conn, reply } => self.on_reply(index, device, conn, &reply),
        }
    }

    #[allow(clippy::too_many_arguments)] // What a request consists of.
    fn on_request(
        &mut self,
        now: Instant,
        index: usize,
        device: &mut RdmaDevice,
        listener: ListenerId,
        conn: ConnId,
        (src, dst): (SocketAddr, SocketAddr),
        param: CmEventParam,
    ) {
        let key = self.listeners.get(&(index, listener)).copied();
        let Some((key, id)) = key.and_then(|key| Some((key, self.ids.get(key)?))) else {
            return device.cm.destroy(now, conn);
        };
        let request = Request { device: index, conn, qp_type: id.qp_type, src, dst, param };
        let Some(event) = self.enqueue(key, PendingEvent::Request(request)) else {
            return device.cm.destroy(now, conn);
        };
        self.conn_owners.insert((index, conn), ConnOwner::Backlog { listener: key, event });
    }

    fn on_progress(
        &mut self,
        device: usize,
        conn: ConnId,
        kind: CmEventKind,
        status: i32,
        param: CmEventParam,
    ) {
        if let Some(&ConnOwner::Id(key)) = self.conn_owners.get(&(device, conn)) {
            self.push_event(key, kind, status, param);
        }
    }

    /// The last event of a connection.
    fn on_end(
        &mut self,
        device: usize,
        conn: ConnId,
        kind: CmEventKind,
        status: i32,
        param: CmEventParam,
    ) {
        match self.conn_owners.remove(&(device, conn)) {
            Some(ConnOwner::Id(key)) => {
                self.over(key);
                self.push_event(key, kind, status, param);
            }
            // The peer has given up before the program has taken the request.
            Some(ConnOwner::Backlog { listener, event }) => self.withdraw(listener, event),
            None => {}
        }
    }

    fn on_reply(&mut self, index: usize, device: &RdmaDevice, conn: ConnId, reply: &SidrReply) {
        let SidrReply { status, qpn, qkey, private_data } = reply;
        let (kind, status) = match status {
            SidrStatus::Valid => (CmEventKind::Established, 0),
            status => (CmEventKind::Unreachable, i32::from(status.code())),
        };
        let Some(&ConnOwner::Id(key)) = self.conn_owners.get(&(index, conn)) else { return };
        let Some(id) = self.ids.get(key) else { return };
        let (Some(src), Some(dst)) = (id.src, id.dst) else { return };
        let path = Path::between(src, dst, id.traffic_class);
        let param = ud_param(device, &path, *qpn, *qkey, private_data);
        self.on_end(index, conn, kind, status, param);
    }

    /// The next event of a channel, if there is one: whether it is a request of a
    /// peer, for which an id is to be made.
    pub(super) fn next_is_request(&self, channel: u32) -> Option<bool> {
        let first = self.channels.first(channel)?;
        Some(matches!(first.event, PendingEvent::Request(_)))
    }

    /// Refuses the oldest event of a channel, a request of a peer for which there can be no id.
    pub(super) fn refuse_first(&mut self, devices: &mut [RdmaDevice], now: Instant, channel: u32) {
        let Some((number, queued)) = self.channels.pop(channel) else { return };
        if let Some(id) = self.ids.get_mut(queued.id) {
            id.waiting.remove(&number);
        }
        if let PendingEvent::Request(request) = queued.event {
            self.counters.cm_requests_without_id += 1;
            self.refuse_request(devices, now, &request);
        }
    }

    /// Takes the oldest event of a channel. If it is a request of a peer, it is about a new id of
    /// this handle, whose key is returned too.
    pub(super) fn take_event(
        &mut self,
        devices: &mut [RdmaDevice],
        channel: u32,
        handle: u32,
    ) -> Option<(CmEvent, Option<u32>)> {
        let (number, queued) = self.channels.pop(channel)?;
        let id = self.ids.get_mut(queued.id)?;
        self.counters.cm_events_taken += 1;
        id.waiting.remove(&number);
        id.taken = id.taken.wrapping_add(1);
        let mut user_handle = id.user_handle.unwrap_or_default();
        match queued.event {
            PendingEvent::Event { membership, kind, status, param } => {
                let mut subject = CmSubject::Id(CmIdHandle(id.handle));
                if let Some(membership) = membership.and_then(|key| self.memberships.get_mut(key)) {
                    membership.taken = membership.taken.wrapping_add(1);
                    user_handle = membership.user_handle;
                    subject = CmSubject::Multicast(CmMulticastHandle(membership.handle));
                }
                Some((CmEvent { user_handle, subject, kind, status, param }, None))
            }
            PendingEvent::Request(request) => {
                let Request { device, conn, qp_type, src, dst, param } = request;
                let new = Id {
                    phase: Phase::Connected { device, conn },
                    device: Some(device),
                    src: Some(src),
                    dst: Some(dst),
                    traffic_class: id.traffic_class,
                    ..Id::new(id.program.clone(), handle, channel, id.space, qp_type)
                };
                let key = self.add_id(new).ok()?;
                self.conn_owners.insert((device, conn), ConnOwner::Id(key));
                devices[device].cm.take_request(conn);
                let event = CmEvent {
                    user_handle,
                    subject: CmSubject::Id(CmIdHandle(handle)),
                    kind: CmEventKind::ConnectRequest,
                    status: 0,
                    param,
                };
                Some((event, Some(key)))
            }
        }
    }
}

/// What a peer said of its QP.
fn conn_param(offered: &Qp, private_data: &[u8]) -> CmConnParam {
    CmConnParam {
        qpn: offered.qpn.get(),
        qkey: Qkey(0),
        responder_resources: offered.responder_resources,
        initiator_depth: offered.initiator_depth,
        flow_control: offered.flow_control,
        retry_count: 0,
        rnr_retry_count: offered.rnr_retry_count,
        srq: offered.srq,
        private_data: private_data.to_vec(),
    }
}

/// What belongs to an event of datagrams.
pub(super) fn ud_param(
    device: &RdmaDevice,
    path: &Path,
    qpn: Qpn,
    qkey: Qkey,
    private_data: &[u8],
) -> CmEventParam {
    // Only of an address that has gone meanwhile there is no vector.
    match path.address_vector(device.nic.device().gids()) {
        Some(av) => {
            let (qpn, qkey, private_data) = (qpn.get(), qkey.0, private_data.to_vec());
            CmEventParam::Ud(CmUdParam { qpn, qkey, av, private_data })
        }
        None => CmEventParam::None,
    }
}

fn timed_out() -> i32 {
    -Errno::TIMEDOUT.raw_os_error()
}
