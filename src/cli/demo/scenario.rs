//! The scenario of the demo, and the check of its outcome.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::bail;
use jiff::Timestamp;
use tokio::time::sleep;

use super::drain::Drain;
use super::fixtures::SESSION_SECONDS;
use super::observations::{Eviction, Observation, Observations};
use super::print::{Line, Row, Summary, rounded};
use super::screen::Screen;
use super::test_bed::TestBed;

/// Interval at which observations are printed and the table is drawn.
const TICK: Duration = Duration::from_millis(100);
/// Interval between `state` lines of the JSON output, in ticks.
const STATE_EVERY: u32 = 10;
/// Evictions are collected into one line until a tick adds none, but for at most this many ticks.
const GATHER: u32 = 10;

/// When the steps happen, in seconds from the start of the scenario.
const SILENCE: f64 = 1.0;
const NAMESAKE: f64 = 6.0;
const REPAIR: f64 = 8.0;
const RESTART: f64 = 11.0;
/// After the deadline of the pod that was deleted.
const OLD_DEADLINE: f64 = 15.6;
const COMEBACK: f64 = 17.0;
/// After the taint part of the scenario.
const SICK: f64 = 21.0;
/// Removing the taint later than this is too late: the second countdown, of 10 s, is about to end.
const LATEST_REPAIR: f64 = 9.5;
/// Maximum lateness. A countdown that started again at the restart would be this late.
const TOO_LATE: Duration = Duration::from_secs(10);
/// How long to wait for something that is due: a busy machine is not a failure.
const PATIENCE: f64 = 20.0;
/// The same for the drain, whose budget allows one eviction at a time.
const DRAIN_PATIENCE: f64 = 60.0;

/// The running scenario.
pub(super) struct Scenario<'a> {
    bed: &'a mut TestBed,
    screen: &'a mut Screen,
    began: Timestamp,
    /// Evictions that are not printed yet.
    gathered: Vec<Eviction>,
    gathered_for: u32,
    ticks: u32,
}

impl<'a> Scenario<'a> {
    /// Starts the scenario.
    pub(super) fn begin(bed: &'a mut TestBed, screen: &'a mut Screen) -> Self {
        bed.observations().begin();
        let began = bed.now();
        Self { bed, screen, began, gathered: Vec::new(), gathered_for: 0, ticks: 0 }
    }

    /// Plays the scenario to its end and returns its outcome.
    pub(super) async fn play(&mut self) -> anyhow::Result<Summary> {
        let [first, spared, last, silent, sick] = self.bed.fixtures.bed().map(str::to_owned);
        let text = "Adding the taint maintenance:NoExecute to three nodes.";
        self.step("taint", &[&first, &spared, &last], text)?;
        for node in [&first, &spared, &last] {
            self.bed.taint(node)?;
        }

        self.until(SILENCE).await?;
        let text = format!("Stopping the kubelet of {silent}: it no longer renews its lease.");
        self.step("silence", &[&silent], &text)?;
        self.bed.silence(&silent, true).await?;

        self.until(NAMESAKE).await?;
        let text = format!(
            "Deleting shop/db-0 on {first} during its countdown.\n\
             Its StatefulSet creates a new pod with the same name; the old deadline must not apply."
        );
        self.step("namesake", &[&first], &text)?;
        self.bed.delete_namesake()?;

        self.until(REPAIR).await?;
        let text = format!("Removing the taint from {spared} while countdowns are running.");
        self.step("untaint", &[&spared], &text)?;
        self.bed.untaint(&spared)?;
        if self.seconds() > LATEST_REPAIR {
            bail!("this machine is too busy for the demo's timing; try a smaller --pods");
        }

        self.until(RESTART).await?;
        let text = "Restarting the controller. No countdown may start again.";
        self.step("restart", &[], text)?;
        let stopped = self.seconds();
        self.bed.restart().await?;
        let seconds = self.seconds();
        let line = Line::Restarted { seconds, away_seconds: rounded(seconds - stopped) };
        self.screen.say(Some(seconds), &line)?;

        self.until(OLD_DEADLINE).await?;
        if let Some(node) = self.bed.namesakes_node() {
            let text = format!("the old shop/db-0 was due at 15 s; the new one, on {node}, stays");
            self.screen.say_text(Some(self.seconds()), &text)?;
        }

        self.until(COMEBACK).await?;
        self.until_evicted_from(&silent).await?;
        let text = format!(
            "Starting the kubelet of {silent} again. Evicted pods terminate, the others stay."
        );
        self.step("comeback", &[&silent], &text)?;
        self.bed.silence(&silent, false).await?;

        self.until(SICK).await?;
        self.until_quiet(&silent).await?;
        self.drain(&sick).await?;
        self.finish()
    }

