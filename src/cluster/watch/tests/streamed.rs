//! Lists that the server streams, and what becomes of those that it refuses or breaks off.

use super::*;

#[tokio::test(start_paused = true)]
async fn a_list_is_streamed_and_the_watch_goes_on_from_it() {
    let mut pieces = streamed("10", &[("a", 1), ("c", 3)]);
    pieces.extend([added_b(), deleted_a()]);
    let played = play([Reply::Silence(pieces)], 5).await;
    let expected = ["a by List", "c by List", "only [1, 3]", "b by Watch", "a gone"];
    assert_eq!(played.log, expected);
    assert_eq!((played.lists, played.requests.len()), (1, 1));
    let asked = played.asked(0);
    assert!(asked.starts_with("/api/v1/things?watch=true&sendInitialEvents=true&"), "{asked}");
    assert!(asked.contains("&resourceVersionMatch=NotOlderThan&resourceVersion=&"), "{asked}");
    assert!(asked.contains("&allowWatchBookmarks=true&timeoutSeconds="), "{asked}");
    assert!(asked.ends_with("&fieldSelector=x"), "{asked}");
}

#[tokio::test(start_paused = true)]
async fn the_watch_is_taken_up_at_the_version_of_the_list_and_not_of_an_object() {
    let script = [Reply::Pieces(streamed("10", &[("a", 1)])), Reply::Hang];
    let played = play(script, 5).await;
    assert_eq!(played.lists, 1);
    assert!(played.asked(1).contains("&resourceVersion=10&"), "{}", played.asked(1));
    assert!(!played.asked(1).contains("sendInitialEvents"), "{}", played.asked(1));
}

#[tokio::test(start_paused = true)]
async fn what_changes_while_the_list_is_streamed_is_taken_in_order() {
    let pieces = vec![
        event("ADDED", "a", "1", "1"),
        event("ADDED", "c", "3", "1"),
        event("BOOKMARK", "", "", "8"),
        event("MODIFIED", "c", "3", "9"),
        event("DELETED", "a", "1", "10"),
        list_end_at("10"),
    ];
    let log = play([Reply::Silence(pieces)], 5).await.log;
    assert_eq!(log[..4], ["a by List", "c by List", "c by Watch", "a gone"]);
    assert_eq!(log[4..], ["only [1, 3]"]);
}

#[tokio::test(start_paused = true)]
async fn a_refusal_leads_to_pages_at_once_and_is_remembered() {
    let forbidden = "sendInitialEvents: Forbidden: it is not allowed";
    let too_early = || error(500, "the required storage feature RequestWatchProgress is disabled");
    let refusals = [
        Reply::Answer(422, status(422, "invalid")),
        Reply::Answer(400, Bytes::from_static(b"what?")),
        Reply::Answer(403, status(403, forbidden)),
        Reply::Pieces(vec![too_early()]),
        Reply::Silence(vec![too_early()]),
    ];
    for refusal in refusals {
        let script = [
            refusal,
            page("10", "", &[("a", 1)]),
            Reply::Pieces(vec![error(410, "too old")]),
            page("30", "", &[("a", 1)]),
            Reply::Hang,
        ];
        let played = play(script, 5).await;
        assert_eq!(played.lists, 2);
        assert_eq!(played.second(1), 0, "at once");
        for number in 1..5 {
            assert!(!played.asked(number).contains("sendInitialEvents"), "{:?}", played.requests);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_failure_is_no_refusal() {
    let missing_right = "things is forbidden: User \"x\" cannot watch resource \"things\"";
    let failures = [
        Reply::Answer(403, status(403, missing_right)),
        Reply::Answer(429, Bytes::new()),
        Reply::Answer(503, Bytes::new()),
        Reply::Answer(500, Bytes::new()),
        Reply::Pieces(vec![error(504, "too large resource version")]),
        Reply::Pieces(vec![error(410, "too old")]),
        Reply::Pieces(vec![event("ADDED", "a", "1", "1"), error(500, "etcd")]),
    ];
    for failure in failures {
        let script = [failure, Reply::Silence(streamed("10", &[("a", 1)]))];
        let played = play(script, 5).await;
        assert_eq!((played.lists, played.requests.len()), (1, 2));
        assert!(played.asked(1).contains("sendInitialEvents"), "{:?}", played.requests);
    }
}

#[tokio::test(start_paused = true)]
async fn a_list_that_breaks_off_starts_again_and_takes_nothing_for_gone() {
    let part = || vec![event("ADDED", "a", "1", "1"), event("ADDED", "c", "3", "1")];
    for broken_off in [Reply::Break(part()), Reply::Pieces(part()), Reply::Silence(part())] {
        let script = [broken_off, Reply::Silence(streamed("10", &[("a", 1)]))];
        let played = play(script, 100).await;
        assert_eq!(played.log, ["a by List", "c by List", "a by List", "only [1]"]);
        assert!(played.asked(1).contains("sendInitialEvents"), "{:?}", played.requests);
    }
}

#[tokio::test(start_paused = true)]
async fn what_never_lets_a_streamed_list_through_gets_one_in_pages() {
    for broken_off in [|| Reply::Pieces(vec![added_b()]), || Reply::Hang] {
        let script = [
            broken_off(),
            broken_off(),
            page("10", "", &[("a", 1)]),
            Reply::Pieces(vec![error(410, "too old")]),
            Reply::Silence(streamed("30", &[("a", 1)])),
        ];
        let played = play(script, 40).await;
        assert_eq!(played.lists, 2);
        assert!(played.asked(2).contains("limit=500"), "{:?}", played.requests);
        let again = played.asked(4);
        assert!(again.contains("sendInitialEvents"), "it is tried again next time: {again}");
    }
}

#[tokio::test(start_paused = true)]
async fn every_wait_of_a_streamed_list_is_bounded() {
    let script = [
        Reply::Hang,
        Reply::Silence(vec![added_b()]),
        page("10", "", &[]),
        Reply::Silence(vec![]),
        Reply::Hang,
    ];
    let played = play(script, 200).await;
    assert!((15..=16).contains(&played.second(1)), "{:?}", played.requests);
    assert!((90..=93).contains(&played.second(2)), "{:?}", played.requests);
    assert!((165..=169).contains(&played.second(4)), "{:?}", played.requests);
    assert_eq!(played.lists, 1);
}

#[tokio::test(start_paused = true)]
async fn an_expired_watch_is_listed_anew_by_a_stream() {
    let mut first = streamed("10", &[("a", 1)]);
    first.push(error(410, "too old"));
    let script = [Reply::Silence(first), Reply::Silence(streamed("30", &[("c", 3)]))];
    let played = play(script, 5).await;
    assert_eq!(played.lists, 2);
    assert_eq!(played.log, ["a by List", "only [1]", "c by List", "only [3]"]);
}

#[tokio::test(start_paused = true)]
async fn only_what_was_known_before_a_list_can_be_gone() {
    let mut whole = streamed("10", &[("a", 1)]);
    whole.push(error(410, "too old"));
    for first in [Reply::Pieces(whole), Reply::Break(vec![event("ADDED", "a", "1", "1")])] {
        let script = [first, Reply::Silence(streamed("30", &[("c", 3)]))];
        let played = play_to(Log { new: true, ..Log::default() }, script, 5).await;
        assert_eq!(played.log, ["a by List", "c by List", "only [3]"]);
    }
}
