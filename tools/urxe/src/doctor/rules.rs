//! What the facts mean for a verbs program.

use super::facts::{Daemon, Device, Facts};
use super::trial::Tried;
use crate::roce_port::PortState;
use crate::run::MissingLibrary;
use serde::Serialize;
use std::fmt;
use urxe_types::PathMtu;
use urxe_wire::largest_path_mtu;

/// How bad something is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Level {
    /// As it should be.
    Ok,
    /// Programs run, though not as well as they might.
    Warning,
    /// No program runs.
    Problem,
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Level::Ok => "ok",
            Level::Warning => "warning",
            Level::Problem => "problem",
        })
    }
}

/// What came of one check.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Finding {
    /// The check.
    pub(super) name: &'static str,
    pub(super) level: Level,
    /// What was found.
    pub(super) says: String,
    /// What to do about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) mend: Option<String>,
}

impl Finding {
    fn ok(name: &'static str, says: impl Into<String>) -> Finding {
        Finding { name, level: Level::Ok, says: says.into(), mend: None }
    }

    fn warning(name: &'static str, says: impl Into<String>, mend: impl Into<String>) -> Finding {
        Finding { name, level: Level::Warning, says: says.into(), mend: Some(mend.into()) }
    }

    fn problem(name: &'static str, says: impl Into<String>, mend: impl Into<String>) -> Finding {
        Finding { name, level: Level::Problem, says: says.into(), mend: Some(mend.into()) }
    }
}

/// Every check, in the order in which a program would meet them.
pub(super) fn judge(facts: &Facts) -> Vec<Finding> {
    let checks = [rdma_core, perftest, shim, trial, memory, hardware, buffers, cores];
    let checks = checks.into_iter().filter_map(|check| check(facts));
    checks.chain(daemon(facts)).collect()
}

fn rdma_core(facts: &Facts) -> Option<Finding> {
    let name = "rdma-core";
    let install = "apt-get install libibverbs1 ibverbs-providers ibverbs-utils, or dnf install \
                   libibverbs libibverbs-utils, or apk add rdma-core";
    Some(match (&facts.libibverbs, &facts.librxe) {
        (None, _) => Finding::problem(name, "libibverbs.so.1 is not installed", install),
        (Some(_), None) => {
            let says = "libibverbs has no provider for rxe devices (librxe)";
            Finding::problem(
                name,
                says,
                "apt-get install ibverbs-providers, or dnf install rdma-core, or apk add rdma-core",
            )
        }
        (Some(_), Some(_)) if !facts.driver_file => {
            let says =
                "/etc/libibverbs.d/rxe.driver is missing, so libibverbs does not load librxe";
            Finding::problem(name, says, "echo 'driver rxe' > /etc/libibverbs.d/rxe.driver")
        }
        (Some(library), Some(provider)) => {
            Finding::ok(name, format!("{}, {}", library.display(), provider.display()))
        }
    })
}

fn perftest(facts: &Facts) -> Option<Finding> {
    Some(match facts.perftest {
        true => Finding::ok("perftest", "ib_write_bw and its like are there"),
        false => {
            let says = "ib_write_bw and its like are not installed; nothing else needs them";
            Finding::warning("perftest", says, "apt-get install perftest")
        }
    })
}

fn shim(facts: &Facts) -> Option<Finding> {
    Some(match &facts.library {
        Ok(path) => Finding::ok("shim", path.display().to_string()),
        Err(missing) => {
            let mend = match missing {
                MissingLibrary::Nowhere { .. } => {
                    "cargo build --release --workspace, or set URXE_SHIM to where it is"
                }
                MissingLibrary::NoPlace { .. } => {
                    "mkdir -m 700 DIR where programs can be executed from, and set TMPDIR to it"
                }
                MissingLibrary::Unspeakable { .. } => {
                    "copy it to a path without spaces and colons, and set URXE_SHIM to that"
                }
            };
            Finding::problem("shim", missing.to_string(), mend)
        }
    })
}

