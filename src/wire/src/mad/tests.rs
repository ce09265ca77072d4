use super::*;
use proptest::prelude::*;
use proptest::sample::select;
use urxe_types::TimeCode;

/// A datagram of this attribute with this body, and a transaction ID of sevens.
fn datagram(attribute: u16, body: &[u8]) -> [u8; MAD_LEN] {
    let mut bytes = [0; MAD_LEN];
    bytes[..4].copy_from_slice(&[1, 7, 2, 3]);
    bytes[8..16].fill(7);
    bytes[16..18].copy_from_slice(&attribute.to_be_bytes());
    bytes[HEADER_LEN..][..body.len()].copy_from_slice(body);
    bytes
}

const TID: u64 = 0x0707_0707_0707_0707;
const IDS: [u8; 8] = [0, 0, 0, 1, 0, 0, 0, 2];

/// These bytes mean this message, both ways.
#[track_caller]
fn assert_means(bytes: [u8; MAD_LEN], message: impl Into<Message>) {
    let mad = Mad::new(TID, message);
    assert_eq!(Mad::parse(&bytes), Ok(mad));
    assert_eq!(mad.bytes(), bytes);
}

#[test]
fn mra() {
    let mut body = IDS.to_vec();
    body.extend([0x40, 0xc0, 9]);
    let mut private_data = [0; Mra::PRIVATE_LEN];
    private_data[0] = 9;
    let message = Mra {
        local_comm_id: CommId(1),
        remote_comm_id: CommId(2),
        received: Received::Rep,
        service_timeout: TimeCode::new(24),
        private_data,
    };
    assert_means(datagram(0x11, &body), message);
    assert_eq!(
        Message::from(message).to_string(),
        "CM MRA id 0x00000001 peer 0x00000002 of Rep, 68.719476736s more"
    );
}

#[test]
fn rej_with_additional_information() {
    let mut body = IDS.to_vec();
    body.extend([0x80, 8 << 1, 0, 4, 1, 2, 3, 4, 5, 6, 7, 8]);
    let message = Rej {
        local_comm_id: CommId(1),
        remote_comm_id: CommId(2),
        rejected: Rejected::Nothing,
        reason: Reason::Timeout,
        ari: Ari::guid(0x0102_0304_0506_0708),
        private_data: [0; Rej::PRIVATE_LEN],
    };
    assert_means(datagram(0x12, &body), message);
    assert_eq!(message.ari.information(), [1, 2, 3, 4, 5, 6, 7, 8]);
    assert_eq!(
        Message::from(message).to_string(),
        "CM REJ id 0x00000001 peer 0x00000002 of Nothing: Timeout (4)"
    );
}

#[test]
fn a_claim_of_more_information_than_there_is_room_for_is_harmless() {
    let ari = Ari { len: 127, bytes: [5; Ari::LEN] };
    assert_eq!(ari.information(), [5; Ari::LEN]);
}

#[test]
fn lap_and_apr() {
    let mut body = IDS.to_vec();
    body.extend([0, 0, 0, 0, 0, 0, 0x13, 20 << 3, 0, 0, 0, 0, 0xff, 0xff, 0, 7]);
    body.extend([0xfd; 16]);
    body.extend([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 77, 0, 2]);
    body.extend([0x12, 0x34, 0x50, 0x69, 64, 0x3f, 0x58, 19 << 3, 9]);
    let mut private_data = [0; Lap::PRIVATE_LEN];
    private_data[0] = 9;
    let alternate = CmPath {
        local_lid: 0xffff,
        remote_lid: 7,
        local_gid: std::net::Ipv6Addr::from([0xfd; 16]).into(),
        remote_gid: [10, 77, 0, 2].into(),
        flow_label: 0x12345,
        packet_rate: 0x3f,
        traffic_class: 0x69,
        hop_limit: 64,
        service_level: 5,
        subnet_local: true,
        local_ack_timeout: TimeCode::new(19),
    };
    let message = Lap {
        local_comm_id: CommId(1),
        remote_comm_id: CommId(2),
        remote_qpn: urxe_types::Qpn::new(0x13),
        remote_response_timeout: TimeCode::new(20),
        alternate,
        private_data,
    };
    assert_means(datagram(0x19, &body), message);

    let mut body = IDS.to_vec();
    body.extend([1, 2, 0, 0, 0xaa]);
    let mut information = [0; Apr::INFORMATION_LEN];
    information[0] = 0xaa;
    let message = Apr {
        local_comm_id: CommId(1),
        remote_comm_id: CommId(2),
        status: AprStatus::Unsupported,
        information_len: 1,
        information,
        private_data: [0; Apr::PRIVATE_LEN],
    };
    assert_means(datagram(0x1a, &body), message);
}

