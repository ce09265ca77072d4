//! Where metrics are to be had.

use crate::config::ConfigError;
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;

/// Where metrics are to be had, as `--metrics` says it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MetricsAddress {
    /// At an address of this machine and a TCP port; with port 0, one that is free.
    Tcp(SocketAddr),
    /// At a Unix socket.
    Unix(PathBuf),
}

impl FromStr for MetricsAddress {
    type Err = ConfigError;

    /// What has a slash is a path.
    fn from_str(text: &str) -> Result<Self, ConfigError> {
        match text.parse() {
            Ok(address) => Ok(MetricsAddress::Tcp(address)),
            Err(_) if text.contains('/') => Ok(MetricsAddress::Unix(text.into())),
            Err(_) => Err(ConfigError::Metrics(text.to_owned())),
        }
    }
}

impl fmt::Display for MetricsAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MetricsAddress::Tcp(address) => address.fmt(f),
            MetricsAddress::Unix(path) => path.display().fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_one_with_a_port_or_a_path() {
        for (text, address) in [("127.0.0.1:9100", true), ("[::1]:0", true), ("./a:1", false)] {
            let parsed: MetricsAddress = text.parse().unwrap();
            assert_eq!(matches!(parsed, MetricsAddress::Tcp(_)), address, "{text}");
            assert_eq!(parsed.to_string(), text);
        }
        for wrong in ["", "127.0.0.1", "9100", "localhost:9100", "urxe.sock", "[::1]:99999"] {
            let error = wrong.parse::<MetricsAddress>().unwrap_err().to_string();
            assert!(error.contains(&format!("metrics {wrong:?}: expected")), "{error}");
        }
    }
}
