//! Lists with many connections that do not answer.

use std::time::Duration;

use tokio::time::Instant;

use super::*;
use crate::routing::folder::Health;

#[tokio::test(start_paused = true)]
async fn those_that_do_not_answer_leave_time_to_the_others() {
    let drivers: Vec<_> = (0..16).map(|_| Memory::new()).collect();
    let names: Vec<_> = (0..16).map(|n| format!("c{n}")).collect();
    let all = names.iter().zip(&drivers);
    let all: Vec<_> = all.map(|(n, d)| (&**n, d, "")).collect();
    let service = ControllerHandler(multi_connection(&all, Names::default()));
    for (n, driver) in drivers.iter().enumerate() {
        driver.fill(["x".to_owned()], "/x");
        if n % 2 == 0 {
            driver.trouble(Trouble::Wait);
        }
    }
    let (mut listed, mut token) = (0, String::new());
    let status = loop {
        let request = v1::ListVolumesRequest {
            starting_token: token,
            ..Default::default()
        };
        let start = Instant::now();
        let reply = service.list_volumes(Request::new(request)).await;
        let took = start.elapsed();
        assert!(
            took <= Duration::from_secs(10),
            "{took:?}: sidecars give up"
        );
        match reply {
            Ok(reply) => {
                let page = reply.into_inner();
                listed += page.entries.len();
                token = page.next_token;
                assert!(!token.is_empty(), "it does not end well");
            }
            Err(status) => break status,
        }
    };
    assert_eq!((listed, status.code()), (8, Code::Unavailable));
}

#[tokio::test(start_paused = true)]
async fn several_that_were_silent_when_their_health_was_asked_for_cost_a_list_two_seconds() {
    let drivers: Vec<_> = (0..4).map(|_| Memory::new()).collect();
    let names: Vec<_> = (0..4).map(|n| format!("c{n}")).collect();
    let all = names.iter().zip(&drivers);
    let all: Vec<_> = all.map(|(n, d)| (&**n, d, "")).collect();
    let plugin = multi_connection(&all, Names::default());
    for (n, driver) in drivers.iter().enumerate() {
        driver.fill(["x".to_owned()], "/x");
        if n > 0 {
            driver.trouble(Trouble::Wait);
            let bad = Health::Bad("no answer".to_owned());
            plugin.states.found(&name(&names[n]), bad, || true);
        }
    }
    let start = Instant::now();
    let (volumes, status) = listed(&ControllerHandler(plugin), 0)
        .await
        .expect_err("not whole");
    assert_eq!(volumes, ["v:c0/x"]);
    assert_eq!(status.code(), Code::Unavailable);
    let took = start.elapsed();
    assert!(took < Duration::from_secs(3), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn the_capacity_of_those_that_answer_is_told_in_time_though_others_do_not() {
    let drivers: Vec<_> = (0..12).map(|_| Memory::new()).collect();
    let names: Vec<_> = (0..12).map(|n| format!("c{n}")).collect();
    let all = names.iter().zip(&drivers);
    let all: Vec<_> = all.map(|(n, d)| (&**n, d, "")).collect();
    let service = ControllerHandler(multi_connection(&all, Names::default()));
    for driver in &drivers[1..] {
        driver.trouble(Trouble::Wait);
    }
    let start = Instant::now();
    let request = v1::GetCapacityRequest::default();
    let reply = service.get_capacity(Request::new(request)).await;
    let room = reply.expect("that of the first").into_inner();
    assert!(room.available_capacity > 0);
    let took = start.elapsed();
    assert!(
        took <= Duration::from_secs(10),
        "{took:?}: sidecars give up"
    );
}
