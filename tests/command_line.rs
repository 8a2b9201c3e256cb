//! What the program says when it cannot start, as far as that takes no cluster: one line with the
//! cause and the remedy, and an exit code that tells wrong usage (2) from the rest (1).

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

#[path = "harness/program.rs"]
#[allow(unreachable_pub, reason = "the harness compiles this too")]
mod program;

use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;
use std::time::Duration;

use program::Run;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

/// Nothing here waits for an answer that never comes.
const PATIENCE: Duration = Duration::from_secs(120);

fn folder() -> TempDir {
    tempfile::tempdir().unwrap()
}

async fn run_in(folder: &Path, args: &[&str], env: &[(&str, &str)]) -> Run {
    program::run(folder, args, env, PATIENCE).await.unwrap()
}

/// Runs it in an empty folder.
async fn run(args: &[&str]) -> Run {
    run_in(folder().path(), args, &[]).await
}

/// It failed with this code, and its one line has all of these words.
fn assert_complains(run: &Run, code: i32, words: &[&str]) {
    assert_eq!(run.code(), Some(code), "{run:?}");
    assert_eq!(run.stdout, "");
    let line = run.complaint().unwrap();
    assert!(line.starts_with("error: "), "{line}");
    for word in words {
        assert!(line.contains(word), "no {word:?} in: {line}");
    }
}

fn kubeconfig(folder: &Path, server: &str) -> String {
    let path = folder.join("kubeconfig");
    let text = format!(
        "{{apiVersion: v1, kind: Config, current-context: c, \
         contexts: [{{name: c, context: {{cluster: c, user: u}}}}], \
         clusters: [{{name: c, cluster: {{server: '{server}'}}}}], \
         users: [{{name: u, user: {{token: t}}}}]}}"
    );
    std::fs::write(&path, text).unwrap();
    path.display().to_string()
}

#[tokio::test]
async fn an_unknown_flag_is_wrong_usage() {
    let run = run(&["run", "--lsten=127.0.0.1:0"]).await;
    assert_complains(&run, 2, &["unexpected argument '--lsten'", "'--listen'", "--help"]);
}

#[tokio::test]
async fn an_unknown_command_is_wrong_usage() {
    let run = run(&["rnu"]).await;
    assert_complains(&run, 2, &["unrecognized subcommand 'rnu'", "--help"]);
}

#[tokio::test]
async fn no_command_is_wrong_usage_and_shows_what_there_is() {
    let run = run(&[]).await;
    assert_eq!((run.code(), run.stdout.as_str()), (Some(2), ""), "{run:?}");
    assert!(run.stderr.contains("Commands:\n  run "), "{}", run.stderr);
}

#[tokio::test]
async fn an_address_that_is_none_is_wrong_usage() {
    let run = run(&["run", "--listen=8080"]).await;
    assert_complains(&run, 2, &["'8080' for '--listen <ADDR:PORT>'", "--help"]);
}

#[tokio::test]
async fn a_wait_that_is_no_duration_is_wrong_usage() {
    let run = run(&["run", "--api-server-wait=5"]).await;
    assert_complains(
        &run,
        2,
        &["'5' for '--api-server-wait <DURATION>'", "write a duration as 10m"],
    );
}

#[tokio::test]
async fn a_log_level_that_is_none_is_wrong_usage() {
    for level in ["loud", "ostrakon=loud", "info,=debug"] {
        let run = run(&["run", &format!("--log-level={level}")]).await;
        assert_complains(&run, 2, &["--log-level", level, "write off, error, warn, info"]);
    }
}

#[tokio::test]
async fn without_any_kubeconfig_it_says_how_to_name_one() {
    let run = run(&["run"]).await;
    assert_complains(&run, 1, &["no cluster found", "--kubeconfig", "KUBECONFIG"]);
}

#[tokio::test]
async fn a_kubeconfig_that_is_not_there_is_named() {
    let run = run(&["run", "--kubeconfig=nowhere/config"]).await;
    assert_complains(&run, 1, &["nowhere/config", "No such file", "--kubeconfig"]);
}

