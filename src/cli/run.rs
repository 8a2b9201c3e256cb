//! `ostrakon run`.

use std::future::pending;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use clap::{ArgAction, Args};
use tokio::time::sleep;
use tracing::{info, warn};

use super::drain::DrainArguments;
use super::signals::{Asked, Signals};
use super::{duration, limits};
use crate::cluster::connect;
use crate::config::{Compat, Config, DryRun, Election};
use crate::controller::{self, Shadowing};
use crate::dry_run::check_writable;
use crate::leader::Times;
use crate::observe::{LogFormat, LogLevel, start_logs};

/// Run the controller against a cluster until a signal stops it
///
/// Switch off the taint-eviction controller of kube-controller-manager first
/// (--controllers=*,-taint-eviction-controller). Do not run both: each would evict pods by its own
/// rules. If it runs, ostrakon notices it when it evicts pods, and reports it.
///
/// On SIGTERM, SIGINT or SIGHUP it starts no new work, finishes requests in flight within 20 s,
/// releases its lease and exits with 0. A second signal ends it at once. With --config, SIGHUP has the
/// file read again instead, unless the terminal that it writes to was closed. A replica that loses the
/// lease stops writing, stays up as a standby and takes part in the next election.
#[derive(Debug, Args)]
#[allow(clippy::struct_excessive_bools, reason = "flags that are given or not")]
pub(super) struct Arguments {
    /// Kubeconfig file [default: KUBECONFIG, then ~/.kube/config, then the pod's service account]
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,

    /// Kubeconfig context [default: the current context]
    #[arg(long, value_name = "NAME")]
    context: Option<String>,

    /// How long to wait at startup for an API server that is unreachable, overloaded or still starting;
    /// 0s does not wait
    #[arg(long, value_name = "DURATION", value_parser = duration, default_value = "5m")]
    api_server_wait: Duration,

    /// Address for /livez, /readyz and /metrics; `:8080` and `[::]:8080` listen on all IPv4 and IPv6
    /// addresses; port 0 picks a free port
    #[arg(long, value_name = "ADDR:PORT", default_value = "127.0.0.1:8080", value_parser = listen)]
    listen: SocketAddr,

    /// Taint eviction rules: ostrakon's own, or those of kube-controller-manager
    #[arg(long, value_enum, default_value_t)]
    compat: Compat,

    /// Hold evictions for taints while another controller evicts pods for NoExecute taints too, such as
    /// the one built into kube-controller-manager, until there was no sign of it for 5 minutes. A sign in
    /// one namespace holds evictions there; signs in three, on two nodes, hold all. Nothing else is held
    #[arg(long, conflicts_with = "dry_run")]
    require_exclusive: bool,

    /// Elect a leader among several replicas with the lease `ostrakon` (coordination.k8s.io/v1). With
    /// =false the replica works at once; run only one then
    #[arg(long, value_name = "BOOL", default_value_t = true, default_missing_value = "true",
        num_args = 0..=1, require_equals = true, action = ArgAction::Set)]
    leader_elect: bool,

    /// Namespace of the lease; must be the same for all replicas in a cluster
    #[arg(long, value_name = "NAME", default_value = "kube-system", value_parser = namespace)]
    leader_elect_namespace: String,

    /// How long the lease is valid after its last renewal, 2s to 5m. If the leader dies, another
    /// replica takes over shortly after this time
    #[arg(long, value_name = "DURATION", value_parser = duration, default_value = "5s")]
    leader_elect_lease_duration: Duration,

    /// How long the leader keeps working without a successful renewal, at most 4/5 of the lease
    /// duration
    #[arg(long, value_name = "DURATION", value_parser = duration, default_value = "3500ms")]
    leader_elect_renew_deadline: Duration,

    /// Interval between renewals of the lease, at most half of the renew deadline
    #[arg(long, value_name = "DURATION", value_parser = duration, default_value = "1s")]
    leader_elect_retry_period: Duration,

    /// UID of the pod that this process runs in, from the downward API [default: the variable
    /// `POD_UID`]. A restarted container then takes over its predecessor's lease at once. Only one
    /// container of a pod may run ostrakon with it
    #[arg(long, value_name = "UID", value_parser = pod_uid)]
    pod_uid: Option<String>,

    /// Log format; logs go to standard error
    #[arg(long, value_enum, default_value_t)]
    log_format: LogFormat,

    /// Log level: off, error, warn, info, debug or trace, or directives such as
    /// `info,ostrakon::evict=debug`
    #[arg(long, value_name = "LEVEL", default_value = "info")]
    log_level: LogLevel,

    #[command(flatten)]
    drain: DrainArguments,

    /// Decide everything and write nothing: no eviction, no cordon, no record, no lease. It needs only
    /// rights to read, and may run beside a working manager, which it observes. See docs/dry-run.md
    #[arg(long, help_heading = "Dry run")]
    dry_run: bool,

    /// End the dry run after this time, as by SIGTERM [default: it runs until a signal stops it]
    #[arg(long = "for", value_name = "DURATION", value_parser = duration, requires = "dry_run",
        help_heading = "Dry run")]
    dry_run_for: Option<Duration>,

    /// Write what the dry run has found to this file at its end, as JSON. A summary goes to standard output in
    /// any case
    #[arg(long, value_name = "FILE", requires = "dry_run", help_heading = "Dry run")]
    report: Option<PathBuf>,

    /// Create Kubernetes events that say what would have been done. Their reasons begin with `DryRun`. This
    /// needs the right to create events, and nothing else is written
    #[arg(long, requires = "dry_run", help_heading = "Dry run")]
    dry_run_events: bool,
}

