//! Messages of `NETLINK_RDMA`: requests are taken apart, answers are put together.

use crate::kernel::kernel_numbers;
use netlink_packet_core::{
    DefaultNla, Emitable, NLA_F_NESTED, NLM_F_ACK, NLM_F_DUMP, NLM_F_MULTIPART, NLM_F_REQUEST,
    NetlinkBuffer, NetlinkHeader, NlasIterator,
};
use rustix::io::Errno;

/// One attribute of an answer.
pub(super) type Attr = DefaultNla;

/// Bytes of a netlink header.
const HEADER_LEN: usize = 16;

/// The most attributes that one message has, in bytes: programs read into one page.
const ROOM: usize = 3584;

/// `NLMSG_ERROR`: an acknowledgement too, with the error 0.
const ERROR: u16 = 2;
/// `NLMSG_DONE`: the end of a list.
const DONE: u16 = 3;
/// `NLM_F_CAPPED`: of the request, only the header comes back with an error.
const CAPPED: u16 = 0x100;

/// `RDMA_NL_NLDEV`, of the clients of the family the one that knows devices.
const NLDEV: u16 = 5;

/// `RDMA_DRIVER_RXE`, by which libibverbs takes librxe for its provider.
pub(super) const RXE: u32 = 14;

kernel_numbers! {
    /// What is asked.
    command {
        DEV_GET = RDMA_NLDEV_CMD_GET 1,
        PORT_GET = RDMA_NLDEV_CMD_PORT_GET 5,
        SYS_GET = RDMA_NLDEV_CMD_SYS_GET 6,
        RES_GET = RDMA_NLDEV_CMD_RES_GET 9,
        RES_QP_GET = RDMA_NLDEV_CMD_RES_QP_GET 10,
        RES_CM_ID_GET = RDMA_NLDEV_CMD_RES_CM_ID_GET 11,
        RES_CQ_GET = RDMA_NLDEV_CMD_RES_CQ_GET 12,
        RES_MR_GET = RDMA_NLDEV_CMD_RES_MR_GET 13,
        RES_PD_GET = RDMA_NLDEV_CMD_RES_PD_GET 14,
        GET_CHARDEV = RDMA_NLDEV_CMD_GET_CHARDEV 15,
        STAT_GET = RDMA_NLDEV_CMD_STAT_GET 17,
        RES_SRQ_GET = RDMA_NLDEV_CMD_RES_SRQ_GET 23,
    }
}

