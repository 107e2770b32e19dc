//! Looks and lists of the command line backend, by the shells and tools of this machine with a `zfs`
//! that only pretends: pages of ten thousand volumes, what is not there, rows that are odd.

use driver_core::Kind;
use driver_zfs::backend::{Backend, Entry, ListFilter, ListQuery, ListScope, Listed};
use driver_zfs::name::{SnapshotLeaf, SnapshotRef};
use driver_zfs::observed::{Guid, Query, Request, State, VolumeKind};
use driver_zfs::property::{Properties, PropertyName};
use driver_zfs::step::{Next, Plan, Step};

use crate::fake::{call, dataset, host};

fn leaf() -> SnapshotLeaf {
    SnapshotLeaf::parse("name").unwrap()
}

fn volumes(max: usize) -> ListQuery {
    ListQuery {
        scopes: vec![ListScope {
            parent: dataset("tank/v"),
            depth: 1,
            kind: Some(VolumeKind::Filesystem),
            filter: ListFilter::Having(PropertyName::CONTEXT),
        }],
        after: None,
        max,
        properties: Vec::new(),
    }
}

/// Ten thousand volumes, in no order, every tenth of them not ours, and large numbers.
const TEN_THOUSAND: &str = include_str!("queries/ten_thousand.sh");

#[tokio::test(flavor = "multi_thread")]
async fn a_page_of_ten_thousand_volumes_is_one_exchange_and_none_is_lost_or_repeated() {
    let folder = tempfile::tempdir().unwrap();
    let cli = host(folder.path(), TEN_THOUSAND);
    let mut query = volumes(1800);
    let (mut seen, mut pages) = (std::collections::BTreeSet::new(), 0);
    loop {
        let listed = cli.list(&call(), &query).await.unwrap();
        pages += 1;
        let places: Vec<_> = listed.entries.iter().map(Entry::cursor).collect();
        assert!(places.is_sorted(), "page {pages}");
        for place in &places {
            assert!(seen.insert(*place), "{place:?} twice");
        }
        if listed.next.is_none() {
            break;
        }
        assert_eq!(listed.next, places.last().copied());
        query.after = listed.next;
    }
    assert_eq!((seen.len(), pages), (9000, 5));
    assert_eq!(cli.runner().take(), pages);
}

/// A host with one pool and nothing in it. What it says of the rest was captured from ZFS 2.3.9, as
/// everything here that does not exist.
const NOTHING_BUT_TANK: &str = r#"
case "$*" in *" type tank") printf 'tank\tfilesystem\n'; exit 0 ;; esac
for name; do :; done
echo "cannot open '$name': dataset does not exist" >&2; exit 1"#;

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_absent_from_a_pool_that_is_not_imported() {
    let folder = tempfile::tempdir().unwrap();
    let absent = "for name; do :; done\n\
                  echo \"cannot open '$name': dataset does not exist\" >&2; exit 1";
    let name = "name".to_owned();
    let within = vec![dataset("tank/v"), dataset("tank/s")];
    for look in [
        Query::Dataset(dataset("tank/v/a")),
        Query::Family(dataset("tank/v/a")),
        Query::Snapshot(SnapshotRef::parse("tank/v/a@s").unwrap()),
        Query::Named {
            within,
            has_children: false,
            name,
            leaf: leaf(),
        },
    ] {
        let request = Request::of([look.clone()]);
        let cli = host(folder.path(), NOTHING_BUT_TANK);
        let observed = cli.observe(&call(), &request).await.unwrap();
        assert_eq!(observed.pool, State::default(), "{look:?}");
        let cli = host(folder.path(), absent);
        let error = cli.observe(&call(), &request).await.unwrap_err();
        assert_eq!(error.kind(), Kind::Unreachable, "{look:?}");
        assert!(error.chain().contains("not imported"), "{}", error.chain());
        let plan = Plan::about(dataset("tank/v/a"));
        let failed = cli.apply(&call(), &plan, &request).await.unwrap_err();
        assert_eq!(
            (failed.error.kind(), failed.next),
            (Kind::Unreachable, Next::Tell)
        );
    }
    let cli = host(folder.path(), absent);
    let error = cli.list(&call(), &volumes(10)).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Unreachable, "{}", error.chain());
}

