//! The demo, as a person or a script runs it.
//!
//! Trials that need `kubectl` are counted as ignored where there is none.

// Helpers of tests are tests: they may fail where they stand.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::needless_pass_by_value)]

use std::io::{BufRead, BufReader, Lines, Read, Write};
use std::net::TcpListener;
use std::panic::{catch_unwind, resume_unwind};
use std::process::{Child, ChildStdout, Command, ExitCode, Output, Stdio};
use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use libtest_mimic::{Arguments, Failed, Trial};
use rustix::io::ioctl_fionread;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

const SMALL: [&str; 6] = ["demo", "--nodes", "10", "--pods", "100", "--json"];

fn main() -> ExitCode {
    let has_kubectl = Command::new("kubectl").arg("help").output().is_ok();
    let trial = |name: &str, run: fn()| {
        Trial::test(name, move || {
            in_time(run);
            Ok::<(), Failed>(())
        })
    };
    let trials = vec![
        trial("the_story_comes_out_as_it_must", the_story_comes_out_as_it_must),
        trial("the_story_comes_out_under_faults", the_story_comes_out_under_faults),
        trial("what_never_works_fails_it", what_never_works_fails_it),
        trial("a_pod_that_goes_for_no_reason_fails_it", a_pod_that_goes_for_no_reason_fails_it),
        trial(
            "the_rules_of_the_built_in_controller_fail_it",
            the_rules_of_the_built_in_controller_fail_it,
        ),
        trial("what_makes_no_sense_is_refused_in_a_line", what_makes_no_sense_is_refused_in_a_line),
        trial("a_used_port_is_told_of", a_used_port_is_told_of),
        trial("a_signal_ends_it_cleanly", a_signal_ends_it_cleanly),
        trial("a_signal_ends_it_even_if_it_hangs", a_signal_ends_it_even_if_it_hangs),
        trial("without_the_story_people_taint_by_hand", without_the_story_people_taint_by_hand),
        trial("a_reader_that_goes_away_ends_it", a_reader_that_goes_away_ends_it),
        trial("people_get_plain_lines_in_a_pipe", people_get_plain_lines_in_a_pipe),
        trial("kubectl_works_on_what_it_serves", kubectl_works_on_what_it_serves)
            .with_ignored_flag(!has_kubectl),
    ];
    let mut arguments = Arguments::from_args();
    // They mostly wait.
    arguments.test_threads.get_or_insert(8);
    libtest_mimic::run(&arguments, trials).exit_code()
}

/// The demo says that the machine is too busy to tell the story: nothing was shown.
struct TooBusy;

/// How often a trial is tried for which the machine is too busy.
const TRIES: usize = 5;

fn in_time(run: fn()) {
    for _ in 1..TRIES {
        match catch_unwind(run) {
            Err(panic) if panic.is::<TooBusy>() => {}
            Err(panic) => resume_unwind(panic),
            Ok(()) => return,
        }
    }
    run();
}

/// Ends the trial if that is why the demo has ended.
fn unless_busy(said: &str) {
    if said.contains("this machine is too busy for the demo's timing") {
        resume_unwind(Box::new(TooBusy));
    }
}

fn ostrakon(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ostrakon"));
    command.args(arguments).stdin(Stdio::null());
    command
}

fn run(arguments: &[&str]) -> Output {
    let output = ostrakon(arguments).output().unwrap();
    unless_busy(&String::from_utf8_lossy(&output.stderr));
    output
}

/// A demo at work. Dropping it ends it.
struct Demo {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Demo {
    fn start(arguments: &[&str]) -> Self {
        let mut command = ostrakon(arguments);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, lines }
    }

    /// The next line for which that holds. The demo itself bounds the wait.
    fn next(&mut self, holds: impl Fn(&Value) -> bool) -> Value {
        for line in &mut self.lines {
            let line: Value = serde_json::from_str(&line.unwrap()).unwrap();
            if holds(&line) {
                return line;
            }
        }
        let (code, said) = self.end();
        unless_busy(&said);
        panic!("the demo ended without that line: {code:?}, {said}");
    }

    fn next_event(&mut self, event: &str) -> Value {
        self.next(|line| line["event"] == event)
    }

    fn interrupt(&self) {
        let pid = Pid::from_raw(self.child.id().try_into().unwrap()).unwrap();
        kill_process(pid, Signal::INT).unwrap();
    }

    /// Exit code and standard error, after the end.
    fn end(&mut self) -> (Option<i32>, String) {
        for _ in &mut self.lines {}
        let mut said = String::new();
        self.child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        (self.child.wait().unwrap().code(), said)
    }
}

