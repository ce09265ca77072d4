//! The first program: posts the operations, measures them, and checks the results.

use super::atomics;
use super::message::{Endpoints, Message, Operation, Round};
use super::program::{Program, collect};
use super::rounds::{Figures, Pace, Tally};
use crate::error::Error;
use crate::link::Link;
use crate::units;
use std::fmt::Display;
use std::path::Path;
use std::time::{Duration, Instant};
use urxe_verbs::{QpEndpoint, RemoteBuf, SendWr, Sge, Wc, WcOpcode, WcStatus};

/// How long the partner may take to prepare or check a round.
const TIMEOUT: Duration = Duration::from_secs(20);

/// The requester, connected to its partner.
pub(super) struct Requester {
    program: Program,
    link: Link<Message>,
    local: Endpoints,
    remote: Endpoints,
    remote_incoming: RemoteBuf,
    remote_outgoing: RemoteBuf,
    /// Number of the next message.
    next: u64,
    deadline: Instant,
    sges: Vec<[Sge; 1]>,
    /// Keys of the windows that the partner has bound for the round.
    keys: Vec<u32>,
    /// Whether packets are dropped on purpose.
    is_lossy: bool,
}

impl Requester {
    /// Opens the device and connects to the partner.
    pub(super) fn connect(
        socket: &Path,
        mut link: Link<Message>,
        deadline: Instant,
        is_lossy: bool,
    ) -> Result<Self, Error> {
        let mut program = Program::open(socket)?;
        let Message::Hello { endpoints: remote, incoming, outgoing } = reply(&mut link)? else {
            return Err(unexpected());
        };
        program.connect(remote.clone())?;
        let local = program.endpoints()?;
        let mut requester = Requester {
            program,
            link,
            local,
            remote,
            remote_incoming: incoming,
            remote_outgoing: outgoing,
            next: 0,
            deadline,
            sges: Vec::new(),
            keys: Vec::new(),
            is_lossy,
        };
        let connect = Message::Connect { endpoints: requester.local.clone() };
        match requester.request(&connect)? {
            Message::Done => Ok(requester),
            _ => Err(unexpected()),
        }
    }

    /// The two ends of the connection.
    pub(super) fn path(&self) -> String {
        let end = |endpoint: &QpEndpoint| format!("QP {:#08x} on {}", endpoint.qpn, endpoint.gid);
        format!("{} and {}", end(&self.local.rc), end(&self.remote.rc))
    }

    /// Runs all operations in all sizes.
    pub(super) fn run(&mut self, say: impl Fn(&dyn Display)) -> Result<Vec<Figures>, Error> {
        let mut all = Vec::new();
        let mtu = self.local.ud.mtu.min(self.remote.ud.mtu).into();
        for operation in Operation::ALL {
            let sizes = operation.sizes(mtu);
            let mut lost = 0;
            for &size in &sizes {
                let figures = self.measure(operation, size)?;
                lost += figures.lost;
                all.push(figures);
            }
            let sizes = sizes.iter().map(|&size| units::size(size.into()));
            let sizes = sizes.collect::<Vec<_>>().join(", ");
            let lost = match lost {
                0 => String::new(),
                lost => format!(" of what arrived; {} lost", units::count(lost)),
            };
            say(&format_args!("{}: {sizes}: every byte is right{lost}", operation.name()));
        }
        self.use_invalidated_key()?;
        say(&"a key that was invalidated is refused");
        Ok(all)
    }

    /// Ends the partner.
    pub(super) fn finish(mut self) -> Result<(), Error> {
        Ok(self.link.send(&Message::Finish)?)
    }

