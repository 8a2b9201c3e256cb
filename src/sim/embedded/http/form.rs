//! The requested form of a response: whole objects, their metadata, or a table.

use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};
use serde_json::{Value, json};

use super::route::View;
use super::{events, protobuf, table};
use crate::cluster::wire;
use crate::sim::embedded::error::ApiError;
use crate::sim::embedded::object::at;
use crate::sim::embedded::resource::Resource;
use jiff::Timestamp;

/// The form of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// Objects as they are.
    Whole,
    /// `PartialObjectMetadata`.
    Metadata,
    /// A `Table`, with this in each row.
    Table(Rows),
    /// Protobuf, as far as ostrakon reads it.
    Protobuf,
}

/// What a row of a table carries beside its cells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rows {
    Bare,
    Metadata,
    Whole,
}

impl Form {
    /// The first form that the `Accept` header names and that is served here. Protobuf is given
    /// only to who takes nothing else.
    pub(super) fn accepted(
        header: Option<&str>,
        include_object: &str,
        resource: Resource,
    ) -> Result<Self, ApiError> {
        let header = header.unwrap_or("*/*");
        if matches!(header, wire::MEDIA_TYPE | wire::WATCH_MEDIA_TYPE) && protobuf::serves(resource)
        {
            return Ok(Self::Protobuf);
        }
        for offer in header.split(',') {
            let mut parts = offer.split(';').map(str::trim);
            let media = parts.next().unwrap_or_default();
            if !matches!(media, "application/json" | "application/*" | "*/*" | "") {
                continue;
            }
            let parameters: Vec<_> = parts.filter_map(|p| p.split_once('=')).collect();
            let parameter = |name| parameters.iter().find(|(n, _)| *n == name).map(|(_, v)| *v);
            match parameter("as") {
                None => return Ok(Self::Whole),
                Some(_) if parameter("v") != Some("v1") => {}
                Some("PartialObjectMetadata" | "PartialObjectMetadataList") => {
                    return Ok(Self::Metadata);
                }
                Some("Table") => {
                    return Ok(Self::Table(match include_object {
                        "None" => Rows::Bare,
                        "Object" => Rows::Whole,
                        _ => Rows::Metadata,
                    }));
                }
                Some(_) => {}
            }
        }
        Err(ApiError::not_acceptable())
    }
}

impl Form {
    /// The content type of an answer in this form.
    pub(super) fn media_type(self) -> &'static str {
        if self == Self::Protobuf { wire::MEDIA_TYPE } else { "application/json" }
    }

    /// The content type of a watch in this form.
    pub(super) fn watch_media_type(self) -> &'static str {
        if self == Self::Protobuf { wire::WATCH_MEDIA_TYPE } else { "application/json" }
    }
}

/// How objects are written for one client.
#[derive(Clone, Copy, Debug)]
pub(super) struct Encoder {
    pub(super) view: View,
    pub(super) form: Form,
    pub(super) now: Timestamp,
    /// Whether a table says what its columns are: in a watch only the first one does.
    pub(super) columns: bool,
}

impl Encoder {
    /// Appends the object, as the answer to a request for one.
    pub(super) fn object(&self, object: &Value, out: &mut Vec<u8>) {
        match self.form {
            Form::Protobuf => {
                out.extend_from_slice(&protobuf::object(self.view.resource, object));
            }
            Form::Whole if self.view.new_events => write(&events::to_new(object), out),
            Form::Whole => write(object, out),
            Form::Metadata => write(&metadata(object), out),
            Form::Table(rows) => {
                let row = table::row(self.view, object, rows, self.now);
                let version = at(object, &["metadata", "resourceVersion"]);
                let list = json!({"resourceVersion": version});
                let mut table = table::table(self.view, list, vec![row]);
                if !self.columns {
                    table["columnDefinitions"] = Value::Null;
                }
                write(&table, out);
            }
        }
    }

    /// The object of a bookmark: nothing but its kind and metadata.
    fn bookmark(&self, metadata: Value) -> Value {
        match self.form {
            Form::Whole | Form::Protobuf => json!({
                "kind": self.view.resource.spec().kind,
                "apiVersion": self.view.api_version(),
                "metadata": metadata,
            }),
            Form::Metadata => json!({
                "kind": "PartialObjectMetadata",
                "apiVersion": "meta.k8s.io/v1",
                "metadata": metadata,
            }),
            Form::Table(_) => table::table(self.view, metadata, Vec::new()),
        }
    }

    /// Appends an event of a watch about the object.
    pub(super) fn event(&self, kind: &str, object: &Value, out: &mut Vec<u8>) {
        if self.form == Form::Protobuf {
            let envelope = protobuf::object(self.view.resource, object);
            out.extend_from_slice(&wire::frame(kind, envelope));
            return;
        }
        out.extend_from_slice(b"{\"type\":\"");
        out.extend_from_slice(kind.as_bytes());
        out.extend_from_slice(b"\",\"object\":");
        self.object(object, out);
        out.extend_from_slice(b"}\n");
    }