impl Drop for Demo {
    fn drop(&mut self) {
        // It has ended, unless the test fails.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn the_story_comes_out_as_it_must() {
    let output = run(&SMALL);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert_eq!(said, "", "nothing is wrong, so nothing is logged");
    let text = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let of = |event: &str| lines.iter().filter(|l| l["event"] == event).collect::<Vec<_>>();
    assert_eq!((&lines[0]["event"], &lines[1]["event"]), (&"starting".into(), &"ready".into()));
    let steps: Vec<_> = of("step").iter().map(|l| l["step"].as_str().unwrap().to_owned()).collect();
    assert_eq!(
        steps,
        ["taint", "silence", "namesake", "untaint", "restart", "comeback", "sick", "well"]
    );
    assert_eq!((of("tainted").len(), of("untainted").len()), (4, 2));
    // 12 tolerate nothing; 3 of 5 s, 2 of 10 s, 1 of 15 s, 2 of 20 s; 4 sessions on the silent node.
    let evicted = of("evicted");
    let tolerating = |seconds: Option<i64>| {
        evicted.iter().filter(|l| l["tolerated_seconds"].as_i64() == seconds).count()
    };
    let groups = [None, Some(5), Some(10), Some(15), Some(20), Some(8)].map(tolerating);
    assert_eq!(groups, [12, 3, 2, 1, 2, 4]);
    assert!(of("wrong").is_empty());
    assert!(of("state").len() > 10);
    let summary = lines.last().unwrap();
    assert_eq!((&summary["event"], &summary["ok"]), (&"summary".into(), &true.into()));
    // Of the hundred 24 went by taints, one by hand, and 8 by the drain.
    assert_eq!((&summary["evicted"], &summary["kept"]), (&24.into(), &67.into()));
    // Pods had come to the sick node meanwhile.
    assert!(summary["drained"].as_u64() >= Some(8), "{summary}");
    let (cordoned, drained) = (of("cordoned"), of("drained"));
    assert_eq!((cordoned.len(), drained.len(), of("uncordoned").len()), (1, 1, 1));
    assert_eq!(drained[0]["evicted"], summary["drained"]);
    assert!(cordoned[0]["seconds"].as_f64() < drained[0]["seconds"].as_f64());
    // 3 on the repaired node; on the silent one 4, and pods that came to it meanwhile.
    assert!(summary["cancelled"].as_u64() >= Some(7), "{summary}");
    assert!(summary["failures"].as_array().unwrap().is_empty());
    assert!(summary["p99_ms"].as_f64() >= summary["median_ms"].as_f64());
}

fn a_pod_that_goes_for_no_reason_fails_it() {
    let mut demo = Demo::start(&[&SMALL[..], &["--serve"]].concat());
    let server = demo.next_event("serving")["server"].as_str().unwrap().to_owned();
    demo.next_event("tainted");
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let name = runtime.block_on(async {
        let client = kube::Client::try_from(kube::Config::new(server.parse().unwrap())).unwrap();
        let pods = kube::Api::<Pod>::namespaced(client, "kube-system");
        let agents = pods.list(&ListParams::default().labels("app=log-agent")).await.unwrap();
        let name = agents.items[0].metadata.name.clone().unwrap();
        pods.delete(&name, &DeleteParams::default()).await.unwrap();
        name
    });
    let wrong = demo.next_event("wrong");
    assert!(wrong["text"].as_str().unwrap().contains(&name), "{wrong}");
    let summary = demo.next_event("summary");
    assert_eq!((&summary["ok"], &summary["evicted"]), (&false.into(), &24.into()));
    assert!(summary["failures"][0].as_str().unwrap().contains(&name), "{summary}");
    demo.interrupt();
    let (code, said) = demo.end();
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("check of the outcome failed"), "{said}");
}

fn the_rules_of_the_built_in_controller_fail_it() {
    let output = run(&[&SMALL[..], &["--compat", "upstream"]].concat());
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8(output.stdout).unwrap();
    let summary: Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
    assert_eq!((&summary["event"], &summary["ok"]), (&"summary".into(), &false.into()));
    let failures = summary["failures"].to_string();
    assert!(failures.contains("more than 10s late"), "{failures}");
}

fn the_story_comes_out_under_faults() {
    // The last one strikes for certain, so that faults that befall nobody would be seen.
    let faults = ["refuse=503,chance=5%", "latency=20ms", "cut,times=9,verb=delete,resource=pods"];
    let faults = faults.map(|fault| ["--fault", fault]).concat();
    let output = run(&[&SMALL[..], &faults, &["--log-level", "info"]].concat());
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let failed = said.lines().filter(|line| line.contains("eviction failed")).count();
    assert!(failed > 0, "no deletion failed: {said}");
}

