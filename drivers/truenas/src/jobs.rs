//! Jobs: started by a call, followed by events, through lost sockets and restarts.
//!
//! Job numbers begin again at 1 when the middleware restarts, so a number alone names nothing. A job
//! also remembers the id of the request that made it, and ours are unique.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::broadcast;
use tokio::sync::broadcast::error::RecvError;

use crate::api::{Call, JobRequest};
use crate::client::{Client, Link};
use crate::wire::JOBS;
use crate::{Error, Kind};

/// Events can be lost, come twice or not at all: a job is asked about as well.
const ASK_EVERY: Duration = Duration::from_secs(5);
/// How many of the newest jobs of one method are searched for ours.
const SEARCHED: u32 = 50;

/// A job on the NAS, in a form that can be kept and found again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobId {
    number: i64,
    request: String,
    method: String,
}

/// What is known of a job.
enum Seen {
    Running,
    Done(Result<Value, Error>),
    /// The NAS has no such job, or another one of that number.
    Gone,
}

// === impl Client ===

impl Client {
    /// Starts a job and waits for its end.
    pub async fn run<R: JobRequest>(&self, request: &R) -> Result<(), Error> {
        let link = self.link().await?;
        link.report_jobs().await;
        // Its end may be reported before its number is answered.
        let events = link.session.jobs();
        let job = self.start_on(&link, request).await?;
        self.follow_from(link, job, Some(events)).await
    }

    /// Starts a job.
    ///
    /// If the socket ends before the NAS answers the number, the job is looked for by the id of the
    /// request.
    pub async fn start<R: JobRequest>(&self, request: &R) -> Result<JobId, Error> {
        let link = self.link().await?;
        self.start_on(&link, request).await
    }

    async fn start_on<R: JobRequest>(&self, link: &Link, request: &R) -> Result<JobId, Error> {
        let call = request.encode(&link.dialect)?;
        let id = link.session.request_id();
        let method = call.method.to_string();
        match self.send(link, Some(&id), &call).await {
            Ok(answer) => {
                let number = answer
                    .as_i64()
                    .ok_or_else(|| Error::protocol("the NAS answers no job number").of(&method))?;
                Ok(JobId {
                    number,
                    request: id,
                    method,
                })
            }
            Err(error) if error.kind() == Kind::UnknownOutcome => {
                let link = self.link_again(&error).await?;
                let found = self.find(&link, &id, &method).await;
                found.ok().flatten().ok_or(error)
            }
            Err(error) => Err(error),
        }
    }

    /// Waits for the end of a job.
    ///
    /// A job that the NAS no longer knows, because its middleware was restarted or because a thousand
    /// others came after it, ends with [`Kind::UnknownOutcome`].
    pub async fn follow(&self, job: &JobId) -> Result<(), Error> {
        let link = self.link_again(&unknown(job)).await?;
        self.follow_from(link, job.clone(), None).await
    }

    /// Follows a job from socket to socket. `events` were listened to since before its start.
    async fn follow_from(
        &self,
        mut link: Arc<Link>,
        mut job: JobId,
        mut events: Option<broadcast::Receiver<Value>>,
    ) -> Result<(), Error> {
        loop {
            let outcome = self.follow_on(&link, &mut job, events.take()).await;
            match outcome {
                Ok(outcome) => return outcome.map(drop).map_err(|error| error.of(&job.method)),
                // The socket ended: the job goes on, or is found to be gone.
                Err(error)
                    if matches!(error.kind(), Kind::NotSent | Kind::UnknownOutcome)
                        && link.session.end().is_some() =>
                {
                    link = self.link_again(&unknown(&job)).await?;
                }
                Err(error) => return Err(error),
            }
        }
    }

    async fn follow_on(
        &self,
        link: &Link,
        job: &mut JobId,
        events: Option<broadcast::Receiver<Value>>,
    ) -> Result<Result<Value, Error>, Error> {
        // Who listened from the start need not ask first.
        let mut informed = events.is_some() && link.report_jobs().await;
        let mut events = events.unwrap_or_else(|| link.session.jobs());
        link.report_jobs().await;
        loop {
            if !informed {
                match self.ask(link, job).await? {
                    Seen::Running => {}
                    Seen::Done(outcome) => return Ok(outcome),
                    Seen::Gone => match self.find(link, &job.request, &job.method).await? {
                        Some(found) if found != *job => {
                            *job = found;
                            continue;
                        }
                        _ => return Ok(Err(unknown(job))),
                    },
                }
            }
            informed = false;
            let end = tokio::time::timeout(ASK_EVERY, end_of(&mut events, job));
            tokio::select! {
                end = end => if let Ok(Some(outcome)) = end {
                    return Ok(outcome);
                },
                // Asking again reports the loss.
                _ = link.session.ended() => {}
            }
        }
    }

    async fn ask(&self, link: &Link, job: &JobId) -> Result<Seen, Error> {
        let found = self
            .jobs(link, &json!([["id", "=", job.number]]), &json!({}))
            .await?;
        let same_socket = link.session.made(&job.request);
        let ours = found.iter().find(|entry| job.is(entry, same_socket));
        Ok(ours.map_or(Seen::Gone, read))
    }

