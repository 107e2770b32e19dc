use std::collections::BTreeSet;
use std::sync::Arc;

use super::*;
use crate::testing::keeper::{Held, Keeper};

fn chosen(connections: Vec<Arc<Connection>>) -> Chosen {
    Chosen {
        connections,
        problems: Vec::new(),
    }
}

/// Five volumes on three pages; two are lost, one of which is stuck, one cannot be looked at, and one
/// meets a defect.
fn keeper() -> Arc<Keeper> {
    Keeper::of(Held {
        volumes: vec!["a", "b", "c", "d", "e"],
        lost: BTreeSet::from(["b", "d"]),
        stuck: BTreeSet::from(["c"]),
        defects: BTreeSet::from(["e"]),
        ..Held::default()
    })
}

fn states(tour: &Tour) -> Vec<(&str, State)> {
    let rows = tour.exports.iter();
    rows.map(|row| (row.volume.as_str(), row.state)).collect()
}

fn failed(tour: &Tour) -> bool {
    tour.exit_code() == ExitCode::FAILURE
}

#[tokio::test]
async fn what_is_missing_is_reported_and_left_alone_and_an_error_of_one_volume_stops_no_other() {
    let keeper = keeper();
    let tour = visit(chosen(vec![keeper.connection("nas")]), false).await;
    let found = [
        ("v:nas/b", State::Missing),
        ("v:nas/c", State::Unknown),
        ("v:nas/d", State::Missing),
        ("v:nas/e", State::Unknown),
    ];
    assert_eq!(states(&tour), found);
    assert_eq!(tour.volumes, 5);
    assert_eq!(keeper.held().lost.len(), 2);
    assert!(failed(&tour));
    let report = serde_json::json!(tour).to_string();
    assert!(!report.contains("hunter2"), "{report}");
    let table = tour.table();
    let last = "5 volumes: 1 exported, 2 missing, 2 unknown; `--repair` puts them back";
    assert_eq!(table.lines().last(), Some(last), "{table}");
}

#[tokio::test]
async fn what_is_missing_is_put_back_if_that_is_wanted() {
    let keeper = keeper();
    *keeper.held() = Held {
        volumes: vec!["a", "b", "d"],
        lost: BTreeSet::from(["b", "d"]),
        ..Held::default()
    };
    let tour = visit(chosen(vec![keeper.connection("nas")]), true).await;
    let repaired = ["v:nas/b", "v:nas/d"].map(|volume| (volume, State::Repaired));
    assert_eq!(states(&tour), repaired);
    assert!(keeper.held().lost.is_empty());
    assert!(!failed(&tour));
    let again = visit(chosen(vec![keeper.connection("nas")]), true).await;
    assert_eq!(states(&again), []);
}

#[tokio::test]
async fn a_volume_that_was_deleted_since_the_listing_is_not_missing() {
    let keeper = Keeper::of(Held {
        volumes: vec!["a"],
        gone: BTreeSet::from(["a"]),
        ..Held::default()
    });
    let tour = visit(chosen(vec![keeper.connection("nas")]), true).await;
    assert_eq!(states(&tour), []);
    assert_eq!(tour.volumes, 0, "nor is it exported");
    assert!(!failed(&tour));
}

#[tokio::test]
async fn a_host_that_is_gone_is_not_asked_for_each_of_its_volumes() {
    let ids = ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l"];
    let keeper = Keeper::of(Held {
        volumes: ids.to_vec(),
        silent: BTreeSet::from(ids),
        ..Held::default()
    });
    let tour = visit(chosen(vec![keeper.connection("nas")]), true).await;
    // Pages of two: after the second the host is not asked again, but every volume is reported.
    let named: Vec<&str> = states(&tour).iter().map(|(volume, _)| *volume).collect();
    assert_eq!(named, ids.map(|id| format!("v:nas/{id}")));
    let skipped = |(_, state): &(&str, State)| *state == State::Skipped;
    assert_eq!(states(&tour).into_iter().filter(skipped).count(), 8);
    assert_eq!(tour.volumes, 4);
    let table = tour.table();
    let last = "4 volumes: 0 exported, 4 unknown, 8 skipped";
    assert_eq!(table.lines().last(), Some(last), "{table}");
    assert_eq!(tour.problems.len(), 1);
    let error = &tour.problems[0].error;
    assert!(error.contains("were not looked at"), "{error}");
    assert!(failed(&tour));
}

#[tokio::test]
async fn a_list_that_fails_hides_nothing_that_came_before_and_nothing_of_the_others() {
    let (good, bad) = (keeper(), keeper());
    bad.held().pages = Some(1);
    let connections = vec![
        bad.connection("bad"),
        Keeper::without().connection("dirs"),
        good.connection("nas"),
    ];
    let tour = visit(chosen(connections), false).await;
    assert_eq!(tour.volumes, 2 + 5);
    assert_eq!(tour.unsupported, ["dirs"]);
    assert_eq!(tour.problems.len(), 1);
    assert_eq!(states(&tour)[0], ("v:bad/b", State::Missing));
}

#[tokio::test]
async fn where_no_connection_can_be_asked_no_volumes_are_counted() {
    let last = async |connections| {
        let table = visit(chosen(connections), false).await.table();
        table.lines().last().map(str::to_owned)
    };
    let dirs = || Keeper::without().connection("dirs");
    let none = "nothing was looked at: there is no connection that can be asked";
    assert_eq!(last(vec![]).await.as_deref(), Some(none));
    let empty = Keeper::of(Held::default()).connection("a");
    let nothing = "0 volumes: 0 exported";
    assert_eq!(last(vec![dirs(), empty]).await.as_deref(), Some(nothing));
}

#[tokio::test]
async fn drivers_without_exports_are_one_line_and_no_failure_unless_something_is_not_known() {
    let dirs = |name| Keeper::without().connection(name);
    let mut tour = visit(chosen(vec![dirs("a"), dirs("b")]), false).await;
    let said = "no exports to look at: a, b: the driver exports nothing by itself\n";
    assert_eq!(tour.table(), said);
    assert!(!failed(&tour));
    tour.problems.push(Problem {
        connection: None,
        error: "gone".to_owned(),
    });
    let table = tour.table();
    assert!(
        table.contains("gone") && table.contains("nothing was looked at"),
        "{table}"
    );
    assert!(failed(&tour));
}

#[tokio::test]
async fn no_more_than_a_few_volumes_of_a_connection_are_looked_at_at_a_time() {
    // Pages of two.
    let keeper = Keeper::of(Held {
        volumes: vec!["a", "b", "c", "d"],
        ..Held::default()
    });
    visit(chosen(vec![keeper.connection("nas")]), false).await;
    let (now, most) = keeper.held().busy;
    assert_eq!((now, most), (0, 2), "both of a page");
    assert!(most <= AT_ONCE);
}