impl Arguments {
    /// The log format.
    pub(super) fn log_format(&self) -> LogFormat {
        self.log_format
    }
}

/// An address to listen on. Without a host it means all addresses, as in Kubernetes components.
fn listen(text: &str) -> Result<SocketAddr, String> {
    let with_host = match text.rsplit_once(':') {
        Some(("", port)) => format!("[::]:{port}"),
        Some(("localhost", port)) => format!("127.0.0.1:{port}"),
        _ => text.to_owned(),
    };
    with_host
        .parse()
        .map_err(|_| "write IP:PORT, [IPv6]:PORT, or :PORT for all addresses".to_owned())
}

/// Checks the name of a namespace.
pub(super) fn namespace(text: &str) -> Result<String, String> {
    let is_edge = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    let is_name = text.starts_with(is_edge)
        && text.ends_with(is_edge)
        && text.len() <= 63
        && text.chars().all(|c| is_edge(c) || c == '-');
    is_name.then(|| text.to_owned()).ok_or_else(|| {
        "write at most 63 of a-z, 0-9 and -, beginning and ending with a letter or digit".to_owned()
    })
}

/// Checks the UID of a pod: a UUID, or a hash for a static pod.
fn pod_uid(text: &str) -> Result<String, String> {
    let is_uid = !text.is_empty()
        && text.len() <= 64
        && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '-');
    is_uid.then(|| text.to_owned()).ok_or_else(|| {
        "write 1 to 64 letters, digits and -; use metadata.uid of the downward API".to_owned()
    })
}

