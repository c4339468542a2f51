//! The tokens of clients on TCP.

use std::fs::File;
use std::hint::black_box;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Fewer bytes can be guessed.
const BYTES_MIN: usize = 16;
const BYTES_MAX: usize = 1024;

/// The token.
pub struct Token(Vec<u8>);

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Token")
    }
}

/// Why there is no token.
#[derive(Debug, thiserror::Error)]
#[error("--{option} {}: {reason}", .path.display())]
pub struct TokenError {
    option: &'static str,
    path: PathBuf,
    reason: String,
}

impl Token {
    /// Reads the token in a file: its content without surrounding space, at least 16 printable
    /// characters.
    ///
    /// `option`: the option that names the file, for messages.
    ///
    /// # Errors
    /// If other users can read the file, or it contains no valid token.
    pub fn read(option: &'static str, path: &Path) -> Result<Self, TokenError> {
        let refuse = |reason: String| TokenError { option, path: path.to_owned(), reason };
        let file = File::open(path).map_err(|error| {
            refuse(format!("{error}; make one with `(umask 077; openssl rand -hex 32 > {})`", path.display()))
        })?;
        let meta = file.metadata().map_err(|error| refuse(error.to_string()))?;
        if !meta.is_file() {
            return Err(refuse(
                "it is not a file; name a file with a token, which only you can read".to_owned(),
            ));
        }
        let user = rustix::process::geteuid().as_raw();
        if meta.uid() != user && meta.uid() != 0 {
            return Err(refuse(format!(
                "it belongs to user {}, who could change it; it must belong to user {user} or to root",
                meta.uid()
            )));
        }
        if meta.mode() & 0o077 != 0 {
            return Err(refuse(format!(
                "others may read it (mode {:o}); `chmod 600 {}`, and put a new token into it",
                meta.mode() & 0o7777,
                path.display()
            )));
        }
        let mut bytes = Vec::new();
        file.take(BYTES_MAX as u64 + 2).read_to_end(&mut bytes).map_err(|error| refuse(error.to_string()))?;
        let token = bytes.trim_ascii();
        if !(BYTES_MIN..=BYTES_MAX).contains(&token.len()) || !token.iter().all(u8::is_ascii_graphic) {
            return Err(refuse(format!(
                "it must hold {BYTES_MIN} to {BYTES_MAX} printable characters and no space; `openssl rand -hex 32` makes some"
            )));
        }
        Ok(Self(token.to_owned()))
    }

    /// Whether this is the token, compared in constant time.
    #[must_use]
    pub fn is(&self, given: &[u8]) -> bool {
        let mut differ = usize::from(given.len() != self.0.len());
        for (at, &byte) in self.0.iter().enumerate() {
            differ |= usize::from(black_box(byte ^ given.get(at).copied().unwrap_or(!byte)));
        }
        black_box(differ) == 0
    }
}

/// What a token lets its holder do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rights {
    /// Everything that the daemon's own user may do.
    All,
    /// Read alone.
    Read,
}

/// The tokens of a daemon.
#[derive(Debug, Default)]
pub struct Tokens {
    /// `--token-file`.
    all: Option<Token>,
    /// `--read-token-file`.
    read: Option<Token>,
}

impl Tokens {
    /// Reads the files of `--token-file` and `--read-token-file`.
    ///
    /// # Errors
    /// A file is not a token file that only its owner can read, or both hold the same token.
    pub fn read(all: Option<&Path>, read: Option<&Path>) -> Result<Self, TokenError> {
        let token = |option, path: Option<&Path>| path.map(|path| Token::read(option, path)).transpose();
        let tokens = Self { all: token("token-file", all)?, read: token("read-token-file", read)? };
        match (&tokens.all, &tokens.read, read) {
            (Some(all), Some(read), Some(path)) if all.is(&read.0) => Err(TokenError {
                option: "read-token-file",
                path: path.to_owned(),
                reason: "it holds the token of --token-file, which may change everything; put another \
                         token into it"
                    .to_owned(),
            }),
            _ => Ok(tokens),
        }
    }

    /// What the holder of this token may do; `None` if it is not the daemon's.
    #[must_use]
    pub fn rights(&self, given: &[u8]) -> Option<Rights> {
        let is = |token: &Option<Token>| token.as_ref().is_some_and(|token| token.is(given));
        // Both are compared, so that the time does not tell which one is set.
        match (is(&self.all), is(&self.read)) {
            (true, _) => Some(Rights::All),
            (_, true) => Some(Rights::Read),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_token_is_whole_and_secret_or_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("token");
        let read = |text: &str, mode: u32| {
            fs::write(&path, text).unwrap();
            fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            Token::read("token-file", &path)
        };
        let token = read("0123456789abcdef\n", 0o600).unwrap();
        assert!(token.is(b"0123456789abcdef"));
        for other in ["", "0123456789abcde", "0123456789abcdeF", "0123456789abcdef0", "x"] {
            assert!(!token.is(other.as_bytes()), "{other}");
        }
        for mode in [0o640, 0o604, 0o644] {
            assert!(read("0123456789abcdef", mode).unwrap_err().to_string().contains("chmod 600"));
        }
        for text in ["", "short", "0123456789 abcdef", "0123456789abcdéf", &"x".repeat(2000)] {
            assert!(read(text, 0o600).unwrap_err().to_string().contains("printable"), "{text}");
        }
        let none = Token::read("read-token-file", &dir.path().join("none")).unwrap_err().to_string();
        assert!(none.starts_with("--read-token-file ") && none.contains("openssl"), "{none}");
        assert!(Token::read("token-file", dir.path()).is_err());
    }

    #[test]
    fn each_token_has_its_rights() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            let path = dir.path().join(name);
            fs::write(&path, text).unwrap();
            fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
            path
        };
        let all = write("all", "0123456789abcdef");
        let read = write("read", "fedcba9876543210");
        for (tokens, of_all, of_read) in [
            (Tokens::read(Some(&all), Some(&read)), Some(Rights::All), Some(Rights::Read)),
            (Tokens::read(Some(&all), None), Some(Rights::All), None),
            (Tokens::read(None, Some(&read)), None, Some(Rights::Read)),
            (Ok(Tokens::default()), None, None),
        ] {
            let tokens = tokens.unwrap();
            assert_eq!(tokens.rights(b"0123456789abcdef"), of_all);
            assert_eq!(tokens.rights(b"fedcba9876543210"), of_read);
            assert_eq!(tokens.rights(b""), None);
        }
        let same = write("same", "0123456789abcdef\n");
        let refused = Tokens::read(Some(&all), Some(&same)).unwrap_err().to_string();
        assert!(refused.contains("another token"), "{refused}");
    }
}
