//! A test bed: a control plane on loopback, or the embedded cluster. Its components are started in order
//! and stopped in reverse order.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use kube::Client;
use parking_lot::Mutex;
use tempfile::TempDir;
use tokio_rustls::rustls::pki_types::PrivateKeyDer;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;

use super::arena::Arena;
use super::audit::{self, Audit, AuditLog};
use super::binaries::{Binaries, Etcd, Launch};
use super::component::{Component, How};
use super::embedded::EmbeddedPlane;
use super::fault_proxy::FaultProxy;
use super::process::{Leash, Process, Program};
use super::silent_proxy::SilentProxy;
use super::users::{self, User, Users};
use super::{manifests, ports, wait};

/// Keeps the folder with all logs, whatever happens.
const KEEP: &str = "OSTRAKON_KEEP_BED";

/// Whether kube-controller-manager evicts by taints itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TaintEviction {
    /// Left to ostrakon, as in a cluster that runs it.
    Off,
    /// As in a cluster without ostrakon.
    BuiltIn,
}

/// What a [`Bed`] consists of. By default etcd and kube-apiserver alone.
#[derive(Clone, Debug, Default)]
pub struct BedOptions {
    controller_manager: Option<TaintEviction>,
    node_grace: Option<Duration>,
    scheduler: bool,
    apiserver_flags: Vec<String>,
    controller_manager_flags: Vec<String>,
}

impl BedOptions {
    /// Adds kube-controller-manager.
    pub fn controller_manager(mut self, taint_eviction: TaintEviction) -> Self {
        self.controller_manager = Some(taint_eviction);
        self
    }

    /// Makes the node lifecycle controller look every second, and take a node for lost after `grace`
    /// instead of 50 s. Kubelets must then renew their leases every 2 s: the rest of the grace is how
    /// long a machine may stall without any node being lost.
    pub fn node_monitor(mut self, grace: Duration) -> Self {
        self.node_grace = Some(grace);
        self
    }

    /// Adds kube-scheduler.
    pub fn scheduler(mut self) -> Self {
        self.scheduler = true;
        self
    }

    /// Another flag for kube-apiserver.
    pub fn apiserver_flag(mut self, flag: &str) -> Self {
        self.apiserver_flags.push(flag.to_owned());
        self
    }

    /// Another flag for kube-controller-manager.
    pub fn controller_manager_flag(mut self, flag: &str) -> Self {
        self.controller_manager_flags.push(flag.to_owned());
        self
    }
}

/// Why there is no bed.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// This machine cannot build the control plane. The tests are to be skipped, with this reason.
    #[error("{0}")]
    Unavailable(String),
    /// Anything else.
    #[error(transparent)]
    Failed(#[from] anyhow::Error),
}

/// A running control plane.
#[derive(Debug)]
pub struct Bed {
    // Fields are dropped in this order.
    plane: Plane,
    options: BedOptions,
    place: Place,
    audit: AuditLog,
    leash: Leash,
    folder: Mutex<TempDir>,
}

/// What the control plane consists of.
#[derive(Debug)]
enum Plane {
    Processes(Box<Processes>),
    Embedded(EmbeddedPlane),
}

#[derive(Debug)]
struct Processes {
    // Fields are dropped in this order. An API server that loses its etcd first hangs.
    scheduler: Option<Component>,
    controller_manager: Option<Component>,
    apiserver: Component,
    etcd: Component,
    binaries: Binaries,
}

impl Bed {
    /// Starts a control plane, and builds it first if need be.
    pub async fn start(options: BedOptions) -> Result<Self, StartError> {
        let all = options.controller_manager.is_some() || options.scheduler;
        let binaries = Binaries::find(all).await?;
        Ok(Self::start_with(options, &binaries).await?)
    }

    /// The embedded cluster in the place of a control plane.
    pub async fn embedded() -> Result<Self> {
        let (folder, leash, mut place) = Self::prepare()?;
        let audit = AuditLog::new(place.folder.join("audit.log"));
        let plane = EmbeddedPlane::start(&place.users, audit.path()).await?;
        place.server = Server { url: plane.url(), ca: None };
        let (plane, options) = (Plane::Embedded(plane), BedOptions::default());
        Ok(Self { plane, options, place, audit, leash, folder })
    }