    /// A node reports a bad condition, is drained, and recovers.
    async fn drain(&mut self, sick: &str) -> anyhow::Result<()> {
        let text = format!(
            "Setting KernelDeadlock=True on {sick}. It must be cordoned at once and drained 2 s \
             later.\nThe budget shop/cart allows one of its pods to be unavailable at a time."
        );
        self.step("sick", &[sick], &text)?;
        let reported = self.bed.now();
        self.bed.report(true)?;
        let since = move |at: Timestamp| rounded(at.duration_since(reported).as_secs_f64());
        if let Some(at) = self.until_seen(|drain| drain.cordoned).await? {
            let line =
                Line::Cordoned { seconds: self.at(at), node: sick.to_owned(), after: since(at) };
            self.screen.say(Some(self.at(at)), &line)?;
        }
        if let Some(at) = self.until_seen(|drain| drain.drained).await? {
            let evicted = self.bed.drain().evicted();
            let (seconds, node) = (self.at(at), sick.to_owned());
            let line = Line::Drained { seconds, node, evicted, after: since(at) };
            self.screen.say(Some(seconds), &line)?;
        }
        let text = format!("Clearing the condition. {sick} must be uncordoned 3 s later.");
        self.step("well", &[sick], &text)?;
        self.bed.report(false)?;
        if let Some(at) = self.until_seen(|drain| drain.uncordoned).await? {
            let line = Line::Uncordoned { seconds: self.at(at), node: sick.to_owned() };
            self.screen.say(Some(self.at(at)), &line)?;
        }
        Ok(())
    }

    /// Waits until the drain has got this far, and returns when; `None` if it takes too long.
    async fn until_seen(
        &mut self,
        what: impl Fn(&Drain) -> Option<Timestamp>,
    ) -> anyhow::Result<Option<Timestamp>> {
        let latest = self.seconds() + DRAIN_PATIENCE;
        loop {
            let seen = what(self.bed.drain());
            if seen.is_some() || self.seconds() >= latest {
                return Ok(seen);
            }
            self.until(self.seconds() + TICK.as_secs_f64()).await?;
        }
    }

    /// Prints a line without a time.
    pub(super) fn say(&mut self, line: &Line) -> anyhow::Result<()> {
        Ok(self.screen.say(None, line)?)
    }

    /// Prints a line that is not part of the JSON output.
    pub(super) fn say_text(&mut self, text: &str) -> anyhow::Result<()> {
        Ok(self.screen.say_text(None, text)?)
    }

    /// Keeps printing observations until the future is dropped or the controller fails.
    pub(super) async fn go_on(&mut self) -> anyhow::Result<()> {
        self.bed.observations().end();
        loop {
            self.until(self.seconds() + 1.0).await?;
        }
    }

    fn seconds(&self) -> f64 {
        self.at(self.bed.now())
    }

    /// A time in seconds from the start of the scenario.
    fn at(&self, moment: Timestamp) -> f64 {
        rounded(moment.duration_since(self.began).as_secs_f64())
    }

    fn step(&mut self, step: &'static str, nodes: &[&str], text: &str) -> anyhow::Result<()> {
        self.print_evictions()?;
        let nodes = nodes.iter().map(|node| (*node).to_owned()).collect();
        let seconds = self.seconds();
        let line = Line::Step { seconds, step, nodes, text: text.to_owned() };
        Ok(self.screen.say(Some(seconds), &line)?)
    }

