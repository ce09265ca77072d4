//! What a session has handles of: one table for each kind of object.
//!
//! An object stands here with what the session has to know of it: which device it is of and the
//! number that the data path has it under, which context and protection domain it belongs to, and
//! what of the session's memory it uses. Everything else is the data path's.

use crate::limits;
use crate::refusal::{check_quota, next_handle, no_such, refuse};
use crate::resources::{Ah, CompChannel, Context, Cq, Mr, Mw, Pd, PdUser, Qp, Srq};
use crate::session::{Session, SlotCtx};
use rustix::io::Errno;
use std::collections::BTreeMap;
use urxe_shm::control::{ContextHandle, ControlError, PdHandle};

/// The objects of one kind, by their handles.
type Table<T> = BTreeMap<u32, T>;

/// A kind of object.
pub(crate) trait Kind: Sized {
    /// What one is called in a sentence.
    const NAME: &str;
    /// What several are called.
    const PLURAL: &str;
    /// How many a session can have.
    const QUOTA: usize;

    /// The table of this kind.
    fn table(objects: &Objects) -> &Table<Self>;

    /// The table of this kind.
    fn table_mut(objects: &mut Objects) -> &mut Table<Self>;
}

/// What a program can have a handle of.
pub(crate) trait Object: Kind {
    /// How a protection domain counts it, if it is in one.
    const PD_USER: Option<PdUser> = None;

    /// The context that it belongs to.
    fn context(&self) -> ContextHandle;

    /// The protection domain that it is in.
    fn pd(&self) -> Option<PdHandle> {
        None
    }

    /// Ends what it is on its device, and gives back what it used. It is out of its table already.
    fn free(self, handle: u32, session: &mut Session, ctx: &mut SlotCtx);
}

macro_rules! tables {
    ($($table:ident: $kind:ty = $name:literal, $plural:literal, $quota:ident;)*) => {
        /// All objects of one session.
        #[derive(Default)]
        pub(crate) struct Objects {
            last_handle: u32,
            $($table: Table<$kind>,)*
        }

        $(impl Kind for $kind {
            const NAME: &str = $name;
            const PLURAL: &str = $plural;
            const QUOTA: usize = limits::$quota;

            fn table(objects: &Objects) -> &Table<Self> {
                &objects.$table
            }

            fn table_mut(objects: &mut Objects) -> &mut Table<Self> {
                &mut objects.$table
            }
        })*
    };
}

tables! {
    contexts: Context = "context", "contexts", MAX_CONTEXTS;
    pds: Pd = "protection domain", "protection domains", MAX_PDS;
    mrs: Mr = "memory registration", "memory registrations", MAX_MRS;
    channels: CompChannel = "completion channel", "completion channels", MAX_CHANNELS;
    cqs: Cq = "completion queue", "completion queues", MAX_CQS;
    mws: Mw = "memory window", "memory windows", MAX_MWS;
    ahs: Ah = "address handle", "address handles", MAX_AHS;
    srqs: Srq = "shared receive queue", "shared receive queues", MAX_SRQS;
    qps: Qp = "queue pair", "queue pairs", MAX_QPS;
}

impl Objects {
    /// Finds an object by its handle.
    pub(crate) fn get<T: Kind>(&self, handle: u32) -> Result<&T, ControlError> {
        self.get_as(T::NAME, handle)
    }

    /// Finds an object that a request names as `what`.
    pub(crate) fn get_as<T: Kind>(&self, what: &str, handle: u32) -> Result<&T, ControlError> {
        // HOST-013, CLIENT-015: the table is the session's own.
        T::table(self).get(&handle).ok_or_else(|| no_such(what, handle))
    }

