//! Draino's command line, as its last version reads it.

use std::collections::BTreeMap;

/// What can be given: a name, its default, and what follows it.
const FLAGS: [(&str, &str, Takes); 23] = [
    ("debug", "false", Takes::Nothing),
    ("listen", ":10002", Takes::Text),
    ("kubeconfig", "", Takes::Text),
    ("master", "", Takes::Text),
    ("dry-run", "false", Takes::Nothing),
    ("max-grace-period", "8m0s", Takes::Text),
    ("eviction-headroom", "30s", Takes::Text),
    ("drain-buffer", "10m0s", Takes::Text),
    ("node-label", "", Takes::Many),
    ("node-label-expr", "", Takes::Text),
    ("namespace", "kube-system", Takes::Text),
    ("leader-election-lease-duration", "15s", Takes::Text),
    ("leader-election-renew-deadline", "10s", Takes::Text),
    ("leader-election-retry-period", "2s", Takes::Text),
    ("leader-election-token-name", "draino", Takes::Text),
    ("skip-drain", "false", Takes::Nothing),
    ("evict-daemonset-pods", "false", Takes::Nothing),
    ("evict-statefulset-pods", "false", Takes::Nothing),
    ("evict-emptydir-pods", "false", Takes::Nothing),
    ("evict-unreplicated-pods", "false", Takes::Nothing),
    ("protected-pod-annotation", "", Takes::Many),
    ("help", "false", Takes::Nothing),
    ("version", "false", Takes::Nothing),
];

/// What follows a flag.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Takes {
    /// Nothing; `--no-…` takes it back.
    Nothing,
    /// One value, given once.
    Text,
    /// One value, given any number of times.
    Many,
}

/// What was given.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Given {
    flags: BTreeMap<&'static str, Vec<String>>,
    /// The conditions, in their order.
    pub(super) conditions: Vec<String>,
}

impl Given {
    /// The value of a flag that takes one, or draino's default.
    pub(super) fn text(&self, name: &str) -> &str {
        let default = FLAGS.iter().find(|flag| flag.0 == name).map_or("", |flag| flag.1);
        self.flags.get(name).and_then(|values| values.last()).map_or(default, String::as_str)
    }

    /// The values of a flag that takes many.
    pub(super) fn many(&self, name: &str) -> &[String] {
        self.flags.get(name).map(Vec::as_slice).unwrap_or_default()
    }

    /// Whether a flag without a value is on.
    pub(super) fn is_on(&self, name: &str) -> bool {
        self.text(name) == "true"
    }

    /// Whether it was given at all.
    pub(super) fn has(&self, name: &str) -> bool {
        self.flags.contains_key(name)
    }
}

/// Reads draino's arguments. The error says all that is wrong with them.
pub(super) fn parse(arguments: &[String]) -> Result<Given, String> {
    let mut given = Given::default();
    let mut wrong = Vec::new();
    let mut rest = arguments.iter().peekable();
    let mut only_conditions = false;
    while let Some(argument) = rest.next() {
        if only_conditions || !argument.starts_with('-') || argument == "-" {
            given.conditions.push(argument.clone());
            continue;
        }
        if argument == "--" {
            only_conditions = true;
            continue;
        }
        let (written, value) = match argument.split_once('=') {
            Some((written, value)) => (written, Some(value.to_owned())),
            None => (argument.as_str(), None),
        };
        let Some((name, takes, on)) = flag(written) else {
            wrong.push(format!("draino has no flag {written}; see draino --help"));
            continue;
        };
        let value = match (takes, value) {
            (Takes::Nothing, None) => on.to_string(),
            (Takes::Nothing, Some(_)) => {
                wrong.push(format!("{written} takes no value; write {written} or --no-{name}"));
                continue;
            }
            (_, Some(value)) => value,
            (_, None) => {
                let Some(value) = rest.next_if(|next| !next.starts_with('-')) else {
                    wrong.push(format!("{written} has no value; write {written}=VALUE"));
                    continue;
                };
                value.clone()
            }
        };
        let values = given.flags.entry(name).or_default();
        if takes == Takes::Text && !values.is_empty() {
            wrong.push(format!("{written} is given twice; give it once"));
        }
        values.push(value);
    }
    if wrong.is_empty() { Ok(given) } else { Err(wrong.join("; also ")) }
}

/// The flag that is written so, what follows it, and whether it is switched on.
fn flag(written: &str) -> Option<(&'static str, Takes, bool)> {
    let name = match written {
        "-d" => "debug",
        "-h" => "help",
        _ => written.strip_prefix("--")?,
    };
    let find = |name: &str| FLAGS.iter().find(|flag| flag.0 == name);
    if let Some(&(name, _, takes)) = find(name) {
        return Some((name, takes, true));
    }
    let &(name, _, takes) = find(name.strip_prefix("no-")?)?;
    (takes == Takes::Nothing).then_some((name, takes, false))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(arguments: &[&str]) -> Result<Given, String> {
        let arguments: Vec<_> = arguments.iter().map(|&argument| argument.to_owned()).collect();
        parse(&arguments)
    }

    #[test]
    fn every_form_of_a_flag_is_understood() {
        let given = read(&[
            "-d",
            "--drain-buffer=5m",
            "KernelDeadlock",
            "--node-label",
            "a=b",
            "--node-label=c=",
            "--skip-drain",
            "--no-evict-daemonset-pods",
            "--evict-emptydir-pods",
            "--no-evict-emptydir-pods",
            "--",
            "--Odd",
        ]);
        let given = given.unwrap();
        assert!(given.is_on("debug") && given.is_on("skip-drain"));
        assert!(!given.is_on("evict-daemonset-pods") && !given.is_on("evict-emptydir-pods"));
        assert_eq!(given.text("drain-buffer"), "5m");
        assert_eq!(given.many("node-label"), ["a=b", "c="]);
        assert_eq!(given.conditions, ["KernelDeadlock", "--Odd"]);
        assert!(given.has("debug") && !given.has("listen"));
    }

    #[test]
    fn what_is_not_given_has_the_default_of_draino() {
        let given = read(&["A"]).unwrap();
        assert_eq!(given.text("max-grace-period"), "8m0s");
        assert_eq!(given.text("eviction-headroom"), "30s");
        assert_eq!(given.text("drain-buffer"), "10m0s");
        assert_eq!(given.text("node-label-expr"), "");
        assert!(!given.is_on("dry-run"));
    }

    #[test]
    fn every_flag_of_draino_is_known() {
        for (name, _, takes) in FLAGS {
            let argument = match takes {
                Takes::Nothing => format!("--{name}"),
                _ => format!("--{name}=x"),
            };
            assert!(read(&[&argument]).unwrap().has(name), "{name}");
        }
    }

    #[test]
    fn all_that_is_wrong_is_named() {
        let error = read(&[
            "--nonsense=1",
            "-x",
            "--no-listen",
            "--skip-drain=true",
            "--drain-buffer",
            "--node-label",
        ]);
        let expected = "draino has no flag --nonsense; see draino --help; also draino has no flag \
                        -x; see draino --help; also draino has no flag --no-listen; see draino \
                        --help; also --skip-drain takes no value; write --skip-drain or \
                        --no-skip-drain; also --drain-buffer has no value; write \
                        --drain-buffer=VALUE; also --node-label has no value; write \
                        --node-label=VALUE";
        assert_eq!(error.unwrap_err(), expected);
        let error = read(&["--listen=a", "--listen=b"]).unwrap_err();
        assert_eq!(error, "--listen is given twice; give it once");
    }
}
