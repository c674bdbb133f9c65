//! Quantities: the library `kubernetes.quantity` of Kubernetes.

use cel::common::types::{CelBool, CelDouble, CelInt, CelString, Kind, Type};
use cel::{DeclarationError, Env, ExecutionError};

use super::values::{Held, Own, failed};

/// Billionths of one.
const ONE: i128 = 1_000_000_000;
/// The largest quantity with a binary suffix, in billionths. Kubernetes takes larger ones for this one.
const BINARY_MAX: i128 = i64::MAX as i128 * ONE;

/// A quantity, in billionths. One that is too large is `i128::MAX`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Quantity {
    billionths: i128,
    /// Kubernetes gives it as an integer. It does not for `2.0`, `2000m` and for numbers of many digits, as `1Pi` is:
    /// it looks at how a quantity is written.
    is_whole: bool,
}

impl PartialEq for Quantity {
    fn eq(&self, other: &Quantity) -> bool {
        self.billionths == other.billionths
    }
}

impl Held for Quantity {
    const TYPE: &'static Type = &Type::simple_type(Kind::Opaque, "kubernetes.Quantity");
}

/// By what a suffix multiplies.
enum Suffix {
    PowerOfTen(i64),
    PowerOfTwo(u32),
}

impl Suffix {
    fn parse(text: &str) -> Option<Suffix> {
        let decimal = ["n", "u", "m", "", "k", "M", "G", "T", "P", "E"];
        let binary = ["Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
        if let Some(at) = decimal.iter().position(|of| *of == text) {
            return Some(Suffix::PowerOfTen(3 * at as i64 - 9));
        }
        if let Some(at) = binary.iter().position(|of| *of == text) {
            return Some(Suffix::PowerOfTwo(10 * (at as u32 + 1)));
        }
        let exponent = text.strip_prefix(['e', 'E'])?.parse::<i64>().ok()?;
        Some(Suffix::PowerOfTen(exponent.clamp(-1000, 1000)))
    }
}

impl Quantity {
    /// Rounded away from zero to billionths; `None`: the text is no quantity. Kubernetes also takes `Mi` and `+` for
    /// quantities: they are 0.
    pub(super) fn parse(text: &str) -> Option<Quantity> {
        if text.is_empty() {
            return None;
        }
        let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text).trim_start_matches('0');
        let end_of_digits = |text: &str| text.find(|of: char| !of.is_ascii_digit()).unwrap_or(text.len());
        let (whole, rest) = unsigned.split_at(end_of_digits(unsigned));
        let after_point = rest.strip_prefix('.').unwrap_or("");
        let fraction = &after_point[..end_of_digits(after_point)];
        let suffix = Suffix::parse(rest.strip_prefix('.').map_or(rest, |rest| &rest[fraction.len()..]))?;
        let amount = amount(whole, fraction, &suffix);
        let is_whole = amount == 0 || is_held_whole(whole, fraction, &suffix, amount);
        Some(Quantity { billionths: if text.starts_with('-') { -amount } else { amount }, is_whole })
    }

    fn whole(units: i64) -> Quantity {
        Quantity { billionths: i128::from(units) * ONE, is_whole: true }
    }

    /// `None`: too large.
    fn plus(self, other: Quantity) -> Option<Quantity> {
        let billionths = self.billionths.checked_add(other.billionths)?;
        let is_whole = match (self.billionths, other.billionths) {
            (_, 0) => self.is_whole,
            (0, _) => other.is_whole,
            _ => self.is_whole && other.is_whole && i64::try_from(billionths / ONE).is_ok(),
        };
        Some(Quantity { billionths, is_whole })
    }

    fn negated(self) -> Quantity {
        Quantity { billionths: -self.billionths, ..self }
    }
}

/// The billionths that `whole.fraction`, both digits, is with a suffix, rounded up.
fn amount(whole: &str, fraction: &str, suffix: &Suffix) -> i128 {
    let fraction = fraction.trim_end_matches('0');
    let digits = format!("{whole}{fraction}");
    let digits = digits.trim_start_matches('0');
    if digits.is_empty() {
        return 0;
    }
    let decimals = fraction.len() as i64;
    match suffix {
        Suffix::PowerOfTen(exponent) => times_power_of_ten(digits, exponent - decimals + 9),
        Suffix::PowerOfTwo(exponent) => {
            let scaled = digits.parse::<i128>().ok().and_then(|of| of.checked_mul(1 << exponent));
            let amount = scaled.map_or(i128::MAX, |of| times_power_of_ten(&of.to_string(), 9 - decimals));
            amount.min(BINARY_MAX)
        }
    }
}

/// `digits`, which start with no zero, times a power of ten, rounded up.
fn times_power_of_ten(digits: &str, power: i64) -> i128 {
    if let Ok(power) = usize::try_from(power) {
        return if digits.len() + power > 38 {
            i128::MAX
        } else {
            of_digits(&format!("{digits}{}", "0".repeat(power)))
        };
    }
    let kept = digits.len().saturating_sub(usize::try_from(-power).unwrap_or(usize::MAX));
    let (kept, lost) = digits.split_at(kept);
    let rounded_up = i128::from(lost.bytes().any(|digit| digit != b'0'));
    of_digits(kept).saturating_add(rounded_up)
}

fn of_digits(digits: &str) -> i128 {
    if digits.is_empty() { 0 } else { digits.parse().unwrap_or(i128::MAX) }
}

