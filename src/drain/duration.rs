//! Durations as Go writes them, and so draino: `1h30m0s`, `10m`, `1.5h`.

use std::fmt::Write as _;
use std::time::Duration;

use jiff::SignedDuration;

/// How a duration is written, for messages.
pub const DURATION_REMEDY: &str = "write a duration as 10m, 1h30m or 90s";

/// Reads a duration: numbers with a unit (`h`, `m`, `s`, `ms`, `us`, `ns`), the larger units
/// first, or `0`. `None` for anything else, negative ones included.
pub fn parse_duration(text: &str) -> Option<Duration> {
    if text == "0" {
        return Some(Duration::ZERO);
    }
    // The parser behind this knows more: spaces, words, ISO 8601.
    let plain = |c: char| c.is_ascii_digit() || ".hmsunµ".contains(c);
    if !text.starts_with(|c: char| c.is_ascii_digit()) || !text.chars().all(plain) {
        return None;
    }
    text.parse::<SignedDuration>().ok()?.try_into().ok()
}

/// Writes a duration exactly as Go does: `0s`, `10m0s`, `1h30m0s`, `1.5s`, `500ms`.
pub fn format_duration(duration: Duration) -> String {
    let (secs, nanos) = (duration.as_secs(), duration.subsec_nanos());
    if secs == 0 && nanos > 0 {
        let (unit, places) = match nanos {
            0..1_000 => ("ns", 0),
            1_000..1_000_000 => ("µs", 3),
            _ => ("ms", 6),
        };
        let one = 10_u32.pow(places);
        return format!("{}{unit}", decimal(u64::from(nanos / one), nanos % one, places));
    }
    let mut text = String::new();
    let (hours, minutes) = (secs / 3600, secs / 60 % 60);
    if hours > 0 {
        let _ = write!(text, "{hours}h");
    }
    if secs >= 60 {
        let _ = write!(text, "{minutes}m");
    }
    let _ = write!(text, "{}s", decimal(secs % 60, nanos, 9));
    text
}

/// A number with a `fraction` of this many decimal places, without trailing zeros.
fn decimal(whole: u64, fraction: u32, places: u32) -> String {
    if fraction == 0 {
        return whole.to_string();
    }
    let text = format!("{whole}.{fraction:0width$}", width = places as usize);
    text.trim_end_matches('0').to_owned()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn durations_are_read_as_go_writes_them() {
        for (text, millis) in [
            ("0", 0),
            ("0s", 0),
            ("10m", 600_000),
            ("10m0s", 600_000),
            ("1h30m0s", 5_400_000),
            ("1.5h", 5_400_000),
            ("500ms", 500),
            ("90s", 90_000),
        ] {
            assert_eq!(parse_duration(text), Some(Duration::from_millis(millis)), "{text}");
        }
    }

    #[test]
    fn what_is_no_duration_is_none() {
        for text in [
            "",
            " ",
            "10",
            "m",
            "-5m",
            "+5m",
            "10 m",
            "10x",
            "1d",
            "10min",
            "PT10M",
            "1h 30m",
            "1.2.3s",
            "99999999999999999999h",
            "ten",
            "10m garbage",
            ".",
        ] {
            assert_eq!(parse_duration(text), None, "{text:?}");
        }
    }

    #[test]
    fn durations_are_written_as_go_does() {
        for (nanos, text) in [
            (0, "0s"),
            (1, "1ns"),
            (1_500, "1.5µs"),
            (500_000_000, "500ms"),
            (1_500_000_000, "1.5s"),
            (30_000_000_000, "30s"),
            (60_000_000_000, "1m0s"),
            (3_600_000_000_000, "1h0m0s"),
            (5_400_000_000_000, "1h30m0s"),
        ] {
            assert_eq!(format_duration(Duration::from_nanos(nanos)), text);
        }
    }

    proptest! {
        #[test]
        fn what_is_written_reads_the_same(nanos in 0..u64::MAX / 4) {
            let duration = Duration::from_nanos(nanos);
            prop_assert_eq!(parse_duration(&format_duration(duration)), Some(duration));
        }

        #[test]
        fn no_text_panics(text in ".{0,20}") {
            let _ = parse_duration(&text);
        }
    }
}
