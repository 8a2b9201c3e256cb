//! Checks whether an expression has the same result for every node.
//!
//! Strings are only compared, so it is enough to try, for each label, its absence, the strings in the
//! expression, and some others. For `matches`, `contains`, `startsWith` and `endsWith`, both results count
//! as possible.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::{LabelExpr, Relation, Term, Text};
use crate::drain::label::{is_label_key, is_label_value};
use crate::model::Labels;

/// Most sets of labels that are tried. An expression that needs more is not judged.
const TRIES: usize = 1024;

impl LabelExpr {
    /// The answer, if it is the same for every node that has these labels; `None` if it differs, or
    /// cannot be told.
    pub fn always(&self, having: &[(Arc<str>, Arc<str>)]) -> Option<bool> {
        let Some(term) = &self.0 else { return Some(true) };
        let keys = self.keys();
        // Values that are not named: as many as labels, since labels may be compared with each other.
        let others: Vec<String> =
            (0..keys.len()).map(|number| format!("some-other-value-{number}")).collect();
        let others =
            if term.compares_labels() { &others[..] } else { &others[..others.len().min(1)] };
        let mut named: BTreeSet<&str> = others.iter().map(String::as_str).collect();
        named.insert("");
        term.literals(&mut named);
        let values: Vec<&str> = named.into_iter().filter(|value| is_label_value(value)).collect();
        let choices = |key: &str| match having.iter().find(|(known, _)| **known == *key) {
            Some((_, value)) => vec![Some(&**value)],
            None if !is_label_key(key) => vec![None],
            None => values.iter().map(|value| Some(*value)).chain([None]).collect(),
        };
        let axes: Vec<(&str, Vec<Option<&str>>)> =
            keys.iter().map(|key| (*key, choices(key))).collect();
        let tries = axes.iter().try_fold(1_usize, |tries, (_, values)| {
            tries.checked_mul(values.len()).filter(|tries| *tries <= TRIES)
        })?;
        let mut same = None;
        for number in 0..tries {
            let answer = term.certain(&labels(&axes, number))?;
            if *same.get_or_insert(answer) != answer {
                return None;
            }
        }
        same
    }

    /// The keys of all labels that it asks about.
    pub fn keys(&self) -> BTreeSet<&str> {
        let mut keys = BTreeSet::new();
        if let Some(term) = &self.0 {
            term.keys(&mut keys);
        }
        keys
    }
}

/// The set of labels with this number: one choice on each axis.
fn labels(axes: &[(&str, Vec<Option<&str>>)], mut number: usize) -> Labels {
    let choice = axes.iter().filter_map(|(key, values)| {
        let value = values[number % values.len()];
        number /= values.len();
        Some((*key, value?))
    });
    choice.collect()
}

impl Term {
    /// The answer for a node with these labels; `None` if it hinges on a part of a text.
    fn certain(&self, labels: &Labels) -> Option<bool> {
        match self {
            Self::Not(term) => term.certain(labels).map(|answer| !answer),
            Self::All(terms) => decided(terms, labels, false),
            Self::Any(terms) => decided(terms, labels, true),
            Self::Same(terms) => {
                let [left, right] = &**terms;
                Some(left.certain(labels)? == right.certain(labels)?)
            }
            Self::Choice(terms) => {
                let [condition, then, otherwise] = &**terms;
                match condition.certain(labels) {
                    Some(true) => then.certain(labels),
                    Some(false) => otherwise.certain(labels),
                    None => {
                        then.certain(labels).filter(|it| otherwise.certain(labels) == Some(*it))
                    }
                }
            }
            Self::Matches(text, _) => text.is_literal().then(|| self.holds(labels)),
            Self::Compare(
                left,
                Relation::Contains | Relation::StartsWith | Relation::EndsWith,
                right,
            ) => (left.is_literal() && right.is_literal()).then(|| self.holds(labels)),
            // Whether a node has a label that is named by another's value is not tried.
            Self::Has(key) => key.is_literal().then(|| self.holds(labels)),
            Self::Const(_) | Self::OneOf(..) | Self::Compare(..) => Some(self.holds(labels)),
        }
    }

    /// The terms that it is made of.
    fn parts(&self) -> &[Self] {
        match self {
            Self::Not(term) => std::slice::from_ref(term),
            Self::All(terms) | Self::Any(terms) => terms,
            Self::Same(terms) => &**terms,
            Self::Choice(terms) => &**terms,
            _ => &[],
        }
    }

    /// The texts that labels are compared with.
    fn literals<'a>(&'a self, found: &mut BTreeSet<&'a str>) {
        match self {
            Self::OneOf(_, list) => found.extend(list.iter().map(|text| &**text)),
            Self::Compare(left, _, right) => {
                for text in [left, right] {
                    if let Text::Literal(text) = text {
                        found.insert(text);
                    }
                }
            }
            _ => {}
        }
        for part in self.parts() {
            part.literals(found);
        }
    }

    /// Whether it compares two labels with each other.
    fn compares_labels(&self) -> bool {
        matches!(self, Self::Compare(Text::Label(_), _, Text::Label(_)))
            || self.parts().iter().any(Self::compares_labels)
    }

    fn keys<'a>(&'a self, found: &mut BTreeSet<&'a str>) {
        let (one, other) = match self {
            Self::Has(Text::Literal(key)) => {
                found.insert(key);
                (None, None)
            }
            Self::OneOf(text, _) | Self::Matches(text, _) | Self::Has(text) => (Some(text), None),
            Self::Compare(left, _, right) => (Some(left), Some(right)),
            _ => (None, None),
        };
        for text in [one, other].into_iter().flatten() {
            if let Text::Label(key) = text {
                found.insert(key);
            }
        }
        for part in self.parts() {
            part.keys(found);
        }
    }
}

impl Text {
    fn is_literal(&self) -> bool {
        matches!(self, Self::Literal(_))
    }
}

/// All or any of the terms: `deciding` from one is enough, and one that is uncertain leaves the rest
/// uncertain unless one decides.
fn decided(terms: &[Term], labels: &Labels, deciding: bool) -> Option<bool> {
    let mut certain = true;
    for term in terms {
        match term.certain(labels) {
            Some(answer) if answer == deciding => return Some(deciding),
            Some(_) => {}
            None => certain = false,
        }
    }
    certain.then_some(!deciding)
}
