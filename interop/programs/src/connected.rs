//! Programs of librdmacm, and programs of perftest with `-R`: a server and a client that connect by
//! address and port, through the connection manager.

use crate::faults::Fault;
use crate::judge::{last_line, row};
use crate::testbed::{Ended, Running, Side, TIMEOUT, Testbed};
use std::fs;
use std::time::{Duration, Instant};
use urxe_shell::Result;

/// Programs that are the same but for options.
pub(crate) struct Group {
    name: &'static str,
    /// Command lines. In them `ADDR` and `PORT` stand for the server's address, `HERE` for the
    /// client's own, `FILE` for a file, `PRELOADED` for a script that runs a program with
    /// librspreload.so, and `OPTIONS` for the options.
    server: &'static str,
    client: &'static str,
    /// Options for both, and the output expected of the client.
    options: &'static [(&'static str, Expect)],
    ready: Ready,
    /// Whether the server ends with its client; else it waits for another one.
    ends: bool,
    /// Whether it needs IPv6.
    ipv6: bool,
}

/// The expected output of a client. In any case it must exit with status 0.
#[derive(Clone, Copy)]
enum Expect {
    /// Anything.
    Nothing,
    /// These words.
    Words(&'static str),
    /// A row of figures.
    Row,
    /// Anything, but the file was copied.
    Copied,
}

/// When the client is started.
#[derive(Clone, Copy)]
enum Ready {
    /// The server listens.
    Listens,
    HasPrinted(&'static str),
}

/// One run.
pub(crate) struct ConnectedTest {
    group: &'static Group,
    options: &'static str,
    expect: Expect,
    /// Whether server and client have a daemon each.
    apart: bool,
}

/// What a client of perftest prints if nobody listens. Its server listens once more when the two
/// have exchanged their parameters, and the client may ask for a connection before, on any device.
const NOT_YET_LISTENING: &str = "RDMA_CM_EVENT_REJECTED; error: 8";

/// How often that may happen.
const MOST_REFUSALS: u32 = 2;

/// The counter of servers that began to listen.
const LISTENS: &str = "cm_listens";

const STATUS_0: Expect = Expect::Words("return status 0");
const RESULT: Expect = Expect::Words("custom ");

const USUAL: Group = Group {
    name: "",
    server: "",
    client: "",
    options: &[],
    ready: Ready::Listens,
    ends: true,
    ipv6: false,
};

const GROUPS: &[Group] = &[
    Group {
        name: "rping",
        server: "rping -s -a ADDR -p PORT OPTIONS",
        client: "rping -c -a ADDR -p PORT OPTIONS",
        options: &[
            ("-C 20 -V", Expect::Nothing),
            ("-C 20 -v -S 4096", Expect::Words("rdma-ping-19")),
            ("-C 20 -V -q", Expect::Nothing),
        ],
        ..USUAL
    },
    Group {
        name: "rping to -P",
        server: "rping -s -P -a ADDR -p PORT OPTIONS",
        client: "rping -c -a ADDR -p PORT OPTIONS",
        options: &[("-C 5 -v", Expect::Words("rdma-ping-4"))],
        ends: false,
        ..USUAL
    },
    Group {
        name: "ucmatose",
        server: "ucmatose -b ADDR -p PORT OPTIONS",
        client: "ucmatose -s ADDR -p PORT OPTIONS",
        options: &[
            ("-c 10", STATUS_0),
            ("-c 100 -C 1", STATUS_0),
            ("-C 50 -S 100000", STATUS_0),
            ("-c 3 -m -t 32 -a 16", STATUS_0),
        ],
        ..USUAL
    },
    Group {
        name: "udaddy",
        server: "udaddy -b ADDR OPTIONS",
        client: "udaddy -s ADDR OPTIONS",
        options: &[("-c 3", STATUS_0), ("-p 2", STATUS_0)],
        ..USUAL
    },
    Group {
        name: "mckey",
        server: "stdbuf -oL mckey -m 239.77.0.1 -b ADDR OPTIONS",
        client: "mckey -s -m 239.77.0.1 -b HERE OPTIONS",
        options: &[("-C 10", STATUS_0)],
        ready: Ready::HasPrinted("joined dgid"),
        ..USUAL
    },
    Group {
        name: "rdma_client",
        server: "rdma_server -s ADDR -p PORT OPTIONS",
        client: "rdma_client -s ADDR -p PORT OPTIONS",
        options: &[("", Expect::Words("rdma_client: end 0"))],
        ..USUAL
    },
    Group {
        name: "rdma_xclient",
        server: "rdma_xserver -p PORT OPTIONS",
        client: "rdma_xclient -s ADDR -p PORT OPTIONS",
        options: &[("", Expect::Words("rdma_xclient: end 0"))],
        ..USUAL
    },
    Group {
        name: "rstream",
        server: "rstream -b ADDR -p PORT OPTIONS",
        client: "rstream -s ADDR -p PORT OPTIONS",
        options: &[
            ("-S 4096", RESULT),
            ("-S 1000000 -C 100", RESULT),
            ("-S 4096 -T b", RESULT),
            ("-S 4096 -T n", RESULT),
            ("-S 4096 -T v", RESULT),
            ("-S 4096 -T r", RESULT),
            ("-S 64 -i 0 -k 5", RESULT),
        ],
        ..USUAL
    },
    // A program of sockets.
    Group {
        name: "librspreload, rstream",
        server: "sh PRELOADED rstream -T s -b ADDR -p PORT OPTIONS",
        client: "sh PRELOADED rstream -T s -s ADDR -p PORT OPTIONS",
        options: &[("-S 4096", RESULT)],
        ..USUAL
    },
    // Not both: librdmacm reports that the peer has disconnected before it delivers the peer's last
    // data, and a client that polls takes that for the end. A server disconnects first.
    Group {
        name: "rstream to -T a",
        server: "rstream -T a -b ADDR -p PORT OPTIONS",
        client: "rstream -s ADDR -p PORT OPTIONS",
        options: &[("-S 4096", RESULT)],
        ..USUAL
    },
    Group {
        name: "riostream",
        server: "riostream -b ADDR -p PORT OPTIONS",
        client: "riostream -s ADDR -p PORT OPTIONS",
        options: &[
            ("-S 4096", RESULT),
            ("-S 1000000 -C 100", RESULT),
            ("-S 4096 -T b", RESULT),
            ("-S 4096 -T n", RESULT),
            ("-S 4096 -T v", RESULT),
        ],
        ..USUAL
    },
    Group {
        name: "rcopy",
        server: "rcopy -p PORT OPTIONS",
        client: "rcopy FILE ADDR:FILE.copy -p PORT OPTIONS",
        options: &[("", Expect::Copied)],
        ends: false,
        ..USUAL
    },
    Group {
        name: "cmtime",
        server: "cmtime -b ADDR -p PORT OPTIONS",
        client: "cmtime -s ADDR -p PORT OPTIONS",
        options: &[("-c 100", Expect::Words("destroy "))],
        ends: false,
        ..USUAL
    },
    Group {
        name: "",
        server: "OPTIONS -p PORT",
        client: "OPTIONS -p PORT ADDR",
        options: &[
            ("ib_send_bw -R -n 1000", Expect::Row),
            ("ib_send_bw -R -q 16 -n 200", Expect::Row),
            ("ib_send_bw -R -c UD -n 100", Expect::Row),
            ("ib_send_lat -R", Expect::Row),
            ("ib_send_lat -R -c UD -n 100", Expect::Row),
            ("ib_write_bw -R -n 1000", Expect::Row),
            ("ib_write_bw -R -T 32 -n 1000", Expect::Row),
            ("ib_write_lat -R", Expect::Row),
            ("ib_read_bw -R -n 1000", Expect::Row),
            ("ib_read_lat -R", Expect::Row),
            ("ib_atomic_lat -R", Expect::Row),
        ],
        ..USUAL
    },
    // Its client waits for it.
    Group {
        name: "qperf",
        server: "qperf -lp PORT",
        client: "qperf ADDR -lp PORT -cm 1 -t 1 OPTIONS",
        options: &[
            ("rc_bw", Expect::Words("bw  =")),
            ("rc_rdma_write_bw", Expect::Words("bw  =")),
            ("rc_rdma_write_poll_lat", Expect::Words("latency  =")),
            ("rc_rdma_read_lat", Expect::Words("latency  =")),
            ("rc_fetch_add_mr", Expect::Words("msg_rate  =")),
        ],
        ready: Ready::HasPrinted(""),
        ends: false,
        ..USUAL
    },
    Group {
        name: "fio",
        server: "fio --name=to --ioengine=rdma --rw=read --port=PORT --bs=64k --size=16m OPTIONS",
        client: "fio --name=from --ioengine=rdma --rw=write --hostname=ADDR --port=PORT --bs=64k \
                 --size=16m --iodepth=4 OPTIONS",
        options: &[("--verb=write", Expect::Words("WRITE: bw="))],
        ..USUAL
    },
    Group {
        name: "rping, IPv6",
        server: "rping -s -a ADDR -p PORT OPTIONS",
        client: "rping -c -a ADDR -p PORT OPTIONS",
        options: &[("-C 20 -V", Expect::Nothing)],
        ipv6: true,
        ..USUAL
    },
    Group {
        name: "rping to any, IPv6",
        server: "rping -s -a ::0 -p PORT OPTIONS",
        client: "rping -c -a ADDR -p PORT OPTIONS",
        options: &[("-C 20 -V", Expect::Nothing)],
        ipv6: true,
        ..USUAL
    },
    Group {
        name: "ucmatose, IPv6",
        server: "ucmatose -f ipv6 -b ADDR -p PORT OPTIONS",
        client: "ucmatose -f ipv6 -s ADDR -p PORT OPTIONS",
        options: &[("-c 10", STATUS_0)],
        ipv6: true,
        ..USUAL
    },
    Group {
        name: "udaddy, IPv6",
        server: "udaddy -b ADDR OPTIONS",
        client: "udaddy -s ADDR OPTIONS",
        options: &[("-c 3", STATUS_0)],
        ipv6: true,
        ..USUAL
    },
    Group {
        name: "mckey, IPv6",
        server: "stdbuf -oL mckey -m ff0e::77 -b ADDR OPTIONS",
        client: "mckey -s -m ff0e::77 -b HERE OPTIONS",
        options: &[("-C 10", STATUS_0)],
        ready: Ready::HasPrinted("joined dgid"),
        ipv6: true,
        ..USUAL
    },
    Group {
        name: "rstream, IPv6",
        server: "rstream -f ipv6 -b ADDR -p PORT OPTIONS",
        client: "rstream -f ipv6 -s ADDR -p PORT OPTIONS",
        options: &[("-S 4096", RESULT)],
        ipv6: true,
        ..USUAL
    },
];

/// All tests: between two daemons, and the first of each group on one daemon too. IPv6 only on
/// one: a machine has only one IPv6 address that needs no configuration.
pub(crate) fn all() -> impl Iterator<Item = ConnectedTest> {
    GROUPS.iter().flat_map(|group| {
        let test = move |apart| {
            move |&(options, expect): &'static (&str, Expect)| ConnectedTest {
                group,
                options,
                expect,
                apart,
            }
        };
        let apart = if group.ipv6 { &[] } else { group.options };
        apart.iter().map(test(true)).chain(group.options.iter().take(1).map(test(false)))
    })
}

impl ConnectedTest {
    /// The name in the table.
    pub(crate) fn name(&self) -> String {
        format!("{} {}", self.group.name, self.options).trim().to_owned()
    }

