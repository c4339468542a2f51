//! Share one NVIDIA GPU between programs that know nothing of each other.
//!
//! This is the library behind the command `partita`. It runs a program on a part of a GPU, changes
//! what the program has while it runs, and lists and ends such programs. A program with its
//! partition is a *tenant*. Real GPUs and simulated ones work alike.
//!
//! Everything that touches a driver happens in a child process ([`child`]). That child is the
//! `partita` program, so whatever starts something takes an [`install::Install`]. The library loads
//! a driver into its own process only to restrict that process's own launches ([`restrict`],
//! [`contexts`]).
//!
//! # Run a program on half of a GPU
//!
//! ```no_run
//! use partita::Share;
//! use partita::install::Install;
//! use partita::limits::LimitSet;
//! use partita::run::{RunRequest, run};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let install = Install::of("/usr/local/bin/partita".into(), None);
//! let request = RunRequest {
//!     gpus: Some("sim:h200".parse()?),
//!     limits: LimitSet {
//!         share: Some("50%".parse::<Share>()?),
//!         memory: Some("20GiB".parse()?),
//!         ..LimitSet::default()
//!     },
//!     name: Some("serve".to_owned()),
//!     command: vec!["python3".into(), "serve.py".into()],
//!     ..RunRequest::default()
//! };
//! let exit_code = run(&install, &request, |_, _| {}, |notice| eprintln!("{notice}"))?;
//! # let _ = exit_code;
//! # Ok(())
//! # }
//! ```
//!
//! # List tenants, change one, end it
//!
//! ```no_run
//! use partita::install::Install;
//! use partita::kill::{GRACE_DEFAULT, kill};
//! use partita::limits::LimitSet;
//! use partita::ps::ps;
//! use partita::registry::Registry;
//! use partita::set::{SetRequest, Whose, set};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let registry = Registry::open()?;
//! for tenant in ps(&registry)? {
//!     println!("{} on {}: {:?} SMs", tenant.name, tenant.gpu, tenant.sms);
//! }
//! let whose = Whose::Name("serve".into());
//! let limits = LimitSet { share: Some("25%".parse()?), ..LimitSet::default() };
//! let smaller = SetRequest { limits, ..SetRequest::new(whose) };
//! for limits in set(&registry, &smaller)? {
//!     println!("{} has {} now", limits.name, limits.tpcs);
//! }
//! let install = Install::of("/usr/local/bin/partita".into(), None);
//! let ended = kill(&install, &registry, "serve", GRACE_DEFAULT)?;
//! println!("{} processes ended", ended.processes);
//! # Ok(())
//! # }
//! ```
//!
//! # Check a machine
//!
//! ```no_run
//! use partita::doctor::{State, examine};
//! use partita::gpu;
//! use partita::install::Install;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let install = Install::of("/usr/local/bin/partita".into(), None);
//! let gpu = gpu::select(&install, Some(&"0".parse()?))?.gpu;
//! let report = examine(&install, &gpu, |check| eprintln!("{check} ..."))?;
//! for check in report.checks.iter().filter(|check| check.state == State::Failed) {
//!     println!("{}: {}", check.name, check.detail);
//! }
//! # Ok(())
//! # }
//! ```
//!
//! # What users write
//!
//! Requests take the same words as the command line.
//!
//! ```
//! use partita::gpus::Selectors;
//! use partita::{ByteSize, Priority, Share, TimeShare, TpcSet};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let gpus: Selectors = "sim:h200,1".parse()?;
//! assert_eq!(gpus.to_string(), "sim:h200,sim:h200:1");
//! assert_eq!("12.5%".parse::<Share>()?, Share::Percent(12_500));
//! assert_eq!("0-3,8".parse::<TpcSet>()?.len(), 5);
//! assert_eq!("2GiB".parse::<ByteSize>()?, ByteSize(2 << 30));
//! assert_eq!("30%".parse::<TimeShare>()?, TimeShare(300));
//! assert_eq!("low".parse::<Priority>()?, Priority::Low);
//! assert!("gpu:7".parse::<Selectors>().is_err());
//! # Ok(())
//! # }
//! ```
//!
//! # Where things are
//!
//! This crate only re-exports. The parts are crates of their own, which a program can use alone:
//! `partita-host` (GPUs and tenants), `partita-doctor` (checks, proofs, charts) and `partita-batch`
//! (batch systems). The types that their signatures name are here too: the common ones at the top,
//! the rest in [`core`], [`driver`], [`ledger`] and [`control`].

