//! Connections: what programs ask of them.

use super::bind::space_to_engine;
use super::id::Phase;
use super::{Cm, ConnOwner};
use crate::broker::device::RdmaDevice;
use rustix::io::Errno;
use std::time::Instant;
use urxe_cm::{Accept, CommandError, Connect, ConnectError, Path, Qp, Resolve, SidrAnswer};
use urxe_shm::control::{CmConnParam, CmPath, CmRoute, ControlError};
use urxe_slot::refusal::refuse;
use urxe_types::{Access, Gid, Pkey, Psn, Qkey, QpAttr, QpState, QpType, Qpn, TimeCode};
use urxe_wire::mad::SidrStatus;

/// The Q_Key of port spaces of datagrams: `RDMA_UDP_QKEY`.
pub(super) const UDP_QKEY: Qkey = Qkey(0x0123_4567);

impl Cm {
    pub(super) fn connect(
        &mut self,
        devices: &mut [RdmaDevice],
        now: Instant,
        key: u32,
        param: &CmConnParam,
    ) -> Result<(), ControlError> {
        let id = self.id(key)?;
        let (Phase::RouteResolved, Some(device), Some(src), Some(dst)) =
            (&id.phase, id.device, id.src, id.dst)
        else {
            return Err(id.cannot("connect"));
        };
        let qp = qp_to_engine(param)?;
        let mtu = devices[device].mtu;
        let manager = &mut devices[device].cm;
        let (space, traffic_class) = (space_to_engine(id.space), id.traffic_class);
        let private_data = &param.private_data[..];
        let connected = |qp_type| Connect {
            qp_type,
            space,
            src,
            dst,
            traffic_class,
            path_mtu: mtu,
            qp,
            retry_count: param.retry_count,
            // As in the kernel 0 is for our own QP alone: a peer would wait for ever.
            ack_timeout: id.ack_timeout.filter(|timeout| timeout.code() != 0),
            private_data,
        };
        let conn = match id.qp_type {
            QpType::Rc => {
                let connect = connected(urxe_types::QpType::Rc);
                manager.connect(now, &connect)
            }
            QpType::Uc => {
                let connect = connected(urxe_types::QpType::Uc);
                manager.connect(now, &connect)
            }
            QpType::Ud => {
                let resolve = Resolve { space, src, dst, traffic_class, private_data };
                manager.resolve(now, &resolve)
            }
        };
        let conn = conn.map_err(refuse_connect)?;
        self.conn_owners.insert((device, conn), ConnOwner::Id(key));
        let id = self.id_mut(key)?;
        (id.phase, id.qpn) = (Phase::Connected { device, conn }, Some(qp.qpn));
        Ok(())
    }

    pub(super) fn accept(
        &mut self,
        devices: &mut [RdmaDevice],
        now: Instant,
        key: u32,
        user_handle: u64,
        param: &CmConnParam,
    ) -> Result<(), ControlError> {
        let id = self.id(key)?;
        let (device, conn) = id.connection("accept")?;
        let qp = qp_to_engine(param)?;
        let private_data = &param.private_data[..];
        let manager = &mut devices[device].cm;
        if id.qp_type == QpType::Ud {
            let qkey = if param.qkey == Qkey(0) { UDP_QKEY } else { param.qkey };
            let status = SidrStatus::Valid;
            let answer = SidrAnswer { status, qpn: qp.qpn, qkey, private_data };
            manager.answer(now, conn, &answer).map_err(refuse_command)?;
            self.over(key);
            let id = self.id_mut(key)?;
            (id.user_handle, id.qpn) = (Some(user_handle), Some(qp.qpn));
            return Ok(());
        }
        manager.accept(now, conn, &Accept { qp, private_data }).map_err(refuse_command)?;
        self.accepted.insert((device, qp.qpn, key));
        let id = self.id_mut(key)?;
        (id.user_handle, id.qpn) = (Some(user_handle), Some(qp.qpn));
        id.accepted_qpn = id.qpn;
        Ok(())
    }

    pub(super) fn establish(
        &mut self,
        devices: &mut [RdmaDevice],
        now: Instant,
        key: u32,
    ) -> Result<(), ControlError> {
        let (device, conn) = self.id(key)?.connection("confirm")?;
        devices[device].cm.establish(now, conn, &[]).map_err(refuse_command)
    }

    pub(super) fn reject(
        &mut self,
        devices: &mut [RdmaDevice],
        now: Instant,
        key: u32,
        private_data: &[u8],
    ) -> Result<(), ControlError> {
        let (device, conn) = self.id(key)?.connection("reject")?;
        devices[device].cm.reject(now, conn, private_data).map_err(refuse_command)?;
        self.over(key);
        Ok(())
    }

