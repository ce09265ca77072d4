//! The responder's memory: what its keys open, and what was in it that no request has put there.

use crate::flows::Flows;
use crate::survey::Survey;
use crate::trace::Trace;
use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use urxe_types::{Access, Psn, Rkey};
use urxe_wire::{AtomicEth, Operation, Reth};

/// Small, so that a capture that names an address here and one there costs little.
const PAGE: u64 = 256;

/// Bytes by address, of which only those exist that anything was said of.
#[derive(Clone, Debug, Default)]
pub(crate) struct Bytes {
    pages: BTreeMap<u64, Page>,
}

#[derive(Clone, Debug)]
struct Page {
    bytes: Box<[u8; PAGE as usize]>,
    known: Box<[bool; PAGE as usize]>,
    /// The packet that touched it last.
    touched: usize,
}

impl Default for Page {
    fn default() -> Page {
        Page {
            bytes: Box::new([0; PAGE as usize]),
            known: Box::new([false; PAGE as usize]),
            touched: 0,
        }
    }
}

/// The parts of a range that lie in one page each: page, offset in it, offset in the range, length.
fn parts(addr: u64, len: usize) -> impl Iterator<Item = (u64, usize, usize, usize)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        let at = addr.wrapping_add(done as u64);
        let offset = (at % PAGE) as usize;
        let part = (len - done).min(PAGE as usize - offset);
        let from = done;
        done += part;
        (part > 0).then_some((at / PAGE, offset, from, part))
    })
}

impl Bytes {
    /// What is there; 0 where nothing is known.
    pub(crate) fn read(&self, addr: u64, buf: &mut [u8]) {
        for (page, offset, from, len) in parts(addr, buf.len()) {
            match self.pages.get(&page) {
                Some(page) => {
                    buf[from..from + len].copy_from_slice(&page.bytes[offset..offset + len]);
                }
                None => buf[from..from + len].fill(0),
            }
        }
    }

    /// Writes, as of this packet.
    pub(crate) fn write(&mut self, addr: u64, data: &[u8], by: usize) {
        for (page, offset, from, len) in parts(addr, data.len()) {
            let page = self.pages.entry(page).or_default();
            page.bytes[offset..offset + len].copy_from_slice(&data[from..from + len]);
            page.known[offset..offset + len].fill(true);
            page.touched = page.touched.max(by);
        }
    }

    /// Notes that a packet has told what is there.
    pub(crate) fn touch(&mut self, addr: u64, len: usize, by: usize) {
        for (page, ..) in parts(addr, len) {
            let page = self.pages.entry(page).or_default();
            page.touched = page.touched.max(by);
        }
    }

    /// The last packet that touched any of this.
    pub(crate) fn touched(&self, addr: u64, len: usize) -> usize {
        let pages = parts(addr, len).filter_map(|(page, ..)| self.pages.get(&page));
        pages.map(|page| page.touched).max().unwrap_or(0)
    }

    /// Says that these bytes will be written, whatever was there.
    fn mark(&mut self, addr: u64, len: usize) {
        for (page, offset, _, len) in parts(addr, len) {
            self.pages.entry(page).or_default().known[offset..offset + len].fill(true);
        }
    }

    /// Which of these bytes were not known so far; now they are.
    fn learn(&mut self, addr: u64, len: usize) -> Vec<bool> {
        let mut new = vec![false; len];
        for (page, offset, from, len) in parts(addr, len) {
            let page = self.pages.entry(page).or_default();
            for (known, new) in page.known[offset..offset + len].iter_mut().zip(&mut new[from..]) {
                *new = !std::mem::replace(known, true);
            }
        }
        new
    }

    /// Puts bytes there that were learned, where `new` says so.
    pub(crate) fn fill(&mut self, addr: u64, data: &[u8], new: &[bool]) {
        for (page, offset, from, len) in parts(addr, data.len()) {
            let page = self.pages.entry(page).or_default();
            for i in (0..len).filter(|i| new[from + i]) {
                page.bytes[offset + i] = data[from + i];
            }
        }
    }

    /// Forgets what is known of it.
    fn forget(&mut self) {
        self.pages.clear();
    }
}

/// What a key opens.
#[derive(Clone, Debug)]
pub(crate) struct Key {
    pub(crate) first: u64,
    /// The last byte.
    pub(crate) last: u64,
    pub(crate) access: Access,
    /// A SEND invalidates it: it is that of a memory window of type 2.
    pub(crate) is_window: bool,
    /// The last request that it opened.
    pub(crate) last_use: usize,
    pub(crate) bytes: Bytes,
}

