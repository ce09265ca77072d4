//! Memory of the program's own: remapped, unmapped under way.

use crate::{ALL, Net, Side, pattern};
use std::os::fd::AsRawFd;
use std::process::Stdio;
use urxe_shell::testing::{alone, assert_passed, needs_root};
use urxe_shm::memory::region::create_memfd;
use urxe_shm::memory::remap;
use urxe_verbs::*;

/// Memory of whole pages, which can go while it is registered.
struct Pages {
    start: *mut u8,
    len: usize,
}

impl Pages {
    fn new(len: usize) -> Pages {
        let (rights, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE);
        // SAFETY: a null hint without MAP_FIXED replaces nothing.
        let start = unsafe {
            libc::mmap(std::ptr::null_mut(), len, rights, flags | libc::MAP_ANONYMOUS, -1, 0)
        };
        assert_ne!(start, libc::MAP_FAILED);
        Pages { start: start.cast(), len }
    }

    fn register(&self, side: &Side) -> Mr {
        // SAFETY: `lose_half` says what becomes of it.
        unsafe { side.pd.reg_mr(self.start, self.len, ALL) }.unwrap()
    }

    /// The second half is gone. (An empty file is mapped there: where nothing is, another test
    /// could map something.) Nobody but the daemon touches it any more.
    fn lose_half(&self) {
        let (half, flags) = (self.len / 2, libc::MAP_SHARED | libc::MAP_FIXED);
        let nothing = create_memfd("nothing", 0).unwrap();
        // SAFETY: what `new` has mapped is replaced; no reference into it exists.
        let start = unsafe {
            let place = self.start.byte_add(half).cast();
            libc::mmap(place, half, libc::PROT_READ, flags, nothing.as_raw_fd(), 0)
        };
        assert_ne!(start, libc::MAP_FAILED);
    }
}

const LEN: usize = 4 << 20;

/// After a request has failed: the daemon lives, and new connections work.
fn are_well(near: &Side, far: &Side) {
    near.qp.to_reset().unwrap();
    far.qp.to_reset().unwrap();
    Net::connect(&Net { daemon: None, near: near.again(), far: far.again() });
    while near.cq.poll(&mut [Wc::default()]).unwrap() > 0 {}
    let there = far.mr.remote_buf(..5).unwrap();
    near.qp.post_send(&[SendWr::write(9, Inline(b"alive"), there).signaled()]).unwrap();
    assert_eq!(near.done().wr_id, 9);
    assert_eq!(far.bytes(0, 5), b"alive");
}

#[test]
fn a_message_whose_memory_ends_in_the_middle_fails_and_harms_nobody() {
    let Net { near, far, daemon: _daemon } = Net::new();
    let whole = Pages::new(LEN).register(&near);
    let lost = |side: &Side| {
        let pages = Pages::new(LEN);
        let mr = pages.register(side);
        pages.lose_half();
        mr
    };
    let (from, to) = (lost(&near), lost(&far));
    let there = Pages::new(LEN).register(&far);
    let status = |wr: SendWr<'_>| {
        near.qp.post_send(&[wr.signaled()]).unwrap();
        let status = near.next().status;
        are_well(&near, &far);
        status
    };
    let [from, whole] = [&from, &whole].map(|mr| [mr.sge(..).unwrap()]);
    let [to, there] = [&to, &there].map(|mr| mr.remote_buf(..).unwrap());
    assert_eq!(status(SendWr::write(1, &from, there)), WcStatus::LocalProtection);
    assert_eq!(status(SendWr::write(2, &whole, to)), WcStatus::RemoteOperation);
    assert_eq!(status(SendWr::read(3, &whole, to)), WcStatus::RemoteAccess);
    assert_ne!(status(SendWr::read(4, &from, there)), WcStatus::Success);
    assert_eq!(status(SendWr::write(5, &whole, there)), WcStatus::Success);
}

