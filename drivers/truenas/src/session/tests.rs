use serde_json::json;
use tokio::io::DuplexStream;
use tokio_tungstenite::tungstenite::protocol::Role;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;

use super::*;
use crate::Effect;

/// The other end of a socket.
struct Nas(WebSocketStream<DuplexStream>);

impl Nas {
    async fn request(&mut self) -> Value {
        loop {
            match self.0.next().await {
                Some(Ok(Message::Text(text))) => return serde_json::from_str(&text).expect("JSON"),
                Some(Ok(_)) => {}
                other => panic!("no request: {other:?}"),
            }
        }
    }

    async fn say(&mut self, message: &Value) {
        let sent = self.0.send(Message::text(message.to_string())).await;
        sent.expect("the client listens");
    }

    async fn answer(&mut self, request: &Value, result: Value) {
        let answer = json!({"jsonrpc": "2.0", "id": request["id"], "result": result});
        self.say(&answer).await;
    }
}

async fn pair() -> (Arc<Session>, Nas) {
    let (ours, theirs) = tokio::io::duplex(1 << 20);
    let ours: Box<dyn Socket> = Box::new(ours);
    let ours = WebSocketStream::from_raw_socket(ours, Role::Client, None).await;
    let theirs = WebSocketStream::from_raw_socket(theirs, Role::Server, None).await;
    let silence = Silence {
        ping: Duration::from_secs(20),
        limit: Duration::from_secs(50),
        answer: Duration::from_secs(90),
        login: Duration::from_secs(30),
    };
    let session = Session::open(Transport::JsonRpc, ours, Meter::default(), silence)
        .await
        .expect("opens");
    session.logged_in();
    (Arc::new(session), Nas(theirs))
}

fn call(
    session: &Arc<Session>,
    method: &'static str,
) -> tokio::task::JoinHandle<Result<Value, Error>> {
    let session = Arc::clone(session);
    tokio::spawn(async move { session.call(method, &[]).await })
}

#[tokio::test]
async fn answers_reach_their_calls_in_any_order() {
    let (session, mut nas) = pair().await;
    let (first, second) = (call(&session, "a.b"), call(&session, "c.d"));
    let requests = [nas.request().await, nas.request().await];
    for request in requests.iter().rev() {
        nas.answer(request, request["method"].clone()).await;
    }
    assert_eq!(first.await.expect("joins"), Ok(json!("a.b")));
    assert_eq!(second.await.expect("joins"), Ok(json!("c.d")));
}

#[tokio::test]
async fn ten_calls_are_in_flight_and_the_eleventh_waits() {
    let (session, mut nas) = pair().await;
    let calls: Vec<_> = (0..11).map(|_| call(&session, "core.ping")).collect();
    let mut requests = Vec::new();
    for _ in 0..10 {
        requests.push(nas.request().await);
    }
    assert_eq!(session.permits.available_permits(), 0);
    tokio::select! {
        biased;
        early = nas.request() => panic!("an eleventh request: {early}"),
        () = tokio::task::yield_now() => {}
    }
    nas.answer(&requests[0], Value::Null).await;
    requests.push(nas.request().await);
    for request in &requests[1..] {
        nas.answer(request, Value::Null).await;
    }
    for call in calls {
        assert_eq!(call.await.expect("joins"), Ok(Value::Null));
    }
}

#[tokio::test]
async fn a_call_whose_caller_gave_up_keeps_its_place_until_the_nas_answers() {
    let (session, mut nas) = pair().await;
    let given_up = call(&session, "slow.call");
    let request = nas.request().await;
    given_up.abort();
    let _ = given_up.await;
    assert_eq!(session.permits.available_permits(), IN_FLIGHT - 1);
    nas.answer(&request, Value::Null).await;
    let next = call(&session, "core.ping");
    let request = nas.request().await;
    assert_eq!(session.permits.available_permits(), IN_FLIGHT - 1);
    nas.answer(&request, Value::Null).await;
    assert_eq!(next.await.expect("joins"), Ok(Value::Null));
}

#[tokio::test]
async fn the_end_of_the_socket_leaves_sent_calls_unknown_and_others_unsent() {
    let (session, mut nas) = pair().await;
    let sent: Vec<_> = (0..10)
        .map(|_| call(&session, "pool.dataset.create"))
        .collect();
    for _ in 0..10 {
        nas.request().await;
    }
    let waiting = call(&session, "pool.dataset.delete");
    drop(nas);
    for call in sent {
        let error = call.await.expect("joins").expect_err("lost");
        assert_eq!(
            (error.kind(), error.effect()),
            (Kind::UnknownOutcome, Effect::Possible)
        );
        assert_eq!(error.method(), Some("pool.dataset.create"));
    }
    let error = waiting.await.expect("joins").expect_err("lost");
    assert_eq!(
        (error.kind(), error.effect()),
        (Kind::NotSent, Effect::None)
    );
    let error = session.call("core.ping", &[]).await.expect_err("lost");
    assert_eq!(error.kind(), Kind::NotSent);
}

