//! Finds draino in manifests and Helm values, with the line of each argument.

use super::draino::{Note, Source, Word, is_program};
use super::flags::mark;
use crate::config::yaml::{self, Node, Place, Value};

/// Maximum size of a file, in bytes. Enough for the objects of a large cluster.
const MOST_BYTES: usize = 16 << 20;

/// What was found in a file.
#[derive(Debug, Default)]
pub(super) struct Found {
    /// Each draino.
    pub(super) sources: Vec<Source>,
    /// Annotations and labels of draino on nodes and pods: those that ostrakon honours too.
    pub(super) honoured: Vec<Note>,
    /// And those that it does not.
    pub(super) not_honoured: Vec<Note>,
}

/// Finds draino in a file. The error is about its syntax.
pub(super) fn find(name: &str, bytes: &[u8]) -> Result<Found, String> {
    let text = yaml::text(bytes, MOST_BYTES).map_err(|fault| format!("{name}: {fault}"))?;
    let stream = yaml::read(text);
    if let Some(fault) = stream.faults.first() {
        return Err(format!("{name}: {fault}"));
    }
    let mut finder = Finder { file: name, found: Found::default(), alone: Vec::new() };
    for document in &stream.documents {
        finder.look(document, &Around::default());
    }
    // If there is only one container, it is draino, whatever it is called.
    if finder.found.sources.is_empty() && finder.alone.len() == 1 {
        finder.found.sources.append(&mut finder.alone);
    }
    Ok(finder.found)
}

/// What a value stands in.
#[derive(Clone, Default)]
struct Around {
    /// Kind and name of the object.
    object: String,
    /// Name of the object, or the key of the values.
    name: String,
}

struct Finder<'a> {
    file: &'a str,
    found: Found,
    /// Containers with arguments that nothing marks as draino.
    alone: Vec<Source>,
}