#[tokio::test(flavor = "multi_thread")]
async fn absence_is_seen_through_the_warnings_of_sudo_and_of_shells() {
    let folder = tempfile::tempdir().unwrap();
    let request = Request::of([Query::Dataset(dataset("tank/v/a"))]);
    for (said, fine) in [
        // Not captured: as users of sudo show it.
        (
            "sudo: unable to resolve host nas: Name or service not known",
            true,
        ),
        // Captured from bash 5.2.15, called `sh`.
        (
            "sh: warning: setlocale: LC_ALL: cannot change locale (de_XX)",
            true,
        ),
        // Read in the sources of sudo; the others are made up.
        ("sudo: a password is required", false),
        ("cannot open 'tank/v/b': I/O error", false),
        ("something else", false),
    ] {
        let script = format!(
            "echo '{}' >&2\n{NOTHING_BUT_TANK}",
            said.replace('\'', "'\\''")
        );
        let cli = host(folder.path(), &script);
        let observed = cli.observe(&call(), &request).await;
        assert_eq!(observed.is_ok(), fine, "{said}");
        let listed = cli.list(&call(), &volumes(10)).await;
        assert_eq!(listed.is_ok(), fine, "{said}");
    }
}

/// A final `NOT_FOUND` ends a resize, and more, for good.
#[tokio::test(flavor = "multi_thread")]
async fn a_read_with_something_else_beside_what_is_missing_never_says_that_it_is_not_found() {
    let folder = tempfile::tempdir().unwrap();
    let request = Request::of([Query::Dataset(dataset("tank/v/a"))]);
    for (said, kind) in [
        ("*** Authorized use only ***", Kind::Internal),
        ("cannot open 'tank/v/b': I/O error", Kind::Unreachable),
        ("/etc/issue does not exist: no banner", Kind::Internal),
    ] {
        let script = format!(
            "echo '{}' >&2\n{NOTHING_BUT_TANK}",
            said.replace('\'', "'\\''")
        );
        let cli = host(folder.path(), &script);
        let looked = cli.observe(&call(), &request).await;
        let listed = cli.list(&call(), &volumes(10)).await;
        for error in [looked.unwrap_err(), listed.unwrap_err()] {
            assert_eq!(error.kind(), kind, "{said}: {}", error.chain());
        }
    }
    let cli = host(
        folder.path(),
        &format!("echo hello >&2\n{NOTHING_BUT_TANK}"),
    );
    let error = cli.observe(&call(), &request).await.unwrap_err();
    assert!(error.chain().contains("a banner"), "{}", error.chain());
}

/// The output of `zfs get` for a dataset that is there: `$1` its name, `$2` its type.
const SHOW: &str = include_str!("queries/show.sh");