fn what_never_works_fails_it() {
    let output = run(&[&SMALL[..], &["--fault", "refuse=500,verb=delete"]].concat());
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8_lossy(&output.stderr);
    let last = said.lines().last().unwrap();
    assert_eq!(last, "error: the check of the outcome failed, see above", "{said}");
}

fn what_makes_no_sense_is_refused_in_a_line() {
    for (arguments, remedy) in [
        (&["--nodes", "0"][..], "write 5 to 1000 nodes"),
        (&["--pods", "0"], "write 50 to 50000 pods"),
        (&["--nodes", "999999999"], "write 5 to 1000 nodes"),
        (&["--pods", "many"], "such as 6000"),
        (&["--nodes", "10", "--pods", "2000"], "use at most --pods 1000"),
        (&["--serve", "0.0.0.0:6443"], "such as 127.0.0.1:6443"),
        (&["--log-level", "a=b=c"], "write off, error, warn, info, debug or trace"),
        (&["--fault", "flaky"], "unknown fault \"flaky\"; write latency=DURATION, refuse=CODE"),
        (&["--fault", "cut,chance=2"], "such as 30%"),
        (&["--faster"], "unexpected argument"),
        (&["--no-story"], "--serve"),
    ] {
        let output = run(&[&["demo"], arguments].concat());
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {said}");
        assert!(said.starts_with("error: ") && said.contains(remedy), "{arguments:?}: {said}");
        assert!(output.stdout.is_empty());
    }
}

fn a_used_port_is_told_of() {
    let used = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = used.local_addr().unwrap().to_string();
    let output = run(&[&SMALL[..], &["--serve", &address]].concat());
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains(&address) && said.contains("--serve"), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
}

fn a_signal_ends_it_cleanly() {
    let mut demo = Demo::start(&[&SMALL[..], &["--serve"]].concat());
    let serving = demo.next_event("serving");
    let kubeconfig = std::path::PathBuf::from(serving["kubeconfig"].as_str().unwrap());
    assert!(kubeconfig.exists());
    demo.next_event("evicted");
    demo.interrupt();
    assert_eq!(demo.end(), (Some(0), String::new()));
    assert!(!kubeconfig.exists());
}

/// So much fills a pipe, of 64 KiB, nearly.
const FILLING: usize = 62 * 1024;

/// Nobody reads what it says, so it is blocked in a write and can do nothing else.
fn a_signal_ends_it_even_if_it_hangs() {
    for signal in [Signal::INT, Signal::TERM] {
        let mut command = ostrakon(&[&SMALL[..], &["--serve"]].concat());
        let folder = tempfile::tempdir().unwrap();
        // There is room for its first lines, and for those of a second or two of the story.
        let (out, mut into) = std::io::pipe().unwrap();
        into.write_all(&vec![b' '; FILLING]).unwrap();
        let child = command.env("TMPDIR", folder.path()).stdout(into).spawn().unwrap();
        let mut child = Killed(child);
        // The command holds the other end too.
        drop(command);
        // Full, and so no line is added, though there is one each second.
        let (mut before, mut looks) = (0, 0);
        wait_for(|| {
            let full = ioctl_fionread(&out).unwrap();
            looks = if full > FILLING as u64 + 500 && full == before { looks + 1 } else { 0 };
            before = full;
            looks > 15
        });
        let left = || std::fs::read_dir(folder.path()).unwrap().count();
        assert_eq!(left(), 1, "the kubeconfig");
        kill_process(Pid::from_child(&child.0), signal).unwrap();
        wait_for(|| child.0.try_wait().unwrap().is_some());
        assert_eq!(child.0.wait().unwrap().code(), Some(0));
        assert_eq!(left(), 0);
    }
}

