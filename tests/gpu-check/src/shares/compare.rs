//! The same measurements on a real and on a simulated device.

use serde::Serialize;

use crate::shares::measure::Measurement;

/// A measurement on the checked device, and the same one on this machine's simulated GPU.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Compared {
    /// On the device.
    #[serde(flatten)]
    pub(crate) measured: Measurement,
    /// The share on the simulated GPU in percent; absent if it was not measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) simulated_percent: Option<f64>,
}

impl Compared {
    /// The difference between the device and the simulated GPU, in percentage points.
    pub(crate) fn difference(&self) -> Option<f64> {
        Some(self.measured.measured_percent - self.simulated_percent?)
    }
}

/// Matches the measurements of two runs of one series.
pub(crate) fn compare(measured: Vec<Measurement>, simulated: &[Measurement]) -> Vec<Compared> {
    let place = |of: &Measurement, number| (of.load.clone(), of.beside.clone(), of.wanted_percent.to_bits(), number);
    // Slices of one case may have the same load, share and neighbours. They are in the same order in both runs.
    let numbered = |list: &[Measurement], index: usize| {
        let same = |other: &Measurement| place(other, 0) == place(&list[index], 0);
        place(&list[index], list[..index].iter().filter(|other| same(other)).count())
    };
    let places: Vec<_> = (0..simulated.len()).map(|index| numbered(simulated, index)).collect();
    let found: Vec<Option<f64>> = (0..measured.len())
        .map(|index| {
            let place = numbered(&measured, index);
            places.iter().position(|other| *other == place).map(|at| simulated[at].measured_percent)
        })
        .collect();
    let both = measured.into_iter().zip(found);
    both.map(|(measured, simulated_percent)| Compared { measured, simulated_percent }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measurement(load: &str, measured_percent: f64) -> Measurement {
        Measurement {
            load: load.to_owned(),
            beside: String::new(),
            wanted_percent: 30.0,
            measured_percent,
            first_percent: None,
            first_second_percent: 0.0,
            worst_second_percent: 0.0,
        }
    }

    #[test]
    fn each_is_compared_with_its_like() {
        let real = vec![measurement("a", 30.5), measurement("b", 29.0), measurement("b", 31.0), measurement("c", 1.0)];
        let simulated = [measurement("b", 30.0), measurement("b", 30.5), measurement("a", 30.0)];
        let differences: Vec<Option<f64>> = compare(real, &simulated).iter().map(Compared::difference).collect();
        assert_eq!(differences, [Some(0.5), Some(-1.0), Some(0.5), None]);
    }
}
