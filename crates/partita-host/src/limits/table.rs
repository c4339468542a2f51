//! The limits that a tenant can have, in one table.
//!
//! A limit is a field of [`LimitSet`], a row of [`LIMITS`], and a line each in [`LimitSet::put`]
//! and [`LimitSet::of`], which write it to the ledger and read it there. A limit whose value is a
//! word is declared with [`words!`](partita_core::words), beside its bit in the ledger if it has
//! one. The options of `partita run` and `partita set` with their help, the members of REST bodies
//! and their schemas, the keys of batch requests and the members of `partita ps --json` come from
//! the row.

use std::fmt;

use partita_core::slo::{Goal, ParseSloError, Slo};
use partita_core::time::{ParseTimeShareError, Policy, Priority, TimeShare};
use partita_core::{
    ByteSize, ParseByteSizeError, ParseShareError, Placement, Quota, Share, UnknownWord, Words, words,
};
use partita_ledger::{
    FLAG_GATED, FLAG_MEMORY_REST, FLAG_TIMED, FLAG_TURNS, Limits, MECHANISM_MASK, MECHANISM_PERSISTENT,
    OnMisfit, SmCount, Spill, TaskSlots,
};
use serde_json::Value;
use thiserror::Error;

use crate::offered::Via;
use crate::registry::{Isolation, Meta, memory};

words! {
    /// When a program is started again.
    pub enum Restart: Never {
        /// Never.
        Never => "never",
        /// When a neighbour's fault or violent end destroyed the program's work on the GPU.
        OnNeighbourFault => "on-neighbour-fault",
    }
}

/// Limits of a tenant: those that a user asks for, or those that it has. The default has no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LimitSet {
    /// `--sm`, on each GPU; `None` for an even part of what the shares of others leave.
    pub share: Option<Share>,
    /// The second figure of `--sm 30%..100%`: up to how much it borrows.
    pub up_to: Option<Share>,
    /// `--place`.
    pub place: Option<Placement>,
    /// `--time`, on each GPU. A tenant that is started without a share of time never gets one.
    pub time: Option<TimeShare>,
    /// `--time-policy`; without effect without a share of time.
    pub time_policy: Option<Policy>,
    /// `--mem`, on each GPU; `None` for no quota.
    pub memory: Option<Quota>,
    /// `--mem-driver`; `None` for the default,
    /// [`DRIVER_ALLOWANCE_BYTES`](partita_ledger::DRIVER_ALLOWANCE_BYTES).
    pub driver_allowance: Option<ByteSize>,
    /// `--isolation`; `None` for what [`LimitSet::isolation`] chooses.
    pub isolation: Option<Isolation>,
    /// `--priority`. A tenant that is started with normal priority keeps it.
    pub priority: Option<Priority>,
    /// `--via`.
    pub via: Option<Via>,
    /// `--restart`. Only the command itself needs it, and the next one.
    pub restart: Option<Restart>,
    /// `--on-misfit`.
    pub on_misfit: Option<OnMisfit>,
    /// `--sm-count`.
    pub sm_count: Option<SmCount>,
    /// `--task-slots`.
    pub task_slots: Option<TaskSlots>,
    /// `--spill`.
    pub spill: Option<Spill>,
    /// `--slo`: it is in `meta.json`, since only the planner's side reads it.
    pub slo: Option<Slo>,
    /// `--goal`, likewise.
    pub goal: Option<Goal>,
}

/// As options of a command: `--sm 50% --mem 1GiB`.
impl fmt::Display for LimitSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let given = LIMITS.iter().filter_map(|limit| Some((limit.name, limit.text(self)?)));
        for (at, (name, text)) in given.enumerate() {
            let gap = if at == 0 { "" } else { " " };
            write!(f, "{gap}--{name} {text}")?;
        }
        Ok(())
    }
}

impl LimitSet {
    /// Writes what is asked for to a ledger. Compute units are planned, and written by the planner.
    pub fn put(&self, limits: &mut Limits) {
        if let Some(share) = self.time {
            limits.time_permille = share.0;
        }
        if let Some(policy) = self.time_policy.filter(|_| limits.flags & FLAG_TIMED != 0) {
            limits.put_time_policy(policy);
        }
        if let Some(allowance) = self.driver_allowance {
            limits.driver_allowance_bytes = allowance.0;
        }
        if let Some(quota) = self.memory {
            let quota = quota.bytes(limits.memory_total_bytes, limits.driver_allowance_bytes);
            limits.memory_quota_bytes = quota.0;
            limits.flags &= !FLAG_MEMORY_REST;
        }
        if let Some(priority) = self.priority {
            limits.priority = priority as u32;
        }
        self.on_misfit.into_iter().for_each(|it| it.put(limits));
        self.sm_count.into_iter().for_each(|it| it.put(limits));
        self.task_slots.into_iter().for_each(|it| it.put(limits));
        self.spill.into_iter().for_each(|it| it.put(limits));
    }

