//! Parser of `--fault`: `refuse=503,chance=30%,verb=delete,resource=pods`.

use crate::drain::{DURATION_REMEDY, parse_duration};
use crate::sim::embedded::{Fault, Resource, Rule, Verb};

/// All faults, for messages.
const FAULTS: &str = "latency=DURATION, refuse=CODE, hang, cut or lose-answer";
/// All filters and options, for messages.
const KEYS: &str = "chance, times, verb, resource, subresource, namespace, name or retry-after";

/// Parses a fault and the requests that it applies to.
///
/// # Errors
/// A message with the cause and the remedy.
pub(super) fn parse(text: &str) -> Result<Rule, String> {
    let mut parts = text.split(',').map(|part| match part.split_once('=') {
        Some((key, value)) => (key.trim(), Some(value.trim())),
        None => (part.trim(), None),
    });
    let (name, value) = parts.next().unwrap_or_default();
    let mut rule = Rule::always(fault(name, value)?);
    for (key, value) in parts {
        let value = value.filter(|value| !value.is_empty());
        let value = value.ok_or_else(|| format!("{key:?} has no value; write {key}=VALUE"))?;
        narrow(&mut rule, key, value)?;
    }
    Ok(rule)
}

fn fault(name: &str, value: Option<&str>) -> Result<Fault, String> {
    match (name, value) {
        ("latency", Some(text)) => parse_duration(text)
            .map(Fault::Latency)
            .ok_or_else(|| format!("{text:?} is not a duration; {DURATION_REMEDY}, or 200ms")),
        ("refuse", Some(text)) => match text.parse() {
            Ok(code @ 400..=599) => Ok(Fault::Refuse { code, retry_after: None }),
            _ => Err(format!("{text:?} is not an error status; write 400 to 599, such as 503")),
        },
        ("hang", None) => Ok(Fault::Hang),
        ("cut", None) => Ok(Fault::Cut),
        ("lose-answer", None) => Ok(Fault::LoseAnswer),
        ("latency" | "refuse" | "hang" | "cut" | "lose-answer", _) => {
            let trouble = if value.is_some() { "takes no value" } else { "needs a value" };
            Err(format!("{name} {trouble}; write {FAULTS}"))
        }
        _ => Err(format!("unknown fault {name:?}; write {FAULTS}")),
    }
}

/// Limits the rule to fewer requests.
fn narrow(rule: &mut Rule, key: &str, value: &str) -> Result<(), String> {
    match key {
        "chance" => {
            let percent = value.strip_suffix('%').and_then(|number| number.parse::<f64>().ok());
            let percent = percent.filter(|percent| *percent > 0.0 && *percent <= 100.0);
            let remedy = "write more than 0% and at most 100%, such as 30%";
            rule.probability =
                percent.ok_or_else(|| format!("{value:?} is not a percentage; {remedy}"))? / 100.0;
        }
        "times" => {
            let times = value.parse().ok().filter(|times| *times > 0);
            let remedy = "write a whole number of requests, 1 or more";
            rule.count = Some(times.ok_or_else(|| format!("{value:?} is not a count; {remedy}"))?);
        }
        "verb" => rule.verb = Some(one_of("verb", value, Verb::ALL, Verb::name)?),
        "resource" => {
            let plural = |resource: Resource| resource.spec().plural;
            rule.resource = Some(one_of("resource", value, Resource::ALL, plural)?);
        }
        "subresource" => rule.subresource = Some(value.to_owned()),
        "namespace" => rule.namespace = Some(value.to_owned()),
        "name" => rule.name = Some(value.to_owned()),
        "retry-after" => {
            let Fault::Refuse { retry_after, .. } = &mut rule.fault else {
                return Err("retry-after requires refuse=CODE".to_owned());
            };
            let seconds = value.parse();
            *retry_after = Some(seconds.map_err(|_| {
                format!("{value:?} is not a number; write a whole number of seconds")
            })?);
        }
        _ => return Err(format!("unknown key {key:?}; write {KEYS}")),
    }
    Ok(())
}

/// The element of `all` with the name `value`.
fn one_of<T: Copy>(
    what: &str,
    value: &str,
    all: impl IntoIterator<Item = T> + Clone,
    name: impl Fn(T) -> &'static str,
) -> Result<T, String> {
    all.clone().into_iter().find(|one| name(*one) == value).ok_or_else(|| {
        let known: Vec<_> = all.into_iter().map(&name).collect();
        format!("unknown {what} {value:?}; write one of {}", known.join(", "))
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_fault_befalls_every_request_unless_more_is_said() {
        let read = |text| format!("{:?}", parse(text).unwrap());
        let always = |fault| format!("{:?}", Rule::always(fault));
        assert_eq!(read("hang"), always(Fault::Hang));
        assert_eq!(read("cut"), always(Fault::Cut));
        assert_eq!(read("lose-answer"), always(Fault::LoseAnswer));
        assert_eq!(read("latency=200ms"), always(Fault::Latency(Duration::from_millis(200))));
        let refused = |retry_after| Fault::Refuse { code: 429, retry_after };
        assert_eq!(read("refuse=429"), always(refused(None)));
        assert_eq!(read("refuse=429,retry-after=2"), always(refused(Some(2))));
    }

    #[test]
    fn it_can_befall_some_requests_only() {
        let text = "refuse=503, chance=30%, times=4, verb=create, resource=pods, \
                    subresource=eviction, namespace=shop, name=db-0";
        let rule = Rule {
            namespace: Some("shop".to_owned()),
            ..Rule::always(Fault::Refuse { code: 503, retry_after: None })
                .with_probability(0.3)
                .times(4)
                .on(Verb::Create)
                .of(Resource::Pods)
                .at("eviction")
                .named("db-0")
        };
        assert_eq!(format!("{:?}", parse(text).unwrap()), format!("{rule:?}"));
    }

    #[test]
    fn what_cannot_be_read_is_told_with_what_can() {
        for (text, words) in [
            ("flaky", "unknown fault \"flaky\"; write latency=DURATION, refuse=CODE, hang"),
            ("", "unknown fault \"\""),
            ("latency", "latency needs a value"),
            ("hang=3s", "hang takes no value"),
            ("latency=fast", "\"fast\" is not a duration; write a duration as"),
            ("refuse=200", "\"200\" is not an error status; write 400 to 599"),
            ("refuse=no", "write 400 to 599"),
            ("cut,chance=0.3", "\"0.3\" is not a percentage; write more than 0%"),
            ("cut,chance=0%", "is not a percentage"),
            ("cut,chance=101%", "is not a percentage"),
            ("cut,chance=NaN%", "is not a percentage"),
            ("cut,times=0", "\"0\" is not a count"),
            ("cut,verb=remove", "unknown verb \"remove\"; write one of get, list, watch"),
            ("cut,resource=pod", "unknown resource \"pod\"; write one of namespaces, nodes, pods"),
            ("cut,retry-after=3", "retry-after requires refuse=CODE"),
            ("refuse=429,retry-after=soon", "write a whole number of seconds"),
            ("cut,verb", "\"verb\" has no value; write verb=VALUE"),
            ("cut,colour=red", "unknown key \"colour\"; write chance, times, verb"),
        ] {
            let error = parse(text).expect_err(text);
            assert!(error.contains(words), "{text}: {error}");
        }
    }
}
