//! Times as connection management writes them.

use std::fmt;
use std::time::Duration;

/// A time of 4.096 us * 2^code, from 4 us to two and a half hours: 5 bits.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
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
        Duration::from_nanos(4096 << self.0)
    }
}

impl fmt::Debug for TimeCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TimeCode({}: {:?})", self.0, self.duration())
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
