//! The job of a prolog or an epilog, as each batch system describes it. Pure.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::request::{self, Request, RequestError, Sources};

/// A batch system.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum System {
    /// Slurm: all data is in the environment.
    Slurm,
    /// Torque, OpenPBS and related systems: the arguments of the prologue and the epilogue.
    Pbs,
}

impl fmt::Display for System {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Slurm => "slurm",
            Self::Pbs => "pbs",
        })
    }
}

impl System {
    /// The variable with the job's id in the environment of its processes.
    pub fn id_variable(self) -> &'static str {
        match self {
            Self::Slurm => "SLURM_JOB_ID",
            Self::Pbs => "PBS_JOBID",
        }
    }
}

/// The longest id of a job, in bytes: a number, an array's index and a host's name.
const ID_BYTES_MAX: usize = 200;

/// A job of one batch system. Its text is a name for files and tenants: `slurm-4711`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct JobId {
    /// The batch system.
    pub system: System,
    /// Its id there: `4711`, `4711[3].head`.
    pub id: String,
}

impl JobId {
    /// The job `id` of `system`.
    ///
    /// # Errors
    /// The reason, if `id` cannot be a job's.
    pub fn new(system: System, id: &str) -> Result<Self, String> {
        let allowed = |c: char| c.is_ascii_alphanumeric() || "._-[]".contains(c);
        if id.is_empty()
            || id.len() > ID_BYTES_MAX
            || !id.chars().all(allowed)
            || !id.starts_with(|c: char| c.is_ascii_digit())
        {
            return Err(format!(
                "{id:?} is not the id of a {system} job: it begins with a number and consists of \
                 letters, digits and ._-[]"
            ));
        }
        Ok(Self { system, id: id.to_owned() })
    }

    /// A name for a tenant that [`partita_host::registry::check_name`] allows.
    pub fn tenant_name(&self) -> String {
        const NAME_BYTES_MAX: usize = 63;
        let mut name = self.to_string().replace(['[', ']'], "_");
        name.truncate(NAME_BYTES_MAX);
        name
    }
}

impl fmt::Display for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.system, self.id)
    }
}

/// By which the SPANK plugin passes the argument of `--partita` to the prolog. Slurm adds the
/// prefix.
const OPTION_VARIABLE: &str = "SPANK_PARTITA";

/// The owner of a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Owner {
    /// By number, with the group's.
    Ids {
        /// The user.
        user: u32,
        /// The group; `None` for the user's own.
        group: Option<u32>,
    },
    /// By name.
    Name(String),
}

/// A job as the batch system described it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Job {
    /// Which.
    pub id: JobId,
    /// Whose.
    pub owner: Owner,
    /// Its GPUs on this node, each in the form of `--gpu`, in the order of the batch system. May be
    /// empty.
    pub gpus: Vec<String>,
    /// Its request, or the mistake in it.
    pub request: Result<Option<Request>, RequestError>,
}

impl Job {
    /// The job of a Slurm prolog or epilog.
    ///
    /// # Errors
    /// What the environment lacks.
    pub fn of_slurm(env: impl Fn(&str) -> Option<String>) -> Result<Self, String> {
        let must = |key: &str| {
            env(key).filter(|value| !value.is_empty()).ok_or_else(|| {
                format!("{key} is not set: run this as Slurm's Prolog or Epilog, as docs/batch.md shows")
            })
        };
        let number = |key: &str, text: &str| {
            text.parse::<u32>().map_err(|_| format!("{key}={text:?} is not a number of a user or group"))
        };
        let id = JobId::new(System::Slurm, &must("SLURM_JOB_ID")?)?;
        let user = number("SLURM_JOB_UID", &must("SLURM_JOB_UID")?)?;
        let group = env("SLURM_JOB_GID").map(|text| number("SLURM_JOB_GID", &text)).transpose()?;
        let devices = [env("SLURM_JOB_GPUS"), env("CUDA_VISIBLE_DEVICES")];
        let gpus = devices.iter().flatten().map(|text| gpu_list(text)).find(|list| !list.is_empty());
        let percent = env("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE");
        let (comment, constraints) = (env("SLURM_JOB_COMMENT"), env("SLURM_JOB_CONSTRAINTS"));
        let option = env(OPTION_VARIABLE);
        let request = request::find(&Sources {
            comment: comment.as_deref(),
            constraints: constraints.as_deref(),
            mps_percent: percent.as_deref(),
            option: option.as_deref(),
            ..Sources::default()
        });
        Ok(Self { id, owner: Owner::Ids { user, group }, gpus: gpus.unwrap_or_default(), request })
    }

