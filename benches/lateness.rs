//! How late a deadline is: 10,000 of them, due within one second, through eight timed queues.
//!
//! `cargo bench --bench lateness` prints the distribution of fired − due inside the process. It
//! fails if one was handed out before its time.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use ostrakon::pipeline::{Outcome, SHARDS, TimedQueue};
use tokio::runtime::Builder;
use tokio::time::Instant;

const DEADLINES: u64 = 10_000;
const ROUNDS: usize = 5;
/// Until the first is due: time to arm them all.
const AHEAD: Duration = Duration::from_millis(500);

#[allow(clippy::print_stdout, reason = "this is what it is for")]
fn main() -> ExitCode {
    let runtime = match Builder::new_multi_thread().enable_time().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            println!("lateness: no runtime: {error}");
            return ExitCode::FAILURE;
        }
    };
    let mut early = 0;
    for round in 1..=ROUNDS {
        let mut late = runtime.block_on(measure());
        late.sort_unstable();
        early += late.iter().take_while(|micros| **micros < 0).count();
        let at = |thousandths: usize| millis(late[(late.len() - 1) * thousandths / 1000]);
        println!(
            "lateness of {DEADLINES} deadlines within 1 s, round {round}: least {:.2} ms, half {:.2} ms, \
             90 % {:.2} ms, 99 % {:.2} ms, 99.9 % {:.2} ms, most {:.2} ms",
            at(0),
            at(500),
            at(900),
            at(990),
            at(999),
            at(1000),
        );
    }
    println!("lateness: {early} early");
    if early == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Microseconds after the deadline, negative before it.
async fn measure() -> Vec<i64> {
    let queues: Vec<_> = (0..SHARDS).map(|_| Arc::new(TimedQueue::<u64, u32>::new())).collect();
    let first = Instant::now() + AHEAD;
    let mut waiting = vec![0; SHARDS];
    for number in 0..DEADLINES {
        // In no order, and on all shards.
        let micros = number.wrapping_mul(7_919) % DEADLINES * 1_000_000 / DEADLINES;
        let shard = shard_of(number);
        waiting[shard] += 1;
        queues[shard].arm(number, first + Duration::from_micros(micros), 0);
    }
    let takers = queues.into_iter().zip(waiting).map(|(queue, count)| {
        tokio::spawn(async move {
            let mut late = Vec::with_capacity(count);
            while late.len() < count {
                let fired = queue.next().await;
                late.push(micros_between(fired.due, Instant::now()));
                queue.complete(&fired.key, fired.token, Outcome::Done);
            }
            late
        })
    });
    join_all(takers).await.into_iter().flatten().flatten().collect()
}

fn shard_of(number: u64) -> usize {
    usize::try_from(number).unwrap_or_default() % SHARDS
}

fn micros_between(due: Instant, now: Instant) -> i64 {
    let micros = |duration: Duration| i64::try_from(duration.as_micros()).unwrap_or(i64::MAX);
    if now >= due { micros(now - due) } else { -micros(due - now).max(1) }
}

#[allow(clippy::cast_precision_loss)]
fn millis(micros: i64) -> f64 {
    micros as f64 / 1000.0
}
