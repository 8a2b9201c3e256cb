//! The flags of `ostrakon run` for cordon and drain: a single policy, or a file.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, anyhow};
use clap::Args;

use super::duration;
use crate::config::{ConfigFile, Settings, listed, numbered, protection, read, warnings};
use crate::drain::{ConditionRule, LabelExpr, NodeSelector, Policy, Protection};

/// Name of the policy that is set by flags.
const NAME: &str = "default";

/// Which nodes are cordoned and drained: by a file, or by a single policy.
#[derive(Debug, Args)]
#[allow(clippy::struct_excessive_bools, reason = "flags that are given or not")]
#[command(next_help_heading = "Cordon and drain")]
pub(super) struct DrainArguments {
    /// Configuration file (docs/config.md); cannot be combined with the flags below [default: none]
    #[arg(long, value_name = "FILE", conflicts_with_all = SINGLE_POLICY)]
    config: Option<PathBuf>,

    /// Node condition to drain for, as Type or as Type=Status,Duration such as Ready=False,10m;
    /// repeatable, any match is enough. Without one, no node is cordoned or drained
    #[arg(long = "drain-condition", value_name = "CONDITION", value_parser = ConditionRule::parse)]
    conditions: Vec<ConditionRule>,

    /// Expression that selects nodes by their labels, such as metadata.labels.pool == 'gpu'
    /// [default: all nodes]
    #[arg(long, value_name = "EXPRESSION", value_parser = LabelExpr::parse, requires = CONDITION)]
    node_label_expr: Option<LabelExpr>,

    /// Minimum time between the starts of two drains
    #[arg(long, value_name = "DURATION", value_parser = duration, default_value = "10m", requires = CONDITION)]
    drain_buffer: Duration,

    /// Maximum grace period of a pod; shorter ones are kept
    #[arg(long, value_name = "DURATION", value_parser = duration, default_value = "8m", requires = CONDITION)]
    max_grace_period: Duration,

    /// Time beyond the maximum grace period before a drain counts as failed
    #[arg(long, value_name = "DURATION", value_parser = duration, default_value = "30s", requires = CONDITION)]
    eviction_headroom: Duration,

    /// Cordon nodes, but do not drain them
    #[arg(long, requires = CONDITION)]
    skip_drain: bool,

    /// Also evict pods of a DaemonSet
    #[arg(long, requires = CONDITION)]
    evict_daemonset_pods: bool,

    /// Also evict pods of a StatefulSet
    #[arg(long, requires = CONDITION)]
    evict_statefulset_pods: bool,

    /// Also evict pods with an emptyDir volume
    #[arg(long, requires = CONDITION)]
    evict_emptydir_pods: bool,

    /// Also evict pods without a controller, which nothing recreates
    #[arg(long, requires = CONDITION)]
    evict_unreplicated_pods: bool,

    /// Annotation of pods that are never evicted by a drain, as KEY or KEY=VALUE; repeatable
    #[arg(long = "protected-pod-annotation", value_name = "KEY[=VALUE]", value_parser = protection, requires = CONDITION)]
    protections: Vec<Protection>,
}

/// The flag that all other flags of the single policy require.
const CONDITION: &str = "conditions";

/// The flags of a single policy.
const SINGLE_POLICY: [&str; 11] = [
    CONDITION,
    "node_label_expr",
    "drain_buffer",
    "max_grace_period",
    "eviction_headroom",
    "skip_drain",
    "evict_daemonset_pods",
    "evict_statefulset_pods",
    "evict_emptydir_pods",
    "evict_unreplicated_pods",
    "protections",
];

impl DrainArguments {
    /// The settings of these flags or of the file that they name, warnings about them, and the file.
    pub(super) fn settings(self) -> anyhow::Result<(Settings, Vec<String>, Option<ConfigFile>)> {
        match &self.config {
            Some(path) => {
                let (settings, warnings, file) = settings_of(path)?;
                Ok((settings, warnings, Some(file)))
            }
            None if self.conditions.is_empty() => Ok((Settings::default(), Vec::new(), None)),
            None => {
                let policies = vec![self.policy()];
                let warnings = warnings(&policies).iter().map(ToString::to_string).collect();
                Ok((policies.into(), warnings, None))
            }
        }
    }

    /// The policy set by flags: draino's meaning and defaults, and a file's defaults where draino has
    /// no flag.
    fn policy(self) -> Policy {
        let mut policy = Policy::new(NAME, self.conditions);
        policy.nodes = NodeSelector {
            expression: self.node_label_expr.unwrap_or_default(),
            ..NodeSelector::default()
        };
        policy.drain = !self.skip_drain;
        policy.pods.evict_daemonset = self.evict_daemonset_pods;
        policy.pods.evict_statefulset = self.evict_statefulset_pods;
        policy.pods.evict_local_storage = self.evict_emptydir_pods;
        policy.pods.evict_unreplicated = self.evict_unreplicated_pods;
        policy.pods.protections = self.protections;
        policy.pace.spacing = self.drain_buffer;
        policy.max_grace = Some(self.max_grace_period);
        policy.headroom = self.eviction_headroom;
        policy.deadline = Some(self.max_grace_period.saturating_add(self.eviction_headroom));
        policy
    }
}

