//! What the objects of a session are named by.

use serde::{Deserialize, Serialize};
use std::fmt;

/// Defines a handle type for one kind of object.
macro_rules! handle {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(
            Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize,
        )]
        #[serde(transparent)]
        pub struct $name(pub u32);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

handle!(
    /// Names an opened device.
    ContextHandle
);
handle!(
    /// Names a protection domain.
    PdHandle
);
handle!(
    /// Names a memory registration.
    MrHandle
);
handle!(
    /// Names a completion channel.
    CompChannelHandle
);
handle!(
    /// Names a completion queue.
    CqHandle
);
handle!(
    /// Names a shared receive queue.
    SrqHandle
);
handle!(
    /// Names an address handle. Not its number, which work requests name it by.
    AhHandle
);
handle!(
    /// Names a memory window. Not its rkey, which changes.
    MwHandle
);
handle!(
    /// Names a queue pair. Not its QPN, which is what peers name it by.
    QpHandle
);
handle!(
    /// Names an event channel of the connection manager.
    CmChannelHandle
);
handle!(
    /// Names an id of the connection manager.
    CmIdHandle
);
handle!(
    /// Names a membership in a multicast group.
    CmMulticastHandle
);
