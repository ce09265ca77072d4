//! What options mean: `rdma_set_option`.

use super::abi::{PATH_FLAGS, PathRecData, option};
use rustix::io::Errno;
use urxe_shm::control::{CmIdHandle, CmOption, CmRequest};
use zerocopy::FromBytes;

/// The longest value that is looked at. The longest that means anything is a handful of paths.
pub(super) const MAX_LEN: u32 = 64 << 10;

/// How long a path may take to be found that the program has brought along.
const PATH_TIMEOUT_MS: u32 = 2000;

/// What a value of an option of an id asks for. `EINVAL` if the value has not the length of the
/// option, `ENOSYS` if there is no such option.
pub(super) fn request(
    id: CmIdHandle,
    level: u32,
    name: u32,
    value: &[u8],
) -> Result<CmRequest, Errno> {
    let set = |option| Ok(CmRequest::SetOption { id, option });
    match (level, name) {
        (option::LEVEL_ID, option::ID_TOS) => set(CmOption::TypeOfService(byte(value)?)),
        (option::LEVEL_ID, option::ID_REUSEADDR) => set(CmOption::ReuseAddr(flag(value)?)),
        (option::LEVEL_ID, option::ID_AFONLY) => set(CmOption::FamilyOnly(flag(value)?)),
        (option::LEVEL_ID, option::ID_ACK_TIMEOUT) => set(CmOption::AckTimeout(byte(value)?)),
        // Where a subnet manager gives out paths, programs may ask it themselves. Here a path
        // follows from its two addresses, and it is found as if nobody had brought one.
        (option::LEVEL_IB, option::IB_PATH) if has_path(value)? => {
            Ok(CmRequest::ResolveRoute { id, timeout_ms: PATH_TIMEOUT_MS })
        }
        (option::LEVEL_IB, option::IB_PATH) => Err(Errno::INVAL),
        _ => Err(Errno::NOSYS),
    }
}

fn byte(value: &[u8]) -> Result<u8, Errno> {
    <[u8; 1]>::try_from(value).map(|[byte]| byte).map_err(|_| Errno::INVAL)
}

/// An `int` that is zero or not.
fn flag(value: &[u8]) -> Result<bool, Errno> {
    <[u8; 4]>::try_from(value).map(|int| int != [0; 4]).map_err(|_| Errno::INVAL)
}

/// Whether any of the paths is one for everything. `EINVAL` if they are not whole.
fn has_path(value: &[u8]) -> Result<bool, Errno> {
    let paths = value.chunks_exact(size_of::<PathRecData>());
    if !paths.remainder().is_empty() {
        return Err(Errno::INVAL);
    }
    let mut paths = paths.filter_map(|path| PathRecData::read_from_bytes(path).ok());
    Ok(paths.any(|path| path.flags == PATH_FLAGS))
}

#[cfg(test)]
mod tests {
    use super::*;
    use zerocopy::IntoBytes;

    const ID: CmIdHandle = CmIdHandle(7);

    #[test]
    fn options_of_an_id_have_values_of_their_lengths() {
        let asked = |name, value: &[u8]| request(ID, option::LEVEL_ID, name, value);
        let set = |option| Ok(CmRequest::SetOption { id: ID, option });
        assert_eq!(asked(option::ID_TOS, &[0x28]), set(CmOption::TypeOfService(0x28)));
        assert_eq!(asked(option::ID_ACK_TIMEOUT, &[14]), set(CmOption::AckTimeout(14)));
        assert_eq!(asked(option::ID_REUSEADDR, &[0, 0, 0, 1]), set(CmOption::ReuseAddr(true)));
        assert_eq!(asked(option::ID_REUSEADDR, &[0; 4]), set(CmOption::ReuseAddr(false)));
        assert_eq!(asked(option::ID_AFONLY, &[1, 0, 0, 0]), set(CmOption::FamilyOnly(true)));
        for (name, len) in [(0, 0), (0, 4), (1, 1), (1, 0), (2, 8), (3, 4)] {
            assert_eq!(asked(name, &vec![1; len]), Err(Errno::INVAL), "{name} of {len} bytes");
        }
        assert_eq!(asked(4, &[1]), Err(Errno::NOSYS));
        assert_eq!(request(ID, 2, 0, &[1]), Err(Errno::NOSYS));
        assert_eq!(request(ID, option::LEVEL_IB, 0, &[1]), Err(Errno::NOSYS));
    }

    #[test]
    fn a_path_of_the_programs_own_resolves_the_route() {
        let asked = |value: &[u8]| request(ID, option::LEVEL_IB, option::IB_PATH, value);
        let other = PathRecData { flags: 1, ..PathRecData::default() };
        let path = PathRecData { flags: PATH_FLAGS, ..PathRecData::default() };
        let resolves = Ok(CmRequest::ResolveRoute { id: ID, timeout_ms: PATH_TIMEOUT_MS });
        assert_eq!(asked([other, path].as_bytes()), resolves);
        assert_eq!(asked(other.as_bytes()), Err(Errno::INVAL));
        assert_eq!(asked(&path.as_bytes()[1..]), Err(Errno::INVAL));
        assert_eq!(asked(&[]), Err(Errno::INVAL));
    }
}