    async fn find(&self, link: &Link, request: &str, method: &str) -> Result<Option<JobId>, Error> {
        let newest = json!({"order_by": ["-id"], "limit": SEARCHED});
        let found = self
            .jobs(link, &json!([["method", "=", method]]), &newest)
            .await?;
        let ours = found
            .iter()
            .find(|entry| made_by(entry, request) == Some(true));
        Ok(ours
            .and_then(|entry| entry["id"].as_i64())
            .map(|number| JobId {
                number,
                request: request.to_owned(),
                method: method.to_owned(),
            }))
    }

    async fn jobs(
        &self,
        link: &Link,
        filters: &Value,
        options: &Value,
    ) -> Result<Vec<Value>, Error> {
        let call = Call::new(JOBS, vec![filters.clone(), options.clone()]);
        match self.send(link, None, &call).await? {
            Value::Array(jobs) => Ok(jobs),
            _ => Err(Error::protocol("the NAS answers no list of jobs").of(JOBS)),
        }
    }

    /// The connection, waited for as long as the NAS cannot be reached: its restart must not lose the
    /// job. The deadline of the caller ends the wait.
    async fn link_again(&self, lost: &Error) -> Result<Arc<Link>, Error> {
        loop {
            match self.link().await {
                Ok(link) => return Ok(link),
                Err(error) if error.is_final() => {
                    return Err(lost.clone().context(error));
                }
                Err(_) => tokio::time::sleep(self.pause()).await,
            }
        }
    }
}

// === impl Link ===

impl Link {
    /// Asks the NAS to report jobs on this socket, once, and says whether it does.
    async fn report_jobs(&self) -> bool {
        let ask = || async { self.session.subscribe_to_jobs().await.is_ok() };
        *self.reports_jobs.get_or_init(ask).await
    }
}

// === impl JobId ===

impl JobId {
    /// Reads what [`fmt::Display`] wrote.
    pub fn parse(text: &str) -> Option<Self> {
        let mut parts = text.splitn(3, ':');
        Some(Self {
            number: parts.next()?.parse().ok()?,
            request: parts.next().filter(|text| !text.is_empty())?.to_owned(),
            method: parts.next().filter(|text| !text.is_empty())?.to_owned(),
        })
    }

    /// Whether an entry of the list of jobs is this job.
    ///
    /// On the socket that started it the number is enough: a restart ends the socket. It also must
    /// be, because the NAS may have answered the number of an equal job that was queued already.
    /// Elsewhere the request must be ours; generations that do not name it leave only the method.
    fn is(&self, entry: &Value, same_socket: bool) -> bool {
        let ours = || made_by(entry, &self.request).unwrap_or(true);
        entry["method"] == self.method.as_str() && (same_socket || ours())
    }
}

impl fmt::Display for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}", self.number, self.request, self.method)
    }
}

/// Waits until an event reports the end of the job; `None` if events were lost.
async fn end_of(
    events: &mut broadcast::Receiver<Value>,
    job: &JobId,
) -> Option<Result<Value, Error>> {
    loop {
        match events.recv().await {
            Ok(entry) if entry["id"] == job.number && entry["method"] == job.method.as_str() => {
                if let Seen::Done(outcome) = read(&entry) {
                    return Some(outcome);
                }
            }
            Ok(_) => {}
            Err(RecvError::Lagged(_)) => return None,
            // The session is gone; its end is noticed elsewhere.
            Err(RecvError::Closed) => std::future::pending().await,
        }
    }
}

fn made_by(entry: &Value, request: &str) -> Option<bool> {
    let requests = entry["message_ids"].as_array()?;
    Some(requests.iter().any(|id| id == request))
}

fn read(entry: &Value) -> Seen {
    let text = entry["error"].as_str().unwrap_or_default().trim();
    match entry["state"].as_str().unwrap_or_default() {
        "SUCCESS" => Seen::Done(Ok(entry["result"].clone())),
        "FAILED" => Seen::Done(Err(Error::from_job(text, &entry["exc_info"]))),
        "ABORTED" => Seen::Done(Err(Error::new(
            Kind::Refused,
            format!("the job was aborted {text}"),
        ))),
        _ => Seen::Running,
    }
}

fn unknown(job: &JobId) -> Error {
    let message = format!("the NAS no longer knows job {}", job.number);
    Error::new(Kind::UnknownOutcome, message).of(&job.method)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job() -> JobId {
        JobId {
            number: 7,
            request: "csi-1-2".to_owned(),
            method: "filesystem.setperm".to_owned(),
        }
    }

    #[test]
    fn a_job_can_be_kept_as_text() {
        assert_eq!(JobId::parse(&job().to_string()), Some(job()));
        for text in ["", "7", "7:", "7::", "x:a:b", "7:a"] {
            assert_eq!(JobId::parse(text), None, "{text}");
        }
    }

    #[test]
    fn another_job_with_the_same_number_is_not_ours() {
        let ours =
            json!({"id": 7, "method": "filesystem.setperm", "message_ids": ["x", "csi-1-2"]});
        let method = json!({"id": 7, "method": "pool.create", "message_ids": ["csi-1-2"]});
        let request = json!({"id": 7, "method": "filesystem.setperm", "message_ids": [1]});
        let silent = json!({"id": 7, "method": "filesystem.setperm"});
        assert!(job().is(&ours, false));
        assert!(!job().is(&method, false) && !job().is(&method, true));
        assert!(!job().is(&request, false));
        assert!(job().is(&request, true));
        assert!(job().is(&silent, false));
    }
}