/// Runs the controller until a signal stops it.
pub(super) fn run(arguments: Arguments) -> anyhow::Result<()> {
    start_logs(arguments.log_format, &arguments.log_level);
    limits::raise_open_files();
    if let Some(path) = &arguments.report {
        check_writable(path).with_context(|| {
            format!("cannot write {}; choose another file with --report", path.display())
        })?;
    }
    let (settings, warnings, file) = arguments.drain.settings()?;
    for warning in warnings {
        warn!("{warning}");
    }
    if let Some(conflict) = settings.conflict_with(arguments.compat) {
        bail!(conflict);
    }
    let times = Times::new(
        arguments.leader_elect_lease_duration,
        arguments.leader_elect_renew_deadline,
        arguments.leader_elect_retry_period,
    )?;
    let lease_namespace = arguments.leader_elect_namespace;
    let election = Election { namespace: lease_namespace.clone(), times };
    let from_pod = std::env::var("POD_UID").ok().filter(|uid| !uid.is_empty());
    let from_pod = from_pod.map(|uid| pod_uid(&uid)).transpose();
    let from_pod = from_pod.map_err(|error| anyhow!("POD_UID: {error}"))?;
    let config = Config {
        kubeconfig: arguments.kubeconfig,
        context: arguments.context,
        api_server_wait: arguments.api_server_wait,
        listen: arguments.listen,
        compat: arguments.compat,
        election: arguments.leader_elect.then_some(election),
        lease_namespace,
        pod_uid: arguments.pod_uid.or(from_pod),
        instance: std::env::var("HOSTNAME").unwrap_or_else(|_| "ostrakon".to_owned()),
        dry_run: arguments.dry_run.then_some(DryRun { events: arguments.dry_run_events }),
        require_exclusive: arguments.require_exclusive,
        settings,
        file,
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .thread_name("io")
        .enable_all()
        .build()
        .context("cannot start the I/O threads; check the process and memory limits")?;
    let mut shadowing = None;
    let run = until_stopped(&config, arguments.dry_run_for, &mut shadowing);
    let outcome = runtime.block_on(run);
    let reported = shadowing.map(|shadowing| report(&shadowing, arguments.report.as_deref()));
    // After a second signal, do not wait for tasks that are still running.
    runtime.shutdown_timeout(Duration::from_millis(100));
    outcome.and(reported.unwrap_or(Ok(())))
}

/// Prints what a dry run has found, and writes it to a file.
fn report(shadowing: &Shadowing, path: Option<&Path>) -> anyhow::Result<()> {
    let report = shadowing.report();
    write!(io::stdout(), "{report}").context("cannot print the summary")?;
    let Some(path) = path else { return Ok(()) };
    report.write_to(path).with_context(|| format!("cannot write {}", path.display()))?;
    info!(path = %path.display(), "wrote the report");
    Ok(())
}

async fn until_stopped(
    config: &Config,
    run_for: Option<Duration>,
    shadowing: &mut Option<Arc<Shadowing>>,
) -> anyhow::Result<()> {
    let mut signals = Signals::new(config.file.is_some())?;
    let started = async {
        let cluster = connect(config.kubeconfig.as_deref(), config.context.as_deref())?;
        anyhow::Ok(controller::start(cluster, config).await?)
    };
    tokio::pin!(started);
    let mut running = loop {
        tokio::select! {
            running = &mut started => break running?,
            asked = signals.next() => match asked {
                // It is read once the controller has started.
                Asked::ReadFile => {}
                Asked::Stop(name) => {
                    info!(signal = name, "stopped during startup");
                    return Ok(());
                }
            }
        }
    };
    *shadowing = running.shadowing();
    let time_is_over = async {
        match run_for {
            Some(time) => sleep(time).await,
            None => pending().await,
        }
    };
    tokio::pin!(time_is_over);
    loop {
        tokio::select! {
            () = &mut time_is_over => {
                info!("stopping: the time of --for is over");
                break;
            }
            asked = signals.next() => match asked {
                Asked::ReadFile => running.read_file(),
                Asked::Stop(name) => {
                    info!(signal = name, "stopping; another signal ends the process at once");
                    break;
                }
            },
            failure = running.failed() => {
                return Err(failure.into());
            }
        }
    }
    let stopping = running.stop();
    tokio::pin!(stopping);
    loop {
        tokio::select! {
            stopped = &mut stopping => {
                stopped?;
                info!("stopped");
                return Ok(());
            }
            asked = signals.next() => match asked {
                Asked::ReadFile => {}
                Asked::Stop(name) => {
                    return Err(anyhow!(
                        "ended by a second signal ({name}); requests in flight were abandoned"
                    ));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listen_address_without_a_host_means_all_addresses_of_both_families() {
        for (text, address) in [
            (":8080", "[::]:8080"),
            ("[::]:8080", "[::]:8080"),
            ("0.0.0.0:8080", "0.0.0.0:8080"),
            ("127.0.0.1:0", "127.0.0.1:0"),
            ("localhost:8080", "127.0.0.1:8080"),
        ] {
            assert_eq!(listen(text).map(|address| address.to_string()), Ok(address.to_owned()));
        }
        for text in ["8080", "", ":", ":x", ":70000", "::8080", "[::]", "example.com:8080"] {
            let error = listen(text).unwrap_err();
            assert!(error.contains("write IP:PORT"), "{text}: {error}");
        }
    }
}
