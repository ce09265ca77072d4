//! Starting and ending: sockets alive and stale, configuration, and the `urxed` binary.

use crate::harness::{
    Client, End, Kind, Running, eventually, fresh_addr, fresh_path, start, try_start,
};
use rustix::process::{Pid, Resource, Rlimit, Signal, kill_process, prlimit};
use std::io::{BufRead, BufReader};
use std::net::IpAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};
use urxe_daemon::{Config, Daemon, StartError};
use urxe_shm::control::channel::Channel;
use urxe_shm::control::{CmRequest, Request};
use urxe_shm::sysfs_directory;
use urxe_types::{SendData, SendOp};

/// A running `urxed`, and the line with which it said that it was ready.
pub(crate) fn urxed(arguments: &[&str]) -> (Running, String) {
    urxed_of(Path::new(env!("CARGO_BIN_EXE_urxed")), arguments)
}

/// The same of a copy of it.
fn urxed_of(program: &Path, arguments: &[&str]) -> (Running, String) {
    let mut command = Command::new(program);
    command.args(arguments).args(["--ready-fd", "1"]);
    let mut child = Running::start(command.stdout(Stdio::piped()).stderr(Stdio::piped()));
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    (child, line)
}

/// A `urxed` that does not come up.
fn urxed_fails(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_urxed"));
    command.args(arguments).env_remove("URXE_SOCKET").output().unwrap()
}

pub(crate) fn signal(child: &Child, signal: Signal) {
    kill_process(Pid::from_child(child), signal).unwrap();
}

/// Starts `urxed` with two slots on one fresh address.
pub(crate) fn urxed_at(socket: &Path) -> (Running, String) {
    urxed_with(socket, &["--slots", "2"])
}

/// Starts `urxed` on one fresh address; somebody may have had the first ones.
pub(crate) fn urxed_with(socket: &Path, others: &[&str]) -> (Running, String) {
    copy_with(Path::new(env!("CARGO_BIN_EXE_urxed")), socket, others)
}

/// The same of a copy of it.
pub(crate) fn copy_with(program: &Path, socket: &Path, others: &[&str]) -> (Running, String) {
    loop {
        let addr = fresh_addr().to_string();
        let socket = socket.to_str().unwrap();
        let (mut child, line) =
            urxed_of(program, &[&["--addr", &addr, "--socket", socket], others].concat());
        if !line.is_empty() {
            assert!(line.contains(&addr), "{line}");
            return (child, line);
        }
        child.wait();
        let sentence = child.rest_of_stderr();
        assert!(sentence.contains("4791"), "{sentence}");
    }
}

#[test]
fn urxed_says_that_it_is_ready_serves_and_cleans_up() {
    for end in [Signal::TERM, Signal::INT] {
        let socket = fresh_path();
        let (mut child, line) = urxed_at(&socket);
        assert!(line.starts_with(&format!("urxed: ready on {}: urxe0 = ", socket.display())));
        assert!(line.contains("mtu 4096, udp, lo"), "{line}");
        let mut client = Client::connect(&socket);
        client.open("urxe0");
        signal(&child, end);
        assert!(child.wait().success());
        assert!(!socket.exists());
        assert!(!sysfs_directory(&socket).exists());
    }
}

#[test]
fn the_last_of_an_option_that_is_given_twice_counts() {
    let socket = fresh_path();
    let (mut child, _) = urxed_with(&socket, &["--slots", "1", "--mode", "600", "--mode", "640"]);
    let mode = std::fs::metadata(&socket).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o640);
    signal(&child, Signal::TERM);
    assert!(child.wait().success());
}

/// Two connected programs write to each other for as long as the daemon lives.
fn keep_busy(socket: &Path) -> std::thread::JoinHandle<()> {
    let mut a = End::at(socket, "urxe0", Kind::Process, 1 << 20);
    let mut b = End::at(socket, "urxe0", Kind::Shared, 1 << 20);
    a.connect(b.addr, b.qp.created.qpn);
    b.connect(a.addr, a.qp.created.qpn);
    std::thread::spawn(move || {
        let b = b;
        let write = SendOp::Write { remote_addr: b.mr.addr, rkey: b.mr.rkey, imm: None };
        let sges = [a.mr.sge(0, 1 << 20)];
        let mut posted = 0;
        loop {
            posted -= a.cq.poll().len();
            while posted < 100 {
                a.post_send(1, write, SendData::Sges(&sges));
                posted += 1;
            }
            a.client.ring(&a.qp);
            if a.client.channel.call(&Request::ListDevices, &[]).is_err() {
                return;
            }
        }
    })
}

