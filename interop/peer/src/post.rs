//! Work requests, from what a command says of them.

use crate::thing::Things;
use std::error::Error;
use urxe_conform::agent::{self, Operation, Window, number};
use urxe_verbs::{
    Access, BindInfo, FlushPlacement, Inline, Mr, Payload, RecvWr, RemoteBuf, SendWr, Sge,
};

type Done<T = ()> = Result<T, Box<dyn Error>>;

pub(crate) fn receives(things: &Things, to: &str, mr: &str, wrs: &[agent::RecvWr]) -> Done {
    let mr = things.mr(mr)?;
    for wr in wrs {
        let sges = gather(mr, &wr.sges)?;
        let recv = [RecvWr::new(wr.id, &sges)];
        match things.srq(to) {
            Ok(srq) => srq.post_recv(&recv)?,
            Err(_) => things.qp(to)?.post_recv(&recv)?,
        }
    }
    Ok(())
}

pub(crate) fn sends(things: &Things, qp: &str, mr: &str, wrs: &[agent::SendWr]) -> Done {
    let (qp, mr) = (things.qp(qp)?, things.mr(mr)?);
    for wr in wrs {
        let sges = gather(mr, &wr.sges)?;
        let mut small = Vec::new();
        if let (true, Some(&(off, len))) = (wr.inline, wr.sges.first()) {
            small.resize(len, 0);
            mr.read_at(off, &mut small)?;
        }
        let payload: Payload<'_> = if wr.inline { Inline(&small).into() } else { (&sges).into() };
        let word = (wr.op == Operation::AtomicWrite).then(|| word(wr)).transpose()?;
        let made = match &word {
            Some(word) => SendWr::atomic_write(wr.id, Inline(word), remote(wr)),
            None => build(things, wr, payload, &sges)?,
        };
        let made = match &wr.ah {
            Some(ah) => {
                made.to(things.ah(ah)?, wr.dqpn.unwrap_or_default(), wr.qkey.unwrap_or_default())
            }
            None => made,
        };
        qp.post_send(&[made.signaled()])?;
    }
    Ok(())
}

fn build<'a>(
    things: &'a Things,
    wr: &agent::SendWr,
    payload: Payload<'a>,
    sges: &'a [Sge],
) -> Done<SendWr<'a>> {
    let (id, imm, inv) = (wr.id, wr.imm.unwrap_or_default(), wr.inv.unwrap_or_default());
    let value = |text: &Option<String>| number(text.as_deref()).ok_or("a value that is none");
    Ok(match wr.op {
        Operation::Send => SendWr::send(id, payload),
        Operation::SendWithImm => SendWr::send_imm(id, payload, imm),
        Operation::SendWithInv => SendWr::send_inv(id, payload, inv),
        Operation::RdmaWrite => SendWr::write(id, payload, remote(wr)),
        Operation::RdmaWriteWithImm => SendWr::write_imm(id, payload, remote(wr), imm),
        Operation::RdmaRead => SendWr::read(id, sges, remote(wr)),
        Operation::FetchAdd => SendWr::fetch_add(id, sges, remote(wr), value(&wr.operand)?),
        Operation::CmpSwap => {
            SendWr::compare_swap(id, sges, remote(wr), value(&wr.operand)?, value(&wr.swap)?)
        }
        Operation::Flush => SendWr::flush(id, remote(wr), FlushPlacement::GLOBAL),
        Operation::LocalInv => SendWr::local_inv(id, inv),
        Operation::BindMw => {
            let mw = things.mw(wr.mw.as_deref().unwrap_or_default())?;
            let window = wr.window.as_ref().ok_or("a bind without a window")?;
            SendWr::bind_mw(id, mw, mw.next_rkey(), bind_info(things, window)?)
        }
        Operation::AtomicWrite => return Err("an ATOMIC WRITE without its eight bytes".into()),
    })
}

/// What a window opens; nothing if its length is 0.
pub(crate) fn bind_info(things: &Things, window: &Window) -> Done<BindInfo> {
    if window.len == 0 {
        return Ok(BindInfo::NOTHING);
    }
    let range = window.off..window.off + window.len;
    Ok(things.mr(&window.of)?.bind_info(range, Access::from_bits_retain(window.access))?)
}

fn gather(mr: &Mr, list: &[(usize, usize)]) -> Done<Vec<Sge>> {
    let sges = list.iter().map(|&(off, len)| mr.sge(off..off + len));
    Ok(sges.collect::<Result<_, _>>()?)
}

fn remote(wr: &agent::SendWr) -> RemoteBuf {
    RemoteBuf {
        addr: wr.raddr.unwrap_or_default(),
        rkey: wr.rkey.unwrap_or_default(),
        len: wr.len.unwrap_or_default(),
    }
}

/// The eight bytes of an ATOMIC WRITE, as they stand in memory.
fn word(wr: &agent::SendWr) -> Done<[u8; 8]> {
    let bytes = number(wr.data.as_deref()).ok_or("an ATOMIC WRITE without its eight bytes")?;
    Ok(bytes.to_be_bytes())
}
