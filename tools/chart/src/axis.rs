//! The scales of a panel, and where their ticks are.

use crate::{Across, Panel, short};
use std::ops::Range;

/// Most ticks of a scale that numbers are written at.
const MAX_TICKS: usize = 12;

/// A scale, linear or logarithmic.
#[derive(Clone, Debug)]
pub struct Axis {
    pub(crate) range: Range<f64>,
    is_log: bool,
    ticks: Vec<(f64, String)>,
}

impl Axis {
    /// How far a value is from the beginning of the scale (0) to its end (1).
    pub fn part(&self, value: f64) -> f64 {
        let scale = |value: f64| match self.is_log {
            // What is 0 has no logarithm.
            true => value.max(self.range.start).log10(),
            false => value,
        };
        let (from, to) = (scale(self.range.start), scale(self.range.end));
        (scale(value) - from) / (to - from)
    }

    /// Values with the text that stands there.
    pub fn ticks(&self) -> &[(f64, String)] {
        &self.ticks
    }

    /// From 0 to `most` or a little more.
    fn linear(most: f64) -> Axis {
        let most = if most > 0. { most } else { 1. };
        let step = round_up(most / 5.);
        let ticks = (0..=(most * 1.04 / step).ceil() as u32).map(|tick| f64::from(tick) * step);
        let ticks: Vec<_> = ticks.map(|tick| (tick, label(tick, step))).collect();
        Axis { range: 0.0..ticks[ticks.len() - 1].0, is_log: false, ticks }
    }

    /// Powers of ten around the values; those that lie close together have ticks between.
    fn logarithmic(values: impl Iterator<Item = f64>) -> Axis {
        let positive = values.filter(|&value| value > 0.);
        let (least, most) = positive
            .fold((f64::INFINITY, 0.), |(least, most), value| (value.min(least), value.max(most)));
        let (least, most) = if most > 0. { (least.max(most / 1e9), most) } else { (1., 1.) };
        let steps: &[f64] = if most / least < 16. { &[1., 2., 5.] } else { &[1.] };
        let decades = least.log10().floor() as i32..=most.log10().ceil() as i32 + 1;
        let ticks: Vec<f64> = decades
            .flat_map(|decade| steps.iter().map(move |step| step * 10f64.powi(decade)))
            .collect();
        let from = ticks.iter().rposition(|&tick| tick <= least).unwrap_or(0);
        let to = ticks.iter().position(|&tick| tick >= most).unwrap_or(ticks.len() - 1);
        let ticks = &ticks[from..=to.max(from + 1).min(ticks.len() - 1)];
        let range = ticks[0]..ticks[ticks.len() - 1];
        let ticks = ticks.iter().map(|&tick| (tick, label(tick, tick))).collect();
        Axis { range, is_log: true, ticks }
    }

    /// The same from its end to its beginning.
    pub(crate) fn reversed(mut self) -> Axis {
        self.range = self.range.end..self.range.start;
        self
    }
}

impl Panel {
    /// The scale of what the measured numbers depend on.
    pub fn axis_across(&self) -> Axis {
        let places = self.places();
        let (first, last) =
            (places.first().copied().unwrap_or(0.), places.last().copied().unwrap_or(1.));
        let range = match self.across {
            Across::Names(_) | Across::Rows(_) => first - 0.5..last + 0.5,
            Across::Count(_) => first - 0.2..last + 0.2,
            Across::Bytes => first.max(1.) / 1.4..last.max(1.) * 1.4,
            Across::Seconds => 0.0..if last > 0. { last } else { 1. },
            Across::Percentile => 1.0..last.max(10.),
        };
        let numbers: Vec<f64> = match self.across {
            Across::Names(_) | Across::Rows(_) => places,
            Across::Count(_) | Across::Bytes => {
                let every = places.len().div_ceil(MAX_TICKS).max(1);
                places.into_iter().step_by(every).collect()
            }
            Across::Seconds => {
                let step = round_up(range.end / 8.);
                let all = (0..).map(|tick| f64::from(tick) * step);
                let ticks = all.take_while(|tick| *tick <= range.end).collect::<Vec<_>>();
                let ticks = ticks.into_iter().map(|tick| (tick, label(tick, step))).collect();
                return Axis { range, is_log: false, ticks };
            }
            Across::Percentile => {
                let powers = (1..12).map(|power| 10f64.powi(power));
                [1., 2.].into_iter().chain(powers).filter(|n| *n <= range.end).collect()
            }
        };
        let ticks = numbers.into_iter().map(|place| (place, self.across.label(place))).collect();
        Axis { range, is_log: self.is_log(), ticks }
    }

