//! How fast an Ethernet link is, in the terms that the verbs have from InfiniBand.

use std::fmt;

/// Width and signalling speed of a port: what `ibv_port_attr` has in `active_width` and
/// `active_speed`. Up to 40 Gbit/s, and for 100, it is what the kernel gives its RoCE devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkRate {
    /// The fastest link in Mbit/s that this stands for.
    up_to: u32,
    lanes: u8,
    lane: Lane,
}

/// The speed of one lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Lane {
    active_speed: u8,
    /// In units of 0.1 Gbit/s.
    rate: u32,
    name: &'static str,
}

const SDR: Lane = Lane { active_speed: 1, rate: 25, name: "SDR" };
const DDR: Lane = Lane { active_speed: 2, rate: 50, name: "DDR" };
const FDR10: Lane = Lane { active_speed: 8, rate: 100, name: "FDR10" };
const EDR: Lane = Lane { active_speed: 32, rate: 250, name: "EDR" };
const HDR: Lane = Lane { active_speed: 64, rate: 500, name: "HDR" };
const NDR: Lane = Lane { active_speed: 128, rate: 1000, name: "NDR" };

const RATES: [LinkRate; 9] = [
    LinkRate { up_to: 1_000, lanes: 1, lane: SDR },
    LinkRate { up_to: 10_000, lanes: 1, lane: FDR10 },
    LinkRate { up_to: 20_000, lanes: 4, lane: DDR },
    LinkRate { up_to: 25_000, lanes: 1, lane: EDR },
    LinkRate { up_to: 40_000, lanes: 4, lane: FDR10 },
    LinkRate { up_to: 50_000, lanes: 2, lane: EDR },
    LinkRate { up_to: 100_000, lanes: 4, lane: EDR },
    LinkRate { up_to: 200_000, lanes: 4, lane: HDR },
    LinkRate { up_to: u32::MAX, lanes: 4, lane: NDR },
];

impl LinkRate {
    /// Of a link of so many Mbit/s. One whose speed is not known counts as the slowest.
    pub fn of_ethernet(mbps: Option<u32>) -> LinkRate {
        let fits = |rate: &&LinkRate| mbps.unwrap_or(0) <= rate.up_to;
        RATES.iter().find(fits).copied().unwrap_or(RATES[0])
    }

    /// The number of lanes, in the coding of `active_width`.
    pub fn active_width(self) -> u8 {
        match self.lanes {
            4 => 2,
            2 => 16,
            _ => 1,
        }
    }

    /// The speed of a lane, in the coding of `active_speed`.
    pub fn active_speed(self) -> u8 {
        self.lane.active_speed
    }
}

impl fmt::Display for LinkRate {
    /// As sysfs has it: `2.5 Gb/sec (1X SDR)`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rate = self.lane.rate * u32::from(self.lanes);
        let half = if rate.is_multiple_of(10) { "" } else { ".5" };
        write!(f, "{}{half} Gb/sec ({}X {})", rate / 10, self.lanes, self.lane.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What `rate`, `active_width` and `active_speed` are for a link of so many Mbit/s.
    fn of(mbps: u32) -> (String, u8, u8) {
        let rate = LinkRate::of_ethernet(Some(mbps));
        (rate.to_string(), rate.active_width(), rate.active_speed())
    }

    #[test]
    fn links_have_the_rates_that_the_kernel_gives_them() {
        assert_eq!(of(1_000), ("2.5 Gb/sec (1X SDR)".into(), 1, 1));
        assert_eq!(of(10_000), ("10 Gb/sec (1X FDR10)".into(), 1, 8));
        assert_eq!(of(25_000), ("25 Gb/sec (1X EDR)".into(), 1, 32));
        assert_eq!(of(40_000), ("40 Gb/sec (4X FDR10)".into(), 2, 8));
        assert_eq!(of(50_000), ("50 Gb/sec (2X EDR)".into(), 16, 32));
        assert_eq!(of(100_000), ("100 Gb/sec (4X EDR)".into(), 2, 32));
        assert_eq!(of(800_000), ("400 Gb/sec (4X NDR)".into(), 2, 128));
    }

    #[test]
    fn a_link_of_unknown_speed_has_the_slowest_rate() {
        assert_eq!(LinkRate::of_ethernet(None), LinkRate::of_ethernet(Some(10)));
    }
}
