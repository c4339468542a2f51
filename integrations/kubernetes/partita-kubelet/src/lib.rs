//! `partita-kubelet`: shares of GPUs for pods, as a driver of Kubernetes' dynamic resource
//! allocation (DRA).
//!
//! The scheduler of Kubernetes allocates; this driver says what there is ([`device`]), turns an
//! allocated claim into a tenant ([`plan`]) and makes and ends that tenant when the kubelet asks
//! ([`prepare`]). Everything about a claim that must outlive the process is in its [`journal`].
//!
//! Pods that name extended resources instead of claims get claims by the [`webhook`]. In clusters
//! without DRA the same tenants come by a [`device_plugin`].

#![deny(missing_docs)]

pub mod args;
pub mod claims;
pub mod device;
pub mod device_plugin;
pub mod events;
pub mod health;
pub mod journal;
pub mod metadata;
pub mod metrics;
pub mod node;
pub mod parameters;
pub mod plan;
pub mod plugin;
pub mod prepare;
pub mod publish;
pub mod quantity;
pub mod resize;
pub mod shares;
pub mod status;
pub mod translate;
pub mod webhook;
pub mod wire;

/// The driver's name: of its slices, of its socket, and in opaque parameters.
pub const DRIVER: &str = "partita.dev";