    fn prepare() -> Result<(Mutex<TempDir>, Leash, Place)> {
        let mut folder = tempfile::Builder::new().prefix("ostrakon-bed-").tempdir()?;
        folder.disable_cleanup(std::env::var_os(KEEP).is_some());
        let (leash, place) = (Leash::new(folder.path())?, Place::new(folder.path())?);
        Ok((Mutex::new(folder), leash, place))
    }

    async fn start_with(options: BedOptions, binaries: &Binaries) -> Result<Self> {
        let (folder, leash, place) = Self::prepare()?;
        let etcd = place.etcd(&binaries.etcd, &leash).await?;
        let audit = AuditLog::new(place.folder.join("audit.log"));
        let policy = audit::write_policy(&place.folder)?;
        let apiserver =
            place.apiserver(&binaries.apiserver, &options, &policy, audit.path(), &leash)?;
        let processes = Processes {
            scheduler: match &binaries.scheduler {
                Some(launch) if options.scheduler => Some(place.scheduler(launch, &leash)?),
                _ => None,
            },
            controller_manager: match (&binaries.controller_manager, options.controller_manager) {
                (Some(launch), Some(eviction)) => {
                    Some(place.controller_manager(launch, &options, eviction, &leash)?)
                }
                _ => None,
            },
            apiserver,
            etcd,
            binaries: binaries.clone(),
        };
        processes.etcd.start().await?;
        processes.apiserver.start().await?;
        let plane = Plane::Processes(Box::new(processes));
        let bed = Self { plane, options, place, audit, leash, folder };
        let followers = async {
            for follower in bed.followers() {
                follower.start().await?;
            }
            Ok(())
        };
        let rights = async { manifests::apply_rights(&bed.admin()?).await };
        tokio::try_join!(followers, rights)?;
        Ok(bed)
    }

    fn processes(&self) -> Result<&Processes> {
        match &self.plane {
            Plane::Processes(processes) => Ok(processes),
            Plane::Embedded(_) => bail!("the embedded cluster has no processes"),
        }
    }

    /// kube-controller-manager and kube-scheduler, as far as they are there.
    fn followers(&self) -> impl Iterator<Item = &Component> {
        let processes = self.processes().ok();
        let followers = processes.map(|of| [of.controller_manager.as_ref(), of.scheduler.as_ref()]);
        followers.into_iter().flatten().flatten()
    }

    /// Stops everything, in order. Dropping does the same, but blocks and keeps errors to itself.
    pub async fn stop(self) -> Result<()> {
        for follower in self.followers() {
            follower.stop(How::Graceful).await?;
        }
        match self.plane {
            Plane::Processes(processes) => {
                processes.apiserver.stop(How::Graceful).await?;
                processes.etcd.stop(How::Graceful).await
            }
            Plane::Embedded(plane) => {
                plane.stop().await;
                Ok(())
            }
        }
    }

    /// Brings up whatever is down or frozen.
    pub async fn mend(&self) -> Result<()> {
        if let Plane::Processes(processes) = &self.plane {
            processes.etcd.mend().await?;
            processes.apiserver.mend().await?;
        }
        for follower in self.followers() {
            follower.mend().await?;
        }
        Ok(())
    }

    /// A client that may do everything. It belongs to the runtime that this is called on.
    pub fn admin(&self) -> Result<Client> {
        self.client_for(User::Admin)
    }

    /// A client of `user`, which does not retry by itself.
    pub fn client_for(&self, user: User) -> Result<Client> {
        let mut config = self.place.config()?;
        config.auth_info.token = Some(self.place.users.token(user).into());
        Ok(Client::try_from(config)?)
    }

    /// A client of this user, which is none of [`User`], in these groups. It does not retry by itself.
    pub fn client_as(&self, user: &str, groups: &[String]) -> Result<Client> {
        let mut config = self.place.config()?;
        config.auth_info.token = Some(self.place.users.token(User::Admin).into());
        config.auth_info.impersonate = Some(user.to_owned());
        config.auth_info.impersonate_groups = Some(groups.to_vec());
        Ok(Client::try_from(config)?)
    }

