//! Attaching and detaching where a fake target changes sysfs as the kernel and open-iscsi 2.1.11 were
//! seen to.

mod captured;
mod fake;

use std::sync::Arc;
use std::time::Duration;

use exec::testing::{Fault, Flaky};
use tokio::time::Instant;

use super::*;
use crate::device::{Attached, BlockDevice};
use crate::kernel::Kernel;
use csi_types::attachment::{DeviceId, Iscsi};
use csi_types::error::{Effect, Error, Kind};
use csi_types::secrets::{SettingName, StageSecrets};
use fake::{Initiator, Login};

const A: &str = "10.0.0.1:3260";
const B: &str = "10.0.0.2:3260";

fn named(kernel: &Kernel, name: &str) -> BlockDevice {
    let found = BlockDevice::by_name(kernel, name);
    found.expect("look").expect("device")
}

fn soon() -> Instant {
    Instant::now() + Duration::from_mins(2)
}

async fn attach_to(fake: &Arc<Initiator>, lun: u64, portals: &[&str]) -> Result<Attached, Error> {
    attach_with(fake, &fake.volume(lun, portals), &StageSecrets::default()).await
}

async fn attach_with(
    fake: &Arc<Initiator>,
    volume: &Iscsi,
    secrets: &StageSecrets,
) -> Result<Attached, Error> {
    let tools = fake.tools(fake.runner());
    let attached = attach(&tools, &fake.kernel(), volume, secrets, soon()).await;
    attached.map(|(attached, _)| attached)
}

async fn detach_from(fake: &Arc<Initiator>, lun: u64, portals: &[&str]) -> Result<(), Error> {
    let tools = fake.tools(fake.runner());
    let facts = IscsiFacts::of(&fake.volume(lun, portals));
    detach(&tools, &fake.kernel(), &facts, soon()).await
}

fn secrets(pairs: &[(&str, &str)]) -> StageSecrets {
    let pair =
        |(name, value): &(&str, &str)| (SettingName::parse(name).expect("name"), (*value).into());
    StageSecrets {
        node_db: pairs.iter().map(pair).collect(),
        ..StageSecrets::default()
    }
}

#[tokio::test(start_paused = true)]
async fn a_volume_is_attached_once_and_detaching_leaves_nothing() {
    let fake = Initiator::new(&[(0, "naa.1")]);
    let first = attach_to(&fake, 0, &[A]).await.expect("attached");
    assert_eq!(first.identity.as_ref().expect("identity").as_str(), "naa.1");
    let target = fake.target();
    assert_eq!(
        fake.commands(),
        [
            format!("iscsiadm -m node -T {target} -p {A} -o new"),
            format!(
                "iscsiadm -m node -T {target} -p {A} -o update --name node.startup --value manual \
                 --name 'node.conn[0].timeo.login_timeout' --value 15 \
                 --name node.session.initial_login_retry_max --value 1 \
                 --name node.session.timeo.replacement_timeout --value 660"
            ),
            format!("iscsiadm -m node -T {target} -p {A} -l"),
        ]
    );
    let again = attach_to(&fake, 0, &[A]).await.expect("attached");
    assert_eq!(again, first);
    assert!(
        fake.commands().is_empty(),
        "no command where nothing is missing"
    );
    detach_from(&fake, 0, &[A]).await.expect("detached");
    assert_eq!(
        fake.commands(),
        [
            "iscsiadm -m session -r 1 -u".to_owned(),
            format!("iscsiadm -m node -T {target} -p {A} -o delete"),
        ]
    );
    assert!(fake.is_empty());
    detach_from(&fake, 0, &[A]).await.expect("gone already");
}

#[tokio::test(start_paused = true)]
async fn a_session_that_another_volume_uses_is_used_and_not_closed() {
    let fake = Initiator::new(&[(0, "naa.1"), (1, "naa.2")]);
    attach_to(&fake, 0, &[A]).await.expect("attached");
    fake.commands();
    let second = attach_to(&fake, 1, &[A]).await.expect("attached");
    assert!(fake.commands().is_empty(), "one session for all disks");
    fake.hold(&second.device, true);
    detach_from(&fake, 0, &[A]).await.expect("detached");
    assert_eq!(fake.disks(), [1], "only the disk of the volume goes");
    assert!(fake.commands().is_empty(), "its record stays too");
    let error = detach_from(&fake, 1, &[A]).await.expect_err("in use");
    assert_eq!((error.kind(), error.effect()), (Kind::Busy, Effect::None));
    fake.hold(&second.device, false);
    detach_from(&fake, 1, &[A]).await.expect("detached");
    assert!(fake.is_empty());
}

