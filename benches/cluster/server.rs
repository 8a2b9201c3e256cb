//! The API server's side: what it was asked, what that cost it, and when it has nothing to do.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use kube::Client;
use tokio::time::{Instant, sleep};

use crate::harness::metrics::Metrics;
use crate::harness::{Bed, User};
use crate::usage;

/// Between two looks at the API server's counters; one costs it some 50 ms.
const LOOK: Duration = Duration::from_secs(1);
/// So many looks in a row without a change are quiet.
const QUIET_LOOKS: u32 = 2;
/// Quiet or not, the bench goes on after this.
const QUIET_LIMIT: Duration = Duration::from_secs(120);

/// Kinds of requests that are told apart: name, verb, resource, subresource.
const KINDS: [(&str, &str, &str, &str); 9] = [
    ("GET pod", "GET", "pods", ""),
    ("PATCH pod status", "PATCH", "pods", "status"),
    ("DELETE pod", "DELETE", "pods", ""),
    ("GET node", "GET", "nodes", ""),
    ("PATCH node", "PATCH", "nodes", ""),
    ("POST event", "POST", "events", ""),
    ("PATCH event", "PATCH", "events", ""),
    ("LIST pods", "LIST", "pods", ""),
    ("LIST nodes", "LIST", "nodes", ""),
];

/// Requests by kind.
pub(crate) type Requests = BTreeMap<&'static str, f64>;

/// Processor time used, in seconds.
#[derive(Clone, Copy, Debug, serde::Serialize)]
pub(crate) struct Cost {
    pub(crate) apiserver: f64,
    pub(crate) etcd: f64,
}

/// Looks at the API server and etcd.
pub(crate) struct Server {
    client: Client,
    apiserver: u32,
    etcd: u32,
}

impl Server {
    pub(crate) async fn of(bed: &Bed) -> Result<Self> {
        Ok(Self {
            client: bed.client_for(User::Admin)?,
            apiserver: bed.apiserver()?.pid().await.context("no API server")?,
            etcd: bed.etcd()?.pid().await.context("no etcd")?,
        })
    }

    /// What has been used up to now.
    pub(crate) fn cost(&self) -> Result<Cost> {
        Ok(Cost { apiserver: usage::cpu(self.apiserver)?, etcd: usage::cpu(self.etcd)? })
    }

    /// What the API server holds in memory, in MiB.
    pub(crate) fn memory(&self) -> Result<f64> {
        Ok(usage::memory(self.apiserver)?.resident)
    }

    /// What the API server has been asked up to now.
    pub(crate) async fn requests(&self) -> Result<Requests> {
        let request = http::Request::get("/metrics").body(Vec::new())?;
        let text = self.client.request_text(request).await.context("read /metrics")?;
        let lines = text.lines().filter(|line| line.starts_with("apiserver_request_total{"));
        let metrics = Metrics::parse(&lines.collect::<Vec<_>>().join("\n"));
        let count = |(name, verb, resource, subresource)| {
            let labels = [("verb", verb), ("resource", resource), ("subresource", subresource)];
            (name, metrics.sum("apiserver_request_total", &labels).unwrap_or_default())
        };
        Ok(KINDS.into_iter().map(count).collect())
    }

    /// Waits until nobody asks for anything any more and has the API server collect its garbage.
    /// Returns the counters.
    ///
    /// With 150,000 pods in its caches a collection is dear beside 1,500 evictions, and whom it hit
    /// would be chance.
    pub(crate) async fn rest(&self) -> Result<Requests> {
        let requests = self.quiet().await?;
        let request = http::Request::get("/debug/pprof/heap?gc=1").body(Vec::new())?;
        let answer = self.client.send(request.map(kube::client::Body::from)).await;
        let answer = answer.context("have the API server collect its garbage")?;
        ensure!(answer.status().is_success(), "/debug/pprof/heap?gc=1: {}", answer.status());
        Ok(requests)
    }

    /// Waits until nobody asks for anything any more, and returns the counters.
    pub(crate) async fn quiet(&self) -> Result<Requests> {
        let end = Instant::now() + QUIET_LIMIT;
        let mut before = self.requests().await?;
        let mut same = 0;
        while same < QUIET_LOOKS && Instant::now() < end {
            sleep(LOOK).await;
            let now = self.requests().await?;
            same = if now == before { same + 1 } else { 0 };
            before = now;
        }
        Ok(before)
    }
}

impl std::ops::Sub for Cost {
    type Output = Self;

    fn sub(self, before: Self) -> Self {
        Self { apiserver: self.apiserver - before.apiserver, etcd: self.etcd - before.etcd }
    }
}

/// What was asked between two moments; kinds without any are left out.
pub(crate) fn between(before: &Requests, after: &Requests) -> Requests {
    after
        .iter()
        .map(|(name, count)| (*name, count - before.get(name).unwrap_or(&0.0)))
        .filter(|(_, count)| *count > 0.0)
        .collect()
}
