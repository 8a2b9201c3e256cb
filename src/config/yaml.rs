//! YAML as a tree in which every value has its line and column.
//!
//! Syntax errors are collected with their place and get our own messages: a parser's messages name
//! its internals, not the author's mistake. Hostile input costs bounded time and memory: size, depth
//! and the expansion of aliases are limited.

use std::collections::HashMap;
use std::fmt;

use granit_parser::{ErrorKind, Event, Marker, Parser, ScalarStyle, ScanError};

/// Maximum nesting depth of collections; a configuration has six levels.
const DEPTH: usize = 64;

/// Maximum expansion of all aliases of a file: bytes of text, plus [`NODE`] for each node.
const ALIASES: usize = 1 << 20;

/// What a node counts in addition to its text.
const NODE: usize = 16;

/// A place in a text: line and column, from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// Line.
    pub line: usize,
    /// Column, in characters.
    pub column: usize,
}

impl Place {
    fn of(marker: &Marker) -> Self {
        Self { line: marker.line(), column: marker.col() + 1 }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.line, self.column)
    }
}

/// A value and where it begins.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    /// Where it begins.
    pub place: Place,
    /// What it is.
    pub value: Value,
}

/// A value.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// Nothing: empty, `~` or `null`.
    Null,
    /// A text as it is written.
    Text {
        /// The text.
        text: String,
        /// Whether it stands in quotes, or as a block.
        quoted: bool,
    },
    /// A list.
    List(Vec<Node>),
    /// A mapping, in its order, each key once.
    Map(Vec<Entry>),
}

/// A key with its value.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    /// The key.
    pub key: String,
    /// Where the key stands.
    pub place: Place,
    /// The value.
    pub value: Node,
}

impl Node {
    /// The value of a key, if it is a mapping that has one that is not null.
    pub fn get(&self, key: &str) -> Option<&Self> {
        let entry = self.entries().iter().find(|entry| entry.key == key)?;
        (entry.value.value != Value::Null).then_some(&entry.value)
    }

    /// The value at the end of a row of keys.
    pub fn at(&self, keys: &[&str]) -> Option<&Self> {
        keys.iter().try_fold(self, |node, key| node.get(key))
    }

    /// The entries of a mapping; none of anything else.
    pub fn entries(&self) -> &[Entry] {
        match &self.value {
            Value::Map(entries) => entries,
            _ => &[],
        }
    }

    /// The items of a list; none of anything else.
    pub fn items(&self) -> &[Self] {
        match &self.value {
            Value::List(items) => items,
            _ => &[],
        }
    }

    /// The text, if it is one.
    pub fn text(&self) -> Option<&str> {
        match &self.value {
            Value::Text { text, .. } => Some(text),
            _ => None,
        }
    }

    /// Whether it is true or false; `None` for anything else, and for a text in quotes.
    pub fn truth(&self) -> Option<bool> {
        match &self.value {
            Value::Text { text, quoted: false } => match text.as_str() {
                "true" | "True" | "TRUE" => Some(true),
                "false" | "False" | "FALSE" => Some(false),
                _ => None,
            },
            _ => None,
        }
    }

    /// What kind of value it is, for a message.
    pub fn kind(&self) -> String {
        match &self.value {
            Value::Null => "it is empty".to_owned(),
            Value::Text { text, quoted: true } => format!("{:?} is a quoted string", cut(text)),
            Value::Text { text, .. } => format!("{:?} is a single value", cut(text)),
            Value::List(_) => "it is a list".to_owned(),
            Value::Map(_) => "it is a mapping".to_owned(),
        }
    }
}

/// Shortens a text for a message.
pub fn cut(text: &str) -> String {
    const MOST: usize = 60;
    match text.char_indices().nth(MOST) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// A syntax error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Where.
    pub place: Place,
    /// What is wrong.
    pub cause: String,
    /// What to do about it.
    pub remedy: String,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}; {}", self.place.line, self.cause, self.remedy)
    }
}

