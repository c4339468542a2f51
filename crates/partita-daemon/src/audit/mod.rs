//! Audits for what limits in a process cannot prevent: processes that use a GPU without the limits
//! of their tenant, and processes that have a gate open and belong to no tenant. [`partita::audit`]
//! makes each audit.
//!
//! | module | subject |
//! |---|---|
//! | [`look`] | one audit |
//! | [`change`] | what has begun and ended between audits: values in, values out |
//! | [`ending`] | which processes the policy of the site ends |
//!
//! `api::escapes` audits in a loop, and `store::events` stores the events.

pub mod change;
pub mod ending;
pub mod look;

use std::collections::BTreeSet;

use partita::audit::{Escape, STRANGER_REMEDY, escape_remedy};
use partita::process::{ProcessId, user_name};
use partita::registry::GpuMeta;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A violation, from the audit that finds it to the one that finds it over.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Finding {
    /// A process of a tenant uses a GPU without the tenant's limits.
    Escape {
        /// Which.
        #[serde(flatten)]
        escape: Escape,
        /// Whose it is.
        user: String,
        /// Device memory that it used when it was found, in bytes, if the driver reports it.
        driver_bytes: Option<u64>,
        /// Whether the site's policy ends it.
        #[serde(default)]
        is_ended: bool,
    },
    /// A process that belongs to no tenant has a gate open.
    Stranger {
        /// The path of the gate's file.
        gate: String,
        /// The GPU, where that is known.
        gpu: Option<GpuMeta>,
        /// The process.
        process: ProcessId,
        /// Whose it is.
        user: String,
    },
    /// A process uses the GPU of tenants and belongs to none.
    Outsider {
        /// The GPU.
        gpu: GpuMeta,
        /// The process.
        process: ProcessId,
        /// Whose it is.
        user: String,
        /// Device memory that it used when it was found, in bytes, if the driver reports it.
        driver_bytes: Option<u64>,
        /// Whether the site's policy ends it.
        is_ended: bool,
    },
    /// The file of the site's policy has a mistake.
    Policy {
        /// The mistake when it was found, with the file and the line.
        reason: String,
    },
    /// The processes of a GPU are unknown.
    Blind {
        /// The GPU; `None` if nothing can be audited.
        gpu: Option<GpuMeta>,
        /// Why, when it began.
        reason: String,
    },
}

