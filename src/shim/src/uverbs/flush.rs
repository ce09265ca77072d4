//! Completing what is outstanding when the daemon is gone: see [`lost`](crate::lost).

use super::context::{Context, Cq, Qp};
use urxe_shm::control::event::{self, EventRecord};
use urxe_shm::ring::geometry::Geometry;
use urxe_shm::ring::{FlushCq, Posted};

impl Context {
    /// Completes what is outstanding, if the session is lost.
    pub(crate) fn flush_if_lost(&self) {
        if !self.session().is_lost() {
            return;
        }
        let objects = self.objects().lock();
        for qp in objects.qps.values() {
            // What cannot be mapped any more, or is no ring any more, has nothing to say.
            if let Some(cq) = objects.cqs.get(&qp.send_cq) {
                let _ = self.flush_sends(qp, cq);
            }
            if let Some(cq) = objects.cqs.get(&qp.recv_cq) {
                let _ = self.flush_receives(qp, cq);
            }
        }
        for (handle, cq) in &objects.cqs {
            if let Some(channel) = &cq.channel
                && self.cq_end(cq).is_some_and(|end| end.take_armed())
            {
                channel.put_off(EventRecord {
                    user_handle: cq.user_handle,
                    object: handle.0.into(),
                    kind: event::COMPLETION,
                    reserved: 0,
                });
            }
        }
    }

    fn flush_sends(&self, qp: &Qp, cq: &Cq) -> Option<u32> {
        let caps = qp.created.caps;
        let shape = Geometry::send(caps.max_send_wr, caps.max_send_sge, caps.max_inline_data);
        let window = self.session().connection().window(qp.created.send_ring).ok()?;
        let end = self.cq_end(cq)?;
        end.flush(window, shape.ok()?, Posted::Sends, qp.created.qpn.get()).ok()
    }

    fn flush_receives(&self, qp: &Qp, cq: &Cq) -> Option<u32> {
        let caps = qp.created.caps;
        let shape = Geometry::recv(caps.max_recv_wr, caps.max_recv_sge);
        let window = self.session().connection().window(qp.created.recv_ring?).ok()?;
        let end = self.cq_end(cq)?;
        end.flush(window, shape.ok()?, Posted::Receives, qp.created.qpn.get()).ok()
    }

    /// The daemon's end of a completion queue, which is ours now.
    fn cq_end(&self, cq: &Cq) -> Option<FlushCq> {
        let window = self.session().connection().window(cq.location).ok()?;
        FlushCq::attach(window, Geometry::completion(cq.cqe).ok()?).ok()
    }
}
