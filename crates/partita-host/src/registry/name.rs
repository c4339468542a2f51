//! Names of tenants.

use partita_ledger::NAME_BYTES_MAX;

use crate::error::Error;

/// Checks that `name` may name a tenant: 1 to 63 letters, digits, dots,
/// underscores and hyphens, the first a letter or a digit. A name is a
/// directory's name, an argument and a label of metrics.
///
/// # Errors
/// [`Error::Name`].
pub fn check_name(name: &str) -> Result<(), Error> {
    let refuse = |reason| Err(Error::Name { name: name.to_owned(), reason });
    if name.is_empty() {
        return refuse("it is empty");
    }
    if name.len() > NAME_BYTES_MAX {
        return refuse("it is too long");
    }
    if !name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte)) {
        return refuse("a character of it is not allowed");
    }
    if !name.as_bytes()[0].is_ascii_alphanumeric() {
        return refuse("it does not begin with a letter or a digit");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_directory_names_and_arguments() {
        for name in ["a", "train", "A.b_c-9", "0", &"x".repeat(63)] {
            check_name(name).unwrap();
        }
        for name in ["", ".", "..", ".lock", "-x", "_x", "a/b", "a b", "ü", "a\0", "a\n", &"x".repeat(64)] {
            let error = check_name(name).unwrap_err().to_string();
            assert!(error.contains(&format!("{name:?}")), "{error}");
        }
    }
}
