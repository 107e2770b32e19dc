use std::collections::BTreeSet;

use futures_util::future::poll_immediate;

use super::*;
use crate::routing::folder::Health;
use crate::testing::keeper::{Held, Keeper};
use crate::testing::multi_of;

/// Five volumes, two on a page.
fn keeper(lost: &[&'static str]) -> Arc<Keeper> {
    Keeper::of(Held {
        volumes: vec!["a", "b", "c", "d", "e"],
        lost: lost.iter().copied().collect(),
        ..Held::default()
    })
}

fn lost(keeper: &Keeper) -> Vec<&'static str> {
    keeper.held().lost.iter().copied().collect()
}

/// A plugin with the connection `nas` over it.
fn over(keeper: &Arc<Keeper>) -> Arc<Plugin> {
    multi_of(&[("nas", keeper.clone())])
}

fn nas() -> ConnectionName {
    ConnectionName::parse("nas").expect("a name")
}

/// Checks from a page on, without a pause.
async fn checks(
    plugin: &Plugin,
    in_flight: &InFlight,
    from: Option<PageToken>,
) -> Result<Checked, Error> {
    checks_in(plugin, in_flight, &Metrics::new(), from, usize::MAX).await
}

async fn checks_in(
    plugin: &Plugin,
    in_flight: &InFlight,
    metrics: &Metrics,
    from: Option<PageToken>,
    urgent: usize,
) -> Result<Checked, Error> {
    let current = Current {
        connections: &plugin.connections,
        states: &plugin.states,
        name: &nas(),
    };
    let pace = Pace::new();
    let mut turns = Turns {
        pace: &pace,
        urgent,
    };
    restore_from(current, in_flight, metrics, from, &mut turns).await
}

/// Another configuration of the connection `nas`, with a driver of its own.
fn change(plugin: &Plugin, to: &Arc<Keeper>) {
    let connection = Arc::into_inner(to.connection("nas")).expect("the only owner");
    plugin.connections.put(LazyConnection::fixed(connection));
}

/// The storage of a connection cannot be used, and then it can.
fn returns(plugin: &Plugin, connection: &str) {
    let name = ConnectionName::parse(connection).expect("a name");
    for health in [Health::Bad("it starts".to_owned()), Health::Good] {
        plugin.states.found(&name, health, || true);
    }
}

#[tokio::test]
async fn a_host_that_lost_all_exports_gets_all_back_in_one_round() {
    let all = ["a", "b", "c", "d", "e"];
    let keeper = keeper(&all);
    let next = checks(&over(&keeper), &InFlight::default(), None).await;
    assert_eq!(next.expect("checked").next, None);
    assert!(lost(&keeper).is_empty());
}

#[tokio::test]
async fn a_round_checks_one_page_and_the_next_goes_on_after_it() {
    let keeper = keeper(&["d"]);
    let (plugin, in_flight) = (over(&keeper), InFlight::default());
    let next = checks(&plugin, &in_flight, None).await;
    let next = next.expect("checked").next;
    assert_eq!(lost(&keeper), ["d"], "it is on the second page");
    assert!(next.is_some());
    checks(&plugin, &in_flight, next).await.expect("checked");
    assert!(lost(&keeper).is_empty());
}

#[tokio::test]
async fn a_volume_that_a_call_works_on_is_left_to_that_call() {
    let keeper = keeper(&["a", "b"]);
    let (plugin, in_flight) = (over(&keeper), InFlight::default());
    let id = VolumeId::parse("a").expect("an id");
    let connection = plugin.connections.find(&nas()).expect("it is served");
    let connection = connection.look().await.expect("its driver is built");
    let keys = Keys::none().and(connection.scope(), Object::Volume(id), Hold::Exclusive);
    let guard = in_flight.take(Rpc::DeleteVolume, keys).expect("free");
    checks(&plugin, &in_flight, None).await.expect("checked");
    assert_eq!(lost(&keeper), ["a"]);
    drop(guard);
    checks(&plugin, &in_flight, None).await.expect("checked");
    assert!(lost(&keeper).is_empty());
}