    /// The same for a new tenant, which begins with a gate or a meter if it is ever to have one.
    pub fn put_new(&self, limits: &mut Limits) {
        if self.priority() != Priority::Normal {
            limits.flags |= FLAG_GATED;
        }
        if self.time.is_some() {
            limits.flags |= FLAG_TIMED;
        }
        self.put(limits);
    }

    /// Compute units as users write them, with how far they borrow: `10%..40tpc`.
    pub fn sm(&self) -> Option<String> {
        (SM.read)(self)
    }

    /// What a tenant has, from its ledger and its `meta.json`. What a damaged file would say is
    /// missing.
    pub fn of(limits: Option<&Limits>, meta: Option<&Meta>) -> Self {
        let timed = limits.filter(|limits| limits.flags & FLAG_TIMED != 0);
        let quota = limits.and_then(memory::promise);
        Self {
            share: meta.and_then(|meta| meta.share.as_ref()?.parse().ok()),
            up_to: limits
                .filter(|limits| limits.borrow_tpcs_max != 0)
                .map(|limits| Share::Tpcs(limits.borrow_tpcs_max as u32)),
            place: meta.map(|meta| meta.place),
            time: timed.map(|limits| TimeShare(limits.time_permille)),
            time_policy: timed.map(Limits::time_policy),
            memory: quota.map(|bytes| ByteSize(bytes).into()),
            driver_allowance: limits.map(|limits| ByteSize(limits.driver_allowance_bytes)),
            isolation: meta.map(|meta| meta.isolation),
            priority: limits.map(|limits| Priority::from_number(limits.priority)),
            via: limits.and_then(|limits| match limits.mechanism {
                MECHANISM_PERSISTENT => Some(Via::Persistent),
                _ if limits.flags & FLAG_TURNS != 0 => Some(Via::Time),
                MECHANISM_MASK => Some(Via::Mask),
                // Made by an environment, which may give it a share of time.
                _ => timed.map(|_| Via::Time),
            }),
            restart: None,
            on_misfit: limits.map(OnMisfit::of),
            sm_count: limits.map(SmCount::of),
            task_slots: limits.map(TaskSlots::of),
            spill: limits.map(Spill::of),
            slo: meta.and_then(Meta::target).map(Slo::Target),
            goal: meta.map(|meta| meta.goal).filter(|goal| *goal != Goal::None),
        }
    }

    /// The priority, normal unless another one is asked for.
    pub fn priority(&self) -> Priority {
        self.priority.unwrap_or_default()
    }

    /// The way of enforcing, the best one unless another one is asked for.
    pub fn via(&self) -> Via {
        self.via.unwrap_or_default()
    }

    /// Whether it takes turns with others on the same compute units: if asked to, or if it asks for
    /// a share of time or a priority and for no compute units.
    pub fn takes_turns(&self) -> bool {
        match self.via() {
            Via::Time => true,
            Via::Mask | Via::Persistent => false,
            Via::Auto => {
                let is_ranked = self.time.is_some() || self.priority() != Priority::Normal;
                is_ranked && self.share.is_none() && self.place.is_none()
            }
        }
    }

    /// Whether it runs beside the others. One that has the whole GPU by priority alone does not
    /// unless it is asked for: only turns can interrupt a running kernel.
    pub fn isolation(&self) -> Isolation {
        self.isolation.unwrap_or(match self.via() {
            Via::Time if self.time.is_none() => Isolation::Own,
            _ => Isolation::Shared,
        })
    }
}

/// A row of the table.
#[derive(Debug, Clone, Copy)]
pub struct Limit {
    /// The option of commands without its dashes, and the key of batch requests.
    pub name: &'static str,
    /// The member of JSON objects.
    pub member: &'static str,
    /// How values are written.
    pub form: Form,
    /// What `partita run --help` says of it.
    pub help: &'static str,
    /// The default, where `--help` does not say it in other words.
    pub default: Option<&'static str>,
    /// The option that `partita run` must be given beside it, if there is one.
    pub needs: Option<Needs>,
    /// `None` if a running tenant keeps what it started with.
    pub change: Option<Change>,
    /// Whether batch requests can have it.
    pub batch: bool,
    /// Whether lists of tenants have it.
    pub shown: Shown,
    field: Field,
}

