//! The definition of a chain: its components, its frames and its limits, as users write them.
//!
//! The form is the same in a TOML file (`partita chain define`) and in JSON (`partitad`):
//!
//! ```
//! use partita_chain_host::Definition;
//!
//! let chain = Definition::from_toml(r#"
//!     name = "cameras"
//!     sm = "50%"
//!     frame = "4MiB"
//!
//!     [[component]]
//!     name = "decode"
//!     command = ["./decode", "--camera", "7"]
//!
//!     [[component]]
//!     name = "detect"
//!     command = ["./detect"]
//! "#).unwrap();
//! assert_eq!(chain.components.len(), 2);
//! assert_eq!(chain.period_ms, 100);
//! ```

use partita_core::{ByteSize, Count, Share};
use partita_frames::{CHAIN_NAME_BYTES_MAX, ChainPlan, FRAMES_MAX, Policy, ROLES_MAX};
use partita_host::error::Error;
use partita_host::gpu::Selector;
use partita_host::registry::check_name;
use serde::{Deserialize, Serialize};

/// Components of a chain at most; the chain file has room for no more.
pub const COMPONENTS_MAX: usize = ROLES_MAX;
/// The shortest period, in milliseconds. In it, one frame more or less changes the throughput of a
/// chain of 1000 frames a second by 10 %.
pub const PERIOD_MS_MIN: u32 = 10;
/// The longest period, in milliseconds.
pub const PERIOD_MS_MAX: u32 = 60_000;
/// The largest number of restarts that a definition can set.
const RESTARTS_MAX: u32 = 1_000_000;
/// The longest command, in words, and the longest word, in bytes.
const WORDS_MAX: usize = 256;
const WORD_BYTES_MAX: usize = 4096;
/// The longest definition, in bytes of JSON: the process that runs the chain gets it as an
/// argument.
const JSON_BYTES_MAX: usize = 64 << 10;

/// The definition of a chain.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Definition {
    /// The name of the chain and of its tenant.
    pub name: String,
    /// The GPU of components that name none, in the form of `--gpu`; by default the default GPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu: Option<String>,
    /// The compute units of all components together, in the form of `--sm`, on each GPU of the
    /// chain; by default an even part of what other tenants' shares leave, which it keeps.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sm: Option<String>,
    /// The memory of all components together, in the form of `--mem`, on each GPU of the chain; by
    /// default without a quota.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mem: Option<String>,
    /// The size of a frame.
    pub frame: String,
    /// Frames of the chain in all; by default as many as fill all queues and keep each component
    /// busy. With fewer, the first component waits before a queue is full.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub frames: Option<u32>,
    /// Frames that can wait between two components.
    #[serde(default = "default_capacity")]
    pub capacity: u32,
    /// What happens to a frame when the queue is full.
    #[serde(default, with = "policy_name")]
    pub policy: Policy,
    /// The owner of the frames' memory.
    #[serde(default)]
    pub memory: MemoryOwner,
    /// The kind of handle by which components open the keeper's memory.
    #[serde(default)]
    pub handles: Handles,
    /// The optimizer's period, in milliseconds.
    #[serde(default = "default_period_ms")]
    pub period_ms: u32,
    /// The algorithm that divides the compute units.
    #[serde(default)]
    pub algorithm: Algorithm,
    /// The method by which components apply a division.
    #[serde(default)]
    pub steer: Method,
    /// How frames' content reaches the next component.
    #[serde(default)]
    pub transport: Transport,
    /// How many times each component is restarted after failures.
    #[serde(default = "default_restarts")]
    pub restarts: u32,
    /// The components, in the order in which frames go through them.
    #[serde(rename = "component")]
    pub components: Vec<ComponentDefinition>,
}

/// The definition of a component.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ComponentDefinition {
    /// Its name, unique in the chain.
    pub name: String,
    /// The program and its arguments.
    pub command: Vec<String>,
    /// Its GPU, in the form of `--gpu`, where an index is one of the chain's machine; by default
    /// the chain's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu: Option<String>,
}

/// Serializes a [`Policy`] as its name.
mod policy_name {
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};

    use super::Policy;

    pub fn serialize<S: Serializer>(policy: &Policy, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(policy.name())
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Policy, D::Error> {
        let name = String::deserialize(from)?;
        Policy::from_name(&name).ok_or_else(|| {
            let names: Vec<&str> = Policy::NAMES.iter().map(|(name, _)| *name).collect();
            D::Error::custom(format!("there is no policy {name:?}; it can be {}", names.join(", ")))
        })
    }
}

