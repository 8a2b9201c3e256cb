//! Reads values from the parsed tree and collects problems. Reading never stops at the first problem:
//! a value that cannot be read counts as missing.

use std::time::Duration;

use super::problem::{Problem, Severity};
use super::yaml::{Entry, Node, Place, Value, cut};
use crate::drain::{DURATION_REMEDY, SyntaxError, parse_duration};

/// Collects problems under the policy that is being read.
pub(super) struct Reader<'p> {
    /// The policy, as messages name it; empty outside a policy.
    pub(super) policy: String,
    /// Path of the policy in the file; empty outside a policy.
    pub(super) base: String,
    pub(super) problems: &'p mut Vec<Problem>,
}

/// A value and the key of its setting.
pub(super) struct At<'a> {
    pub(super) node: &'a Node,
    pub(super) key: String,
}

/// A mapping that is being read.
pub(super) struct Fields<'a> {
    entries: &'a [Entry],
    place: Place,
    key: String,
    asked: Vec<&'static str>,
}

impl<'a> Fields<'a> {
    /// The value of a key; `None` if it is missing or empty.
    pub(super) fn get(&mut self, name: &'static str) -> Option<At<'a>> {
        self.asked.push(name);
        let entry = self.entries.iter().find(|entry| entry.key == name)?;
        (entry.value.value != Value::Null)
            .then(|| At { node: &entry.value, key: join(&self.key, name) })
    }
}

fn join(parent: &str, name: &str) -> String {
    if parent.is_empty() { name.to_owned() } else { format!("{parent}.{name}") }
}

impl Reader<'_> {
    pub(super) fn wrong(
        &mut self,
        place: Place,
        key: impl Into<String>,
        cause: impl Into<String>,
        remedy: impl Into<String>,
    ) {
        let key = key.into();
        let path = match (self.base.as_str(), key.as_str()) {
            (base, "") => base.to_owned(),
            (base, key) => join(base, key),
        };
        self.problems.push(Problem {
            severity: Severity::Error,
            place: Some(place),
            path,
            policy: self.policy.clone(),
            key,
            cause: cause.into(),
            remedy: remedy.into(),
        });
    }

    /// Adds an error about this value.
    pub(super) fn wrong_at(
        &mut self,
        at: &At<'_>,
        cause: impl Into<String>,
        remedy: impl Into<String>,
    ) {
        self.wrong(at.node.place, at.key.clone(), cause, remedy);
    }

    pub(super) fn syntax(&mut self, at: &At<'_>, error: SyntaxError) {
        let SyntaxError { text, column, cause, remedy } = error;
        self.wrong_at(at, format!("{:?}, column {column}: {cause}", cut(&text)), remedy);
    }

