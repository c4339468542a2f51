//! What `partita ps` shows of the tenants.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::Value;

/// The time in which tenants leave whose work ends.
const PATIENCE: Duration = Duration::from_secs(30);

/// The tenants of this machine, as the `partita` executable shows them.
pub struct Tenants(pub PathBuf);

impl Tenants {
    /// The tenants by name, and what `ps` reports as the problem of each.
    ///
    /// # Errors
    /// If `partita ps` fails.
    pub fn problems(&self) -> Result<BTreeMap<String, String>> {
        let output = Command::new(&self.0).args(["ps", "--json"]).output().context("partita ps")?;
        if !output.status.success() {
            bail!("partita ps: {}", String::from_utf8_lossy(&output.stderr).trim());
        }
        let rows: Vec<Value> = serde_json::from_slice(&output.stdout).context("partita ps --json")?;
        let text = |row: &Value, key: &str| row[key].as_str().unwrap_or_default().to_owned();
        Ok(rows.iter().map(|row| (text(row, "name"), text(row, "problem"))).collect())
    }

    /// Waits until no tenant is left but those named.
    ///
    /// # Errors
    /// If `partita ps` fails, or others are still there after 30 s.
    pub fn clear(&self, but: &[&str]) -> Result<()> {
        let begin = Instant::now();
        loop {
            let mut left = self.problems()?;
            left.retain(|name, _| !but.contains(&name.as_str()));
            if left.is_empty() {
                return Ok(());
            }
            if begin.elapsed() > PATIENCE {
                bail!("these tenants have not left: {left:?}");
            }
        }
    }
}
