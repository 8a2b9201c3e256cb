//! Documents that must not fall behind the code.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::Command;

const PREFIXES: [&str; 4] = ["draino_", "ostrakon_", "taint_eviction_controller_", "workqueue_"];

/// Every text in quotes of this kind that is the name of a metric.
fn metric_names(text: &str, quote: char) -> BTreeSet<String> {
    text.split(quote)
        .skip(1)
        .step_by(2)
        .filter(|word| PREFIXES.iter().any(|prefix| word.starts_with(prefix)))
        .filter(|word| word.chars().all(|c| c.is_ascii_lowercase() || c == '_'))
        .map(str::to_owned)
        .collect()
}

/// Adds the names of metrics in the sources that register them, without their tests.
fn sources(folder: &Path, names: &mut BTreeSet<String>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, names);
        } else if path.file_name().and_then(|name| name.to_str()).is_some_and(has_metrics) {
            // Line by line: an odd number of quotes in a comment must not shift the rest.
            let text = fs::read_to_string(&path).unwrap();
            names.extend(text.lines().flat_map(|line| metric_names(line, '"')));
        }
    }
}

/// Metrics are registered in files named `…_metrics.rs`, and those of events, of the clock and of ignored
/// taints where they are used.
fn has_metrics(file_name: &str) -> bool {
    file_name.ends_with("_metrics.rs")
        || ["clock_watch.rs", "events.rs", "ignored_taints.rs"].contains(&file_name)
}

#[test]
fn every_metric_is_documented_and_no_other() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut code = BTreeSet::new();
    sources(&root.join("src"), &mut code);
    assert!(code.len() > 15, "the sources were not found: {code:?}");
    let document = fs::read_to_string(root.join("docs/metrics.md")).unwrap();
    let documented = metric_names(&document, '`');
    assert_eq!(documented, code);
}

#[test]
fn every_line_of_the_demo_is_documented() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let code = fs::read_to_string(root.join("src/cli/demo/print.rs")).unwrap();
    let (_, lines) = code.split_once("pub(super) enum Line {").unwrap();
    let (lines, _) = lines.split_once("\n}").unwrap();
    let kinds = lines.lines().filter_map(|line| {
        let name = line.strip_prefix("    ")?.split([' ', '(']).next()?;
        name.starts_with(char::is_uppercase).then(|| name.to_lowercase())
    });
    let kinds: BTreeSet<_> = kinds.collect();
    let document = fs::read_to_string(root.join("docs/demo.md")).unwrap();
    let (_, document) = document.split_once("\n## Lines of `--json`\n").unwrap();
    let rows = document.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next());
    let documented: BTreeSet<_> = rows.map(str::to_owned).collect();
    assert!(kinds.len() > 8, "the lines were not found: {kinds:?}");
    assert_eq!(documented, kinds);
}

#[test]
fn the_command_line_reference_is_current() {
    let mut page = String::from(
        "# Command line\n\nGenerated from the program; update it with `UPDATE_DOCS=1 cargo test --test docs`.\n",
    );
    for arguments in [
        &["--help"][..],
        &["run", "--help"],
        &["pause", "--help"],
        &["resume", "--help"],
        &["demo", "--help"],
        &["config", "--help"],
        &["config", "check", "--help"],
        &["config", "from-draino", "--help"],
        &["config", "schema", "--help"],
    ] {
        let help = Command::new(env!("CARGO_BIN_EXE_ostrakon")).args(arguments).output().unwrap();
        assert!(help.status.success());
        let text = String::from_utf8(help.stdout).unwrap();
        let lines: Vec<_> = text.lines().map(str::trim_end).collect();
        let title = arguments.strip_suffix(&["--help"]).unwrap_or_default().join(" ");
        let title = format!("ostrakon {title}");
        let lines = lines.join("\n");
        writeln!(page, "\n## {}\n\n```text\n{lines}\n```", title.trim()).unwrap();
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/cli.md");
    if std::env::var_os("UPDATE_DOCS").is_some() {
        fs::write(&path, &page).unwrap();
    }
    let written = fs::read_to_string(&path).unwrap_or_default();
    assert!(written == page, "docs/cli.md is stale: run UPDATE_DOCS=1 cargo test --test docs");
}

#[test]
fn the_schema_of_the_configuration_is_current() {
    let schema = Command::new(env!("CARGO_BIN_EXE_ostrakon")).args(["config", "schema"]).output();
    let schema = schema.unwrap();
    assert!(schema.status.success());
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/config.schema.json");
    if std::env::var_os("UPDATE_DOCS").is_some() {
        fs::write(&path, &schema.stdout).unwrap();
    }
    let written = fs::read(&path).unwrap_or_default();
    let current = written == schema.stdout;
    assert!(current, "docs/config.schema.json is stale: run UPDATE_DOCS=1 cargo test --test docs");
}

/// The keys of all objects of a schema.
fn keys(schema: &serde_json::Value, found: &mut BTreeSet<String>) {
    if let Some(object) = schema.as_object() {
        let own = object.get("properties").and_then(|properties| properties.as_object());
        found.extend(own.into_iter().flat_map(|own| own.keys().cloned()));
        object.values().for_each(|value| keys(value, found));
    }
}

#[test]
fn every_key_of_the_configuration_is_documented() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let schema = fs::read_to_string(root.join("docs/config.schema.json")).unwrap();
    let mut known = BTreeSet::new();
    keys(&serde_json::from_str(&schema).unwrap(), &mut known);
    assert!(known.len() > 40, "the keys were not found: {known:?}");
    let document = fs::read_to_string(root.join("docs/config.md")).unwrap();
    for key in &known {
        assert!(document.contains(&format!("`{key}`")), "{key} is not in docs/config.md");
    }
    // A row for what is no key any more.
    let rows = document.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next());
    for key in rows {
        assert!(known.contains(key), "{key} is in docs/config.md, and no key");
    }
}
