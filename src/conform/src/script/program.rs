//! What a check says to the program on the device.
//!
//! Work requests name places in the program's own memory, its buffer: [`SOURCE`] is what sends
//! take, [`TARGET`] where READs and atomics bring something, [`RECEIVES`] where receives lie.
//!
//! [`SOURCE`]: crate::device::SOURCE
//! [`TARGET`]: crate::device::TARGET
//! [`RECEIVES`]: crate::device::RECEIVES

use super::Script;
use crate::agent::{
    AgentError, Bound, Command, Completed, Event, EventKind, Events, ModifyQp, Operation, Path,
    QpInfo, RecvWr, SendWr, State, Status, Wc, Window,
};
use crate::check::{Outcome, Stop};
use crate::device::{Handle, Srq};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::net::IpAddr;
use std::time::Duration;
use urxe_types::Access;

/// How often a program is asked whether something has come.
const POLL_INTERVAL: Duration = Duration::from_millis(1);
/// Completions that are asked for at once.
const COMPLETIONS: usize = 16;
/// Bytes of the memory that the receives of a shared queue lie in.
const SRQ_BUFFER: usize = 64 << 10;

/// A memory window of the device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryWindow {
    /// The program's name for it.
    pub name: String,
    /// Its first key.
    pub rkey: u32,
}

/// An address handle of the device that leads to us, or to a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AddressHandle(pub String);

#[derive(Deserialize)]
struct Rkey {
    rkey: u32,
}

#[derive(Deserialize)]
struct Hex {
    hex: String,
}

