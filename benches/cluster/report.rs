//! What was measured, as medians in Markdown, in full in JSON, and as a plot.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};
use ostrakon::clock::system_time;
use serde::{Serialize, Serializer};

use crate::bare::Fetch;
use crate::median::median;
use crate::server::{Cost, Requests};
use crate::usage::Memory;
use crate::{DEFAULT, FAST, Options, plot};

/// From the start of the process until it knew all nodes and pods.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Sync {
    pub(crate) seconds: f64,
    pub(crate) cpu: f64,
    pub(crate) server: Cost,
    pub(crate) memory: Memory,
}

/// From the taint until all its pods were marked for deletion.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Round {
    pub(crate) nodes: usize,
    /// Seconds after the taint, in order.
    #[serde(serialize_with = "as_percentiles")]
    pub(crate) deletions: Vec<f64>,
    pub(crate) requests: Requests,
    /// The contender's own processor time, events included.
    pub(crate) cpu: Option<f64>,
    pub(crate) server: Cost,
}

impl Round {
    /// When this part of the pods, from 0 to 1, was marked.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_precision_loss)]
    pub(crate) fn at(&self, part: f64) -> f64 {
        let last = self.deletions.len().saturating_sub(1);
        let index = (part * last as f64).round() as usize;
        self.deletions.get(index).copied().unwrap_or(f64::NAN)
    }

    pub(crate) fn summary(&self) -> String {
        let count = self.deletions.len();
        let (first, half, last) = (self.at(0.0), self.at(0.5), self.at(1.0));
        let nodes = self.nodes;
        format!(
            "{nodes} nodes, {count} pods: first {first:.3} s, half {half:.2} s, last {last:.2} s"
        )
    }
}

/// One contender in one run.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Run {
    pub(crate) sync: Option<Sync>,
    pub(crate) rounds: Vec<Round>,
    /// Resident memory at its highest, in MiB.
    pub(crate) peak: f64,
}

/// One contender in all runs.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Entry {
    pub(crate) name: String,
    pub(crate) runs: Vec<Run>,
}

#[derive(Clone, Debug, Serialize)]
pub(crate) struct Report {
    date: String,
    nodes: usize,
    pods: usize,
    cores: usize,
    /// Load averages of the machine before the start, which tell what else it did.
    load_before: String,
    /// Seconds that it took to write everything.
    load_seconds: f64,
    /// The bare fetch of everything and what it cost the server, by run.
    pub(crate) fetches: Vec<(Fetch, Cost)>,
    entries: Vec<Entry>,
    /// What the API server held in the end, in MiB.
    pub(crate) server_memory: f64,
    #[serde(skip)]
    stem: String,
}

impl Report {
    pub(crate) fn new(options: &Options, load_seconds: f64) -> Self {
        let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
        Self {
            date: system_time().strftime("%Y-%m-%d").to_string(),
            nodes: options.nodes,
            pods: options.nodes * options.pods_per_node,
            cores: std::thread::available_parallelism().map_or(0, usize::from),
            load_before: load.split(' ').take(3).collect::<Vec<_>>().join(" "),
            load_seconds,
            fetches: Vec::new(),
            entries: Vec::new(),
            server_memory: 0.0,
            stem: format!("cluster-{}x{}", options.nodes, options.pods_per_node),
        }
    }

    pub(crate) fn add(&mut self, name: &str, run: Run) {
        if let Some(entry) = self.entries.iter_mut().find(|entry| entry.name == name) {
            entry.runs.push(run);
        } else {
            self.entries.push(Entry { name: name.to_owned(), runs: vec![run] });
        }
    }

    pub(crate) fn write(&mut self, folder: &Path) -> Result<()> {
        // Runs begin with one or the other; a reader wants one order.
        let place = |entry: &Entry| {
            let references = [FAST.name(), DEFAULT.name()];
            if entry.name == "ostrakon" {
                return 0;
            }
            references.iter().position(|name| *name == entry.name).map_or(9, |place| place + 1)
        };
        self.entries.sort_by_key(place);
        fs::create_dir_all(folder).with_context(|| format!("make {}", folder.display()))?;
        let file = |end: &str| folder.join(format!("{}.{end}", self.stem));
        let mut json = serde_json::to_string(self)?;
        json.push('\n');
        fs::write(file("json"), json)?;
        fs::write(file("md"), self.markdown()?)?;
        let curves = self.entries.iter().filter_map(|entry| {
            let round = entry.middle_round()?;
            Some((entry.name.as_str(), round.deletions.as_slice()))
        });
        let (title, best) = (self.title(), self.best_bare().map(|(name, _)| name.to_owned()));
        // One bare client is enough to compare with.
        let is_shown = |name: &str| !name.starts_with("bare") || Some(name) == best.as_deref();
        fs::write(file("svg"), plot::svg(&title, curves.filter(|(name, _)| is_shown(name)))?)?;
        Ok(())
    }

