//! What happened to the QPs of slots that have ended.
//!
//! The file that a slot writes is read when it ends, and what was in it is kept as it was written,
//! of each user so much at most. A worker, and a program that runs its slot, may write what they
//! like; they speak for their own user alone, and only of QPs of their slot.

mod saved;

pub(crate) use saved::SavedHistories;

use crate::limits::{MAX_KEPT_BYTES, MAX_KEPT_HISTORIES, MAX_KEPT_USERS};
use crate::log::SLOT;
use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use urxe_shm::control::{
    Cursor, Happening, HistoryEntry, HistoryPage, HistorySubject, QpHistory, decode, encode,
};
use urxe_slot::history_file::{self, HistoriesRead, WrittenHistory};
use urxe_slot::link::Viewer;
use urxe_slot::pages::{HISTORIES_PER_PAGE, HISTORY_LEN, behind};
use urxe_types::{Qpn, SlotId, Traffic};

/// How a slot has ended, as a sentence without its end, once that is known.
pub(super) type HowEnded = Arc<OnceLock<String>>;

/// What is said where it is not known.
const SOMEHOW: &str = "the part of the daemon that served it has ended";

/// A slot that ends.
pub(super) struct EndOfSlot {
    pub(super) slot: usize,
    pub(super) at: Instant,
    pub(super) how: HowEnded,
    /// It was not to: QPs that were there have ended with it.
    pub(super) is_failure: bool,
    /// Whose all of its QPs are; `None`: what it says of that is believed.
    pub(super) user: Option<u32>,
}

/// The QPs of slots that have ended.
#[derive(Default)]
pub(super) struct KeptHistories {
    of_users: BTreeMap<u32, VecDeque<Kept>>,
    /// Of the one that was kept last.
    last: u32,
}

/// One QP.
struct Kept {
    /// Rises from one to the next.
    number: u32,
    qpn: u32,
    device: usize,
    /// It failed, or ended with its slot.
    has_failed: bool,
    /// When the times in its history are right.
    since: Instant,
    /// It was there when its slot ended, and how that ended.
    ended_by: Option<HowEnded>,
    /// The traffic and the history, as a message.
    encoded: Box<[u8]>,
}

impl KeptHistories {
    /// Reads the file of a slot that ends, of a daemon with so many devices.
    pub(super) fn keep(&mut self, file: &File, devices: usize, end: &EndOfSlot) {
        self.keep_all(history_file::read(file, end.at), devices, end);
    }

    fn keep_all(&mut self, mut read: HistoriesRead, devices: usize, end: &EndOfSlot) {
        // Those to which something happened last come last, and are kept longest.
        read.histories.sort_by_key(|written| std::cmp::Reverse(newest(written)));
        let mut left_out = read.damaged;
        for written in read.histories {
            let slot = SlotId::named_by(Qpn::new(written.history.qpn)).index();
            // HISTORY-017
            let is_own = slot == end.slot && written.device < devices;
            let kept = is_own.then(|| self.kept(written, end)).flatten();
            let Some((user, kept)) = kept else {
                left_out += 1;
                continue;
            };
            self.push(user, kept);
        }
        if left_out > 0 {
            let slot = end.slot;
            tracing::warn!(
                target: SLOT,
                slot,
                "of what happened to QPs of slot {slot}, which has ended, {left_out} histories \
                 were not whole, and are not kept"
            );
        }
    }

    fn kept(&mut self, written: WrittenHistory, end: &EndOfSlot) -> Option<(u32, Kept)> {
        let WrittenHistory { device, traffic, mut history, age } = written;
        history.uid = end.user.unwrap_or(history.uid);
        grow_older(&mut history, age);
        let was_there = history.gone.is_none();
        history.gone.get_or_insert_default();
        let ended_by = (was_there && end.is_failure).then(|| Arc::clone(&end.how));
        let is_failed = |entry: &HistoryEntry| matches!(entry.what, Happening::Failed { .. });
        let has_failed = ended_by.is_some() || history.entries.iter().any(is_failed);
        let (user, qpn) = (history.uid, history.qpn);
        let mut room = [0; HISTORY_LEN];
        let len = encode(&(traffic, history), &mut room).ok()?;
        let encoded = room.get(..len)?.into();
        self.last = self.last.wrapping_add(1);
        let (number, since) = (self.last, end.at);
        Some((user, Kept { number, qpn, device, has_failed, since, ended_by, encoded }))
    }

