//! A pause of everything harmful, as it is stored in an annotation of the lease.

use std::fmt;

use jiff::Timestamp;
use serde::Serialize;
use serde_json::Value;

/// Maximum length of the reason, in characters. It is shown in events, whose messages have 1024 bytes.
const LONGEST_REASON: usize = 400;
/// Maximum length of a name, in characters.
const LONGEST_NAME: usize = 100;
/// A longer annotation is not read as JSON: its beginning is the reason.
const LONGEST_JSON: usize = 16 * 1024;

/// Evictions, cordons and starts of drains are held.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Pause {
    /// Why.
    pub reason: String,
    /// Who paused.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
    /// Since when.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<Timestamp>,
    /// When it ends by itself; `None` if it does not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub until: Option<Timestamp>,
}

/// Who ended the last pause, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Resumption {
    /// Why.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Who.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
    /// When.
    pub at: Timestamp,
}

impl Pause {
    /// The annotation of the lease that holds it.
    pub const ANNOTATION: &str = "ostrakon.dev/pause";

    /// Reads the annotation; `None` if it is empty. Text that is not a JSON object is a reason without an
    /// end, as a person types it with kubectl. A part that cannot be read is absent, so an end that cannot
    /// be read is none: whoever pauses wants nothing to be evicted.
    pub fn parse(text: &str) -> Option<Self> {
        if text.trim().is_empty() {
            return None;
        }
        let Some(object) = object(text) else {
            return Some(Self {
                reason: shown(text, LONGEST_REASON),
                by: None,
                since: None,
                until: None,
            });
        };
        let reason = words(&object["reason"], LONGEST_REASON);
        Some(Self {
            reason: reason.unwrap_or_else(|| "no reason given".to_owned()),
            by: words(&object["by"], LONGEST_NAME),
            since: time(&object["since"]),
            until: time(&object["until"]),
        })
    }

    /// The annotation's text.
    pub fn format(&self) -> String {
        serde_json::to_string(self).unwrap_or_else(|_| self.reason.clone())
    }

    /// Whether it is in force at a time.
    pub fn is_on(&self, now: Timestamp) -> bool {
        self.until.is_none_or(|until| now < until)
    }
}

impl fmt::Display for Pause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("paused")?;
        if let Some(by) = &self.by {
            write!(f, " by {by}")?;
        }
        if let Some(since) = self.since {
            write!(f, " since {since}")?;
        }
        if let Some(until) = self.until {
            write!(f, " until {until}")?;
        }
        write!(f, ": {}", self.reason)
    }
}

impl Resumption {
    /// The annotation of the lease that holds the last one.
    pub const ANNOTATION: &str = "ostrakon.dev/resumed";

    /// Reads the annotation; `None` if it cannot be read, since it only informs.
    pub fn parse(text: &str) -> Option<Self> {
        let object = object(text)?;
        Some(Self {
            reason: words(&object["reason"], LONGEST_REASON),
            by: words(&object["by"], LONGEST_NAME),
            at: time(&object["at"])?,
        })
    }

    /// The annotation's text.
    pub fn format(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }
}

impl fmt::Display for Resumption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("resumed")?;
        if let Some(by) = &self.by {
            write!(f, " by {by}")?;
        }
        self.reason.as_ref().map_or(Ok(()), |reason| write!(f, ": {reason}"))
    }
}

fn object(text: &str) -> Option<Value> {
    let text = text.trim();
    let is_object = text.starts_with('{') && text.len() <= LONGEST_JSON;
    is_object.then(|| serde_json::from_str(text).ok()).flatten()
}

fn words(value: &Value, longest: usize) -> Option<String> {
    Some(shown(value.as_str()?, longest)).filter(|text| !text.is_empty())
}

fn time(value: &Value) -> Option<Timestamp> {
    value.as_str()?.parse().ok()
}

