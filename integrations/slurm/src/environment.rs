//! What `partita batch task-prolog` prints: lines for Slurm's TaskProlog.

use std::ffi::CString;

/// A change of a task's environment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// `export NAME=VALUE`.
    Set(CString, CString),
    /// `unset NAME`.
    Unset(CString),
    /// `print LINE`.
    Print(String),
}

/// The changes that these lines describe. Slurm ignores lines of other forms, and so does this.
///
/// # Errors
/// A null byte in a name or a value.
pub fn changes(lines: &str) -> Result<Vec<Change>, String> {
    let text = |text: &str| {
        CString::new(text).map_err(|_| format!("a variable of the job has a null byte: {text:?}"))
    };
    let mut found = Vec::new();
    for line in lines.lines() {
        let Some((word, rest)) = line.split_once(' ') else { continue };
        match (word, rest.split_once('=')) {
            ("export", Some((name, value))) => found.push(Change::Set(text(name)?, text(value)?)),
            ("unset", _) => found.push(Change::Unset(text(rest.trim())?)),
            ("print", _) => found.push(Change::Print(rest.to_owned())),
            _ => {}
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_a_task_prolog_are_changes() {
        let lines = "export A=1=2\nprint say so\nunset B\nexport C\nnoise\n\nexport D=\n";
        let c = |text: &str| CString::new(text).unwrap();
        assert_eq!(
            changes(lines).unwrap(),
            [
                Change::Set(c("A"), c("1=2")),
                Change::Print("say so".to_owned()),
                Change::Unset(c("B")),
                Change::Set(c("D"), c("")),
            ]
        );
        assert!(changes("export A=\0").is_err());
    }
}
