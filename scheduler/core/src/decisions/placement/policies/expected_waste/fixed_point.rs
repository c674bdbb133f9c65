//! Solves linear equations in fixed-point numbers, with the same result on every machine.

/// Binary places after the point.
const POINT: u32 = 40;
/// The number 1 in fixed point.
pub(crate) const ONE: i128 = 1 << POINT;

/// An integer as a fixed-point number.
pub(crate) fn fixed(number: u64) -> i128 {
    i128::from(number) << POINT
}

/// `numerator / denominator`.
pub(crate) fn ratio(numerator: i128, denominator: i128) -> i128 {
    (numerator << POINT) / denominator
}

/// Solves `matrix * x = right` by elimination. Unknowns that the equations leave open are 0.
pub(crate) fn solve(mut matrix: Vec<Vec<i128>>, mut right: Vec<i128>) -> Vec<i128> {
    let size = right.len();
    // A number smaller than this is only an error of rounding.
    let least = ONE >> 30;
    for column in 0..size {
        let pivot = (column..size).max_by_key(|row| (matrix[*row][column].abs(), size - row)).unwrap_or(column);
        matrix.swap(column, pivot);
        right.swap(column, pivot);
        let (above, below) = matrix.split_at_mut(column + 1);
        let (pivot_row, pivot_right) = (&above[column], right[column]);
        if pivot_row[column].abs() < least {
            continue;
        }
        for (row, value) in below.iter_mut().zip(&mut right[column + 1..]) {
            let factor = ratio(row[column], pivot_row[column]);
            if factor == 0 {
                continue;
            }
            for (entry, pivot_entry) in row[column..].iter_mut().zip(&pivot_row[column..]) {
                *entry -= (factor * pivot_entry) >> POINT;
            }
            *value -= (factor * pivot_right) >> POINT;
        }
    }
    for row in (0..size).rev() {
        let known: i128 = (row + 1..size).map(|column| (matrix[row][column] * right[column]) >> POINT).sum();
        let rest = right[row] - known;
        right[row] = if matrix[row][row].abs() < least { 0 } else { ratio(rest, matrix[row][row]) };
    }
    right
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn solves_equations() {
        let matrix = vec![vec![fixed(2), fixed(1)], vec![fixed(1), fixed(3)]];
        let solution = solve(matrix, vec![fixed(5), fixed(10)]);
        assert!((solution[0] - fixed(1)).abs() < 1 << 8 && (solution[1] - fixed(3)).abs() < 1 << 8, "{solution:?}");
    }
}