    pub(super) fn disconnect(
        &mut self,
        devices: &mut [RdmaDevice],
        now: Instant,
        key: u32,
    ) -> Result<(), ControlError> {
        let id = self.id(key)?;
        if matches!(id.phase, Phase::Over) {
            return Ok(());
        }
        let (device, conn) = id.connection("disconnect")?;
        match devices[device].cm.disconnect(now, conn, &[]) {
            // As in the kernel: what is not connected yet need not be disconnected, only destroyed.
            Ok(()) | Err(CommandError::WrongState { .. }) => Ok(()),
            Err(error) => Err(refuse_command(error)),
        }
    }

    /// The manager has forgotten the id's connection, or will not speak of it again.
    pub(super) fn over(&mut self, key: u32) {
        self.confirmed(key);
        let Some(id) = self.ids.get_mut(key) else { return };
        if let Phase::Connected { device, conn } = std::mem::replace(&mut id.phase, Phase::Over) {
            self.conn_owners.remove(&(device, conn));
        }
    }

    pub(super) fn qp_attr(
        &self,
        devices: &[RdmaDevice],
        key: u32,
        state: QpState,
    ) -> Result<QpAttr, ControlError> {
        let id = self.id(key)?;
        let attr = QpAttr { state: Some(state), ..QpAttr::default() };
        match (id.device, &id.phase, id.qp_type, state) {
            (None, ..) => Err(id.cannot("say anything of a QP")),
            (Some(_), _, QpType::Ud, QpState::Init) => {
                let qkey = Some(UDP_QKEY);
                Ok(QpAttr { pkey_index: Some(0), port: Some(1), qkey, ..attr })
            }
            (Some(_), _, QpType::Ud, QpState::Rtr) => Ok(attr),
            (Some(_), _, QpType::Ud, QpState::Rts) => {
                Ok(QpAttr { sq_psn: Some(Psn::new(0)), ..attr })
            }
            (Some(_), &Phase::Connected { device, conn }, QpType::Rc | QpType::Uc, _) => {
                let device = &devices[device];
                let at = device
                    .nic
                    .device()
                    .gids()
                    .iter()
                    .position(|gid| *gid == id.src.map(|s| s.ip()));
                let at = at.ok_or_else(|| {
                    refuse(Errno::ADDRNOTAVAIL, "the device has lost the address of this id")
                })?;
                let attr = device.cm.qp_attr(conn, state, at as u8);
                let attr = attr.ok_or_else(|| {
                    let handle = id.handle;
                    let sentence =
                        format!("id {handle}: is not so far that its QP could be {state:?}");
                    refuse(Errno::INVAL, sentence)
                })?;
                let own = id.ack_timeout.map(TimeCode::code);
                Ok(QpAttr { timeout: attr.timeout.and(own).or(attr.timeout), ..attr })
            }
            // Before there is a connection no peer has access.
            (Some(_), _, _, QpState::Init) => {
                let access = Some(Access::default());
                Ok(QpAttr { pkey_index: Some(0), port: Some(1), access, ..attr })
            }
            _ => Err(id.cannot("say what its QP is to be set to")),
        }
    }

    pub(super) fn query(&self, devices: &[RdmaDevice], key: u32) -> Result<CmRoute, ControlError> {
        let id = self.id(key)?;
        let mut route = CmRoute { src: id.src, dst: id.dst, ..CmRoute::default() };
        let Some(device) = id.device else { return Ok(route) };
        let known =
            matches!(id.phase, Phase::RouteResolved | Phase::Connected { .. } | Phase::Over);
        if let (true, Some(src), Some(dst)) = (known, id.src, id.dst) {
            let path = match id.phase {
                Phase::Connected { device, conn } => devices[device].cm.path(conn),
                _ => None,
            };
            let path = path.unwrap_or(Path::between(src, dst, id.traffic_class));
            route.path = Some(CmPath {
                dgid: Gid::from(path.peer),
                sgid: Gid::from(path.local),
                pkey: Pkey::DEFAULT.0,
                mtu: devices[device].mtu,
                speed_mbps: devices[device].link.speed_mbps,
                traffic_class: path.traffic_class,
                hop_limit: path.hop_limit,
                flow_label: path.flow_label,
            });
        }
        route.device = Some(device as u32);
        (route.node_guid, route.port) = (devices[device].guid, 1);
        Ok(route)
    }
}

/// What a program says of its QP in the engine's terms.
fn qp_to_engine(param: &CmConnParam) -> Result<Qp, ControlError> {
    let qpn = Qpn::try_from(param.qpn);
    Ok(Qp {
        qpn: qpn.map_err(|error| refuse(Errno::INVAL, format!("qp_num {error}")))?,
        responder_resources: param.responder_resources,
        initiator_depth: param.initiator_depth,
        // CM-060: it is a matter of the device, not of the program, and this one tells no credits.
        flow_control: false,
        rnr_retry_count: param.rnr_retry_count,
        srq: param.srq,
    })
}

fn refuse_connect(error: ConnectError) -> ControlError {
    let errno = match error {
        ConnectError::TooMany => Errno::NOMEM,
        _ => Errno::INVAL,
    };
    refuse(errno, error.to_string())
}

fn refuse_command(error: CommandError) -> ControlError {
    refuse(Errno::INVAL, error.to_string())
}
