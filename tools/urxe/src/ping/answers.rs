//! Asking the peer's connection manager, which every RoCE device has: for a service that is not
//! there (SIDR REQ on QP1), so that no program has to run. What is counted meanwhile says whether
//! answers came and were not fit to be taken.

use super::Arguments;
use super::device::Device;
use super::port::objected;
use super::report::{Answers, Facts, Finding, Found, State};
use super::route::Route;
use crate::asking::{Asked, GATHER_TIMEOUT};
use crate::daemon_client::DeviceStats;
use crate::error::Error;
use crate::latency::Latencies;
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};
use urxe_port::echo::Echo;
use urxe_verbs::cm::EventChannel;
use urxe_verbs::{Qp, QpInit, QpType};
use urxe_wire::ROCE_PORT;

/// The port of the service that is asked for: that of Discard, which nobody offers over RDMA. If
/// somebody does, that is an answer too.
const SERVICE: u16 = 9;

/// How long a host may take to answer an ICMP echo, and then to refuse a connection.
const ECHO_WAIT: Duration = Duration::from_millis(500);
const TCP_WAIT: Duration = Duration::from_secs(1);

/// How long to wait for what is still said of packets that were sent at the beginning.
const LATE_OBJECTION: Duration = Duration::from_millis(1500);

/// How often it is looked whether it is to end.
const LOOK_FOR_STOP: Duration = Duration::from_millis(100);

/// What came of the questions, and what the device counted meanwhile.
#[derive(Default)]
pub(super) struct Rounds {
    answers: Answers,
    counted: Counted,
    /// Why it was not gone on with.
    error: Option<Error>,
}

/// Counters that say why there is no answer: how much they grew.
#[derive(Clone, Copy, Debug, Default)]
struct Counted {
    received: u64,
    wrong_icrc: u64,
    repeats: u64,
    forbidden: u64,
    unreachable: u64,
    dropped_answers: u64,
    overflow: u64,
}

impl Counted {
    fn between(before: &DeviceStats, after: &DeviceStats) -> Counted {
        let grew = |name| after.get(name).saturating_sub(before.get(name));
        Counted {
            received: grew("rx_datagrams"),
            wrong_icrc: grew("drop_bad_icrc"),
            repeats: grew("cm_repeats"),
            forbidden: grew("tx_forbidden"),
            unreachable: grew("tx_unreachable"),
            dropped_answers: ["cm_drop_no_message", "cm_drop_foreign", "drop_bad_mad"]
                .map(grew)
                .iter()
                .sum(),
            overflow: grew("rx_overflow"),
        }
    }
}

/// How often to ask, and how long to wait.
#[derive(Clone, Copy, Debug)]
pub(super) struct Questions {
    count: u32,
    interval: Duration,
    timeout: Duration,
}

impl From<&Arguments> for Questions {
    fn from(arguments: &Arguments) -> Questions {
        let &Arguments { count, interval, timeout, .. } = arguments;
        Questions { count, interval, timeout }
    }
}

impl Questions {
    /// How long all of it takes at most, if the daemon of this machine does what it is told.
    fn longest(&self) -> Duration {
        let all = self.interval.saturating_add(self.timeout).saturating_mul(self.count);
        all.saturating_add(GATHER_TIMEOUT)
    }
}

/// Asks as often as is wanted, until `stop` is set.
pub(super) fn ask(
    device: &Arc<Device>,
    peer: SocketAddr,
    questions: Questions,
    stop: &Arc<AtomicBool>,
) -> Rounds {
    let (asking, is_over) = (Arc::clone(device), Arc::clone(stop));
    let asked = Asked::begin(move || {
        let mut rounds = Rounds::default();
        rounds.error = rounds.run(&asking, peer, &questions, &is_over).err();
        rounds
    });
    let silent = |_| Rounds { error: Some(device.is_silent()), ..Rounds::default() };
    asked.unless_stopped(questions.longest(), stop).unwrap_or_else(silent)
}

