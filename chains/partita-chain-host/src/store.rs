//! The chains that a user has defined. The daemon stores them where one runs; otherwise each is a
//! file in the user's configuration.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use partita_host::error::Error;
use partita_host::files::{self, Durable};
use partita_host::process::user_name;
use partita_host::registry::{Registry, check_name};
use serde::Deserialize;

use super::Definition;
use crate::daemon::Client;

/// The longest definition, in bytes.
const BYTES_MAX: u64 = 1 << 20;

/// The definitions of one user.
#[derive(Debug, Clone)]
pub struct Definitions(Storage);

/// A stored definition.
#[derive(Debug)]
pub struct Stored {
    /// Its name.
    pub name: String,
    /// The definition, or why it cannot be read.
    pub definition: Result<Definition, Error>,
}

#[derive(Debug, Clone)]
enum Storage {
    Daemon(Client),
    Files(Files),
}

impl Definitions {
    /// Those of the current user: stored by the daemon if one runs, else in
    /// `$XDG_CONFIG_HOME/partita/chains` or `~/.config/partita/chains`.
    ///
    /// # Errors
    /// [`Error::Daemon`] as [`Client::find`]; [`Error::Refused`] if neither variable is set.
    pub fn of_user(registry: &Registry) -> Result<Self, Error> {
        match Client::find(registry)? {
            Some(daemon) => Ok(Self(Storage::Daemon(daemon))),
            None => Files::of_user().map(|files| Self(Storage::Files(files))),
        }
    }

    /// Those in a directory, which need not exist yet.
    #[must_use]
    pub fn at(dir: &Path) -> Self {
        Self(Storage::Files(Files::at(dir)))
    }

    /// Stores the text of a definition under the name in it, and replaces an older one.
    ///
    /// # Errors
    /// As [`Definition::from_toml`]; [`Error::Refused`] beside a daemon if a file has that name;
    /// [`Error::Daemon`], [`Error::Io`].
    pub fn save(&self, text: &str) -> Result<Definition, Error> {
        let definition = Definition::from_toml(text)?;
        match &self.0 {
            Storage::Daemon(daemon) => {
                check_no_file(&definition.name)?;
                keep_with(daemon, &definition)?;
            }
            Storage::Files(files) => files.save(&definition, text)?,
        }
        Ok(definition)
    }

    /// The definition of this name, to start it.
    ///
    /// # Errors
    /// [`Error::Refused`] if no definition has this name, or if it is another user's.
    /// [`Error::Daemon`] if `partitad` does not answer. Those of [`Definition::from_toml`].
    pub fn get(&self, name: &str) -> Result<Definition, Error> {
        check_name(name)?;
        match &self.0 {
            Storage::Daemon(daemon) => match one_of_daemon(daemon, name)? {
                one if one.is_ours() => Ok(one.definition),
                one => Err(one.is_not_run()),
            },
            Storage::Files(files) => files.get(name),
        }
    }

    /// The definition of this name, to show it. A daemon shows those of all users.
    ///
    /// # Errors
    /// As [`Definitions::get`].
    pub fn show(&self, name: &str) -> Result<Definition, Error> {
        check_name(name)?;
        match &self.0 {
            Storage::Daemon(daemon) => one_of_daemon(daemon, name).map(|one| one.definition),
            Storage::Files(files) => files.get(name),
        }
    }

    /// The definitions that this user can start, by name.
    ///
    /// # Errors
    /// [`Error::Daemon`], [`Error::Io`].
    pub fn all(&self) -> Result<Vec<Stored>, Error> {
        match &self.0 {
            Storage::Daemon(daemon) => {
                let stored = |one: Definition| Stored { name: one.name.clone(), definition: Ok(one) };
                Ok(of_daemon(daemon)?.into_iter().map(stored).collect())
            }
            Storage::Files(files) => {
                let stored = |name: String| Stored { definition: files.get(&name), name };
                Ok(files.names()?.into_iter().map(stored).collect())
            }
        }
    }

    /// Removes a definition. A running chain of this name continues.
    ///
    /// # Errors
    /// As [`Definitions::get`]; with a daemon root may remove other users', too.
    pub fn remove(&self, name: &str) -> Result<(), Error> {
        check_name(name)?;
        match &self.0 {
            Storage::Daemon(daemon) => {
                one_of_daemon(daemon, name)?.check_changes("deletes it")?;
                daemon.ask("DELETE", &format!("{CHAINS}/{name}"), None).map(drop)
            }
            Storage::Files(files) => files.remove(name),
        }
    }
}

/// The daemon's path for chains.
const CHAINS: &str = "/v1/chains";

fn odd(error: serde_json::Error) -> Error {
    Error::Refused {
        what: "the daemon's answer".to_owned(),
        reason: format!("{error}; `partita` and `partitad` are of different versions"),
    }
}

/// A definition that the daemon stores.
#[derive(Deserialize)]
struct Defined {
    owner: u32,
    definition: Definition,
}

