//! `ostrakon config`.

mod check;
mod draino;
mod flags;
mod migrate;
mod source;

use std::io::Read as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow};
use clap::{Args, Subcommand, ValueEnum};

use super::{Usage, print, print_error};
use crate::clock::system_time;
use crate::config::{read, schema};
use draino::{Source, Word};
use migrate::{Migration, migrate};

/// Check a configuration file, or convert draino's settings into one
#[derive(Debug, Args)]
pub(super) struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Check a configuration file and summarize it
    ///
    /// Prints a summary of each policy, and every error and warning with its line, its cause and what
    /// to write instead. A warning is about a setting that is valid but rarely intended. Exits with 1
    /// if the file cannot be used.
    Check {
        /// Configuration file; - reads standard input
        #[arg(value_name = "FILE")]
        file: PathBuf,

        /// Output format
        #[arg(long, short, value_enum, default_value_t)]
        output: Output,

        /// Treat warnings as errors
        #[arg(long)]
        strict: bool,
    },
    /// Print the JSON schema of configuration files
    Schema,
    /// Convert draino's settings into a configuration file
    ///
    /// Reads draino's arguments, or files: manifests with its container (command, args and DRAINO_*
    /// variables), or values of its Helm chart. Knows the flags of planetlabs', getamis' and DataDog's
    /// draino. Comments in the file say where each setting came from and where ostrakon differs. A
    /// setting without a counterpart becomes a comment and a warning, and the exit code is 1. Examples:
    ///
    ///   ostrakon config from-draino -f deployment.yaml
    ///   kubectl -n kube-system get deployment draino -o yaml | ostrakon config from-draino -f -
    ///   ostrakon config from-draino -- --drain-buffer=5m Ready=False,10m
    #[command(verbatim_doc_comment)]
    #[allow(clippy::doc_markdown, reason = "it is the help, too")]
    FromDraino {
        /// Manifest or Helm values; - reads standard input; repeatable
        #[arg(long = "file", short, value_name = "FILE", conflicts_with = "arguments")]
        files: Vec<PathBuf>,

        /// Draino's arguments
        #[arg(last = true, required_unless_present = "files", value_name = "ARGUMENT")]
        arguments: Vec<String>,
    },
}

/// An output format.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum Output {
    /// Readable text.
    #[default]
    Text,
    /// JSON, for programs.
    Json,
}

/// Runs the subcommand.
pub(super) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    match &arguments.command {
        Command::Check { file, output, strict } => check(file, *output, *strict),
        Command::Schema => print(&format!("{:#}\n", schema())),
        Command::FromDraino { files, arguments } if files.is_empty() => {
            let migration = of_arguments(arguments);
            if migration.file.is_empty() {
                let notes = migration.notes.iter();
                let notes: Vec<_> =
                    notes.map(|note| format!("{}: {}", note.what, note.why)).collect();
                return Err(Usage(notes.join("; also ")).into());
            }
            print_migration(&migration)
        }
        Command::FromDraino { files, .. } => print_migration(&of_files(files)?),
    }
}

/// The bytes of a file or of standard input, up to a limit: the input may never end.
fn bytes_of(path: &Path) -> anyhow::Result<Vec<u8>> {
    const MOST: u64 = 32 << 20;
    let mut bytes = Vec::new();
    let read = if path == Path::new("-") {
        std::io::stdin().lock().take(MOST).read_to_end(&mut bytes)
    } else {
        std::fs::File::open(path).and_then(|file| file.take(MOST).read_to_end(&mut bytes))
    };
    read.with_context(|| format!("cannot read {}", path.display()))?;
    Ok(bytes)
}

/// Prints what a file means. The error lists its problems, one per line.
fn check(path: &Path, output: Output, strict: bool) -> anyhow::Result<()> {
    let name = path.display().to_string();
    let reading = read(&bytes_of(path)?);
    let now = system_time();
    match output {
        Output::Text => {
            print(&check::report(&name, &reading, strict, now).map_err(|report| anyhow!(report))?)
        }
        Output::Json => {
            print(&format!("{:#}\n", check::json(&name, &reading, strict, now)))?;
            if check::is_usable(&reading, strict) {
                Ok(())
            } else {
                Err(anyhow!("{name} cannot be used"))
            }
        }
    }
}

/// Converts draino's arguments.
fn of_arguments(arguments: &[String]) -> Migration {
    let words = arguments.iter().enumerate().map(|(index, text)| Word {
        text: text.clone(),
        origin: format!("argument {}", index + 1),
    });
    let origin = "command line".to_owned();
    let source = Source { words: words.collect(), origin, ..Source::default() };
    migrate(&[source], &[], &[])
}

/// Converts the drainos in these files.
fn of_files(paths: &[PathBuf]) -> anyhow::Result<Migration> {
    let mut all = source::Found::default();
    let mut names = Vec::new();
    for path in paths {
        let name = if path == Path::new("-") {
            "standard input".to_owned()
        } else {
            path.display().to_string()
        };
        let mut found = source::find(&name, &bytes_of(path)?).map_err(|error| anyhow!(error))?;
        all.sources.append(&mut found.sources);
        all.honoured.append(&mut found.honoured);
        all.not_honoured.append(&mut found.not_honoured);
        names.push(name);
    }
    if all.sources.is_empty() && all.not_honoured.is_empty() {
        return Err(anyhow!(
            "found neither a container that runs draino nor values of its chart in {}; pass the file \
             with its Deployment or its Helm values, or its arguments after --",
            names.join(", ")
        ));
    }
    Ok(migrate(&all.sources, &all.honoured, &all.not_honoured))
}

/// Prints the file, and a warning for each setting that was not converted.
fn print_migration(migration: &Migration) -> anyhow::Result<()> {
    print(&migration.file)?;
    for note in &migration.notes {
        print_error(&format!(
            "warning: not converted: {} ({}): {}",
            note.what, note.origin, note.why
        ));
    }
    match (migration.notes.len(), migration.file.is_empty()) {
        (0, _) => Ok(()),
        (_, true) => Err(anyhow!("nothing could be converted; see the warnings")),
        (number, false) => {
            let settings = check::count(number, "setting");
            Err(anyhow!("{settings} not converted; see the comments in the file"))
        }
    }
}

#[cfg(test)]
mod tests;