/// Reads the settings of a file, and warnings about them.
pub(super) fn settings_of(path: &Path) -> anyhow::Result<(Settings, Vec<String>, ConfigFile)> {
    let read_file = ConfigFile::read(path);
    let (file, bytes) =
        read_file.with_context(|| format!("cannot read --config {}", path.display()))?;
    match read(&bytes).usable() {
        Ok((settings, warnings)) => {
            let warnings = warnings.iter().map(|it| format!("{}:{}", path.display(), numbered(it)));
            Ok((settings, warnings.collect(), file))
        }
        Err(errors) => Err(anyhow!("cannot use --config {}: {}", path.display(), listed(&errors))),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::drain::Undrainable;

    #[derive(Debug, Parser)]
    struct Only {
        #[command(flatten)]
        drain: DrainArguments,
    }

    fn parse(arguments: &[&str]) -> Result<Vec<Policy>, String> {
        let all = ["ostrakon"].iter().chain(arguments);
        let parsed = Only::try_parse_from(all).map_err(|error| error.to_string())?;
        Ok(parsed.drain.settings().unwrap().0.policies)
    }

    #[test]
    fn without_a_condition_no_node_is_drained() {
        assert_eq!(parse(&[]).unwrap().len(), 0);
    }

    #[test]
    fn the_defaults_are_those_of_draino() {
        let policies = parse(&["--drain-condition=KernelDeadlock"]).unwrap();
        let [policy] = &policies[..] else { panic!("{policies:?}") };
        assert_eq!(&*policy.name, "default");
        assert_eq!(policy.conditions, [ConditionRule::parse("KernelDeadlock").unwrap()]);
        assert_eq!(policy.nodes, NodeSelector::default());
        assert_eq!(policy.pace.spacing, Duration::from_secs(600));
        assert_eq!(policy.max_grace, Some(Duration::from_secs(480)));
        assert_eq!(policy.headroom, Duration::from_secs(30));
        assert_eq!(policy.deadline, Some(Duration::from_secs(510)));
        assert_eq!(policy.pods, crate::drain::PodRules::default());
        assert!(policy.drain);
    }

    #[test]
    fn every_flag_takes_effect() {
        let policies = parse(&[
            "--drain-condition=Ready=False,10m",
            "--drain-condition",
            "Cool",
            "--node-label-expr=metadata.labels.pool == 'a'",
            "--drain-buffer=1m",
            "--max-grace-period=2m",
            "--eviction-headroom=5s",
            "--skip-drain",
            "--evict-daemonset-pods",
            "--evict-statefulset-pods",
            "--evict-emptydir-pods",
            "--evict-unreplicated-pods",
            "--protected-pod-annotation=keep",
            "--protected-pod-annotation=a=b",
        ]);
        let policy = &policies.unwrap()[0];
        let rules: Vec<_> = policy.conditions.iter().map(ToString::to_string).collect();
        assert_eq!(rules, ["Ready=False,10m0s", "Cool=True,0s"]);
        assert_eq!(policy.nodes.expression.to_string(), "metadata.labels['pool'] == 'a'");
        assert_eq!(policy.pace.spacing, Duration::from_secs(60));
        assert_eq!(policy.max_grace, Some(Duration::from_secs(120)));
        assert_eq!(policy.deadline, Some(Duration::from_secs(125)));
        assert!(!policy.drain);
        assert_eq!(policy.undrainable, Undrainable::DrainRest, "as draino");
        let pods = &policy.pods;
        assert!(pods.evict_daemonset && pods.evict_statefulset);
        assert!(pods.evict_local_storage && pods.evict_unreplicated);
        assert_eq!(pods.protections.len(), 2);
    }

    #[test]
    fn a_flag_that_makes_no_sense_is_refused() {
        for (arguments, words) in [
            (&["--drain-condition=Ready=Unknown"][..], "column 14: the minimum age is missing"),
            (&["--drain-condition=Ready"], "every healthy node would be bad"),
            (&["--drain-condition=A", "--node-label-expr=a"], "column 1: unknown word \"a\""),
            (&["--drain-condition=A", "--drain-buffer=10"], "write a duration as 10m"),
            (&["--drain-condition=A", "--protected-pod-annotation==b"], "the key is missing"),
            (&["--skip-drain"], "--drain-condition <CONDITION>"),
            (&["--drain-buffer=1m"], "--drain-condition <CONDITION>"),
            (&["--config=x", "--drain-condition=A"], "cannot be used with"),
            (&["--config=x", "--skip-drain"], "cannot be used with"),
        ] {
            let error = parse(arguments).unwrap_err();
            assert!(error.contains(words), "{arguments:?}: {error}");
        }
    }
}
