//! Which server has what a check wants.

use crate::agent::State;
use crate::device::{MEMORY, Setup, Unavailable};
use std::fmt;
use urxe_types::{PathMtu, QpType};

/// A program that is a server until its client goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Program {
    /// `ib_write_bw`: memory to WRITE to.
    Write,
    /// `ib_read_bw`: memory to READ.
    Read,
    /// `ib_atomic_bw`: memory for atomics.
    Atomic,
    /// `ib_send_bw`: receives.
    Send,
    /// `ibv_rc_pingpong` and its kin: a counted number of receives. Begins at once, with one QP.
    PingPong,
}

/// A server with its options.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Kind {
    program: Program,
    transport: QpType,
    mtu: PathMtu,
    /// Bytes of a message: half of the memory of one QP, or what a receive has room for.
    size: usize,
    /// Receives of each QP.
    receives: u32,
    timeout: u8,
    /// READs and atomics that a peer may have outstanding, if not as many as the device can.
    outstanding: Option<u8>,
}

/// QPs of one server of perftest.
const QPS: usize = 32;
/// Of one whose memory all its QPs share, a page twice for each.
const SHARING_QPS: usize = 8;
/// Receives of each QP of perftest, if nothing else is asked for.
const RECEIVES: u32 = 32;
/// Bytes of a receive, if nothing else is asked for.
const RECEIVE_LEN: usize = 64 << 10;
/// What servers set, without a way to change it but for the timeout of perftest.
const TIMEOUT: u8 = 14;
const RETRIES: u8 = 7;
const MIN_RNR_TIMER: u8 = 12;
const QKEY: u32 = 0x1111_1111;

impl Kind {
    /// A server that has what a check wants. `with_options`: each is started with the options that
    /// it needs, not only with the usual ones.
    ///
    /// # Errors
    /// If there is none.
    pub(super) fn of(setup: &Setup, with_options: bool) -> Result<Kind, Unavailable> {
        let kind = Kind::choose(setup)?;
        if !with_options && !Kind::usual().contains(&Kind { mtu: PathMtu::Mtu1024, ..kind.clone() })
        {
            let program = kind.program;
            return Err(needs(&format!("{program} with other options than it was started with")));
        }
        Ok(kind)
    }

    fn choose(setup: &Setup) -> Result<Kind, Unavailable> {
        let differs = |wanted: Option<u8>, usual: u8| wanted.is_some_and(|wanted| wanted != usual);
        for (differs, what) in [
            (setup.flush, "memory to FLUSH"),
            (setup.windows, "memory windows"),
            (setup.srq.is_some(), "a shared receive queue"),
            (setup.state != State::Rts, "the choice of its QP's state"),
            (setup.their_psn.is_some(), "the choice of its first PSN"),
            (differs(setup.min_rnr_timer, MIN_RNR_TIMER), "the choice of its RNR timer"),
            (differs(setup.retry_cnt, RETRIES), "the choice of its retry counter"),
            (differs(setup.rnr_retry, RETRIES), "the choice of its RNR retry counter"),
            (setup.max_rd_atomic.is_some(), "the choice of the READs that it may have outstanding"),
            (setup.transport == QpType::Ud && setup.qkey != QKEY, "the choice of its Q_Key"),
        ] {
            if differs {
                return Err(needs(what));
            }
        }
        let receives = setup.receives > 0;
        let program = match (setup.write, setup.read, setup.atomic, receives) {
            (true, false, false, false) => Program::Write,
            (false, true, false, false) => Program::Read,
            (false, false, true, false) => Program::Atomic,
            (false, false, false, true) if setup.exact_receives => Program::PingPong,
            // It has no receives. What it has beyond that is of no use to who has no key.
            (false, false, false, false) if setup.memory == 0 && setup.transport != QpType::Ud => {
                Program::Write
            }
            (false, false, false, false) if setup.exact_receives => {
                return Err(needs("memory or datagrams without receives"));
            }
            // Its memory is there for no peer.
            (false, false, false, _) => Program::Send,
            (_, _, _, true) => return Err(needs("memory and receives in one QP")),
            _ => return Err(needs("several rights in one QP")),
        };
        let timeout = setup.timeout.unwrap_or(TIMEOUT);
        let kind = Kind {
            program,
            transport: setup.transport,
            mtu: setup.mtu,
            size: 0,
            receives: 0,
            timeout,
            outstanding: None,
        };
        match program {
            Program::Write | Program::Read => kind.with_memory(setup),
            Program::Atomic => {
                if setup.memory > MEMORY {
                    return Err(needs("more memory for atomics"));
                }
                kind.with_memory(setup)
            }
            Program::Send => kind.with_receives(setup),
            Program::PingPong if timeout != TIMEOUT || setup.memory > 0 => {
                Err(needs("counted receives with a timeout or memory of its own"))
            }
            Program::PingPong => {
                let (receives, size) = (setup.receives, setup.receive_len as usize);
                Ok(Kind { receives, size, ..kind })
            }
        }
    }

