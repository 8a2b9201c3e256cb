//! Answers that are not what was asked for: nothing is lost, nothing panics, nothing spins.

use proptest::prelude::*;

use super::*;

fn html() -> Bytes {
    "<html>a proxy's page</html>".into()
}

fn json() -> Bytes {
    r#"{"kind":"ThingList","metadata":{"resourceVersion":"9"},"items":[]}"#.into()
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_is_no_list_is_an_error_and_loses_nothing() {
    let page_10 = || {
        let Reply::Answer(_, body) = page("10", "", &[("a", 1)]) else { unreachable!() };
        body
    };
    let script = [
        refused(),
        Reply::Other("text/html", html()),
        Reply::Other("application/json", json()),
        // What says that it is protobuf need not be.
        Reply::Answer(200, html()),
        Reply::Answer(200, Bytes::new()),
        Reply::Answer(200, status(200, "")),
        Reply::Answer(200, page_10().slice(..page_10().len() - 1)),
        Reply::Break(vec![page_10().slice(..20)]),
        page("10", "", &[("a", 1)]),
        Reply::Hang,
    ];
    let played = play(script, 100).await;
    assert_eq!(played.lists, 1);
    assert_eq!(played.log[..2], ["a by List", "only [1]"]);
    assert!(played.second(8) > 5, "and it did not spin: {:?}", played.requests);
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_is_no_watch_is_an_error_and_loses_nothing() {
    let event_json = r#"{"type":"ADDED","object":{"metadata":{"name":"x"}}}"#;
    let other_kind = wire::frame("ADDED", wire::seal("Status", &wire::Status::default()));
    let sealed = wire::seal("Thing", &thing("x", "1", "15"));
    let answers = [
        Reply::Other("text/html", html()),
        Reply::Other("application/json", event_json.into()),
        Reply::Pieces(vec![html()]),
        Reply::Pieces(vec![event_json.into()]),
        Reply::Pieces(vec![other_kind]),
        Reply::Pieces(vec![wire::frame("ADDED", html())]),
        Reply::Pieces(vec![wire::frame("RENAMED", sealed)]),
        Reply::Pieces(vec![Bytes::from_static(b"\0\0\0\x02\xff\xff")]),
    ];
    for answer in answers {
        let mut script = vec![Reply::Pieces(streamed("10", &[("a", 1)]))];
        script.extend([answer, Reply::Silence(vec![added_b()])]);
        let played = play(script, 5).await;
        assert_eq!(played.lists, 1);
        assert!(played.asked(2).contains("&resourceVersion=10&"), "{:?}", played.requests);
        assert_eq!(played.told("b by Watch"), 1, "{:?}", played.log);
    }
}

#[tokio::test(start_paused = true)]
async fn a_proxy_that_answers_in_the_servers_place_is_named_and_quoted() {
    let service = service_fn(|_: Request<Body>| async {
        Ok::<_, Infallible>(respond(Reply::Other("text/html; charset=x", html()), false))
    });
    let metrics = Metrics::register(&Registry::new()).unwrap();
    let api = Api::new(Client::new(service, "default"), metrics);
    let list =
        api.list_page("things", "", PAGE_TIMEOUT, LONGEST_PAGE).await.unwrap_err().to_string();
    let watch = api.open_watch("things", "", HEADER_TIMEOUT).await.unwrap_err().to_string();
    for error in [list, watch] {
        assert!(error.contains("text/html; charset=x"), "{error}");
        assert!(error.contains("<html>a proxy's page</html>"), "{error}");
        assert!(error.contains(wire::MEDIA_TYPE), "{error}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_unreadable_object_is_skipped_and_what_was_known_of_it_stays() {
    let items = [thing("a", "1", ""), thing("named", "x", ""), thing("c", "3", "")];
    let bad = |version| event("MODIFIED", "named", "x", version);
    let watched = || vec![bad("11"), added_b(), bad("13")];
    let paged =
        [refused(), page_of("10", "", items.clone()), Reply::Pieces(watched()), Reply::Hang];
    let frames = items.map(|thing| wire::frame("ADDED", wire::seal("Thing", &thing)));
    let frames = frames.into_iter().chain([list_end_at("10")]).chain(watched());
    let streamed = [Reply::Pieces(frames.collect()), Reply::Hang];
    for script in [Vec::from(paged), Vec::from(streamed)] {
        let played = play(script, 5).await;
        let bad_stays = format!("only [1, 3, {}]", 0xbad);
        assert_eq!(played.log[..4], ["a by List", "c by List", &bad_stays, "b by Watch"]);
        let again = &played.requests.last().unwrap().0;
        assert!(again.contains("resourceVersion=13&"), "the stream goes on behind it: {again}");
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_gone_is_forgotten_by_its_uid_if_nothing_else_can_be_read() {
    let gone = |name| event("DELETED", name, "x", "13");
    let events = vec![gone("named"), gone("nameless"), added_b()];
    let script = [Reply::Pieces(streamed("10", &[("a", 1)])), Reply::Pieces(events), Reply::Hang];
    let played = play(script, 5).await;
    let forgotten = format!("{} forgotten", 0xbad);
    assert_eq!(played.log[2..], [&forgotten[..], "b by Watch"], "and the stream goes on");
}

#[tokio::test(start_paused = true)]
async fn an_event_that_stays_unreadable_leads_to_a_new_list() {
    let bad = || Reply::Pieces(vec![wire::frame("ADDED", html())]);
    let list = |version| Reply::Pieces(streamed(version, &[("a", 1)]));
    let silence = || Reply::Silence(vec![added_b()]);
    let after = |count: u32, then: Vec<Reply>| {
        let bad = (0..count).map(|_| bad());
        [list("10")].into_iter().chain(bad).chain(then).collect::<Vec<_>>()
    };
    let played = play(after(GARBLED - 1, vec![silence()]), 60).await;
    assert_eq!((played.lists, played.told("b by Watch")), (1, 1), "{:?}", played.requests);
    let played = play(after(GARBLED, vec![list("20"), silence()]), 60).await;
    assert_eq!((played.lists, played.told("b by Watch")), (2, 1), "{:?}", played.requests);
    assert!(played.second(8) >= 8, "after pauses: {:?}", played.requests);
}

#[tokio::test(start_paused = true)]
async fn an_event_that_claims_to_be_endless_is_given_up_before_it_is_read() {
    let endless = || Reply::Silence(vec![Bytes::from_static(b"\xff\xff\xff\xff")]);
    let script = [refused(), page("10", "", &[]), endless(), endless(), Reply::Hang];
    let played = play(script, 5).await;
    assert_eq!(played.requests.len(), 5, "the watch was opened anew");
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// Bytes of a stream that are changed, missing or cut, and what a server sends then.
    #[test]
    fn a_broken_stream_neither_panics_nor_spins(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
        lost in any::<(prop::sample::Index, prop::sample::Index)>(),
        end in any::<prop::sample::Index>(),
    ) {
        let mut pieces = streamed("10", &[("a", 1), ("c", 3)]);
        pieces.extend([added_b(), bookmark(), deleted_a()]);
        let mut body = pieces.concat();
        for (at, byte) in changes {
            let at = at.index(body.len());
            body[at] = byte;
        }
        let (from, to) = (lost.0.index(body.len()), lost.1.index(body.len()));
        if from < to && to - from < 20 {
            body.drain(from..to);
        }
        body.truncate(end.index(body.len() + 1));
        let script = (0..100).map(|_| Reply::Pieces(vec![body.clone().into()]));
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_time().start_paused(true).build().unwrap();
        let played = runtime.block_on(play(script, 60));
        // After the second failure in a row a pause is at least 0.2 s, and doubles.
        prop_assert!(played.requests.len() < 100, "{} requests in a minute", played.requests.len());
    }
}
