//! Statistics: what a device, its port and its QPs have counted, page by page.

use super::context::find_device;
use crate::device::RdmaDevice;
use crate::session::{Answer, DaemonCtx, Session};
use urxe_engine::Counter;
use urxe_shm::control::{ControlError, CounterInfo, MAX_MESSAGE, QpStats, Reply, StatsPage};

/// Bytes of a page that a number takes at most.
const NUMBER_LEN: usize = 10;
/// Bytes of a page that a QP takes at most beside its numbers: the program's name and process id,
/// QPN, state and lengths.
const QP_LEN: usize = crate::limits::MAX_PROGRAM_NAME + 40;

pub(super) fn stats(
    session: &Session,
    ctx: &DaemonCtx,
    device: &str,
    after_qpn: Option<u32>,
) -> Result<Answer, ControlError> {
    let device = &ctx.devices[find_device(ctx, device)?];
    let mut page = StatsPage::default();
    if after_qpn.is_none() {
        page.device = device_counters(device, ctx);
        page.qp_counters = Counter::ALL.iter().map(|c| info(c.name(), c.meaning())).collect();
    }
    let room = (MAX_MESSAGE - head_len(&page)) / (QP_LEN + Counter::ALL.len() * NUMBER_LEN);
    let may_see = |owner| ctx.programs.get(&owner).is_some_and(|program| session.may_see(program));
    let qps = device.nic.qps_behind(after_qpn, may_see);
    let mut qps = qps.filter_map(|(qpn, qp)| {
        let program = ctx.programs.get(&qp.owner)?.name.to_string();
        let counters = device.nic.device().qp_counters(qpn)?;
        let values = counters.iter().map(|(_, value, _)| value).collect();
        Some(QpStats { qpn: qpn.get(), state: qp.info.state, program, values })
    });
    // COUNT-014
    page.qps = qps.by_ref().take(room).collect();
    page.more = qps.next().is_some();
    Ok(Reply::Stats(page).into())
}

/// Bytes that a page's device counters and QP counter names take at most, and the rest around
/// them.
fn head_len(page: &StatsPage) -> usize {
    let infos = page.device.iter().map(|(info, _)| info).chain(&page.qp_counters);
    let texts: usize = infos.map(|info| info.name.len() + info.meaning.len() + 6).sum();
    texts + page.device.len() * NUMBER_LEN + 64
}

fn device_counters(device: &RdmaDevice, ctx: &DaemonCtx) -> Vec<(CounterInfo, u64)> {
    let engine = device.nic.device().counters().iter();
    let cm = device.cm.counters().iter();
    engine
        .chain(cm)
        .chain(device.nic.port_counters().iter())
        .chain(device.nic.counters().iter())
        .chain(device.counters.iter())
        .chain(ctx.cm.counters.iter())
        .chain(ctx.counters.iter())
        .map(|(name, value, meaning)| (info(name, meaning), value))
        .collect()
}

fn info(name: &str, meaning: &str) -> CounterInfo {
    CounterInfo { name: name.to_owned(), meaning: meaning.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use urxe_shm::control::encode;
    use urxe_types::QpState;

    #[test]
    fn a_page_filled_to_the_brim_fits_into_a_message() {
        let mut page = StatsPage {
            device: vec![(info(&"n".repeat(40), &"m".repeat(150)), u64::MAX); 180],
            qp_counters: vec![info(&"n".repeat(40), &"m".repeat(150)); Counter::ALL.len()],
            more: true,
            qps: Vec::new(),
        };
        let qp = QpStats {
            qpn: u32::MAX,
            state: QpState::Err,
            program: "p".repeat(crate::limits::MAX_PROGRAM_NAME + "[4294967295]".len()),
            values: vec![u64::MAX; Counter::ALL.len()],
        };
        let room = (MAX_MESSAGE - head_len(&page)) / (QP_LEN + Counter::ALL.len() * NUMBER_LEN);
        assert!(room > 10, "the first page holds {room} QPs");
        page.qps = vec![qp; room];
        encode(&Reply::Stats(page), &mut vec![0; MAX_MESSAGE]).unwrap();
    }
}