/// The daemons that run; if none of them can be used, whether one could be started.
fn daemon(facts: &Facts) -> Vec<Finding> {
    let is_in_the_way = |daemon: &Daemon| daemon.socket == facts.own_socket;
    let mut findings = Vec::new();
    for daemon in &facts.daemons {
        match &daemon.refuses {
            Some(reason) => findings.push(refusing(daemon, reason, is_in_the_way(daemon))),
            None => findings.extend(running(daemon)),
        }
    }
    // Where one that refuses has the socket, none can be started.
    let is_one_used = |daemon: &Daemon| daemon.refuses.is_none() || is_in_the_way(daemon);
    if !facts.daemons.iter().any(is_one_used) {
        findings.extend(starting(facts));
    }
    findings
}

/// A daemon that is there, and of no use.
fn refusing(daemon: &Daemon, reason: &str, is_in_the_way: bool) -> Finding {
    let says = format!("the one at {} cannot be used: {reason}", daemon.socket.display());
    let mend = "one of another version is to be restarted as that of this urxe, and one that is \
                stopped to go on (kill -CONT); or set URXE_SOCKET to another path, where `urxe \
                run` starts one";
    match is_in_the_way {
        true => Finding::problem("daemon", says, mend),
        false => Finding::warning("daemon", says, mend),
    }
}

/// Whether a daemon could be started, where none can be used.
fn starting(facts: &Facts) -> Vec<Finding> {
    let address = facts.address;
    if let Err(reason) = &facts.socket_place {
        let says =
            format!("none answers, and none can be started: no place for its socket: {reason}");
        let mend =
            "set XDG_RUNTIME_DIR to a directory of this user's, or URXE_SOCKET to a path in one";
        return vec![Finding::problem("daemon", says, mend)];
    }
    let other = "`urxe run --addr ADDR` with another address of this machine, such as 127.0.0.2";
    let refused = match facts.system_daemon_refuses {
        true => {
            "; the system's daemon does not let this user in (`adduser USER urxe` would, where a \
             package runs it; else urxed --mode 666)"
        }
        false => "",
    };
    let none = match facts.daemons.is_empty() && refused.is_empty() {
        true => "none runs",
        false => "none answers us",
    };
    let mut findings = vec![match &facts.port {
        PortState::Free => Finding::ok(
            "daemon",
            format!(
                "{none}{refused}; `urxe run` will start one on {address}, whose UDP port 4791 is \
                 free"
            ),
        ),
        PortState::Taken(owner) => {
            let whose = match owner.everywhere {
                true => "every address of this machine".to_owned(),
                false => address.to_string(),
            };
            let mut says =
                format!("none answers us, and {owner} has UDP port 4791 of {whose}{refused}");
            match facts.loopback {
                Some(loopback) => {
                    says += &format!(
                        "; `urxe run` will start one on {loopback}, which only programs of this \
                         machine reach"
                    );
                    Finding::warning("daemon", says, other)
                }
                None => Finding::problem(
                    "daemon",
                    says,
                    "end that program, which `ss -lunp sport = :4791` shows to root, or let it \
                     have the port of one address only",
                ),
            }
        }
        PortState::Refused(reason) => {
            let says = format!("{none}{refused}; UDP port 4791 of {address} is refused: {reason}");
            Finding::problem("daemon", says, other)
        }
    }];
    if let Some((interface, link_mtu)) = &facts.link {
        let mtu = largest_path_mtu(*link_mtu, address.is_ipv6());
        findings.push(path_mtu(
            format!("{interface} has MTU {link_mtu}"),
            mtu.map_or(0, PathMtu::bytes),
        ));
    }
    findings
}

/// A daemon that answers, and its devices.
fn running(daemon: &Daemon) -> Vec<Finding> {
    let socket = daemon.socket.display();
    let pid = daemon.pid.map_or("unknown".into(), |pid| pid.to_string());
    let firmware = daemon.devices.first().map_or("unknown", |device| &device.firmware);
    let mut findings =
        vec![Finding::ok("daemon", format!("process {pid}, version {firmware}, at {socket}"))];
    let mut devices: Vec<Vec<Finding>> = daemon.devices.iter().map(device).collect();
    devices.extend(daemon.closed.iter().map(|(name, reason)| {
        let says = format!("{name} cannot be opened: {reason}");
        vec![Finding::problem("device", says, "the daemon's log may say more; or restart it")]
    }));
    if devices.is_empty() {
        let says = format!("the daemon at {socket} has none");
        findings.push(Finding::problem("device", says, "start it with --addr or --interface"));
    }
    let is_fine = |device: &Vec<Finding>| device.iter().all(|part| part.level < Level::Problem);
    let is_one_fine = devices.iter().any(is_fine);
    findings.extend(devices.into_iter().flatten().map(|mut part| {
        // Programs can take another.
        if is_one_fine {
            part.level = part.level.min(Level::Warning);
        }
        part
    }));
    findings
}