/// The option that a limit needs beside it.
#[derive(Debug, Clone, Copy)]
pub struct Needs {
    /// The value of the limit that needs it; every value if it is `None`.
    pub value: Option<&'static str>,
    /// The option without its dashes.
    pub option: &'static str,
}

/// How `partita set` and `PATCH /v1/tenants/{tenant}` offer a limit.
#[derive(Debug, Clone, Copy)]
pub struct Change {
    /// What `partita set --help` says of it.
    pub help: &'static str,
    /// What the API's document says of it.
    pub about: &'static str,
}

/// Which lists of tenants have a limit.
#[derive(Debug, Clone, Copy)]
pub enum Shown {
    /// None, or in a form of their own.
    Not,
    /// `partita ps --json`.
    InPs,
    /// That, and `GET /v1/tenants`, whose document says this of it.
    InRest(&'static str),
}

/// How the values of a limit are written.
#[derive(Debug, Clone, Copy)]
pub enum Form {
    /// One of a few words.
    Words {
        /// What there is to choose.
        about: &'static str,
        /// What help texts call a value.
        value_name: &'static str,
        /// The words.
        words: &'static [&'static str],
        /// What each means.
        meanings: &'static [&'static str],
    },
    /// Compute units: `30%`, `20tpc`.
    Share,
    /// Memory: `20GiB`, `50%`. A member of JSON whose name says so is a number of bytes.
    Size {
        /// The least number of bytes.
        least: u64,
    },
    /// Time: `12.5%`.
    Percent,
    /// A target: `p99=2.5ms`.
    Target,
}

impl Form {
    const fn words<T: Words>(value_name: &'static str) -> Self {
        Self::Words { about: T::ABOUT, value_name, words: T::WORDS, meanings: T::MEANINGS }
    }
}

