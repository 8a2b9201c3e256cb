//! Requests whose answers ostrakon or its trials act on, and what an API server answers to them,
//! without what differs from server to server and from run to run.

use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use http::{Method, Request};
use jiff::Timestamp;
use kube::Client;
use ostrakon::clock::system_time;
use serde_json::{Value, json};

const MERGE: &str = "application/merge-patch+json";
const STRATEGIC: &str = "application/strategic-merge-patch+json";
const JSON: &str = "application/json";
/// Reason of the cause by which a budget refuses.
const BUDGET: &str = "DisruptionBudget";
const STRANGER: &str = "00000000-0000-4000-8000-000000000000";

/// A request and what came of it.
struct Sent<'a> {
    client: &'a Client,
    /// Texts that are made up for each run, with what stands for them.
    names: Vec<(String, &'static str)>,
    answers: Vec<Value>,
}

impl Sent<'_> {
    /// Sends it, writes its answer down under this title, and returns the body.
    async fn send(
        &mut self,
        title: &str,
        method: Method,
        path: &str,
        content: &str,
        body: &Value,
    ) -> Result<Value> {
        let mut request = Request::builder().method(method).uri(path).header("Accept", JSON);
        let bytes = if body.is_null() {
            Vec::new()
        } else {
            request = request.header("Content-Type", content);
            serde_json::to_vec(body)?
        };
        let answer = self.client.send(request.body(bytes.into())?).await?;
        let code = answer.status().as_u16();
        let pause = answer.headers().get(http::header::RETRY_AFTER);
        let pause = pause.and_then(|value| value.to_str().ok()).map(str::to_owned);
        let body = answer.into_body().collect_bytes().await.unwrap_or_default();
        let body: Value = serde_json::from_slice(&body).unwrap_or_default();
        let mut said = essence(&body);
        for (name, stands_for) in &self.names {
            said = serde_json::from_str(&said.to_string().replace(name.as_str(), stands_for))?;
        }
        let mut record = json!({"request": title, "code": code, "answer": said});
        if let Some(pause) = pause {
            record["retryAfter"] = json!(pause);
        }
        self.answers.push(record);
        Ok(body)
    }

    /// Changes the budget and evicts at once, again and again until the disruption controller comes
    /// too late to reckon it in between. Only that is written down.
    async fn hasty(
        &mut self,
        title: &str,
        budget: &str,
        eviction: &str,
        evict: &Value,
    ) -> Result<()> {
        const TRIES: usize = 100;
        for attempt in 0..TRIES {
            let before = self.answers.len();
            let demand = json!({"spec": {"minAvailable": 2 + attempt % 2}});
            self.send("change it", Method::PATCH, budget, MERGE, &demand).await?;
            self.answers.truncate(before);
            self.send(title, Method::POST, eviction, JSON, evict).await?;
            if self.answers[before].get("retryAfter").is_some() {
                return Ok(());
            }
            self.answers.truncate(before);
        }
        bail!("{budget} was reckoned each time before the eviction came");
    }

    /// Waits until the disruption controller has reckoned the budget at `path`.
    async fn reckoned(&self, path: &str) -> Result<()> {
        const PAUSE: Duration = Duration::from_millis(50);
        for _ in 0..1200 {
            let request = Request::get(path).header("Accept", JSON).body(Vec::new().into())?;
            let body = self.client.send(request).await?.into_body().collect_bytes().await?;
            let budget: Value = serde_json::from_slice(&body)?;
            let status = &budget["status"];
            let is_current = status["observedGeneration"] == budget["metadata"]["generation"];
            if is_current && status["currentHealthy"] == 1 {
                return Ok(());
            }
            tokio::time::sleep(PAUSE).await;
        }
        bail!("{path} was not reckoned");
    }
}

/// What clients act on: of a Status its reason and details, of an object its kind and what the
/// request was about.
fn essence(body: &Value) -> Value {
    match body["kind"].as_str() {
        Some("Status") => {
            let code = body["code"].as_u64();
            let mut details = body["details"].clone();
            if let Some(causes) = details.get_mut("causes").and_then(Value::as_array_mut) {
                // The wording is the API server's own; field and reason are what is matched on. But
                // a budget's name is nowhere else.
                for cause in causes.iter_mut().filter(|cause| cause["reason"] != BUDGET) {
                    cause.as_object_mut().map(|cause| cause.remove("message"));
                }
            }
            if let Some(details) = details.as_object_mut() {
                details.remove("uid");
            }
            let mut said = json!({
                "kind": "Status", "status": body["status"], "reason": body["reason"],
                "code": body["code"], "details": details,
            });
            // What has no reason, or one that says little, is told by its words.
            if body["status"] == "Failure" && matches!(code, Some(429 | 500)) {
                said["message"] = body["message"].clone();
            }
            said
        }
        Some(kind) => {
            let marks = body["status"]["conditions"].as_array().into_iter().flatten();
            let marks: Vec<_> = marks
                .filter(|c| c["type"] == "DisruptionTarget")
                .map(|c| json!([c["type"], c["status"], c["reason"], c["message"]]))
                .collect();
            json!({
                "kind": kind, "apiVersion": body["apiVersion"], "marks": marks,
                "record": body["metadata"]["annotations"]["ostrakon.dev/noexecute-since"],
                "holder": body["spec"]["holderIdentity"],
            })
        }
        None => Value::Null,
    }
}