kernel_numbers! {
    /// What an attribute is.
    attr {
        DEV_INDEX = RDMA_NLDEV_ATTR_DEV_INDEX 1,
        DEV_NAME = RDMA_NLDEV_ATTR_DEV_NAME 2,
        PORT_INDEX = RDMA_NLDEV_ATTR_PORT_INDEX 3,
        CAP_FLAGS = RDMA_NLDEV_ATTR_CAP_FLAGS 4,
        FW_VERSION = RDMA_NLDEV_ATTR_FW_VERSION 5,
        NODE_GUID = RDMA_NLDEV_ATTR_NODE_GUID 6,
        SYS_IMAGE_GUID = RDMA_NLDEV_ATTR_SYS_IMAGE_GUID 7,
        PORT_STATE = RDMA_NLDEV_ATTR_PORT_STATE 12,
        PORT_PHYS_STATE = RDMA_NLDEV_ATTR_PORT_PHYS_STATE 13,
        DEV_NODE_TYPE = RDMA_NLDEV_ATTR_DEV_NODE_TYPE 14,
        RES_SUMMARY = RDMA_NLDEV_ATTR_RES_SUMMARY 15,
        RES_SUMMARY_ENTRY = RDMA_NLDEV_ATTR_RES_SUMMARY_ENTRY 16,
        RES_SUMMARY_ENTRY_NAME = RDMA_NLDEV_ATTR_RES_SUMMARY_ENTRY_NAME 17,
        RES_SUMMARY_ENTRY_CURR = RDMA_NLDEV_ATTR_RES_SUMMARY_ENTRY_CURR 18,
        RES_QP = RDMA_NLDEV_ATTR_RES_QP 19,
        RES_QP_ENTRY = RDMA_NLDEV_ATTR_RES_QP_ENTRY 20,
        RES_LQPN = RDMA_NLDEV_ATTR_RES_LQPN 21,
        RES_RQPN = RDMA_NLDEV_ATTR_RES_RQPN 22,
        RES_RQ_PSN = RDMA_NLDEV_ATTR_RES_RQ_PSN 23,
        RES_SQ_PSN = RDMA_NLDEV_ATTR_RES_SQ_PSN 24,
        RES_PATH_MIG_STATE = RDMA_NLDEV_ATTR_RES_PATH_MIG_STATE 25,
        RES_TYPE = RDMA_NLDEV_ATTR_RES_TYPE 26,
        RES_STATE = RDMA_NLDEV_ATTR_RES_STATE 27,
        RES_PID = RDMA_NLDEV_ATTR_RES_PID 28,
        RES_KERN_NAME = RDMA_NLDEV_ATTR_RES_KERN_NAME 29,
        RES_CM_ID = RDMA_NLDEV_ATTR_RES_CM_ID 30,
        RES_CM_ID_ENTRY = RDMA_NLDEV_ATTR_RES_CM_ID_ENTRY 31,
        RES_PS = RDMA_NLDEV_ATTR_RES_PS 32,
        RES_SRC_ADDR = RDMA_NLDEV_ATTR_RES_SRC_ADDR 33,
        RES_DST_ADDR = RDMA_NLDEV_ATTR_RES_DST_ADDR 34,
        RES_CQ = RDMA_NLDEV_ATTR_RES_CQ 35,
        RES_CQ_ENTRY = RDMA_NLDEV_ATTR_RES_CQ_ENTRY 36,
        RES_CQE = RDMA_NLDEV_ATTR_RES_CQE 37,
        RES_USECNT = RDMA_NLDEV_ATTR_RES_USECNT 38,
        RES_MR = RDMA_NLDEV_ATTR_RES_MR 40,
        RES_MR_ENTRY = RDMA_NLDEV_ATTR_RES_MR_ENTRY 41,
        RES_RKEY = RDMA_NLDEV_ATTR_RES_RKEY 42,
        RES_LKEY = RDMA_NLDEV_ATTR_RES_LKEY 43,
        RES_IOVA = RDMA_NLDEV_ATTR_RES_IOVA 44,
        RES_MRLEN = RDMA_NLDEV_ATTR_RES_MRLEN 45,
        RES_PD = RDMA_NLDEV_ATTR_RES_PD 46,
        RES_PD_ENTRY = RDMA_NLDEV_ATTR_RES_PD_ENTRY 47,
        NDEV_INDEX = RDMA_NLDEV_ATTR_NDEV_INDEX 50,
        NDEV_NAME = RDMA_NLDEV_ATTR_NDEV_NAME 51,
        DRIVER = RDMA_NLDEV_ATTR_DRIVER 52,
        DRIVER_STRING = RDMA_NLDEV_ATTR_DRIVER_STRING 54,
        DRIVER_PRINT_TYPE = RDMA_NLDEV_ATTR_DRIVER_PRINT_TYPE 55,
        DRIVER_U32 = RDMA_NLDEV_ATTR_DRIVER_U32 57,
        RES_PDN = RDMA_NLDEV_ATTR_RES_PDN 60,
        RES_CQN = RDMA_NLDEV_ATTR_RES_CQN 61,
        RES_MRN = RDMA_NLDEV_ATTR_RES_MRN 62,
        RES_CM_IDN = RDMA_NLDEV_ATTR_RES_CM_IDN 63,
        SYS_NETNS_MODE = RDMA_NLDEV_SYS_ATTR_NETNS_MODE 66,
        DEV_PROTOCOL = RDMA_NLDEV_ATTR_DEV_PROTOCOL 67,
        CHARDEV_TYPE = RDMA_NLDEV_ATTR_CHARDEV_TYPE 69,
        CHARDEV_NAME = RDMA_NLDEV_ATTR_CHARDEV_NAME 70,
        CHARDEV_ABI = RDMA_NLDEV_ATTR_CHARDEV_ABI 71,
        CHARDEV = RDMA_NLDEV_ATTR_CHARDEV 72,
        UVERBS_DRIVER_ID = RDMA_NLDEV_ATTR_UVERBS_DRIVER_ID 73,
        STAT_RES = RDMA_NLDEV_ATTR_STAT_RES 75,
        STAT_HWCOUNTERS = RDMA_NLDEV_ATTR_STAT_HWCOUNTERS 80,
        STAT_HWCOUNTER_ENTRY = RDMA_NLDEV_ATTR_STAT_HWCOUNTER_ENTRY 81,
        STAT_HWCOUNTER_ENTRY_NAME = RDMA_NLDEV_ATTR_STAT_HWCOUNTER_ENTRY_NAME 82,
        STAT_HWCOUNTER_ENTRY_VALUE = RDMA_NLDEV_ATTR_STAT_HWCOUNTER_ENTRY_VALUE 83,
        RES_SRQ = RDMA_NLDEV_ATTR_RES_SRQ 88,
        RES_SRQ_ENTRY = RDMA_NLDEV_ATTR_RES_SRQ_ENTRY 89,
        RES_SRQN = RDMA_NLDEV_ATTR_RES_SRQN 90,
        SYS_COPY_ON_FORK = RDMA_NLDEV_SYS_ATTR_COPY_ON_FORK 93,
    }
}

