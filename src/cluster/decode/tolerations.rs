//! A pod's tolerations, as far as they can match a NoExecute taint.
//!
//! Anyone who can create pods can write as many tolerations as an object holds. Those that can match are
//! kept, up to a limit that no real pod reaches. The rest, and unreadable ones, tolerate everything
//! forever: a pod must not be evicted early for something that was not read, and its owner could have
//! written such a toleration as well.

use std::sync::Arc;

use super::{FlawCause, Flaws};
use crate::cluster::intern::Texts;
use crate::cluster::wire::fields::{Value, fields};
use crate::model::{Effect, Operator, Toleration};

/// So many that can match are kept.
const MOST: usize = 64;
/// So many bytes of keys and values are kept.
const LONGEST: usize = 4 << 10;

/// The tolerations in these messages, in their order; more of them follow unread if the list `is_cut`.
pub(super) fn read<'a>(
    texts: &mut Texts,
    messages: impl Iterator<Item = &'a [u8]>,
    is_cut: bool,
    flaws: &mut Flaws,
) -> Arc<[Toleration]> {
    let mut kept: Vec<Read<'_>> = Vec::new();
    let (mut room, mut next) = (LONGEST, 0);
    let mut unread = None;
    for (index, message) in (0..).zip(messages) {
        next = index + 1;
        let read = match Read::of(index, message) {
            Ok(Some(read)) => read,
            // It matches nothing that matters here.
            Ok(None) => continue,
            Err(cause) => {
                flaws.add("spec.tolerations", cause);
                unread = Some(index);
                break;
            }
        };
        if kept.iter().any(|before| before.hides(&read)) {
            continue;
        }
        let length = read.key.len() + read.value.len();
        if kept.len() == MOST || length > room {
            flaws.add("spec.tolerations", FlawCause::TooLong);
            unread = Some(index);
            break;
        }
        room -= length;
        kept.push(read);
    }
    let unread = unread.or(is_cut.then_some(next)).map(everything);
    kept.iter().map(|read| read.toleration(texts)).chain(unread).collect()
}

/// What stands for a toleration that is not read, and for all behind it.
fn everything(index: u32) -> Toleration {
    let empty = || Arc::from("");
    Toleration {
        index,
        key: empty(),
        operator: Operator::Exists,
        value: empty(),
        effect: None,
        seconds: None,
    }
}

/// A toleration that can match a NoExecute taint.
#[derive(Clone, Copy)]
struct Read<'a> {
    index: u32,
    key: &'a str,
    operator: Operator,
    value: &'a str,
    has_effect: bool,
    seconds: Option<i64>,
}

impl<'a> Read<'a> {
    fn of(index: u32, message: &'a [u8]) -> Result<Option<Self>, FlawCause> {
        let (mut key, mut operator, mut value, mut effect) = ("", "", "", "");
        let mut seconds = None;
        for field in fields(message) {
            let (number, content) = field.map_err(|_| FlawCause::Malformed)?;
            let place = match number {
                1 => &mut key,
                2 => &mut operator,
                3 => &mut value,
                4 => &mut effect,
                5 => {
                    seconds = Some(content.number().ok_or(FlawCause::Malformed)?);
                    continue;
                }
                _ => continue,
            };
            let Value::Bytes(bytes) = content else { return Err(FlawCause::Malformed) };
            *place = std::str::from_utf8(bytes).map_err(|_| FlawCause::NoText)?;
        }
        let operator = Operator::parse(operator);
        let can_match = operator != Operator::Unknown && matches!(effect, "" | "NoExecute");
        let has_effect = !effect.is_empty();
        Ok(can_match.then_some(Self { index, key, operator, value, has_effect, seconds }))
    }

    /// Whether a later one never counts because of this one.
    fn hides(&self, later: &Self) -> bool {
        let is_any = self.key.is_empty() && self.operator == Operator::Exists;
        let same = |read: &Self| (read.key, read.operator, read.value);
        let same_key = self.operator == Operator::Exists && self.key == later.key;
        is_any || same_key || same(self) == same(later)
    }

    fn toleration(&self, texts: &mut Texts) -> Toleration {
        Toleration {
            index: self.index,
            key: texts.get(self.key),
            operator: self.operator,
            value: texts.get(self.value),
            effect: self.has_effect.then_some(Effect::NoExecute),
            seconds: self.seconds,
        }
    }
}