/// Plays all requests in `namespace`, on `node`, and returns their answers.
///
/// Somebody must reckon disruption budgets.
pub(crate) async fn play(client: &Client, namespace: &str, node: &str) -> Result<Value> {
    let names = vec![(node.to_owned(), "NODE"), (namespace.to_owned(), "NAMESPACE")];
    let mut sent = Sent { client, names, answers: Vec::new() };
    pods(&mut sent, namespace, node).await?;
    budgets(&mut sent, namespace, node).await?;
    nodes(&mut sent, node).await?;
    leases(&mut sent, namespace).await?;
    Ok(sent.answers.into())
}

async fn pods(sent: &mut Sent<'_>, namespace: &str, node: &str) -> Result<()> {
    let pods = format!("/api/v1/namespaces/{namespace}/pods");
    let (web, none) = (format!("{pods}/web"), Value::Null);
    let with_uid = |uid: &str| {
        json!({"kind": "DeleteOptions", "apiVersion": "v1",
        "preconditions": {"uid": uid}})
    };
    let evict = |name: &str, uid: &str| {
        json!({"kind": "Eviction", "apiVersion": "policy/v1",
        "metadata": {"name": name, "namespace": namespace},
        "deleteOptions": {"preconditions": {"uid": uid}}})
    };
    // A mark that is older than two minutes is taken back by kube-controller-manager.
    let now = Timestamp::from_second(system_time().as_second())?.to_string();
    let mark = |uid: &str| {
        json!({"metadata": {"uid": uid}, "status": {"conditions": [{
        "type": "DisruptionTarget", "status": "True", "reason": "DeletionByTaintManager",
        "message": "m", "lastTransitionTime": now}]}})
    };
    let pod = json!({
        "kind": "Pod", "apiVersion": "v1", "metadata": {"name": "web", "namespace": namespace},
        "spec": {"nodeName": node, "terminationGracePeriodSeconds": 30,
            "automountServiceAccountToken": false,
            "containers": [{"name": "c", "image": "registry.example/none"}]},
    });
    sent.send("get no pod", Method::GET, &web, JSON, &none).await?;
    sent.send("delete no pod", Method::DELETE, &web, JSON, &with_uid(STRANGER)).await?;
    let status = format!("{web}/status");
    sent.send("mark no pod", Method::PATCH, &status, STRATEGIC, &mark(STRANGER)).await?;
    let eviction = format!("{web}/eviction");
    sent.send("evict no pod", Method::POST, &eviction, JSON, &evict("web", STRANGER)).await?;
    let created = sent.send("create a pod", Method::POST, &pods, JSON, &pod).await?;
    let uid = created["metadata"]["uid"].as_str().context("a pod without UID")?.to_owned();
    sent.send("create it again", Method::POST, &pods, JSON, &pod).await?;
    sent.send("mark another", Method::PATCH, &status, STRATEGIC, &mark(STRANGER)).await?;
    sent.send("mark it", Method::PATCH, &status, STRATEGIC, &mark(&uid)).await?;
    sent.send("evict another", Method::POST, &eviction, JSON, &evict("web", STRANGER)).await?;
    sent.send("delete another", Method::DELETE, &web, JSON, &with_uid(STRANGER)).await?;
    sent.send("delete it", Method::DELETE, &web, JSON, &with_uid(&uid)).await?;
    sent.send("delete it again", Method::DELETE, &web, JSON, &with_uid(&uid)).await?;
    let at_once = json!({"kind": "DeleteOptions", "apiVersion": "v1", "gracePeriodSeconds": 0});
    sent.send("delete it at once", Method::DELETE, &web, JSON, &at_once).await?;
    sent.send("get it no more", Method::GET, &web, JSON, &none).await?;
    let bad = format!("{pods}?limit=many");
    sent.send("list with a limit that is none", Method::GET, &bad, JSON, &none).await?;
    Ok(())
}