/// An attribute of one byte.
pub(super) fn byte(kind: u16, value: u8) -> Attr {
    Attr::new(kind, vec![value])
}

/// An attribute of 32 bits.
pub(super) fn word(kind: u16, value: u32) -> Attr {
    Attr::new(kind, value.to_ne_bytes().to_vec())
}

/// An attribute of 64 bits.
pub(super) fn long(kind: u16, value: u64) -> Attr {
    Attr::new(kind, value.to_ne_bytes().to_vec())
}

/// An attribute of text, up to its first zero byte.
pub(super) fn text(kind: u16, value: &str) -> Attr {
    let bytes = value.bytes().take_while(|&byte| byte != 0);
    Attr::new(kind, bytes.chain([0]).collect())
}

/// An attribute that consists of others.
pub(super) fn nested(kind: u16, attrs: &[Attr]) -> Attr {
    Attr::new(kind | NLA_F_NESTED, emitted(attrs))
}

fn emitted(attrs: &[Attr]) -> Vec<u8> {
    let mut bytes = vec![0; attrs.buffer_len()];
    attrs.emit(&mut bytes);
    bytes
}

/// One question of a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Question {
    header: NetlinkHeader,
    /// Its attributes, by their kinds.
    attrs: Vec<(u16, Vec<u8>)>,
    /// Its attributes can be told apart.
    is_well_formed: bool,
}

/// What a question is answered with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// One message of these attributes, with more.
    One(Vec<Attr>),
    /// Messages that are each of these attributes, as the answer to a dump.
    List(Vec<Vec<Attr>>),
    /// The entries of a table of this kind, which goes on over messages that each begin with the
    /// attributes in front.
    Table { front: Vec<Attr>, kind: u16, entries: Vec<Attr> },
}

