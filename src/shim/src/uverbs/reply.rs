//! What a command is answered: the response and the driver's part of it, as bytes in the program.

use super::abi::{
    CreateCqResp, CreateQpResp, CreateSrqResp, ExCreateCqResp, ExCreateQpResp, ExModifyQpResp,
    ExQueryDeviceResp, MmInfo, RxeCreateQpResp, RxeCreateSrqResp,
};
use super::device;
use super::frame::Frame;
use urxe_shm::control::{CqHandle, DeviceAttr, QpCreated, RingLocation, SrqAttr, SrqHandle};
use zerocopy::{Immutable, IntoBytes};

/// The two parts of an answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Answer {
    core: Vec<u8>,
    driver: Vec<u8>,
}

impl Answer {
    /// Nothing but success.
    pub(crate) fn none() -> Answer {
        Answer::default()
    }

    /// A response without a driver's part.
    pub(crate) fn core(response: &(impl IntoBytes + Immutable)) -> Answer {
        Answer { core: response.as_bytes().to_vec(), driver: Vec::new() }
    }

    /// The same with one.
    pub(crate) fn with_driver(self, part: &(impl IntoBytes + Immutable)) -> Answer {
        Answer { driver: part.as_bytes().to_vec(), ..self }
    }

    /// To `QUERY_DEVICE`.
    pub(crate) fn device(frame: &Frame<'_>, attr: &DeviceAttr) -> Answer {
        if !frame.extended {
            return Answer::core(&device::attributes(attr));
        }
        let response_length = length::<ExQueryDeviceResp>(frame);
        Answer::core(&ExQueryDeviceResp { response_length, ..device::extended_attributes(attr) })
    }

    /// To `CREATE_CQ`.
    pub(crate) fn cq(frame: &Frame<'_>, cq: CqHandle, cqe: u32, ring: RingLocation) -> Answer {
        let base = CreateCqResp { cq_handle: cq.0, cqe };
        let response_length = length::<ExCreateCqResp>(frame);
        let answer = match frame.extended {
            false => Answer::core(&base),
            true => Answer::core(&ExCreateCqResp { base, comp_mask: 0, response_length }),
        };
        answer.with_driver(&mm_info(ring))
    }

    /// To `CREATE_QP`. The program knows the QP by the slot of its doorbell.
    pub(crate) fn qp(frame: &Frame<'_>, qp: &QpCreated) -> Answer {
        let base = CreateQpResp {
            qp_handle: qp.doorbell_slot,
            qpn: qp.qpn.get(),
            max_send_wr: qp.caps.max_send_wr,
            max_recv_wr: qp.caps.max_recv_wr,
            max_send_sge: qp.caps.max_send_sge,
            max_recv_sge: qp.caps.max_recv_sge,
            max_inline_data: qp.caps.max_inline_data,
            reserved: 0,
        };
        let response_length = length::<ExCreateQpResp>(frame);
        let answer = match frame.extended {
            false => Answer::core(&base),
            true => Answer::core(&ExCreateQpResp { base, comp_mask: 0, response_length }),
        };
        let rq_mi = qp.recv_ring.map(mm_info).unwrap_or_default();
        answer.with_driver(&RxeCreateQpResp { rq_mi, sq_mi: mm_info(qp.send_ring) })
    }

    /// To `MODIFY_QP`, of which only the extended form has a response.
    pub(crate) fn qp_modified(frame: &Frame<'_>) -> Answer {
        let response_length = length::<ExModifyQpResp>(frame);
        match frame.extended {
            false => Answer::none(),
            true => Answer::core(&ExModifyQpResp { comp_mask: 0, response_length }),
        }
    }

    /// To `CREATE_SRQ`.
    pub(crate) fn srq(srq: SrqHandle, srqn: u32, attr: SrqAttr, ring: RingLocation) -> Answer {
        let SrqAttr { max_wr, max_sge, .. } = attr;
        Answer::core(&CreateSrqResp { srq_handle: srq.0, max_wr, max_sge, srqn })
            .with_driver(&RxeCreateSrqResp { mi: mm_info(ring), srq_num: srqn, reserved: 0 })
    }

    /// The bytes for the program: each part in its place, cut where an older library left less
    /// room, and zeroes where a newer left more.
    pub(crate) fn lay_out(&self, frame: &Frame<'_>) -> Vec<u8> {
        let mut bytes = vec![0; frame.core_out + frame.driver_out];
        let (core, driver) = bytes.split_at_mut(frame.core_out);
        for (place, part) in [(core, &self.core), (driver, &self.driver)] {
            let common = place.len().min(part.len());
            place[..common].copy_from_slice(&part[..common]);
        }
        bytes
    }
}

/// Where a ring lies, for `mmap` of the uverbs descriptor.
pub(crate) fn mm_info(ring: RingLocation) -> MmInfo {
    MmInfo { offset: ring.offset, size: ring.size, pad: 0 }
}

/// The bytes of an extended response that the program gets.
fn length<T>(frame: &Frame<'_>) -> u32 {
    size_of::<T>().min(frame.core_out) as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use urxe_shm::control::{QpCaps, QpHandle};
    use urxe_types::Qpn;

    fn frame(extended: bool, core_out: usize, driver_out: usize) -> Frame<'static> {
        Frame { number: 0, extended, core: &[], driver: &[], response: 0, core_out, driver_out }
    }

    const RING: RingLocation = RingLocation { offset: 0x1_0000_2000, size: 0x3000 };

    #[test]
    fn the_drivers_part_follows_end_to_end() {
        let frame = frame(false, 8, 16);
        let bytes = Answer::cq(&frame, CqHandle(5), 127, RING).lay_out(&frame);
        let expected: [u32; 6] = [5, 127, 0x2000, 1, 0x3000, 0];
        assert_eq!(bytes, expected.as_bytes());
    }

    #[test]
    fn an_extended_response_says_how_long_it_is() {
        let frame = frame(true, 16, 16);
        let bytes = Answer::cq(&frame, CqHandle(5), 127, RING).lay_out(&frame);
        let expected: [u32; 8] = [5, 127, 0, 16, 0x2000, 1, 0x3000, 0];
        assert_eq!(bytes, expected.as_bytes());
    }

    #[test]
    fn a_program_gets_what_it_has_room_for() {
        let short = frame(true, 184, 0);
        let device = Answer::device(&short, &DeviceAttr::default()).lay_out(&short);
        assert_eq!(device.len(), 184);
        assert_eq!(device[180..184], 184u32.to_ne_bytes());
        let long = frame(true, 312, 8);
        let device = Answer::device(&long, &DeviceAttr::default()).lay_out(&long);
        assert_eq!((device.len(), &device[180..184]), (320, &304u32.to_ne_bytes()[..]));
        assert_eq!(device[304..], [0; 16]);
    }

    #[test]
    fn a_qp_is_known_by_its_doorbell() {
        let qp = QpCreated {
            qp: QpHandle(77),
            qpn: Qpn::new(18),
            caps: QpCaps { max_send_wr: 15, ..QpCaps::default() },
            send_ring: RING,
            recv_ring: None,
            doorbell_slot: 3,
        };
        let frame = frame(false, 32, 32);
        let bytes = Answer::qp(&frame, &qp).lay_out(&frame);
        let mut expected = [0u32; 16];
        expected[..3].copy_from_slice(&[3, 18, 15]);
        expected[12..15].copy_from_slice(&[0x2000, 1, 0x3000]);
        assert_eq!(bytes, expected.as_bytes());
    }
}
