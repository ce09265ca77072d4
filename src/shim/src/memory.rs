//! Memory of the program: registering it, and answers written into it.

use crate::refused::Refused;
use crate::session::Session;
use crate::uverbs::Registration;
use rustix::io::Errno;
use urxe_shm::control::{Reply, Request, WhyCopied};
use urxe_shm::memory::own_memory::CopyMethod;
use urxe_shm::memory::process_memory::{Fault, populate};
use urxe_shm::memory::remap::{self, Registered};
use urxe_types::Access;
use zerocopy::{Immutable, IntoBytes};

/// Registers memory, after its pages have been brought in, which finds out whether the program
/// itself may do there what is asked for (`EFAULT`). Where they are to come on demand, that is
/// found out by looking: at what is mapped by now, since the rest may well come later. All else is
/// the daemon's to judge. With the answer comes what is to be kept until the memory is
/// deregistered.
pub(crate) fn register(
    session: &Session,
    wanted: &Registration,
) -> Result<(Reply, Registered), Refused> {
    let &Registration { pd, start, length, iova, access } = wanted;
    let on_demand = access.contains(Access::ON_DEMAND);
    if !on_demand && length > 0 {
        populate(start, length, access.needs_writable()).map_err(|fault| {
            let Fault { addr, len, errno } = fault;
            let reason = format!(
                "addr {addr:#x}, length {len}: not all of it can be reached, expected memory that \
                 is mapped, and writable if access has IBV_ACCESS_LOCAL_WRITE"
            );
            Refused::new(errno, reason)
        })?;
    }
    // Pages that are there already tell what the program may do; of the others the next
    // access will, or nobody, for the daemon may write to all that is private.
    if on_demand
        && access.needs_writable()
        && let Some(at) = remap::read_only_part(start, length)
    {
        let reason = format!(
            "addr {start:#x}, length {length}: the memory at {at:#x} may only be read, expected \
             memory that is writable if access has IBV_ACCESS_LOCAL_WRITE"
        );
        return Err(Refused::new(Errno::FAULT, reason));
    }
    let tell = |registered: Registered| {
        let (backing, memfd) = registered.backing();
        let request = Request::RegMr { pd, addr: start, length, iova, access, backing };
        let (reply, _) = session.call_with_fds(&request, memfd.as_slice())?;
        Ok((reply, registered))
    };
    if on_demand {
        return tell(Registered::copied(start, length, WhyCopied::OnDemand));
    }
    // A slot of the program's own reaches it without.
    let by_default = if session.own_slot().is_some() { 0 } else { remap::LONGEST_BY_DEFAULT };
    let longest = remap::longest_wanted(by_default);
    Registered::told(start, length, longest, tell, |refused: &Refused| {
        refused.errno == Errno::NOMEM
    })
}

/// Writes into the program at an address that it has given, which may be any: `EFAULT` if there is
/// nothing that it may write to.
pub(crate) fn write(address: u64, bytes: &[u8]) -> Result<(), Errno> {
    // It expects an answer there: so its command says.
    CopyMethod::SystemCalls.write(address, bytes).map_err(|fault| fault.errno)
}

/// Reads from the program at an address that it has given: `EFAULT` if it may not do so itself.
pub(crate) fn read(address: u64, bytes: &mut [u8]) -> Result<(), Errno> {
    CopyMethod::SystemCalls.read(address, bytes).map_err(|fault| fault.errno)
}

/// The same as [`write`] with a structure.
pub(crate) fn write_value(address: u64, value: &(impl IntoBytes + Immutable)) -> Result<(), Errno> {
    write(address, value.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_come_only_from_where_the_program_may_read() {
        let place = [1u8, 2, 3, 4];
        let mut value = [0; 3];
        read(place.as_ptr().expose_provenance() as u64 + 1, &mut value).unwrap();
        assert_eq!(value, [2, 3, 4]);
        for address in [0, 1, 4096, u64::MAX, 1 << 62] {
            assert_eq!(read(address, &mut value), Err(Errno::FAULT), "{address:#x}");
            assert_eq!(read(address, &mut []), Ok(()));
        }
    }

    #[test]
    fn answers_go_only_where_the_program_may_write() {
        let mut place = [0u8; 16];
        let address = place.as_mut_ptr().expose_provenance() as u64;
        write(address + 1, &[7; 8]).unwrap();
        assert_eq!(place, [0, 7, 7, 7, 7, 7, 7, 7, 7, 0, 0, 0, 0, 0, 0, 0]);
        let constant = b"this is in read-only memory".as_ptr().expose_provenance() as u64;
        for address in [0, 1, 4096, u64::MAX, u64::MAX - 7, 1 << 62, constant] {
            assert_eq!(write(address, &[7; 8]), Err(Errno::FAULT), "{address:#x}");
            assert_eq!(write(address, &[]), Ok(()));
        }
    }
}