    fn title(&self) -> String {
        let round = self.entries.first().and_then(Entry::middle_round);
        let (nodes, pods) = round.map_or((0, 0), |round| (round.nodes, round.deletions.len()));
        format!(
            "{nodes} nodes tainted at once ({pods} pods), of {} nodes and {} pods",
            self.nodes, self.pods
        )
    }

    fn entry(&self, name: &str) -> Option<&Entry> {
        self.entries.iter().find(|entry| entry.name == name)
    }

    /// The bare client that was done first.
    fn best_bare(&self) -> Option<(&str, f64)> {
        let bare = self.entries.iter().filter(|entry| entry.name.starts_with("bare"));
        let done = bare.map(|entry| (entry.name.as_str(), entry.in_last_round(|r| r.at(1.0))));
        done.min_by(|a, b| a.1.total_cmp(&b.1))
    }

    fn fetch_seconds(&self) -> f64 {
        median(self.fetches.iter().map(|(fetch, _)| fetch.seconds))
    }

    #[allow(clippy::cast_precision_loss)]
    fn markdown(&self) -> Result<String> {
        let mut text = String::new();
        let out = &mut text;
        writeln!(out, "# {} nodes, {} pods\n", self.nodes, self.pods)?;
        writeln!(
            out,
            "Measured {} on {} cores that also ran etcd and the API server; load averages before the start: \
             {}. Medians of the runs. How: [README](README.md). In full: [JSON]({}.json).\n",
            self.date, self.cores, self.load_before, self.stem
        )?;

        writeln!(out, "## From start to synced\n")?;
        writeln!(
            out,
            "| who | runs | wall s | own CPU s | API server CPU s | resident MiB | peak MiB |"
        )?;
        writeln!(out, "| --- | --- | --- | --- | --- | --- | --- |")?;
        for entry in self.entries.iter().filter(|entry| entry.syncs().next().is_some()) {
            let of = |field: fn(&Sync) -> f64| median(entry.syncs().map(field));
            writeln!(
                out,
                "| {} | {} | {:.2} | {:.2} | {:.1} | {:.0} | {:.0} |",
                entry.name,
                entry.runs.len(),
                of(|sync| sync.seconds),
                of(|sync| sync.cpu),
                of(|sync| sync.server.apiserver),
                of(|sync| sync.memory.resident),
                median(entry.runs.iter().map(|run| run.peak)),
            )?;
        }
        let bytes = median(self.fetches.iter().map(|(fetch, _)| fetch.bytes as f64));
        writeln!(
            out,
            "| a client that fetches it all as protobuf ({:.1} MB) and throws it away | {} | {:.2} | – | {:.1} | – | – |\n",
            bytes / 1e6,
            self.fetches.len(),
            self.fetch_seconds(),
            median(self.fetches.iter().map(|(_, cost)| cost.apiserver)),
        )?;

        writeln!(
            out,
            "## From the taint to the deletions\n\n![{}]({}.svg)\n",
            self.title(),
            self.stem
        )?;
        writeln!(
            out,
            "| who | nodes | pods | first s | 10 % s | half s | last s | pods/s | own CPU s | API server CPU s |"
        )?;
        writeln!(out, "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |")?;
        for entry in &self.entries {
            let rounds = entry.runs.first().map_or(0, |run| run.rounds.len());
            for index in 0..rounds {
                entry.round_row(out, index)?;
            }
        }
        writeln!(out)?;
        self.requests(out)?;
        self.goals(out)?;
        Ok(text)
    }

    #[allow(clippy::cast_precision_loss)]
    fn requests(&self, out: &mut String) -> Result<()> {
        writeln!(out, "## Requests per pod, most nodes\n")?;
        let mut kinds: Vec<&str> = Vec::new();
        let last = |entry: &Entry| entry.middle_round().cloned();
        for round in self.entries.iter().filter_map(last) {
            kinds.extend(round.requests.keys());
        }
        kinds.sort_unstable();
        kinds.dedup();
        writeln!(out, "| who | {} |", kinds.join(" | "))?;
        writeln!(out, "| --- |{}", " --- |".repeat(kinds.len()))?;
        for entry in self.entries.iter().filter(|entry| entry.syncs().next().is_some()) {
            let Some(round) = last(entry) else {
                continue;
            };
            write!(out, "| {} |", entry.name)?;
            for kind in &kinds {
                let count = round.requests.get(kind).copied().unwrap_or_default();
                write!(out, " {:.2} |", count / round.deletions.len() as f64)?;
            }
            writeln!(out)?;
        }
        writeln!(out)?;
        Ok(())
    }