impl Rounds {
    fn run(
        &mut self,
        device: &Device,
        mut service: SocketAddr,
        questions: &Questions,
        stop: &Arc<AtomicBool>,
    ) -> Result<(), Error> {
        service.set_port(SERVICE);
        let before = device.stats(stop)?;
        let pd = device.context.alloc_pd()?;
        let cq = device.context.create_cq(1, None)?;
        let qp = pd.create_qp(&QpInit { qp_type: QpType::Ud, ..QpInit::new(&cq) })?;
        let channel = device.context.create_event_channel()?;
        let mut times = Latencies::new();
        for round in 0..questions.count {
            if round > 0 {
                pause(questions.interval, stop);
            }
            if stop.load(Ordering::Relaxed) {
                break;
            }
            let start = Instant::now();
            self.answers.asked += 1;
            match is_answered(&channel, &qp, service, questions.timeout, stop)? {
                Some(true) => times.record(start.elapsed()),
                Some(false) => {}
                // There was no time for this answer, as there was for others.
                None if times.len() > 0 => self.answers.asked -= 1,
                None => {}
            }
        }
        self.counted = Counted::between(&before, &device.stats(stop)?);
        self.answers.answered = times.len();
        self.answers.repeated = self.counted.repeats;
        if times.len() > 0 {
            let times = times.summary();
            (self.answers.min_us, self.answers.mean_us, self.answers.max_us) =
                (times.min, times.mean, times.max);
        }
        Ok(())
    }

    /// Whether the peer answers; `Some` if it does at all.
    pub(super) fn finding(&self, route: &Route) -> Found<()> {
        if let Some(error) = &self.error {
            let says = format!("the device of this machine does not ask: {error}");
            return (Finding::failed(says, "`urxe doctor` tells what is missing"), None);
        }
        let answers = self.answers;
        let facts = Facts::Answers(answers);
        if answers.answered == 0 {
            return (self.silence(route).with(facts), None);
        }
        let ms = |us: f64| us / 1e3;
        let says = format!(
            "{} of {} questions answered, in {:.3}/{:.3}/{:.3} ms (least/mean/most)",
            answers.answered,
            answers.asked,
            ms(answers.min_us),
            ms(answers.mean_us),
            ms(answers.max_us)
        );
        let finding = if answers.answered < answers.asked || answers.repeated > 0 {
            Finding::warning(
                format!("{says}; {} had to be repeated", answers.repeated),
                "packets are lost on the way, or other programs of this device lose some: `ping` \
                 and `ip -s link` show more; RC repairs losses, but slowly",
            )
        } else {
            Finding::ok(says)
        };
        (finding.with(facts), Some(()))
    }

    /// Why there may be no answer.
    fn silence(&self, route: &Route) -> Finding {
        let refused = |kind: io::ErrorKind| objected(route, &io::Error::from(kind).into());
        let counted = self.counted;
        if counted.forbidden > 0 {
            return refused(io::ErrorKind::PermissionDenied);
        }
        if counted.unreachable > 0 {
            return refused(io::ErrorKind::HostUnreachable);
        }
        if counted.wrong_icrc > 0 {
            return Finding::failed("what came back has a wrong ICRC", ICRC_ADVICE);
        }
        if counted.overflow > 0 || counted.dropped_answers > 0 {
            return Finding::failed(
                format!(
                    "something came back, but was no answer: {} datagrams not understood, {} \
                     without room",
                    counted.dropped_answers, counted.overflow
                ),
                "`urxe stat --nonzero` shows what was dropped and why",
            );
        }
        let came = match counted.received {
            0 => "nothing came back",
            _ => "no answer came back, though other packets did",
        };
        let peer = route.peer().ip();
        let sign = sign_of_life(route);
        // A router finds out after seconds only that a host is gone.
        let wait = if sign.is_some() { Duration::ZERO } else { LATE_OBJECTION };
        if let Ok(Some(objection)) = route.probe.objection(wait) {
            return objected(route, &objection);
        }
        let host = match sign {
            Some(sign) => format!("the host itself is there (it answers {sign})"),
            None => "the host answers neither ICMP echo nor TCP".into(),
        };
        Finding::failed(
            format!("{} questions and no answer: {came}; {host}", self.answers.asked),
            format!(
                "usual causes: a firewall or security group drops UDP port {ROCE_PORT}, here, \
                 there or between; NAT changes addresses, so that the ICRC is wrong there; no \
                 RoCEv2 device is on {peer}; its connection manager is missing (kernel: `modprobe \
                 rdma_cm`). Look there: `urxe stat --nonzero` or `rdma statistic` shows what \
                 arrived and was dropped, `tcpdump udp port {ROCE_PORT}` whether anything arrived"
            ),
        )
    }

