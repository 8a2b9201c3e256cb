//! Reads the settings of taint eviction, limits and the breaker.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use super::decode::{At, Fields, Reader};
use super::yaml::{Node, cut};
use crate::evict::{
    BreakerMode, BreakerRules, EvictionLimits, Ramp, RateLimit, TaintMethod, TaintRule,
};

const PERCENT: &str = "write 1% to 100%";
const RATE_FORM: &str = "write a mapping, such as {pods: 30, per: 1m}";

#[derive(Clone, Copy, PartialEq)]
enum Method {
    Delete,
    Evict,
    EvictThenDelete,
    Ignore,
}

const METHODS: [(&str, Method); 4] = [
    ("Delete", Method::Delete),
    ("Evict", Method::Evict),
    ("EvictThenDelete", Method::EvictThenDelete),
    ("Ignore", Method::Ignore),
];

const MODES: [(&str, BreakerMode); 3] = [
    ("Observe", BreakerMode::Observe),
    ("Enforce", BreakerMode::Enforce),
    ("Off", BreakerMode::Off),
];

/// An invalid value is reported and replaced by its default, so that one run reports all errors.
impl Reader<'_> {
    pub(super) fn taint_rules(&mut self, at: Option<At<'_>>) -> Vec<TaintRule> {
        let Some(at) = at else { return Vec::new() };
        let Some(mut fields) = self.fields(&at, "write rules: with a list of rules") else {
            return Vec::new();
        };
        let items =
            fields.get("rules").and_then(|at| self.items(&at, "write a list: - name: NAME"));
        self.finish(&fields);
        let mut names = BTreeSet::new();
        let mut rules: Vec<TaintRule> = Vec::new();
        for item in items.unwrap_or_default() {
            let place = item.node.get("name").map_or(item.node.place, |name| name.place);
            let Some(rule) = self.taint_rule(&item) else { continue };
            let key = format!("{}.name", item.key);
            if !rule.name.is_empty() && !names.insert(Arc::clone(&rule.name)) {
                self.wrong(place, key, "another rule has this name", "choose another name");
            } else if rules.iter().any(TaintRule::matches_all) {
                let cause = "an earlier rule matches every taint, so this one never applies";
                self.wrong(item.node.place, item.key, cause, "put it before that rule");
            }
            rules.push(rule);
        }
        rules
    }

    fn taint_rule(&mut self, item: &At<'_>) -> Option<TaintRule> {
        let mut fields = self.fields(item, "write a mapping with name and method")?;
        let name = self.name(&mut fields);
        let key = fields.get("key").and_then(|at| self.taint_part(&at, 317, "-_./*"));
        let value = fields.get("value").and_then(|at| self.taint_part(&at, 63, "-_."));
        let effect = fields.get("effect");
        if let Some(at) = &effect
            && let Some(text) = self.text(at)
            && text != "NoExecute"
        {
            let cause = format!("{:?} evicts no pods", cut(text));
            self.wrong_at(at, cause, "write NoExecute, or leave it out");
        }
        let remedy = "write Delete, Evict, EvictThenDelete or Ignore";
        let method = self.required(&mut fields, "method", remedy);
        let method = self.choice(method, &METHODS);
        let after = fields.get("deleteAfter");
        let after_given = after.as_ref().map(|at| (at.node.place, at.key.clone()));
        let after = self.positive(after);
        let method = match (method, after, after_given) {
            (Some(Method::EvictThenDelete), Some(after), _) => {
                TaintMethod::EvictThenDelete { after }
            }
            (Some(Method::EvictThenDelete), None, None) => {
                let key = format!("{}.deleteAfter", item.key);
                self.wrong(item.node.place, key, "it is missing", "write a duration, such as 5m");
                TaintMethod::Evict
            }
            (Some(method), _, Some((place, key))) if method != Method::EvictThenDelete => {
                let cause = "only method: EvictThenDelete uses it";
                self.wrong(place, key, cause, "remove it, or change the method");
                TaintMethod::Evict
            }
            (Some(Method::Delete), ..) => TaintMethod::Delete,
            (Some(Method::Ignore), ..) => TaintMethod::Ignore,
            _ => TaintMethod::Evict,
        };
        let limit = fields.get("limit").and_then(|at| self.rate(&at));
        self.finish(&fields);
        let key = key.unwrap_or("*").into();
        Some(TaintRule { name: name.into(), key, value: value.map(Arc::from), method, limit })
    }

    /// A taint's key or value: letters, digits, and `others`.
    fn taint_part<'a>(&mut self, at: &At<'a>, most: usize, others: &str) -> Option<&'a str> {
        let text = self.text(at)?;
        let plain = |c: char| c.is_ascii_alphanumeric() || others.contains(c);
        if text.len() > most || !text.chars().all(plain) {
            let cause = format!("no taint has {:?}", cut(text));
            let others = others.chars().map(String::from).collect::<Vec<_>>().join(" ");
            let remedy = format!("write at most {most} letters, digits and {others}");
            self.wrong_at(at, cause, remedy);
        }
        Some(text)
    }

    fn rate(&mut self, at: &At<'_>) -> Option<RateLimit> {
        let mut fields = self.fields(at, RATE_FORM)?;
        let pods = self.required(&mut fields, "pods", "write a number of pods");
        let pods = self.count(pods);
        let per = self.positive(fields.get("per")).unwrap_or(Duration::from_secs(1));
        let burst = self.count(fields.get("burst"));
        self.finish(&fields);
        let pods = pods?;
        Some(RateLimit { pods, per, burst: burst.unwrap_or(pods) })
    }

    /// A number of at least 1.
    fn count(&mut self, at: Option<At<'_>>) -> Option<u32> {
        let at = at?;
        let again = At { node: at.node, key: at.key.clone() };
        let count = self.number(Some(at), "write a number of at least 1")?;
        if count == 0 {
            self.wrong_at(&again, "it is 0", "write a number of at least 1");
        }
        Some(count)
    }

    /// A percentage, as `30%`.
    fn percent(&mut self, at: Option<At<'_>>) -> Option<u8> {
        let at = at?;
        let text = self.text(&at)?;
        let percent = text.strip_suffix('%').and_then(|text| text.parse().ok());
        let percent = percent.filter(|percent| (1..=100).contains(percent));
        if percent.is_none() {
            let cause = format!("{:?} is not a valid percentage", cut(text));
            self.wrong_at(&at, cause, PERCENT);
        }
        percent
    }

    pub(super) fn limits(&mut self, at: Option<At<'_>>) -> EvictionLimits {
        let defaults = EvictionLimits::default();
        let Some(at) = at else { return defaults };
        let remedy = "write a mapping, such as cluster: {pods: 30, per: 1m}";
        let Some(mut fields) = self.fields(&at, remedy) else { return defaults };
        let cluster = fields.get("cluster").and_then(|at| self.rate(&at));
        let zone = fields.get("zone").and_then(|at| self.rate(&at));
        let ramp = match fields.get("ramp") {
            Some(at) => self.ramp(&at),
            None => defaults.ramp,
        };
        self.finish(&fields);
        EvictionLimits { cluster, zone, ramp }
    }

    fn ramp(&mut self, at: &At<'_>) -> Option<Ramp> {
        let defaults = Ramp::default();
        let Some(mut fields) = self.fields(at, "write a mapping, such as {nodes: 20}") else {
            return Some(defaults);
        };
        let enabled = self.truth(fields.get("enabled")).unwrap_or(true);
        let ramp = Ramp {
            nodes: self.count(fields.get("nodes")).unwrap_or(defaults.nodes),
            share: self.percent(fields.get("share")).unwrap_or(defaults.share),
            within: self.positive(fields.get("within")).unwrap_or(defaults.within),
            interval: self.duration(fields.get("interval")).unwrap_or(defaults.interval),
        };
        self.finish(&fields);
        enabled.then_some(ramp)
    }

    pub(super) fn breaker(&mut self, at: Option<At<'_>>) -> BreakerRules {
        let defaults = BreakerRules::default();
        let Some(at) = at else { return defaults };
        let Some(mut fields) = self.fields(&at, "write a mapping, such as mode: Enforce") else {
            return defaults;
        };
        let rules = BreakerRules {
            mode: self.choice(fields.get("mode"), &MODES).unwrap_or(defaults.mode),
            share: self.percent(fields.get("share")).unwrap_or(defaults.share),
            at_least: self.count(fields.get("atLeast")).unwrap_or(defaults.at_least),
            window: self.positive(fields.get("window")).unwrap_or(defaults.window),
            calm: self.positive(fields.get("calm")).unwrap_or(defaults.calm),
            trickle: self.positive(fields.get("trickle")).unwrap_or(defaults.trickle),
        };
        self.finish(&fields);
        rules
    }

    /// Reads what says that this is a configuration file of this version.
    pub(super) fn header(&mut self, fields: &mut Fields<'_>, root: &Node) {
        for (name, expected) in [("apiVersion", super::API_VERSION), ("kind", super::KIND)] {
            let remedy = format!("write {name}: {expected}");
            let at = match name {
                "kind" => self.required(fields, "kind", &remedy),
                _ => self.required(fields, "apiVersion", &remedy),
            };
            let Some(at) = at else { continue };
            let Some(text) = self.text(&at) else { continue };
            if text != expected {
                let cause = format!("{:?} is not known", cut(text));
                let remedy = if root.get("metadata").is_some() {
                    format!("{remedy}; this file looks like a Kubernetes resource")
                } else {
                    remedy
                };
                self.wrong_at(&at, cause, remedy);
            }
        }
    }
}