/// Whether Kubernetes holds it as a whole number of 64 bits: it does so for numbers of few digits only.
fn is_held_whole(whole: &str, fraction: &str, suffix: &Suffix, amount: i128) -> bool {
    let digits = whole.len().max(1) + fraction.len();
    let [is_short, is_whole] = match suffix {
        Suffix::PowerOfTen(exponent) => [digits <= 18, *exponent >= fraction.len() as i64],
        Suffix::PowerOfTwo(exponent) => [digits + *exponent as usize * 3 / 10 < 15, fraction.is_empty()],
    };
    is_short && is_whole && i64::try_from(amount / ONE).is_ok()
}

pub(super) fn add(environment: &mut Env) -> Result<(), DeclarationError> {
    cel::add_overload!(environment, fn quantity: (CelString) -> Result<Own<Quantity>>)?;
    cel::add_overload!(environment, fn is_quantity: (CelString) -> CelBool)?;
    cel::add_overload!(environment, fn sign: (Own<Quantity>) -> CelInt)?;
    cel::add_member_overload!(environment, fn sign: (Own<Quantity>) -> CelInt)?;
    cel::add_member_overload!(environment, fn compare_to: (Own<Quantity>, Own<Quantity>) -> CelInt)?;
    cel::add_member_overload!(environment, fn is_greater_than: (Own<Quantity>, Own<Quantity>) -> CelBool)?;
    cel::add_member_overload!(environment, fn is_less_than: (Own<Quantity>, Own<Quantity>) -> CelBool)?;
    cel::add_member_overload!(environment, fn plus: (Own<Quantity>, Own<Quantity>) -> Result<Own<Quantity>>,
        name = "add")?;
    cel::add_member_overload!(environment, fn plus_units: (Own<Quantity>, CelInt) -> Result<Own<Quantity>>,
        name = "add")?;
    cel::add_member_overload!(environment, fn minus: (Own<Quantity>, Own<Quantity>) -> Result<Own<Quantity>>,
        name = "sub")?;
    cel::add_member_overload!(environment, fn minus_units: (Own<Quantity>, CelInt) -> Result<Own<Quantity>>,
        name = "sub")?;
    cel::add_member_overload!(environment, fn is_integer: (Own<Quantity>) -> CelBool)?;
    cel::add_member_overload!(environment, fn as_integer: (Own<Quantity>) -> Result<CelInt>)?;
    cel::add_member_overload!(environment, fn as_approximate_float: (Own<Quantity>) -> CelDouble)?;
    environment.add_type(Quantity::TYPE.to_owned())
}

fn quantity(text: &CelString<'_>) -> Result<Own<Quantity>, ExecutionError> {
    Quantity::parse(text).map(Own).ok_or_else(|| failed("quantity", format!("{:?} is no quantity", text.inner())))
}

fn is_quantity(text: &CelString<'_>) -> CelBool {
    Quantity::parse(text).is_some().into()
}

fn sign(of: &Own<Quantity>) -> CelInt {
    (of.0.billionths.signum() as i64).into()
}

fn compare_to(one: &Own<Quantity>, other: &Own<Quantity>) -> CelInt {
    (one.0.billionths.cmp(&other.0.billionths) as i64).into()
}

fn is_greater_than(one: &Own<Quantity>, other: &Own<Quantity>) -> CelBool {
    (one.0.billionths > other.0.billionths).into()
}

fn is_less_than(one: &Own<Quantity>, other: &Own<Quantity>) -> CelBool {
    (one.0.billionths < other.0.billionths).into()
}

fn sum(function: &str, one: Quantity, other: Quantity) -> Result<Own<Quantity>, ExecutionError> {
    one.plus(other).map(Own).ok_or_else(|| failed(function, "the result is too large"))
}

fn plus(one: &Own<Quantity>, other: &Own<Quantity>) -> Result<Own<Quantity>, ExecutionError> {
    sum("add", one.0, other.0)
}

fn plus_units(one: &Own<Quantity>, units: &CelInt) -> Result<Own<Quantity>, ExecutionError> {
    sum("add", one.0, Quantity::whole(*units.inner()))
}

fn minus(one: &Own<Quantity>, other: &Own<Quantity>) -> Result<Own<Quantity>, ExecutionError> {
    sum("sub", one.0, other.0.negated())
}

fn minus_units(one: &Own<Quantity>, units: &CelInt) -> Result<Own<Quantity>, ExecutionError> {
    sum("sub", one.0, Quantity::whole(*units.inner()).negated())
}

fn is_integer(of: &Own<Quantity>) -> CelBool {
    of.0.is_whole.into()
}

fn as_integer(of: &Own<Quantity>) -> Result<CelInt, ExecutionError> {
    let units = of.0.is_whole.then(|| i64::try_from(of.0.billionths / ONE).ok()).flatten();
    units.map(CelInt::from).ok_or_else(|| failed("asInteger", "it is not written as a whole number of 64 bits"))
}

/// The nearest float. Kubernetes' can differ in the last digit.
fn as_approximate_float(of: &Own<Quantity>) -> CelDouble {
    let (units, rest) = (of.0.billionths / ONE, of.0.billionths % ONE);
    let float = if rest == 0 { units as f64 } else { of.0.billionths as f64 / ONE as f64 };
    float.into()
}
