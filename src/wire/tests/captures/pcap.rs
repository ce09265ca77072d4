//! A reader of classic pcap files, just large enough for our own captures.

use std::path::Path;

/// The frames of a capture file of Ethernet, in order.
///
/// Panics, with the reason, on anything that our captures are not: another byte order, another
/// link type, a frame that was cut off.
pub(crate) fn frames(path: &Path) -> Vec<Vec<u8>> {
    const MAGIC_MICROSECONDS: u32 = 0xa1b2_c3d4;
    const LINKTYPE_ETHERNET: u32 = 1;

    let file = std::fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let mut rest = file.as_slice();
    let [magic, _version, _zone, _accuracy, _snap_len, link_type] = words(&mut rest);
    assert_eq!(magic, MAGIC_MICROSECONDS, "{}: no little-endian pcap", path.display());
    assert_eq!(link_type, LINKTYPE_ETHERNET, "{}: not Ethernet", path.display());

    let mut frames = Vec::new();
    while !rest.is_empty() {
        let [_seconds, _microseconds, captured, length] = words(&mut rest);
        assert_eq!(captured, length, "{}: frame {} was cut off", path.display(), frames.len());
        let (frame, tail) = rest.split_at(captured as usize);
        frames.push(frame.to_vec());
        rest = tail;
    }
    frames
}

/// Takes `N` little-endian numbers of 32 bits.
fn words<const N: usize>(rest: &mut &[u8]) -> [u32; N] {
    std::array::from_fn(|_| {
        let (word, tail) = rest.split_first_chunk().expect("the file ends amid a header");
        *rest = tail;
        u32::from_le_bytes(*word)
    })
}
