//! Memory windows that the partner binds for a round, and invalidates after it.

use super::message::{Operation, Round};
use super::program::{Program, collect};
use crate::error::Error;
use urxe_verbs::{BindInfo, SendWr, Wc, WcOpcode};

/// Binds the windows that a round needs, and returns their keys.
pub(super) fn bind(program: &mut Program, round: &Round) -> Result<Vec<u32>, Error> {
    let info = program.incoming.bind_info()?;
    let Program { qps, windows, sends, .. } = program;
    let count = match round.operation {
        Operation::WriteThroughWindow1 => {
            let bound = qps.rc.bind_mw(0, &windows[0], info)?;
            collect(sends, 1, |_, wc| expect(wc, WcOpcode::BindMw))?;
            return Ok(vec![bound.rkey]);
        }
        Operation::WriteThroughWindow2 => 1,
        Operation::SendWithInvalidate => round.count as usize,
        _ => return Ok(Vec::new()),
    };
    let windows = &windows[1..=count];
    let rkeys: Vec<u32> = windows.iter().map(|mw| mw.next_rkey()).collect();
    let wrs = windows.iter().zip(&rkeys);
    let wrs = wrs.map(|(mw, &rkey)| SendWr::bind_mw(0, mw, rkey, info).signaled());
    qps.rc.post_send(&wrs.collect::<Vec<_>>())?;
    collect(sends, count as u32, |_, wc| expect(wc, WcOpcode::BindMw))?;
    Ok(rkeys)
}

/// Invalidates the windows of a round that its messages have not invalidated.
pub(super) fn invalidate(program: &mut Program, round: &Round) -> Result<(), Error> {
    let Program { qps, windows, sends, .. } = program;
    match round.operation {
        Operation::WriteThroughWindow1 => {
            qps.rc.bind_mw(0, &windows[0], BindInfo::NOTHING)?;
            collect(sends, 1, |_, wc| expect(wc, WcOpcode::BindMw))
        }
        Operation::WriteThroughWindow2 => {
            qps.rc.post_send(&[SendWr::local_inv(0, windows[1].rkey()).signaled()])?;
            collect(sends, 1, |_, wc| expect(wc, WcOpcode::LocalInvalidate))
        }
        _ => Ok(()),
    }
}

fn expect(wc: &Wc, opcode: WcOpcode) -> Result<(), Error> {
    if wc.opcode == opcode {
        return Ok(());
    }
    let found = wc.opcode;
    Err(Error::WrongData(format!("the completion is of {found:?}, expected {opcode:?}")))
}
