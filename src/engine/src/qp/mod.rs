//! One QP: what all services share, its send queue, and its service.
//!
//! The [device](crate::Device) lets [events](Event) happen to it, through one function,
//! [`Qp::handle`]. `transport.rs` passes them on: to the RC, UC or UD [service](transport), whose
//! parts return what came of it, and never call each other. `modify.rs` checks what the program
//! asks for, by the table in `state.rs`, and resolves it to what the service works with.

mod common;
mod history;
mod message;
mod modify;
mod notification;
mod parameters;
mod rc;
mod receive;
mod send_queue;
mod sges;
mod state;
mod train;
mod transport;
mod uc;
mod ud;

pub use history::{FailedRequest, Happening, History, HistoryEntry, MAX_HISTORY_ENTRIES, traffic};
pub(crate) use modify::Change;
pub use modify::ModifyQpError;
pub(crate) use send_queue::SpareSends;
pub use state::Attribute;

use crate::attr::{DeviceConfig, QpInfo, QpInit};
use crate::counters::Counters;
use crate::device::Tables;
use crate::host::Host;
use crate::ids::PdId;
use crate::path::{PathId, Release};
use common::{Common, Cx};
use parameters::Route;
use std::net::IpAddr;
use std::time::Instant;
use transport::Transport;
use urxe_types::{QpAttr, QpState, Qpn};
use urxe_wire::batch::TxBatch;
use urxe_wire::{Bth, Outer, Packet};

/// What may happen to a QP.
pub(crate) enum Event<'a> {
    /// A packet came that carries its number.
    Packet(&'a Outer, &'a Packet<'a>),
    /// A packet came for it with a reserved opcode of reliable connections.
    ReservedOpcode(&'a Outer, &'a Bth),
    /// The batch of packets is through.
    EndOfBatch,
    /// A timer may have run out.
    Timer,
    /// It is its turn to send.
    Turn(&'a mut TxBatch),
    /// A CQ that it uses takes no more completions.
    CqFailed,
    /// The program changes it.
    Modify(Change),
}

/// A queue pair.
#[derive(Debug)]
pub(crate) struct Qp {
    common: Common,
    transport: Transport,
}

impl Qp {
    /// A QP in RESET. `recv_pd` is the protection domain of its receives.
    pub(crate) fn new(qpn: Qpn, init: QpInit, recv_pd: PdId) -> Qp {
        Qp { common: Common::new(qpn, init, recv_pd), transport: Transport::default() }
    }

    /// Leaves from the port that is right for its peer now.
    pub(crate) fn follow_guarded_addrs(&mut self, config: &DeviceConfig) {
        self.transport.follow_guarded_addrs(config);
    }

    /// What it was created with.
    pub(crate) fn init(&self) -> &QpInit {
        &self.common.init
    }

    /// What it has counted.
    pub(crate) fn counters(&self) -> &Counters {
        self.common.counters.get()
    }

    /// What happened to it.
    pub(crate) fn history(&self) -> &History {
        &self.common.history
    }

    /// Whether program memory was written that is not visible yet.
    pub(crate) fn is_dirty(&self) -> bool {
        self.common.dirty
    }

    /// The next time at which a timer of this QP runs out.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.transport.deadline()
    }

    /// Whether an ACK is all that there is to send.
    pub(crate) fn owes_only_an_ack(&self) -> bool {
        self.transport.owes_only_an_ack()
    }

    /// A number that QPs have in common whose packets make one flow, and others seldom.
    pub(crate) fn flow_number(&self) -> usize {
        let Some(Route { flow, .. }) = self.transport.route() else { return 0 };
        let last_octet = match flow.dst {
            IpAddr::V4(dst) => dst.octets()[3],
            IpAddr::V6(dst) => dst.octets()[15],
        };
        usize::from(flow.src_port) ^ usize::from(last_octet) << 4
    }

    /// What `query_qp` tells.
    pub(crate) fn info(&self) -> QpInfo {
        QpInfo {
            state: self.common.state,
            // STATE-021
            attr: self.common.attr.clone(),
            init: self.common.init.clone(),
            sq_draining: self.common.state == QpState::Sqd && !self.transport.is_drained(),
            sq_psn: self.transport.next_psn(),
            rq_psn: self.transport.expected_psn(),
            path: self.transport.path().map(PathId::place),
        }
    }

    /// Checks a change that the program asks for.
    pub(crate) fn check_modify(
        &self,
        config: &DeviceConfig,
        attr: &QpAttr,
    ) -> Result<Change, ModifyQpError> {
        self.common.check_modify(config, self.transport.route(), attr)
    }

    /// It is to be destroyed.
    pub(crate) fn leave(&mut self, tables: &mut Tables) {
        self.transport.leave(tables);
    }

    /// Its turn in a lane of its path has come: it may send so much. Returns whether it has a use
    /// for it.
    pub(crate) fn on_released(&mut self, release: &Release) -> bool {
        self.transport.on_released(release, self.common.may_send())
    }

    /// The program rang the doorbell: its queues are worth a look. Returns whether it has
    /// something to send that only waits for its turn.
    pub(crate) fn on_doorbell(&mut self) -> bool {
        self.transport.on_doorbell();
        self.transport.may_transmit(self.common.state)
    }

    /// Lets something happen to the QP. Returns whether it has something to send that only waits
    /// for its turn; amid a batch that is not asked.
    pub(crate) fn handle<H: Host>(
        &mut self,
        now: Instant,
        host: &mut H,
        tables: &mut Tables,
        event: Event<'_>,
    ) -> bool {
        if let Event::Modify(Change { to: QpState::Reset, .. }) = event {
            let counters = std::mem::take(&mut self.common.counters);
            // HISTORY-006
            let mut history = std::mem::take(&mut self.common.history);
            history.record(now, &counters, Happening::Modified(QpState::Reset), 1);
            let Common { qpn, ref init, recv_pd, .. } = self.common;
            // CONG-037
            self.transport.stop_waiting(tables, qpn);
            self.transport.leave(tables);
            // STATE-003, STATE-037, SRQ-013
            *self = Qp::new(qpn, init.clone(), recv_pd);
            self.common.counters = counters;
            self.common.history = history;
            return false;
        }
        self.transport.handle(&mut Cx::new(now, host, tables, &mut self.common), event)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use send_queue::SendQueue;

    /// Bytes that each of a hundred thousand connected QPs may take in the engine.
    const MOST: usize = 1432;

    #[test]
    fn an_idle_connected_qp_takes_little_memory() {
        let (common, attr, init) = (size_of::<Common>(), size_of::<QpAttr>(), size_of::<QpInit>());
        let (transport, sq) = (size_of::<Transport>(), size_of::<SendQueue>());
        let (qp, rc) = (size_of::<Qp>(), size_of::<rc::Rc>());
        let whole = qp + rc;
        // SHARE-010: what is beside that is empty until something is sent or comes.
        assert!(
            whole <= MOST,
            "{whole} bytes: QP {qp} (common {common}, of which attr {attr} and init {init}; \
             transport {transport}, of which send queue {sq}), RC {rc}"
        );
    }
}