    /// How many daemons it uses.
    pub(crate) fn daemons(&self) -> &'static str {
        if self.apart { "2" } else { "1" }
    }

    /// Whether it needs the daemon on `::1`.
    pub(crate) fn is_over_ipv6(&self) -> bool {
        self.group.ipv6
    }

    fn server_side(&self) -> Side {
        match (self.group.ipv6, self.apart) {
            (true, _) => Side::Ipv6,
            (false, true) => Side::B,
            (false, false) => Side::A,
        }
    }

    fn client_side(&self) -> Side {
        if self.group.ipv6 { Side::Ipv6 } else { Side::A }
    }

    /// Runs it, and returns the client's figure, if it has one.
    pub(crate) fn run(&self, testbed: &Testbed) -> Result<String> {
        let file = testbed.file()?.to_string_lossy().into_owned();
        let (mut server, mut client) = self.start_to_end(testbed, &file)?;
        for _ in 0..MOST_REFUSALS {
            if client.output().contains(NOT_YET_LISTENING) {
                server.kill();
                (server, client) = self.start_to_end(testbed, &file)?;
            }
        }
        let output = client.success().map_err(|reason| format!("the client {reason}"))?;
        match self.group.ends {
            true => {
                let ended = server.wait(TIMEOUT)?;
                ended.success().map_err(|reason| format!("the server {reason}"))?;
            }
            false => server.kill(),
        }
        self.judge(&output, &file)
    }