/// The contents of a YAML file.
#[derive(Debug, Default)]
pub struct Stream {
    /// The documents, without empty ones. Parts with syntax errors are left out.
    pub documents: Vec<Node>,
    /// The syntax errors.
    pub faults: Vec<Fault>,
}

/// Decodes bytes as UTF-8 without a byte order mark. Fails if they are not UTF-8, or more than `most`.
pub fn text(bytes: &[u8], most: usize) -> Result<&str, Fault> {
    let fault = |line, cause: String, remedy: &str| {
        let place = Place { line, column: 1 };
        Err(Fault { place, cause, remedy: remedy.to_owned() })
    };
    if bytes.len() > most {
        let cause = format!("the file has {} bytes, more than {most}", bytes.len());
        return fault(1, cause, "check that it is the right file, or split it");
    }
    if bytes.starts_with(&[0xff, 0xfe]) || bytes.starts_with(&[0xfe, 0xff]) {
        return fault(1, "the file is encoded in UTF-16".to_owned(), "save it as UTF-8");
    }
    match std::str::from_utf8(bytes) {
        Ok(text) => Ok(text.strip_prefix('\u{feff}').unwrap_or(text)),
        Err(error) => {
            let line = bytes[..error.valid_up_to()].split(|byte| *byte == b'\n').count();
            fault(line, "the file is not UTF-8 text".to_owned(), "save it as UTF-8")
        }
    }
}

/// Reads all documents of a text.
pub fn read(text: &str) -> Stream {
    let options = granit_parser::options! { emit_comments: false };
    let mut builder = Builder::default();
    for event in Parser::new_from_str_with_options(text, options) {
        let taken = match event {
            Ok((event, span)) => builder.take(event, Place::of(&span.start)),
            Err(error) => Err(explain(&error, text)),
        };
        if let Err(fault) = taken {
            builder.stream.faults.push(fault);
            break;
        }
    }
    let mut stream = builder.stream;
    if text.contains("{{") {
        // Braces in braces are a mapping as a key, or worse, wherever they stand.
        let lines: Vec<&str> = text.lines().collect();
        let is_template = |fault: &Fault| {
            lines.get(fault.place.line.saturating_sub(1)).is_some_and(|line| line.contains("{{"))
        };
        if let Some(fault) = stream.faults.iter().find(|fault| is_template(fault)) {
            let cause = "this is a Helm template, not YAML".to_owned();
            let remedy = "render it first: helm template CHART -f VALUES".to_owned();
            stream.faults = vec![Fault { place: fault.place, cause, remedy }];
        }
    }
    stream
}

/// What is known of an anchor.
struct Anchored {
    node: Node,
    /// What it counts, with all within it.
    weight: usize,
    depth: usize,
}

/// A collection that is not closed yet.
struct Open {
    place: Place,
    anchor: usize,
    parts: Parts,
    weight: usize,
    depth: usize,
}

enum Parts {
    List(Vec<Node>),
    Map {
        entries: Vec<Entry>,
        /// The line of each key.
        keys: HashMap<String, usize>,
        /// The key whose value is next; `None` in it: a key that cannot be used.
        key: Option<(Option<String>, Place)>,
        /// Mappings that are merged in (`<<`).
        merged: Vec<Entry>,
    },
}

#[derive(Default)]
struct Builder {
    stream: Stream,
    open: Vec<Open>,
    anchors: HashMap<usize, Anchored>,
    aliased: usize,
}

