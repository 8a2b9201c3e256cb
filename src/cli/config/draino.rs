//! Draino's command line: flags and conditions, each with where it was written.

use std::collections::BTreeMap;

use super::flags::{FLAGS, Fate, Flag, Takes, Tree, find};

/// A word, and where it was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Word {
    pub(super) text: String,
    /// As `deploy.yaml:31`, or `argument 3`.
    pub(super) origin: String,
}

/// Something that did not become what it was, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Note {
    /// What: a flag, a condition, an annotation.
    pub(super) what: String,
    pub(super) origin: String,
    pub(super) why: String,
}

impl Note {
    pub(super) fn new(what: impl Into<String>, origin: &str, why: impl Into<String>) -> Self {
        Self { what: what.into(), origin: origin.to_owned(), why: why.into() }
    }
}

/// A draino that someone runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Source {
    /// What to call its policy.
    pub(super) name: String,
    /// What it is, for people.
    pub(super) what: String,
    /// Where it is.
    pub(super) origin: String,
    /// Its arguments, without the program.
    pub(super) words: Vec<Word>,
    /// Variables of its environment.
    pub(super) variables: Vec<(String, Word)>,
    /// What is already known not to be converted.
    pub(super) notes: Vec<Note>,
    /// Image, if known: it tells one draino from another.
    pub(super) image: String,
}

/// What was given.
#[derive(Debug, Default)]
pub(super) struct Given {
    flags: BTreeMap<&'static str, Vec<Word>>,
    /// The conditions, in their order.
    pub(super) conditions: Vec<Word>,
    /// Whose draino it is, as far as its flags and its image tell.
    pub(super) tree: Tree,
    /// What is not converted, because it cannot be understood.
    pub(super) notes: Vec<Note>,
}

impl Given {
    /// The value of a flag, the last one if there are several.
    pub(super) fn word(&self, name: &str) -> Option<&Word> {
        self.flags.get(name).and_then(|values| values.last())
    }

    /// The values of a flag.
    pub(super) fn many(&self, name: &str) -> &[Word] {
        self.flags.get(name).map(Vec::as_slice).unwrap_or_default()
    }

    /// Whether a flag without a value is on.
    pub(super) fn is_on(&self, name: &str) -> bool {
        self.word(name).is_some_and(|word| word.text == "true")
    }

    /// Whether it was given at all.
    #[cfg(test)]
    pub(super) fn has(&self, name: &str) -> bool {
        self.flags.contains_key(name)
    }

    /// All flags that were given, in the order of the table.
    pub(super) fn flags(&self) -> impl Iterator<Item = (&'static Flag, &[Word])> {
        FLAGS.iter().filter_map(|flag| Some((flag, self.flags.get(flag.name)?.as_slice())))
    }
}

/// Whether this names the program, and is no argument.
pub(super) fn is_program(word: &str) -> bool {
    let name = word.rsplit('/').next().unwrap_or(word);
    let name = name.split([':', '@']).next().unwrap_or(name);
    name == "draino"
}

/// Reads draino's arguments and variables.
pub(super) fn parse(source: &Source) -> Given {
    let mut given = Given { notes: source.notes.clone(), ..Given::default() };
    if source.image.contains("amis/draino") {
        given.tree = Tree::Getamis;
    } else if source.image.to_ascii_lowercase().contains("datadog") {
        given.tree = Tree::DataDog;
    }
    let mut rest = source.words.iter().peekable();
    // A command that was copied begins with the program, or the image and the program.
    while rest.next_if(|word| is_program(&word.text)).is_some() {}
    let mut only_conditions = false;
    while let Some(word) = rest.next() {
        let text = word.text.as_str();
        if only_conditions || !text.starts_with('-') || text == "-" {
            if !text.trim().is_empty() {
                given.conditions.push(word.clone());
            }
            continue;
        }
        if text == "--" {
            only_conditions = true;
            continue;
        }
        let (written, value) = match text.split_once('=') {
            Some((written, value)) => (written, Some(value.to_owned())),
            None => (text, None),
        };
        let Some((flag, on)) = lookup(written) else {
            let mut why = "no known draino has this flag; check the spelling".to_owned();
            if value.is_none()
                && let Some(next) = rest.peek().filter(|next| !next.text.starts_with('-'))
            {
                why = format!("{why}. {:?} was read as a condition, not as its value", next.text);
            }
            given.notes.push(Note::new(written, &word.origin, why));
            continue;
        };
        let value = match (flag.takes, value) {
            (Takes::Nothing, None) => on.to_string(),
            (Takes::Nothing, Some(value)) => match value.as_str() {
                "true" | "false" if on => value,
                _ => {
                    let why = format!("it takes only true or false; write --{}", flag.name);
                    given.notes.push(Note::new(text, &word.origin, why));
                    continue;
                }
            },
            (_, Some(value)) => value,
            (_, None) => {
                let Some(value) = rest.next_if(|next| !next.text.starts_with('-')) else {
                    let why = format!("it has no value; write {written}=VALUE");
                    given.notes.push(Note::new(written, &word.origin, why));
                    continue;
                };
                value.text.clone()
            }
        };
        given.tree = given.tree.max(flag.tree);
        let value = Word { text: value, origin: word.origin.clone() };
        let values = given.flags.entry(flag.name).or_default();
        if flag.takes == Takes::Text && !values.is_empty() {
            let why = "it is given twice; the last value is used, but draino refuses to start";
            given.notes.push(Note::new(written, &word.origin, why));
        }
        values.push(value);
    }
    variables(source, &mut given);
    expanded(source, &mut given);
    given
}