    /// Appends a bookmark.
    pub(super) fn bookmark_event(&self, metadata: Value, out: &mut Vec<u8>) {
        let object = self.bookmark(metadata);
        if self.form == Form::Protobuf {
            self.event("BOOKMARK", &object, out);
        } else {
            write(&json!({"type": "BOOKMARK", "object": object}), out);
            out.push(b'\n');
        }
    }

    /// Appends the event that ends a watch.
    pub(super) fn error_event(&self, error: &ApiError, out: &mut Vec<u8>) {
        if self.form == Form::Protobuf {
            out.extend_from_slice(&wire::frame("ERROR", protobuf::status(error)));
        } else {
            write(&json!({"type": "ERROR", "object": error.status()}), out);
            out.push(b'\n');
        }
    }

    /// Appends a list of the objects. `list` is its metadata.
    pub(super) fn list(&self, list: Value, items: &[std::sync::Arc<Value>], out: &mut Vec<u8>) {
        if self.form == Form::Protobuf {
            let items = items.iter().map(|object| &**object);
            out.extend_from_slice(&protobuf::page(self.view.resource, &list, items));
            return;
        }
        if let Form::Table(rows) = self.form {
            let row =
                |object: &std::sync::Arc<Value>| table::row(self.view, object, rows, self.now);
            let rows = items.iter().map(row).collect();
            write(&table::table(self.view, list, rows), out);
            return;
        }
        let (kind, version) = match self.form {
            Form::Metadata => ("PartialObjectMetadataList".to_owned(), "meta.k8s.io/v1".to_owned()),
            _ => (format!("{}List", self.view.resource.spec().kind), self.view.api_version()),
        };
        let head = json!({"kind": kind, "apiVersion": version, "metadata": list});
        write(&head, out);
        out.pop();
        out.extend_from_slice(b",\"items\":[");
        for (index, item) in items.iter().enumerate() {
            if index > 0 {
                out.push(b',');
            }
            match self.form {
                Form::Whole if self.view.new_events => write(&Untyped(&events::to_new(item)), out),
                Form::Whole => write(&Untyped(item), out),
                _ => write(&metadata(item), out),
            }
        }
        out.extend_from_slice(b"]}");
    }
}

/// An object in a list, where kind and version are said once for all.
struct Untyped<'a>(&'a Value);

impl Serialize for Untyped<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        for (field, value) in self.0.as_object().into_iter().flatten() {
            if field != "kind" && field != "apiVersion" {
                map.serialize_entry(field, value)?;
            }
        }
        map.end()
    }
}

/// The metadata of the object, as an object of its own.
pub(super) fn metadata(object: &Value) -> Value {
    json!({
        "kind": "PartialObjectMetadata",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": at(object, &["metadata"]),
    })
}

/// Appends the value as JSON.
pub(super) fn write(value: &impl Serialize, out: &mut Vec<u8>) {
    // Writing JSON values to memory cannot fail: their keys are texts.
    let _ = serde_json::to_writer(out, value);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn form(header: &str) -> Result<Form, u16> {
        Form::accepted(Some(header), "", Resource::Pods).map_err(|e| e.code)
    }

    #[test]
    fn the_first_form_that_is_served_is_taken() {
        assert_eq!(Form::accepted(None, "", Resource::Pods), Ok(Form::Whole));
        assert_eq!(form("*/*"), Ok(Form::Whole));
        assert_eq!(form("application/json"), Ok(Form::Whole));
        assert_eq!(form("application/vnd.kubernetes.protobuf,application/json"), Ok(Form::Whole));
        assert_eq!(
            form("application/json;as=Table;v=v1;g=meta.k8s.io,application/json"),
            Ok(Form::Table(Rows::Metadata))
        );
        assert_eq!(
            form("application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"),
            Ok(Form::Metadata)
        );
        let later = "application/json;as=APIGroupDiscoveryList;v=v2,application/json";
        assert_eq!(form(later), Ok(Form::Whole));
    }

    #[test]
    fn protobuf_is_for_who_takes_nothing_else() {
        assert_eq!(form(wire::MEDIA_TYPE), Ok(Form::Protobuf));
        assert_eq!(form(wire::WATCH_MEDIA_TYPE), Ok(Form::Protobuf));
    }

    #[test]
    fn a_client_that_takes_only_other_forms_is_refused() {
        let protobuf = "application/vnd.kubernetes.protobuf";
        assert_eq!(Form::accepted(Some(protobuf), "", Resource::Leases).unwrap_err().code, 406);
        assert_eq!(form("application/yaml"), Err(406));
        assert_eq!(form("application/json;as=Table;v=v1beta1"), Err(406));
    }
}
