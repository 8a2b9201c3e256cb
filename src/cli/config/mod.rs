//! `ostrakon config`.

mod check;
mod draino;
mod flags;
mod migrate;
mod source;

use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow};
use clap::{Args, Subcommand, ValueEnum};

use super::{Usage, complain};
use crate::clock::system_time;
use crate::config::{read, schema};
use draino::{Source, Word};
use migrate::{Migration, migrate};

/// Check configuration files, and make one of what draino was told
#[derive(Debug, Args)]
pub(super) struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Say what a configuration file means, and all that is wrong with it
    ///
    /// Prints a summary and warns of what is seldom meant, each with its line, the cause and what to
    /// write instead. Exits with 1 if the file cannot be used.
    Check {
        /// The file; - for standard input
        #[arg(value_name = "FILE")]
        file: PathBuf,

        /// Form of what is printed
        #[arg(long, short, value_enum, default_value_t)]
        output: Output,

        /// Take warnings for errors
        #[arg(long)]
        strict: bool,
    },
    /// Print the JSON schema of configuration files
    Schema,
    /// Print a configuration file that does what draino does
    ///
    /// Reads draino's arguments, or files: manifests with its container (command, args and DRAINO_*
    /// variables), or values of its Helm chart. The flags of planetlabs', getamis' and DataDog's draino
    /// are known. The file says where each setting came from, and where the two differ. What has no
    /// counterpart is a comment in it and a warning, and the exit code is 1. Examples:
    ///
    ///   ostrakon config from-draino -f deployment.yaml
    ///   kubectl -n kube-system get deployment draino -o yaml | ostrakon config from-draino -f -
    ///   ostrakon config from-draino -- --drain-buffer=5m Ready=False,10m
    #[command(verbatim_doc_comment)]
    #[allow(clippy::doc_markdown, reason = "it is the help, too")]
    FromDraino {
        /// Manifest or values of Helm; - for standard input; repeatable
        #[arg(long = "file", short, value_name = "FILE", conflicts_with = "arguments")]
        files: Vec<PathBuf>,

        /// Draino's arguments
        #[arg(last = true, required_unless_present = "files", value_name = "ARGUMENT")]
        arguments: Vec<String>,
    },
}

/// A form of output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum Output {
    /// Words for people.
    #[default]
    Text,
    /// For programs.
    Json,
}

/// Does what the subcommand says.
pub(super) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    match &arguments.command {
        Command::Check { file, output, strict } => check(file, *output, *strict),
        Command::Schema => say(&format!("{:#}\n", schema())),
        Command::FromDraino { files, arguments } if files.is_empty() => {
            let migration = of_arguments(arguments);
            if migration.file.is_empty() {
                let notes = migration.notes.iter();
                let notes: Vec<_> =
                    notes.map(|note| format!("{}: {}", note.what, note.why)).collect();
                return Err(Usage(notes.join("; also ")).into());
            }
            printed(&migration)
        }
        Command::FromDraino { files, .. } => printed(&of_files(files)?),
    }
}

/// Writes to standard output. Whoever stops reading has read enough.
fn say(text: &str) -> anyhow::Result<()> {
    match std::io::stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(error).context("cannot write to standard output")
        }
        _ => Ok(()),
    }
}

/// The bytes of a file, or of standard input. One that never ends is not read to its end.
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

/// What a file means. All that is wrong with it is the error, a line each.
fn check(path: &Path, output: Output, strict: bool) -> anyhow::Result<()> {
    let name = path.display().to_string();
    let reading = read(&bytes_of(path)?);
    let now = system_time();
    match output {
        Output::Text => {
            say(&check::report(&name, &reading, strict, now).map_err(|report| anyhow!(report))?)
        }
        Output::Json => {
            say(&format!("{:#}\n", check::json(&name, &reading, strict, now)))?;
            if check::is_usable(&reading, strict) {
                Ok(())
            } else {
                Err(anyhow!("{name} cannot be used"))
            }
        }
    }
}

/// The file that draino's arguments become.
fn of_arguments(arguments: &[String]) -> Migration {
    let words = arguments.iter().enumerate().map(|(index, text)| Word {
        text: text.clone(),
        origin: format!("argument {}", index + 1),
    });
    let origin = "command line".to_owned();
    let source = Source { words: words.collect(), origin, ..Source::default() };
    migrate(&[source], &[], &[])
}

/// The file that the drainos in these files become.
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
            "{} has no container that runs draino, and no values of its chart; name the file with its \
             Deployment or its values, or give its arguments after --",
            names.join(", ")
        ));
    }
    Ok(migrate(&all.sources, &all.honoured, &all.not_honoured))
}

/// Prints the file, and warns of what is not in it.
fn printed(migration: &Migration) -> anyhow::Result<()> {
    say(&migration.file)?;
    for note in &migration.notes {
        complain(&format!("warning: not converted: {} ({}): {}", note.what, note.origin, note.why));
    }
    match (migration.notes.len(), migration.file.is_empty()) {
        (0, _) => Ok(()),
        (_, true) => Err(anyhow!("nothing could be converted; see the warnings")),
        (number, false) => {
            let them = if number == 1 { "it is a comment" } else { "they are comments" };
            Err(anyhow!("{} not converted; {them} in the file", check::count(number, "thing")))
        }
    }
}

#[cfg(test)]
mod tests;
