//! The health of volumes in both dialects, alone and behind the proxy.

use driver_core::contract::fake::{Gate, Moment, Trick, Verb};
use driver_core::{Condition, ConditionKind, Kind, Reason};

use super::*;

/// A condition: its kind, its reason and its message.
type Wrong = (ConditionKind, &'static str, &'static str);

const FULL: Wrong = (ConditionKind::Degraded, "PoolFull", "no room");
const GONE: Wrong = (ConditionKind::Inaccessible, "ExportMissing", "not exported");

fn harm(driver: &FakeDriver, volume: &str, conditions: &[Wrong]) {
    let reason = |word| match word {
        "PoolFull" => Reason::constant("PoolFull"),
        _ => Reason::constant("ExportMissing"),
    };
    let one = |(kind, word, text): &Wrong| Condition::new(*kind, reason(*word), *text);
    driver.harm(&id(volume), conditions.iter().map(one));
}

/// The conditions of a volume in the dialect from 1.13 on.
async fn health(served: &Served, volume: &str) -> Result<Vec<(i32, String, String)>, Status> {
    let request = v1::ControllerGetVolumeHealthRequest {
        volume_id: volume.to_owned(),
        secrets: secrets(),
    };
    let mut client = served.controller();
    let reply = client.controller_get_volume_health(request).await?;
    let health = reply.into_inner().volume_health.expect("health");
    assert_eq!(health.volume_id, volume);
    Ok(entries(health))
}

fn entries(health: v1::VolumeHealth) -> Vec<(i32, String, String)> {
    let all = health.health_statuses.into_iter();
    all.map(|one| (one.status, one.reason, one.message))
        .collect()
}

/// The unhealthy volumes, in pages of at most `max`.
async fn unhealthy(served: &Served, max: i32) -> Result<Vec<String>, Status> {
    let mut found = Vec::new();
    let mut token = String::new();
    for _ in 0..100 {
        let request = v1::ControllerListVolumeHealthRequest {
            max_entries: max,
            starting_token: token,
            secrets: secrets(),
        };
        let mut client = served.controller();
        let reply = client.controller_list_volume_health(request).await?;
        let reply = reply.into_inner();
        assert!(max == 0 || reply.entries.len() <= usize::try_from(max).expect("a number"));
        for health in reply.entries {
            found.push(health.volume_id.clone());
            assert!(!entries(health).is_empty(), "a healthy volume is listed");
        }
        if reply.next_token.is_empty() {
            return Ok(found);
        }
        token = reply.next_token;
    }
    panic!("the list never ends");
}

/// The condition of a volume in the dialect up to 1.12: by itself, and in the list.
async fn conditions(served: &Served, volume: &str) -> [Option<(bool, String)>; 2] {
    let said = |condition: Option<v1::VolumeCondition>| condition.map(|c| (c.abnormal, c.message));
    let request = v1::ControllerGetVolumeRequest {
        volume_id: volume.to_owned(),
    };
    let reply = served.controller().controller_get_volume(request).await;
    let status = reply.expect("a volume").into_inner().status;
    let alone = status.and_then(|status| said(status.volume_condition));
    let request = v1::ListVolumesRequest::default();
    let reply = served.controller().list_volumes(request).await;
    let entries = reply.expect("a list").into_inner().entries;
    let is_it = |entry: &v1::list_volumes_response::Entry| {
        let listed = entry.volume.as_ref();
        listed.is_some_and(|listed| listed.volume_id == volume)
    };
    let entry = entries.into_iter().find(is_it).expect("it is listed");
    let status = entry
        .status
        .and_then(|status| said(status.volume_condition));
    [alone, status]
}

