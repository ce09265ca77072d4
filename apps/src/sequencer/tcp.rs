//! The sequencer over TCP sockets: a thread for each client, a byte for each request. With
//! [`Tricks::Batch`], all that can be sent goes by one system call, as a list of work requests goes
//! by one doorbell; the other tricks have no like here.

use super::{Arguments, Received, SERVER, Tricks};
use crate::cluster::Node;
use crate::error::Error;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

const NUMBER: usize = size_of::<u64>();

pub(super) fn run(
    arguments: &Arguments,
    node: &mut Node,
    received: &mut Received,
) -> Result<(), Error> {
    let failed = || Error::io("the sequencer over TCP");
    // The same address as that of the device.
    let address = node.context.query_gid(1, 0)?;
    let listener = TcpListener::bind((address, 0)).map_err(failed())?;
    let all = node.exchange(&listener.local_addr().map_err(failed())?)?;
    if node.rank == SERVER {
        serve(arguments, &listener, node.nodes - 1).map_err(failed())
    } else {
        ask(arguments, all[SERVER], received).map_err(failed())
    }
}

fn serve(arguments: &Arguments, listener: &TcpListener, clients: usize) -> std::io::Result<()> {
    let next = AtomicU64::new(0);
    let streams = (0..clients).map(|_| listener.accept().map(|(stream, _)| stream));
    let streams: Vec<_> = streams.collect::<Result<_, _>>()?;
    let answer = |mut stream: TcpStream| -> std::io::Result<()> {
        stream.set_nodelay(true)?;
        let mut requests = [0; 64];
        loop {
            let count = stream.read(&mut requests)?;
            if count == 0 {
                return Ok(());
            }
            let number = |_| next.fetch_add(1, Ordering::Relaxed).to_le_bytes();
            let answers: Vec<u8> = (0..count).flat_map(number).collect();
            send(arguments, &mut stream, &answers, NUMBER)?;
        }
    };
    thread::scope(|scope| {
        let threads = streams.into_iter().map(|stream| scope.spawn(move || answer(stream)));
        let threads: Vec<_> = threads.collect();
        threads.into_iter().try_for_each(|thread| thread.join().unwrap_or(Ok(())))
    })
}

/// Sends messages of so many bytes each: one after the other, or all at once.
fn send(
    arguments: &Arguments,
    stream: &mut TcpStream,
    messages: &[u8],
    length: usize,
) -> std::io::Result<()> {
    let together = if arguments.tricks >= Tricks::Batch { messages.len().max(1) } else { length };
    messages.chunks(together).try_for_each(|messages| stream.write_all(messages))
}

fn ask(arguments: &Arguments, server: SocketAddr, received: &mut Received) -> std::io::Result<()> {
    let mut stream = TcpStream::connect(server)?;
    stream.set_nodelay(true)?;
    let (mut left, requests) = (arguments.requests as usize, [0; 64]);
    let first = left.min(arguments.depth as usize);
    received.start(1);
    send(arguments, &mut stream, &requests[..first], 1)?;
    left -= first;
    let mut under_way = first;
    let mut answers = [0; 64 * NUMBER];
    let mut filled = 0;
    while under_way > 0 {
        let count = stream.read(&mut answers[filled..])?;
        if count == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        filled += count;
        let (whole, rest) = answers[..filled].as_chunks::<NUMBER>();
        whole.iter().for_each(|number| received.take(0, u64::from_le_bytes(*number)));
        let (count, rest) = (whole.len(), rest.len());
        answers.copy_within(filled - rest..filled, 0);
        filled = rest;
        let more = left.min(count);
        send(arguments, &mut stream, &requests[..more], 1)?;
        left -= more;
        under_way -= count - more;
    }
    received.stop();
    Ok(())
}
