//! Programs of librdmacm, and those of perftest that are told to use it: a server and a client that
//! find each other by address and port, through the connection manager.

use crate::faults::Fault;
use crate::judge::{last_line, row};
use crate::testbed::{PATIENCE, Running, Side, Testbed};
use std::fs;
use std::time::{Duration, Instant};
use urxe_shell::Result;

/// Programs that are the same but for options.
pub(crate) struct Group {
    name: &'static str,
    /// Command lines. In them stand `ADDR` and `PORT` for where the server is, `HERE` for the
    /// client's own address, `FILE` for a file, `PRELOADED` for a script that makes sockets of the
    /// program that it runs RDMA's, and `OPTIONS`.
    server: &'static str,
    client: &'static str,
    /// What both are told beside, and what the client says if all is well.
    options: &'static [(&'static str, Says)],
    ready: Ready,
    /// Whether the server ends with its client; else it waits for more.
    ends: bool,
    /// Whether it needs IPv6.
    ipv6: bool,
}

/// What a client says that has done all that it should. That it ends well is always asked for.
#[derive(Clone, Copy)]
enum Says {
    /// Nothing that could be looked at.
    Nothing,
    /// These words.
    Words(&'static str),
    /// A row of figures.
    Row,
    /// Nothing, but the file is there a second time.
    Copied,
}

/// When a client may come.
#[derive(Clone, Copy)]
enum Ready {
    /// The server listens.
    Listens,
    /// It has said this.
    HasSaid(&'static str),
}

/// One run.
pub(crate) struct Meeting {
    group: &'static Group,
    options: &'static str,
    says: Says,
    /// Whether each has a daemon of its own.
    apart: bool,
}

/// Counted whenever a server begins to listen.
const LISTENS: &str = "cm_listens";

const STATUS_0: Says = Says::Words("return status 0");
const RESULT: Says = Says::Words("custom ");

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
            ("-C 20 -V", Says::Nothing),
            ("-C 20 -v -S 4096", Says::Words("rdma-ping-19")),
            ("-C 20 -V -q", Says::Nothing),
        ],
        ..USUAL
    },
    Group {
        name: "rping to -P",
        server: "rping -s -P -a ADDR -p PORT OPTIONS",
        client: "rping -c -a ADDR -p PORT OPTIONS",
        options: &[("-C 5 -v", Says::Words("rdma-ping-4"))],
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
        ready: Ready::HasSaid("joined dgid"),
        ..USUAL
    },
    Group {
        name: "rdma_client",
        server: "rdma_server -s ADDR -p PORT OPTIONS",
        client: "rdma_client -s ADDR -p PORT OPTIONS",
        options: &[("", Says::Words("rdma_client: end 0"))],
        ..USUAL
    },
    Group {
        name: "rdma_xclient",
        server: "rdma_xserver -p PORT OPTIONS",
        client: "rdma_xclient -s ADDR -p PORT OPTIONS",
        options: &[("", Says::Words("rdma_xclient: end 0"))],
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
    // A program that knows nothing of RDMA.
    Group {
        name: "librspreload, rstream",
        server: "sh PRELOADED rstream -T s -b ADDR -p PORT OPTIONS",
        client: "sh PRELOADED rstream -T s -s ADDR -p PORT OPTIONS",
        options: &[("-S 4096", RESULT)],
        ..USUAL
    },
    // Not both: librdmacm says that the peer has hung up before it hands out the peer's last words,
    // and a client that polls takes that for the end. A server hangs up first.
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
        options: &[("", Says::Copied)],
        ends: false,
        ..USUAL
    },
    Group {
        name: "cmtime",
        server: "cmtime -b ADDR -p PORT OPTIONS",
        client: "cmtime -s ADDR -p PORT OPTIONS",
        options: &[("-c 100", Says::Words("destroy "))],
        ends: false,
        ..USUAL
    },
    Group {
        name: "",
        server: "OPTIONS -p PORT",
        client: "OPTIONS -p PORT ADDR",
        options: &[
            ("ib_send_bw -R -n 1000", Says::Row),
            ("ib_send_bw -R -q 16 -n 200", Says::Row),
            ("ib_send_bw -R -c UD -n 100", Says::Row),
            ("ib_send_lat -R", Says::Row),
            ("ib_send_lat -R -c UD -n 100", Says::Row),
            ("ib_write_bw -R -n 1000", Says::Row),
            ("ib_write_bw -R -T 32 -n 1000", Says::Row),
            ("ib_write_lat -R", Says::Row),
            ("ib_read_bw -R -n 1000", Says::Row),
            ("ib_read_lat -R", Says::Row),
            ("ib_atomic_lat -R", Says::Row),
        ],
        ..USUAL
    },
    Group {
        name: "rping, IPv6",
        server: "rping -s -a ADDR -p PORT OPTIONS",
        client: "rping -c -a ADDR -p PORT OPTIONS",
        options: &[("-C 20 -V", Says::Nothing)],
        ipv6: true,
        ..USUAL
    },
    Group {
        name: "rping to any, IPv6",
        server: "rping -s -a ::0 -p PORT OPTIONS",
        client: "rping -c -a ADDR -p PORT OPTIONS",
        options: &[("-C 20 -V", Says::Nothing)],
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
        ready: Ready::HasSaid("joined dgid"),
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

/// Everything: between two daemons, and the first of each group on one too. IPv6 is on one alone,
/// for a machine has but one address of it that needs no setting up.
pub(crate) fn all() -> impl Iterator<Item = Meeting> {
    GROUPS.iter().flat_map(|group| {
        let meeting = move |apart| {
            move |&(options, says): &'static (&str, Says)| Meeting { group, options, says, apart }
        };
        let apart = if group.ipv6 { &[] } else { group.options };
        apart.iter().map(meeting(true)).chain(group.options.iter().take(1).map(meeting(false)))
    })
}

impl Meeting {
    /// As people read it.
    pub(crate) fn name(&self) -> String {
        format!("{} {}", self.group.name, self.options).trim().to_owned()
    }

    /// How many daemons take part.
    pub(crate) fn daemons(&self) -> &'static str {
        if self.apart { "2" } else { "1" }
    }

    /// Whether it can be run here.
    pub(crate) fn is_possible(&self, testbed: &Testbed) -> bool {
        testbed.has(self.server_side())
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

    /// Runs it, and gives the client's figure, if it has one.
    pub(crate) fn run(&self, testbed: &Testbed) -> Result<String> {
        let file = testbed.file()?.to_string_lossy().into_owned();
        let (server, client) = self.start(testbed, &file)?;
        // A server whose client has failed may wait for ever, and is no news then.
        let client = client.wait(PATIENCE)?;
        let said = client.success().map_err(|reason| format!("the client {reason}"))?;
        match self.group.ends {
            true => {
                let ended = server.wait(PATIENCE)?;
                ended.success().map_err(|reason| format!("the server {reason}"))?;
            }
            false => server.kill(),
        }
        self.judge(&said, &file)
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
        server.wait_until(|said| match self.group.ready {
            Ready::Listens => Ok(testbed.count(side, LISTENS)? > listened),
            Ready::HasSaid(text) => Ok(said.contains(text)),
        })?;
        let client = client.split_whitespace().collect::<Vec<_>>();
        Ok((server, testbed.start(self.client_side(), &client)?))
    }

    fn judge(&self, said: &str, file: &str) -> Result<String> {
        match self.says {
            Says::Nothing => Ok(String::new()),
            Says::Words(words) if said.contains(words) => Ok(String::new()),
            Says::Words(words) => Err(format!("printed no {words:?}: {}", last_line(said))),
            Says::Row => row(said, 1),
            Says::Copied => {
                let read = |name: &str| fs::read(name).map_err(|error| format!("{name}: {error}"));
                match read(file)? == read(&format!("{file}.copy"))? {
                    true => Ok(String::new()),
                    false => Err("the copy is not like the file".into()),
                }
            }
        }
    }
}

/// What else happens where programs connect.
pub(crate) const INCIDENTS: [(&str, Fault); 4] = [
    ("rping connects to nobody", to_nobody),
    ("rping serves at a port that is taken", taken_port),
    ("rping's server is killed", killed_server),
    ("rping connects 1000 times in a row", in_a_row),
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

fn to_nobody(testbed: &Testbed) -> Result<String> {
    let client = rping(testbed, Side::A, "-c -C 1", Testbed::next_port())?;
    fails_saying(client, "RDMA_CM_EVENT_REJECTED, error 8")
}

fn taken_port(testbed: &Testbed) -> Result<String> {
    let port = Testbed::next_port();
    let first = rping_server(testbed, "-C 1", port)?;
    let second = rping(testbed, Side::B, "-s -C 1", port)?;
    fails_saying(second, "rdma_bind_addr: Address already in use")?;
    rping(testbed, Side::A, "-c -C 1", port)?.wait(PATIENCE)?.success()?;
    first.wait(PATIENCE)?.success()?;
    Ok(String::new())
}

fn killed_server(testbed: &Testbed) -> Result<String> {
    let port = Testbed::next_port();
    let server = rping_server(testbed, "-C 100000000", port)?;
    let mut client = rping(testbed, Side::A, "-c -C 100000000", port)?;
    let before = testbed.count(Side::B, "received_messages")?;
    client.wait_until(|_| Ok(testbed.count(Side::B, "received_messages")? > before + 100))?;
    server.kill();
    let ended = client.wait(PATIENCE)?;
    if !ended.said().contains("DISCONNECT EVENT") {
        return Err(format!("was not told: {}", last_line(ended.said())));
    }
    testbed.wait_until_nothing_is_left().map(|()| String::new())
}

/// A program ends with an error, and says why.
fn fails_saying(program: Running, why: &str) -> Result<String> {
    let ended = program.wait(PATIENCE)?;
    match ended.success() {
        Ok(said) => Err(format!("ended well: {}", last_line(&said))),
        Err(_) if ended.said().contains(why) => Ok(String::new()),
        Err(reason) => Err(format!("did not say {why:?} but {reason}")),
    }
}

/// rping as a client, so many times. It may read from its channel after it has closed it, once in
/// ten thousand runs, when it has done all that it should.
const IN_A_ROW: &str = "
i=0
while [ $i -lt COUNT ]; do
    rping -c -C 1 -a ADDR -p PORT 2>said || grep -q 'get_cm_event: Bad file' said || break
    i=$((i+1))
done
echo $i times, then $(cat said)";

fn in_a_row(testbed: &Testbed) -> Result<String> {
    const COUNT: u32 = 1000;
    const LONG: Duration = Duration::from_secs(300);
    let port = Testbed::next_port();
    let server = rping_server(testbed, "-P", port)?;
    let script = IN_A_ROW
        .replace("COUNT", &COUNT.to_string())
        .replace("ADDR", &testbed.address(Side::B).to_string())
        .replace("PORT", &port.to_string());
    let start = Instant::now();
    let said = testbed.start(Side::A, &["sh", "-c", &script])?.wait(LONG)?.success()?;
    let seconds = start.elapsed().as_secs_f64();
    server.kill();
    if !said.starts_with(&format!("{COUNT} times")) {
        return Err(said.replace('\n', " "));
    }
    testbed.wait_until_nothing_is_left()?;
    Ok(format!("{:.0} a second", f64::from(COUNT) / seconds))
}