/// A device that can be opened.
fn device(device: &Device) -> Vec<Finding> {
    let gids = device.gids.iter().map(|(index, addr)| format!("GID {index} = {addr}"));
    let gids: Vec<String> = gids.collect();
    let says = format!("{}: {}", device.name, gids.join(", "));
    let finding = if gids.is_empty() {
        let says = format!("{} has no address", device.name);
        Finding::problem("device", says, "ip address add ... to its interface")
    } else if !device.active {
        Finding::problem("device", format!("{says}; its port is down"), "ip link set ... up")
    } else {
        Finding::ok("device", says)
    };
    vec![finding, path_mtu(device.name.clone(), device.mtu.into())]
}

fn path_mtu(what: String, bytes: usize) -> Finding {
    let says = format!("{what}: path MTU {bytes}");
    match bytes {
        0 => {
            let says = format!("{what}, too little for any path MTU");
            Finding::problem("path MTU", says, "ip link set ... mtu 1500, or more")
        }
        1..1024 => Finding::warning(
            "path MTU",
            format!("{says}; programs that ask for 1024 will fail"),
            "ip link set ... mtu 1500, or more",
        ),
        _ => Finding::ok("path MTU", says),
    }
}

/// What a program and a daemon do, done.
fn trial(facts: &Facts) -> Option<Finding> {
    let name = "trial";
    let failure = match &facts.trial {
        Ok(Tried { without_daemon: None }) => {
            let says =
                "system calls, /proc/self/mem and an RDMA WRITE through a daemon of its own work";
            return Some(Finding::ok(name, says));
        }
        Ok(Tried { without_daemon: Some(reason) }) => {
            let says = format!(
                "system calls and /proc/self/mem work; an RDMA WRITE was not tried, since a daemon \
                 for that could have no address: {reason}"
            );
            return Some(Finding::ok(name, says));
        }
        Err(failure) => failure,
    };
    let says = format!("{}: {}", failure.step, failure.reason);
    let mend = match (facts.is_filtered, failure.step.contains("/proc/")) {
        (true, _) => {
            "a seccomp filter is on this process (a container's?): let it allow this system call"
        }
        (false, true) => {
            "let /proc be mounted, and the program be dumpable (prctl PR_SET_DUMPABLE); a security \
             module or the kernel's option proc_mem.force_override may forbid it too"
        }
        (false, false) => "see whether limits (ulimit -a) or a security module forbid it",
    };
    Some(Finding::problem(name, says, mend))
}

fn memory(facts: &Facts) -> Option<Finding> {
    let name = "memory";
    Some(match (facts.longest_mapped, facts.userfaultfd) {
        (0, _) => Finding::warning(
            name,
            "URXE_MR=copy: memory of stock programs is reached by system calls, which costs half \
             the speed of large messages",
            "unset URXE_MR",
        ),
        (_, true) => Finding::ok(
            name,
            "memory of stock programs is mapped where that is safe (`urxe res mr` says which is)",
        ),
        (_, false) => Finding::ok(
            name,
            "memory of stock programs of one thread is mapped where that is safe (`urxe res mr` \
             says which is); of programs of several threads too with \
             sysctl vm.unprivileged_userfaultfd=1",
        ),
    })
}

fn hardware(facts: &Facts) -> Option<Finding> {
    let devices = facts.kernel_devices.join(", ");
    (!devices.is_empty()).then(|| {
        let says = format!(
            "the kernel has RDMA devices ({devices}); under `urxe run` programs see urxe's only"
        );
        Finding::ok("hardware", says)
    })
}