    /// The API server's own certificate, good for 127.0.0.1, with its authority, and its key.
    pub fn server_certificate(&self) -> Result<(Vec<Vec<u8>>, PrivateKeyDer<'static>)> {
        let certificate = self.place.server.ca.as_ref().context("it is served without TLS")?;
        let chain = pem::parse_many(std::fs::read(certificate)?)?;
        let key = PrivateKeyDer::from_pem_file(certificate.with_extension("key"))?;
        Ok((chain.into_iter().map(pem::Pem::into_contents).collect(), key))
    }

    /// A kubeconfig with which `user` talks to the API server.
    pub fn kubeconfig(&self, user: User) -> Result<PathBuf> {
        self.place.kubeconfig(user)
    }

    /// A kubeconfig with which `user` talks to `proxy` instead.
    pub fn kubeconfig_via(&self, proxy: &FaultProxy, user: User) -> Result<PathBuf> {
        let label = format!("proxy-{}", proxy.port());
        self.place.users.write_kubeconfig(&label, user, &proxy.url(), None)
    }

    /// A proxy in front of the API server that can fall silent, and a kubeconfig with which `user`
    /// talks through it.
    pub async fn silent_proxy(&self, user: User) -> Result<(SilentProxy, PathBuf)> {
        let direct = std::fs::read_to_string(self.place.kubeconfig(user)?)?;
        let mut content: serde_json::Value = serde_json::from_str(&direct)?;
        let server = self.place.config()?.cluster_url;
        let upstream = server.authority().context("an API server without address")?;
        let proxy = SilentProxy::start(upstream.as_str().parse()?).await?;
        let scheme = server.scheme_str().unwrap_or_default();
        let url = format!("{scheme}://{}", proxy.address());
        content["clusters"][0]["cluster"]["server"] = url.into();
        let name = format!("silent-{}.kubeconfig", proxy.address().port());
        let path = self.folder().join(name);
        std::fs::write(&path, content.to_string())?;
        Ok((proxy, path))
    }

    /// As [`Bed::client_for`], through `proxy`.
    pub fn client_via(&self, proxy: &FaultProxy, user: User) -> Result<Client> {
        let mut config = kube::Config::new(proxy.url().parse()?);
        config.default_retry = false;
        config.auth_info.token = Some(self.place.users.token(user).into());
        Ok(Client::try_from(config)?)
    }

    /// A new proxy in front of the API server, without any faults yet. What it does by chance
    /// follows from `seed`.
    pub async fn fault_proxy(&self, seed: u64) -> Result<FaultProxy> {
        FaultProxy::start(&self.place.config()?, None, seed).await
    }

    /// As [`Bed::fault_proxy`]; requests without a token are made as `user`. Go clients send none
    /// over plain HTTP, whatever their kubeconfig says.
    pub async fn fault_proxy_for(&self, user: User, seed: u64) -> Result<FaultProxy> {
        let token = self.place.users.token(user);
        FaultProxy::start(&self.place.config()?, Some(&token), seed).await
    }

    /// A namespace and nodes for one test.
    pub async fn arena(&self, name: &str) -> Result<Arena> {
        Arena::open(self, name).await
    }

    pub fn etcd(&self) -> Result<&Component> {
        Ok(&self.processes()?.etcd)
    }

    /// Where etcd serves its clients, on 127.0.0.1.
    pub fn etcd_port(&self) -> u16 {
        self.place.etcd_port
    }

    /// Where etcd keeps what it stores.
    pub fn etcd_folder(&self) -> PathBuf {
        self.place.folder.join("etcd")
    }

    pub fn apiserver(&self) -> Result<&Component> {
        Ok(&self.processes()?.apiserver)
    }

    /// Brings the API server down and up again, and waits until it is ready.
    pub async fn restart_apiserver(&self, how: How) -> Result<()> {
        self.apiserver()?.restart(how).await
    }

    pub async fn stop_apiserver(&self, how: How) -> Result<()> {
        self.apiserver()?.stop(how).await
    }

    pub async fn start_apiserver(&self) -> Result<()> {
        self.apiserver()?.start().await
    }

    pub fn controller_manager(&self) -> Result<&Component> {
        self.processes()?
            .controller_manager
            .as_ref()
            .context("this bed has no kube-controller-manager")
    }

