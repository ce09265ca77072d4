//! What programs ask about whole devices: put together from what the slots have.
//!
//! Slots are asked one after the other, each for what would be the next page if it were alone,
//! until there is something to answer. One that does not answer in time, or is gone, is left out.

use super::slots::Slots;
use super::{BrokerCtx, sessions::Session};
use crate::limits::ANSWER_TIMEOUT;
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::Instant;
use urxe_engine::Counter;
use urxe_nic::HostCounters;
use urxe_shm::control::{
    ControlError, CounterInfo, Cursor, HistoryPage, HistorySubject, MAX_MESSAGE, PathPage, Reply,
    Request, Resource, ResourceKind, ResourcePage, StatsPage, encode,
};
use urxe_slot::link::{Counts, Found, Subject, ToSlot, Viewer};
use urxe_slot::pages::{AROUND_PAGE, NUMBER_LEN, QP_LEN, page};
use urxe_slot::refusal::refuse;

/// A question of a program that is being answered.
pub(crate) struct Gathering {
    /// The session that waits, and what it asked.
    session: u64,
    request: Request,
    device: usize,
    viewer: Viewer,
    what: What,
    /// The slot that is being asked, and until when.
    slot: usize,
    until: Instant,
}

/// What is asked for, and what there is of it already.
enum What {
    Resources(ResourceKind),
    Paths,
    Histories(HistorySubject),
    /// The counters of all slots, and of the broker's own in the beginning.
    Counts(Counts),
    /// QPs, on a page that may have begun with the counters.
    Qps(StatsPage),
    /// That all slots have taken what was sent to them before, to reply this.
    Taken(Reply),
}

/// All questions that are being answered, by the numbers under which slots are asked.
#[derive(Default)]
pub(crate) struct Gatherings {
    last: u64,
    open: BTreeMap<u64, Gathering>,
}

/// Questions that are being answered while a state is written.
#[derive(Serialize, Deserialize)]
pub(crate) struct SavedGatherings {
    pub(crate) last: u64,
    /// Of which session, and what it asked.
    pub(crate) open: Vec<(u64, Request)>,
}

/// An answer that is complete: for which session, and what it is.
pub(crate) type Complete = (u64, Reply);

impl Gatherings {
    /// Begins to answer a question about a device. Returns the answer if it is there already.
    pub(crate) fn begin(
        &mut self,
        session: &Session,
        ctx: &BrokerCtx,
        slots: &mut Slots,
        request: &Request,
    ) -> Result<Option<Complete>, ControlError> {
        let viewer = session.viewer();
        let (device, from, what) = match request {
            Request::Resources { device, kind: ResourceKind::CmId, from } => {
                let device = find_device(ctx, device)?;
                let page = cm_ids(ctx, device, viewer, *from);
                return Ok(Some((session.number, Reply::Resources(page))));
            }
            Request::Resources { device, kind, from } => (device, from, What::Resources(*kind)),
            Request::Paths { device, from } => (device, from, What::Paths),
            Request::Histories { device, of, from } => (device, from, What::Histories(*of)),
            Request::Stats { device, from } if *from == Cursor::default() => {
                let own = &ctx.devices[find_device(ctx, device)?];
                (device, from, What::Counts(own.counts_with_ended(&ctx.counters)))
            }
            Request::Stats { device, from } => (device, from, What::Qps(StatsPage::default())),
            _ => return Err(refuse(Errno::PROTO, "a request that is not the broker's came there")),
        };
        let device = find_device(ctx, device)?;
        // CONG-100: a path is nobody's, and tells who talks to whom.
        if matches!(what, What::Paths) && viewer != Viewer::Everybody {
            return Ok(Some((session.number, Reply::Paths(PathPage::default()))));
        }
        if let What::Histories(of) = what
            && from.slot == 0
        {
            let page = slots.kept_histories().page(ctx.now, viewer, device, of, from.after);
            if !page.histories.is_empty() {
                return Ok(Some((session.number, Reply::Histories(page))));
            }
        }
        let (session, until) = (session.number, ctx.now);
        let request = request.clone();
        let gathering = Gathering { session, request, device, viewer, what, slot: 0, until };
        Ok(self.ask(gathering, ctx, slots, *from))
    }

    /// Answers a request once all slots have taken what was sent to them because of it. Returns the
    /// answer if none runs.
    pub(crate) fn when_taken(
        &mut self,
        session: &Session,
        ctx: &BrokerCtx,
        slots: &mut Slots,
        request: Request,
        reply: Reply,
    ) -> Option<Complete> {
        let (viewer, what) = (session.viewer(), What::Taken(reply));
        let (session, until) = (session.number, ctx.now);
        let gathering = Gathering { session, request, device: 0, viewer, what, slot: 0, until };
        self.ask(gathering, ctx, slots, Cursor::default())
    }

