//! Local operations of the send queue: binding windows and closing them.
//!
//! They have their turn as everything else and complete in order, but take no PSN: nothing is
//! sent, and nothing is waited for. Being done once, they stay done when what was sent before them
//! is sent again.

use super::{Blocked, SendQueue};
use crate::cause::Cause;
use crate::counters::Counter;
use crate::host::Host;
use crate::memory::{Bind, MwBinding};
use crate::qp::common::Cx;
use urxe_types::{SendOp, WcStatus};

impl SendQueue {
    /// Does the local operation whose turn it is, unless it was done before, and moves on.
    pub(super) fn do_current_locally<H: Host>(
        &mut self,
        cx: &mut Cx<'_, H>,
    ) -> Result<(), Blocked> {
        let scope = cx.qp.key_scope();
        let Some((pending, _)) = self.current() else { return Err(Blocked::Wait) };
        // MW-033: what was done before a retry is not done again.
        if !pending.started {
            let done = match pending.wqe.wr.op {
                SendOp::BindMw { mw, new_rkey, mr, addr, length, access } => {
                    let binding = MwBinding { mr, addr, length, access, qpn: scope.1 };
                    let bind = Bind { mw, new_rkey, binding };
                    let bound = cx.keys.bind_mw(scope.0, &bind);
                    bound.map(|()| Counter::WindowsBound).map_err(|cause| (WcStatus::MwBind, cause))
                }
                SendOp::LocalInvalidate { key } if cx.keys.may_invalidate(key, scope) => {
                    cx.keys.unbind(key);
                    Ok(Counter::KeysInvalidated)
                }
                _ => Err((WcStatus::LocalQpOperation, Cause::InvalidateKey)),
            };
            match done {
                Ok(counter) => cx.count(counter, 1),
                Err(failed) => {
                    // MW-034: it is told when all before it have ended.
                    self.refuse_current(failed);
                    return Err(Blocked::Wait);
                }
            }
            self.start_current();
        }
        let is_oldest = self.is_current_oldest();
        self.sent_current(0);
        if is_oldest {
            self.end_front(cx);
        }
        Ok(())
    }
}