impl Defined {
    /// Whether this user or root defined it. Other users' definitions name programs that must not
    /// run as this user.
    fn is_ours(&self) -> bool {
        self.owner == rustix::process::geteuid().as_raw() || self.owner == 0
    }

    /// Refuses a change to all but its user and root.
    fn check_changes(&self, what: &str) -> Result<(), Error> {
        let own = rustix::process::geteuid();
        if own.is_root() || own.as_raw() == self.owner {
            return Ok(());
        }
        let owner = user_name(self.owner);
        Err(Error::Refused {
            what: format!("chain {}", self.definition.name),
            reason: format!(
                "{owner} defined it, so only {owner} or root {what}; names of chains are unique on the \
                 machine, so choose another `name` for your own"
            ),
        })
    }

    fn is_not_run(&self) -> Error {
        let (name, owner) = (&self.definition.name, user_name(self.owner));
        Error::Refused {
            what: format!("chain {name}"),
            reason: format!(
                "{owner} defined it, and its programs would run with your rights; {owner} can \
                 start it with `partita chain start {name}`; start your own chain under another \
                 name with `partita chain start FILE`"
            ),
        }
    }
}

/// All definitions that the daemon stores, by name.
fn all_of_daemon(daemon: &Client) -> Result<Vec<Defined>, Error> {
    #[derive(Deserialize)]
    struct View {
        defined: Option<Defined>,
    }
    let views: Vec<View> = serde_json::from_value(daemon.get(CHAINS)?).map_err(odd)?;
    Ok(views.into_iter().filter_map(|view| view.defined).collect())
}

/// The definitions of this user and of root that the daemon stores, by name.
fn of_daemon(daemon: &Client) -> Result<Vec<Definition>, Error> {
    let ours = all_of_daemon(daemon)?.into_iter().filter(Defined::is_ours);
    Ok(ours.map(|one| one.definition).collect())
}

/// The definition of this name that the daemon stores, if there is one.
fn find_at_daemon(daemon: &Client, name: &str) -> Result<Option<Defined>, Error> {
    Ok(all_of_daemon(daemon)?.into_iter().find(|one| one.definition.name == name))
}

/// The definition of this name that the daemon stores.
fn one_of_daemon(daemon: &Client, name: &str) -> Result<Defined, Error> {
    if let Some(one) = find_at_daemon(daemon, name)? {
        return Ok(one);
    }
    check_no_file(name)?;
    let names: Vec<String> = of_daemon(daemon)?.into_iter().map(|one| one.name).collect();
    Err(undefined(name, &names))
}

/// Refuses a name that a file has beside a daemon: each would hide the other, by turns.
fn check_no_file(name: &str) -> Result<(), Error> {
    let path = Files::of_user().ok().map(|files| files.path(name)).filter(|path| path.exists());
    path.map_or(Ok(()), |path| {
        let path = path.display();
        Err(Error::Refused {
            what: format!("chain {name}"),
            reason: format!(
                "{path} defines it for times without partitad, which stores definitions now; start that one \
                 with `partita chain start {path}`, or move it: `mv {path} .` and `partita chain define \
                 {name}.toml`"
            ),
        })
    })
}

fn keep_with(daemon: &Client, definition: &Definition) -> Result<(), Error> {
    let body = serde_json::to_value(definition).map_err(odd)?;
    let (method, path) = match find_at_daemon(daemon, &definition.name)? {
        None => ("POST", CHAINS.to_owned()),
        Some(one) => {
            one.check_changes("changes it")?;
            ("PUT", format!("{CHAINS}/{}", definition.name))
        }
    };
    daemon.ask(method, &path, Some(&body)).map(drop)
}

fn undefined(name: &str, names: &[String]) -> Error {
    let known = match names {
        [] => String::new(),
        names => format!(" (defined: {})", names.join(", ")),
    };
    Error::Refused {
        what: format!("chain {name}"),
        reason: format!("it is not defined{known}; `partita chain define FILE` defines one"),
    }
}

/// Definitions as files.
#[derive(Debug, Clone)]
struct Files {
    dir: PathBuf,
}

impl Files {
    fn of_user() -> Result<Self, Error> {
        let variable =
            |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let config = variable("XDG_CONFIG_HOME").or_else(|| Some(variable("HOME")?.join(".config")));
        let config = config.filter(|path| path.is_absolute()).ok_or_else(|| Error::Refused {
            what: "definitions of chains".to_owned(),
            reason: "neither HOME nor XDG_CONFIG_HOME names a directory for definitions; set one, or \
                name the definition's file"
                .to_owned(),
        })?;
        Ok(Self::at(&config.join("partita/chains")))
    }

