//! A verbs program that does what it is told, on the native client: the same commands as
//! `peer.py`, which tells of them, one line of JSON each on standard input. All but `fill` and
//! `check` are those of the conformance checks' agent.

mod image;
mod post;
mod thing;

use image::Image;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::error::Error;
use std::io::{self, BufRead, Write};
use std::time::{Duration, Instant};
use thing::Things;
use urxe_conform::agent::{Command, Connect, Path, Status, opcode_name};
use urxe_verbs::{
    Access, AddressVector, Context, InitAttr, MwType, OpenOptions, Pd, QpInit, RtrAttr, RtsAttr,
    SrqInit, Wc, WcStatus,
};

type Answer = Result<Value, Box<dyn Error>>;

struct Peer {
    context: Context,
    pd: Pd,
    things: Things,
}

impl Peer {
    fn open(options: &OpenOptions) -> Result<Peer, urxe_verbs::Error> {
        let context = Context::open(options)?;
        let pd = context.alloc_pd()?;
        Ok(Peer { context, pd, things: Things::default() })
    }

    fn execute(&mut self, command: Command) -> Answer {
        let things = &self.things;
        match command {
            Command::Hello => return self.hello(),
            Command::RegMr { name, len, access } => {
                let mr = self.pd.alloc_mr(len, Access::from_bits_retain(access))?;
                let answer = json!({"addr": mr.addr(), "rkey": mr.rkey(), "lkey": mr.lkey()});
                self.things.add_mr(name, mr);
                return Ok(answer);
            }
            Command::Read { mr, off, len } => {
                let mut bytes = vec![0; len];
                things.mr(&mr)?.read_at(off, &mut bytes)?;
                return Ok(json!({"hex": image::hex(&bytes)}));
            }
            Command::CreateCq { name } => {
                let cq = self.context.create_cq(512, None)?;
                self.things.add_cq(name, cq);
            }
            Command::CreateSrq { name } => {
                let srq = self.pd.create_srq(&SrqInit::default())?;
                self.things.add_srq(name, srq);
            }
            Command::CreateQp { name, transport: qp_type, cq, srq } => {
                let srq = srq.map(|srq| things.srq(&srq)).transpose()?;
                let init = QpInit { qp_type, srq, ..QpInit::new(things.cq(&cq)?) };
                let qp = self.pd.create_qp(&init)?;
                let answer = json!({"qpn": qp.qpn()});
                self.things.add_qp(name, qp);
                return Ok(answer);
            }
            // Timers and limits are those of this program.
            Command::Connect(Connect { qp, access, mtu, dqpn, sq_psn, rq_psn, path, .. }) => {
                let qp = things.qp(&qp)?;
                qp.to_init(InitAttr::new(Access::from_bits_retain(access)))?;
                qp.to_rtr(RtrAttr {
                    av: vector(&path),
                    path_mtu: Some(mtu),
                    max_dest_rd_atomic: 4,
                    ..RtrAttr::new(dqpn, rq_psn, path.dgid)
                })?;
                qp.to_rts(RtsAttr { timeout: 17, max_rd_atomic: 4, ..RtsAttr::new(sq_psn) })?;
            }
            Command::StartDatagrams { qp, qkey, sq_psn } => {
                let qp = things.qp(&qp)?;
                qp.to_init(InitAttr::datagram(qkey))?;
                qp.to_rtr_datagram()?;
                qp.to_rts(RtsAttr::new(sq_psn))?;
            }
            Command::CreateAh { name, path } => {
                let ah = self.pd.create_ah(&vector(&path))?;
                self.things.add_ah(name, ah);
            }
            Command::AttachMcast { qp, gid } => things.qp(&qp)?.attach_mcast(gid)?,
            Command::DetachMcast { qp, gid } => things.qp(&qp)?.detach_mcast(gid)?,
            Command::PostRecv { to, mr, wrs } => post::receives(things, &to, &mr, &wrs)?,
            Command::PostSend { qp, mr, wrs } => post::sends(things, &qp, &mr, &wrs)?,
            Command::Poll { cq, count, timeout } => return self.poll(&cq, count, timeout),
            Command::AllocMw { name, kind } => {
                let mw_type = if kind == 1 { MwType::One } else { MwType::Two };
                let mw = self.pd.alloc_mw(mw_type)?;
                let answer = json!({"rkey": mw.rkey()});
                self.things.add_mw(name, mw);
                return Ok(answer);
            }
            Command::BindMw { qp, id, mw, window } => {
                let info = post::bind_info(things, &window)?;
                let bound = things.qp(&qp)?.bind_mw(id, things.mw(&mw)?, info)?;
                return Ok(json!({"rkey": bound.rkey}));
            }
            Command::Close { names } => self.things.close(&names),
            Command::Write { .. }
            | Command::ModifySrq { .. }
            | Command::ModifyQp(_)
            | Command::QueryQp { .. }
            | Command::Events
            | Command::CmConnect { .. } => {
                return Err(format!("{}: this program does not do that", command.name()).into());
            }
        }
        Ok(json!({}))
    }

