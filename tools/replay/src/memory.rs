//! The responder's memory: the ranges of its keys, and its content that no request has written.

use crate::flow_table::FlowTable;
use crate::survey::Survey;
use crate::trace::Trace;
use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use urxe_types::{Access, Psn, Rkey};
use urxe_wire::{AtomicEth, Body, Request, Response, Reth};

/// Small, so that a capture with scattered addresses costs little.
const PAGE: u64 = 256;

/// Bytes by address; only pages that a packet named exist.
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
    /// Reads; 0 where nothing is known.
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

    /// Writes on behalf of this packet.
    pub(crate) fn write(&mut self, addr: u64, data: &[u8], by: usize) {
        for (page, offset, from, len) in parts(addr, data.len()) {
            let page = self.pages.entry(page).or_default();
            page.bytes[offset..offset + len].copy_from_slice(&data[from..from + len]);
            page.known[offset..offset + len].fill(true);
            page.touched = page.touched.max(by);
        }
    }

    /// Notes that a packet has shown the content.
    pub(crate) fn touch(&mut self, addr: u64, len: usize, by: usize) {
        for (page, ..) in parts(addr, len) {
            let page = self.pages.entry(page).or_default();
            page.touched = page.touched.max(by);
        }
    }

    /// The last packet that touched any of this range.
    pub(crate) fn touched(&self, addr: u64, len: usize) -> usize {
        let pages = parts(addr, len).filter_map(|(page, ..)| self.pages.get(&page));
        pages.map(|page| page.touched).max().unwrap_or(0)
    }

    /// Marks bytes as known: a request writes them.
    fn mark(&mut self, addr: u64, len: usize) {
        for (page, offset, _, len) in parts(addr, len) {
            self.pages.entry(page).or_default().known[offset..offset + len].fill(true);
        }
    }

    /// Marks bytes as known, and returns which of them were not before.
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

    /// Writes the bytes that `new` selects.
    pub(crate) fn fill(&mut self, addr: u64, data: &[u8], new: &[bool]) {
        for (page, offset, from, len) in parts(addr, data.len()) {
            let page = self.pages.entry(page).or_default();
            for i in (0..len).filter(|i| new[from + i]) {
                page.bytes[offset + i] = data[from + i];
            }
        }
    }

    /// Forgets all content.
    fn forget(&mut self) {
        self.pages.clear();
    }
}

/// The memory that a key grants access to.
#[derive(Clone, Debug)]
pub(crate) struct Key {
    pub(crate) first: u64,
    /// The last byte.
    pub(crate) last: u64,
    pub(crate) access: Access,
    /// A SEND invalidates it, so it belongs to a memory window of type 2.
    pub(crate) is_window: bool,
    /// The last request that used it.
    pub(crate) last_use: usize,
    pub(crate) bytes: Bytes,
}

impl Key {
    /// Whether it grants this access to the whole range.
    pub(crate) fn grants(&self, addr: u64, len: u64, access: Access) -> bool {
        let last = addr.saturating_add(len.saturating_sub(1));
        self.access.contains(access) && addr >= self.first && last <= self.last
    }
}

/// A range of memory that a request names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MemoryRange {
    pub(crate) rkey: Rkey,
    pub(crate) addr: u64,
    pub(crate) len: u64,
}

/// The memory that a request names, if it names any.
pub(crate) fn named_range(request: &Request) -> Option<MemoryRange> {
    match *request {
        Request::CompareSwap(AtomicEth { va, rkey, .. })
        | Request::FetchAdd(AtomicEth { va, rkey, .. }) => {
            Some(MemoryRange { rkey, addr: va, len: 8 })
        }
        _ => {
            let &Reth { va, rkey, len } = request.reth()?;
            Some(MemoryRange { rkey, addr: va, len: len.into() })
        }
    }
}

/// The keys of a host.
pub(crate) type Keys = HashMap<Rkey, Key>;

/// Content that memory must have had when a request came, as its response shows.
#[derive(Clone, Debug)]
pub(crate) struct Fill {
    pub(crate) rkey: Rkey,
    pub(crate) addr: u64,
    pub(crate) data: Vec<u8>,
    /// Which bytes of it were not known before.
    pub(crate) new: Vec<bool>,
}

/// Content by the request that read it.
pub(crate) type Fills = HashMap<usize, Vec<Fill>>;

/// Finds the keys and the initial content of all responders' memory before anything is replayed.
pub(crate) struct InitialMemory<'a> {
    trace: &'a Trace,
    flows: &'a FlowTable,
    surveys: &'a [Survey],
    keys: HashMap<IpAddr, Keys>,
    fills: Fills,
    /// By survey: the responses of each PSN.
    responses: Vec<HashMap<Psn, Vec<usize>>>,
    /// How many more responses are looked up: bounds the work for a hostile capture.
    lookups_left: usize,
}

/// Where the next packet of a WRITE message goes.
#[derive(Clone, Copy)]
struct Cursor {
    rkey: Rkey,
    addr: u64,
}