    /// The job of a prologue: id, user, group, name, requested resources, queue, account.
    ///
    /// # Errors
    /// Which argument is missing or wrong.
    pub fn of_prologue(arguments: &[String]) -> Result<Self, String> {
        Self::of_pbs(arguments, 4, 6)
    }

    /// The job of an epilogue: id, user, group, name, session, requested resources, used resources,
    /// queue, account.
    ///
    /// # Errors
    /// Which argument is missing or wrong.
    pub fn of_epilogue(arguments: &[String]) -> Result<Self, String> {
        Self::of_pbs(arguments, 5, 8)
    }

    fn of_pbs(arguments: &[String], resources: usize, account: usize) -> Result<Self, String> {
        let [id, user, ..] = arguments else {
            return Err(
                "a PBS prologue and epilogue get the job's id and user first: pass all arguments on, as in `partita batch \
                 prolog --system pbs \"$@\"`"
                    .to_owned(),
            );
        };
        let id = JobId::new(System::Pbs, id)?;
        if user.is_empty() {
            return Err(format!("job {id} has no user: the second argument is empty"));
        }
        let owner = match user.parse() {
            Ok(user) => Owner::Ids { user, group: None },
            Err(_) => Owner::Name(user.clone()),
        };
        let argument = |at: usize| arguments.get(at).map(String::as_str);
        let request = request::find(&Sources {
            account: argument(account),
            resources: argument(resources),
            ..Sources::default()
        });
        Ok(Self { id, owner, gpus: Vec::new(), request })
    }
}

/// A list of GPUs as batch systems write it. Slurm writes `NoDevFiles` for an empty one.
pub fn gpu_list(text: &str) -> Vec<String> {
    if text.eq_ignore_ascii_case("NoDevFiles") {
        return Vec::new();
    }
    text.split(',').map(str::trim).filter(|word| !word.is_empty()).map(str::to_owned).collect()
}

/// The GPUs of `host` in a `PBS_GPUFILE`: lines like `node3-gpu0`.
pub fn gpus_of_file(text: &str, host: &str) -> Vec<String> {
    let short = |name: &str| name.split('.').next().unwrap_or(name).to_ascii_lowercase();
    text.lines()
        .filter_map(|line| line.trim().rsplit_once("-gpu"))
        .filter(|(name, _)| short(name) == short(host))
        .map(|(_, number)| number.to_owned())
        .collect()
}

