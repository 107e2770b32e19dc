use std::collections::BTreeSet;
use std::path::PathBuf;

use super::*;
use crate::testing::keeper::{Held, Keeper, orphan};

const HOUR: u64 = 3_600;

fn flags(remove: bool) -> OrphansFlags {
    OrphansFlags {
        driver_config_file: PathBuf::from("/c.yaml"),
        connection: None,
        min_age: Duration::from_secs(HOUR),
        remove,
        json: true,
    }
}

fn chosen(connections: Vec<Arc<Connection>>) -> Chosen {
    Chosen {
        connections,
        problems: Vec::new(),
    }
}

/// Three that are old, on two pages, and one that is in the making.
fn keeper() -> Arc<Keeper> {
    Keeper::of(Held {
        orphans: vec![
            orphan("tank/a", 2 * HOUR),
            orphan("tank/b", 50 * HOUR),
            orphan("tank/young", 60),
            orphan("tank/c", 100 * HOUR),
        ],
        ..Held::default()
    })
}

fn failed(ledger: &Ledger) -> bool {
    ledger.exit_code() == ExitCode::FAILURE
}

fn states(ledger: &Ledger) -> Vec<(&str, State)> {
    let rows = ledger.orphans.iter();
    rows.map(|row| (row.object.as_str(), row.state)).collect()
}

#[tokio::test]
async fn without_remove_orphans_stay_and_the_command_fails() {
    let keeper = keeper();
    let ledger = tidy(chosen(vec![keeper.connection("nas")]), &flags(false)).await;
    let found = ["tank/a", "tank/b", "tank/c"].map(|object| (object, State::Found));
    assert_eq!(states(&ledger), found);
    assert_eq!(keeper.held().orphans.len(), 4);
    assert!(failed(&ledger));
}

#[tokio::test]
async fn one_that_cannot_be_removed_and_one_that_meets_a_defect_stop_no_other() {
    let keeper = keeper();
    keeper.held().stuck = BTreeSet::from(["tank/a"]);
    keeper.held().defects = BTreeSet::from(["tank/b"]);
    let ledger = tidy(chosen(vec![keeper.connection("nas")]), &flags(true)).await;
    let ends = [
        ("tank/a", State::Failed),
        ("tank/b", State::Failed),
        ("tank/c", State::Removed),
    ];
    assert_eq!(states(&ledger), ends);
    assert_eq!(keeper.held().orphans.len(), 3);
    assert!(failed(&ledger));
    let report = serde_json::json!(ledger).to_string();
    assert!(
        report.contains("it is stuck") && !report.contains("hunter2"),
        "{report}"
    );
    // Once nothing stands in the way.
    let orphans = keeper.held().orphans.clone();
    *keeper.held() = Held {
        orphans,
        ..Held::default()
    };
    let ledger = tidy(chosen(vec![keeper.connection("nas")]), &flags(true)).await;
    assert!(!failed(&ledger));
    assert_eq!(keeper.held().orphans.len(), 1, "the one in the making");
}

#[tokio::test]
async fn a_host_that_is_gone_is_asked_three_times_and_not_for_each_of_thousands() {
    let objects = ["tank/a", "tank/b", "tank/c", "tank/d", "tank/e"];
    let keeper = Keeper::of(Held {
        orphans: objects.map(|object| orphan(object, 2 * HOUR)).to_vec(),
        silent: BTreeSet::from(objects),
        ..Held::default()
    });
    let ledger = tidy(chosen(vec![keeper.connection("nas")]), &flags(true)).await;
    let (failed_ones, left) = (State::Failed, State::Found);
    let ends = [failed_ones, failed_ones, failed_ones, left, left];
    let seen: Vec<_> = ledger.orphans.iter().map(|row| row.state).collect();
    assert_eq!(seen, ends);
    assert!(failed(&ledger));
    let [problem] = &ledger.problems[..] else {
        panic!("{:?}", ledger.problems);
    };
    assert_eq!(problem.connection.as_deref(), Some("nas"));
    assert!(problem.error.contains("the rest was left"), "{problem:?}");
    // Two in a row are no proof.
    keeper.held().silent = BTreeSet::from(["tank/a", "tank/b", "tank/d", "tank/e"]);
    let ledger = tidy(chosen(vec![keeper.connection("nas")]), &flags(true)).await;
    let ends = [
        failed_ones,
        failed_ones,
        State::Removed,
        failed_ones,
        failed_ones,
    ];
    let seen: Vec<_> = ledger.orphans.iter().map(|row| row.state).collect();
    assert_eq!(seen, ends);
    assert_eq!(ledger.problems, []);
}

