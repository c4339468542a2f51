//! The outcome of the demo.

use serde::Serialize;

use super::latency::Latency;
use super::picture::Panel;

/// The victim's name.
pub const SERVE: &str = "serve";
/// The aggressor's name.
pub const GREEDY: &str = "greedy";

/// One scene's outcome.
#[derive(Debug, Clone, Serialize)]
pub struct Scene {
    /// Its title.
    pub title: String,
    /// The latency of `serve`.
    pub serve: Latency,
    /// Kernels per second of `greedy`; `None` in a scene without it.
    pub greedy_kernels_per_s: Option<f64>,
    /// The picture, for the scenes that are drawn.
    #[serde(skip)]
    pub panel: Option<Panel>,
}

/// The outcome of the demo.
#[derive(Debug, Clone, Serialize)]
pub struct Outcome {
    /// The GPU's short name.
    pub gpu: String,
    /// How many SMs it has.
    pub sms: u32,
    /// The TPCs of `serve` in the scene with partitions, and its SMs.
    pub serve_tpcs: String,
    /// How many SMs these are.
    pub serve_sms: u32,
    /// The TPCs of `greedy`.
    pub greedy_tpcs: String,
    /// How many SMs these are.
    pub greedy_sms: u32,
    /// `serve` alone, beside `greedy` without partitions, and with them.
    pub scenes: Vec<Scene>,
    /// How long the demo took, in seconds.
    pub took_s: f64,
}
