//! A key-value store whose clients read it without asking the server: a GET is one RDMA READ.
//!
//! ```sh
//! cargo run --release -p urxe-verbs --example kv_store -- serve 127.0.0.1:7471
//! cargo run --release -p urxe-verbs --example kv_store -- put 127.0.0.1:7471 colour green
//! cargo run --release -p urxe-verbs --example kv_store -- get 127.0.0.1:7471 colour
//! ```
//!
//! The server listens at an address of a device of the daemon, which `urxe devinfo` shows, and says
//! with its acceptance where its table is. A key belongs into one bucket of that, by its hash. A
//! GET READs the bucket and looks for the key. A PUT is a message to the server, which alone
//! writes; since it may do so during a READ, each slot of a bucket has a checksum, and a client
//! that finds another one READs again.

#![allow(clippy::print_stdout, reason = "this is what it is for")]

use std::process::ExitCode;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use urxe_verbs::cm::{ConnParam, ConnectRequest, Connection};
use urxe_verbs::*;

/// Bytes of a slot: a checksum of the others, the lengths of key and value, and these.
const SLOT: usize = 256;
const HEADER: usize = 10;
/// Bytes of a bucket, which has four slots.
const BUCKET: usize = 4 * SLOT;
const BUCKETS: usize = 1024;
/// How often a bucket is read until it is read whole.
const TRIES: usize = 1000;
const TIMEOUT: Option<Duration> = Some(Duration::from_secs(30));

/// What the server answers to a PUT, as immediate data.
const STORED: u32 = 0;
const FULL: u32 = 1;
const MALFORMED: u32 = 2;

type Anything = Box<dyn std::error::Error + Send + Sync>;

/// FNV-1a, which is the same in every program.
fn hash(bytes: &[u8]) -> u64 {
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, step)
}

/// Where in the table the bucket of a key is.
fn bucket_of(key: &[u8]) -> usize {
    (hash(key) % BUCKETS as u64) as usize * BUCKET
}

/// A slot with this in it; `None` if that is too long.
fn filled(key: &[u8], value: &[u8]) -> Option<[u8; SLOT]> {
    let mut slot = [0; SLOT];
    let value_at = HEADER + key.len();
    slot.get_mut(HEADER..value_at)?.copy_from_slice(key);
    slot.get_mut(value_at..value_at + value.len())?.copy_from_slice(value);
    (slot[8], slot[9]) = (key.len() as u8, value.len() as u8);
    let sum = hash(&slot[8..]);
    slot[..8].copy_from_slice(&sum.to_le_bytes());
    Some(slot)
}

/// What a slot holds.
enum Slot<'a> {
    Empty,
    Filled {
        key: &'a [u8],
        value: &'a [u8],
    },
    /// It was read while it was written.
    Torn,
}

impl Slot<'_> {
    fn of(slot: &[u8]) -> Slot<'_> {
        let (sum, rest) = slot.split_at(8);
        if sum == [0; 8] {
            return Slot::Empty;
        }
        let (lengths, text) = rest.split_at(2);
        let halves = text.split_at_checked(lengths[0].into());
        let key_and_value =
            halves.and_then(|(key, rest)| Some((key, rest.get(..lengths[1].into())?)));
        match key_and_value {
            Some((key, value)) if sum == hash(rest).to_le_bytes() => Slot::Filled { key, value },
            _ => Slot::Torn,
        }
    }
}

/// A queue pair, what it completes to, and memory of its own.
struct Side {
    cq: Cq,
    qp: Qp,
    mr: Mr,
}

impl Side {
    /// With one receive, for a message or an answer.
    fn new(pd: &Pd) -> Result<Side, Error> {
        let context = pd.context();
        let channel = context.create_comp_channel()?;
        let cq = context.create_cq(16, Some(&channel))?;
        let mr = pd.alloc_mr(BUCKET, Access::LOCAL_WRITE)?;
        let qp = pd.create_qp(&QpInit::new(&cq))?;
        qp.to_init(InitAttr::new(Access::REMOTE_READ))?;
        let side = Side { cq, qp, mr };
        side.post_recv()?;
        Ok(side)
    }

    fn post_recv(&self) -> Result<(), Error> {
        self.qp.post_recv(&[RecvWr::new(1, &[self.mr.sge(..SLOT)?])])?;
        Ok(())
    }

    /// The next completion; `None` if there is none in time.
    fn next(&self, timeout: Option<Duration>) -> Result<Option<Wc>, Error> {
        let mut wc = [Wc::default()];
        Ok((self.cq.wait(&mut wc, timeout)? > 0).then_some(wc[0]))
    }

    fn next_in_time(&self) -> Result<Wc, Anything> {
        let wc = self.next(TIMEOUT)?.ok_or("nothing has come for 30 seconds")?;
        Ok(*wc.check()?)
    }
}

/// Stores what a message asks for: the length of the key, the key, the value.
fn store(table: &Mutex<Mr>, message: &[u8]) -> Result<u32, Error> {
    let parts = message.split_first().and_then(|(len, rest)| {
        let (key, value) = rest.split_at_checked((*len).into())?;
        Some((key, filled(key, value)?))
    });
    let Some((key, slot)) = parts else { return Ok(MALFORMED) };
    // One at a time, so that two do not take the same slot.
    let table = table.lock().expect("no thread panics with it");
    let (at, mut bucket) = (bucket_of(key), [0; BUCKET]);
    table.read_at(at, &mut bucket)?;
    let mut slots = bucket.chunks(SLOT).map(Slot::of);
    let is_same = |slot| matches!(slot, Slot::Filled { key: found, .. } if found == key);
    let same = slots.clone().position(is_same);
    let Some(index) = same.or_else(|| slots.position(|slot| matches!(slot, Slot::Empty))) else {
        return Ok(FULL);
    };
    table.write_at(at + index * SLOT, &slot)?;
    Ok(STORED)
}