/// Text of others as it may be shown: one line of bounded length, without characters that control a
/// terminal or the direction of text.
fn shown(text: &str, longest: usize) -> String {
    let is_hidden = |c: char| {
        matches!(c, '\u{ad}' | '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
    };
    let visible = text.chars().take(4 * longest).filter(|c| !is_hidden(*c));
    let spaced: String = visible.map(|c| if c.is_control() { ' ' } else { c }).collect();
    let line = spaced.split_whitespace().collect::<Vec<_>>().join(" ");
    match line.char_indices().nth(longest) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::build::at;

    #[test]
    fn a_pause_is_written_and_read_back() {
        let pause = Pause {
            reason: "wrong taint \"a\"".to_owned(),
            by: Some("jane".to_owned()),
            since: Some(at(0)),
            until: Some(at(1800)),
        };
        assert_eq!(Pause::parse(&pause.format()), Some(pause.clone()));
        assert_eq!(
            pause.to_string(),
            "paused by jane since 2026-01-01T12:00:00Z until 2026-01-01T12:30:00Z: wrong taint \"a\""
        );
        assert!(pause.is_on(at(1799)) && !pause.is_on(at(1800)));
        let endless = Pause { until: None, ..pause };
        assert!(endless.is_on(Timestamp::MAX));
        assert!(!endless.format().contains("until"));
    }

    #[test]
    fn what_a_person_types_is_a_reason_without_an_end() {
        for text in ["wrong taint", "false", "null", "7", "[]", "{", "{reason: x}", "\"a\""] {
            let pause = Pause::parse(text).unwrap();
            assert_eq!((&*pause.reason, pause.until), (text, None));
        }
        assert_eq!(Pause::parse(""), None);
        assert_eq!(Pause::parse(" \n"), None);
    }

    #[test]
    fn a_part_that_cannot_be_read_is_absent_and_the_pause_stays() {
        for text in [
            "{}",
            r#"{"until":"tomorrow"}"#,
            r#"{"until":7,"by":{},"since":[],"reason":null}"#,
            r#"{"until":"10000-01-01T00:00:00Z"}"#,
            r#"{"until":""}"#,
        ] {
            let pause = Pause::parse(text).unwrap();
            assert_eq!((pause.until, pause.by, pause.since), (None, None, None), "{text}");
            assert_eq!(pause.reason, "no reason given");
        }
    }

    #[test]
    fn hostile_text_is_one_line_of_bounded_length() {
        let hostile = "a\u{1b}[31m\r\nb\u{202e}c\u{200b}\0d\u{e0041}";
        let json = serde_json::json!({"reason": hostile, "by": hostile}).to_string();
        for text in [hostile, &json] {
            let pause = Pause::parse(text).unwrap();
            assert_eq!(pause.reason, "a [31m bc d", "{text:?}");
            assert!(!pause.to_string().chars().any(char::is_control));
        }
        let long = "ä".repeat(200_000);
        let pause = Pause::parse(&long).unwrap();
        assert_eq!(pause.reason.chars().count(), LONGEST_REASON + 1);
        let deep = "{\"a\":".repeat(3000);
        assert!(Pause::parse(&deep).is_some());
        let json = serde_json::json!({"until": "2026-01-01T12:00:00Z", "x": long}).to_string();
        assert_eq!(Pause::parse(&json).unwrap().until, None, "too long to be read");
        let by = serde_json::json!({"by": long}).to_string();
        assert!(Pause::parse(&by[..]).unwrap().to_string().len() < 2_000);
    }

    #[test]
    fn who_resumed_is_written_and_read_back() {
        let resumed =
            Resumption { reason: Some("fixed".to_owned()), by: Some("jane".to_owned()), at: at(5) };
        assert_eq!(Resumption::parse(&resumed.format()), Some(resumed.clone()));
        assert_eq!(resumed.to_string(), "resumed by jane: fixed");
        assert_eq!(Resumption::parse("fixed"), None);
    }
}
