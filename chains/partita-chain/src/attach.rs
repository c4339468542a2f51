//! Attach a process to a chain.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use partita_driver::Gpu;
use partita_frames::{
    CHAIN_VARIABLE, COMPONENT_VARIABLE, ChainFile, KEEPER_VARIABLE, STEER_VARIABLE, TRANSPORT_VARIABLE,
    monotonic_ns,
};
use partita_memory::BadName;

use crate::carry::{Carry, FrameTransport};
use crate::chain::{REST, c_path};
use crate::component::Component;
use crate::cross::{Cross, Site};
use crate::error::Error;
use crate::keeper::KeeperSlabs;
use crate::memory::{OwnSlabs, Slabs};
use crate::process;
use crate::steer::{AffinityContexts, GreenContexts, Masks, Steer};
use crate::wire::Place;

/// How long the frames of a dead process rest if the kernel has not removed the process yet.
const REST_OF_UNDEAD: Duration = Duration::from_secs(2);
/// How long a component spins for a frame before it sleeps, if every component of the chain has its
/// own core: about the time to wake a process on an idle core, so that a longer wait costs at most
/// twice that.
const SPIN: Duration = Duration::from_micros(50);

/// A component of a chain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Role {
    /// By its number, from 0.
    Number(u8),
    Name(String),
}

/// The options of attaching.
pub struct Attach<'g> {
    file: PathBuf,
    role: Role,
    slabs: Box<dyn Slabs<'g> + 'g>,
    steer: Box<dyn Steer<'g> + 'g>,
    carrier: FrameTransport,
    spin: Option<Duration>,
    on_host: bool,
}

impl<'g> Attach<'g> {
    /// To that chain, as that component.
    pub fn new(file: impl Into<PathBuf>, role: Role) -> Self {
        Self {
            file: file.into(),
            role,
            slabs: Box::new(OwnSlabs),
            steer: Box::new(Masks::default()),
            carrier: FrameTransport::Ring,
            spin: None,
            on_host: false,
        }
    }

    /// To the chain and as the component that [`CHAIN_VARIABLE`] and [`COMPONENT_VARIABLE`] name,
    /// with memory from the keeper of [`KEEPER_VARIABLE`], the method of [`STEER_VARIABLE`] and the
    /// transport of [`TRANSPORT_VARIABLE`], if they are set.
    ///
    /// # Errors
    /// [`Error::Environment`]; [`Error::File`].
    pub fn from_environment() -> Result<Self, Error> {
        let wrong = |variable, reason: String| Error::Environment { variable, reason };
        let get = |variable| {
            let value: Option<OsString> = std::env::var_os(variable).filter(|value| !value.is_empty());
            value.ok_or_else(|| wrong(variable, "is not set".to_owned()))
        };
        let file = get(CHAIN_VARIABLE)?;
        let number = get(COMPONENT_VARIABLE)?;
        let parsed = number.to_str().and_then(|text| text.parse().ok());
        let role = parsed
            .ok_or_else(|| wrong(COMPONENT_VARIABLE, format!("is {number:?}, which is not a number")))?;
        Self::new(file, Role::Number(role))
            .keeper_from_environment()?
            .steer_from_environment()?
            .transport_from_environment()
    }

    /// With the transport of [`TRANSPORT_VARIABLE`]; unchanged if it is not set.
    ///
    /// # Errors
    /// [`Error::Environment`] for an unknown transport.
    pub fn transport_from_environment(self) -> Result<Self, Error> {
        let value = std::env::var_os(TRANSPORT_VARIABLE).unwrap_or_default();
        if value.is_empty() {
            return Ok(self);
        }
        let carrier =
            value.to_str().and_then(FrameTransport::from_name).ok_or_else(|| Error::Environment {
                variable: TRANSPORT_VARIABLE,
                reason: format!("is {value:?}; it can be {}", FrameTransport::names()),
            })?;
        Ok(self.transport(carrier))
    }

    /// How frames' content reaches the next component; [`FrameTransport::Ring`] by default. All
    /// components of a chain must have the same, and with another one the first component owns the
    /// memory.
    #[must_use]
    pub fn transport(mut self, carrier: FrameTransport) -> Self {
        self.carrier = carrier;
        self
    }

    /// With the method of [`STEER_VARIABLE`]; unchanged if it is not set.
    ///
    /// # Errors
    /// [`Error::Environment`] for an unknown method.
    pub fn steer_from_environment(self) -> Result<Self, Error> {
        let value = std::env::var_os(STEER_VARIABLE).unwrap_or_default();
        match value.to_str() {
            Some("") => Ok(self),
            Some("masks") => Ok(self.steer(Masks::default())),
            Some("green") => Ok(self.steer(GreenContexts::new())),
            Some("contexts") => Ok(self.steer(AffinityContexts::prepared())),
            _ => Err(Error::Environment {
                variable: STEER_VARIABLE,
                reason: format!("is {value:?}; it can be masks, green or contexts"),
            }),
        }
    }

