//! Plain aligned columns, easy to read and to cut.

use partita::escape::escape;

/// Rows below a head, each column as wide as its widest cell, two blanks between.
#[derive(Debug)]
pub struct Table {
    rows: Vec<Vec<String>>,
    right: Vec<bool>,
}

impl Table {
    /// A table with these heads. A head that begins with `>` has a column aligned to the right.
    pub fn new(heads: &[&str]) -> Self {
        let right = heads.iter().map(|head| head.starts_with('>')).collect();
        let heads = heads.iter().map(|head| head.trim_start_matches('>').to_owned()).collect();
        Self { rows: vec![heads], right }
    }

    /// Adds a row. Missing cells are empty.
    /// Text of other users must not steer the terminal or look like another row.
    pub fn row<const N: usize>(&mut self, cells: [String; N]) {
        self.rows.push(cells.iter().map(|cell| escape(cell).into_owned()).collect());
    }

    /// The table as text.
    pub fn render(&self) -> String {
        self.lines(&self.columns())
    }

    /// The table in lines of so many characters, if that is possible: without the columns that
    /// `least` names, the first of them first, until the last column has room for its head or
    /// more. The last column is cut to what is left.
    pub fn fit(&self, width: usize, least: &[&str]) -> String {
        let mut columns = self.columns();
        let Some(last) = self.right.len().checked_sub(1) else { return String::new() };
        let room = |columns: &[(usize, usize)]| {
            let taken: usize =
                columns.iter().filter(|(column, _)| *column != last).map(|(_, wide)| wide + GAP).sum();
            width.saturating_sub(taken)
        };
        for name in least {
            let needed = self.width(last).min(LAST_MIN);
            if room(&columns) >= needed {
                break;
            }
            columns.retain(|(column, _)| self.rows[0][*column] != *name || *column == last);
        }
        let left = room(&columns).max(self.rows[0][last].chars().count());
        for (column, wide) in &mut columns {
            if *column == last {
                *wide = left.min(*wide);
            }
        }
        self.lines(&columns)
    }

    /// How wide a column is.
    fn width(&self, column: usize) -> usize {
        let cells = self.rows.iter().filter_map(|row| row.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    }

    /// Every column with its width.
    fn columns(&self) -> Vec<(usize, usize)> {
        (0..self.right.len()).map(|column| (column, self.width(column))).collect()
    }

    fn lines(&self, columns: &[(usize, usize)]) -> String {
        let mut text = String::new();
        for row in &self.rows {
            let mut line = String::new();
            for (index, (column, width)) in columns.iter().enumerate() {
                let cell = shorten(row.get(*column).map_or("", String::as_str), *width);
                let blanks = " ".repeat(width - cell.chars().count());
                if index > 0 {
                    line.push_str(&" ".repeat(GAP));
                }
                let (before, after) = if self.right[*column] { (&*blanks, "") } else { ("", &*blanks) };
                line.extend([before, &cell, after]);
            }
            text.push_str(line.trim_end());
            text.push('\n');
        }
        text
    }
}

/// Blanks between two columns.
const GAP: usize = 2;
/// The last column gets at least so many characters, if it needs them, before another column goes.
const LAST_MIN: usize = 11;

/// The text without control characters, cut to a number of characters.
pub fn shorten(text: &str, chars_max: usize) -> String {
    let clean: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    match clean.char_indices().nth(chars_max) {
        Some(_) => clean.chars().take(chars_max - 1).chain(['…']).collect(),
        None => clean,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_and_hostile_texts_are_cut() {
        assert_eq!(shorten("abcd", 4), "abcd");
        assert_eq!(shorten("abcde", 4), "abc…");
        assert_eq!(shorten("a\x1b[2Jb\n", 10), "a [2Jb ");
    }

    #[test]
    fn a_narrow_terminal_gets_fewer_columns_and_short_commands() {
        let mut table = Table::new(&["NAME", "USER", ">SMS", "COMMAND"]);
        table.row(["serve".into(), "root".into(), "132".into(), "python3 serve.py --port 80".into()]);
        assert_eq!(table.fit(200, &["USER"]), table.render());
        let fitted = table.fit(30, &["USER", "SMS"]);
        assert_eq!(fitted, "NAME   USER  SMS  COMMAND\nserve  root  132  python3 ser…\n");
        assert_eq!(table.fit(26, &["USER", "SMS"]), "NAME   SMS  COMMAND\nserve  132  python3 serve…\n");
        // No column is left to leave out.
        assert_eq!(table.fit(3, &["USER"]), "NAME   SMS  COMMAND\nserve  132  python…\n");
        for width in 19..60 {
            for line in table.fit(width, &["USER", "SMS"]).lines() {
                assert!(line.chars().count() <= width, "{width}: {line}");
            }
        }
    }

    #[test]
    fn columns_align() {
        let mut table = Table::new(&["NAME", ">SMS", "COMMAND"]);
        table.row(["a".into(), "8".into(), "é x".into()]);
        table.row(["long".into(), "132".into(), String::new()]);
        assert_eq!(table.render(), "NAME  SMS  COMMAND\na       8  é x\nlong  132\n");
    }
}
