//! Memory windows.

use crate::pd::PdInner;
use crate::session::unexpected;
use crate::{Access, Error, Lkey, MwType, Pd, RemoteBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use urxe_shm::control::{MwHandle, Reply, Request};

/// A memory window: `ibv_mw`. A key of its own for a part of a memory region, which is given and
/// taken back by work requests, without a call to the device.
///
/// Made by [`Pd::alloc_mw`]. The memory region must allow it
/// ([`Access::MW_BIND`]), and cannot be deregistered while a window is bound to it. A clone is
/// another name for the same window; it is freed when the last one is dropped.
///
/// ```no_run
/// # fn main() -> Result<(), urxe_verbs::Error> {
/// # let context = urxe_verbs::Context::open(&Default::default())?;
/// # let pd = context.alloc_pd()?;
/// # let cq = context.create_cq(16, None)?;
/// # let qp = pd.create_qp(&urxe_verbs::QpInit::new(&cq))?;
/// use urxe_verbs::{Access, MwType, SendWr};
///
/// let mr = pd.alloc_mr(4096, Access::LOCAL_WRITE | Access::MW_BIND)?;
/// let part = mr.bind_info(1024..2048, Access::REMOTE_WRITE)?;
///
/// // Type 1 opens to all queue pairs of the protection domain, until it is bound anew.
/// let one = pd.alloc_mw(MwType::One)?;
/// let for_all_peers = qp.bind_mw(1, &one, part)?;
///
/// // Type 2 opens to the peer of this queue pair, until one of both invalidates the key.
/// let two = pd.alloc_mw(MwType::Two)?;
/// let rkey = two.next_rkey();
/// let for_this_peer = part.remote_buf(rkey);
/// qp.post_send(&[SendWr::bind_mw(2, &two, rkey, part)])?;
/// qp.post_send(&[SendWr::local_inv(3, rkey)])?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Mw(pub(crate) Arc<MwInner>);

#[derive(Debug)]
pub(crate) struct MwInner {
    pub(crate) pd: Arc<PdInner>,
    handle: MwHandle,
    mw_type: MwType,
    /// The key that the last bind posted has given it.
    rkey: AtomicU32,
}

impl Mw {
    pub(crate) fn alloc(pd: &Arc<PdInner>, mw_type: MwType) -> Result<Mw, Error> {
        const CALL: &str = "alloc_mw";
        let request = Request::AllocMw { pd: pd.handle, mw_type };
        let Reply::Mw { mw: handle, rkey } = pd.context.session.call(CALL, &request)? else {
            return Err(unexpected(CALL));
        };
        let rkey = AtomicU32::new(rkey.0);
        Ok(Mw(Arc::new(MwInner { pd: pd.clone(), handle, mw_type, rkey })))
    }

    /// The key that the last bind that was posted has given it, or gives it when its turn comes.
    pub fn rkey(&self) -> u32 {
        self.0.rkey.load(Ordering::Relaxed)
    }

    /// The key after that: the last 8 bits, which belong to the program, count up.
    /// `ibv_inc_rkey`.
    pub fn next_rkey(&self) -> u32 {
        let rkey = self.rkey();
        // MW-037
        rkey & !0xff | rkey.wrapping_add(1) & 0xff
    }

    /// Its type.
    pub fn mw_type(&self) -> MwType {
        self.0.mw_type
    }

    /// The protection domain that it is in.
    pub fn pd(&self) -> Pd {
        Pd(self.0.pd.clone())
    }

    pub(crate) fn set_rkey(&self, rkey: u32) {
        self.0.rkey.store(rkey, Ordering::Relaxed);
    }
}

impl Drop for MwInner {
    fn drop(&mut self) {
        self.pd.context.session.destroy("dealloc_mw", &Request::DeallocMw { mw: self.handle });
    }
}

/// What a memory window is to open: `ibv_mw_bind_info`. Made by
/// [`Mr::bind_info`](crate::Mr::bind_info).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BindInfo {
    /// lkey of the memory region.
    pub(crate) mr: Lkey,
    pub(crate) addr: u64,
    pub(crate) length: u64,
    pub(crate) access: Access,
}

impl BindInfo {
    /// Nothing: takes back what a window of type 1 has opened.
    pub const NOTHING: BindInfo =
        BindInfo { mr: Lkey(0), addr: 0, length: 0, access: Access::empty() };

    /// What a peer must name to come through the window once it has the key `rkey`. With
    /// [`Access::ZERO_BASED`] the addresses begin at 0.
    pub fn remote_buf(&self, rkey: u32) -> RemoteBuf {
        let addr = if self.access.contains(Access::ZERO_BASED) { 0 } else { self.addr };
        RemoteBuf { addr, rkey, len: self.length }
    }
}
