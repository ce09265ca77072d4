//! Copies a file to another machine by WRITEs into the receiver's memory.
//!
//! ```sh
//! cargo run --release -p urxe-verbs --example file_copy -- receive 127.0.0.1:7471 COPY
//! cargo run --release -p urxe-verbs --example file_copy -- send 127.0.0.1:7471 FILE
//! ```
//!
//! The receiver listens at an address of a device of the daemon, which `urxe devinfo` shows. It has
//! memory for a few pieces of the file, and says with its acceptance where that is. The sender
//! WRITEs each piece to its place, with the length as immediate data, by which the receiver learns
//! of it; the receiver stores it in the file, and a message without data gives the place back. A
//! piece of length 0 is the end.

#![allow(clippy::print_stdout, reason = "this is what it is for")]

use std::fs::File;
use std::io::{Read, Write};
use std::process::ExitCode;
use std::time::Duration;
use urxe_verbs::cm::ConnParam;
use urxe_verbs::*;

const PIECE: usize = 1 << 20;
const PLACES: usize = 4;
const TIMEOUT: Option<Duration> = Some(Duration::from_secs(30));

type Anything = Box<dyn std::error::Error>;

/// A queue pair, what it completes to, and memory for the pieces.
struct Side {
    cq: Cq,
    qp: Qp,
    mr: Mr,
}

impl Side {
    /// With a receive for each piece, or each place that is given back, that can be under way.
    fn new(context: &Context, access: Access) -> Result<Side, Error> {
        let channel = context.create_comp_channel()?;
        let cq = context.create_cq(64, Some(&channel))?;
        let pd = context.alloc_pd()?;
        let mr = pd.alloc_mr(PIECE * PLACES, access)?;
        let qp = pd.create_qp(&QpInit::new(&cq))?;
        qp.to_init(InitAttr::new(access))?;
        qp.post_recv(&[RecvWr::new(0, &[]); PLACES])?;
        Ok(Side { cq, qp, mr })
    }

    /// The next receive that completes, in whose place another is posted.
    fn received(&self) -> Result<Wc, Anything> {
        let mut wc = [Wc::default()];
        loop {
            if self.cq.wait(&mut wc, TIMEOUT)? == 0 {
                return Err("the peer has said nothing for 30 seconds".into());
            }
            let wc = wc[0].check()?;
            if wc.opcode.is_recv() {
                self.qp.post_recv(&[RecvWr::new(0, &[])])?;
                return Ok(*wc);
            }
        }
    }
}

fn receive(context: &Context, at: &str, path: &str) -> Result<(), Anything> {
    let mut file = File::create(path)?;
    let channel = context.create_event_channel()?;
    let listener = channel.listen(at.parse()?, 1)?;
    println!("listening at {}", listener.local_addr());
    let Some(request) = listener.wait(None)? else { return Ok(()) };
    // The queue pair must be of the device that the request came to.
    let context = Context::open(&OpenOptions::new().device(request.device()))?;
    let side = Side::new(&context, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
    let private_data = side.mr.remote_buf(..)?.to_string().into_bytes();
    let param = ConnParam { private_data, ..ConnParam::default() };
    let connection = request.accept(&side.qp, &param)?.wait_established(TIMEOUT)?;
    let mut piece = vec![0; PIECE];
    let mut total = 0;
    for place in (0..PLACES).cycle() {
        let len = side.received()?.imm.unwrap_or(0) as usize;
        let piece =
            piece.get_mut(..len).ok_or("the peer says that a piece is longer than can be")?;
        side.mr.read_at(place * PIECE, piece)?;
        file.write_all(piece)?;
        total += len;
        side.qp.post_send(&[SendWr::send(1, Inline(&[])).signaled()])?;
        if len == 0 {
            break;
        }
    }
    connection.wait_disconnected(TIMEOUT)?;
    println!("{total} bytes from {}", connection.peer_addr());
    Ok(())
}

fn send(context: &Context, to: &str, path: &str) -> Result<(), Anything> {
    let side = Side::new(context, Access::LOCAL_WRITE)?;
    let mut file = File::open(path)?;
    let channel = context.create_event_channel()?;
    let connection = channel.connect(to.parse()?, &side.qp, &ConnParam::default())?;
    let connection = connection.wait_established(TIMEOUT)?;
    let said = connection.peer_param().ok_or("the peer says nothing")?;
    let places: RemoteBuf =
        std::str::from_utf8(&said.private_data)?.trim_end_matches('\0').parse()?;
    let mut piece = vec![0; PIECE];
    let mut given_back = PLACES;
    let mut total = 0;
    for place in (0..PLACES).cycle() {
        if given_back == 0 {
            side.received()?;
        } else {
            given_back -= 1;
        }
        let len = file.read(&mut piece)?;
        let (from, to) = (place * PIECE, (place * PIECE) as u64);
        side.mr.write_at(from, &piece[..len])?;
        let (data, there) = ([side.mr.sge(from..from + len)?], places.slice(to..to + len as u64)?);
        side.qp.post_send(&[SendWr::write_imm(2, &data, there, len as u32).signaled()])?;
        total += len;
        if len == 0 {
            break;
        }
    }
    // All that are still away.
    for _ in given_back..PLACES {
        side.received()?;
    }
    connection.disconnect()?;
    println!("{total} bytes to {}", connection.peer_addr());
    Ok(())
}

fn run(args: &[String]) -> Result<(), Anything> {
    let context = Context::open(&OpenOptions::new())?;
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["receive", at, path] => receive(&context, at, path),
        ["send", to, path] => send(&context, to, path),
        _ => Err("usage: file_copy receive ADDRESS:PORT COPY | send ADDRESS:PORT FILE".into()),
    }
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match run(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("file_copy: {error}");
            ExitCode::FAILURE
        }
    }
}
