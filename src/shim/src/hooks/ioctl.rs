//! Commands of a device by `ioctl`. libibverbs tries most by `ioctl` and then by `write`, which is
//! what we understand; what it has by `ioctl` alone is done here, as far as the device has it.

use super::{answer, hooks};
use crate::descriptors::{DESCRIPTORS, Descriptor};
use crate::next;
use crate::uverbs::abi::control;
use libc::{Ioctl, c_int, c_ulong};

hooks! {
    fn ioctl(fd: c_int, request: Ioctl, arg: c_ulong) -> c_int {
        if !DESCRIPTORS.has(fd) || request as u32 != control::VERBS_IOCTL {
            return next::ioctl(fd, request, arg);
        }
        let mut is_done = false;
        let done = answer(|| {
            if let Some(Descriptor::Uverbs(context)) = DESCRIPTORS.genuine(fd) {
                is_done = context.control(arg)?;
            }
            Ok(0)
        });
        // What is behind the number says `ENOTTY`.
        if done == 0 && !is_done { next::ioctl(fd, request, arg) } else { done }
    }
}
