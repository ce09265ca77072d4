//! What the broker asks about the devices of a slot, for programs that look at whole devices.

mod histories;
mod listing;
mod paths;
mod stats;

pub use stats::counts;

use crate::link::{Found, Subject, Viewer};
use crate::pages::behind;
use crate::session::SlotCtx;
use urxe_nic::OwnerId;

/// Finds what the broker asks for; `None` if there is no such device.
pub(crate) fn answer(
    ctx: &mut SlotCtx,
    device: usize,
    viewer: Viewer,
    subject: Subject,
) -> Option<Found> {
    let SlotCtx { allotment, devices, programs, counters, now, .. } = ctx;
    let allotment = *allotment;
    let device = devices.get_mut(device)?;
    let may_see =
        |owner: OwnerId| programs.get(&owner).is_some_and(|program| viewer.may_see(program.uid));
    Some(match subject {
        Subject::Resources { kind, after } => Found::Resources(listing::list(
            &mut device.nic,
            allotment,
            programs,
            may_see,
            kind,
            after,
        )),
        Subject::Paths { after } => Found::Paths(paths::list(&device.nic, allotment, after)),
        Subject::Histories { of, after } => {
            let slot = allotment.slot.id().index();
            let page = histories::list(device, slot, programs, viewer, *now, (of, after));
            Found::Histories(page)
        }
        Subject::Qps { after, most } => {
            let (qps, last) = stats::qps(&device.nic, programs, may_see, after, most);
            Found::Qps { qps, next: last.map(|last| behind(allotment.slot.id().index(), last)) }
        }
        Subject::Counts => Found::Counts(stats::counts(&device.nic, counters)),
    })
}
