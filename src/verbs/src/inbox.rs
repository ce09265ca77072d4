//! Events of many objects that come through one pipe, to threads that wait for different ones.

use crate::Error;
use crate::event_pipe::Deadline;
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;

/// Events that were read and that nobody has taken yet, oldest first.
#[derive(Debug)]
pub(crate) struct Inbox<T> {
    taken: Mutex<Taken<T>>,
    /// There is more in `taken`, or nobody reads any more.
    changed: Condvar,
}

#[derive(Debug)]
struct Taken<T> {
    events: VecDeque<T>,
    /// A thread is reading the pipe; the others wait for it.
    reading: bool,
    /// How many were read, whoever they were for.
    #[cfg(feature = "tokio")]
    read: u64,
}

impl<T> Default for Inbox<T> {
    fn default() -> Self {
        let taken = Taken {
            events: VecDeque::new(),
            reading: false,
            #[cfg(feature = "tokio")]
            read: 0,
        };
        Inbox { taken: Mutex::new(taken), changed: Condvar::new() }
    }
}

/// Takes the oldest event that is wanted out of those that were read.
pub(crate) fn take<T>(events: &mut VecDeque<T>, is_wanted: impl Fn(&T) -> bool) -> Option<T> {
    let index = events.iter().position(is_wanted)?;
    events.remove(index)
}

impl<T> Inbox<T> {
    /// Waits until `find` finds something among the events that were read; `None` if it did not
    /// until the deadline. It looks once more after each event that any thread has read.
    ///
    /// One thread at a time reads the pipe, one event at a time; what is not for itself it leaves
    /// to the others. `keep` gives an event back if its object is still there. It is asked under
    /// the lock: an object that goes later takes the event out by [`remove`](Self::remove).
    ///
    /// In a fork another thread of the parent may hold the lock for ever: callers see to it first
    /// that this is none.
    pub(crate) fn look_for<R>(
        &self,
        mut find: impl FnMut(&mut VecDeque<T>) -> Option<R>,
        deadline: Deadline,
        read: impl Fn(Deadline) -> Result<Option<T>, Error>,
        keep: impl Fn(T) -> Option<T>,
    ) -> Result<Option<R>, Error> {
        let mut taken = self.taken.lock();
        loop {
            if let Some(found) = find(&mut taken.events) {
                return Ok(Some(found));
            }
            if !taken.reading {
                taken.reading = true;
                drop(taken);
                let event = read(deadline);
                taken = self.taken.lock();
                taken.reading = false;
                self.changed.notify_all();
                match event? {
                    Some(event) => {
                        #[cfg(feature = "tokio")]
                        {
                            taken.read += 1;
                        }
                        taken.events.extend(keep(event));
                    }
                    None => return Ok(None),
                }
            } else if deadline.is_over() {
                return Ok(None);
            } else if let Some(deadline) = deadline.instant() {
                self.changed.wait_until(&mut taken, deadline);
            } else {
                self.changed.wait(&mut taken);
            }
        }
    }

    /// How many events were read from the pipe so far. Where it has changed, others may find what
    /// they wait for here and not in the pipe.
    #[cfg(feature = "tokio")]
    pub(crate) fn events_read(&self) -> u64 {
        self.taken.lock().read
    }

    /// Takes out all that were read already and match.
    pub(crate) fn remove(&self, matches: impl Fn(&T) -> bool) -> Vec<T> {
        let mut taken = self.taken.lock();
        if !taken.events.iter().any(&matches) {
            return Vec::new();
        }
        let (out, rest) = taken.events.drain(..).partition(matches);
        taken.events = rest;
        Vec::from_iter::<VecDeque<T>>(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    #[test]
    fn events_of_others_keep_their_order() {
        let inbox = Inbox { taken: Mutex::new(taken([1, 2, 1, 3])), ..Inbox::default() };
        let next = |is_wanted: fn(&i32) -> bool| {
            let find = |events: &mut VecDeque<i32>| take(events, is_wanted);
            inbox.look_for(find, Deadline::after(None), |_| Ok(None), Some).unwrap()
        };
        assert_eq!(next(|&event| event == 3), Some(3));
        assert_eq!(next(|&event| event == 9), None);
        assert_eq!(next(|&event| event == 2), Some(2));
        assert_eq!([next(|_| true), next(|_| true), next(|_| true)], [Some(1), Some(1), None]);
    }

    #[test]
    fn removing_an_entry_leaves_the_others() {
        let inbox = Inbox { taken: Mutex::new(taken([1, 2, 1, 3])), ..Inbox::default() };
        assert_eq!(inbox.remove(|&event| event == 1), [1, 1]);
        assert_eq!(inbox.remove(|_| true), [2, 3]);
    }

    #[test]
    fn an_event_whose_object_goes_while_it_is_read_is_not_kept() {
        let inbox = Inbox::default();
        let registered = RefCell::new(vec![1, 2]);
        let pipe = RefCell::new(VecDeque::from([1, 2]));
        let read = |_| {
            // After its event was read, and before it is where the object would look for it.
            registered.borrow_mut().retain(|&object| object != 1);
            Ok(pipe.borrow_mut().pop_front())
        };
        let keep = |event| registered.borrow().contains(&event).then_some(event);
        let found = inbox.look_for(VecDeque::pop_front, Deadline::after(None), read, keep).unwrap();
        assert_eq!(found, Some(2));
    }

    fn taken<const N: usize>(events: [i32; N]) -> Taken<i32> {
        let Inbox { taken, .. } = Inbox::default();
        Taken { events: events.into(), ..taken.into_inner() }
    }
}
