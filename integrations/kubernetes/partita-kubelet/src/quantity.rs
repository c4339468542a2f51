//! Quantities of Kubernetes, as whole numbers.

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

/// The suffixes, each with its factor as base and exponent.
const SUFFIXES: [(&str, i128, u32); 13] = [
    ("Ki", 1 << 10, 1),
    ("Mi", 1 << 10, 2),
    ("Gi", 1 << 10, 3),
    ("Ti", 1 << 10, 4),
    ("Pi", 1 << 10, 5),
    ("Ei", 1 << 10, 6),
    ("k", 1000, 1),
    ("M", 1000, 2),
    ("G", 1000, 3),
    ("T", 1000, 4),
    ("P", 1000, 5),
    ("E", 1000, 6),
    ("m", 1000, 0),
];

/// Whether a value is one of those from `least` to `most` in steps.
pub fn is_in_steps(value: u64, least: u64, step: u64, most: u64) -> bool {
    (least..=most).contains(&value) && (value - least).is_multiple_of(step)
}

/// The whole number that a quantity stands for.
///
/// # Errors
/// The text is not a quantity, or its value is negative, not whole, or larger than a `u64`.
pub fn whole(quantity: &Quantity) -> Result<u64, String> {
    let text = quantity.0.trim();
    let refuse = |reason: &str| format!("the quantity {text:?} {reason}");
    let suffix = SUFFIXES.iter().find(|(suffix, ..)| text.ends_with(suffix));
    let number = suffix.map_or(text, |(suffix, ..)| &text[..text.len() - suffix.len()]);
    let (mantissa, exponent) = match number.split_once(['e', 'E']) {
        Some((mantissa, exponent)) => {
            (mantissa, exponent.parse::<i32>().map_err(|_| refuse("is not a number"))?)
        }
        None => (number, 0),
    };
    let (units, decimals) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let digits = format!("{}{decimals}", units.strip_prefix('+').unwrap_or(units));
    if digits.starts_with('-') {
        return Err(refuse("is negative"));
    }
    if digits.is_empty() || digits.len() > 24 || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(refuse("is not a number"));
    }
    let mut value: i128 = digits.parse().map_err(|_| refuse("is not a number"))?;
    let mut tens = exponent.saturating_sub(decimals.len() as i32);
    match suffix {
        Some(("m", ..)) => tens = tens.saturating_sub(3),
        Some((_, base, power)) => {
            value = value.checked_mul(base.pow(*power)).ok_or_else(|| refuse("is too large"))?;
        }
        None => {}
    }
    if !(-40..=40).contains(&tens) {
        return Err(refuse("is out of range"));
    }
    for _ in 0..tens.max(0) {
        value = value.checked_mul(10).ok_or_else(|| refuse("is too large"))?;
    }
    for _ in tens..0 {
        if value % 10 != 0 {
            return Err(refuse("is not a whole number"));
        }
        value /= 10;
    }
    u64::try_from(value).map_err(|_| refuse("is too large"))
}

/// A count.
pub fn count(number: u64) -> Quantity {
    Quantity(number.to_string())
}

/// Whole MiB, the step of memory.
pub fn mebibytes(number: u64) -> Quantity {
    Quantity(format!("{number}Mi"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_forms_of_the_api_server_are_read() {
        for (text, value) in [
            ("0", 0),
            ("34", 34),
            ("40Gi", 40 << 30),
            ("1.5Gi", 3 << 29),
            ("143616Mi", 143_616 << 20),
            ("2k", 2000),
            ("1e3", 1000),
            ("5E", 5_000_000_000_000_000_000),
            ("12E2", 1200),
            ("4000m", 4),
            ("+7", 7),
        ] {
            assert_eq!(whole(&Quantity(text.to_owned())), Ok(value), "{text}");
        }
        for text in
            ["", "Gi", "-1", "1.5", "100m", "abc", "1e99", "99999999999999999999999999", "17Ei", "1 Gi"]
        {
            let said = whole(&Quantity(text.to_owned())).unwrap_err();
            assert!(said.contains(&format!("{text:?}")), "{said}");
        }
        assert_eq!(whole(&mebibytes(3)), Ok(3 << 20));
    }
}
