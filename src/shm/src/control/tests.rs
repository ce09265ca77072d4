//! Of the encoding: any request and any reply.

mod memory;

use super::codec::{MARK, PREFIX_LEN};
use super::*;
use proptest::prelude::*;
use serde::Serialize;
use std::net::IpAddr;
use std::time::Duration;
use urxe_types::{
    Access, AddressVector, AhId, Gid, Lkey, MwType, PathMtu, Posted, Psn, Qkey, QpAttr, QpType,
    Qpn, Rkey, Traffic,
};

fn text() -> impl Strategy<Value = String> {
    "\\PC{0,20}"
}

fn state() -> impl Strategy<Value = urxe_types::QpState> {
    use urxe_types::QpState::*;
    prop::sample::select(vec![Reset, Init, Rtr, Rts, Sqd, Sqe, Err])
}

fn caps() -> impl Strategy<Value = QpCaps> {
    any::<[u32; 5]>().prop_map(|[send_wr, recv_wr, send_sge, recv_sge, inline]| QpCaps {
        max_send_wr: send_wr,
        max_recv_wr: recv_wr,
        max_send_sge: send_sge,
        max_recv_sge: recv_sge,
        max_inline_data: inline,
    })
}

fn gid() -> impl Strategy<Value = Gid> {
    any::<[u8; 16]>().prop_map(Gid)
}

fn av() -> impl Strategy<Value = AddressVector> {
    (gid(), any::<([u8; 3], u32)>()).prop_map(
        |(dgid, ([sgid_index, traffic_class, hop_limit], flow_label))| AddressVector {
            dgid: dgid.to_ip(),
            sgid_index,
            traffic_class,
            hop_limit,
            flow_label,
        },
    )
}

fn mtu() -> impl Strategy<Value = PathMtu> {
    prop::sample::select(PathMtu::ALL.to_vec())
}

fn srq_attr() -> impl Strategy<Value = SrqAttr> {
    any::<[u32; 3]>().prop_map(|[max_wr, max_sge, limit]| SrqAttr { max_wr, max_sge, limit })
}

fn qp_type() -> impl Strategy<Value = QpType> {
    prop::sample::select(vec![QpType::Rc, QpType::Uc, QpType::Ud])
}

fn mw_type() -> impl Strategy<Value = MwType> {
    prop::sample::select(vec![MwType::One, MwType::Two])
}

fn location() -> impl Strategy<Value = RingLocation> {
    any::<(u64, u32)>().prop_map(|(offset, size)| RingLocation { offset, size })
}

fn attr() -> impl Strategy<Value = QpAttr> {
    let states = (prop::option::of(state()), prop::option::of(state()));
    let words = any::<([Option<u32>; 5], Option<u16>)>();
    let bytes = any::<[Option<u8>; 7]>();
    let path = (prop::option::of(av()), prop::option::of(mtu()));
    (states, path, words, bytes).prop_map(
        |((state, cur_state), (av, path_mtu), (words, pkey_index), bytes)| {
            let [access, dest_qpn, qkey, rq_psn, sq_psn] = words;
            let [port, max_rd_atomic, max_dest_rd_atomic, timer, timeout, retry, rnr] = bytes;
            QpAttr {
                state,
                cur_state,
                access: access.map(Access::from_bits_retain),
                pkey_index,
                port,
                av,
                path_mtu,
                dest_qpn: dest_qpn.map(Qpn::new),
                qkey: qkey.map(Qkey),
                rq_psn: rq_psn.map(Psn::new),
                sq_psn: sq_psn.map(Psn::new),
                max_rd_atomic,
                max_dest_rd_atomic,
                min_rnr_timer: timer,
                timeout,
                retry_cnt: retry,
                rnr_retry: rnr,
            }
        },
    )
}

