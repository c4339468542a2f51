//! The environment of a job's programs, and how each batch system sets it. Pure.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

/// The prefix of MPS's variables. Those that the job sets itself would be limits beside ours; a
/// percentage even changes the SM count that libraries see, and with it their results.
const MPS_PREFIX: &str = "CUDA_MPS_";
const VISIBLE: &str = "CUDA_VISIBLE_DEVICES";
/// Slurm's global numbers of a step's GPUs.
const STEP_GPUS: &str = "SLURM_STEP_GPUS";

/// The environment of a job's programs.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct JobEnvironment {
    /// Why the job must not run; nothing else is set then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
    /// Variables and their values.
    #[serde(default)]
    pub set: Vec<(String, String)>,
    /// Values to prepend to variables, with a colon between.
    #[serde(default)]
    pub prepend: Vec<(String, String)>,
    /// The job's GPUs in its own order: the batch system's number or name of each, and the UUID.
    #[serde(default)]
    pub gpus: Vec<(String, String)>,
}

/// Changes of the environment of one task.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Changes {
    /// Variables and their values, by name.
    pub set: Vec<(String, String)>,
    /// Variables to unset, by name.
    pub unset: Vec<String>,
}

impl JobEnvironment {
    /// The changes for a task that has `current`.
    ///
    /// # Errors
    /// Why the task cannot run; for its owner.
    pub fn changes(&self, current: &[(String, String)]) -> Result<Changes, String> {
        if let Some(reason) = &self.refused {
            return Err(reason.clone());
        }
        let now = |key: &str| current.iter().find(|(name, _)| name == key).map(|(_, value)| value.as_str());
        let mut set = self.set.clone();
        for (key, value) in &self.prepend {
            set.push((key.clone(), in_front(value, now(key).unwrap_or_default())));
        }
        if !self.gpus.is_empty() {
            set.push((VISIBLE.to_owned(), self.visible(now(STEP_GPUS), now(VISIBLE))?));
        }
        set.sort();
        let unset = current
            .iter()
            .map(|(key, _)| key)
            .filter(|key| key.starts_with(MPS_PREFIX) && !set.iter().any(|(name, _)| name == *key))
            .cloned()
            .collect();
        Ok(Changes { set, unset })
    }

    /// The UUIDs of the GPUs of a task. Under MPS an index would be another GPU, because the
    /// service renumbers its GPUs.
    ///
    /// Numbers in the task's own variable count the node's GPUs, or those of the step if the batch
    /// system hides the others from it; which of the two is unknown.
    fn visible(&self, step: Option<&str>, task: Option<&str>) -> Result<String, String> {
        let words = |text: Option<&str>| -> Vec<String> {
            let text = text.unwrap_or_default();
            text.split(',').map(str::trim).filter(|word| !word.is_empty()).map(str::to_owned).collect()
        };
        let of_step: Vec<&(String, String)> = match words(step).as_slice() {
            [] => self.gpus.iter().collect(),
            step => {
                let known = step.iter().filter_map(|name| self.gpus.iter().find(|(gpu, _)| same(gpu, name)));
                let known: Vec<_> = known.collect();
                if known.len() == step.len() { known } else { self.gpus.iter().collect() }
            }
        };
        let all = || of_step.iter().map(|(_, uuid)| uuid.as_str()).collect::<Vec<_>>().join(",");
        let task = words(task);
        // All of them, in any numbering.
        if task.is_empty() || task.len() == of_step.len() {
            return Ok(all());
        }
        let by_name = |word: &String| {
            of_step.iter().find(|(gpu, uuid)| same(gpu, word) || uuid == word).map(|(_, uuid)| uuid.clone())
        };
        let by_place = |word: &String| {
            word.parse::<usize>().ok().and_then(|at| of_step.get(at)).map(|(_, uuid)| uuid.clone())
        };
        let named: Option<Vec<String>> = task.iter().map(by_name).collect();
        let placed: Option<Vec<String>> = task.iter().map(by_place).collect();
        match (named, placed) {
            (Some(named), Some(placed)) if named != placed => Err(format!(
                "{VISIBLE}={} may mean {} or {}, as the numbers can be the node's or the step's: give \
                 each step its own GPUs (--gres), or set {VISIBLE} by UUID",
                task.join(","),
                named.join(","),
                placed.join(",")
            )),
            (Some(uuids), _) | (None, Some(uuids)) => Ok(uuids.join(",")),
            (None, None) => Err(format!(
                "{VISIBLE}={} names a GPU that the job does not have ({}): leave it as the batch system set it",
                task.join(","),
                all()
            )),
        }
    }

