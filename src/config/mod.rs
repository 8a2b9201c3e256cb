//! The validated configuration of a run, from flags and a file.

mod changes;
mod decode;
mod file;
mod lint;
mod policy_summary;
mod problem;
mod settings;
mod source;
pub mod summary;
#[cfg(test)]
mod tests;
mod validate;
mod validate_evictions;
pub mod yaml;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::ValueEnum;

use crate::drain::Policy;
use crate::leader::Times;

pub use changes::{changes, needs_restart};
pub use lint::{Finding, lint};
pub use problem::{Problem, Severity, listed, numbered};
pub use settings::{API_VERSION, KIND, Orphans, Settings};
pub use source::{ConfigFile, content_hash};
pub use validate::protection;

/// The rules that taint eviction follows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Compat {
    /// Deadlines count from when the taint was added, survive restarts, and follow every change of
    /// taints and tolerations.
    #[default]
    None,
    /// As kube-controller-manager: deadlines count from when this process sees the taint and never
    /// move afterwards; finished pods are deleted too.
    Upstream,
}

impl Compat {
    /// The name of these rules in logs.
    pub fn rules(self) -> &'static str {
        match self {
            Self::None => "own",
            Self::Upstream => "upstream",
        }
    }
}

/// Leader election among replicas.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Election {
    /// Namespace of the lease.
    pub namespace: String,
    /// Lease duration, renew deadline and retry period.
    pub times: Times,
}

/// A dry run: everything is decided, nothing is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DryRun {
    /// Create events that say what would have been done. They are the only thing that is written then.
    pub events: bool,
}

/// Everything that can be configured for a run of the controller.
#[derive(Clone, Debug)]
pub struct Config {
    /// Kubeconfig file; `None` for the usual rules.
    pub kubeconfig: Option<PathBuf>,
    /// Context in the kubeconfig; `None` for its current one.
    pub context: Option<String>,
    /// How long startup waits for an API server that is unreachable, overloaded or still starting.
    pub api_server_wait: Duration,
    /// Address of the HTTP endpoints.
    pub listen: SocketAddr,
    /// The rules of taint eviction.
    pub compat: Compat,
    /// Leader election; `None` for a single replica, which works at once.
    pub election: Option<Election>,
    /// Namespace of the lease, which is read for pauses also without leader election.
    pub lease_namespace: String,
    /// UID of the pod that this process runs in, if it is the only ostrakon process there.
    pub pod_uid: Option<String>,
    /// Name of this process in events: the pod's name, or the host's.
    pub instance: String,
    /// A dry run; `None` for a run that writes.
    pub dry_run: Option<DryRun>,
    /// Whether evictions for taints are held while another controller evicts for taints too.
    pub require_exclusive: bool,
    /// What the configuration file sets.
    pub settings: Settings,
    /// The configuration file, which is read again while running; `None` if there is none.
    pub file: Option<ConfigFile>,
}

/// Maximum size of a configuration file, in bytes. Enough for thousands of policies.
pub const MOST_BYTES: usize = 1 << 20;

/// Maximum number of problems reported at once. A file with more is some other kind of file.
const MOST_PROBLEMS: usize = 100;

/// The result of reading a configuration file.
#[derive(Debug, Default)]
pub struct Reading {
    /// The settings. After an error they are incomplete and must not be used.
    pub settings: Settings,
    /// Errors and warnings, in the order of the file.
    pub problems: Vec<Problem>,
}

impl Reading {
    /// The number of problems with this severity.
    pub fn count(&self, severity: Severity) -> usize {
        self.problems.iter().filter(|problem| problem.severity == severity).count()
    }

    /// The settings and the warnings, or the errors if there are any.
    pub fn usable(self) -> Result<(Settings, Vec<Problem>), Vec<Problem>> {
        if self.count(Severity::Error) == 0 {
            return Ok((self.settings, self.problems));
        }
        let is_error = |problem: &Problem| problem.severity == Severity::Error;
        Err(self.problems.into_iter().filter(is_error).collect())
    }
}

