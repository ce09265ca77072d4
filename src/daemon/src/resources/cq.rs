//! Completion queues.

use super::rings::location;
use super::{Context, Refusal, check_quota, check_unused, device_full, find, no_such, refuse};
use crate::host::CompletionQueue;
use crate::limits::{MAX_CQE, MAX_CQS};
use crate::nic::Nic;
use crate::session::{Answer, Session, World};
use rustix::io::Errno;
use urxe_engine::CqId;
use urxe_shm::arena::Extent;
use urxe_shm::control::{CompChannelHandle, ContextHandle, ControlError, CqHandle, Reply};
use urxe_shm::event::EventRecord;
use urxe_shm::geometry::Geometry;
use urxe_shm::ring::CqProducer;

/// A completion queue.
pub(crate) struct Cq {
    pub(crate) context: ContextHandle,
    pub(crate) channel: Option<CompChannelHandle>,
    /// The device's number.
    pub(crate) nic: usize,
    pub(crate) id: CqId,
    ring: Extent,
}

impl Session {
    pub(crate) fn create_cq(
        &mut self,
        world: &mut World<'_>,
        context: ContextHandle,
        cqe: u32,
        channel: Option<CompChannelHandle>,
        user_handle: u64,
        comp_vector: u32,
    ) -> Result<Answer, ControlError> {
        let &Context { nic, async_events } = find(&self.contexts, "context", context.0)?;
        check_quota("completion queues", self.cqs.len(), MAX_CQS)?;
        if cqe == 0 || cqe > MAX_CQE {
            let sentence = format!("cqe {cqe}: expected 1 to {MAX_CQE} completions");
            return Err(refuse(Errno::INVAL, sentence));
        }
        if comp_vector != 0 {
            let sentence = format!("comp_vector {comp_vector}: there is 1 vector, expected 0");
            return Err(refuse(Errno::INVAL, sentence));
        }
        let pipe = match channel {
            Some(channel) => {
                let found = find(&self.channels, "completion channel", channel.0)?;
                if found.context != context {
                    let sentence = "the completion channel is of another context";
                    return Err(refuse(Errno::INVAL, sentence));
                }
                Some(found.pipe)
            }
            None => None,
        };
        let geometry = Geometry::completion(cqe).or_refuse(Errno::INVAL, "cqe")?;
        let handle = self.new_handle()?;

        let rings = &mut self.shared()?.rings;
        let (ring, window) = rings.alloc("completion queue", &geometry)?;
        let record = EventRecord { user_handle, object: handle.into(), ..EventRecord::default() };
        let producer = CqProducer::create(window, geometry);
        let id = producer.or_refuse(Errno::NOMEM, "completion queue").and_then(|producer| {
            let queue = CompletionQueue::new(producer, pipe, async_events, record);
            let id = world.nics[nic].host.cqs.insert(queue);
            id.ok_or_else(|| device_full("completion queues"))
        });
        let id = id.inspect_err(|_| rings.free(ring))?;
        self.cqs.insert(handle, Cq { context, channel, nic, id: CqId(id), ring });
        Ok(Reply::Cq {
            cq: CqHandle(handle),
            cqe: geometry.capacity(),
            ring: location(ring, &geometry),
        }
        .into())
    }

    pub(crate) fn destroy_cq(
        &mut self,
        world: &mut World<'_>,
        cq: CqHandle,
    ) -> Result<Answer, ControlError> {
        find(&self.cqs, "completion queue", cq.0)?;
        let qps = self.qps.values().filter(|qp| qp.send_cq == cq || qp.recv_cq == cq).count();
        check_unused("completion queue", qps, "queue pairs")?;
        let freed = self.cqs.remove(&cq.0).ok_or_else(|| no_such("completion queue", cq.0))?;
        self.free_cq(world.nics, freed);
        Ok(Reply::Done.into())
    }

    pub(crate) fn free_cq(&mut self, nics: &mut [Nic], cq: Cq) {
        nics[cq.nic].host.cqs.remove(cq.id.0);
        if let Some(shared) = &mut self.shared {
            shared.rings.free(cq.ring);
        }
    }
}