#[tokio::test(start_paused = true)]
async fn until_a_disk_that_was_attached_is_mounted_no_other_takes_its_session_away() {
    let fake = Initiator::new(&[(0, "naa.1"), (1, "naa.2")]);
    attach_to(&fake, 0, &[A]).await.expect("attached");
    let (tools, kernel) = (fake.tools(fake.runner()), fake.kernel());
    let (volume, nothing) = (fake.volume(1, &[A]), StageSecrets::default());
    let attached = attach(&tools, &kernel, &volume, &nothing, soon()).await;
    let (second, until_mounted) = attached.expect("attached");
    let error = detach_from(&fake, 0, &[A]).await.expect_err("not mounted");
    assert_eq!(
        (error.kind(), error.effect()),
        (Kind::Pending, Effect::None)
    );
    assert_eq!(fake.disks(), [0, 1]);
    fake.hold(&second.device, true);
    drop(until_mounted);
    detach_from(&fake, 0, &[A]).await.expect("detached");
    assert_eq!(fake.disks(), [1]);
    fake.hold(&second.device, false);
    detach_from(&fake, 1, &[A]).await.expect("detached");
    assert!(fake.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_dead_portal_costs_seconds_and_is_logged_in_to_when_it_is_back() {
    let fake = Initiator::new(&[(0, "naa.1")]);
    fake.answer(A, Login::NoAnswer);
    let began = Instant::now();
    let attached = attach_to(&fake, 0, &[A, B]).await.expect("attached");
    assert!(
        began.elapsed() < Duration::from_secs(7),
        "{:?}",
        began.elapsed()
    );
    assert_eq!(attached.paths.len(), 1);
    fake.answer(A, Login::Welcome);
    let attached = attach_to(&fake, 0, &[A, B]).await.expect("attached");
    assert_eq!(attached.paths.len(), 2);
    assert_eq!(
        attached.device, attached.paths[0],
        "in the order of the portals"
    );
    detach_from(&fake, 0, &[A, B]).await.expect("detached");
    assert!(fake.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_login_that_fails_leaves_no_record_and_says_why() {
    for (login, kind, most) in [
        (Login::Denied, Kind::Denied, 1),
        (Login::NoAnswer, Kind::Unreachable, 80),
        (Login::Refused, Kind::Unreachable, 70),
    ] {
        let fake = Initiator::new(&[(0, "naa.1")]);
        fake.answer(A, login);
        let began = Instant::now();
        let error = attach_to(&fake, 0, &[A]).await.expect_err("no login");
        assert_eq!(error.kind(), kind, "{}", error.chain());
        assert!(
            began.elapsed() < Duration::from_secs(most),
            "{:?}",
            began.elapsed()
        );
        assert!(fake.is_empty(), "{login:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_target_that_lets_us_in_after_a_while_is_tried_until_then() {
    let fake = Initiator::new(&[(0, "naa.1")]);
    fake.answer(A, Login::Refused);
    let later = Arc::clone(&fake);
    let attaching = attach_to(&fake, 0, &[A]);
    let exported = async move {
        tokio::time::sleep(Duration::from_secs(5)).await;
        later.answer(A, Login::Welcome);
    };
    let (attached, ()) = tokio::join!(attaching, exported);
    attached.expect("attached");
}

#[tokio::test(start_paused = true)]
async fn a_disk_that_is_exported_later_is_looked_for_in_its_session_only() {
    let fake = Initiator::new(&[(0, "naa.1")]);
    attach_to(&fake, 0, &[A]).await.expect("attached");
    fake.commands();
    fake.export(5, Some("naa.5"));
    let attached = attach_to(&fake, 5, &[A]).await.expect("attached");
    assert_eq!(attached.identity.expect("identity").as_str(), "naa.5");
    assert!(fake.commands().is_empty());
    assert_eq!(fake.scans(), ["host11 0 0 5"]);
}

#[tokio::test(start_paused = true)]
async fn a_disk_that_is_not_exported_is_an_error_and_not_another_disk() {
    let fake = Initiator::new(&[(0, "naa.1")]);
    let error = attach_to(&fake, 7, &[A]).await.expect_err("no such disk");
    assert_eq!(
        (error.kind(), error.effect()),
        (Kind::Unreachable, Effect::Possible)
    );
    assert!(error.advice().expect("advice").contains("exported"));
}

#[tokio::test(start_paused = true)]
async fn a_number_that_was_given_to_another_volume_is_noticed_and_the_old_disk_removed() {
    let fake = Initiator::new(&[(0, "naa.1")]);
    let old = attach_to(&fake, 0, &[A]).await.expect("attached");
    for now in ["naa.2", "naa.3"] {
        fake.export(0, None);
        fake.export(0, Some(now));
        let new = attach_to(&fake, 0, &[A]).await.expect("attached");
        assert_eq!(new.identity.expect("identity").as_str(), now);
        assert_ne!(
            new.device, old.device,
            "what is cached of the old one is not for the new one"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_process_with_a_disk_that_became_another_cannot_write_to_it() {
    let fake = Initiator::new(&[(0, "naa.1")]);
    let old = attach_to(&fake, 0, &[A]).await.expect("attached");
    fake.hold(&old.device, true);
    fake.export(0, Some("naa.2"));
    for _ in 0..2 {
        let error = attach_to(&fake, 0, &[A]).await.expect_err("in use");
        assert_eq!(error.kind(), Kind::Busy, "{}", error.chain());
        let state = old.device.attribute(&fake.kernel(), "device/state");
        assert_eq!(state.expect("read").as_deref(), Some("offline"));
    }
    fake.hold(&old.device, false);
    let new = attach_to(&fake, 0, &[A]).await.expect("attached");
    assert_ne!(new.device, old.device);
    assert_eq!(new.identity.expect("identity").as_str(), "naa.2");
}

#[tokio::test(start_paused = true)]
async fn a_disk_that_its_target_took_away_is_removed_and_not_used() {
    let fake = Initiator::new(&[(0, "naa.1"), (1, "naa.2")]);
    attach_to(&fake, 0, &[A]).await.expect("attached");
    fake.export(0, None);
    let error = attach_to(&fake, 0, &[A]).await.expect_err("taken away");
    assert_eq!(error.kind(), Kind::Unreachable);
    assert_eq!(fake.disks(), [1]);
}

#[tokio::test(start_paused = true)]
async fn another_volume_than_the_one_wanted_is_refused_and_its_session_left_to_who_keeps_the_order()
{
    let fake = Initiator::new(&[(0, "naa.1")]);
    let mut other = fake.volume(0, &[A]);
    other.device_id = Some(DeviceId::parse("naa.2").expect("identity"));
    let nothing = StageSecrets::default();
    let error = attach_with(&fake, &other, &nothing).await;
    let error = error.expect_err("another");
    assert_eq!(
        (error.kind(), error.effect()),
        (Kind::Internal, Effect::Possible)
    );
    assert!(error.advice().expect("advice").contains("naa.1"));
    // Another user of the session may be between its attach and its mount.
    assert_eq!(fake.disks(), [0]);
    assert!(fake.commands().iter().all(|line| !line.ends_with("-u")));
    detach_from(&fake, 0, &[A]).await.expect("detached");
    assert!(fake.is_empty());
    other.device_id = Some(DeviceId::parse("naa.1").expect("identity"));
    attach_with(&fake, &other, &nothing)
        .await
        .expect("attached");
}

#[tokio::test(start_paused = true)]
async fn portals_that_show_different_volumes_are_an_error() {
    let fake = Initiator::new(&[(0, "naa.1")]);
    attach_to(&fake, 0, &[A]).await.expect("attached");
    fake.export(0, Some("naa.2"));
    let held = named(&fake.kernel(), &fake.disk_names()[0]);
    fake.hold(&held, true);
    // The old one is in use and offline: the volume goes by the other portal, with its own disk.
    let attached = attach_to(&fake, 0, &[A, B]).await.expect("attached");
    assert_eq!(attached.identity.expect("identity").as_str(), "naa.2");
    assert!(!attached.paths.contains(&held));
}

#[tokio::test(start_paused = true)]
async fn passwords_go_into_the_record_and_never_into_an_argument() {
    let fake = Initiator::new(&[(0, "naa.1")]);
    fake.answer(A, Login::Password("hunter2-hunter2"));
    let secrets = secrets(&[
        ("node.session.auth.authmethod", "CHAP"),
        ("node.session.auth.username", "user"),
        ("node.session.auth.password", "hunter2-hunter2"),
        ("node.session.timeo.replacement_timeout", "020"),
    ]);
    let attached = attach_with(&fake, &fake.volume(0, &[A]), &secrets).await;
    attached.expect("attached");
    let commands = fake.commands();
    let words: Vec<&str> = commands
        .iter()
        .map(|line| line.rsplit(' ').next().expect("word"))
        .collect();
    assert_eq!(words, ["new", A, "-l"]);
    assert!(
        fake.arguments()
            .iter()
            .all(|word| !word.contains("hunter2") && !word.contains("user"))
    );
    assert_eq!(fake.record_mode(A), 0o600);
    assert!(fake.has_only_records(), "nothing is left aside");
    detach_from(&fake, 0, &[A]).await.expect("detached");
    assert!(fake.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_setting_that_the_tool_does_not_take_over_is_an_error_that_names_it() {
    let fake = Initiator::new(&[(0, "naa.1")]);
    let secrets = secrets(&[("node.session.cmds_max", "many")]);
    let error = attach_with(&fake, &fake.volume(0, &[A]), &secrets).await;
    let error = error.expect_err("not a number");
    assert_eq!(error.kind(), Kind::Invalid);
    assert!(
        error.chain().contains("node.session.cmds_max"),
        "{}",
        error.chain()
    );
    assert!(fake.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_session_that_lost_its_connection_is_waited_for_and_not_opened_twice() {
    let fake = Initiator::new(&[(0, "naa.1")]);
    attach_to(&fake, 0, &[A]).await.expect("attached");
    fake.commands();
    fake.state(1, "FAILED");
    let later = Arc::clone(&fake);
    let back = async move {
        tokio::time::sleep(Duration::from_secs(10)).await;
        later.state(1, "LOGGED_IN");
    };
    let (attached, ()) = tokio::join!(attach_to(&fake, 0, &[A]), back);
    attached.expect("attached");
    assert!(fake.commands().is_empty());
    fake.state(1, "FAILED");
    let error = attach_to(&fake, 0, &[A]).await.expect_err("still cut");
    assert_eq!(error.kind(), Kind::Unreachable);
    detach_from(&fake, 0, &[A])
        .await
        .expect("a dead session can be given up");
    assert!(fake.is_empty());
}

#[tokio::test(start_paused = true)]
async fn each_command_may_be_lost_before_or_after_it_is_done_and_a_retry_converges() {
    for fault in [Fault::Before, Fault::After] {
        for at in 0..10 {
            let fake = Initiator::new(&[(0, "naa.1")]);
            let kernel = fake.kernel();
            let volume = fake.volume(0, &[A, B]);
            let facts = IscsiFacts::of(&volume);
            let nothing = StageSecrets::default();
            let flaky = Arc::new(Flaky::new(fake.runner(), at, fault));
            let tools = fake.tools(Arc::clone(&flaky) as _);
            let first = attach(&tools, &kernel, &volume, &nothing, soon()).await;
            if let Err(error) = first.map(drop) {
                panic!(
                    "one portal is always left, and is tried again: {}",
                    error.chain()
                );
            }
            let second = attach(&tools, &kernel, &volume, &nothing, soon()).await;
            assert_eq!(second.expect("attached").0.paths.len(), 2, "{fault:?} {at}");
            // A logout or a removal that is lost is an error or has been done; never a leak.
            let _ = detach(&tools, &kernel, &facts, soon()).await;
            let done = detach(&tools, &kernel, &facts, soon()).await;
            done.expect("detached");
            assert!(fake.is_empty(), "{fault:?} {at}");
            assert!(at < 6 || flaky.seen() > at, "each of them was reached");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn records_without_a_session_and_sessions_without_a_record_are_both_given_up() {
    let fake = Initiator::new(&[(0, "naa.1")]);
    attach_to(&fake, 0, &[A, B]).await.expect("attached");
    fake.end_session(1);
    fake.remove_record(B);
    detach_from(&fake, 0, &[A, B]).await.expect("detached");
    assert!(fake.is_empty());
}

#[tokio::test(start_paused = true)]
async fn volumes_of_one_target_are_attached_at_once_through_one_session() {
    let luns: Vec<(u64, String)> = (0..8).map(|lun| (lun, format!("naa.{lun}"))).collect();
    let luns: Vec<(u64, &str)> = luns.iter().map(|(lun, id)| (*lun, id.as_str())).collect();
    let fake = Initiator::new(&luns);
    let all = futures_util::future::join_all((0..8).map(|lun| attach_to(&fake, lun, &[A]))).await;
    for (lun, attached) in all.into_iter().enumerate() {
        let identity = attached.expect("attached").identity.expect("identity");
        assert_eq!(identity.as_str(), format!("naa.{lun}"));
    }
    let logins = fake
        .commands()
        .iter()
        .filter(|line| line.ends_with("-l"))
        .count();
    assert_eq!(logins, 1);
    let all = futures_util::future::join_all((0..8).map(|lun| detach_from(&fake, lun, &[A]))).await;
    for detached in all {
        detached.expect("detached");
    }
    assert!(fake.is_empty());
}
