//! What a slot has to say for the daemon's log. The broker says it: it alone knows what is to be
//! logged, and how.

use crate::link::{Logged, ToBroker};
use crate::rate_limit::RateLimit;
use crate::resources::failure;
use crate::session::{Session, SlotCtx};
use urxe_nic::OwnerId;
use urxe_shm::control::ControlError;
use urxe_types::Qpn;

/// Kinds of what is said, of which a user has each so much.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    Opened,
    Refused,
    QpFailed,
}

/// How much is said of each user.
pub(crate) type LogLimit = RateLimit<(Kind, u32)>;

/// Says something of a session, unless enough was said of this kind.
fn say(
    ctx: &mut SlotCtx,
    (session, uid): (OwnerId, u32),
    kind: Kind,
    what: impl FnOnce(&SlotCtx) -> Option<Logged>,
) {
    // LOG-002
    if let Some(unlogged) = ctx.log_limit.admit(ctx.now, (kind, uid), 0)
        && let Some(what) = what(ctx)
    {
        ctx.to_broker.push(ToBroker::Log { session: session.0, what, unlogged });
    }
}

/// A program has opened a device.
pub(crate) fn opened(ctx: &mut SlotCtx, session: &Session, device: usize) {
    let of = (session.id(), session.uid());
    say(ctx, of, Kind::Opened, |_| Some(Logged::Opened { device }));
}

/// A program's request is refused.
pub(crate) fn refused(ctx: &mut SlotCtx, session: &Session, error: &ControlError) {
    let of = (session.id(), session.uid());
    say(ctx, of, Kind::Refused, |_| Some(Logged::Refused(error.clone())));
}

/// Says which QPs have failed of themselves since the last time, and why.
pub(crate) fn qps_that_failed(ctx: &mut SlotCtx) {
    for device in 0..ctx.devices.len() {
        for qpn in ctx.devices[device].take_failed_qps() {
            ctx.history_writer.failed(device, qpn);
            // Nobody misses one that its program has destroyed at once.
            let owner = ctx.devices[device].nic.query_qp(qpn).map(|status| status.owner);
            let program = owner.and_then(|owner| Some((owner, ctx.programs.get(&owner)?.uid)));
            if let Some(of) = program {
                say(ctx, of, Kind::QpFailed, |ctx| failed(ctx, device, qpn));
            }
        }
    }
}

fn failed(ctx: &SlotCtx, device: usize, qpn: Qpn) -> Option<Logged> {
    let nic = &ctx.devices[device].nic;
    let status = nic.query_qp(qpn)?;
    let cause = status.cause? as u32;
    let sentence = failure::reason(nic, qpn, cause)?;
    Some(Logged::QpFailed { device, qpn, state: status.info.state, cause, sentence })
}
