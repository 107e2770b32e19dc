//! The deadline of a client, answered with the code that gRPC has for it.
//!
//! tonic looks at `grpc-timeout`, too, and answers `CANCELLED`. It asks the service before it looks at its clock, so
//! a service that gives up a moment earlier is always the one that answers.

use std::task::{Context, Poll};
use std::time::Duration;

use driver_core::{Error, Kind};
use futures_util::future::BoxFuture;
use http::{HeaderMap, Request, Response};
use tokio::time::{Instant, timeout_at};
use tonic::body::Body;
use tower::Service;

use crate::rpc::status::status;

/// The moment: timers count in milliseconds.
const EARLIER: Duration = Duration::from_millis(2);

/// A service that answers in the time that its client gives.
#[derive(Debug, Clone)]
pub(super) struct InTime<S>(S);

// === impl InTime ===

impl<S> InTime<S> {
    pub(super) fn new(inner: S) -> Self {
        Self(inner)
    }
}

impl<S, B> Service<Request<B>> for InTime<S>
where
    S: Service<Request<B>, Response = Response<Body>>,
    S::Future: Send + 'static,
    S::Error: Send,
{
    type Response = Response<Body>;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<Self::Response, Self::Error>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.0.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let until = within(request.headers())
            .and_then(|within| Instant::now().checked_add(within.saturating_sub(EARLIER)));
        let work = self.0.call(request);
        let Some(until) = until else {
            return Box::pin(work);
        };
        Box::pin(async move {
            timeout_at(until, work).await.unwrap_or_else(|_| {
                let over = "the time that the client gave is over; work on storage goes on";
                let error = Error::new(Kind::Timeout, over);
                Ok(status(&error).into_http())
            })
        })
    }
}

/// What the client gives: up to eight digits, and a unit.
fn within(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get("grpc-timeout")?.to_str().ok()?;
    let unit = text.chars().last()?;
    let number = text.strip_suffix(unit)?;
    let plain = (1..=8).contains(&number.len()) && number.bytes().all(|b| b.is_ascii_digit());
    let number: u64 = number.parse().ok().filter(|_| plain)?;
    Some(match unit {
        'H' => Duration::from_hours(number),
        'M' => Duration::from_mins(number),
        'S' => Duration::from_secs(number),
        'm' => Duration::from_millis(number),
        'u' => Duration::from_micros(number),
        'n' => Duration::from_nanos(number),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use tower::service_fn;

    use super::*;

    fn given(text: &'static str) -> Request<()> {
        let mut request = Request::new(());
        let value = text.parse().expect("a header");
        request.headers_mut().insert("grpc-timeout", value);
        request
    }

    #[test]
    fn times_are_read_as_grpc_writes_them() {
        let read = |text| within(given(text).headers());
        assert_eq!(read("90S"), Some(Duration::from_secs(90)));
        assert_eq!(read("2M"), Some(Duration::from_mins(2)));
        assert_eq!(read("1H"), Some(Duration::from_hours(1)));
        assert_eq!(read("150m"), Some(Duration::from_millis(150)));
        assert_eq!(read("7u"), Some(Duration::from_micros(7)));
        assert_eq!(read("99999999n"), Some(Duration::from_nanos(99_999_999)));
        for odd in ["", "S", "5", "5s", "-5S", "+5S", "123456789S", "5 S"] {
            assert_eq!(read(odd), None, "{odd:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_beyond_the_time_of_its_client_is_deadline_exceeded_just_before_it_is_over() {
        let never = service_fn(async |_: Request<()>| {
            std::future::pending::<Result<Response<Body>, Infallible>>().await
        });
        let start = Instant::now();
        let answer = InTime::new(never).call(given("1500m")).await;
        let answer = answer.expect("an answer");
        assert_eq!(answer.headers()["grpc-status"], "4");
        let took = start.elapsed();
        assert!(took < Duration::from_millis(1500), "{took:?}");
        assert!(took > Duration::from_millis(1490), "{took:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_in_time_and_a_call_without_a_time_are_left_alone() {
        let slow = service_fn(async |_: Request<()>| {
            tokio::time::sleep(Duration::from_secs(5)).await;
            let error = Error::not_found("it");
            Ok::<_, Infallible>(status(&error).into_http())
        });
        let mut slow = InTime::new(slow);
        for request in [given("6S"), given("odd"), Request::new(())] {
            let answer = slow.call(request).await.expect("an answer");
            assert_eq!(answer.headers()["grpc-status"], "5");
        }
    }
}
