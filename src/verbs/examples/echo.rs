//! Sends back what comes, to any number of peers, in tasks of tokio.
//!
//! ```sh
//! cargo run --release -p urxe-verbs --features tokio --example echo -- 127.0.0.1:7471
//! cargo run --release -p urxe-verbs --features tokio --example echo -- 127.0.0.1:7471 hello there
//! ```
//!
//! The first is the server: it listens at an address of a device of the daemon, which
//! `urxe devinfo` shows. The second connects, sends each further word as a message, and prints what
//! comes back.

#![allow(clippy::print_stdout, reason = "this is what it is for")]

use std::net::SocketAddr;
use urxe_verbs::asynchronous::{AsyncConnectRequest, AsyncConnection, AsyncCq, AsyncListener};
use urxe_verbs::cm::ConnParam;
use urxe_verbs::*;

/// Bytes of a message, at most.
const LEN: usize = 4096;

/// A queue pair with a completion queue of its own, and memory for one message each way.
struct Side {
    cq: AsyncCq,
    qp: Qp,
    received: Mr,
}

impl Side {
    /// The first receive is posted before the peer can send.
    fn new(context: &Context) -> Result<Side, Error> {
        let (pd, cq) = (context.alloc_pd()?, AsyncCq::new(context, 16)?);
        let received = pd.alloc_mr(LEN, Access::LOCAL_WRITE)?;
        let qp = pd.create_qp(&QpInit::new(cq.get()))?;
        qp.to_init(InitAttr::new(Access::default()))?;
        let side = Side { cq, qp, received };
        side.post_recv()?;
        Ok(side)
    }

    fn post_recv(&self) -> Result<(), Error> {
        self.qp.post_recv(&[RecvWr::new(1, &[self.received.sge(..)?])])?;
        Ok(())
    }

    /// Sends so much of the memory, and waits until it may be used again.
    async fn send(&self, len: usize) -> Result<(), Error> {
        self.qp.post_send(&[SendWr::send(2, &[self.received.sge(..len)?]).signaled()])?;
        self.cq.next().await?.check()?;
        Ok(())
    }
}

/// Serves one peer, until it disconnects.
async fn serve(request: AsyncConnectRequest) -> Result<(), Error> {
    // The queue pair must be of the device that the request came to.
    let context = Context::open(&OpenOptions::new().device(request.request().device()))?;
    let side = Side::new(&context)?;
    let connection = request.accept(&side.qp, &ConnParam::default()).await?;
    // A completion that is none says that the peer has gone.
    while let Ok(message) = side.cq.next().await?.check() {
        side.send(message.byte_len as usize).await?;
        side.post_recv()?;
    }
    connection.disconnected().await
}

/// Sends words, one after the other, and prints the answers.
async fn ask(context: &Context, to: SocketAddr, words: &[String]) -> Result<(), Error> {
    let side = Side::new(context)?;
    let connection = AsyncConnection::connect(to, &side.qp, &ConnParam::default()).await?;
    for word in words {
        side.qp.post_send(&[SendWr::send(2, Inline(word.as_bytes())).signaled()])?;
        // The answer may overtake the acknowledgement.
        let mut answer = None;
        for _ in 0..2 {
            let completion = *side.cq.next().await?.check()?;
            answer = answer.or((completion.wr_id == 1).then_some(completion.byte_len as usize));
        }
        let mut text = vec![0; answer.unwrap_or(0)];
        side.received.read_at(0, &mut text)?;
        println!("{}", String::from_utf8_lossy(&text));
        side.post_recv()?;
    }
    connection.disconnect()
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [at, words @ ..] = &words[..] else {
        return Err("usage: echo ADDRESS:PORT [WORD...]".into());
    };
    let (at, context) = (at.parse()?, Context::open(&OpenOptions::new())?);
    if !words.is_empty() {
        return Ok(ask(&context, at, words).await?);
    }
    let listener = AsyncListener::bind(&context, at, 0)?;
    println!("listening at {}", listener.local_addr());
    loop {
        let request = listener.next().await?;
        tokio::spawn(async move {
            if let Err(error) = serve(request).await {
                eprintln!("a peer was lost: {error}");
            }
        });
    }
}
