//! Two recordings compared, in words.

use std::collections::BTreeSet;

use serde_json::Value;

/// What differs, a line each; nothing if the two are the same.
///
/// Lists of texts are taken as bags: what is in them is told, not where. Other lists are compared
/// place by place.
pub(crate) fn differences(recorded: &Value, played: &Value) -> Vec<String> {
    let mut all = Vec::new();
    compare("", recorded, played, &mut all);
    all
}

fn compare(place: &str, recorded: &Value, played: &Value, all: &mut Vec<String>) {
    if recorded == played {
        return;
    }
    let at = |key: &str| if place.is_empty() { key.to_owned() } else { format!("{place}.{key}") };
    match (recorded, played) {
        (Value::Object(one), Value::Object(other)) => {
            let keys: BTreeSet<&String> = one.keys().chain(other.keys()).collect();
            for key in keys {
                match (one.get(key), other.get(key)) {
                    (Some(one), Some(other)) => compare(&at(key), one, other, all),
                    (Some(one), None) => all.push(format!("{}: missing, recorded {one}", at(key))),
                    (None, other) => {
                        let other = other.unwrap_or(&Value::Null);
                        all.push(format!("{}: {other}, which was not recorded", at(key)));
                    }
                }
            }
        }
        (Value::Array(one), Value::Array(other)) if are_texts(one) && are_texts(other) => {
            let mut left = other.clone();
            for text in one {
                match left.iter().position(|found| found == text) {
                    Some(position) => drop(left.remove(position)),
                    None => all.push(format!("{place}: missing, recorded {text}")),
                }
            }
            all.extend(left.iter().map(|text| format!("{place}: {text}, which was not recorded")));
            if one.len() == other.len() && left.is_empty() {
                all.push(format!("{place}: recorded in the order {recorded}, played {played}"));
            }
        }
        (Value::Array(one), Value::Array(other)) => {
            for (index, (one, other)) in one.iter().zip(other).enumerate() {
                compare(&at(&index.to_string()), one, other, all);
            }
            if one.len() != other.len() {
                all.push(format!("{place}: {} entries, recorded {}", other.len(), one.len()));
            }
        }
        _ => all.push(format!("{place}: {played}, recorded {recorded}")),
    }
}

fn are_texts(list: &[Value]) -> bool {
    list.iter().all(Value::is_string)
}
