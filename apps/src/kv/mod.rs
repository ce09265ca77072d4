//! A key-value store: node 0 has the table, and all others are its clients.
//!
//! A client gets a value by one READ of all places where the key can be, without the server's
//! processor; an [entry] shows by itself whether it was being written meanwhile, and then
//! the client reads again. What it cannot tell so (a key that is not there, or changes all the
//! time), and every PUT, it asks the server by a message.

pub mod entry;
pub mod table;
pub mod ycsb;

use crate::application::Application;
use crate::cluster::Node;
use crate::connect::{Peer, connect_all};
use crate::error::Error;
use clap::{Args, ValueEnum, value_parser};
use entry::VALUE_MAX;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::time::{Duration, Instant};
use table::{Found, Full, Memory, Shape, Table, find};
use urxe_chart::{Across, Chart, Panel, Series};
use urxe_verbs::{Access, Cq, Inline, Mr, RecvWr, SendWr, Wc};
use ycsb::{Mix, Zipf};

/// How values are got.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Get {
    /// By a READ of the table.
    Read,
    /// By a message to the server, and its answer.
    Rpc,
}

/// What is stored, and what clients do.
#[derive(Args, Clone, Debug)]
pub struct Arguments {
    /// How much is written.
    #[arg(long, value_enum, default_value_t = Mix::B)]
    mix: Mix,
    /// How values are got.
    #[arg(long, value_enum, default_value_t = Get::Read)]
    get: Get,
    /// Keys.
    #[arg(long, default_value_t = 10_000, value_parser = value_parser!(u32).range(1..=1 << 22))]
    keys: u32,
    /// Operations of each client.
    #[arg(long, default_value_t = 10_000)]
    operations: u32,
}

impl Memory for Mr {
    fn read(&self, at: usize, bytes: &mut [u8]) {
        self.read_at(at, bytes).expect("the table lies within the memory");
    }

    fn write(&mut self, at: usize, bytes: &[u8]) {
        self.write_at(at, bytes).expect("the table lies within the memory");
    }
}

/// Bytes of a message: what is asked, of which key, with which value; or a value.
const MESSAGE_MAX: usize = 9 + VALUE_MAX;
const GET: u8 = 0;
const PUT: u8 = 1;
const LEAVE: u8 = 2;
/// Answers.
const NOT_FOUND: u8 = 0;
const DONE: u8 = 1;

/// How often a client reads before it asks.
const READS_MAX: usize = 3;

/// Waits for completions.
const TIMEOUT: Duration = Duration::from_secs(30);

/// What a node reports.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Report {
    elapsed: Duration,
    /// How long the server has computed for its clients.
    served: Duration,
    /// Operations.
    operations: u64,
    /// READs that met an entry which was being written.
    torn: u64,
    /// GETs that the server was asked for.
    asked: u64,
    /// Values that nobody has put.
    wrong: u64,
}

/// What all of them came to.
#[derive(Clone, Debug, Serialize)]
pub struct Summary {
    mix: Mix,
    get: Get,
    clients: usize,
    operations: u64,
    /// READs that met an entry which was being written.
    torn: u64,
    /// GETs that the server was asked for.
    asked: u64,
    /// Values that nobody has put.
    wrong: u64,
    seconds: f64,
    /// How long the server's own processor has been busy, its NIC not counted.
    server_seconds: f64,
}

impl Application for Arguments {
    type Report = Report;
    type Summary = Summary;

    fn run(&self, mut node: Node) -> Result<Report, Error> {
        // At most half full, so that it is never too full.
        let shape = Shape(2 * self.keys as usize);
        let pd = node.context.alloc_pd()?;
        let channel = node.context.create_comp_channel()?;
        let cq = node.context.create_cq(256 * node.nodes as u32, Some(&channel))?;
        let is_server = node.rank == SERVER;
        let length = if is_server { shape.length() } else { 0 };
        let memory = pd.alloc_mr(length, Access::LOCAL_WRITE | Access::REMOTE_READ)?;
        let access = Access::REMOTE_READ;
        let peers = connect_all(&mut node, &pd, &cq, memory.remote_buf(..)?, access)?;
        // Of each peer, one message at a time; behind them what is read.
        let size = node.nodes * MESSAGE_MAX + table::NEIGHBOURS * entry::ENTRY_SIZE;
        let messages = pd.alloc_mr(size, Access::LOCAL_WRITE)?;
        let endpoint = Endpoint { peers, cq, messages };
        for rank in (0..node.nodes).filter(|&rank| is_server != (rank == SERVER)) {
            endpoint.post_recv(rank)?;
        }
        let mut table = Table::new(shape, memory);
        for key in (0..self.keys.into()).filter(|_| is_server) {
            let put = table.put(key, &content(key, 0));
            put.map_err(|Full| Error::Broken(format!("there is no room for key {key}")))?;
        }
        node.exchange(&())?;
        let report = match is_server {
            true => {
                let before = computed()?;
                endpoint.serve(&mut table, node.nodes - 1)?;
                Ok(Report { served: computed()? - before, ..Report::default() })
            }
            false => endpoint.visit(self, shape, node.rank),
        };
        node.exchange(&())?;
        report
    }