    /// Takes in what a slot has found.
    pub(crate) fn found(
        &mut self,
        ctx: &BrokerCtx,
        slots: &mut Slots,
        slot: usize,
        number: u64,
        found: Found,
    ) -> Option<Complete> {
        // It may come too late.
        if self.open.get(&number)?.slot != slot {
            return None;
        }
        let gathering = self.open.remove(&number)?;
        let (session, reply) = self.go_on(gathering, ctx, slots, Some(found))?;
        // OWN-004: it would not fit into the message to who has asked.
        let fits = encode(&reply, &mut [0; MAX_MESSAGE - AROUND_PAGE]).is_ok();
        let refused = || {
            let sentence = format!("slot {slot} answers with more than a message can hold");
            Reply::Error(refuse(Errno::PROTO, sentence))
        };
        Some((session, if fits { reply } else { refused() }))
    }

    /// Leaves out the slots that have not answered in time, or are gone.
    pub(crate) fn give_up(&mut self, ctx: &BrokerCtx, slots: &mut Slots) -> Option<Complete> {
        let is_over =
            |gathering: &Gathering| gathering.until <= ctx.now || !slots.is_running(gathering.slot);
        let over = self.open.iter().find(|(_, gathering)| is_over(gathering));
        let number = *over?.0;
        let gathering = self.open.remove(&number)?;
        self.go_on(gathering, ctx, slots, None)
    }

    /// What is to be asked again by a process that takes the place of this one, and the last number
    /// under which slots were asked here.
    pub(crate) fn save(&self) -> SavedGatherings {
        let open = self.open.values().map(|it| (it.session, it.request.clone()));
        SavedGatherings { last: self.last, open: open.collect() }
    }

    /// Goes on behind the last number of another process, so that what answers that is no answer
    /// here.
    pub(crate) fn behind(last: u64) -> Gatherings {
        Gatherings { last, open: BTreeMap::new() }
    }

    /// A number for a question to a slot, which no other has.
    pub(crate) fn next_number(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    /// When the first slot has had enough time.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.open.values().map(|gathering| gathering.until).min()
    }

    /// Asks the first slot from a cursor on that runs. Returns the answer if there is none.
    fn ask(
        &mut self,
        mut gathering: Gathering,
        ctx: &BrokerCtx,
        slots: &mut Slots,
        from: Cursor,
    ) -> Option<Complete> {
        let first = usize::from(from.slot).max(1);
        let Some(slot) = (first..slots.end()).find(|&slot| slots.is_answering(ctx.now, slot))
        else {
            return self.after_last(gathering, ctx, slots);
        };
        let after = from.after.filter(|_| usize::from(from.slot) == slot);
        let subject = match &gathering.what {
            What::Resources(kind) => Subject::Resources { kind: *kind, after },
            What::Paths => Subject::Paths { after },
            &What::Histories(of) => Subject::Histories { of, after },
            // Whatever it answers comes after what it was sent before.
            What::Counts(_) | What::Taken(_) => Subject::Counts,
            What::Qps(head) => Subject::Qps { after, most: room_for_qps(head) },
        };
        let (device, viewer) = (gathering.device, gathering.viewer);
        (gathering.slot, gathering.until) = (slot, ctx.now + ANSWER_TIMEOUT);
        let number = self.next_number();
        self.open.insert(number, gathering);
        let question = ToSlot::Question { number, device, viewer, subject };
        slots.ask(ctx.now, slot, question);
        None
    }

    /// A slot has answered, or is left out: answers the program, or asks the next slot.
    fn go_on(
        &mut self,
        gathering: Gathering,
        ctx: &BrokerCtx,
        slots: &mut Slots,
        found: Option<Found>,
    ) -> Option<Complete> {
        let Gathering { session, request, device, viewer, what, slot, until } = gathering;
        let next_slot = slots.end() > slot + 1;
        let next_slot = next_slot.then_some(Cursor { slot: slot as u8 + 1, after: None });
        let what = match (what, found) {
            (What::Resources(_), Some(Found::Resources(page))) if !page.resources.is_empty() => {
                let next = page.next.or(next_slot);
                return Some((session, Reply::Resources(ResourcePage { next, ..page })));
            }
            (What::Paths, Some(Found::Paths(page))) if !page.paths.is_empty() => {
                let next = page.next.or(next_slot);
                return Some((session, Reply::Paths(PathPage { next, ..page })));
            }
            (What::Histories(_), Some(Found::Histories(page))) if !page.histories.is_empty() => {
                let next = page.next.or(next_slot);
                return Some((session, Reply::Histories(HistoryPage { next, ..page })));
            }
            (What::Qps(head), Some(Found::Qps { qps, next })) if !qps.is_empty() => {
                let next = next.or(next_slot);
                return Some((session, Reply::Stats(StatsPage { qps, next, ..head })));
            }
            (What::Counts(sums), Some(Found::Counts(counts))) => What::Counts(sums + counts),
            (what, _) => what,
        };
        let gathering = Gathering { session, request, device, viewer, what, slot, until };
        match next_slot {
            Some(next) => self.ask(gathering, ctx, slots, next),
            None => self.after_last(gathering, ctx, slots),
        }
    }