    /// Keeps one more, in the place of others where there is no room.
    fn push(&mut self, user: u32, kept: Kept) {
        // HISTORY-018
        if !self.of_users.contains_key(&user) && self.of_users.len() >= MAX_KEPT_USERS {
            let newest = |kept: &VecDeque<Kept>| kept.back().map(|kept| kept.number);
            let first = self.of_users.iter().min_by_key(|(_, kept)| newest(kept));
            if let Some(user) = first.map(|(user, _)| *user) {
                self.of_users.remove(&user);
            }
        }
        let of_user = self.of_users.entry(user).or_default();
        of_user.push_back(kept);
        let bytes =
            |kept: &VecDeque<Kept>| kept.iter().map(|kept| kept.encoded.len()).sum::<usize>();
        while of_user.len() > MAX_KEPT_HISTORIES || bytes(of_user) > MAX_KEPT_BYTES {
            let first = of_user.iter().position(|kept| !kept.has_failed).unwrap_or(0);
            of_user.remove(first);
        }
    }

    /// A page of those of a device that may be seen, behind one of them.
    pub(super) fn page(
        &self,
        now: Instant,
        viewer: Viewer,
        device: usize,
        of: HistorySubject,
        after: Option<u32>,
    ) -> HistoryPage {
        let is_meant = |kept: &&Kept| {
            let is_of_subject = match of {
                HistorySubject::Qp(qpn) => kept.qpn == qpn,
                HistorySubject::Failed => kept.has_failed,
            };
            is_of_subject && kept.device == device && after.is_none_or(|after| kept.number > after)
        };
        // HISTORY-013
        let of_users = self.of_users.iter().filter(|(user, _)| viewer.may_see(**user));
        let mut found: Vec<&Kept> = of_users.flat_map(|(_, kept)| kept).filter(is_meant).collect();
        found.sort_by_key(|kept| kept.number);
        let more = found.len() > HISTORIES_PER_PAGE;
        found.truncate(HISTORIES_PER_PAGE);
        let next = found.last().filter(|_| more).map(|last| behind(0, last.number));
        // What is behind them is in slots.
        let next = next.or(Some(Cursor { slot: 1, after: None }));
        HistoryPage {
            histories: found.into_iter().filter_map(|kept| kept.shown(now)).collect(),
            next,
        }
    }
}

impl Kept {
    fn shown(&self, now: Instant) -> Option<QpHistory> {
        // It is as we wrote it.
        let (traffic, mut history): (Traffic, QpHistory) = decode(&self.encoded).ok()?;
        if let Some(how) = &self.ended_by {
            let how = how.get().map_or(SOMEHOW, String::as_str);
            history.entries.push(HistoryEntry {
                at: Duration::ZERO,
                span: Duration::ZERO,
                times: 1,
                what: Happening::SlotEnded(how.to_owned()),
                traffic,
            });
            history.reason.get_or_insert_with(|| {
                let (first, rest) = how.split_at(how.chars().next().map_or(0, char::len_utf8));
                let by_whom = match how.ends_with("SIGKILL") {
                    true => " If nobody meant to, the kernel did for want of memory: see dmesg.",
                    false => "",
                };
                format!(
                    "{}{rest}.{by_whom} The QP ended with it, and its program has lost its \
                     device; programs that begin now are served again.",
                    first.to_uppercase()
                )
            });
        }
        grow_older(&mut history, now.saturating_duration_since(self.since));
        Some(history)
    }
}

/// How long ago the newest of what happened was.
fn newest(written: &WrittenHistory) -> Duration {
    let last = written.history.entries.last().map(|entry| entry.at);
    last.unwrap_or(Duration::MAX).saturating_add(written.age)
}