#[tokio::test]
async fn where_logs_are_json_the_last_words_are_too() {
    let run = run(&["run", "--kubeconfig=nowhere/config", "--log-format=json"]).await;
    assert_eq!(run.code(), Some(1), "{run:?}");
    let entry: serde_json::Value = serde_json::from_str(run.complaint().unwrap()).unwrap();
    assert_eq!(entry["level"], "ERROR", "{entry}");
    assert!(entry["timestamp"].is_string(), "{entry}");
    let message = entry["message"].as_str().unwrap();
    assert!(message.starts_with("cannot use kubeconfig nowhere/config"), "{entry}");
}

#[tokio::test]
async fn a_kubeconfig_variable_that_leads_nowhere_is_not_passed_over() {
    let folder = folder();
    let run = run_in(folder.path(), &["run"], &[("KUBECONFIG", "nowhere/config")]).await;
    assert_complains(&run, 1, &["nowhere/config", "--kubeconfig"]);
}

#[tokio::test]
async fn a_kubeconfig_that_is_none_is_named() {
    let folder = folder();
    for text in ["", "[1, 2", "just: something", "\u{0}\u{1}"] {
        std::fs::write(folder.path().join("config"), text).unwrap();
        let run = run_in(folder.path(), &["run", "--kubeconfig=config"], &[]).await;
        assert_complains(&run, 1, &["kubeconfig config", "--kubeconfig"]);
    }
}

#[tokio::test]
async fn a_kubeconfig_that_cannot_be_parsed_is_not_shown() {
    let folder = folder();
    let text = "users:\n- {name: u, user: {token: s3cr3t}\nclusters: []\n";
    std::fs::write(folder.path().join("config"), text).unwrap();
    for (args, env) in [
        (&["run", "--kubeconfig=config"][..], &[][..]),
        (&["run"], &[("KUBECONFIG", "config")]),
        (&["run", "--context=c"], &[("KUBECONFIG", "config")]),
    ] {
        let run = run_in(folder.path(), args, env).await;
        assert_complains(&run, 1, &["kubeconfig", "line ", "--kubeconfig"]);
        assert!(!run.stderr.contains("s3cr3t"), "{run:?}");
    }
}

#[tokio::test]
async fn an_unknown_context_is_named_beside_those_that_there_are() {
    let folder = folder();
    let config = kubeconfig(folder.path(), "https://127.0.0.1:1");
    let named = format!("--kubeconfig={config}");
    let run = run_in(folder.path(), &["run", &named, "--context=prod"], &[]).await;
    assert_complains(&run, 1, &["has no context \"prod\"", "--context: c"]);
    let env = [("KUBECONFIG", config.as_str())];
    let run = run_in(folder.path(), &["run", "--context=prod"], &env).await;
    assert_complains(&run, 1, &["has no context \"prod\"", "--context: c"]);
}

#[tokio::test]
async fn an_address_that_no_server_has_is_named_at_once() {
    let folder = folder();
    for server in ["ftp://127.0.0.1:1", "https://not a name"] {
        let config = kubeconfig(folder.path(), server);
        let run = run_in(folder.path(), &["run", &format!("--kubeconfig={config}")], &[]).await;
        assert_complains(&run, 1, &["cannot use", "kubeconfig"]);
    }
}

/// Runs it against this server, which cannot be reached.
async fn run_without_waiting(folder: &Path, server: &str) -> Run {
    let config = format!("--kubeconfig={}", kubeconfig(folder, server));
    let args = ["run", &config, "--listen=127.0.0.1:0", "--api-server-wait=0s"];
    run_in(folder, &args, &[]).await
}

