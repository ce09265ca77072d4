//! Networks made for a test: two namespaces with a veth pair between them.

use crate::sys;
use std::net::IpAddr;
use std::process::Command;
use std::sync::mpsc::{self, Sender};
use std::thread;
use std::time::Duration;
use urxe_shell::testing::needs_root;

type Task = Box<dyn FnOnce() + Send>;

/// A network namespace: a thread that lives in it and does what it is told. Sockets made there stay
/// in it wherever they go.
pub(crate) struct Namespace {
    tasks: Sender<Task>,
    thread_id: u32,
}

impl Namespace {
    /// `None` where that takes a privilege that the tests do not have.
    pub(crate) fn new() -> Option<Namespace> {
        let (tasks, to_do) = mpsc::channel::<Task>();
        let (started, start) = mpsc::channel();
        thread::spawn(move || {
            let thread_id = rustix::thread::gettid().as_raw_nonzero().get() as u32;
            let _ = started.send(sys::unshare_network().map(|()| thread_id));
            for task in to_do {
                task();
            }
        });
        match start.recv().unwrap() {
            Ok(thread_id) => Some(Namespace { tasks, thread_id }),
            Err(error) => {
                needs_root(&format!("making a network namespace: {error}"));
                None
            }
        }
    }

    /// Does something inside.
    pub(crate) fn run<T: Send + 'static>(&self, task: impl FnOnce() -> T + Send + 'static) -> T {
        let (done, result) = mpsc::channel();
        let task = Box::new(move || {
            let _ = done.send(task());
        });
        self.tasks.send(task).expect("the namespace lives");
        result.recv().expect("the task does not panic")
    }

    /// Runs `ip` inside, and returns what it prints.
    pub(crate) fn ip(&self, arguments: impl Into<String>) -> String {
        let arguments = arguments.into();
        self.run(move || {
            let output = Command::new("ip").args(arguments.split(' ')).output().expect("ip runs");
            assert!(output.status.success(), "ip {arguments}: {output:?}");
            String::from_utf8_lossy(&output.stdout).into_owned()
        })
    }

    /// Lets the kernel join the datagrams that come over the cable (`on`), or not (`off`). Returns
    /// whether it can.
    pub(crate) fn set_gro(&self, gro: &'static str) -> bool {
        self.run(move || {
            let output = Command::new("ethtool").args(["-K", "wire", "gro", gro]).output();
            output.is_ok_and(|output| output.status.success())
        })
    }

    /// Runs `tc` inside, and returns whether the kernel can do that.
    pub(crate) fn tc(&self, arguments: &'static str) -> bool {
        self.run(move || {
            let output = Command::new("tc").args(arguments.split(' ')).output();
            output.is_ok_and(|output| output.status.success())
        })
    }
}

/// Two namespaces with a cable between them.
pub(crate) struct Cable {
    pub(crate) a: Namespace,
    pub(crate) b: Namespace,
}

impl Cable {
    pub(crate) const V4: [IpAddr; 2] = [v4(1), v4(2)];
    pub(crate) const V6: [IpAddr; 2] = [v6(1), v6(2)];

    /// `None` (and the reason printed) where the tests may not make networks.
    pub(crate) fn new(mtu: u32) -> Option<Cable> {
        let cable = Cable { a: Namespace::new()?, b: Namespace::new()? };
        let b = cable.b.thread_id;
        let mac = |i| format!("02:47:91:00:00:0{i}");
        cable.a.ip(format!("link add wire type veth peer name wire netns {b}"));
        for (side, own) in [(&cable.a, 0), (&cable.b, 1)] {
            side.ip("link set lo up");
            side.ip(format!("link set wire mtu {mtu} address {} up", mac(own)));
        }
        for (side, own, peer) in [(&cable.a, 0, 1), (&cable.b, 1, 0)] {
            // The kernel takes note of the carrier in its own time, and drops packets until then.
            while !side.ip("link show wire").contains("state UP") {
                thread::sleep(Duration::from_millis(1));
            }
            side.ip(format!("addr add {}/24 dev wire", Cable::V4[own]));
            side.ip(format!("addr add {}/64 dev wire nodad", Cable::V6[own]));
            // The kernel makes the route to an own IPv6 address in its own time, too.
            let local = format!("local {} ", Cable::V6[own]);
            while !side.ip("-6 route show table local").contains(&local) {
                thread::sleep(Duration::from_millis(1));
            }
            // While a neighbour is looked for, only a few packets are kept for it.
            for addr in [Cable::V4[peer], Cable::V6[peer]] {
                side.ip(format!("neigh add {addr} lladdr {} dev wire", mac(peer)));
            }
        }
        Some(cable)
    }

    /// Changes the MTU of both ends.
    pub(crate) fn set_mtu(&self, mtu: u32) {
        self.a.ip(format!("link set wire mtu {mtu}"));
        self.b.ip(format!("link set wire mtu {mtu}"));
    }
}

const fn v4(host: u8) -> IpAddr {
    IpAddr::V4(std::net::Ipv4Addr::new(10, 47, 91, host))
}

const fn v6(host: u16) -> IpAddr {
    IpAddr::V6(std::net::Ipv6Addr::new(0xfd47, 0x91, 0, 0, 0, 0, 0, host))
}
