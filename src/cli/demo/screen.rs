//! Where the lines go: a terminal with a live table below them, plain lines, or JSON.

use std::io::{self, IsTerminal, Stdout, Write};

use super::print::{Line, Row, Summary, grouped, short};

/// Maximum rows of the table, so that it fits on a small terminal.
const MOST_ROWS: usize = 8;

const BOLD: &str = "\x1b[1m";
const DIM: &str = "\x1b[2m";
const RED: &str = "\x1b[31m";
const GREEN: &str = "\x1b[32m";
const PLAIN: &str = "\x1b[0m";
const HIDE_CURSOR: &str = "\x1b[?25l";
/// A line that is too long is cut instead of broken, so that a row stays a row.
const CUT_LINES: &str = "\x1b[?7l";
const BREAK_LINES: &str = "\x1b[?7h";
/// What sets a terminal right that tolerated a table.
pub(super) const AS_FOUND: &str = "\x1b[?25h\x1b[?7h";
const CLEAR_LINE: &str = "\x1b[K";
const CLEAR_BELOW: &str = "\x1b[J";

/// The form of what is said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// Lines with a live table below them.
    Live {
        /// Whether colours are wanted.
        colours: bool,
    },
    /// Lines.
    Plain,
    /// One JSON object a line.
    Json,
}

impl Form {
    /// The form that suits standard output.
    pub(super) fn suiting(json: bool) -> Self {
        let set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        let dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb");
        match (json, io::stdout().is_terminal() && !dumb) {
            (true, _) => Self::Json,
            (false, true) => Self::Live { colours: !set("NO_COLOR") },
            (false, false) => Self::Plain,
        }
    }
}

/// Standard output. Dropping it leaves a terminal as it was found.
pub(super) struct Screen<W: Write = Stdout> {
    out: W,
    form: Form,
    /// Lines of the table that stands below the text now.
    table: usize,
}

impl Screen {
    /// Standard output in this form.
    pub(super) fn new(form: Form) -> Self {
        Self::on(io::stdout(), form)
    }
}

impl<W: Write> Screen<W> {
    fn on(out: W, form: Form) -> Self {
        Self { out, form, table: 0 }
    }

    /// Whether single pods and states are wanted.
    pub(super) fn is_json(&self) -> bool {
        self.form == Form::Json
    }

    /// Whether a live table stands below the text.
    pub(super) fn is_live(&self) -> bool {
        matches!(self.form, Form::Live { .. })
    }

    /// Prints it, with this many seconds of the scenario.
    pub(super) fn say(&mut self, seconds: Option<f64>, line: &Line) -> io::Result<()> {
        if self.is_json() {
            serde_json::to_writer(&mut self.out, line)?;
            return writeln!(self.out);
        }
        let Some(text) = line.text() else { return Ok(()) };
        let style = match line {
            Line::Step { .. } => BOLD,
            Line::Wrong { .. } | Line::Summary(Summary { ok: false, .. }) => RED,
            Line::Summary(_) => GREEN,
            _ => "",
        };
        self.write(seconds, &text, style, matches!(line, Line::Step { .. }))
    }

    /// Says something that machines hear in another way.
    pub(super) fn say_text(&mut self, seconds: Option<f64>, text: &str) -> io::Result<()> {
        if self.is_json() { Ok(()) } else { self.write(seconds, text, "", false) }
    }

    fn write(
        &mut self,
        seconds: Option<f64>,
        text: &str,
        style: &str,
        begins: bool,
    ) -> io::Result<()> {
        self.erase()?;
        let style = if self.form == (Form::Live { colours: true }) { style } else { "" };
        let plain = if style.is_empty() { "" } else { PLAIN };
        if begins {
            writeln!(self.out)?;
        }
        for line in text.lines() {
            let indent = if begins || seconds.is_none() { "" } else { "  " };
            if let Some(seconds) = seconds {
                write!(self.out, "{seconds:>5.1} s  ")?;
            }
            writeln!(self.out, "{style}{indent}{line}{plain}")?;
        }
        self.out.flush()
    }

    /// Redraws the table, on a terminal.
    pub(super) fn draw(&mut self, state: &Line) -> io::Result<()> {
        let Form::Live { colours } = self.form else { return Ok(()) };
        let Line::State { seconds, nodes, pods, overdue, evicted, cancelled } = state else {
            return Ok(());
        };
        let (dim, plain) = if colours { (DIM, PLAIN) } else { ("", "") };
        let shown = nodes.len().min(MOST_ROWS);
        let head = format!(
            "{dim}{:<12}{:<22}{:>6}{:>10}{:>10}{:>8}{plain}",
            "NODE", "NOEXECUTE TAINTS", "PODS", "COUNTING", "NEXT IN", "GOING"
        );
        let foot = format!(
            "{dim}{seconds:.0} s · {} pods · {overdue} overdue · {} evicted · {} cancelled{plain}",
            grouped(*pods),
            grouped(*evicted),
            grouped(*cancelled),
        );
        let lines: Vec<_> = [String::new(), head]
            .into_iter()
            .chain(nodes[..shown].iter().map(cells))
            .chain([foot])
            .collect();
        // One write, over the old table and not after erasing it, so that nothing flickers.
        let mut frame = format!("{HIDE_CURSOR}{CUT_LINES}{}", up(self.table));
        for line in &lines {
            frame.push_str(line);
            frame.push_str(CLEAR_LINE);
            frame.push('\n');
        }
        frame.push_str(CLEAR_BELOW);
        frame.push_str(BREAK_LINES);
        self.table = lines.len();
        self.out.write_all(frame.as_bytes())?;
        self.out.flush()
    }

