//! The sessions as the broker knows them: whose they are, where they are served, and what they have
//! of the connection manager. All else that a program has is its slot's.

use crate::broker::cm::Holdings;
use serde::{Deserialize, Serialize};
use std::rc::Rc;
use urxe_slot::link::Viewer;

/// A program that objects belong to.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Program {
    /// Its user.
    pub(crate) uid: u32,
    /// Its name and process id.
    pub(crate) name: Rc<str>,
}

/// One connected program, or what is left of it.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct Session {
    pub(crate) number: u64,
    /// Process id of its program, or 0 if that cannot be seen from here.
    pub(crate) pid: u32,
    /// The slot that serves it.
    pub(crate) slot: usize,
    pub(crate) program: Program,
    pub(crate) cm: Holdings,
    /// The slot awaits an answer when nothing is left to be freed.
    pub(crate) answers_when_freed: bool,
    /// The program has asked the broker something and was not answered yet.
    pub(crate) has_asked: bool,
    /// The program has said who it is.
    pub(crate) is_named: bool,
    /// The program is there.
    pub(crate) is_open: bool,
    /// The slot has something of it.
    pub(crate) is_in_slot: bool,
}

impl Session {
    pub(crate) fn new(number: u64, slot: usize, uid: u32, pid: u32) -> Session {
        Session {
            number,
            pid,
            slot,
            program: Program { uid, name: format!("[{pid}]").into() },
            cm: Holdings::default(),
            answers_when_freed: false,
            has_asked: false,
            is_named: false,
            is_open: true,
            is_in_slot: true,
        }
    }

    /// Whether the program is root's.
    pub(crate) fn is_root(&self) -> bool {
        self.program.uid == 0
    }

    /// Whose objects it may see.
    pub(crate) fn viewer(&self) -> Viewer {
        let own = self.program.uid;
        let sees_all = own == 0 || own == rustix::process::geteuid().as_raw();
        if sees_all { Viewer::Everybody } else { Viewer::User(own) }
    }

    /// Whether nothing is left of it anywhere.
    pub(crate) fn is_over(&self) -> bool {
        !self.is_open && !self.is_in_slot && !self.cm.is_freeing()
    }
}
