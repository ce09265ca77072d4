//! A device with a program on it that does what it is told.

use super::{Device, Handle, OurEnd, RemoteMemory, Services, Setup, TheirEnd, Unavailable};
use crate::agent::{
    Agent, AgentError, Command, Connect, Hello, Key, Made, Operation, Path, RecvWr, State,
};
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::net::IpAddr;
use urxe_types::{Access, QpType};

/// A device, by a program on it.
pub struct AgentDevice<A> {
    agent: A,
    hello: Hello,
    addr: IpAddr,
    gid_index: u8,
    /// Numbers what is made.
    next: u32,
    /// What the check has made, in order.
    made: Vec<String>,
    services: Services,
}

/// Where in the program's own memory that is which its sends take.
pub const SOURCE: usize = 0;
/// Where that is to which its READs and atomics bring something.
pub const TARGET: usize = 64 << 10;
/// Where its receives begin.
pub const RECEIVES: usize = 128 << 10;
/// Bytes of a receive buffer that is not longer than this.
const RECEIVES_LEN: usize = 64 << 10;
/// Bytes that a datagram's receive begins with.
pub const GRH: usize = 40;

impl<A: Agent> AgentDevice<A> {
    /// The device at this address.
    ///
    /// # Errors
    /// If the program does not answer, or the device does not have that address.
    pub fn new(mut agent: A, addr: IpAddr) -> Result<AgentDevice<A>, Unavailable> {
        let hello: Hello = answer(agent.call(&Command::Hello))?;
        let gid_index = *hello.gids.get(&addr).ok_or_else(|| {
            let its: Vec<String> = hello.gids.keys().map(IpAddr::to_string).collect();
            let its = its.join(", ");
            Unavailable::Failed(format!("{} has {its}, and not {addr}", hello.device))
        })?;
        let (made, services) = (Vec::new(), Services::default());
        Ok(AgentDevice { agent, hello, addr, gid_index, next: 0, made, services })
    }

    /// With programs on the device that wait to be connected to.
    pub fn with_services(self, services: Services) -> AgentDevice<A> {
        AgentDevice { services, ..self }
    }

    /// What the device has said that it does not do is not asked of it.
    fn ensure_does(&self, setup: &Setup) -> Done {
        let Hello { device, mtu, atomics, .. } = &self.hello;
        let adds = setup.work.is_some_and(|work| work.operation == Operation::FetchAdd);
        if *atomics == Some(false) && (setup.atomic || adds) {
            let reason = format!("{device} does no atomics: its atomic_cap is IBV_ATOMIC_NONE");
            return Err(Unavailable::NotSupported(reason));
        }
        // Drivers take any path MTU for a QP, and then lose what the link does not carry.
        let wanted = setup.mtu.bytes();
        if wanted > *mtu as usize {
            let reason = format!("path MTU {wanted}: the link of {device} has {mtu} at most");
            return Err(Unavailable::NotSupported(reason));
        }
        Ok(())
    }

    fn do_it<T: DeserializeOwned>(&mut self, command: &Command) -> Result<T, Unavailable> {
        answer(self.call(command))
    }

    fn register(&mut self, name: String, len: usize, access: Access) -> Result<Key, Unavailable> {
        self.do_it(&Command::RegMr { name, len, access: access.bits() })
    }

    fn register_for_peers(&mut self, handle: Handle, setup: &Setup, access: Access) -> Done<Key> {
        const EINVAL: i32 = 22;
        let (name, len, access) = (handle.memory(), setup.memory, access.bits());
        match self.call(&Command::RegMr { name, len, access }) {
            // A kernel that does not know the right to FLUSH takes it for a mistake.
            Err(error @ AgentError::Refused { errno: Some(EINVAL), .. }) if setup.flush => {
                Err(Unavailable::NotSupported(error.to_string()))
            }
            answered => answer(answered),
        }
    }

    fn start(&mut self, setup: &Setup, handle: Handle, ours: &OurEnd, psn: u32) -> Done {
        let path = Path { dgid: ours.addr, gid_index: self.gid_index };
        if setup.transport == QpType::Ud {
            let command =
                Command::StartDatagrams { qp: handle.qp(), qkey: setup.qkey, sq_psn: psn };
            return self.do_it::<Value>(&command).map(drop);
        }
        let connect = Connect {
            qp: handle.qp(),
            access: rights(setup).bits(),
            mtu: setup.mtu,
            dqpn: ours.qpn,
            sq_psn: psn,
            rq_psn: ours.psn,
            path,
            timeout: setup.timeout.unwrap_or(14),
            retry_cnt: setup.retry_cnt.unwrap_or(7),
            rnr_retry: setup.rnr_retry.unwrap_or(7),
            min_rnr_timer: setup.min_rnr_timer.unwrap_or(12),
            max_rd_atomic: setup.max_rd_atomic.unwrap_or(16),
            max_dest_rd_atomic: setup.max_dest_rd_atomic.unwrap_or(16),
            until: setup.state,
        };
        self.do_it::<Value>(&Command::Connect(connect)).map(drop)
    }
}

