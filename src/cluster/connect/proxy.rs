//! The proxy to the API server, chosen as by client-go.
//!
//! `proxy-url` in the kubeconfig has priority. Otherwise the environment counts, unless `NO_PROXY`
//! exempts the server: by name, by suffix (`.example.com`), by address (each with an optional port), or
//! by network (`10.0.0.0/8`). A proxy from the environment is never used for loopback.

use std::net::IpAddr;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::{HeaderValue, Uri};
use ipnet::IpNet;
use percent_encoding::percent_decode_str;

/// A proxy, and how to speak with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Proxy {
    pub(super) url: Uri,
    pub(super) kind: Kind,
    /// Name and password.
    pub(super) user: Option<(String, String)>,
}

/// The protocol of a proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Http,
    Https,
    Socks,
}

impl Proxy {
    /// The proxy for `server`: `configured` in the kubeconfig, else of the environment.
    ///
    /// # Errors
    /// Its URL makes no sense. The text says why, without the password in it.
    pub(super) fn of(
        server: &Uri,
        configured: Option<&str>,
        env: impl Fn(&str) -> Option<String>,
    ) -> Result<Option<Self>, String> {
        if let Some(url) = configured.filter(|url| !url.is_empty()) {
            return Self::parse(url).map(Some).map_err(|cause| format!("proxy-url: {cause}"));
        }
        let either = |name: &str| {
            let set = |name: &str| env(name).filter(|value| !value.is_empty());
            set(name).or_else(|| set(&name.to_lowercase()))
        };
        let name = if server.scheme_str() == Some("http") { "HTTP_PROXY" } else { "HTTPS_PROXY" };
        let Some(url) = either(name) else { return Ok(None) };
        if is_exempt(server, &either("NO_PROXY").unwrap_or_default()) {
            return Ok(None);
        }
        Self::parse(&url).map(Some).map_err(|cause| format!("{name}: {cause}"))
    }

    fn parse(text: &str) -> Result<Self, String> {
        let full = if text.contains("://") { text.to_owned() } else { format!("http://{text}") };
        let url: Uri = full.parse().map_err(|error| format!("it is not a URL ({error})"))?;
        let kind = match url.scheme_str() {
            Some("http") => Kind::Http,
            Some("https") => Kind::Https,
            Some("socks5" | "socks5h") => Kind::Socks,
            other => {
                let other = other.unwrap_or_default();
                return Err(format!(
                    "{other}:// is not a proxy protocol; use http, https or socks5"
                ));
            }
        };
        let authority = url.authority().map(http::uri::Authority::as_str).unwrap_or_default();
        let user = authority.rsplit_once('@').map(|(user, _)| {
            let (name, password) = user.split_once(':').unwrap_or((user, ""));
            let decoded = |text| percent_decode_str(text).decode_utf8_lossy().into_owned();
            (decoded(name), decoded(password))
        });
        Ok(Self { url, kind, user })
    }

    /// The credentials for an HTTP proxy.
    pub(super) fn authorization(&self) -> Option<HeaderValue> {
        let (name, password) = self.user.as_ref()?;
        let encoded = STANDARD.encode(format!("{name}:{password}"));
        HeaderValue::try_from(format!("Basic {encoded}")).ok()
    }
}

/// Whether this server is asked without a proxy, by `NO_PROXY` or since it is this machine.
fn is_exempt(server: &Uri, no_proxy: &str) -> bool {
    let host = server.host().unwrap_or_default().trim_matches(['[', ']']).to_lowercase();
    let ip: Option<IpAddr> = host.parse().ok();
    if host == "localhost" || ip.is_some_and(|ip| ip.is_loopback()) {
        return true;
    }
    let default = if server.scheme_str() == Some("http") { 80 } else { 443 };
    let port = server.port_u16().unwrap_or(default).to_string();
    no_proxy.split(',').map(|entry| entry.trim().to_lowercase()).any(|entry| {
        if entry == "*" {
            return true;
        }
        if let (Ok(network), Some(ip)) = (entry.parse::<IpNet>(), ip) {
            return network.contains(&ip);
        }
        let (name, at) = host_and_port(&entry);
        if name.is_empty() || at.is_some_and(|at| at != port) {
            return false;
        }
        if let Ok(exempt) = name.parse::<IpAddr>() {
            return ip == Some(exempt);
        }
        let suffix = name.strip_prefix('*').filter(|rest| rest.starts_with('.')).unwrap_or(name);
        match suffix.strip_prefix('.') {
            Some(_) => host.ends_with(suffix),
            None => host == suffix || host.ends_with(&format!(".{suffix}")),
        }
    })
}

