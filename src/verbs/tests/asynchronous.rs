//! Tasks that wait for completions and connections.

use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::timeout;
use urxe_daemon::testing::TestDaemon;
use urxe_verbs::asynchronous::{AsyncConnection, AsyncCq, AsyncListener};
use urxe_verbs::cm::ConnParam;
use urxe_verbs::*;

/// Long enough that nothing that works reaches it.
const WAIT: Duration = Duration::from_secs(30);
/// In which nothing happens.
const MOMENT: Duration = Duration::from_millis(20);

fn open(daemon: &TestDaemon, device: &str) -> Context {
    Context::open(&OpenOptions::new().socket(daemon.socket()).device(device)).unwrap()
}

/// A queue pair with its completion queue, and memory with receives posted in it.
struct Side {
    cq: Arc<AsyncCq>,
    mr: Mr,
    qp: Qp,
    _pd: Pd,
}

/// Bytes of a receive.
const LEN: usize = 64;

impl Side {
    fn new(context: &Context, receives: usize) -> Side {
        let (pd, cq) = (context.alloc_pd().unwrap(), AsyncCq::new(context, 256).unwrap());
        let mr = pd.alloc_mr(LEN * receives.max(1), Access::LOCAL_WRITE).unwrap();
        let qp = pd.create_qp(&QpInit::new(cq.get())).unwrap();
        qp.to_init(InitAttr::new(Access::default())).unwrap();
        for index in 0..receives {
            let sge = mr.sge(index * LEN..(index + 1) * LEN).unwrap();
            qp.post_recv(&[RecvWr::new(index as u64, &[sge])]).unwrap();
        }
        Side { cq: Arc::new(cq), mr, qp, _pd: pd }
    }

    async fn send(&self, message: &[u8]) {
        self.qp.post_send(&[SendWr::send(1, Inline(message)).signaled()]).unwrap();
        self.cq.next().await.unwrap().check().unwrap();
    }
}

/// Two connected sides; the second has so many receives.
async fn connected(daemon: &TestDaemon, receives: usize) -> [(Side, AsyncConnection); 2] {
    let [near, far] = ["urxe0", "urxe1"].map(|device| open(daemon, device));
    let at = (far.query_gid(1, 0).unwrap(), 0).into();
    let listener = AsyncListener::bind(&far, at, 0).unwrap();
    let to = listener.local_addr();
    let client = async {
        let side = Side::new(&near, 0);
        let connection = AsyncConnection::connect(to, &side.qp, &ConnParam::default()).await;
        (side, connection.unwrap())
    };
    let server = async {
        let (request, side) = (listener.next().await.unwrap(), Side::new(&far, receives));
        let connection = request.accept(&side.qp, &ConnParam::default()).await.unwrap();
        (side, connection)
    };
    let (client, server) = timeout(WAIT, async { tokio::join!(client, server) }).await.unwrap();
    [client, server]
}

#[tokio::test]
async fn a_message_goes_over_a_connection_and_its_end_is_noticed() {
    let daemon = TestDaemon::start(2).unwrap();
    let [(client, near), (server, far)] = connected(&daemon, 1).await;
    let received = async { server.cq.next().await.unwrap() };
    let (_, received) = tokio::join!(client.send(b"message"), received);
    assert_eq!(received.check().unwrap().byte_len, 7);
    let mut message = [0; 7];
    server.mr.read_at(0, &mut message).unwrap();
    assert_eq!(&message, b"message");
    assert!(timeout(MOMENT, far.disconnected()).await.is_err(), "it is not over yet");
    near.disconnect().unwrap();
    timeout(WAIT, far.disconnected()).await.unwrap().unwrap();
    timeout(WAIT, near.disconnected()).await.unwrap().unwrap();
}

#[tokio::test]
async fn all_tasks_that_wait_for_the_end_of_a_connection_are_told() {
    let daemon = TestDaemon::start(2).unwrap();
    let [(_client, near), (_server, far)] = connected(&daemon, 0).await;
    let mut tasks = JoinSet::new();
    for _ in 0..3 {
        let far = far.clone();
        tasks.spawn(async move { far.disconnected().await });
    }
    assert!(timeout(MOMENT, far.disconnected()).await.is_err(), "it is not over yet");
    near.disconnect().unwrap();
    for ended in timeout(WAIT, tasks.join_all()).await.unwrap() {
        ended.unwrap();
    }
    timeout(WAIT, far.disconnected()).await.unwrap().unwrap();
}

