//! `ibv_advise_mr`: memory that is registered on demand is brought in beforehand. libibverbs has no
//! other way for it than `ioctl`.

use super::abi::{IoctlAttr, IoctlHeader, Sge, control};
use super::context::Context;
use crate::memory;
use crate::reasons;
use crate::refused::Refused;
use rustix::io::Errno;
use urxe_shm::control::PdHandle;
use urxe_shm::memory::process_memory::populate;
use urxe_types::Access;
use zerocopy::{FromZeros, IntoBytes};

/// What is to be done with which memory.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Advice {
    pd: PdHandle,
    kind: u64,
    /// It is waited for.
    is_flushed: bool,
    pieces: Vec<Sge>,
}

impl Context {
    /// `ioctl(2)` with a command at this address of the program. `false` if it is none that is done
    /// here: then it is as with a kernel that knows nothing of it, and libraries take another way.
    pub(crate) fn control(&self, address: u64) -> Result<bool, Errno> {
        let mut header = IoctlHeader::default();
        if memory::read(address, header.as_mut_bytes()).is_err()
            || (header.object_id, header.method_id) != (control::OBJECT_MR, control::ADVISE_MR)
        {
            return Ok(false);
        }
        let advised = self
            .session()
            .connection()
            .check_process()
            .map_err(Refused::from)
            .and_then(|()| self.advise(&Advice::read(address, &header)?));
        advised.map_err(|refused| reasons::refused("ibv_advise_mr", &refused))?;
        Ok(true)
    }

    fn advise(&self, advice: &Advice) -> Result<(), Refused> {
        let writes = advice.kind == control::PREFETCH_WRITE;
        for piece in &advice.pieces {
            let &Sge { addr, length, lkey } = piece;
            let Some(mr) = self.objects().lock().mr_of(advice.pd, lkey) else {
                let expected = "the lkey of memory that is registered with this protection domain";
                return Err(Refused::invalid("lkey", format_args!("{lkey:#x}"), expected));
            };
            if writes && !mr.access.needs_writable() {
                let reason = format!(
                    "advice IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE: the memory of lkey {lkey:#x} was \
                     registered for reading, expected access with IBV_ACCESS_LOCAL_WRITE"
                );
                return Err(Refused::new(Errno::PERM, reason));
            }
            let is_zero_based = mr.access.contains(Access::ZERO_BASED);
            let base = if is_zero_based { 0 } else { mr.iova };
            let offset = addr.checked_sub(base);
            let Some(start) = offset.filter(|offset| {
                offset.checked_add(length.into()).is_some_and(|end| end <= mr.length)
            }) else {
                let all = mr.length;
                let reason = format!(
                    "addr {addr:#x}, length {length}: expected memory within that of lkey \
                     {lkey:#x}, {all} bytes at {base:#x}"
                );
                return Err(Refused::new(Errno::FAULT, reason));
            };
            if length == 0 || advice.kind == control::PREFETCH_NO_FAULT {
                continue;
            }
            let brought_in = populate(mr.start + start, length.into(), writes);
            if advice.is_flushed
                && let Err(fault) = brought_in
            {
                return Err(Refused::new(fault.errno, fault.to_string()));
            }
        }
        Ok(())
    }
}

impl Advice {
    /// The attributes of the command behind its header.
    fn read(address: u64, header: &IoctlHeader) -> Result<Advice, Refused> {
        /// More than there are.
        const MOST: usize = 16;
        let count = usize::from(header.num_attrs);
        let len = size_of::<IoctlHeader>() + count * size_of::<IoctlAttr>();
        if usize::from(header.length) != len {
            let expected = "24 bytes, and 16 for each attribute";
            return Err(Refused::invalid("length", header.length, expected));
        }
        if count > MOST {
            return Err(Refused::invalid("num_attrs", count, "at most 16"));
        }
        let mut attrs = [IoctlAttr::default(); MOST];
        let place = address.wrapping_add(size_of::<IoctlHeader>() as u64);
        memory::read(place, attrs[..count].as_mut_bytes())?;
        let attrs = &attrs[..count];
        let is_unknown = |attr: &&IoctlAttr| {
            attr.flags & control::MANDATORY != 0 && attr.attr_id > control::SGE_LIST
        };
        if let Some(unknown) = attrs.iter().find(is_unknown) {
            let reason = format!("attr_id {}: expected one that ADVISE_MR has", unknown.attr_id);
            return Err(Refused::new(Errno::PROTONOSUPPORT, reason));
        }
        let attr = |id| {
            let found = attrs.iter().find(|attr| attr.attr_id == id);
            found.ok_or_else(|| Refused::invalid("attr_id", id, "to be among the attributes"))
        };
        let pd = PdHandle(attr(control::PD_HANDLE)?.data as u32);
        let kind = attr(control::ADVICE)?.data;
        if kind > control::PREFETCH_NO_FAULT {
            let reason = format!("advice {kind}: expected 0 to {}", control::PREFETCH_NO_FAULT);
            return Err(Refused::new(Errno::OPNOTSUPP, reason));
        }
        // What is shorter than the value lies at its beginning.
        let flags = attr(control::FLAGS)?.data.to_ne_bytes();
        let [a, b, c, d, ..] = flags;
        let flags = u32::from_ne_bytes([a, b, c, d]);
        if flags & !control::FLUSH != 0 {
            let expected = "IBV_ADVISE_MR_FLAG_FLUSH or 0";
            return Err(Refused::invalid("flags", format_args!("{flags:#x}"), expected));
        }
        let list = attr(control::SGE_LIST)?;
        let count = usize::from(list.len) / size_of::<Sge>();
        if count == 0 || !usize::from(list.len).is_multiple_of(size_of::<Sge>()) {
            let value = format!("of {} bytes", list.len);
            return Err(Refused::invalid("sg_list", value, "1 or more, of 16 bytes each"));
        }
        let mut pieces = vec![Sge::new_zeroed(); count];
        memory::read(list.data, pieces.as_mut_bytes())?;
        Ok(Advice { pd, kind, is_flushed: flags & control::FLUSH != 0, pieces })
    }
}
