//! Kubeconfigs as people have them, against servers on loopback that say who asked.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use kube::client::Body;
use prometheus::Registry;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::*;
use crate::cluster::{Api, Metrics, RequestError};

mod credentials;
mod files;
mod plugins;
mod proxies;
mod server;
mod silence;
#[path = "../../../tests/harness/silent_proxy.rs"]
#[allow(unreachable_pub, reason = "the harness of the tests compiles this too")]
mod silent_proxy;

use server::{Certified, TestServer};

/// A folder with a kubeconfig.
struct Folder(TempDir);

impl Folder {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn write(&self, name: &str, text: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(name);
        std::fs::write(&path, text).unwrap();
        path
    }

    /// A kubeconfig of this cluster and this user.
    fn kubeconfig(&self, cluster: &Value, user: &Value) -> PathBuf {
        let file = json!({
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "here",
            "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u"}}],
            "clusters": [{"name": "c", "cluster": cluster}],
            "users": [{"name": "u", "user": user}],
        });
        self.write("config", file.to_string())
    }

    fn api(&self, cluster: &Value, user: &Value) -> Result<Api, ConnectError> {
        connect(Some(&self.kubeconfig(cluster, user)), None).map(|cluster| api(&cluster))
    }
}

fn api(cluster: &Cluster) -> Api {
    Api::new(cluster.client.clone(), Metrics::register(&Registry::new()).unwrap())
}

/// Asks the server for something; what comes of it.
async fn ask(api: &Api) -> Result<(), RequestError> {
    api.server_time().await.map(drop)
}

/// No variable is set.
fn nothing(_: &str) -> Option<String> {
    None
}

fn pem(name: &str) -> String {
    let path = format!("{}/tests/data/tls/{name}.pem", env!("CARGO_MANIFEST_DIR"));
    std::fs::read_to_string(path).unwrap()
}