    /// The scale of the measured numbers.
    pub fn axis_values(&self) -> Axis {
        let values = self.series.iter().flat_map(|series| &series.points).map(|point| point.1);
        if self.is_log() {
            Axis::logarithmic(values)
        } else {
            Axis::linear(values.fold(0., f64::max))
        }
    }

    fn is_log(&self) -> bool {
        matches!(self.across, Across::Bytes | Across::Percentile)
    }
}

/// 1, 2 or 5 with zeros behind or before it, the least that is not smaller.
fn round_up(number: f64) -> f64 {
    let unit = 10f64.powf(number.log10().floor());
    let steps = [1., 2., 5., 10.].map(|step| step * unit);
    steps.into_iter().find(|step| *step >= number).unwrap_or(10. * unit)
}

/// A tick, with as many digits as tell it from those a step beside it.
fn label(tick: f64, step: f64) -> String {
    if tick >= 1000. {
        return short(tick);
    }
    let digits = (-step.log10().floor()).clamp(0., 9.) as usize;
    if tick == 0. { "0".into() } else { format!("{tick:.digits$}") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Series;

    fn panel(across: Across, points: Vec<(f64, f64)>) -> Panel {
        let series = vec![Series { name: "a".into(), points }];
        Panel { title: String::new(), across, series }
    }

    fn labels(axis: &Axis) -> Vec<&str> {
        axis.ticks().iter().map(|tick| tick.1.as_str()).collect()
    }

    #[test]
    fn steps_are_1_2_or_5_with_zeros() {
        assert_eq!([7., 0.11, 20., 51.].map(round_up), [10., 0.2, 20., 100.]);
        let axis = panel(Across::Seconds, vec![(0.1, 0.), (1., 0.23)]);
        assert_eq!(labels(&axis.axis_across()), ["0", "0.2", "0.4", "0.6", "0.8", "1.0"]);
        assert_eq!(labels(&axis.axis_values()), ["0", "0.05", "0.10", "0.15", "0.20", "0.25"]);
    }

    #[test]
    fn a_logarithmic_scale_has_powers_of_ten_and_more_where_values_are_close() {
        let far = panel(Across::Bytes, vec![(8., 0.03), (4096., 7.)]);
        assert_eq!(labels(&far.axis_values()), ["0.01", "0.1", "1", "10"]);
        let small = panel(Across::Bytes, vec![(1., 0.0007), (4096., 1200.)]);
        assert_eq!(labels(&small.axis_values())[..2], ["0.0001", "0.001"]);
        assert_eq!(labels(&small.axis_values()).last(), Some(&"10k"));
        let close = panel(Across::Percentile, vec![(1., 11.), (1000., 44.)]);
        assert_eq!(labels(&close.axis_values()), ["10", "20", "50"]);
        assert_eq!(labels(&close.axis_across()), ["0", "50", "90", "99", "99.9"]);
        assert_eq!(close.axis_across().part(10.), 1. / 3.);
    }

    #[test]
    fn ticks_of_many_sizes_are_few() {
        let all = (0..31).map(|power| (f64::from(1u32 << power), 1.)).collect();
        let axis = panel(Across::Bytes, all).axis_across();
        assert!(axis.ticks().len() <= MAX_TICKS, "{:?}", axis.ticks());
        assert_eq!(labels(&axis)[0], "1");
    }

    #[test]
    fn no_figures_make_a_scale_without_length() {
        let points = [vec![], vec![(0., 0.)], vec![(1., 10.)], vec![(5., 0.), (6., 1e-300)]];
        for points in points {
            for across in [
                Across::Names(vec!["a".into()]),
                Across::Rows(vec!["a".into()]),
                Across::Count("a"),
                Across::Bytes,
                Across::Seconds,
                Across::Percentile,
            ] {
                let panel = panel(across, points.clone());
                for axis in [panel.axis_across(), panel.axis_values()] {
                    assert!(axis.part(axis.range.end) == 1., "{panel:?}: {axis:?}");
                }
            }
        }
    }
}
