//! The device through servers and clients that say what stock ones say, without any device.

use super::*;
use crate::device::End;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener};
use std::sync::mpsc::{Receiver, channel};
use std::thread;

const ADDR: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));
const BUFFER: u64 = 32 << 10;

/// How a server is otherwise than usual.
#[derive(Clone, Copy, PartialEq)]
enum ServerBehaviour {
    Usual,
    SmallMtu,
    OtherAddress,
    Nonsense,
}

/// A server of `ib_write_bw` that is started again whenever its client is gone, and what its
/// clients said, by client.
fn server(behaviour: ServerBehaviour) -> (Options, Receiver<Vec<String>>) {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let options = Options {
        host: "127.0.0.1".into(),
        addr: ADDR,
        local: [10, 0, 0, 2].into(),
        start: Start::ByHand(Duration::ZERO),
        port: listener.local_addr().unwrap().port(),
        device: None,
        gid_index: None,
        services: Services::default(),
        seed: 1,
    };
    let (said, what_was_said) = channel();
    thread::spawn(move || {
        for number in 0.. {
            let Ok((stream, _)) = listener.accept() else { return };
            if said.send(serve(stream, number, behaviour)).is_err() {
                return;
            }
        }
    });
    (options, what_was_said)
}

/// Answers a client until it is gone. Returns its lines.
fn serve(mut stream: TcpStream, number: u32, behaviour: ServerBehaviour) -> Vec<String> {
    let mut lines = Vec::new();
    let mut exchange = |len: usize, answer: &[u8]| {
        let mut word = vec![0; len];
        stream.read_exact(&mut word).ok()?;
        stream.write_all(answer).ok()?;
        Some(String::from_utf8_lossy(&word).trim_end_matches('\0').to_owned())
    };
    let version: &[u8; 16] = if behaviour == ServerBehaviour::Nonsense {
        &[0xff; 16]
    } else {
        b"6.29\0\0\0\0\0\0\0\0\0\0\0\0"
    };
    exchange(16, version);
    exchange(4, &4096u32.to_be_bytes());
    exchange(4, &64u32.to_be_bytes());
    exchange(2, if behaviour == ServerBehaviour::SmallMtu { b"2\0" } else { b"5\0" });
    for qp in 0.. {
        let (qpn, addr) = (number * 256 + qp % 32, 0x10_0000 + u64::from(qp % 32) * 4 * BUFFER);
        let last = if behaviour == ServerBehaviour::OtherAddress { 9 } else { 1 };
        let gid = format!("00:00:00:00:00:00:00:00:00:00:ff:ff:0a:00:00:{last:02x}");
        let line = format!("0000:0001:{qpn:06x}:{:06x}:{:08x}:{addr:016x}:{gid}:00000000:\0", 7, 5);
        match exchange(108, line.as_bytes()) {
            Some(line) => lines.push(line),
            None => break,
        }
    }
    lines
}

fn connect(servers: &mut Servers, setup: &Setup) -> Result<(OurEnd, TheirEnd), Unavailable> {
    let mut ours = OurEnd { addr: [10, 0, 0, 2].into(), qpn: 1, psn: 1 };
    let theirs = servers.connect(setup, &mut ours)?;
    Ok((ours, theirs))
}

#[test]
fn each_qp_of_a_server_is_used_once_and_then_another_server_is_asked() {
    let (options, said) = server(ServerBehaviour::Usual);
    let mut servers = Servers::new(options, |_: &str| {});
    let setup = Setup::rc().write();
    let pairs: Vec<_> = (0..40).map(|_| connect(&mut servers, &setup).unwrap()).collect();
    let numbers: BTreeSet<_> = pairs.iter().map(|(_, theirs)| theirs.qpn).collect();
    assert_eq!(numbers.len(), 40);
    drop(servers);
    let lines = said.recv().unwrap();
    // All QPs, and one more word: the server's QPs are connected when it answers that.
    assert_eq!(lines.len(), 33);
    for (ours, theirs) in pairs.iter().filter(|(_, theirs)| theirs.qpn < 256) {
        let line = &lines[theirs.qpn as usize];
        let told = format!("0000:0001:{:06x}:{:06x}:", ours.qpn, ours.psn);
        assert!(line.starts_with(&told), "{line} does not begin with {told}");
    }
}

#[test]
fn the_memory_of_a_qp_is_its_whole_region() {
    let (options, _said) = server(ServerBehaviour::Usual);
    let mut servers = Servers::new(options, |_: &str| {});
    let (_, theirs) = connect(&mut servers, &Setup::rc().write()).unwrap();
    let memory = theirs.memory.unwrap();
    let told = 0x10_0000 + u64::from(theirs.qpn) * 4 * BUFFER;
    assert_eq!((memory.addr, memory.len, memory.rkey), (told - BUFFER, 2 * BUFFER as usize, 5));
    let (_, theirs) = connect(&mut servers, &Setup::rc()).unwrap();
    assert!(theirs.memory.is_none(), "a check that wants no memory has none");
}

#[test]
fn a_first_psn_that_a_check_asks_for_is_told_to_the_server() {
    let (options, _said) = server(ServerBehaviour::Usual);
    let mut servers = Servers::new(options, |_: &str| {});
    let wraps = Setup { our_psn: Some(0xff_ffff), ..Setup::rc().write() };
    for _ in 0..5 {
        let (ours, _) = connect(&mut servers, &wraps).unwrap();
        assert_eq!(ours.psn, 0xff_ffff);
        connect(&mut servers, &Setup::rc().write()).unwrap();
    }
}

