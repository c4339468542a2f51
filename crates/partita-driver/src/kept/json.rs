//! The subset of JSON that calibration files need. A file is read as a whole or not at all, up to a
//! fixed depth.

use alloc::string::String;
use alloc::vec::Vec;

/// A JSON value. Calibrations only have whole, non-negative numbers; others are refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value {
    /// `null`.
    Null,
    /// `true` or `false`.
    Bool(bool),
    /// A whole number.
    Number(u64),
    /// A string.
    Text(String),
    /// An array.
    List(Vec<Value>),
    /// An object, in the file's order.
    Object(Vec<(String, Value)>),
}

/// Calibrations are not nested deeper.
const DEPTH_MAX: u32 = 16;

impl Value {
    /// Parses a text; `None` if it is not JSON, or has a kind of value that calibrations do not
    /// have.
    pub fn parse(text: &str) -> Option<Self> {
        let mut reader = Reader { rest: text };
        let value = reader.value(0)?;
        reader.skip_blanks();
        reader.rest.is_empty().then_some(value)
    }

    /// The member of an object.
    pub fn get(&self, key: &str) -> Option<&Self> {
        match self {
            Self::Object(members) => members.iter().find(|(name, _)| name == key).map(|(_, value)| value),
            _ => None,
        }
    }

    /// The text of a string.
    pub fn text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            _ => None,
        }
    }

    /// A number, if it fits.
    pub fn number<N: TryFrom<u64>>(&self) -> Option<N> {
        match self {
            Self::Number(number) => N::try_from(*number).ok(),
            _ => None,
        }
    }

    /// The items of an array.
    pub fn list(&self) -> Option<&[Self]> {
        match self {
            Self::List(items) => Some(items),
            _ => None,
        }
    }
}

struct Reader<'t> {
    rest: &'t str,
}

impl Reader<'_> {
    fn skip_blanks(&mut self) {
        self.rest = self.rest.trim_start_matches([' ', '\t', '\r', '\n']);
    }

    /// Consumes `word` if it comes next.
    fn take(&mut self, word: &str) -> bool {
        match self.rest.strip_prefix(word) {
            Some(rest) => {
                self.rest = rest;
                true
            }
            None => false,
        }
    }

    fn value(&mut self, depth: u32) -> Option<Value> {
        if depth > DEPTH_MAX {
            return None;
        }
        self.skip_blanks();
        match self.rest.chars().next()? {
            '{' => self.object(depth),
            '[' => self.list(depth),
            '"' => self.string().map(Value::Text),
            'n' => self.take("null").then_some(Value::Null),
            't' => self.take("true").then_some(Value::Bool(true)),
            'f' => self.take("false").then_some(Value::Bool(false)),
            _ => self.number(),
        }
    }

    fn object(&mut self, depth: u32) -> Option<Value> {
        let mut members = Vec::new();
        self.items('{', '}', |reader| {
            let key = reader.string()?;
            reader.skip_blanks();
            let value = reader.take(":").then(|| reader.value(depth + 1))??;
            members.push((key, value));
            Some(())
        })?;
        Some(Value::Object(members))
    }

    fn list(&mut self, depth: u32) -> Option<Value> {
        let mut items = Vec::new();
        self.items('[', ']', |reader| {
            items.push(reader.value(depth + 1)?);
            Some(())
        })?;
        Some(Value::List(items))
    }

    /// Items between two brackets, with commas between them.
    fn items(
        &mut self,
        open: char,
        close: char,
        mut item: impl FnMut(&mut Self) -> Option<()>,
    ) -> Option<()> {
        self.rest = self.rest.strip_prefix(open)?;
        self.skip_blanks();
        if let Some(rest) = self.rest.strip_prefix(close) {
            self.rest = rest;
            return Some(());
        }
        loop {
            self.skip_blanks();
            item(self)?;
            self.skip_blanks();
            if let Some(rest) = self.rest.strip_prefix(close) {
                self.rest = rest;
                return Some(());
            }
            self.rest = self.rest.strip_prefix(',')?;
        }
    }

    fn string(&mut self) -> Option<String> {
        self.rest = self.rest.strip_prefix('"')?;
        let mut text = String::new();
        loop {
            let mut chars = self.rest.chars();
            let c = chars.next()?;
            self.rest = chars.as_str();
            match c {
                '"' => return Some(text),
                '\\' => text.push(self.escape()?),
                c if c < ' ' => return None,
                c => text.push(c),
            }
        }
    }

    fn escape(&mut self) -> Option<char> {
        let mut chars = self.rest.chars();
        let c = chars.next()?;
        self.rest = chars.as_str();
        Some(match c {
            '"' | '\\' | '/' => c,
            'n' => '\n',
            't' => '\t',
            'r' => '\r',
            'b' => '\u{8}',
            'f' => '\u{c}',
            'u' => {
                // `from_str_radix` accepts a sign.
                let digits = self
                    .rest
                    .get(..4)
                    .filter(|digits| digits.bytes().all(|byte| byte.is_ascii_hexdigit()))?;
                self.rest = self.rest.get(4..)?;
                // Calibrations contain no surrogate pairs.
                char::from_u32(u32::from_str_radix(digits, 16).ok()?)?
            }
            _ => return None,
        })
    }

    fn number(&mut self) -> Option<Value> {
        let end = self.rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(self.rest.len());
        let (digits, rest) = self.rest.split_at_checked(end)?;
        if rest.starts_with(['.', 'e', 'E']) || (digits.len() > 1 && digits.starts_with('0')) {
            return None;
        }
        self.rest = rest;
        digits.parse().ok().map(Value::Number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn calibrations_are_read() {
        let value =
            Value::parse(r#" {"a": [1, 20, []], "b\n\u0041": "x\"y", "c": null, "d": {"e": true} } "#)
                .unwrap();
        let numbers: Option<Vec<u8>> =
            value.get("a").unwrap().list().unwrap()[..2].iter().map(Value::number).collect();
        assert_eq!(numbers.unwrap(), [1, 20]);
        assert_eq!(value.get("b\nA").unwrap().text(), Some("x\"y"));
        assert_eq!(value.get("c"), Some(&Value::Null));
        assert_eq!(value.get("d").unwrap().get("e"), Some(&Value::Bool(true)));
        assert_eq!(value.get("f"), None);
        assert_eq!(Value::parse("256").unwrap().number::<u8>(), None);
    }

    #[test]
    fn everything_else_is_refused() {
        for text in [
            "",
            "{",
            "[1,]",
            "{\"a\":}",
            "{\"a\" 1}",
            "01",
            "-1",
            "1.5",
            "1e3",
            "\"\\x\"",
            "\"",
            "\"\n\"",
            "tru",
            "1 2",
            "99999999999999999999",
            "\"\\ud800\"",
            "\"\\u00\"",
            "\"\\u+041\"",
            "{a:1}",
        ] {
            assert_eq!(Value::parse(text), None, "{text:?}");
        }
        assert_eq!(
            Value::parse(&"[".repeat(100_000)),
            None,
            "deep nesting is refused before the stack \
            overflows"
        );
    }

    proptest! {
        #[test]
        fn no_text_causes_a_panic(text in "[\\[\\]{}\",:0-9a-z\\\\ u\u{e9}]{0,60}") {
            let _ = Value::parse(&text);
        }
    }
}