    /// Prints observations until that second.
    async fn until(&mut self, second: f64) -> anyhow::Result<()> {
        loop {
            self.tick()?;
            let left = second - self.seconds();
            if left <= 0.0 {
                return Ok(());
            }
            let pause = Duration::from_secs_f64(left).min(TICK);
            tokio::select! {
                failure = self.bed.failed() => return Err(failure),
                () = sleep(pause) => {}
            }
        }
    }

    /// Prints observations until the predicate holds, or it takes too long.
    async fn until_it_is(
        &mut self,
        is_so: impl Fn(&Observations, Timestamp) -> bool,
    ) -> anyhow::Result<()> {
        let latest = self.seconds() + PATIENCE;
        loop {
            let now = self.bed.now();
            if is_so(self.bed.observations(), now) || self.seconds() >= latest {
                return Ok(());
            }
            self.until(self.seconds() + TICK.as_secs_f64()).await?;
        }
    }

    /// Waits until the pods of the silent node that tolerate only a short outage are evicted.
    async fn until_evicted_from(&mut self, node: &str) -> anyhow::Result<()> {
        let soon = jiff::SignedDuration::from_secs(SESSION_SECONDS);
        self.until_it_is(|observations, now| {
            let row = observations.row(node);
            let none_soon = row.next.is_some_and(|next| next.duration_since(now) > soon);
            !row.taints.is_empty() && none_soon && row.going > 0
        })
        .await
    }

    /// Waits until the recovered node has no taint and nothing is overdue.
    async fn until_quiet(&mut self, node: &str) -> anyhow::Result<()> {
        self.until_it_is(|observations, now| {
            observations.row(node).taints.is_empty() && observations.overdue(now).next().is_none()
        })
        .await
    }

    fn tick(&mut self) -> anyhow::Result<()> {
        self.ticks += 1;
        let seconds = self.seconds();
        let new_observations = self.bed.observations().new_observations();
        let before = self.gathered.len();
        for (at, piece) in new_observations {
            self.print_observation(self.at(at), piece)?;
        }
        if !self.gathered.is_empty() {
            self.gathered_for += 1;
            if self.gathered.len() == before || self.gathered_for >= GATHER {
                self.print_evictions()?;
            }
        }
        let state = self.state(seconds);
        if self.screen.is_json() && self.ticks % STATE_EVERY == 1 {
            self.screen.say(Some(seconds), &state)?;
        }
        Ok(self.screen.draw(&state)?)
    }

    fn print_observation(
        &mut self,
        seconds: f64,
        new_observations: Observation,
    ) -> anyhow::Result<()> {
        let line = match new_observations {
            Observation::Tainted { node, key: taint, outlook } => {
                let (at_once, counting, staying) =
                    (outlook.at_once, outlook.counting, outlook.staying);
                Line::Tainted { seconds, node, taint, at_once, counting, staying }
            }
            Observation::Untainted { node, key: taint, cancelled } => {
                Line::Untainted { seconds, node, taint, cancelled }
            }
            Observation::Wrong(text) => Line::Wrong { seconds, text },
            Observation::Evicted(eviction) => {
                self.gathered.push(eviction.clone());
                let late_ms = millis(eviction.late);
                let Eviction { pod, uid, node, key: taint, seconds: tolerated_seconds, .. } =
                    eviction;
                Line::Evicted { seconds, pod, uid, node, taint, tolerated_seconds, late_ms }
            }
        };
        Ok(self.screen.say(Some(seconds), &line)?)
    }

    fn print_evictions(&mut self) -> anyhow::Result<()> {
        let evictions = std::mem::take(&mut self.gathered);
        self.gathered_for = 0;
        for text in Line::evictions(&evictions) {
            self.screen.say_text(Some(self.seconds()), &text)?;
        }
        Ok(())
    }

    fn state(&mut self, seconds: f64) -> Line {
        let now = self.bed.now();
        let on_stage = self.bed.fixtures.bed().map(str::to_owned);
        let observations = self.bed.observations();
        let counts = observations.counts(now);
        let mut names: BTreeSet<_> = on_stage.iter().map(String::as_str).collect();
        names.extend(observations.tainted());
        let rows = names.into_iter().map(|name| {
            let row = observations.row(name);
            Row {
                node: row.name,
                taints: row.taints,
                pods: row.pods,
                counting: row.counting,
                next_in_seconds: row
                    .next
                    .map(|next| rounded(next.duration_since(now).as_secs_f64())),
                going: row.going,
            }
        });
        Line::State {
            seconds,
            nodes: rows.collect(),
            pods: counts.pods,
            overdue: counts.overdue,
            evicted: counts.evicted,
            cancelled: counts.cancelled,
        }
    }

