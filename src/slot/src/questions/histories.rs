//! What happened to QPs, page by page.

use crate::device::SlotDevice;
use crate::known_qp::KnownQp;
use crate::link::Viewer;
use crate::pages::{HISTORIES_PER_PAGE, behind};
use crate::session::Program;
use std::collections::BTreeMap;
use std::time::Instant;
use urxe_nic::OwnerId;
use urxe_shm::control::{HistoryPage, HistorySubject};
use urxe_types::Qpn;

/// The histories of those of a subject that may be seen, behind a QPN.
pub(super) fn list(
    device: &SlotDevice,
    slot: usize,
    programs: &BTreeMap<OwnerId, Program>,
    viewer: Viewer,
    now: Instant,
    (subject, after): (HistorySubject, Option<u32>),
) -> HistoryPage {
    let live = |qpn| KnownQp::of(&device.nic, programs, qpn);
    let (ended, living): (Vec<&KnownQp>, Vec<KnownQp>) = match subject {
        HistorySubject::Qp(number) => (
            device.ended_qps.all().filter(|qp| qp.qpn().get() == number).collect(),
            Qpn::try_from(number).ok().and_then(live).into_iter().collect(),
        ),
        HistorySubject::Failed => (
            device.ended_qps.failed().collect(),
            device.nic.device().failed_qps().filter_map(live).filter(KnownQp::has_failed).collect(),
        ),
    };
    // HISTORY-013
    let qps = ended.into_iter().chain(&living).filter(|qp| viewer.may_see(qp.uid()));
    let mut qps: Vec<&KnownQp> =
        qps.filter(|qp| after.is_none_or(|after| qp.qpn().get() > after)).collect();
    qps.sort_by_key(|qp| qp.qpn());
    let next = qps.len() > HISTORIES_PER_PAGE;
    qps.truncate(HISTORIES_PER_PAGE);
    let next = qps.last().filter(|_| next).map(|last| behind(slot, last.qpn().get()));
    HistoryPage { histories: qps.into_iter().map(|qp| qp.shown(now)).collect(), next }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pages::MAX_SHOWN_NAME;
    use std::net::Ipv6Addr;
    use std::time::Duration;
    use urxe_engine::{Cause, Counter, MAX_HISTORY_ENTRIES};
    use urxe_shm::control::{
        Cursor, FailedRequest, Happening, HistoryEntry, MAX_MESSAGE, QpHistory, Reply, encode,
    };
    use urxe_types::{
        Access, AddressVector, PathMtu, Posted, Psn, Qkey, QpAttr, QpState, QpType, Traffic,
    };

    #[test]
    fn a_page_filled_to_the_brim_fits_into_a_message() {
        let longest = Duration::new(u64::MAX, 999_999_999);
        let name = Counter::ALL.iter().map(|counter| counter.name()).max_by_key(|name| name.len());
        let name = name.unwrap().to_owned();
        let entry = HistoryEntry {
            at: longest,
            span: longest,
            times: u32::MAX,
            what: Happening::Counted(name.clone()),
            traffic: Traffic {
                sent_packets: u64::MAX,
                received_packets: u64::MAX,
                sent_messages: u64::MAX,
                received_messages: u64::MAX,
                posted: Posted {
                    sends: u64::MAX,
                    writes: u64::MAX,
                    reads: u64::MAX,
                    atomics: u64::MAX,
                    flushes: u64::MAX,
                    local: u64::MAX,
                },
            },
        };
        let text = Cause::ALL.iter().map(|cause| cause.text().len()).max().unwrap();
        let qpn = Qpn::new(u32::MAX);
        let av = AddressVector {
            dgid: Ipv6Addr::from([0xff; 16]).into(),
            sgid_index: u8::MAX,
            traffic_class: u8::MAX,
            hop_limit: u8::MAX,
            flow_label: u32::MAX,
        };
        let attr = QpAttr {
            state: Some(QpState::Err),
            cur_state: Some(QpState::Err),
            access: Some(Access::all()),
            pkey_index: Some(u16::MAX),
            port: Some(u8::MAX),
            av: Some(av),
            path_mtu: Some(PathMtu::Mtu4096),
            dest_qpn: Some(qpn),
            qkey: Some(Qkey(u32::MAX)),
            rq_psn: Some(Psn::new(u32::MAX)),
            sq_psn: Some(Psn::new(u32::MAX)),
            max_rd_atomic: Some(u8::MAX),
            max_dest_rd_atomic: Some(u8::MAX),
            min_rnr_timer: Some(u8::MAX),
            timeout: Some(u8::MAX),
            retry_cnt: Some(u8::MAX),
            rnr_retry: Some(u8::MAX),
        };
        let failed = FailedRequest {
            at: longest,
            opcode: u32::MAX,
            wr_id: u64::MAX,
            length: u32::MAX,
            status: u32::MAX,
            vendor_err: u32::MAX,
        };
        let history = QpHistory {
            qpn: u32::MAX,
            program: "p".repeat(MAX_SHOWN_NAME),
            uid: u32::MAX,
            qp_type: QpType::Rc,
            state: QpState::Err,
            attr,
            gone: Some(longest),
            heard: Some(longest),
            entries: vec![entry; MAX_HISTORY_ENTRIES],
            left_out: u32::MAX,
            failed: Some(failed),
            // The cause, and as much again of what was seen of the peer.
            reason: Some("r".repeat(2 * text + 512)),
            counters: vec![(name, u64::MAX); Counter::ALL.len()],
        };
        let next = Some(Cursor { slot: u8::MAX, after: Some(u32::MAX) });
        let page = HistoryPage { histories: vec![history; HISTORIES_PER_PAGE], next };
        encode(&Reply::Histories(page), &mut vec![0; MAX_MESSAGE]).unwrap();
        const { assert!(HISTORIES_PER_PAGE > 3) };
    }
}