/// The owner of the frames' memory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MemoryOwner {
    /// A separate process of the chain: when a component dies, the others keep their frames.
    #[default]
    Keeper,
    /// The first component: when it dies, all frames are lost and the chain starts over.
    FirstComponent,
}

/// The kind of handle by which components open a keeper's memory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Handles {
    /// CUDA's interprocess handles of 64 bytes.
    #[default]
    Ipc,
    /// File descriptors of the driver's virtual memory.
    Fd,
}

impl Handles {
    /// Its name in definitions and for `partitad keeper --handles`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Ipc => "ipc",
            Self::Fd => "fd",
        }
    }
}

/// The algorithm that divides the chain's compute units among its components.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Algorithm {
    /// Partita's own.
    #[default]
    Steady,
    /// The published one: bottleneck search and Algorithm 1.
    Published,
    /// No algorithm: all components share all compute units, as with MPS alone.
    None,
}

/// The method by which components restrict their launches to the compute units that they have.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Method {
    /// Masks in the launch descriptors: any set, in microseconds.
    #[default]
    Masks,
    /// Green contexts of the driver, in the sizes that it supports. The driver chooses the SMs, so
    /// the chain has no partition of its own, and its components take turns.
    Green,
    /// A pool of contexts of MPS, made before the first frame: the paper's method. As with green
    /// contexts, the chain has no partition.
    Contexts,
}

impl Method {
    /// The method with this number in a chain's file.
    #[must_use]
    pub fn of_code(code: u64) -> Option<Self> {
        match code {
            1 => Some(Self::Masks),
            2 => Some(Self::Green),
            3 => Some(Self::Contexts),
            _ => None,
        }
    }

    /// Its name in definitions and for components.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Masks => "masks",
            Self::Green => "green",
            Self::Contexts => "contexts",
        }
    }
}

/// How frames' content reaches the next component. The ring keeps the account of frames in each
/// case; the others are the paper's ways, for comparison.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Transport {
    /// In shared GPU memory.
    #[default]
    Ring,
    /// The memory's handle in a UDP message, opened at each hand-over.
    UdpHandle,
    /// The memory's handle over a Unix socket, kept open.
    UnixHandle,
    /// The frame in UDP messages, through host memory.
    UdpCopy,
}

impl Transport {
    /// Its name in definitions and for components.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Ring => "ring",
            Self::UdpHandle => "udp-handle",
            Self::UnixHandle => "unix-handle",
            Self::UdpCopy => "udp-copy",
        }
    }
}

fn default_capacity() -> u32 {
    8
}

fn default_period_ms() -> u32 {
    100
}

fn default_restarts() -> u32 {
    10
}

impl Definition {
    /// Reads a definition from TOML.
    ///
    /// # Errors
    /// [`Error::Refused`], with the line of the mistake.
    pub fn from_toml(text: &str) -> Result<Self, Error> {
        Self::from_toml_of("the definition of a chain", text)
    }

    /// The same, for messages that name the text.
    pub(super) fn from_toml_of(what: &str, text: &str) -> Result<Self, Error> {
        let definition: Self = toml::from_str(text).map_err(|error| {
            let message = error.message().split_whitespace().collect::<Vec<_>>().join(" ");
            // What the whole text lacks is missing in no line of it.
            let is_of_all = |begin: &usize| *begin == 0 && message.starts_with("missing");
            let begin = error.span().map(|span| span.start).filter(|begin| !is_of_all(begin));
            let place = begin.map_or_else(String::new, |begin| {
                let line = 1 + text.bytes().take(begin).filter(|byte| *byte == b'\n').count();
                let written = text.lines().nth(line - 1).unwrap_or_default().trim();
                format!("line {line}, `{written}`: ")
            });
            Error::Refused {
                what: what.to_owned(),
                reason: format!("{place}{message}; `partita chain define --example` prints one"),
            }
        })?;
        definition.check()?;
        Ok(definition)
    }

