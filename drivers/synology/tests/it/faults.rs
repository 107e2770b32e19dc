//! Whatever goes wrong at a change: a retry brings it to its end, and nothing is left over.

use driver_core::{DeleteVolume, Effect, ExpandVolume, FindVolume, Kind, Source};
use synology_sim::{Action, Fault, Options, Version};

use crate::nas::{LUN, MODES, Nas, TARGET, call, id};

/// What may go wrong at each change.
const ACTIONS: [Action; 6] = [
    Action::CutBefore,
    Action::CutAfter,
    Action::BadGateway,
    Action::Refuse(118),
    Action::RefuseAfter(100),
    Action::ExpireSessions,
];

/// Has a fault happen at each of `changes` in turn while `name` is made, and proves that it is made.
async fn making_converges(nas: &Nas, changes: &[(&str, &str)], name: &str, source: Option<Source>) {
    for (api, method) in changes {
        for action in ACTIONS {
            let before = nas.objects();
            let what = format!("{name}: {api} {method} {action:?}");
            nas.sim.fault(Fault::once(api, method, action));
            let request = nas.request(name, source.clone());
            let call = call();
            if let Err(error) = nas.driver.create_volume(&call, &request).await {
                assert_ne!(error.kind(), Kind::Conflict, "{what}: {}", error.chain());
                assert_eq!(error.effect(), call.effect(), "{what}");
            }
            let made = nas.create(name, source.clone()).await;
            assert_eq!(nas.create(name, source.clone()).await, made, "{what}");
            nas.delete(&made.id).await;
            nas.sim.clear_faults();
            let after = nas.objects();
            assert_eq!(after.0, before.0, "{what}: a LUN is left");
            assert!(after.1 <= before.1.max(1), "{what}: a target is left");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_creation_converges_after_a_fault_at_each_change() {
    for mode in MODES {
        let nas = Nas::start(Version::V7_1, mode).await;
        let changes = [(LUN, "create"), (TARGET, "create"), (LUN, "map_target")];
        making_converges(&nas, &changes, "pvc-1", None).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn copies_converge_after_a_fault_at_each_change() {
    for version in [Version::V6_2, Version::V7_2] {
        let nas = Nas::start(version, "").await;
        let original = nas.create("original", None).await;
        let snapshot = nas.snapshot(&original.id, "s").await;
        let of_volume = Some(Source::Volume(original.id.clone()));
        making_converges(&nas, &[(LUN, "clone")], "copy", of_volume).await;
        let of_snapshot = Some(Source::Snapshot(snapshot.id));
        making_converges(&nas, &[(LUN, "clone_snapshot")], "restored", of_snapshot).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deletion_converges_after_a_fault_at_each_change() {
    for (mode, hiding) in MODES
        .into_iter()
        .zip([(TARGET, "delete"), (LUN, "unmap_target")])
    {
        let nas = Nas::start(Version::V7_2, mode).await;
        for (api, method) in [hiding, (LUN, "delete")] {
            for action in ACTIONS {
                let volume = nas.create("pvc-1", None).await;
                nas.sim.fault(Fault::once(api, method, action));
                let call = call();
                if let Err(error) = nas
                    .driver
                    .delete_volume(&call, DeleteVolume::new(&volume.id))
                    .await
                {
                    assert_eq!(error.effect(), Effect::Possible, "{}", error.chain());
                }
                nas.delete(&volume.id).await;
                nas.sim.clear_faults();
                let (luns, targets) = nas.objects();
                assert_eq!(luns, 0, "{api} {method} {action:?}");
                assert!(targets <= usize::from(!mode.is_empty()), "{action:?}");
            }
        }
    }
}

#[tokio::test]
async fn a_snapshot_converges_after_a_fault_and_is_taken_once() {
    let nas = Nas::start(Version::V7_2, "").await;
    let volume = nas.create("pvc-1", None).await;
    for action in ACTIONS {
        nas.sim.fault(Fault::once(LUN, "take_snapshot", action));
        drop(nas.try_snapshot(&volume.id, "s").await);
        let snapshot = nas.snapshot(&volume.id, "s").await;
        let there = nas.lun("pvc-1")["snapshots"].as_array().map_or(0, Vec::len);
        assert_eq!(there, 1, "{action:?}");
        nas.sim.fault(Fault::once(LUN, "delete_snapshot", action));
        drop(nas.try_delete_snapshot(&snapshot.id).await);
        let gone = nas.try_delete_snapshot(&snapshot.id).await;
        gone.unwrap_or_else(|error| panic!("{action:?}: {}", error.chain()));
        nas.sim.clear_faults();
        assert_eq!(nas.lun("pvc-1")["snapshots"], serde_json::json!([]));
    }
}

#[tokio::test]
async fn growing_converges_after_a_fault() {
    let nas = Nas::start(Version::V7_2, "").await;
    let volume = nas.create("pvc-1", None).await;
    let mut gibibytes = 1;
    for action in ACTIONS {
        gibibytes += 1;
        let size = driver_core::SizeRange::new(gibibytes << 30, 0).expect("a size");
        nas.sim.fault(Fault::once(LUN, "set", action));
        drop(
            nas.driver
                .expand_volume(&call(), ExpandVolume::new(&volume.id, size))
                .await,
        );
        let grown = nas
            .driver
            .expand_volume(&call(), ExpandVolume::new(&volume.id, size))
            .await;
        let grown = grown.unwrap_or_else(|error| panic!("{action:?}: {}", error.chain()));
        assert_eq!(Some(grown.capacity), size.required());
        nas.sim.clear_faults();
    }
}

#[tokio::test]
async fn a_copy_that_was_cut_before_it_grew_is_finished_by_a_retry() {
    let nas = Nas::start(Version::V7_2, "").await;
    let original = nas.create("original", None).await;
    let mut request = nas.request("copy", Some(Source::Volume(original.id)));
    request.size = driver_core::SizeRange::new(2 << 30, 0).expect("a size");
    nas.sim.fault(Fault::once(LUN, "set", Action::CutBefore));
    nas.try_create(&request).await.expect_err("it was cut");
    let copy = nas.try_create(&request).await;
    let copy = copy.unwrap_or_else(|error| panic!("{}", error.chain()));
    assert_eq!(copy.capacity, Some(2 << 30));
}

#[tokio::test]
async fn a_deletion_ends_once_the_lun_is_gone_and_not_before() {
    let mut options = Options::new(Version::V7_2);
    options.lag = 4;
    let nas = Nas::with(options, "").await;
    let volume = nas.create("pvc-1", None).await;
    nas.delete(&volume.id).await;
    assert_eq!(nas.objects(), (0, 0));
}

#[tokio::test]
async fn a_lun_that_goes_since_an_earlier_deletion_is_waited_for() {
    let mut options = Options::new(Version::V7_2);
    options.lag = 4;
    let nas = Nas::with(options, "").await;
    let volume = nas.create("pvc-1", None).await;
    // The target, and the LUN, which is listed for a while.
    nas.sim.cutter()(Some(2));
    nas.try_delete(&volume.id).await.expect_err("cut");
    nas.sim.cutter()(None);
    assert_eq!(nas.objects(), (1, 0));
    nas.delete(&volume.id).await;
    assert_eq!(nas.objects(), (0, 0));
}

#[tokio::test]
async fn a_refused_creation_of_nothing_says_that_nothing_was_done() {
    let nas = Nas::start(Version::V7_2, "").await;
    for (code, kind) in [
        (18_990_002, Kind::OutOfSpace),
        (18_990_541, Kind::OutOfSpace),
        (18_990_318, Kind::Internal),
        (18_990_500, Kind::Invalid),
        (105, Kind::Denied),
        (118, Kind::Unreachable),
        (42, Kind::Internal),
    ] {
        let mut fault = Fault::once(LUN, "create", Action::Refuse(code));
        // A lost permission is asked for once more after a new login.
        fault.times = 2;
        nas.sim.fault(fault);
        let error = nas.try_create(&nas.request("pvc-1", None)).await;
        let error = error.expect_err("refused");
        assert_eq!(error.kind(), kind, "{}", error.chain());
        assert_eq!(error.effect(), Effect::None, "{}", error.chain());
        assert!(
            error.chain().contains(&code.to_string()),
            "{}",
            error.chain()
        );
        nas.sim.clear_faults();
    }
    assert_eq!(nas.objects(), (0, 0));
}

#[tokio::test]
async fn a_name_that_dsm_refuses_and_uses_anyway_makes_no_second_lun() {
    let nas = Nas::start(Version::V7_1, "").await;
    let fault = Fault::once(LUN, "create", Action::RefuseAfter(18_990_068));
    nas.sim.fault(fault);
    nas.create("pvc-1", None).await;
    assert_eq!(nas.objects(), (1, 1));
}

#[tokio::test]
async fn a_nas_that_does_not_answer_is_unreachable_and_never_empty() {
    let nas = Nas::start(Version::V7_2, "").await;
    nas.create("pvc-1", None).await;
    nas.sim.cutter()(Some(0));
    let page = driver_core::PageRequest::default();
    let listed = nas.driver.list_volumes(&call(), &page).await;
    assert_eq!(listed.expect_err("cut").kind(), Kind::Unreachable);
    let found = nas
        .driver
        .find_volume(&call(), FindVolume::new(&id("pvc-1")))
        .await;
    assert_eq!(found.expect_err("cut").kind(), Kind::Unreachable);
    let gone = nas.try_delete(&id("pvc-1")).await;
    assert_eq!(gone.expect_err("cut").kind(), Kind::Unreachable);
    assert_eq!(nas.driver.probe(&call()).await.len(), 1);
    nas.sim.cutter()(None);
    assert_eq!(nas.objects(), (1, 1));
}

#[tokio::test]
async fn an_answer_that_comes_too_late_ends_with_the_call() {
    let nas = Nas::start(Version::V7_2, "").await;
    nas.create("pvc-1", None).await;
    nas.sim
        .fault(Fault::once(LUN, "get", Action::Delay(60_000)));
    let short = driver_core::Call::within(std::time::Duration::from_millis(200));
    let began = std::time::Instant::now();
    let error = nas
        .driver
        .find_volume(&short, FindVolume::new(&id("pvc-1")))
        .await;
    assert_eq!(error.expect_err("late").kind(), Kind::Timeout);
    assert!(began.elapsed() < std::time::Duration::from_secs(10));
}

#[tokio::test]
async fn a_snapshot_whose_uuid_is_answered_in_another_form_stays() {
    let mut options = Options::new(Version::V7_2);
    options.capital_uuids = true;
    let nas = Nas::with(options, "").await;
    let volume = nas.create("pvc-1", None).await;
    let snapshot = nas.snapshot(&volume.id, "s").await;
    assert_eq!(nas.snapshot(&volume.id, "s").await, snapshot);
    let left = nas.lun("pvc-1")["snapshots"].clone();
    assert_eq!(left.as_array().map(Vec::len), Some(1), "{left}");
}

#[tokio::test]
async fn a_lun_whose_snapshots_cannot_be_listed_is_not_deleted() {
    let nas = Nas::start(Version::V7_2, "").await;
    let volume = nas.create("pvc-1", None).await;
    nas.snapshot(&volume.id, "s").await;
    let before = nas.sim.state();
    for code in [18_990_531, 18_990_505, 118] {
        let fault = Fault::once(LUN, "list_snapshot", Action::Refuse(code));
        nas.sim.fault(fault);
        let error = nas.try_delete(&volume.id).await;
        let error = error.expect_err("a snapshot may be there");
        assert_eq!(error.kind(), Kind::Unreachable, "{}", error.chain());
        assert_eq!(nas.sim.state(), before, "{code}");
    }
}

const SHARE: &str = "SYNO.Core.Share";
const RULE: &str = "SYNO.Core.FileServ.NFS.SharePrivilege";

/// What DSM may answer to a change, with the kind that a caller needs. The sources have the names of the simulator's
/// list (`failure.rs`): all that n4s4 has are read in DSM's own script by it.
const OF_LUNS: [(i64, Kind, &str); 19] = [
    (18_990_002, Kind::OutOfSpace, "csi, dcsi: no space"),
    (18_990_004, Kind::Unreachable, "n4s4: no such object"),
    (18_990_068, Kind::Invalid, "pve: name too long"),
    // On Btrfs a subvolume could not be made: the volume may be full or read-only, too.
    (18_990_318, Kind::Internal, "n4s4, dcsi: filesystem"),
    (18_990_500, Kind::Invalid, "csi, dcsi: type"),
    (18_990_501, Kind::Unreachable, "n4s4: location"),
    (18_990_502, Kind::OutOfRange, "n4s4, dcsi issue 497: size"),
    (18_990_503, Kind::Invalid, "pve: illegal name"),
    (18_990_505, Kind::Unreachable, "pve: no such LUN"),
    (18_990_508, Kind::Internal, "pve: a parameter is missing"),
    (18_990_513, Kind::Conflict, "pve: name of a snapshot"),
    (18_990_531, Kind::Unreachable, "csi: no such LUN"),
    (18_990_532, Kind::Unreachable, "csi, dcsi: no such snapshot"),
    (18_990_540, Kind::Busy, "n4s4: a snapshot stays"),
    (18_990_541, Kind::OutOfSpace, "csi, dcsi: most LUNs"),
    (18_990_543, Kind::OutOfSpace, "csi, dcsi: most snapshots"),
    (18_990_570, Kind::Internal, "csi issue 23: cannot be loaded"),
    (18_990_622, Kind::Invalid, "n4s4: dev_attribs"),
    (18_990_635, Kind::Invalid, "n4s4: I/O policy"),
];
const OF_TARGETS: [(i64, Kind, &str); 9] = [
    (18_990_542, Kind::OutOfSpace, "csi, dcsi: most targets"),
    (18_990_700, Kind::Invalid, "n4s4: name"),
    (18_990_702, Kind::Invalid, "n4s4: auth_type"),
    (18_990_708, Kind::Invalid, "dcsi: CHAP"),
    (18_990_710, Kind::Unreachable, "pve, dcsi: no such target"),
    (18_990_722, Kind::Unreachable, "n4s4: cannot be read"),
    (18_990_724, Kind::Unreachable, "n4s4: cannot be read"),
    (18_990_744, Kind::Conflict, "csi, dcsi: name is taken"),
    (18_990_745, Kind::Conflict, "n4s4: IQN is taken"),
];
const OF_SHARES: [(i64, Kind, &str); 18] = [
    (403, Kind::Invalid, "csi: a value"),
    (3300, Kind::Internal, "csi issue 38, mcp issue 8: shareinfo"),
    (3301, Kind::Conflict, "csi: name is taken"),
    (3304, Kind::Unreachable, "n4s4: no such volume"),
    (3305, Kind::Conflict, "n4s4: name is reserved"),
    (3309, Kind::OutOfSpace, "csi: most shares"),
    (3312, Kind::Conflict, "n4s4: name is taken"),
    (3313, Kind::Unreachable, "n4s4: no such volume"),
    (3314, Kind::Unreachable, "n4s4: read-only"),
    (3319, Kind::Conflict, "n4s4: name is taken"),
    (3320, Kind::OutOfSpace, "n4s4: no space"),
    (3329, Kind::OutOfSpace, "n4s4: most snapshots"),
    (3330, Kind::Unreachable, "n4s4: busy"),
    (3332, Kind::Unreachable, "n4s4: busy"),
    (3336, Kind::Unreachable, "n4s4: busy"),
    (3337, Kind::Busy, "n4s4: preserved"),
    (3341, Kind::OutOfRange, "n4s4: quota"),
    (3350, Kind::Busy, "n4s4: immutable snapshots"),
];
const OF_RULES: [(i64, Kind, &str); 3] = [
    (2301, Kind::Unreachable, "n4s4: try again"),
    (2370, Kind::Unreachable, "n4s4: try again"),
    (2371, Kind::Unreachable, "n4s4: try again"),
];

#[tokio::test]
async fn codes_of_dsm_have_the_kind_that_a_caller_needs() {
    let shares = Nas::of_shares(Version::V7_2, "nfs").await;
    let luns = Nas::start(Version::V7_2, "").await;
    for (nas, api, method, codes) in [
        (&luns, LUN, "create", OF_LUNS.as_slice()),
        (&luns, TARGET, "create", &OF_TARGETS),
        (&shares, SHARE, "create", &OF_SHARES),
        (&shares, RULE, "save", &OF_RULES),
    ] {
        for (code, kind, source) in codes.iter().copied() {
            let refusal = Fault::once(api, method, Action::Refuse(code));
            nas.sim.fault(refusal);
            let error = nas.try_create(&nas.request("pvc-1", None)).await;
            let error = error.expect_err(source);
            let text = format!("{code} ({source}): {}", error.chain());
            assert_eq!(error.kind(), kind, "{text}");
            assert!(text.contains(&code.to_string()), "{text}");
            assert!(!text.contains("not a code"), "{text}");
        }
    }
}

#[tokio::test]
async fn a_copy_that_is_refused_while_its_source_is_there_is_not_called_one_without_a_source() {
    let nas = Nas::of_shares(Version::V7_2, "nfs").await;
    let original = nas.create("original", None).await;
    nas.sim
        .fault(Fault::once(SHARE, "clone", Action::Refuse(3300)));
    let copy = nas.request("copy", Some(Source::Volume(original.id)));
    let refused = nas.try_create(&copy).await.expect_err("refused");
    assert_eq!(refused.kind(), Kind::Internal, "{}", refused.chain());
}

#[tokio::test]
async fn a_lun_that_dsm_cannot_load_is_named_as_such() {
    let luns = Nas::start(Version::V7_2, "").await;
    luns.sim
        .fault(Fault::once(LUN, "map_target", Action::Refuse(18_990_570)));
    let error = luns.try_create(&luns.request("pvc-1", None)).await;
    let error = error.expect_err("refused").chain();
    assert!(error.contains("cannot be loaded"), "{error}");
}