/// Requests about SRQs, address handles, windows, multicast groups and lists of objects.
fn object_request() -> impl Strategy<Value = Request> {
    use ResourceKind::*;
    let kind = prop::sample::select(vec![Qp, Cq, Srq, Mr, Mw, CmId]);
    prop_oneof![
        (any::<(u32, u64)>(), srq_attr()).prop_map(|((pd, user_handle), attr)| {
            Request::CreateSrq { pd: PdHandle(pd), attr, user_handle }
        }),
        any::<(u32, Option<u32>, Option<u32>)>().prop_map(|(srq, max_wr, limit)| {
            Request::ModifySrq { srq: SrqHandle(srq), max_wr, limit }
        }),
        any::<u32>().prop_map(|srq| Request::QuerySrq { srq: SrqHandle(srq) }),
        any::<u32>().prop_map(|srq| Request::DestroySrq { srq: SrqHandle(srq) }),
        (any::<u32>(), av()).prop_map(|(pd, av)| Request::CreateAh { pd: PdHandle(pd), av }),
        any::<u32>().prop_map(|ah| Request::DestroyAh { ah: AhHandle(ah) }),
        (any::<u32>(), mw_type())
            .prop_map(|(pd, mw_type)| Request::AllocMw { pd: PdHandle(pd), mw_type }),
        any::<u32>().prop_map(|mw| Request::DeallocMw { mw: MwHandle(mw) }),
        (any::<u32>(), gid()).prop_map(|(qp, gid)| Request::AttachMcast { qp: QpHandle(qp), gid }),
        (any::<u32>(), gid()).prop_map(|(qp, gid)| Request::DetachMcast { qp: QpHandle(qp), gid }),
        (text(), kind, cursor()).prop_map(|(device, kind, from)| Request::Resources {
            device,
            kind,
            from
        }),
    ]
}

fn cursor() -> impl Strategy<Value = Cursor> {
    any::<(u8, Option<u32>)>().prop_map(|(slot, after)| Cursor { slot, after })
}

fn resource() -> impl Strategy<Value = Resource> {
    let qp = (
        any::<([u32; 4], [Option<u32>; 3])>(),
        (qp_type(), state(), prop::option::of((gid(), any::<u32>()))),
    );
    let bound = any::<([u32; 2], [u64; 2], Option<u32>)>().prop_map(
        |([mr, access], [addr, length], qpn)| BoundTo {
            mr,
            addr,
            length,
            access: Access::from_bits_retain(access),
            qpn,
        },
    );
    let detail = prop_oneof![
        qp.prop_map(
            |(([send_cq, recv_cq, sq_psn, rq_psn], [srq, path, cause]), (qp_type, state, peer))| {
                ResourceDetail::Qp {
                    qp_type,
                    state,
                    send_cq,
                    recv_cq,
                    srq,
                    peer,
                    path,
                    sq_psn,
                    rq_psn,
                    cause,
                }
            }
        ),
        any::<([u32; 3], bool)>().prop_map(|([cqe, unread, qps], failed)| {
            ResourceDetail::Cq { cqe, unread, qps, failed }
        }),
        any::<[u32; 4]>().prop_map(|[max_wr, posted, limit, qps]| {
            ResourceDetail::Srq { max_wr, posted, limit, qps }
        }),
        memory::mr_detail(),
        (mw_type(), prop::option::of(bound))
            .prop_map(|(mw_type, bound)| ResourceDetail::Mw { mw_type, bound }),
        cm::tests::id_detail(),
    ];
    (any::<[u32; 3]>(), text(), detail).prop_map(|([number, uid, pd], program, detail)| Resource {
        number,
        program,
        uid,
        pd,
        detail,
    })
}

/// Answers to the requests about objects.
fn object_reply() -> impl Strategy<Value = Reply> {
    let created = (any::<[u32; 3]>(), caps(), location(), prop::option::of(location()));
    prop_oneof![
        (any::<u32>(), location()).prop_map(|(cqe, ring)| Reply::CqResized { cqe, ring }),
        (any::<[u32; 2]>(), srq_attr(), location()).prop_map(|([srq, srqn], attr, ring)| {
            Reply::Srq { srq: SrqHandle(srq), srqn, attr, ring }
        }),
        (srq_attr(), prop::option::of(location()))
            .prop_map(|(attr, ring)| Reply::SrqModified { attr, ring }),
        srq_attr().prop_map(Reply::SrqAttr),
        any::<[u32; 2]>()
            .prop_map(|[ah, ah_num]| Reply::Ah { ah: AhHandle(ah), ah_num: AhId(ah_num) }),
        any::<[u32; 2]>().prop_map(|[mw, rkey]| Reply::Mw { mw: MwHandle(mw), rkey: Rkey(rkey) }),
        created.prop_map(|([qp, qpn, doorbell_slot], caps, send_ring, recv_ring)| {
            let qp = QpHandle(qp);
            Reply::Qp(QpCreated {
                qp,
                qpn: Qpn::new(qpn),
                caps,
                send_ring,
                recv_ring,
                doorbell_slot,
            })
        }),
        (prop::collection::vec(resource(), 0..5), prop::option::of(cursor()))
            .prop_map(|(resources, next)| Reply::Resources(ResourcePage { resources, next })),
    ]
}