impl Key {
    /// Whether it would open so much.
    pub(crate) fn opens(&self, addr: u64, len: u64, access: Access) -> bool {
        let last = addr.saturating_add(len.saturating_sub(1));
        self.access.contains(access) && addr >= self.first && last <= self.last
    }
}

/// A stretch of memory that a request names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stretch {
    pub(crate) rkey: Rkey,
    pub(crate) addr: u64,
    pub(crate) len: u64,
}

/// The memory that a request begins to reach; `None` if it names none.
pub(crate) fn stretch(reth: Option<Reth>, atomic: Option<AtomicEth>) -> Option<Stretch> {
    match (reth, atomic) {
        (Some(Reth { va, rkey, len }), _) => Some(Stretch { rkey, addr: va, len: len.into() }),
        (_, Some(AtomicEth { va, rkey, .. })) => Some(Stretch { rkey, addr: va, len: 8 }),
        _ => None,
    }
}

/// The keys of a host and what they open.
pub(crate) type Keys = HashMap<Rkey, Key>;

/// What must have been in memory when a request came, as its answer tells.
#[derive(Clone, Debug)]
pub(crate) struct Fill {
    pub(crate) rkey: Rkey,
    pub(crate) addr: u64,
    pub(crate) data: Vec<u8>,
    /// Which of it.
    pub(crate) new: Vec<bool>,
}

/// By request.
pub(crate) type Fills = HashMap<usize, Vec<Fill>>;

/// What can be said of the memory of all responders before anything is replayed.
pub(crate) struct Beginnings<'a> {
    trace: &'a Trace,
    flows: &'a Flows,
    surveys: &'a [Survey],
    keys: HashMap<IpAddr, Keys>,
    fills: Fills,
    /// By survey: where each PSN was answered.
    answers: Vec<HashMap<Psn, Vec<usize>>>,
    /// How many answers may still be looked for: no capture is to keep us busy for ever.
    patience: usize,
}

/// The rest of a WRITE under way.
#[derive(Clone, Copy)]
struct Cursor {
    rkey: Rkey,
    addr: u64,
}

impl<'a> Beginnings<'a> {
    /// Learns from the whole trace.
    pub(crate) fn of(
        trace: &'a Trace,
        flows: &'a Flows,
        surveys: &'a [Survey],
    ) -> (HashMap<IpAddr, Keys>, Fills) {
        let answers = surveys.iter().map(|survey| {
            let mut by_psn: HashMap<Psn, Vec<usize>> = HashMap::new();
            for &i in survey.responses.iter().filter(|&&i| trace.packets[i].intact) {
                by_psn.entry(trace.packets[i].headers.bth.psn).or_default().push(i);
            }
            by_psn
        });
        let mut beginnings = Beginnings {
            trace,
            flows,
            surveys,
            keys: HashMap::new(),
            fills: HashMap::new(),
            answers: answers.collect(),
            patience: 1000 + 8 * trace.packets.len(),
        };
        beginnings.find_keys();
        beginnings.find_contents();
        let Beginnings { mut keys, fills, .. } = beginnings;
        for key in keys.values_mut().flat_map(Keys::values_mut) {
            key.bytes.forget();
        }
        (keys, fills)
    }

    /// Every request that names a key and is granted, in order, with its survey.
    fn granted(&self) -> Vec<(usize, usize)> {
        let mut granted = Vec::new();
        for (number, survey) in self.surveys.iter().enumerate() {
            let requests = &self.flows.flows[survey.direction.requests].packets;
            let requests = requests.iter().filter(|&&i| {
                self.trace.packets[i].is_request()
                    && self.trace.packets[i].intact
                    && survey.grants(i)
            });
            granted.extend(requests.map(|&i| (i, number)));
        }
        granted.sort_unstable();
        granted
    }