#[test]
fn a_busy_daemon_ends_at_once_and_leaves_no_files() {
    for end in [Signal::TERM, Signal::INT] {
        let socket = fresh_path();
        let (mut child, _) = urxed_at(&socket);
        let programs = [keep_busy(&socket), keep_busy(&socket)];
        let mut observer = Client::connect(&socket);
        eventually("it is busy", || {
            (observer.counter("urxe0", "tx_datagrams") > 1000).then_some(())
        });
        let before = Instant::now();
        signal(&child, end);
        assert!(child.wait().success());
        // Generous: a busy machine is no news.
        assert!(before.elapsed() < Duration::from_secs(10), "{:?}", before.elapsed());
        let name = socket.file_stem().unwrap().to_str().unwrap();
        let is_left = |entry: std::io::Result<std::fs::DirEntry>| {
            entry.unwrap().file_name().to_str().unwrap().starts_with(name)
        };
        assert!(!std::fs::read_dir(socket.parent().unwrap()).unwrap().any(is_left));
        for program in programs {
            program.join().unwrap();
        }
    }
}

#[test]
fn a_hangup_does_not_end_the_daemon() {
    let socket = fresh_path();
    let (mut child, _) = urxed_at(&socket);
    signal(&child, Signal::HUP);
    for _ in 0..10 {
        Client::connect(&socket).open("urxe0");
        assert!(child.try_wait().unwrap().is_none());
    }
    signal(&child, Signal::TERM);
    assert!(child.wait().success());
    assert!(!socket.exists());
}

/// SLOT-120: what it says goes to a terminal that is gone.
#[test]
fn a_daemon_goes_on_when_nobody_reads_what_it_says() {
    let socket = fresh_path();
    let (mut child, _) = urxed_with(&socket, &["--drain", "600"]);
    let mut client = Client::connect(&socket);
    let context = client.open("urxe0");
    drop(child.stderr.take());
    signal(&child, Signal::HUP);
    signal(&child, Signal::TERM);
    // That it is ending, it says before.
    eventually("the socket goes", || (!socket.exists()).then_some(()));
    client.alloc_pd(context);
    assert!(child.try_wait().unwrap().is_none());
    drop(client);
    assert!(child.wait().success());
}

/// Processor time of a process so far, in ticks of the clock.
fn ticks(child: &Child) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap();
    let fields = stat.rsplit_once(')').unwrap().1.split_whitespace();
    fields.skip(11).take(2).map(|field| field.parse::<u64>().unwrap()).sum()
}

#[test]
fn a_daemon_without_descriptors_waits_for_one_and_does_not_spin() {
    let socket = fresh_path();
    let (mut child, _) = urxed_at(&socket);
    let mut first = Client::connect(&socket);
    // Descriptors have the lowest numbers that are free.
    let open = std::fs::read_dir(format!("/proc/{}/fd", child.id())).unwrap().count() as u64;
    let limit = Rlimit { current: Some(open + 8), maximum: Some(open + 8) };
    prlimit(Some(Pid::from_child(&child)), Resource::Nofile, limit).unwrap();
    let mut others: Vec<_> =
        (0..40).map(|_| urxe_shm::control::channel::Channel::connect(&socket).unwrap()).collect();
    eventually("one is turned away", || {
        (first.counter("urxe0", "sessions_refused") > 0).then_some(())
    });
    let before = ticks(&child);
    std::thread::sleep(Duration::from_millis(500));
    // There are 100 in a second.
    assert!(ticks(&child) - before < 25, "it uses the processor to no purpose");
    others.clear();
    eventually("there is room again", || {
        first.call(Request::OpenDevice { name: "urxe0".into() }).ok()
    });
    signal(&child, Signal::TERM);
    assert!(child.wait().success());
}

