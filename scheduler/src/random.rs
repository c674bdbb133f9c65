//! A small random generator: SplitMix64.

/// Random numbers that are the same each time for the same seed.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// A generator that starts at this seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ 0x5DEE_CE66_D001_0BEF)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// A number below `bound`, which must not be 0.
    pub fn below(&mut self, bound: usize) -> usize {
        let scaled = (u128::from(self.next()) * bound as u128) >> 64;
        usize::try_from(scaled).unwrap_or(0)
    }

    /// A random item of the list, which must not be empty.
    pub fn pick<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        &items[self.below(items.len())]
    }

    /// Puts the items into a random order.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.below(last + 1));
        }
    }

    /// A number from the exponential distribution with mean 1.
    pub fn exponential(&mut self) -> f64 {
        // 53 bits, and never 0: its logarithm is finite.
        let uniform = ((self.next() >> 11) + 1) as f64 / (1u64 << 53) as f64;
        -uniform.ln()
    }
}
