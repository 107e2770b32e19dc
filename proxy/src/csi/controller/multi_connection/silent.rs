//! Lists with many connections that do not answer.

use std::time::Duration;

use tokio::time::Instant;

use super::*;

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
        assert!(took <= Duration::from_secs(46), "{took:?} of 60 s");
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
