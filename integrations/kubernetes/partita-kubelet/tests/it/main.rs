//! The real program against a fake kubelet, a fake API server, and the simulated driver.

mod api;
mod chart;
mod clock;
mod container;
mod device_plugin;
mod health;
mod helm;
mod kubelet;
mod lifecycle;
mod metadata;
mod metrics;
mod mig;
mod real;
mod refusals;
mod resize;
mod scale;
mod slices;
mod status;
mod steps;
mod webhook;
mod world;