impl<'a> InitialMemory<'a> {
    /// Analyses the whole trace.
    pub(crate) fn of(
        trace: &'a Trace,
        flows: &'a FlowTable,
        surveys: &'a [Survey],
    ) -> (HashMap<IpAddr, Keys>, Fills) {
        let responses = surveys.iter().map(|survey| {
            let mut by_psn: HashMap<Psn, Vec<usize>> = HashMap::new();
            for &i in survey.responses.iter().filter(|&&i| trace.packets[i].intact) {
                by_psn.entry(trace.packets[i].headers.bth.psn).or_default().push(i);
            }
            by_psn
        });
        let mut initial = InitialMemory {
            trace,
            flows,
            surveys,
            keys: HashMap::new(),
            fills: HashMap::new(),
            responses: responses.collect(),
            lookups_left: 1000 + 8 * trace.packets.len(),
        };
        initial.find_keys();
        initial.find_contents();
        let InitialMemory { mut keys, fills, .. } = initial;
        for key in keys.values_mut().flat_map(Keys::values_mut) {
            key.bytes.forget();
        }
        (keys, fills)
    }

    /// Every request whose key must have granted it, in order, with its survey.
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
            let Some(request) = packet.request() else { continue };
            let keys = self.keys.entry(packet.outer.flow.dst).or_default();
            let new = |first, last| Key {
                first,
                last,
                access: Access::empty(),
                is_window: false,
                last_use: i,
                bytes: Bytes::default(),
            };
            if let Some(rkey) = request.invalidates() {
                let key = keys.entry(rkey).or_insert_with(|| new(0, 7));
                key.is_window = true;
                key.last_use = i;
            }
            let Some(MemoryRange { rkey, addr, len }) = named_range(&request) else { continue };
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
                // A program that connects may have changed its memory before.
                let keys = self.keys.get_mut(&host).into_iter().flat_map(Keys::values_mut);
                keys.for_each(|key| key.bytes.forget());
            }
            let Some(request) = packet.request() else { continue };
            match request {
                Request::Write(_) | Request::AtomicWrite(_) => {
                    if let Some(reth) = request.reth() {
                        cursors.insert(survey, Cursor { rkey: reth.rkey, addr: reth.va });
                    }
                    let Some(cursor) = cursors.get_mut(&survey) else { continue };
                    let Cursor { rkey, addr } = *cursor;
                    cursor.addr = addr.wrapping_add(packet.payload.len() as u64);
                    if let Some(bytes) = self.bytes(host, rkey) {
                        bytes.mark(addr, packet.payload.len());
                    }
                }
                Request::Read(reth) => self.learn_read(i, survey, &reth),
                Request::CompareSwap(atomic) | Request::FetchAdd(atomic) => {
                    let Some(response) = self.response(survey, headers.bth.psn, i) else {
                        continue;
                    };
                    let Body::RcResponse(Response::AtomicAck { original, .. }) =
                        trace.packets[response].headers.body
                    else {
                        continue;
                    };
                    self.learn(i, host, atomic.rkey, atomic.va, &original.to_ne_bytes());
                }
                Request::Send(_) | Request::Flush { .. } => {}
            }
        }
    }

    /// Takes what a READ returned as initial content, unless a request wrote it.
    fn learn_read(&mut self, request: usize, survey: usize, reth: &Reth) {
        /// The search ends after so many missing responses in a row.
        const MISSING: u32 = 64;
        let packet = &self.trace.packets[request];
        let mtu = self.surveys[survey].mtu.bytes() as u64;
        let count = u64::from(reth.len).div_ceil(mtu).max(1) as u32;
        let mut missing = 0;
        for number in 0..count {
            if missing == MISSING || self.lookups_left == 0 {
                return;
            }
            self.lookups_left -= 1;
            let trace = self.trace;
            let psn = packet.headers.bth.psn + number;
            let response =
                self.response(survey, psn, request).map(|response| &trace.packets[response]);
            let Some(response) = response.filter(|response| {
                matches!(response.headers.body, Body::RcResponse(response) if response.is_read())
            }) else {
                missing += 1;
                continue;
            };
            missing = 0;
            let addr = reth.va.wrapping_add(u64::from(number) * mtu);
            self.learn(request, packet.outer.flow.dst, reth.rkey, addr, &response.payload);
        }
    }

    /// Takes data of a response as initial content.
    fn learn(&mut self, request: usize, host: IpAddr, rkey: Rkey, addr: u64, data: &[u8]) {
        let Some(bytes) = self.bytes(host, rkey) else { return };
        let new = bytes.learn(addr, data.len());
        if new.contains(&true) {
            let fill = Fill { rkey, addr, data: data.to_vec(), new };
            self.fills.entry(request).or_default().push(fill);
        }
    }

    /// The first response to a PSN after a packet.
    fn response(&self, survey: usize, psn: Psn, after: usize) -> Option<usize> {
        let responses = self.responses[survey].get(&psn)?;
        responses.get(responses.partition_point(|&i| i < after)).copied()
    }

    fn bytes(&mut self, host: IpAddr, rkey: Rkey) -> Option<&mut Bytes> {
        Some(&mut self.keys.get_mut(&host)?.get_mut(&rkey)?.bytes)
    }
}
