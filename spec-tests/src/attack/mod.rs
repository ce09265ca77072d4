//! Attacks on a live daemon, each with a victim beside it.
//!
//! | module | |
//! | --- | --- |
//! | [`programs`] | what a program does that may open the socket |
//! | [`strangers`] | what anybody does who can send packets |
//! | [`victim`] | the program beside it, whose small WRITEs are measured |
//! | [`testbed`] | the daemon, the processes of all, what is seen of them |
//! | [`table`] | what came of it, and which of that is known |
//!
//! `cargo xtask attack` runs them all.

mod program;
pub mod programs;
pub mod strangers;
pub mod table;
pub mod testbed;
pub mod victim;

use std::net::IpAddr;
use std::path::PathBuf;

/// What an attacker knows.
#[derive(Clone, Debug)]
pub struct Setting {
    /// The daemon's socket.
    pub socket: PathBuf,
    /// The addresses of its two devices.
    pub addrs: [IpAddr; 2],
    /// The QPs of the first victim, one on each device.
    pub qpns: [u32; 2],
    /// Everything smaller, so that a round is soon over.
    pub is_short: bool,
}

impl Setting {
    /// A number of things: the second where all shall be soon over.
    fn many(&self, long: usize, short: usize) -> usize {
        if self.is_short { short } else { long }
    }
}

/// An attack, which goes on until its process is ended.
pub struct Attack {
    /// What it is called.
    pub name: &'static str,
    /// What is done, in a sentence.
    pub what: &'static str,
    /// Does it. It says when it is under way; what it returns is why it cannot go on.
    pub run: fn(&Setting, ready: &mut dyn FnMut()) -> String,
}

/// Every attack.
pub fn all() -> impl Iterator<Item = &'static Attack> {
    programs::ATTACKS.iter().chain(strangers::ATTACKS)
}
