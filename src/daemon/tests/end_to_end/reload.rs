//! A configuration file that is read again while `urxed` runs.

use crate::harness::{Client, End, Kind, Running, eventually, fresh_addr, fresh_path};
use crate::service::Manager;
use crate::startup::signal;
use rustix::process::{Signal, geteuid};
use std::io::{BufRead, BufReader, Lines, Read, Write};
use std::net::{IpAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{ChildStderr, Command, Stdio};
use urxe_shm::control::channel::Channel;
use urxe_shm::control::{CmRequest, Reply, Request};
use urxe_types::{Extra, SendOp};

/// A daemon with a configuration file, and what it says.
struct Configured {
    file: PathBuf,
    socket: PathBuf,
    /// What it serves.
    addr: IpAddr,
    daemon: Running,
    said: Lines<BufReader<ChildStderr>>,
}

impl Configured {
    /// Starts one on one fresh address with these options and these lines in its file.
    fn start(options: &[&str], lines: &str) -> Configured {
        loop {
            let (addr, file) = (fresh_addr(), fresh_path().with_extension("toml"));
            let socket = fresh_path();
            std::fs::write(&file, format!("addr = [\"{addr}\"]\n{lines}")).unwrap();
            let mut command = Command::new(env!("CARGO_BIN_EXE_urxed"));
            command.args(["--config", file.to_str().unwrap()]).args(options);
            command.args(["--socket", socket.to_str().unwrap()]);
            let mut daemon = Running::start(command.stderr(Stdio::piped()));
            let said = BufReader::new(daemon.stderr.take().unwrap()).lines();
            let mut begun = Configured { file, socket, addr, daemon, said };
            let last = begun
                .said
                .by_ref()
                .map_while(Result::ok)
                .find(|line| line.contains("ready on") || line.contains("4791"));
            match last {
                Some(line) if line.contains("ready on") => return begun,
                // Somebody else has the address.
                Some(_) => {}
                None => panic!("it did not begin"),
            }
        }
    }

    /// Has it read these lines in its file.
    fn reload(&mut self, lines: &str) {
        self.reload_all(&format!("addr = [\"{}\"]\n{lines}", self.addr));
    }

    fn reload_all(&mut self, text: &str) {
        std::fs::write(&self.file, text).unwrap();
        signal(&self.daemon, Signal::HUP);
    }

    /// The next so many lines that it says, without what they begin with.
    fn says(&mut self, count: usize) -> Vec<String> {
        let begin = format!("urxed: {}: ", self.file.display());
        let line = || self.said.next().unwrap().unwrap();
        let mut lines: Vec<String> =
            std::iter::repeat_with(line).take(count).map(|line| line.replace(&begin, "")).collect();
        lines.sort();
        lines
    }

    /// Connects, and says hello; the answer is a greeting or a refusal.
    fn greet(&self) -> (Channel, Reply) {
        let mut channel = Channel::connect(&self.socket).unwrap();
        let hello = Request::Hello { program: "test".into() };
        let (reply, _) = channel.call(&hello, &[]).unwrap();
        (channel, reply)
    }
}

impl Drop for Configured {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.file);
        for path in [&self.socket, &urxe_shm::sysfs_directory(&self.socket)] {
            let _ = std::fs::remove_file(path).or_else(|_| std::fs::remove_dir_all(path));
        }
    }
}

/// The status line of an answer to a scraper.
fn scrape(port: u16) -> Option<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: urxed\r\n\r\n").ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    answer.lines().next().map(str::to_owned)
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// SLOT-125
#[test]
fn settings_that_can_change_do_and_of_the_rest_it_is_said_that_they_need_a_restart() {
    let mut daemon = Configured::start(&["--linger", "500"], "slots = 1\ndrain = 600\n");
    let mut a = End::at(&daemon.socket, "urxe0", Kind::Shared, 64);
    let mut b = End::at(&daemon.socket, "urxe0", Kind::Shared, 64);
    a.connect(b.addr, b.qp.created.qpn);
    b.connect(a.addr, a.qp.created.qpn);
    b.post_recv(1, &[]);
    let port = free_port();
    daemon.reload(&format!(
        "slots = 2\nwire = \"strict\"\nlinger = 5\nmetrics = \"127.0.0.1:{port}\"\n\
         sessions-per-user = 8\ncongestion = \"on\"\n"
    ));
    let mut expected = [
        "slots 2 needs a restart, and stays 1 until then".to_owned(),
        "wire strict needs a restart, and stays not set until then".to_owned(),
        "linger 5 has no effect: an option says otherwise".to_owned(),
        format!("metrics is 127.0.0.1:{port} now, and was not set"),
        "sessions-per-user is 8 now, and was not set".to_owned(),
        "drain is not set now, and was 600".to_owned(),
    ];
    expected.sort();
    assert_eq!(daemon.says(6), expected, "that congestion is on is nothing new");
    assert_eq!(scrape(port).as_deref(), Some("HTTP/1.1 200 OK"));
    a.exchange(SendOp::Send(Extra::None), &[]);
    // What needs a restart is said again, and what has changed is what it was changed to.
    daemon.reload(&format!("slots = 2\nmetrics = \"127.0.0.1:{port}\"\ndrain = 7\n"));
    let expected = [
        "drain is 7 now, and was not set",
        "sessions-per-user is not set now, and was 8",
        "slots 2 needs a restart, and stays 1 until then",
    ];
    assert_eq!(daemon.says(3), expected);
    daemon.reload(&format!("slots = 1\nmetrics = \"127.0.0.1:{port}\"\ndrain = 7\n"));
    assert_eq!(daemon.says(1), ["nothing has changed"]);
    // It drains as it was told last.
    signal(&daemon.daemon, Signal::TERM);
    let said = daemon.says(1);
    assert!(said[0].contains("in 7 seconds"), "{said:?}");
    drop((a, b));
    assert!(daemon.daemon.wait().success());
}

