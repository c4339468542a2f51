//! The real program against a fake kubelet, a fake API server, and the simulated driver.

mod api;
mod chart;
mod container;
mod helm;
mod kubelet;
mod lifecycle;
mod metrics;
mod refusals;
mod slices;
mod steps;
mod world;
