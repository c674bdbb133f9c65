//! Deterministic mutations of inputs, for test runs without coverage guidance.

/// Numbers that often cause errors in programs.
const EDGES: [u64; 12] =
    [0, 1, 0x7f, 0xff, 0xffff, 1 << 31, u32::MAX as u64, (1 << 48) - 1, 1 << 48, i64::MAX as u64, 1 << 63, u64::MAX];

/// A generator of mutations.
pub struct Mutator {
    state: u64,
}

impl Mutator {
    /// A generator. The same seed gives the same mutations.
    #[must_use]
    pub fn new(seed: u64) -> Mutator {
        Mutator { state: seed }
    }

    /// SplitMix64.
    fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.state ^ self.state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    fn below(&mut self, end: usize) -> usize {
        (self.next() % end.max(1) as u64) as usize
    }

    /// A copy of one of `inputs`, changed in a few places.
    #[must_use]
    pub fn mutate(&mut self, inputs: &[Vec<u8>]) -> Vec<u8> {
        let one = self.below(inputs.len());
        let mut bytes = inputs.get(one).cloned().unwrap_or_default();
        for _ in 0..1 + self.below(4) {
            self.change(&mut bytes, inputs);
        }
        bytes
    }

    fn change(&mut self, bytes: &mut Vec<u8>, inputs: &[Vec<u8>]) {
        let at = self.below(bytes.len());
        let until = at + self.below((bytes.len() - at).min(24) + 1);
        match self.below(8) {
            0 => bytes.truncate(at),
            1 => _ = bytes.drain(at..until),
            // Copies a piece to another place.
            2 => {
                let piece = bytes[at..until].to_vec();
                let to = self.below(bytes.len() + 1);
                bytes.splice(to..to, piece);
            }
            // Inserts a piece of another input.
            3 => {
                let other = self.below(inputs.len());
                let other = inputs.get(other).map_or(&[][..], Vec::as_slice);
                let from = self.below(other.len());
                let end = from + self.below(other.len() - from + 1);
                bytes.splice(at..until, other[from..end].iter().copied());
            }
            4 => {
                let edge = EDGES[self.below(EDGES.len())].to_le_bytes();
                bytes.iter_mut().skip(at).zip(&edge[..1 << self.below(4)]).for_each(|(byte, &edge)| *byte = edge);
            }
            // An edge number as decimal text.
            5 => {
                let edge = EDGES[self.below(EDGES.len())].to_string();
                bytes.splice(at..until, edge.bytes());
            }
            6 => {
                let byte = self.next() as u8;
                bytes.insert(at, byte);
            }
            _ => {
                let bit = 1 << self.below(8);
                if let Some(byte) = bytes.get_mut(at) {
                    *byte ^= bit;
                }
            }
        }
    }
}