    /// Restarts kube-controller-manager with its own taint eviction on or off.
    pub async fn set_taint_eviction(&self, taint_eviction: TaintEviction) -> Result<()> {
        let component = self.controller_manager()?;
        let mut args = component.args().await;
        let old = args.iter().position(|arg| arg.starts_with("--controllers="));
        let old = old.context("kube-controller-manager runs without --controllers")?;
        args[old] = controllers_flag(taint_eviction);
        component.restart_with(args).await
    }

    /// Starts a second kube-controller-manager that does what ostrakon replaces and nothing else,
    /// with the API server as `kubeconfig` shows it, for a comparison. It ends with its value.
    /// Between the two may be a [`Bed::fault_proxy_for`] it.
    pub async fn start_reference(&self, kubeconfig: &Path) -> Result<Component> {
        self.start_reference_with(kubeconfig, &[]).await
    }

    /// As [`Bed::start_reference`], with more flags; a flag that is there already is overridden.
    pub async fn start_reference_with(
        &self,
        kubeconfig: &Path,
        more: &[String],
    ) -> Result<Component> {
        let launch = self.processes()?.binaries.controller_manager.as_ref();
        let launch = launch.context("there is no kube-controller-manager")?;
        let name = format!("reference-{:08x}", rand::random::<u32>());
        let port = ports::free_port()?;
        let mut flags = self.place.follower_flags(&name, User::Reference, port)?;
        flags.extend([
            // The last of two counts.
            format!("--kubeconfig={}", kubeconfig.display()),
            // The first needs the other's index of pods by node; that one has nothing to say.
            "--controllers=taint-eviction-controller,node-lifecycle-controller".to_owned(),
            "--node-monitor-grace-period=24h".to_owned(),
            "--node-startup-grace-period=24h".to_owned(),
        ]);
        flags.extend_from_slice(more);
        let health = format!("https://127.0.0.1:{port}/healthz");
        let program = self.place.program(&name, launch, flags);
        let component = Component::new(program, health, &self.leash);
        component.start().await?;
        Ok(component)
    }

    pub fn scheduler(&self) -> Result<&Component> {
        self.processes()?.scheduler.as_ref().context("this bed has no kube-scheduler")
    }

    pub fn options(&self) -> &BedOptions {
        &self.options
    }

    /// Whether there is a node lifecycle controller, so that nodes must show that they live.
    pub fn has_controllers(&self) -> bool {
        self.is_embedded() || self.makes_accounts()
    }

    /// Whether namespaces are given their default account.
    pub fn makes_accounts(&self) -> bool {
        self.controller_manager().is_ok()
    }

    /// Whether the embedded cluster is in the place of a control plane.
    pub fn is_embedded(&self) -> bool {
        matches!(self.plane, Plane::Embedded(_))
    }

    /// How often kubelets must renew their leases here.
    pub fn lease_interval(&self) -> Duration {
        Duration::from_secs(if self.options.node_grace.is_some() { 2 } else { 10 })
    }

    /// All requests that the audit policy records, up to now.
    pub fn audit(&self) -> Result<Audit> {
        self.audit.read()
    }

    /// Waits until the audit log has what `wanted` looks for: a request is written down a moment
    /// after its answer was sent.
    pub async fn audit_until<T>(
        &self,
        what: &str,
        patience: Duration,
        wanted: impl Fn(Audit) -> Option<T>,
    ) -> Result<T> {
        wait::until(what, patience, async || Ok(wanted(self.audit()?))).await
    }

    /// The folder with logs and kubeconfigs. It goes with the bed.
    pub fn folder(&self) -> &Path {
        &self.place.folder
    }

    /// Leaves the folder where it is when the bed goes.
    pub fn keep_folder(&self) {
        self.folder.lock().disable_cleanup(true);
    }

    /// Starts a program beside the control plane. It ends with its value.
    pub fn start_program(&self, program: &Program) -> Result<Process> {
        Process::start(program, &self.leash)
    }

    pub(super) fn leash(&self) -> &Leash {
        &self.leash
    }
}