    /// Compares what happened with what had to happen.
    fn finish(&mut self) -> anyhow::Result<Summary> {
        self.print_evictions()?;
        let seconds = self.seconds();
        let now = self.bed.now();
        let namesakes_node = self.bed.namesakes_node();
        let (fixtures, observations, drain) = self.bed.seen();
        let mut failures = observations.wrong().to_vec();
        let overdue = observations.overdue(now);
        failures.extend(overdue.map(|pod| format!("{pod} is overdue and was not evicted")));
        failures.extend(differences(&fixtures.to_go, observations.evicted()));
        failures.extend(drain.failures());
        if namesakes_node.is_none() {
            failures.push("the new shop/db-0 does not exist, or is due for eviction".to_owned());
        }
        let in_order: Vec<_> = observations.evicted().iter().map(|(_, late)| *late).collect();
        let mut sorted = in_order.clone();
        sorted.sort_unstable();
        let summary = Summary {
            seconds,
            evicted: in_order.len(),
            drained: drain.evicted(),
            kept: observations.kept(),
            cancelled: observations.counts(now).cancelled,
            first_ms: in_order.first().copied().map_or(0.0, millis),
            median_ms: millis(percentile(&sorted, 50)),
            p99_ms: millis(percentile(&sorted, 99)),
            ok: failures.is_empty(),
            failures,
        };
        Ok(summary)
    }
}

/// Differences between the evicted pods and those that had to be evicted, and late evictions.
fn differences(to_go: &BTreeSet<String>, evicted: &[(String, Duration)]) -> Vec<String> {
    let went: BTreeSet<_> = evicted.iter().map(|(uid, _)| uid.clone()).collect();
    let missing = to_go.difference(&went).count();
    let extra = went.difference(to_go).count();
    let mut failures = Vec::new();
    if missing > 0 {
        failures.push(format!("{missing} of {} expected evictions did not happen", to_go.len()));
    }
    if extra > 0 {
        failures.push(format!("{extra} pods were evicted unexpectedly"));
    }
    let late = evicted.iter().filter(|(_, late)| *late > TOO_LATE).count();
    if late > 0 {
        failures.push(format!("{late} evictions were more than {TOO_LATE:?} late"));
    }
    failures
}

/// The value that this percentage of the sorted values does not exceed.
fn percentile(sorted: &[Duration], percent: usize) -> Duration {
    let rank = (sorted.len() * percent).div_ceil(100).max(1);
    sorted.get(rank - 1).copied().unwrap_or_default()
}

fn millis(duration: Duration) -> f64 {
    // To the microsecond: finer is noise.
    (duration.as_secs_f64() * 1e6).round() / 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percentile_is_a_value_that_was_measured() {
        let values: Vec<_> = (1..=200).map(Duration::from_millis).collect();
        assert_eq!(percentile(&values, 50), Duration::from_millis(100));
        assert_eq!(percentile(&values, 99), Duration::from_millis(198));
        assert_eq!(percentile(&values[..1], 99), Duration::from_millis(1));
        assert_eq!(percentile(&[], 99), Duration::ZERO);
    }

    #[test]
    fn who_went_must_be_who_had_to() {
        let evicted = |uids: &[&str]| -> Vec<_> {
            uids.iter().map(|uid| ((*uid).to_owned(), Duration::ZERO)).collect()
        };
        let to_go = BTreeSet::from(["a".to_owned(), "b".to_owned()]);
        assert!(differences(&to_go, &evicted(&["b", "a"])).is_empty());
        assert_eq!(differences(&to_go, &evicted(&["a"])).len(), 1);
        assert_eq!(differences(&to_go, &evicted(&["a", "c"])).len(), 2);
        let mut late = evicted(&["b", "a"]);
        late[0].1 = Duration::from_secs(11);
        assert_eq!(differences(&to_go, &late), ["1 evictions were more than 10s late"]);
    }
}
