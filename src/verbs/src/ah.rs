//! Address handles.

use crate::pd::PdInner;
use crate::session::unexpected;
use crate::{AddressVector, Error, Grh, Pd, Wc};
use std::sync::Arc;
use urxe_shm::control::{AhHandle, Reply, Request};
use urxe_types::AhId;

/// An address handle: `ibv_ah`. A path that datagrams can be sent on.
///
/// Made by [`Pd::create_ah`], or of a message that has arrived by [`Pd::create_ah_from_wc`]. Its
/// destination may be a multicast group. A clone is another name for the same address handle; it is
/// destroyed when the last one is dropped. That must not be before the sends that name it have
/// completed.
#[derive(Clone, Debug)]
pub struct Ah(pub(crate) Arc<AhInner>);

#[derive(Debug)]
pub(crate) struct AhInner {
    pub(crate) pd: Arc<PdInner>,
    handle: AhHandle,
    /// What work requests name it by.
    pub(crate) number: AhId,
    pub(crate) is_multicast: bool,
    av: AddressVector,
}

impl Ah {
    pub(crate) fn create(pd: &Arc<PdInner>, av: &AddressVector) -> Result<Ah, Error> {
        const CALL: &str = "create_ah";
        let request = Request::CreateAh { pd: pd.handle, av: *av };
        let Reply::Ah { ah: handle, ah_num: number } = pd.context.session.call(CALL, &request)?
        else {
            return Err(unexpected(CALL));
        };
        let is_multicast = av.dgid.is_multicast();
        Ok(Ah(Arc::new(AhInner { pd: pd.clone(), handle, number, is_multicast, av: *av })))
    }

    pub(crate) fn from_wc(pd: &Arc<PdInner>, wc: &Wc, grh: &[u8; Grh::LEN]) -> Result<Ah, Error> {
        if !wc.grh {
            let expected = "of a datagram: with Wc::grh";
            return Err(Error::invalid("completion", format!("of QP {:#08x}", wc.qpn), expected));
        }
        let grh = Grh::parse(grh)?;
        // CLIENT-013
        let sgid_index = Pd(pd.clone()).context().gid_index_for(&grh)?;
        let traffic_class = grh.traffic_class;
        Ah::create(
            pd,
            &AddressVector { sgid_index, traffic_class, ..AddressVector::to(grh.source) },
        )
    }

    /// The path.
    pub fn address_vector(&self) -> AddressVector {
        self.0.av
    }

    /// The protection domain that it is in.
    pub fn pd(&self) -> Pd {
        Pd(self.0.pd.clone())
    }
}

impl Drop for AhInner {
    fn drop(&mut self) {
        self.pd.context.session.destroy("destroy_ah", &Request::DestroyAh { ah: self.handle });
    }
}
