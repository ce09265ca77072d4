//! The rate of a DCQCN sender, with the parameters that were published with it: Zhu et al.,
//! "Congestion Control for Large-Scale RDMA Deployments", SIGCOMM 2015, sections 3.1 and 5.2.

use std::time::{Duration, Instant};
use urxe_port::sim::Marking;

/// The weight of one observation in alpha (g).
const GAIN: f64 = 1.0 / 256.0;

/// Alpha decays when there was no notification for so long, and the rate's timer runs as long.
const TIMER: Duration = Duration::from_micros(55);

/// Bytes sent between two increases, where the timer is slower (B).
const BYTE_COUNTER: u64 = 10_000_000;

/// Steps of fast recovery (F).
const FAST_RECOVERY: u32 = 5;

/// Bits per second that the target grows by in additive increase (R_AI), and ten times that in
/// hyper increase, as in QCN, from which DCQCN has it.
const ADDITIVE_INCREASE: f64 = 40e6;
const HYPER_INCREASE: f64 = 10.0 * ADDITIVE_INCREASE;

/// The least time between two notifications of one flow, at the receiver (N).
pub const NOTIFICATION_INTERVAL: Duration = Duration::from_micros(50);

/// What the switches of the paper mark: K_min, K_max and P_max.
pub const MARKING: Marking = Marking { min: 5_000, max: 200_000, chance_at_max: 0.01 };

/// The reaction point: how fast a sender may send.
#[derive(Debug)]
pub struct Rate {
    line: f64,
    current: f64,
    target: f64,
    alpha: f64,
    /// Times that the timer ran out, and that the bytes were sent, since the last cut.
    timer_steps: u32,
    byte_steps: u32,
    bytes: u64,
    /// When alpha decays and when the rate's timer runs out; `None`: it was never cut.
    alpha_due: Option<Instant>,
    increase_due: Option<Instant>,
}

impl Rate {
    /// A flow begins at the rate of its line.
    pub fn new(line: u64) -> Rate {
        let line = line as f64;
        Rate {
            line,
            current: line,
            target: line,
            alpha: 1.0,
            timer_steps: 0,
            byte_steps: 0,
            bytes: 0,
            alpha_due: None,
            increase_due: None,
        }
    }

    /// Bits per second.
    pub fn current(&self) -> f64 {
        self.current
    }

    /// A notification came.
    pub fn on_cnp(&mut self, now: Instant) {
        self.target = self.current;
        self.current = (self.current * (1.0 - self.alpha / 2.0)).max(ADDITIVE_INCREASE);
        self.alpha = (1.0 - GAIN) * self.alpha + GAIN;
        (self.timer_steps, self.byte_steps, self.bytes) = (0, 0, 0);
        self.alpha_due = Some(now + TIMER);
        self.increase_due = Some(now + TIMER);
    }

    /// Bytes were sent.
    pub fn on_sent(&mut self, bytes: usize) {
        self.bytes += bytes as u64;
        if self.bytes >= BYTE_COUNTER {
            self.bytes -= BYTE_COUNTER;
            self.byte_steps += 1;
            self.increase();
        }
    }

    /// When [`on_timer`](Self::on_timer) is due.
    pub fn next_timer(&self) -> Option<Instant> {
        [self.alpha_due, self.increase_due].into_iter().flatten().min()
    }

    /// Sees to what is due.
    pub fn on_timer(&mut self, now: Instant) {
        while let Some(at) = self.alpha_due.filter(|at| *at <= now) {
            self.alpha *= 1.0 - GAIN;
            self.alpha_due = Some(at + TIMER);
        }
        while let Some(at) = self.increase_due.filter(|at| *at <= now) {
            self.timer_steps += 1;
            self.increase();
            self.increase_due = Some(at + TIMER);
        }
    }

    fn increase(&mut self) {
        if self.timer_steps.max(self.byte_steps) >= FAST_RECOVERY {
            let hyper = self.timer_steps.min(self.byte_steps) > FAST_RECOVERY;
            self.target += if hyper { HYPER_INCREASE } else { ADDITIVE_INCREASE };
        }
        self.target = self.target.min(self.line);
        self.current = (self.target + self.current) / 2.0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: u64 = 40_000_000_000;

    fn after_one_cut() -> (Rate, Instant) {
        let now = Instant::now();
        let mut rate = Rate::new(LINE);
        rate.on_cnp(now);
        (rate, now)
    }

    #[test]
    fn the_first_notification_halves_the_rate() {
        let (rate, _) = after_one_cut();
        assert_eq!(rate.current(), LINE as f64 / 2.0);
    }

    #[test]
    fn five_steps_of_fast_recovery_close_half_of_the_gap_each() {
        let (mut rate, now) = after_one_cut();
        let mut gap = LINE as f64 - rate.current();
        for step in 1..=4 {
            rate.on_timer(now + step * TIMER);
            assert_eq!(LINE as f64 - rate.current(), gap / 2.0);
            gap /= 2.0;
        }
    }

    #[test]
    fn after_fast_recovery_the_target_grows_by_the_additive_step() {
        let now = Instant::now();
        let mut rate = Rate::new(LINE);
        rate.on_cnp(now);
        rate.on_cnp(now);
        let target = rate.target;
        rate.on_timer(now + 4 * TIMER);
        assert_eq!(rate.target, target);
        rate.on_timer(now + 6 * TIMER);
        assert_eq!(rate.target, target + 2.0 * ADDITIVE_INCREASE);
    }

    #[test]
    fn alpha_decays_without_notifications_so_that_the_next_cut_is_smaller() {
        let (mut rate, now) = after_one_cut();
        rate.on_timer(now + 500 * TIMER);
        let before = rate.current();
        rate.on_cnp(now + 500 * TIMER);
        assert!(rate.current() > 0.9 * before);
    }

    #[test]
    fn bytes_sent_increase_the_rate_as_the_timer_does() {
        let (mut rate, _) = after_one_cut();
        let before = rate.current();
        rate.on_sent(BYTE_COUNTER as usize - 1);
        assert_eq!(rate.current(), before);
        rate.on_sent(1);
        assert!(rate.current() > before);
    }

    #[test]
    fn the_rate_never_exceeds_the_line() {
        let (mut rate, now) = after_one_cut();
        rate.on_timer(now + 100_000 * TIMER);
        assert!(rate.current() <= LINE as f64);
        assert!(rate.current() > 0.999 * LINE as f64);
    }
}
