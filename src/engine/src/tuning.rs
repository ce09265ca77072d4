//! How a device behaves on the wire where the standard leaves it the choice.

use serde::{Deserialize, Serialize};
use std::time::Duration;

/// How a device behaves on the wire where the standard leaves it the choice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Tuning {
    /// How messages become packets.
    pub wire: WireForm,
    /// What a responder keeps of requests that come before their turn.
    pub early: EarlyLimits,
    /// How much goes onto a path, and how fast.
    pub congestion: CongestionControl,
}

/// How messages become packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum WireForm {
    /// Packets of one size where the standard allows it, so that those of many messages can share
    /// a segmented send: a WRITE without immediate goes as WRITE ONLYs, a READ is answered in READ
    /// RESPONSE ONLYs by a peer that has agreed to it, and a short one is asked for in parts of two
    /// packets from others.
    #[default]
    Uniform,
    /// As kernel rxe and hardware do: FIRST, MIDDLE, LAST; one request for a READ as far as the
    /// window allows; and no peer is asked what it understands beside the standard.
    Strict,
}

/// What a responder keeps of requests that come before their turn, because one before them was
/// lost or overtaken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EarlyLimits {
    /// Payload bytes and packet overhead that one QP keeps; 0: nothing is kept (go-back-N).
    pub bytes_per_qp: usize,
    /// The same for all QPs of the device together.
    pub bytes_per_device: usize,
}

impl Default for EarlyLimits {
    fn default() -> Self {
        EarlyLimits { bytes_per_qp: 4 << 20, bytes_per_device: 64 << 20 }
    }
}

/// How much goes onto a path, and how fast.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum CongestionControl {
    /// 1 MiB in flight in each direction of a path, whatever happens to it: for a network that
    /// loses nothing, or as kernel rxe does. No notification is sent, and none is obeyed.
    Off,
    /// By what the network tells: marks, notifications, delay and loss.
    On(CongestionParameters),
}

impl Default for CongestionControl {
    fn default() -> Self {
        CongestionControl::On(CongestionParameters::default())
    }
}

impl CongestionControl {
    /// Its parameters, if it is on.
    pub fn parameters(&self) -> Option<&CongestionParameters> {
        match self {
            CongestionControl::Off => None,
            CongestionControl::On(parameters) => Some(parameters),
        }
    }
}

/// What congestion control works with.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct CongestionParameters {
    /// Towards whom packets say that switches may mark them.
    pub ecn: Ecn,
    /// How much longer than the least round trip of its path a round trip may take where nothing
    /// is marked, before less is sent.
    pub delay_target: Duration,
    /// The same while short messages of another share take by so much longer than the least.
    pub delay_target_beside_others: Duration,
    /// The shortest time between two congestion notifications of one QP: 50 us in the DCQCN paper.
    pub notification_interval: Duration,
    /// From which part of our own socket buffer on what arrives counts as marked, 0 to 1.
    pub receive_fill: f32,
    /// How what is sent to a peer that sends congestion notifications slows down.
    pub rate: RateParameters,
}

impl Default for CongestionParameters {
    fn default() -> Self {
        CongestionParameters {
            ecn: Ecn::default(),
            delay_target: Duration::from_micros(500),
            delay_target_beside_others: Duration::from_micros(50),
            notification_interval: Duration::from_micros(50),
            receive_fill: 0.25,
            rate: RateParameters::default(),
        }
    }
}

/// Towards whom the packets of RC QPs carry ECT(0) in their traffic class (RFC 3168), so that
/// switches mark them and do not drop them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Ecn {
    /// Nobody. The bits go out as the program has set them.
    Off,
    /// Peers that agreed to tell of marks. From others, nobody knows whether a mark would ever be
    /// heard of: kernel rxe, for one, does not look at them.
    #[default]
    Agreed,
    /// Everybody: for a network in which all hosts answer marks with congestion notifications.
    On,
}

/// The parameters of DCQCN's reaction point (Zhu et al., "Congestion Control for Large-Scale RDMA
/// Deployments", SIGCOMM 2015).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct RateParameters {
    /// How much a notification, or its absence, weighs in the estimate of congestion (g).
    pub weight: f64,
    /// After how long without a notification the estimate falls.
    pub estimate_interval: Duration,
    /// The shortest time between two cuts.
    pub cut_interval: Duration,
    /// The part of the rate that is left after a cut at least.
    pub least_after_cut: f64,
    /// After how long the rate grows again (T).
    pub growth_interval: Duration,
    /// After how many bytes it grows again (B).
    pub growth_bytes: u64,
    /// Steps back towards the rate before the cut, each half of what is missing (F).
    pub recovery_steps: u32,
    /// By how much the rate grows after these, in bytes per second (R_AI: 40 Mbit/s).
    pub additive: f64,
    /// By how much it grows after as many steps more by time and by bytes (R_HAI).
    pub hyper: f64,
    /// The least rate, in bytes per second.
    pub least_rate: f64,
}

impl RateParameters {
    /// Those of the paper, but for the weight, which is that of mlx5: the paper's 1/256 is close
    /// to it.
    pub const PAPER: RateParameters = RateParameters {
        weight: 5.0 / 1024.0,
        estimate_interval: Duration::from_micros(55),
        cut_interval: Duration::from_micros(50),
        least_after_cut: 0.5,
        growth_interval: Duration::from_micros(55),
        growth_bytes: 10_000_000,
        recovery_steps: 5,
        additive: 40e6 / 8.0,
        hyper: 400e6 / 8.0,
        least_rate: 1e6 / 8.0,
    };

    /// Those that mlx5 hardware has by default, as its driver shows them (`rpg_time_reset`,
    /// `rpg_byte_reset`, `rpg_ai_rate` and so on).
    pub const MLX5: RateParameters = RateParameters {
        weight: 5.0 / 1024.0,
        estimate_interval: Duration::from_micros(1),
        cut_interval: Duration::from_micros(4),
        least_after_cut: 0.5,
        growth_interval: Duration::from_micros(300),
        growth_bytes: 32_767 * 64,
        recovery_steps: 1,
        additive: 5e6 / 8.0,
        hyper: 50e6 / 8.0,
        least_rate: 1e6 / 8.0,
    };
}

impl Default for RateParameters {
    fn default() -> Self {
        RateParameters::PAPER
    }
}