/// Bytes that a message burst may need.
const BUFFER_MIN: u64 = 1 << 20;

fn buffers(facts: &Facts) -> Option<Finding> {
    let limits = [("rmem_max", facts.rmem_max), ("wmem_max", facts.wmem_max)];
    let small = |&(_, limit): &(_, Option<u64>)| limit.is_some_and(|limit| limit < BUFFER_MIN);
    let (name, limit) = limits.into_iter().find(small)?;
    let says = format!("net.core.{name} is {} bytes: bursts may be lost and sent again", limit?);
    Some(Finding::warning("buffers", says, format!("sysctl net.core.{name}=4194304")))
}

fn cores(facts: &Facts) -> Option<Finding> {
    (facts.cores < 2).then(|| {
        let says = "one processor for the daemon and the program: they take turns";
        Finding::warning("cores", says, "more processors, or a larger cgroup share")
    })
}

#[cfg(test)]
mod tests {
    use super::super::trial::Failure;
    use super::*;
    use crate::roce_port::Owner;

    /// A machine on which everything is as it should be.
    fn healthy() -> Facts {
        Facts {
            libibverbs: Some("/usr/lib/libibverbs.so.1".into()),
            librxe: Some("/usr/lib/libibverbs/librxe-rdmav34.so".into()),
            driver_file: true,
            perftest: true,
            library: Ok("/opt/liburxe_shim.so".into()),
            daemons: Vec::new(),
            own_socket: "/run/user/7/urxe/urxed.sock".into(),
            system_daemon_refuses: false,
            address: [10, 0, 0, 1].into(),
            port: PortState::Free,
            loopback: None,
            socket_place: Ok(()),
            link: Some(("eth0".into(), 1500)),
            trial: Ok(Tried::default()),
            is_filtered: false,
            userfaultfd: true,
            longest_mapped: 1 << 20,
            kernel_devices: Vec::new(),
            rmem_max: Some(4 << 20),
            wmem_max: Some(4 << 20),
            cores: 4,
        }
    }

    /// The one finding of a check, on a machine that differs from the healthy one.
    fn finding(name: &str, change: impl FnOnce(&mut Facts)) -> Option<Finding> {
        let mut facts = healthy();
        change(&mut facts);
        judge(&facts).into_iter().find(|finding| finding.name == name)
    }

    #[track_caller]
    fn assert_finding(name: &str, level: Level, part: &str, change: impl FnOnce(&mut Facts)) {
        let found = finding(name, change).expect("a finding");
        assert_eq!(found.level, level, "{found:?}");
        assert_eq!(found.mend.is_some(), level > Level::Ok, "{found:?}");
        let text = format!("{} {}", found.says, found.mend.unwrap_or_default());
        assert!(text.contains(part), "{part:?} is not in {text:?}");
    }

    #[track_caller]
    fn assert_mend(name: &str, part: &str, change: impl FnOnce(&mut Facts)) {
        let mend = finding(name, change).and_then(|found| found.mend).expect("advice");
        assert!(mend.contains(part) && !mend.contains("cargo"), "{mend}");
    }

    fn daemon_with(mtu: u16, active: bool, gids: &[(u8, std::net::IpAddr)]) -> Daemon {
        let (name, firmware, gids) = ("urxe0".into(), "0.1.0".into(), gids.to_vec());
        let devices = vec![Device { name, firmware, active, mtu, gids }];
        Daemon { socket: "/run/x.sock".into(), pid: Some(77), devices, ..Daemon::default() }
    }

    #[test]
    fn nothing_is_wrong_with_a_healthy_machine() {
        let findings = judge(&healthy());
        assert!(findings.iter().all(|finding| finding.level == Level::Ok), "{findings:?}");
        for name in ["hardware", "buffers", "cores"] {
            assert!(finding(name, |_| ()).is_none(), "{name} is of no interest here");
        }
    }

