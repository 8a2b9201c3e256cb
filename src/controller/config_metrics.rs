//! Metrics of the configuration file.

use jiff::Timestamp;
use prometheus::{IntGauge, IntGaugeVec, Opts, Registry};

/// Which configuration is in force, and whether the file could be read the last time.
#[derive(Clone, Debug)]
pub(super) struct ConfigMetrics {
    info: IntGaugeVec,
    loaded: IntGauge,
    successful: IntGauge,
}

impl ConfigMetrics {
    pub(super) fn register(registry: &Registry) -> prometheus::Result<Self> {
        let metrics = Self {
            info: IntGaugeVec::new(
                Opts::new(
                    "ostrakon_config_info",
                    "Always 1; the label is the hash of the configuration file in force.",
                ),
                &["hash"],
            )?,
            // Named as Prometheus names its own, so that known alerts fit.
            loaded: IntGauge::new(
                "ostrakon_config_last_reload_success_timestamp_seconds",
                "When the configuration file in force was read.",
            )?,
            successful: IntGauge::new(
                "ostrakon_config_last_reload_successful",
                "1 if the configuration file is in force as it is now, 0 if it was refused.",
            )?,
        };
        registry.register(Box::new(metrics.info.clone()))?;
        registry.register(Box::new(metrics.loaded.clone()))?;
        registry.register(Box::new(metrics.successful.clone()))?;
        Ok(metrics)
    }

    /// This content is in force since now.
    pub(super) fn loaded(&self, hash: &str, now: Timestamp) {
        self.info.reset();
        self.info.with_label_values(&[hash]).set(1);
        self.loaded.set(now.as_second());
        self.successful.set(1);
    }

    /// Whether the file could be used the last time that it was read.
    pub(super) fn read(&self, successful: bool) {
        self.successful.set(successful.into());
    }
}
