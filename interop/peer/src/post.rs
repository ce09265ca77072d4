//! Work requests, from what a command says of them.

use crate::command::{Receive, Send, Window};
use crate::image::number;
use crate::thing::Things;
use std::error::Error;
use urxe_verbs::{
    Access, BindInfo, FlushPlacement, Inline, Mr, Payload, RecvWr, RemoteBuf, SendWr, Sge,
};

type Done<T = ()> = Result<T, Box<dyn Error>>;

pub(crate) fn receives(things: &Things, to: &str, mr: &str, wrs: &[Receive]) -> Done {
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

pub(crate) fn sends(things: &Things, qp: &str, mr: &str, wrs: &[Send]) -> Done {
    let (qp, mr) = (things.qp(qp)?, things.mr(mr)?);
    for wr in wrs {
        let sges = gather(mr, &wr.sges)?;
        let mut small = Vec::new();
        if let (true, Some(&(off, len))) = (wr.inline, wr.sges.first()) {
            small.resize(len, 0);
            mr.read_at(off, &mut small)?;
        }
        let payload: Payload<'_> = if wr.inline { Inline(&small).into() } else { (&sges).into() };
        let word = (wr.op == "ATOMIC_WRITE").then(|| word(&wr.data)).transpose()?;
        let made = match &word {
            Some(word) => SendWr::atomic_write(wr.id, Inline(word), remote(wr)),
            None => build(things, wr, payload, &sges)?,
        };
        let made = match &wr.ah {
            Some(ah) => made.to(things.ah(ah)?, wr.dqpn, wr.qkey),
            None => made,
        };
        qp.post_send(&[made.signaled()])?;
    }
    Ok(())
}

fn build<'a>(
    things: &'a Things,
    wr: &Send,
    payload: Payload<'a>,
    sges: &'a [Sge],
) -> Done<SendWr<'a>> {
    let Send { id, imm, inv, .. } = *wr;
    Ok(match wr.op.as_str() {
        "SEND" => SendWr::send(id, payload),
        "SEND_WITH_IMM" => SendWr::send_imm(id, payload, imm),
        "SEND_WITH_INV" => SendWr::send_inv(id, payload, inv),
        "RDMA_WRITE" => SendWr::write(id, payload, remote(wr)),
        "RDMA_WRITE_WITH_IMM" => SendWr::write_imm(id, payload, remote(wr), imm),
        "RDMA_READ" => SendWr::read(id, sges, remote(wr)),
        "FETCH_ADD" => SendWr::fetch_add(id, sges, remote(wr), number(&wr.operand)?),
        "CMP_SWAP" => {
            SendWr::compare_swap(id, sges, remote(wr), number(&wr.operand)?, number(&wr.swap)?)
        }
        "FLUSH" => SendWr::flush(id, remote(wr), FlushPlacement::GLOBAL),
        "LOCAL_INV" => SendWr::local_inv(id, inv),
        "BIND_MW" => {
            let mw = things.mw(wr.mw.as_deref().unwrap_or_default())?;
            let window = wr.window.as_ref().ok_or("a bind without a window")?;
            SendWr::bind_mw(id, mw, mw.next_rkey(), bind_info(things, window)?)
        }
        other => return Err(format!("no such operation: {other}").into()),
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

fn remote(wr: &Send) -> RemoteBuf {
    RemoteBuf { addr: wr.raddr, rkey: wr.rkey, len: wr.len }
}

/// Eight bytes in hex, as they stand in memory.
fn word(text: &str) -> Done<[u8; 8]> {
    Ok(number(text)?.to_be_bytes())
}