impl Finder<'_> {
    fn look(&mut self, node: &Node, around: &Around) {
        let mut around = around.clone();
        if let Some(kind) = node.get("kind").and_then(Node::text) {
            let name = node.at(&["metadata", "name"]).and_then(Node::text).unwrap_or_default();
            if kind != "List" {
                around = Around { object: format!("{kind} {name}"), name: name.to_owned() };
            }
            self.marks(node, &around);
        }
        if let Some(template) = node.get("template") {
            self.marks(template, &around);
        }
        if let Some(containers) = node.get("containers") {
            containers.items().iter().for_each(|container| self.container(container, &around));
            return;
        }
        if is_values(node) {
            self.values(node, &around);
            return;
        }
        for item in node.items() {
            self.look(item, &around);
        }
        for entry in node.entries() {
            // An Argo CD application has values as a text of its own.
            if let ("values", Some(text)) = (entry.key.as_str(), entry.value.text()) {
                // Its place is that of its first line.
                let before = entry.value.place.line.saturating_sub(1);
                for document in yaml::read(text).documents {
                    self.look(&moved(document, before), &around);
                }
                continue;
            }
            let mut within = around.clone();
            if entry.key.contains("draino") {
                within.name.clone_from(&entry.key);
            }
            self.look(&entry.value, &within);
        }
    }

    fn word(&self, node: &Node) -> Option<Word> {
        Some(self.word_of(node, node.text()?))
    }

    fn word_of(&self, node: &Node, text: &str) -> Word {
        Word { text: text.to_owned(), origin: self.origin(node.place) }
    }

    fn origin(&self, place: Place) -> String {
        format!("{}:{}", self.file, place.line)
    }

    /// The words of a list, or of a single text.
    fn words(&self, node: Option<&Node>) -> Vec<Word> {
        match node.map(|node| (&node.value, node)) {
            Some((Value::List(items), _)) => {
                items.iter().filter_map(|item| self.word(item)).collect()
            }
            Some((Value::Text { .. }, node)) => self.word(node).into_iter().collect(),
            _ => Vec::new(),
        }
    }

    fn container(&mut self, container: &Node, around: &Around) {
        let text = |key: &str| container.get(key).and_then(Node::text).unwrap_or_default();
        let mut words = self.words(container.get("command"));
        words.extend(self.words(container.get("args")));
        let mut source = Source {
            name: around.name.clone(),
            what: format!("{}, container {}", around.object, text("name")),
            origin: self.origin(container.place),
            image: text("image").to_owned(),
            ..Source::default()
        };
        if let Some(script) = script(&words) {
            let command = command(script);
            if command.is_empty() {
                let why = "it runs a script that does not contain draino";
                source.notes.push(Note::new("command", &script.origin, why));
            }
            words = command;
        }
        let runs = words.first().is_some_and(|word| is_program(&word.text));
        source.words = words;
        self.environment(container, &mut source);
        if runs || text("image").contains("draino") || text("name").contains("draino") {
            self.found.sources.push(source);
        } else if !source.words.is_empty() {
            self.alone.push(source);
        }
    }

    /// Variables, as a list of names and values or as a mapping.
    fn environment(&self, node: &Node, source: &mut Source) {
        let Some(env) = node.get("env") else { return };
        for item in env.items() {
            let Some(name) = item.get("name").and_then(Node::text) else { continue };
            match item.get("value").and_then(|value| self.word(value)) {
                Some(word) => source.variables.push((name.to_owned(), word)),
                None if name.starts_with("DRAINO_") && item.get("valueFrom").is_some() => {
                    let why = "its value is not in the file";
                    let origin = self.origin(item.place);
                    source.notes.push(Note::new(name, &origin, why));
                }
                None => {}
            }
        }
        for entry in env.entries() {
            if let Some(word) = self.word(&entry.value) {
                source.variables.push((entry.key.clone(), word));
            }
        }
        if let Some(from) = node.get("envFrom") {
            let origin = self.origin(from.place);
            let why = "its variables are not in the file; any DRAINO_* among them is missing here";
            source.notes.push(Note::new("envFrom", &origin, why));
        }
    }

    /// Values of a chart of draino, in the order in which the chart writes the command line.
    fn values(&mut self, values: &Node, around: &Around) {
        let repository =
            values.at(&["image", "repository"]).or_else(|| values.at(&["image", "name"]));
        let image = repository.or_else(|| values.get("image")).and_then(Node::text);
        let mut source = Source {
            name: around.name.clone(),
            what: "Helm values".to_owned(),
            origin: self.origin(values.place),
            image: image.unwrap_or_default().to_owned(),
            ..Source::default()
        };
        let mut words = self.words(values.get("command"));
        if let Some(dry) = values.get("dryRun").filter(|dry| dry.truth() == Some(true)) {
            words.push(self.word_of(dry, "--dry-run"));
        }
        if let Some(extra) = values.get("extraArgs") {
            words.extend(extra.items().iter().filter_map(|item| self.word(item)));
            for entry in extra.entries() {
                self.extra(entry, &mut words, &mut source.notes);
            }
        }
        words.extend(self.words(values.get("args")));
        words.extend(self.words(values.get("conditions")));
        source.words = words;
        self.environment(values, &mut source);
        self.found.sources.push(source);
    }

    /// A flag in `extraArgs`: the chart leaves out a value that is empty, and with it `=`.
    fn extra(&self, entry: &yaml::Entry, words: &mut Vec<Word>, notes: &mut Vec<Note>) {
        let name = format!("--{}", entry.key.trim_start_matches('-'));
        let word = |text: String| Word { text, origin: self.origin(entry.place) };
        match &entry.value.value {
            Value::List(items) => {
                let texts = items.iter().filter_map(Node::text);
                words.extend(texts.map(|text| word(format!("{name}={text}"))));
            }
            Value::Text { text, .. } if entry.value.truth() == Some(false) => {
                let origin = self.origin(entry.place);
                let why = format!(
                    "the chart turns {text} into {name}, which switches it on; here it is on too"
                );
                notes.push(Note::new(format!("{}: {text}", entry.key), &origin, why));
                words.push(word(name));
            }
            Value::Text { text, .. } if !text.is_empty() => {
                words.push(word(format!("{name}={text}")))
            }
            _ => words.push(word(name)),
        }
    }

    /// Annotations and labels of draino on this object.
    fn marks(&mut self, object: &Node, around: &Around) {
        for place in ["annotations", "labels"] {
            let Some(marks) = object.at(&["metadata", place]) else { continue };
            for entry in marks.entries() {
                let Some(fate) = mark(&entry.key) else { continue };
                let value = entry.value.text().unwrap_or_default();
                let what = format!("{}={value} of {}", entry.key, around.object);
                let origin = self.origin(entry.place);
                match fate {
                    Ok(how) => self.found.honoured.push(Note::new(what, &origin, how)),
                    Err(why) => self.found.not_honoured.push(Note::new(what, &origin, why)),
                }
            }
        }
    }
}