/// The flag that is written so, and whether it is switched on.
fn lookup(written: &str) -> Option<(&'static Flag, bool)> {
    let name = match written {
        "-d" => "debug",
        "-h" => "help",
        _ => written.strip_prefix("--")?,
    };
    if let Some(flag) = find(name) {
        return Some((flag, true));
    }
    let flag = find(name.strip_prefix("no-")?)?;
    (flag.takes == Takes::Nothing).then_some((flag, false))
}

/// Each flag can come from a variable too, unless it is given.
fn variables(source: &Source, given: &mut Given) {
    for (name, word) in &source.variables {
        let Some(rest) = name.strip_prefix("DRAINO_") else { continue };
        let Some(flag) = find(&rest.to_ascii_lowercase().replace('_', "-")) else {
            let why = "no known draino reads this variable";
            given.notes.push(Note::new(name, &word.origin, why));
            continue;
        };
        if given.flags.contains_key(flag.name) {
            continue;
        }
        let origin = format!("{name}, {}", word.origin);
        let values: Vec<_> = match flag.takes {
            Takes::Many => word.text.lines().collect(),
            _ => vec![word.text.as_str()],
        };
        let values =
            values.into_iter().map(|text| Word { text: text.to_owned(), origin: origin.clone() });
        given.tree = given.tree.max(flag.tree);
        given.flags.insert(flag.name, values.collect());
    }
}

