//! The arguments for detached runs: `logs`, `attach` and `wait`.

use clap::Args;
use partita_console::complete;

/// Arguments of `logs`.
#[derive(Debug, Args)]
#[command(after_help = "\
The log holds the last output of the program, stdout and stderr together: at least 4 MiB, at most 8 MiB. \
It stays after the program's end, until another detached run has the same name or 64 newer ones have \
ended.

Examples:
  partita logs train --tail 20
  partita logs -f train")]
pub struct Logs {
    /// The tenant of a detached run
    #[arg(add = complete::detached())]
    pub name: String,
    /// Print further output until the program ends
    #[arg(short, long)]
    pub follow: bool,
    /// Print only so many lines from the end
    #[arg(long, value_name = "LINES")]
    pub tail: Option<usize>,
}

/// Arguments of `attach`.
#[derive(Debug, Args)]
#[command(after_help = "\
Ctrl-C goes to the program, after its work on the GPU if it would die of it. Ctrl-\\ detaches again, and the \
program goes on. The program has no terminal and reads no keys.

Exit codes: that of the program when it ends; 0 after Ctrl-\\.

Examples:
  partita attach train")]
pub struct Attach {
    /// The tenant of a detached run
    #[arg(add = complete::detached())]
    pub name: String,
}

/// Arguments of `wait`.
#[derive(Debug, Args)]
#[command(after_help = "\
Exit codes: that of the program, also if it has ended before.

Examples:
  partita run --detach --name train -- python3 train.py
  partita wait train && echo trained")]
pub struct Wait {
    /// The tenant of a detached run
    #[arg(add = complete::detached())]
    pub name: String,
}