    /// Checks the values, beyond the form that the parser checks.
    ///
    /// # Errors
    /// [`Error::Name`] or [`Error::Refused`] for the first invalid value.
    pub fn check(&self) -> Result<(), Error> {
        check_name(&self.name)?;
        let refuse = |reason: String| Err(Error::Refused { what: format!("chain {}", self.name), reason });
        if !(2..=COMPONENTS_MAX).contains(&self.components.len()) {
            return refuse(format!(
                "it has {}; give it 2 to {COMPONENTS_MAX} `[[component]]`s",
                Count(self.components.len(), "component")
            ));
        }
        for (at, component) in self.components.iter().enumerate() {
            check_name(&component.name)?;
            if self.components[..at].iter().any(|other| other.name == component.name) {
                return refuse(format!("two components are called {}; rename one", component.name));
            }
            if component.command.first().is_none_or(String::is_empty) {
                return refuse(format!(
                    "component {} names no program; set its `command` to the program and its arguments",
                    component.name
                ));
            }
            let too_long = |word: &String| word.len() > WORD_BYTES_MAX || word.contains('\0');
            if component.command.len() > WORDS_MAX || component.command.iter().any(too_long) {
                return refuse(format!(
                    "the command of component {} has more than {WORDS_MAX} words, or a word of more than {WORD_BYTES_MAX} bytes or \
                     with a null byte; put it into a script",
                    component.name
                ));
            }
        }
        if let Some(Err(error)) = self.gpu.as_deref().map(str::parse::<Selector>) {
            return Err(self.wrong("gpu", &error));
        }
        let gpus = self.component_gpus()?;
        if gpus.iter().any(|gpu| *gpu != gpus[0]) {
            self.check_for_several_gpus()?;
        }
        if let (Method::Green | Method::Contexts, Some(sm)) = (self.steer, &self.sm) {
            return refuse(format!(
                "`sm` = {sm:?} with `steer` = {:?}: the driver chooses the SMs of contexts, and a partition could \
                 have none of them; remove `sm`, or use `steer` = \"masks\"",
                self.steer.name()
            ));
        }
        if self.transport != Transport::Ring && self.memory == MemoryOwner::Keeper {
            return refuse(format!(
                "`transport` = {:?} with memory of a keeper: components could open it without the keeper's \
                 knowledge; set `memory` = \"first-component\", or use `transport` = \"ring\"",
                self.transport.name()
            ));
        }
        self.share()?;
        self.quota()?;
        let frame = self.frame_bytes()?;
        let (capacity, most) = (self.capacity, FRAMES_MAX as u32);
        if !(1..=most).contains(&capacity) {
            return refuse(format!(
                "`capacity` is {capacity}; 1 to {most} frames can wait between two components"
            ));
        }
        let (frames, most) = (self.frame_count(), FRAMES_MAX as u32);
        if !(1..=most).contains(&frames) {
            return refuse(format!(
                "the chain would have {}; set `frames` to 1 to {most}",
                Count(frames, "frame")
            ));
        }
        if let Some(quota) = self.quota()?
            && frame.saturating_mul(frames.into()) > quota.0
        {
            return refuse(format!(
                "`mem` = {quota} has no room for {} of {}; raise it, or lower `frames`",
                Count(frames, "frame"),
                ByteSize(frame)
            ));
        }
        if !(PERIOD_MS_MIN..=PERIOD_MS_MAX).contains(&self.period_ms) {
            return refuse(format!(
                "`period_ms` is {}; it can be {PERIOD_MS_MIN} to {PERIOD_MS_MAX}",
                self.period_ms
            ));
        }
        let long = std::iter::once(&self.name).chain(self.components.iter().map(|component| &component.name));
        if let Some(name) = long.into_iter().find(|name| name.len() > CHAIN_NAME_BYTES_MAX) {
            return refuse(format!("the name {name} is too long; use at most {CHAIN_NAME_BYTES_MAX} bytes"));
        }
        if serde_json::to_string(self).map_or(usize::MAX, |json| json.len()) > JSON_BYTES_MAX {
            return refuse(format!(
                "it is longer than {} as JSON; put long commands into scripts",
                ByteSize(JSON_BYTES_MAX as u64)
            ));
        }
        if self.restarts > RESTARTS_MAX {
            return refuse(format!("`restarts` is {}; it can be 0 to {RESTARTS_MAX}", self.restarts));
        }
        Ok(())
    }

    /// The GPU of each component; `None` for the default GPU.
    ///
    /// # Errors
    /// [`Error::Refused`].
    pub(super) fn component_gpus(&self) -> Result<Vec<Option<Selector>>, Error> {
        let parse = |key: &str, text: &str| text.parse::<Selector>().map_err(|error| self.wrong(key, &error));
        let of_chain = self.gpu.as_deref().map(|text| parse("gpu", text)).transpose()?;
        let of = |component: &ComponentDefinition| {
            let key = format!("gpu` of component `{}", component.name);
            let own = component.gpu.as_deref().map(|text| parse(&key, text)).transpose()?;
            Ok(match (own, &of_chain) {
                // As in `--gpu sim:h200,1`.
                (Some(Selector::Index(index)), Some(Selector::Sim(device, _))) => {
                    Some(Selector::Sim(device.clone(), index))
                }
                (None, of_chain) => of_chain.clone(),
                (own, _) => own,
            })
        };
        self.components.iter().map(of).collect()
    }

