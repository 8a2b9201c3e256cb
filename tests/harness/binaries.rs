//! Finds the binaries of the control plane, in this order.
//!
//! 1. `OSTRAKON_CONTROL_PLANE`, a folder with the program `control-plane`, if it is set;
//! 2. `KUBEBUILDER_ASSETS`, a folder with `etcd` and `kube-apiserver`, if it is set. The other two
//!    are taken from there as well if they are there;
//! 3. what `tests/control-plane/build` builds, once, into a cache.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context as _, anyhow, ensure};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::Command;

use super::bed::StartError;

/// The build script's exit code for "there is no Go here".
const NO_GO: i32 = 77;

/// A program and the arguments that make it be one component.
#[derive(Clone, Debug)]
pub struct Launch {
    pub path: PathBuf,
    pub args: Vec<String>,
}

/// Whose command line etcd understands.
#[derive(Clone, Debug)]
pub enum Etcd {
    /// The one in `tests/control-plane`.
    Ours(Launch),
    /// etcd's own.
    Plain(Launch),
}

/// The four components; the last two may be missing where nobody asked for them.
#[derive(Clone, Debug)]
pub struct Binaries {
    pub etcd: Etcd,
    pub apiserver: Launch,
    pub controller_manager: Option<Launch>,
    pub scheduler: Option<Launch>,
}

impl Binaries {
    /// Finds them, and builds them if need be. `all` asks for the controller manager and the
    /// scheduler too.
    pub async fn find(all: bool) -> Result<Self, StartError> {
        if let Some(folder) = folder_from("OSTRAKON_CONTROL_PLANE")? {
            return Ok(Self::in_one_file(&folder)?);
        }
        let Some(assets) = folder_from("KUBEBUILDER_ASSETS")? else {
            return Ok(Self::in_one_file(&build("control-plane").await?)?);
        };
        let plain = |name: &str| {
            let path = assets.join(name);
            path.is_file().then_some(Launch { path, args: Vec::new() })
        };
        let needed = |name: &str| {
            plain(name).with_context(|| {
                format!("KUBEBUILDER_ASSETS is {}, and no {name} is there", assets.display())
            })
        };
        let mut found = Self {
            etcd: Etcd::Plain(needed("etcd")?),
            apiserver: needed("kube-apiserver")?,
            controller_manager: plain("kube-controller-manager"),
            scheduler: plain("kube-scheduler"),
        };
        if all && (found.controller_manager.is_none() || found.scheduler.is_none()) {
            let ours = Self::in_one_file(&build("control-plane").await?)?;
            found.controller_manager = found.controller_manager.or(ours.controller_manager);
            found.scheduler = found.scheduler.or(ours.scheduler);
        }
        Ok(found)
    }

    fn in_one_file(folder: &Path) -> anyhow::Result<Self> {
        let path = folder.join("control-plane");
        ensure!(path.is_file(), "there is no {}", path.display());
        let launch =
            |component: &str| Launch { path: path.clone(), args: vec![component.to_owned()] };
        Ok(Self {
            etcd: Etcd::Ours(launch("etcd")),
            apiserver: launch("kube-apiserver"),
            controller_manager: Some(launch("kube-controller-manager")),
            scheduler: Some(launch("kube-scheduler")),
        })
    }
}

/// The program with Kubernetes' own end-to-end cases for nodes, built if need be.
pub async fn e2e_node() -> Result<PathBuf, StartError> {
    let folder = match folder_from("OSTRAKON_CONTROL_PLANE")? {
        Some(folder) => folder,
        None => build("e2e-node").await?,
    };
    let path = folder.join("e2e-node");
    if path.is_file() { Ok(path) } else { Err(anyhow!("there is no {}", path.display()).into()) }
}

fn folder_from(variable: &str) -> anyhow::Result<Option<PathBuf>> {
    let Some(value) = std::env::var_os(variable).filter(|value| !value.is_empty()) else {
        return Ok(None);
    };
    let folder = PathBuf::from(value);
    ensure!(folder.is_dir(), "{variable} is {}, which is not a folder", folder.display());
    Ok(Some(folder))
}

/// Has the build script build one of its programs, which is quick once it is built, and passes its
/// messages on.
#[allow(clippy::print_stderr, reason = "a build of ten minutes has to say so")]
async fn build(program: &str) -> Result<PathBuf, StartError> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/control-plane/build");
    let run = async {
        let mut child = Command::new(&script)
            .arg(program)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("run {}", script.display()))?;
        let stderr = child.stderr.take().context("the script has no stderr")?;
        let messages = async {
            let mut lines = BufReader::new(stderr).lines();
            let mut said = Vec::new();
            while let Ok(Some(line)) = lines.next_line().await {
                eprintln!("{line}");
                said.push(line);
            }
            said
        };
        let (output, said) = tokio::join!(child.wait_with_output(), messages);
        anyhow::Ok((output?, said))
    };
    let (output, said) = run.await?;
    let last = said.last().cloned().unwrap_or_default();
    match output.status.code() {
        Some(0) => Ok(PathBuf::from(String::from_utf8_lossy(&output.stdout).trim())),
        Some(NO_GO) => Err(StartError::Unavailable(last)),
        _ => {
            let status = output.status;
            Err(anyhow!("{} ended with {status}: {last}", script.display()).into())
        }
    }
}
