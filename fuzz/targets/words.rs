//! What people write: whatever is understood is written again so that it means the same, and
//! nothing panics.
#![no_main]

use std::fmt::Display;
use std::str::FromStr;

use libfuzzer_sys::fuzz_target;
use partita::gpu::Selector;
use partita::gpus::Selectors;
use partita_core::{ByteSize, Share, TpcSet};

fn means_the_same_again<T: FromStr + Display + PartialEq>(text: &str) {
    if let Ok(value) = text.parse::<T>() {
        let shown = value.to_string();
        match shown.parse::<T>() {
            Ok(again) => assert!(again == value, "{text:?} is shown as {shown:?}, which means something else"),
            Err(_) => panic!("{text:?} is shown as {shown:?}, which is not understood"),
        }
    }
}

fuzz_target!(|text: &str| {
    means_the_same_again::<Share>(text);
    means_the_same_again::<TpcSet>(text);
    means_the_same_again::<ByteSize>(text);
    let _ = text.parse::<Selector>();
    let _ = text.parse::<Selectors>();
});