    fn with_memory(self, setup: &Setup) -> Result<Kind, Unavailable> {
        let one_transport = self.transport == QpType::Rc
            || self.transport == QpType::Uc && self.program == Program::Write;
        if !one_transport {
            let (program, transport) = (self.program, self.transport);
            return Err(needs(&format!("{program} for {transport:?}, which it does not have,")));
        }
        let outstanding = match (self.program, setup.max_dest_rd_atomic) {
            (Program::Write, Some(1)) | (_, None) => None,
            (Program::Write, Some(_)) => return Err(needs("READs at a QP for WRITEs")),
            (_, Some(0)) => return Err(needs("memory to READ with no READs outstanding")),
            (_, Some(outstanding)) => Some(outstanding),
        };
        let size = match self.program {
            Program::Atomic => size_of::<u64>(),
            _ => setup.memory.max(MEMORY) / 2,
        };
        Ok(Kind { size, outstanding, ..self })
    }

    fn with_receives(self, setup: &Setup) -> Result<Kind, Unavailable> {
        if setup.max_dest_rd_atomic.is_some_and(|outstanding| outstanding != 1) {
            return Err(needs("READs at a QP for SENDs"));
        }
        let most = if self.transport == QpType::Ud { self.mtu.bytes() } else { RECEIVE_LEN };
        let size = match self.transport {
            QpType::Ud if setup.receive_len as usize <= most => most,
            QpType::Ud => return Err(needs("receives that are longer than the path MTU")),
            _ => most.max(setup.receive_len as usize),
        };
        Ok(Kind { size, receives: setup.receives.max(RECEIVES), ..self })
    }

    /// The kinds that serve most checks.
    pub(super) fn usual() -> Vec<Kind> {
        let plain = |transport| Setup::new(transport);
        let setups = [
            plain(QpType::Rc).write(),
            plain(QpType::Rc).read(),
            plain(QpType::Rc).atomic(),
            plain(QpType::Rc).receives(1, 1),
            plain(QpType::Uc).write(),
            plain(QpType::Uc).receives(1, 1),
            plain(QpType::Ud),
        ];
        setups.iter().filter_map(|setup| Kind::choose(setup).ok()).collect()
    }

    /// Its place in the order of the usual ones, which differ in program and transport.
    pub(super) fn place(&self) -> u16 {
        let same =
            |usual: &Kind| (usual.program, usual.transport) == (self.program, self.transport);
        Kind::usual().iter().position(same).unwrap_or(0) as u16
    }

    pub(super) fn program(&self) -> Program {
        self.program
    }

    pub(super) fn mtu(&self) -> PathMtu {
        self.mtu
    }

    pub(super) fn size(&self) -> usize {
        self.size
    }

    /// QPs of one server.
    pub(super) fn qps(&self) -> usize {
        match self.program {
            Program::PingPong => 1,
            Program::Atomic => SHARING_QPS,
            _ => QPS,
        }
    }

    /// Whether each QP has memory of its own.
    pub(super) fn memory_per_qp(&self) -> bool {
        matches!(self.program, Program::Write | Program::Read)
    }

