//! The form of definitions in the document. [`partita_chain_host::Definition`] reads and checks
//! them; a test compares both.

use partita_chain_host::Definition;
use serde::Serialize;
use utoipa::ToSchema;

use crate::problem::Problem;

/// A chain of components, as it is defined.
#[derive(Debug, Serialize, ToSchema)]
#[allow(dead_code, reason = "the document's form alone")]
pub(super) struct ChainDefinition {
    /// Its name, and that of the tenant that it runs as: 1 to 31 of A-Z a-z 0-9 . _ - beginning
    /// with a letter or a digit.
    #[schema(example = "cameras", min_length = 1, max_length = 31, pattern = "^[A-Za-z0-9][A-Za-z0-9._-]*$")]
    name: String,
    /// The GPU of components that name none, as `--gpu` takes it: an index, a UUID, or `sim:NAME`;
    /// none for the first one.
    #[schema(example = "0", min_length = 1)]
    gpu: Option<String>,
    /// The compute units of all components together on each GPU of the chain, as `--sm` takes them;
    /// none for every TPC that is free.
    #[schema(example = "50%", min_length = 1)]
    sm: Option<String>,
    /// The memory quota of all components together on each GPU of the chain, as `--mem` takes it;
    /// none for no quota.
    #[schema(example = "8GiB", min_length = 1)]
    mem: Option<String>,
    /// The size of a frame.
    #[schema(example = "4MiB", min_length = 1)]
    frame: String,
    /// Frames that there are in all; none for as many as fill all queues and keep each component
    /// busy.
    #[schema(minimum = 1, maximum = 256)]
    frames: Option<u32>,
    /// Frames that wait between two components at most.
    #[schema(default = 8, minimum = 1, maximum = 256, nullable = false)]
    capacity: Option<u32>,
    /// What happens to a frame for which there is no room: `wait`, `drop-newest` or `drop-oldest`.
    #[schema(
        default = "wait",
        example = "wait",
        pattern = "^(wait|drop-newest|drop-oldest)$",
        nullable = false
    )]
    policy: Option<String>,
    /// Whose the frames' memory is: `keeper` (a process of its own) or `first-component`.
    #[schema(
        default = "keeper",
        example = "keeper",
        pattern = "^(keeper|first-component)$",
        nullable = false
    )]
    memory: Option<String>,
    /// By what components open the keeper's memory: `ipc` (CUDA's handles) or `fd` (file
    /// descriptors of the driver's virtual memory).
    #[schema(default = "ipc", example = "ipc", pattern = "^(ipc|fd)$", nullable = false)]
    handles: Option<String>,
    /// The optimizer's period, in milliseconds.
    #[schema(default = 100, minimum = 10, maximum = 60_000, nullable = false)]
    period_ms: Option<u32>,
    /// Who divides the compute units: `steady`, `published` or `none`.
    #[schema(
        default = "steady",
        example = "steady",
        pattern = "^(steady|published|none)$",
        nullable = false
    )]
    algorithm: Option<String>,
    /// How components apply a division: `masks`, `green` or `contexts`; the last two without `sm`.
    #[schema(default = "masks", example = "masks", pattern = "^(masks|green|contexts)$", nullable = false)]
    steer: Option<String>,
    /// How frames' content reaches the next component: `ring`, or the paper's `udp-handle`,
    /// `unix-handle` and `udp-copy`, for which the memory is the first component's.
    #[schema(
        default = "ring",
        example = "ring",
        pattern = "^(ring|udp-handle|unix-handle|udp-copy)$",
        nullable = false
    )]
    transport: Option<String>,
    /// How often a component that fails is restarted.
    #[schema(default = 10, maximum = 1_000_000, nullable = false)]
    restarts: Option<u32>,
    /// The components, in the order in which frames go through them.
    #[schema(min_items = 2, max_items = 16)]
    component: Vec<ChainComponent>,
}