#[test]
fn a_server_that_cannot_be_used_is_not_taken_for_a_failure_of_the_device() {
    let refused = |behaviour| {
        let (options, _said) = server(behaviour);
        let mut servers = Servers::new(options, |_: &str| {});
        let first = connect(&mut servers, &Setup::rc().write()).unwrap_err();
        // It is not asked again: each time would take as long.
        assert_eq!(connect(&mut servers, &Setup::rc().write()).unwrap_err(), first);
        first
    };
    assert!(matches!(refused(ServerBehaviour::SmallMtu), Unavailable::NotSupported(_)));
    assert!(
        matches!(refused(ServerBehaviour::OtherAddress), Unavailable::Failed(why) if why.contains("10.0.0.9"))
    );
    assert!(matches!(refused(ServerBehaviour::Nonsense), Unavailable::Failed(_)));
}

#[test]
fn a_server_that_nobody_has_started_is_asked_for_with_its_command() {
    let (options, _said) = server(ServerBehaviour::Usual);
    let free = TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().port();
    let mut servers = Servers::new(Options { port: free, ..options }, |_: &str| {});
    let error = connect(&mut servers, &Setup::rc().write()).unwrap_err();
    let Unavailable::NeedsAgent(why) = error else { panic!("{error}") };
    assert!(why.contains(&format!("ib_write_bw -q 32 -s 32768 --mr_per_qp -p {free}")), "{why}");
}

#[test]
fn the_script_keeps_every_usual_server_at_its_port() {
    let (options, _said) = server(ServerBehaviour::Usual);
    let script = Servers::script(&Options { port: 100, device: Some("mlx5_0".into()), ..options });
    for (port, command) in (100..).zip(["ib_write_bw", "ib_read_bw", "ib_atomic_bw", "ib_send_bw"])
    {
        let line = script.lines().find(|line| line.contains(&format!("-p {port};"))).unwrap();
        assert!(line.starts_with(&format!("while sleep 0.1; do {command} -d mlx5_0 ")), "{line}");
    }
}

/// A client of `ib_send_bw` that calls this port, and what it is told of a QP. When its last line
/// is answered it goes, and speaks first if its work succeeds.
fn call(port: u16, succeeds: bool) -> String {
    let mut stream = loop {
        match TcpStream::connect(("127.0.0.1", port)) {
            Ok(stream) => break stream,
            Err(_) => thread::sleep(Duration::from_millis(5)),
        }
    };
    let line = "0000:0001:000abc:000007:00000005:0000000000001000:\
                00:00:00:00:00:00:00:00:00:00:ff:ff:0a:00:00:01:00000000:\0";
    let words = [b"6.29\0\0\0\0\0\0\0\0\0\0\0\0".as_slice(), &[0; 4], &[0; 4], b"5\0"];
    let mut told = Vec::new();
    for word in words.into_iter().chain([line.as_bytes(); 4]) {
        stream.write_all(word).unwrap();
        told.resize(word.len(), 0);
        stream.read_exact(&mut told).unwrap();
    }
    if succeeds {
        stream.write_all(line.as_bytes()).unwrap();
    }
    String::from_utf8(told).unwrap()
}

#[test]
fn a_client_is_told_our_qp_and_begins_when_its_last_line_is_answered() {
    for succeeds in [true, false] {
        let (options, _said) = server(ServerBehaviour::Usual);
        let port = TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().port();
        let local = Ipv4Addr::LOCALHOST.into();
        let options =
            Options { port: port - 20, local, start: Start::ByHand(TCP_TIMEOUT), ..options };
        let mut servers = Servers::new(options, |_: &str| {});
        let told = thread::spawn(move || call(port, succeeds));
        let mut ours = OurEnd { addr: local, qpn: 0x1234, psn: 0x5678 };
        let theirs = servers.connect(&Setup::rc().sending(8), &mut ours).unwrap();
        assert_eq!((theirs.qpn, theirs.psn), (0xabc, 7));
        let client = servers.client().unwrap();
        assert_eq!(client.end(), None, "it waits for the answer to its last line");
        client.begin().unwrap();
        let told = told.join().unwrap();
        assert!(told.starts_with("0000:0010:001234:005678:"), "{told}");
        let expected = if succeeds { End::Done } else { End::Failed(None) };
        while client.end().is_none() {
            thread::yield_now();
        }
        assert_eq!(client.end(), Some(expected));
        servers.end_check();
        assert!(servers.client().is_none());
    }
}

#[test]
fn the_script_has_the_usual_clients_call_us() {
    let (options, _said) = server(ServerBehaviour::Usual);
    let script = Servers::script(&Options { port: 100, ..options });
    for (port, command) in (120..).zip(["ib_send_bw", "ib_send_bw", "ib_write_bw", "ib_read_bw"]) {
        let end = format!("-p {port} 10.0.0.2; done");
        let line = script.lines().find(|line| line.contains(&end)).unwrap();
        assert!(line.starts_with(&format!("while sleep 0.1; do {command} -n 5 ")), "{line}");
    }
    assert!(!script.contains("rping"), "nobody has named its port");
    let services = Services { accepts: Some(7), datagrams: Some(7174), ..Services::default() };
    let (options, _said) = server(ServerBehaviour::Usual);
    let script = Servers::script(&Options { services, ..options });
    assert!(script.contains("rping -s -P -p 7;") && script.contains("udaddy -c"), "{script}");
}