    #[test]
    fn each_part_of_rdma_core_is_needed() {
        use Level::Problem;
        assert_finding("rdma-core", Problem, "libibverbs1", |facts| facts.libibverbs = None);
        assert_finding("rdma-core", Problem, "ibverbs-providers", |facts| facts.librxe = None);
        assert_finding("rdma-core", Problem, "rxe.driver", |facts| facts.driver_file = false);
        assert_finding("rdma-core", Level::Ok, "librxe-rdmav34.so", |_| ());
        assert_finding("perftest", Level::Warning, "apt-get", |facts| facts.perftest = false);
    }

    #[test]
    fn without_the_shim_nothing_runs() {
        let paths = || vec![("/a/b".into(), "not there".into())];
        let without = |missing| move |facts: &mut Facts| facts.library = Err(missing);
        let gone = || without(MissingLibrary::Nowhere { looked: paths() });
        assert_finding("shim", Level::Problem, "/a/b", gone());
        assert_finding("shim", Level::Problem, "cargo build", gone());
        let no_place = MissingLibrary::NoPlace { tried: paths() };
        assert_mend("shim", "set TMPDIR", without(no_place));
        let unspeakable = MissingLibrary::Unspeakable { path: "/a b".into() };
        assert_mend("shim", "set URXE_SHIM", without(unspeakable));
    }

    #[test]
    fn a_daemon_runs_or_could_be_started() {
        assert_finding("daemon", Level::Ok, "10.0.0.1", |_| ());
        let owner = Owner { program: Some("x (process 9)".into()), everywhere: false };
        let taken = |facts: &mut Facts| {
            facts.port = PortState::Taken(owner.clone());
            facts.loopback = Some([127, 0, 0, 3].into());
        };
        assert_finding("daemon", Level::Warning, "x (process 9) has UDP port 4791 of 10.0.", taken);
        assert_finding("daemon", Level::Warning, "will start one on 127.0.0.3", taken);
        assert_finding("daemon", Level::Warning, "--addr", taken);
        assert_finding("daemon", Level::Problem, "does not let this user in", |facts| {
            facts.port = PortState::Taken(Owner::default());
            facts.system_daemon_refuses = true;
        });
        let everywhere = |facts: &mut Facts| {
            facts.port = PortState::Taken(Owner { everywhere: true, ..owner.clone() });
        };
        assert_finding(
            "daemon",
            Level::Problem,
            "x (process 9) has UDP port 4791 of ev",
            everywhere,
        );
        assert_finding("daemon", Level::Problem, "XDG_RUNTIME_DIR", |facts| {
            facts.socket_place = Err("/run/user/7: No such file or directory".into());
        });
        assert_finding("daemon", Level::Problem, "not today", |facts| {
            facts.port = PortState::Refused("not today".into());
        });
        // The port of a daemon that answers is taken, and rightly so.
        assert_finding("daemon", Level::Ok, "process 77", |facts| {
            facts.port = PortState::Taken(Owner::default());
            facts.daemons = vec![daemon_with(1024, true, &[(0, [10, 0, 0, 1].into())])];
        });
    }

    #[test]
    fn a_daemon_that_is_of_no_use_is_none_that_does_not_run() {
        let refusing = |socket: &str| {
            let daemons = vec![Daemon {
                socket: socket.into(),
                refuses: Some("it speaks version 10".into()),
                ..Daemon::default()
            }];
            move |facts: &mut Facts| facts.daemons = daemons
        };
        // `urxe run` can start no other there.
        let own = "/run/user/7/urxe/urxed.sock";
        assert_finding("daemon", Level::Problem, "it speaks version 10", refusing(own));
        // And starts one of its own beside that of the system.
        let system = "/run/urxe/urxed.sock";
        assert_finding("daemon", Level::Warning, "it speaks version 10", refusing(system));
        let mut facts = healthy();
        refusing(system)(&mut facts);
        let says = judge(&facts).into_iter().map(|finding| finding.says);
        assert_eq!(
            says.filter(|says| says.contains("none answers us; `urxe run` will")).count(),
            1
        );
        assert_finding("daemon", Level::Ok, "does not let this user in", |facts| {
            facts.system_daemon_refuses = true;
        });
    }

