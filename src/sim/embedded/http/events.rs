//! Events in their two forms: that of the core group, which is stored, and that of `events.k8s.io`.

use serde_json::Value;

use super::route::EVENTS_GROUP;

/// Fields by their name in the core group and in `events.k8s.io`.
const RENAMED: [(&str, &str); 7] = [
    ("involvedObject", "regarding"),
    ("message", "note"),
    ("reportingComponent", "reportingController"),
    ("source", "deprecatedSource"),
    ("firstTimestamp", "deprecatedFirstTimestamp"),
    ("lastTimestamp", "deprecatedLastTimestamp"),
    ("count", "deprecatedCount"),
];

/// The stored event in the form of `events.k8s.io`.
pub(super) fn to_new(event: &Value) -> Value {
    let names = RENAMED.map(|(core, new)| (core, new));
    renamed(event, &names, &format!("{EVENTS_GROUP}/v1"))
}

/// An event in the form of `events.k8s.io` as it is stored.
pub(super) fn to_core(event: &Value) -> Value {
    let names = RENAMED.map(|(core, new)| (new, core));
    renamed(event, &names, "v1")
}

fn renamed(event: &Value, names: &[(&str, &str)], version: &str) -> Value {
    let Some(fields) = event.as_object() else {
        return event.clone();
    };
    let rename = |(field, value): (&String, &Value)| {
        let new = names.iter().find(|(from, _)| from == field);
        (new.map_or(field.as_str(), |(_, to)| to).to_owned(), value.clone())
    };
    let mut event: Value = fields.iter().map(rename).collect();
    event["apiVersion"] = version.into();
    event
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn an_event_survives_the_round_trip() {
        let core = json!({
            "apiVersion": "v1",
            "kind": "Event",
            "involvedObject": {"name": "a"},
            "message": "text",
            "reason": "r",
            "count": 2,
        });
        let new = to_new(&core);
        assert_eq!(new["note"], "text");
        assert_eq!(new["regarding"]["name"], "a");
        assert_eq!(new["deprecatedCount"], 2);
        assert_eq!(new["apiVersion"], "events.k8s.io/v1");
        assert_eq!(new.get("message"), None);
        assert_eq!(to_core(&new), core);
    }
}