    fn hello(&self) -> Answer {
        let gids = self.context.gids(1)?;
        let gids: serde_json::Map<String, Value> =
            gids.into_iter().map(|(index, gid)| (gid.to_string(), index.into())).collect();
        let mtu = self.context.query_port(1)?.active_mtu;
        Ok(json!({"device": self.context.device().name, "gids": gids, "mtu": mtu}))
    }

    fn check(&self, image: &Image) -> Answer {
        let (mr, want) = (self.things.mr(&image.mr)?, image.bytes()?);
        let end = Instant::now() + Duration::from_secs_f64(image.timeout);
        let mut have = vec![0; want.len()];
        loop {
            mr.read_at(image.off, &mut have)?;
            for &(off, len) in &image.skip {
                have[off..off + len].copy_from_slice(&want[off..off + len]);
            }
            if have == want {
                return Ok(json!({"same": true}));
            }
            if Instant::now() >= end {
                return Ok(image::difference(&have, &want));
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    fn poll(&self, cq: &str, count: usize, timeout: f64) -> Answer {
        let (cq, end) = (self.things.cq(cq)?, Instant::now() + Duration::from_secs_f64(timeout));
        let mut wcs = Vec::new();
        while wcs.len() < count {
            if cq.poll_into(&mut wcs)? == 0 {
                if Instant::now() >= end {
                    break;
                }
                std::thread::sleep(Duration::from_micros(200));
            }
        }
        Ok(json!({"wcs": wcs.iter().map(completion).collect::<Vec<_>>()}))
    }

    fn fill(&self, image: &Image) -> Answer {
        self.things.mr(&image.mr)?.write_at(image.off, &image.bytes()?)?;
        Ok(json!({}))
    }

    /// The answer to one command, whatever it is.
    fn answer(&mut self, command: Value) -> Value {
        let done = match command["do"].as_str() {
            Some("fill") => parsed(command).and_then(|image| self.fill(&image)),
            Some("check") => parsed(command).and_then(|image| self.check(&image)),
            _ => parsed(command).and_then(|command| self.execute(command)),
        };
        done.unwrap_or_else(|error| json!({"error": error.to_string()}))
    }

    /// The answer to a line: to one command, or to a list of them up to the first that fails.
    fn answer_line(&mut self, line: &str) -> Value {
        let commands = match serde_json::from_str(line) {
            Ok(Value::Array(commands)) => commands,
            Ok(command) => return self.answer(command),
            Err(error) => return json!({"error": error.to_string()}),
        };
        let mut answers = Vec::new();
        for command in commands {
            answers.push(self.answer(command));
            if answers.last().is_some_and(|answer| answer.get("error").is_some()) {
                break;
            }
        }
        answers.into()
    }
}

fn parsed<T: DeserializeOwned>(command: Value) -> Result<T, Box<dyn Error>> {
    Ok(serde_json::from_value(command)?)
}

fn vector(path: &Path) -> AddressVector {
    AddressVector { sgid_index: path.gid_index, ..AddressVector::to(path.dgid) }
}

/// A completion by the names of verbs, and with the flags of `ibv_wc_flags`.
fn completion(wc: &Wc) -> Value {
    if wc.status != WcStatus::Success {
        return json!({"id": wc.wr_id, "status": Status::from(wc.status), "cause": wc.cause});
    }
    let op = opcode_name(wc.opcode);
    let mut told = json!({"id": wc.wr_id, "status": "SUCCESS", "op": op, "qpn": wc.qpn});
    if wc.opcode.is_recv() {
        let flag = |is_set: bool, bit: u32| if is_set { bit } else { 0 };
        let flags =
            flag(wc.grh, 1) | flag(wc.imm.is_some(), 2) | flag(wc.invalidated_rkey.is_some(), 8);
        told["len"] = wc.byte_len.into();
        told["src_qpn"] = wc.src_qpn.into();
        told["flags"] = flags.into();
        if let Some(imm) = wc.imm {
            told["imm"] = imm.into();
        }
        if let Some(rkey) = wc.invalidated_rkey {
            told["inv"] = rkey.into();
        }
    }
    told
}

fn main() -> Result<(), Box<dyn Error>> {
    let (mut options, mut arguments) = (OpenOptions::new(), std::env::args().skip(1));
    while let Some(option) = arguments.next() {
        if option == "--in-process" {
            options = options.in_process();
            continue;
        }
        options = match (option.as_str(), arguments.next()) {
            ("--socket", Some(path)) => options.socket(path),
            ("--device", Some(name)) => options.device(name),
            _ => {
                let usage = "usage: urxe-peer [--socket PATH] [--device NAME] [--in-process]";
                return Err(usage.into());
            }
        };
    }
    let mut peer = Peer::open(&options)?;
    let mut out = io::stdout().lock();
    for line in io::stdin().lock().lines() {
        let answer = peer.answer_line(&line?);
        writeln!(out, "{answer}")?;
    }
    Ok(())
}
