//! Label expressions as draino's users wrote them:
//! `metadata.labels.pool == 'gpu' && 'example.com/ok' in metadata.labels`.
//!
//! The language:
//!
//! - a label: `metadata.labels.foo`, or `metadata.labels['example.com/foo']` if the key is not a plain
//!   word; `.name` and `['name']` are equivalent everywhere, so `metadata['labels']['foo']` is that
//!   label too; a label that a node does not have is the empty string;
//! - a string: `'…'` or `"…"`, with `\\`, `\'`, `\"`, `\n`, `\r`, `\t`, `\xHH` and `\uHHHH`;
//! - `==`, `!=`, `contains`, `startsWith`, `endsWith` between two of these; `matches '…'`, a regular
//!   expression that may match anywhere; `in ['a', 'b']` and `not in`;
//! - `'key' in metadata.labels`: the node has the label, even with an empty value;
//! - `true` and `false`; `!` or `not` before a parenthesis; `&&` or `and`; `||` or `or`, with lower
//!   precedence; `(…) == true` and `(…) != (…)`; `a ? b : c`, with the lowest; `(` and `)`.
//!
//! An empty expression selects every node. Types are checked when the expression is parsed, so that
//! evaluating it cannot fail; draino crashes on an expression that is not a boolean.

mod parse;
mod reach;

use std::fmt;
use std::sync::Arc;

use regex::Regex;

use super::syntax::SyntaxError;
use crate::model::Labels;

/// A label expression. The default is the empty one, for every node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LabelExpr(Option<Term>);

/// Something that is true or false of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Term {
    /// Always the same.
    Const(bool),
    /// The opposite.
    Not(Box<Term>),
    /// All of them, two at least.
    All(Vec<Term>),
    /// At least one of them, two at least.
    Any(Vec<Term>),
    /// Both are true, or both are false.
    Same(Box<[Term; 2]>),
    /// If the first is true the second, else the third.
    Choice(Box<[Term; 3]>),
    /// Two texts stand to one another so.
    Compare(Text, Relation, Text),
    /// The text is one of these.
    OneOf(Text, Vec<Arc<str>>),
    /// The node has a label with this key.
    Has(Text),
    /// The pattern is found in the text.
    Matches(Text, Pattern),
}

/// A text that may depend on the node.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Text {
    /// The value of the label with this key, empty without it.
    Label(Arc<str>),
    /// This one.
    Literal(Arc<str>),
}

/// How two texts stand to one another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Relation {
    Equal,
    Differs,
    Contains,
    StartsWith,
    EndsWith,
}

/// A regular expression; equal if it is written equally.
#[derive(Clone, Debug)]
struct Pattern(Regex);

impl PartialEq for Pattern {
    fn eq(&self, other: &Self) -> bool {
        self.0.as_str() == other.0.as_str()
    }
}

impl Eq for Pattern {}

impl LabelExpr {
    /// Reads an expression.
    pub fn parse(text: &str) -> Result<Self, SyntaxError> {
        if text.trim().is_empty() {
            return Ok(Self(None));
        }
        Ok(Self(Some(parse::term(text)?)))
    }

    /// Reads draino's `--node-label` terms, all of which must hold: `key=value`, or `key=` for a
    /// label of any value. One key with two values is an error, since no node has both.
    pub fn from_terms<T: AsRef<str>>(terms: &[T]) -> Result<Self, SyntaxError> {
        let mut labels: Vec<(&str, &str)> = Vec::new();
        for term in terms {
            let term = term.as_ref();
            let Some((key, value)) = term.split_once('=') else {
                let remedy = format!("write {term}=VALUE, or {term}= for any value");
                return Err(SyntaxError::new(term, term.len(), "the = is missing", remedy));
            };
            if key.is_empty() {
                let remedy = "write KEY=VALUE, or KEY= for any value";
                return Err(SyntaxError::new(term, 0, "the key is missing", remedy));
            }
            match labels.iter().find(|(known, _)| *known == key) {
                Some((_, other)) if *other != value => {
                    let cause = format!("{key} must also be {other:?}, and no node has both");
                    let remedy = "remove one, or use an expression with ||";
                    return Err(SyntaxError::new(term, key.len() + 1, cause, remedy));
                }
                Some(_) => {}
                None => labels.push((key, value)),
            }
        }
        labels.sort_unstable();
        let mut terms: Vec<Term> = labels
            .into_iter()
            .map(|(key, value)| match value {
                "" => Term::Has(Text::Literal(key.into())),
                _ => Term::Compare(
                    Text::Label(key.into()),
                    Relation::Equal,
                    Text::Literal(value.into()),
                ),
            })
            .collect();
        Ok(Self(if terms.len() > 1 { Some(Term::All(terms)) } else { terms.pop() }))
    }

