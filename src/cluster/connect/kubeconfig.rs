//! Kubeconfig files and the pod's service account, read as by client-go, and read again whenever
//! credentials are renewed.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::{HeaderName, HeaderValue, Uri};
use kube::config::{AuthInfo, AuthProviderConfig, Kubeconfig, KubeconfigError};
use secrecy::{ExposeSecret as _, SecretString};

use super::exec::Plugin;
use super::proxy::Proxy;
use super::tls::{Identity, Trust};
use super::{ConnectError, chain};

/// Where a pod finds its service account.
const SERVICE_ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

/// Reads the environment.
pub(super) type Env<'a> = &'a (dyn Fn(&str) -> Option<String> + Sync);

/// The environment of this process.
pub(super) fn process_env(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

/// Where a cluster is described.
#[derive(Clone, Debug)]
pub(super) enum Source {
    /// One file, which must be there.
    File { path: PathBuf, context: Option<String> },
    /// Those files of a list that are there.
    Files { paths: Vec<PathBuf>, context: Option<String> },
    /// A pod's own cluster.
    Pod { server: String, folder: PathBuf },
    /// No file at all.
    Given(Box<Settings>),
}

/// How to reach a cluster, and as whom.
#[derive(Clone, Debug)]
pub(super) struct Settings {
    /// The context of the kubeconfig; empty if there is none.
    pub(super) context: String,
    pub(super) server: Uri,
    pub(super) trust: Trust,
    /// The name that the server's certificate must be for, if not the host's.
    pub(super) server_name: Option<String>,
    pub(super) proxy: Option<Proxy>,
    /// Whom to act as.
    pub(super) impersonation: Vec<(HeaderName, HeaderValue)>,
    pub(super) user: User,
}

/// Credentials, and where they come from.
#[derive(Clone, Debug, Default)]
pub(super) struct User {
    /// A token, or name and password.
    pub(super) authorization: Option<HeaderValue>,
    /// Has the token that counts, as long as it can be read.
    pub(super) token_file: Option<PathBuf>,
    pub(super) identity: Option<Arc<Identity>>,
    pub(super) plugin: Option<Plugin>,
}

impl Source {
    /// Where the cluster is described that was asked for, or that is found by the usual rules.
    ///
    /// # Errors
    /// Nothing was named and nothing was found.
    pub(super) fn find(
        kubeconfig: Option<&Path>,
        context: Option<&str>,
        env: Env<'_>,
    ) -> Result<Self, ConnectError> {
        let context = context.map(str::to_owned);
        if let Some(path) = kubeconfig {
            return Ok(Self::File { path: path.to_owned(), context });
        }
        let listed = env("KUBECONFIG").filter(|list| !list.is_empty());
        let paths: Vec<PathBuf> = match &listed {
            Some(list) => {
                std::env::split_paths(list).filter(|path| !path.as_os_str().is_empty()).collect()
            }
            None => {
                env("HOME").map(|home| Path::new(&home).join(".kube/config")).into_iter().collect()
            }
        };
        if paths.iter().any(|path| path.exists()) {
            return Ok(Self::Files { paths, context });
        }
        let names: Vec<_> = paths.iter().map(|path| path.display().to_string()).collect();
        let missing = match (listed, names.as_slice()) {
            (_, []) => "neither KUBECONFIG nor HOME is set".to_owned(),
            (Some(_), names) => format!("KUBECONFIG names {}: No such file", names.join(", ")),
            (None, names) => format!("{}: No such file", names.join(", ")),
        };
        if context.is_some() {
            return Err(ConnectError::Nowhere(missing));
        }
        match (env("KUBERNETES_SERVICE_HOST"), env("KUBERNETES_SERVICE_PORT")) {
            (Some(host), Some(port)) if !host.is_empty() && !port.is_empty() => {
                let host = if host.contains(':') { format!("[{host}]") } else { host };
                let server = format!("https://{host}:{port}");
                Ok(Self::Pod { server, folder: SERVICE_ACCOUNT.into() })
            }
            _ => Err(ConnectError::Nowhere(format!(
                "{missing}; not inside a pod: KUBERNETES_SERVICE_HOST or KUBERNETES_SERVICE_PORT is not set"
            ))),
        }
    }

    /// The same, for the context that was read from it: a person may switch the current one.
    pub(super) fn pinned(self, to: &str) -> Self {
        let context = Some(to.to_owned());
        match self {
            Self::File { path, .. } => Self::File { path, context },
            Self::Files { paths, .. } => Self::Files { paths, context },
            other => other,
        }
    }

    /// What it says now.
    ///
    /// # Errors
    /// It cannot be read, or makes no sense.
    pub(super) fn read(&self, env: Env<'_>) -> Result<Settings, ConnectError> {
        match self {
            Self::File { path, context } => {
                let name = path.display().to_string();
                let file = read(path)?;
                of_context(&file, &name, context.as_deref(), env)
            }
            Self::Files { paths, context } => {
                let there: Vec<_> = paths.iter().filter(|path| path.exists()).collect();
                let names: Vec<_> = there.iter().map(|path| path.display().to_string()).collect();
                let name = names.join(", ");
                let mut merged = Kubeconfig::default();
                for path in there {
                    merged = merged
                        .merge(read(path)?)
                        .map_err(|error| unusable(&name, cause(&error)))?;
                }
                of_context(&merged, &name, context.as_deref(), env)
            }
            Self::Pod { server, folder } => of_pod(server, folder, env),
            Self::Given(settings) => Ok((**settings).clone()),
        }
    }
}

fn read(path: &Path) -> Result<Kubeconfig, ConnectError> {
    let mut file = Kubeconfig::read_from(path)
        .map_err(|error| unusable(&path.display().to_string(), cause(&error)))?;
    // In a list, an empty one does not hide that of a later file.
    file.current_context = file.current_context.filter(|context| !context.is_empty());
    Ok(file)
}

fn unusable(path: &str, cause: impl Into<String>) -> ConnectError {
    ConnectError::File { path: path.to_owned(), cause: cause.into() }
}

/// Why a kubeconfig cannot be used. Where it cannot be parsed, the parser's first line says where
/// and why; what follows is an excerpt, and such a file holds secrets.
fn cause(error: &KubeconfigError) -> String {
    match error {
        KubeconfigError::Parse(_) => {
            error.to_string().lines().next().unwrap_or_default().trim().to_owned()
        }
        _ => chain(error),
    }
}

/// What a file says about `context`, or about its current one.
fn of_context(
    file: &Kubeconfig,
    path: &str,
    context: Option<&str>,
    env: Env<'_>,
) -> Result<Settings, ConnectError> {
    let names: Vec<&str> = file.contexts.iter().map(|context| context.name.as_str()).collect();
    if names.is_empty() {
        return Err(unusable(path, "it has no contexts"));
    }
    let name = context.or(file.current_context.as_deref()).unwrap_or_default();
    let wanted = match name {
        "" => Some("current context".to_owned()),
        name if !names.contains(&name) => Some(format!("context {name:?}")),
        _ => None,
    };
    if let Some(wanted) = wanted {
        let (path, known) = (path.to_owned(), names.join(", "));
        return Err(ConnectError::Context { path, wanted, known });
    }
    let found = file.contexts.iter().find(|one| one.name == name);
    let context = found.and_then(|named| named.context.as_ref());
    let context = context.ok_or_else(|| unusable(path, format!("context {name:?} is empty")))?;
    let cluster = file.clusters.iter().find(|named| named.name == context.cluster);
    let cluster = cluster.and_then(|named| named.cluster.as_ref()).ok_or_else(|| {
        unusable(path, format!("context {name:?} refers to unknown cluster {:?}", context.cluster))
    })?;
    let user_name = context.user.as_deref().unwrap_or_default();
    let user = file.auth_infos.iter().find(|named| named.name == user_name);
    let none = AuthInfo::default();
    let user = user.and_then(|named| named.auth_info.as_ref()).unwrap_or(&none);

    let of_cluster =
        |cause: String| unusable(path, format!("cluster {:?}: {cause}", context.cluster));
    let of_user = |cause: String| unusable(path, format!("user {user_name:?}: {cause}"));
    let authorities = material(
        "certificate-authority",
        cluster.certificate_authority_data.as_deref(),
        cluster.certificate_authority.as_deref(),
    )
    .map_err(of_cluster)?;
    let is_insecure = cluster.insecure_skip_tls_verify == Some(true);
    let trust = match &authorities {
        _ if is_insecure => Trust::Anybody,
        None => Trust::System,
        Some(pem) => Trust::pem(pem)
            .map_err(|cause| of_cluster(format!("certificate-authority: {cause}")))?,
    };
    let user_settings = user_of(user).map_err(of_user)?;
    let plugin = match &user.exec {
        // A token or a password is what counts beside a plugin.
        Some(exec)
            if user_settings.authorization.is_none() && user_settings.token_file.is_none() =>
        {
            Some(Plugin::new(exec, cluster, authorities.as_deref()).map_err(of_user)?)
        }
        _ => None,
    };
    let text = cluster.server.as_deref().unwrap_or_default();
    let with_tls = is_insecure || authorities.is_some() || user_settings.identity.is_some();
    let server = server_of(text, with_tls).map_err(of_cluster)?;
    let proxy = Proxy::of(&server, cluster.proxy_url.as_deref(), env).map_err(of_cluster)?;
    Ok(Settings {
        context: name.to_owned(),
        server,
        trust,
        server_name: cluster.tls_server_name.clone().filter(|name| !name.is_empty()),
        proxy,
        impersonation: impersonation(user).map_err(of_user)?,
        user: User { plugin, ..user_settings },
    })
}

/// What a pod's service account says.
fn of_pod(server: &str, folder: &Path, env: Env<'_>) -> Result<Settings, ConnectError> {
    let here = |cause| ConnectError::Nowhere(format!("inside a pod: {cause}"));
    let server = server_of(server, true).map_err(here)?;
    let authorities = folder.join("ca.crt");
    let pem = std::fs::read(&authorities).map_err(|error| error.to_string());
    let trust = pem.and_then(|pem| Trust::pem(&pem));
    let trust = trust.map_err(|cause| here(format!("{}: {cause}", authorities.display())))?;
    let proxy = Proxy::of(&server, None, env).map_err(here)?;
    Ok(Settings {
        context: String::new(),
        server,
        trust,
        server_name: None,
        proxy,
        impersonation: Vec::new(),
        user: User { token_file: Some(folder.join("token")), ..User::default() },
    })
}

/// The address of an API server. Without a scheme it is http, or https if anything of TLS is set.
fn server_of(text: &str, with_tls: bool) -> Result<Uri, String> {
    let text = text.trim();
    if text.is_empty() {
        return Err("it has no server".to_owned());
    }
    let scheme = if with_tls { "https" } else { "http" };
    let full = if text.contains("://") { text.to_owned() } else { format!("{scheme}://{text}") };
    full.parse().map_err(|error| format!("server {text:?} is not a URL ({error})"))
}

/// The bytes that are given in base64, else those of the file.
fn material(what: &str, data: Option<&str>, file: Option<&str>) -> Result<Option<Vec<u8>>, String> {
    let given = |text: Option<&str>| text.filter(|text| !text.is_empty()).map(str::to_owned);
    if let Some(data) = given(data) {
        let packed: String = data.split_ascii_whitespace().collect();
        let bytes = STANDARD.decode(packed);
        return bytes.map(Some).map_err(|_| format!("{what}-data is not base64"));
    }
    let Some(file) = given(file) else { return Ok(None) };
    let bytes = std::fs::read(&file);
    bytes.map(Some).map_err(|error| format!("cannot read {what} {file}: {error}"))
}

fn user_of(user: &AuthInfo) -> Result<User, String> {
    let given = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
    let certificate = material(
        "client-certificate",
        user.client_certificate_data.as_deref(),
        user.client_certificate.as_deref(),
    )?;
    let key = material(
        "client-key",
        user.client_key_data.as_ref().map(SecretString::expose_secret),
        user.client_key.as_deref(),
    )?;
    let identity = match (certificate, key) {
        (Some(certificate), Some(key)) => Some(Arc::new(Identity::pem(&certificate, &key)?)),
        (None, None) => None,
        (Some(_), None) => return Err("it has a client-certificate but no client-key".to_owned()),
        (None, Some(_)) => return Err("it has a client-key but no client-certificate".to_owned()),
    };
    let token = user.token.as_ref().map(SecretString::expose_secret).filter(|t| !t.is_empty());
    let token_file = given(&user.token_file).map(PathBuf::from);
    let name = user.username.as_deref().filter(|name| !name.is_empty());
    let authorization = match (token, name, &user.auth_provider) {
        (Some(token), _, _) => Some(bearer(token)?),
        (None, _, _) if token_file.is_some() => None,
        (None, Some(name), _) => {
            let password =
                user.password.as_ref().map(SecretString::expose_secret).unwrap_or_default();
            Some(authorization("Basic", &STANDARD.encode(format!("{name}:{password}")))?)
        }
        (None, None, Some(provider)) if user.exec.is_none() => Some(provided(provider)?),
        _ => None,
    };
    Ok(User { authorization, token_file, identity, plugin: None })
}

/// The token of an `auth-provider`. Kubernetes has removed all of them but one from its clients.
fn provided(provider: &AuthProviderConfig) -> Result<HeaderValue, String> {
    let token = provider.config.get("id-token").filter(|token| !token.is_empty());
    match (provider.name.as_str(), token) {
        ("oidc", Some(token)) => bearer(token),
        (name, _) => Err(format!(
            "auth-provider {name} is not supported; use an exec plugin, as kubectl requires since 1.26"
        )),
    }
}

/// The header for a token.
///
/// # Errors
/// No header can have it. The text does not show it.
pub(super) fn bearer(token: &str) -> Result<HeaderValue, String> {
    authorization("Bearer", token)
}

fn authorization(scheme: &str, secret: &str) -> Result<HeaderValue, String> {
    let value = HeaderValue::try_from(format!("{scheme} {secret}"));
    let mut value = value.map_err(|_| {
        "the token contains a line break or another invalid character; write it on one line"
            .to_owned()
    })?;
    value.set_sensitive(true);
    Ok(value)
}

/// Whom the user acts as, in headers.
fn impersonation(user: &AuthInfo) -> Result<Vec<(HeaderName, HeaderValue)>, String> {
    let mut named = Vec::new();
    for (name, value) in [("uid", &user.impersonate_uid), ("user", &user.impersonate)] {
        named.extend(value.iter().map(|value| (format!("impersonate-{name}"), value.clone())));
    }
    let groups = user.impersonate_groups.iter().flatten();
    named.extend(groups.map(|group| ("impersonate-group".to_owned(), group.clone())));
    for (key, values) in user.impersonate_user_extra.iter().flatten() {
        let name = format!("impersonate-extra-{}", escaped(key));
        named.extend(values.iter().map(|value| (name.clone(), value.clone())));
    }
    named
        .into_iter()
        .filter(|(_, value)| !value.is_empty())
        .map(|(name, value)| {
            let wrong = || format!("{name} {value:?} is not a valid header value");
            let header = HeaderName::from_bytes(name.as_bytes()).map_err(|_| wrong())?;
            Ok((header, HeaderValue::try_from(&value).map_err(|_| wrong())?))
        })
        .collect()
}

/// A key of `as-user-extra` as the name of a header has it.
fn escaped(key: &str) -> String {
    use std::fmt::Write as _;

    key.bytes().fold(String::new(), |mut escaped, byte| {
        if byte.is_ascii_alphanumeric() || b"!#$&'*+-.^_`|~".contains(&byte) {
            escaped.push(byte.into());
        } else {
            let _ = write!(escaped, "%{byte:02X}");
        }
        escaped
    })
}