#[tokio::test]
async fn the_reason_of_a_close_is_in_the_error() {
    let (session, mut nas) = pair().await;
    let frame = CloseFrame {
        code: CloseCode::Policy,
        reason: "You are not allowed to access this resource".into(),
    };
    nas.0.send(Message::Close(Some(frame))).await.expect("sent");
    let why = session.ended().await;
    assert!(why.message().contains("not allowed"), "{why}");
    assert!(why.message().contains("1008"), "{why}");
}

#[tokio::test]
async fn a_request_that_is_too_large_is_never_sent() {
    let (session, mut nas) = pair().await;
    let error = session
        .call("a.b", &[json!("x".repeat(MESSAGE))])
        .await
        .expect_err("too large");
    assert_eq!(
        (error.kind(), error.effect()),
        (Kind::Invalid, Effect::None)
    );
    let next = call(&session, "core.ping");
    let request = nas.request().await;
    assert_eq!(request["method"], "core.ping");
    nas.answer(&request, Value::Null).await;
    assert_eq!(next.await.expect("joins"), Ok(Value::Null));
}

#[tokio::test(start_paused = true)]
async fn a_quiet_socket_is_kept_by_pings() {
    let (session, mut nas) = pair().await;
    let serve = tokio::spawn(async move {
        // Reading answers the pings.
        let mut pings = 0;
        while let Some(Ok(message)) = nas.0.next().await {
            pings += u32::from(message.is_ping());
        }
        pings
    });
    tokio::time::sleep(Duration::from_mins(10)).await;
    assert_eq!(session.end(), None);
    drop(session);
    assert!(serve.await.expect("joins") >= 29);
}

#[tokio::test(start_paused = true)]
async fn a_nas_that_answers_no_ping_is_given_up() {
    let (session, _nas) = pair().await;
    let lost = call(&session, "core.ping");
    let why = session.ended().await;
    assert!(why.message().contains("silent"), "{why}");
    let error = lost.await.expect("joins").expect_err("lost");
    assert_eq!(error.kind(), Kind::UnknownOutcome);
}

#[tokio::test]
async fn events_of_jobs_reach_who_listens() {
    let (session, mut nas) = pair().await;
    let mut events = session.jobs();
    let fields = json!({"id": 3, "state": "RUNNING"});
    let update = json!({"msg": "changed", "collection": JOBS, "id": 3, "fields": fields});
    let other = json!({"msg": "changed", "collection": "alert.list", "id": 1, "fields": {}});
    for params in [other, update] {
        let event = json!({"jsonrpc": "2.0", "method": "collection_update", "params": params});
        nas.say(&event).await;
    }
    assert_eq!(events.recv().await, Ok(fields));
}

#[tokio::test]
async fn an_answer_to_no_call_is_ignored() {
    let (session, mut nas) = pair().await;
    nas.say(&json!({"jsonrpc": "2.0", "id": "another-1", "result": 1}))
        .await;
    let next = call(&session, "core.ping");
    let request = nas.request().await;
    nas.answer(&request, json!("pong")).await;
    assert_eq!(next.await.expect("joins"), Ok(json!("pong")));
}

#[tokio::test]
async fn a_session_without_handles_closes_its_socket() {
    let (session, mut nas) = pair().await;
    drop(session);
    let last = nas.0.next().await;
    assert!(matches!(last, Some(Ok(Message::Close(_)))), "{last:?}");
}

#[tokio::test(start_paused = true)]
async fn a_nas_that_answers_pings_and_no_calls_is_given_up() {
    let (session, mut nas) = pair().await;
    let stuck = call(&session, "pool.dataset.delete");
    let request = nas.request().await;
    let began = Instant::now();
    let noise = tokio::spawn(async move {
        // Reading answers pings; the rest is noise.
        let wrong = json!({"jsonrpc": "2.0", "id": "another", "result": request["id"]});
        loop {
            tokio::select! {
                message = nas.0.next() => if message.is_none_or(|message| message.is_err()) { return },
                () = tokio::time::sleep(Duration::from_secs(7)) => nas.say(&wrong).await,
            }
        }
    });
    let error = stuck.await.expect("joins").expect_err("no answer");
    assert_eq!(error.kind(), Kind::UnknownOutcome);
    assert!(error.message().contains("has not answered"), "{error}");
    let took = began.elapsed();
    assert!((90..100).contains(&took.as_secs()), "{took:?}");
    assert!(session.end().is_some(), "the socket is given up");
    noise.abort();
}