#[test]
fn an_alternate_path_is_there_or_not() {
    let bytes = datagram(0x10, &[]);
    let Ok(Mad { message: Message::Req(req), .. }) = Mad::parse(&bytes) else { panic!() };
    assert_eq!(req.alternate, None);
    let mut body = [0; 200];
    body[96 + 20 + 15] = 1;
    let bytes = datagram(0x10, &body);
    let Ok(Mad { message: Message::Req(req), .. }) = Mad::parse(&bytes) else { panic!() };
    assert_eq!(req.alternate.unwrap().remote_gid.to_string(), "::1");
    assert_eq!(Mad::new(TID, req).bytes(), bytes);
}

#[test]
fn malformed_messages_are_refused_by_name() {
    let good = datagram(0x14, &[]);
    for (at, byte, error, text) in [
        (0, 2, MadError::WrongBaseVersion(2), "base version 2"),
        (1, 0x81, MadError::WrongClass(0x81), "class 0x81"),
        (2, 1, MadError::WrongClassVersion(1), "class version 1"),
        (3, 0x81, MadError::WrongMethod(0x81), "method 0x81"),
        (17, 0x1b, MadError::UnknownAttribute(0x1b), "attribute 0x001b"),
        (16, 0x01, MadError::UnknownAttribute(0x0114), "attribute 0x0114"),
    ] {
        let mut bytes = good;
        bytes[at] = byte;
        assert_eq!(Mad::parse(&bytes), Err(error));
        assert!(error.to_string().contains(text), "{error}");
    }
}

#[test]
fn the_status_is_kept() {
    let mut bytes = datagram(0x14, &IDS);
    bytes[4..6].copy_from_slice(&[0x12, 0x34]);
    let mad = Mad::parse(&bytes).unwrap();
    assert_eq!(mad.status, 0x1234);
    assert_eq!(mad.bytes(), bytes);
}

/// 256 bytes in two halves: as many as arrays may have in a strategy.
fn halves() -> impl Strategy<Value = [u8; MAD_LEN]> {
    any::<[[u8; 32]; 8]>().prop_map(|parts| std::array::from_fn(|i| parts[i / 32][i % 32]))
}

proptest! {
    #[test]
    fn any_bytes_are_read_or_refused(bytes in halves()) {
        let _ = Mad::parse(&bytes);
    }

    #[test]
    fn parsed_headers_are_emitted_unchanged(bytes in halves(), attribute in select(ATTRIBUTES)) {
        let mut bytes = bytes;
        bytes[..4].copy_from_slice(&[1, 7, 2, 3]);
        bytes[16..18].copy_from_slice(&attribute.to_be_bytes());
        let mad = Mad::parse(&bytes).unwrap();
        let again = mad.bytes();
        prop_assert_eq!(Mad::parse(&again), Ok(mad));
        let title = format!("CM {} ", mad.message.name());
        prop_assert!(mad.to_string().starts_with(&title), "{mad}");
        // Reserved fields only may differ.
        let private = match mad.message {
            Message::Req(_) => Req::PRIVATE_LEN,
            Message::Rep(_) => Rep::PRIVATE_LEN,
            Message::Rej(_) => Rej::PRIVATE_LEN,
            Message::Mra(_) => Mra::PRIVATE_LEN,
            Message::Rtu(_) => Rtu::PRIVATE_LEN,
            Message::Dreq(_) => Dreq::PRIVATE_LEN,
            Message::Drep(_) => Drep::PRIVATE_LEN,
            Message::Lap(_) => Lap::PRIVATE_LEN,
            Message::Apr(_) => Apr::PRIVATE_LEN,
            Message::SidrReq(_) => SidrReq::PRIVATE_LEN,
            Message::SidrRep(_) => SidrRep::PRIVATE_LEN,
        };
        prop_assert_eq!(&again[MAD_LEN - private..], &bytes[MAD_LEN - private..]);
    }
}
