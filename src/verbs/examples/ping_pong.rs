//! Two programs that write into each other's memory and read from it.
//!
//! ```text
//! urxed --addr 127.0.0.1 --addr 127.0.0.2 &
//! cargo run -p urxe-verbs --example ping_pong -- urxe0 &
//! cargo run -p urxe-verbs --example ping_pong -- urxe1 127.0.0.1
//! ```
//!
//! Each round the client WRITEs a question into the server's memory, with the round's number as
//! immediate data; that wakes the server, which puts its answer next to the question and SENDs
//! word; the client READs the answer.

#![allow(clippy::print_stdout, reason = "this is what it is for")]

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use urxe_verbs::*;

/// Where the two programs find each other; RDMA itself has nothing for that.
const PORT: u16 = 18515;
const ROUNDS: u32 = 3;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let device = args.next().ok_or("usage: ping_pong <device> [<server's host>]")?;
    let server = args.next();

    let context = Context::open(&OpenOptions::new().device(device))?;
    let channel = context.create_comp_channel()?;
    let cq = context.create_cq(16, Some(&channel))?;
    let pd = context.alloc_pd()?;
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
    let mr = pd.alloc_mr(64, access)?;
    let qp = pd.create_qp(&QpInit::new(&cq))?;

    // A line of text each way: how to connect, and where our memory is.
    let stream = match &server {
        Some(host) => TcpStream::connect((host.as_str(), PORT))?,
        None => TcpListener::bind(("0.0.0.0", PORT))?.accept()?.0,
    };
    writeln!(&stream, "{} {}", qp.endpoint()?, mr.remote_buf(..)?)?;
    let mut lines = BufReader::new(&stream).lines();
    let line = lines.next().ok_or("the peer went away")??;
    let (peer, memory) = line.split_once(' ').ok_or("the peer said something else")?;
    let memory: RemoteBuf = memory.parse()?;
    qp.connect(&peer.parse()?, access)?;

    // Each message of the peer takes one receive; all its data goes by other ways.
    qp.post_recv(&[RecvWr::new(0, &[]); ROUNDS as usize])?;
    let next = || -> Result<Wc, Error> {
        let mut wc = [Wc::default()];
        cq.wait(&mut wc, None)?;
        Ok(*wc[0].check()?)
    };
    let mut text = [0; 32];
    for round in 1..=ROUNDS {
        if server.is_some() {
            let question = format!("{:32}", format!("what is {round} times {round}?"));
            qp.post_send(&[SendWr::write_imm(1, Inline(question.as_bytes()), memory, round)])?;
            next()?; // the server's word
            qp.post_send(&[SendWr::read(2, &[mr.sge(32..)?], memory.slice(32..)?).signaled()])?;
            next()?; // what was read is there
            mr.read_at(32, &mut text)?;
            println!("{} {}", question.trim(), String::from_utf8_lossy(&text).trim());
        } else {
            let round = next()?.imm.unwrap_or(0);
            mr.read_at(0, &mut text)?;
            println!("asked: {}", String::from_utf8_lossy(&text).trim());
            mr.write_at(32, format!("{:32}", round * round).as_bytes())?;
            qp.post_send(&[SendWr::send(3, Inline(&[]))])?;
        }
    }
    // Over TCP again, so that neither goes before the other has what it wants.
    writeln!(&stream, "done")?;
    lines.next().transpose()?;
    Ok(())
}
