//! Pod tolerations.

use std::sync::Arc;

use super::Effect;

/// How a toleration's value is compared with a taint's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Operator {
    /// Any value. With an empty key, any taint.
    Exists,
    /// The same value. What an empty operator means.
    Equal,
    /// The taint's value is a smaller number than the toleration's (KEP-5471).
    Lt,
    /// The taint's value is a greater number than the toleration's (KEP-5471).
    Gt,
    /// An operator that this version does not know; matches nothing.
    Unknown,
}

impl Operator {
    /// The operator that the API spells `text`.
    pub fn parse(text: &str) -> Self {
        match text {
            "" | "Equal" => Self::Equal,
            "Exists" => Self::Exists,
            "Lt" => Self::Lt,
            "Gt" => Self::Gt,
            _ => Self::Unknown,
        }
    }
}

/// One entry of a pod's `spec.tolerations`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Toleration {
    /// Its index there, by which messages name it.
    pub index: u32,
    /// Taint key that it is for; empty means every key.
    pub key: Arc<str>,
    /// How the value is compared.
    pub operator: Operator,
    /// Value that it is for.
    pub value: Arc<str>,
    /// Effect that it is for; `None` means every effect.
    pub effect: Option<Effect>,
    /// `tolerationSeconds`: for how long, in seconds; `None` means forever.
    pub seconds: Option<i64>,
}
