//! What the user has chosen with keys: pure, from keys to the next state and to actions.

use super::rows::{Row, RowKey, Sort};

/// A key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Key {
    Up,
    Down,
    Enter,
    Escape,
    Backspace,
    Char(char),
}

/// What the keys ask for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    Quit,
    /// Run `partita` with these arguments.
    Run(Vec<String>),
}

/// What the keys mean now.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Mode {
    /// Commands.
    #[default]
    Rows,
    /// Anything leaves the help.
    Help,
    /// The answer to the question for a new size.
    Resize { name: String, option: &'static str, text: String },
    /// The answer to the question whether to end a tenant.
    End { name: String },
}

/// The state.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct View {
    pub sort: Sort,
    pub selected: Option<RowKey>,
    pub mode: Mode,
    /// The result of the last action, or why there is no new look.
    pub message: Option<String>,
}

/// The longest answer, in characters.
const ANSWER_MAX: usize = 40;

/// The keys of some bytes from a terminal.
pub fn keys(bytes: &[u8]) -> Vec<Key> {
    let text = String::from_utf8_lossy(bytes);
    let mut rest = text.as_ref();
    let mut keys = Vec::new();
    while let Some(first) = rest.chars().next() {
        let sequences =
            [("\x1b[A", Key::Up), ("\x1bOA", Key::Up), ("\x1b[B", Key::Down), ("\x1bOB", Key::Down)];
        let found =
            sequences.into_iter().find_map(|(sequence, key)| Some((rest.strip_prefix(sequence)?, key)));
        if let Some((after, key)) = found {
            keys.push(key);
            rest = after;
            continue;
        }
        if let Some(sequence) = rest.strip_prefix("\x1b[") {
            // Another key of the terminal, up to its final letter.
            let end = sequence.find(|c: char| ('@'..='~').contains(&c)).map_or(sequence.len(), |at| at + 1);
            rest = sequence.get(end..).unwrap_or_default();
            continue;
        }
        rest = &rest[first.len_utf8()..];
        keys.extend(match first {
            '\x1b' => Some(Key::Escape),
            '\r' | '\n' => Some(Key::Enter),
            '\x7f' | '\x08' => Some(Key::Backspace),
            c if c.is_control() || c == char::REPLACEMENT_CHARACTER => None,
            c => Some(Key::Char(c)),
        });
    }
    keys
}

impl View {
    /// The place of the selected tenant among the rows; the first if it has gone.
    pub fn place(&self, rows: &[Row]) -> usize {
        let is_it = |row: &Row| self.selected.as_ref() == Some(&row.key());
        rows.iter().position(is_it).unwrap_or(0)
    }

    /// Handles a key.
    pub fn key(&mut self, key: Key, rows: &[Row]) -> Option<Action> {
        match (&mut self.mode, key) {
            (Mode::Rows, key) => return self.command(key, rows),
            (Mode::Help, _) => self.mode = Mode::Rows,
            (_, Key::Escape) => self.mode = Mode::Rows,
            (Mode::Resize { text, .. }, Key::Backspace) => drop(text.pop()),
            (Mode::Resize { text, .. }, Key::Char(c)) if text.chars().count() < ANSWER_MAX => text.push(c),
            (Mode::Resize { name, option, text }, Key::Enter) => {
                let action = (!text.trim().is_empty()).then(|| {
                    let limit = format!("--{option}={}", text.trim());
                    Action::Run(vec!["set".to_owned(), limit, "--".to_owned(), name.clone()])
                });
                self.mode = Mode::Rows;
                return action;
            }
            (Mode::End { name }, Key::Char('y')) => {
                let action = Action::Run(vec!["kill".to_owned(), "--".to_owned(), name.clone()]);
                self.mode = Mode::Rows;
                return Some(action);
            }
            (Mode::End { .. }, _) => self.mode = Mode::Rows,
            (Mode::Resize { .. }, _) => {}
        }
        None
    }

    fn command(&mut self, key: Key, rows: &[Row]) -> Option<Action> {
        let place = self.place(rows);
        // What a key is about stays selected, also where no arrow has chosen it.
        self.select(rows, place);
        let selected = rows.get(place);
        self.message = None;
        match key {
            Key::Char('q') => return Some(Action::Quit),
            Key::Up | Key::Char('k') => self.select(rows, place.saturating_sub(1)),
            Key::Down | Key::Char('j') => self.select(rows, (place + 1).min(rows.len().saturating_sub(1))),
            Key::Char('s') => self.sort = self.sort.next(),
            Key::Char('h' | '?') => self.mode = Mode::Help,
            Key::Char('r') => {
                if let Some(row) = selected {
                    let in_turns = row.tenant.via.as_deref() == Some("time");
                    let option = if in_turns { "time" } else { "sm" };
                    self.mode = Mode::Resize { name: row.tenant.name.clone(), option, text: String::new() };
                }
            }
            Key::Char('e') => {
                if let Some(row) = selected {
                    self.mode = Mode::End { name: row.tenant.name.clone() };
                }
            }
            _ => {}
        }
        None
    }