/// Where a bed lives: its folder, its ports and its keys.
#[derive(Debug)]
struct Place {
    folder: PathBuf,
    users: Users,
    etcd_port: u16,
    apiserver_port: u16,
    server: Server,
    service_account_key: PathBuf,
}

/// Where the API server is served, and the file with the authority of its certificate.
#[derive(Debug)]
struct Server {
    url: String,
    ca: Option<PathBuf>,
}

impl Place {
    fn new(folder: &Path) -> Result<Self> {
        let apiserver_port = ports::free_port()?;
        // The API server makes its own certificate, and this file holds the authority too.
        let ca = folder.join("kube-apiserver-tls/apiserver.crt");
        Ok(Self {
            folder: folder.to_owned(),
            users: Users::new(folder),
            etcd_port: ports::free_port()?,
            apiserver_port,
            server: Server { url: format!("https://127.0.0.1:{apiserver_port}"), ca: Some(ca) },
            service_account_key: users::write_service_account_key(folder)?,
        })
    }

    fn kubeconfig(&self, user: User) -> Result<PathBuf> {
        let Server { url, ca } = &self.server;
        self.users.write_kubeconfig("direct", user, url, ca.as_deref())
    }

    /// How to reach the API server, as nobody yet.
    fn config(&self) -> Result<kube::Config> {
        let Server { url, ca } = &self.server;
        let mut config = kube::Config::new(url.parse()?);
        if let Some(ca) = ca {
            let text = std::fs::read(ca).with_context(|| format!("read {}", ca.display()))?;
            config.root_cert =
                Some(pem::parse_many(text)?.into_iter().map(pem::Pem::into_contents).collect());
        }
        config.default_retry = false;
        Ok(config)
    }

    fn program(&self, name: &str, launch: &Launch, flags: Vec<String>) -> Program {
        Program {
            name: name.to_owned(),
            path: launch.path.clone(),
            args: launch.args.iter().cloned().chain(flags).collect(),
            env: Vec::new(),
            log: self.folder.join(format!("{name}.log")),
        }
    }

    async fn etcd(&self, etcd: &Etcd, leash: &Leash) -> Result<Component> {
        let data = self.folder.join("etcd").display().to_string(); // See `Bed::etcd_folder`.
        let (client, peer) = (self.etcd_port, ports::free_port()?);
        let (launch, flags) = match etcd {
            Etcd::Ours(launch) => (
                launch,
                vec![
                    format!("--data-dir={data}"),
                    format!("--client-port={client}"),
                    format!("--peer-port={peer}"),
                ],
            ),
            Etcd::Plain(launch) => {
                let (client, peer) =
                    (format!("http://127.0.0.1:{client}"), format!("http://127.0.0.1:{peer}"));
                let mut flags = vec![
                    format!("--data-dir={data}"),
                    format!("--listen-client-urls={client}"),
                    format!("--advertise-client-urls={client}"),
                    format!("--listen-peer-urls={peer}"),
                    format!("--initial-advertise-peer-urls={peer}"),
                    format!("--initial-cluster=default={peer}"),
                ];
                let no_fsync = "--unsafe-no-fsync";
                if help_of(launch).await?.contains(no_fsync) {
                    flags.push(no_fsync.to_owned());
                }
                (launch, flags)
            }
        };
        let health = format!("http://127.0.0.1:{client}/health");
        Ok(Component::new(self.program("etcd", launch, flags), health, leash))
    }

