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
        let width = |column: usize| {
            self.rows
                .iter()
                .filter_map(|row| row.get(column))
                .map(|cell| cell.chars().count())
                .max()
                .unwrap_or(0)
        };
        let widths: Vec<usize> = (0..self.right.len()).map(width).collect();
        let mut text = String::new();
        for row in &self.rows {
            let mut line = String::new();
            for (column, width) in widths.iter().enumerate() {
                let cell = row.get(column).map_or("", String::as_str);
                let blanks = " ".repeat(width - cell.chars().count());
                if column > 0 {
                    line.push_str("  ");
                }
                if self.right[column] {
                    line.push_str(&blanks);
                    line.push_str(cell);
                } else {
                    line.push_str(cell);
                    line.push_str(&blanks);
                }
            }
            text.push_str(line.trim_end());
            text.push('\n');
        }
        text
    }
}

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
    fn columns_align() {
        let mut table = Table::new(&["NAME", ">SMS", "COMMAND"]);
        table.row(["a".into(), "8".into(), "é x".into()]);
        table.row(["long".into(), "132".into(), String::new()]);
        assert_eq!(table.render(), "NAME  SMS  COMMAND\na       8  é x\nlong  132\n");
    }
}