/// Whether these are values of a chart of draino.
fn is_values(node: &Node) -> bool {
    let conditions = node.get("conditions").is_some_and(|conditions| {
        !conditions.items().is_empty() && conditions.items().iter().all(|it| it.text().is_some())
    });
    let arguments = node.get("args").is_some_and(|args| !args.items().is_empty());
    let image = node.get("image").is_some_and(|image| {
        let text = |node: &Node| node.text().is_some_and(|text| text.contains("draino"));
        text(image) || image.entries().iter().any(|entry| text(&entry.value))
    });
    let extra = node.get("extraArgs").is_some() || node.get("dryRun").is_some();
    node.get("kind").is_none() && (conditions || extra || (arguments && image))
}

/// Moves a tree that was embedded as text in another file by this many lines.
fn moved(mut node: Node, line: usize) -> Node {
    node.place.line += line;
    node.value = match node.value {
        Value::List(items) => Value::List(items.into_iter().map(|it| moved(it, line)).collect()),
        Value::Map(entries) => {
            let entries = entries.into_iter().map(|mut entry| {
                entry.place.line += line;
                entry.value = moved(entry.value, line);
                entry
            });
            Value::Map(entries.collect())
        }
        other => other,
    };
    node
}

/// The script, if the words run a shell.
fn script(words: &[Word]) -> Option<&Word> {
    let name = words.first()?.text.rsplit('/').next()?;
    let is_shell = ["sh", "bash", "ash"].contains(&name);
    is_shell.then(|| words.iter().skip(1).find(|word| !word.text.starts_with('-'))).flatten()
}

/// The words of the draino command in a script; empty if there is none.
fn command(script: &Word) -> Vec<Word> {
    let joined = script.text.replace("\\\n", " ");
    let lines = joined.lines().filter_map(shlex::split);
    let found = lines.filter_map(|words| {
        let start = words.iter().position(|word| is_program(word))?;
        Some(words[start..].iter().take_while(|word| !is_end(word)).cloned().collect::<Vec<_>>())
    });
    let words = found.take(1).flatten();
    words.map(|text| Word { text, origin: script.origin.clone() }).collect()
}