/// Evictions that budgets refuse, and one that none does.
async fn budgets(sent: &mut Sent<'_>, namespace: &str, node: &str) -> Result<()> {
    let folder = format!("/apis/policy/v1/namespaces/{namespace}/poddisruptionbudgets");
    let pods = format!("/api/v1/namespaces/{namespace}/pods");
    let (held, none) = (format!("{pods}/held"), Value::Null);
    let labels = json!({"app": "held"});
    let pod = json!({
        "kind": "Pod", "apiVersion": "v1",
        "metadata": {"name": "held", "namespace": namespace, "labels": labels},
        "spec": {"nodeName": node, "automountServiceAccountToken": false,
            "containers": [{"name": "c", "image": "registry.example/none"}]},
    });
    let running = json!({"status": {"phase": "Running",
        "conditions": [{"type": "Ready", "status": "True"}]}});
    let budget = |name: &str| {
        json!({
            "kind": "PodDisruptionBudget", "apiVersion": "policy/v1",
            "metadata": {"name": name, "namespace": namespace},
            "spec": {"minAvailable": 1, "selector": {"matchLabels": labels}},
        })
    };
    let evict = json!({"kind": "Eviction", "apiVersion": "policy/v1",
        "metadata": {"name": "held", "namespace": namespace}});
    let eviction = format!("{held}/eviction");
    sent.send("create a pod for a budget", Method::POST, &pods, JSON, &pod).await?;
    let status = format!("{held}/status");
    sent.send("have it run", Method::PATCH, &status, STRATEGIC, &running).await?;
    sent.send("create a budget", Method::POST, &folder, JSON, &budget("one")).await?;
    sent.reckoned(&format!("{folder}/one")).await?;
    sent.send("evict what it holds", Method::POST, &eviction, JSON, &evict).await?;
    let hasty = "evict what it holds before it is reckoned anew";
    sent.hasty(hasty, &format!("{folder}/one"), &eviction, &evict).await?;
    sent.send("create another budget", Method::POST, &folder, JSON, &budget("two")).await?;
    sent.send("evict what two hold", Method::POST, &eviction, JSON, &evict).await?;
    for name in ["one", "two"] {
        let path = format!("{folder}/{name}");
        sent.send(&format!("delete budget {name}"), Method::DELETE, &path, JSON, &none).await?;
    }
    sent.send("evict what none holds", Method::POST, &eviction, JSON, &evict).await?;
    sent.send("get what is evicted", Method::GET, &held, JSON, &none).await?;
    sent.send("evict it again", Method::POST, &eviction, JSON, &evict).await?;
    let at_once = json!({"kind": "DeleteOptions", "apiVersion": "v1", "gracePeriodSeconds": 0});
    sent.send("delete the evicted", Method::DELETE, &held, JSON, &at_once).await?;
    Ok(())
}

async fn nodes(sent: &mut Sent<'_>, node: &str) -> Result<()> {
    let path = format!("/api/v1/nodes/{node}");
    let stored = sent.send("get a node", Method::GET, &path, JSON, &Value::Null).await?;
    let uid = stored["metadata"]["uid"].as_str().context("a node without UID")?.to_owned();
    let note = |uid: &str| {
        json!({"metadata": {"uid": uid,
        "annotations": {"ostrakon.dev/noexecute-since": "{}"}}})
    };
    sent.send("annotate another", Method::PATCH, &path, MERGE, &note(STRANGER)).await?;
    sent.send("annotate it", Method::PATCH, &path, MERGE, &note(&uid)).await?;
    let gone = "/api/v1/nodes/no-such-node";
    sent.send("annotate none", Method::PATCH, gone, MERGE, &note(&uid)).await?;
    let taint = json!({"key": "k", "effect": "NoExecute"});
    let twice = json!({"spec": {"taints": [taint, taint]}});
    sent.send("taint it twice", Method::PATCH, &path, MERGE, &twice).await?;
    let unknown = json!({"spec": {"taints": [{"key": "k", "effect": "Never"}]}});
    sent.send("taint it to no effect", Method::PATCH, &path, MERGE, &unknown).await?;
    Ok(())
}

async fn leases(sent: &mut Sent<'_>, namespace: &str) -> Result<()> {
    let folder = format!("/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases");
    let path = format!("{folder}/ostrakon");
    let lease = |holder: &str, version: Option<&str>| {
        let mut lease = json!({
            "kind": "Lease", "apiVersion": "coordination.k8s.io/v1",
            "metadata": {"name": "ostrakon", "namespace": namespace},
            "spec": {"holderIdentity": holder, "leaseDurationSeconds": 15,
                "renewTime": "2026-01-01T12:00:00.000000Z"},
        });
        if let Some(version) = version {
            lease["metadata"]["resourceVersion"] = json!(version);
        }
        lease
    };
    sent.send("get no lease", Method::GET, &path, JSON, &Value::Null).await?;
    let first =
        sent.send("create a lease", Method::POST, &folder, JSON, &lease("one", None)).await?;
    sent.send("create it again", Method::POST, &folder, JSON, &lease("two", None)).await?;
    let version = first["metadata"]["resourceVersion"].as_str().context("no version")?.to_owned();
    let mine = lease("one", Some(&version));
    let mut renewed = mine.clone();
    renewed["spec"]["renewTime"] = json!("2026-01-01T12:00:02.000000Z");
    sent.send("renew it", Method::PUT, &path, JSON, &renewed).await?;
    sent.send("renew what it was", Method::PUT, &path, JSON, &mine).await?;
    sent.send("renew without a version", Method::PUT, &path, JSON, &lease("two", None)).await?;
    sent.send("delete it", Method::DELETE, &path, JSON, &Value::Null).await?;
    sent.send("renew what is gone", Method::PUT, &path, JSON, &mine).await?;
    Ok(())
}

/// A text with `N` in place of each number.
pub(crate) fn digits(text: &str) -> String {
    let mut out = String::new();
    for letter in text.chars() {
        match letter {
            '0'..='9' if out.ends_with('N') => {}
            '0'..='9' => out.push('N'),
            other => out.push(other),
        }
    }
    out
}