    /// The server, and the client when it has ended.
    fn start_to_end(&self, testbed: &Testbed, file: &str) -> Result<(Running, Ended)> {
        let (server, client) = self.start(testbed, file)?;
        // A server whose client has failed may wait indefinitely.
        Ok((server, client.wait(TIMEOUT)?))
    }

    fn start(&self, testbed: &Testbed, file: &str) -> Result<(Running, Running)> {
        let side = self.server_side();
        let addr = testbed.address(side).to_string();
        let here = testbed.address(self.client_side()).to_string();
        let port = Testbed::next_port().to_string();
        let preloaded = testbed.binary("preloaded.sh").to_string_lossy().into_owned();
        let line = |template: &str| {
            template
                .replace("OPTIONS", self.options)
                .replace("ADDR", &addr)
                .replace("HERE", &here)
                .replace("PORT", &port)
                .replace("FILE", file)
                .replace("PRELOADED", &preloaded)
        };
        let (server, client) = (line(self.group.server), line(self.group.client));
        let listened = testbed.count(side, LISTENS)?;
        let mut server = testbed.start(side, &server.split_whitespace().collect::<Vec<_>>())?;
        server.wait_until(|output| match self.group.ready {
            Ready::Listens => Ok(testbed.count(side, LISTENS)? > listened),
            Ready::HasPrinted(text) => Ok(output.contains(text)),
        })?;
        let client = client.split_whitespace().collect::<Vec<_>>();
        Ok((server, testbed.start(self.client_side(), &client)?))
    }

