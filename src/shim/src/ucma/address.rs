//! Socket addresses, as programs write them and read them.

use super::abi::{SockaddrIn6, SockaddrStorage};
use crate::refused::Refused;
use rustix::io::Errno;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

/// Address families.
const UNSPECIFIED: u16 = libc::AF_UNSPEC as u16;
const IPV4: u16 = libc::AF_INET as u16;
const IPV6: u16 = libc::AF_INET6 as u16;
const IB: u16 = 27;

/// Bytes of an address of each family that is not unspecified.
const IPV4_LEN: usize = size_of::<libc::sockaddr_in>();
const IPV6_LEN: usize = size_of::<SockaddrIn6>();
const IB_LEN: usize = 48;

/// The address of which these bytes are the beginning. `EINVAL` if it has no family that we know.
pub(super) fn decode(bytes: &[u8]) -> Result<SocketAddr, Refused> {
    let mut rest = bytes;
    let mut take = |len: usize| rest.split_off(..len).ok_or(Errno::INVAL);
    let family = u16::from_ne_bytes(array(take(2)?));
    let port = u16::from_be_bytes(array(take(2)?));
    match family {
        IPV4 => Ok(SocketAddrV4::new(Ipv4Addr::from(array::<4>(take(4)?)), port).into()),
        IPV6 => {
            // In the byte order of the network, and nobody looks into it.
            let flowinfo = u32::from_ne_bytes(array(take(4)?));
            let ip = Ipv6Addr::from(array::<16>(take(16)?));
            let scope_id = u32::from_ne_bytes(array(take(4)?));
            Ok(SocketAddrV6::new(ip, port, flowinfo, scope_id).into())
        }
        // librdmacm asks once whether there are such.
        IB => Err(Refused::invalid("address family", "AF_IB", "AF_INET or AF_INET6").into_probe()),
        family => Err(Refused::invalid("address family", family, "AF_INET (2) or AF_INET6 (10)")),
    }
}

/// The same, where the program says how long the address is: `EINVAL` if it is not.
pub(super) fn decode_sized(bytes: &SockaddrStorage, size: u16) -> Result<SocketAddr, Refused> {
    let address = decode(bytes)?;
    if usize::from(size) == length(&address) { Ok(address) } else { Err(Errno::INVAL.into()) }
}

/// The same, where there may be none.
pub(super) fn decode_optional(bytes: &SockaddrIn6) -> Result<Option<SocketAddr>, Refused> {
    match u16::from_ne_bytes([bytes[0], bytes[1]]) {
        UNSPECIFIED => Ok(None),
        _ => decode(bytes).map(Some),
    }
}

fn array<const N: usize>(bytes: &[u8]) -> [u8; N] {
    bytes.try_into().unwrap_or([0; N])
}

/// Bytes of an address.
fn length(address: &SocketAddr) -> usize {
    if address.is_ipv4() { IPV4_LEN } else { IPV6_LEN }
}

/// The bytes of an address; zeroes for none.
pub(super) fn encode(address: Option<SocketAddr>) -> SockaddrIn6 {
    let mut bytes = SockaddrIn6::default();
    let mut rest = &mut bytes[..];
    let mut put = |part: &[u8]| {
        if let Some(place) = rest.split_off_mut(..part.len()) {
            place.copy_from_slice(part);
        }
    };
    match address {
        None => {}
        Some(SocketAddr::V4(address)) => {
            put(&IPV4.to_ne_bytes());
            put(&address.port().to_be_bytes());
            put(&address.ip().octets());
        }
        Some(SocketAddr::V6(address)) => {
            put(&IPV6.to_ne_bytes());
            put(&address.port().to_be_bytes());
            put(&address.flowinfo().to_ne_bytes());
            put(&address.ip().octets());
            put(&address.scope_id().to_ne_bytes());
        }
    }
    bytes
}

/// The same in a larger place, and how long it is.
pub(super) fn encode_sized(address: Option<SocketAddr>) -> (SockaddrStorage, u16) {
    let mut bytes = [0; size_of::<SockaddrStorage>()];
    bytes[..IPV6_LEN].copy_from_slice(&encode(address));
    (bytes, address.as_ref().map_or(0, length) as u16)
}

/// A GID and its P_Key as an address of InfiniBand's own family, and how long it is.
pub(super) fn encode_gid(gid: [u8; 16], pkey: [u8; 2]) -> (SockaddrStorage, u16) {
    let mut bytes = [0; size_of::<SockaddrStorage>()];
    bytes[..2].copy_from_slice(&IB.to_ne_bytes());
    bytes[2..4].copy_from_slice(&pkey);
    bytes[8..24].copy_from_slice(&gid);
    (bytes, IB_LEN as u16)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::refused::NumberOnly;
    use proptest::prelude::*;

    fn parsed(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    #[test]
    fn addresses_are_as_c_has_them() {
        let mut v4 = [0; 28];
        v4[..8].copy_from_slice(&[2, 0, 0x1f, 0x90, 10, 0, 0, 7]);
        assert_eq!(encode(Some(parsed("10.0.0.7:8080"))), v4);
        assert_eq!(decode(&v4), Ok(parsed("10.0.0.7:8080")));
        let mut v6 = [0; 28];
        v6[..4].copy_from_slice(&[10, 0, 0x1f, 0x90]);
        v6[8..10].copy_from_slice(&[0xfe, 0x80]);
        v6[23] = 7;
        v6[24] = 3;
        assert_eq!(encode(Some(parsed("[fe80::7%3]:8080"))), v6);
        assert_eq!(decode(&v6), Ok(parsed("[fe80::7%3]:8080")));
        assert_eq!(encode(None), [0; 28]);
        assert_eq!(decode_optional(&[0; 28]), Ok(None));
        assert_eq!(decode_optional(&v4), Ok(Some(parsed("10.0.0.7:8080"))));
    }

    #[test]
    fn an_address_of_another_family_or_length_is_refused() {
        let mut address = encode(Some(parsed("10.0.0.7:8080")));
        assert_eq!(decode(&address[..7]).number_only(), Err(Errno::INVAL));
        address[0] = IB as u8;
        assert_eq!(decode(&address).number_only(), Err(Errno::INVAL));
        assert_eq!(decode_optional(&address).number_only(), Err(Errno::INVAL));
        assert_eq!(decode(&[0; 28]).number_only(), Err(Errno::INVAL));
        let (v4, len) = encode_sized(Some(parsed("10.0.0.7:8080")));
        assert_eq!(len, 16);
        assert!(decode_sized(&v4, 16).is_ok());
        for len in [0, 15, 17, 28, 128] {
            assert_eq!(decode_sized(&v4, len).number_only(), Err(Errno::INVAL), "{len}");
        }
        assert_eq!(encode_sized(None), ([0; 128], 0));
    }

    proptest! {
        #[test]
        fn encoding_and_decoding_are_inverse(
            v4: bool, ip: [u8; 16], port: u16, flowinfo: u32, scope_id: u32,
        ) {
            let address = match v4 {
                true => SocketAddrV4::new(array::<4>(&ip[..4]).into(), port).into(),
                false => SocketAddrV6::new(ip.into(), port, flowinfo, scope_id).into(),
            };
            prop_assert_eq!(decode(&encode(Some(address))), Ok(address));
            let (bytes, len) = encode_sized(Some(address));
            prop_assert_eq!(decode_sized(&bytes, len), Ok(address));
        }

        #[test]
        fn any_bytes_are_an_address_or_are_refused(bytes: Vec<u8>) {
            let _ = decode(&bytes);
        }
    }
}
