//! Idle queue pairs, and the memory that they need.

use crate::error::Error;
use crate::units::count;
use procfs::process::Process;
use serde::Serialize;
use std::fmt;
use urxe_verbs::{Access, Context, Cq, Pd, Qp, QpCaps, QpInit, QpType};

/// Idle queue pairs, ready to send and receive, and connected each to itself.
pub(super) struct Idle {
    _qps: Vec<Qp>,
    pub(super) cost: IdleCost,
}

/// The memory that they need in the daemon.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct IdleCost {
    qps: u32,
    /// Bytes of the daemon's own memory for each.
    #[serde(skip_serializing_if = "Option::is_none")]
    own_bytes_per_qp: Option<f64>,
    /// Bytes of shared memory for each, as far as the daemon has touched it: the rings.
    #[serde(skip_serializing_if = "Option::is_none")]
    ring_bytes_per_qp: Option<f64>,
}

impl Idle {
    /// Creates `count` of them, if it is not 0.
    pub(super) fn new(context: &Context, pd: &Pd, count: u32) -> Result<Option<Idle>, Error> {
        if count == 0 {
            return Ok(None);
        }
        let cq = context.create_cq(1, None)?;
        // The first one creates what all share.
        let mut qps = vec![idle_qp(pd, &cq)?];
        let before = daemon_memory(context);
        for _ in 1..count {
            qps.push(idle_qp(pd, &cq)?);
        }
        let grown = before.zip(daemon_memory(context)).filter(|_| count > 1);
        let each = |which: fn(&Memory) -> u64| {
            grown.map(|(before, after)| {
                which(&after).saturating_sub(which(&before)) as f64 / f64::from(count - 1)
            })
        };
        let cost = IdleCost {
            qps: count,
            own_bytes_per_qp: each(|memory| memory.own),
            ring_bytes_per_qp: each(|memory| memory.shared),
        };
        Ok(Some(Idle { _qps: qps, cost }))
    }
}

fn idle_qp(pd: &Pd, cq: &Cq) -> Result<Qp, Error> {
    let caps = QpCaps {
        max_send_wr: 1,
        max_recv_wr: 1,
        max_send_sge: 1,
        max_recv_sge: 1,
        max_inline_data: 0,
    };
    let qp = pd.create_qp(&QpInit { qp_type: QpType::Rc, caps, ..QpInit::new(cq) })?;
    qp.connect(&qp.endpoint()?, Access::REMOTE_WRITE)?;
    Ok(qp)
}

impl fmt::Display for IdleCost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let IdleCost { qps, own_bytes_per_qp, ring_bytes_per_qp } = self;
        write!(f, "{} QPs", count((*qps).into()))?;
        match own_bytes_per_qp.zip(*ring_bytes_per_qp) {
            Some((own, rings)) => {
                let (own, rings) = (count(own as u64), count(rings as u64));
                write!(f, ", each {own} bytes of the daemon's memory beyond {rings} of its rings")
            }
            None => f.write_str(", and the daemon's memory cannot be seen from here"),
        }
    }
}

/// A process's resident memory in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Memory {
    /// Anonymous, so not shared.
    own: u64,
    /// Of memfds: rings and doorbells.
    shared: u64,
}

/// The memory of the daemon, if it is visible here.
fn daemon_memory(context: &Context) -> Option<Memory> {
    memory_of(context.daemon_pid()?)
}

fn memory_of(pid: u32) -> Option<Memory> {
    let status = Process::new(pid.try_into().ok()?).and_then(|process| process.status()).ok()?;
    // The kernel counts in KiB.
    Some(Memory { own: status.rssanon? * 1024, shared: status.rssshmem? * 1024 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resident_memory_of_a_process_is_read_in_bytes() {
        let memory = memory_of(std::process::id()).unwrap();
        assert!(memory.own > 64 * 1024 && memory.own.is_multiple_of(1024), "{memory:?}");
        assert_eq!(memory_of(u32::MAX), None);
    }
}