    /// The fields of a mapping.
    pub(super) fn fields<'a>(&mut self, at: &At<'a>, remedy: &str) -> Option<Fields<'a>> {
        let Value::Map(entries) = &at.node.value else {
            self.wrong_at(at, at.node.kind(), remedy);
            return None;
        };
        Some(Fields { entries, place: at.node.place, key: at.key.clone(), asked: Vec::new() })
    }

    /// The value of a required key.
    pub(super) fn required<'a>(
        &mut self,
        fields: &mut Fields<'a>,
        name: &'static str,
        remedy: &str,
    ) -> Option<At<'a>> {
        let at = fields.get(name);
        if at.is_none() {
            let entry = fields.entries.iter().find(|entry| entry.key == name);
            let (place, cause) = match entry {
                Some(entry) => (entry.place, "it is empty"),
                None => (fields.place, "it is missing"),
            };
            self.wrong(place, join(&fields.key, name), cause, remedy);
        }
        at
    }

    /// Reports unknown keys.
    pub(super) fn finish(&mut self, fields: &Fields<'_>) {
        for entry in fields.entries {
            if fields.asked.contains(&entry.key.as_str()) {
                continue;
            }
            let remedy = match nearest(&entry.key, &fields.asked) {
                Some(name) => format!("did you mean {name}? docs/config.md lists all keys"),
                None => format!(
                    "remove it, or write one of {}; docs/config.md lists all keys",
                    fields.asked.join(", ")
                ),
            };
            let cause = format!("unknown key {:?}", cut(&entry.key));
            self.wrong(entry.place, join(&fields.key, &cut(&entry.key)), cause, remedy);
        }
    }

    pub(super) fn text<'a>(&mut self, at: &At<'a>) -> Option<&'a str> {
        let text = at.node.text();
        if text.is_none() {
            self.wrong_at(at, at.node.kind(), "write a string");
        }
        text
    }

    pub(super) fn truth(&mut self, at: Option<At<'_>>) -> Option<bool> {
        let at = at?;
        let truth = at.node.truth();
        if truth.is_none() {
            let cause = match &at.node.value {
                Value::Text { text, quoted: false } => {
                    format!("{:?} is neither true nor false", cut(text))
                }
                _ => at.node.kind(),
            };
            self.wrong_at(&at, cause, "write true or false, without quotes");
        }
        truth
    }

    pub(super) fn number<T: std::str::FromStr>(
        &mut self,
        at: Option<At<'_>>,
        remedy: &str,
    ) -> Option<T> {
        let at = at?;
        let number = match &at.node.value {
            Value::Text { text, quoted: false } => text.parse().ok(),
            _ => None,
        };
        if number.is_none() {
            let cause = match &at.node.value {
                Value::Text { text, quoted: false } => {
                    format!("{:?} is not a valid number", cut(text))
                }
                _ => at.node.kind(),
            };
            self.wrong_at(&at, cause, remedy);
        }
        number
    }

    /// One of a fixed set of words.
    pub(super) fn choice<T: Copy>(&mut self, at: Option<At<'_>>, words: &[(&str, T)]) -> Option<T> {
        let at = at?;
        let text = self.text(&at)?;
        let chosen = words.iter().find(|(word, _)| *word == text).map(|(_, chosen)| *chosen);
        if chosen.is_none() {
            let words: Vec<_> = words.iter().map(|(word, _)| *word).collect();
            let remedy = match nearest(text, &words) {
                Some(word) => format!("write {word}"),
                None => format!("write one of {}", words.join(", ")),
            };
            let cause = format!("{:?} is not one of {}", cut(text), words.join(", "));
            self.wrong_at(&at, cause, remedy);
        }
        chosen
    }

    /// The items of a list.
    pub(super) fn items<'a>(&mut self, at: &At<'a>, remedy: &str) -> Option<Vec<At<'a>>> {
        let Value::List(items) = &at.node.value else {
            self.wrong_at(at, at.node.kind(), remedy);
            return None;
        };
        let items = items.iter().enumerate();
        Some(items.map(|(index, node)| At { node, key: format!("{}[{index}]", at.key) }).collect())
    }

    pub(super) fn duration(&mut self, at: Option<At<'_>>) -> Option<Duration> {
        let at = at?;
        let text = self.text(&at)?;
        let duration = parse_duration(text);
        if duration.is_none() {
            self.wrong_at(&at, format!("{:?} is not a duration", cut(text)), DURATION_REMEDY);
        }
        duration
    }

    /// A duration of at least a second.
    pub(super) fn positive(&mut self, at: Option<At<'_>>) -> Option<Duration> {
        let at = at?;
        let key = At { node: at.node, key: at.key.clone() };
        let duration = self.duration(Some(at))?;
        if duration < Duration::from_secs(1) {
            self.wrong_at(&key, "it is less than 1s", "write a longer duration, or leave it out");
        }
        Some(duration)
    }
}

/// The word that was probably meant: it differs only in case or in a letter or two.
pub(super) fn nearest<'w>(text: &str, words: &[&'w str]) -> Option<&'w str> {
    let same = words.iter().find(|word| word.eq_ignore_ascii_case(text));
    let near = || {
        let distance =
            |word: &str| strsim::damerau_levenshtein(&text.to_lowercase(), &word.to_lowercase());
        let near = words.iter().map(|word| (distance(word), word));
        let (distance, word) = near.min_by_key(|(distance, _)| *distance)?;
        (distance <= (word.len() / 4).clamp(1, 3)).then_some(word)
    };
    // A long text is not a typo, and comparing it would take long.
    same.or_else(|| if text.len() <= 64 { near() } else { None }).copied()
}

/// The place of a setting in the file, or of the last part of its path that exists.
pub(super) fn place_of(root: &Node, path: &str) -> Place {
    let mut node = root;
    let mut place = root.place;
    for part in path.split(['.', '[']) {
        let next = if let Some(index) = part.strip_suffix(']') {
            index.parse().ok().and_then(|index: usize| node.items().get(index))
        } else {
            let entry = node.entries().iter().find(|entry| entry.key == part);
            place = entry.map_or(place, |entry| entry.place);
            entry.map(|entry| &entry.value)
        };
        let Some(next) = next else { break };
        if part.ends_with(']') {
            place = next.place;
        }
        node = next;
    }
    place
}
