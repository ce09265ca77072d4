//! Addresses and ports of ids, and listening.

use super::Cm;
use super::id::{Id, Phase};
use super::route::{
    device_of, is_served_elsewhere, lacks_interface, meant, meant_peer, way_to, why_not_served,
    wildcard_for,
};
use crate::broker::device::RdmaDevice;
use crate::limits::MAX_CM_BACKLOG;
use rustix::io::Errno;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Instant;
use urxe_cm::{Listen, ListenError, ListenOn, Service};
use urxe_shm::control::{CmEventKind, CmEventParam, CmOption, CmPortSpace, ControlError};
use urxe_slot::refusal::{Refusal, refuse};
use urxe_types::{QpType, TimeCode};
use urxe_wire::mad::PortSpace;

/// Ports below this one are root's.
const FIRST_FREE_PORT: u16 = 1024;

impl Cm {
    pub(super) fn bind(
        &mut self,
        devices: &[RdmaDevice],
        is_root: bool,
        key: u32,
        addr: SocketAddr,
    ) -> Result<(), ControlError> {
        let id = self.id(key)?;
        if !matches!(id.phase, Phase::Idle) {
            return Err(id.cannot("be bound"));
        }
        if lacks_interface(addr) {
            let sentence = format!("address {addr}: is link-local, expected an interface with it");
            return Err(refuse(Errno::INVAL, sentence));
        }
        let addr = meant(devices, addr);
        let device = match addr.ip().is_unspecified() {
            true => None,
            false => Some(device_of(devices, addr).ok_or_else(|| {
                refuse(why_not_served(addr), format!("address {addr}: no device has it"))
            })?),
        };
        let port = self.take_port(is_root, key, addr)?;
        self.counters.cm_ports_taken += 1;
        let id = self.id_mut(key)?;
        let mut src = addr;
        src.set_port(port);
        (id.src, id.device, id.has_port, id.phase) = (Some(src), device, true, Phase::Bound);
        Ok(())
    }

    fn take_port(
        &mut self,
        is_root: bool,
        key: u32,
        addr: SocketAddr,
    ) -> Result<u16, ControlError> {
        let id = self.id(key)?;
        let (space, claim) = (id.space, id.claim(key, addr.ip()));
        self.ports.check_account(addr.port(), claim.user)?;
        match addr.port() {
            0 => self.ports.claim_any(space, claim).or_refuse(Errno::ADDRNOTAVAIL, "any port"),
            port if port < FIRST_FREE_PORT && !is_root => {
                let sentence = format!("port {port}: expected {FIRST_FREE_PORT} or more, or root");
                Err(refuse(Errno::ACCESS, sentence))
            }
            port => {
                let claimed = self.ports.claim(space, port, claim);
                claimed.map_err(|errno| {
                    let sentence = format!(
                        "address {addr}: another id has this port, expected one that is free, or 0"
                    );
                    refuse(errno, sentence)
                })?;
                Ok(port)
            }
        }
    }

    pub(super) fn resolve_addr(
        &mut self,
        devices: &[RdmaDevice],
        is_root: bool,
        key: u32,
        src: Option<SocketAddr>,
        dst: SocketAddr,
    ) -> Result<(), ControlError> {
        let id = self.id(key)?;
        id.check_resolution()?;
        let src = match id.phase {
            Phase::Idle => src.unwrap_or(wildcard_for(dst)),
            Phase::Bound => id.src.unwrap_or(dst),
            _ => return Err(id.cannot("resolve an address")),
        };
        if src.is_ipv4() != dst.is_ipv4() {
            let sentence = format!("address {dst}: expected one of the same family as {src}");
            return Err(refuse(Errno::INVAL, sentence));
        }
        if lacks_interface(dst) {
            let sentence = format!("address {dst}: is link-local, expected an interface with it");
            return Err(refuse(Errno::INVAL, sentence));
        }
        if matches!(id.phase, Phase::Idle) {
            self.bind(devices, is_root, key, src)?;
        }
        let (kind, status) = match self.find_way(devices, key, dst) {
            Ok(()) => (CmEventKind::AddrResolved, 0),
            Err(errno) => (CmEventKind::AddrError, -errno.raw_os_error()),
        };
        let event = self.push_event(key, kind, status, CmEventParam::None);
        self.id_mut(key)?.resolution = event;
        Ok(())
    }

