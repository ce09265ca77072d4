//! Which commands there are, and how long their parts are.

use super::abi::{self, EXTENDED, number};
use rustix::io::Errno;
use std::mem::offset_of;
use zerocopy::FromBytes;

/// The shape of a command, whichever way it comes: by `write`, as here, or by `ioctl`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Method {
    /// Bytes that the request has at least.
    pub(crate) request: usize,
    /// Bytes that there must be room for in the response; `None` if it has none.
    pub(crate) response: Option<usize>,
    /// Whether a driver's part follows the request, and the response if there is one.
    pub(crate) has_driver_part: bool,
}

impl Method {
    /// The method of a command as it stands in the header, flags and all. `EINVAL` for flags that
    /// do not exist, `EOPNOTSUPP` for commands that the device does not have.
    pub(crate) fn find(command: u32) -> Result<Method, Errno> {
        const NUMBER_MASK: u32 = 0xff;
        if command & !(EXTENDED | NUMBER_MASK) != 0 {
            return Err(Errno::INVAL);
        }
        let number = command & NUMBER_MASK;
        let method = if command & EXTENDED == 0 { legacy(number) } else { extended(number) };
        method.ok_or(Errno::OPNOTSUPP)
    }
}

/// The verb that a program has called, if these bytes are what its library has made of that.
pub(crate) fn verb(bytes: &[u8]) -> &'static str {
    let Ok((header, _)) = abi::CommandHeader::read_from_prefix(bytes) else {
        return "a command without a header";
    };
    match (header.command & 0xff, header.command & EXTENDED != 0) {
        (number::GET_CONTEXT, _) => "ibv_open_device",
        (number::QUERY_DEVICE, _) => "ibv_query_device",
        (number::QUERY_PORT, _) => "ibv_query_port",
        (number::ALLOC_PD, _) => "ibv_alloc_pd",
        (number::DEALLOC_PD, _) => "ibv_dealloc_pd",
        (number::CREATE_AH, _) => "ibv_create_ah",
        (number::DESTROY_AH, _) => "ibv_destroy_ah",
        (number::REG_MR, _) => "ibv_reg_mr",
        (number::DEREG_MR, _) => "ibv_dereg_mr",
        (number::ALLOC_MW, _) => "ibv_alloc_mw",
        (number::DEALLOC_MW, _) => "ibv_dealloc_mw",
        (number::CREATE_COMP_CHANNEL, _) => "ibv_create_comp_channel",
        (number::CREATE_CQ, false) => "ibv_create_cq",
        (number::CREATE_CQ, true) => "ibv_create_cq_ex",
        (number::RESIZE_CQ, _) => "ibv_resize_cq",
        (number::DESTROY_CQ, _) => "ibv_destroy_cq",
        (number::REQ_NOTIFY_CQ, _) => "ibv_req_notify_cq",
        (number::CREATE_QP, false) => "ibv_create_qp",
        (number::CREATE_QP, true) => "ibv_create_qp_ex",
        (number::QUERY_QP, _) => "ibv_query_qp",
        (number::MODIFY_QP, _) => "ibv_modify_qp",
        (number::DESTROY_QP, _) => "ibv_destroy_qp",
        (number::POST_SEND, _) => "ibv_post_send",
        (number::ATTACH_MCAST, _) => "ibv_attach_mcast",
        (number::DETACH_MCAST, _) => "ibv_detach_mcast",
        (number::CREATE_SRQ, _) => "ibv_create_srq",
        (number::MODIFY_SRQ, _) => "ibv_modify_srq",
        (number::QUERY_SRQ, _) => "ibv_query_srq",
        (number::DESTROY_SRQ, _) => "ibv_destroy_srq",
        (number::OPEN_XRCD, _) => "ibv_open_xrcd",
        (number::CREATE_XSRQ, _) => "ibv_create_srq_ex",
        (number::CREATE_FLOW, true) => "ibv_create_flow",
        (number::CREATE_WQ, true) => "ibv_create_wq",
        _ => "a verb that this device does not have",
    }
}