    /// The same as a shell script to source, for batch systems that cannot change the environment
    /// of a job.
    pub fn shell(&self) -> String {
        if let Some(reason) = &self.refused {
            return format!("printf 'partita: %s\\n' {} >&2\nexit 1\n", quoted(reason));
        }
        let mut text = String::new();
        let kept: BTreeSet<&str> = self.set.iter().map(|(key, _)| key.as_str()).collect();
        let pattern = kept
            .iter()
            .filter(|key| key.starts_with(MPS_PREFIX))
            .fold(String::new(), |text, key| text + "|" + key);
        // The job's own shell unsets the MPS limits that it brings along.
        text.push_str(&format!(
            "for partita_key in $(env | sed -n 's/^\\({MPS_PREFIX}[A-Z_]*\\)=.*/\\1/p'); do\n  case \"$partita_key\" in {}) ;; *) unset \"$partita_key\" ;; esac\ndone\nunset partita_key\n",
            if pattern.is_empty() { "''" } else { &pattern[1..] }
        ));
        for (key, value) in &self.set {
            text.push_str(&format!("export {key}={}\n", quoted(value)));
        }
        for (key, value) in &self.prepend {
            text.push_str(&format!("export {key}={}\"${{{key}:+:${key}}}\"\n", quoted(value)));
        }
        if !self.gpus.is_empty() {
            let uuids: Vec<&str> = self.gpus.iter().map(|(_, uuid)| uuid.as_str()).collect();
            text.push_str(&format!("export {VISIBLE}={}\n", quoted(&uuids.join(","))));
        }
        text
    }
}

/// Whether two names mean the same GPU; that of a simulated machine (`sim:h200:1`) has its number
/// last.
fn same(gpu: &str, name: &str) -> bool {
    gpu == name
        || gpu
            .strip_prefix("sim:")
            .and_then(|rest| rest.rsplit_once(':'))
            .is_some_and(|(_, last)| last == name)
}

impl Changes {
    /// The lines of a Slurm TaskProlog: one value a line, without quotes.
    pub fn slurm(&self) -> String {
        let unset = self.unset.iter().map(|key| format!("unset {key}\n"));
        let set = self.set.iter().map(|(key, value)| format!("export {key}={}\n", value.replace('\n', " ")));
        unset.chain(set).collect()
    }

    /// Lines for a shell's `eval`.
    pub fn shell(&self) -> String {
        let unset = self.unset.iter().map(|key| format!("unset {key}\n"));
        let set = self.set.iter().map(|(key, value)| format!("export {key}={}\n", quoted(value)));
        unset.chain(set).collect()
    }
}

fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "'\\''"))
}

