//! The programs' queues: work requests and completions.

use std::collections::VecDeque;
use urxe_engine::Taken;
use urxe_types::{Completion, RecvWqe, SendOp, SendWqe, SendWr, Sge};

/// An entry of a queue.
#[derive(Clone, Debug)]
pub enum Entry<Wqe> {
    /// A work request.
    Good(Wqe),
    /// Something with this number that is no work request.
    Malformed(u64),
}

/// A signaled work request, with no other flag and no inline data.
pub fn send_wqe(wr_id: u64, op: SendOp, sges: Vec<Sge>) -> SendWqe {
    SendWqe { wr: SendWr { wr_id, op, signaled: true, ..SendWr::default() }, sges, inline: None }
}

/// A send queue with a bounded number of places.
#[derive(Debug)]
pub struct SendRing {
    places: usize,
    posted: VecDeque<Entry<SendWqe>>,
    /// Taken and not retired, oldest first.
    taken: VecDeque<TakenSend>,
    /// Retired last, with its completion still to come.
    uncompleted: Option<TakenSend>,
    broken: bool,
    /// The CQ has failed: completions do not arrive any longer.
    completions_lost: bool,
}

#[derive(Debug)]
struct TakenSend {
    wr_id: u64,
    /// Its completion has not come yet.
    owes_completion: bool,
}

impl SendRing {
    /// A ring of so many places.
    pub fn new(places: usize) -> SendRing {
        SendRing {
            places,
            posted: VecDeque::new(),
            taken: VecDeque::new(),
            uncompleted: None,
            broken: false,
            completions_lost: false,
        }
    }

    /// Work requests that can be posted now.
    pub fn room(&self) -> usize {
        self.places - self.posted.len() - self.taken.len()
    }

    /// Nothing is posted that was not retired.
    pub fn is_idle(&self) -> bool {
        let owes = self.uncompleted.as_ref().is_some_and(|send| send.owes_completion);
        self.posted.is_empty() && self.taken.is_empty() && (!owes || self.completions_lost)
    }

    /// Posts.
    ///
    /// # Panics
    /// If there is no room.
    pub fn post(&mut self, entry: Entry<SendWqe>) {
        assert!(self.room() > 0, "the program posts only where there is room");
        self.posted.push_back(entry);
    }

    /// The program overwrites the ring's cursors.
    pub fn break_cursors(&mut self) {
        self.broken = true;
    }

    /// The CQ has failed: from now on completions do not come.
    pub fn lose_completions(&mut self) {
        self.completions_lost = true;
    }

    /// The QP was reset: the ring is empty again.
    pub fn rewind(&mut self) {
        *self = SendRing::new(self.places);
    }

    /// The engine takes the next one.
    pub fn take(&mut self, wqe: &mut SendWqe) -> Taken {
        if self.broken {
            return Taken::Broken;
        }
        let (taken, owes_completion) = match self.posted.pop_front() {
            None => return Taken::Empty,
            Some(Entry::Good(posted)) => {
                let owes = posted.wr.signaled;
                wqe.clone_from(&posted);
                (Taken::Ready, owes)
            }
            Some(Entry::Malformed(wr_id)) => {
                wqe.wr.wr_id = wr_id;
                (Taken::Malformed, true)
            }
        };
        self.taken.push_back(TakenSend { wr_id: wqe.wr.wr_id, owes_completion });
        taken
    }

    /// The engine completes one.
    ///
    /// # Panics
    /// If it is not the one that was retired last: its place must be free by then.
    pub fn completed(&mut self, wr_id: u64) {
        let retired = self.uncompleted.take().map(|send| send.wr_id);
        assert_eq!(retired, Some(wr_id), "a completion of what was not just retired");
    }

    /// The engine retires the oldest.
    ///
    /// # Panics
    /// If none was taken, or the completion of the one before has not come and was due.
    pub fn retire(&mut self) {
        let retired = self.taken.pop_front().expect("only what was taken is retired");
        if let Some(before) = self.uncompleted.replace(retired) {
            let has_completed = !before.owes_completion || self.completions_lost;
            assert!(has_completed, "{:#x} was retired and never completed", before.wr_id);
        }
    }
}

/// A receive queue with a bounded number of places.
#[derive(Debug)]
pub struct RecvRing {
    places: usize,
    posted: VecDeque<Entry<RecvWqe>>,
    broken: bool,
}

impl RecvRing {
    /// A ring of so many places.
    pub fn new(places: usize) -> RecvRing {
        RecvRing { places, posted: VecDeque::new(), broken: false }
    }

    /// Work requests that can be posted now.
    pub fn room(&self) -> usize {
        self.places - self.posted.len()
    }

    /// Work requests posted and not taken.
    pub fn posted(&self) -> usize {
        self.posted.len()
    }

    /// Posts.
    ///
    /// # Panics
    /// If there is no room.
    pub fn post(&mut self, entry: Entry<RecvWqe>) {
        assert!(self.room() > 0, "the program posts only where there is room");
        self.posted.push_back(entry);
    }

    /// The program overwrites the ring's cursors.
    pub fn break_cursors(&mut self) {
        self.broken = true;
    }

    /// The QP was reset: the ring is empty again.
    pub fn rewind(&mut self) {
        *self = RecvRing::new(self.places);
    }

    /// The engine takes the next one.
    pub fn take(&mut self, wqe: &mut RecvWqe) -> Taken {
        if self.broken {
            return Taken::Broken;
        }
        match self.posted.pop_front() {
            None => Taken::Empty,
            Some(Entry::Good(posted)) => {
                wqe.clone_from(&posted);
                Taken::Ready
            }
            Some(Entry::Malformed(wr_id)) => {
                wqe.wr_id = wr_id;
                Taken::Malformed
            }
        }
    }
}

/// A completion as the program finds it.
#[derive(Clone, Debug)]
pub struct Completed {
    /// The completion itself.
    pub completion: Completion,
    /// What the program saw, at the instant of a success, in the memory that the work request
    /// let the engine write to.
    pub data: Vec<u8>,
}

/// A completion queue with a bounded number of places.
#[derive(Debug)]
pub struct CompletionRing {
    places: usize,
    completed: VecDeque<Completed>,
}

impl CompletionRing {
    /// A ring of so many places.
    pub fn new(places: usize) -> CompletionRing {
        CompletionRing { places, completed: VecDeque::new() }
    }

    /// Puts one in; `false` if there is no room.
    pub fn push(&mut self, completed: Completed) -> bool {
        let has_room = self.completed.len() < self.places;
        if has_room {
            self.completed.push_back(completed);
        }
        has_room
    }

    /// The program polls.
    pub fn poll(&mut self) -> Option<Completed> {
        self.completed.pop_front()
    }
}