    /// The command line that starts it, but for the port.
    pub(super) fn words(&self, device: Option<&str>, gid_index: Option<u8>) -> Vec<String> {
        let mut words = vec![match (self.program, self.transport) {
            (Program::PingPong, QpType::Rc) => "ibv_rc_pingpong".into(),
            (Program::PingPong, QpType::Uc) => "ibv_uc_pingpong".into(),
            (Program::PingPong, QpType::Ud) => "ibv_ud_pingpong".into(),
            (program, _) => program.to_string(),
        }];
        let mut option = |name: &str, value: &dyn fmt::Display| {
            words.extend([name.to_owned(), value.to_string()]);
        };
        if let Some(device) = device {
            option("-d", &device);
        }
        if self.program == Program::PingPong {
            option("-g", &gid_index.unwrap_or(0));
            option("-r", &self.receives);
            option("-s", &self.size);
            if self.transport != QpType::Ud {
                option("-m", &self.mtu.bytes());
            }
            return words;
        }
        if let Some(index) = gid_index {
            option("-x", &index);
        }
        match self.transport {
            QpType::Rc => {}
            QpType::Uc => option("-c", &"UC"),
            QpType::Ud => option("-c", &"UD"),
        }
        option("-q", &self.qps());
        if self.timeout != TIMEOUT {
            option("-u", &self.timeout);
        }
        if let Some(outstanding) = self.outstanding {
            option("-o", &outstanding);
        }
        match self.program {
            Program::Write | Program::Read => option("-s", &self.size),
            // A datagram's size follows from the path MTU.
            Program::Send if self.transport != QpType::Ud => option("-s", &self.size),
            _ => {}
        }
        if self.program == Program::Send {
            option("-r", &self.receives);
        }
        if self.memory_per_qp() {
            words.push("--mr_per_qp".into());
        }
        words
    }
}

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Program::Write => "ib_write_bw",
            Program::Read => "ib_read_bw",
            Program::Atomic => "ib_atomic_bw",
            Program::Send => "ib_send_bw",
            Program::PingPong => "ibv_*_pingpong",
        })
    }
}

fn needs(what: &str) -> Unavailable {
    Unavailable::NeedsAgent(format!("no stock server has {what}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(setup: &Setup) -> String {
        Kind::of(setup, true).unwrap().words(None, None).join(" ")
    }

    #[test]
    fn each_wish_has_its_server() {
        assert_eq!(line(&Setup::rc().write()), "ib_write_bw -q 32 -s 32768 --mr_per_qp");
        assert_eq!(line(&Setup::rc().atomic()), "ib_atomic_bw -q 8");
        assert_eq!(line(&Setup::uc().receives(1, 100)), "ib_send_bw -c UC -q 32 -s 65536 -r 32");
        assert_eq!(line(&Setup::ud().receives(1, 100)), "ib_send_bw -c UD -q 32 -r 32");
        let many = Setup { max_dest_rd_atomic: Some(4), ..Setup::rc().read() };
        assert_eq!(line(&many), "ib_read_bw -q 32 -o 4 -s 32768 --mr_per_qp");
        assert_eq!(line(&Setup::rc().exactly(2, 100)), "ibv_rc_pingpong -g 0 -r 2 -s 100 -m 1024");
    }

    #[test]
    fn options_that_no_stock_server_has_need_an_agent() {
        for setup in [
            Setup::rc().write().read(),
            Setup::rc().write().receives(1, 100),
            Setup { min_rnr_timer: Some(1), ..Setup::rc().receives(1, 100) },
            Setup { their_psn: Some(1), ..Setup::rc().write() },
            Setup { qkey: 1, ..Setup::ud() },
            Setup::uc().read(),
            Setup::ud().receives(1, 5000),
        ] {
            let refused = Kind::of(&setup, true);
            assert!(matches!(refused, Err(Unavailable::NeedsAgent(_))), "{refused:?}");
        }
    }

    #[test]
    fn servers_that_run_already_have_only_the_usual_options_and_any_path_mtu() {
        for mtu in PathMtu::ALL {
            Kind::of(&Setup { mtu, ..Setup::rc().write() }, false).unwrap();
        }
        let many = Setup { max_dest_rd_atomic: Some(4), ..Setup::rc().read() };
        for setup in [many, Setup::rc().exactly(2, 100), Setup::rc().receives(1000, 8)] {
            assert!(matches!(Kind::of(&setup, false), Err(Unavailable::NeedsAgent(_))));
        }
    }

    #[test]
    fn the_usual_servers_have_places_of_their_own() {
        let places: Vec<u16> = Kind::usual().iter().map(Kind::place).collect();
        assert_eq!(places, (0..7).collect::<Vec<u16>>());
    }
}