    fn find_way(&mut self, devices: &[RdmaDevice], key: u32, dst: SocketAddr) -> Result<(), Errno> {
        let id = self.ids.get_mut(key).ok_or(Errno::NOENT)?;
        let mut src = id.src.ok_or(Errno::INVAL)?;
        let own = (!src.ip().is_unspecified()).then_some(src);
        let ip = way_to(devices, own, dst)?;
        if own.is_none() {
            src = with_ip(ip, src.port(), dst);
        }
        let mut dst = meant_peer(devices, ip, dst, is_served_elsewhere);
        if dst.ip().is_unspecified() {
            // The wildcard as a peer means the program itself.
            dst = with_ip(ip, dst.port(), src);
        }
        id.device = Some(device_of(devices, src).ok_or(Errno::NODEV)?);
        (id.src, id.dst, id.phase) = (Some(src), Some(dst), Phase::AddrResolved);
        let (space, claim) = (id.space, id.claim(key, ip));
        self.ports.replace(space, src.port(), claim);
        Ok(())
    }

    pub(super) fn resolve_route(&mut self, key: u32) -> Result<(), ControlError> {
        let id = self.id_mut(key)?;
        if !matches!(id.phase, Phase::AddrResolved) {
            return Err(id.cannot("resolve a route"));
        }
        id.phase = Phase::RouteResolved;
        self.push_event(key, CmEventKind::RouteResolved, 0, CmEventParam::None);
        Ok(())
    }

    pub(super) fn listen(
        &mut self,
        devices: &mut [RdmaDevice],
        now: Instant,
        key: u32,
        backlog: u32,
    ) -> Result<(), ControlError> {
        if matches!(self.id(key)?.phase, Phase::Idle) {
            self.bind(devices, false, key, SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0))?;
        }
        let id = self.id(key)?;
        let (Phase::Bound, Some(src)) = (&id.phase, id.src) else {
            return Err(id.cannot("listen"));
        };
        // SHARE-124
        let user = id.program.uid;
        self.listener_account.check(user)?;
        if id.reuse_addr {
            // An id that listens no longer shares its port.
            let claim = super::ports::Claim { reuse_addr: false, ..id.claim(key, src.ip()) };
            let checked = self.ports.check(id.space, src.port(), &claim);
            checked.map_err(|errno| refuse(errno, format!("address {src}: {errno}")))?;
            self.ports.replace(id.space, src.port(), claim);
            self.id_mut(key)?.reuse_addr = false;
        }
        let id = self.id(key)?;
        let backlog = match backlog {
            0 => MAX_CM_BACKLOG,
            backlog => backlog.min(MAX_CM_BACKLOG),
        };
        let listen = Listen {
            space: space_to_engine(id.space),
            port: src.port(),
            on: listen_on(id, src.ip()),
            service: match id.qp_type {
                QpType::Rc => Service::Connected(urxe_types::QpType::Rc),
                QpType::Uc => Service::Connected(urxe_types::QpType::Uc),
                QpType::Ud => Service::Datagrams,
            },
            backlog: backlog as usize,
        };
        let on = id.device.map_or(0..devices.len(), |device| device..device + 1);
        let mut listeners = Vec::new();
        for device in on {
            match devices[device].cm.listen(now, &listen) {
                Ok(listener) => listeners.push((device, listener)),
                Err(error) => {
                    for (device, listener) in listeners {
                        devices[device].cm.unlisten(now, listener);
                    }
                    let errno = match error {
                        ListenError::AddressInUse(_) => Errno::ADDRINUSE,
                        ListenError::TooMany => Errno::NOMEM,
                    };
                    return Err(refuse(errno, error.to_string()));
                }
            }
        }
        self.listeners.extend(listeners.iter().map(|&listener| (listener, key)));
        self.id_mut(key)?.phase = Phase::Listening(listeners);
        self.listener_account.take(user);
        Ok(())
    }

    pub(super) fn set_option(&mut self, key: u32, option: CmOption) -> Result<(), ControlError> {
        let id = self.id_mut(key)?;
        let listens = matches!(id.phase, Phase::Listening(_));
        match (option, &id.phase) {
            (CmOption::TypeOfService(class), _) => id.traffic_class = class,
            (CmOption::ReuseAddr(reuse), Phase::Idle) => id.reuse_addr = reuse,
            (CmOption::ReuseAddr(true), _) if !listens => id.reuse_addr = true,
            (CmOption::FamilyOnly(only), Phase::Idle | Phase::Bound) => id.family_only = Some(only),
            (CmOption::AckTimeout(code), _) if code > 31 => {
                let sentence = format!("ACK timeout {code}: expected a code of 0 to 31");
                return Err(refuse(Errno::INVAL, sentence));
            }
            (CmOption::AckTimeout(_), _) if id.qp_type != QpType::Rc => {
                let sentence = "ACK timeout: expected an id of a reliable connection";
                return Err(refuse(Errno::INVAL, sentence));
            }
            (CmOption::AckTimeout(code), _) => id.ack_timeout = Some(TimeCode::new(code)),
            (CmOption::ReuseAddr(_) | CmOption::FamilyOnly(_), _) => {
                return Err(id.cannot("have that option changed"));
            }
        }
        if let (Some(port), Some(src)) = (id.port(), id.src) {
            let (space, claim) = (id.space, id.claim(key, src.ip()));
            self.ports.replace(space, port, claim);
        }
        Ok(())
    }
}