type Done<T = ()> = Result<T, Unavailable>;

fn answer<T: DeserializeOwned>(answered: Result<Value, AgentError>) -> Result<T, Unavailable> {
    let value = answered.map_err(|error| match error.is_not_supported() {
        true => Unavailable::NotSupported(error.to_string()),
        false => Unavailable::Failed(error.to_string()),
    })?;
    serde_json::from_value(value).map_err(|error| Unavailable::Failed(error.to_string()))
}

/// What a peer may do.
fn rights(setup: &Setup) -> Access {
    let right = |wanted: bool, right| if wanted { right } else { Access::empty() };
    Access::LOCAL_WRITE
        | right(setup.write, Access::REMOTE_WRITE)
        | right(setup.read, Access::REMOTE_READ)
        | right(setup.atomic, Access::REMOTE_ATOMIC)
        | right(setup.flush, Access::FLUSH_GLOBAL)
}

impl<A: Agent> Device for AgentDevice<A> {
    fn describe(&self) -> String {
        let Hello { device, system, .. } = &self.hello;
        let system = if system.is_empty() { String::new() } else { format!(" on {system}") };
        format!("{device}{system}")
    }

    fn addr(&self) -> IpAddr {
        self.addr
    }

    fn connect(&mut self, setup: &Setup, ours: &mut OurEnd) -> Result<TheirEnd, Unavailable> {
        self.ensure_does(setup)?;
        let handle = Handle(self.next);
        self.next += 1;
        let mut memory = None;
        if setup.memory > 0 {
            let windows = if setup.windows { Access::MW_BIND } else { Access::empty() };
            let mr = self.register_for_peers(handle, setup, rights(setup) | windows)?;
            memory = Some(RemoteMemory { addr: mr.addr, rkey: mr.rkey, len: setup.memory });
        }
        let head = if setup.transport == QpType::Ud { GRH } else { 0 };
        let receive_len = setup.receive_len as usize + head;
        let needed = (setup.receives as usize * receive_len).max(RECEIVES_LEN);
        self.register(handle.buffer(), RECEIVES + needed, Access::LOCAL_WRITE)?;
        self.do_it::<Value>(&Command::CreateCq { name: handle.cq() })?;
        let create = Command::CreateQp {
            name: handle.qp(),
            transport: setup.transport,
            cq: handle.cq(),
            srq: setup.srq.map(|srq| srq.name()),
        };
        let Made { qpn } = self.do_it(&create)?;
        let psn = setup.their_psn.unwrap_or(self.next.wrapping_mul(0x9e_3779) & 0xff_ffff);
        self.start(setup, handle, ours, psn)?;
        if setup.receives > 0 && setup.state != State::Reset {
            let at = |i: u32| RECEIVES + i as usize * receive_len;
            let receive = |i: u32| RecvWr::new(i.into(), at(i)..at(i) + receive_len);
            let (to, mr) = (handle.qp(), handle.buffer());
            let wrs = (0..setup.receives).map(receive).collect();
            self.do_it::<Value>(&Command::PostRecv { to, mr, wrs })?;
        }
        Ok(TheirEnd { qpn, psn, memory, handle: Some(handle) })
    }

    fn agent(&mut self) -> Option<&mut dyn Agent> {
        Some(self)
    }

    fn has_atomics(&self) -> Option<bool> {
        self.hello.atomics
    }

    fn gid_index(&self) -> u8 {
        self.gid_index
    }

    fn services(&mut self) -> Services {
        self.services
    }

    fn end_check(&mut self) {
        let names = self.made.drain(..).rev().collect();
        // A program that is gone has nothing left to be destroyed; the next check will say so.
        let _ = self.agent.call(&Command::Close { names });
    }
}

impl<A: Agent> Agent for AgentDevice<A> {
    /// Remembers what is made, so that it goes when the check is over.
    fn call(&mut self, command: &Command) -> Result<Value, AgentError> {
        let answered = self.agent.call(command)?;
        self.made.extend(command.makes().map(str::to_string));
        Ok(answered)
    }
}

#[cfg(test)]
mod tests;