/// Where a command of a shell ends.
fn is_end(word: &str) -> bool {
    [";", "&&", "||", "|", "&", ">", ">>", "2>&1"].contains(&word)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str) -> Found {
        find("f.yaml", text.as_bytes()).unwrap()
    }

    fn words(source: &Source) -> Vec<String> {
        source.words.iter().map(|word| format!("{}@{}", word.text, word.origin)).collect()
    }

    #[test]
    fn command_and_arguments_of_a_container_are_read_with_their_lines() {
        let found = found(
            "apiVersion: v1\nkind: List\nitems:\n- kind: Service\n  metadata: {name: draino}\n\
             - kind: Deployment\n  metadata: {name: d}\n  spec:\n    template:\n      spec:\n        \
             containers:\n        - name: sidecar\n          image: x\n          args: [A]\n        \
             - name: c\n          image: planetlabs/draino:1\n          command: [/draino]\n          \
             args:\n          - --debug\n          - A\n          env:\n          - {name: DRAINO_X, value: '1'}\n          \
             - {name: DRAINO_Y, valueFrom: {}}\n          - {name: DRAINO_Z, valueFrom: {fieldRef: {}}}\n",
        );
        let [source] = &found.sources[..] else { panic!("{found:?}") };
        assert_eq!(words(source), ["/draino@f.yaml:17", "--debug@f.yaml:19", "A@f.yaml:20"]);
        assert_eq!(source.name, "d");
        assert_eq!(source.what, "Deployment d, container c");
        assert_eq!(source.origin, "f.yaml:15");
        assert_eq!(source.variables[0].1.text, "1");
        assert_eq!(source.notes[0].what, "DRAINO_Y");
    }

    #[test]
    fn values_of_a_chart_are_read_as_the_chart_writes_them() {
        let found = found(
            "conditions:\n- KernelDeadlock\n- Ready=Unknown,10m\ndryRun: true\nextraArgs:\n  \
             drain-buffer: 5m\n  debug:\n  evict-emptydir-pods: ''\n  evict-daemonset-pods: false\n  \
             node-label: [a=b, c=d]\nimage: {repository: quay.io/amis/draino}\n",
        );
        let [source] = &found.sources[..] else { panic!("{found:?}") };
        let texts: Vec<_> = source.words.iter().map(|word| word.text.as_str()).collect();
        let expected = [
            "--dry-run",
            "--drain-buffer=5m",
            "--debug",
            "--evict-emptydir-pods",
            "--evict-daemonset-pods",
            "--node-label=a=b",
            "--node-label=c=d",
            "KernelDeadlock",
            "Ready=Unknown,10m",
        ];
        assert_eq!(texts, expected);
        assert_eq!(source.image, "quay.io/amis/draino");
        assert_eq!(source.notes.len(), 1);
        assert!(source.notes[0].why.contains("switches it on"), "{:?}", source.notes);
    }

    #[test]
    fn values_are_found_where_releases_and_charts_of_charts_have_them() {
        for text in [
            "draino:\n  conditions: [A]\n",
            "kind: HelmRelease\nmetadata: {name: r}\nspec:\n  values:\n    conditions: [A]\n",
            "kind: Application\nspec:\n  source:\n    helm:\n      values: |\n        conditions:\n        - A\n",
            "command: /draino\nargs: [A]\nimage: {name: planetlabs/draino}\n",
            "extraArgs: [A]\n",
        ] {
            let found = found(text);
            assert_eq!(found.sources.len(), 1, "{text}");
            let last = found.sources[0].words.last().unwrap();
            let line = 1 + text
                .lines()
                .position(|line| line.ends_with('A') || line.contains("[A]"))
                .unwrap();
            assert_eq!((&*last.text, &*last.origin), ("A", &*format!("f.yaml:{line}")), "{text}");
        }
        assert_eq!(found("status:\n  conditions:\n  - {type: Ready}\n").sources, []);
    }

    #[test]
    fn draino_is_found_in_a_script() {
        let script = "kind: Pod\nspec:\n  containers:\n  - command: [/bin/sh, -c, \"set -e\\nexec /draino --debug \\\\\\n --node-label='a=b' A && echo\"]\n";
        let found = found(script);
        let [source] = &found.sources[..] else { panic!("{found:?}") };
        let texts: Vec<_> = source.words.iter().map(|word| word.text.as_str()).collect();
        assert_eq!(texts, ["/draino", "--debug", "--node-label=a=b", "A"]);
    }

    #[test]
    fn marks_of_draino_on_nodes_and_pods_are_named() {
        let found = found(
            "kind: Node\nmetadata:\n  name: n1\n  annotations:\n    draino/drain-buffer: 5m\n    \
             draino/drain-retry: 'true'\n    other: x\n---\nkind: Deployment\nspec:\n  template:\n    \
             metadata:\n      annotations:\n        node-lifecycle.datadoghq.com/enabled: 'false'\n",
        );
        assert_eq!(found.honoured.len(), 1);
        assert_eq!(found.honoured[0].what, "draino/drain-retry=true of Node n1");
        let lost: Vec<_> = found.not_honoured.iter().map(|note| &*note.origin).collect();
        assert_eq!(lost, ["f.yaml:5", "f.yaml:14"]);
    }

    #[test]
    fn what_is_no_yaml_is_named_with_its_line() {
        for (text, words) in [
            ("a:\n\tb: 1\n", "f.yaml: line 2: YAML does not allow tabs"),
            ("kind: Deployment\nmetadata:\n  name: {{ include \"x\" . }}\n", "Helm template"),
        ] {
            let error = find("f.yaml", text.as_bytes()).unwrap_err();
            assert!(error.contains(words), "{error}");
        }
    }
}
