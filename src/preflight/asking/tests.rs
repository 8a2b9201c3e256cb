use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use http::{Request, Response};
use kube::Client;
use kube::client::Body;
use prometheus::Registry;
use tower::{BoxError, service_fn};

use super::*;
use crate::cluster::Metrics;
use crate::preflight::{Tasks, check};

const WAIT: Duration = Duration::from_secs(300);

/// How a server answers a question for a right.
#[derive(Clone, Copy)]
enum Answers {
    Yes,
    No,
    /// With this code instead of an answer.
    Code(u16),
    /// In the API server's words: who asks may not ask.
    Forbidden,
    /// With something else than a review.
    Nonsense,
    /// Not at all: the connection breaks.
    Breaks,
    /// Not at all: its certificate is not trusted.
    Untrusted,
}

/// A server that answers the question of this number, counted from 0, so, and is ready.
fn server(how: impl Fn(usize) -> Answers + Clone + Send + Sync + 'static) -> Api {
    server_ready_after(0, how)
}

/// The same, but it is not ready until it was asked so many questions.
fn server_ready_after(
    number: usize,
    how: impl Fn(usize) -> Answers + Clone + Send + Sync + 'static,
) -> Api {
    let asked = Arc::new(AtomicUsize::new(0));
    let service = service_fn(move |request: Request<Body>| {
        let answers = if request.uri().path() == "/readyz" {
            let is_ready = asked.load(Ordering::Relaxed) >= number;
            if is_ready { Answers::Yes } else { Answers::Forbidden }
        } else {
            how(asked.fetch_add(1, Ordering::Relaxed))
        };
        async move {
            let (code, body) = match answers {
                Answers::Yes => (200, r#"{"status": {"allowed": true}}"#),
                Answers::No => (200, r#"{"status": {"allowed": false}}"#),
                Answers::Code(code) => (code, "{}"),
                Answers::Forbidden => (403, r#"{"reason": "Forbidden", "message": "not you"}"#),
                Answers::Nonsense => (200, "<html>"),
                Answers::Breaks => return Err("broken".into()),
                Answers::Untrusted => {
                    let error = rustls::CertificateError::UnknownIssuer;
                    return Err(rustls::Error::InvalidCertificate(error).into());
                }
            };
            let answer =
                Response::builder().status(code).body(Body::from(body.as_bytes().to_vec()));
            answer.map_err(BoxError::from)
        }
    });
    Api::new(Client::new(service, "default"), Metrics::register(&Registry::new()).unwrap())
}

/// What the start comes to after how long, in seconds.
async fn started(api: &Api, wait: Duration) -> (Result<(), String>, u64) {
    let begin = Instant::now();
    let tasks = Tasks { drains: true, evicts: false, deletes: true };
    let outcome = check(api, "server", Some("kube-system"), tasks, None, wait).await;
    (outcome.map_err(|error| error.to_string()), begin.elapsed().as_secs())
}

#[tokio::test(start_paused = true)]
async fn a_server_that_cannot_be_reached_or_answer_now_is_waited_for() {
    for ails in [
        Answers::Breaks,
        Answers::Code(429),
        Answers::Code(500),
        Answers::Code(503),
        Answers::Code(504),
    ] {
        let api = server(move |number| if number < 40 { ails } else { Answers::Yes });
        let (outcome, took) = started(&api, WAIT).await;
        assert_eq!(outcome, Ok(()));
        assert!((10..60).contains(&took), "there are pauses between: {took} s");
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_that_ails_now_and_then_is_asked_to_the_end() {
    let api = server(|number| match number % 4 {
        0 => Answers::Breaks,
        1 => Answers::Code(503),
        _ => Answers::Yes,
    });
    let (outcome, took) = started(&api, WAIT).await;
    assert_eq!(outcome, Ok(()));
    assert!(took < 30, "{took} s");
}

#[tokio::test(start_paused = true)]
async fn the_wait_ends_and_the_error_says_how_long_it_was() {
    for (ails, words) in [
        (
            Answers::Breaks,
            "cannot reach the API server at server after waiting 5m0s: broken; check",
        ),
        (Answers::Code(503), "at server after waiting 5m0s: 503 "),
    ] {
        let (outcome, took) = started(&server(move |_| ails), WAIT).await;
        let error = outcome.unwrap_err();
        assert!(error.contains(words), "{error}");
        assert_eq!(took, WAIT.as_secs());
    }
}

#[tokio::test(start_paused = true)]
async fn without_a_wait_it_is_given_up_at_once() {
    for (ails, words) in [
        (Answers::Breaks, "cannot reach the API server at server: broken; check"),
        (Answers::Code(503), "at server: 503 "),
    ] {
        let (outcome, took) = started(&server(move |_| ails), Duration::ZERO).await;
        let error = outcome.unwrap_err();
        assert!(error.contains(words), "{error}");
        assert_eq!(took, 0);
    }
}

#[tokio::test(start_paused = true)]
async fn what_does_not_pass_ends_the_start_at_once() {
    for (answers, words) in [
        (Answers::Code(401), "rejects the credentials (401"),
        (Answers::Code(403), "cannot check permissions with the API server at server: 403"),
        (Answers::Code(404), "cannot check permissions with the API server at server: 404"),
        (Answers::Nonsense, "check that an API server"),
        (Answers::Untrusted, "cannot reach the API server at server: invalid peer certificate"),
        (Answers::No, "missing permission: list nodes, watch nodes"),
    ] {
        let (outcome, took) = started(&server(move |_| answers), WAIT).await;
        let error = outcome.unwrap_err();
        assert!(error.contains(words), "{error}");
        assert_eq!(took, 0, "{error}");
    }
}

/// As kube-apiserver does: it serves before it has read the roles.
#[tokio::test(start_paused = true)]
async fn a_server_that_has_just_come_up_may_refuse_at_first() {
    for refuses in [Answers::Code(401), Answers::Code(403), Answers::No] {
        let api = server(move |number| match number {
            0..20 => Answers::Breaks,
            20..30 => refuses,
            _ => Answers::Yes,
        });
        assert_eq!(started(&api, WAIT).await.0, Ok(()));

        let api = server(move |number| if number < 20 { Answers::Breaks } else { refuses });
        let (outcome, took) = started(&api, WAIT).await;
        assert!(outcome.is_err(), "it stands by it");
        assert!((30..60).contains(&took), "{took} s");
    }
}

#[tokio::test(start_paused = true)]
async fn who_may_not_ask_for_rights_starts_with_a_warning() {
    let (outcome, took) = started(&server(|_| Answers::Forbidden), WAIT).await;
    assert_eq!((outcome, took), (Ok(()), 0));
}

#[tokio::test(start_paused = true)]
async fn a_refusal_of_a_server_that_is_not_ready_is_not_final_even_if_it_is_the_first_answer() {
    for refuses in [Answers::Forbidden, Answers::No] {
        let api = server_ready_after(40, move |number| match number {
            0..20 => refuses,
            _ => Answers::Yes,
        });
        let (outcome, took) = started(&api, WAIT).await;
        assert_eq!(outcome, Ok(()));
        assert!((1..30).contains(&took), "{took} s");
    }
    // One that is never ready is believed in the end.
    let api = server_ready_after(usize::MAX, |_| Answers::No);
    let (outcome, took) = started(&api, WAIT).await;
    assert!(outcome.unwrap_err().contains("missing permission"));
    assert!((25..40).contains(&took), "{took} s");
}
