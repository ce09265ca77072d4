//! Messages that arrive in any order, or not at all: each is identified by its content.

use super::message::{Operation, Round};
use super::program::{Program, immediate, message, touched};
use crate::error::Error;
use std::time::{Duration, Instant};
use urxe_verbs::{Grh, QpType, RecvWr, Wc, WcOpcode};

/// After so long without a message, those that are missing are lost.
const LOST_AFTER: Duration = Duration::from_millis(50);

/// Posts a receive for each message of a round.
pub(super) fn prepare(program: &mut Program, round: &Round) -> Result<(), Error> {
    program.restart(round.operation)?;
    let slots = with_headroom(round);
    program.incoming.prepare(&slots, false)?;
    for index in 0..round.count {
        let sge = [program.incoming.sge(&slots, index)?];
        // A WRITE has its own address; its receive needs no memory.
        let sges = if round.operation == Operation::UcWriteWithImm { &[] } else { &sge[..] };
        let wr = [RecvWr::new(index.into(), sges)];
        match round.operation {
            Operation::SendToSrq => program.srq.post_recv(&wr)?,
            operation => program.qp(operation, index).post_recv(&wr)?,
        }
    }
    Ok(())
}

/// Takes and checks what arrives. Returns how many messages did not.
pub(super) fn check(program: &mut Program, round: &Round) -> Result<u32, Error> {
    let mut missing: Vec<u32> = (0..round.count).collect();
    let mut last = Instant::now();
    while !missing.is_empty() {
        let wcs = program.recvs.wait()?.to_vec();
        if wcs.is_empty() {
            if last.elapsed() < LOST_AFTER {
                continue;
            }
            if round.operation.is_lossy() {
                break;
            }
            let what = format!("{} messages did not arrive", missing.len());
            return Err(wrong(round, &what));
        }
        last = Instant::now();
        for wc in &wcs {
            let index = identify(program, round, wc.check()?, &missing)?;
            missing.retain(|&other| other != index);
        }
    }
    // Duplicates may have taken receives, and there may be more of them.
    program.restart(round.operation)?;
    while !program.recvs.poll()?.is_empty() {}
    Ok(missing.len() as u32)
}

/// The index of a message among those that are missing; or of a duplicate, which the network may
/// make and UC and UD do not detect.
fn identify(program: &mut Program, round: &Round, wc: &Wc, missing: &[u32]) -> Result<u32, Error> {
    let is_datagram = round.operation.transport() == QpType::Ud;
    let headroom = if is_datagram { Grh::LEN } else { 0 };
    let is_write = round.operation == Operation::UcWriteWithImm;
    let opcode = if is_write { WcOpcode::RecvRdmaWithImm } else { WcOpcode::Recv };
    let expected = (opcode, round.size + headroom as u32);
    if (wc.opcode, wc.byte_len) != expected {
        let found = (wc.opcode, wc.byte_len);
        let what = format!("the completion has (opcode, length) {found:?}, expected {expected:?}");
        return Err(wrong(round, &what));
    }
    if is_datagram {
        check_path(program, round, wc)?;
    }
    let duplicates = if round.operation.is_lossy() { 0..round.count } else { 0..0 };
    let mut candidates = missing.iter().copied().chain(duplicates);
    if is_write {
        // It has a place of its own, and its immediate data identify it.
        let index = candidates.find(|&index| immediate(round, index) == wc.imm);
        let index = index.ok_or_else(|| wrong(round, &"immediate data of no message"))?;
        let (bytes, guard) = program.incoming.slot(round, index)?;
        let right = message(round, index).check(bytes).is_ok() && touched(guard).is_none();
        return if right { Ok(index) } else { Err(wrong(round, &"a message arrived damaged")) };
    }
    let (bytes, guard) = program.incoming.slot(&with_headroom(round), wc.wr_id as u32)?;
    let bytes = &bytes[headroom..];
    if let Some(place) = touched(guard) {
        return Err(wrong(round, &format!("byte {place} after a message was written")));
    }
    let found = candidates.find(|&index| {
        message(round, index).check(bytes).is_ok() && immediate(round, index) == wc.imm
    });
    found.ok_or_else(|| wrong(round, &"what arrived is not a message that was sent"))
}

/// Checks the source of a datagram, in its GRH and its completion.
fn check_path(program: &mut Program, round: &Round, wc: &Wc) -> Result<(), Error> {
    let sender = *program.peer_endpoint()?;
    let (bytes, _) = program.incoming.slot(&with_headroom(round), wc.wr_id as u32)?;
    let Some(header) = bytes.first_chunk::<{ Grh::LEN }>().filter(|_| wc.grh) else {
        return Err(wrong(round, &"a datagram came without a GRH"));
    };
    let found = (Grh::parse(header)?.source, wc.src_qpn);
    let expected = (sender.gid, sender.qpn);
    if found == expected {
        return Ok(());
    }
    Err(wrong(round, &format!("it came from {found:?}, expected {expected:?}")))
}

/// A round of the same messages with the GRH before them.
fn with_headroom(round: &Round) -> Round {
    let is_datagram = round.operation.transport() == QpType::Ud;
    let headroom = if is_datagram { Grh::LEN as u32 } else { 0 };
    Round { size: round.size + headroom, ..*round }
}

fn wrong(round: &Round, what: &dyn std::fmt::Display) -> Error {
    let (name, size) = (round.operation.name(), round.size);
    Error::WrongData(format!("{name} of {size} bytes, at the partner: {what}"))
}