    fn apiserver(
        &self,
        launch: &Launch,
        options: &BedOptions,
        policy: &Path,
        audit: &Path,
        leash: &Leash,
    ) -> Result<Component> {
        let key = self.service_account_key.display();
        let tokens = self.users.write_token_file()?;
        let tls = self.folder.join("kube-apiserver-tls");
        let mut flags = vec![
            format!("--etcd-servers=http://127.0.0.1:{}", self.etcd_port),
            "--bind-address=127.0.0.1".to_owned(),
            "--advertise-address=127.0.0.1".to_owned(),
            format!("--secure-port={}", self.apiserver_port),
            format!("--cert-dir={}", tls.display()),
            "--service-cluster-ip-range=10.0.0.0/24".to_owned(),
            "--authorization-mode=RBAC".to_owned(),
            format!("--token-auth-file={}", tokens.display()),
            "--service-account-issuer=https://kubernetes.default.svc".to_owned(),
            format!("--service-account-key-file={key}"),
            format!("--service-account-signing-key-file={key}"),
            "--endpoint-reconciler-type=none".to_owned(),
            "--profiling=false".to_owned(),
            // Otherwise it waits a minute for watches over HTTP/1.1, which Rust clients have.
            "--shutdown-watch-termination-grace-period=1s".to_owned(),
            format!("--audit-policy-file={}", policy.display()),
            format!("--audit-log-path={}", audit.display()),
            // One file, however long the run: a rotated one would be read twice.
            "--audit-log-maxsize=100000".to_owned(),
        ];
        if options.controller_manager.is_none() {
            // Nobody makes the default accounts that this plugin insists on.
            flags.push("--disable-admission-plugins=ServiceAccount".to_owned());
        }
        flags.extend(options.apiserver_flags.iter().cloned());
        let health = format!("{}/readyz", self.server.url);
        Ok(Component::new(self.program("kube-apiserver", launch, flags), health, leash))
    }

    fn controller_manager(
        &self,
        launch: &Launch,
        options: &BedOptions,
        taint_eviction: TaintEviction,
        leash: &Leash,
    ) -> Result<Component> {
        let name = "kube-controller-manager";
        let port = ports::free_port()?;
        let mut flags = self.follower_flags(name, User::ControllerManager, port)?;
        flags.extend([
            format!("--service-account-private-key-file={}", self.service_account_key.display()),
            controllers_flag(taint_eviction),
        ]);
        flags.extend(self.server.ca.iter().map(|ca| format!("--root-ca-file={}", ca.display())));
        if let Some(grace) = options.node_grace {
            let fast = [
                "--node-monitor-period=1s",
                "--node-startup-grace-period=5s",
                "--node-eviction-rate=100",
                "--secondary-node-eviction-rate=100",
            ];
            flags.extend(fast.map(str::to_owned));
            flags.push(format!("--node-monitor-grace-period={}s", grace.as_secs()));
        }
        flags.extend(options.controller_manager_flags.iter().cloned());
        let health = format!("https://127.0.0.1:{port}/healthz");
        Ok(Component::new(self.program(name, launch, flags), health, leash))
    }

    fn scheduler(&self, launch: &Launch, leash: &Leash) -> Result<Component> {
        let name = "kube-scheduler";
        let port = ports::free_port()?;
        let flags = self.follower_flags(name, User::Scheduler, port)?;
        let health = format!("https://127.0.0.1:{port}/healthz");
        Ok(Component::new(self.program(name, launch, flags), health, leash))
    }

    /// Flags of a component that is a client of the API server.
    fn follower_flags(&self, name: &str, user: User, port: u16) -> Result<Vec<String>> {
        let kubeconfig = self.kubeconfig(user)?;
        let kubeconfig = kubeconfig.display();
        Ok(vec![
            format!("--kubeconfig={kubeconfig}"),
            format!("--authentication-kubeconfig={kubeconfig}"),
            format!("--authorization-kubeconfig={kubeconfig}"),
            // There is no client authority to look up, and the log would say so for ever.
            "--authentication-skip-lookup=true".to_owned(),
            "--bind-address=127.0.0.1".to_owned(),
            format!("--secure-port={port}"),
            format!("--cert-dir={}", self.folder.join(format!("{name}-tls")).display()),
            "--leader-elect=false".to_owned(),
            "--kube-api-qps=1000".to_owned(),
            "--kube-api-burst=2000".to_owned(),
        ])
    }
}

fn controllers_flag(taint_eviction: TaintEviction) -> String {
    match taint_eviction {
        TaintEviction::Off => "--controllers=*,-taint-eviction-controller".to_owned(),
        TaintEviction::BuiltIn => "--controllers=*".to_owned(),
    }
}

async fn help_of(launch: &Launch) -> Result<String> {
    let output = tokio::process::Command::new(&launch.path)
        .arg("--help")
        .output()
        .await
        .with_context(|| format!("run {}", launch.path.display()))?;
    let text = [output.stdout, output.stderr].concat();
    Ok(String::from_utf8_lossy(&text).into_owned())
}
