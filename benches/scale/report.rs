//! What the runs come to: a table and all figures.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};
use ostrakon::clock::system_time;
use serde::Serialize;

use crate::median::median;
use crate::objects::Size;
use crate::usage::Memory;

/// From the start of the process to its readiness.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Sync {
    pub(crate) seconds: f64,
    pub(crate) cpu: f64,
    pub(crate) memory: Memory,
}

/// A third of the nodes tainted at once.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Zone {
    pub(crate) nodes: usize,
    pub(crate) pods: usize,
    /// Seconds until all its pods were decided about; absent if that was not seen.
    pub(crate) condemned: Option<f64>,
    /// Pods deleted while it was watched.
    pub(crate) evicted: usize,
    pub(crate) first: Option<f64>,
    pub(crate) last: Option<f64>,
    pub(crate) reads: u64,
    pub(crate) writes: u64,
    pub(crate) cpu: f64,
    pub(crate) memory: Memory,
}

/// One size.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Round {
    pub(crate) nodes: usize,
    pub(crate) pods: usize,
    pub(crate) syncs: Vec<Sync>,
    pub(crate) zone: Option<Zone>,
}

#[derive(Debug, Serialize)]
pub(crate) struct Report {
    date: String,
    cores: usize,
    load_before: String,
    /// On one node with one pod.
    pub(crate) empty: Vec<Sync>,
    pub(crate) rounds: Vec<Round>,
}

impl Sync {
    pub(crate) fn summary(&self) -> String {
        let Self { seconds, cpu, memory } = self;
        format!("synced in {seconds:.2} s, CPU {cpu:.2} s, {:.0} MiB", memory.resident)
    }

    /// Of several, the median of each figure.
    fn median(of: &[Self]) -> Self {
        let median = |figure: fn(&Self) -> f64| median(of.iter().map(figure));
        Self {
            seconds: median(|sync| sync.seconds),
            cpu: median(|sync| sync.cpu),
            memory: Memory {
                resident: median(|sync| sync.memory.resident),
                peak: median(|sync| sync.memory.peak),
            },
        }
    }
}

impl Zone {
    pub(crate) fn summary(&self) -> String {
        format!(
            "zone of {} pods: first {:.3} s, all condemned {:.2} s, {} evicted in {:.1} s",
            self.pods,
            self.first.unwrap_or(f64::NAN),
            self.condemned.unwrap_or(f64::NAN),
            self.evicted,
            self.last.unwrap_or(f64::NAN),
        )
    }
}

#[allow(clippy::cast_precision_loss)]
impl Round {
    /// One that is still to be measured.
    pub(crate) fn of(size: Size) -> Self {
        Self { nodes: size.nodes, pods: size.pods, syncs: Vec::new(), zone: None }
    }

    /// Resident bytes of a pod, with its share of its node, beyond what an empty cluster takes.
    fn bytes_a_pod(&self, empty: &Sync) -> f64 {
        let resident = Sync::median(&self.syncs).memory.resident;
        (resident - empty.memory.resident) * f64::from(1 << 20) / self.pods as f64
    }

    /// The same in microseconds of processor time.
    fn micros_a_pod(&self, empty: &Sync) -> f64 {
        (Sync::median(&self.syncs).cpu - empty.cpu) * 1e6 / self.pods as f64
    }
}

#[allow(clippy::cast_precision_loss)]
impl Report {
    pub(crate) fn new(rounds: impl IntoIterator<Item = Round>) -> Self {
        let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
        Self {
            date: system_time().strftime("%Y-%m-%d").to_string(),
            cores: std::thread::available_parallelism().map_or(0, usize::from),
            load_before: load.split(' ').take(3).collect::<Vec<_>>().join(" "),
            empty: Vec::new(),
            rounds: rounds.into_iter().collect(),
        }
    }

    pub(crate) fn write(&self, folder: &Path) -> Result<()> {
        fs::create_dir_all(folder).with_context(|| format!("make {}", folder.display()))?;
        let mut json = serde_json::to_string_pretty(self)?;
        json.push('\n');
        fs::write(folder.join("scale.json"), json)?;
        fs::write(folder.join("scale.md"), self.markdown()?)?;
        Ok(())
    }

    fn markdown(&self) -> Result<String> {
        let mut text = String::new();
        let out = &mut text;
        let empty = Sync::median(&self.empty);
        writeln!(
            out,
            "# From 5,000 to 65,000 nodes\n\nMeasured {} on {} cores that also ran the server; load averages before \
             the start: {}. Medians of {} starts, taken by turns, and one zone of each size. How: [README](README.md). \
             In full: [JSON](scale.json).\n",
            self.date,
            self.cores,
            self.load_before,
            self.empty.len()
        )?;
        writeln!(out, "## From start to synced\n")?;
        writeln!(
            out,
            "Without a cluster to speak of the process takes {:.1} MiB and {:.2} s of CPU; what is more than that \
             is counted per pod, with its share of its node.\n",
            empty.memory.resident, empty.cpu
        )?;
        writeln!(
            out,
            "| nodes | pods | wall s | own CPU s | resident MiB | peak MiB | bytes/pod | CPU µs/pod |"
        )?;
        writeln!(out, "| --- | --- | --- | --- | --- | --- | --- | --- |")?;
        for round in &self.rounds {
            let sync = Sync::median(&round.syncs);
            writeln!(
                out,
                "| {} | {} | {:.2} | {:.2} | {:.0} | {:.0} | {:.0} | {:.1} |",
                round.nodes,
                round.pods,
                sync.seconds,
                sync.cpu,
                sync.memory.resident,
                sync.memory.peak,
                round.bytes_a_pod(&empty),
                round.micros_a_pod(&empty),
            )?;
        }
        if let (Some(first), Some(last)) = (self.rounds.first(), self.rounds.last()) {
            let grown =
                |of: fn(&Round, &Sync) -> f64| (of(last, &empty) / of(first, &empty) - 1.0) * 100.0;
            writeln!(
                out,
                "\nThe largest against the smallest (goal: within 10 %): bytes per pod {:+.0} %, CPU per pod {:+.0} %.",
                grown(Round::bytes_a_pod),
                grown(Round::micros_a_pod),
            )?;
        }
        writeln!(out, "\n## A third of the nodes tainted at once\n")?;
        writeln!(
            out,
            "| nodes tainted | their pods | first deletion s | all decided s | evicted | in s | pods/s | reads/eviction | \
             writes/eviction | own CPU µs/eviction | peak MiB |"
        )?;
        writeln!(out, "|{}", " --- |".repeat(11))?;
        for zone in self.rounds.iter().filter_map(|round| round.zone.as_ref()) {
            let (evicted, last) = (zone.evicted as f64, zone.last.unwrap_or(f64::NAN));
            let condemned = zone.condemned.map_or("–".to_owned(), |s| format!("{s:.2}"));
            writeln!(
                out,
                "| {} | {} | {:.3} | {condemned} | {} | {last:.1} | {:.0} | {:.2} | {:.2} | {:.0} | {:.0} |",
                zone.nodes,
                zone.pods,
                zone.first.unwrap_or(f64::NAN),
                zone.evicted,
                evicted / last,
                zone.reads as f64 / evicted,
                zone.writes as f64 / evicted,
                zone.cpu * 1e6 / evicted,
                zone.memory.peak,
            )?;
        }
        Ok(text)
    }
}