/// A component of a chain.
#[derive(Debug, Serialize, ToSchema)]
#[allow(dead_code, reason = "the document's form alone")]
pub(super) struct ChainComponent {
    /// Its name, one of its own within the chain; of the same form as the chain's.
    #[schema(example = "decode", min_length = 1, max_length = 31, pattern = "^[A-Za-z0-9][A-Za-z0-9._-]*$")]
    name: String,
    /// The program and its arguments.
    #[schema(example = json!(["/opt/cameras/decode", "--camera", "7"]), min_items = 1, max_items = 256)]
    command: Vec<String>,
    /// Its GPU as `--gpu` takes it, where an index is one of the chain's machine; none for the
    /// chain's.
    #[schema(example = "1", min_length = 1)]
    gpu: Option<String>,
}

/// Checks everything that can be checked without the GPU.
///
/// # Errors
/// [`Kind::Invalid`](crate::Kind::Invalid): the first thing that cannot be.
pub(super) fn check(definition: &Definition) -> Result<(), Problem> {
    // Before the others: this one has its member.
    let of_components = definition.components.iter().enumerate();
    let gpus = of_components.map(|(at, one)| (format!("/component/{at}/gpu"), &one.gpu));
    for (field, gpu) in std::iter::once(("/gpu".to_owned(), &definition.gpu)).chain(gpus) {
        let Some(gpu) = gpu else { continue };
        gpu.parse::<partita::gpu::Selector>().map_err(|error| Problem::invalid(field, error.to_string()))?;
    }
    Ok(definition.check()?)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::{Value, json};
    use utoipa::PartialSchema;

    use super::*;

    fn members(value: &Value) -> BTreeSet<&str> {
        value.as_object().unwrap().keys().map(String::as_str).collect()
    }

    #[test]
    fn the_document_tells_of_every_member_and_of_no_other() {
        let all = json!({
            "name": "n", "gpu": "0", "sm": "50%", "mem": "1GiB", "frame": "4KiB", "frames": 4, "capacity": 2, "policy": "drop-oldest",
            "memory": "first-component", "handles": "fd", "period_ms": 50, "algorithm": "none",
            "steer": "masks", "transport": "udp-copy", "restarts": 1,
            "component": [{ "name": "a", "command": ["a"], "gpu": "0" }, { "name": "b", "command": ["b"] }],
        });
        let definition: Definition = serde_json::from_value(all.clone()).unwrap();
        check(&definition).unwrap();
        // Nothing that the facade knows is missing here.
        let again = serde_json::to_value(&definition).unwrap();
        assert_eq!(again, all);
        let schema_of_chain = serde_json::to_value(ChainDefinition::schema()).unwrap();
        assert_eq!(members(&schema_of_chain["properties"]), members(&again));
        assert_eq!(schema_of_chain["required"], json!(["name", "frame", "component"]));
        let schema = serde_json::to_value(ChainComponent::schema()).unwrap();
        assert_eq!(members(&schema["properties"]), members(&again["component"][0]));
        // What may be null there may be.
        for (member, of_member) in schema_of_chain["properties"].as_object().unwrap() {
            let mut with_null = all.clone();
            with_null[member] = Value::Null;
            let is_taken = serde_json::from_value::<Definition>(with_null).is_ok();
            let types = &of_member["type"];
            let is_told = types.as_array().is_some_and(|types| types.contains(&json!("null")));
            assert_eq!(is_taken, is_told, "{member}: {types}");
        }
        // Names can have the documented length, and no more.
        for (pointer, of_name) in [("/name", &schema_of_chain), ("/component/0/name", &schema)] {
            let longest = of_name["properties"]["name"]["maxLength"].as_u64().unwrap() as usize;
            for (length, is_taken) in [(longest, true), (longest + 1, false)] {
                let mut named = all.clone();
                *named.pointer_mut(pointer).unwrap() = "n".repeat(length).into();
                let named: Definition = serde_json::from_value(named).unwrap();
                assert_eq!(check(&named).is_ok(), is_taken, "{pointer} of {length}");
            }
        }
        // Optional members can be left out.
        let least = json!({ "name": "n", "frame": "4KiB", "component": again["component"] });
        let least: Definition = serde_json::from_value(least).unwrap();
        check(&least).unwrap();
        assert_eq!(
            (least.capacity, least.period_ms, least.restarts),
            (8, 100, 10),
            "the defaults that are documented"
        );
    }
}
