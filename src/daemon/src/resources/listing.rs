//! What objects a device has, whose they are and how they do, page by page.

use super::context::find_nic;
use crate::device::RdmaDevice;
use crate::limits::MAX_PROGRAM_NAME;
use crate::session::{Answer, DaemonCtx, Session};
use std::ops::Bound;
use urxe_engine::{Device, PdId, SrqId};
use urxe_nic::Nic;
use urxe_nic::objects::{MrObject, Owner, QpObject, SrqObject};
use urxe_nic::queues::{CompletionQueue, RecvQueue};
use urxe_nic::slab::{self, Slab};
use urxe_shm::control::{
    BoundTo, ControlError, Gid, MAX_MESSAGE, Reply, Resource, ResourceDetail, ResourceKind,
    ResourcePage,
};
use urxe_types::{MwType, Qpn};

/// Bytes of a page that an object takes at most beside its program's name and process id.
const OBJECT_LEN: usize = 100;

/// Objects of a page.
const PAGE_LEN: usize = (MAX_MESSAGE - 64) / (MAX_PROGRAM_NAME + OBJECT_LEN);

impl Session {
    pub(crate) fn list_resources(
        &self,
        ctx: &mut DaemonCtx<'_>,
        device: &str,
        kind: ResourceKind,
        after: Option<u32>,
    ) -> Result<Answer, ControlError> {
        let index = find_nic(ctx, device)?;
        let device = &mut ctx.devices[index];
        let range = (behind(after), Bound::Unbounded);
        let page = match kind {
            ResourceKind::Qp => {
                let qps = device.nic.host.objects.qps.range(range);
                let qps = qps.filter(|(_, qp)| self.may_see(&qp.owner));
                page(qps.filter_map(|(&qpn, object)| qp(device, qpn, object)))
            }
            ResourceKind::Cq => {
                let first = after.map_or(0, |after| after.saturating_add(1));
                let cqs = device.nic.host.cqs.iter_mut_from(first);
                page(cqs.filter(|(_, cq)| self.may_see(&cq.owner)).map(cq))
            }
            ResourceKind::Mr => {
                let mrs = device.nic.host.objects.mrs.range(range);
                page(mrs.filter(|(_, mr)| self.may_see(&mr.owner)).map(mr))
            }
            ResourceKind::Srq => {
                let Nic { device, host, .. } = &mut device.nic;
                let srqs = host.objects.srqs.range(range);
                let srqs = srqs.filter(|(_, srq)| self.may_see(&srq.owner));
                let queues = &mut host.recv_queues;
                page(srqs.filter_map(|(&number, object)| srq(device, queues, number, object)))
            }
            ResourceKind::Mw => {
                let mws = device.nic.host.objects.mws_behind(after);
                let mws = mws.filter(|(_, owner)| self.may_see(owner));
                page(mws.filter_map(|(rkey, owner)| mw(&device.nic.device, rkey, owner)))
            }
            ResourceKind::CmId => {
                let ids = ctx.cm.listed(index, after);
                let ids = ids.filter(|(_, owner, _)| self.may_see(owner));
                page(ids.map(|(number, owner, detail)| resource(number, owner, None, detail)))
            }
        };
        Ok(Reply::Resources(page).into())
    }
}

/// Where a page begins that continues behind a number.
pub(super) fn behind(after: Option<u32>) -> Bound<u32> {
    after.map_or(Bound::Unbounded, Bound::Excluded)
}

fn page(mut objects: impl Iterator<Item = Resource>) -> ResourcePage {
    // COUNT-017
    let resources = objects.by_ref().take(PAGE_LEN).collect();
    ResourcePage { resources, more: objects.next().is_some() }
}

fn resource(number: u32, owner: &Owner, pd: Option<PdId>, detail: ResourceDetail) -> Resource {
    let program = owner.program.to_string();
    let pd = pd.map_or(0, |pd| slab::index_of(pd.0));
    Resource { number, program, uid: owner.uid, pd, detail }
}

