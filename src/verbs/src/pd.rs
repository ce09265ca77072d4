//! Protection domains.

use crate::context::ContextInner;
use crate::session::unexpected;
use crate::{
    Access, AddressVector, Ah, Context, Error, Grh, Mr, Mw, MwType, Qp, QpInit, Srq, SrqInit, Wc,
};
use std::sync::Arc;
use urxe_shm::control::{PdHandle, Reply, Request};

/// A protection domain: `ibv_pd`. Memory regions, windows, address
/// handles and queues work together only inside one.
///
/// Made by [`Context::alloc_pd`]. A clone is another name for the same protection domain; it is
/// freed when the last one, and everything made in it, is dropped.
#[derive(Clone, Debug)]
pub struct Pd(pub(crate) Arc<PdInner>);

#[derive(Debug)]
pub(crate) struct PdInner {
    pub(crate) context: Arc<ContextInner>,
    pub(crate) handle: PdHandle,
}

impl Pd {
    pub(crate) fn alloc(context: &Arc<ContextInner>) -> Result<Pd, Error> {
        let request = Request::AllocPd { context: context.handle };
        let Reply::Pd(handle) = context.session.call("alloc_pd", &request)? else {
            return Err(unexpected("alloc_pd"));
        };
        Ok(Pd(Arc::new(PdInner { context: context.clone(), handle })))
    }

    /// Makes `length` bytes of zeroed memory and registers them.
    ///
    /// The memory is shared with the daemon, which reaches it by plain loads and stores: this is
    /// the fast way, and the one that needs no `unsafe`. It lives as long as the [`Mr`].
    ///
    /// # Errors
    /// [`Error::Refused`] if `length` is larger than the device's `max_mr_size`, or if `access`
    /// contradicts itself (remote write or atomic without local write).
    pub fn alloc_mr(&self, length: usize, access: Access) -> Result<Mr, Error> {
        Mr::alloc(&self.0, length, access)
    }

    /// Registers memory that the program has from elsewhere: `ibv_reg_mr`.
    ///
    /// The daemon reaches it through a descriptor of the program's memory, by a system call for
    /// each piece: slower than [`alloc_mr`](Self::alloc_mr), and atomics are atomic only towards
    /// other atomics of peers. The pages are brought in first, as pinning would do.
    ///
    /// # Errors
    /// [`Error::Memory`] if the range is not mapped, or not writable though `access` asks for it;
    /// [`Error::InvalidArgument`] if `addr` is null; [`Error::Refused`] for what
    /// [`alloc_mr`](Self::alloc_mr) says, or if the program could not open its own memory because
    /// it must not be dumped.
    ///
    /// # Safety
    /// Until the last clone of the [`Mr`] is dropped, and no [memory window](Mw) is bound to it,
    /// - the `length` bytes at `addr` stay allocated, initialised and readable, and writable if
    ///   `access` contains [`Access::LOCAL_WRITE`];
    /// - the program treats them as memory that others read and, with
    ///   [`Access::LOCAL_WRITE`], write: no `&mut` to them is used while work requests of this
    ///   program may read them, no reference at all while work requests or peers may write
    ///   them, and none while a method of the [`Mr`] accesses them.
    pub unsafe fn reg_mr(&self, addr: *mut u8, length: usize, access: Access) -> Result<Mr, Error> {
        // SAFETY: the caller promises what `register` asks for.
        unsafe { Mr::register(&self.0, addr, length, access) }
    }

    /// Makes a queue pair, in the RESET state: `ibv_create_qp`.
    ///
    /// # Errors
    /// [`Error::ForeignObject`] if a completion queue is of another context; [`Error::Refused`]
    /// if a capacity is above the device's limit.
    pub fn create_qp(&self, init: &QpInit<'_>) -> Result<Qp, Error> {
        Qp::create(&self.0, init)
    }

    /// Makes a shared receive queue: `ibv_create_srq`. [`Srq`] shows how it is used.
    ///
    /// # Errors
    /// [`Error::Refused`] if a capacity is 0 or above the device's limit, or the limit above the
    /// capacity.
    pub fn create_srq(&self, init: &SrqInit) -> Result<Srq, Error> {
        Srq::create(&self.0, init)
    }

    /// Makes an address handle, for datagrams: `ibv_create_ah`.
    ///
    /// # Errors
    /// [`Error::Refused`] if the path makes no sense: a destination of another family than our GID,
    /// or a GID that is not there.
    pub fn create_ah(&self, av: &AddressVector) -> Result<Ah, Error> {
        Ah::create(&self.0, av)
    }

    /// Makes an address handle to who sent a datagram: `ibv_create_ah_from_wc`. `grh` are the 40
    /// bytes in front of its data; the queue pair to send to is [`Wc::src_qpn`].
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the completion is not of a datagram, or the bytes are not what
    /// stands before one; else as [`create_ah`](Self::create_ah).
    pub fn create_ah_from_wc(&self, wc: &Wc, grh: &[u8; Grh::LEN]) -> Result<Ah, Error> {
        Ah::from_wc(&self.0, wc, grh)
    }

    /// Makes a memory window, bound to nothing: `ibv_alloc_mw`. [`Mw`] shows how it is used.
    ///
    /// # Errors
    /// [`Error::Refused`] if there are too many.
    pub fn alloc_mw(&self, mw_type: MwType) -> Result<Mw, Error> {
        Mw::alloc(&self.0, mw_type)
    }

    /// The context that it was made in.
    pub fn context(&self) -> Context {
        Context(self.0.context.clone())
    }
}

impl Drop for PdInner {
    fn drop(&mut self) {
        self.context.session.destroy("dealloc_pd", &Request::DeallocPd { pd: self.handle });
    }
}
