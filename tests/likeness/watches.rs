//! How a watch is framed: both forms, as ostrakon asks for it, up to its end by an error.

use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use bytes::{Bytes, BytesMut};
use http::Request;
use http::header::CONTENT_TYPE;
use http_body_util::BodyExt as _;
use kube::Client;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams};
use kube::client::Body;
use ostrakon::cluster::wire::{self, Frames};
use prost::Message as _;
use serde_json::{Value, json};
use tokio::time::timeout;

use super::script::digits;

/// How long an event may take, on a machine that stalls.
const SOON: Duration = Duration::from_secs(60);

/// As ostrakon asks for a list that goes on as a watch, but for the time that it lasts.
const STREAMED: &str = "watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan\
                        &resourceVersion=&allowWatchBookmarks=true&timeoutSeconds=600";

/// Annotation by which versions of an object are told.
const NOTE: &str = "likeness";

/// A form in which a watch may be had.
#[derive(Clone, Copy)]
enum Form {
    Json,
    Protobuf,
}

/// What an event says, without what differs from run to run.
struct Event {
    kind: String,
    object: Value,
    version: u64,
}

/// An open watch.
struct Watch {
    form: Form,
    body: Body,
    /// What has come and is not cut, in the one form or the other.
    lines: BytesMut,
    frames: Frames,
    /// What was answered, before the first event.
    answer: Value,
}

impl Watch {
    async fn open(client: &Client, form: Form, path: &str) -> Result<Self> {
        let accept = match form {
            Form::Json => "application/json",
            Form::Protobuf => wire::WATCH_MEDIA_TYPE,
        };
        let request = Request::get(path).header("Accept", accept).body(Vec::new().into())?;
        let answer = client.send(request).await?;
        let media = answer.headers().get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
        let said = json!({ "code": answer.status().as_u16(), "media": media });
        let (lines, frames) = (BytesMut::new(), Frames::default());
        Ok(Self { form, body: answer.into_body(), lines, frames, answer: said })
    }

    async fn next(&mut self) -> Result<Event> {
        loop {
            if let Some(frame) = self.cut()? {
                return match self.form {
                    Form::Json => json_event(&frame),
                    Form::Protobuf => protobuf_event(&frame),
                };
            }
            let more = timeout(SOON, self.body.frame()).await.context("no event came")?;
            let more = more.context("the watch ended")??;
            let more = more.into_data().unwrap_or_default();
            match self.form {
                Form::Json => self.lines.extend_from_slice(&more),
                Form::Protobuf => self.frames.push(&more),
            }
        }
    }

    /// The next frame, if all of it has come: a line, or a length and so many bytes.
    fn cut(&mut self) -> Result<Option<Bytes>> {
        Ok(match self.form {
            Form::Json => {
                let end = self.lines.iter().position(|byte| *byte == b'\n');
                end.map(|end| self.lines.split_to(end + 1).freeze())
            }
            Form::Protobuf => self.frames.cut()?,
        })
    }

    /// The next events, as recorded: their versions only as newer than the one before, or not. Left
    /// out are bookmarks, which come when it is time for them, but for the one that ends a list.
    async fn take(&mut self, count: usize, versions: &mut u64) -> Result<Vec<Value>> {
        let mut all = Vec::new();
        while all.len() < count {
            let Event { kind, object, version } = self.next().await?;
            if kind == "BOOKMARK" && object["annotations"].is_null() {
                continue;
            }
            let order = match version.cmp(versions) {
                _ if version == 0 => "none",
                std::cmp::Ordering::Less => "older",
                // What else is written meanwhile, and where, decides which of the two it is.
                _ if kind == "BOOKMARK" => "not older",
                std::cmp::Ordering::Equal => "same",
                std::cmp::Ordering::Greater => "newer",
            };
            *versions = (*versions).max(version);
            all.push(json!({ "type": kind, "object": object, "version": order }));
        }
        Ok(all)
    }
}

fn json_event(line: &[u8]) -> Result<Event> {
    let event: Value = serde_json::from_slice(line)?;
    let keys: Vec<&String> = event.as_object().context("no object")?.keys().collect();
    ensure!(keys.len() == 2, "an event of {keys:?}");
    let object = &event["object"];
    let meta = &object["metadata"];
    let said = match object["kind"].as_str() {
        Some("Status") => json!({
            "kind": "Status", "apiVersion": object["apiVersion"], "status": object["status"],
            "code": object["code"], "reason": object["reason"],
            "message": digits(object["message"].as_str().unwrap_or_default()),
        }),
        _ => json!({
            "kind": object["kind"], "apiVersion": object["apiVersion"], "name": meta["name"],
            "annotations": meta["annotations"], "uid": meta["uid"].is_string(),
            "going": meta["deletionTimestamp"].is_string(),
        }),
    };
    Ok(Event {
        kind: event["type"].as_str().unwrap_or_default().to_owned(),
        object: said,
        version: meta["resourceVersion"].as_str().unwrap_or("0").parse().unwrap_or_default(),
    })
}