fn qp(device: &RdmaDevice, qpn: u32, object: &QpObject) -> Option<Resource> {
    let info = device.nic.device.query_qp(Qpn::new(qpn))?;
    let attr = &info.attr;
    let detail = ResourceDetail::Qp {
        qp_type: info.init.qp_type,
        state: info.state,
        send_cq: slab::index_of(info.init.send_cq.0),
        recv_cq: slab::index_of(info.init.recv_cq.0),
        srq: info.init.srq().map(|srq| srq.0),
        peer: attr.av.zip(attr.dest_qpn).map(|(av, qpn)| (Gid::from(av.dgid), qpn.get())),
        sq_psn: info.sq_psn.get(),
        rq_psn: info.rq_psn.get(),
    };
    Some(resource(qpn, &object.owner, Some(info.init.pd), detail))
}

fn cq((number, cq): (u32, &mut CompletionQueue)) -> Resource {
    // One that its program has scribbled over has failed, or will when it is used.
    let unread = cq.unread().unwrap_or(0);
    let detail = ResourceDetail::Cq { cqe: cq.cqe, unread, qps: cq.qps, failed: cq.failed };
    resource(number, &cq.owner, None, detail)
}

fn mr((&key, mr): (&u32, &MrObject)) -> Resource {
    let &MrObject { iova, length, access, mapped, .. } = mr;
    let detail = ResourceDetail::Mr { iova, length, access, mapped };
    resource(key, &mr.owner, Some(mr.pd), detail)
}

fn srq(
    device: &Device,
    queues: &mut Slab<RecvQueue>,
    number: u32,
    object: &SrqObject,
) -> Option<Resource> {
    let info = device.query_srq(SrqId(number))?;
    let posted = queues.get_mut(info.init.queue.0)?.posted();
    let (max_wr, limit, qps) = (object.max_wr, info.limit, info.qps as u32);
    let detail = ResourceDetail::Srq { max_wr, posted, limit, qps };
    Some(resource(number, &object.owner, Some(info.init.pd), detail))
}

fn mw(device: &Device, rkey: u32, owner: &Owner) -> Option<Resource> {
    let info = device.query_mw(rkey)?;
    let is_type_1 = info.mw_type == urxe_types::MwType::One;
    let bound = info.bound.map(|bound| BoundTo {
        mr: bound.mr,
        addr: bound.addr,
        length: bound.length,
        access: bound.access,
        qpn: (!is_type_1).then_some(bound.qpn.get()),
    });
    let mw_type = if is_type_1 { MwType::One } else { MwType::Two };
    Some(resource(info.rkey, owner, Some(info.pd), ResourceDetail::Mw { mw_type, bound }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv6Addr;
    use urxe_shm::control::{CmIdState, CmPortSpace, encode};
    use urxe_types::{QpState, QpType};

    #[test]
    fn a_page_filled_to_the_brim_fits_into_a_message() {
        let details = [
            ResourceDetail::Qp {
                qp_type: QpType::Ud,
                state: QpState::Err,
                send_cq: u32::MAX,
                recv_cq: u32::MAX,
                srq: Some(u32::MAX),
                peer: Some((Gid([0xff; 16]), u32::MAX)),
                sq_psn: u32::MAX,
                rq_psn: u32::MAX,
            },
            ResourceDetail::CmId {
                space: CmPortSpace::Ib,
                qp_type: QpType::Ud,
                state: CmIdState::Over,
                qpn: Some(u32::MAX),
                local: Some((Ipv6Addr::from([0xff; 16]), u16::MAX).into()),
                peer: Some((Ipv6Addr::from([0xff; 16]), u16::MAX).into()),
            },
            ResourceDetail::Mw {
                mw_type: MwType::Two,
                bound: Some(BoundTo {
                    mr: u32::MAX,
                    addr: u64::MAX,
                    length: u64::MAX,
                    access: urxe_types::Access::from_bits_retain(u32::MAX),
                    qpn: Some(u32::MAX),
                }),
            },
        ];
        for detail in details {
            let resource = Resource {
                number: u32::MAX,
                program: "p".repeat(MAX_PROGRAM_NAME + "[4294967295]".len()),
                uid: u32::MAX,
                pd: u32::MAX,
                detail,
            };
            let page = ResourcePage { resources: vec![resource; PAGE_LEN], more: true };
            encode(&Reply::Resources(page), &mut vec![0; MAX_MESSAGE]).unwrap();
        }
        const { assert!(PAGE_LEN > 100) };
    }
}
