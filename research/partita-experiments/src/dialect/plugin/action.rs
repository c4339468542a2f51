//! `stream_action`: any sequence of operations on one stream.

use serde_json::{Value, json};

use super::{SPIN_NS_MAX, Spin, Task, mask, shared_words};
use crate::dialect::BLOCK_THREADS_MAX;
use crate::dialect::mask::SmMask;
use crate::dialect::node::{DialectError, Node};

/// Largest number of allocations without a free, as in the original.
const ALLOCATIONS_MAX: usize = 10;
/// Buffers that the original allocates beforehand, so that a free may come first.
const ALLOCATED_BEFORE: usize = 4;

/// One operation.
#[derive(Clone, Debug, PartialEq)]
pub struct Action {
    /// Seconds that the host waits before it.
    pub delay_s: f64,
    /// Its name.
    pub label: String,
    pub kind: ActionKind,
}

/// The kind of an operation.
#[derive(Clone, Debug, PartialEq)]
pub enum ActionKind {
    Kernel {
        spin: Spin,
        shared_words: u32,
        block_count: Option<u32>,
        thread_count: Option<u32>,
        sm_mask: Option<SmMask>,
    },
    Malloc {
        on_host: bool,
        bytes: u64,
    },
    Free {
        on_host: bool,
    },
    Memset {
        is_async: bool,
        bytes: u64,
    },
    Memcpy {
        is_async: bool,
        bytes: u64,
        route: CopyRoute,
    },
    Synchronize {
        device: bool,
    },
}

/// The direction of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyRoute {
    /// Inside the device.
    DeviceToDevice,
    /// To the host.
    DeviceToHost,
    /// From the host.
    HostToDevice,
}

impl CopyRoute {
    const ALL: [(Self, &'static str); 3] = [
        (Self::DeviceToDevice, "deviceToDevice"),
        (Self::DeviceToHost, "deviceToHost"),
        (Self::HostToDevice, "hostToDevice"),
    ];

    fn name(self) -> &'static str {
        Self::ALL.iter().find(|(route, _)| *route == self).map_or("", |(_, name)| name)
    }
}

const KINDS: &str = "\"kernel\", \"malloc\", \"free\", \"memset\", \"memcpy\" or \"synchronize\"";

pub(super) fn read(info: &Node<'_>) -> Result<Task, DialectError> {
    let mut object = info.object()?;
    let uses_null_stream = object.get("use_null_stream").map_or(Ok(false), |it| it.bool())?;
    let list = object.need("actions", "an array of actions")?;
    object.finish()?;
    let mut actions = Vec::new();
    // Device, host.
    let mut allocated = [ALLOCATED_BEFORE; 2];
    for node in list.array()? {
        let action = one(&node)?;
        match action.kind {
            ActionKind::Malloc { on_host, .. } => {
                let count = &mut allocated[usize::from(on_host)];
                *count += 1;
                if *count > ALLOCATED_BEFORE + ALLOCATIONS_MAX {
                    return Err(node.fail(format!("more than {ALLOCATIONS_MAX} allocations without a free")));
                }
            }
            ActionKind::Free { on_host } => {
                let count = &mut allocated[usize::from(on_host)];
                *count = count.checked_sub(1).ok_or_else(|| {
                    node.fail(format!("nothing is left to free: {ALLOCATED_BEFORE} buffers are there before the first malloc"))
                })?;
            }
            _ => {}
        }
        actions.push(action);
    }
    if actions.is_empty() {
        return Err(list.fail("there are no actions: at least one"));
    }
    Ok(Task::StreamAction { uses_null_stream, actions })
}

