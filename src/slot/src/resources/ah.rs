//! Address handles.

use super::{PdUser, pd, refuse};
use crate::objects::Object;
use crate::session::{Answer, Session, SlotCtx};
use rustix::io::Errno;
use urxe_engine::AhError;
use urxe_shm::control::{AhHandle, ContextHandle, ControlError, PdHandle, Reply};
use urxe_types::{AddressVector, AhId};

/// An address handle.
pub(crate) struct Ah {
    context: ContextHandle,
    pd: PdHandle,
    /// The device's number.
    device: usize,
    id: AhId,
}

impl Object for Ah {
    const PD_USER: Option<PdUser> = Some(PdUser::Ah);

    fn context(&self) -> ContextHandle {
        self.context
    }

    fn pd(&self) -> Option<PdHandle> {
        Some(self.pd)
    }

    fn free(self, _: u32, _: &mut Session, ctx: &mut SlotCtx) {
        ctx.devices[self.device].nic.destroy_ah(self.id);
    }
}

pub(super) fn create(
    session: &mut Session,
    ctx: &mut SlotCtx,
    pd: PdHandle,
    av: &AddressVector,
) -> Result<Answer, ControlError> {
    let place = pd::place(session, pd)?;
    session.objects.check_quota::<Ah>()?;
    let handle = session.objects.new_handle()?;
    let created = ctx.devices[place.device].nic.create_ah(place.id, av);
    let id = created.map_err(|error| {
        let (errno, table) = match error {
            AhError::TooMany => (Errno::NOMEM, String::new()),
            AhError::Flow(error) => {
                (Errno::INVAL, ctx.devices[place.device].gid_table_beside(error))
            }
        };
        refuse(errno, format!("{error}{table}"))
    })?;
    let ah = Ah { context: place.context, pd, device: place.device, id };
    session.objects.insert(handle, ah);
    Ok(Reply::Ah { ah: AhHandle(handle), ah_num: id }.into())
}

pub(super) fn destroy(
    session: &mut Session,
    ctx: &mut SlotCtx,
    ah: AhHandle,
) -> Result<Answer, ControlError> {
    session.objects.remove::<Ah>(ah.0)?.free(ah.0, session, ctx);
    Ok(Reply::Done.into())
}