#[tokio::test]
async fn what_is_wrong_with_a_volume_is_told_in_both_dialects_the_worst_first() {
    let (served, driver) = alone().await;
    for name in ["x", "y"] {
        served.volume(name, 4096).await;
    }
    assert_eq!(health(&served, "x").await.expect("healthy"), []);
    assert_eq!(unhealthy(&served, 0).await.expect("a list"), [""; 0]);
    let ok = Some((false, "OK".to_owned()));
    assert_eq!(conditions(&served, "x").await, [ok.clone(), ok.clone()]);

    harm(&driver, "x", &[FULL, GONE]);
    let both = [
        (2, "ExportMissing".to_owned(), "not exported".to_owned()),
        (1, "PoolFull".to_owned(), "no room".to_owned()),
    ];
    assert_eq!(health(&served, "x").await.expect("unhealthy"), both);
    assert_eq!(unhealthy(&served, 0).await.expect("a list"), ["x"]);
    let bad = "ExportMissing: not exported; PoolFull: no room";
    let bad = Some((true, bad.to_owned()));
    assert_eq!(conditions(&served, "x").await, [bad.clone(), bad]);
    assert_eq!(conditions(&served, "y").await, [ok.clone(), ok]);

    harm(&driver, "x", &[]);
    assert_eq!(health(&served, "x").await.expect("healthy"), []);
    let status = health(&served, "z").await.expect_err("no such volume");
    is(&status, Code::NotFound, "z");
    let status = health(&served, "").await.expect_err("no id");
    is(&status, Code::InvalidArgument, "volume_id");
}

#[tokio::test]
async fn pages_of_unhealthy_volumes_lose_and_repeat_none_and_a_strange_token_starts_the_list_anew()
{
    let (served, driver) = alone().await;
    let names: Vec<String> = (0..9).map(|number| format!("v{number}")).collect();
    for name in &names {
        served.volume(name, 4096).await;
    }
    let ill: Vec<&String> = names.iter().step_by(2).collect();
    for name in &ill {
        harm(&driver, name, &[FULL]);
    }
    for max in [0, 1, 2, 4, 9] {
        let mut found = unhealthy(&served, max).await.expect("a list");
        found.sort();
        assert_eq!(found.iter().collect::<Vec<_>>(), ill, "in pages of {max}");
    }
    let request = v1::ControllerListVolumeHealthRequest {
        starting_token: "strange".into(),
        ..Default::default()
    };
    let mut client = served.controller();
    let reply = client.controller_list_volume_health(request).await;
    let status = reply.expect_err("strange");
    assert_eq!(status.code(), Code::Aborted, "{status:?}");
}

#[tokio::test]
async fn a_storage_that_does_not_answer_is_an_error_and_never_healthy() {
    let (served, driver) = alone().await;
    served.volume("x", 4096).await;
    let fail = || {
        let trick = Trick::Fail(Kind::Unreachable);
        driver.play(Verb::Conditions, Moment::BeforeChange, trick);
    };
    fail();
    let status = health(&served, "x").await.expect_err("no answer");
    assert_eq!(status.code(), Code::Unavailable, "{status:?}");
    fail();
    let status = unhealthy(&served, 0).await.expect_err("no answer");
    assert_eq!(status.code(), Code::Unavailable, "{status:?}");
    // A volume is for others, too, and so is a list.
    fail();
    assert_unknown(condition_of(&served, "x").await.expect("a condition"));
    fail();
    let request = v1::ListVolumesRequest::default();
    let reply = served.controller().list_volumes(request).await;
    let entry = reply.expect("a list").into_inner().entries.remove(0);
    let condition = entry.status.and_then(|status| status.volume_condition);
    assert_unknown(condition.expect("a condition"));
    // What is not there is no volume whose health is not known.
    let request = v1::ControllerGetVolumeRequest {
        volume_id: "z".into(),
    };
    let reply = served.controller().controller_get_volume(request).await;
    assert_eq!(reply.expect_err("no volume").code(), Code::NotFound);
}

/// The condition of a volume that is found.
async fn condition_of(served: &Served, volume: &str) -> Option<v1::VolumeCondition> {
    let request = v1::ControllerGetVolumeRequest {
        volume_id: volume.to_owned(),
    };
    let reply = served.controller().controller_get_volume(request).await;
    let reply = reply.expect("a volume").into_inner();
    assert_eq!(reply.volume.expect("a volume").volume_id, volume);
    reply.status.and_then(|status| status.volume_condition)
}

fn assert_unknown(condition: v1::VolumeCondition) {
    assert!(condition.abnormal, "{condition:?}");
    let text = condition.message;
    assert!(text.starts_with("HealthUnknown: "), "{text}");
}