fn one(node: &Node<'_>) -> Result<Action, DialectError> {
    let mut object = node.object()?;
    let delay_s = object.get("delay").map_or(Ok(0.0), |delay| delay.number("seconds"))?;
    let label = object.get("label").map_or(Ok(String::new()), |label| label.string())?;
    let kind = object.need("type", KINDS)?;
    let parameters = object.get("parameters");
    object.get("comment");
    object.finish()?;
    let needs = || parameters.clone().ok_or_else(|| node.fail("parameters is missing: an object"));
    let kind = match kind.string()?.as_str() {
        "kernel" => {
            let mut object = needs()?.object()?;
            let counter = match object.get("type") {
                None => false,
                Some(node) => match node.string()?.as_str() {
                    "timer_spin" => false,
                    "counter_spin" => true,
                    _ => return Err(node.refuse("\"timer_spin\" or \"counter_spin\"")),
                },
            };
            let duration = object.need("duration", "nanoseconds, or loops of a counter_spin")?;
            let duration = duration.whole(0, if counter { 1 << 48 } else { SPIN_NS_MAX })?;
            let spin = if counter { Spin::Counter { loops: duration } } else { Spin::Timer { ns: duration } };
            let count = |node: Option<Node<'_>>, most: u64| {
                node.map(|node| node.whole(1, most).map(|count| count as u32)).transpose()
            };
            let kind = ActionKind::Kernel {
                spin,
                shared_words: object.get("shared_memory_size").as_ref().map_or(Ok(0), shared_words)?,
                block_count: count(object.get("block_count"), i32::MAX as u64)?,
                thread_count: count(object.get("thread_count"), u64::from(BLOCK_THREADS_MAX))?,
                sm_mask: object.get("sm_mask").as_ref().map(mask).transpose()?,
            };
            object.finish()?;
            kind
        }
        "malloc" => {
            let mut object = needs()?.object()?;
            let on_host = flag(object.get("host"), false)?;
            let bytes = object.need("size", "bytes")?.whole(1, 1 << 48)?;
            object.finish()?;
            ActionKind::Malloc { on_host, bytes }
        }
        "memset" => {
            let mut object = needs()?.object()?;
            let is_async = flag(object.get("async"), true)?;
            let bytes = object.need("size", "bytes")?.whole(1, 1 << 48)?;
            object.finish()?;
            ActionKind::Memset { is_async, bytes }
        }
        "memcpy" => {
            let mut object = needs()?.object()?;
            let is_async = flag(object.get("async"), true)?;
            let bytes = object.need("size", "bytes")?.whole(1, 1 << 48)?;
            let accepted = "\"deviceToDevice\", \"deviceToHost\" or \"hostToDevice\"";
            let node = object.need("direction", accepted)?;
            let name = node.string()?;
            let route = CopyRoute::ALL.iter().find(|(_, known)| *known == name);
            let route = route.ok_or_else(|| node.refuse(accepted))?.0;
            object.finish()?;
            ActionKind::Memcpy { is_async, bytes, route }
        }
        other @ ("free" | "synchronize") => {
            let is_free = other == "free";
            let set = match &parameters {
                None => false,
                Some(parameters) => {
                    let mut object = parameters.object()?;
                    let set = flag(object.get(if is_free { "host" } else { "device" }), false)?;
                    object.finish()?;
                    set
                }
            };
            if is_free { ActionKind::Free { on_host: set } } else { ActionKind::Synchronize { device: set } }
        }
        _ => return Err(kind.refuse(KINDS)),
    };
    Ok(Action { delay_s, label, kind })
}

fn flag(node: Option<Node<'_>>, unsaid: bool) -> Result<bool, DialectError> {
    node.map_or(Ok(unsaid), |node| node.bool())
}

pub(super) fn write(uses_null_stream: bool, actions: &[Action]) -> Value {
    let actions = actions.iter().map(|action| {
        let (kind, parameters) = match &action.kind {
            ActionKind::Kernel { spin, shared_words, block_count, thread_count, sm_mask } => {
                let (kind, duration) = match spin {
                    Spin::Timer { ns } => ("timer_spin", ns),
                    Spin::Counter { loops } => ("counter_spin", loops),
                };
                let mut value = json!({"type": kind, "duration": duration});
                if *shared_words > 0 {
                    value["shared_memory_size"] = json!(shared_words);
                }
                for (key, count) in [("block_count", block_count), ("thread_count", thread_count)] {
                    if let Some(count) = count {
                        value[key] = json!(count);
                    }
                }
                if let Some(mask) = sm_mask {
                    value["sm_mask"] = json!(mask.to_string());
                }
                ("kernel", value)
            }
            ActionKind::Malloc { on_host, bytes } => ("malloc", json!({"host": on_host, "size": bytes})),
            ActionKind::Free { on_host } => ("free", json!({"host": on_host})),
            ActionKind::Memset { is_async, bytes } => ("memset", json!({"async": is_async, "size": bytes})),
            ActionKind::Memcpy { is_async, bytes, route } => {
                ("memcpy", json!({"async": is_async, "size": bytes, "direction": route.name()}))
            }
            ActionKind::Synchronize { device } => ("synchronize", json!({"device": device})),
        };
        let mut value = json!({"type": kind, "label": action.label, "parameters": parameters});
        if action.delay_s > 0.0 {
            value["delay"] = json!(action.delay_s);
        }
        value
    });
    json!({"use_null_stream": uses_null_stream, "actions": actions.collect::<Vec<_>>()})
}
