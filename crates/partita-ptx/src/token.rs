//! Words of PTX text.

use alloc::borrow::ToOwned;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use crate::error::{Position, PtxError};

/// The kind and content of a token.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Kind {
    /// An identifier.
    Name(String),
    /// A word with a leading dot: a directive or a modifier, without the dot.
    Dot(String),
    /// An integer.
    Integer(u64),
    /// The bits of a single-precision number.
    Single(u32),
    /// The bits of a double-precision number.
    Double(u64),
    /// A string, without the quotes.
    Text(String),
    /// A character of punctuation.
    Mark(char),
    /// The end of the text.
    End,
}

/// A token and its place.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Token {
    pub(crate) kind: Kind,
    pub(crate) at: Position,
    /// Offset of its first byte in the text.
    pub(crate) start: usize,
    /// Offset of the byte after its last.
    pub(crate) end: usize,
}

impl Token {
    /// As an error names it.
    pub(crate) fn subject(&self) -> String {
        match &self.kind {
            Kind::Name(name) => name.clone(),
            Kind::Dot(name) => format!(".{name}"),
            Kind::Integer(value) => value.to_string(),
            Kind::Single(bits) => format!("0f{bits:08x}"),
            Kind::Double(bits) => format!("0d{bits:016x}"),
            Kind::Text(text) => format!("\"{text}\""),
            Kind::Mark(mark) => mark.to_string(),
            Kind::End => String::new(),
        }
    }
}

fn starts_name(byte: u8) -> bool {
    byte.is_ascii_alphabetic() || matches!(byte, b'_' | b'$' | b'%')
}

fn continues_name(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'$')
}

/// Splits text into tokens; the last one is [`Kind::End`].
///
/// # Errors
/// A character that PTX does not have, a number out of range, a comment or string without end.
pub(crate) fn tokens(text: &str) -> Result<Vec<Token>, PtxError> {
    let mut reader =
        Reader { text, bytes: text.as_bytes(), at: 0, place: Position { line: 1, column: 1 }, placed: 0 };
    let mut tokens = Vec::new();
    loop {
        reader.skip_blanks()?;
        let (at, start) = (reader.position(), reader.at);
        let kind = reader.next(at)?;
        let is_end = kind == Kind::End;
        tokens.push(Token { kind, at, start, end: reader.at });
        if is_end {
            return Ok(tokens);
        }
    }
}

struct Reader<'a> {
    text: &'a str,
    bytes: &'a [u8],
    at: usize,
    /// The place of the byte at `placed`.
    place: Position,
    placed: usize,
}

