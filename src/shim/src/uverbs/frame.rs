//! The framing of commands that come by `write`, apart from what they say.
//!
//! ```text
//! legacy    command u32, in words u16, out words u16 (of 4 bytes; the header counts as input)
//!           request, whose first field is the response's address if there is one; driver's part
//! extended  command u32 | EXTENDED, in words, out words (of 8 bytes; headers do not count)
//!           response u64, driver's in words, driver's out words, 0 u32; request; driver's part
//! ```
//!
//! At the response's address there is room for the response and the driver's part of it, end to
//! end.

use super::abi::{CommandHeader, EXTENDED, ExtendedHeader};
use super::method::Method;
use rustix::io::Errno;
use zerocopy::FromBytes;

/// One command, taken out of its frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Frame<'a> {
    /// Its number, one of [`number`](super::abi::number).
    pub(crate) number: u32,
    /// Whether it is the extended command of this number.
    pub(crate) extended: bool,
    /// The request, at least as long as its method says.
    pub(crate) core: &'a [u8],
    /// The driver's part of the request.
    pub(crate) driver: &'a [u8],
    /// Where in the program the response is wanted; means nothing if there is no room for one.
    pub(crate) response: u64,
    /// Bytes that there is room for in the response.
    pub(crate) core_out: usize,
    /// Bytes that there is room for in the driver's part of the response.
    pub(crate) driver_out: usize,
}

impl<'a> Frame<'a> {
    /// Takes the frame off. Its errors are those of the kernel: `EINVAL` if the lengths do not
    /// fit together, `ENOSPC` if request or response is too short, `EOPNOTSUPP` if there is no
    /// such command.
    pub(crate) fn parse(bytes: &'a [u8]) -> Result<Frame<'a>, Errno> {
        let (header, rest) = CommandHeader::read_from_prefix(bytes).map_err(|_| Errno::INVAL)?;
        let method = Method::find(header.command)?;
        if header.command & EXTENDED == 0 {
            Self::legacy(header, bytes.len(), rest, method)
        } else {
            Self::extended(header, rest, method)
        }
    }

    fn legacy(
        header: CommandHeader,
        length: usize,
        input: &'a [u8],
        method: Method,
    ) -> Result<Frame<'a>, Errno> {
        const WORD: usize = 4;
        if usize::from(header.in_words) * WORD != length {
            return Err(Errno::INVAL);
        }
        let room = usize::from(header.out_words) * WORD;
        let needed = method.response.unwrap_or(0);
        if input.len() < method.request || room < needed {
            return Err(Errno::NOSPC);
        }
        let response = match method.response {
            Some(_) => u64::read_from_prefix(input).map_err(|_| Errno::NOSPC)?.0,
            None => 0,
        };
        // The driver gets whatever goes beyond.
        let (request, needed) = match method {
            Method { has_driver_part: false, .. } => (input.len(), room),
            Method { request, response: Some(needed), .. } => (request, needed),
            Method { request, response: None, .. } => (request, 0),
        };
        let (core, driver) = input.split_at(request);
        let (core_out, driver_out) = match method.response {
            Some(_) => (needed, room - needed),
            None => (0, 0),
        };
        let number = header.command;
        Ok(Frame { number, extended: false, core, driver, response, core_out, driver_out })
    }

