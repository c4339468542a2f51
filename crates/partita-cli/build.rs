//! Makes the shell completions and the man pages from the argument definitions.
//!
//! They are embedded into the program, which prints them (`partita completions
//! bash`) or writes them all (`partita generate DIR`): an installation has no
//! other file to keep in step.

use std::path::{Path, PathBuf};
use std::{env, fs, io};

use clap::{Command, CommandFactory};
use clap_complete::Shell;
use clap_mangen::Man;

#[allow(dead_code, missing_docs, unused_imports)]
#[path = "src/args/mod.rs"]
mod args;
#[allow(dead_code)]
#[path = "../../packaging/version.rs"]
mod version;

fn main() -> io::Result<()> {
    println!("cargo::rerun-if-changed=src/args");
    println!("cargo::rerun-if-changed=build.rs");
    version::tell();
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let mut command = args::Arguments::command();
    for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
        clap_complete::generate_to(shell, &mut command, "partita", &out)?;
    }
    let man = out.join("man");
    fs::create_dir_all(&man)?;
    // Building makes the global options and `help` known to the subcommands.
    command.build();
    let mut pages = Vec::new();
    write_pages(&command, "partita", &man, &mut pages)?;
    let list: String = pages
        .iter()
        .map(|name| format!("    ({name:?}, include_str!(concat!(env!(\"OUT_DIR\"), \"/man/{name}\"))),\n"))
        .collect();
    fs::write(out.join("man_pages.rs"), format!("&[\n{list}]\n"))
}

/// One page a command, the way git has them: `partita-run.1`.
fn write_pages(command: &Command, name: &str, dir: &Path, pages: &mut Vec<String>) -> io::Result<()> {
    let file = format!("{name}.1");
    let mut text = Vec::new();
    Man::new(command.clone()).title(name).render(&mut text)?;
    fs::write(dir.join(&file), text)?;
    pages.push(file);
    for sub in command.get_subcommands().filter(|sub| !sub.is_hide_set() && sub.get_name() != "help") {
        write_pages(sub, &format!("{name}-{}", sub.get_name()), dir, pages)?;
    }
    Ok(())
}
