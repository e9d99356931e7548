//! The curves of the metrics, in bounded memory. A curve keeps the lowest and the highest measurement of each of its
//! buckets. When it has too many buckets, each two neighbours become one.

use std::collections::BTreeMap;

/// The most buckets of a curve. It has at most twice as many points.
const BUCKETS: usize = 240;
/// The most curves.
pub const MOST_CURVES: usize = 50;

/// A curve for each metric, the first [`MOST_CURVES`] of a run.
#[derive(Debug, Clone, Default)]
pub struct Curves {
    curves: BTreeMap<String, Curve>,
    has_others: bool,
}

/// The measurements of one metric.
#[derive(Debug, Clone, Default)]
pub struct Curve {
    buckets: Vec<Bucket>,
    /// Measurements in each full bucket.
    width: u64,
    count: u64,
    last: Option<Point>,
    not_finite: u64,
}

/// A measurement.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Point {
    /// The step.
    pub step: f64,
    /// The value, which is finite.
    pub value: f64,
    /// Its number in the curve, from 0.
    number: u64,
}

#[derive(Debug, Clone, Copy)]
struct Bucket {
    count: u64,
    low: Point,
    high: Point,
}

impl Bucket {
    fn join(self, other: Bucket) -> Bucket {
        Bucket {
            count: self.count + other.count,
            low: if other.low.value < self.low.value { other.low } else { self.low },
            high: if other.high.value > self.high.value { other.high } else { self.high },
        }
    }
}

impl Curves {
    /// Adds a measurement.
    pub fn add(&mut self, tag: &str, step: f64, value: f64) {
        if let Some(curve) = self.curves.get_mut(tag) {
            curve.add(step, value);
        } else if self.curves.len() < MOST_CURVES {
            self.curves.entry(tag.to_owned()).or_default().add(step, value);
        } else {
            self.has_others = true;
        }
    }

    /// The curves by name.
    pub fn all(&self) -> impl ExactSizeIterator<Item = (&str, &Curve)> {
        self.curves.iter().map(|(tag, curve)| (tag.as_str(), curve))
    }

    /// Whether there are metrics without a curve.
    pub fn has_others(&self) -> bool {
        self.has_others
    }
}

impl Curve {
    fn add(&mut self, step: f64, value: f64) {
        if !value.is_finite() || !step.is_finite() {
            self.not_finite += 1;
            return;
        }
        let point = Point { step, value, number: self.count };
        (self.count, self.last) = (self.count + 1, Some(point));
        let new = Bucket { count: 1, low: point, high: point };
        match self.buckets.last_mut() {
            Some(last) if last.count < self.width => *last = last.join(new),
            _ => self.buckets.push(new),
        }
        if self.buckets.len() > BUCKETS {
            let halved = self.buckets.chunks(2).filter_map(|two| two.iter().copied().reduce(Bucket::join));
            self.buckets = halved.collect();
            self.width = (self.width.max(1)) * 2;
        }
    }

    /// The kept measurements, in the order of their arrival.
    pub fn points(&self) -> Vec<Point> {
        let mut points: Vec<Point> = Vec::with_capacity(2 * self.buckets.len() + 1);
        for Bucket { low, high, .. } in &self.buckets {
            points.extend([low, high]);
        }
        points.extend(&self.last);
        points.sort_by_key(|point| point.number);
        points.dedup_by_key(|point| point.number);
        points
    }

    /// The number of finite measurements.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The number of measurements that are not finite and not drawn.
    pub fn not_finite(&self) -> u64 {
        self.not_finite
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn curve(values: impl IntoIterator<Item = f64>) -> Curve {
        let mut curve = Curve::default();
        (0u32..).zip(values).for_each(|(step, value)| curve.add(f64::from(step), value));
        curve
    }

    #[test]
    fn a_short_curve_keeps_every_point() {
        let points = curve((0..200).map(|n| f64::from(n * 7 % 13))).points();
        assert_eq!(points.len(), 200);
        assert!(points.iter().enumerate().all(|(n, point)| point.step == n as f64));
    }

    #[test]
    fn a_spike_in_a_million_points_is_kept_and_so_is_the_last_point() {
        let curve = curve((0..1_000_000).map(|n| if n == 123_457 { 99.0 } else { f64::from(n % 100) / 100.0 }));
        let points = curve.points();
        assert!(points.len() <= 2 * BUCKETS + 1, "{}", points.len());
        assert!(points.iter().any(|point| (point.step, point.value) == (123_457.0, 99.0)));
        assert_eq!(points.last().map(|point| point.step), Some(999_999.0));
    }

    #[test]
    fn the_number_of_curves_is_limited() {
        let mut curves = Curves::default();
        (0..=MOST_CURVES).for_each(|n| curves.add(&format!("m{n}"), 0.0, 1.0));
        assert_eq!((curves.all().len(), curves.has_others()), (MOST_CURVES, true));
    }

    #[test]
    fn values_that_are_not_finite_are_counted_and_not_kept() {
        let curve = curve([1.0, f64::NAN, f64::INFINITY, 2.0]);
        assert_eq!((curve.count(), curve.not_finite(), curve.points().len()), (2, 2, 2));
    }

    proptest! {
        #[test]
        fn the_extremes_of_any_curve_are_kept_in_order(values in prop::collection::vec(-1e9..1e9f64, 1..3000)) {
            let points = curve(values.iter().copied()).points();
            let most = |all: &mut dyn Iterator<Item = f64>| all.fold(f64::MIN, f64::max);
            prop_assert_eq!(most(&mut points.iter().map(|p| p.value)), most(&mut values.iter().copied()));
            prop_assert_eq!(most(&mut points.iter().map(|p| -p.value)), most(&mut values.iter().map(|v| -v)));
            prop_assert!(points.is_sorted_by_key(|p| p.number) && points.len() <= 2 * BUCKETS + 1);
        }
    }
}
