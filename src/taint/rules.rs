//! How pods are evicted for a taint: the first rule that matches the taint decides.

use std::sync::Arc;
use std::time::Duration;

use crate::model::{RateLimit, Taint};

/// How pods are evicted for the taints that it matches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaintRule {
    /// Its name, unique among the rules; used in logs, events and metrics.
    pub name: Arc<str>,
    /// Matches the taint's key. `*` stands for any characters, also none.
    pub key: Arc<str>,
    /// The taint's value; `None` matches every value.
    pub value: Option<Arc<str>>,
    /// How the pods are evicted.
    pub method: TaintMethod,
    /// How many of them at a time; `None` for no limit of its own.
    pub limit: Option<RateLimit>,
}

/// How pods are evicted for a taint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TaintMethod {
    /// They are deleted, as by kube-controller-manager. Disruption budgets are not asked.
    #[default]
    Delete,
    /// By the Eviction API: disruption budgets are respected, for as long as it takes.
    Evict,
    /// By the Eviction API until so long after the deadline. Then they are deleted.
    EvictThenDelete {
        /// How long budgets are respected after the deadline.
        after: Duration,
    },
    /// They stay, and are reported.
    Ignore,
}

impl TaintRule {
    /// Whether the rule is about this NoExecute taint.
    pub fn matches(&self, taint: &Taint) -> bool {
        glob(&self.key, &taint.key) && self.value.as_ref().is_none_or(|value| *value == taint.value)
    }

    /// Whether the rule is about every taint, so that rules after it never apply.
    pub fn matches_all(&self) -> bool {
        &*self.key == "*" && self.value.is_none()
    }
}

impl TaintMethod {
    /// Whether pods may be deleted without asking their budgets.
    pub fn deletes(self) -> bool {
        matches!(self, Self::Delete | Self::EvictThenDelete { .. })
    }
}

/// The first rule that matches a taint. If there is none, pods are deleted.
pub fn rule_of<'r>(rules: &'r [TaintRule], taint: &Taint) -> Option<&'r TaintRule> {
    rules.iter().find(|rule| rule.matches(taint))
}

/// Whether any taint may lead to a deletion that asks no budgets. Without a rule for every taint, the rest
/// is deleted.
pub fn may_delete(rules: &[TaintRule]) -> bool {
    let end = rules.iter().position(TaintRule::matches_all);
    let reached = &rules[..end.map_or(rules.len(), |end| end + 1)];
    end.is_none() || reached.iter().any(|rule| rule.method.deletes())
}

/// Whether the whole text matches a pattern, in which `*` stands for any characters. Takes time in
/// proportion to the product of both lengths at most.
fn glob(pattern: &str, text: &str) -> bool {
    let mut parts = pattern.split('*');
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = text.strip_prefix(first) else { return false };
    let Some(last) = parts.next_back() else { return rest.is_empty() };
    for part in parts {
        let Some(at) = rest.find(part) else { return false };
        rest = &rest[at + part.len()..];
    }
    rest.ends_with(last)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::build::taint;

    fn rule(key: &str, value: Option<&str>, method: TaintMethod) -> TaintRule {
        let value = value.map(Arc::from);
        TaintRule { name: key.into(), key: key.into(), value, method, limit: None }
    }

    #[test]
    fn a_star_stands_for_any_characters_and_nothing_else_does() {
        for (pattern, text, matches) in [
            ("a", "a", true),
            ("a", "ab", false),
            ("", "", true),
            ("", "a", false),
            ("*", "", true),
            ("*", "node.kubernetes.io/x", true),
            ("node.kubernetes.io/*", "node.kubernetes.io/", true),
            ("node.kubernetes.io/*", "node.kubernetes.i", false),
            ("*/x", "a/x", true),
            ("*/x", "a/xy", false),
            ("a*a", "a", false),
            ("a*a", "aa", true),
            ("a*b*c", "a-c-b-c", true),
            ("a*b*c", "a-c-b", false),
            ("a?", "ab", false),
            ("**", "ab", true),
        ] {
            assert_eq!(glob(pattern, text), matches, "{pattern:?} {text:?}");
        }
    }

    #[test]
    fn the_first_rule_that_matches_key_and_value_decides() {
        let rules = [
            rule("m", Some("os"), TaintMethod::Evict),
            rule("m", Some(""), TaintMethod::Ignore),
            rule("m*", None, TaintMethod::Delete),
        ];
        let method = |key, value| rule_of(&rules, &taint(key, value)).map(|rule| rule.method);
        assert_eq!(method("m", "os"), Some(TaintMethod::Evict));
        assert_eq!(method("m", ""), Some(TaintMethod::Ignore));
        assert_eq!(method("m", "x"), Some(TaintMethod::Delete));
        assert_eq!(method("mm", "os"), Some(TaintMethod::Delete));
        assert_eq!(method("n", "os"), None);
    }

    #[test]
    fn nothing_deletes_only_if_the_rules_cover_every_taint() {
        let evict = TaintMethod::Evict;
        let later = TaintMethod::EvictThenDelete { after: Duration::from_secs(1) };
        for (rules, deletes) in [
            (vec![], true),
            (vec![rule("a*", None, evict)], true),
            (vec![rule("*", Some("x"), evict)], true),
            (vec![rule("*", None, evict)], false),
            (vec![rule("*", None, TaintMethod::Ignore)], false),
            (vec![rule("*", None, later)], true),
            (vec![rule("a", None, TaintMethod::Delete), rule("*", None, evict)], true),
            (vec![rule("*", None, evict), rule("a", None, TaintMethod::Delete)], false),
        ] {
            assert_eq!(may_delete(&rules), deletes, "{rules:?}");
        }
    }
}