fn request() -> impl Strategy<Value = Request> {
    prop_oneof![
        text().prop_map(|program| Request::Hello { program }),
        Just(Request::HostSlot),
        Just(Request::ListDevices),
        Just(Request::ListCauses),
        (any::<u32>(), any::<u32>())
            .prop_map(|(qp, cause)| Request::ExplainFailure { qp: QpHandle(qp), cause }),
        text().prop_map(|name| Request::OpenDevice { name }),
        any::<(u32, u8, u32)>().prop_map(|(context, port, index)| Request::QueryGid {
            context: ContextHandle(context),
            port,
            index,
        }),
        (any::<(u32, u32, [u64; 3])>(), memory::backing()).prop_map(
            |((pd, access, [addr, length, iova]), backing)| Request::RegMr {
                pd: PdHandle(pd),
                addr,
                length,
                iova,
                access: Access::from_bits_retain(access),
                backing,
            }
        ),
        any::<(u32, u32, Option<u32>, u64, u32)>().prop_map(
            |(context, cqe, channel, user_handle, comp_vector)| Request::CreateCq {
                context: ContextHandle(context),
                cqe,
                channel: channel.map(CompChannelHandle),
                user_handle,
                comp_vector,
            }
        ),
        any::<(u32, u32)>().prop_map(|(cq, cqe)| Request::ResizeCq { cq: CqHandle(cq), cqe }),
        (any::<([u32; 3], Option<u32>, bool, u64)>(), qp_type(), caps()).prop_map(
            |(([pd, send_cq, recv_cq], srq, sq_sig_all, user_handle), qp_type, caps)| {
                Request::CreateQp {
                    pd: PdHandle(pd),
                    qp_type,
                    send_cq: CqHandle(send_cq),
                    recv_cq: CqHandle(recv_cq),
                    srq: srq.map(SrqHandle),
                    caps,
                    sq_sig_all,
                    user_handle,
                }
            }
        ),
        (any::<u32>(), attr()).prop_map(|(qp, attr)| Request::ModifyQp { qp: QpHandle(qp), attr }),
        object_request(),
        cm::tests::request().prop_map(Request::Cm),
        (text(), cursor()).prop_map(|(device, from)| Request::Stats { device, from }),
        (text(), cursor()).prop_map(|(device, from)| Request::Paths { device, from }),
        capture::tests::request(),
        (text(), any::<Option<u32>>(), cursor()).prop_map(|(device, qpn, from)| {
            let of = qpn.map_or(HistorySubject::Failed, HistorySubject::Qp);
            Request::Histories { device, of, from }
        }),
    ]
}

fn path() -> impl Strategy<Value = PathState> {
    let holds = prop::sample::select(vec![PathHold::Nothing, PathHold::Window, PathHold::Pace]);
    let cuts = vec![PathCut::Mark, PathCut::Notification, PathCut::Delay, PathCut::Loss];
    let lane = move || {
        let cut = prop::option::of(prop::sample::select(cuts.clone()));
        (any::<([u64; 2], Option<u64>, u32, u16)>(), holds.clone(), cut).prop_map(
            |(([in_flight, window], rate, waiting, congestion), held, last_cut)| LaneState {
                in_flight,
                window,
                rate,
                waiting,
                held,
                congestion,
                last_cut,
            },
        )
    };
    let round_trip = any::<Option<[Duration; 3]>>().prop_map(|round_trip| {
        round_trip.map(|[least, smoothed, variation]| RoundTripState { least, smoothed, variation })
    });
    let rest = any::<([u32; 2], [IpAddr; 2], u8, Option<bool>, bool)>();
    (rest, round_trip, lane(), lane()).prop_map(|(rest, round_trip, outward, inward)| {
        let ([number, qps], [local, peer], traffic_class, keeps_early, acknowledges_selectively) =
            rest;
        PathState {
            number,
            local,
            peer,
            traffic_class,
            qps,
            round_trip,
            outward,
            inward,
            keeps_early,
            acknowledges_selectively,
        }
    })
}