#[test]
fn memory_that_goes_under_way_fails_its_message_or_not_and_harms_nobody() {
    let Net { near, far, daemon: _daemon } = Net::new();
    for round in 0..8 {
        let (from, to) = (Pages::new(LEN), Pages::new(LEN));
        let (from_mr, to_mr) = (from.register(&near), to.register(&far));
        let (list, there) = ([from_mr.sge(..).unwrap()], to_mr.remote_buf(..).unwrap());
        near.qp.post_send(&[SendWr::write(1, &list, there).signaled()]).unwrap();
        std::thread::sleep(std::time::Duration::from_micros(300 * round));
        let losing = if round % 2 == 0 { &from } else { &to };
        losing.lose_half();
        let status = near.next().status;
        let expected = [WcStatus::Success, WcStatus::LocalProtection, WcStatus::RemoteOperation];
        assert!(expected.contains(&status), "{status:?}");
        are_well(&near, &far);
    }
}

/// Runs a test of this program again, by itself, with memory remapped that it registers.
pub(crate) fn again_with_remap(test: &str) {
    // What it says of what it could not run is for whoever runs this one.
    let mut again = alone(test);
    let again = again.env("URXE_MR", "remap").stderr(Stdio::inherit());
    assert_passed(&again.output().unwrap());
}

/// How often a remapped range is mapped, by the program and its daemon, which is here too.
fn views_of_remapped() -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let is_view = |line: &&str| line.contains("urxe-remapped") && line.contains(" rw-s ");
    maps.lines().filter(is_view).count()
}

#[test]
fn remapped_memory_is_reached_without_system_calls_and_is_the_programs_own_afterwards() {
    if remap::longest_wanted(0) == 0 {
        return again_with_remap(
            "memory::remapped_memory_is_reached_without_system_calls_and_is_the_programs_own_afterwards",
        );
    }
    let Net { near, far, daemon: _daemon } = Net::new();
    let (source, target) = (Pages::new(LEN), Pages::new(LEN));
    let (from, to) = (source.register(&near), target.register(&far));
    match views_of_remapped() {
        0 => return needs_root("this user may not use userfaultfd"),
        views => assert_eq!(views, 4),
    }
    let data = pattern(LEN);
    from.write_at(0, &data).unwrap();
    let (list, there) = ([from.sge(..).unwrap()], to.remote_buf(..).unwrap());
    near.qp.post_send(&[SendWr::write(1, &list, there).signaled()]).unwrap();
    near.done();
    from.fill(.., 0).unwrap();
    near.qp.post_send(&[SendWr::read(2, &list, there).signaled()]).unwrap();
    near.done();
    drop((from, to));
    assert_eq!(views_of_remapped(), 0);
    for pages in [&source, &target] {
        // SAFETY: mapped, and no longer registered, so that nobody else touches it.
        let bytes = unsafe { std::slice::from_raw_parts(pages.start, LEN) };
        assert!(bytes == data);
    }
    // What is remapped is no other memory to others: a part of it, an odd one.
    let odd = Pages { start: source.start.wrapping_add(1), len: 100 }.register(&near);
    assert_eq!(views_of_remapped(), 0);
    drop(odd);
}