/// SHARE-121: the daemon has 768 descriptors, and two programs of its user want them all.
#[test]
fn programs_leave_descriptors_to_the_broker() {
    let socket = fresh_path();
    let (mut child, _) = urxed_at(&socket);
    let limit = Rlimit { current: Some(768), maximum: Some(768) };
    prlimit(Some(Pid::from_child(&child)), Resource::Nofile, limit).unwrap();
    let mut programs = [Client::connect(&socket), Client::connect(&socket)];
    for program in &mut programs {
        let create = Request::Cm(CmRequest::CreateChannel);
        let refusal = (0..2 * 768).find_map(|_| program.call(create.clone()).err()).unwrap();
        assert!(refusal.message.starts_with("descriptors:"), "{}", refusal.message);
    }
    // Those that come now are of the same user. Some of them may find descriptors that the requests
    // above had for a moment.
    let others: Vec<_> = (0..200).map(|_| Channel::connect(&socket).unwrap()).collect();
    eventually("they are let in or turned away", || {
        let [opened, refused] = ["sessions_opened", "sessions_refused"]
            .map(|counter| programs[0].counter("urxe0", counter));
        (opened + refused >= 2 + 200 && refused > 100).then_some(())
    });
    eventually("their connections are closed, and some descriptors are left", || {
        let open = std::fs::read_dir(format!("/proc/{}/fd", child.id())).unwrap().count();
        (open <= 768 - 100).then_some(())
    });
    drop((programs, others));
    signal(&child, Signal::TERM);
    assert!(child.wait().success());
}

#[test]
fn the_socket_and_the_files_of_a_killed_daemon_are_replaced() {
    let socket = fresh_path();
    let (mut child, _) = urxed_at(&socket);
    signal(&child, Signal::KILL);
    child.wait();
    assert!(socket.exists());
    let stale = sysfs_directory(&socket).join("class/infiniband/urxe9");
    std::fs::create_dir(&stale).unwrap();
    let (mut child, _) = urxed_at(&socket);
    assert!(!stale.exists());
    Client::connect(&socket).open("urxe0");
    signal(&child, Signal::TERM);
    child.wait();
}

#[test]
fn the_socket_of_a_living_daemon_is_not() {
    let daemon = start(1);
    let socket = daemon.socket().to_path_buf();
    let error = try_start(1, |config| config.socket = socket.clone()).unwrap_err();
    assert!(matches!(&error, StartError::SocketInUse(path) if path == daemon.socket()), "{error}");
    assert!(sysfs_directory(&socket).exists(), "its files are left alone");
    assert!(error.to_string().contains("another urxed answers there"));
    Client::connect(daemon.socket()).open("urxe0");
}

#[test]
fn a_file_that_is_no_socket_is_left_alone() {
    let path = fresh_path();
    std::fs::write(&path, "precious").unwrap();
    let error = try_start(1, |config| config.socket = path.clone()).unwrap_err();
    assert!(matches!(error, StartError::NotASocket(_)), "{error}");
    assert_eq!(std::fs::read(&path).unwrap(), b"precious");
    std::fs::remove_file(path).unwrap();
}

#[test]
fn a_dropped_handle_ends_the_daemon_and_its_sessions() {
    let daemon = start(1);
    let socket = daemon.socket().to_path_buf();
    let addr = daemon.devices()[0].addrs[0];
    let mut client = Client::connect(&socket);
    drop(daemon);
    assert!(!socket.exists());
    assert!(client.channel.call(&urxe_shm::control::Request::ListDevices, &[]).is_err());
    // The address is free again, as soon as no child that another test is just starting holds a
    // copy of its socket.
    let mut config = Config::new([addr]);
    config.socket = socket;
    eventually("the address is free", || Daemon::start(config.clone()).ok());
}

#[test]
fn an_address_that_is_taken_is_named() {
    let daemon = start(1);
    let addr = daemon.devices()[0].addrs[0];
    let mut config = Config::new([addr]);
    config.socket = fresh_path();
    let error = Daemon::start(config.clone()).unwrap_err().to_string();
    assert!(error.contains(&addr.to_string()) && error.contains("4791"), "{error}");
    assert!(!config.socket.exists());
}

#[test]
fn mistakes_on_the_command_line_are_sentences() {
    let socket = fresh_path();
    let socket = socket.to_str().unwrap();
    let cases: [(&[&str], &str); 10] = [
        (&["--socket", socket], "no address and no interface: give at least one"),
        (&["--addr", "192.0.2.1", "--socket", socket], "192.0.2.1 is no address of this machine"),
        (&["--addr", "127.31.0.1", "--addr", "127.31.0.1"], "given twice"),
        (&["--interface", "eth-none", "--socket", socket], "eth-none is no network interface"),
        (&["--interface", "lo", "--interface", "lo"], "interface lo is given twice"),
        (&["--addr", "127.31.0.1", "--mode", "rw"], "expected octal"),
        (&["--addr", "127.31.0.1", "--fault", "dorp=1%"], "dorp=1%"),
        (&["--addr", "127.31.0.1", "--linger", "0"], "--linger"),
        (&["--addr", "nonsense"], "invalid IP address"),
        (&["--config", "/nonexistent/urxed.toml"], "/nonexistent/urxed.toml"),
    ];
    for (arguments, sentence) in cases {
        let output = urxed_fails(arguments);
        assert!(!output.status.success(), "{arguments:?}");
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert!(stderr.contains(sentence), "{arguments:?}: {stderr}");
        assert!(!Path::new(socket).exists());
    }
}