    fn at(dir: &Path) -> Self {
        Self { dir: dir.to_owned() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.join(format!("{name}.toml"))
    }

    fn save(&self, definition: &Definition, text: &str) -> Result<(), Error> {
        let path = self.path(&definition.name);
        let failed = || Error::io(path.display().to_string());
        fs::create_dir_all(&self.dir).map_err(failed())?;
        files::replace(&path, text.as_bytes(), 0o644, Durable::Yes).map_err(failed())
    }

    fn get(&self, name: &str) -> Result<Definition, Error> {
        let path = self.path(name);
        match read(&path) {
            Ok(text) => match parse(&path, &text)? {
                definition if definition.name == name => Ok(definition),
                other => Err(Error::Refused {
                    what: path.display().to_string(),
                    reason: format!(
                        "it defines chain {}; change its `name` to {name}, or `partita chain define` it and remove this file",
                        other.name
                    ),
                }),
            },
            Err(error) if error.kind() == io::ErrorKind::NotFound => Err(undefined(name, &self.names()?)),
            Err(error) => Err(Error::io(path.display().to_string())(error)),
        }
    }

    fn names(&self) -> Result<Vec<String>, Error> {
        let failed = || Error::io(self.dir.display().to_string());
        let entries = match fs::read_dir(&self.dir) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.map_err(failed())?,
        };
        let mut names = Vec::new();
        for entry in entries {
            let file = entry.map_err(failed())?.file_name();
            let name = file.to_str().and_then(|name| name.strip_suffix(".toml"));
            names.extend(name.filter(|name| check_name(name).is_ok()).map(str::to_owned));
        }
        names.sort();
        Ok(names)
    }

    fn remove(&self, name: &str) -> Result<(), Error> {
        self.get(name).map(drop).or_else(|error| match self.path(name).exists() {
            true => Ok(()),
            false => Err(error),
        })?;
        let path = self.path(name);
        fs::remove_file(&path).map_err(Error::io(path.display().to_string()))
    }
}

/// Reads the definition in a file.
///
/// # Errors
/// [`Error::Refused`] for a file that cannot be read; as [`Definition::from_toml`].
pub fn read_file(path: &Path) -> Result<(Definition, String), Error> {
    let text = read(path).map_err(|error| Error::Refused {
        what: path.display().to_string(),
        reason: format!("{error}; name a file of TOML, as `partita chain define --example` prints one"),
    })?;
    Ok((parse(path, &text)?, text))
}

/// Parses the text of a file; messages name the file.
fn parse(path: &Path, text: &str) -> Result<Definition, Error> {
    Definition::from_toml_of(&path.display().to_string(), text)
}

fn read(path: &Path) -> io::Result<String> {
    use std::io::Read;
    let mut text = String::new();
    let read = fs::File::open(path)?.take(BYTES_MAX + 1).read_to_string(&mut text)?;
    if read as u64 > BYTES_MAX {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "it is larger than 1 MiB; a definition is a page",
        ));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(definitions: &Definitions) -> Vec<String> {
        definitions.all().unwrap().into_iter().map(|stored| stored.name).collect()
    }

    #[test]
    fn saved_definitions_are_found_and_removed() {
        let dir = tempfile::tempdir().unwrap();
        let definitions = Definitions::at(&dir.path().join("not/there/yet"));
        assert!(names(&definitions).is_empty());
        let example = definitions.save(Definition::example()).unwrap();
        assert_eq!(definitions.get("cameras").unwrap(), example);
        let other = Definition::example().replace("cameras", "a.second");
        definitions.save(&other).unwrap();
        assert_eq!(names(&definitions), ["a.second", "cameras"]);
        let error = definitions.get("camera").unwrap_err().to_string();
        assert!(error.contains("chain camera") && error.contains("a.second, cameras"), "{error}");
        definitions.remove("cameras").unwrap();
        assert_eq!(names(&definitions), ["a.second"]);
        definitions.remove("cameras").unwrap_err();
        // As if a user edited the files.
        let path = |name| dir.path().join("not/there/yet").join(name);
        fs::copy(path("a.second.toml"), path("copy.toml")).unwrap();
        let error = definitions.get("copy").unwrap_err().to_string();
        assert!(error.contains("copy.toml") && error.contains("chain a.second"), "{error}");
        fs::write(path("broken.toml"), "name = ").unwrap();
        let error = definitions.get("broken").unwrap_err().to_string();
        assert!(error.contains("broken.toml"), "{error}");
        for hostile in ["../x", "", ".x", "a/b", "a\0"] {
            definitions.get(hostile).unwrap_err();
            definitions.remove(hostile).unwrap_err();
        }
    }

    #[test]
    fn invalid_definitions_are_not_saved() {
        let dir = tempfile::tempdir().unwrap();
        let definitions = Definitions::at(dir.path());
        definitions.save(&Definition::example().replace("\"8GiB\"", "\"8 carrots\"")).unwrap_err();
        assert!(names(&definitions).is_empty());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
        let large = dir.path().join("large");
        fs::write(&large, vec![b'#'; BYTES_MAX as usize + 1]).unwrap();
        assert!(read_file(&large).unwrap_err().to_string().contains("1 MiB"));
    }
}
