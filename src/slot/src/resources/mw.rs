//! Memory windows.

use super::{PdUser, Refusal, pd};
use crate::objects::Object;
use crate::session::{Answer, Session, SlotCtx};
use rustix::io::Errno;
use urxe_shm::control::{ContextHandle, ControlError, MwHandle, PdHandle, Reply};
use urxe_types::{MwType, Rkey};

/// A memory window.
pub(crate) struct Mw {
    context: ContextHandle,
    pd: PdHandle,
    /// The device's number.
    device: usize,
    /// The rkey it had first; those that it had later name it as well.
    rkey: u32,
}

impl Object for Mw {
    const PD_USER: Option<PdUser> = Some(PdUser::Mw);

    fn context(&self) -> ContextHandle {
        self.context
    }

    fn pd(&self) -> Option<PdHandle> {
        Some(self.pd)
    }

    fn free(self, _: u32, _: &mut Session, ctx: &mut SlotCtx) {
        ctx.devices[self.device].nic.dealloc_mw(self.rkey);
    }
}

pub(super) fn alloc(
    session: &mut Session,
    ctx: &mut SlotCtx,
    pd: PdHandle,
    mw_type: MwType,
) -> Result<Answer, ControlError> {
    let place = pd::place(session, pd)?;
    session.objects.check_quota::<Mw>()?;
    let handle = session.objects.new_handle()?;
    let nic = &mut ctx.devices[place.device].nic;
    let rkey = nic.alloc_mw(place.id, mw_type, session.id());
    let rkey = rkey.or_refuse(Errno::NOMEM, "memory window")?;
    let mw = Mw { context: place.context, pd, device: place.device, rkey };
    session.objects.insert(handle, mw);
    Ok(Reply::Mw { mw: MwHandle(handle), rkey: Rkey(rkey) }.into())
}

pub(super) fn dealloc(
    session: &mut Session,
    ctx: &mut SlotCtx,
    mw: MwHandle,
) -> Result<Answer, ControlError> {
    session.objects.remove::<Mw>(mw.0)?.free(mw.0, session, ctx);
    Ok(Reply::Done.into())
}