    fn summary(&self, nodes: usize, reports: &[Option<Report>]) -> (Summary, bool) {
        let reports = || reports.iter().flatten();
        let sum = |count: fn(&Report) -> u64| reports().map(count).sum();
        let wrong = sum(|report| report.wrong);
        let summary = Summary {
            mix: self.mix,
            get: self.get,
            clients: nodes - 1,
            operations: sum(|report| report.operations),
            torn: sum(|report| report.torn),
            asked: sum(|report| report.asked),
            wrong,
            seconds: reports().map(|report| report.elapsed.as_secs_f64()).fold(0., f64::max),
            server_seconds: reports().map(|report| report.served.as_secs_f64()).sum(),
        };
        (summary, wrong == 0)
    }

    fn ways() -> Vec<String> {
        let gets = ["read", "rpc"];
        let of = |get| ["a", "b", "c"].map(|mix| format!("--get {get} --mix {mix}"));
        gets.into_iter().flat_map(of).collect()
    }

    fn chart(summaries: &[Summary]) -> Chart {
        let mixes = ["A: half are PUTs", "B: 1 in 20", "C: none"].map(str::to_owned);
        let panel = |title: &str, value: fn(&Summary) -> f64| {
            let point = |summary: &Summary| {
                let get = if summary.get == Get::Read { "GET by READ" } else { "GET by RPC" };
                (get.to_owned(), (f64::from(summary.mix as u8), value(summary)))
            };
            let series = Series::group(summaries.iter().map(point));
            Panel { title: title.into(), across: Across::Names(mixes.to_vec()), series }
        };
        let clients = summaries.first().map_or(0, |summary| summary.clients);
        Chart {
            title: format!("A key-value store with {clients} clients, workloads of YCSB"),
            panels: vec![
                panel("operations a second", |of| of.operations as f64 / of.seconds),
                panel("microseconds of the server's own processor for each operation", |of| {
                    of.server_seconds * 1e6 / of.operations as f64
                }),
            ],
        }
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Summary { clients, operations, torn, asked, wrong, seconds, .. } = self;
        write!(
            f,
            "{operations} operations of {clients} clients: {seconds:.3} s, {:.0} a second; {torn} \
             READs were torn and repeated, {asked} GETs were asked of the server, {wrong} values \
             were wrong; the server's processor was busy for {:.3} s",
            *operations as f64 / seconds,
            self.server_seconds,
        )
    }
}

const SERVER: usize = 0;

/// How long the first thread of this process has computed; its NIC has other threads, or is another
/// process.
fn computed() -> Result<Duration, Error> {
    let text = std::fs::read_to_string("/proc/self/schedstat");
    let text = text.map_err(Error::io("reading /proc/self/schedstat"))?;
    let nanos = text.split(' ').next().and_then(|nanos| nanos.parse().ok());
    Ok(Duration::from_nanos(nanos.unwrap_or(0)))
}

/// A value that shows whether it is one: each word is the same.
fn content(key: u64, number: u64) -> Vec<u8> {
    (key << 32 | number & 0xffff_ffff).to_le_bytes().repeat(VALUE_MAX / 8)
}

fn is_content(key: u64, value: &[u8]) -> bool {
    let (words, rest) = value.as_chunks::<8>();
    let is_same =
        words.iter().all(|word| *word == words[0] && u64::from_le_bytes(*word) >> 32 == key);
    value.len() == VALUE_MAX && rest.is_empty() && is_same
}

/// A node, with its connections.
struct Endpoint {
    peers: Vec<Option<Peer>>,
    cq: Cq,
    messages: Mr,
}

impl Endpoint {
    fn peer(&self, rank: usize) -> Result<&Peer, Error> {
        let none = || Error::Broken(format!("there is no connection to node {rank}"));
        self.peers.get(rank).and_then(Option::as_ref).ok_or_else(none)
    }