#[tokio::test]
async fn a_connection_that_does_not_answer_hides_nothing_of_the_others() {
    let (good, bad) = (keeper(), keeper());
    bad.held().pages = Some(1);
    let connections = vec![
        bad.connection("bad"),
        Keeper::without().connection("dirs"),
        good.connection("nas"),
    ];
    let ledger = tidy(chosen(connections), &flags(false)).await;
    assert_eq!(
        ledger.orphans.len(),
        2 + 3,
        "also what came before the failure"
    );
    assert_eq!(ledger.unsupported, ["dirs"]);
    assert_eq!(ledger.problems.len(), 1);
    assert_eq!(ledger.problems[0].connection.as_deref(), Some("bad"));
}

#[tokio::test]
async fn nothing_found_is_no_failure_and_something_unknown_is() {
    let mut ledger = tidy(
        chosen(vec![Keeper::of(Held::default()).connection("a")]),
        &flags(false),
    )
    .await;
    assert!(!failed(&ledger));
    ledger.problems.push(Problem {
        connection: None,
        error: "gone".to_owned(),
    });
    assert!(failed(&ledger));
}

#[tokio::test]
async fn where_no_connection_can_be_asked_it_is_not_said_that_nothing_was_found() {
    let ending = async |connections| tidy(chosen(connections), &flags(false)).await.ending(false);
    let dirs = || Keeper::without().connection("dirs");
    let none = "nothing was looked at: there is no connection that can be asked\n";
    assert_eq!(ending(vec![]).await, none);
    let mut ledger = tidy(chosen(vec![dirs()]), &flags(false)).await;
    let said = "no orphans to look at: dirs: the driver cannot list them\n";
    assert_eq!(
        (ledger.table(&[]).as_str(), ledger.ending(false).as_str()),
        ("", said)
    );
    assert!(!failed(&ledger));
    ledger.problems.push(Problem {
        connection: None,
        error: "gone".to_owned(),
    });
    assert!(ledger.table(&[]).contains("not asked: dirs: "));
    assert_eq!(ledger.ending(false), none);
    assert!(failed(&ledger));
    let empty = Keeper::of(Held::default()).connection("a");
    assert_eq!(ending(vec![dirs(), empty]).await, "no orphans were found\n");
}

#[test]
fn a_table_has_a_row_for_each_in_printable_characters() {
    let keeper = keeper();
    let connection = keeper.connection("nas");
    let now = SystemTime::now();
    let row = |object, age| Row::of(&connection, orphan(object, age), now);
    let rows = [
        row("tank/a", 2 * HOUR + 5),
        row("tank/b\u{1b}[2J", 49 * HOUR),
    ];
    let ledger = Ledger {
        unsupported: vec!["dirs".to_owned()],
        ..Ledger::default()
    };
    let table = ledger.table(&[&rows[0], &rows[1]]);
    let lines: Vec<_> = table.lines().collect();
    assert_eq!(lines[1], "nas         half-made volume       2h  tank/a");
    assert_eq!(
        lines[2],
        "nas         half-made volume       2d  tank/b\\u{1b}[2J"
    );
    assert_eq!(lines[3], "not asked: dirs: its driver cannot list orphans");
}

#[test]
fn the_end_says_what_came_of_it() {
    let connection = keeper().connection("nas");
    let row = |state| Row {
        state,
        ..Row::of(&connection, orphan("tank/a", HOUR), SystemTime::now())
    };
    let ending = |states: &[State], remove| {
        let ledger = Ledger {
            orphans: states.iter().map(|state| row(*state)).collect(),
            ..Ledger::default()
        };
        ledger.ending(remove)
    };
    assert_eq!(ending(&[], true), "no orphans were found\n");
    let silent = Ledger {
        problems: vec![Problem {
            connection: None,
            error: "gone".to_owned(),
        }],
        ..Ledger::default()
    };
    let unknown = "nothing was found, as far as it is known\n";
    assert_eq!(silent.ending(true), unknown);
    let found = [State::Found, State::Found];
    assert_eq!(ending(&found, false), "2 found; `--remove` removes them\n");
    let mixed = [State::Removed, State::Failed];
    assert_eq!(ending(&mixed, true), "1 of 2 removed\n");
}
