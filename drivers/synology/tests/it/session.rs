//! Logging in, sessions that end, and what a NAS offers.

use driver_core::{Effect, FindVolume, Kind};
use synology_sim::{Action, Fault, Options, Version};

use crate::nas::{LUN, Nas, call, config, id, open};

const LOGIN: &str = "SYNO.API.Auth/login";

#[tokio::test]
async fn a_session_that_ended_is_replaced_and_no_caller_sees_it() {
    for version in Version::ALL {
        let nas = Nas::start(version, "").await;
        nas.create("pvc-1", None).await;
        assert_eq!(nas.sim.count(LOGIN), 1);
        nas.sim.expire_sessions();
        nas.create("pvc-2", None).await;
        assert_eq!(nas.sim.count(LOGIN), 2);
    }
}

#[tokio::test]
async fn a_session_that_ends_again_at_once_is_an_error() {
    let nas = Nas::start(Version::V7_2, "").await;
    let mut fault = Fault::once(LUN, "get", Action::ExpireSessions);
    fault.times = 2;
    nas.sim.fault(fault);
    let error = nas
        .driver
        .find_volume(&call(), FindVolume::new(&id("pvc-1")))
        .await;
    assert_eq!(error.expect_err("no session").kind(), Kind::Unreachable);
    assert_eq!(nas.sim.count(LOGIN), 2);
}

/// A login that is refused. That is remembered by address and user for the whole process, and the next simulator may get
/// the address of this one: so the user is another one, too.
fn mistaken(text: &str) -> String {
    let right = "username: csi, password: sesame";
    assert!(text.contains(right), "{text}");
    text.replace(right, "username: mistaken, password: wrong")
}

#[tokio::test]
async fn a_refused_login_is_not_repeated_because_dsm_blocks_addresses() {
    let nas = Nas::start(Version::V7_2, "").await;
    let text = mistaken(&config(&nas.sim, ""));
    let driver = open(&text);
    for _ in 0..5 {
        let error = driver
            .find_volume(&call(), FindVolume::new(&id("pvc-1")))
            .await;
        let error = error.expect_err("refused");
        assert_eq!(error.kind(), Kind::Denied, "{}", error.chain());
        assert!(error.chain().contains("code 400"), "{}", error.chain());
    }
    assert_eq!(nas.sim.count(LOGIN), 1);
}

#[tokio::test]
async fn a_login_refused_because_the_address_is_blocked_proves_nothing() {
    let nas = Nas::start(Version::V7_2, "").await;
    let driver = open(&mistaken(&config(&nas.sim, "")));
    nas.sim
        .fault(Fault::once("SYNO.API.Auth", "login", Action::Refuse(407)));
    let request = nas.request("pvc-1", None);
    let error = driver.create_volume(&call(), &request).await;
    let error = error.expect_err("blocked");
    assert_eq!(error.kind(), Kind::Unreachable, "{}", error.chain());
    assert_eq!(error.effect(), Effect::Possible, "{}", error.chain());
    assert!(error.chain().contains("Auto Block"), "{}", error.chain());
}

#[tokio::test]
async fn many_calls_at_once_log_in_once() {
    let nas = Nas::start(Version::V7_2, "").await;
    let calls = (0..16).map(|_| async {
        let found = nas
            .driver
            .find_volume(&call(), FindVolume::new(&id("pvc-1")))
            .await;
        assert_eq!(found.expect_err("nothing").kind(), Kind::NotFound);
    });
    futures_util::future::join_all(calls).await;
    assert_eq!(nas.sim.count(LOGIN), 1);
}

#[tokio::test]
async fn an_upgrade_of_the_nas_is_noticed() {
    let nas = Nas::start(Version::V6_2, "").await;
    let volume = nas.create("pvc-1", None).await;
    nas.sim.upgrade(Version::V7_2);
    // The login has moved to another path, and calls need a token now.
    assert_eq!(nas.create("pvc-1", None).await, volume);
}

#[tokio::test]
async fn a_missing_volume_of_the_nas_is_an_error_with_the_key_to_correct() {
    let mut options = Options::new(Version::V7_2);
    options.volumes.remove(0);
    let nas = Nas::with(options, "").await;
    let problems = nas.driver.probe(&call()).await;
    assert_eq!(problems.len(), 1);
    assert!(problems[0].chain().contains("synology.volume"));
    let query = driver_core::CapacityQuery::default();
    let capacity = nas.driver.capacity(&call(), &query).await;
    assert_eq!(capacity.expect_err("none").kind(), Kind::Unreachable);
}

#[tokio::test]
async fn a_nas_that_is_not_there_is_unreachable() {
    let nas = Nas::start(Version::V7_2, "").await;
    let text = config(&nas.sim, "");
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let free = listener.local_addr().expect("an address").port();
    drop(listener);
    let text = text.replace(
        &format!("port: {}", nas.sim.address().port()),
        &format!("port: {free}"),
    );
    let error = open(&text)
        .find_volume(&call(), FindVolume::new(&id("pvc-1")))
        .await;
    let error = error.expect_err("nothing listens");
    assert_eq!(error.kind(), Kind::Unreachable);
    assert!(
        error.chain().contains("httpConnection"),
        "{}",
        error.chain()
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn several_connections_to_one_nas_log_in_once_with_a_wrong_password() {
    let nas = Nas::start(Version::V7_2, "").await;
    let iscsi = config(&nas.sim, "");
    let texts = [
        iscsi,
        crate::nas::shares(&nas.sim, "nfs"),
        crate::nas::shares(&nas.sim, "smb"),
    ];
    let drivers = texts.map(|text| open(&mistaken(&text)));
    for _ in 0..2 {
        let asked = drivers.iter().map(|driver| async {
            let found = driver
                .find_volume(&call(), FindVolume::new(&id("pvc-1")))
                .await;
            assert_eq!(found.expect_err("refused").kind(), Kind::Denied);
        });
        futures_util::future::join_all(asked).await;
    }
    assert_eq!(nas.sim.count(LOGIN), 1);
}

#[tokio::test]
async fn an_account_that_is_no_administrator_logs_in_once() {
    let nas = Nas::start(Version::V7_2, "").await;
    let mut fault = Fault::once(LUN, "get", Action::Refuse(105));
    fault.times = 100;
    nas.sim.fault(fault);
    let mut fault = Fault::once("SYNO.Core.ISCSI.Target", "get", Action::Refuse(105));
    fault.times = 100;
    nas.sim.fault(fault);
    for _ in 0..5 {
        let found = nas
            .driver
            .find_volume(&call(), FindVolume::new(&id("pvc-1")))
            .await;
        assert_eq!(found.expect_err("refused").kind(), Kind::Denied);
    }
    assert_eq!(nas.sim.count(LOGIN), 1);
}

#[tokio::test]
async fn the_session_of_a_connection_that_is_removed_is_ended() {
    let nas = Nas::start(Version::V7_2, "").await;
    let driver = open(&config(&nas.sim, ""));
    let found = driver
        .find_volume(&call(), FindVolume::new(&id("pvc-1")))
        .await;
    assert_eq!(found.expect_err("nothing").kind(), Kind::NotFound);
    drop(driver);
    for _ in 0..1000 {
        if nas.sim.count("SYNO.API.Auth/logout") == 1 {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    panic!("nothing logs out");
}
