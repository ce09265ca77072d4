//! Congestion control as it is written on the command line and in the configuration file.

use std::str::FromStr;
use std::time::Duration;
use urxe_engine::{CongestionControl, CongestionParameters, Ecn, RateParameters};

/// How much goes onto a path, and how fast: `off`, or a list with commas of what is to differ from
/// `on`.
///
/// | item | means |
/// | --- | --- |
/// | `on` | as without the option |
/// | `dcqcn`, `mlx5` | how rates fall and rise: as the DCQCN paper has it, or hardware |
/// | `ecn=off`, `ecn=agreed`, `ecn=on` | towards whom packets may be marked by switches |
/// | `delay=500us` | by how much a round trip may grow before less is sent |
/// | `others=50us` | the same while short messages of other programs take by so much longer |
/// | `notify=50us` | the shortest time between two notifications of one QP |
/// | `fill=25%` | how full the socket buffer is from which what arrives counts as marked |
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Congestion(pub CongestionControl);

/// An item that means nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "congestion {0:?}: expected off, or a list such as on, dcqcn, mlx5, ecn=off|agreed|on, \
     delay=500us, others=50us, notify=50us, fill=25%"
)]
pub struct CongestionError(String);

impl FromStr for Congestion {
    type Err = CongestionError;

    fn from_str(text: &str) -> Result<Self, CongestionError> {
        if text.trim() == "off" {
            return Ok(Congestion(CongestionControl::Off));
        }
        let mut parameters = CongestionParameters::default();
        for item in text.split(',').map(str::trim) {
            set(&mut parameters, item).ok_or_else(|| CongestionError(item.to_owned()))?;
        }
        Ok(Congestion(CongestionControl::On(parameters)))
    }
}

fn set(parameters: &mut CongestionParameters, item: &str) -> Option<()> {
    let (name, value) = item.split_once('=').unwrap_or((item, ""));
    match (name.trim(), value.trim()) {
        ("on", "") => {}
        ("dcqcn", "") => parameters.rate = RateParameters::PAPER,
        ("mlx5", "") => parameters.rate = RateParameters::MLX5,
        ("ecn", "off") => parameters.ecn = Ecn::Off,
        ("ecn", "agreed") => parameters.ecn = Ecn::Agreed,
        ("ecn", "on") => parameters.ecn = Ecn::On,
        ("delay", time) => parameters.delay_target = duration(time)?,
        ("others", time) => parameters.delay_target_beside_others = duration(time)?,
        ("notify", time) => parameters.notification_interval = duration(time)?,
        ("fill", part) => parameters.receive_fill = percent(part)?,
        _ => return None,
    }
    Some(())
}

/// `250us`, `1ms`: whole numbers, up to a second, and not 0.
fn duration(text: &str) -> Option<Duration> {
    let micros = match (text.strip_suffix("us"), text.strip_suffix("ms")) {
        (Some(micros), _) => micros.parse::<u32>().ok()?,
        (None, Some(millis)) => millis.parse::<u32>().ok()?.checked_mul(1000)?,
        (None, None) => return None,
    };
    (1..=1_000_000).contains(&micros).then(|| Duration::from_micros(micros.into()))
}

/// `25%`; 100 % is never reached for long, and so turns it off.
fn percent(text: &str) -> Option<f32> {
    let number = text.strip_suffix('%')?.parse::<u8>().ok()?;
    (1..=100).contains(&number).then(|| f32::from(number) / 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parameters(text: &str) -> CongestionParameters {
        let Congestion(control) = text.parse().unwrap();
        *control.parameters().unwrap()
    }

    #[test]
    fn off_is_off_and_on_is_the_default() {
        assert_eq!("off".parse(), Ok(Congestion(CongestionControl::Off)));
        assert_eq!("on".parse(), Ok(Congestion::default()));
    }

    #[test]
    fn each_item_changes_its_own_parameter() {
        let usual = CongestionParameters::default();
        let millisecond = Duration::from_millis(1);
        for (text, expected) in [
            ("dcqcn", CongestionParameters { rate: RateParameters::PAPER, ..usual }),
            ("mlx5", CongestionParameters { rate: RateParameters::MLX5, ..usual }),
            ("ecn=off", CongestionParameters { ecn: Ecn::Off, ..usual }),
            ("ecn=agreed", CongestionParameters { ecn: Ecn::Agreed, ..usual }),
            ("on,ecn=on", CongestionParameters { ecn: Ecn::On, ..usual }),
            ("delay=1000us", CongestionParameters { delay_target: millisecond, ..usual }),
            (
                "others=1ms",
                CongestionParameters { delay_target_beside_others: millisecond, ..usual },
            ),
            ("notify=1000us", CongestionParameters { notification_interval: millisecond, ..usual }),
            ("fill=50%", CongestionParameters { receive_fill: 0.5, ..usual }),
        ] {
            assert_eq!(parameters(text), expected, "{text}");
        }
        let all = parameters("mlx5, ecn=on, delay=100us, fill=100%");
        assert_eq!((all.rate, all.ecn, all.receive_fill), (RateParameters::MLX5, Ecn::On, 1.0));
    }

    #[test]
    fn an_item_that_means_nothing_is_named() {
        for wrong in [
            "",
            "yes",
            "on=1",
            "ecn",
            "ecn=ce",
            "delay=5",
            "delay=0us",
            "delay=1001ms",
            "fill=101%",
            "fill=0%",
            "fill=5",
            "notify=-1us",
            "delay=4294967296us",
        ] {
            let error = format!("dcqcn,{wrong}").parse::<Congestion>().unwrap_err().to_string();
            assert!(error.starts_with(&format!("congestion {wrong:?}: expected off")), "{error}");
        }
        assert!("off,ecn=on".parse::<Congestion>().is_err());
    }
}