impl Reader<'_> {
    fn peek(&self, ahead: usize) -> u8 {
        self.bytes.get(self.at + ahead).copied().unwrap_or(0)
    }

    /// The place of the next byte.
    fn position(&mut self) -> Position {
        let passed = self.text.get(self.placed..self.at).unwrap_or_default();
        for character in passed.chars() {
            if character == '\n' {
                self.place = Position { line: self.place.line + 1, column: 1 };
            } else {
                self.place.column += 1;
            }
        }
        self.placed = self.at;
        self.place
    }

    fn skip_blanks(&mut self) -> Result<(), PtxError> {
        loop {
            match (self.peek(0), self.peek(1)) {
                (b' ' | b'\t' | b'\r' | b'\n' | 0x0b | 0x0c, _) => self.at += 1,
                (b'/', b'/') => {
                    while self.at < self.bytes.len() && self.peek(0) != b'\n' {
                        self.at += 1;
                    }
                }
                (b'/', b'*') => {
                    let at = self.position();
                    self.at += 2;
                    while !(self.peek(0) == b'*' && self.peek(1) == b'/') {
                        if self.at >= self.bytes.len() {
                            return Err(PtxError::new(at, "/*", "the comment has no end"));
                        }
                        self.at += 1;
                    }
                    self.at += 2;
                }
                _ => return Ok(()),
            }
        }
    }

    fn name(&mut self) -> String {
        let start = self.at;
        self.at += 1;
        while continues_name(self.peek(0)) {
            self.at += 1;
        }
        self.text[start..self.at].to_owned()
    }

    fn next(&mut self, at: Position) -> Result<Kind, PtxError> {
        let byte = self.peek(0);
        if self.at >= self.bytes.len() {
            return Ok(Kind::End);
        }
        // A lone `%` would be an operator of constant expressions, which no compiler emits.
        if starts_name(byte) {
            return Ok(Kind::Name(self.name()));
        }
        if byte == b'.' && (starts_name(self.peek(1)) || self.peek(1).is_ascii_digit()) {
            self.at += 1;
            let mut name = self.name();
            // `.L1::evict_last` is one word.
            while self.peek(0) == b':' && self.peek(1) == b':' && continues_name(self.peek(2)) {
                self.at += 2;
                name.push_str("::");
                name.push_str(&self.name());
            }
            return Ok(Kind::Dot(name));
        }
        if byte.is_ascii_digit() {
            return self.number(at);
        }
        if byte == b'"' {
            let start = self.at + 1;
            self.at = start;
            while self.peek(0) != b'"' {
                if self.at >= self.bytes.len() || self.peek(0) == b'\n' {
                    return Err(PtxError::new(at, "\"", "the string has no end"));
                }
                self.at += if self.peek(0) == b'\\' && self.peek(1) != b'\n' { 2 } else { 1 };
            }
            let text = self.text.get(start..self.at).unwrap_or_default().to_owned();
            self.at += 1;
            return Ok(Kind::Text(text));
        }
        if b",;:{}()[]<>+-*/%&|^~!?@=".contains(&byte) {
            self.at += 1;
            return Ok(Kind::Mark(byte as char));
        }
        let unknown = self.text[self.at..].chars().next().unwrap_or_default();
        Err(PtxError::new(at, unknown.to_string(), "PTX has no such character"))
    }

    fn number(&mut self, at: Position) -> Result<Kind, PtxError> {
        let start = self.at;
        while continues_name(self.peek(0))
            || (self.peek(0) == b'.' && self.peek(1).is_ascii_digit())
            || (matches!(self.peek(0), b'+' | b'-') && self.is_exponent(start))
        {
            self.at += 1;
        }
        let word = &self.text[start..self.at];
        let bad = |reason: &str| PtxError::new(at, word, reason);
        let radix = |digits: &str, radix| {
            let digits = digits.strip_suffix(['U', 'u']).unwrap_or(digits);
            u64::from_str_radix(digits, radix).map_err(|_| bad("not an integer of 64 bits"))
        };
        let lower = word.to_ascii_lowercase();
        if let Some(digits) = lower.strip_prefix("0x") {
            return radix(digits, 16).map(Kind::Integer);
        }
        if let Some(digits) = lower.strip_prefix("0b") {
            return radix(digits, 2).map(Kind::Integer);
        }
        if let Some(digits) = lower.strip_prefix("0f") {
            let bits = u32::from_str_radix(digits, 16).ok().filter(|_| digits.len() == 8);
            return bits.map(Kind::Single).ok_or_else(|| bad("0f takes eight hexadecimal digits"));
        }
        if let Some(digits) = lower.strip_prefix("0d") {
            let bits = u64::from_str_radix(digits, 16).ok().filter(|_| digits.len() == 16);
            return bits.map(Kind::Double).ok_or_else(|| bad("0d takes sixteen hexadecimal digits"));
        }
        if lower.contains(['.', 'e']) {
            let value: f64 = lower.parse().map_err(|_| bad("not a number"))?;
            return Ok(Kind::Double(value.to_bits()));
        }
        let octal = lower.len() > 1 && lower.starts_with('0');
        radix(&lower, if octal { 8 } else { 10 }).map(Kind::Integer)
    }

    /// Whether the sign here belongs to the exponent of the decimal number from `start`.
    fn is_exponent(&self, start: usize) -> bool {
        let word = &self.bytes[start..self.at];
        matches!(word.last(), Some(b'e' | b'E'))
            && self.peek(1).is_ascii_digit()
            && word[..word.len() - 1].iter().all(|byte| byte.is_ascii_digit() || *byte == b'.')
    }
}