    /// Whether the invariant CRC of what came was right.
    pub(super) fn icrc(&self) -> Found<()> {
        let wrong = self.counted.wrong_icrc;
        let finding = match wrong {
            0 => Finding::ok(
                "no packet came with a wrong one, and a peer checks it before it answers",
            ),
            _ => Finding {
                state: State::Warning,
                ..Finding::failed(format!("wrong in {wrong} packets that came"), ICRC_ADVICE)
            },
        };
        (finding.with(Facts::Icrc { wrong }), Some(()))
    }
}

const ICRC_ADVICE: &str = "something on the way changes what the ICRC covers (NAT, a tunnel or a \
                           load balancer rewrites addresses or ports) or damages packets (a bad \
                           cable, a driver): compare captures of both ends";

/// Waits so long, or until `stop` is set.
fn pause(wait: Duration, stop: &AtomicBool) {
    let start = Instant::now();
    while let Some(left) = wait.checked_sub(start.elapsed())
        && !left.is_zero()
        && !stop.load(Ordering::Relaxed)
    {
        sleep(left.min(LOOK_FOR_STOP));
    }
}

/// Asks once. Any answer will do, of whatever kind. `None` if `stop` is set before there is one.
fn is_answered(
    channel: &EventChannel,
    qp: &Qp,
    service: SocketAddr,
    timeout: Duration,
    stop: &AtomicBool,
) -> Result<Option<bool>, Error> {
    let start = Instant::now();
    let search = channel.find_service(service, qp, b"")?;
    loop {
        let left = timeout.saturating_sub(start.elapsed());
        let (slice, asked) = (left.min(LOOK_FOR_STOP), Instant::now());
        // A clone: the search goes on.
        match search.clone().wait_found(Some(slice)) {
            Ok(_) | Err(urxe_verbs::Error::NoService { .. }) => return Ok(Some(true)),
            Err(urxe_verbs::Error::Unreachable { .. }) if asked.elapsed() >= slice => {
                if slice == left {
                    return Ok(Some(false));
                }
                if stop.load(Ordering::Relaxed) {
                    return Ok(None);
                }
            }
            Err(urxe_verbs::Error::Unreachable { .. }) => return Ok(Some(false)),
            Err(error) => return Err(error.into()),
        }
    }
}

/// What a host answers, if it does at all: ICMP echo, or TCP, by which one refuses what it does not
/// offer.
fn sign_of_life(route: &Route) -> Option<&'static str> {
    let echo = Echo::open(route.probe.source(), route.peer());
    if echo.and_then(|mut echo| echo.comes_back(0, ECHO_WAIT)).unwrap_or(false) {
        return Some("ICMP echo");
    }
    let answers = match TcpStream::connect_timeout(&route.peer(), TCP_WAIT) {
        Ok(_) => true,
        Err(error) => error.kind() == io::ErrorKind::ConnectionRefused,
    };
    answers.then_some("TCP")
}