#[tokio::test]
async fn a_volume_does_not_wait_long_for_its_condition() {
    let (served, driver) = alone().await;
    served.volume("x", 4096).await;
    let gate = Gate::new();
    let trick = Trick::Block(gate.clone());
    driver.play(Verb::Conditions, Moment::BeforeChange, trick);
    let began = std::time::Instant::now();
    assert_unknown(condition_of(&served, "x").await.expect("a condition"));
    assert!(began.elapsed().as_secs() < 9, "{:?}", began.elapsed());
    gate.open();
}

#[tokio::test]
async fn a_list_of_volumes_does_not_wait_long_for_their_conditions() {
    let (served, driver) = alone().await;
    served.volume("x", 4096).await;
    let gate = Gate::new();
    let trick = Trick::Block(gate.clone());
    driver.play(Verb::Conditions, Moment::BeforeChange, trick);
    let began = std::time::Instant::now();
    let request = v1::ListVolumesRequest::default();
    let reply = served.controller().list_volumes(request).await;
    let entries = reply.expect("a list").into_inner().entries;
    assert!(began.elapsed().as_secs() < 9, "{:?}", began.elapsed());
    let status = entries[0].status.clone().expect("a status");
    let condition = status.volume_condition.expect("a condition");
    assert!(!condition.abnormal, "{condition:?}");
    let text = condition.message;
    assert!(text.starts_with("not examined: "), "{text}");
    gate.open();
}

/// The numbers of the calls that the controller says it has, of those of health.
async fn offered(served: &Served) -> Vec<i32> {
    use v1::controller_service_capability::Type;
    let request = v1::ControllerGetCapabilitiesRequest {};
    let mut client = served.controller();
    let reply = client.controller_get_capabilities(request).await;
    let all = reply.expect("a list").into_inner().capabilities.into_iter();
    let numbers = all.filter_map(|one| one.r#type.map(|Type::Rpc(rpc)| rpc.r#type));
    numbers
        .filter(|number| [11, 16, 17].contains(number))
        .collect()
}

#[tokio::test]
async fn a_driver_whose_storage_does_not_tell_has_no_health() {
    let driver = Arc::new(without_services());
    let served = serve_alone(&driver).await;
    served.volume("x", 4096).await;
    assert_eq!(offered(&served).await, [0; 0]);
    let status = health(&served, "x").await.expect_err("lacking");
    assert_eq!(status.code(), Code::Unimplemented, "{status:?}");
    let status = unhealthy(&served, 0).await.expect_err("lacking");
    assert_eq!(status.code(), Code::Unimplemented, "{status:?}");
    assert_eq!(conditions(&served, "x").await, [None, None]);
}

#[tokio::test]
async fn behind_the_proxy_volumes_whose_storage_does_not_tell_are_not_called_unhealthy() {
    let tells = Arc::new(FakeDriver::new());
    let silent = Arc::new(without_services());
    let all: [(&str, Arc<dyn Driver>); 2] = [("a", tells.clone()), ("b", silent.clone())];
    let served = serve(of_several(PLAIN, &all, Names::default())).await;
    assert_eq!(offered(&served).await, [11], "the tests pretend to 1.12");
    let a = served.volume("a/x", 4096).await;
    let b = served.volume("b/x", 4096).await;
    harm(&tells, "x", &[GONE]);
    let found = health(&served, &a).await.expect("unhealthy");
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!(health(&served, &b).await.expect("nothing is known"), []);
    assert_eq!(
        unhealthy(&served, 0).await.expect("a list"),
        [a.as_str()],
        "by the handles of the proxy"
    );
    let status = health(&served, "v:b/z").await.expect_err("missing");
    assert_eq!(status.code(), Code::NotFound, "{status:?}");
    for said in conditions(&served, &a).await {
        assert!(said.expect("a condition").0);
    }
    for said in conditions(&served, &b).await {
        let (abnormal, text) = said.expect("a condition");
        assert!(!abnormal && text.starts_with("not examined"), "{text}");
    }
    // One that does not answer is missing in the list, which says so at its end.
    tells.play(
        Verb::Conditions,
        Moment::BeforeChange,
        Trick::Fail(Kind::Unreachable),
    );
    let status = unhealthy(&served, 0).await.expect_err("incomplete");
    is(&status, Code::Unavailable, "connection `a`");
}