fn legacy(number: u32) -> Option<Method> {
    Some(match number {
        number::GET_CONTEXT => driver::<abi::GetContext, abi::GetContextResp>(),
        number::QUERY_DEVICE => core::<abi::QueryDevice, abi::QueryDeviceResp>(),
        number::QUERY_PORT => core::<abi::QueryPort, abi::QueryPortResp>(),
        number::ALLOC_PD => driver::<abi::AllocPd, abi::AllocPdResp>(),
        number::DEALLOC_PD => silent::<abi::DeallocPd>(),
        number::CREATE_AH => driver::<abi::CreateAh, abi::CreateAhResp>(),
        number::DESTROY_AH => silent::<abi::DestroyAh>(),
        number::REG_MR => driver::<abi::RegMr, abi::RegMrResp>(),
        number::DEREG_MR => silent::<abi::DeregMr>(),
        number::ALLOC_MW => driver::<abi::AllocMw, abi::AllocMwResp>(),
        number::DEALLOC_MW => silent::<abi::DeallocMw>(),
        number::CREATE_COMP_CHANNEL => core::<abi::CreateCompChannel, abi::CreateCompChannelResp>(),
        number::CREATE_CQ => driver::<abi::CreateCq, abi::CreateCqResp>(),
        number::RESIZE_CQ => driver::<abi::ResizeCq, abi::ResizeCqResp>(),
        number::DESTROY_CQ => core::<abi::DestroyCq, abi::DestroyCqResp>(),
        number::REQ_NOTIFY_CQ => silent::<abi::ReqNotifyCq>(),
        number::CREATE_QP => driver::<abi::CreateQp, abi::CreateQpResp>(),
        number::QUERY_QP => core::<abi::QueryQp, abi::QueryQpResp>(),
        number::MODIFY_QP => silent::<abi::ModifyQp>(),
        number::DESTROY_QP => core::<abi::DestroyQp, abi::DestroyQpResp>(),
        number::POST_SEND => core::<abi::PostSend, abi::PostSendResp>(),
        number::ATTACH_MCAST | number::DETACH_MCAST => silent::<abi::AttachMcast>(),
        number::CREATE_SRQ => driver::<abi::CreateSrq, abi::CreateSrqResp>(),
        number::MODIFY_SRQ => Method { has_driver_part: true, ..silent::<abi::ModifySrq>() },
        number::QUERY_SRQ => core::<abi::QuerySrq, abi::QuerySrqResp>(),
        number::DESTROY_SRQ => core::<abi::DestroySrq, abi::DestroySrqResp>(),
        _ => return None,
    })
}

/// Extended commands have grown: what came later need not be there.
fn extended(number: u32) -> Option<Method> {
    let (request, response) = match number {
        number::QUERY_DEVICE => {
            (size_of::<abi::ExQueryDevice>(), offset_of!(abi::ExQueryDeviceResp, odp_caps))
        }
        number::CREATE_CQ => (size_of::<abi::ExCreateCq>(), size_of::<abi::ExCreateCqResp>()),
        number::CREATE_QP => {
            (offset_of!(abi::ExCreateQp, create_flags), size_of::<abi::ExCreateQpResp>())
        }
        number::MODIFY_QP => (size_of::<abi::ModifyQp>(), size_of::<abi::ExModifyQpResp>()),
        _ => return None,
    };
    Some(Method { request, response: Some(response), has_driver_part: true })
}

/// With a response.
fn core<Request, Response>() -> Method {
    let response = Some(size_of::<Response>());
    Method { request: size_of::<Request>(), response, has_driver_part: false }
}

/// With a response, and a driver's part.
fn driver<Request, Response>() -> Method {
    Method { has_driver_part: true, ..core::<Request, Response>() }
}

/// Without a response.
fn silent<Request>() -> Method {
    Method { request: size_of::<Request>(), response: None, has_driver_part: false }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_object_and_a_malformed_request_have_different_errors() {
        assert_eq!(Method::find(number::ALLOC_PD).map(|method| method.response), Ok(Some(4)));
        // XRC domains, flows.
        assert_eq!(Method::find(37), Err(Errno::OPNOTSUPP));
        assert_eq!(Method::find(EXTENDED | 50), Err(Errno::OPNOTSUPP));
        assert_eq!(Method::find(EXTENDED | number::ALLOC_PD), Err(Errno::OPNOTSUPP));
        assert_eq!(Method::find(0x100 | number::ALLOC_PD), Err(Errno::INVAL));
    }
}