/// A process that goes with its value.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        // It has ended, unless the test fails.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn without_the_story_people_taint_by_hand() {
    let mut demo = Demo::start(&[&SMALL[..], &["--serve", "--no-story"]].concat());
    let server = demo.next_event("serving")["server"].as_str().unwrap().to_owned();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let taint = |taints: Value| {
        runtime.block_on(async {
            let config = kube::Config::new(server.parse().unwrap());
            let nodes = kube::Api::<Node>::all(kube::Client::try_from(config).unwrap());
            let patch = Patch::Merge(serde_json::json!({"spec": {"taints": taints}}));
            nodes.patch("node-02", &PatchParams::default(), &patch).await.unwrap();
        });
    };
    taint(serde_json::json!([{"key": "mine", "effect": "NoExecute"}]));
    let tainted = demo.next(|line| {
        assert!(!["step", "wrong", "summary"].contains(&line["event"].as_str().unwrap()), "{line}");
        line["event"] == "tainted"
    });
    assert_eq!((&tainted["node"], &tainted["taint"]), (&"node-02".into(), &"mine".into()));
    let all = tainted["at_once"].as_u64().unwrap();
    assert!(all > 0 && tainted["counting"] == serde_json::json!({}), "{tainted}");
    for _ in 0..all {
        let evicted =
            demo.next(|line| ["evicted", "wrong"].contains(&line["event"].as_str().unwrap()));
        assert_eq!((&evicted["node"], &evicted["taint"]), (&"node-02".into(), &"mine".into()));
    }
    taint(serde_json::json!([]));
    let untainted = demo.next_event("untainted");
    assert_eq!((&untainted["taint"], &untainted["cancelled"]), (&"mine".into(), &0.into()));
    // Some time passes in which nothing is due.
    for _ in 0..3 {
        let state = demo.next(|line| ["state", "wrong"].contains(&line["event"].as_str().unwrap()));
        assert_eq!((&state["event"], &state["overdue"]), (&"state".into(), &0.into()));
    }
    demo.interrupt();
    for line in demo.lines.by_ref() {
        let line = line.unwrap();
        assert!(!line.contains("wrong") && !line.contains("summary"), "{line}");
    }
    assert_eq!(demo.end(), (Some(0), String::new()));
}

fn a_reader_that_goes_away_ends_it() {
    let mut command = ostrakon(&SMALL);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
}

fn people_get_plain_lines_in_a_pipe() {
    let output = run(&["demo", "--nodes", "5", "--pods", "50"]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{text}");
    assert!(!text.contains('\x1b'), "{text:?}");
    assert!(text.contains(": 4 pods due now, 1 each in 5, 10"), "{text}");
    assert!(text.contains("exactly the expected pods were evicted"), "{text}");
}

fn kubectl_works_on_what_it_serves() {
    let mut demo = Demo::start(&[&SMALL[..], &["--serve"]].concat());
    let kubeconfig = demo.next_event("serving")["kubeconfig"].as_str().unwrap().to_owned();
    let home = tempfile::tempdir().unwrap();
    let kubectl = |arguments: &str| {
        let mut command = Command::new("kubectl");
        command.args(arguments.split_whitespace());
        let output = command.env("KUBECONFIG", &kubeconfig).env("HOME", home.path()).output();
        let output = output.unwrap();
        let said = [output.stdout, output.stderr].concat();
        let said = String::from_utf8(said).unwrap();
        assert!(output.status.success(), "kubectl {arguments}: {said}");
        said
    };
    // One of the nodes falls silent sooner or later, and some pods go.
    let nodes = kubectl("get nodes");
    assert!(nodes.matches(" Ready ").count() >= 9 && nodes.lines().count() == 11, "{nodes}");
    let pods = kubectl("get pods -A");
    assert!(pods.matches("1/1").count() >= 50, "{pods}");
    assert_eq!(demo.next_event("summary")["ok"], true);

    // The controller goes on: what somebody taints now is evicted too.
    kubectl("taint nodes node-01 mine=:NoExecute");
    let tainted = demo.next_event("tainted");
    assert_eq!((&tainted["node"], &tainted["taint"]), (&"node-01".into(), &"mine".into()));
    demo.next(|line| line["event"] == "evicted" && line["taint"] == "mine");
    wait_for(|| kubectl("get events -A").contains("TaintManagerEviction"));
    let described = kubectl("describe node node-01");
    assert!(described.contains("mine:NoExecute"), "{described}");
    kubectl("taint nodes node-01 mine-");
    demo.next(|line| line["event"] == "untainted" && line["taint"] == "mine");
    let drained = kubectl("drain node-03 --ignore-daemonsets --timeout=180s");
    assert!(drained.contains("node/node-03 drained"), "{drained}");
    // Twice, as some do: to the process and to its group.
    demo.interrupt();
    demo.interrupt();
    for line in demo.lines.by_ref() {
        let line = line.unwrap();
        assert!(!line.contains("wrong"), "a drain is nothing wrong: {line}");
    }
    let (code, said) = demo.end();
    assert_eq!(code, Some(0), "{said}");
}

fn wait_for(mut holds: impl FnMut() -> bool) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    for _ in 0..300 {
        if holds() {
            return;
        }
        runtime.block_on(async { tokio::time::sleep(Duration::from_millis(200)).await });
    }
    panic!("it did not come about");
}