#[tokio::test]
async fn a_server_that_nobody_listens_on_is_named() {
    // Bound, so that it is nobody else's, and not listened on.
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.bind((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
    let free = socket.local_addr().unwrap();
    let folder = folder();
    let run = run_without_waiting(folder.path(), &format!("https://{free}")).await;
    let server = free.to_string();
    assert_complains(&run, 1, &["cannot reach the API server", &server, "refused", "check"]);
}

#[tokio::test]
async fn a_server_whose_name_is_unknown_is_named() {
    let folder = folder();
    let run = run_without_waiting(folder.path(), "https://no-such-host.invalid:6443").await;
    assert_complains(&run, 1, &["cannot reach the API server", "no-such-host.invalid", "check"]);
}

#[tokio::test]
async fn a_server_that_is_silent_is_given_up_in_time() {
    // Connections are taken by the kernel, and nobody answers.
    let silent = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let folder = folder();
    let server = silent.local_addr().unwrap().to_string();
    let run = run_without_waiting(folder.path(), &format!("http://{server}")).await;
    assert_complains(&run, 1, &["cannot reach the API server", &server, "no answer within 15s"]);
}

#[tokio::test]
async fn a_server_that_is_no_api_server_is_named() {
    let web = tokio::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let server = web.local_addr().unwrap().to_string();
    tokio::spawn(async move {
        let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\n<html>";
        while let Ok((mut connection, _)) = web.accept().await {
            let mut request = [0; 8192];
            let _ = connection.read(&mut request).await;
            let _ = connection.write_all(answer).await;
        }
    });
    let folder = folder();
    let config = kubeconfig(folder.path(), &format!("http://{server}"));
    let args = ["run", &format!("--kubeconfig={config}"), "--listen=127.0.0.1:0"];
    let run = run_in(folder.path(), &args, &[]).await;
    assert_complains(
        &run,
        1,
        &["cannot check permissions with the API server at", &server, "check that an API server"],
    );
}

#[tokio::test]
async fn a_drain_flag_that_makes_no_sense_is_wrong_usage() {
    for (args, words) in [
        (&["--drain-condition=Ready=Unknown"][..], &["column 14", "Ready=Unknown,0s"][..]),
        (&["--drain-condition=A", "--node-label-expr=a =="], &["column 1", "unknown word"]),
        (&["--skip-drain"], &["--drain-condition"]),
        (&["--config=x", "--drain-condition=A"], &["cannot be used with"]),
    ] {
        let run = run(&[&["run"], args].concat()).await;
        assert_complains(&run, 2, words);
    }
}

/// Writes `c.yaml`, with these settings first, so that places are those in `settings`.
fn write_config(folder: &Path, settings: &str) {
    let header = "apiVersion: config.ostrakon.dev/v1alpha1\nkind: OstrakonConfiguration\n";
    std::fs::write(folder.join("c.yaml"), format!("{settings}\n{header}")).unwrap();
}

#[tokio::test]
async fn a_configuration_that_cannot_be_used_stops_the_start() {
    let folder = folder();
    let started = run_in(folder.path(), &["run", "--config=nowhere.yaml"], &[]).await;
    assert_complains(&started, 1, &["cannot read --config nowhere.yaml", "No such file"]);
    for (text, words) in [
        ("drainPolicies: [{name: p, conditions: []}]", &["line 1: policy \"p\", conditions"][..]),
        ("drainPolicies:\n- {nam: p}", &["nam", "line 2", "did you mean name", "docs/config.md"]),
        (
            "drainPolicies:\n- {name: p, x: 1}\n- y",
            &["line 2: ", "also line 3: ", "unknown key \"x\""],
        ),
        ("drainPolicies:\n\t- name: p", &["line 2: YAML does not allow tabs"]),
    ] {
        write_config(folder.path(), text);
        let started = run_in(folder.path(), &["run", "--config=c.yaml"], &[]).await;
        let words = [&["cannot use --config c.yaml"], words].concat();
        assert_complains(&started, 1, &words);
    }
}

#[tokio::test]
async fn a_start_warns_of_what_is_seldom_meant_with_its_line() {
    let folder = folder();
    let text = "drainPolicies:\n- name: p\n  conditions: [NotReady]\n";
    write_config(folder.path(), text);
    let config = kubeconfig(folder.path(), "https://127.0.0.1:1");
    let config = format!("--kubeconfig={config}");
    let args = ["run", "--config=c.yaml", &config, "--listen=127.0.0.1:0", "--api-server-wait=0s"];
    let started = run_in(folder.path(), &args, &[]).await;
    let words = "c.yaml:3: policy \"p\", conditions[0]: no node has a condition NotReady";
    assert!(started.stderr.contains(words), "{started:?}");
}

#[tokio::test]
async fn a_check_names_every_mistake_on_a_line_of_its_own() {
    let folder = folder();
    let text =
        "drainPolicies:\n- name: p\n  conditions: [Ready]\n  headroom: x\n  drain: \"yes\"\n";
    write_config(folder.path(), text);
    let run = run_in(folder.path(), &["config", "check", "c.yaml"], &[]).await;
    assert_eq!((run.code(), run.stdout.as_str()), (Some(1), ""), "{run:?}");
    let lines: Vec<_> = run.stderr.lines().collect();
    assert_eq!(lines.len(), 4, "{run:?}");
    assert_eq!(lines[0], "error: c.yaml cannot be used: 3 errors");
    let places =
        ["3:16: error: policy \"p\", conditions[0]", "4:13: error: policy \"p\", headroom"];
    for (line, place) in
        lines[1..].iter().zip([places[0], places[1], "5:10: error: policy \"p\", drain"])
    {
        assert!(line.starts_with(&format!("c.yaml:{place}: ")), "{line}");
    }
}

#[tokio::test]
async fn a_check_can_be_strict_and_speak_json() {
    let folder = folder();
    let text = "drainPolicies: [{name: p, conditions: [NotReady]}]";
    write_config(folder.path(), text);
    let check = async |more: &[&str]| {
        run_in(folder.path(), &[&["config", "check", "c.yaml"], more].concat(), &[]).await
    };
    let usable = check(&[]).await;
    assert_eq!((usable.code(), usable.stderr.as_str()), (Some(0), ""), "{usable:?}");
    assert!(usable.stdout.contains("c.yaml:1:40: warning: policy \"p\""), "{usable:?}");
    let strict = check(&["--strict"]).await;
    assert_eq!((strict.code(), strict.stdout.as_str()), (Some(1), ""), "{strict:?}");
    let json = check(&["-o", "json", "--strict"]).await;
    assert_eq!(json.code(), Some(1), "{json:?}");
    let read: serde_json::Value = serde_json::from_str(&json.stdout).unwrap();
    assert_eq!(read["usable"], false);
    assert_eq!(read["problems"][0]["line"], 1);
    assert_eq!(read["problems"][0]["severity"], "error");
    let json = check(&["-o", "json"]).await;
    assert_eq!((json.code(), json.stderr.as_str()), (Some(0), ""), "{json:?}");
}

#[tokio::test]
async fn what_draino_was_told_becomes_a_file_that_can_be_used() {
    let folder = folder();
    let args = ["config", "from-draino", "--", "--drain-buffer", "5m", "KernelDeadlock"];
    let written = run_in(folder.path(), &args, &[]).await;
    assert_eq!((written.code(), written.stderr.as_str()), (Some(0), ""), "{written:?}");
    std::fs::write(folder.path().join("c.yaml"), &written.stdout).unwrap();
    let checked = run_in(folder.path(), &["config", "check", "c.yaml"], &[]).await;
    assert_eq!((checked.code(), checked.stderr.as_str()), (Some(0), ""), "{checked:?}");
    assert!(checked.stdout.starts_with("c.yaml can be used: 1 drain policy\n"), "{checked:?}");
    assert!(
        checked.stdout.contains("11s after the cordon, and 5m0s after the previous"),
        "{checked:?}"
    );
}

#[tokio::test]
async fn a_manifest_of_draino_becomes_a_file_and_what_is_lost_a_warning() {
    let folder = folder();
    let text = "kind: Deployment\nmetadata: {name: d}\nspec:\n  template:\n    spec:\n      containers:\n      \
                - command: [/draino, --dry-run, KernelDeadlock]\n        image: planetlabs/draino:1\n";
    std::fs::write(folder.path().join("d.yaml"), text).unwrap();
    let written = run_in(folder.path(), &["config", "from-draino", "-f", "d.yaml"], &[]).await;
    assert_eq!(written.code(), Some(1), "{written:?}");
    let lines: Vec<_> = written.stderr.lines().collect();
    assert_eq!(lines.len(), 2, "{written:?}");
    assert!(lines[0].starts_with("warning: not converted: --dry-run (d.yaml:7): "), "{written:?}");
    assert_eq!(lines[1], "error: 1 setting not converted; see the comments in the file");
    assert!(written.stdout.contains("- name: \"d\"\n"), "{written:?}");
    assert!(written.stdout.contains("\"KernelDeadlock=True,0s\" # d.yaml:7\n"), "{written:?}");
    std::fs::write(folder.path().join("c.yaml"), &written.stdout).unwrap();
    let checked = run_in(folder.path(), &["config", "check", "c.yaml"], &[]).await;
    assert_eq!(checked.code(), Some(0), "{checked:?}");
}

#[tokio::test]
async fn a_file_without_draino_is_an_error() {
    let folder = folder();
    for (text, words) in [
        ("kind: Service\n", &["neither a container that runs draino"][..]),
        ("a: {{ b }}\n", &["d.yaml: line 1: ", "Helm template"]),
        ("", &["neither a container that runs draino"]),
    ] {
        std::fs::write(folder.path().join("d.yaml"), text).unwrap();
        let run = run_in(folder.path(), &["config", "from-draino", "-f", "d.yaml"], &[]).await;
        assert_complains(&run, 1, words);
    }
    let run = run_in(folder.path(), &["config", "from-draino", "-f", "no.yaml"], &[]).await;
    assert_complains(&run, 1, &["cannot read no.yaml", "No such file"]);
}

#[tokio::test]
async fn arguments_of_which_nothing_can_be_made_are_wrong_usage() {
    let run = run(&["config", "from-draino", "--", "--nonsense", "Ready"]).await;
    assert_complains(
        &run,
        2,
        &["--nonsense: no known draino", "every healthy node would be bad", "Ready=Unknown,10m"],
    );
    let run = self::run(&["config", "from-draino"]).await;
    assert_complains(&run, 2, &["ARGUMENT"]);
    let run = self::run(&["config", "from-draino", "-f", "x", "--", "A"]).await;
    assert_complains(&run, 2, &["cannot be used with"]);
}

#[tokio::test]
async fn help_names_every_flag_with_its_default() {
    let run = run(&["run", "--help"]).await;
    assert_eq!((run.code(), run.stderr.as_str()), (Some(0), ""), "{run:?}");
    for words in [
        "--kubeconfig <FILE>",
        "[default: KUBECONFIG, then ~/.kube/config, then the pod's service account]",
        "--context <NAME>",
        "[default: the current context]",
        "--api-server-wait <DURATION>",
        "[default: 5m]",
        "--listen <ADDR:PORT>",
        "[default: 127.0.0.1:8080]",
        "--compat <COMPAT>",
        "[default: none]",
        "--log-format <LOG_FORMAT>",
        "[default: text]",
        "--log-level <LEVEL>",
        "[default: info]",
        "--config <FILE>",
        "--drain-condition <CONDITION>",
        "--node-label-expr <EXPRESSION>",
        "[default: all nodes]",
        "--drain-buffer <DURATION>",
        "[default: 10m]",
        "--max-grace-period <DURATION>",
        "[default: 8m]",
        "--eviction-headroom <DURATION>",
        "[default: 30s]",
        "--skip-drain",
        "--evict-daemonset-pods",
        "--evict-statefulset-pods",
        "--evict-emptydir-pods",
        "--evict-unreplicated-pods",
        "--protected-pod-annotation <KEY[=VALUE]>",
    ] {
        let text = run.stdout.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(text.contains(words), "no {words:?} in: {}", run.stdout);
    }
    assert!(run.stdout.lines().all(|line| line.chars().count() <= 100), "{}", run.stdout);
}

#[tokio::test]
async fn a_token_with_a_line_end_is_an_error_and_is_not_shown() {
    let folder = folder();
    let config = kubeconfig(folder.path(), "http://127.0.0.1:1");
    let text = std::fs::read_to_string(&config).unwrap();
    let mut content: serde_json::Value = serde_saphyr::from_str(&text).unwrap();
    content["users"][0]["user"] = serde_json::json!({"token": "s3\ncr3t"});
    std::fs::write(&config, content.to_string()).unwrap();
    let run = run_in(folder.path(), &["run", &format!("--kubeconfig={config}")], &[]).await;
    assert_complains(&run, 1, &["cannot use kubeconfig", "user \"", "line break", "on one line"]);
    assert!(!run.stderr.contains("cr3t"), "{run:?}");
}

#[tokio::test]
async fn what_a_failing_plugin_writes_is_not_in_the_log() {
    let folder = folder();
    let config = kubeconfig(folder.path(), "http://127.0.0.1:1");
    let text = std::fs::read_to_string(&config).unwrap();
    let mut content: serde_json::Value = serde_saphyr::from_str(&text).unwrap();
    content["users"][0]["user"] = serde_json::json!({"exec": {
        "apiVersion": "client.authentication.k8s.io/v1",
        "command": "/bin/sh",
        "args": ["-c", "echo out-s3cr3t; echo err-s3cr3t >&2; exit 7"],
    }});
    std::fs::write(&config, content.to_string()).unwrap();
    let config = format!("--kubeconfig={config}");
    let args =
        ["run", &config, "--listen=127.0.0.1:0", "--api-server-wait=0s", "--log-level=trace"];
    let run = run_in(folder.path(), &args, &[]).await;
    assert_eq!(run.code(), Some(1), "{run:?}");
    for words in ["cannot get credentials", "exec plugin /bin/sh", "exit status: 7"] {
        assert!(run.stderr.contains(words), "no {words:?} in: {run:?}");
    }
    assert!(!run.stderr.contains("s3cr3t") && !run.stdout.contains("s3cr3t"), "{run:?}");
}

#[tokio::test]
async fn a_pause_needs_a_reason_and_a_time_that_is_one() {
    assert_complains(&run(&["pause"]).await, 2, &["--reason <TEXT>"]);
    assert_complains(&run(&["pause", "--reason= "]).await, 2, &["--reason is empty"]);
    let nothing = run(&["pause", "--reason=x", "--for=0s"]).await;
    assert_complains(&nothing, 2, &["--for=0s would end at once", "30m"]);
    assert_complains(&run(&["pause", "--reason=x", "--for=10"]).await, 2, &["write a duration"]);
}

#[tokio::test]
async fn a_pause_without_a_cluster_says_why_it_did_nothing() {
    let folder = folder();
    let taken = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = taken.local_addr().unwrap().port();
    drop(taken);
    let server = format!("http://127.0.0.1:{port}");
    let file = format!("--kubeconfig={}", kubeconfig(folder.path(), &server));
    let run = run_in(folder.path(), &["pause", "--reason=x", &file], &[]).await;
    assert_complains(&run, 1, &["cannot patch lease kube-system/ostrakon", &server]);
    let run = run_in(folder.path(), &["resume", &file], &[]).await;
    assert_complains(&run, 1, &["cannot get lease kube-system/ostrakon", &server]);
    let run = run_in(folder.path(), &["resume"], &[]).await;
    assert_complains(&run, 1, &["no cluster found"]);
}
