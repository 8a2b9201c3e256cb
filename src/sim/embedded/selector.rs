//! Label and field selectors of lists and watches.

use serde_json::Value;

use super::error::ApiError;
use super::object::{at, meta, text};
use super::resource::Resource;

/// A selection of objects of one resource. The default selects all.
#[derive(Clone, Debug, Default)]
pub struct Selector {
    namespace: Option<String>,
    labels: Vec<LabelTerm>,
    fields: Vec<FieldTerm>,
}

#[derive(Clone, Debug, PartialEq)]
struct LabelTerm {
    key: String,
    test: LabelTest,
}

#[derive(Clone, Debug, PartialEq)]
enum LabelTest {
    In(Vec<String>),
    NotIn(Vec<String>),
    Exists,
    Absent,
}

#[derive(Clone, Debug, PartialEq)]
struct FieldTerm {
    path: Vec<String>,
    value: String,
    equal: bool,
}

/// Fields that can be selected by, beyond name and namespace.
fn selectable(resource: Resource) -> &'static [&'static str] {
    match resource {
        Resource::Pods => &[
            "spec.nodeName",
            "spec.restartPolicy",
            "spec.schedulerName",
            "spec.serviceAccountName",
            "spec.hostNetwork",
            "status.phase",
            "status.podIP",
            "status.nominatedNodeName",
        ],
        Resource::Nodes => &["spec.unschedulable"],
        Resource::Namespaces => &["status.phase"],
        Resource::Events => &[
            "involvedObject.kind",
            "involvedObject.namespace",
            "involvedObject.name",
            "involvedObject.uid",
            "involvedObject.apiVersion",
            "involvedObject.resourceVersion",
            "involvedObject.fieldPath",
            "reason",
            "reportingComponent",
            "source",
            "type",
        ],
        _ => &[],
    }
}

impl Selector {
    /// The objects in `namespace`, or in all of them, that both selectors select. The selectors
    /// are in the form of the query parameters `labelSelector` and `fieldSelector`.
    pub fn parse(
        resource: Resource,
        namespace: Option<&str>,
        labels: &str,
        fields: &str,
    ) -> Result<Self, ApiError> {
        Ok(Self {
            namespace: namespace.map(str::to_owned),
            labels: parse_labels(labels)?,
            fields: parse_fields(resource, fields)?,
        })
    }

    /// The objects in `namespace` that the object `selector` (`matchLabels`, `matchExpressions`)
    /// selects. An empty one selects all, a missing one nothing.
    pub fn from_object(namespace: &str, selector: &Value) -> Option<Self> {
        let selector = selector.as_object()?;
        let mut labels = Vec::new();
        if let Some(pairs) = selector.get("matchLabels").and_then(Value::as_object) {
            for (key, value) in pairs {
                let value = value.as_str().unwrap_or_default().to_owned();
                labels.push(LabelTerm { key: key.clone(), test: LabelTest::In(vec![value]) });
            }
        }
        let expressions = selector.get("matchExpressions").and_then(Value::as_array);
        for expression in expressions.into_iter().flatten() {
            let values = at(expression, &["values"]).as_array();
            let values = values.into_iter().flatten().filter_map(Value::as_str);
            let values = values.map(str::to_owned).collect();
            let test = match text(expression, &["operator"]) {
                "In" => LabelTest::In(values),
                "NotIn" => LabelTest::NotIn(values),
                "Exists" => LabelTest::Exists,
                "DoesNotExist" => LabelTest::Absent,
                _ => return None,
            };
            let key = text(expression, &["key"]).to_owned();
            labels.push(LabelTerm { key, test });
        }
        Some(Self { namespace: Some(namespace.to_owned()), labels, fields: Vec::new() })
    }

    /// The namespace that the selection is confined to.
    pub fn namespace(&self) -> Option<&str> {
        self.namespace.as_deref()
    }

    /// Whether it leaves anything out beyond other namespaces.
    pub fn is_partial(&self) -> bool {
        !self.labels.is_empty() || !self.fields.is_empty()
    }

    /// Whether it selects the object.
    pub fn matches(&self, object: &Value) -> bool {
        self.namespace.as_deref().is_none_or(|n| meta(object, "namespace") == n)
            && self.labels.iter().all(|term| term.matches(object))
            && self.fields.iter().all(|term| term.matches(object))
    }
}

impl LabelTerm {
    fn matches(&self, object: &Value) -> bool {
        let value = at(object, &["metadata", "labels"]).get(&self.key);
        let value = value.and_then(Value::as_str);
        match &self.test {
            LabelTest::In(values) => value.is_some_and(|v| values.iter().any(|x| x == v)),
            LabelTest::NotIn(values) => value.is_none_or(|v| values.iter().all(|x| x != v)),
            LabelTest::Exists => value.is_some(),
            LabelTest::Absent => value.is_none(),
        }
    }
}

impl FieldTerm {
    fn matches(&self, object: &Value) -> bool {
        let mut value = object;
        for step in &self.path {
            value = value.get(step).unwrap_or(&Value::Null);
        }
        let is_flag =
            matches!(self.path.last().map(String::as_str), Some("unschedulable" | "hostNetwork"));
        let equal = match value {
            Value::String(text) => *text == self.value,
            Value::Bool(flag) => flag.to_string() == self.value,
            Value::Null if is_flag => self.value == "false",
            Value::Null => self.value.is_empty(),
            _ => false,
        };
        equal == self.equal
    }
}

