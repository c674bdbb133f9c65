//! The course of the allocation as demand arrives.

use std::collections::BTreeMap;

use serde::Serialize;

/// Values by the percentage of demand that has arrived, computed as in the published experiment: the value at a
/// percentage is the mean over all arrivals at which the arrived demand, rounded, equals that percentage.
#[derive(Clone, Debug, Default)]
pub struct Curve {
    sums: BTreeMap<u32, (f64, u32)>,
}

/// A point of a curve.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Point {
    /// Demand that has arrived, in percent of capacity.
    pub arrived_percent: u32,
    /// The value there, in percent of capacity.
    pub percent: f64,
}

impl Curve {
    /// Adds a value for an arrival.
    pub fn note(&mut self, arrived_percent: f64, percent: f64) {
        // The percentage is small and not negative, so it can be rounded to an integer.
        let (sum, number) = self.sums.entry(round_half_even(arrived_percent)).or_default();
        *sum += percent;
        *number += 1;
    }

    /// The mean at a percentage; `None` if no arrival has it.
    #[must_use]
    pub fn at(&self, arrived_percent: u32) -> Option<f64> {
        self.sums.get(&arrived_percent).map(|(sum, number)| sum / f64::from(*number))
    }

    /// All points, by percentage.
    #[must_use]
    pub fn points(&self) -> Vec<Point> {
        let mean = |(at, (sum, number)): (&u32, &(f64, u32))| Point {
            arrived_percent: *at,
            percent: sum / f64::from(*number),
        };
        self.sums.iter().map(mean).collect()
    }
}

fn round_half_even(percent: f64) -> u32 {
    percent.round_ties_even() as u32
}