/// A value that a limit does not take.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum LimitError {
    /// It is not a share of compute units.
    #[error(transparent)]
    Share(#[from] ParseShareError),
    /// It is not a memory size.
    #[error(transparent)]
    Size(#[from] ParseByteSizeError),
    /// It is not a share of time.
    #[error(transparent)]
    Time(#[from] ParseTimeShareError),
    /// It is not a target.
    #[error(transparent)]
    Slo(#[from] ParseSloError),
    /// It is not one of the limit's words.
    #[error(transparent)]
    Word(#[from] UnknownWord),
}

/// The member of [`LimitSet`] that a row is about.
#[derive(Debug, Clone, Copy)]
struct Field {
    read: fn(&LimitSet) -> Option<String>,
    write: fn(&mut LimitSet, &str) -> Result<(), LimitError>,
}

macro_rules! field {
    ($field:ident) => {
        Field {
            read: |limits| limits.$field.map(|value| value.to_string()),
            write: |limits, text| {
                limits.$field = Some(text.parse()?);
                Ok(())
            },
        }
    };
}

impl Limit {
    /// Its value as users write it; `None` if it is not in the set.
    pub fn text(&self, limits: &LimitSet) -> Option<String> {
        (self.field.read)(limits)
    }

    /// Puts a value, as users write it, into a set.
    ///
    /// # Errors
    /// What is wrong with it, without the limit's name.
    pub fn put(&self, limits: &mut LimitSet, text: &str) -> Result<(), LimitError> {
        (self.field.write)(limits, text)
    }

    /// Its value in JSON; `None` if it is not in the set.
    pub fn json(&self, limits: &LimitSet) -> Option<Value> {
        let text = self.text(limits)?;
        match self.form {
            // A percentage stays text.
            Form::Size { .. } => {
                Some(text.parse().map_or_else(|_| text.into(), |ByteSize(bytes)| bytes.into()))
            }
            _ => Some(text.into()),
        }
    }
}

/// Compute units: a share, a share and how far it borrows (`30%..100%`), or that alone (`..100%`).
const SM: Field = Field {
    read: |limits| match (limits.share, limits.up_to) {
        (share, None) => share.map(|share| share.to_string()),
        (None, Some(up_to)) => Some(format!("..{up_to}")),
        (Some(share), Some(up_to)) => Some(format!("{share}..{up_to}")),
    },
    write: |limits, text| {
        let (share, up_to) = match text.split_once("..") {
            None => (Some(text.parse()?), None),
            Some(("", up_to)) => (None, Some(up_to.parse()?)),
            Some((share, up_to)) => (Some(share.parse()?), Some(up_to.parse()?)),
        };
        (limits.share, limits.up_to) = (share, up_to);
        Ok(())
    },
};

/// A row with what most have.
const PLAIN: Limit = Limit {
    name: "",
    member: "",
    form: Form::Share,
    help: "",
    default: None,
    needs: None,
    change: None,
    batch: false,
    shown: Shown::Not,
    field: field!(share),
};

/// Every limit, in the order of help texts.
pub static LIMITS: &[Limit] = &[
    Limit {
        name: "sm",
        member: "sm",
        form: Form::Share,
        help: "Compute units of each GPU: 30%, 40sm, 20tpc, gpc:0-2 or tpc:0-9; 100% for all; 30%..100% has 30% \
               guaranteed and borrows what is idle up to 100% [default: an even part of \
               what --sm of others leaves, with the other tenants without --sm]",
        change: Some(Change {
            help: "Compute units: 30%, 40sm, 20tpc, gpc:0-2 or tpc:0-9; 30%..100% borrows what is idle up to 100%, \
                   ..100% borrows beside what it has",
            about: "Its compute units, as `--sm` takes them.",
        }),
        batch: true,
        shown: Shown::InRest("Its share as it was asked for, and how far it borrows: `10%..40tpc`."),
        field: SM,
        ..PLAIN
    },
    Limit {
        name: "place",
        member: "place",
        form: Form::words::<Placement>("PLACE"),
        help: "Where the compute units lie in the GPCs [default: packed]",
        change: Some(Change {
            help: "Where the compute units lie in the GPCs, from their next change on; at once with \
                   --compact",
            about: "How its TPCs lie over the GPCs.",
        }),
        shown: Shown::InPs,
        field: field!(place),
        ..PLAIN
    },
    Limit {
        name: "time",
        member: "time",
        form: Form::Percent,
        help: "The share of measured GPU time for all its processes together: 30%, 12.5%; without --sm, in \
               turns with others on the same compute units [default: no limit]",
        change: Some(Change {
            help: "The share of GPU time: 30%, 12.5%; only for tenants started with a share",
            about: "Its share of the GPU's time, as `--time` takes it.",
        }),
        field: field!(time),
        ..PLAIN
    },
    Limit {
        name: "time-policy",
        member: "time_policy",
        form: Form::words::<Policy>("TIME_POLICY"),
        help: "How the share of time is enforced",
        default: Some("hard"),
        needs: Some(Needs { value: None, option: "time" }),
        change: Some(Change {
            help: "How the share of time is enforced",
            about: "How its share of time is enforced.",
        }),
        field: field!(time_policy),
        ..PLAIN
    },
    Limit {
        name: "mem",
        member: "memory_quota_bytes",
        form: Form::Size { least: 1 },
        help: "Device memory of all its processes together, on each GPU: 20GiB, 512MiB, 50%; it is kept \
               free of others [default: what is not promised to others]",
        change: Some(Change {
            help: "Device memory of all its processes together, on each GPU: 20GiB, 512MiB, 50%",
            about: "Its memory quota, in bytes.",
        }),
        batch: true,
        shown: Shown::InRest("Its quota, in bytes."),
        field: field!(memory),
        ..PLAIN
    },
    Limit {
        name: "mem-driver",
        member: "memory_driver_allowance_bytes",
        form: Form::Size { least: 0 },
        help: "What the driver may allocate for itself in each process (context, code, variables of \
               modules, stacks) before it counts against --mem, and four times that in all of them \
               together; 0B counts everything [default: 1GiB]",
        needs: Some(Needs { value: None, option: "mem" }),
        change: Some(Change {
            help: "What the driver may allocate for itself in each process before it counts against --mem, \
                   and four times that in all of them together; from its next allocation on",
            about: "What the driver may take for itself in each of its processes before it counts against\n\
                    the quota, in bytes.",
        }),
        shown: Shown::InRest("What of that is free of charge in each process, in bytes."),
        field: field!(driver_allowance),
        ..PLAIN
    },
    Limit {
        name: "isolation",
        member: "isolation",
        form: Form::words::<Isolation>("ISOLATION"),
        help: "shared: at the same time as other tenants (MPS); own: in turns, protected from their faults \
               [default: shared; own for the whole GPU by priority, since only turns can interrupt a running \
               kernel]",
        batch: true,
        shown: Shown::InPs,
        field: field!(isolation),
        ..PLAIN
    },
    Limit {
        name: "priority",
        member: "priority",
        form: Form::words::<Priority>("PRIORITY"),
        help: "Tenants of low priority wait while a tenant of high priority has work in flight; without --sm \
               both have the same compute units",
        default: Some("normal"),
        change: Some(Change {
            help: "Tenants of low priority wait while a tenant of high priority has work in flight; only for \
                   tenants started with either",
            about: "Its priority.",
        }),
        batch: true,
        shown: Shown::InRest("`high`, `normal` or `low`."),
        field: field!(priority),
        ..PLAIN
    },
    Limit {
        name: "via",
        member: "via",
        form: Form::words::<Via>("VIA"),
        help: "How to enforce the partition: `mask` in every launch, `time` alone, or `persistent` blocks, which need \
               programs with PTX and no proved masks",
        default: Some("auto"),
        shown: Shown::InPs,
        field: field!(via),
        ..PLAIN
    },
    Limit {
        name: "restart",
        member: "restart",
        form: Form::words::<Restart>("RESTART"),
        help: "Restart the program when a neighbour's fault destroyed its work on the GPU, once MPS accepts \
               clients again",
        default: Some("never"),
        field: field!(restart),
        ..PLAIN
    },
    Limit {
        name: "on-misfit",
        member: "on_misfit",
        form: Form::words::<OnMisfit>("ON_MISFIT"),
        help: "What happens to launches that can never fit: clusters larger than a GPC of the partition, \
               cooperative grids larger than its SMs",
        default: Some("error"),
        change: Some(Change {
            help: "What happens to launches that can never fit",
            about: "What a launch gets that can never fit the partition.",
        }),
        shown: Shown::InPs,
        field: field!(on_misfit),
        ..PLAIN
    },
    Limit {
        name: "sm-count",
        member: "sm_count",
        form: Form::words::<SmCount>("SM_COUNT"),
        help: "The SM count that the program sees. NVIDIA's libraries always see the GPU's. Do not use \
               `partition` with a program that links one of them statically: it could compute wrong results",
        default: Some("device"),
        shown: Shown::InPs,
        field: field!(sm_count),
        ..PLAIN
    },
    Limit {
        name: "task-slots",
        member: "task_slots",
        form: Form::words::<TaskSlots>("TASK_SLOTS"),
        help: "How many of the kernels that the GPU runs at once the program may have beside other tenants",
        default: Some("share"),
        change: Some(Change {
            help: "How many of the kernels that the GPU runs at once it may have beside other tenants",
            about: "How many of the kernels that the GPU runs at once it may have beside other tenants.",
        }),
        shown: Shown::InPs,
        field: field!(task_slots),
        ..PLAIN
    },
    Limit {
        name: "spill",
        member: "spill",
        form: Form::words::<Spill>("SPILL"),
        help: "What happens to allocations that do not fit the memory quota",
        default: Some("none"),
        needs: Some(Needs { value: Some("host"), option: "mem" }),
        change: Some(Change {
            help: "What happens from now on to allocations that do not fit the memory quota",
            about: "What an allocation gets that the quota has no room for.",
        }),
        shown: Shown::InPs,
        field: field!(spill),
        ..PLAIN
    },
    Limit {
        name: "slo",
        member: "slo",
        form: Form::Target,
        help: "The longest time that 99 of 100 bursts of work may take: p99=2.5ms, or p99=1.2x of its own time \
               alone; step-p99=40ms for steps that the program names. Compute units move between tenants so \
               that it holds; --sm is the least that it has",
        change: Some(Change {
            help: "The longest time that 99 of 100 bursts may take: p99=2.5ms, p99=1.2x, step-p99=40ms; none ends \
                   the target",
            about: "The longest time that 99 of 100 of its bursts may take, as `--slo` takes it.",
        }),
        shown: Shown::InRest("Its target, as `--slo` takes it."),
        field: field!(slo),
        ..PLAIN
    },
    Limit {
        name: "goal",
        member: "goal",
        form: Form::words::<Goal>("GOAL"),
        help: "What its compute units are for beside tenants with a target; --sm is the least that it has",
        default: Some("none"),
        change: Some(Change {
            help: "What its compute units are for beside tenants with a target",
            about: "What its compute units are for beside tenants with a target.",
        }),
        shown: Shown::InRest("`throughput`; null without a goal."),
        field: field!(goal),
        ..PLAIN
    },
];
