use std::format;
use std::string::ToString;

use proptest::prelude::*;

use super::{ByteSize, SUFFIXES};

#[test]
fn forms() {
    for (text, bytes) in [
        ("0", 0),
        ("4096B", 4096),
        ("1KiB", 1 << 10),
        ("512MiB", 512 << 20),
        ("20GiB", 20 << 30),
        ("20 gib", 20 << 30),
        ("20Gi", 20 << 30),
        ("20G", 20 << 30),
        ("20g", 20 << 30),
        ("20m", 20 << 20),
        ("20k", 20 << 10),
        ("1TiB", 1 << 40),
        ("1PiB", 1 << 50),
        ("15EiB", 15 << 60),
        ("1.5GiB", 3 << 29),
        ("0.5k", 512),
        ("4096.0B", 4096),
        // 107 374 182.4, rounded down.
        ("0.1GiB", 107_374_182),
        ("18446744073709551615B", u64::MAX),
        ("0018446744073709551615B", u64::MAX),
        ("15.999999999999999999EiB", u64::MAX - 1),
    ] {
        assert_eq!(text.parse(), Ok(ByteSize(bytes)), "{text}");
    }
}

#[test]
fn what_is_no_size_says_why() {
    for (text, reason) in [
        ("", "it is empty"),
        ("-1GiB", "it is negative"),
        ("GiB", "`` is not a number"),
        (".5GiB", "`.5` is not a number"),
        ("5.GiB", "`5.` is not a number"),
        ("1.2.3GiB", "`1.2.3` is not a number"),
        ("1,5GiB", "`,5GiB` is not a unit"),
        ("20GB", "`GB` may mean powers of 1000 or of 1024, and `GiB` means 1024"),
        ("20x", "`x` is not a unit"),
        ("20GiBs", "`GiBs` is not a unit"),
        ("20bib", "`bib` is not a unit"),
        ("1.5B", "part of a byte"),
        ("40", "it has no unit"),
        ("1.5", "it has no unit"),
        ("0.1234567890123456789GiB", "more than 18 decimals"),
        ("16EiB", "more than 64 bits hold"),
        ("18446744073709551616B", "more than 64 bits hold"),
        ("99999999999999999999999GiB", "more than 64 bits hold"),
    ] {
        let error = text.parse::<ByteSize>().unwrap_err().to_string();
        assert!(error.starts_with(&format!("`{text}` is not a size: ")), "{error}");
        assert!(error.contains(reason), "{text}: {error}");
    }
}

#[test]
fn prints_the_shortest_exact_text() {
    for (bytes, text) in [
        (0, "0B"),
        (1, "1B"),
        (1000, "1000B"),
        (1023, "1023B"),
        (1024, "1KiB"),
        (1536, "1536B"),
        (4097, "4097B"),
        (10_240, "10KiB"),
        (12_800, "12800B"),
        (12_800 << 10, "12.5MiB"),
        (1536 << 20, "1.5GiB"),
        (1 << 20, "1MiB"),
        (20 << 30, "20GiB"),
        (2560 << 30, "2.5TiB"),
        (u64::MAX, "18446744073709551615B"),
    ] {
        assert_eq!(ByteSize(bytes).to_string(), text);
    }
    assert_eq!(format!("[{:>7}|{:<7}]", ByteSize(1024), ByteSize(2048)), "[   1KiB|2KiB   ]");
}

#[test]
fn approximates_for_people() {
    for (bytes, text) in [
        (0, "0B"),
        (1023, "1023B"),
        (1024, "1.0KiB"),
        (1100, "1.1KiB"),
        ((1 << 20) - 1, "1.0MiB"),
        (150_754_820_096, "140.4GiB"),
        (u64::MAX, "16.0EiB"),
    ] {
        assert_eq!(ByteSize(bytes).approximate().to_string(), text);
    }
}

proptest! {
    #[test]
    fn text_round_trips(bytes: u64, shift in 0..64u32, keep in 0..64u32) {
        // Of all magnitudes, and with runs of zeros below.
        let size = ByteSize((bytes >> shift) & (u64::MAX << keep));
        let text = size.to_string();
        prop_assert_eq!(text.parse(), Ok(size));
        prop_assert_eq!(text.to_lowercase().parse(), Ok(size));
        // No exact text of another unit is shorter: a check against far more decimals.
        for (unit, suffix) in SUFFIXES.iter().enumerate() {
            let (mut whole, mut rest, one) = (size.0, 0u128, 1u128 << (10 * unit));
            if unit > 0 {
                whole = (u128::from(size.0) / one) as u64;
                rest = u128::from(size.0) % one;
            }
            let mut exact = format!("{whole}");
            if rest > 0 {
                exact.push('.');
            }
            while rest > 0 {
                rest *= 10;
                exact.push_str(&format!("{}", rest / one));
                rest %= one;
            }
            exact.push_str(suffix);
            prop_assert!(text.len() <= exact.len(), "{text} {exact}");
        }
    }

    #[test]
    fn any_text_is_a_size_or_an_error(text in "[0-9]{0,6}[.]?[0-9]{0,4} ?[kmgtpebi]{0,3}|\\PC{0,8}") {
        if let Ok(size) = text.parse::<ByteSize>() {
            prop_assert_eq!(size.to_string().parse(), Ok(size));
        }
    }

    #[test]
    fn rounded_down_is_never_above_and_at_most_a_tenth_of_the_unit_below(bytes: u64, shift in 0..64u32) {
        let size = ByteSize(bytes >> shift);
        let read: ByteSize = size.rounded_down().parse().unwrap();
        let unit = size.0.checked_ilog2().map_or(1, |log| 1u64 << (log / 10 * 10));
        prop_assert!(read <= size && size.0 - read.0 <= unit / 10 + 1, "{size} {read}");
    }

    #[test]
    fn approximates_within_half_a_tenth(bytes: u64, shift in 0..54u32) {
        let bytes = bytes >> shift;
        let text = ByteSize(bytes).approximate().to_string();
        let parsed: ByteSize = text.parse().unwrap_or(ByteSize(u64::MAX));
        // Half a tenth of the unit is at most a twentieth of the size; of 1 KiB, some bytes more.
        prop_assert!(parsed.0.abs_diff(bytes) <= bytes / 20 + 1, "{text}");
    }
}