impl Builder {
    fn take(&mut self, event: Event<'_>, place: Place) -> Result<(), Fault> {
        match event {
            Event::DocumentStart(..) => self.anchors.clear(),
            Event::Scalar(text, style, anchor, _) => {
                let quoted = style != ScalarStyle::Plain;
                let weight = NODE + text.len();
                let value = match &*text {
                    "" | "~" | "null" | "Null" | "NULL" if !quoted => Value::Null,
                    _ => Value::Text { text: text.into_owned(), quoted },
                };
                self.add(Node { place, value }, anchor, weight, 0);
            }
            Event::SequenceStart(_, anchor, _) => self.begin(place, anchor, Parts::List(vec![]))?,
            Event::MappingStart(_, anchor, _) => {
                let (entries, merged, keys) = (Vec::new(), Vec::new(), HashMap::new());
                self.begin(place, anchor, Parts::Map { entries, keys, key: None, merged })?;
            }
            Event::SequenceEnd | Event::MappingEnd => self.end(),
            Event::Alias(anchor) => self.alias(anchor, place)?,
            _ => {}
        }
        Ok(())
    }

    fn begin(&mut self, place: Place, anchor: usize, parts: Parts) -> Result<(), Fault> {
        if self.open.len() >= DEPTH {
            return Err(too_deep(place));
        }
        self.open.push(Open { place, anchor, parts, weight: NODE, depth: 0 });
        Ok(())
    }

    fn end(&mut self) {
        let Some(Open { place, anchor, parts, weight, depth }) = self.open.pop() else { return };
        let value =
            match parts {
                Parts::List(items) => Value::List(items),
                Parts::Map { mut entries, mut keys, merged, .. } => {
                    // What a mapping says itself comes before what is merged in.
                    entries.extend(merged.into_iter().filter(|entry| {
                        keys.insert(entry.key.clone(), entry.place.line).is_none()
                    }));
                    Value::Map(entries)
                }
            };
        self.add(Node { place, value }, anchor, weight, depth + 1);
    }

    fn alias(&mut self, anchor: usize, place: Place) -> Result<(), Fault> {
        let Some(anchored) = self.anchors.get(&anchor) else {
            // Only what is not closed yet is missing here.
            let cause = "an alias refers to a value that contains it".to_owned();
            return Err(Fault { place, cause, remedy: "write the value out".to_owned() });
        };
        self.aliased = self.aliased.saturating_add(anchored.weight);
        if self.aliased > ALIASES {
            let cause = "the aliases expand to more than 1 MiB".to_owned();
            return Err(Fault { place, cause, remedy: "write the values out".to_owned() });
        }
        if self.open.len() + anchored.depth > DEPTH {
            return Err(too_deep(place));
        }
        let (weight, depth) = (anchored.weight, anchored.depth);
        // Its parts keep their own places, where a mistake in them is put right.
        let node = Node { place, value: anchored.node.value.clone() };
        self.add(node, 0, weight, depth);
        Ok(())
    }

    /// Puts a whole value where it belongs.
    fn add(&mut self, node: Node, anchor: usize, weight: usize, depth: usize) {
        if anchor != 0 {
            self.anchors.insert(anchor, Anchored { node: node.clone(), weight, depth });
        }
        let faults = &mut self.stream.faults;
        let mut fault = |place: Place, cause: String, remedy: &str| {
            faults.push(Fault { place, cause, remedy: remedy.to_owned() });
        };
        let Some(open) = self.open.last_mut() else {
            if node.value != Value::Null {
                self.stream.documents.push(node);
            }
            return;
        };
        open.weight = open.weight.saturating_add(weight);
        open.depth = open.depth.max(depth);
        let (entries, keys, key, merged) = match &mut open.parts {
            Parts::List(items) => return items.push(node),
            Parts::Map { entries, keys, key, merged } => (entries, keys, key, merged),
        };
        let Some((name, place)) = key.take() else {
            let place = node.place;
            let name = match node.value {
                Value::Text { text, .. } => Some(text),
                Value::Null => {
                    fault(place, "a key is empty".to_owned(), "write KEY: VALUE");
                    None
                }
                Value::List(_) | Value::Map(_) => {
                    let cause = "a list or a mapping cannot be a key".to_owned();
                    fault(place, cause, "write KEY: VALUE, and quote a key that contains { or [");
                    None
                }
            };
            *key = Some((name, place));
            return;
        };
        let Some(name) = name else { return };
        if name == "<<" {
            match node.value {
                Value::Map(more) => merged.extend(more),
                Value::List(items) if items.iter().all(|it| matches!(it.value, Value::Map(_))) => {
                    merged.extend(items.into_iter().flat_map(|item| match item.value {
                        Value::Map(more) => more,
                        _ => Vec::new(),
                    }));
                }
                _ => {
                    let cause = "<< can only merge a mapping or a list of mappings".to_owned();
                    fault(place, cause, "write <<: *NAME, where &NAME marks a mapping");
                }
            }
        } else if let Some(line) = keys.get(&name) {
            let cause = format!("duplicate key {:?}, first in line {line}", cut(&name));
            fault(place, cause, "remove one of them");
        } else {
            keys.insert(name.clone(), place.line);
            entries.push(Entry { key: name, place, value: node });
        }
    }
}