/// Lets time pass since a history was told.
fn grow_older(history: &mut QpHistory, by: Duration) {
    let QpHistory { gone, heard, entries, failed, .. } = history;
    let times = entries.iter_mut().map(|entry| &mut entry.at);
    let failed = failed.iter_mut().map(|failed| &mut failed.at);
    for time in times.chain(failed).chain(gone.as_mut()).chain(heard.as_mut()) {
        *time = time.saturating_add(by);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use urxe_types::{QpAttr, QpState, QpType, SlotCount};

    const SLOT: usize = 5;
    const SECOND: Duration = Duration::from_secs(1);

    fn qpn(slot: usize, number: u32) -> u32 {
        let slot = SlotCount::MAX.slot(slot).unwrap();
        (0..)
            .map(Qpn::new)
            .filter(|qpn| SlotId::named_by(*qpn) == slot.id())
            .nth(number as usize)
            .unwrap()
            .get()
    }

    fn written(qpn: u32, uid: u32) -> WrittenHistory {
        let history = QpHistory {
            qpn,
            program: "test[7]".into(),
            uid,
            qp_type: QpType::Rc,
            state: QpState::Rts,
            attr: QpAttr::default(),
            gone: None,
            heard: Some(SECOND),
            entries: Vec::new(),
            left_out: 0,
            failed: None,
            reason: None,
            counters: Vec::new(),
        };
        WrittenHistory { device: 0, traffic: Traffic::default(), history, age: 2 * SECOND }
    }

    fn end(at: Instant, user: Option<u32>) -> EndOfSlot {
        EndOfSlot { slot: SLOT, at, how: HowEnded::default(), is_failure: true, user }
    }

    fn keep(kept: &mut KeptHistories, histories: Vec<WrittenHistory>, end: &EndOfSlot) {
        kept.keep_all(HistoriesRead { histories, damaged: 0 }, 1, end);
    }

    /// All pages.
    fn all(kept: &KeptHistories, now: Instant, of: HistorySubject) -> Vec<QpHistory> {
        let (mut all, mut after) = (Vec::new(), None);
        loop {
            let page = kept.page(now, Viewer::Everybody, 0, of, after);
            all.extend(page.histories);
            match page.next {
                Some(Cursor { slot: 0, after: last }) => after = last,
                _ => return all,
            }
        }
    }

    #[test]
    fn a_qp_that_was_there_ended_with_its_slot_and_one_that_was_gone_did_not() {
        let (mut kept, now) = (KeptHistories::default(), Instant::now());
        let (there, gone) = (qpn(SLOT, 1), qpn(SLOT, 2));
        let mut that_is_gone = written(gone, 7);
        that_is_gone.history.gone = Some(SECOND);
        let end = end(now, None);
        keep(&mut kept, vec![written(there, 7), that_is_gone], &end);
        let told = |of| all(&kept, now + SECOND, of);
        let [history] = &told(HistorySubject::Qp(gone))[..] else { panic!() };
        assert_eq!((history.gone, history.heard), (Some(4 * SECOND), Some(4 * SECOND)));
        assert_eq!((&history.entries[..], &history.reason), (&[][..], &None));
        let [history] = &told(HistorySubject::Failed)[..] else { panic!() };
        assert_eq!((history.qpn, history.gone), (there, Some(SECOND)));
        assert_eq!(history.entries[0].what, Happening::SlotEnded(SOMEHOW.into()));
        end.how.set("worker 9 of user 7 was killed by SIGKILL".into()).unwrap();
        let [history] = &told(HistorySubject::Failed)[..] else { panic!() };
        let reason = history.reason.as_deref().unwrap();
        assert!(reason.starts_with("Worker 9 of user 7 was killed by SIGKILL. If"), "{reason}");
    }

    #[test]
    fn a_slot_speaks_for_its_own_qps_and_its_own_user_alone() {
        let (mut kept, now) = (KeptHistories::default(), Instant::now());
        let of_no_device = WrittenHistory { device: 1, ..written(qpn(SLOT, 2), 7) };
        let histories = vec![written(qpn(SLOT, 1), 0), written(qpn(SLOT + 1, 1), 0), of_no_device];
        keep(&mut kept, histories, &end(now, Some(7)));
        let told = all(&kept, now, HistorySubject::Failed);
        let told: Vec<_> = told.iter().map(|history| (history.qpn, history.uid)).collect();
        assert_eq!(told, [(qpn(SLOT, 1), 7)]);
        let page = |viewer| kept.page(now, viewer, 0, HistorySubject::Failed, None).histories.len();
        assert_eq!([Viewer::User(7), Viewer::User(0)].map(page), [1, 0]);
    }

    #[test]
    fn histories_kept_of_a_user_are_bounded_and_failures_are_kept_longest() {
        let (mut kept, now) = (KeptHistories::default(), Instant::now());
        let end = end(now, Some(7));
        keep(&mut kept, vec![written(qpn(SLOT, 0), 7)], &end);
        let gone = |number| {
            let mut written = written(qpn(SLOT, number), 7);
            written.history.gone = Some(SECOND);
            written
        };
        for slot_end in 0..3 {
            let histories = (0..200).map(|number| gone(slot_end * 200 + number)).collect();
            keep(&mut kept, histories, &end);
        }
        assert_eq!(kept.of_users[&7].len(), MAX_KEPT_HISTORIES);
        assert_eq!(all(&kept, now, HistorySubject::Qp(qpn(SLOT, 0))).len(), 1, "it failed");
        assert_eq!(all(&kept, now, HistorySubject::Qp(qpn(SLOT, 1))).len(), 0);
        assert_eq!(all(&kept, now, HistorySubject::Qp(qpn(SLOT, 599))).len(), 1);
        let mut long = gone(1);
        long.history.reason = Some("r".repeat(4096));
        let histories =
            (0..200).map(|_| WrittenHistory { history: long.history.clone(), ..gone(1) });
        keep(&mut kept, histories.collect(), &end);
        let bytes: usize = kept.of_users[&7].iter().map(|kept| kept.encoded.len()).sum();
        assert!(bytes <= MAX_KEPT_BYTES);
        for user in 100..100 + MAX_KEPT_USERS as u32 {
            keep(
                &mut kept,
                vec![written(qpn(SLOT, 1), user)],
                &EndOfSlot { user: Some(user), ..self::end(now, None) },
            );
        }
        assert_eq!(kept.of_users.len(), MAX_KEPT_USERS);
        assert!(!kept.of_users.contains_key(&7), "that of which nothing new came for longest");
    }
}