    /// With memory from the keeper of [`KEEPER_VARIABLE`]; unchanged if it is not set.
    ///
    /// # Errors
    /// [`Error::File`]; [`Error::Environment`] if the chain's name cannot be its tenant's.
    pub fn keeper_from_environment(self) -> Result<Self, Error> {
        let Some(socket) = std::env::var_os(KEEPER_VARIABLE).filter(|value| !value.is_empty()) else {
            return Ok(self);
        };
        let tenant = ChainFile::open(&c_path(&self.file)?)?.plan().name.parse();
        let tenant = tenant.map_err(|error: BadName| Error::Environment {
            variable: KEEPER_VARIABLE,
            reason: format!("names a keeper, but the chain's name cannot be a tenant's: {error}"),
        })?;
        let slabs = KeeperSlabs::new(socket, &self.file, tenant);
        Ok(self.slabs(slabs))
    }

    /// The source of the frames' memory; [`OwnSlabs`] by default. With a keeper each component
    /// needs it, otherwise only the first one.
    #[must_use]
    pub fn slabs(mut self, slabs: impl Slabs<'g> + 'g) -> Self {
        self.slabs = Box::new(slabs);
        self
    }

    /// How the component applies suggested compute units; [`Masks`] by default.
    #[must_use]
    pub fn steer(mut self, steer: impl Steer<'g> + 'g) -> Self {
        self.steer = Box::new(steer);
        self
    }

    /// How long the component spins for a frame, or for room, before it sleeps. The default is 50
    /// µs, or 0 if the chain has more components than the process has cores. A component that does
    /// not spin for frames does not poll the GPU for their completion either.
    #[must_use]
    pub fn spin(mut self, spin: Duration) -> Self {
        self.spin = Some(spin);
        self
    }

    /// Delays frames on the host until the GPU is done with them, instead of making the stream
    /// wait: slower, but a process that dies cannot stop the stream.
    #[must_use]
    pub fn on_host(mut self, on_host: bool) -> Self {
        self.on_host = on_host;
        self
    }

    /// Takes the component's place, and frees what a dead process in it held. As the first
    /// component, provides the frames' memory.
    ///
    /// The place is this process's until the result is dropped or the process ends. `gpu` must be
    /// the component's: that of the chain's other processes, unless the chain is on several.
    ///
    /// # Errors
    /// [`Error::File`], for example if a living process has the place; [`Error::NoRole`];
    /// [`Error::Environment`] for another GPU than the component's in a chain on several;
    /// [`Error::Steer`] if the method cannot be prepared; [`Error::Driver`].
    pub fn attach(mut self, gpu: &'g Gpu<'g>) -> Result<Component<'g>, Error> {
        let file = ChainFile::open(&c_path(&self.file)?)?;
        let role = match &self.role {
            Role::Number(role) => *role,
            Role::Name(name) => file.plan().role(name).ok_or_else(|| Error::NoRole {
                chain: file.plan().name.clone(),
                role: name.clone(),
                known: file.plan().roles.join(", "),
            })?,
        };
        let (roles, frame_bytes) = (file.roles(), file.plan().frame_bytes);
        let sites = Site::all(file.plan(), gpu.facts().uuid);
        let site = sites.get(usize::from(file.plan().gpu_of(role)));
        if sites.len() > 1 && site.is_none_or(|site| site.uuid != gpu.facts().uuid) {
            return Err(Error::Environment {
                variable: "CUDA_VISIBLE_DEVICES",
                reason: format!("shows another GPU first than that of component {role}"),
            });
        }
        let directory = self.file.parent().unwrap_or(Path::new(".")).to_owned();
        let cross = Cross::new(file.plan(), role, &directory);
        let claim = file.claim(role)?;
        let gone = claim.former().is_none_or(process::wait_gone);
        let rest = if gone { REST } else { REST_OF_UNDEAD };
        let rests_until_ns = monotonic_ns().saturating_add(rest.as_nanos() as u64);
        // Before the others see the new process: they look up its address then.
        let carry = Carry::open(self.carrier, Place::new(directory, role, roles), frame_bytes)?;
        let (seat, _) = claim.take(process::own()?, rests_until_ns)?;
        // Spinning on few cores would keep the awaited process from running.
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        self.steer.prepare(gpu)?;
        let is_roomy = cores > usize::from(seat.roles());
        let spin = self.spin.unwrap_or(if is_roomy { SPIN } else { Duration::ZERO });
        Component::new(gpu, seat, self.slabs, self.steer, (carry, cross), spin, self.on_host)
    }
}