fn too_deep(place: Place) -> Fault {
    let cause = format!("lists and mappings are nested more than {DEPTH} levels deep");
    Fault { place, cause, remedy: "reduce the nesting".to_owned() }
}

/// Translates a parser error into a cause and a remedy.
fn explain(error: &ScanError, text: &str) -> Fault {
    use ErrorKind as Kind;

    let mut place = Place::of(error.marker());
    // The parser reports a tab at the end of the previous line.
    let near = text.lines().enumerate().skip(place.line.saturating_sub(1)).take(3);
    let mut near =
        near.filter(|(_, line)| line.chars().take_while(|c| c.is_whitespace()).any(|c| c == '\t'));
    let tab = near.next().map(|(index, line)| (index + 1, line.find('\t').unwrap_or(0) + 1));
    let (cause, remedy) = match error.kind() {
        Kind::TabNotAllowed
        | Kind::TabInBlockIndentation
        | Kind::TabAtBlockScalarStart
        | Kind::TabInIndentation
        | Kind::TabInPlainScalar => {
            if let Some((line, column)) = tab {
                place = Place { line, column };
            }
            ("YAML does not allow tabs for indentation".to_owned(), "use spaces")
        }
        _ if tab.is_some_and(|(line, _)| line == place.line) => {
            ("YAML does not allow tabs for indentation".to_owned(), "use spaces")
        }
        Kind::UnknownAnchor => (
            "an alias refers to an unknown anchor".to_owned(),
            "put &NAME before an earlier value, or quote the *",
        ),
        Kind::UnexpectedEofFlowSequence
        | Kind::UnexpectedEofFlowMapping
        | Kind::UnexpectedEofImplicitFlowMapping
        | Kind::ExpectedFlowMappingSeparator
        | Kind::ExpectedFlowSequenceSeparator
        | Kind::UnclosedFlowCollection { .. }
        | Kind::MisplacedFlowCollectionEnd
        | Kind::MismatchedFlowCollectionEnd { .. } => (
            "a bracket [ or { is not closed, or there is one too many".to_owned(),
            "check the brackets and commas on this line and above",
        ),
        Kind::UnclosedQuotedScalar | Kind::DocumentIndicatorInQuotedScalar => {
            ("a quoted string is not closed".to_owned(), "close it, or check the quotes inside it")
        }
        Kind::UnknownQuotedScalarEscape
        | Kind::InvalidQuotedScalarHexEscape
        | Kind::InvalidLowSurrogateHexEscape
        | Kind::InvalidLowSurrogate
        | Kind::MissingLowSurrogate
        | Kind::UnpairedLowSurrogate
        | Kind::InvalidUnicodeEscape => (
            "a double-quoted string has an invalid backslash escape".to_owned(),
            "write a backslash as \\\\, or use single quotes",
        ),
        Kind::InvalidTrailingSingleQuotedScalar | Kind::InvalidTrailingDoubleQuotedScalar => (
            "there is text after a quoted string".to_owned(),
            "put all of it inside the quotes; inside '…', write ' as ''",
        ),
        Kind::RecursionLimitExceeded => return too_deep(place),
        Kind::UnexpectedCharacter { character } => {
            (format!("a value cannot begin with {character:?}"), "quote the value")
        }
        Kind::InvalidIndentation
        | Kind::ExpectedBlockMappingKey
        | Kind::ExpectedBlockSequenceEntry
        | Kind::InvalidBlockScalarIndent
        | Kind::InvalidQuotedScalarIndent
        | Kind::InvalidFlowScalarIndent
        | Kind::BlockSequenceEntryNotAllowed => (
            "the indentation does not match the lines above".to_owned(),
            "align it with the lines that it belongs to",
        ),
        Kind::SimpleKeyExpected
        | Kind::InvalidSimpleKey
        | Kind::MappingKeyNotAllowed
        | Kind::MappingValueNotAllowed
        | Kind::InvalidColonPlacement => (
            "a key or a colon is out of place, or a bracket above is not closed".to_owned(),
            "write KEY: VALUE on its own line, and quote values that contain a colon",
        ),
        _ => (
            "this is not valid YAML".to_owned(),
            "check the quotes, brackets and indentation here and above",
        ),
    };
    Fault { place, cause, remedy: remedy.to_owned() }
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;

    use proptest::prelude::*;

    use super::*;

    fn one(text: &str) -> Node {
        let mut stream = read(text);
        assert_eq!(stream.faults, [], "{text}");
        assert_eq!(stream.documents.len(), 1, "{text}");
        stream.documents.remove(0)
    }

    fn faults(text: &str) -> Vec<String> {
        read(text).faults.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn everything_knows_its_place() {
        let root = one("a: 1\nb:\n  - x\n  - {c: 'y'}\n");
        assert_eq!(root.entries()[1].place, Place { line: 2, column: 1 });
        let items = root.get("b").unwrap().items();
        assert_eq!(items[0].place, Place { line: 3, column: 5 });
        let c = items[1].get("c").unwrap();
        assert_eq!(c.place, Place { line: 4, column: 9 });
        assert_eq!(c.value, Value::Text { text: "y".to_owned(), quoted: true });
        assert_eq!(root.at(&["a"]).unwrap().text(), Some("1"));
        assert!(root.at(&["a", "b"]).is_none());
    }

    #[test]
    fn aliases_and_merges_stand_for_what_they_name() {
        let root = one("a: &a {x: 1, y: 2}\nb: {<<: *a, y: 3}\nc: {<<: [*a, {z: 4}]}\nd: *a\n");
        let text = |keys: &[&str]| root.at(keys).unwrap().text().unwrap().to_owned();
        assert_eq!((text(&["b", "x"]), text(&["b", "y"])), ("1".to_owned(), "3".to_owned()));
        assert_eq!((text(&["c", "z"]), text(&["d", "y"])), ("4".to_owned(), "2".to_owned()));
        assert_eq!(root.get("d").unwrap().place.line, 4);
        assert_eq!(root.at(&["d", "y"]).unwrap().place.line, 1, "a part is where it is written");
    }

    #[test]
    fn documents_are_kept_apart_and_empty_ones_left_out() {
        let stream = read("---\n---\na: &a 1\n---\n# nothing\n---\n[b]\n...\n");
        assert_eq!(stream.documents.len(), 2);
        assert_eq!(stream.documents[1].place.line, 7);
        assert_eq!(read("").documents, []);
        assert_eq!(read("# only a comment\n").documents, []);
        assert_eq!(faults("a: &a 1\n---\nb: *a\n").len(), 1, "an anchor ends with its document");
    }

    #[test]
    fn every_key_that_is_given_twice_is_named_with_both_lines() {
        let found = faults("a: 1\nb: {c: 1, c: 2}\na: 2\na: 3\n");
        assert_eq!(
            found,
            [
                "line 2: duplicate key \"c\", first in line 2; remove one of them",
                "line 3: duplicate key \"a\", first in line 1; remove one of them",
                "line 4: duplicate key \"a\", first in line 1; remove one of them",
            ]
        );
        let kept = read("a: 1\na: 2\n").documents.remove(0);
        assert_eq!(kept.get("a").unwrap().text(), Some("1"));
    }

    #[test]
    fn a_mistake_of_form_is_said_in_words_that_help() {
        for (text, line, words) in [
            ("a:\n\tb: 1\n", 2, "YAML does not allow tabs for indentation; use spaces"),
            ("a:\n  - b\n\t- c\n", 3, "YAML does not allow tabs"),
            ("a: [1, 2\nb: 3\n", 2, "bracket"),
            ("a: 'x\n", 1, "a quoted string is not closed"),
            ("a: \"\\d\"\n", 1, "invalid backslash escape"),
            ("a: 'it's'\n", 1, "there is text after a quoted string"),
            ("a: *b\n", 1, "an alias refers to an unknown anchor"),
            ("a: @b\n", 1, "a value cannot begin with '@'; quote the value"),
            ("a: 1\n  b: 2\n", 2, "out of place"),
            ("a: {{ .Values.x }}\nb: {{ y }} z\n", 1, "Helm template"),
            ("? [a]\n: b\n", 1, "a list or a mapping cannot be a key"),
            (": b\n", 1, "a key is empty"),
            ("<<: 1\n", 1, "<< can only merge a mapping"),
            ("a: &a [*a]\n", 1, "an alias refers to a value that contains it"),
        ] {
            let found = faults(text);
            assert!(!found.is_empty(), "{text}");
            assert!(found[0].starts_with(&format!("line {line}: ")), "{text}: {found:?}");
            assert!(found[0].contains(words), "{text}: {found:?}");
        }
    }

    #[test]
    fn a_bomb_of_aliases_is_defused() {
        let mut text = String::from("a0: &a0 [x, x, x, x, x, x, x, x, x]\n");
        for n in 1..40 {
            let row = vec![format!("*a{}", n - 1); 9].join(", ");
            let _ = writeln!(text, "a{n}: &a{n} [{row}]");
        }
        let found = faults(&text);
        assert_eq!(found.len(), 1);
        assert!(found[0].contains("the aliases expand to more than 1 MiB"), "{found:?}");
        let long = format!("a: &a {}\nb: [{}]\n", "x".repeat(100_000), vec!["*a"; 50].join(", "));
        assert!(faults(&long)[0].contains("more than 1 MiB"));
    }

    #[test]
    fn depth_is_bounded_also_through_aliases() {
        for text in ["[".repeat(100_000), "- ".repeat(100_000), "{a: ".repeat(100_000)] {
            let found = faults(&text);
            assert!(found[0].contains("nested more than"), "{found:?}");
        }
        let mut text = String::from("a0: &a0 [x]\n");
        for n in 1..100 {
            let _ = writeln!(text, "a{n}: &a{n} [*a{}]", n - 1);
        }
        assert!(faults(&text)[0].contains("nested more than"));
    }

    #[test]
    fn what_is_no_text_or_too_much_is_refused() {
        assert_eq!(text(b"\xef\xbb\xbfa: 1", 100), Ok("a: 1"));
        let refused = |bytes: &[u8]| text(bytes, 10).unwrap_err().to_string();
        assert!(refused(b"12345678901").contains("the file has 11 bytes, more than 10"));
        assert!(
            refused(b"a\nb: \xff").starts_with("line 2: the file is not UTF-8 text; save it as")
        );
        assert!(refused(b"\xff\xfea\0").contains("UTF-16"));
    }

    proptest! {
        #[test]
        fn no_text_panics(text in "(?s:.){0,80}|[\\[\\]{}:,&*a \\n\"'|>#?!%@\\t-]{0,60}") {
            let _ = read(&text);
        }
    }
}