/// An address of the interface of another.
fn with_ip(ip: IpAddr, port: u16, near: SocketAddr) -> SocketAddr {
    let mut addr = SocketAddr::new(ip, port);
    if let (SocketAddr::V6(addr), SocketAddr::V6(near)) = (&mut addr, near)
        && addr.ip().is_unicast_link_local()
    {
        addr.set_scope_id(near.scope_id());
    }
    addr
}

fn listen_on(id: &Id, addr: IpAddr) -> ListenOn {
    match addr {
        addr if !addr.is_unspecified() => ListenOn::Address(addr),
        addr if !id.is_family_only(addr) => ListenOn::Any,
        IpAddr::V4(_) => ListenOn::AnyV4,
        IpAddr::V6(_) => ListenOn::AnyV6,
    }
}

/// A port space in the engine's terms.
pub(super) fn space_to_engine(space: CmPortSpace) -> PortSpace {
    match space {
        CmPortSpace::Ipoib => PortSpace::Ipoib,
        CmPortSpace::Tcp => PortSpace::Tcp,
        CmPortSpace::Udp => PortSpace::Udp,
        CmPortSpace::Ib => PortSpace::Ib,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::broker::account::Account;
    use crate::broker::sessions::Program;

    fn add_id(cm: &mut Cm, uid: u32) -> u32 {
        let program = Program { uid, name: "test".into() };
        cm.add_id(Id::new(program, 1, 0, CmPortSpace::Tcp, QpType::Rc)).unwrap()
    }

    /// SHARE-124
    #[test]
    fn one_user_leaves_listeners_to_others_in_however_many_sessions() {
        let mut cm = Cm::new();
        cm.listener_account = Account::new("listeners", 128);
        let listens = |cm: &mut Cm, uid| {
            let key = add_id(cm, uid);
            cm.listen(&mut [], Instant::now(), key, 0).map(|()| key)
        };
        let had: Vec<u32> = (0..128).map_while(|_| listens(&mut cm, 7).ok()).collect();
        assert!((64..120).contains(&had.len()), "{}", had.len());
        let refused = listens(&mut cm, 7).unwrap_err();
        assert!(refused.message.starts_with("listeners: user 7 has"), "{refused}");
        listens(&mut cm, 8).unwrap();
        // As after an upgrade.
        cm.listener_account = Account::new("listeners", 128);
        cm.recount();
        assert!(listens(&mut cm, 7).is_err());
        for key in had {
            cm.destroy_id(&mut [], Instant::now(), key);
        }
        listens(&mut cm, 7).unwrap();
    }

    #[test]
    fn low_ports_are_for_root() {
        let mut cm = Cm::new();
        let key = add_id(&mut cm, 0);
        let addr = |port| SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), port);
        for port in [1, 1023] {
            let refused = cm.bind(&[], false, key, addr(port)).unwrap_err();
            assert_eq!(refused.errno, Errno::ACCESS.raw_os_error(), "{refused}");
            let dst = SocketAddr::new([10, 0, 0, 1].into(), 7174);
            let refused = cm.resolve_addr(&[], false, key, Some(addr(port)), dst).unwrap_err();
            assert_eq!(refused.errno, Errno::ACCESS.raw_os_error(), "{refused}");
        }
        cm.bind(&[], true, key, addr(1023)).unwrap();
    }
}
