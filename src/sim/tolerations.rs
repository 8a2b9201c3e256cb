//! Which taints a toleration matches, and for how long: a second implementation of the rules that Kubernetes
//! documents.
//!
//! The embedded cluster, the hollow kubelets, the demo's observations and the oracles of the tests use
//! it. The controller's decisions are compared with it, so it must not share code with the controller.

use serde_json::Value;

/// A toleration, as it is stored. What is not there is empty.
#[derive(Clone, Copy, Debug, Default)]
pub struct Toleration<'a> {
    /// Empty for any key.
    pub key: &'a str,
    /// `Exists`, `Equal`, `Lt` or `Gt`; empty for `Equal`.
    pub operator: &'a str,
    /// What the taint's value is compared with.
    pub value: &'a str,
    /// Empty for any effect.
    pub effect: &'a str,
}

/// A taint, as it is stored.
#[derive(Clone, Copy, Debug, Default)]
pub struct Taint<'a> {
    /// Its key.
    pub key: &'a str,
    /// Its value; empty if it has none.
    pub value: &'a str,
    /// Its effect.
    pub effect: &'a str,
}

impl<'a> Toleration<'a> {
    /// The one in an object.
    pub fn of(stored: &'a Value) -> Self {
        let text = |field| text(stored, field);
        let (key, operator) = (text("key"), text("operator"));
        Self { key, operator, value: text("value"), effect: text("effect") }
    }

    /// Whether it is for the taint.
    pub fn is_for(&self, taint: &Taint<'_>) -> bool {
        let fits = |own: &str, its: &str| own.is_empty() || own == its;
        let numbers = || Some((number(taint.value)?, number(self.value)?));
        let is_of_value = match self.operator {
            "Exists" => true,
            "" | "Equal" => self.value == taint.value,
            "Lt" => numbers().is_some_and(|(its, own)| its < own),
            "Gt" => numbers().is_some_and(|(its, own)| its > own),
            _ => false,
        };
        fits(self.effect, taint.effect) && fits(self.key, taint.key) && is_of_value
    }
}

impl<'a> Taint<'a> {
    /// The one in an object.
    pub fn of(stored: &'a Value) -> Self {
        let text = |field| text(stored, field);
        Self { key: text("key"), value: text("value"), effect: text("effect") }
    }
}

/// What a NoExecute taint means for a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tolerance {
    /// No toleration is for it.
    None,
    /// The first that is for it has no seconds.
    Forever,
    /// The first that is for it has these seconds.
    For {
        /// Which one it is.
        index: usize,
        /// May be less than nothing.
        seconds: i64,
    },
}

/// When a pod has to go for a taint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Due<T> {
    /// Never.
    Never,
    /// At once.
    AtOnce,
    /// At this time.
    At(T),
}

impl Tolerance {
    /// That of the first of these tolerations, each with its seconds, that is for the taint.
    pub fn of<'a>(
        tolerations: impl IntoIterator<Item = (Toleration<'a>, Option<i64>)>,
        taint: &Taint<'_>,
    ) -> Self {
        let mut numbered = tolerations.into_iter().enumerate();
        match numbered.find(|(_, (toleration, _))| toleration.is_for(taint)) {
            None => Self::None,
            Some((_, (_, None))) => Self::Forever,
            Some((index, (_, Some(seconds)))) => Self::For { index, seconds },
        }
    }

    /// When a pod has to go that is on the node since `bound`, for a taint that counts from `since`.
    /// `plus` adds seconds.
    pub fn due<T: PartialOrd>(self, since: T, bound: T, plus: impl Fn(T, i64) -> T) -> Due<T> {
        match self {
            Self::Forever => Due::Never,
            Self::None | Self::For { seconds: ..=0, .. } => Due::AtOnce,
            Self::For { seconds, .. } => {
                Due::At(plus(if bound > since { bound } else { since }, seconds))
            }
        }
    }
}

fn text<'a>(object: &'a Value, field: &str) -> &'a str {
    object.get(field).and_then(Value::as_str).unwrap_or_default()
}

/// A number of 64 bits that is written as it is usually written.
fn number(text: &str) -> Option<i64> {
    let number: i64 = text.parse().ok()?;
    (number.to_string() == text).then_some(number)
}