/// SLOT-125
#[test]
fn the_log_needs_a_restart_unless_an_option_says_how_it_is() {
    let mut daemon = Configured::start(&["--log", "info,session=off"], "");
    daemon.reload("log = \"debug\"\nlog-format = \"json\"\n");
    let expected = [
        "log debug has no effect: an option says otherwise",
        "log-format json needs a restart, and stays not set until then",
    ];
    assert_eq!(daemon.says(2), expected);
}

/// SLOT-126
#[test]
fn a_file_that_is_wrong_changes_nothing() {
    let port = free_port();
    let metrics = format!("metrics = \"127.0.0.1:{port}\"\n");
    let mut daemon = Configured::start(&[], &format!("{metrics}drain = 600\n"));
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = taken.local_addr().unwrap();
    let cases = [
        (format!("{metrics}drain = 0\n"), "line 3, `drain = 0`: drain 0: expected 1 to 4294967295"),
        (format!("{metrics}drian = 1\n"), "line 3, `drian = 1`: unknown field `drian`"),
        ("drain = 1\nname = [\"a\", \"b\"]\n".to_owned(), "2 names for 1 devices"),
        (format!("drain = 1\nmetrics = \"{taken}\"\n"), "in use (os error 98)"),
    ];
    for (lines, expected) in cases {
        daemon.reload(&lines);
        let said = daemon.says(1);
        assert!(said[0].starts_with("urxed: error: all stays as it was: "), "{said:?}");
        assert!(said[0].contains(expected), "{said:?}");
        assert_eq!(scrape(port).as_deref(), Some("HTTP/1.1 200 OK"));
    }
    std::fs::remove_file(&daemon.file).unwrap();
    signal(&daemon.daemon, Signal::HUP);
    let said = daemon.says(1);
    assert!(said[0].contains(daemon.file.to_str().unwrap()), "{said:?}");
    daemon.reload(&format!("{metrics}drain = 600\n"));
    assert_eq!(daemon.says(1), ["nothing has changed"]);
}

/// SHARE-106
#[test]
fn a_limit_that_falls_below_what_a_user_has_ends_no_program() {
    let mut daemon = Configured::start(&[], "");
    let mut programs: Vec<_> = (0..4).map(|_| daemon.greet()).collect();
    assert!(programs.iter().all(|(_, reply)| matches!(reply, Reply::Hello { .. })));
    let mut ids = Client::connect(&daemon.socket);
    ids.call(Request::Cm(CmRequest::CreateChannel)).unwrap();
    daemon.reload("sessions-per-user = 3\n");
    daemon.says(1);
    for (channel, _) in &mut programs {
        let (reply, _) = channel.call(&Request::ListDevices, &[]).unwrap();
        assert!(matches!(reply, Reply::Devices(_)), "{reply:?}");
    }
    let user = geteuid().as_raw();
    let refused = |daemon: &Configured, held| {
        let (_, reply) = daemon.greet();
        let Reply::Error(error) = reply else { panic!("{reply:?}") };
        let expected = format!(
            "sessions: user {user} has {held}, and one user may have 3 at most (urxed: \
             sessions-per-user)"
        );
        assert_eq!(error.message, expected);
    };
    refused(&daemon, 5);
    programs.truncate(2);
    eventually("two have gone", || {
        let closed = ids.counter("urxe0", "sessions_closed");
        (closed == 2).then_some(())
    });
    refused(&daemon, 3);
    // One more, and there is room.
    programs.truncate(1);
    eventually("there is room", || matches!(daemon.greet().1, Reply::Hello { .. }).then_some(()));
    // Nor does a limit that is taken back need anybody to go.
    daemon.reload("");
    daemon.says(1);
    programs.extend((0..4).map(|_| daemon.greet()));
    assert!(programs.iter().all(|(_, reply)| matches!(reply, Reply::Hello { .. })));
}

/// SLOT-127
#[test]
fn a_service_manager_is_told_of_each_reload() {
    let manager = Manager::new();
    let file = fresh_path().with_extension("toml");
    std::fs::write(&file, "drain = 5\n").unwrap();
    let mut daemon = manager.start(1, &["--config", file.to_str().unwrap()]);
    assert!(manager.next_message().starts_with("READY=1\nSTATUS=urxe0 = 127."));
    let mut last = 0;
    for (text, status) in
        [("drain = 6\n", ""), ("drain = -1\n", "; all stays as it was: configuration file ")]
    {
        std::fs::write(&file, text).unwrap();
        signal(&daemon, Signal::HUP);
        let reloading = manager.next_message();
        let time = reloading.strip_prefix("RELOADING=1\nMONOTONIC_USEC=").unwrap();
        let time: u64 = time.trim().parse().unwrap();
        assert!(time > last, "{reloading}");
        last = time;
        let ready = manager.next_message();
        assert!(
            ready.starts_with("READY=1\nSTATUS=urxe0 = 127.") && ready.contains(status),
            "{ready}"
        );
        assert_eq!(ready.contains("all stays"), !status.is_empty(), "{ready}");
    }
    signal(&daemon, Signal::TERM);
    assert_eq!(manager.next_message(), "STOPPING=1\n");
    assert!(daemon.wait().success());
    // The same without a file: the manager would wait for it.
    let mut daemon = manager.start(1, &[]);
    manager.next_message();
    signal(&daemon, Signal::HUP);
    assert!(manager.next_message().starts_with("RELOADING=1\n"));
    assert!(manager.next_message().starts_with("READY=1\n"));
    signal(&daemon, Signal::TERM);
    assert!(daemon.wait().success());
    std::fs::remove_file(file).unwrap();
}
