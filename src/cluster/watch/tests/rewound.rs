//! A store that goes back in time, as when etcd is restored from a backup: what is stored from then on has
//! versions that were seen, and a watch at a later one is silent.

use super::*;

fn listed(version: &str, things: &[(&str, u32)]) -> Reply {
    Reply::Silence(streamed(version, things))
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_was_silent_at_an_unchanged_version_is_followed_by_a_list() {
    let played = play([listed("10", &[("a", 1)]), listed("5", &[("c", 3)])], 100).await;
    assert_eq!((played.lists, played.requests.len()), (2, 2), "{:?}", played.requests);
    assert!((75..=77).contains(&played.second(1)), "{:?}", played.requests);
    assert_eq!(played.log[2..], ["c by List", "only [3]"], "and what the list lacks is gone");
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_brought_something_is_taken_up_again_without_a_list() {
    let first = Reply::Silence([streamed("10", &[("a", 1)]), vec![bookmark()]].concat());
    let played = play([first, Reply::Hang], 90).await;
    assert_eq!(played.lists, 1);
    assert!(played.asked(1).contains("&resourceVersion=20&"), "{:?}", played.requests);
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_broke_is_not_taken_up_where_the_store_is_not_that_far() {
    let first = || streamed("10", &[("a", 1)]);
    for broke in [Reply::Break(first()), Reply::Pieces(first())] {
        for (stored, list) in [("9", true), ("10", false), ("11", false), ("unknown", false)] {
            let broke = match &broke {
                Reply::Break(pieces) => Reply::Break(pieces.clone()),
                _ => Reply::Pieces(first()),
            };
            let script = [broke, listed("9", &[("c", 3)])];
            let idle = |_| std::future::ready(());
            let played = play_at(Log::default(), stored, script, 10, idle).await;
            let asked = played.asked(1);
            assert_eq!(asked.contains("sendInitialEvents"), list, "at {stored}: {asked}");
            if list {
                assert_eq!(played.log[2..], ["c by List", "only [3]"]);
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_watch_is_resumed_where_the_server_refuses_lists_but_not_before_it_may_be_asked_again() {
    for (code, wait, resumed_after) in [(503, 0, 0..=2), (403, 0, 0..=2), (429, 8, 8..=10)] {
        let mut script = VecDeque::from([Reply::Pieces(streamed("10", &[("a", 1)]))]);
        let mut refusals = 1;
        let answer = move |uri: &str| {
            if !uri.contains("limit=1&") {
                return script.pop_front().unwrap_or(Reply::Hang);
            }
            let refuses = code != 429 || std::mem::take(&mut refusals) > 0;
            if refuses { Reply::Wait(code, wait) } else { page("10", "", &[]) }
        };
        let played = play_by(Log::default(), "", answer, 60).await;
        let watch = |(uri, _): &&(String, u64)| uri.contains("&resourceVersion=10&");
        let (_, second) = played.requests.iter().find(watch).expect("a watch from there on");
        assert!(resumed_after.contains(second), "{code}: {:?}", played.requests);
        assert_eq!(played.lists, 1, "{code}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_lower_version_of_the_lease_leads_to_a_list_at_once_and_only_one() {
    let script = [listed("10", &[("a", 1)]), listed("5", &[("c", 3)]), Reply::Hang];
    let reads_the_lease = |api: Api| async move {
        for (second, version) in [(1, "8"), (2, "9"), (2, "3"), (2, "4"), (2, "4")] {
            tokio::time::sleep(Duration::from_secs(second)).await;
            api.rewinds().see("lease", version, api.rewinds().asked());
        }
    };
    let played = play_at(Log::default(), "5", script, 60, reads_the_lease).await;
    assert_eq!((played.lists, played.requests.len()), (2, 2), "{:?}", played.requests);
    assert!((5..=6).contains(&played.second(1)), "{:?}", played.requests);
    assert_eq!(played.told("only [3]"), 1);
}

#[tokio::test(start_paused = true)]
async fn a_list_of_a_lower_version_is_taken_and_tells_the_others_once() {
    let mut first = streamed("10", &[("a", 1)]);
    first.push(error(410, "too old"));
    let told = Arc::new(Mutex::new(0));
    let count = Arc::clone(&told);
    let listens = |api: Api| async move {
        let mut noticed = api.rewinds().noticed();
        loop {
            noticed.changed().await;
            *count.lock() += 1;
        }
    };
    let script = [Reply::Silence(first), listed("5", &[("c", 3)]), Reply::Hang];
    let played = play_at(Log::default(), "5", script, 20, listens).await;
    assert_eq!(played.lists, 2, "and it does not list because of itself");
    assert_eq!((played.told("only [3]"), *told.lock()), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn a_lower_version_in_the_watch_itself_leads_to_a_list_at_once() {
    for lower in [event("MODIFIED", "a", "1", "7"), event("BOOKMARK", "", "", "7")] {
        let first = [streamed("10", &[("a", 1)]), vec![added_b(), lower]].concat();
        let played = play([Reply::Silence(first), listed("8", &[("c", 3)])], 5).await;
        assert_eq!((played.lists, played.requests.len()), (2, 2), "{:?}", played.requests);
        assert_eq!(played.told("only [3]"), 1, "what the store does not know is gone");
    }
}
