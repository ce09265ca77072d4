//! Congestion notifications: telling a peer that what it sends has met congestion (IBTA A17.9.3,
//! and DCQCN's notification point).

use super::common::Cx;
use super::parameters::Route;
use crate::counters::Counter;
use std::convert::Infallible;
use std::time::Instant;
use urxe_types::Psn;
use urxe_wire::batch::TxBatch;
use urxe_wire::{Body, Bth, Flow, Headers, ecn};

/// The payload of a notification: reserved bytes.
const PAYLOAD: usize = 16;

/// The notifications of one QP.
#[derive(Debug, Default)]
pub(super) struct Notifier {
    last_at: Option<Instant>,
    is_due: bool,
}

impl Notifier {
    /// Something came that was marked, from a peer that is to be notified of it.
    pub(super) fn on_marked<H>(&mut self, cx: &Cx<'_, H>) {
        let Some(parameters) = cx.config.tuning.congestion.parameters() else { return };
        let interval = parameters.notification_interval;
        // CONG-021
        let is_time = self.last_at.is_none_or(|at| cx.now.duration_since(at) >= interval);
        if is_time && !fault!(CnpNever) {
            self.last_at = Some(cx.now);
            self.is_due = true;
        }
    }

    /// Whether a notification is to be sent.
    pub(super) fn is_due(&self) -> bool {
        self.is_due
    }

    /// Sends the notification that is due.
    pub(super) fn transmit<H>(&mut self, cx: &mut Cx<'_, H>, route: &Route, tx: &mut TxBatch) {
        if !self.is_due || !tx.has_room() {
            return;
        }
        self.is_due = false;
        // CONG-020
        let bth = Bth { becn: !fault!(CnpWithoutBecn), ..Bth::new(route.dest_qpn, Psn::new(0)) };
        // CONG-024: it is not to be marked itself.
        let traffic_class = match fault!(CnpMarkable) {
            true => markable(route.flow.traffic_class),
            false => route.flow.traffic_class & !ecn::MASK,
        };
        let flow = Flow { traffic_class, ..route.flow };
        let Ok(()) = tx.push(&flow, &Headers::new(bth, Body::Cnp), PAYLOAD, |payload| {
            payload.fill(0);
            Ok::<(), Infallible>(())
        });
        cx.count(Counter::CnpsSent, 1);
        cx.count_sent(PAYLOAD);
    }
}

/// The traffic class of what may be marked.
pub(super) fn markable(traffic_class: u8) -> u8 {
    traffic_class & !ecn::MASK | ecn::CAPABLE
}
