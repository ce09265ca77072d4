//! Asking over a TCP socket.

use super::{Client, Request, SERVER};
use crate::cluster::Node;
use crate::error::Error;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};

fn failed() -> impl FnOnce(std::io::Error) -> Error {
    Error::io("asking over TCP")
}

/// Answers requests for at most so many bytes until there are no more.
pub(super) fn serve(node: &mut Node, max: usize) -> Result<(), Error> {
    // The same address as that of the device.
    let address = node.context.query_gid(1, 0)?;
    let listener = TcpListener::bind((address, 0)).map_err(failed())?;
    node.exchange(&listener.local_addr().ok())?;
    let (mut stream, _) = listener.accept().map_err(failed())?;
    stream.set_nodelay(true).map_err(failed())?;
    let content = vec![0x5a; max];
    loop {
        let mut bytes = [0; Request::LENGTH];
        stream.read_exact(&mut bytes).map_err(failed())?;
        let size = Request::from_bytes(bytes).size as usize;
        if size == 0 {
            return Ok(());
        }
        stream.write_all(&content[..size.min(max)]).map_err(failed())?;
    }
}

/// Who asks.
pub(super) struct Asking {
    stream: TcpStream,
    content: Vec<u8>,
}

impl Asking {
    pub(super) fn new(node: &mut Node, max: usize) -> Result<Asking, Error> {
        let all = node.exchange(&None)?;
        let server =
            all[SERVER].ok_or_else(|| Error::Meeting("the server has no socket".into()))?;
        let stream = TcpStream::connect::<std::net::SocketAddr>(server).map_err(failed())?;
        stream.set_nodelay(true).map_err(failed())?;
        Ok(Asking { stream, content: vec![0; max] })
    }
}

impl Client for Asking {
    fn ask(&mut self, request: Request) -> Result<(), Error> {
        self.stream.write_all(&request.to_bytes()).map_err(failed())
    }

    fn answer(&mut self, request: Request) -> Result<(), Error> {
        let content = &mut self.content[..request.size as usize];
        self.stream.read_exact(content).map_err(failed())
    }

    fn leave(&mut self) -> Result<(), Error> {
        self.ask(Request { size: 0, slot: 0 })
    }
}
