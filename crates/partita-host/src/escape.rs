//! Text of other users, made harmless for terminals.

use std::borrow::Cow;

use serde_json::Value;

/// The text with every character escaped that moves a terminal's cursor, changes its state, or
/// makes text look like other text.
pub fn escape(text: &str) -> Cow<'_, str> {
    if !text.contains(is_harmful) {
        return text.into();
    }
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        if is_harmful(character) {
            escaped.extend(character.escape_default());
        } else {
            escaped.push(character);
        }
    }
    escaped.into()
}

/// Control characters, and those that change the direction of text or have no width.
fn is_harmful(character: char) -> bool {
    character.is_control()
        || matches!(character, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
}

/// Escapes every text in a value; the names of fields are the reader's own.
pub(crate) fn escape_all(value: &mut Value) {
    match value {
        Value::String(text) => {
            if let Cow::Owned(escaped) = escape(text) {
                *text = escaped;
            }
        }
        Value::Array(values) => values.iter_mut().for_each(escape_all),
        Value::Object(fields) => fields.values_mut().for_each(escape_all),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_steers_a_terminal_is_escaped() {
        for text in ["", "plain", "GPU 0 (NVIDIA H200)", "Ü–€"] {
            assert_eq!(escape(text), text);
        }
        assert_eq!(escape("a\x1b[2J\nb\u{9b}\u{202e}"), "a\\u{1b}[2J\\nb\\u{9b}\\u{202e}");
        let mut value = serde_json::json!({ "a": ["\t", { "b": "\x07" }], "c": 1 });
        escape_all(&mut value);
        assert_eq!(value, serde_json::json!({ "a": ["\\t", { "b": "\\u{7}" }], "c": 1 }));
    }
}
