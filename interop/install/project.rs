//! All that a project writes to test its code on RDMA: its own tests start the NIC.

use urxe_verbs::asynchronous::AsyncCq;
use urxe_verbs::{Access, Context, Error, Inline, QpInit, SendWr};

/// Has one queue pair write a message to memory of another, and reads it there.
pub async fn round_trip(context: &Context, message: &[u8]) -> Result<Vec<u8>, Error> {
    let pd = context.alloc_pd()?;
    let cq = AsyncCq::new(context, 16)?;
    let target = pd.alloc_mr(4096, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
    let init = QpInit::new(cq.get());
    let (near, far) = (pd.create_qp(&init)?, pd.create_qp(&init)?);
    near.connect(&far.endpoint()?, Access::default())?;
    far.connect(&near.endpoint()?, Access::REMOTE_WRITE)?;
    let write = SendWr::write(1, Inline(message), target.remote_buf(..)?);
    near.post_send(&[write.signaled()])?;
    cq.next().await?.check()?;
    let mut arrived = vec![0; message.len()];
    target.read_at(0, &mut arrived)?;
    Ok(arrived)
}

#[cfg(test)]
mod tests {
    use super::round_trip;
    use urxe_daemon::testing::TestDaemon;
    use urxe_verbs::{Context, OpenOptions, devices};

    #[tokio::test]
    async fn what_is_written_arrives() {
        let daemon = TestDaemon::start(1).unwrap();
        let context = Context::open(&OpenOptions::new().socket(daemon.socket())).unwrap();
        assert_eq!(round_trip(&context, b"hello").await.unwrap(), b"hello");
    }

    #[test]
    fn a_daemon_has_as_many_devices_as_were_asked_for() {
        let daemon = TestDaemon::start(2).unwrap();
        let found = devices(&OpenOptions::new().socket(daemon.socket())).unwrap();
        assert_eq!(found.len(), 2);
    }
}