    /// Refuses what a chain on several GPUs cannot have.
    ///
    /// # Errors
    /// [`Error::Refused`].
    pub(super) fn check_for_several_gpus(&self) -> Result<(), Error> {
        let wrong = if self.memory != MemoryOwner::Keeper {
            "`memory` = \"first-component\": a keeper on each GPU owns the frames' memory there; set `memory` = \"keeper\""
                .to_owned()
        } else if self.handles != Handles::Ipc {
            format!(
                "`handles` = {:?}: other GPUs open a frame's memory by interprocess handles; set `handles` = \"ipc\"",
                self.handles.name()
            )
        } else if self.transport != Transport::Ring {
            format!(
                "`transport` = {:?}, which passes frames on one GPU; set `transport` = \"ring\"",
                self.transport.name()
            )
        } else if self.steer != Method::Masks {
            format!("`steer` = {:?}, which divides one GPU; set `steer` = \"masks\"", self.steer.name())
        } else {
            return Ok(());
        };
        Err(Error::Refused {
            what: format!("chain {}", self.name),
            reason: format!("its components are on several GPUs with {wrong}, or put them on one GPU"),
        })
    }

    /// The compute units; `None` for the part that a program without `--sm` gets at its start.
    ///
    /// # Errors
    /// [`Error::Refused`].
    pub fn share(&self) -> Result<Option<Share>, Error> {
        self.sm.as_deref().map(|text| text.parse().map_err(|error| self.wrong("sm", &error))).transpose()
    }

    /// The quota; `None` without one.
    ///
    /// # Errors
    /// [`Error::Refused`].
    pub fn quota(&self) -> Result<Option<ByteSize>, Error> {
        self.mem.as_deref().map(|text| text.parse().map_err(|error| self.wrong("mem", &error))).transpose()
    }

    /// The size of a frame in bytes, at least 1.
    ///
    /// # Errors
    /// [`Error::Refused`].
    pub fn frame_bytes(&self) -> Result<u64, Error> {
        match self.frame.parse::<ByteSize>() {
            Ok(ByteSize(0)) => Err(self.wrong("frame", &"a frame needs at least one byte")),
            Ok(ByteSize(bytes)) => Ok(bytes),
            Err(error) => Err(self.wrong("frame", &error)),
        }
    }

    /// Frames of the chain in all.
    #[must_use]
    pub fn frame_count(&self) -> u32 {
        let components = self.components.len() as u32;
        let in_queues = self.capacity.saturating_mul(components.saturating_sub(1));
        self.frames.unwrap_or_else(|| in_queues.saturating_add(components).min(FRAMES_MAX as u32))
    }

    /// The plan from which the chain file is made.
    ///
    /// # Errors
    /// [`Error::Refused`].
    pub(super) fn plan(&self, role_gpus: Vec<[u8; 16]>) -> Result<ChainPlan, Error> {
        Ok(ChainPlan {
            name: self.name.clone(),
            roles: self.components.iter().map(|component| component.name.clone()).collect(),
            frame_bytes: self.frame_bytes()?,
            frames: self.frame_count(),
            queue_max: self.capacity,
            policy: self.policy,
            role_gpus,
        })
    }

    fn wrong(&self, key: &str, error: &dyn std::fmt::Display) -> Error {
        Error::Refused { what: format!("chain {}, `{key}`", self.name), reason: error.to_string() }
    }

    /// A definition to begin with.
    #[must_use]
    pub fn example() -> &'static str {
        include_str!("example.toml")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(from: &str, to: &str) -> String {
        let text = Definition::example();
        assert!(text.contains(from), "{from}");
        Definition::from_toml(&text.replace(from, to)).unwrap_err().to_string()
    }

    #[test]
    fn the_example_is_a_chain() {
        let chain = Definition::from_toml(Definition::example()).unwrap();
        assert_eq!(chain.frame_bytes().unwrap(), 4 << 20);
        assert_eq!(
            (chain.frame_count(), chain.policy, chain.algorithm),
            (16, Policy::Wait, Algorithm::Steady)
        );
        let json = serde_json::to_string(&chain).unwrap();
        assert_eq!(serde_json::from_str::<Definition>(&json).unwrap(), chain);
        let text = Definition::example().replace("frames = 16", "");
        assert_eq!(Definition::from_toml(&text).unwrap().frame_count(), 19);
    }