#[tokio::test]
async fn a_future_that_is_dropped_loses_no_completion() {
    let daemon = TestDaemon::start(2).unwrap();
    let [(client, _near), (server, _far)] = connected(&daemon, 3).await;
    assert!(timeout(MOMENT, server.cq.next()).await.is_err());
    for count in 0..3 {
        client.send(&[count]).await;
    }
    let mut wcs = [Wc::default(); 8];
    let mut received = 0;
    while received < 3 {
        let count = timeout(WAIT, server.cq.poll(&mut wcs)).await.unwrap().unwrap();
        for wc in &wcs[..count] {
            assert_eq!(wc.check().unwrap().wr_id, received);
            received += 1;
        }
    }
    assert!(timeout(MOMENT, server.cq.next()).await.is_err(), "there is no fourth");
}

/// Also where several completions cause one event only.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_many_tasks_at_one_completion_queue_each_gets_its_completion() {
    const TASKS: usize = 64;
    let daemon = TestDaemon::start(2).unwrap();
    let [(client, _near), (server, _far)] = connected(&daemon, TASKS).await;
    let mut tasks = JoinSet::new();
    for _ in 0..TASKS {
        let cq = Arc::clone(&server.cq);
        tasks.spawn(async move { cq.next().await.unwrap().check().unwrap().wr_id });
    }
    for burst in 0..TASKS / 8 {
        if burst % 2 == 0 {
            tokio::time::sleep(MOMENT).await;
        }
        let wrs = [SendWr::send(1, Inline(b"one")).signaled(); 8];
        client.qp.post_send(&wrs).unwrap();
        for _ in 0..wrs.len() {
            timeout(WAIT, client.cq.next()).await.unwrap().unwrap().check().unwrap();
        }
    }
    let mut ids = timeout(WAIT, tasks.join_all()).await.unwrap();
    ids.sort_unstable();
    assert_eq!(ids, Vec::from_iter(0..TASKS as u64));
}

/// The events of all of them come through one channel, and a task that reads one of another tells
/// that task.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_connections_come_through_one_listener_at_once() {
    const CLIENTS: usize = 32;
    let daemon = TestDaemon::start(2).unwrap();
    let [near, far] = ["urxe0", "urxe1"].map(|device| open(&daemon, device));
    let at = (far.query_gid(1, 0).unwrap(), 0).into();
    let listener = AsyncListener::bind(&far, at, 0).unwrap();
    let to = listener.local_addr();
    let mut tasks = JoinSet::new();
    for _ in 0..CLIENTS {
        let near = near.clone();
        tasks.spawn(async move {
            let side = Side::new(&near, 0);
            let param = ConnParam::default();
            let connection = AsyncConnection::connect(to, &side.qp, &param).await.unwrap();
            side.send(b"hello").await;
            connection.disconnect().unwrap();
            connection.disconnected().await.unwrap();
        });
    }
    for _ in 0..CLIENTS {
        let request = timeout(WAIT, listener.next()).await.unwrap().unwrap();
        let far = far.clone();
        tasks.spawn(async move {
            let side = Side::new(&far, 1);
            let connection = request.accept(&side.qp, &ConnParam::default()).await.unwrap();
            side.cq.next().await.unwrap().check().unwrap();
            connection.disconnected().await.unwrap();
        });
    }
    timeout(WAIT, tasks.join_all()).await.unwrap();
}

#[tokio::test]
async fn a_peer_that_refuses_is_an_error() {
    let daemon = TestDaemon::start(2).unwrap();
    let [near, far] = ["urxe0", "urxe1"].map(|device| open(&daemon, device));
    let at = (far.query_gid(1, 0).unwrap(), 0).into();
    let listener = AsyncListener::bind(&far, at, 0).unwrap();
    let side = Side::new(&near, 0);
    let param = ConnParam::default();
    let connect = AsyncConnection::connect(listener.local_addr(), &side.qp, &param);
    let refuse = async { listener.next().await.unwrap().reject(b"not you").unwrap() };
    let (connected, ()) = timeout(WAIT, async { tokio::join!(connect, refuse) }).await.unwrap();
    assert!(matches!(connected.unwrap_err(), Error::Rejected { .. }));
}

#[tokio::test]
async fn whoever_waits_is_told_that_the_daemon_is_gone() {
    let daemon = TestDaemon::start(2).unwrap();
    let context = open(&daemon, "urxe0");
    let cq = AsyncCq::new(&context, 16).unwrap();
    let at = (context.query_gid(1, 0).unwrap(), 0).into();
    let listener = AsyncListener::bind(&context, at, 0).unwrap();
    let ends = async {
        tokio::time::sleep(MOMENT).await;
        drop(daemon);
    };
    let all = async { tokio::join!(cq.next(), listener.next(), ends) };
    let (completion, request, ()) = timeout(WAIT, all).await.unwrap();
    assert!(matches!(completion.unwrap_err(), Error::DaemonGone { .. }));
    assert!(matches!(request.unwrap_err(), Error::DaemonGone { .. }));
}
