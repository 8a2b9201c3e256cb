//! The reasons of all events. `docs/events.md` describes each of them, and a test compares the two.

use serde::Serialize;

/// Makes the reasons. An event cannot be sent with another one.
macro_rules! reasons {
    ($($severity:ident { $($(#[$doc:meta])* $name:ident,)* })*) => {
        /// The reason of an event, which programs match on. Its name is what is sent.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
        pub enum Reason {
            $($($(#[$doc])* $name,)*)*
        }

        impl Reason {
            /// `Normal` or `Warning`.
            pub const fn severity(self) -> &'static str {
                match self {
                    $($(Self::$name)|* => stringify!($severity),)*
                }
            }

            #[cfg(test)]
            const ALL: &[Self] = &[$($(Self::$name,)*)*];
        }
    };
}

reasons! {
    Normal {
        /// A pod is evicted for a taint, or its countdown was cancelled; upstream's reason.
        TaintManagerEviction,
        /// A rule ignores a taint of a node.
        TaintIgnored,
        /// A pod is evicted for a drain.
        DrainEviction,
        /// A node is about to be cordoned; draino's reason, as the next ones of cordons and drains.
        CordonStarting,
        /// A node was cordoned.
        CordonSucceeded,
        /// Too many nodes are unavailable.
        CordonDeferred,
        /// A node is about to be uncordoned.
        UncordonStarting,
        /// A node was uncordoned.
        UncordonSucceeded,
        /// The drain of a node has a time.
        DrainScheduled,
        /// The drain of a node will not take place, or not go on.
        DrainCancelled,
        /// The drain of a node has started.
        DrainStarting,
        /// A node was drained.
        DrainSucceeded,
        /// The breaker is reset: what is due goes on.
        EvictionBreakerReset,
        /// A pause is over.
        EvictionsResumed,
    }
    Warning {
        /// A pod cannot be evicted for a taint for now.
        TaintManagerEvictionFailed,
        /// A rule respects the budgets of a pod, and they do not allow its eviction.
        TaintManagerEvictionBlocked,
        /// A pod is deleted without its condition.
        DisruptionConditionRefused,
        /// The record of a node's taints cannot be read.
        TaintRecordUnreadable,
        /// A pod cannot be evicted for a drain for now.
        DrainEvictionBlocked,
        /// A node could not be cordoned.
        CordonFailed,
        /// The policy that cordoned a node is configured no longer.
        CordonOrphaned,
        /// A node could not be uncordoned.
        UncordonFailed,
        /// The drain of a node could not be scheduled.
        DrainSchedulingFailed,
        /// The drain of a node has failed.
        DrainFailed,
        /// A request of a drain fails.
        DrainStalled,
        /// A drain waits for pods.
        DrainWaits,
        /// A drained node still exists.
        DrainedNodeLingers,
        /// The record of a drain cannot be stored.
        DrainRecordRefused,
        /// The condition of a drain cannot be stored.
        DrainConditionRefused,
        /// The record of a drain cannot be read.
        DrainRecordUnreadable,
        /// Grace periods of pods are cut.
        GracePeriodCut,
        /// The clocks of this machine and the API server disagree.
        ClockSkew,
        /// A configuration file cannot be used.
        ConfigurationRefused,
        /// Another controller evicts pods for taints too.
        OtherTaintManager,
        /// Due evictions concern a large part of the nodes.
        EvictionBreakerTripped,
        /// Evictions, cordons and starts of drains are paused.
        EvictionsPaused,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_reason_is_documented_with_its_type_and_no_other() {
        let page = include_str!("../../docs/events.md");
        let rows = page.lines().filter_map(|line| line.strip_prefix("| `"));
        let documented: BTreeSet<_> = rows
            .map(|row| {
                let cells: Vec<_> = row.split(" | ").collect();
                (cells[0].trim_end_matches('`').to_owned(), cells[2].to_owned())
            })
            .collect();
        let reasons = Reason::ALL.iter();
        let sent = reasons.map(|reason| (format!("{reason:?}"), reason.severity().to_owned()));
        assert_eq!(documented, sent.collect());
    }
}
