//! A parsed scrape of `/metrics`.

use std::collections::BTreeMap;

/// The samples of one scrape.
#[derive(Clone, Debug, Default)]
pub struct Metrics {
    samples: Vec<Sample>,
}

#[derive(Clone, Debug)]
struct Sample {
    name: String,
    labels: BTreeMap<String, String>,
    value: f64,
}

impl Metrics {
    /// Reads the Prometheus text format; lines that are not samples are left out.
    pub fn parse(text: &str) -> Self {
        let lines = text.lines().filter(|line| !line.starts_with('#'));
        Self { samples: lines.filter_map(sample).collect() }
    }

    /// The sum over all samples of `name` that carry all of `labels`; `None` if there is none.
    pub fn sum(&self, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
        let wanted = |sample: &&Sample| {
            sample.name == name
                && labels
                    .iter()
                    .all(|(key, value)| sample.labels.get(*key).is_some_and(|found| found == value))
        };
        self.samples
            .iter()
            .filter(wanted)
            .map(|sample| sample.value)
            .reduce(|sum, value| sum + value)
    }

    /// As [`Metrics::sum`] over all labels.
    pub fn get(&self, name: &str) -> Option<f64> {
        self.sum(name, &[])
    }

    /// The names that were there.
    pub fn names(&self) -> Vec<&str> {
        let mut names: Vec<&str> = self.samples.iter().map(|sample| sample.name.as_str()).collect();
        names.sort_unstable();
        names.dedup();
        names
    }
}

fn sample(line: &str) -> Option<Sample> {
    let (series, rest) = match line.split_once('{') {
        Some((name, rest)) => {
            let end = end_of_labels(rest)?;
            let labels = labels(&rest[..end]);
            return Some(Sample {
                name: name.to_owned(),
                labels,
                value: first_number(&rest[end + 1..])?,
            });
        }
        None => line.split_once(' ')?,
    };
    Some(Sample { name: series.to_owned(), labels: BTreeMap::new(), value: first_number(rest)? })
}

/// A value may be followed by a timestamp.
fn first_number(text: &str) -> Option<f64> {
    text.split_whitespace().next()?.parse().ok()
}

/// The position of the closing brace, which does not count inside quotes.
fn end_of_labels(text: &str) -> Option<usize> {
    let (mut quoted, mut escaped) = (false, false);
    for (position, letter) in text.char_indices() {
        match letter {
            _ if escaped => escaped = false,
            '\\' if quoted => escaped = true,
            '"' => quoted = !quoted,
            '}' if !quoted => return Some(position),
            _ => {}
        }
    }
    None
}

fn labels(mut text: &str) -> BTreeMap<String, String> {
    let mut labels = BTreeMap::new();
    while let Some((key, rest)) = text.split_once("=\"") {
        let mut value = String::new();
        let mut letters = rest.char_indices();
        let mut end = rest.len();
        while let Some((position, letter)) = letters.next() {
            match letter {
                '"' => {
                    end = position + 1;
                    break;
                }
                '\\' => match letters.next() {
                    Some((_, 'n')) => value.push('\n'),
                    Some((_, other)) => value.push(other),
                    None => break,
                },
                other => value.push(other),
            }
        }
        labels.insert(key.trim_matches([',', ' ']).to_owned(), value);
        text = &rest[end..];
    }
    labels
}