fn history() -> impl Strategy<Value = QpHistory> {
    let what = prop_oneof![
        state().prop_map(Happening::Modified),
        (state(), any::<u32>()).prop_map(|(state, cause)| Happening::Failed { state, cause }),
        Just(Happening::Heard),
        text().prop_map(Happening::Counted),
        text().prop_map(Happening::SlotEnded),
    ];
    let traffic = any::<([u64; 4], [u64; 6])>().prop_map(|(traffic, posted)| {
        let [sent_packets, received_packets, sent_messages, received_messages] = traffic;
        let [sends, writes, reads, atomics, flushes, local] = posted;
        let posted = Posted { sends, writes, reads, atomics, flushes, local };
        Traffic { sent_packets, received_packets, sent_messages, received_messages, posted }
    });
    let entry = (any::<([Duration; 2], u32)>(), what, traffic).prop_map(
        |(([at, span], times), what, traffic)| HistoryEntry { at, span, times, what, traffic },
    );
    let failed = any::<Option<(Duration, u64, [u32; 4])>>().prop_map(|failed| {
        failed.map(|(at, wr_id, [opcode, length, status, vendor_err])| FailedRequest {
            at,
            opcode,
            wr_id,
            length,
            status,
            vendor_err,
        })
    });
    let rest = any::<([u32; 3], [Option<Duration>; 2], Option<String>, Vec<(String, u64)>)>();
    let entries = prop::collection::vec(entry, 0..5);
    (rest, text(), state(), attr(), entries, failed).prop_map(
        |(rest, program, state, attr, entries, failed)| {
            let ([qpn, uid, left_out], [gone, heard], reason, counters) = rest;
            QpHistory {
                qpn,
                program,
                uid,
                qp_type: QpType::Rc,
                state,
                attr,
                gone,
                heard,
                entries,
                left_out,
                failed,
                reason,
                counters,
            }
        },
    )
}

fn reply() -> impl Strategy<Value = Reply> {
    let info = || (text(), text()).prop_map(|(name, meaning)| CounterInfo { name, meaning });
    let qp = (any::<u32>(), state(), text(), any::<Vec<u64>>())
        .prop_map(|(qpn, state, program, values)| QpStats { qpn, state, program, values });
    let page = (
        prop::collection::vec((info(), any::<u64>()), 0..5),
        prop::collection::vec(info(), 0..5),
        prop::collection::vec(qp, 0..5),
        prop::option::of(cursor()),
    );
    prop_oneof![
        (any::<i32>(), text())
            .prop_map(|(errno, message)| Reply::Error(ControlError { errno, message })),
        Just(Reply::Done),
        any::<String>().prop_map(Reply::Reason),
        any::<u64>().prop_map(|memory_limit| Reply::Hello { memory_limit }),
        any::<u8>().prop_map(|slot| Reply::HostSlot { slot }),
        capture::tests::reply(),
        (text(), any::<([u8; 8], IpAddr)>()).prop_map(|(name, (node_guid, address))| {
            Reply::Devices(vec![DeviceInfo { name, node_guid, address }])
        }),
        any::<[u32; 3]>().prop_map(|[mr, lkey, rkey]| Reply::Mr {
            mr: MrHandle(mr),
            lkey: Lkey(lkey),
            rkey: Rkey(rkey)
        }),
        (attr(), caps(), any::<[bool; 2]>()).prop_map(|(attr, caps, flags)| {
            let [sq_sig_all, sq_draining] = flags;
            Reply::QpAttr(QpQueried { attr, caps, sq_sig_all, sq_draining })
        }),
        object_reply(),
        cm::tests::reply().prop_map(Reply::Cm),
        (prop::collection::vec(path(), 0..5), prop::option::of(cursor()))
            .prop_map(|(paths, next)| Reply::Paths(PathPage { paths, next })),
        (prop::collection::vec(history(), 0..5), prop::option::of(cursor()))
            .prop_map(|(histories, next)| Reply::Histories(HistoryPage { histories, next })),
        page.prop_map(|(device, qp_counters, qps, next)| {
            Reply::Stats(StatsPage { device, qp_counters, qps, next })
        }),
    ]
}

fn encoded(message: &impl Serialize) -> Vec<u8> {
    let mut buf = vec![0xa5; MAX_MESSAGE];
    let len = encode(message, &mut buf).unwrap();
    buf.truncate(len);
    buf
}

