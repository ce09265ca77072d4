//! The windows of TCP-like senders, in packets: Reno (RFC 5681) and CUBIC (RFC 9438). A mark cuts
//! the window as a loss does, once per round trip (RFC 3168).

use std::time::{Duration, Instant};

/// Packets that a flow begins with (RFC 6928).
const INITIAL: f64 = 10.0;

/// The least window after a cut (RFC 5681: two segments).
const LEAST: f64 = 2.0;

/// C of CUBIC, in packets per second cubed, and what a cut leaves.
const CUBIC_C: f64 = 0.4;
const CUBIC_BETA: f64 = 0.7;

/// How a window grows and is cut.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Algorithm {
    Reno,
    Cubic,
}

impl Algorithm {
    /// As engineers write it.
    pub fn name(self) -> &'static str {
        match self {
            Algorithm::Reno => "Reno",
            Algorithm::Cubic => "CUBIC",
        }
    }
}

/// A congestion window.
#[derive(Debug)]
pub struct Window {
    algorithm: Algorithm,
    packets: f64,
    /// Above this, slow start has ended.
    threshold: f64,
    /// CUBIC: the window before the last cut, that of Reno since then, and when it began to grow.
    max: f64,
    reno: f64,
    epoch: Option<Instant>,
}

impl Window {
    pub fn new(algorithm: Algorithm) -> Window {
        Window {
            algorithm,
            packets: INITIAL,
            threshold: f64::INFINITY,
            max: 0.0,
            reno: 0.0,
            epoch: None,
        }
    }

    /// Packets that may be in flight.
    pub fn packets(&self) -> u64 {
        self.packets as u64
    }

    /// A packet was acknowledged, on a path with this round trip.
    pub fn on_ack(&mut self, now: Instant, round_trip: Duration) {
        if self.packets < self.threshold {
            self.packets += 1.0;
            return;
        }
        match self.algorithm {
            Algorithm::Reno => self.packets += 1.0 / self.packets,
            Algorithm::Cubic => self.grow_as_cubic(now, round_trip),
        }
    }

    /// RFC 9438, sections 4.2 to 4.5.
    fn grow_as_cubic(&mut self, now: Instant, round_trip: Duration) {
        let epoch = *self.epoch.get_or_insert(now);
        if self.reno == 0.0 {
            self.reno = self.packets;
        }
        // As much as Reno would, which cuts by half, has on average.
        let alpha = match self.reno < self.max {
            true => 3.0 * (1.0 - CUBIC_BETA) / (1.0 + CUBIC_BETA),
            false => 1.0,
        };
        self.reno += alpha / self.packets;
        let start = self.max * CUBIC_BETA;
        let k = ((self.max - start).max(0.0) / CUBIC_C).cbrt();
        let cubic = |t: f64| CUBIC_C * (t - k).powi(3) + self.max;
        let elapsed = (now - epoch).as_secs_f64();
        if cubic(elapsed) < self.reno {
            self.packets = self.reno;
        } else {
            let target = cubic(elapsed + round_trip.as_secs_f64());
            let target = target.clamp(self.packets, 1.5 * self.packets);
            self.packets += (target - self.packets) / self.packets;
        }
    }

    /// Something was lost or marked; the caller says so once per round trip.
    pub fn on_congestion(&mut self) {
        self.max = match self.packets < self.max {
            // Fast convergence: room for newcomers.
            true => self.packets * (1.0 + CUBIC_BETA) / 2.0,
            false => self.packets,
        };
        let left = match self.algorithm {
            Algorithm::Reno => 0.5,
            Algorithm::Cubic => CUBIC_BETA,
        };
        self.packets = (self.packets * left).max(LEAST);
        self.threshold = self.packets;
        (self.epoch, self.reno) = (None, 0.0);
    }

    /// Nothing was acknowledged for long.
    pub fn on_timeout(&mut self) {
        self.on_congestion();
        self.packets = 1.0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RTT: Duration = Duration::from_millis(50);

    /// A window after so many round trips without congestion.
    fn grow(window: &mut Window, start: Instant, round_trips: u32) -> Instant {
        let mut now = start;
        for _ in 0..round_trips {
            now += RTT;
            for _ in 0..window.packets() {
                window.on_ack(now, RTT);
            }
        }
        now
    }

    #[test]
    fn slow_start_doubles_the_window_in_each_round_trip() {
        for algorithm in [Algorithm::Reno, Algorithm::Cubic] {
            let mut window = Window::new(algorithm);
            grow(&mut window, Instant::now(), 3);
            assert_eq!(window.packets(), 80);
        }
    }

    #[test]
    fn reno_halves_its_window_and_adds_one_packet_per_round_trip() {
        let mut window = Window::new(Algorithm::Reno);
        let now = grow(&mut window, Instant::now(), 4);
        window.on_congestion();
        assert_eq!(window.packets(), 80);
        grow(&mut window, now, 10);
        assert!((89..=90).contains(&window.packets()), "{}", window.packets());
    }

    #[test]
    fn cubic_leaves_seven_tenths_and_is_back_after_k_seconds() {
        let mut window = Window::new(Algorithm::Cubic);
        let now = grow(&mut window, Instant::now(), 7);
        assert_eq!(window.packets(), 1280);
        window.on_congestion();
        assert_eq!(window.packets(), 896);
        // K = cbrt(1280 * 0.3 / 0.4) = 9.9 s.
        grow(&mut window, now, 99 * 2);
        let packets = window.packets();
        assert!((1250..=1310).contains(&packets), "{packets}");
    }

    #[test]
    fn cubic_is_not_slower_than_reno_on_a_short_path() {
        let mut window = Window::new(Algorithm::Cubic);
        window.packets = 100.0;
        window.on_congestion();
        let rtt = Duration::from_micros(50);
        let mut now = Instant::now();
        for _ in 0..80 {
            now += rtt;
            for _ in 0..window.packets() {
                window.on_ack(now, rtt);
            }
        }
        // 70 and about 0.53 per round trip until 100, then 1.
        assert!((105..=125).contains(&window.packets()), "{}", window.packets());
    }

    #[test]
    fn a_timeout_leaves_one_packet() {
        let mut window = Window::new(Algorithm::Reno);
        window.on_timeout();
        assert_eq!(window.packets(), 1);
        grow(&mut window, Instant::now(), 2);
        assert_eq!(window.packets(), 4, "slow start again");
    }
}
