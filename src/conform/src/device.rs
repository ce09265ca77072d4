//! The device under test, and what a check wants of it.
//!
//! There are several ways to make a device have a QP that is connected with ours: a perftest
//! server's handshake, an agent that does what it is told, a simulated engine. Each is a
//! [`Device`]. A way that cannot give what a check wants says so, and the verdict says it.

mod agent;
pub mod servers;
mod work;

pub use agent::{AgentDevice, GRH, RECEIVES, SOURCE, TARGET};
pub use work::{Client, End, Work};

use crate::agent::{Agent, Operation, State};
use std::net::IpAddr;
use urxe_types::{PathMtu, QpType};

/// A way to a device under test.
pub trait Device {
    /// What is tested, in a few words: the report's heading.
    fn describe(&self) -> String;

    /// The device's address, which packets go to.
    fn addr(&self) -> IpAddr;

    /// Makes a QP on the device, connected with ours, and what it needs (memory, receives).
    ///
    /// `ours` is a proposal, which a way that has connected already changes to what it said then:
    /// another number or, unless the setup names one, another first PSN.
    ///
    /// # Errors
    /// If this way cannot, or the device does not.
    fn connect(&mut self, setup: &Setup, ours: &mut OurEnd) -> Result<TheirEnd, Unavailable>;

    /// The program on the device, if there is one that does what it is told.
    fn agent(&mut self) -> Option<&mut dyn Agent>;

    /// The program of the connection that was made last for some [`Work`], if it is one that does
    /// that and nothing else.
    fn client(&mut self) -> Option<&mut dyn Client> {
        None
    }

    /// Whether the device does atomics, as far as its program tells: they are optional.
    fn has_atomics(&self) -> Option<bool> {
        None
    }

    /// Which of the device's addresses packets come from, for its program.
    fn gid_index(&self) -> u8 {
        0
    }

    /// The programs on the device that wait to be connected to by the connection manager.
    fn services(&mut self) -> Services {
        Services::default()
    }

    /// Has a program that is no [`agent`](Self::agent) connect to a port of ours by the connection
    /// manager. It sends something when it is connected, and ends the connection if that fails.
    ///
    /// # Errors
    /// If there is none.
    fn call_us(&mut self, _port: u16) -> Result<(), Unavailable> {
        Err(Unavailable::NeedsAgent("no program is known at the device that connects".into()))
    }

    /// A check is over: what was made for it can go.
    fn end_check(&mut self);
}

/// The ports of programs on the device that wait for the connection manager's requests: of the
/// port space of TCP, and that for datagrams of UDP's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Services {
    /// Accepts each connection (RC).
    pub accepts: Option<u16>,
    /// Rejects each connection, with [`REJECTION`] as private data.
    pub rejects: Option<u16>,
    /// Leaves requests undecided.
    pub hesitates: Option<u16>,
    /// Names a QP for datagrams.
    pub datagrams: Option<u16>,
}

/// What the program says that rejects.
pub const REJECTION: &[u8] = b"rejected";

/// What a check wants of the device's QP. `None`: whatever it has.
#[derive(Clone, Debug)]
pub struct Setup {
    /// The transport service.
    pub transport: QpType,
    /// The path MTU.
    pub mtu: PathMtu,
    /// Peers may WRITE to its memory.
    pub write: bool,
    /// Peers may READ it.
    pub read: bool,
    /// Peers may change it by atomics.
    pub atomic: bool,
    /// Peers may FLUSH it.
    pub flush: bool,
    /// Bytes of memory that a peer may use. It is zeroed only where an agent did it.
    pub memory: usize,
    /// Receives that are posted, each of `receive_len` bytes and with its index as `wr_id`. At
    /// least so many where there is no agent.
    pub receives: u32,
    /// Bytes that a receive has room for; at least so many where there is no agent.
    pub receive_len: u32,
    /// Exactly these receives: not more, not longer. Needs an agent, if it is not a way that
    /// counts them.
    pub exact_receives: bool,
    /// Code of the wait that it asks of those who find no receive.
    pub min_rnr_timer: Option<u8>,
    /// Code of its ACK timeout.
    pub timeout: Option<u8>,
    /// Its tries after a timeout.
    pub retry_cnt: Option<u8>,
    /// Its tries after an RNR NAK.
    pub rnr_retry: Option<u8>,
    /// READs and atomics it may have outstanding.
    pub max_rd_atomic: Option<u8>,
    /// READs and atomics that we may have outstanding.
    pub max_dest_rd_atomic: Option<u8>,
    /// The Q_Key of a UD QP.
    pub qkey: u32,
    /// Windows can be bound to its memory.
    pub windows: bool,
    /// Where it receives from, if not from a queue of its own. Needs an agent.
    pub srq: Option<Srq>,
    /// The state that it is taken to: INIT, RTR or RTS. Another than RTS needs an agent.
    pub state: State,
    /// Our first PSN, where that matters.
    pub our_psn: Option<u32>,
    /// Its first PSN, where that matters.
    pub their_psn: Option<u32>,
    /// What its program will send when it is told to begin.
    pub work: Option<Work>,
}

