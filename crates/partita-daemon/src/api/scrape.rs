//! [`Now`]: what is measured at the moment of a scrape.

use std::fmt;
use std::sync::atomic::AtomicU64;
use std::sync::{Mutex, PoisonError};

use partita_core::histogram::Histogram;
use prometheus_client::encoding::text::encode_registry;
use prometheus_client::encoding::{EncodeMetric, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::{MetricType, TypedMetric};
use prometheus_client::registry::{Registry, Unit};

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

    /// Adds a histogram of times in seconds, likewise.
    pub fn times(&mut self, name: &str, help: &str, samples: impl Iterator<Item = (Labels, Histogram)>) {
        let family = Family::<Labels, Times>::default();
        for (labels, times) in samples {
            *family.get_or_create(&labels).0.lock().unwrap_or_else(PoisonError::into_inner) = times;
        }
        self.registry.register_with_unit(name, help, Unit::Seconds, family);
    }

    /// Writes them as OpenMetrics, without its end.
    pub fn encode(&self, text: &mut String) -> fmt::Result {
        encode_registry(text, &self.registry)
    }
}

/// Times that others have counted. A family hands out shared references alone, hence the lock.
#[derive(Debug, Default)]
struct Times(Mutex<Histogram>);

impl TypedMetric for Times {
    const TYPE: MetricType = MetricType::Histogram;
}

impl EncodeMetric for Times {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> fmt::Result {
        let times = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // The encoder adds the buckets up: what saturates must not make it overflow.
        let mut left = u64::MAX;
        let buckets: Vec<(f64, u64)> = (times.by_powers())
            .map(|(high_ns, count)| {
                let count = count.min(left);
                left -= count;
                let is_last = high_ns == u64::MAX;
                (if is_last { f64::INFINITY } else { (high_ns + 1) as f64 / 1e9 }, count)
            })
            .collect();
        encoder.encode_histogram::<NoLabelSet>(times.sum_ns() as f64 / 1e9, times.count(), &buckets, None)
    }

    fn metric_type(&self) -> MetricType {
        Self::TYPE
    }
}

#[cfg(test)]
mod tests {
    use partita_core::histogram::BUCKETS;

    use super::*;

    #[test]
    fn counts_that_saturate_are_a_page_too() {
        let mut now = Now::default();
        let all = Histogram::new([u64::MAX; BUCKETS], u64::MAX);
        now.times("lies", "Help", [(vec![("tenant", "t".to_owned())], all)].into_iter());
        let mut text = String::new();
        now.encode(&mut text).unwrap();
        for line in ["lies_seconds_count{tenant=\"t\"}", "lies_seconds_bucket{le=\"+Inf\",tenant=\"t\"}"] {
            assert!(text.lines().any(|one| one == format!("{line} {}", u64::MAX)), "{line} in {text}");
        }
    }
}
