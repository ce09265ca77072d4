//! Which programs are run, and with which options.

/// The expected output of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Prints {
    /// A line with the device's name.
    Device,
    /// The device's attributes.
    Attributes,
    /// Bytes and iterations, with their times.
    Iterations,
    /// At least so many rows of figures, one for each message size.
    Rows(usize),
    /// A last row of figures.
    Final,
}

/// A program with its options.
#[derive(Clone, Debug)]
pub(crate) struct Program {
    program: &'static str,
    options: &'static str,
    pub(crate) prints: Prints,
}

/// Programs of ibverbs-utils that need no peer.
const ALONE: [(&str, &str, Prints); 2] =
    [("ibv_devices", "", Prints::Device), ("ibv_devinfo", "-v", Prints::Attributes)];

/// Programs of ibverbs-utils that play ping-pong, and the options of each: polling, sleeping on
/// events, and looking at what arrives.
const PINGPONG: [&str; 4] =
    ["ibv_rc_pingpong", "ibv_uc_pingpong", "ibv_ud_pingpong", "ibv_srq_pingpong"];
const PINGPONG_OPTIONS: [&str; 3] = ["-g 0", "-g 0 -e", "-g 0 -c"];

/// Programs of perftest. UC and UD get so few messages that none is lost on the way: they are not
/// repeated, and a server would wait for the lost ones indefinitely.
const PERFTEST: [(&str, &[&str]); 8] = [
    (
        "ib_send_bw",
        &[
            "-n 1000",
            "-a -n 20",
            "-q 16 -n 200",
            "-e -n 1000",
            "-b -n 1000",
            "-I 64 -s 64 -n 1000",
            "--report_gbits -n 1000",
            "-c UC -n 100",
            "-c UD -n 100",
        ],
    ),
    ("ib_send_lat", &["", "-a -n 20", "-e", "-I 64 -s 64", "-c UC", "-c UD"]),
    (
        "ib_write_bw",
        &[
            "-n 1000",
            "-a -n 20",
            "-q 16 -n 200",
            "-b -n 1000",
            "-I 64 -s 64 -n 1000",
            "--report_gbits -n 1000",
            "-c UC -n 100",
        ],
    ),
    ("ib_write_lat", &["", "-a -n 20", "-I 64 -s 64", "-c UC"]),
    (
        "ib_read_bw",
        &[
            "-n 1000",
            "-a -n 20",
            "-q 16 -n 200",
            "-e -n 1000",
            "-b -n 1000",
            "--report_gbits -n 1000",
        ],
    ),
    ("ib_read_lat", &["", "-a -n 20", "-e"]),
    (
        "ib_atomic_bw",
        &[
            "-n 1000",
            "-A CMP_AND_SWAP -n 1000",
            "-q 16 -n 200",
            "-e -n 1000",
            "-b -n 1000",
            "--report_gbits -n 1000",
        ],
    ),
    ("ib_atomic_lat", &["", "-A CMP_AND_SWAP", "-e"]),
];

/// UCX, which MPI libraries use: with RC, for which it connects by UD, and with UD alone, on which
/// it implements reliability itself.
const UCX: [&str; 4] = [
    "UCX_TLS=rc_verbs,ud_verbs,self ucx_perftest -t tag_lat -n 500",
    "UCX_TLS=rc_verbs,ud_verbs,self ucx_perftest -t ucp_get -s 65536 -n 200",
    "UCX_TLS=ud_verbs,self ucx_perftest -t tag_lat -n 500",
    "UCX_TLS=ud_verbs,self ucx_perftest -t tag_bw -s 65536 -n 200",
];

/// How many sizes `-a` measures: 2 to 2^23 bytes.
const ALL_SIZES: usize = 23;

/// All programs.
pub(crate) fn all() -> impl Iterator<Item = Program> {
    let new = |(program, options, prints)| Program { program, options, prints };
    let pingpong = PINGPONG
        .into_iter()
        .flat_map(|program| PINGPONG_OPTIONS.map(|options| (program, options, Prints::Iterations)));
    let perftest = PERFTEST.into_iter().flat_map(|(program, options)| {
        options.iter().map(move |&options| {
            let rows = if options.starts_with("-a") { ALL_SIZES } else { 1 };
            (program, options, Prints::Rows(rows))
        })
    });
    let ucx = UCX.into_iter().map(|options| ("env", options, Prints::Final));
    ALONE.into_iter().chain(pingpong).chain(perftest).chain(ucx).map(new)
}

impl Program {
    /// The name in the table.
    pub(crate) fn name(&self) -> String {
        format!("{} {}", self.program, self.options).trim_end().to_owned()
    }

    /// The command line.
    pub(crate) fn words(&self) -> Vec<&'static str> {
        let mut words = vec![self.program];
        words.extend(self.options.split_whitespace());
        words
    }

    /// It needs no peer.
    pub(crate) fn is_alone(&self) -> bool {
        matches!(self.prints, Prints::Device | Prints::Attributes)
    }

    /// How many daemons it is run on: two, and with plain options also one.
    pub(crate) fn daemons(&self) -> &'static [&'static str] {
        let is_plain = matches!(self.options, "" | "-g 0" | "-n 1000");
        match (self.is_alone(), is_plain) {
            (true, _) => &["1"],
            (false, true) => &["2", "1"],
            (false, false) => &["2"],
        }
    }
}
