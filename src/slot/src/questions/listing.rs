//! What objects a device has, whose they are and how they do, page by page.

use crate::pages::{OBJECTS_PER_PAGE, page};
use crate::session::Program;
use crate::{Allotment, Numbering};
use std::collections::BTreeMap;
use urxe_engine::{MwInfo, PdId};
use urxe_nic::{CqStatus, Mr, Nic, OwnerId, QpStatus, SrqStatus};
use urxe_shm::control::{BoundTo, Resource, ResourceDetail, ResourceKind, ResourcePage};
use urxe_types::{Gid, MwType, index_of};

/// The objects of a kind behind a number. Ids are none of a device's own, and none of a slot's.
pub(super) fn list(
    nic: &mut Nic,
    allotment: Allotment,
    programs: &BTreeMap<OwnerId, Program>,
    may_see: impl Fn(OwnerId) -> bool,
    kind: ResourceKind,
    after: Option<u32>,
) -> ResourcePage {
    let numbering = allotment.numbering;
    let of = |number, owner: OwnerId, pd: Option<PdId>, detail| {
        let program = programs.get(&owner)?;
        let (program, uid) = (program.name.to_string(), program.uid);
        let pd = pd.map_or(0, |pd| numbering.shown(index_of(pd.0)));
        Some((number, Resource { number, program, uid, pd, detail }))
    };
    let index = allotment.slot.id().index();
    match kind {
        ResourceKind::Qp => page(
            index,
            nic.qps_behind(after, may_see).filter_map(|(qpn, qp)| {
                of(qpn.get(), qp.owner, Some(qp.info.init.pd), detail_of_qp(numbering, &qp))
            }),
        ),
        ResourceKind::Cq => page(
            index,
            nic.cqs_behind(after, may_see).filter_map(|(number, cq)| {
                let (_, found) = of(number, cq.owner, None, detail_of_cq(&cq))?;
                Some((number, Resource { number: numbering.shown(number), ..found }))
            }),
        ),
        ResourceKind::Mr => page(
            index,
            nic.mrs_behind(after, may_see)
                .filter_map(|(key, mr)| of(key, mr.owner, Some(mr.spec.pd), detail_of_mr(mr))),
        ),
        ResourceKind::Srq => {
            let ids = nic.srqs_behind(after, may_see).take(OBJECTS_PER_PAGE + 1);
            let ids = ids.collect::<Vec<_>>();
            page(
                index,
                ids.into_iter().filter_map(|id| {
                    let srq = nic.query_srq(id)?;
                    of(id.0, srq.owner, Some(srq.info.init.pd), detail_of_srq(&srq))
                }),
            )
        }
        ResourceKind::Mw => page(
            index,
            nic.mws_behind(after, may_see)
                .filter_map(|(mw, owner)| of(mw.rkey.0, owner, Some(mw.pd), detail_of_mw(&mw))),
        ),
        ResourceKind::CmId => ResourcePage::default(),
    }
}

fn detail_of_qp(numbering: Numbering, qp: &QpStatus) -> ResourceDetail {
    let (init, attr) = (&qp.info.init, &qp.info.attr);
    ResourceDetail::Qp {
        qp_type: init.qp_type,
        state: qp.info.state,
        send_cq: numbering.shown(index_of(init.send_cq.0)),
        recv_cq: numbering.shown(index_of(init.recv_cq.0)),
        srq: init.srq().map(|srq| srq.0),
        peer: attr.av.zip(attr.dest_qpn).map(|(av, qpn)| (Gid::from(av.dgid), qpn.get())),
        path: qp.info.path.map(|place| numbering.shown(place)),
        sq_psn: qp.info.sq_psn.get(),
        rq_psn: qp.info.rq_psn.get(),
        cause: qp.cause.map(|cause| cause as u32),
    }
}

fn detail_of_cq(cq: &CqStatus) -> ResourceDetail {
    // One that its program has scribbled over has failed, or will when it is used.
    let unread = cq.unread.as_ref().map_or(0, |unread| *unread);
    ResourceDetail::Cq { cqe: cq.cqe, unread, qps: cq.qps, failed: cq.failed }
}

fn detail_of_mr(mr: &Mr) -> ResourceDetail {
    let (iova, length) = (mr.spec.addr, mr.spec.length);
    let (access, copied) = (mr.spec.access, mr.why_copied());
    let has_mapped_pages = copied.is_some() && mr.is_mapped();
    ResourceDetail::Mr { iova, length, access, copied, has_mapped_pages }
}

fn detail_of_srq(srq: &SrqStatus) -> ResourceDetail {
    let (limit, qps) = (srq.info.limit, srq.info.qps as u32);
    ResourceDetail::Srq { max_wr: srq.shape.capacity(), posted: srq.posted, limit, qps }
}

fn detail_of_mw(mw: &MwInfo) -> ResourceDetail {
    let bound = mw.bound.map(|bound| BoundTo {
        mr: bound.mr.0,
        addr: bound.addr,
        length: bound.length,
        access: bound.access,
        qpn: (mw.mw_type == MwType::Two).then_some(bound.qpn.get()),
    });
    ResourceDetail::Mw { mw_type: mw.mw_type, bound }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::MAX_PROGRAM_NAME;
    use crate::link::{Found, ToBroker};
    use std::net::Ipv6Addr;
    use urxe_shm::control::{CmIdState, CmPortSpace, Cursor, MAX_MESSAGE, Reply, encode};
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
                path: Some(u32::MAX),
                sq_psn: u32::MAX,
                rq_psn: u32::MAX,
                cause: Some(u32::MAX),
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
        let next = Some(Cursor { slot: u8::MAX, after: Some(u32::MAX) });
        for detail in details {
            let resource = Resource {
                number: u32::MAX,
                program: "p".repeat(MAX_PROGRAM_NAME + "[4294967295]".len()),
                uid: u32::MAX,
                pd: u32::MAX,
                detail,
            };
            let page = ResourcePage { resources: vec![resource; OBJECTS_PER_PAGE], next };
            encode(&Reply::Resources(page.clone()), &mut vec![0; MAX_MESSAGE]).unwrap();
            let found = ToBroker::Found { number: u64::MAX, found: Found::Resources(page) };
            encode(&found, &mut vec![0; MAX_MESSAGE]).unwrap();
        }
        const { assert!(OBJECTS_PER_PAGE > 100) };
    }
}
