//! What the demo found.

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
    /// What it shows.
    pub title: String,
    /// The latency of `serve`.
    pub serve: Latency,
    /// Kernels per second of `greedy`; none where it does not play.
    pub greedy_kernels_per_s: Option<f64>,
    /// What ran where, for the scenes that are drawn.
    #[serde(skip)]
    pub panel: Option<Panel>,
}

/// What the demo found.
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
    /// Alone, beside the other without partitions, and with.
    pub scenes: Vec<Scene>,
    /// How long the demo took, in seconds.
    pub took_s: f64,
}