#[tokio::test]
async fn a_failure_stops_no_other_volume_but_three_end_the_round() {
    let keeper = keeper(&["a", "b", "c", "d", "e"]);
    keeper.held().silent = BTreeSet::from(["a", "c", "d"]);
    let plugin = over(&keeper);
    let checked = checks(&plugin, &InFlight::default(), None).await;
    assert!(checked.expect("checked").has_failed);
    assert_eq!(lost(&keeper), ["a", "c", "d", "e"]);
}

#[tokio::test]
async fn a_defect_with_one_volume_stops_no_other() {
    let keeper = keeper(&["a", "b"]);
    keeper.held().defects = BTreeSet::from(["a"]);
    let plugin = over(&keeper);
    let checked = checks(&plugin, &InFlight::default(), None).await;
    assert!(checked.expect("checked").has_failed);
    assert_eq!(lost(&keeper), ["a"]);
}

#[tokio::test]
async fn volumes_with_something_wrong_of_their_own_keep_no_other_from_being_restored() {
    let keeper = keeper(&["a", "b", "c", "d", "e"]);
    keeper.held().stuck = BTreeSet::from(["a", "c", "d"]);
    let plugin = over(&keeper);
    let checked = checks(&plugin, &InFlight::default(), None).await;
    let checked = checked.expect("checked");
    // The second page has lost ones only, and none of it is restored: the next round goes on after it.
    assert!(!checked.has_failed);
    assert!(checked.next.is_some());
    assert_eq!(lost(&keeper), ["a", "c", "d", "e"]);
    let next = checks(&plugin, &InFlight::default(), checked.next).await;
    assert_eq!(next.expect("checked").next, None);
    assert_eq!(lost(&keeper), ["a", "c", "d"]);
}

#[tokio::test]
async fn what_was_lost_is_counted_with_its_outcome_and_what_is_there_is_not() {
    let keeper = keeper(&["a", "b"]);
    keeper.held().refused = BTreeSet::from(["a"]);
    let (plugin, in_flight, metrics) = (over(&keeper), InFlight::default(), Metrics::new());
    for _ in 0..2 {
        let checked = checks_in(&plugin, &in_flight, &metrics, None, usize::MAX).await;
        checked.expect("checked");
    }
    let page = metrics.encode().expect("a page");
    let lines = page
        .lines()
        .filter(|line| line.starts_with("omnibus_csi_lost_exports_total{"));
    let counted: BTreeSet<_> = lines.collect();
    let wanted = [
        "omnibus_csi_lost_exports_total{connection=\"nas\",outcome=\"done\"} 1",
        "omnibus_csi_lost_exports_total{connection=\"nas\",outcome=\"failed\"} 2",
    ];
    assert_eq!(counted, BTreeSet::from(wanted));
}

#[test]
fn a_failure_is_of_the_storage_unless_it_is_known_to_be_of_one_volume() {
    let is_so = |kind: &Kind| is_of_storage(&Error::new(*kind, "check an export"));
    let of_storage: Vec<Kind> = Kind::ALL.into_iter().filter(is_so).collect();
    let wanted = [
        Kind::Pending,
        Kind::Unreachable,
        Kind::Timeout,
        Kind::Denied,
        Kind::Unsupported,
        Kind::Internal,
    ];
    assert_eq!(of_storage, wanted);
}

#[tokio::test]
async fn a_volume_deleted_in_between_is_no_failure_and_no_loss() {
    let keeper = keeper(&["a"]);
    keeper.held().gone = BTreeSet::from(["a"]);
    let next = checks(&over(&keeper), &InFlight::default(), None).await;
    assert!(
        next.expect("checked").next.is_some(),
        "only the first page was checked"
    );
}

#[tokio::test]
async fn a_backend_that_cannot_list_is_an_error() {
    let keeper = keeper(&["a"]);
    keeper.held().pages = Some(0);
    let checked = checks(&over(&keeper), &InFlight::default(), None).await;
    assert_eq!(checked.expect_err("no list").kind(), Kind::Unreachable);
    assert_eq!(lost(&keeper), ["a"]);
}