    fn find_keys(&mut self) {
        for (i, _) in self.granted() {
            let packet = &self.trace.packets[i];
            let keys = self.keys.entry(packet.outer.flow.dst).or_default();
            let new = |first, last| Key {
                first,
                last,
                access: Access::empty(),
                is_window: false,
                last_use: i,
                bytes: Bytes::default(),
            };
            if let Some(rkey) = packet.headers.ieth {
                let key = keys.entry(rkey).or_insert_with(|| new(0, 7));
                key.is_window = true;
                key.last_use = i;
            }
            let Some(Stretch { rkey, addr, len }) =
                stretch(packet.headers.reth, packet.headers.atomic)
            else {
                continue;
            };
            let Some(last) = len.checked_sub(1).and_then(|len| addr.checked_add(len)) else {
                continue;
            };
            let key = keys.entry(rkey).or_insert_with(|| new(addr, last));
            key.first = key.first.min(addr);
            key.last = key.last.max(last);
            key.access |= crate::survey::rights(packet);
            key.last_use = i;
        }
    }

    fn find_contents(&mut self) {
        let mut cursors: HashMap<usize, Cursor> = HashMap::new();
        for (i, survey) in self.granted() {
            let trace = self.trace;
            let packet = &trace.packets[i];
            let (headers, host) = (&packet.headers, packet.outer.flow.dst);
            if self.surveys[survey].start == Some(i) {
                // A program that has just made a connection has had its hands on its memory.
                let keys = self.keys.get_mut(&host).into_iter().flat_map(Keys::values_mut);
                keys.for_each(|key| key.bytes.forget());
            }
            match (headers.bth.opcode.operation(), headers.reth, headers.atomic) {
                (Operation::Write | Operation::WriteImm | Operation::AtomicWrite, reth, _) => {
                    if let Some(reth) = reth {
                        cursors.insert(survey, Cursor { rkey: reth.rkey, addr: reth.va });
                    }
                    let Some(cursor) = cursors.get_mut(&survey) else { continue };
                    let Cursor { rkey, addr } = *cursor;
                    cursor.addr = addr.wrapping_add(packet.payload.len() as u64);
                    if let Some(bytes) = self.bytes(host, rkey) {
                        bytes.mark(addr, packet.payload.len());
                    }
                }
                (Operation::ReadRequest, Some(reth), _) => self.learn_read(i, survey, &reth),
                (Operation::CompareSwap | Operation::FetchAdd, _, Some(atomic)) => {
                    let Some(answer) = self.answer(survey, headers.bth.psn, i) else { continue };
                    let Some(found) = trace.packets[answer].headers.atomic_ack else { continue };
                    self.learn(i, host, atomic.rkey, atomic.va, &found.original.to_ne_bytes());
                }
                _ => {}
            }
        }
    }

    /// What a READ brought was there before, unless it was written.
    fn learn_read(&mut self, request: usize, survey: usize, reth: &Reth) {
        /// So many answers one after the other that the capture does not have end the search.
        const MISSING: u32 = 64;
        let packet = &self.trace.packets[request];
        let mtu = self.surveys[survey].mtu.bytes() as u64;
        let count = u64::from(reth.len).div_ceil(mtu).max(1) as u32;
        let mut missing = 0;
        for number in 0..count {
            if missing == MISSING || self.patience == 0 {
                return;
            }
            self.patience -= 1;
            let trace = self.trace;
            let psn = packet.headers.bth.psn + number;
            let answer = self.answer(survey, psn, request).map(|answer| &trace.packets[answer]);
            let Some(answer) = answer
                .filter(|answer| answer.headers.bth.opcode.operation() == Operation::ReadResponse)
            else {
                missing += 1;
                continue;
            };
            missing = 0;
            let addr = reth.va.wrapping_add(u64::from(number) * mtu);
            self.learn(request, packet.outer.flow.dst, reth.rkey, addr, &answer.payload);
        }
    }

    /// An answer to a request brought this.
    fn learn(&mut self, request: usize, host: IpAddr, rkey: Rkey, addr: u64, data: &[u8]) {
        let Some(bytes) = self.bytes(host, rkey) else { return };
        let new = bytes.learn(addr, data.len());
        if new.contains(&true) {
            let fill = Fill { rkey, addr, data: data.to_vec(), new };
            self.fills.entry(request).or_default().push(fill);
        }
    }

    /// The first answer to a PSN behind a packet.
    fn answer(&self, survey: usize, psn: Psn, behind: usize) -> Option<usize> {
        let answers = self.answers[survey].get(&psn)?;
        answers.get(answers.partition_point(|&i| i < behind)).copied()
    }

    fn bytes(&mut self, host: IpAddr, rkey: Rkey) -> Option<&mut Bytes> {
        Some(&mut self.keys.get_mut(&host)?.get_mut(&rkey)?.bytes)
    }
}
