//! Commands by `ioctl`, of which libraries have some that there is no other way for. They stand in
//! `rdma/rdma_user_ioctl_cmds.h` and `rdma/ib_user_ioctl_cmds.h`.

use crate::kernel::kernel_structs;

kernel_structs! {
    /// What every such command begins with; its attributes follow.
    IoctlHeader = ib_uverbs_ioctl_hdr (24) {
        length: u16,
        object_id: u16,
        method_id: u16,
        num_attrs: u16,
        reserved1: u64,
        driver_id: u32,
        reserved2: u32,
    }
    /// A value of up to 8 bytes, or the address of a longer one.
    IoctlAttr = ib_uverbs_attr (16) {
        attr_id: u16,
        len: u16,
        flags: u16,
        attr_data: u16,
        data: u64,
    }
    /// A piece of registered memory.
    Sge = ib_uverbs_sge (16) {
        addr: u64,
        length: u32,
        lkey: u32,
    }
}

/// Defines numbers of the kernel, with its names, so that a test can ask the C compiler.
macro_rules! numbers {
    ($($name:ident: $type:ty = $theirs:ident $value:literal,)*) => {
        $(pub(crate) const $name: $type = $value;)*

        /// Their names in C, and their values.
        #[cfg(test)]
        pub(crate) const NUMBERS: &[(&str, usize)] = &[$((stringify!($theirs), $value),)*];
    };
}

/// `ioctl`'s number, objects and methods, and what they are given.
pub(crate) mod control {
    numbers! {
        VERBS_IOCTL: u32 = RDMA_VERBS_IOCTL 0xc018_1b01,
        MANDATORY: u16 = UVERBS_ATTR_F_MANDATORY 1,
        OBJECT_MR: u16 = UVERBS_OBJECT_MR 7,
        ADVISE_MR: u16 = UVERBS_METHOD_ADVISE_MR 2,
        PD_HANDLE: u16 = UVERBS_ATTR_ADVISE_MR_PD_HANDLE 0,
        ADVICE: u16 = UVERBS_ATTR_ADVISE_MR_ADVICE 1,
        FLAGS: u16 = UVERBS_ATTR_ADVISE_MR_FLAGS 2,
        SGE_LIST: u16 = UVERBS_ATTR_ADVISE_MR_SGE_LIST 3,
        PREFETCH_WRITE: u64 = IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH_WRITE 1,
        PREFETCH_NO_FAULT: u64 = IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT 2,
        FLUSH: u32 = IB_UVERBS_ADVISE_MR_FLAG_FLUSH 1,
    }
}