/// Changes indexes to names on the simulated machine of `machine` (`sim:NAME`), if there is one.
pub fn on_machine(gpus: &[String], machine: Option<&str>) -> Vec<String> {
    let Some(machine) = machine.filter(|machine| machine.starts_with("sim:")) else { return gpus.to_vec() };
    let is_index = |gpu: &str| !gpu.is_empty() && gpu.bytes().all(|byte| byte.is_ascii_digit());
    gpus.iter().map(|gpu| if is_index(gpu) { format!("{machine}:{gpu}") } else { gpu.clone() }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slurm(variables: &[(&str, &str)]) -> Result<Job, String> {
        Job::of_slurm(|key| {
            variables.iter().find(|(name, _)| *name == key).map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn slurm_says_it_in_the_environment() {
        let job = slurm(&[
            ("SLURM_JOB_ID", "4711"),
            ("SLURM_JOB_UID", "1000"),
            ("SLURM_JOB_GID", "100"),
            ("SLURM_JOB_GPUS", "2,0"),
            ("CUDA_VISIBLE_DEVICES", "0,1"),
            ("SLURM_JOB_COMMENT", "partita:mps"),
        ])
        .unwrap();
        assert_eq!(job.id.to_string(), "slurm-4711");
        assert_eq!(job.owner, Owner::Ids { user: 1000, group: Some(100) });
        assert_eq!(job.gpus, ["2", "0"], "the global numbers, not those within the job");
        assert_eq!(job.request, Ok(Some(Request::Service)));
        let job =
            slurm(&[("SLURM_JOB_ID", "1"), ("SLURM_JOB_UID", "0"), ("CUDA_VISIBLE_DEVICES", "NoDevFiles")]);
        let job = job.unwrap();
        assert_eq!((job.gpus.len(), job.request), (0, Ok(None)));
    }

    #[test]
    fn missing_slurm_variables_are_named() {
        assert!(slurm(&[]).unwrap_err().contains("SLURM_JOB_ID"));
        assert!(slurm(&[("SLURM_JOB_ID", "1")]).unwrap_err().contains("SLURM_JOB_UID"));
        let error = slurm(&[("SLURM_JOB_ID", "1"), ("SLURM_JOB_UID", "root")]).unwrap_err();
        assert!(error.contains("\"root\""), "{error}");
    }

    #[test]
    fn pbs_says_it_in_arguments() {
        let words = |line: &str| line.split('|').map(str::to_owned).collect::<Vec<_>>();
        let job = Job::of_prologue(&words("12.head|ann|users|job|nodes=1|batch|MPS=true")).unwrap();
        assert_eq!(job.owner, Owner::Name("ann".to_owned()));
        assert_eq!(job.request, Ok(Some(Request::Service)));
        let line = "12.head|ann|users|job|999|nodes=1,partita=sm=50%|cput=1|batch|physics";
        let job = Job::of_epilogue(&words(line)).unwrap();
        assert_eq!(job.request.unwrap().unwrap().to_string(), "isolation=shared,sm=50%");
        for line in ["", "12.head", "12.head|", "../x|ann", "x|ann"] {
            assert!(Job::of_prologue(&words(line)).is_err(), "{line}");
        }
    }

    #[test]
    fn ids_are_file_names_and_tenant_names() {
        for id in ["1", "4711_3", "4711[3].head.example.org"] {
            let id = JobId::new(System::Pbs, id).unwrap();
            partita_host::registry::check_name(&id.tenant_name()).unwrap();
        }
        let long = JobId::new(System::Slurm, &"1".repeat(ID_BYTES_MAX)).unwrap();
        partita_host::registry::check_name(&long.tenant_name()).unwrap();
        for id in ["", ".", "..", "/", "1/2", "1 2", "-1", "1\n", "ü", &"1".repeat(ID_BYTES_MAX + 1)] {
            assert!(JobId::new(System::Slurm, id).is_err(), "{id:?}");
        }
    }

    #[test]
    fn gpu_files_are_of_several_hosts() {
        let text = "node1-gpu0\nnode10-gpu1\nnode1.example-gpu3\n\nnonsense\n";
        assert_eq!(gpus_of_file(text, "node1.example"), ["0", "3"]);
        assert_eq!(gpus_of_file(text, "node2"), [""; 0]);
    }

    #[test]
    fn indexes_may_be_of_a_simulated_machine() {
        let gpus = gpu_list("1, GPU-aa,");
        assert_eq!(on_machine(&gpus, None), ["1", "GPU-aa"]);
        assert_eq!(on_machine(&gpus, Some("0")), ["1", "GPU-aa"]);
        assert_eq!(on_machine(&gpus, Some("sim:h200")), ["sim:h200:1", "GPU-aa"]);
    }
}