    fn judge(&self, output: &str, file: &str) -> Result<String> {
        match self.expect {
            Expect::Nothing => Ok(String::new()),
            Expect::Words(words) if output.contains(words) => Ok(String::new()),
            Expect::Words(words) => Err(format!("printed no {words:?}: {}", last_line(output))),
            Expect::Row => row(output, 1),
            Expect::Copied => {
                let read = |name: &str| fs::read(name).map_err(|error| format!("{name}: {error}"));
                match read(file)? == read(&format!("{file}.copy"))? {
                    true => Ok(String::new()),
                    false => Err("the copy differs from the file".into()),
                }
            }
        }
    }
}

/// Errors and faults of programs that connect.
pub(crate) const FAULTS: [(&str, Fault); 4] = [
    ("rping connects where no server listens", no_listener),
    ("rping serves at a port that is taken", taken_port),
    ("rping's server is killed", killed_server),
    ("rping connects 1000 times in a row", repeated),
];

/// A server of rping that listens at a port.
fn rping_server(testbed: &Testbed, options: &str, port: u16) -> Result<Running> {
    let listened = testbed.count(Side::B, LISTENS)?;
    let mut server = rping(testbed, Side::B, &format!("-s {options}"), port)?;
    server.wait_until(|_| Ok(testbed.count(Side::B, LISTENS)? > listened))?;
    Ok(server)
}