    fn post_recv(&self, from: usize) -> Result<(), Error> {
        let sge = self.messages.sge(from * MESSAGE_MAX..(from + 1) * MESSAGE_MAX)?;
        Ok(self.peer(from)?.qp.post_recv(&[RecvWr::new(from as u64, &[sge])])?)
    }

    fn send(&self, to: usize, message: &[u8]) -> Result<(), Error> {
        Ok(self.peer(to)?.qp.post_send(&[SendWr::send(to as u64, Inline(message))])?)
    }

    /// The next completion, and the message if it is of one.
    fn wait(&self) -> Result<(usize, Vec<u8>), Error> {
        let mut wcs = [Wc::default()];
        if self.cq.wait(&mut wcs, Some(TIMEOUT))? == 0 {
            return Err(Error::Broken(format!("nothing has come for {TIMEOUT:?}")));
        }
        let rank = wcs[0].check()?.wr_id as usize;
        let mut message = vec![0; (wcs[0].byte_len as usize).min(MESSAGE_MAX)];
        self.messages.read_at(rank * MESSAGE_MAX, &mut message)?;
        Ok((rank, message))
    }

    /// Answers clients until so many have left.
    fn serve(&self, table: &mut Table<Mr>, clients: usize) -> Result<(), Error> {
        let mut left = 0;
        while left < clients {
            let (client, message) = self.wait()?;
            self.post_recv(client)?;
            let answer = match message.split_first_chunk::<9>() {
                Some(([GET, key @ ..], _)) => match table.get(u64::from_le_bytes(*key)) {
                    Some(value) => [&[DONE], &value[..]].concat(),
                    None => vec![NOT_FOUND],
                },
                Some(([PUT, key @ ..], value)) => {
                    let put = table.put(u64::from_le_bytes(*key), value);
                    vec![if put.is_ok() { DONE } else { NOT_FOUND }]
                }
                Some(([LEAVE, ..], _)) => {
                    left += 1;
                    continue;
                }
                _ => vec![NOT_FOUND],
            };
            self.send(client, &answer)?;
        }
        Ok(())
    }

    /// Asks the server, and waits for its answer.
    fn ask(&self, what: u8, key: u64, value: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        self.send(SERVER, &[&[what], &key.to_le_bytes()[..], value].concat())?;
        let (_, answer) = self.wait()?;
        self.post_recv(SERVER)?;
        Ok(answer.split_first().filter(|(done, _)| **done == DONE).map(|(_, value)| value.to_vec()))
    }

    /// Gets a value by a READ; none if that does not tell.
    fn read(&self, shape: Shape, key: u64, report: &mut Report) -> Result<Option<Vec<u8>>, Error> {
        let Peer { qp, memory } = self.peer(SERVER)?;
        let range = shape.neighbourhood(key);
        let there = memory.slice(range.start as u64..range.end as u64)?;
        let at = self.messages.length() - range.len();
        let mut bytes = vec![0; range.len()];
        for _ in 0..READS_MAX {
            let here = [self.messages.sge(at..)?];
            qp.post_send(&[SendWr::read(SERVER as u64, &here, there).signaled()])?;
            self.wait()?;
            self.messages.read_at(at, &mut bytes)?;
            match find(&bytes, key) {
                Found::Entry(entry) => return Ok(Some(entry.value)),
                Found::Torn => report.torn += 1,
                Found::Missing => return Ok(None),
            }
        }
        Ok(None)
    }

    /// Does what a client does.
    fn visit(&self, arguments: &Arguments, shape: Shape, rank: usize) -> Result<Report, Error> {
        let mut zipf = Zipf::new(rank as u64, arguments.keys.into());
        let mut report = Report::default();
        let started = Instant::now();
        for number in 0..arguments.operations.into() {
            let key = zipf.draw();
            if zipf.is_update(arguments.mix) {
                self.ask(PUT, key, &content(key, (rank as u64) << 24 | number))?;
            } else {
                let read = match arguments.get {
                    Get::Read => self.read(shape, key, &mut report)?,
                    Get::Rpc => None,
                };
                let value = match read {
                    Some(value) => Some(value),
                    None => {
                        report.asked += 1;
                        self.ask(GET, key, &[])?
                    }
                };
                let is_right = value.is_some_and(|value| is_content(key, &value));
                report.wrong += u64::from(!is_right);
            }
            report.operations += 1;
        }
        report.elapsed = started.elapsed();
        self.send(SERVER, &[&[LEAVE], &[0; 8][..]].concat())?;
        Ok(report)
    }
}