    /// One operation in one size.
    fn measure(&mut self, operation: Operation, size: u32) -> Result<Figures, Error> {
        let mut tally = Tally::new(operation, size);
        for pace in [Pace::OneByOne, Pace::AllAtOnce] {
            let begun = Instant::now();
            loop {
                self.round(operation, size, pace, &mut tally)?;
                if Instant::now() > self.deadline {
                    return Err(Error::Failed(format!(
                        "the demo is at {} of {size} bytes and takes too long; a machine under \
                         load or a fault specification of many percent can be the reason",
                        operation.name()
                    )));
                }
                if tally.is_enough(pace, begun.elapsed()) {
                    break;
                }
            }
        }
        Ok(tally.figures())
    }

    fn round(
        &mut self,
        operation: Operation,
        size: u32,
        pace: Pace,
        tally: &mut Tally,
    ) -> Result<(), Error> {
        let count = pace.messages(operation, size);
        let round = Round { operation, size, count, first: self.next };
        self.next += u64::from(round.count);
        let returns_data = operation == Operation::Read || operation.is_atomic();
        self.program.outgoing.prepare(&round, !returns_data)?;
        self.program.incoming.prepare(&round, false)?;
        self.keys = self.prepare_partner(&round)?;

        let area = if returns_data { &self.program.incoming } else { &self.program.outgoing };
        let sges = (0..round.count).map(|index| Ok([area.sge(&round, index)?]));
        self.sges = sges.collect::<Result<_, Error>>()?;
        match pace {
            Pace::OneByOne => self.one_by_one(&round, tally)?,
            Pace::AllAtOnce => self.all_at_once(&round, tally)?,
        }
        match self.request(&Message::Check)? {
            Message::Checked { lost } => tally.lost(lost),
            _ => return Err(unexpected()),
        }
        self.check(&round)
    }

    fn prepare_partner(&mut self, round: &Round) -> Result<Vec<u32>, Error> {
        match self.request(&Message::Prepare(*round))? {
            Message::Bound { rkeys } => Ok(rkeys),
            _ => Err(unexpected()),
        }
    }

    /// Writes through an invalidated window. The last operation of the connection, which ends in
    /// the error state.
    fn use_invalidated_key(&mut self) -> Result<(), Error> {
        let operation = Operation::WriteThroughWindow2;
        let round = Round { operation, size: 64, count: 1, first: self.next };
        self.program.outgoing.prepare(&round, true)?;
        let keys = self.prepare_partner(&round)?;
        let sge = [self.program.outgoing.sge(&round, 0)?];
        let mut list = Vec::new();
        self.program.send_wrs(&round, 0, &sge, self.remote_incoming, &keys, &mut list)?;
        self.program.qps.rc.post_send(&list)?;
        collect(&mut self.program.sends, 1, |_, _| Ok(()))?;
        self.request(&Message::Check)?;

        let mut again = Vec::new();
        self.program.send_wrs(&round, 0, &sge, self.remote_incoming, &keys, &mut again)?;
        self.program.qps.rc.post_send(&again)?;
        loop {
            let Some(wc) = self.program.sends.wait()?.first().copied() else { continue };
            // The NAK is sent once: a queue pair in the error state no longer responds. If it is
            // lost, the requester gets no response at all.
            let no_response = self.is_lossy && wc.status == WcStatus::RetryExceeded;
            if wc.status == WcStatus::RemoteAccess || no_response {
                return Ok(());
            }
            return Err(Error::WrongData(format!(
                "a WRITE with a key that was taken back ended with {}, expected {}",
                wc.status,
                WcStatus::RemoteAccess
            )));
        }
    }

    fn one_by_one(&mut self, round: &Round, tally: &mut Tally) -> Result<(), Error> {
        let remote = self.remote(round);
        for index in 0..round.count {
            let mut list = Vec::with_capacity(2);
            let sge = &self.sges[index as usize];
            self.program.send_wrs(round, index, sge, remote, &self.keys, &mut list)?;
            let posted = Instant::now();
            self.program.qp(round.operation, index).post_send(&list)?;
            drop(list);
            collect(&mut self.program.sends, 1, |_, wc| check_completion(round, index, wc))?;
            tally.single(posted.elapsed());
        }
        Ok(())
    }

