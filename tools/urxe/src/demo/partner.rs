//! The second program: prepares memory and receives, and checks what arrived.

use super::message::{Message, Operation, Round};
use super::program::{Program, collect, immediate};
use super::{atomics, unordered, windows};
use crate::error::Error;
use crate::link::Link;
use std::io;
use std::path::Path;
use urxe_verbs::{RecvWr, WcOpcode};

/// Serves the requester until it finishes.
pub(super) fn run(socket: &Path) -> Result<(), Error> {
    let mut link = Link::new(io::stdin(), io::stdout(), "the demo");
    let result = serve(socket, &mut link);
    if let Err(error) = &result {
        let reason = error.to_string();
        let message = match error {
            Error::WrongData(_) => Message::Wrong { reason },
            _ => Message::Failed { reason },
        };
        // If the connection is closed, the requester has ended.
        let _ = link.send(&message);
        // The requester prints the error; it need not be printed twice.
        std::process::exit(error.exit_code().into());
    }
    result
}

fn serve(socket: &Path, link: &mut Link<Message>) -> Result<(), Error> {
    let mut program = Program::open(socket)?;
    link.send(&Message::Hello {
        endpoints: program.endpoints()?,
        incoming: program.incoming.remote_buf()?,
        outgoing: program.outgoing.remote_buf()?,
    })?;
    let mut round = None;
    loop {
        let reply = match (link.recv(None)?, round) {
            (Message::Connect { endpoints }, _) => {
                program.connect(endpoints)?;
                Message::Done
            }
            (Message::Prepare(next), _) => {
                prepare(&mut program, &next)?;
                round = Some(next);
                Message::Bound { rkeys: windows::bind(&mut program, &next)? }
            }
            (Message::Check, Some(round)) => {
                let lost = check(&mut program, &round)?;
                windows::invalidate(&mut program, &round)?;
                Message::Checked { lost }
            }
            (Message::Finish, _) => return Ok(()),
            (message, _) => {
                return Err(Error::Failed(format!("{message:?} was not expected here")));
            }
        };
        link.send(&reply)?;
    }
}

/// Whether messages of a round may come in any order, or not at all.
fn is_scattered(round: &Round) -> bool {
    round.operation.is_lossy() || round.operation == Operation::SendToSrq
}

/// Fills the memory, and posts the receives.
fn prepare(program: &mut Program, round: &Round) -> Result<(), Error> {
    let is_read = round.operation == Operation::Read;
    program.outgoing.prepare(round, is_read)?;
    if is_scattered(round) {
        return unordered::prepare(program, round);
    }
    program.incoming.prepare(round, false)?;
    if round.operation.is_atomic() {
        program.incoming.set_word(atomics::initial(round))?;
    }
    if round.operation.is_received() {
        for index in 0..round.count {
            // A WRITE has its own address; its receive needs no memory.
            let sge = [program.incoming.sge(round, index)?];
            let sges = if round.operation == Operation::WriteWithImm { &[] } else { &sge[..] };
            program.qps.rc.post_recv(&[RecvWr::new(round.first + u64::from(index), sges)])?;
        }
    }
    Ok(())
}

/// Checks completions and memory. Returns how many messages were lost.
fn check(program: &mut Program, round: &Round) -> Result<u32, Error> {
    if is_scattered(round) {
        return unordered::check(program, round);
    }
    if round.operation.is_received() {
        collect(&mut program.recvs, round.count, |index, wc| {
            let opcode = match round.operation {
                Operation::WriteWithImm => WcOpcode::RecvRdmaWithImm,
                _ => WcOpcode::Recv,
            };
            let imm = immediate(round, index);
            let expected = (round.first + u64::from(index), opcode, round.size, imm);
            let found = (wc.wr_id, wc.opcode, wc.byte_len, wc.imm);
            let invalidates = round.operation == Operation::SendWithInvalidate;
            if found == expected && wc.invalidated_rkey.is_some() == invalidates {
                return Ok(());
            }
            Err(Error::WrongData(format!(
                "{}: the receive completion has (wr_id, opcode, length, immediate) {found:?}, \
                 expected {expected:?}",
                round.operation.name()
            )))
        })?;
    }
    match round.operation {
        Operation::Read => program.outgoing.check(round, "partner, which was read").map(|()| 0),
        operation if operation.is_atomic() => {
            let expected = atomics::value_before(round, round.count);
            let found = program.incoming.word(round, 0)?;
            if found == expected {
                return Ok(0);
            }
            Err(Error::WrongData(format!(
                "{}: at the end the partner has {found:#x}, expected {expected:#x}",
                operation.name()
            )))
        }
        _ => program.incoming.check(round, "partner, which received").map(|()| 0),
    }
}
