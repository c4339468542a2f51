//! Logs with any bytes, cut anywhere.

use partita_mps::fault::Tracker;
use partita_mps::log::{Entry, Line, LogReader};
use proptest::prelude::*;

/// Lines of every kind that logs have, and some that they do not have.
const LINES: [&str; 16] = [
    "[2013-08-05 12:50:23.347 Control 13894] Starting new server 13929 for user 500",
    "[2013-08-05 12:50:24.870 Control 13894] NEW SERVER 13929: Ready",
    "[2013-08-05 13:02:10.866 Control 13894] NEW CLIENT 19276 from user 500: Server already exists",
    "[2013-08-05 13:00:09.269 Server 13929] New client 14781 connected",
    "[2013-08-05 13:00:09.270 Server 13929] Client 14781 disconnected",
    "[2022-04-28 15:56:07.410 Other 11570] Volta MPS: status of client {11661, 1} is ACTIVE",
    "[2022-04-28 15:56:08.906 Other 11570] Volta MPS: Server is handling a fatal GPU error.",
    "[2022-04-28 15:56:08.906 Other 11570] Volta MPS: The following devices",
    "[2022-04-28 15:56:08.906 Other 11570] 0",
    "[2022-04-28 15:56:08.907 Other 11570] Volta MPS: The following clients have a sticky error set:",
    "[2022-04-28 15:56:08.907 Other 11570] 11661",
    "[2022-04-28 15:56:10.310 Other 11570] Volta MPS: Creating server context on device 0",
    "[2026-11-21 01:43:39.056 Server  1201] Client {PID: 1199, Context ID: 1} connected",
    "",
    "é\u{0}]",
    "[2026-11-21 01:43:39.056 Server  1201]",
];

fn whole(bytes: &[u8]) -> Vec<Entry> {
    let mut reader = LogReader::new();
    let mut entries = reader.push(bytes);
    entries.extend(reader.finish());
    entries
}

fn in_pieces(bytes: &[u8], cuts: &[usize]) -> Vec<Entry> {
    let mut reader = LogReader::new();
    let mut entries = Vec::new();
    let mut rest = bytes;
    for cut in cuts {
        let (piece, after) = rest.split_at(cut % (rest.len() + 1));
        entries.extend(reader.push(piece));
        rest = after;
    }
    entries.extend(reader.push(rest));
    entries.extend(reader.finish());
    entries
}

proptest! {
    #[test]
    fn any_bytes_are_read(bytes in prop::collection::vec(any::<u8>(), 0..2000), cuts in prop::collection::vec(0usize..99, 0..20)) {
        prop_assert_eq!(whole(&bytes), in_pieces(&bytes, &cuts));
    }

    #[test]
    fn any_text_is_taken_apart_or_not(text in "\\[?[0-9]{0,4}-?.{0,40}\\]? ?.{0,80}") {
        let _ = Line::parse(&text);
    }

    #[test]
    fn events_survive_any_cutting(
        lines in prop::collection::vec(prop::sample::select(&LINES[..]), 0..60),
        cuts in prop::collection::vec(0usize..200, 0..60),
    ) {
        let log = lines.join("\n");
        let entries = whole(log.as_bytes());
        prop_assert_eq!(&entries, &in_pieces(log.as_bytes(), &cuts));
        let mut tracker = Tracker::new();
        for entry in &entries {
            tracker.apply(entry);
        }
    }
}