/// Serves one client, until it disconnects.
fn serve_one(pd: &Pd, table: &Mutex<Mr>, request: ConnectRequest) -> Result<(), Anything> {
    let side = Side::new(pd)?;
    let where_it_is = table.lock().expect("no thread panics with it").remote_buf(..)?;
    let private_data = where_it_is.to_string().into_bytes();
    let param = ConnParam { private_data, ..ConnParam::default() };
    let _connection = request.accept(&side.qp, &param)?;
    // A completion that is an error says that the client has gone.
    while let Some(received) = side.next(None)?
        && received.check().is_ok()
    {
        let mut message = vec![0; received.byte_len as usize];
        side.mr.read_at(0, &mut message)?;
        let answer = store(table, &message)?;
        side.post_recv()?;
        side.qp.post_send(&[SendWr::send_imm(2, Inline(&[]), answer)])?;
    }
    Ok(())
}

fn serve(at: &str) -> Result<(), Anything> {
    let at: std::net::SocketAddr = at.parse()?;
    let devices = devices(&OpenOptions::new())?;
    let device = devices.into_iter().find(|device| device.address == at.ip());
    let device = device.ok_or_else(|| format!("no device has the address {}", at.ip()))?;
    let context = Context::open(&OpenOptions::new().device(device.name))?;
    let pd = context.alloc_pd()?;
    let access = Access::LOCAL_WRITE | Access::REMOTE_READ;
    let table = Arc::new(Mutex::new(pd.alloc_mr(BUCKETS * BUCKET, access)?));
    let channel = context.create_event_channel()?;
    let listener = channel.listen(at, 0)?;
    println!("listening at {}", listener.local_addr());
    // What happens to the connections is heard here too.
    while let Some(request) = listener.wait(None)? {
        let (pd, table) = (pd.clone(), Arc::clone(&table));
        std::thread::spawn(move || {
            if let Err(error) = serve_one(&pd, &table, request) {
                eprintln!("kv_store: a client was lost: {error}");
            }
        });
    }
    Ok(())
}

/// A client's side, its connection, and where the table is.
fn connect(to: &str) -> Result<(Side, Connection, RemoteBuf), Anything> {
    let context = Context::open(&OpenOptions::new())?;
    let side = Side::new(&context.alloc_pd()?)?;
    let channel = context.create_event_channel()?;
    let connection = channel.connect(to.parse()?, &side.qp, &ConnParam::default())?;
    let connection = connection.wait_established(TIMEOUT)?;
    let said = connection.peer_param().ok_or("the server says nothing")?;
    let table = std::str::from_utf8(&said.private_data)?.trim_end_matches('\0').parse()?;
    Ok((side, connection, table))
}

fn put(to: &str, key: &str, value: &str) -> Result<(), Anything> {
    let len = key.len() + value.len();
    if len > SLOT - HEADER {
        let most = SLOT - HEADER;
        return Err(format!("key and value have {len} bytes, expected {most} at most").into());
    }
    let (side, connection, _) = connect(to)?;
    let message = [&[key.len() as u8], key.as_bytes(), value.as_bytes()].concat();
    // Not the memory that the answer may come to, though that has no bytes.
    side.mr.write_at(SLOT, &message)?;
    let data = [side.mr.sge(SLOT..SLOT + message.len())?];
    side.qp.post_send(&[SendWr::send(2, &data)])?;
    let answer = side.next_in_time()?.imm;
    connection.disconnect()?;
    match answer {
        Some(STORED) => Ok(()),
        Some(FULL) => Err("there is no room for another key of this bucket".into()),
        _ => Err("the server understands something else by a PUT".into()),
    }
}

fn get(to: &str, key: &str) -> Result<(), Anything> {
    let (side, connection, table) = connect(to)?;
    let from = bucket_of(key.as_bytes()) as u64;
    let there = table.slice(from..from + BUCKET as u64)?;
    let mut bucket = [0; BUCKET];
    for _ in 0..TRIES {
        side.qp.post_send(&[SendWr::read(3, &[side.mr.sge(..)?], there).signaled()])?;
        side.next_in_time()?;
        side.mr.read_at(0, &mut bucket)?;
        let mut slots = bucket.chunks(SLOT).map(Slot::of);
        if slots.clone().any(|slot| matches!(slot, Slot::Torn)) {
            continue;
        }
        let value = slots.find_map(|slot| match slot {
            Slot::Filled { key: found, value } if found == key.as_bytes() => Some(value),
            _ => None,
        });
        println!("{}", String::from_utf8_lossy(value.ok_or("there is no such key")?));
        return Ok(connection.disconnect()?);
    }
    Err("each time that the bucket was read it was being written".into())
}

fn run(args: &[String]) -> Result<(), Anything> {
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["serve", at] => serve(at),
        ["put", to, key, value] => put(to, key, value),
        ["get", to, key] => get(to, key),
        _ => Err("usage: kv_store serve ADDRESS:PORT | put ADDRESS:PORT KEY VALUE | \
                  get ADDRESS:PORT KEY"
            .into()),
    }
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match run(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("kv_store: {error}");
            ExitCode::FAILURE
        }
    }
}
