//! What a process has used, as the kernel counts it.

use std::fs;

use anyhow::{Context as _, Result};
use serde::Serialize;

/// Ticks per second in `/proc/PID/stat`: a constant of the kernel's interface.
const TICKS: f64 = 100.0;

/// Resident memory, in MiB.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Memory {
    pub(crate) resident: f64,
    /// The most that it ever was.
    pub(crate) peak: f64,
}

/// The processor time that a process has used up to now, in seconds.
pub(crate) fn cpu(pid: u32) -> Result<f64> {
    let text = read(pid, "stat")?;
    // The name in parentheses may hold spaces.
    let rest = text.rsplit_once(')').context("a stat without name")?.1;
    let mut fields = rest.split_whitespace().skip(11);
    let mut ticks = || -> Result<f64> { Ok(fields.next().context("a short stat")?.parse()?) };
    Ok((ticks()? + ticks()?) / TICKS)
}

/// The memory that a process has.
pub(crate) fn memory(pid: u32) -> Result<Memory> {
    let text = read(pid, "status")?;
    let field = |name: &str| -> Result<f64> {
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        let kibibytes =
            line.and_then(|rest| rest.split_whitespace().next()).context("no memory")?;
        Ok(kibibytes.parse::<f64>()? / 1024.0)
    };
    Ok(Memory { resident: field("VmRSS:")?, peak: field("VmHWM:")? })
}

fn read(pid: u32, file: &str) -> Result<String> {
    fs::read_to_string(format!("/proc/{pid}/{file}"))
        .with_context(|| format!("read /proc/{pid}/{file}; this bench needs Linux"))
}