fn protobuf_event(frame: &Bytes) -> Result<Event> {
    let event = wire::Event::decode(frame.clone())?;
    let text = |bytes: &Bytes| String::from_utf8_lossy(bytes).into_owned();
    let kind = text(&event.r#type);
    if let Ok(status) = wire::open(&event.object.raw, "Status") {
        let status = wire::Status::decode(status)?;
        let object = json!({
            "kind": "Status", "code": status.code, "reason": status.reason,
            "message": digits(&status.message),
        });
        return Ok(Event { kind, object, version: 0 });
    }
    let meta = wire::Object::decode(wire::open(&event.object.raw, "Pod")?)?.metadata;
    let name = Some(text(&meta.name)).filter(|name| !name.is_empty());
    let annotations: serde_json::Map<_, _> =
        meta.annotations.iter().map(|e| (text(&e.key), text(&e.value).into())).collect();
    let annotations = Some(annotations).filter(|annotations| !annotations.is_empty());
    Ok(Event {
        kind,
        object: json!({
            "kind": "Pod", "name": name, "annotations": annotations,
            "uid": !meta.uid.is_empty(), "going": meta.deletion_timestamp.is_some(),
        }),
        version: text(&meta.resource_version).parse().unwrap_or_default(),
    })
}

/// Plays all watches in `namespace`, with pods on `node`.
pub(crate) async fn play(client: &Client, namespace: &str, node: &str) -> Result<Value> {
    let json = one(client, namespace, node, Form::Json).await.context("in JSON")?;
    let protobuf = one(client, namespace, node, Form::Protobuf).await.context("in protobuf")?;
    Ok(json!({ "json": json, "protobuf": protobuf }))
}

async fn one(client: &Client, namespace: &str, node: &str, form: Form) -> Result<Value> {
    let pods: Api<k8s_openapi::api::core::v1::Pod> = Api::namespaced(client.clone(), namespace);
    let create = async |name: &str| {
        let pod = serde_json::from_value(json!({
            "metadata": { "name": name },
            "spec": {
                "nodeName": node, "automountServiceAccountToken": false,
                "containers": [{ "name": "c", "image": "registry.example/none" }],
            },
        }))?;
        pods.create(&PostParams::default(), &pod).await?;
        anyhow::Ok(())
    };
    let remove = async |name: &str| {
        pods.delete(name, &DeleteParams::default().grace_period(0)).await.map(drop)
    };
    let base = format!("/api/v1/namespaces/{namespace}/pods?");
    let select = format!("&fieldSelector=spec.nodeName%3D{node}");

    create("before").await?;
    let mut versions = 0;
    let mut watch = Watch::open(client, form, &format!("{base}{STREAMED}{select}")).await?;
    let state = watch.take(2, &mut versions).await.context("the state")?;
    let from = versions;
    create("later").await?;
    let note = Patch::Merge(json!({ "metadata": { "annotations": { NOTE: "changed" } } }));
    pods.patch("later", &PatchParams::default(), &note).await?;
    remove("later").await?;
    // Two of them are the deletion: it is going, and then it is gone.
    let changes = watch.take(4, &mut versions).await.context("changes")?;

    let resume = |version: u64| {
        format!(
            "{base}watch=true&allowWatchBookmarks=true&timeoutSeconds=600\
             &resourceVersion={version}{select}"
        )
    };
    let mut again = Watch::open(client, form, &resume(from)).await?;
    let mut seen = from;
    let resumed = again.take(4, &mut seen).await.context("resumed")?;
    remove("before").await?;
    let removed = again.take(2, &mut versions).await.context("the other removed")?;
    Ok(json!({
        "answer": watch.answer, "state": state, "changes": changes,
        "resumed": resumed, "removed": removed,
    }))
}

/// Watches from a version that the API server has forgotten, as it has the first one when it was
/// restarted.
pub(crate) async fn expired(client: &Client, namespace: &str) -> Result<Value> {
    let path = format!(
        "/api/v1/namespaces/{namespace}/pods?watch=true&allowWatchBookmarks=true\
         &timeoutSeconds=600&resourceVersion=1"
    );
    let mut said = serde_json::Map::new();
    for (name, form) in [("json", Form::Json), ("protobuf", Form::Protobuf)] {
        let mut watch = Watch::open(client, form, &path).await?;
        let events = watch.take(1, &mut 0).await.context("expired")?;
        if let Ok(event) = watch.next().await {
            bail!("an event after the error: {}", event.object);
        }
        said.insert(name.to_owned(), json!({ "answer": watch.answer, "events": events }));
    }
    Ok(said.into())
}
