//! Exec plugins: programs that print credentials, run as by client-go.
//!
//! A plugin's output may contain secrets, also on standard error. It is never shown: an error names the
//! program and its exit code, and the user can run it by hand to see its output.

use std::io;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use kube::config::{Cluster, ExecConfig, ExecInteractiveMode};
use secrecy::SecretString;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::io::AsyncReadExt as _;
use tokio::process::Command;
use tokio::time::timeout;

use super::CredentialsError;
use super::tls::Identity;

/// For how long a plugin may run. Some ask a server of their own.
const WITHIN: Duration = Duration::from_secs(60);
/// Most that a plugin may say: a token or two certificates are some kilobytes.
const LONGEST: u64 = 1 << 20;
/// Of the cluster's extensions, the one that is handed to plugins.
const EXTENSION: &str = "client.authentication.k8s.io/exec";
const VERSIONS: [&str; 2] =
    ["client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1"];

/// A program that hands out credentials.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Plugin {
    command: String,
    args: Vec<String>,
    env: Vec<(String, String)>,
    api_version: String,
    install_hint: String,
    /// What is handed to it.
    info: String,
}

/// What a plugin has handed out.
#[derive(Clone, Debug)]
pub(super) struct Issued {
    pub(super) token: Option<SecretString>,
    pub(super) identity: Option<Arc<Identity>>,
    pub(super) expires: Option<Timestamp>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ExecCredential {
    api_version: Option<String>,
    status: Option<Status>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Status {
    expiration_timestamp: Option<String>,
    token: Option<String>,
    client_certificate_data: Option<String>,
    client_key_data: Option<String>,
}

impl Plugin {
    /// The plugin that a kubeconfig names. `authorities` are those of the cluster, in PEM.
    ///
    /// # Errors
    /// It cannot be run by a program without a terminal, or says not what it is.
    pub(super) fn new(
        exec: &ExecConfig,
        cluster: &Cluster,
        authorities: Option<&[u8]>,
    ) -> Result<Self, String> {
        let command = exec.command.clone().filter(|command| !command.is_empty());
        let command = command.ok_or("exec has no command")?;
        let api_version = exec.api_version.clone().unwrap_or_default();
        if !VERSIONS.contains(&api_version.as_str()) {
            return Err(format!(
                "exec plugin {command} has apiVersion {api_version:?}; it must be {}",
                VERSIONS.join(" or ")
            ));
        }
        if exec.interactive_mode == Some(ExecInteractiveMode::Always) {
            return Err(format!(
                "exec plugin {command} requires a terminal (interactiveMode: Always), which a \
                 controller does not have; use other credentials"
            ));
        }
        let mut spec = json!({"interactive": false});
        if exec.provide_cluster_info {
            spec["cluster"] = cluster_info(cluster, authorities);
        }
        let info = json!({"kind": "ExecCredential", "apiVersion": api_version, "spec": spec});
        let env = exec.env.iter().flatten().filter_map(|entry| {
            Some((entry.get("name")?.clone(), entry.get("value").cloned().unwrap_or_default()))
        });
        Ok(Self {
            command,
            args: exec.args.clone().unwrap_or_default(),
            env: env.collect(),
            api_version,
            install_hint: exec.install_hint.clone().unwrap_or_default(),
            info: info.to_string(),
        })
    }

    /// Runs it.
    ///
    /// # Errors
    /// It cannot be run, failed, or handed out nothing that can be used.
    pub(super) async fn run(&self) -> Result<Issued, CredentialsError> {
        let output = match timeout(WITHIN, self.output()).await {
            Ok(output) => output?,
            Err(_) => {
                return Err(CredentialsError::passing(format!(
                    "exec plugin {} did not finish within {WITHIN:?}; run it by hand to see why",
                    self.command
                )));
            }
        };
        self.read(&output).map_err(|cause| {
            CredentialsError::lasting(format!("exec plugin {} {cause}", self.command))
        })
    }

    async fn output(&self) -> Result<Vec<u8>, CredentialsError> {
        let command = &self.command;
        let failed = |error: &io::Error| {
            let hint = if self.install_hint.is_empty() {
                String::new()
            } else {
                format!("; {}", self.install_hint.trim().replace('\n', " "))
            };
            let text = format!("cannot run exec plugin {command}: {error}{hint}");
            match error.kind() {
                io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied => {
                    CredentialsError::lasting(text)
                }
                _ => CredentialsError::passing(text),
            }
        };
        let mut child = Command::new(command)
            .args(&self.args)
            .envs(self.env.iter().map(|(name, value)| (name, value)))
            .env("KUBERNETES_EXEC_INFO", &self.info)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .map_err(|error| failed(&error))?;
        let mut output = Vec::new();
        if let Some(stdout) = child.stdout.take() {
            let read = stdout.take(LONGEST).read_to_end(&mut output).await;
            read.map_err(|error| failed(&error))?;
        }
        let status = child.wait().await.map_err(|error| failed(&error))?;
        if status.success() {
            return Ok(output);
        }
        Err(CredentialsError::passing(format!(
            "exec plugin {command} failed ({status}); run it by hand to see why"
        )))
    }

    /// What it has said. JSON is YAML too, and some plugins write that.
    fn read(&self, output: &[u8]) -> Result<Issued, String> {
        let text = std::str::from_utf8(output).map_err(|_| "wrote output that is not UTF-8")?;
        // The parser's words would quote what may be a secret.
        let credential: ExecCredential = serde_saphyr::from_str(text)
            .map_err(|_| "did not write an ExecCredential; run it by hand to see why")?;
        let version = credential.api_version.unwrap_or_default();
        if version != self.api_version {
            return Err(format!(
                "answered with apiVersion {version:?}, but the kubeconfig has {}; make them equal",
                self.api_version
            ));
        }
        let status = credential.status.unwrap_or_default();
        let given = |text: Option<String>| text.filter(|text| !text.is_empty());
        let identity = match (given(status.client_certificate_data), given(status.client_key_data))
        {
            (Some(certificate), Some(key)) => {
                let identity = Identity::pem(certificate.as_bytes(), key.as_bytes());
                Some(Arc::new(
                    identity.map_err(|cause| {
                        format!("wrote an unusable client certificate: {cause}")
                    })?,
                ))
            }
            (None, None) => None,
            _ => {
                return Err("wrote a client certificate without its key, or a key alone".to_owned());
            }
        };
        let token = given(status.token).map(SecretString::from);
        if token.is_none() && identity.is_none() {
            return Err("wrote neither a token nor a client certificate".to_owned());
        }
        let expires = given(status.expiration_timestamp)
            .map(|stamp| stamp.parse().map_err(|_| "wrote an invalid expirationTimestamp"));
        Ok(Issued { token, identity, expires: expires.transpose()? })
    }
}

/// The cluster, as plugins are told of it.
fn cluster_info(cluster: &Cluster, authorities: Option<&[u8]>) -> Value {
    let extensions = cluster.extensions.iter().flatten();
    let mut config =
        extensions.filter(|extension| extension.name == EXTENSION).map(|e| &e.extension);
    let mut info = json!({
        "server": cluster.server,
        "tls-server-name": cluster.tls_server_name,
        "insecure-skip-tls-verify": cluster.insecure_skip_tls_verify,
        "certificate-authority-data": authorities.map(|pem| STANDARD.encode(pem)),
        "proxy-url": cluster.proxy_url,
        "disable-compression": cluster.disable_compression,
        "config": config.next(),
    });
    if let Some(fields) = info.as_object_mut() {
        fields.retain(|_, value| !value.is_null());
    }
    info
}
