//! The API server's audit log: all requests in order, with user, body and response.
//!
//! For ostrakon's user it has all requests, and the bodies of writes. For other users it has writes of
//! pods, with bodies, and writes of nodes and events, without. A request appears once it is answered, a
//! watch once it is open.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context as _, Result};
use jiff::Timestamp;
use parking_lot::Mutex;
use serde::Deserialize;
use serde_json::{Value, json};

use super::process::write_file;
use super::request::Verb;
use super::users::User;

/// Writes the policy for `--audit-policy-file`.
pub fn write_policy(folder: &Path) -> Result<PathBuf> {
    let writes = ["create", "update", "patch", "delete", "deletecollection"];
    let pods = ["pods", "pods/status", "pods/eviction", "pods/binding"];
    let ostrakon = [User::Ostrakon.name(), User::DryRun.name()];
    let policy = json!({
        "apiVersion": "audit.k8s.io/v1",
        "kind": "Policy",
        "omitStages": ["RequestReceived"],
        "rules": [
            { "level": "Request", "users": ostrakon, "verbs": writes },
            { "level": "Metadata", "users": ostrakon },
            {
                "level": "Request",
                "verbs": writes,
                "resources": [{ "group": "", "resources": pods }],
            },
            {
                "level": "Metadata",
                "verbs": writes,
                "resources": [
                    { "group": "", "resources": ["nodes", "events"] },
                    { "group": "events.k8s.io", "resources": ["events"] },
                ],
            },
            { "level": "None" },
        ],
    });
    let path = folder.join("audit-policy.json");
    write_file(&path, &policy.to_string())?;
    Ok(path)
}

/// One request.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AuditRecord {
    pub verb: Verb,
    #[serde(rename = "requestURI")]
    pub request_uri: String,
    user: UserInfo,
    #[serde(default)]
    pub user_agent: String,
    #[serde(default)]
    object_ref: ObjectRef,
    #[serde(default)]
    response_status: ResponseStatus,
    /// What was sent: the patch, the delete options, the object.
    #[serde(default)]
    pub request_object: Value,
    pub request_received_timestamp: Timestamp,
    pub stage_timestamp: Timestamp,
    stage: String,
    /// Why it was allowed or refused, among others.
    #[serde(default)]
    pub annotations: BTreeMap<String, String>,
}

#[derive(Clone, Debug, Deserialize)]
struct UserInfo {
    #[serde(default)]
    username: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
struct ObjectRef {
    #[serde(default)]
    resource: String,
    #[serde(default)]
    subresource: String,
    #[serde(default)]
    namespace: String,
    #[serde(default)]
    name: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
struct ResponseStatus {
    #[serde(default)]
    code: u16,
}

impl AuditRecord {
    pub fn username(&self) -> &str {
        &self.user.username
    }

    pub fn resource(&self) -> &str {
        &self.object_ref.resource
    }

    /// Empty for the object itself.
    pub fn subresource(&self) -> &str {
        &self.object_ref.subresource
    }

    pub fn namespace(&self) -> &str {
        &self.object_ref.namespace
    }

    pub fn name(&self) -> &str {
        &self.object_ref.name
    }

    /// The HTTP status of the answer.
    pub fn code(&self) -> u16 {
        self.response_status.code
    }

    /// Whether the server did what was asked.
    pub fn succeeded(&self) -> bool {
        (200..300).contains(&self.code())
    }

    /// The UID that the request insisted on: a delete's precondition or a patch's `metadata.uid`.
    pub fn uid_precondition(&self) -> Option<&str> {
        let body = &self.request_object;
        body["preconditions"]["uid"].as_str().or_else(|| body["metadata"]["uid"].as_str())
    }
}

/// Requests, in the order in which they were answered. The filters narrow it down.
#[derive(Clone, Debug, Default)]
pub struct Audit {
    records: Vec<Arc<AuditRecord>>,
}

impl Audit {
    pub fn by(self, user: User) -> Self {
        self.that(|record| record.username() == user.name())
    }

    pub fn verb(self, verb: Verb) -> Self {
        self.that(|record| record.verb == verb)
    }

    /// Requests that change something.
    pub fn writes(self) -> Self {
        self.that(|record| Verb::WRITES.contains(&record.verb))
    }

    /// `pods` for the object itself, `pods/status` for a subresource.
    pub fn resource(self, resource: &str) -> Self {
        let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
        self.that(|record| record.resource() == resource && record.subresource() == subresource)
    }

    pub fn namespace(self, namespace: &str) -> Self {
        self.that(|record| record.namespace() == namespace)
    }

    pub fn name(self, name: &str) -> Self {
        self.that(|record| record.name() == name)
    }

    pub fn code(self, code: u16) -> Self {
        self.that(|record| record.code() == code)
    }

    /// Requests that the server carried out.
    pub fn succeeded(self) -> Self {
        self.that(AuditRecord::succeeded)
    }

    /// Requests received at `moment` or later, by this machine's wall clock.
    pub fn since(self, moment: Timestamp) -> Self {
        self.that(|record| record.request_received_timestamp >= moment)
    }

    pub fn that(mut self, wanted: impl Fn(&AuditRecord) -> bool) -> Self {
        self.records.retain(|record| wanted(record));
        self
    }

    pub fn len(&self) -> usize {
        self.records.len()
    }

    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    pub fn records(&self) -> &[Arc<AuditRecord>] {
        &self.records
    }
}

/// The growing file.
#[derive(Debug)]
pub struct AuditLog {
    path: PathBuf,
    read: Mutex<ReadSoFar>,
}

#[derive(Debug, Default)]
struct ReadSoFar {
    offset: u64,
    records: Vec<Arc<AuditRecord>>,
}

impl AuditLog {
    pub fn new(path: PathBuf) -> Self {
        Self { path, read: Mutex::default() }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// All requests up to now.
    pub fn read(&self) -> Result<Audit> {
        let mut read = self.read.lock();
        let mut file = File::open(&self.path)
            .with_context(|| format!("open the audit log {}", self.path.display()))?;
        file.seek(SeekFrom::Start(read.offset))?;
        let mut text = String::new();
        file.read_to_string(&mut text)?;
        // The last line may be half written.
        let whole = text.rfind('\n').map_or(0, |position| position + 1);
        for line in text[..whole].lines() {
            let record: AuditRecord =
                serde_json::from_str(line).with_context(|| format!("parse audit line {line}"))?;
            // A watch is there twice: when it opens and when it ends.
            let is_watch = record.verb == Verb::Watch;
            if is_watch == (record.stage == "ResponseStarted") {
                read.records.push(Arc::new(record));
            }
        }
        read.offset += whole as u64;
        Ok(Audit { records: read.records.clone() })
    }
}