    #[test]
    fn one_device_that_programs_can_use_is_enough() {
        let addr = [(2, [10, 0, 0, 1].into())];
        let good = daemon_with(1024, true, &addr);
        let devices = |daemon: Daemon| {
            let mut facts = healthy();
            facts.daemons = vec![daemon];
            let findings = judge(&facts).into_iter();
            let of_devices = findings.filter(|finding| finding.name == "device");
            of_devices.map(|finding| (finding.level, finding.says)).collect::<Vec<_>>()
        };
        let levels = |daemon| devices(daemon).into_iter().map(|(level, _)| level);
        let mut one_is_down = good.clone();
        one_is_down.devices.extend(daemon_with(1024, false, &addr).devices);
        assert!(levels(one_is_down).eq([Level::Ok, Level::Warning]));
        let closed = vec![("urxe1".to_owned(), "too many contexts".to_owned())];
        let one_is_closed = Daemon { closed: closed.clone(), ..good };
        assert!(levels(one_is_closed).eq([Level::Ok, Level::Warning]));
        let all_are_closed = Daemon { closed, ..Daemon::default() };
        let said = devices(all_are_closed);
        assert!(said[0].0 == Level::Problem && said[0].1.contains("too many contexts"), "{said:?}");
        assert!(levels(Daemon::default()).eq([Level::Problem]), "it has none");
    }

    #[test]
    fn a_device_needs_an_address_and_a_link() {
        let addr = [(2, [10, 0, 0, 1].into())];
        let with = |daemon| move |facts: &mut Facts| facts.daemons = vec![daemon];
        let up = daemon_with(1024, true, &addr);
        assert_finding("device", Level::Ok, "GID 2 = 10.0.0.1", with(up));
        assert_finding("device", Level::Problem, "down", with(daemon_with(1024, false, &addr)));
        assert_finding("device", Level::Problem, "no address", with(daemon_with(1024, true, &[])));
        assert_finding("path MTU", Level::Warning, "512", with(daemon_with(512, true, &addr)));
    }

    #[test]
    fn the_path_mtu_follows_from_the_links() {
        let link = |mtu| move |facts: &mut Facts| facts.link = Some(("eth0".into(), mtu));
        assert_finding("path MTU", Level::Ok, "path MTU 1024", link(1500));
        assert_finding("path MTU", Level::Ok, "path MTU 4096", link(9000));
        assert_finding("path MTU", Level::Warning, "path MTU 256", link(576));
        assert_finding("path MTU", Level::Problem, "too little", link(100));
    }

    #[test]
    fn a_step_of_the_trial_that_fails_is_a_problem() {
        let failed = |step: &str| {
            let (step, reason) = (step.into(), "Operation not permitted".into());
            Err(Failure { step, reason })
        };
        assert_finding("trial", Level::Problem, "a step: Operation not permitted", |facts| {
            facts.trial = failed("a step");
        });
        assert_finding("trial", Level::Problem, "PR_SET_DUMPABLE", |facts| {
            facts.trial = failed("opening /proc/self/mem");
        });
        assert_finding("trial", Level::Problem, "seccomp", |facts| {
            facts.trial = failed("a step");
            facts.is_filtered = true;
        });
        assert_finding("trial", Level::Ok, "was not tried, since", |facts| {
            facts.trial = Ok(Tried { without_daemon: Some("lo is down".into()) });
        });
        // A filter that forbids nothing of ours does no harm.
        assert_finding("trial", Level::Ok, "RDMA WRITE", |facts| facts.is_filtered = true);
    }

    #[test]
    fn requests_are_checked_when_they_are_made() {
        let refused = |facts: &mut Facts| facts.userfaultfd = false;
        assert_finding("memory", Level::Ok, "programs of several threads too", refused);
        assert_finding("memory", Level::Warning, "unset URXE_MR", |facts| facts.longest_mapped = 0);
    }

    #[test]
    fn obstacles_to_speed_are_warnings() {
        assert_finding("buffers", Level::Warning, "212992", |facts| facts.wmem_max = Some(212_992));
        assert_finding("cores", Level::Warning, "one processor", |facts| facts.cores = 1);
        assert_finding("hardware", Level::Ok, "mlx5_0", |facts| {
            facts.kernel_devices = vec!["mlx5_0".into()];
        });
    }
}
