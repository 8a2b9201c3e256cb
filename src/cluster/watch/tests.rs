use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;

use futures::stream::{self, StreamExt};
use http::{Request, Response};
use http_body_util::StreamBody;
use http_body_util::combinators::UnsyncBoxBody;
use hyper::body::Frame;
use kube::Client;
use parking_lot::Mutex;
use prometheus::Registry;
use tokio::time::Instant;
use tower::service_fn;

use super::*;

/// What the server does with one request.
enum Reply {
    /// Answers with this code and body.
    Answer(u16, String),
    /// Answers 200 and sends these pieces, then ends the stream.
    Pieces(Vec<&'static str>),
    /// Sends these pieces, then goes silent.
    Silence(Vec<&'static str>),
    /// Sends these pieces, then breaks the connection.
    Break(Vec<&'static str>),
    /// Never answers.
    Hang,
}

#[derive(Debug, thiserror::Error)]
#[error("the connection broke")]
struct Broken;

/// A server that answers by a script and, at its end, never again.
#[derive(Default)]
struct Server {
    script: Mutex<VecDeque<Reply>>,
    requests: Mutex<Vec<(String, Instant)>>,
}

/// Writes down what comes in.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<String>>>);

#[derive(Deserialize)]
struct Thing {
    metadata: Meta,
}

#[derive(Deserialize)]
struct Meta {
    name: String,
    uid: String,
}

impl Log {
    fn add(&self, line: String) {
        self.0.lock().push(line);
    }

    fn read(json: &str) -> Result<(String, Uid), DecodeError> {
        let thing: Thing = serde_json::from_str(json).map_err(|error| DecodeError {
            object: "a thing".to_owned(),
            uid: json.contains("named").then_some(Uid(0xbad)),
            reason: error.to_string(),
        })?;
        Ok((thing.metadata.name, Uid(thing.metadata.uid.parse().unwrap())))
    }
}

impl Index for Log {
    const RESOURCE: &str = "things";
    const SELECT: &str = "&fieldSelector=x";

    fn apply(&mut self, json: &str, by: Source) -> Result<Uid, DecodeError> {
        let (name, uid) = Self::read(json)?;
        self.add(format!("{name} by {by:?}"));
        Ok(uid)
    }

    fn delete(&mut self, json: &str) -> Result<(), DecodeError> {
        let (name, _) = Self::read(json)?;
        self.add(format!("{name} gone"));
        Ok(())
    }

    fn retain(&mut self, seen: &AHashSet<Uid>) {
        let mut uids: Vec<_> = seen.iter().map(|uid| uid.0).collect();
        uids.sort_unstable();
        self.add(format!("only {uids:?}"));
    }
}

fn respond(reply: Reply) -> Response<UnsyncBoxBody<Bytes, Broken>> {
    let (code, pieces, silent, broken) = match reply {
        Reply::Answer(code, body) => (code, vec![Bytes::from(body)], false, false),
        Reply::Pieces(p) => (200, p.into_iter().map(Bytes::from).collect(), false, false),
        Reply::Silence(p) => (200, p.into_iter().map(Bytes::from).collect(), true, false),
        Reply::Break(p) => (200, p.into_iter().map(Bytes::from).collect(), false, true),
        Reply::Hang => unreachable!("answered nowhere"),
    };
    let pieces = stream::iter(pieces).map(|piece| Ok(Frame::data(piece)));
    let end = stream::iter(broken.then_some(Err(Broken)));
    let frames =
        if silent { pieces.chain(stream::pending()).boxed() } else { pieces.chain(end).boxed() };
    Response::builder().status(code).body(UnsyncBoxBody::new(StreamBody::new(frames))).unwrap()
}

/// Runs the stream against the script until nothing more happens, and returns what came in, what
/// was asked, and at which second since the start.
async fn play(script: Vec<Reply>) -> (Vec<String>, Vec<(String, u64)>, u32) {
    play_for(script, Duration::from_secs(3600)).await
}

async fn play_for(script: Vec<Reply>, time: Duration) -> (Vec<String>, Vec<(String, u64)>, u32) {
    let server = Arc::new(Server { script: Mutex::new(script.into()), ..Server::default() });
    let behind = Arc::clone(&server);
    let service = service_fn(move |request: Request<Body>| {
        let server = Arc::clone(&behind);
        async move {
            server.requests.lock().push((request.uri().to_string(), Instant::now()));
            let reply = server.script.lock().pop_front().unwrap_or(Reply::Hang);
            if matches!(reply, Reply::Hang) {
                std::future::pending::<()>().await;
            }
            Ok::<_, Infallible>(respond(reply))
        }
    });
    let metrics = Metrics::register(&Registry::new()).unwrap();
    let api = Api::new(Client::new(service, "default"), metrics.clone());
    let log = Log::default();
    let synced = Arc::new(Mutex::new(0));
    let count = Arc::clone(&synced);
    let start = Instant::now();
    let running = run(api, metrics, log.clone(), move || *count.lock() += 1);
    let _ = timeout(time, running).await;
    let requests = server.requests.lock();
    let requests =
        requests.iter().map(|(uri, when)| (uri.clone(), (*when - start).as_secs())).collect();
    let (lines, lists) = (log.0.lock().clone(), *synced.lock());
    (lines, requests, lists)
}

fn page(version: &str, next: &str, things: &[(&str, u32)]) -> Reply {
    let items: Vec<_> = things
        .iter()
        .map(|(name, uid)| serde_json::json!({"metadata": {"name": name, "uid": uid.to_string()}}))
        .collect();
    let list = serde_json::json!({
        "kind": "ThingList", "metadata": {"resourceVersion": version, "continue": next}, "items": items,
    });
    Reply::Answer(200, list.to_string())
}

const ADDED_B: &str = r#"{"type":"ADDED","object":{"metadata":{"name":"b","uid":"2","resourceVersion":"11"}}}
"#;
const DELETED_A: &str = r#"{"type":"DELETED","object":{"metadata":{"name":"a","uid":"1","resourceVersion":"12"}}}
"#;
const BOOKMARK: &str = r#"{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"20"}}}
"#;
const EXPIRED: &str = r#"{"type":"ERROR","object":{"kind":"Status","code":410,"reason":"Expired"}}
"#;
const FAILED: &str = r#"{"type":"ERROR","object":{"kind":"Status","code":500,"message":"etcd"}}
"#;

#[tokio::test(start_paused = true)]
async fn a_list_is_taken_page_by_page_and_watched_from() {
    let script = vec![
        page("10", "to ken", &[("a", 1)]),
        page("10", "", &[("c", 3)]),
        Reply::Silence(vec![ADDED_B, DELETED_A]),
    ];
    let (log, requests, lists) = play_for(script, Duration::from_secs(5)).await;
    let expected = ["a by List", "c by List", "only [1, 3]", "b by Watch", "a gone"];
    assert_eq!(log, expected);
    assert_eq!(lists, 1);
    let asked: Vec<_> = requests.iter().map(|(uri, _)| uri.as_str()).collect();
    assert_eq!(asked[0], "/api/v1/things?limit=500&fieldSelector=x");
    assert_eq!(asked[1], "/api/v1/things?limit=500&fieldSelector=x&continue=to+ken");
    assert!(asked[2].contains("watch=true&allowWatchBookmarks=true&timeoutSeconds="), "{asked:?}");
    assert!(asked[2].contains("&resourceVersion=10&fieldSelector=x"), "{asked:?}");
    assert_eq!(asked.len(), 3);
}

#[tokio::test(start_paused = true)]
async fn events_may_be_cut_anywhere() {
    let (one, two) = ADDED_B.split_at(17);
    let script = vec![page("10", "", &[]), Reply::Silence(vec![one, two, "\n"])];
    let (log, ..) = play_for(script, Duration::from_secs(5)).await;
    assert_eq!(log, ["only []", "b by Watch"]);
}

#[tokio::test(start_paused = true)]
async fn a_closed_watch_goes_on_at_the_last_version_without_a_list() {
    let script = vec![
        page("10", "", &[]),
        Reply::Pieces(vec![ADDED_B]),
        Reply::Pieces(vec![BOOKMARK]),
        Reply::Hang,
    ];
    let (_, requests, lists) = play_for(script, Duration::from_secs(5)).await;
    assert_eq!(lists, 1);
    assert!(requests[2].0.contains("resourceVersion=11&"), "{requests:?}");
    assert!(requests[3].0.contains("resourceVersion=20&"), "{requests:?}");
    assert_eq!(requests[3].1, 0, "at once");
}

#[tokio::test(start_paused = true)]
async fn an_expired_version_leads_to_a_new_list_in_both_forms() {
    let gone = || Reply::Answer(410, r#"{"reason":"Expired"}"#.to_owned());
    for reply in [Reply::Pieces(vec![EXPIRED]), gone()] {
        let script =
            vec![page("10", "", &[("a", 1)]), reply, page("30", "", &[("c", 3)]), Reply::Hang];
        let (log, requests, lists) = play_for(script, Duration::from_secs(5)).await;
        assert_eq!(lists, 2);
        assert!(log.contains(&"only [3]".to_owned()), "what the list lacks is gone: {log:?}");
        assert!(requests[3].0.contains("resourceVersion=30&"), "{requests:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_token_that_expires_in_mid_list_starts_the_list_anew() {
    let script = vec![
        page("10", "more", &[("a", 1)]),
        Reply::Answer(410, String::new()),
        page("11", "", &[("a", 1)]),
        Reply::Hang,
    ];
    let (log, requests, lists) = play_for(script, Duration::from_secs(5)).await;
    assert_eq!(lists, 1);
    assert!(!requests[2].0.contains("continue"));
    assert_eq!(log.iter().filter(|line| line.starts_with("only")).count(), 1);
}

#[tokio::test(start_paused = true)]
async fn every_wait_is_bounded() {
    // A list that hangs, a watch that does not answer, a watch that goes silent.
    let script = vec![
        Reply::Hang,
        page("10", "", &[]),
        Reply::Hang,
        Reply::Silence(vec![ADDED_B]),
        Reply::Hang,
    ];
    let (_, requests, _) = play_for(script, Duration::from_secs(200)).await;
    assert!((60..=61).contains(&requests[1].1), "{requests:?}");
    assert!((75..=77).contains(&requests[3].1), "{requests:?}");
    assert!((150..=153).contains(&requests[4].1), "{requests:?}");
    assert!(requests[4].0.contains("resourceVersion=11&"), "{requests:?}");
}

#[tokio::test(start_paused = true)]
async fn failures_are_retried_with_growing_pauses_and_for_ever() {
    let mut script: Vec<_> = (0..50).map(|_| Reply::Answer(500, String::new())).collect();
    script.push(page("10", "", &[]));
    let (_, requests, lists) = play(script).await;
    assert_eq!(lists, 1);
    let (last, before) = (requests[50].1, requests[48].1);
    assert!((8..=16).contains(&(last - before)), "at most 8 s apart: {requests:?}");
    assert!(requests[5].1 < 10, "and quickly at first: {requests:?}");
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_keeps_failing_does_not_spin() {
    let mut script = vec![page("10", "", &[])];
    for _ in 0..20 {
        script.push(Reply::Pieces(vec![FAILED]));
        script.push(Reply::Answer(503, String::new()));
        script.push(Reply::Break(vec![r#"{"type":"ADDED","obj"#]));
        script.push(Reply::Pieces(vec!["<html>a proxy's page</html>\n"]));
        script.push(Reply::Pieces(vec![]));
    }
    let (log, requests, lists) = play(script).await;
    assert_eq!(lists, 1, "no new list: the version is still good");
    assert!(requests.len() > 101, "and it never gives up");
    assert!(requests[101].1 > 300, "{:?}", requests[101]);
    assert!(log.iter().all(|line| !line.contains("by Watch")));
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_is_no_list_is_an_error_and_loses_nothing() {
    let script = vec![
        Reply::Answer(200, "<html>a proxy's page</html>".to_owned()),
        Reply::Answer(200, r#"{"kind":"Status"}"#.to_owned()),
        Reply::Answer(200, r#"{"metadata":{"resourceVersion":"9"}}"#.to_owned()),
        Reply::Answer(200, r#"{"kind":"Thing","metadata":{"resourceVersion":"9"}}"#.to_owned()),
        Reply::Break(vec![r#"{"kind":"ThingList","metadata":{"resourceVersion":"9"},"items":[{"#]),
        page("10", "", &[("a", 1)]),
    ];
    let (log, _, lists) = play_for(script, Duration::from_secs(20)).await;
    assert_eq!(lists, 1);
    assert_eq!(log[..2], ["a by List", "only [1]"]);
}

#[tokio::test(start_paused = true)]
async fn an_unreadable_object_is_skipped_and_what_was_known_of_it_stays() {
    let list = r#"{"kind":"ThingList","metadata":{"resourceVersion":"10"},"items":[
        {"metadata":{"name":"a","uid":"1"}},{"metadata":"named"},{"metadata":{"name":"c","uid":"3"}}]}"#;
    let bad = r#"{"type":"MODIFIED","object":{"metadata":{"name":7,"resourceVersion":"13"}}}
"#;
    let script = vec![
        Reply::Answer(200, list.to_owned()),
        Reply::Pieces(vec![bad, ADDED_B, bad]),
        Reply::Hang,
    ];
    let (log, requests, _) = play_for(script, Duration::from_secs(5)).await;
    let bad_stays = format!("only [1, 3, {}]", 0xbad);
    assert_eq!(log[..4], ["a by List", "c by List", &bad_stays, "b by Watch"]);
    assert!(requests[2].0.contains("resourceVersion=13&"), "the stream goes on behind it");
}

#[tokio::test(start_paused = true)]
async fn an_endless_event_is_given_up() {
    let piece: &'static str = Box::leak("x".repeat(1 << 20).into_boxed_str());
    let script = vec![page("10", "", &[]), Reply::Silence(vec![piece; 10]), Reply::Hang];
    let (_, requests, _) = play_for(script, Duration::from_secs(5)).await;
    assert_eq!(requests.len(), 3, "the watch was opened anew");
}