    #[test]
    fn invalid_values_are_refused_by_name() {
        for (from, to, expected) in [
            ("\"cameras\"", "\"came/ras\"", "came/ras"),
            ("\"50%\"", "\"half\"", "`sm`"),
            ("\"8GiB\"", "\"8GB!\"", "`mem`"),
            ("\"8GiB\"", "\"32MiB\"", "no room for 16 frames of 4MiB"),
            ("# gpu = \"0\"", "gpu = \"sim:h200,sim:h200\"", "`gpu`"),
            ("\"4MiB\"", "\"0\"", "`frame`"),
            ("frames = 16", "frames = 0", "frames"),
            ("frames = 16", "frames = 1000000", "frames"),
            ("capacity = 8", "capacity = 0", "capacity"),
            ("period_ms = 100", "period_ms = 1", "period_ms"),
            ("restarts = 10", "restarts = 4000000000", "restarts"),
            ("\"wait\"", "\"lose\"", "policy"),
            ("\"ipc\"", "\"mail\"", "handles"),
            ("\"steady\"", "\"magic\"", "algorithm"),
            ("\"enhance\"", "\"decode\"", "decode"),
            ("[\"./enhance\"]", "[]", "no program"),
            ("[\"./enhance\"]", "[\"\"]", "no program"),
            ("[\"./enhance\"]", "[\"a\\u0000b\"]", "null byte"),
            ("frame = ", "flame = ", "flame"),
            ("[\"./enhance\"]", "[\"./enhance\"]\ngpu = \"half\"", "`gpu` of component `enhance`"),
        ] {
            let error = refused(from, to);
            assert!(error.contains(expected), "{to}: {error}");
        }
    }

    #[test]
    fn components_are_on_the_chain_s_gpu_or_their_own() {
        let of = |chain: &str, component: &str| {
            let text = Definition::example().replace("# gpu = \"0\"", chain);
            let own = format!("[\"./enhance\"]\ngpu = \"{component}\"");
            let chain = Definition::from_toml(&text.replace("[\"./enhance\"]", &own)).unwrap();
            let shown = |gpu: Option<Selector>| gpu.map_or("default".to_owned(), |gpu| gpu.to_string());
            chain.component_gpus().unwrap().into_iter().map(shown).collect::<Vec<_>>()
        };
        assert_eq!(of("", "1"), ["default", "1", "default"]);
        assert_eq!(of("gpu = \"0\"", "1"), ["0", "1", "0"]);
        assert_eq!(of("gpu = \"sim:h200\"", "1"), ["sim:h200", "sim:h200:1", "sim:h200"]);
        assert_eq!(of("gpu = \"sim:h200:1\"", "sim:h200"), ["sim:h200:1", "sim:h200", "sim:h200:1"]);
    }

    #[test]
    fn what_is_for_one_gpu_is_refused_on_several() {
        let (memory, on_two) = ("memory = \"keeper\"\n", "[\"./enhance\"]\ngpu = \"1\"");
        for (from, to, remedy) in [
            (memory, "memory = \"first-component\"\n", "set `memory` = \"keeper\""),
            ("handles = \"ipc\"", "handles = \"fd\"", "set `handles` = \"ipc\""),
            (memory, "transport = \"udp-copy\"\n", "set `transport` = \"ring\""),
            ("steer = \"masks\"", "steer = \"green\"", "set `steer` = \"masks\""),
        ] {
            let text = Definition::example().replace("[\"./enhance\"]", on_two);
            assert!(text.contains(from), "{from}");
            let error = Definition::from_toml(&text.replace(from, to)).unwrap_err().to_string();
            assert!(error.contains("on several GPUs") && error.contains(remedy), "{to}: {error}");
        }
    }

    #[test]
    fn a_chain_has_two_components_at_least() {
        let one =
            Definition::example().split("[[component]]").take(2).collect::<Vec<_>>().join("[[component]]");
        assert!(Definition::from_toml(&one).unwrap_err().to_string().contains("1 component;"));
        let mut many = Definition::from_toml(Definition::example()).unwrap();
        many.components = (0..=COMPONENTS_MAX)
            .map(|at| ComponentDefinition {
                name: format!("c{at}"),
                command: vec!["true".to_owned()],
                gpu: None,
            })
            .collect();
        assert!(many.check().is_err());
    }
}