#[tokio::test(flavor = "multi_thread")]
async fn values_with_tabs_and_line_ends_and_clones_without_a_name_are_no_end_of_an_answer() {
    let folder = tempfile::tempdir().unwrap();
    let script = format!(
        "{SHOW}show tank/v/a filesystem; show tank/v/a@s snapshot\n\
         printf 'tank/v/a\\tdemocratic-csi:csi_volume_name\\tx\\ty\\nz\\tz\\n\\nu\\tlocal\\n'\n\
         printf 'tank/v/a\\tdemocratic-csi:csi_share_volume_context\\tx\\tlocal\\nfoo\\tlocal\\n'\n\
         printf 'tank/v/a\\tdemocratic-csi:managed_resource\\ttrue\\tlocal\\n'\n\
         printf 'tank/v/a@s\\tclones\\ttank/v/b,tank/v/a/%%recv\\t-\\n'\n\
         printf 'tank/v/a\\trefquota\\t9\\tlocal\\n'"
    );
    let cli = host(folder.path(), &script);
    let request = Request::of([Query::Family(dataset("tank/v/a"))]);
    let pool = cli.observe(&call(), &request).await.unwrap().pool;
    let found = pool.dataset(&dataset("tank/v/a")).unwrap();
    let name = found.properties.own(&PropertyName::VOLUME_NAME);
    assert_eq!(name, Some("x\ty\nz\tz\n\nu"));
    let context = found.properties.own(&PropertyName::CONTEXT);
    assert_eq!(context, Some("x\tlocal\nfoo"));
    assert!(found.is_managed(), "what comes after such a value");
    assert_eq!(found.size(), Some(9));
    let snapshot = pool.snapshots_of(&dataset("tank/v/a"))[0];
    assert_eq!(snapshot.clones, [dataset("tank/v/b")]);
    assert_eq!(snapshot.hidden, ["tank/v/a/%recv"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_read_is_left_out_of_a_list_and_is_an_error_in_a_look() {
    let folder = tempfile::tempdir().unwrap();
    let script = format!(
        "{SHOW}ours() {{ show \"$@\"\n\
         printf '%s\\tdemocratic-csi:csi_share_volume_context\\t{{}}\\tlocal\\n' \"$1\"; }}\n\
         ours tank/v/a filesystem; ours tank/v/b novelty; ours tank/v/%c filesystem\n\
         ours tank/v/d filesystem | grep -v guid"
    );
    let cli = host(folder.path(), &script);
    let listed = cli.list(&call(), &volumes(10)).await.unwrap();
    assert_eq!(listed.entries.len(), 1);
    let request = Request::of([Query::Family(dataset("tank/v"))]);
    let error = cli.observe(&call(), &request).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Internal);
    // The middle of a value that looks like a row.
    let script = format!("{SHOW}show tank/v/a filesystem; printf 'tank/v/a\\tA b\\tx\\tlocal\\n'");
    let request = Request::of([Query::Dataset(dataset("tank/v/a"))]);
    let cli = host(folder.path(), &script);
    let error = cli.observe(&call(), &request).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Internal);
}

#[tokio::test(flavor = "multi_thread")]
async fn of_thousands_of_snapshots_only_what_is_needed_crosses_the_wire() {
    let folder = tempfile::tempdir().unwrap();
    let script = include_str!("queries/snapshots.sh");
    let cli = host(folder.path(), script);
    let request = Request::of([Query::Family(dataset("tank/v/a"))]);
    let pool = cli.observe(&call(), &request).await.unwrap().pool;
    let snapshots = pool.snapshots_of(&dataset("tank/v/a"));
    assert_eq!(snapshots.len(), 20_000);
    let shown = |properties: &Properties| properties.get(&PropertyName::CREATION).is_some();
    assert!(
        snapshots
            .iter()
            .all(|snapshot| !shown(&snapshot.properties))
    );
    assert!(shown(
        &pool.dataset(&dataset("tank/v/a")).unwrap().properties
    ));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_list_of_what_is_not_there_is_empty_and_any_other_complaint_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let listed = host(folder.path(), NOTHING_BUT_TANK)
        .list(&call(), &volumes(10))
        .await;
    let nothing = Listed {
        entries: Vec::new(),
        next: None,
    };
    assert_eq!(listed.unwrap(), nothing);
    // Read in the sources of OpenZFS 0.8 to 2.3.
    for (complaint, kind) in [
        (
            "cannot open 'tank/v': pool I/O is currently suspended",
            Kind::Unreachable,
        ),
        ("internal error: out of memory", Kind::Internal),
    ] {
        let script = format!("echo \"{complaint}\" >&2; exit 1");
        let cli = host(folder.path(), &script);
        let error = cli.list(&call(), &volumes(10)).await.unwrap_err();
        assert_eq!(error.kind(), kind, "{}", error.chain());
        assert!(error.chain().contains(complaint), "{}", error.chain());
        let request = Request::of([Query::Dataset(dataset("tank/v"))]);
        let error = cli.observe(&call(), &request).await.unwrap_err();
        assert_eq!(error.kind(), kind, "{}", error.chain());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn one_of_several_parents_that_cannot_be_read_fails_the_whole_list() {
    let folder = tempfile::tempdir().unwrap();
    let mut query = volumes(10);
    for parent in ["tank/v/fast", "tank/s"] {
        query.scopes.push(ListScope {
            parent: dataset(parent),
            ..query.scopes[0].clone()
        });
    }
    for (code, said, kind) in [
        (0, "", None),
        (1, "cannot open 'tank/v/fast': dataset does not exist", None),
        (
            1,
            "cannot open 'tank/v/fast': I/O error",
            Some(Kind::Unreachable),
        ),
        // Read in the sources of OpenZFS, which then ends as if all was well.
        (
            0,
            "cannot iterate filesystems: I/O error",
            Some(Kind::Unreachable),
        ),
        // Made up. None of them says that the parent does not exist, as it is said of tank/s.
        (1, "", Some(Kind::Internal)),
        (1, "sudo: some new words", Some(Kind::Internal)),
        (
            1,
            "cannot open 'tank/v/fast/a': dataset does not exist",
            Some(Kind::Internal),
        ),
    ] {
        let script = format!(
            "{SHOW}case \"$*\" in\n\
             *' type tank') ;;\n\
             *' tank/v') show tank/v/a filesystem\n\
             printf 'tank/v/a\\tdemocratic-csi:csi_share_volume_context\\t{{}}\\tlocal\\n' ;;\n\
             *' tank/v/fast') echo \"{said}\" >&2; exit {code} ;;\n\
             *) echo \"cannot open 'tank/s': dataset does not exist\" >&2; exit 1 ;;\n\
             esac"
        );
        let cli = host(folder.path(), &script);
        // With a parent that does not exist, and without it.
        for count in [3, 2] {
            let mut query = query.clone();
            query.scopes.truncate(count);
            let listed = cli.list(&call(), &query).await;
            assert_eq!(cli.runner().take(), 1, "{code} {said}");
            let Some(kind) = kind else {
                assert_eq!(listed.unwrap().entries.len(), 1, "{code} {said}");
                continue;
            };
            let error = listed.unwrap_err();
            let chain = error.chain();
            assert_eq!(error.kind(), kind, "{code} {said}: {chain}");
            for part in [said, "not everything in 'tank/v/fast' could be listed"] {
                assert!(chain.contains(part), "{code} {said}: {chain}");
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_part_of_a_list_that_was_killed_is_a_failure_and_not_a_short_list() {
    let folder = tempfile::tempdir().unwrap();
    let killed = TEN_THOUSAND.replace("awk 'BEGIN", "kill -9 $PPID; awk 'BEGIN");
    let cli = host(folder.path(), &killed);
    assert!(cli.list(&call(), &volumes(10)).await.is_err());
    // That one scope is not there explains no silence of another part.
    let absent = "case \"$*\" in *' type tank') exit 0 ;; *tank/s*)\n\
                  echo \"cannot open 'tank/s': dataset does not exist\" >&2; exit 1 ;; esac\n";
    let cli = host(folder.path(), &format!("{absent}{killed}"));
    let mut query = volumes(10);
    query.scopes.push(ListScope {
        parent: dataset("tank/s"),
        ..query.scopes[0].clone()
    });
    assert!(cli.list(&call(), &query).await.is_err());
    let cli = host(folder.path(), &format!("{absent}{TEN_THOUSAND}"));
    let listed = cli.list(&call(), &query).await.unwrap();
    assert_eq!(listed.entries.len(), 10);
    let script = "kill -9 $PPID; printf 'tank/v/a@one\\tname\\n'";
    let look = Query::Named {
        within: vec![dataset("tank/v")],
        has_children: false,
        name: "name".to_owned(),
        leaf: leaf(),
    };
    let cli = host(folder.path(), script);
    assert!(cli.observe(&call(), &Request::of([look])).await.is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_name_is_looked_for_as_it_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let hostile = r#"it's "$(touch x)" \n `id` .* ; & | é"#;
    std::fs::write(folder.path().join("name"), hostile).unwrap();
    let script = format!(
        "printf 'tank/v/a@one\\t%s\\n' \"$(cat {})\"; printf 'tank/v/a@two\\tother\\n'\n\
         printf 'tank/v/a@ten\\t10\\n'",
        folder.path().join("name").display()
    );
    let cli = host(folder.path(), &script);
    let within = vec![dataset("tank/v"), dataset("tank/s")];
    for (name, found) in [
        (hostile, 1),
        ("other", 1),
        ("it's", 0),
        (".*", 0),
        // As numbers these are the same.
        ("10", 1),
        ("1e1", 0),
        ("010", 0),
        ("10.0", 0),
        ("0x0a", 0),
    ] {
        let look = Query::Named {
            within: within.clone(),
            has_children: false,
            name: name.to_owned(),
            leaf: leaf(),
        };
        let observed = cli.observe(&call(), &Request::of([look])).await.unwrap();
        assert_eq!(observed.pool.named().len(), found, "{name}");
    }
}

/// A host with what is whole and what is half made, with what is called like a helper, and with
/// datasets for detached snapshots that hold something or nothing.
const HALF_MADE: &str = include_str!("queries/half_made.sh");

#[tokio::test(flavor = "multi_thread")]
async fn the_host_leaves_out_of_orphans_what_is_whole_or_holds_something() {
    let folder = tempfile::tempdir().unwrap();
    let cli = host(folder.path(), HALF_MADE);
    let scope = |parent, depth, kind, filter| ListScope {
        parent: dataset(parent),
        depth,
        kind,
        filter,
    };
    let kind = Some(VolumeKind::Filesystem);
    let half = ListFilter::Lacking(PropertyName::VOLUME_NAME, PropertyName::SUCCESS);
    let mut query = ListQuery {
        scopes: vec![
            scope("tank/v", 1, kind, half),
            scope("tank/v", 1, None, ListFilter::Helpers),
            scope(
                "tank/s",
                1,
                kind,
                ListFilter::Empty(PropertyName::CONTAINER),
            ),
        ],
        after: None,
        max: 100,
        properties: Vec::new(),
    };
    let names = |listed: &Listed| -> Vec<String> {
        let name = |entry: &Entry| match entry {
            Entry::Dataset(dataset) => dataset.name.to_string(),
            Entry::Snapshot(snapshot) => snapshot.name.to_string(),
        };
        listed.entries.iter().map(name).collect()
    };
    let all = cli.list(&call(), &query).await.unwrap();
    let left = [
        "v/half",
        "v/heir",
        "v/whole@volume-source-for-volume-x",
        "s/empty",
    ];
    assert_eq!(names(&all), left.map(|name| format!("tank/{name}")));
    assert_eq!(all.next, None);
    // The page after the first two, by the places that these have on the host.
    query.max = 2;
    let first = cli.list(&call(), &query).await.unwrap();
    assert_eq!(names(&first), names(&all)[..2]);
    query.after = first.next;
    assert!(query.after.is_some());
    let second = cli.list(&call(), &query).await.unwrap();
    assert_eq!(names(&second), names(&all)[2..]);
    assert_eq!(second.next, None);
}

/// A host where only the kernel looks through volumes: six hundred of them, one with such a snapshot.
const IN_KERNEL: &str = include_str!("queries/in_kernel.sh");

#[tokio::test(flavor = "multi_thread")]
async fn a_snapshot_name_is_looked_for_in_the_kernel_without_a_look_at_each_volume() {
    let folder = tempfile::tempdir().unwrap();
    let cli = host(folder.path(), IN_KERNEL);
    let look = Query::Named {
        within: vec![dataset("tank/v"), dataset("tank/s")],
        has_children: false,
        name: "name".to_owned(),
        leaf: leaf(),
    };
    let observed = cli.observe(&call(), &Request::of([look])).await.unwrap();
    let found: Vec<_> = observed
        .pool
        .named()
        .iter()
        .map(ToString::to_string)
        .collect();
    assert_eq!(found, ["tank/v/b@name", "tank/s/c/name"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_snapshot_name_is_looked_for_below_children_of_the_parent_too() {
    let folder = tempfile::tempdir().unwrap();
    let script = "case \"$*\" in program*) cat >/dev/null; printf '{\"return\":\"[]\"}\\n' ;;\n\
                  *) printf 'tank/v/fast/a@name\\tname\\n' ;; esac";
    let cli = host(folder.path(), script);
    for (has_children, count) in [(false, 0), (true, 1)] {
        let look = Query::Named {
            within: vec![dataset("tank/v"), dataset("tank/s")],
            has_children,
            name: "name".to_owned(),
            leaf: leaf(),
        };
        let observed = cli.observe(&call(), &Request::of([look])).await.unwrap();
        assert_eq!(observed.pool.named().len(), count, "{has_children}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn objects_of_one_request_are_one_call_of_zfs() {
    let folder = tempfile::tempdir().unwrap();
    let script = r#"
echo "$*" >>"${0%/*}/calls"
shift 5
for n; do printf '%s\ttype\tfilesystem\t-\n%s\tguid\t7\t-\n' "$n" "$n"; done"#;
    let cli = host(folder.path(), script);
    let request = Request::of([
        Query::Dataset(dataset("tank/v/a")),
        Query::Snapshot(SnapshotRef::parse("tank/v/a@s").unwrap()),
        Query::Nearest(dataset("tank/v")),
    ]);
    let observed = cli.observe(&call(), &request).await.unwrap();
    assert!(observed.pool.dataset(&dataset("tank/v/a")).is_some());
    assert!(observed.pool.nearest(&dataset("tank/v")).is_some());
    let calls = std::fs::read_to_string(folder.path().join("calls")).unwrap();
    assert_eq!(calls.lines().count(), 1, "{calls}");
}

/// Counts the processes of a plan that destroys three snapshots of a dataset and the dataset.
#[tokio::test(flavor = "multi_thread")]
async fn a_plan_asks_for_all_identities_and_destroys_all_snapshots_by_one_call_each() {
    let folder = tempfile::tempdir().unwrap();
    let script = include_str!("queries/identities.sh");
    let cli = host(folder.path(), script);
    let volume = dataset("tank/v/a");
    let mut plan = Plan::about(volume.clone());
    plan.guard(volume.clone(), Guid(7));
    for leaf in ["one", "two", "three"] {
        let snapshot = SnapshotRef::parse(&format!("tank/v/a@{leaf}")).unwrap();
        plan.guard(snapshot.clone(), Guid(7));
        plan.step(Step::DestroySnapshot(snapshot));
    }
    plan.step(Step::DestroyDataset(volume));
    cli.apply(&call(), &plan, &Request::of([])).await.unwrap();
    let calls = std::fs::read_to_string(folder.path().join("calls")).unwrap();
    let calls: Vec<&str> = calls.lines().collect();
    assert_eq!(
        calls,
        [
            "get -Hp -o name,value guid tank/v/a tank/v/a@one tank/v/a@two tank/v/a@three",
            "destroy -d tank/v/a@one,two,three",
            "destroy -f tank/v/a",
        ]
    );
}
