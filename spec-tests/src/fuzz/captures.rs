//! Files that may be captures.

use urxe_port::capture;
use urxe_wire::Packet;
use urxe_wire::icrc::Checker;

/// Reads a file, and what it holds as packets are read.
pub fn run(bytes: &[u8]) {
    let mut checker = Checker::new();
    let mut last = 0;
    let _ = capture::read(bytes, |frame| {
        assert!(frame.number > last, "frames are counted up");
        last = frame.number;
        if let capture::Content::Roce { outer, bytes } = frame.content {
            let _ = checker.check(&outer, bytes);
            let _ = Packet::parse(bytes);
        }
    });
}
