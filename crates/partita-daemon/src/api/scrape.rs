//! [`Now`]: what is measured at the moment of a scrape.

use std::fmt;
use std::sync::atomic::AtomicU64;

use prometheus_client::encoding::text::encode_registry;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

/// The labels of a sample.
pub(super) type Labels = Vec<(&'static str, String)>;

/// Samples of this moment. The default has names without a prefix.
#[derive(Default)]
pub(super) struct Now {
    pub registry: Registry,
}

impl Now {
    /// Samples whose names begin with `prefix`.
    pub fn new(prefix: &str) -> Self {
        Self { registry: Registry::with_prefix(prefix) }
    }

    /// Adds a gauge, with a sample for each set of labels.
    pub fn gauge(&mut self, name: &str, help: &str, samples: impl Iterator<Item = (Labels, f64)>) {
        let family = Family::<Labels, Gauge<f64, AtomicU64>>::default();
        for (labels, value) in samples {
            family.get_or_create(&labels).set(value);
        }
        self.registry.register(name, help, family);
    }

    /// Adds a counter, likewise.
    pub fn counter(&mut self, name: &str, help: &str, samples: impl Iterator<Item = (Labels, u64)>) {
        let family = Family::<Labels, Counter>::default();
        for (labels, value) in samples {
            family.get_or_create(&labels).inc_by(value);
        }
        self.registry.register(name, help, family);
    }

    /// Writes them as OpenMetrics, without its end.
    pub fn encode(&self, text: &mut String) -> fmt::Result {
        encode_registry(text, &self.registry)
    }
}