/// The identity of a finding across audits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Key<'a> {
    /// A process that uses the GPU with this key.
    Escape(&'a str, ProcessId),
    /// A process that has this gate open.
    Stranger(&'a str, ProcessId),
    /// A process that uses the GPU with this key.
    Outsider(&'a str, ProcessId),
    /// The policy of the site.
    Policy,
    /// The GPU with this key; `None` for everything.
    Blind(Option<&'a str>),
}

/// What kind of finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = EventKind)]
pub enum Kind {
    /// A process of a tenant uses a GPU without the tenant's limits.
    Escape,
    /// A process that belongs to no tenant has the gate of a GPU open.
    Gate,
    /// A process uses the GPU of tenants and belongs to none.
    Outside,
    /// The file of the site's policy has a mistake.
    Policy,
    /// The processes of a GPU are unknown.
    Audit,
    /// A tenant's TPCs moved for a target, or it became known whether the target can be met.
    Target,
}

impl Kind {
    /// Its word.
    pub fn word(self) -> &'static str {
        match self {
            Self::Escape => "escape",
            Self::Gate => "gate",
            Self::Outside => "outside",
            Self::Policy => "policy",
            Self::Audit => "audit",
            Self::Target => "target",
        }
    }
}

/// How a finding came to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = EventEnd)]
pub enum End {
    /// The process has ended.
    Gone,
    /// The limits of a tenant hold the process.
    Held,
    /// The process does not use the GPU any more; or it has closed the gate, or is a tenant's now.
    Left,
    /// The GPU's processes are known again, or it has no tenants any more; or the policy's file has
    /// no mistake any more.
    Told,
}

impl End {
    /// Its word.
    pub fn word(self) -> &'static str {
        match self {
            Self::Gone => "gone",
            Self::Held => "held",
            Self::Left => "left",
            Self::Told => "told",
        }
    }
}

/// The result of one audit.
#[derive(Debug, Clone, Default)]
pub struct Look {
    /// All that is not as it must be.
    pub findings: Vec<Finding>,
    /// The processes that limits hold, each with the key of the GPU that it uses.
    pub held: BTreeSet<(String, ProcessId)>,
    /// Of the processes that were searched for, those that have ended or are exiting.
    pub gone: BTreeSet<ProcessId>,
}

impl Finding {
    /// Its identity in another audit.
    pub fn key(&self) -> Key<'_> {
        match self {
            Self::Escape { escape, .. } => Key::Escape(&escape.gpu.key, escape.process),
            Self::Stranger { gate, process, .. } => Key::Stranger(gate, *process),
            Self::Outsider { gpu, process, .. } => Key::Outsider(&gpu.key, *process),
            Self::Policy { .. } => Key::Policy,
            Self::Blind { gpu, .. } => Key::Blind(gpu.as_ref().map(|gpu| gpu.key.as_str())),
        }
    }

    /// Its kind.
    pub fn kind(&self) -> Kind {
        match self {
            Self::Escape { .. } => Kind::Escape,
            Self::Stranger { .. } => Kind::Gate,
            Self::Outsider { .. } => Kind::Outside,
            Self::Policy { .. } => Kind::Policy,
            Self::Blind { .. } => Kind::Audit,
        }
    }

    /// The tenant whose limits do not hold.
    pub fn tenant(&self) -> Option<&str> {
        match self {
            Self::Escape { escape, .. } => Some(&escape.tenant),
            _ => None,
        }
    }

    /// The GPU, where that is known.
    pub fn gpu(&self) -> Option<&GpuMeta> {
        match self {
            Self::Escape { escape, .. } => Some(&escape.gpu),
            Self::Outsider { gpu, .. } => Some(gpu),
            Self::Stranger { gpu, .. } | Self::Blind { gpu, .. } => gpu.as_ref(),
            Self::Policy { .. } => None,
        }
    }

    /// The process that it is about.
    pub fn process(&self) -> Option<ProcessId> {
        match self {
            Self::Escape { escape, .. } => Some(escape.process),
            Self::Stranger { process, .. } | Self::Outsider { process, .. } => Some(*process),
            Self::Policy { .. } | Self::Blind { .. } => None,
        }
    }

    /// The part of the site's policy that ends the process, if one does.
    pub fn ends_by(&self) -> Option<&'static str> {
        match self {
            Self::Escape { is_ended: true, .. } => Some("[escaped] programs = \"end\""),
            Self::Outsider { is_ended: true, .. } => Some("[outside] programs = \"end\""),
            _ => None,
        }
    }

    /// Whose the process is.
    pub fn user(&self) -> Option<&str> {
        match self {
            Self::Escape { user, .. } | Self::Stranger { user, .. } | Self::Outsider { user, .. } => {
                Some(user)
            }
            Self::Policy { .. } | Self::Blind { .. } => None,
        }
    }

    /// Device memory that the process used when it was found, in bytes.
    pub fn driver_bytes(&self) -> Option<u64> {
        match self {
            Self::Escape { driver_bytes, .. } | Self::Outsider { driver_bytes, .. } => *driver_bytes,
            Self::Stranger { .. } | Self::Policy { .. } | Self::Blind { .. } => None,
        }
    }

    /// That it has begun, for people: the thing, the reason, the remedy.
    pub fn begun(&self) -> String {
        match self {
            Self::Escape { escape: Escape { tenant, gpu, process }, user, is_ended, .. } => format!(
                "process {} of {user} uses {} without the limits of its tenant {tenant}: {}",
                process.pid,
                gpu.label,
                match is_ended {
                    true => "the policy of this site ends it; start it with the library".to_owned(),
                    false => escape_remedy(process.pid, tenant),
                }
            ),
            Self::Stranger { gate, process, user, .. } => {
                format!("process {} of {user} has {gate} open and {STRANGER_REMEDY}", process.pid)
            }
            Self::Outsider { gpu, process, user, is_ended, .. } => format!(
                "process {} of {user} uses {} and belongs to no tenant: nothing limits it, and its memory \
                 may have been promised to a tenant; {}",
                process.pid,
                gpu.label,
                match is_ended {
                    true => "the policy of this site ends it; start it with `partita run`".to_owned(),
                    false =>
                        format!("`kill {}` ends it, and `partita run` starts it in a tenant", process.pid),
                }
            ),
            Self::Policy { reason } => {
                format!(
                    "{reason}; the old policy of this site holds, and `partita policy check` finds the \
                     mistake"
                )
            }
            Self::Blind { gpu, reason } => format!(
                "processes that escape from tenants on {} would not be seen: {reason}; `partita \
                 doctor` shows what works",
                label(gpu.as_ref())
            ),
        }
    }

    /// The message for this end.
    pub fn ended(&self, end: End) -> String {
        let process = |process: &ProcessId, user: &str| format!("process {} of {user}", process.pid);
        match self {
            Self::Escape { escape: Escape { tenant, gpu, process: id }, user, .. } => {
                let what = match end {
                    End::Gone => "has ended".to_owned(),
                    End::Held => "is held by limits now".to_owned(),
                    End::Left | End::Told => format!("does not use {} any more", gpu.label),
                };
                format!("{}, which had escaped from tenant {tenant}, {what}", process(id, user))
            }
            Self::Stranger { gate, process: id, user, .. } => {
                let what = match end {
                    End::Gone => "has ended",
                    End::Held | End::Left | End::Told => "has closed it or is a tenant's now",
                };
                format!("{}, which had {gate} open and belonged to no tenant, {what}", process(id, user))
            }
            Self::Outsider { gpu, process: id, user, .. } => {
                let what = match end {
                    End::Gone => "has ended".to_owned(),
                    End::Held => "is held by limits now".to_owned(),
                    End::Left | End::Told => {
                        format!("has left {}, or no tenant is there any more", gpu.label)
                    }
                };
                format!("{}, which belonged to no tenant, {what}", process(id, user))
            }
            Self::Policy { .. } => "the file of the site's policy has no mistake any more".to_owned(),
            Self::Blind { gpu, .. } => {
                format!("processes that escape from tenants on {} would be seen again", label(gpu.as_ref()))
            }
        }
    }
}

fn label(gpu: Option<&GpuMeta>) -> &str {
    gpu.map_or("all GPUs", |gpu| &gpu.label)
}

/// Whose a process is, for people.
fn user_of(process: ProcessId) -> String {
    process.user().map_or_else(|| "?".to_owned(), user_name)
}