proptest! {
    #[test]
    fn a_request_arrives_as_it_was_sent(request in request()) {
        prop_assert_eq!(decode(&encoded(&request)), Ok(request));
    }

    #[test]
    fn a_reply_arrives_as_it_was_sent(reply in reply()) {
        prop_assert_eq!(decode(&encoded(&reply)), Ok(reply));
    }

    /// A message that was cut or has grown is none: nothing is believed in part.
    #[test]
    fn a_message_of_another_length_is_refused(request in request(), tail: u8) {
        let mut bytes = encoded(&request);
        bytes.push(tail);
        let len = bytes.len();
        prop_assert_eq!(decode::<Request>(&bytes), Err(DecodeError::Malformed { len }));
        for len in PREFIX_LEN..len - 1 {
            let cut = decode::<Request>(&bytes[..len]);
            prop_assert_eq!(cut, Err(DecodeError::Malformed { len }));
        }
    }

    #[test]
    fn any_bytes_are_decoded(bytes: Vec<u8>) {
        let message = [&MARK[..], &PROTOCOL_VERSION.to_le_bytes(), &bytes].concat();
        let _ = decode::<Request>(&bytes);
        let _ = decode::<Request>(&message);
        let _ = decode::<Reply>(&message);
    }
}

#[test]
fn another_version_is_told_apart_from_nonsense() {
    let mut bytes = encoded(&Request::ListDevices);
    bytes[2] ^= 0x40;
    let theirs = PROTOCOL_VERSION ^ 0x40;
    assert_eq!(decode::<Request>(&bytes), Err(DecodeError::Version { theirs }));
    bytes[0] = 0;
    assert_eq!(decode::<Request>(&bytes), Err(DecodeError::NotOurs { len: bytes.len() }));
    assert_eq!(decode::<Request>(b"ux"), Err(DecodeError::NotOurs { len: 2 }));
    assert_eq!(decode::<Request>(b""), Err(DecodeError::NotOurs { len: 0 }));
}

#[test]
fn a_qp_type_that_does_not_exist_is_refused() {
    let create = |qp_type| {
        encoded(&Request::CreateQp {
            pd: PdHandle(1),
            qp_type,
            send_cq: CqHandle(1),
            recv_cq: CqHandle(1),
            srq: None,
            caps: QpCaps::default(),
            sq_sig_all: false,
            user_handle: 0,
        })
    };
    let (mut bytes, other) = (create(QpType::Rc), create(QpType::Ud));
    let at = (0..bytes.len()).find(|&at| bytes[at] != other[at]).unwrap();
    for unknown in other[at] + 1..0x80 {
        bytes[at] = unknown;
        let len = bytes.len();
        assert_eq!(decode::<Request>(&bytes), Err(DecodeError::Malformed { len }));
    }
}

/// A path MTU, a QPN or a PSN that cannot be is none: the message is refused.
#[test]
fn an_attribute_that_cannot_be_is_refused() {
    let modify = |attr| encoded(&Request::ModifyQp { qp: QpHandle(1), attr });
    let cases = [
        (QpAttr { path_mtu: Some(PathMtu::Mtu4096), ..QpAttr::default() }, vec![0xdc, 0x0b]),
        (QpAttr { dest_qpn: Some(Qpn::MULTICAST), ..QpAttr::default() }, vec![0xff, 0xff, 0xff, 8]),
        (
            QpAttr { sq_psn: Some(Psn::new(0xff_ffff)), ..QpAttr::default() },
            vec![0xff, 0xff, 0xff, 8],
        ),
    ];
    for (attr, impossible) in cases {
        let (mut bytes, without) = (modify(attr), modify(QpAttr::default()));
        let at = (0..without.len()).find(|&at| bytes[at] != without[at]).unwrap() + 1;
        let len = bytes.len();
        bytes[at..at + impossible.len()].copy_from_slice(&impossible);
        assert_eq!(decode::<Request>(&bytes), Err(DecodeError::Malformed { len }));
    }
}

/// A length that promises more than there is is not believed.
#[test]
fn a_promised_length_costs_nothing() {
    let mut bytes = encoded(&Reply::Devices(Vec::new()));
    let last = bytes.len() - 1;
    bytes.splice(last.., [0xff, 0xff, 0xff, 0xff, 0x7f]);
    let len = bytes.len();
    assert_eq!(decode::<Reply>(&bytes), Err(DecodeError::Malformed { len }));
}

#[test]
fn a_message_that_does_not_fit_is_refused() {
    let mut buf = [0; MAX_MESSAGE];
    let request = Request::Hello { program: "x".repeat(MAX_MESSAGE) };
    assert_eq!(encode(&request, &mut buf), Err(TooLong));
    assert_eq!(encode(&Request::ListDevices, &mut buf[..4]), Err(TooLong));
    assert_eq!(encode(&Request::ListDevices, &mut buf[..3]), Err(TooLong));
    assert_eq!(encode(&Request::ListDevices, &mut buf[..5]), Ok(5));
}