/// `[::1]:80` → `::1`, `80`; an IPv6 address without brackets has no port.
fn host_and_port(entry: &str) -> (&str, Option<&str>) {
    if let Some((host, rest)) = entry.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        return (host, rest.strip_prefix(':'));
    }
    match entry.split_once(':') {
        Some((host, port)) if !port.contains(':') => (host, Some(port)),
        _ => (entry, None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The proxy for this server in an environment with these variables.
    fn proxy(server: &str, configured: Option<&str>, env: &[(&str, &str)]) -> Option<String> {
        let env = |name: &str| {
            env.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned())
        };
        let proxy = Proxy::of(&server.parse().unwrap(), configured, env).unwrap();
        proxy.map(|proxy| proxy.url.to_string())
    }

    #[test]
    fn a_server_in_no_proxy_is_asked_directly_and_others_through_the_proxy() {
        for (server, no_proxy, direct) in [
            ("https://api.example.com:6443", "", false),
            ("https://api.example.com:6443", "*", true),
            ("https://api.example.com:6443", "other.com, example.com", true),
            ("https://api.example.com:6443", "API.Example.com", true),
            ("https://api.example.com:6443", ".example.com", true),
            ("https://api.example.com:6443", "*.example.com", true),
            ("https://example.com", ".example.com", false),
            ("https://example.com", "*.example.com", false),
            ("https://example.com", "example.com", true),
            ("https://badexample.com", "example.com", false),
            ("https://api.example.com:6443", "api.example.com:6443", true),
            ("https://api.example.com:6443", "api.example.com:443", false),
            ("https://api.example.com", "api.example.com:443", true),
            ("https://10.1.2.3:6443", "10.0.0.0/8", true),
            ("https://11.1.2.3:6443", "10.0.0.0/8", false),
            ("https://10.1.2.3:6443", "10.1.2.3", true),
            ("https://10.1.2.3:6443", "10.1.2.3:443", false),
            ("https://10.1.2.3:6443", "10.1.2", false),
            ("https://[fd00::1]:6443", "fd00::/8", true),
            ("https://[fd00::1]:6443", "fd00::1", true),
            ("https://[fd00::1]:6443", "[fd00::1]:6443", true),
            ("https://[fd00::1]:6443", "[fd00::2]", false),
            ("https://api.example.com:6443", "10.0.0.0/8,,:80, ", false),
            // This machine is never asked through a proxy.
            ("https://127.0.0.1:6443", "", true),
            ("https://[::1]:6443", "", true),
            ("https://localhost:6443", "", true),
        ] {
            let env = [("HTTPS_PROXY", "http://proxy:3128"), ("NO_PROXY", no_proxy)];
            let proxy = proxy(server, None, &env);
            assert_eq!(proxy.is_none(), direct, "{server} with {no_proxy}: {proxy:?}");
        }
    }

    #[test]
    fn the_kubeconfigs_proxy_counts_before_that_of_the_environment_and_whatever_no_proxy_says() {
        let env = [("HTTPS_PROXY", "http://env:1"), ("NO_PROXY", "*")];
        let configured = Some("http://own:2");
        assert_eq!(proxy("https://a:6443", configured, &env).unwrap(), "http://own:2/");
        assert_eq!(proxy("https://127.0.0.1", configured, &env).unwrap(), "http://own:2/");
        assert_eq!(proxy("https://a:6443", Some(""), &env), None);
    }

    #[test]
    fn the_environments_proxy_is_that_of_the_servers_scheme_in_either_case() {
        assert_eq!(proxy("https://a", None, &[("HTTP_PROXY", "http://p:1")]), None);
        assert_eq!(proxy("http://a", None, &[("HTTPS_PROXY", "http://p:1")]), None);
        assert_eq!(proxy("http://a", None, &[("http_proxy", "p:1")]).unwrap(), "http://p:1/");
        let env = [("HTTPS_PROXY", ""), ("https_proxy", "socks5://p:1")];
        assert_eq!(proxy("https://a", None, &env).unwrap(), "socks5://p:1/");
    }

    #[test]
    fn a_proxy_that_makes_no_sense_is_named_without_its_password() {
        for url in ["ftp://me:s3cr3t@p:1", "http://me:s3cr3t@ p"] {
            let error = Proxy::of(&"https://a".parse().unwrap(), Some(url), |_| None).unwrap_err();
            assert!(error.starts_with("proxy-url: ") && !error.contains("s3cr3t"), "{error}");
        }
    }

    #[test]
    fn name_and_password_of_a_proxy_are_decoded() {
        let proxy = Proxy::parse("http://me:p%40ss%3A@p:1").unwrap();
        assert_eq!(proxy.user, Some(("me".to_owned(), "p@ss:".to_owned())));
        assert_eq!(proxy.authorization().unwrap(), "Basic bWU6cEBzczo=");
    }
}