fn rping(testbed: &Testbed, side: Side, options: &str, port: u16) -> Result<Running> {
    let line = format!("rping {options} -a {} -p {port}", testbed.address(Side::B));
    testbed.start(side, &line.split_whitespace().collect::<Vec<_>>())
}

fn no_listener(testbed: &Testbed) -> Result<String> {
    let client = rping(testbed, Side::A, "-c -C 1", Testbed::next_port())?;
    fails_saying(client, "RDMA_CM_EVENT_REJECTED, error 8")
}

fn taken_port(testbed: &Testbed) -> Result<String> {
    let port = Testbed::next_port();
    let first = rping_server(testbed, "-C 1", port)?;
    let second = rping(testbed, Side::B, "-s -C 1", port)?;
    fails_saying(second, "rdma_bind_addr: Address already in use")?;
    rping(testbed, Side::A, "-c -C 1", port)?.wait(TIMEOUT)?.success()?;
    first.wait(TIMEOUT)?.success()?;
    Ok(String::new())
}

fn killed_server(testbed: &Testbed) -> Result<String> {
    let port = Testbed::next_port();
    let server = rping_server(testbed, "-C 100000000", port)?;
    let mut client = rping(testbed, Side::A, "-c -C 100000000", port)?;
    let before = testbed.count(Side::B, "received_messages")?;
    client.wait_until(|_| Ok(testbed.count(Side::B, "received_messages")? > before + 100))?;
    server.kill();
    let ended = client.wait(TIMEOUT)?;
    if !ended.output().contains("DISCONNECT EVENT") {
        return Err(format!("was not told of it: {}", last_line(ended.output())));
    }
    testbed.wait_until_no_objects_left().map(|()| String::new())
}

/// A program ends with an error, and prints why.
fn fails_saying(program: Running, why: &str) -> Result<String> {
    let ended = program.wait(TIMEOUT)?;
    match ended.success() {
        Ok(output) => Err(format!("succeeded: {}", last_line(&output))),
        Err(_) if ended.output().contains(why) => Ok(String::new()),
        Err(reason) => Err(format!("did not print {why:?} but {reason}")),
    }
}

/// rping as a client, many times. Once in ten thousand runs it reads from its channel after it has
/// closed it, when it has done its work.
const REPEATED: &str = "
i=0
while [ $i -lt COUNT ]; do
    rping -c -C 1 -a ADDR -p PORT 2>said || grep -q 'get_cm_event: Bad file' said || break
    i=$((i+1))
done
echo $i times, then $(cat said)";

fn repeated(testbed: &Testbed) -> Result<String> {
    const COUNT: u32 = 1000;
    const LONG: Duration = Duration::from_secs(300);
    let port = Testbed::next_port();
    let server = rping_server(testbed, "-P", port)?;
    let script = REPEATED
        .replace("COUNT", &COUNT.to_string())
        .replace("ADDR", &testbed.address(Side::B).to_string())
        .replace("PORT", &port.to_string());
    let start = Instant::now();
    let output = testbed.start(Side::A, &["sh", "-c", &script])?.wait(LONG)?.success()?;
    let seconds = start.elapsed().as_secs_f64();
    server.kill();
    if !output.starts_with(&format!("{COUNT} times")) {
        return Err(output.replace('\n', " "));
    }
    testbed.wait_until_no_objects_left()?;
    Ok(format!("{:.0} a second", f64::from(COUNT) / seconds))
}
