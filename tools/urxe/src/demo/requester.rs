//! The first program: asks for the operations, measures them, and checks what came back.

use super::atomics;
use super::message::{Message, Operation, Round};
use super::program::{Program, SIZES, collect, send_wr};
use super::rounds::{Figures, Pace, Tally};
use crate::error::Error;
use crate::link::Link;
use crate::units;
use std::fmt::Display;
use std::path::Path;
use std::time::{Duration, Instant};
use urxe_verbs::{QpEndpoint, RemoteBuf, Sge, Wc, WcOpcode};

/// How long the partner may take to prepare or check a round.
const PATIENCE: Duration = Duration::from_secs(20);

/// The requester, connected to its partner.
pub(super) struct Requester {
    program: Program,
    link: Link<Message>,
    local: QpEndpoint,
    remote: QpEndpoint,
    remote_incoming: RemoteBuf,
    remote_outgoing: RemoteBuf,
    /// Number of the next message.
    next: u64,
    deadline: Instant,
    sges: Vec<[Sge; 1]>,
}

impl Requester {
    /// Opens the device and connects to the partner.
    pub(super) fn connect(
        socket: &Path,
        mut link: Link<Message>,
        deadline: Instant,
    ) -> Result<Self, Error> {
        let program = Program::open(socket)?;
        let Message::Hello { endpoint: remote, incoming, outgoing } = answer(&mut link)? else {
            return Err(unexpected());
        };
        program.connect(&remote)?;
        let local = program.qp.endpoint()?;
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
        };
        requester.order(&Message::Connect { endpoint: local })?;
        Ok(requester)
    }

    /// Who talks to whom.
    pub(super) fn path(&self) -> String {
        let end = |endpoint: &QpEndpoint| format!("QP {:#08x} on {}", endpoint.qpn, endpoint.gid);
        format!("{} and {}", end(&self.local), end(&self.remote))
    }

    /// Runs all operations in all sizes.
    pub(super) fn run(&mut self, say: impl Fn(&dyn Display)) -> Result<Vec<Figures>, Error> {
        let mut all = Vec::new();
        for operation in Operation::ALL {
            let sizes: &[u32] = if operation.is_atomic() { &[8] } else { &SIZES };
            for &size in sizes {
                all.push(self.measure(operation, size)?);
            }
            let sizes = sizes.iter().map(|&size| units::size(size.into()));
            let sizes = sizes.collect::<Vec<_>>().join(", ");
            say(&format_args!("{}: {sizes}: every byte is right", operation.name()));
        }
        Ok(all)
    }

    /// Says goodbye.
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
        let round = Round { operation, size, count: pace.messages(size), first: self.next };
        self.next += u64::from(round.count);
        let brings_back = operation == Operation::Read || operation.is_atomic();
        self.program.outgoing.prepare(&round, !brings_back)?;
        self.program.incoming.prepare(&round, false)?;
        self.order(&Message::Prepare(round))?;

        let area = if brings_back { &self.program.incoming } else { &self.program.outgoing };
        let sges = (0..round.count).map(|index| Ok([area.sge(&round, index)?]));
        self.sges = sges.collect::<Result<_, Error>>()?;
        match pace {
            Pace::OneByOne => self.one_by_one(&round, tally)?,
            Pace::AllAtOnce => self.all_at_once(&round, tally)?,
        }
        self.order(&Message::Check)?;
        self.check(&round)
    }

    fn one_by_one(&mut self, round: &Round, tally: &mut Tally) -> Result<(), Error> {
        let remote = self.remote(round);
        for index in 0..round.count {
            let wr = send_wr(round, index, &self.sges[index as usize], remote)?;
            let posted = Instant::now();
            self.program.qp.post_send(&[wr])?;
            collect(&mut self.program.sends, 1, |_, wc| check_completion(round, index, wc))?;
            tally.single(posted.elapsed());
        }
        Ok(())
    }

    fn all_at_once(&mut self, round: &Round, tally: &mut Tally) -> Result<(), Error> {
        let remote = self.remote(round);
        let wrs = (0..).zip(&self.sges).map(|(index, sge)| send_wr(round, index, sge, remote));
        let wrs = wrs.collect::<Result<Vec<_>, _>>()?;
        let posted = Instant::now();
        self.program.qp.post_send(&wrs)?;
        let sends = &mut self.program.sends;
        collect(sends, round.count, |index, wc| check_completion(round, index, wc))?;
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
                    "{} number {} brought back {found:#x}, expected {expected:#x}",
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

    /// Lets the partner do something, and waits until it has.
    fn order(&mut self, message: &Message) -> Result<(), Error> {
        self.link.send(message)?;
        match answer(&mut self.link)? {
            Message::Done => Ok(()),
            _ => Err(unexpected()),
        }
    }
}

/// What the partner says; bad news become errors.
fn answer(link: &mut Link<Message>) -> Result<Message, Error> {
    match link.recv(Some(PATIENCE))? {
        Message::Wrong { reason } => Err(Error::WrongData(reason)),
        Message::Failed { reason } => Err(Error::Peer { who: link.who().to_owned(), reason }),
        message => Ok(message),
    }
}

fn unexpected() -> Error {
    Error::Failed("the second program answered something unexpected".into())
}

fn check_completion(round: &Round, index: u32, wc: &Wc) -> Result<(), Error> {
    let opcode = match round.operation {
        Operation::Send | Operation::SendWithImm => WcOpcode::Send,
        Operation::Write | Operation::WriteWithImm => WcOpcode::RdmaWrite,
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