    fn goals(&self, out: &mut String) -> Result<()> {
        let (Some(ours), Some(fast)) = (self.entry("ostrakon"), self.entry(&FAST.name())) else {
            return Ok(());
        };
        let (first, last) = (|round: &Round| round.at(0.0), |round: &Round| round.at(1.0));
        let resident = |entry: &Entry| median(entry.syncs().map(|sync| sync.memory.resident));
        let wall = median(ours.syncs().map(|sync| sync.seconds));
        let cpu = median(ours.syncs().map(|sync| sync.cpu));
        let mut rows = vec![
            ("resident memory when synced", "64 MiB or less", format!("{:.0} MiB", resident(ours))),
            ("… of the reference's", "1/30 or less", part(resident(ours), resident(fast))),
            ("own CPU until synced", "4 s or less", format!("{cpu:.2} s")),
            (
                "wall until synced, of the bare fetch",
                "1.3 or less",
                ratio(wall, self.fetch_seconds()),
            ),
            ("first deletion", "0.2 s or less", format!("{:.3} s", ours.in_last_round(first))),
            (
                "… of the reference's at QPS 5000",
                "1/40 or less",
                part(ours.in_last_round(first), fast.in_last_round(first)),
            ),
        ];
        if let Some(default) = self.entry(&DEFAULT.name()) {
            rows.push((
                "… of the reference's at its defaults",
                "1/400 or less",
                part(ours.in_last_round(first), default.in_last_round(first)),
            ));
        }
        if let Some((_, best)) = self.best_bare() {
            let text = ratio(ours.in_last_round(last), best);
            rows.push(("last deletion, of the best bare client's", "1.25 or less", text));
        }
        rows.push((
            "last deletion, of the reference's at QPS 5000",
            "0.6 or less",
            ratio(ours.in_last_round(last), fast.in_last_round(last)),
        ));
        writeln!(
            out,
            "## Goals\n\nMost nodes at once. The first four are meant for 5,000 nodes and 150,000 pods.\n"
        )?;
        writeln!(out, "| what | goal | measured |\n| --- | --- | --- |")?;
        for (what, goal, measured) in rows {
            writeln!(out, "| {what} | {goal} | {measured} |")?;
        }
        Ok(())
    }
}

impl Entry {
    #[allow(clippy::cast_precision_loss)]
    fn round_row(&self, out: &mut String, index: usize) -> Result<()> {
        let rounds = || self.runs.iter().filter_map(|run| run.rounds.get(index));
        let at = |part: f64| median(rounds().map(|round| round.at(part)));
        let Some(round) = rounds().next() else {
            return Ok(());
        };
        let own = median(rounds().filter_map(|round| round.cpu));
        let own = if own.is_nan() { "–".to_owned() } else { format!("{own:.2}") };
        writeln!(
            out,
            "| {} | {} | {} | {:.3} | {:.2} | {:.2} | {:.2} | {:.0} | {own} | {:.1} |",
            self.name,
            round.nodes,
            round.deletions.len(),
            at(0.0),
            at(0.1),
            at(0.5),
            at(1.0),
            round.deletions.len() as f64 / at(1.0),
            median(rounds().map(|round| round.server.apiserver)),
        )?;
        Ok(())
    }

    fn syncs(&self) -> impl Iterator<Item = &Sync> {
        self.runs.iter().filter_map(|run| run.sync.as_ref())
    }

    /// The median of a value over the rounds with most nodes.
    fn in_last_round(&self, value: impl Fn(&Round) -> f64) -> f64 {
        median(self.runs.iter().filter_map(|run| run.rounds.last()).map(value))
    }

    /// Of the rounds with most nodes the one that was done neither first nor last.
    fn middle_round(&self) -> Option<&Round> {
        let mut rounds: Vec<&Round> =
            self.runs.iter().filter_map(|run| run.rounds.last()).collect();
        rounds.sort_by(|a, b| a.at(1.0).total_cmp(&b.at(1.0)));
        rounds.get(rounds.len() / 2).copied()
    }
}

fn ratio(value: f64, of: f64) -> String {
    format!("{:.2}", value / of)
}

fn part(value: f64, of: f64) -> String {
    format!("1/{:.0}", of / value)
}

/// A hundred steps are enough to draw the curve again.
fn as_percentiles<S: Serializer>(deletions: &[f64], serializer: S) -> Result<S::Ok, S::Error> {
    let round = Round {
        nodes: 0,
        deletions: deletions.to_vec(),
        requests: BTreeMap::new(),
        cpu: None,
        server: Cost { apiserver: 0.0, etcd: 0.0 },
    };
    let steps = (0..=100).map(|step| (round.at(f64::from(step) / 100.0) * 1000.0).round() / 1000.0);
    serializer.collect_seq(steps)
}