    fn extended(header: CommandHeader, rest: &'a [u8], method: Method) -> Result<Frame<'a>, Errno> {
        const WORD: usize = 8;
        let (more, input) = ExtendedHeader::read_from_prefix(rest).map_err(|_| Errno::INVAL)?;
        let request = usize::from(header.in_words) * WORD;
        if request + usize::from(more.provider_in_words) * WORD != input.len() {
            return Err(Errno::INVAL);
        }
        if request < method.request {
            return Err(Errno::NOSPC);
        }
        if more.cmd_hdr_reserved != 0 {
            return Err(Errno::INVAL);
        }
        let core_out = usize::from(header.out_words) * WORD;
        let driver_out = usize::from(more.provider_out_words) * WORD;
        // An address and room for something, or neither.
        if (more.response == 0) != (core_out == 0 && driver_out == 0) {
            return Err(Errno::INVAL);
        }
        if more.response != 0 && core_out < method.response.unwrap_or(0) {
            return Err(Errno::NOSPC);
        }
        let (core, driver) = input.split_at(request);
        let number = header.command & !EXTENDED;
        let response = more.response;
        Ok(Frame { number, extended: true, core, driver, response, core_out, driver_out })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::uverbs::abi::number;
    use proptest::prelude::*;
    use zerocopy::IntoBytes;

    fn legacy(command: u32, out_words: u16, body: &[u8]) -> Vec<u8> {
        let in_words = ((8 + body.len()) / 4) as u16;
        [CommandHeader { command, in_words, out_words }.as_bytes(), body].concat()
    }

    fn extended(command: u32, header: ExtendedHeader, core: &[u8], driver: &[u8]) -> Vec<u8> {
        let in_words = (core.len() / 8) as u16;
        let out_words = 2;
        let command = CommandHeader { command: command | EXTENDED, in_words, out_words };
        [command.as_bytes(), header.as_bytes(), core, driver].concat()
    }

    #[test]
    fn a_legacy_command_is_followed_by_its_drivers_part() {
        let body: Vec<u8> = (0..40).collect();
        let bytes = legacy(number::CREATE_CQ, 6, &body);
        let frame = Frame::parse(&bytes).unwrap();
        assert_eq!((frame.core, frame.driver), body.split_at(32));
        assert_eq!((frame.core_out, frame.driver_out), (8, 16));
        assert_eq!(frame.response, u64::from_ne_bytes([0, 1, 2, 3, 4, 5, 6, 7]));
    }

    #[test]
    fn a_command_without_a_drivers_part_keeps_everything() {
        let bytes = legacy(number::MODIFY_QP, 0, &[7; 120]);
        let frame = Frame::parse(&bytes).unwrap();
        assert_eq!((frame.core.len(), frame.driver.len(), frame.response), (120, 0, 0));
    }

    #[test]
    fn an_extended_command_says_what_is_whose() {
        let header = ExtendedHeader {
            response: 0x1234,
            provider_in_words: 1,
            provider_out_words: 2,
            cmd_hdr_reserved: 0,
        };
        let bytes = extended(number::CREATE_CQ, header, &[1; 32], &[2; 8]);
        let frame = Frame::parse(&bytes).unwrap();
        assert_eq!((frame.number, frame.extended), (number::CREATE_CQ, true));
        assert_eq!((frame.core, frame.driver), (&[1; 32][..], &[2; 8][..]));
        assert_eq!((frame.response, frame.core_out, frame.driver_out), (0x1234, 16, 16));
    }

    #[test]
    fn lengths_that_do_not_fit_are_refused_as_the_kernel_does() {
        let refused = |bytes: &[u8]| Frame::parse(bytes).unwrap_err();
        assert_eq!(refused(&[]), Errno::INVAL);
        assert_eq!(refused(&[3, 0, 0, 0, 2, 0, 1]), Errno::INVAL);
        let mut bytes = legacy(number::ALLOC_PD, 1, &[0; 8]);
        bytes.push(0);
        assert_eq!(refused(&bytes), Errno::INVAL, "not as long as it says");
        assert_eq!(refused(&legacy(number::ALLOC_PD, 1, &[0; 4])), Errno::NOSPC);
        assert_eq!(refused(&legacy(number::ALLOC_PD, 0, &[0; 8])), Errno::NOSPC);
        assert_eq!(refused(&legacy(200, 0, &[0; 8])), Errno::OPNOTSUPP);

        let header = ExtendedHeader { response: 8, provider_out_words: 2, ..Default::default() };
        let parsed = |header, core: &[u8]| {
            let bytes = extended(number::CREATE_CQ, header, core, &[]);
            Frame::parse(&bytes).map(|frame| frame.core_out)
        };
        assert_eq!(parsed(header, &[0; 32]), Ok(16));
        assert_eq!(parsed(header, &[0; 24]), Err(Errno::NOSPC));
        let nowhere = ExtendedHeader { response: 0, ..header };
        assert_eq!(parsed(nowhere, &[0; 32]), Err(Errno::INVAL));
        let reserved = ExtendedHeader { cmd_hdr_reserved: 1, ..header };
        assert_eq!(parsed(reserved, &[0; 32]), Err(Errno::INVAL));
        let more = ExtendedHeader { provider_in_words: 1, ..header };
        assert_eq!(parsed(more, &[0; 32]), Err(Errno::INVAL));
        assert_eq!(refused(&[0x12, 0, 0, 0x80, 0, 0, 0, 0, 1]), Errno::INVAL);
    }

    proptest! {
        /// Whatever is taken for a command has the parts that its method asks for, and all of
        /// them come from the bytes.
        #[test]
        fn any_bytes_are_answered(
            command in prop_oneof![0..45u32, (0..60u32).prop_map(|it| it | EXTENDED), any::<u32>()],
            words: [u16; 2], fitting: bool, mut rest: Vec<u8>,
        ) {
            let [in_words, out_words] = words.map(|word| word % 80);
            if fitting {
                let header = if command & EXTENDED == 0 { 0 } else { 16 };
                let unit = if command & EXTENDED == 0 { 4 } else { 8 };
                rest.resize(header + usize::from(in_words) * unit, 0);
            }
            let in_words =
                if fitting && command & EXTENDED == 0 { in_words + 2 } else { in_words };
            let header = CommandHeader { command, in_words, out_words };
            let bytes = [header.as_bytes(), &rest].concat();
            if let Ok(frame) = Frame::parse(&bytes) {
                let method = Method::find(command).unwrap();
                prop_assert!(frame.core.len() >= method.request);
                if frame.response != 0 || !frame.extended {
                    prop_assert!(frame.core_out >= method.response.unwrap_or(0));
                }
                prop_assert!(frame.core.len() + frame.driver.len() <= rest.len());
            }
        }
    }
}
