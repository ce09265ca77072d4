//! The effects of a killed process on the others.

mod common;

use common::{Daemon, Process, TIMEOUT, perf_server, text};
use std::time::Instant;
use urxe_verbs::{
    Access, Context, Cq, Error, InitAttr, Mr, OpenOptions, Qp, QpInit, RtrAttr, RtsAttr, SendWr,
    Wc, WcStatus,
};

#[test]
fn a_killed_program_leaves_nothing_in_its_daemon_and_its_peer_gets_an_error() {
    let [near, far] = [Daemon::start(), Daemon::start()];
    let (server, client) = perf_server(&far, "send-bw");
    let client = format!("{client} --qps 4 --duration 1m");
    let mut client = Process::start(near.urxe(&client));
    near.wait_for_qps(4);
    far.wait_for_qps(4);
    client.kill();
    near.wait_for_qps(0);
    let server = server.output();
    assert_eq!(server.status.code(), Some(1));
    assert!(text(&server.stderr).contains("ended too early"), "{}", text(&server.stderr));
    far.wait_for_qps(0);
    // Other programs can go on.
    let (server, client) = perf_server(&far, "send-bw");
    assert!(common::run(near.urxe(&format!("{client} --iters 100"))).status.success());
    assert!(server.output().status.success());
}

#[test]
fn a_killed_daemon_ends_the_tools_on_both_sides() {
    for test in ["write-bw", "send-bw", "read-bw", "write-lat", "send-lat", "atomic-lat"] {
        let [mut near, far] = [Daemon::start(), Daemon::start()];
        let (server, client) = perf_server(&far, test);
        let client = Process::start(near.urxe(&format!("{client} --duration 1m")));
        near.wait_for_qps(1);
        far.wait_for_qps(1);
        near.process.kill();
        let client = client.output();
        assert_eq!(client.status.code(), Some(1), "{test}");
        let error = text(&client.stderr);
        assert!(error.contains("is gone"), "{test}: {error}");
        // The server learns it from its client.
        let server = server.output();
        assert_eq!(server.status.code(), Some(1), "{test}");
    }
}

/// One end of a connection, whose retries do not take long.
struct End {
    cq: Cq,
    mr: Mr,
    qp: Qp,
}

impl End {
    fn new(daemon: &Daemon) -> End {
        let context = Context::open(&OpenOptions::new().socket(&daemon.socket)).unwrap();
        let pd = context.alloc_pd().unwrap();
        let cq = context.create_cq(16, None).unwrap();
        let mr = pd.alloc_mr(4096, Access::LOCAL_WRITE | Access::REMOTE_WRITE).unwrap();
        let qp = pd.create_qp(&QpInit::new(&cq)).unwrap();
        End { cq, mr, qp }
    }

    fn connect(&self, peer: &End) {
        let (ours, theirs) = (self.qp.endpoint().unwrap(), peer.qp.endpoint().unwrap());
        self.qp.to_init(InitAttr::new(Access::REMOTE_WRITE)).unwrap();
        self.qp.to_rtr(RtrAttr::new(theirs.qpn, theirs.psn, theirs.gid)).unwrap();
        let quick = RtsAttr { timeout: 8, retry_cnt: 2, ..RtsAttr::new(ours.psn) };
        self.qp.to_rts(quick).unwrap();
    }

    fn write_to(&self, peer: &End) {
        let (sge, remote) = (self.mr.sge(..).unwrap(), peer.mr.remote_buf(..).unwrap());
        self.qp.post_send(&[SendWr::write(1, &[sge], remote).signaled()]).unwrap();
    }

    /// Polls until there is a completion or an error.
    fn wait(&self) -> Result<Wc, Error> {
        let deadline = Instant::now() + TIMEOUT;
        let mut wcs = [Wc::default()];
        while Instant::now() < deadline {
            if self.cq.poll(&mut wcs)? > 0 {
                return Ok(wcs[0]);
            }
            std::thread::yield_now();
        }
        panic!("neither a completion nor an error");
    }
}

#[test]
fn a_killed_daemon_is_an_error_to_its_program_and_exceeds_the_retries_of_the_peer() {
    let [near, mut far] = [Daemon::start(), Daemon::start()];
    let [requester, responder] = [End::new(&near), End::new(&far)];
    requester.connect(&responder);
    responder.connect(&requester);
    requester.write_to(&responder);
    assert_eq!(requester.wait().unwrap().status, WcStatus::Success);

    far.process.kill();
    assert!(matches!(responder.wait(), Err(Error::DaemonGone { .. })));
    requester.write_to(&responder);
    assert_eq!(requester.wait().unwrap().status, WcStatus::RetryExceeded);
    // From now on everything is flushed, at once.
    requester.write_to(&responder);
    assert_eq!(requester.wait().unwrap().status, WcStatus::WrFlush);
}