/// Prepends `value` to a list with colons, once.
fn in_front(value: &str, list: &str) -> String {
    let rest = list.split(':').filter(|entry| !entry.is_empty() && *entry != value);
    std::iter::once(value).chain(rest).collect::<Vec<_>>().join(":")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(text: &str) -> Vec<(String, String)> {
        text.split_whitespace()
            .map(|word| word.split_once('=').unwrap())
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .collect()
    }

    fn of(gpus: &str) -> JobEnvironment {
        JobEnvironment {
            set: pairs("CUDA_MPS_PIPE_DIRECTORY=/p"),
            prepend: pairs("LD_PRELOAD=/h.so"),
            gpus: pairs(gpus),
            refused: None,
        }
    }

    #[test]
    fn limits_of_mps_go_and_preloads_stay_behind() {
        let current = pairs(
            "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=30 CUDA_MPS_PIPE_DIRECTORY=/x LD_PRELOAD=/a.so:/h.so:/b.so X=1",
        );
        let changes = of("").changes(&current).unwrap();
        assert_eq!(
            changes.slurm(),
            "unset CUDA_MPS_ACTIVE_THREAD_PERCENTAGE\nexport CUDA_MPS_PIPE_DIRECTORY=/p\nexport LD_PRELOAD=/h.so:/a.so:/b.so\n"
        );
        assert!(changes.shell().contains("export LD_PRELOAD='/h.so:/a.so:/b.so'\n"));
        assert_eq!(of("").changes(&[]).unwrap().set[1], ("LD_PRELOAD".to_owned(), "/h.so".to_owned()));
    }

    #[test]
    fn tasks_see_their_gpus_by_uuid() {
        for (gpus, current, seen) in [
            // No numbers, or all of them, in any numbering.
            ("0=A 1=B", "", Ok("A,B")),
            ("2=C 3=D", "CUDA_VISIBLE_DEVICES=0,1", Ok("C,D")),
            ("2=C 3=D", "CUDA_VISIBLE_DEVICES=2,3", Ok("C,D")),
            // One of two: both numberings agree, or only one is possible.
            ("0=A 1=B", "CUDA_VISIBLE_DEVICES=1", Ok("B")),
            ("2=C 3=D", "CUDA_VISIBLE_DEVICES=3", Ok("D")),
            ("2=C 3=D", "CUDA_VISIBLE_DEVICES=1", Ok("D")),
            ("2=C 3=D", "CUDA_VISIBLE_DEVICES=C", Ok("C")),
            ("1=B 2=C", "CUDA_VISIBLE_DEVICES=1", Err("may mean B or C")),
            ("2=C 3=D", "CUDA_VISIBLE_DEVICES=7", Err("does not have (C,D)")),
            // A step with some of the job's GPUs.
            ("1=B 2=C", "CUDA_VISIBLE_DEVICES=0 SLURM_STEP_GPUS=2", Ok("C")),
            ("1=B 2=C", "CUDA_VISIBLE_DEVICES=2 SLURM_STEP_GPUS=2", Ok("C")),
            ("sim:h200:1=B sim:h200:2=C", "CUDA_VISIBLE_DEVICES=0 SLURM_STEP_GPUS=2", Ok("C")),
        ] {
            let changes = of(gpus).changes(&pairs(current));
            match (changes, seen) {
                (Ok(changes), Ok(uuids)) => {
                    let visible = changes.set.iter().find(|(key, _)| key == VISIBLE).unwrap();
                    assert_eq!(visible.1, uuids, "{gpus}: {current}");
                }
                (Err(error), Err(words)) => assert!(error.contains(words), "{error}"),
                (changes, _) => panic!("{gpus}: {current}: {changes:?}"),
            }
        }
    }

    #[test]
    fn a_refused_job_gets_the_reason() {
        let refused = JobEnvironment { refused: Some("it's full".to_owned()), ..of("0=A") };
        assert_eq!(refused.changes(&[]), Err("it's full".to_owned()));
        let output = sh(&refused.shell(), "");
        assert_eq!(output.status.code(), Some(1));
        assert_eq!(String::from_utf8_lossy(&output.stderr), "partita: it's full\n");
    }

    fn sh(script: &str, more: &str) -> std::process::Output {
        std::process::Command::new("sh")
            .args(["-c", &format!("{script}{more}")])
            .env_remove("LD_PRELOAD")
            .env("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "30")
            .env("KEPT", "it's")
            .output()
            .unwrap()
    }

    #[test]
    fn a_shell_reads_the_same() {
        let environment = JobEnvironment {
            set: vec![
                ("CUDA_MPS_PIPE_DIRECTORY".to_owned(), "/with space/it's".to_owned()),
                ("PARTITA_GPU".to_owned(), "A".to_owned()),
            ],
            prepend: pairs("MY_LIST=/new KEPT=/x"),
            ..of("0=A 1=B")
        };
        let shown = "printf '%s\\n' \"$CUDA_MPS_PIPE_DIRECTORY\" \"$PARTITA_GPU\" \"$MY_LIST\" \"$KEPT\" \
                     \"$CUDA_VISIBLE_DEVICES\" \"${CUDA_MPS_ACTIVE_THREAD_PERCENTAGE-gone}\" \"${partita_key-gone}\"";
        let output = sh(&environment.shell(), shown);
        assert_eq!(
            String::from_utf8_lossy(&output.stdout),
            "/with space/it's\nA\n/new\n/x:it's\nA,B\ngone\ngone\n",
            "{output:?}"
        );
        let changes = environment.changes(&pairs("KEPT=it's CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=30")).unwrap();
        assert_eq!(sh(&changes.shell(), shown).stdout, output.stdout);
    }
}
