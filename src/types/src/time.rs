//! Times as codes of five bits: those of ACK timeouts and connection management, and those of RNR
//! NAKs.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::time::Duration;

/// A time of 4.096 us * 2^code, from 4 us to two and a half hours: 5 bits.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(from = "u8")]
pub struct TimeCode(u8);

impl TimeCode {
    /// The longest.
    pub const MAX: TimeCode = TimeCode(31);

    /// Takes the low 5 bits of `code`.
    pub const fn new(code: u8) -> TimeCode {
        TimeCode(code & 0x1f)
    }

    /// The code, below 32.
    pub const fn code(self) -> u8 {
        self.0
    }

    /// The time that it means.
    pub const fn duration(self) -> Duration {
        // CM-006
        Duration::from_nanos(4096 << self.0)
    }

    /// What it means as the ACK timeout of a QP, where code 0 never expires (IBTA 9.7.6.1.3).
    pub const fn ack_timeout(self) -> Option<Duration> {
        if self.0 == 0 { None } else { Some(self.duration()) }
    }
}

impl From<u8> for TimeCode {
    /// Takes the low 5 bits.
    fn from(code: u8) -> TimeCode {
        TimeCode::new(code)
    }
}

impl fmt::Debug for TimeCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TimeCode({}: {:?})", self.0, self.duration())
    }
}

/// How long a requester waits before it repeats a request for which no receive was posted: the
/// code of 5 bits that an RNR NAK carries.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(from = "u8")]
pub struct RnrTimer(u8);

/// The times of the codes, in units of 10 us (IBTA table "Encoding for RNR NAK Timer Field").
const RNR_TIMES: [u32; 32] = [
    65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536,
    2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
];

impl RnrTimer {
    /// Takes the low 5 bits of `code`.
    pub const fn new(code: u8) -> RnrTimer {
        RnrTimer(code & 0x1f)
    }

    /// The code, below 32.
    pub const fn code(self) -> u8 {
        self.0
    }

    /// The time that it means, from 10 us to 655.36 ms. It does not grow with the code: 0 is the
    /// longest.
    pub const fn duration(self) -> Duration {
        Duration::from_micros(RNR_TIMES[self.0 as usize] as u64 * 10)
    }
}

impl From<u8> for RnrTimer {
    /// Takes the low 5 bits.
    fn from(code: u8) -> RnrTimer {
        RnrTimer::new(code)
    }
}

impl fmt::Debug for RnrTimer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RnrTimer({}: {:?})", self.0, self.duration())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_times_that_peers_send() {
        assert_eq!(TimeCode::new(0).duration(), Duration::from_nanos(4096));
        assert_eq!(TimeCode::new(20).duration(), Duration::from_nanos(4_294_967_296));
        assert_eq!(TimeCode::MAX.duration().as_secs(), 8796);
        assert_eq!(TimeCode::new(0xf4), TimeCode::new(20));
    }
}