impl Question {
    /// Those of what a program has sent, up to the first that cannot be told apart. What is no
    /// request is passed over.
    pub(super) fn all_of(mut bytes: &[u8]) -> Vec<Question> {
        let mut all = Vec::new();
        while let Ok(buffer) = NetlinkBuffer::new_checked(bytes) {
            let mut header = NetlinkHeader::default();
            header.length = buffer.length();
            header.message_type = buffer.message_type();
            header.flags = buffer.flags();
            header.sequence_number = buffer.sequence_number();
            header.port_number = buffer.port_number();
            let mut question = Question { header, attrs: Vec::new(), is_well_formed: true };
            for attr in NlasIterator::new(buffer.payload()) {
                let Ok(attr) = attr else {
                    question.is_well_formed = false;
                    break;
                };
                question.attrs.push((attr.kind(), attr.value().to_vec()));
            }
            if header.flags & NLM_F_REQUEST != 0 {
                all.push(question);
            }
            let whole = (header.length as usize).next_multiple_of(4);
            bytes = bytes.get(whole..).unwrap_or_default();
        }
        all
    }

    /// What is asked for. `EINVAL` if it is nothing that devices are asked.
    pub(super) fn command(&self) -> Result<u16, Errno> {
        match self.header.message_type >> 10 {
            NLDEV if self.is_well_formed => Ok(self.header.message_type & 0x3ff),
            _ => Err(Errno::INVAL),
        }
    }

    /// Whether all there are of a kind are asked for.
    pub(super) fn is_dump(&self) -> bool {
        self.header.flags & NLM_F_DUMP == NLM_F_DUMP
    }

    fn attr(&self, kind: u16) -> Option<&[u8]> {
        let found = self.attrs.iter().find(|(present, _)| *present == kind);
        found.map(|(_, value)| value.as_slice())
    }

    /// The number of this kind that it names.
    pub(super) fn word(&self, kind: u16) -> Option<u32> {
        self.attr(kind)?.try_into().ok().map(u32::from_ne_bytes)
    }

    /// The text of this kind that it names.
    pub(super) fn text(&self, kind: u16) -> Option<&str> {
        let text = self.attr(kind)?;
        std::str::from_utf8(text.strip_suffix(b"\0").unwrap_or(text)).ok()
    }

    /// The datagrams of its answer, for a socket of this port.
    pub(super) fn datagrams(&self, port: u32, answer: Result<Answer, Errno>) -> Vec<Vec<u8>> {
        let lists = match answer {
            Err(errno) => return vec![self.status(port, errno.raw_os_error())],
            Ok(Answer::One(attrs)) => {
                let mut all = vec![self.message(port, 0, &emitted(&attrs))];
                if self.header.flags & NLM_F_ACK != 0 {
                    all.push(self.status(port, 0));
                }
                return all;
            }
            Ok(Answer::List(lists)) => lists,
            Ok(Answer::Table { front, kind, entries }) => in_parts(&front, kind, &entries),
        };
        let messages = lists.iter().map(|list| self.message(port, NLM_F_MULTIPART, &emitted(list)));
        messages.chain([self.end(port)]).collect()
    }

    fn message(&self, port: u32, flags: u16, payload: &[u8]) -> Vec<u8> {
        self.of_type(self.header.message_type, port, flags, payload)
    }

    fn end(&self, port: u32) -> Vec<u8> {
        self.of_type(DONE, port, NLM_F_MULTIPART, &0_i32.to_ne_bytes())
    }

    fn status(&self, port: u32, errno: i32) -> Vec<u8> {
        let mut payload = (-errno).to_ne_bytes().to_vec();
        payload.resize(4 + HEADER_LEN, 0);
        self.header.emit(&mut payload[4..]);
        self.of_type(ERROR, port, CAPPED, &payload)
    }

    fn of_type(&self, message_type: u16, port: u32, flags: u16, payload: &[u8]) -> Vec<u8> {
        let mut header = self.header;
        (header.message_type, header.flags, header.port_number) = (message_type, flags, port);
        header.length = (HEADER_LEN + payload.len()) as u32;
        let mut bytes = vec![0; HEADER_LEN];
        header.emit(&mut bytes);
        bytes.extend(payload);
        bytes
    }
}

