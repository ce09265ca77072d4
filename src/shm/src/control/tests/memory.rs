//! Of registered memory: how it is reached, and what is shown of it.

use crate::control::{Backing, ResourceDetail, WhyCopied};
use proptest::prelude::*;
use urxe_types::Access;

fn why_copied() -> impl Strategy<Value = WhyCopied> {
    prop_oneof![
        Just(WhyCopied::NotAsked),
        Just(WhyCopied::Threads),
        Just(WhyCopied::PagesHeld),
        Just(WhyCopied::System),
    ]
}

pub(super) fn backing() -> impl Strategy<Value = Backing> {
    prop_oneof![
        why_copied().prop_map(|why| Backing::Process { why }),
        any::<u64>().prop_map(|offset| Backing::Shared { offset }),
        any::<[u64; 3]>().prop_map(|[offset, before, len]| Backing::WholePages {
            offset,
            before,
            len
        }),
    ]
}

pub(super) fn mr_detail() -> impl Strategy<Value = ResourceDetail> {
    let mr = any::<([u64; 2], u32, bool)>();
    (mr, prop::option::of(why_copied())).prop_map(|(mr, copied)| {
        let ([iova, length], access, has_mapped_pages) = mr;
        let access = Access::from_bits_retain(access);
        ResourceDetail::Mr { iova, length, access, copied, has_mapped_pages }
    })
}
