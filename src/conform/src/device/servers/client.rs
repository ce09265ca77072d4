//! Clients that call us: which has the work that a check wants, and how it comes to do it.
//!
//! A client of perftest tells its QP over TCP, as we do to servers, and begins when the last of its
//! lines is answered. It speaks again when all of its work has succeeded, and goes when it has not.

use super::start::Process;
use super::{Greeting, Options, OurEnd, Pair, Refusal, Starter, perftest};
use crate::agent::{Operation, State, Status};
use crate::device::{Client, End, Setup, Unavailable, Work};
use std::io;
use std::net::TcpStream;
use std::thread::sleep;
use std::time::{Duration, Instant};
use urxe_types::{PathMtu, QpType};

/// A client with its options, and what is told to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Caller {
    work: Work,
    timeout: u8,
    pub(super) mtu: PathMtu,
    /// READs and atomics that it may have outstanding.
    pub(super) outstanding: u8,
}

/// A client that waits for the answer to its last line, or works.
pub(super) struct Call {
    caller: Caller,
    ours: OurEnd,
    stream: TcpStream,
    process: Option<Process>,
    has_begun: bool,
    end: Option<End>,
}

/// What clients of perftest set for their QPs, the timeout unless they are told another.
const TIMEOUT: u8 = 14;
const RETRIES: u8 = 7;
/// READs that one may have outstanding if a check does not mind.
const OUTSTANDING: u8 = 16;
/// How long one that has failed may take to say so and end.
const ENDING: Duration = Duration::from_secs(2);

impl Caller {
    /// The client that does what a check wants of its program. `with_options`: it is started with
    /// the options that it needs, not only with the usual ones.
    ///
    /// # Errors
    /// If there is none.
    pub(super) fn of(setup: &Setup, work: Work, with_options: bool) -> Result<Caller, Unavailable> {
        let differs = |wanted: Option<u8>, usual| wanted.is_some_and(|wanted| wanted != usual);
        for (differs, what) in [
            (setup.transport != QpType::Rc, "another service than RC"),
            (work.len == 0, "messages of no bytes"),
            (setup.memory > 0 || setup.receives > 0, "memory or receives"),
            (setup.srq.is_some() || setup.state != State::Rts, "another QP"),
            (setup.their_psn.is_some(), "the choice of its first PSN"),
            (differs(setup.retry_cnt, RETRIES), "the choice of its retry counter"),
            (differs(setup.rnr_retry, RETRIES), "the choice of its RNR retry counter"),
        ] {
            if differs {
                return Err(needs(what));
            }
        }
        let caller = Caller {
            work,
            timeout: setup.timeout.unwrap_or(TIMEOUT),
            mtu: setup.mtu,
            outstanding: setup.max_rd_atomic.unwrap_or(OUTSTANDING),
        };
        if !with_options && caller.place().is_none() {
            return Err(needs("other options than the usual ones"));
        }
        Ok(caller)
    }

    /// Those that serve most checks.
    pub(super) fn usual() -> [Caller; 6] {
        let works = [
            Setup::rc().sending(8),
            Setup::rc().sending(4000),
            Setup::rc().writing(4000),
            Setup::rc().reading(64),
            Setup::rc().reading(1000),
            Setup::rc().adding(),
        ];
        works.map(|setup| Caller {
            work: setup.work.expect("it sends, reads, writes or adds"),
            timeout: TIMEOUT,
            mtu: setup.mtu,
            outstanding: OUTSTANDING,
        })
    }

    /// Its place in the order of the usual ones, which differ in their options; what is told to it
    /// does not matter.
    pub(super) fn place(&self) -> Option<u16> {
        let same = |usual: &Caller| (usual.work, usual.timeout) == (self.work, self.timeout);
        Caller::usual().iter().position(same).map(|place| place as u16)
    }

    /// Lines that it says before it begins, with one QP.
    pub(super) fn lines(&self) -> usize {
        if self.work.operation == Operation::Send { 4 } else { 3 }
    }

    /// The command line that starts it, but for port and host.
    pub(super) fn words(&self, device: Option<&str>, gid_index: Option<u8>) -> Vec<String> {
        let program = match self.work.operation {
            Operation::RdmaWrite => "ib_write_bw",
            Operation::RdmaRead => "ib_read_bw",
            Operation::FetchAdd => "ib_atomic_bw",
            _ => "ib_send_bw",
        };
        let mut words = vec![program.to_owned()];
        let mut option = |name: &str, value: String| words.extend([name.to_owned(), value]);
        if let Some(device) = device {
            option("-d", device.to_owned());
        }
        if let Some(index) = gid_index {
            option("-x", index.to_string());
        }
        // All at once, and each with a completion of its own.
        option("-n", Work::COUNT.to_string());
        option("-t", Work::COUNT.to_string());
        option("-Q", "1".into());
        if self.work.operation != Operation::FetchAdd {
            option("-s", self.work.len.to_string());
        }
        if self.timeout != TIMEOUT {
            option("-u", self.timeout.to_string());
        }
        words
    }

