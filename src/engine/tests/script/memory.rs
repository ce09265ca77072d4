//! What scripts of memory keys and local operations say often.

use super::*;

impl Script {
    /// Registers the program's memory once more, with other rights or for another protection
    /// domain.
    pub fn reg_mr(&mut self, pd: PdId, access: Access) -> u32 {
        let spec = MrSpec { pd, addr: VA, length: 65_536, access, region: RegionId(0) };
        self.device.reg_mr(spec).unwrap().lkey.0
    }

    pub fn alloc_mw(&mut self, mw_type: MwType) -> u32 {
        self.device.alloc_mw(PD, mw_type).unwrap().0
    }

    /// Posts a bind of `len` bytes at `offset` of the usual MR, and lets it be done. Returns the
    /// window's new key.
    pub fn bind(&mut self, mw: u32, offset: u64, len: u64, access: Access) -> u32 {
        let new_rkey = next_key(mw);
        let op = SendOp::BindMw {
            mw: Rkey(mw),
            new_rkey: Rkey(new_rkey),
            mr: Lkey(self.key),
            addr: VA + offset,
            length: len,
            access,
        };
        self.post(BIND_WR_ID, op, &[]);
        self.expect_nothing();
        new_rkey
    }

    /// As [`bind`](Self::bind), which must succeed.
    pub fn bound(&mut self, mw: u32, offset: u64, len: u64, access: Access) -> u32 {
        let rkey = self.bind(mw, offset, len, access);
        let completion = self.expect_send(BIND_WR_ID, WcStatus::Success);
        assert_eq!(completion.opcode, WcOpcode::BindMw);
        rkey
    }

    /// A window of type 2 that is bound to `len` bytes at `offset` of the usual MR.
    pub fn window(&mut self, offset: u64, len: u64, access: Access) -> u32 {
        let mw = self.alloc_mw(MwType::Two);
        self.bound(mw, offset, len, access)
    }

    /// Whether a window is bound.
    pub fn is_bound(&self, rkey: u32) -> bool {
        self.device.query_mw(Rkey(rkey)).unwrap().bound.is_some()
    }
}

/// The number of the work requests that [`Script::bind`] posts.
pub const BIND_WR_ID: u64 = 77;

/// The key with the program's bits counted up by one: `ibv_inc_rkey`.
pub fn next_key(rkey: u32) -> u32 {
    rkey & !0xff | u32::from((rkey as u8).wrapping_add(1))
}

/// `ibv_post_send` of a local invalidation.
pub fn invalidate(key: u32) -> SendOp {
    SendOp::LocalInvalidate { key: Rkey(key) }
}
