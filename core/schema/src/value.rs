//! JSON values as JSON Schema compares them: numbers by value, not by notation.

use std::cmp::Ordering;
use std::hash::{DefaultHasher, Hash as _, Hasher};

use serde_json::{Number, Value};

/// The types of JSON Schema, as a set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Types(u8);

const NAMES: [(&str, u8); 7] =
    [("null", 1), ("boolean", 2), ("integer", 4), ("number", 8 | 4), ("string", 16), ("array", 32), ("object", 64)];

impl Types {
    pub(super) const NONE: Self = Self(0);

    pub(super) fn named(name: &str) -> Option<Self> {
        NAMES.iter().find(|(known, _)| *known == name).map(|(_, bits)| Self(*bits))
    }

    pub(super) fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    pub(super) fn holds(self, value: &Value) -> bool {
        let bits = match value {
            Value::Null => 1,
            Value::Bool(_) => 2,
            Value::Number(number) if integer(number).is_some() => 4,
            Value::Number(_) => 8,
            Value::String(_) => 16,
            Value::Array(_) => 32,
            Value::Object(_) => 64,
        };
        self.0 & bits != 0
    }

    pub(super) fn names(self) -> Vec<&'static str> {
        let names = NAMES.iter().filter(|(_, bits)| self.0 & bits == *bits).map(|(name, _)| *name);
        names.filter(|name| *name != "integer" || self.0 & 8 == 0).collect()
    }
}

/// The integer value of a number in any notation, if it is exact.
fn exact(number: &Number) -> Option<i128> {
    if let Some(number) = number.as_i64() {
        return Some(number.into());
    }
    if let Some(number) = number.as_u64() {
        return Some(number.into());
    }
    let number = number.as_f64()?;
    #[allow(clippy::cast_possible_truncation, reason = "it lies within")]
    (number.fract() == 0.0 && number.abs() < 1e37).then_some(number as i128)
}

/// Whether a number is an integer, and its value as a float.
pub(super) fn integer(number: &Number) -> Option<f64> {
    let float = number.as_f64()?;
    (float.fract() == 0.0).then_some(float)
}

pub(super) fn compare(one: &Number, other: &Number) -> Ordering {
    match (exact(one), exact(other)) {
        (Some(one), Some(other)) => one.cmp(&other),
        // One of them has a fraction, or is so large that floats are all there is.
        _ => float(one).total_cmp(&float(other)),
    }
}

fn float(number: &Number) -> f64 {
    number.as_f64().unwrap_or(f64::NAN)
}

/// Whether a number is a multiple of another one, both as they are written in decimal: 0.0075 is a multiple of 0.0001.
/// `of` is greater than 0.
pub(super) fn is_multiple(number: &Number, of: &Number) -> bool {
    let ((digits, exponent), (of, of_exponent)) = (decimal(number), decimal(of));
    let (digits, of) = (u128::from(digits), u128::from(of));
    match u32::try_from(exponent - of_exponent) {
        Ok(shift) => (digits % of * power_of_ten(shift, of)).is_multiple_of(of),
        Err(_) => {
            let shifted = 10_u128.checked_pow(of_exponent.abs_diff(exponent)).and_then(|power| power.checked_mul(of));
            shifted.map_or(digits == 0, |of| digits.is_multiple_of(of))
        }
    }
}

/// The digits of a number without its sign, and the power of ten to multiply them with.
fn decimal(number: &Number) -> (u64, i32) {
    if let Some(number) = number.as_u64().or(number.as_i64().map(i64::unsigned_abs)) {
        return (number, 0);
    }
    // The shortest text that gives the same float: at most 17 digits.
    let text = format!("{:e}", float(number).abs());
    let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    let digits = format!("{whole}{fraction}").parse().unwrap_or(0);
    let places = i32::try_from(fraction.len()).unwrap_or(0);
    (digits, exponent.parse::<i32>().unwrap_or(0) - places)
}

/// A power of ten modulo a number of 64 bits.
fn power_of_ten(mut exponent: u32, modulus: u128) -> u128 {
    let (mut power, mut base) = (1 % modulus, 10 % modulus);
    while exponent > 0 {
        if exponent % 2 == 1 {
            power = power * base % modulus;
        }
        base = base * base % modulus;
        exponent /= 2;
    }
    power
}

pub(super) fn same(one: &Value, other: &Value) -> bool {
    match (one, other) {
        (Value::Number(one), Value::Number(other)) => compare(one, other) == Ordering::Equal,
        (Value::Array(one), Value::Array(other)) => {
            one.len() == other.len() && one.iter().zip(other).all(|(one, other)| same(one, other))
        }
        (Value::Object(one), Value::Object(other)) => {
            one.len() == other.len()
                && one.iter().all(|(name, one)| other.get(name).is_some_and(|other| same(one, other)))
        }
        (one, other) => one == other,
    }
}

/// The same for values that are the same. Gives how many parts were looked at, too.
pub(super) fn hash(value: &Value) -> (u64, u64) {
    let (mut hasher, mut parts) = (DefaultHasher::new(), 0);
    add(value, &mut hasher, &mut parts);
    (hasher.finish(), parts)
}

fn add(value: &Value, hasher: &mut DefaultHasher, parts: &mut u64) {
    *parts += 1;
    match value {
        Value::Null => 0_u8.hash(hasher),
        Value::Bool(value) => (1_u8, value).hash(hasher),
        Value::Number(number) => match exact(number) {
            Some(number) => (2_u8, number).hash(hasher),
            None => (3_u8, float(number).to_bits()).hash(hasher),
        },
        Value::String(text) => {
            *parts += text.len() as u64 / 8;
            (4_u8, text).hash(hasher);
        }
        Value::Array(items) => {
            (5_u8, items.len()).hash(hasher);
            items.iter().for_each(|item| add(item, hasher, parts));
        }
        Value::Object(members) => {
            (6_u8, members.len()).hash(hasher);
            // Their order has no meaning.
            let all = members.iter().fold(0_u64, |all, (name, value)| {
                let mut member = DefaultHasher::new();
                name.hash(&mut member);
                *parts += 1 + name.len() as u64 / 8;
                add(value, &mut member, parts);
                all.wrapping_add(member.finish())
            });
            all.hash(hasher);
        }
    }
}