/// Puts the values of variables where `$(NAME)` stands for them, as the kubelet does.
fn expanded(source: &Source, given: &mut Given) {
    let mut unknown = Vec::new();
    let mut expand = |word: &mut Word, matters: bool| {
        for (name, value) in &source.variables {
            word.text = word.text.replace(&format!("$({name})"), &value.text);
        }
        let rest = word.text.split_once("$(").and_then(|(_, rest)| rest.split_once(')'));
        if let Some((name, _)) = rest
            && matters
        {
            let why = format!("the value of {name} is not in the file; insert it here");
            unknown.push(Note::new(word.text.clone(), &word.origin, why));
        }
    };
    for (name, words) in &mut given.flags {
        let matters = find(name).is_some_and(|flag| flag.fate == Fate::Setting);
        for word in words {
            expand(word, matters);
        }
    }
    for word in &mut given.conditions {
        expand(word, true);
    }
    given.notes.append(&mut unknown);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(arguments: &[&str]) -> Given {
        let words = arguments.iter().enumerate().map(|(index, text)| Word {
            text: (*text).to_owned(),
            origin: format!("argument {}", index + 1),
        });
        parse(&Source { words: words.collect(), ..Source::default() })
    }

    fn texts(words: &[Word]) -> Vec<&str> {
        words.iter().map(|word| word.text.as_str()).collect()
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
            "--dry-run=false",
            "--evict-unreplicated-pods=true",
            "--",
            "--Odd",
        ]);
        assert_eq!(given.notes, []);
        assert!(given.is_on("debug") && given.is_on("skip-drain"));
        assert!(!given.is_on("evict-daemonset-pods") && !given.is_on("evict-emptydir-pods"));
        assert!(given.has("dry-run") && !given.is_on("dry-run"));
        assert!(given.is_on("evict-unreplicated-pods"));
        assert_eq!(given.word("drain-buffer").unwrap().text, "5m");
        assert_eq!(given.word("drain-buffer").unwrap().origin, "argument 2");
        assert_eq!(texts(given.many("node-label")), ["a=b", "c="]);
        assert_eq!(texts(&given.conditions), ["KernelDeadlock", "--Odd"]);
        assert!(given.has("debug") && !given.has("listen"));
        assert_eq!(given.tree, Tree::Planetlabs);
    }

    #[test]
    fn every_flag_of_every_tree_is_known() {
        for flag in FLAGS {
            let argument = match flag.takes {
                Takes::Nothing => format!("--{}", flag.name),
                _ => format!("--{}=x", flag.name),
            };
            let given = read(&[&argument]);
            assert!(given.has(flag.name) && given.notes.is_empty(), "{argument}");
            assert_eq!(given.tree, flag.tree, "{argument}");
        }
    }

    #[test]
    fn the_program_is_no_condition() {
        for start in
            [&["draino"][..], &["/draino"], &["./bin/draino"], &["planetlabs/draino:1", "/draino"]]
        {
            let given = read(&[start, &["--debug", "A", "draino-condition"]].concat());
            assert_eq!(texts(&given.conditions), ["A", "draino-condition"], "{start:?}");
        }
        assert_eq!(texts(&read(&["A", "draino"]).conditions), ["A", "draino"], "only at the start");
    }

    #[test]
    fn all_that_cannot_be_understood_is_named_and_the_rest_is_read() {
        let given = read(&[
            "--nonsense=1",
            "-x",
            "--no-listen",
            "--skip-drain=yes",
            "--drain-buffer",
            "--listen=a",
            "--listen=b",
            "--unknown",
            "A",
            "--node-label",
        ]);
        let notes: Vec<_> = given.notes.iter().map(|note| (&*note.what, &*note.origin)).collect();
        let expected = [
            ("--nonsense", "argument 1"),
            ("-x", "argument 2"),
            ("--no-listen", "argument 3"),
            ("--skip-drain=yes", "argument 4"),
            ("--drain-buffer", "argument 5"),
            ("--listen", "argument 7"),
            ("--unknown", "argument 8"),
            ("--node-label", "argument 10"),
        ];
        assert_eq!(notes, expected);
        assert!(
            given.notes[6].why.contains("\"A\" was read as a condition"),
            "{:?}",
            given.notes[6]
        );
        assert_eq!(texts(&given.conditions), ["A"]);
    }

    #[test]
    fn variables_give_flags_that_are_not_given_and_stand_in_for_names() {
        let word = |text: &str| Word { text: text.to_owned(), origin: "f:1".to_owned() };
        let source = Source {
            words: vec![word("--drain-buffer=5m"), word("$(CONDITION)"), word("--listen=$(X)")],
            variables: [
                ("DRAINO_DRAIN_BUFFER", "1m"),
                ("DRAINO_SKIP_DRAIN", "true"),
                ("DRAINO_NODE_LABEL", "a=b\nc=d"),
                ("DRAINO_NONSENSE", "1"),
                ("CONDITION", "KernelDeadlock"),
                ("DRAINO_NODE_LABEL_EXPR", "$(MISSING)"),
            ]
            .map(|(name, text)| (name.to_owned(), word(text)))
            .to_vec(),
            ..Source::default()
        };
        let given = parse(&source);
        assert_eq!(given.word("drain-buffer").unwrap().text, "5m", "a flag comes first");
        assert!(given.is_on("skip-drain"));
        assert_eq!(given.word("skip-drain").unwrap().origin, "DRAINO_SKIP_DRAIN, f:1");
        assert_eq!(texts(given.many("node-label")), ["a=b", "c=d"]);
        assert_eq!(texts(&given.conditions), ["KernelDeadlock"]);
        let notes: Vec<_> = given.notes.iter().map(|note| &*note.what).collect();
        assert_eq!(notes, ["DRAINO_NONSENSE", "$(MISSING)"]);
    }

    #[test]
    fn an_image_tells_whose_draino_it_is() {
        let tree =
            |image: &str| parse(&Source { image: image.to_owned(), ..Source::default() }).tree;
        assert_eq!(tree("quay.io/amis/draino:v0.2.0"), Tree::Getamis);
        assert_eq!(tree("registry/DataDog/draino"), Tree::DataDog);
        assert_eq!(tree("planetlabs/draino:450a853"), Tree::Planetlabs);
    }
}
