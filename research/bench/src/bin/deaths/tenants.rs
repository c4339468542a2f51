//! What `partita ps` shows of the tenants.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::Value;

/// The time after which a round leaves tenants behind.
const PATIENCE: Duration = Duration::from_secs(30);

pub struct Tenants {
    pub partita: PathBuf,
    pub gpu: String,
}

impl Tenants {
    /// The tenants and what `ps` says is wrong with each.
    pub fn problems(&self) -> Result<BTreeMap<String, String>> {
        let output = Command::new(&self.partita).args(["ps", "--json"]).output().context("partita ps")?;
        if !output.status.success() {
            bail!("partita ps: {}", String::from_utf8_lossy(&output.stderr).trim());
        }
        let rows: Vec<Value> = serde_json::from_slice(&output.stdout).context("partita ps --json")?;
        let text = |row: &Value, key: &str| row[key].as_str().unwrap_or_default().to_owned();
        Ok(rows.iter().map(|row| (text(row, "name"), text(row, "problem"))).collect())
    }

    /// Waits until no tenant is left, so that the next round finds the whole GPU.
    pub fn clear(&self) -> Result<()> {
        let begin = Instant::now();
        loop {
            let left = self.problems()?;
            if left.is_empty() {
                return Ok(());
            }
            if begin.elapsed() > PATIENCE {
                bail!("{}: these tenants of the last round are still there: {left:?}", self.gpu);
            }
        }
    }
}