    fn all_at_once(&mut self, round: &Round, tally: &mut Tally) -> Result<(), Error> {
        let remote = self.remote(round);
        let is_shared = round.operation == Operation::SendToSrq;
        // With an SRQ the messages alternate between two queue pairs.
        let mut lists: [Vec<SendWr<'_>>; 2] = Default::default();
        for (index, sge) in (0..).zip(&self.sges) {
            let list = &mut lists[if is_shared { index as usize % 2 } else { 0 }];
            self.program.send_wrs(round, index, sge, remote, &self.keys, list)?;
        }
        let posted = Instant::now();
        for (index, list) in (0..).zip(&lists) {
            self.program.qp(round.operation, index).post_send(list)?;
        }
        drop(lists);
        let sends = &mut self.program.sends;
        collect(sends, round.count, |index, wc| {
            // The completions of two queue pairs come in any order.
            let number = if is_shared { wc.wr_id.wrapping_sub(round.first) as u32 } else { index };
            check_completion(round, number, wc)
        })?;
        tally.many(round.count, posted.elapsed());
        Ok(())
    }

    fn check(&mut self, round: &Round) -> Result<(), Error> {
        match round.operation {
            Operation::Read => self.program.incoming.check(round, "requester"),
            operation if operation.is_atomic() => (0..round.count).try_for_each(|index| {
                let expected = atomics::value_before(round, index);
                let found = self.program.incoming.word(round, index)?;
                if found == expected {
                    return Ok(());
                }
                Err(Error::WrongData(format!(
                    "{} number {} returned {found:#x}, expected {expected:#x}",
                    operation.name(),
                    round.first + u64::from(index)
                )))
            }),
            _ => self.program.outgoing.check(round, "requester, which sent"),
        }
    }

    fn remote(&self, round: &Round) -> RemoteBuf {
        match round.operation {
            Operation::Read => self.remote_outgoing,
            _ => self.remote_incoming,
        }
    }

    /// Sends the partner a message, and waits for the reply.
    fn request(&mut self, message: &Message) -> Result<Message, Error> {
        self.link.send(message)?;
        reply(&mut self.link)
    }
}

/// The partner's reply; errors that it reports are returned as errors.
fn reply(link: &mut Link<Message>) -> Result<Message, Error> {
    match link.recv(Some(TIMEOUT))? {
        Message::Wrong { reason } => Err(Error::WrongData(reason)),
        Message::Failed { reason } => Err(Error::Peer { peer: link.peer().to_owned(), reason }),
        message => Ok(message),
    }
}

fn unexpected() -> Error {
    Error::Failed("the second program sent an unexpected reply".into())
}

fn check_completion(round: &Round, index: u32, wc: &Wc) -> Result<(), Error> {
    let opcode = match round.operation {
        Operation::Send
        | Operation::SendWithImm
        | Operation::SendWithInvalidate
        | Operation::SendToSrq
        | Operation::UcSend
        | Operation::UdSend
        | Operation::UdSendWithImm
        | Operation::UdMulticast => WcOpcode::Send,
        Operation::Write
        | Operation::WriteWithImm
        | Operation::WriteThroughWindow1
        | Operation::WriteThroughWindow2
        | Operation::UcWriteWithImm => WcOpcode::RdmaWrite,
        Operation::WriteAndFlush => WcOpcode::Flush,
        Operation::AtomicWrite => WcOpcode::AtomicWrite,
        Operation::Read => WcOpcode::RdmaRead,
        Operation::CompareAndSwap => WcOpcode::CompareSwap,
        Operation::FetchAndAdd => WcOpcode::FetchAdd,
    };
    let expected = (round.first + u64::from(index), opcode);
    let found = (wc.wr_id, wc.opcode);
    if found == expected {
        return Ok(());
    }
    Err(Error::WrongData(format!(
        "{}: the completion has (wr_id, opcode) {found:?}, expected {expected:?}",
        round.operation.name()
    )))
}