    /// Takes the table away and gives the terminal back.
    pub(super) fn close(&mut self) -> io::Result<()> {
        if self.table > 0 {
            self.erase()?;
            write!(self.out, "{AS_FOUND}")?;
        }
        self.out.flush()
    }

    fn erase(&mut self) -> io::Result<()> {
        if self.table > 0 {
            write!(self.out, "{}{CLEAR_BELOW}", up(self.table))?;
            self.table = 0;
        }
        Ok(())
    }
}

impl<W: Write> Drop for Screen<W> {
    fn drop(&mut self) {
        if self.is_live() {
            // There is nowhere left to report a failure.
            let _ = self.erase();
            let _ = write!(self.out, "{AS_FOUND}");
            let _ = self.out.flush();
        }
    }
}

/// Moves the cursor up by this many lines.
fn up(lines: usize) -> String {
    if lines == 0 { "\r".to_owned() } else { format!("\r\x1b[{lines}A") }
}

fn cells(row: &Row) -> String {
    let taints: Vec<_> = row.taints.iter().map(|key| short(key)).collect();
    let taints = if taints.is_empty() { "-".to_owned() } else { taints.join(",") };
    let next = match row.next_in_seconds {
        None => "-".to_owned(),
        Some(next) if next <= 0.0 => "now".to_owned(),
        Some(next) => format!("{next:.1} s"),
    };
    format!(
        "{:<12}{taints:<22}{:>6}{:>10}{next:>10}{:>8}",
        row.node, row.pods, row.counting, row.going
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(nodes: usize) -> Line {
        let row = Row {
            node: "node-020".to_owned(),
            taints: vec!["node.kubernetes.io/unreachable".to_owned()],
            pods: 18,
            counting: 12,
            next_in_seconds: Some(3.21),
            going: 2,
        };
        Line::State {
            seconds: 7.0,
            nodes: vec![row; nodes],
            pods: 6000,
            overdue: 0,
            evicted: 36,
            cancelled: 9,
        }
    }

    fn step() -> Line {
        Line::Step { seconds: 1.0, step: "taint", nodes: Vec::new(), text: "Three".to_owned() }
    }

    fn said(form: Form, act: impl FnOnce(&mut Screen<&mut Vec<u8>>)) -> String {
        let mut out = Vec::new();
        act(&mut Screen::on(&mut out, form));
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn a_table_is_drawn_over_the_one_before_and_the_terminal_is_given_back() {
        let text = said(Form::Live { colours: false }, |screen| {
            screen.draw(&state(2)).unwrap();
            screen.draw(&state(20)).unwrap();
            screen.say(Some(1.0), &step()).unwrap();
        });
        assert!(text.contains("\x1b[5A\x1b[K\n"), "{text:?}");
        assert!(text.contains("\x1b[11A\x1b[J\n  1.0 s  Three\n"), "{text:?}");
        assert!(text.contains("unreachable") && text.contains("3.2 s"), "{text:?}");
        assert!(text.ends_with("\x1b[?25h\x1b[?7h"), "{text:?}");
    }

    #[test]
    fn plain_lines_carry_no_codes_and_no_table() {
        let text = said(Form::Plain, |screen| {
            screen.draw(&state(2)).unwrap();
            screen.say(Some(1.0), &step()).unwrap();
            screen.say_text(Some(2.0), "gone").unwrap();
        });
        assert_eq!(text, "\n  1.0 s  Three\n  2.0 s    gone\n");
    }

    #[test]
    fn json_is_one_object_a_line() {
        let text = said(Form::Json, |screen| {
            screen.draw(&state(2)).unwrap();
            screen.say_text(None, "for people").unwrap();
            screen.say(Some(1.0), &step()).unwrap();
            screen.say(Some(1.0), &state(1)).unwrap();
        });
        let lines: Vec<serde_json::Value> =
            text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(lines.len(), 2);
        assert_eq!((&lines[0]["event"], &lines[1]["event"]), (&"step".into(), &"state".into()));
        assert_eq!(lines[1]["nodes"][0]["node"], "node-020");
    }
}
