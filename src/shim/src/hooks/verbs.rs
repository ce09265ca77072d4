//! Opening a device by libibverbs. Nothing is needed of it but to know that it was done.

use super::hooks;
use crate::descriptors::{DESCRIPTORS, Descriptor};
use crate::next;
use crate::polling::{VerbsContext, teach};
use libc::c_void;

hooks! {
    fn ibv_open_device(device: *mut c_void) -> *mut c_void {
        let context: *mut c_void = next::ibv_open_device(device);
        if let Some(context) = context.cast::<VerbsContext>().as_mut() {
            let descriptor = DESCRIPTORS.genuine(context.cmd_fd);
            if let Some(Descriptor::Uverbs(_)) = descriptor {
                teach(context);
            }
        }
        context
    }
}
