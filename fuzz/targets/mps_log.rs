//! Logs of the Multi-Process Service: any bytes are read, and mean the same however they are cut.
#![no_main]

use libfuzzer_sys::fuzz_target;
use partita_mps::fault::Tracker;
use partita_mps::log::LogReader;

fuzz_target!(|input: (Vec<u8>, Vec<u8>)| {
    let (log, cuts) = input;
    let mut reader = LogReader::new();
    let mut whole = reader.push(&log);
    whole.extend(reader.finish());

    let mut reader = LogReader::new();
    let mut pieces = Vec::new();
    let mut rest = log.as_slice();
    for cut in cuts {
        let (piece, after) = rest.split_at(usize::from(cut) % (rest.len() + 1));
        pieces.extend(reader.push(piece));
        rest = after;
    }
    pieces.extend(reader.push(rest));
    pieces.extend(reader.finish());
    assert!(whole == pieces, "{whole:?}\n{pieces:?}");

    let mut tracker = Tracker::new();
    for entry in &whole {
        tracker.apply(entry);
        if let Some(fault) = tracker.fault(entry.pid) {
            assert!(fault.hit.is_disjoint(&fault.spared) && fault.staying.is_subset(&fault.hit));
        }
    }
});