    /// Whether nothing is asked.
    pub fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// Whether it asks of a node all that `other` asks, and perhaps more: then `other` selects
    /// every node that this does. `false` where that cannot be told from how they are written.
    pub fn implies(&self, other: &Self) -> bool {
        let Some(other) = &other.0 else { return true };
        let asked = |wanted: &Term| match &self.0 {
            Some(Term::All(terms)) => terms.contains(wanted),
            Some(term) => term == wanted,
            None => false,
        };
        match other {
            Term::Const(true) => true,
            Term::All(terms) => asked(other) || terms.iter().all(asked),
            _ => asked(other),
        }
    }

    /// Whether it is true of a node with these labels.
    pub fn admits(&self, labels: &Labels) -> bool {
        self.0.as_ref().is_none_or(|term| term.holds(labels))
    }
}

impl Term {
    fn holds(&self, labels: &Labels) -> bool {
        match self {
            Self::Const(truth) => *truth,
            Self::Not(term) => !term.holds(labels),
            Self::All(terms) => terms.iter().all(|term| term.holds(labels)),
            Self::Any(terms) => terms.iter().any(|term| term.holds(labels)),
            Self::Same(terms) => {
                let [left, right] = &**terms;
                left.holds(labels) == right.holds(labels)
            }
            Self::Choice(terms) => {
                let [condition, then, otherwise] = &**terms;
                if condition.holds(labels) { then } else { otherwise }.holds(labels)
            }
            Self::Compare(left, relation, right) => {
                relation.holds(left.of(labels), right.of(labels))
            }
            Self::OneOf(text, list) => list.iter().any(|entry| &**entry == text.of(labels)),
            Self::Has(key) => labels.get(key.of(labels)).is_some(),
            Self::Matches(text, pattern) => pattern.0.is_match(text.of(labels)),
        }
    }

    /// As a part of something else: whatever could be torn apart is in parentheses.
    fn within(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::All(_) | Self::Any(_) | Self::Same(_) | Self::Choice(_) => write!(f, "({self})"),
            _ => write!(f, "{self}"),
        }
    }
}

impl Text {
    fn of<'a>(&'a self, labels: &'a Labels) -> &'a str {
        match self {
            Self::Label(key) => labels.get(key).unwrap_or_default(),
            Self::Literal(text) => text,
        }
    }
}

impl Relation {
    fn holds(self, left: &str, right: &str) -> bool {
        match self {
            Self::Equal => left == right,
            Self::Differs => left != right,
            Self::Contains => left.contains(right),
            Self::StartsWith => left.starts_with(right),
            Self::EndsWith => left.ends_with(right),
        }
    }

    fn as_str(self) -> &'static str {
        match self {
            Self::Equal => "==",
            Self::Differs => "!=",
            Self::Contains => "contains",
            Self::StartsWith => "startsWith",
            Self::EndsWith => "endsWith",
        }
    }
}

/// In draino's words, so that it reads the same again.
impl fmt::Display for LabelExpr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.as_ref().map_or(Ok(()), |term| term.fmt(f))
    }
}

impl fmt::Display for Term {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let joined = |f: &mut fmt::Formatter<'_>, terms: &[Self], by| {
            for (index, term) in terms.iter().enumerate() {
                f.write_str(if index == 0 { "" } else { by })?;
                term.within(f)?;
            }
            Ok(())
        };
        match self {
            Self::Const(truth) => write!(f, "{truth}"),
            Self::Not(term) => write!(f, "!({term})"),
            Self::All(terms) => joined(f, terms, " && "),
            Self::Any(terms) => joined(f, terms, " || "),
            Self::Same(terms) => {
                let [left, right] = &**terms;
                write!(f, "({left}) == ({right})")
            }
            Self::Choice(terms) => {
                let [condition, then, otherwise] = &**terms;
                write!(f, "({condition}) ? ({then}) : ({otherwise})")
            }
            Self::Compare(left, relation, right) => {
                write!(f, "{left} {} {right}", relation.as_str())
            }
            Self::OneOf(text, list) => {
                let list: Vec<_> = list.iter().map(|entry| quoted(entry)).collect();
                write!(f, "{text} in [{}]", list.join(", "))
            }
            Self::Has(key) => write!(f, "{key} in metadata.labels"),
            Self::Matches(text, pattern) => {
                write!(f, "{text} matches {}", quoted(pattern.0.as_str()))
            }
        }
    }
}

impl fmt::Display for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Label(key) => write!(f, "metadata.labels[{}]", quoted(key)),
            Self::Literal(text) => f.write_str(&quoted(text)),
        }
    }
}

/// A text in quotes, with what would end it or break the line written out.
fn quoted(text: &str) -> String {
    let mut quoted = String::from("'");
    for c in text.chars() {
        match c {
            '\\' | '\'' => quoted.extend(['\\', c]),
            '\n' => quoted.push_str("\\n"),
            '\r' => quoted.push_str("\\r"),
            '\t' => quoted.push_str("\\t"),
            _ => quoted.push(c),
        }
    }
    quoted.push('\'');
    quoted
}

#[cfg(test)]
mod tests;
