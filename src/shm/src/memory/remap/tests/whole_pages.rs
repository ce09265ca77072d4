//! Ranges that begin or end amid a page.

use super::*;

/// MEM-062
#[test]
fn of_a_range_that_begins_or_ends_amid_a_page_the_whole_pages_are_remapped() {
    let memory = Memory::new(LEN);
    let (addr, len, page) = (memory.addr(), LEN as u64, page_size() as u64);
    for (first, last, pages) in [
        (16, len - 8, page..len - page),
        (0, len - 8, 0..len - page),
        (page + 1, len, 2 * page..len),
        (8, page + MIN_WHOLE_PAGES, page..page + MIN_WHOLE_PAGES),
    ] {
        let registered = Registered::new(addr + first, last - first, u64::MAX);
        let (shared, before, bytes) = match &registered {
            Registered::WholePages { shared, before, len, .. } => (shared, *before, *len),
            Registered::Copied(_, WhyCopied::Threads) => {
                return needs_root("this user may not use userfaultfd");
            }
            other => panic!("{first} to {last}: {other:?}"),
        };
        assert_eq!((first + before, bytes), (pages.start, pages.end - pages.start));
        assert!(memory.holds_its_numbers());
        // One memory, whoever looks.
        let view = daemons_view(shared, bytes as usize);
        view.write(0, &[0xee; 8]).unwrap();
        let word = &memory.words()[pages.start as usize / 8];
        assert_eq!(word.swap(pages.start / 8, Ordering::Relaxed), u64::from_ne_bytes([0xee; 8]));
        let backing = Backing::WholePages { offset: 0, before, len: bytes };
        assert_eq!(registered.backing().0, backing);
        assert!(memory.share().is_err(), "some of it is reached by system calls");
        // Registered twice, it is shared twice.
        let again = Registered::new(addr + first, last - first, u64::MAX);
        assert!(matches!(again, Registered::WholePages { .. }));
        drop((again, view, registered));
        assert!(memory.holds_its_numbers());
    }
    let end = page + MIN_WHOLE_PAGES - 1;
    let short = Registered::new(addr + 8, end - 8, u64::MAX);
    assert!(matches!(short, Registered::Copied(_, WhyCopied::PartialPages)), "{short:?}");
}
