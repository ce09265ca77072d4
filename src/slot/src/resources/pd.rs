//! Protection domains.

use super::{Ah, Mr, Mw, Qp, Srq, check_unused, device_full};
use crate::objects::{Kind, Object};
use crate::session::{Answer, Session, SlotCtx};
use urxe_engine::PdId;
use urxe_shm::control::{ContextHandle, ControlError, PdHandle, Reply};

/// A protection domain.
pub(crate) struct Pd {
    context: ContextHandle,
    /// The device's number.
    device: usize,
    id: PdId,
    /// How many of each kind are in it. Counted, for to look for them among a million takes long.
    users: [usize; PdUser::ALL.len()],
}

/// What is in a protection domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PdUser {
    Mr,
    Mw,
    Qp,
    Srq,
    Ah,
}

impl PdUser {
    const ALL: [PdUser; 5] = [PdUser::Mr, PdUser::Mw, PdUser::Qp, PdUser::Srq, PdUser::Ah];

    fn plural(self) -> &'static str {
        match self {
            PdUser::Mr => Mr::PLURAL,
            PdUser::Mw => Mw::PLURAL,
            PdUser::Qp => Qp::PLURAL,
            PdUser::Srq => Srq::PLURAL,
            PdUser::Ah => Ah::PLURAL,
        }
    }
}

/// Where an object goes that is made in a protection domain.
#[derive(Clone, Copy)]
pub(super) struct PdPlace {
    pub(super) context: ContextHandle,
    pub(super) device: usize,
    pub(super) id: PdId,
}

/// Finds the protection domain in which an object is to be made.
pub(super) fn place(session: &Session, pd: PdHandle) -> Result<PdPlace, ControlError> {
    let &Pd { context, device, id, .. } = session.objects.get(pd.0)?;
    Ok(PdPlace { context, device, id })
}

impl Pd {
    /// Something is in it from now on.
    pub(crate) fn join(&mut self, user: PdUser) {
        self.users[user as usize] += 1;
    }

    /// Something that was in it is gone.
    pub(crate) fn leave(&mut self, user: PdUser) {
        self.users[user as usize] -= 1;
    }
}

impl Object for Pd {
    fn context(&self) -> ContextHandle {
        self.context
    }

    fn free(self, _: u32, _: &mut Session, ctx: &mut SlotCtx) {
        ctx.devices[self.device].nic.dealloc_pd(self.id);
    }
}

pub(super) fn alloc(
    session: &mut Session,
    ctx: &mut SlotCtx,
    context: ContextHandle,
) -> Result<Answer, ControlError> {
    let device = super::context::device_of(session, context)?;
    session.objects.check_quota::<Pd>()?;
    let handle = session.objects.new_handle()?;
    let id = ctx.devices[device].nic.alloc_pd().map_err(|_| device_full("protection domains"))?;
    let users = [0; PdUser::ALL.len()];
    session.objects.insert(handle, Pd { context, device, id, users });
    Ok(Reply::Pd(PdHandle(handle)).into())
}

pub(super) fn dealloc(
    session: &mut Session,
    ctx: &mut SlotCtx,
    pd: PdHandle,
) -> Result<Answer, ControlError> {
    let found: &Pd = session.objects.get(pd.0)?;
    for user in PdUser::ALL {
        check_unused("protection domain", found.users[user as usize], user.plural())?;
    }
    session.objects.remove::<Pd>(pd.0)?.free(pd.0, session, ctx);
    Ok(Reply::Done.into())
}