/// Reads a configuration file, in YAML.
pub fn read(bytes: &[u8]) -> Reading {
    let text = match yaml::text(bytes, MOST_BYTES) {
        Ok(text) => text,
        Err(fault) => return Reading { problems: vec![fault.into()], ..Reading::default() },
    };
    let yaml::Stream { documents, faults } = yaml::read(text);
    let mut problems: Vec<Problem> = faults.into_iter().map(Problem::from).collect();
    if let Some(second) = documents.get(1) {
        let cause = format!("the file has {} documents; only one is allowed", documents.len());
        let remedy = "put all settings into one document and remove the ---";
        problems.push(Problem::of_file(Severity::Error, second.place, &cause, remedy));
    }
    let mut settings = Settings::default();
    if let Some(root) = documents.first() {
        let (read, drafts) = validate::settings(root, &mut problems);
        settings = read;
        let (policies, origins): (Vec<_>, Vec<_>) =
            drafts.into_iter().map(|draft| (draft.policy, (draft.index, draft.conditions))).unzip();
        // If no policy could be read, that has been reported already.
        if !policies.is_empty() {
            let findings = lint(&policies);
            problems.extend(findings.into_iter().map(|it| placed(it, root, &policies, &origins)));
        }
        settings.policies = policies;
    } else if problems.is_empty() {
        let start = yaml::Place { line: 1, column: 1 };
        let remedy = "write apiVersion, kind and the settings; docs/config.md lists all keys";
        problems.push(Problem::of_file(Severity::Error, start, "the file is empty", remedy));
    }
    problems.sort_by_key(|problem| problem.place);
    if problems.len() > MOST_PROBLEMS {
        let rest = problems.split_off(MOST_PROBLEMS);
        let worst = rest.iter().map(|problem| problem.severity).min();
        if let (Some(severity), Some(place)) = (worst, rest[0].place) {
            let cause = format!("{} more problems follow", rest.len());
            problems.push(Problem::of_file(severity, place, &cause, "fix those above first"));
        }
    }
    Reading { settings, problems }
}

/// A lint finding with its place in the file.
fn placed(
    finding: Finding,
    root: &yaml::Node,
    policies: &[Policy],
    origins: &[(usize, Vec<usize>)],
) -> Problem {
    let Finding { policy, mut key, cause, remedy } = finding;
    let (mut path, mut name) = (key.clone(), String::new());
    if let Some((at, (index, conditions))) = policy.and_then(|at| Some((at, origins.get(at)?))) {
        // Conditions that could not be read are missing from the rules, so indices differ.
        if let Some((number, rest)) =
            key.strip_prefix("conditions[").and_then(|it| it.split_once(']'))
            && let Some(origin) = number.parse().ok().and_then(|it: usize| conditions.get(it))
        {
            key = format!("conditions[{origin}]{rest}");
        }
        path = match key.as_str() {
            "" => format!("drainPolicies[{index}]"),
            key => format!("drainPolicies[{index}].{key}"),
        };
        name = policies.get(at).map_or_else(String::new, |it| format!("policy {:?}", it.name));
    }
    let place = Some(decode::place_of(root, &path));
    Problem { severity: Severity::Warning, place, path, policy: name, key, cause, remedy }
}

/// The settings of a configuration file, or its errors.
pub fn read_settings(text: &str) -> Result<Settings, Vec<Problem>> {
    read(text.as_bytes()).usable().map(|(settings, _)| settings)
}

/// Warnings about policies that come from flags.
pub fn warnings(policies: &[Policy]) -> Vec<Problem> {
    let problem = |finding: Finding| {
        let policy = finding.policy.and_then(|at| policies.get(at));
        Problem {
            severity: Severity::Warning,
            place: None,
            path: String::new(),
            policy: policy.map_or_else(String::new, |it| format!("policy {:?}", it.name)),
            key: finding.key,
            cause: finding.cause,
            remedy: finding.remedy,
        }
    };
    lint(policies).into_iter().map(problem).collect()
}

/// The JSON schema of a configuration file.
pub fn schema() -> serde_json::Value {
    schemars::schema_for!(file::File).to_value()
}
