//! Control messages: what goes with a message besides its bytes.

use std::mem;

/// Room for the control messages of one message, in 8-byte words so that it is aligned as
/// `cmsghdr` wants it: three of an `int` each take 72 bytes.
pub(super) type Control = [u64; 12];

/// `struct cmsghdr` of the kernel's linux/socket.h; what musl has under that name has an `int` and
/// padding in the place of the length.
#[derive(Clone, Copy)]
#[repr(C)]
struct Header {
    len: usize,
    level: libc::c_int,
    kind: libc::c_int,
}

const _: () = assert!(size_of::<Header>() == size_of::<libc::cmsghdr>());

/// Writes one control message at a byte offset, and returns the space it takes.
pub(super) fn put(
    control: &mut Control,
    at: usize,
    level: libc::c_int,
    kind: libc::c_int,
    data: &[u8],
) -> usize {
    // SAFETY: pure arithmetic; these functions are unsafe only because libc declares them so.
    let (len, space) = unsafe {
        (libc::CMSG_LEN(data.len() as u32) as usize, libc::CMSG_SPACE(data.len() as u32) as usize)
    };
    assert!(at + space <= mem::size_of::<Control>(), "a Control has room for three messages");
    // SAFETY: the message ends inside of `control`, as was just checked. It begins at a multiple of
    // its own alignment, because CMSG_SPACE rounds up to that and the array is aligned to 8.
    unsafe {
        let message: *mut Header = control.as_mut_ptr().byte_add(at).cast();
        message.write(Header { len, level, kind });
        libc::CMSG_DATA(message.cast()).copy_from_nonoverlapping(data.as_ptr(), data.len());
    }
    space
}

/// Reads the control message at a byte offset: level, type, data, and where the next one is.
pub(super) fn read(
    control: &Control,
    at: usize,
    end: usize,
) -> Option<(libc::c_int, libc::c_int, &[u8], usize)> {
    // SAFETY: pure arithmetic; these functions are unsafe only because libc declares them so.
    let (head, space_of) =
        unsafe { (libc::CMSG_LEN(0) as usize, |len: usize| libc::CMSG_SPACE(len as u32) as usize) };
    if at + head > end {
        return None;
    }
    // SAFETY: a whole header lies inside of `control` at this place, which is a multiple of its
    // alignment because CMSG_SPACE rounds up to that and the array is aligned to 8.
    let message = unsafe { *control.as_ptr().byte_add(at).cast::<Header>() };
    let len = message.len.checked_sub(head)?;
    if len > end - at - head {
        return None;
    }
    // SAFETY: these bytes were just found to lie between the header and `end`, so inside of
    // `control`, and u8 has no alignment.
    let data =
        unsafe { std::slice::from_raw_parts(control.as_ptr().cast::<u8>().add(at + head), len) };
    Some((message.level, message.kind, data, at + space_of(len)))
}

/// The number in a control message: one byte or an `int`.
pub(super) fn number(data: &[u8]) -> i32 {
    match *data {
        [byte] => i32::from(byte),
        [a, b, c, d, ..] => i32::from_ne_bytes([a, b, c, d]),
        _ => 0,
    }
}
