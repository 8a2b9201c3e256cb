//! Lists in pages, from a server that does not stream them; and the watch, which is the same
//! after either.

use super::*;

#[tokio::test(start_paused = true)]
async fn a_list_is_taken_page_by_page_and_watched_from() {
    let script = [
        refused(),
        page("10", "to ken", &[("a", 1)]),
        page("10", "", &[("c", 3)]),
        Reply::Silence(vec![added_b(), deleted_a()]),
    ];
    let played = play(script, 5).await;
    let expected = ["a by List", "c by List", "only [1, 3]", "b by Watch", "a gone"];
    assert_eq!(played.log, expected);
    assert_eq!(played.lists, 1);
    assert_eq!(played.asked(1), "/api/v1/things?limit=500&fieldSelector=x");
    assert_eq!(played.asked(2), "/api/v1/things?limit=500&fieldSelector=x&continue=to+ken");
    let watch = played.asked(3);
    assert!(watch.contains("watch=true&allowWatchBookmarks=true&timeoutSeconds="), "{watch}");
    assert!(watch.contains("&resourceVersion=10&fieldSelector=x"), "{watch}");
    assert_eq!(played.requests.len(), 4);
}

#[tokio::test(start_paused = true)]
async fn events_may_be_cut_anywhere() {
    let whole = [added_b(), deleted_a()].concat();
    for at in 0..=whole.len() {
        let (one, two) = whole.split_at(at);
        let pieces = vec![Bytes::copy_from_slice(one), Bytes::copy_from_slice(two)];
        let script = [refused(), page("10", "", &[]), Reply::Silence(pieces)];
        let log = play(script, 5).await.log;
        assert_eq!(log, ["only []", "b by Watch", "a gone"]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_closed_watch_goes_on_at_the_last_version_without_a_list() {
    let script = [
        refused(),
        page("10", "", &[]),
        Reply::Pieces(vec![added_b()]),
        Reply::Pieces(vec![bookmark()]),
        Reply::Hang,
    ];
    let played = play(script, 5).await;
    assert_eq!(played.lists, 1);
    assert!(played.asked(3).contains("resourceVersion=11&"), "{}", played.asked(3));
    assert!(played.asked(4).contains("resourceVersion=20&"), "{}", played.asked(4));
    assert_eq!(played.second(4), 0, "at once");
}

#[tokio::test(start_paused = true)]
async fn where_each_version_is_too_old_at_once_lists_come_with_growing_pauses() {
    let gone = || Reply::Answer(410, status(410, "too old"));
    let endless = (0..1000).flat_map(|_| [page("10", "", &[("a", 1)]), gone()]);
    let played = play([refused()].into_iter().chain(endless), 60).await;
    assert!((6..25).contains(&played.lists), "{} lists in a minute", played.lists);
}

#[tokio::test(start_paused = true)]
async fn an_expired_version_leads_to_a_new_list_in_both_forms() {
    let gone = || Reply::Answer(410, status(410, "too old"));
    for reply in [Reply::Pieces(vec![error(410, "too old")]), gone()] {
        let script = [
            refused(),
            page("10", "", &[("a", 1)]),
            reply,
            page("30", "", &[("c", 3)]),
            Reply::Hang,
        ];
        let played = play(script, 5).await;
        assert_eq!(played.lists, 2);
        assert_eq!(played.told("only [3]"), 1, "what the list lacks is gone: {:?}", played.log);
        assert!(!played.asked(3).contains("sendInitialEvents"), "the refusal is remembered");
        assert!(played.asked(4).contains("resourceVersion=30&"), "{}", played.asked(4));
    }
}

#[tokio::test(start_paused = true)]
async fn a_token_that_expires_in_mid_list_starts_the_list_anew() {
    let script = [
        refused(),
        page("10", "more", &[("a", 1)]),
        Reply::Answer(410, Bytes::new()),
        page("11", "", &[("a", 1)]),
        Reply::Hang,
    ];
    let played = play(script, 5).await;
    assert_eq!(played.lists, 1);
    assert!(!played.asked(3).contains("continue"));
    assert_eq!(played.log.iter().filter(|line| line.starts_with("only")).count(), 1);
}

#[tokio::test(start_paused = true)]
async fn every_wait_is_bounded() {
    // A page that hangs, a watch that does not answer, a watch that goes silent.
    let script = [
        refused(),
        Reply::Hang,
        page("10", "", &[]),
        Reply::Hang,
        Reply::Silence(vec![added_b()]),
        Reply::Hang,
    ];
    let played = play(script, 200).await;
    assert!((60..=61).contains(&played.second(2)), "{:?}", played.requests);
    assert!((75..=77).contains(&played.second(4)), "{:?}", played.requests);
    assert!((150..=153).contains(&played.second(5)), "{:?}", played.requests);
    assert!(played.asked(5).contains("resourceVersion=11&"), "{:?}", played.requests);
}

#[tokio::test(start_paused = true)]
async fn failures_are_retried_with_growing_pauses_and_for_ever() {
    let failing = (0..50).map(|_| Reply::Answer(500, Bytes::new()));
    let script = [refused()].into_iter().chain(failing).chain([page("10", "", &[])]);
    let idle = |_| std::future::ready(());
    let played = play_at(Log::default(), "10", script, 3600, idle).await;
    assert_eq!(played.lists, 1);
    let apart = played.second(51) - played.second(49);
    assert!((8..=16).contains(&apart), "at most 8 s apart: {:?}", played.requests);
    assert!(played.second(6) < 10, "and quickly at first: {:?}", played.requests);
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_keeps_failing_does_not_spin() {
    let mut script = vec![refused(), page("10", "", &[])];
    for _ in 0..20 {
        script.push(Reply::Pieces(vec![error(500, "etcd")]));
        script.push(Reply::Answer(503, Bytes::new()));
        script.push(Reply::Break(vec![added_b().slice(..17)]));
        script.push(Reply::Other("text/html", "<html>a proxy's page</html>\n".into()));
        script.push(Reply::Pieces(vec![]));
    }
    let idle = |_| std::future::ready(());
    let played = play_at(Log::default(), "10", script, 3600, idle).await;
    assert_eq!(played.lists, 1, "no new list: the version is still good");
    assert!(played.requests.len() > 102, "and it never gives up");
    assert!(played.second(202) > 300, "{:?}", played.requests[202]);
    assert!(played.log.iter().all(|line| !line.contains("by Watch")));
}

#[tokio::test(start_paused = true)]
async fn a_page_that_is_too_long_is_halved_and_grows_again() {
    let long = || Reply::Answer(200, vec![0; LONGEST_PAGE + 1].into());
    let script = [
        refused(),
        long(),
        long(),
        page("10", "more", &[("a", 1)]),
        page("10", "", &[("c", 3)]),
        Reply::Hang,
    ];
    let played = play(script, 5).await;
    assert_eq!((played.lists, played.second(4)), (1, 0), "at once: {:?}", played.requests);
    let limits = ["limit=500", "limit=250", "limit=125", "limit=250"];
    for (number, limit) in (1..).zip(limits) {
        assert!(played.asked(number).contains(limit), "{:?}", played.requests);
    }
    assert!(played.asked(4).contains("continue=more"), "{:?}", played.requests);
    assert_eq!(played.log, ["a by List", "c by List", "only [1, 3]"]);
}

#[tokio::test(start_paused = true)]
async fn a_page_of_one_that_is_too_long_is_an_error_and_no_endless_loop() {
    let long: Bytes = vec![0; LONGEST_PAGE + 1].into();
    let script = (0..100).map(|_| Reply::Answer(200, long.clone()));
    let script = [refused()].into_iter().chain(script);
    let idle = |_| std::future::ready(());
    let played = play_at(Log::default(), "", script, 60, idle).await;
    assert!(played.asked(9).contains("limit=1&"), "{:?}", played.requests);
    assert!((12..40).contains(&played.requests.len()), "{} requests", played.requests.len());
}

#[tokio::test(start_paused = true)]
async fn the_server_is_waited_for_as_long_as_it_asks_within_bounds() {
    for (asked, least, most) in [(20, 20, 25), (3600, 30, 38)] {
        let wait = || Reply::Wait(429, asked);
        let script = [
            wait(),
            Reply::Pieces(streamed("10", &[("a", 1)])),
            wait(),
            Reply::Silence(vec![added_b()]),
        ];
        let played = play(script, 100).await;
        assert_eq!(played.told("b by Watch"), 1);
        for (before, after) in [(0, 1), (2, 3)] {
            let waited = played.second(after) - played.second(before);
            assert!((least..=most).contains(&waited), "{asked}: {:?}", played.requests);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn where_lists_come_through_and_no_watch_does_a_list_comes_about_every_minute() {
    // A proxy that waits for the end of an answer, one that ends it at once, and a server that
    // refuses for good.
    let fails: [fn() -> Reply; 4] = [
        || Reply::Hang,
        || Reply::Pieces(vec![]),
        || Reply::Answer(500, status(500, "the revision has been compacted")),
        || Reply::Pieces(vec![error(500, "the revision has been compacted")]),
    ];
    for fail in fails {
        let mut server = Deaf { fail, lists: 0 };
        let played = play_by(Log::default(), "1000000", move |uri| server.answer(uri), 600).await;
        assert!((5..=10).contains(&played.lists), "{} lists in ten minutes", played.lists);
        assert!(played.requests.len() < 250, "{} requests", played.requests.len());
    }
}

/// A server that lists, and whose watches fail.
struct Deaf {
    fail: fn() -> Reply,
    lists: u32,
}

impl Deaf {
    fn answer(&mut self, uri: &str) -> Reply {
        if uri.contains("sendInitialEvents") {
            return refused();
        }
        if uri.contains("watch=true") {
            return (self.fail)();
        }
        self.lists += 1;
        page(&format!("{}", 10 * self.lists), "", &[("a", 1)])
    }
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_is_away_with_the_server_is_taken_up_again_without_a_list() {
    // A hundred times both the store's version and the watch are asked for.
    let down = (0..200).map(|_| Reply::Answer(503, Bytes::new()));
    let listed = [Reply::Pieces(streamed("10", &[("a", 1)]))].into_iter();
    let script = listed.chain(down).chain([page("500", "", &[]), Reply::Silence(vec![added_b()])]);
    let idle = |_| std::future::ready(());
    let played = play_at(Log::default(), "", script, 3600, idle).await;
    assert!(played.second(202) > 300, "{:?}", played.requests[202]);
    assert!(played.asked(202).contains("&resourceVersion=10&"), "{:?}", played.requests[202]);
    assert_eq!(played.told("b by Watch"), 1);
}

#[tokio::test(start_paused = true)]
async fn a_page_that_names_itself_as_the_next_one_is_an_error_and_no_endless_list() {
    let same = (0..1000).map(|_| page("10", "more", &[("a", 1)]));
    let played = play([refused()].into_iter().chain(same), 60).await;
    assert_eq!(played.lists, 0);
    assert!(played.requests.len() < 60, "{} requests in a minute", played.requests.len());
}
