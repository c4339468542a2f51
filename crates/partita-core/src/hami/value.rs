//! Values of variables.

/// A number in decimal digits.
pub fn number(text: &[u8]) -> Option<u64> {
    if text.is_empty() || !text.iter().all(u8::is_ascii_digit) {
        return None;
    }
    core::str::from_utf8(text).ok()?.parse().ok()
}

/// A number of bytes, with g, m or k for powers of 1024.
pub fn bytes(text: &[u8]) -> Option<u64> {
    let (digits, shift) = match text.split_last()? {
        (b'g' | b'G', digits) => (digits, 30),
        (b'm' | b'M', digits) => (digits, 20),
        (b'k' | b'K', digits) => (digits, 10),
        _ => (text, 0),
    };
    number(digits)?.checked_mul(1 << shift)
}

/// Whether a switch is on.
pub fn is_true(text: &[u8]) -> bool {
    text == b"1" || text.eq_ignore_ascii_case(b"true")
}