#[test]
fn a_configuration_file_sets_what_the_command_line_does_not() {
    let file = fresh_path().with_extension("toml");
    let (from_file, from_line) = (fresh_path(), fresh_path());
    let text = format!(
        "addr = [\"{}\"]\nsocket = {:?}\nmode = \"640\"\n",
        fresh_addr(),
        from_file.to_str().unwrap()
    );
    std::fs::write(&file, text).unwrap();
    let arguments = ["--config", file.to_str().unwrap(), "--socket", from_line.to_str().unwrap()];
    let (mut child, line) = urxed(&arguments);
    assert!(line.contains("urxe0"), "{line}");
    assert!(from_line.exists() && !from_file.exists());
    use std::os::unix::fs::PermissionsExt;
    let mode = std::fs::metadata(&from_line).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o640);
    signal(&child, Signal::TERM);
    child.wait();
    std::fs::remove_file(file).unwrap();
}

#[test]
fn urxed_warns_when_stock_programs_will_find_no_device() {
    let socket = fresh_path();
    let in_the_way = sysfs_directory(&socket);
    std::fs::write(&in_the_way, "").unwrap();
    let (mut child, _) = urxed_at(&socket);
    signal(&child, Signal::TERM);
    child.wait();
    let stderr = child.rest_of_stderr();
    let warning = "stock rdma-core (`urxe run`, ibv_devices ...) will find no device";
    assert!(stderr.contains(warning), "{stderr}");
    assert!(stderr.contains(in_the_way.to_str().unwrap()), "{stderr}");
    std::fs::remove_file(in_the_way).unwrap();
}

#[test]
fn help_teaches() {
    let output = urxed_fails(&["--help"]);
    let help = String::from_utf8(output.stdout).unwrap();
    let options =
        ["--addr", "--slots", "--port-backend", "--wire", "--fault", "--capture", "--linger"];
    for word in options.into_iter().chain(["Examples:", "CAP_NET_RAW", "urxe run"]) {
        assert!(help.contains(word), "{word}");
    }
}

#[test]
fn a_daemon_that_does_not_start_leaves_the_capture_of_another_alone() {
    let path = fresh_path().with_extension("pcapng");
    std::fs::write(&path, "a capture").unwrap();
    let other = crate::harness::start_with(1, |_| ());
    let start = |addr: IpAddr, socket: PathBuf| {
        let mut config = Config::new([addr]);
        (config.socket, config.capture) = (socket, Some(path.clone()));
        Daemon::start(config).unwrap_err()
    };
    let port = start(other.devices()[0].addrs[0], fresh_path());
    assert!(matches!(port, StartError::Port(_)), "{port}");
    let socket = start(fresh_addr(), other.socket().to_owned());
    assert!(matches!(socket, StartError::SocketInUse(_)), "{socket}");
    assert_eq!(std::fs::read(&path).unwrap(), b"a capture");
    std::fs::remove_file(path).unwrap();
}

#[test]
fn each_device_has_its_own_capture() {
    let path = fresh_path().with_extension("pcapng");
    let of = |device: &str| path.with_extension(format!("{device}.pcapng"));
    let daemon = crate::harness::start_with(2, |config| config.capture = Some(path.clone()));
    let (mut a, mut b) = (
        crate::harness::End::new(&daemon, 0, crate::harness::Kind::Shared, 64),
        crate::harness::End::new(&daemon, 1, crate::harness::Kind::Shared, 64),
    );
    a.connect(b.addr, b.qp.created.qpn);
    b.connect(a.addr, a.qp.created.qpn);
    b.post_recv(1, &[]);
    a.exchange(urxe_types::SendOp::Send(urxe_types::Extra::None), &[]);
    drop(daemon);
    for device in ["urxe0", "urxe1"] {
        let bytes = std::fs::read(of(device)).unwrap();
        assert_eq!(bytes[..4], [0x0a, 0x0d, 0x0d, 0x0a], "pcapng begins like this");
        assert!(bytes.len() > 200, "{} bytes", bytes.len());
        std::fs::remove_file(of(device)).unwrap();
    }
}