/// The program on the device. Each of these needs an agent, and stops the check where there is
/// none; each also if the verb fails, or the program is gone.
impl Script<'_> {
    /// Has the program do something, and returns what it answers.
    ///
    /// # Errors
    /// If it does not, or there is none.
    pub fn tell<T: DeserializeOwned>(&mut self, command: &Command) -> Outcome<T> {
        let value = self.try_tell(command)?.map_err(|error| match &error {
            AgentError::Gone(_) => Stop::Inconclusive(error.to_string()),
            AgentError::Refused { .. } if error.is_not_supported() => {
                Stop::NotSupported(error.to_string())
            }
            AgentError::Refused { command, .. } => {
                Stop::failed(format!("{command} succeeds"), error.to_string())
            }
        })?;
        let other = |error| Stop::Inconclusive(format!("the agent answers otherwise: {error}"));
        serde_json::from_value(value).map_err(other)
    }

    /// The same, for what a device may well refuse.
    ///
    /// # Errors
    /// If there is no program.
    pub fn try_tell(&mut self, command: &Command) -> Outcome<Result<Value, AgentError>> {
        let agent = self.device.agent().ok_or_else(no_agent)?;
        Ok(agent.call(command))
    }

    pub(super) fn tell_only(&mut self, command: &Command) -> Outcome {
        self.tell::<Value>(command).map(drop)
    }

    fn handle(&self) -> Outcome<Handle> {
        self.current().theirs.handle.ok_or_else(no_agent)
    }

    // Work requests and completions.

    /// Posts sends, all at once. Returns the new keys of the windows that are bound by them.
    ///
    /// # Errors
    /// If they are not taken.
    pub fn post(&mut self, wrs: &[SendWr]) -> Outcome<Vec<u32>> {
        let is_atomic = |wr: &SendWr| matches!(wr.op, Operation::CmpSwap | Operation::FetchAdd);
        if self.has_atomics() == Some(false) && wrs.iter().any(is_atomic) {
            return Err(Stop::NotSupported("the device does no atomics".into()));
        }
        let (qp, mr) = (self.handle()?.qp(), self.handle()?.buffer());
        let Bound { rkeys } = self.tell(&Command::PostSend { qp, mr, wrs: wrs.to_vec() })?;
        Ok(rkeys)
    }

    /// Posts receives, to places in the program's buffer.
    ///
    /// # Errors
    /// If they are not taken.
    pub fn post_recv(&mut self, wrs: &[RecvWr]) -> Outcome {
        let (to, mr) = (self.handle()?.qp(), self.handle()?.buffer());
        self.tell_only(&Command::PostRecv { to, mr, wrs: wrs.to_vec() })
    }

    /// The next completion of this connection, if one comes within this time. Packets that come
    /// meanwhile are kept.
    ///
    /// # Errors
    /// If the program or the port does not work.
    pub fn completion(&mut self, within: Duration) -> Outcome<Option<Wc>> {
        let (cq, until) = (self.handle()?.cq(), self.now() + within);
        loop {
            if let Some(completed) = self.current_mut().completed.pop_front() {
                return Ok(Some(completed));
            }
            let poll = Command::Poll { cq: cq.clone(), count: COMPLETIONS, timeout: 0.0 };
            let Completed { wcs } = self.tell(&poll)?;
            if wcs.is_empty() {
                if self.now() >= until {
                    return Ok(None);
                }
                self.receive(until.min(self.now() + POLL_INTERVAL))?;
            }
            self.current_mut().completed.extend(wcs);
        }
    }

    /// The next completion must come in time, and be that of this work request, with this status.
    ///
    /// # Errors
    /// If it is not.
    pub fn expect_completion(&mut self, id: u64, status: Status) -> Outcome<Wc> {
        self.expect_completion_within(self.waits.reply, id, status)
    }

    /// The same, within another time than an answer takes.
    ///
    /// # Errors
    /// If it is not.
    pub fn expect_completion_within(
        &mut self,
        within: Duration,
        id: u64,
        status: Status,
    ) -> Outcome<Wc> {
        let expected = format!("a completion of work request {id} with {status:?}");
        match self.completion(within)? {
            Some(wc) if (wc.id, wc.status) == (id, status) => Ok(wc),
            Some(Wc { id, status, vendor_err, .. }) => {
                let seen = format!("one of {id} with {status:?} (vendor error {vendor_err})");
                Err(Stop::failed(expected, seen))
            }
            None => {
                let within = within.as_millis();
                Err(Stop::failed(expected, format!("none within {within} ms")))
            }
        }
    }

    /// Nothing completes for a while.
    ///
    /// # Errors
    /// If something does.
    pub fn expect_no_completion(&mut self) -> Outcome {
        match self.completion(self.waits.quiet)? {
            Some(wc) => Err(Stop::failed("no completion", format!("{wc:?}"))),
            None => Ok(()),
        }
    }

    // Memory.

    /// Puts bytes into the program's buffer.
    ///
    /// # Errors
    /// If the program does not.
    pub fn fill(&mut self, off: usize, bytes: &[u8]) -> Outcome {
        let mr = self.handle()?.buffer();
        self.tell_only(&Command::Write { mr, off, hex: to_hex(bytes) })
    }

    /// What stands in the program's buffer.
    ///
    /// # Errors
    /// If the program does not tell.
    pub fn buffer(&mut self, off: usize, len: usize) -> Outcome<Vec<u8>> {
        let mr = self.handle()?.buffer();
        self.read_memory(mr, off, len)
    }

    /// What stands in the memory that peers may use.
    ///
    /// # Errors
    /// If the program does not tell.
    pub fn memory_at(&mut self, off: usize, len: usize) -> Outcome<Vec<u8>> {
        let mr = self.handle()?.memory();
        self.read_memory(mr, off, len)
    }

    /// What stands in the memory that the receives of a shared queue lie in.
    ///
    /// # Errors
    /// If the program does not tell.
    pub fn srq_buffer(&mut self, srq: Srq, off: usize, len: usize) -> Outcome<Vec<u8>> {
        self.read_memory(buffer_of(srq), off, len)
    }

    fn read_memory(&mut self, mr: String, off: usize, len: usize) -> Outcome<Vec<u8>> {
        let Hex { hex } = self.tell(&Command::Read { mr, off, len })?;
        let bytes = from_hex(&hex).filter(|bytes| bytes.len() == len);
        bytes.ok_or_else(|| Stop::Inconclusive(format!("the agent answers otherwise: {hex}")))
    }

    // The QP.

    /// What the QP is.
    ///
    /// # Errors
    /// If the program does not tell.
    pub fn query(&mut self) -> Outcome<QpInfo> {
        let qp = self.handle()?.qp();
        self.tell(&Command::QueryQp { qp })
    }

    /// The QP comes to this state in time.
    ///
    /// # Errors
    /// If it does not.
    pub fn expect_state(&mut self, expected: State) -> Outcome {
        let until = self.now() + self.waits.reply;
        loop {
            let state = self.query()?.state;
            if state == expected {
                return Ok(());
            }
            if self.now() >= until {
                let (expected, seen) = (format!("the QP in {expected:?}"), format!("{state:?}"));
                return Err(Stop::failed(expected, seen));
            }
            self.receive(until.min(self.now() + POLL_INTERVAL))?;
        }
    }

    /// Takes the QP to this state.
    ///
    /// # Errors
    /// If it does not go.
    pub fn modify(&mut self, state: State) -> Outcome {
        let change = ModifyQp { state: Some(state), ..ModifyQp::default() };
        if state != State::Sqd {
            return self.modify_with(change);
        }
        // Not all devices have this state, and drivers call it an invalid change then.
        let qp = self.handle()?.qp();
        match self.try_tell(&Command::ModifyQp(ModifyQp { qp, ..change }))? {
            Ok(_) => Ok(()),
            Err(error @ AgentError::Gone(_)) => Err(Stop::Inconclusive(error.to_string())),
            Err(error) => Err(Stop::NotSupported(format!("there is no SQD: {error}"))),
        }
    }

    /// Changes attributes of the QP; its name is filled in.
    ///
    /// # Errors
    /// If that is refused.
    pub fn modify_with(&mut self, change: ModifyQp) -> Outcome {
        let qp = self.handle()?.qp();
        self.tell_only(&Command::ModifyQp(ModifyQp { qp, ..change }))
    }

    /// Takes a reliable QP from RTR to RTS.
    ///
    /// # Errors
    /// If it does not go.
    pub fn to_rts(&mut self) -> Outcome {
        let sq_psn = Some(self.current().theirs.psn);
        self.modify_with(ModifyQp {
            state: Some(State::Rts),
            sq_psn,
            timeout: Some(14),
            retry_cnt: Some(7),
            rnr_retry: Some(7),
            max_rd_atomic: Some(16),
            ..ModifyQp::default()
        })
    }

    /// Destroys the QP.
    ///
    /// # Errors
    /// If it is not destroyed.
    pub fn destroy(&mut self) -> Outcome {
        let names = vec![self.handle()?.qp()];
        self.tell_only(&Command::Close { names })
    }

    /// The next asynchronous event, with the name of what it is of, if one comes within this time.
    ///
    /// # Errors
    /// If the program does not tell.
    pub fn event(&mut self, within: Duration) -> Outcome<Option<Event>> {
        let until = self.now() + within;
        loop {
            if let Some(event) = self.events.pop_front() {
                return Ok(Some(event));
            }
            let Events { events } = self.tell(&Command::Events)?;
            if events.is_empty() {
                if self.now() >= until {
                    return Ok(None);
                }
                self.receive(until.min(self.now() + POLL_INTERVAL))?;
            }
            // What has no name any more is of an earlier check.
            self.events.extend(events.into_iter().filter(|event| event.name.is_some()));
        }
    }

    /// This event comes in time, and no other before it but "communication established", which
    /// most devices never tell of.
    ///
    /// # Errors
    /// If it does not.
    pub fn expect_event(&mut self, expected: EventKind) -> Outcome<Event> {
        loop {
            match self.event(self.waits.reply)? {
                Some(event) if event.event == expected => return Ok(event),
                Some(event) if event.event == EventKind::CommEst => {}
                Some(event) => {
                    return Err(Stop::failed(format!("{expected:?}"), format!("{event:?}")));
                }
                None => return Err(Stop::failed(format!("{expected:?}"), "no event")),
            }
        }
    }

    // What else there is.

    /// Makes a shared receive queue, for a [`Setup`](crate::device::Setup).
    ///
    /// # Errors
    /// If there is none to be had.
    pub fn create_srq(&mut self) -> Outcome<Srq> {
        let srq = Srq(self.number());
        self.tell_only(&Command::CreateSrq { name: srq.name() })?;
        let (name, access) = (buffer_of(srq), Access::LOCAL_WRITE.bits());
        self.tell_only(&Command::RegMr { name, len: SRQ_BUFFER, access })?;
        Ok(srq)
    }

    /// Arms the limit event of a shared receive queue.
    ///
    /// # Errors
    /// If that is refused.
    pub fn limit(&mut self, srq: Srq, limit: u32) -> Outcome {
        self.tell_only(&Command::ModifySrq { srq: srq.name(), limit })
    }

    /// Posts receives to a shared receive queue, to places in its memory.
    ///
    /// # Errors
    /// If they are not taken.
    pub fn post_srq(&mut self, srq: Srq, wrs: &[RecvWr]) -> Outcome {
        let (to, mr) = (srq.name(), buffer_of(srq));
        self.tell_only(&Command::PostRecv { to, mr, wrs: wrs.to_vec() })
    }

    /// Allocates a memory window of type 1 or 2.
    ///
    /// # Errors
    /// If there is none to be had.
    pub fn alloc_window(&mut self, kind: u8) -> Outcome<MemoryWindow> {
        let name = format!("window{}", self.number());
        let Rkey { rkey } = self.tell(&Command::AllocMw { name: name.clone(), kind })?;
        Ok(MemoryWindow { name, rkey })
    }

    /// A part of the memory of this connection, for a window.
    ///
    /// # Errors
    /// If there is no program.
    pub fn part(&mut self, off: usize, len: usize, access: Access) -> Outcome<Window> {
        Ok(Window { of: self.handle()?.memory(), off, len, access: access.bits() })
    }

    /// Binds a window of type 1; the key that it gets.
    ///
    /// # Errors
    /// If that is refused when it is posted.
    pub fn bind_type_1(&mut self, id: u64, mw: &MemoryWindow, window: Window) -> Outcome<u32> {
        let (qp, mw) = (self.handle()?.qp(), mw.name.clone());
        let Rkey { rkey } = self.tell(&Command::BindMw { qp, id, mw, window })?;
        Ok(rkey)
    }

    /// Makes an address handle that leads to us.
    ///
    /// # Errors
    /// If there is none to be had.
    pub fn address_handle(&mut self) -> Outcome<AddressHandle> {
        let name = format!("ah{}", self.number());
        let path = Path { dgid: self.link.local(), gid_index: self.device.gid_index() };
        self.tell_only(&Command::CreateAh { name: name.clone(), path })?;
        Ok(AddressHandle(name))
    }

    /// Attaches the QP to a multicast group.
    ///
    /// # Errors
    /// If that is refused.
    pub fn attach(&mut self, group: IpAddr) -> Outcome {
        let qp = self.handle()?.qp();
        self.tell_only(&Command::AttachMcast { qp, gid: group })
    }

    /// Detaches the QP from a multicast group.
    ///
    /// # Errors
    /// If that is refused.
    pub fn detach(&mut self, group: IpAddr) -> Outcome {
        let qp = self.handle()?.qp();
        self.tell_only(&Command::DetachMcast { qp, gid: group })
    }

    pub(super) fn number(&mut self) -> u32 {
        self.next_name += 1;
        self.next_name
    }
}

fn no_agent() -> Stop {
    Stop::NeedsAgent("only the device's own program sees what is asked about".into())
}

fn buffer_of(srq: Srq) -> String {
    format!("{}-buffer", srq.name())
}

fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn from_hex(text: &str) -> Option<Vec<u8>> {
    let pairs = (0..text.len()).step_by(2).map(|at| text.get(at..at + 2));
    pairs.map(|pair| u8::from_str_radix(pair?, 16).ok()).collect()
}