    /// Takes the call of such a client, up to its last line.
    pub(super) fn take(
        &self,
        starter: &mut Starter,
        options: &Options,
        ours: &OurEnd,
    ) -> Result<(Pair, Call), Unavailable> {
        let words = self.words(options.device.as_deref(), options.gid_index);
        let (stream, process) = starter.be_called(self.place(), &words)?;
        let program = &words[0];
        match perftest::be_greeted(&stream, self, ours) {
            Ok(Greeting { pairs, addr }) if addr == options.addr => {
                let (caller, ours) = (self.clone(), *ours);
                let call = Call { caller, ours, stream, process, has_begun: false, end: None };
                Ok((pairs[0], call))
            }
            Ok(Greeting { addr, .. }) => {
                starter.let_go(stream, process);
                let wanted = options.addr;
                Err(Unavailable::Failed(format!("{program} sends from {addr}, not {wanted}")))
            }
            Err(refusal) => {
                let says = process.map_or(String::new(), Process::last_words);
                let reason = format!("{program}: {refusal}{says}");
                Err(match refusal {
                    Refusal::SmallMtu(_) => Unavailable::NotSupported(reason),
                    _ => Unavailable::Failed(reason),
                })
            }
        }
    }
}

impl Call {
    /// The check is over.
    pub(super) fn let_go(self, starter: &mut Starter) {
        starter.let_go(self.stream, self.process);
    }

    /// What has become of it: it speaks, is gone, or neither.
    fn look(&mut self) -> Option<End> {
        let mut byte = [0];
        self.stream.set_nonblocking(true).ok()?;
        match self.stream.peek(&mut byte) {
            Ok(1) => Some(End::Done),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => None,
            _ => Some(End::Failed(self.status())),
        }
    }

    /// The status that it names when it ends.
    fn status(&mut self) -> Option<Status> {
        let mut process = self.process.take()?;
        let until = Instant::now() + ENDING;
        while !process.has_ended() && Instant::now() < until {
            sleep(Duration::from_millis(5));
        }
        let said = process.words();
        let (_, number) = said.split_once("Failed status ")?;
        let digits = number.split(|at: char| !at.is_ascii_digit()).next()?;
        digits.parse().ok().map(Status::from_number)
    }
}

impl Client for Call {
    fn begin(&mut self) -> Result<(), Unavailable> {
        perftest::release(&self.stream, &self.caller, &self.ours)
            .map_err(|error| Unavailable::Failed(error.to_string()))?;
        self.has_begun = true;
        Ok(())
    }

    fn end(&mut self) -> Option<End> {
        if self.has_begun && self.end.is_none() {
            self.end = self.look();
        }
        self.end
    }
}

fn needs(what: &str) -> Unavailable {
    Unavailable::NeedsAgent(format!("no stock client has {what}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(setup: &Setup) -> String {
        let caller = Caller::of(setup, setup.work.unwrap(), true).unwrap();
        caller.words(None, None).join(" ")
    }

    #[test]
    fn each_work_has_its_client() {
        assert_eq!(line(&Setup::rc().sending(8)), "ib_send_bw -n 5 -t 5 -Q 1 -s 8");
        assert_eq!(line(&Setup::rc().adding()), "ib_atomic_bw -n 5 -t 5 -Q 1");
        let quick = Setup { timeout: Some(10), ..Setup::rc().reading(100) };
        assert_eq!(line(&quick), "ib_read_bw -n 5 -t 5 -Q 1 -s 100 -u 10");
    }

    #[test]
    fn options_that_no_stock_client_has_need_an_agent() {
        for setup in [
            Setup { retry_cnt: Some(1), ..Setup::rc().sending(8) },
            Setup { rnr_retry: Some(1), ..Setup::rc().sending(8) },
            Setup { their_psn: Some(1), ..Setup::rc().sending(8) },
            Setup::uc().sending(8),
            Setup::rc().receives(1, 8).sending(8),
        ] {
            let refused = Caller::of(&setup, setup.work.unwrap(), true);
            assert!(matches!(refused, Err(Unavailable::NeedsAgent(_))), "{refused:?}");
        }
    }

    #[test]
    fn clients_that_run_already_have_only_the_usual_options_and_are_told_the_rest() {
        let of = |setup: Setup| Caller::of(&setup, setup.work.unwrap(), false);
        let told =
            Setup { mtu: PathMtu::Mtu256, max_rd_atomic: Some(1), ..Setup::rc().reading(64) };
        assert_eq!(of(told).unwrap().place(), Some(3));
        for setup in [Setup::rc().sending(9), Setup { timeout: Some(0), ..Setup::rc().sending(8) }]
        {
            assert!(matches!(of(setup), Err(Unavailable::NeedsAgent(_))));
        }
    }
}