impl Setup {
    /// A connection of this transport service without any rights.
    pub fn new(transport: QpType) -> Setup {
        Setup {
            transport,
            mtu: PathMtu::Mtu1024,
            write: false,
            read: false,
            atomic: false,
            flush: false,
            memory: 0,
            receives: 0,
            receive_len: 0,
            exact_receives: false,
            min_rnr_timer: None,
            timeout: None,
            retry_cnt: None,
            rnr_retry: None,
            max_rd_atomic: None,
            max_dest_rd_atomic: None,
            qkey: 0x1111_1111,
            windows: false,
            srq: None,
            state: State::Rts,
            our_psn: None,
            their_psn: None,
            work: None,
        }
    }

    /// A reliable connection.
    pub fn rc() -> Setup {
        Setup::new(QpType::Rc)
    }

    /// An unreliable connection.
    pub fn uc() -> Setup {
        Setup::new(QpType::Uc)
    }

    /// Datagrams.
    pub fn ud() -> Setup {
        Setup::new(QpType::Ud)
    }

    /// With memory that we may WRITE to.
    pub fn write(self) -> Setup {
        Setup { write: true, memory: MEMORY, ..self }
    }

    /// With memory that we may READ.
    pub fn read(self) -> Setup {
        Setup { read: true, memory: MEMORY, ..self }
    }

    /// With memory that we may change by atomics.
    pub fn atomic(self) -> Setup {
        Setup { atomic: true, memory: MEMORY, ..self }
    }

    /// With at least so many receives posted, with room for at least so much each.
    pub fn receives(self, receives: u32, receive_len: u32) -> Setup {
        Setup { receives, receive_len, ..self }
    }

    /// Whose program will SEND messages of this length.
    pub fn sending(self, len: usize) -> Setup {
        Setup { work: Some(Work { operation: Operation::Send, len }), ..self }
    }

    /// Whose program will READ so many bytes each time.
    pub fn reading(self, len: usize) -> Setup {
        Setup { work: Some(Work { operation: Operation::RdmaRead, len }), ..self }
    }

    /// Whose program will WRITE so many bytes each time.
    pub fn writing(self, len: usize) -> Setup {
        Setup { work: Some(Work { operation: Operation::RdmaWrite, len }), ..self }
    }

    /// Whose program will add to numbers of ours.
    pub fn adding(self) -> Setup {
        Setup { work: Some(Work { operation: Operation::FetchAdd, len: 8 }), ..self }
    }

    /// With just so many receives posted, of just this length.
    pub fn exactly(self, receives: u32, receive_len: u32) -> Setup {
        Setup { receives, receive_len, exact_receives: true, ..self }
    }
}

/// Bytes of memory that a check gets if it wants any.
pub const MEMORY: usize = 64 << 10;

/// Our end of a connection.
#[derive(Clone, Copy, Debug)]
pub struct OurEnd {
    /// Our address.
    pub addr: IpAddr,
    /// Our QP's number.
    pub qpn: u32,
    /// The PSN of our first request.
    pub psn: u32,
}

/// The device's end of a connection.
#[derive(Clone, Copy, Debug)]
pub struct TheirEnd {
    /// Its QP's number.
    pub qpn: u32,
    /// The PSN of its first request.
    pub psn: u32,
    /// Its memory, if there is any.
    pub memory: Option<RemoteMemory>,
    /// What an agent knows it by, where there is one.
    pub handle: Option<Handle>,
}

/// What an agent made for a connection, by its names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Handle(pub u32);

impl Handle {
    /// The QP.
    pub fn qp(self) -> String {
        format!("qp{}", self.0)
    }

    /// Where its sends and receives complete.
    pub fn cq(self) -> String {
        format!("cq{}", self.0)
    }

    /// The memory that peers may use.
    pub fn memory(self) -> String {
        format!("memory{}", self.0)
    }

    /// The memory that its own work requests use.
    pub fn buffer(self) -> String {
        format!("buffer{}", self.0)
    }
}

/// A shared receive queue of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Srq(pub u32);

impl Srq {
    /// An agent's name for it.
    pub fn name(self) -> String {
        format!("srq{}", self.0)
    }
}

/// Memory of the device that a peer may use.
#[derive(Clone, Copy, Debug)]
pub struct RemoteMemory {
    /// Its first byte's address.
    pub addr: u64,
    /// Its key.
    pub rkey: u32,
    /// Bytes.
    pub len: usize,
}

/// Why there is no such connection.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unavailable {
    /// This way to the device does not do it; an agent would.
    #[error("needs an agent: {0}")]
    NeedsAgent(String),
    /// The device does not have it.
    #[error("not supported: {0}")]
    NotSupported(String),
    /// It should have worked.
    #[error("the device could not be prepared: {0}")]
    Failed(String),
}
