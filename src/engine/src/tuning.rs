//! How a device behaves on the wire where the standard leaves it the choice.

/// How a device behaves on the wire where the standard leaves it the choice.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Tuning {
    /// How messages become packets.
    pub wire: WireForm,
    /// What a responder keeps of requests that come before their turn.
    pub early: EarlyLimits,
}

/// How messages become packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WireForm {
    /// Packets of one size where the standard allows it, so that those of many messages can share
    /// a segmented send: a WRITE without immediate goes as WRITE ONLYs, a short READ is asked for in
    /// parts of two packets.
    #[default]
    Uniform,
    /// As kernel rxe and hardware do: FIRST, MIDDLE, LAST; one request for a READ as far as the
    /// window allows.
    Strict,
}

/// What a responder keeps of requests that come before their turn, because one before them was
/// lost or overtaken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