/// A table as messages of which each has room for its entries.
fn in_parts(front: &[Attr], kind: u16, entries: &[Attr]) -> Vec<Vec<Attr>> {
    let mut parts = Vec::new();
    let mut rest = entries;
    while !rest.is_empty() {
        let mut len = 0;
        let fits = rest.iter().take_while(|entry| {
            len += entry.buffer_len();
            len <= ROOM
        });
        // One that has no room even alone goes alone: no entry is as long as that.
        let (part, behind) = rest.split_at(fits.count().max(1));
        parts.push(front.iter().cloned().chain([nested(kind, part)]).collect());
        rest = behind;
    }
    parts
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::kernel::check_headers;
    use proptest::prelude::*;

    /// What a program sends that asks for this.
    pub(crate) fn request(command: u16, flags: u16, attrs: &[Attr]) -> Vec<u8> {
        let mut header = NetlinkHeader::default();
        header.flags = NLM_F_REQUEST | flags;
        header.sequence_number = 7;
        let question = Question { header, attrs: Vec::new(), is_well_formed: true };
        question.of_type(NLDEV << 10 | command, 0, NLM_F_REQUEST | flags, &emitted(attrs))
    }

    pub(crate) fn question(command: u16, flags: u16, attrs: &[Attr]) -> Question {
        Question::all_of(&request(command, flags, attrs)).remove(0)
    }

    /// Type, flags, sequence number and port of a message, and its payload.
    fn parts(message: &[u8]) -> (u16, u16, u32, u32, &[u8]) {
        let it = NetlinkBuffer::new_checked(message).unwrap();
        assert_eq!(it.length() as usize, message.len());
        let numbers = (it.message_type(), it.flags(), it.sequence_number(), it.port_number());
        (numbers.0, numbers.1, numbers.2, numbers.3, it.payload())
    }

    #[test]
    fn numbers_are_the_kernels() {
        let all = command::ALL.iter().chain(attr::ALL).copied();
        let others = [("RDMA_NL_NLDEV", 5), ("RDMA_DRIVER_RXE", RXE as usize)];
        let headers = ["rdma_netlink.h", "ib_user_ioctl_verbs.h"];
        check_headers(&headers, [], all.chain(others));
    }

    #[test]
    fn a_question_for_one_is_answered_and_acknowledged_if_it_asks_for_that() {
        for (flags, messages) in [(0, 1), (NLM_F_ACK, 2)] {
            let named = [word(attr::DEV_INDEX, 3), text(attr::DEV_NAME, "a")];
            let question = question(command::SYS_GET, flags, &named);
            assert_eq!(question.text(attr::DEV_NAME), Some("a"));
            assert_eq!(question.command(), Ok(command::SYS_GET));
            assert_eq!((question.is_dump(), question.word(attr::DEV_INDEX)), (false, Some(3)));
            assert_eq!(question.word(attr::PORT_INDEX), None);
            let answer = Answer::One(vec![byte(attr::SYS_NETNS_MODE, 1)]);
            let answer = question.datagrams(99, Ok(answer));
            assert_eq!(answer.len(), messages);
            let expected: &[u8] = &[5, 0, attr::SYS_NETNS_MODE as u8, 0, 1, 0, 0, 0];
            assert_eq!(parts(&answer[0]), (NLDEV << 10 | command::SYS_GET, 0, 7, 99, expected));
            if let Some(status) = answer.get(1) {
                let (kind, _, sequence, port, payload) = parts(status);
                assert_eq!((kind, sequence, port, &payload[..4]), (ERROR, 7, 99, &[0; 4][..]));
                assert_eq!(
                    payload[4..],
                    request(command::SYS_GET, flags, &[])[..16]
                        .iter()
                        .enumerate()
                        .map(|(at, &byte)| if at == 0 { 32 } else { byte })
                        .collect::<Vec<_>>()[..]
                );
            }
        }
    }

    #[test]
    fn a_refusal_is_the_errno_less_than_zero() {
        let question = question(command::RES_GET, 0, &[]);
        let answer = question.datagrams(1, Err(Errno::NODEV));
        assert_eq!(answer.len(), 1);
        assert_eq!(parts(&answer[0]).4[..4], (-libc::ENODEV).to_ne_bytes());
    }

    #[test]
    fn a_table_goes_on_over_messages_of_which_each_fits_into_a_page() {
        let front = vec![word(attr::DEV_INDEX, 0), text(attr::DEV_NAME, "urxe0")];
        for count in [0, 1, 1000] {
            let entry = |number| nested(attr::RES_QP_ENTRY, &[word(attr::RES_LQPN, number)]);
            let entries = (0..count).map(entry).collect();
            let table = Answer::Table { front: front.clone(), kind: attr::RES_QP, entries };
            let question = question(command::RES_QP_GET, NLM_F_DUMP, &[]);
            let messages = question.datagrams(1, Ok(table));
            let (end, messages) = messages.split_last().unwrap();
            assert_eq!((parts(end).0, parts(end).1, parts(end).4), (DONE, 2, &[0; 4][..]));
            let mut found = Vec::new();
            for message in messages {
                assert!(message.len() <= 4096);
                let (_, flags, _, _, payload) = parts(message);
                assert_eq!(flags, NLM_F_MULTIPART);
                let attrs: Vec<_> = NlasIterator::new(payload).map(Result::unwrap).collect();
                let kinds: Vec<u16> = attrs.iter().map(|attr| attr.kind()).collect();
                assert_eq!(kinds, [attr::DEV_INDEX, attr::DEV_NAME, attr::RES_QP]);
                for entry in NlasIterator::new(attrs[2].value()) {
                    // Behind the headers of the entry's own number.
                    found.push(entry.unwrap().value()[4..].to_vec());
                }
            }
            let expected: Vec<_> = (0..count).map(|number| number.to_ne_bytes().to_vec()).collect();
            assert_eq!(found, expected);
        }
    }

    #[test]
    fn text_ends_at_its_first_zero() {
        assert_eq!(text(1, "a\0b"), Attr::new(1, b"a\0".to_vec()));
    }

    #[test]
    fn questions_stand_one_behind_the_other_and_what_is_no_request_is_passed_over() {
        let mut bytes = request(command::DEV_GET, NLM_F_DUMP, &[text(attr::DEV_NAME, "x")]);
        let mut other = request(command::SYS_GET, 0, &[]);
        other[6] &= !(NLM_F_REQUEST as u8);
        bytes.extend(other);
        bytes.extend(request(command::PORT_GET, 0, &[]));
        bytes.extend([1, 2, 3]);
        let commands: Vec<_> =
            Question::all_of(&bytes).iter().map(|question| question.command().unwrap()).collect();
        assert_eq!(commands, [command::DEV_GET, command::PORT_GET]);
    }

    #[test]
    fn attributes_that_cannot_be_told_apart_and_other_clients_are_invalid() {
        let mut bytes = request(command::DEV_GET, 0, &[word(attr::DEV_INDEX, 0)]);
        bytes[16] = 3;
        assert_eq!(Question::all_of(&bytes)[0].command(), Err(Errno::INVAL));
        let mut bytes = request(command::DEV_GET, 0, &[]);
        bytes[5] = 4 << 2;
        assert_eq!(Question::all_of(&bytes)[0].command(), Err(Errno::INVAL));
    }

    proptest! {
        #[test]
        fn any_bytes_are_questions_or_none(bytes in proptest::collection::vec(any::<u8>(), 0..90)) {
            for question in Question::all_of(&bytes) {
                let _ = (question.command(), question.word(attr::DEV_INDEX));
                prop_assert_eq!(question.datagrams(1, Err(Errno::INVAL)).len(), 1);
            }
        }

        #[test]
        fn attributes_of_any_bytes_are_taken_apart_or_refused(
            payload in proptest::collection::vec(any::<u8>(), 0..64),
        ) {
            let mut bytes = request(command::DEV_GET, 0, &[]);
            bytes.extend(&payload);
            let len = bytes.len() as u32;
            bytes[..4].copy_from_slice(&len.to_ne_bytes());
            prop_assert_eq!(Question::all_of(&bytes).len(), 1);
        }
    }
}
