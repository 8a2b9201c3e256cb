//! The signals of a run, and what each asks for.

use std::io::IsTerminal as _;

use anyhow::Context;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// What a signal asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Asked {
    /// To stop; the name of the signal.
    Stop(&'static str),
    /// To read the configuration file again.
    ReadFile,
}

/// The signals of a run. None of them ends the process by itself, which would leave its lease held.
pub(super) struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
    has_file: bool,
    /// Whether logs went to a terminal at the start.
    had_terminal: bool,
}

impl Signals {
    /// Listens for them. If there is a configuration file, SIGHUP has it read.
    pub(super) fn new(has_file: bool) -> anyhow::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate()).context("cannot listen for SIGTERM")?,
            interrupt: signal(SignalKind::interrupt()).context("cannot listen for SIGINT")?,
            hangup: signal(SignalKind::hangup()).context("cannot listen for SIGHUP")?,
            has_file,
            had_terminal: std::io::stderr().is_terminal(),
        })
    }

    /// Waits for the next one.
    pub(super) async fn next(&mut self) -> Asked {
        tokio::select! {
            _ = self.hangup.recv() => {
                hangup(self.has_file, self.had_terminal, std::io::stderr().is_terminal())
            }
            _ = self.terminate.recv() => Asked::Stop("SIGTERM"),
            _ = self.interrupt.recv() => Asked::Stop("SIGINT"),
        }
    }
}

/// What SIGHUP means. It is also sent when a terminal is closed, which can then no longer be asked: nobody
/// would see what the process goes on doing.
fn hangup(has_file: bool, had_terminal: bool, has_terminal: bool) -> Asked {
    let is_closed = had_terminal && !has_terminal;
    if has_file && !is_closed { Asked::ReadFile } else { Asked::Stop("SIGHUP") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hangup_reads_the_file_unless_there_is_none_or_the_terminal_was_closed() {
        let stop = Asked::Stop("SIGHUP");
        for (has_file, had_terminal, has_terminal, asked) in [
            (true, false, false, Asked::ReadFile),
            (true, true, true, Asked::ReadFile),
            (true, true, false, stop),
            (false, false, false, stop),
            (false, true, true, stop),
        ] {
            assert_eq!(hangup(has_file, had_terminal, has_terminal), asked);
        }
    }
}