    fn select(&mut self, rows: &[Row], place: usize) {
        self.selected = rows.get(place).map(Row::key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::top::reading::Tenant;
    use proptest::prelude::*;

    fn rows(names: &[&str]) -> Vec<Row> {
        let row = |name: &&str| {
            let via = if name.starts_with('t') { "time" } else { "mask" };
            let tenant = Tenant { name: (*name).to_owned(), via: Some(via.to_owned()), ..Tenant::default() };
            Row { tenant, ..Row::default() }
        };
        names.iter().map(row).collect()
    }

    fn type_in(view: &mut View, rows: &[Row], text: &str) -> Vec<Action> {
        keys(text.as_bytes()).into_iter().filter_map(|key| view.key(key, rows)).collect()
    }

    fn run(words: &[&str]) -> Action {
        Action::Run(words.iter().map(|word| (*word).to_owned()).collect())
    }

    #[test]
    fn keys_are_read_from_a_terminals_bytes() {
        assert_eq!(
            keys(b"\x1b[A\x1bOBq\r\x7f"),
            [Key::Up, Key::Down, Key::Char('q'), Key::Enter, Key::Backspace]
        );
        // Keys without a meaning here, an escape alone, and bytes that are no text.
        assert_eq!(keys(b"\x1b[5~\x1b[1;5Cx"), [Key::Char('x')]);
        assert_eq!(keys(b"\x1b"), [Key::Escape]);
        assert_eq!(keys(b"\xff\x01a"), [Key::Char('a')]);
    }

    #[test]
    fn a_tenant_is_resized_and_ended_after_a_question() {
        let rows = rows(&["a", "b", "turns"]);
        let mut view = View::default();
        assert_eq!(type_in(&mut view, &rows, "jr30x\x7f%\r"), [run(&["set", "--sm=30%", "--", "b"])]);
        // One that takes turns has a share of time.
        assert_eq!(type_in(&mut view, &rows, "\x1b[Br20%\r"), [run(&["set", "--time=20%", "--", "turns"])]);
        assert_eq!(type_in(&mut view, &rows, "kkke"), []);
        assert_eq!(view.mode, Mode::End { name: "a".to_owned() });
        assert_eq!(type_in(&mut view, &rows, "n"), []);
        assert_eq!(type_in(&mut view, &rows, "ey"), [run(&["kill", "--", "a"])]);
        // An empty answer and Escape change nothing.
        assert_eq!(type_in(&mut view, &rows, "r\r"), []);
        assert_eq!(type_in(&mut view, &rows, "r30%\x1b"), []);
        assert_eq!(view.mode, Mode::Rows);
        assert_eq!(type_in(&mut view, &rows, "hqq"), [Action::Quit]);
    }

    #[test]
    fn the_question_is_about_the_tenant_that_was_selected_then() {
        let before = rows(&["a", "b"]);
        let mut view = View::default();
        type_in(&mut view, &before, "je");
        // It has ended meanwhile, and the rows have moved.
        assert_eq!(type_in(&mut view, &rows(&["a", "c"]), "y"), [run(&["kill", "--", "b"])]);
    }

    proptest! {
        #[test]
        fn no_keys_break_it_and_nothing_ends_without_a_yes(bytes in prop::collection::vec(any::<u8>(), 0..60)) {
            let mut view = View::default();
            let rows = rows(&["a", "b", "turns"]);
            for key in keys(&bytes) {
                let was = view.mode.clone();
                let action = view.key(key, &rows);
                if let Some(Action::Run(words)) = &action {
                    match words[0].as_str() {
                        "kill" => {
                            let was_asked = matches!(was, Mode::End { .. });
                            prop_assert!(was_asked && key == Key::Char('y'));
                        }
                        _ => {
                            let was_asked = matches!(was, Mode::Resize { .. });
                            prop_assert!(was_asked && key == Key::Enter);
                        }
                    }
                }
                prop_assert!(view.place(&rows) < rows.len());
            }
        }

        #[test]
        fn the_selection_stays_with_its_tenant(order in Just(vec!["a", "b", "c", "d"]).prop_shuffle(), down in 0usize..4) {
            let mut view = View::default();
            let first = rows(&["a", "b", "c", "d"]);
            (0..down).for_each(|_| drop(view.key(Key::Down, &first)));
            let selected = first[view.place(&first)].key();
            let later = rows(&order);
            if down > 0 {
                prop_assert_eq!(later[view.place(&later)].key(), selected);
            }
        }
    }
}