    /// Finds an object that a request names as `what`, and that must be of this context: if it is
    /// not, the refusal says so in the words of `sentence`.
    pub(crate) fn get_within<T: Object>(
        &self,
        context: ContextHandle,
        what: &str,
        handle: u32,
        sentence: impl FnOnce() -> String,
    ) -> Result<&T, ControlError> {
        let found: &T = self.get_as(what, handle)?;
        match found.context() == context {
            true => Ok(found),
            false => Err(refuse(Errno::INVAL, sentence())),
        }
    }

    /// All objects of a kind, by their handles.
    pub(crate) fn all<T: Kind>(&self) -> &Table<T> {
        T::table(self)
    }

    /// Changes an object.
    pub(crate) fn get_mut<T: Kind>(&mut self, handle: u32) -> Option<&mut T> {
        T::table_mut(self).get_mut(&handle)
    }

    /// Refuses one more than the quota of its kind.
    pub(crate) fn check_quota<T: Kind>(&self) -> Result<(), ControlError> {
        check_quota(T::PLURAL, T::table(self).len(), T::QUOTA)
    }

    /// A number that no object of this session ever had.
    pub(crate) fn new_handle(&mut self) -> Result<u32, ControlError> {
        next_handle(&mut self.last_handle)
    }

    /// Puts an object in under a new handle, and into its protection domain.
    pub(crate) fn insert<T: Object>(&mut self, handle: u32, object: T) {
        if let (Some(pd), Some(user)) = (object.pd(), T::PD_USER) {
            self.get_mut::<Pd>(pd.0).into_iter().for_each(|pd| pd.join(user));
        }
        T::table_mut(self).insert(handle, object);
    }

    /// Takes an object out, also of its protection domain.
    pub(crate) fn remove<T: Object>(&mut self, handle: u32) -> Result<T, ControlError> {
        let object = T::table_mut(self).remove(&handle).ok_or_else(|| no_such(T::NAME, handle))?;
        if let (Some(pd), Some(user)) = (object.pd(), T::PD_USER) {
            self.get_mut::<Pd>(pd.0).into_iter().for_each(|pd| pd.leave(user));
        }
        Ok(object)
    }

    /// All objects of a context, or of all contexts, in an order in which they can be freed: the
    /// last goes first, so that what uses something goes before what it uses.
    pub(crate) fn of_context(&self, context: Option<ContextHandle>) -> Vec<PendingFree> {
        let mut pending = Vec::new();
        self.note::<Context>(context, &mut pending);
        self.note::<Pd>(context, &mut pending);
        self.note::<Mr>(context, &mut pending);
        self.note::<CompChannel>(context, &mut pending);
        self.note::<Cq>(context, &mut pending);
        self.note::<Mw>(context, &mut pending);
        self.note::<Ah>(context, &mut pending);
        self.note::<Srq>(context, &mut pending);
        self.note::<Qp>(context, &mut pending);
        pending
    }

    fn note<T: Object>(&self, context: Option<ContextHandle>, pending: &mut Vec<PendingFree>) {
        let is_meant = |object: &T| context.is_none_or(|context| object.context() == context);
        let meant = T::table(self).iter().filter(|(_, object)| is_meant(object));
        pending.extend(meant.map(|(&handle, _)| PendingFree::new::<T>(handle)));
    }
}

/// An object that is to be freed.
pub(crate) struct PendingFree {
    handle: u32,
    free: fn(&mut Session, &mut SlotCtx, u32),
}

impl PendingFree {
    /// The object of this handle.
    pub(crate) fn new<T: Object>(handle: u32) -> PendingFree {
        PendingFree { handle, free: free::<T> }
    }

    /// Frees it.
    pub(crate) fn free(self, session: &mut Session, ctx: &mut SlotCtx) {
        (self.free)(session, ctx, self.handle);
    }
}

/// Frees the object of a handle, if it is still there.
fn free<T: Object>(session: &mut Session, ctx: &mut SlotCtx, handle: u32) {
    if let Ok(object) = session.objects.remove::<T>(handle) {
        object.free(handle, session, ctx);
    }
}