#![deny(missing_docs)]

pub use partita_batch as batch;
#[doc(no_inline)]
pub use partita_core as core;
#[doc(no_inline)]
pub use partita_driver as driver;
#[doc(no_inline)]
pub use partita_ledger as ledger;
#[doc(no_inline)]
pub use partita_mps as control;

pub use partita_core::time::{Policy, Priority, TimeShare};
pub use partita_core::{ByteSize, Share, Topology, TpcSet};
pub use partita_doctor::{audit, demo, doctor, prove, sample, topology};
#[doc(hidden)]
pub use partita_host::points;
pub use partita_host::{
    Error, answer, apply, calibration, cdi, child, compare, detached, error, escape, explain, facts, gpu,
    gpus, groups, holder, install, kill, limits, mig, mode, mps, offered, pace, partition, policy, preload,
    process, program, ps, queue, registry, run, sandbox, set, signals, simenv, site, slo, state, system,
    time, vf,
};

/// ```no_run
/// use partita::contexts::ContextPool;
///
/// # fn launch(stream: partita::restrict::StreamRef<'_>, blocks: u32) {}
/// # fn main() -> Result<(), partita::Error> {
/// let pool = ContextPool::new(&[8, 44, 86])?;
/// let context = pool.at_least(40).or(pool.largest());
/// if let Some(context) = context {
///     launch(context.stream(), 4 * context.sms());
/// }
/// # Ok(())
/// # }
/// ```
pub use partita_host::contexts;

/// ```no_run
/// use partita::gpu;
/// use partita::install::Install;
/// use partita::restrict::{Launch, Masks, Process, Stream, StreamRef};
///
/// # fn work() {}
/// # fn example(raw_stream: *mut std::ffi::c_void) -> Result<(), Box<dyn std::error::Error>> {
/// // The program that proves the driver in child processes, once for each driver build.
/// let install = Install::of("/usr/local/bin/partita".into(), None);
/// let gpu = gpu::select(&install, None)?.gpu;
/// let masks = Masks::new(&install, &gpu)?;
///
/// let half = masks.topology().all().lowest(masks.topology().tpc_count() / 2);
/// let _process = Process::of(&masks)?.restrict(&half)?;
///
/// // A `CUstream` or `cudaStream_t` of any library.
/// // SAFETY: it is alive as long as `stream`.
/// let stream = Stream::of(&masks, unsafe { StreamRef::from_raw(raw_stream)? });
/// let urgent = stream.restrict(&masks.topology().all())?;
/// work(); // the whole GPU for this stream, half of it for every other
/// drop(urgent);
///
/// let one = Launch::of(&masks)?.restrict(&"0".parse()?)?;
/// work(); // its first launch runs on one TPC
/// drop(one);
/// # Ok(())
/// # }
/// ```
pub use partita_host::restrict;

/// What runs in child processes.
pub mod jobs {
    pub use partita_host::jobs::job;

    /// Runs the job `name` in this process and returns the line to print as its result.
    ///
    /// # Errors
    /// An unknown job or a request that is not the job's: another version's process asked.
    pub fn run(name: &str, request: &str) -> Result<String, String> {
        partita_host::jobs::run(name, request)
            .or_else(|| partita_doctor::jobs::run(name, request))
            .or_else(|| partita_batch::jobs::run(name, request))
            .unwrap_or_else(|| {
                Err(format!(
                    "there is no job {name:?}; the processes of one partita are of different versions"
                ))
            })
    }
}