fn parse_fields(resource: Resource, selector: &str) -> Result<Vec<FieldTerm>, ApiError> {
    let mut terms = Vec::new();
    for part in selector.split(',').map(str::trim).filter(|p| !p.is_empty()) {
        let (name, value, equal) = if let Some((name, value)) = part.split_once("!=") {
            (name, value, false)
        } else if let Some((name, value)) = part.split_once("==") {
            (name, value, true)
        } else if let Some((name, value)) = part.split_once('=') {
            (name, value, true)
        } else {
            let text = format!("invalid selector: '{selector}'; can't understand '{part}'");
            return Err(ApiError::bad_request(text));
        };
        let known = name == "metadata.name"
            || (name == "metadata.namespace" && resource.spec().namespaced)
            || selectable(resource).contains(&name);
        if !known {
            let text = format!("field label not supported: {name}");
            return Err(ApiError::bad_request(text));
        }
        let name = if name == "source" { "source.component" } else { name };
        terms.push(FieldTerm {
            path: name.split('.').map(str::to_owned).collect(),
            value: value.to_owned(),
            equal,
        });
    }
    Ok(terms)
}

fn parse_labels(selector: &str) -> Result<Vec<LabelTerm>, ApiError> {
    let refuse = |part: &str| {
        ApiError::bad_request(format!("unable to parse requirement: couldn't parse {part:?}"))
    };
    let mut terms = Vec::new();
    for part in split_outside_parentheses(selector) {
        let (key, test) = if let Some(key) = part.strip_prefix('!') {
            (key, LabelTest::Absent)
        } else if let Some((head, values)) = part.split_once('(') {
            let values = values.strip_suffix(')').ok_or_else(|| refuse(part))?;
            let values = values.split(',').map(|v| v.trim().to_owned()).collect();
            let mut words = head.split_whitespace();
            match (words.next(), words.next(), words.next()) {
                (Some(key), Some("in"), None) => (key, LabelTest::In(values)),
                (Some(key), Some("notin"), None) => (key, LabelTest::NotIn(values)),
                _ => return Err(refuse(part)),
            }
        } else if let Some((key, value)) = part.split_once("!=") {
            (key, LabelTest::NotIn(vec![value.trim().to_owned()]))
        } else if let Some((key, value)) = part.split_once('=') {
            let value = value.strip_prefix('=').unwrap_or(value);
            (key, LabelTest::In(vec![value.trim().to_owned()]))
        } else {
            (part, LabelTest::Exists)
        };
        let key = key.trim();
        if key.is_empty() || key.contains(|c: char| c.is_whitespace() || "()<>".contains(c)) {
            return Err(refuse(part));
        }
        terms.push(LabelTerm { key: key.to_owned(), test });
    }
    Ok(terms)
}

fn split_outside_parentheses(selector: &str) -> Vec<&str> {
    let mut parts = Vec::new();
    let (mut start, mut depth) = (0, 0);
    for (position, c) in selector.char_indices() {
        match c {
            '(' => depth += 1,
            ')' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(&selector[start..position]);
                start = position + 1;
            }
            _ => {}
        }
    }
    parts.push(&selector[start..]);
    parts.into_iter().map(str::trim).filter(|p| !p.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pod() -> Value {
        json!({
            "metadata": {"name": "a", "namespace": "x", "labels": {"app": "web", "tier": ""}},
            "spec": {"nodeName": "n1"},
            "status": {"phase": "Running"},
        })
    }

    fn selects(namespace: Option<&str>, labels: &str, fields: &str) -> bool {
        let selector = Selector::parse(Resource::Pods, namespace, labels, fields);
        selector.unwrap().matches(&pod())
    }

    #[test]
    fn labels_are_compared_as_the_operators_say() {
        for yes in [
            "",
            "app=web",
            "app==web",
            "app in (db, web)",
            "app notin (db)",
            "tier",
            "tier=",
            "!zone",
            "zone!=a",
            "zone notin (a,b),app=web",
        ] {
            assert!(selects(None, yes, ""), "{yes}");
        }
        for no in [
            "app=db",
            "app!=web",
            "app in (db)",
            "app notin (db,web)",
            "!app",
            "zone",
            "app=web,zone",
        ] {
            assert!(!selects(None, no, ""), "{no}");
        }
    }

    #[test]
    fn fields_are_compared_as_the_operators_say() {
        for yes in [
            "spec.nodeName=n1",
            "spec.nodeName==n1",
            "spec.nodeName!=",
            "status.phase!=Failed,status.phase!=Succeeded",
            "metadata.name=a,metadata.namespace=x",
            "spec.hostNetwork=false",
        ] {
            assert!(selects(None, "", yes), "{yes}");
        }
        for no in ["spec.nodeName=", "spec.nodeName!=n1", "metadata.name=b"] {
            assert!(!selects(None, "", no), "{no}");
        }
    }

    #[test]
    fn another_namespace_is_left_out() {
        assert!(selects(Some("x"), "", ""));
        assert!(!selects(Some("y"), "", ""));
    }

    #[test]
    fn what_cannot_be_selected_by_is_refused() {
        for (labels, fields) in [
            ("", "spec.tolerations=a"),
            ("", "spec.nodeName"),
            ("a b", ""),
            ("app in web", ""),
            ("app of (web)", ""),
            ("=x", ""),
        ] {
            let error = Selector::parse(Resource::Pods, None, labels, fields).unwrap_err();
            assert_eq!(error.code, 400, "{labels} {fields}");
        }
    }

    #[test]
    fn an_empty_selector_object_selects_all_and_a_missing_one_nothing() {
        let all = Selector::from_object("x", &json!({})).unwrap();
        assert!(all.matches(&pod()));
        assert!(Selector::from_object("x", &Value::Null).is_none());
        let some = json!({
            "matchLabels": {"app": "web"},
            "matchExpressions": [{"key": "zone", "operator": "DoesNotExist"}],
        });
        assert!(Selector::from_object("x", &some).unwrap().matches(&pod()));
        assert!(!Selector::from_object("y", &some).unwrap().matches(&pod()));
    }
}