/// MEM-062
#[test]
fn messages_across_the_edges_of_mapped_memory_are_whole() {
    const PAGE: usize = 4096;
    const BEFORE: usize = 24;
    const BEHIND: usize = 40;
    const UNTOUCHED: u8 = 0xee;
    if remap::longest_wanted(0) == 0 {
        return again_with_remap("memory::messages_across_the_edges_of_mapped_memory_are_whole");
    }
    let Net { near, far, daemon: _daemon } = Net::new();
    let (source, target) = (Pages::new(LEN), Pages::new(LEN));
    let len = LEN - BEFORE - BEHIND;
    let register = |pages: &Pages, side: &Side| {
        Pages { start: pages.start.wrapping_add(BEFORE), len }.register(side)
    };
    let (from, to) = (register(&source, &near), register(&target, &far));
    // A slot of the program's own needs no view of its own of what it reaches anyway.
    let expected = if crate::in_process::is_wanted() { 2 } else { 4 };
    match views_of_remapped() {
        0 => return needs_root("this user may not use userfaultfd"),
        views => assert_eq!(views, expected, "the whole pages of both"),
    }
    let [first, last] = [PAGE - BEFORE, LEN - PAGE - BEFORE];
    let around = |edge: usize, bytes: usize| edge - bytes..edge + bytes;
    let ranges = [
        0..len,
        around(first, 1),
        around(first, 3000),
        around(last, 1),
        around(last, 3000),
        0..first + 100_000,
        last - 100_000..len,
        first - 8..first,
        last..last + 8,
    ];
    let data = pattern(len);
    for range in ranges {
        let mut expected = vec![UNTOUCHED; len];
        expected[range.clone()].copy_from_slice(&data[range.clone()]);
        let (here, there) =
            ([from.sge(range.clone()).unwrap()], to.remote_buf(range.clone()).unwrap());
        let seen = |mr: &Mr| {
            let mut bytes = vec![0; len];
            mr.read_at(0, &mut bytes).unwrap();
            bytes
        };
        for is_send in [false, true] {
            from.write_at(0, &data).unwrap();
            to.fill(.., UNTOUCHED).unwrap();
            let wr = match is_send {
                true => {
                    let receive = [to.sge(range.clone()).unwrap()];
                    far.qp.post_recv(&[RecvWr::new(1, &receive)]).unwrap();
                    SendWr::send(2, &here)
                }
                false => SendWr::write(2, &here, there),
            };
            near.qp.post_send(&[wr.signaled()]).unwrap();
            near.done();
            if is_send {
                assert_eq!(far.done().byte_len as usize, range.len());
            }
            assert!(seen(&to) == expected, "{range:?}, sent: {is_send}");
        }
        to.write_at(0, &data).unwrap();
        from.fill(.., UNTOUCHED).unwrap();
        near.qp.post_send(&[SendWr::read(3, &here, there).signaled()]).unwrap();
        near.done();
        assert!(seen(&from) == expected, "{range:?}, read");
    }
    drop((from, to));
    for pages in [&source, &target] {
        // SAFETY: mapped, and no longer registered, so that nobody else touches it.
        let bytes = unsafe { std::slice::from_raw_parts(pages.start, LEN) };
        let (before, behind) = (&bytes[..BEFORE], &bytes[LEN - BEHIND..]);
        assert!(before.iter().chain(behind).all(|&byte| byte == 0), "none of the region");
    }
}

#[test]
fn a_region_of_no_bytes_serves_messages_of_no_bytes() {
    let Net { near, far, daemon: _daemon } = Net::new();
    let mut byte = 0u8;
    let made = [&near, &far].map(|side| side.pd.alloc_mr(0, ALL).unwrap());
    // SAFETY: there is nothing that could be accessed.
    let registered =
        [&near, &far].map(|side| unsafe { side.pd.reg_mr(&mut byte, 0, ALL) }.unwrap());
    for [from, to] in [made, registered] {
        assert_eq!((from.length(), from.lkey().0 == 0), (0, false));
        let (sge, there) = ([from.sge(..).unwrap()], to.remote_buf(..).unwrap());
        far.qp.post_recv(&[RecvWr::new(1, &[to.sge(..).unwrap()])]).unwrap();
        for wr in [SendWr::write(1, &sge, there), SendWr::read(2, &sge, there)] {
            near.qp.post_send(&[wr.signaled()]).unwrap();
            near.done();
        }
        near.qp.post_send(&[SendWr::send(3, &sge).signaled()]).unwrap();
        near.done();
        assert_eq!(far.done().byte_len, 0);
        assert!(
            from.sge(..1).is_err()
                && to.remote_buf(..1).is_err()
                && from.write_at(0, b"x").is_err()
        );
        from.deregister().unwrap();
        // It opens nothing.
        let there = RemoteBuf { len: 1, ..there };
        near.qp.post_send(&[SendWr::write(4, Inline(b"x"), there)]).unwrap();
        assert_eq!(near.next().status, WcStatus::RemoteAccess);
        are_well(&near, &far);
    }
}