    /// All slots have been asked.
    fn after_last(
        &mut self,
        gathering: Gathering,
        ctx: &BrokerCtx,
        slots: &mut Slots,
    ) -> Option<Complete> {
        let session = gathering.session;
        Some(match gathering.what {
            What::Resources(_) => (session, Reply::Resources(ResourcePage::default())),
            What::Paths => (session, Reply::Paths(PathPage::default())),
            What::Histories(_) => (session, Reply::Histories(HistoryPage::default())),
            What::Qps(head) => (session, Reply::Stats(head)),
            What::Taken(reply) => (session, reply),
            // The QPs come behind, on the same page if there is room.
            What::Counts(sums) => {
                let what = What::Qps(first_page(ctx, gathering.device, &sums));
                return self.ask(Gathering { what, ..gathering }, ctx, slots, Cursor::default());
            }
        })
    }
}

/// The number of the device with a name.
fn find_device(ctx: &BrokerCtx, name: &str) -> Result<usize, ControlError> {
    let names = ctx.devices.iter().map(|device| device.name.as_str());
    urxe_slot::refusal::find_device(names, name)
}

/// The ids of the connection manager, which are all the broker's.
fn cm_ids(ctx: &BrokerCtx, device: usize, viewer: Viewer, from: Cursor) -> ResourcePage {
    if from.slot > 0 {
        return ResourcePage::default();
    }
    let ids = ctx.cm.listed(device, from.after);
    let ids = ids.filter(|(_, program, _)| viewer.may_see(program.uid));
    page(
        0,
        ids.map(|(number, program, detail)| {
            let (name, uid) = (program.name.to_string(), program.uid);
            (number, Resource { number, program: name, uid, pd: 0, detail })
        }),
    )
}

/// How many QPs a page of statistics has room for.
fn room_for_qps(head: &StatsPage) -> usize {
    (MAX_MESSAGE - head_len(head)) / (QP_LEN + Counter::ALL.len() * NUMBER_LEN)
}

/// Bytes that a page's device counters and QP counter names take at most, and the rest around
/// them.
fn head_len(page: &StatsPage) -> usize {
    let infos = page.device.iter().map(|(info, _)| info).chain(&page.qp_counters);
    let texts: usize = infos.map(|info| info.name.len() + info.meaning.len() + 6).sum();
    texts + page.device.len() * NUMBER_LEN + AROUND_PAGE
}

/// The counters of a device: what all slots have counted together, and what the broker has.
fn first_page(ctx: &BrokerCtx, device: usize, sums: &Counts) -> StatsPage {
    let device = &ctx.devices[device];
    let own = device.nic.device().counters().iter();
    let engine = own.zip(&sums.engine).map(|((name, _, meaning), sum)| (name, *sum, meaning));
    let port = device.nic.port_counters().iter().zip(&sums.port);
    let port = port.map(|((name, _, meaning), sum)| (name, *sum, meaning));
    let nic = HostCounters::default().iter().zip(&sums.nic);
    let nic = nic.map(|((name, _, meaning), sum)| (name, *sum, meaning));
    let daemon = ctx.counters.iter().zip(&sums.daemon);
    let daemon = daemon.map(|((name, _, meaning), sum)| (name, *sum, meaning));
    let whole = device.counters();
    let all = engine
        .chain(device.cm.counters().iter())
        .chain(port)
        .chain(nic)
        .chain(whole.iter())
        .chain(ctx.cm.counters.iter())
        .chain(daemon);
    StatsPage {
        device: all.map(|(name, value, meaning)| (info(name, meaning), value)).collect(),
        qp_counters: Counter::ALL.iter().map(|c| info(c.name(), c.meaning())).collect(),
        ..StatsPage::default()
    }
}

fn info(name: &str, meaning: &str) -> CounterInfo {
    CounterInfo { name: name.to_owned(), meaning: meaning.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use urxe_shm::control::{QpStats, encode};
    use urxe_slot::limits::MAX_PROGRAM_NAME;
    use urxe_slot::link::ToBroker;
    use urxe_types::QpState;

    #[test]
    fn a_page_filled_to_the_brim_fits_into_a_message() {
        let next = Some(Cursor { slot: u8::MAX, after: Some(u32::MAX) });
        let mut page = StatsPage {
            device: vec![(info(&"n".repeat(40), &"m".repeat(150)), u64::MAX); 180],
            qp_counters: vec![info(&"n".repeat(40), &"m".repeat(150)); Counter::ALL.len()],
            next,
            qps: Vec::new(),
        };
        let qp = QpStats {
            qpn: u32::MAX,
            state: QpState::Err,
            program: "p".repeat(MAX_PROGRAM_NAME + "[4294967295]".len()),
            values: vec![u64::MAX; Counter::ALL.len()],
        };
        let room = room_for_qps(&page);
        assert!(room >= 10, "the first page holds {room} QPs");
        page.qps = vec![qp.clone(); room];
        let answer = ToSlot::Answer { session: u64::MAX, answer: Ok(Reply::Stats(page)) };
        encode(&answer, &mut vec![0; MAX_MESSAGE]).unwrap();
        let qps = vec![qp; room_for_qps(&StatsPage::default())];
        let found = ToBroker::Found { number: u64::MAX, found: Found::Qps { qps, next } };
        encode(&found, &mut vec![0; MAX_MESSAGE]).unwrap();
    }
}
