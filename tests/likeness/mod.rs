//! What the embedded cluster is held against: recordings of a real control plane.
//!
//! - [`script`]: requests and their answers; [`watches`]: how watches are framed;
//! - [`stories`]: what the controller makes of a cluster; [`outcome`]: how that is told;
//! - [`difference`]: two recordings compared, in words.
//!
//! All of it runs in `cargo test` against the embedded cluster, and in the scenarios against a real
//! one, from which `make recordings` takes the recordings.

pub(crate) mod difference;
pub(crate) mod outcome;
pub(crate) mod script;
pub(crate) mod stories;
pub(crate) mod watches;

use std::path::PathBuf;

use anyhow::{Context as _, Result};
use serde_json::Value;

/// A recording in the repository.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Recording(pub &'static str);

/// Answers to [`script::play`].
pub(crate) const ANSWERS: Recording = Recording("api");
/// Events of [`watches::play`].
pub(crate) const WATCHES: Recording = Recording("watches");
/// Events of [`watches::expired`].
pub(crate) const EXPIRED: Recording = Recording("expired");

impl Recording {
    fn path(self) -> PathBuf {
        let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/likeness/recordings");
        folder.join(self.0).with_extension("json")
    }

    /// What was recorded.
    pub(crate) fn read(self) -> Result<Value> {
        let path = self.path();
        let text = std::fs::read_to_string(&path);
        let text = text.with_context(|| format!("{}: `make recordings`", path.display()))?;
        serde_json::from_str(&text).with_context(|| format!("read {}", path.display()))
    }

    /// Records this, which must come from a real control plane.
    #[allow(dead_code, reason = "for the scenarios: what is embedded never records")]
    pub(crate) fn write(self, value: &Value) -> Result<()> {
        let text = format!("{}\n", serde_json::to_string_pretty(value)?);
        std::fs::write(self.path(), text).with_context(|| format!("record {}", self.0))
    }
}
