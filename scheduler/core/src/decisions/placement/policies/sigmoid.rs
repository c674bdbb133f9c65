//! The logistic function, rounded down to hundredths, in integers.

/// `ln(s / (100 - s))` for `s` from 51 to 99, in thousand-millionths: where `100 * sigmoid(x)` reaches `s`.
const LOGIT: [i64; 49] = [
    40_005_335,
    80_042_708,
    120_144_312,
    160_342_650,
    200_670_695,
    241_162_057,
    281_851_152,
    322_773_392,
    363_965_377,
    405_465_108,
    447_312_218,
    489_548_225,
    532_216_814,
    575_364_145,
    619_039_208,
    663_294_217,
    708_185_058,
    753_771_802,
    800_119_300,
    847_297_860,
    895_384_047,
    944_461_609,
    994_622_575,
    1_045_968_555,
    1_098_612_289,
    1_152_679_510,
    1_208_311_206,
    1_265_666_373,
    1_324_925_415,
    1_386_294_361,
    1_450_010_176,
    1_516_347_489,
    1_585_627_264,
    1_658_228_077,
    1_734_601_055,
    1_815_289_967,
    1_900_958_761,
    1_992_430_165,
    2_090_741_097,
    2_197_224_577,
    2_313_634_929,
    2_442_347_035,
    2_586_689_344,
    2_751_535_313,
    2_944_438_979,
    3_178_053_830,
    3_476_098_690,
    3_891_820_298,
    4_595_119_850,
];

/// The least `x` at which `100 * sigmoid(x / scale)`, rounded down, is 1, 2, ... 99.
#[derive(Clone, Debug)]
pub(crate) struct Hundredths {
    reached_at: [i64; 99],
}

impl Hundredths {
    /// The function of `x / scale`.
    pub(crate) fn new(scale: i64) -> Self {
        let at = |logit: i64| {
            let scaled = i128::from(logit) * i128::from(scale);
            // The logarithm is never a rational number here, so for integers it makes no difference whether it is
            // rounded up or down.
            i64::try_from(scaled.div_euclid(1_000_000_000)).unwrap_or(i64::MAX)
        };
        let mut reached_at = [0; 99];
        for (above, logit) in (50..).zip(LOGIT) {
            // Index 49 is the 50th hundredth, which is reached at 0.
            reached_at[above] = at(logit).saturating_add(1);
            reached_at[98 - above] = at(-logit).saturating_add(1);
        }
        Self { reached_at }
    }

    /// `100 * sigmoid(x / scale)`, rounded down.
    pub(crate) fn of(&self, x: i64) -> i32 {
        i32::try_from(self.reached_at.partition_point(|at| *at <= x)).unwrap_or(99)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[expect(clippy::disallowed_types, reason = "it is compared with the function on real numbers")]
    fn agrees_with_the_function_itself() {
        let hundredths = Hundredths::new(1000);
        for x in -8000..=8000 {
            let exact = 100.0 / (1.0 + (-f64::from(x) / 1000.0).exp());
            assert_eq!(f64::from(hundredths.of(x.into())), exact.floor(), "at {x}");
        }
    }
}