#[tokio::test(start_paused = true)]
async fn a_host_that_can_be_used_again_is_looked_at_at_once() {
    let keeper = keeper(&["a"]);
    let plugin = over(&keeper);
    let _watch = watch(&plugin);
    returns(&plugin, "nas");
    let began = Instant::now();
    while !lost(&keeper).is_empty() {
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    assert!(began.elapsed() < AGAIN, "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_host_that_cannot_be_used_is_asked_nothing_until_it_can() {
    let keeper = keeper(&["a"]);
    let plugin = over(&keeper);
    let _watch = watch(&plugin);
    let bad = Health::Bad("it is off".to_owned());
    plugin.states.found(&nas(), bad, || true);
    tokio::time::sleep(FIRST + EVERY + PACE).await;
    assert_eq!(lost(&keeper), ["a"], "it would be restored by a question");
    plugin.states.found(&nas(), Health::Good, || true);
    tokio::time::sleep(PACE).await;
    assert!(lost(&keeper).is_empty());
}

#[tokio::test(start_paused = true)]
async fn what_was_lost_before_the_start_is_back_after_a_minute() {
    let keeper = keeper(&["a"]);
    let _watch = watch(&over(&keeper));
    tokio::time::sleep(FIRST / 2).await;
    assert_eq!(lost(&keeper), ["a"]);
    tokio::time::sleep(FIRST).await;
    assert!(lost(&keeper).is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_host_that_is_not_ready_for_that_is_looked_at_again_soon() {
    let keeper = keeper(&["a", "b", "c"]);
    keeper.held().silent = BTreeSet::from(["a", "b", "c"]);
    let plugin = over(&keeper);
    let _watch = watch(&plugin);
    returns(&plugin, "nas");
    tokio::time::sleep(AGAIN / 2).await;
    keeper.held().silent.clear();
    assert_eq!(lost(&keeper), ["a", "b", "c"]);
    tokio::time::sleep(AGAIN).await;
    assert!(lost(&keeper).is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_host_that_hangs_keeps_no_other_one_waiting() {
    let (hung, sound) = (keeper(&["a"]), keeper(&["a"]));
    hung.held().hung = BTreeSet::from(["a"]);
    let plugin = multi_of(&[("hung", hung.clone()), ("sound", sound.clone())]);
    let _watch = watch(&plugin);
    for name in ["hung", "sound"] {
        returns(&plugin, name);
        tokio::time::sleep(PACE).await;
    }
    assert_eq!((lost(&hung), lost(&sound)), (vec!["a"], vec![]));
}

#[tokio::test(start_paused = true)]
async fn questions_are_asked_one_a_second_unless_they_are_urgent() {
    let all = ["a", "b", "c", "d", "e"];
    // A list and two volumes, or three lists and five volumes. What is lost is restored at once.
    for (of, urgent, seconds) in [(&all[..0], 0, 2), (&all[..], 0, 7), (&all[..], 5, 2)] {
        let keeper = keeper(of);
        let (plugin, in_flight) = (over(&keeper), InFlight::default());
        let began = Instant::now();
        let checked = checks_in(&plugin, &in_flight, &Metrics::new(), None, urgent).await;
        checked.expect("checked");
        assert_eq!(began.elapsed().as_secs(), seconds, "{of:?}, {urgent}");
        assert!(lost(&keeper).is_empty());
    }
}

/// The questions in the order in which they were asked.
fn asked(keepers: &[&Arc<Keeper>]) -> Vec<(Instant, String)> {
    let all = keepers.iter().map(|keeper| keeper.held().asked.clone());
    let mut all: Vec<_> = all.flatten().collect();
    all.sort_by_key(|(at, _)| *at);
    all
}

fn questions(asked: &[(Instant, String)]) -> Vec<&str> {
    asked
        .iter()
        .map(|(_, question)| question.as_str())
        .collect()
}

#[track_caller]
fn assert_paced(asked: &[(Instant, String)]) {
    for pair in asked.windows(2) {
        assert!(pair[1].0 - pair[0].0 >= PACE, "{pair:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn all_connections_together_are_asked_one_question_a_second() {
    let [one, two, three, four, five] = [(); 5].map(|()| keeper(&[]));
    let plugin = multi_of(&[
        ("a", one.clone()),
        ("b", two.clone()),
        ("c", three.clone()),
        ("d", four.clone()),
        ("e", five.clone()),
    ]);
    let _watch = watch(&plugin);
    tokio::time::sleep(FIRST + 20 * PACE).await;
    let asked = asked(&[&one, &two, &three, &four, &five]);
    assert_eq!(asked.len(), 15, "a list and two volumes of each: {asked:?}");
    assert_paced(&asked);
}

#[tokio::test(start_paused = true)]
async fn after_an_outage_the_first_questions_have_no_pause_and_volumes_of_nodes_come_first() {
    let names = || (10..50).map(|number| -> &'static str { format!("v{number}").leak() });
    let keeper = Keeper::of(Held {
        volumes: names().collect(),
        lost: names().collect(),
        published: BTreeSet::from(["v49"]),
        is_whole: true,
        ..Held::default()
    });
    let plugin = over(&keeper);
    let _watch = watch(&plugin);
    returns(&plugin, "nas");
    tokio::time::sleep(20 * PACE).await;
    assert!(lost(&keeper).is_empty());
    let asked = asked(&[&keeper]);
    assert_eq!(questions(&asked)[..3], ["list", "v49", "v10"]);
    let (first, rest) = asked.split_at(FIRST_LOOKS);
    assert_eq!(first[0].0, first[FIRST_LOOKS - 1].0);
    assert_eq!(rest.len(), 9);
    assert_paced(rest);
}

#[tokio::test(start_paused = true)]
async fn a_check_ends_where_the_host_cannot_be_used_any_more() {
    let keeper = keeper(&[]);
    let plugin = over(&keeper);
    let _watch = watch(&plugin);
    // After the list and the first volume.
    tokio::time::sleep(FIRST + PACE + PACE / 2).await;
    let bad = Health::Bad("it is off".to_owned());
    plugin.states.found(&nas(), bad, || true);
    tokio::time::sleep(2 * EVERY).await;
    assert_eq!(questions(&asked(&[&keeper])), ["list", "a"]);
    plugin.states.found(&nas(), Health::Good, || true);
    tokio::time::sleep(PACE).await;
    let asked = asked(&[&keeper]);
    assert_eq!(questions(&asked)[2..], ["list", "a", "b"]);
}

#[tokio::test(start_paused = true)]
async fn a_round_that_takes_its_time_keeps_no_returned_host_waiting() {
    let keeper = keeper(&[]);
    let plugin = over(&keeper);
    let _watch = watch(&plugin);
    tokio::time::sleep(FIRST + PACE / 2).await;
    keeper.held().lost.insert("a");
    returns(&plugin, "nas");
    tokio::time::sleep(PACE / 4).await;
    assert!(lost(&keeper).is_empty());
}

#[tokio::test(start_paused = true)]
async fn an_export_is_restored_as_the_configuration_says_then() {
    for is_removed in [false, true] {
        let (before, after) = (keeper(&["b"]), keeper(&["b"]));
        let plugin = over(&before);
        let _watch = watch(&plugin);
        // Between the first volume of the page and the second.
        tokio::time::sleep(FIRST + PACE + PACE / 2).await;
        if is_removed {
            plugin.connections.remove(&nas());
        } else {
            change(&plugin, &after);
        }
        tokio::time::sleep(2 * PACE).await;
        assert_eq!(lost(&before), ["b"], "the old one changes nothing more");
        assert_eq!(lost(&after).is_empty(), !is_removed);
    }
}

#[tokio::test]
async fn an_answer_of_before_a_change_restores_nothing_by_the_old_one() {
    let (before, after) = (keeper(&["a"]), keeper(&["a"]));
    let plugin = over(&before);
    let in_flight = InFlight::default();
    let check = checks(&plugin, &in_flight, None);
    tokio::pin!(check);
    // Until the question is asked, and its answer is not there yet.
    while before.held().busy.1 == 0 {
        let checked = poll_immediate(check.as_mut()).await;
        assert!(checked.is_none(), "nothing was asked");
        tokio::task::yield_now().await;
    }
    change(&plugin, &after);
    check.await.expect("checked");
    assert_eq!(lost(&before), ["a"]);
    assert!(lost(&after).is_empty());
}
