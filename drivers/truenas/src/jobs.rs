//! Jobs: started by a call, followed by events, through lost sockets and restarts.
//!
//! Job numbers begin again at 1 when the middleware restarts, so a number alone names nothing. A job
//! also remembers the id of the request that made it, and ours are unique.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{Semaphore, broadcast};

use crate::api::{Call, JobRequest};
use crate::client::{Client, Link};
use crate::wire::JOBS;
use crate::{Error, Kind};

/// Events can be lost, come twice or not at all: a job is asked about as well.
const ASK_EVERY: Duration = Duration::from_secs(5);
/// The number of the newest jobs of one method that are searched for ours.
const SEARCHED: u32 = 50;
/// The fields that are read of jobs.
const READ: [&str; 7] = [
    "id",
    "method",
    "arguments",
    "message_ids",
    "state",
    "error",
    "exc_info",
];
/// The longest answer that is the number of a job.
const NUMBER: usize = 1 << 10;
/// The longest list of jobs.
const LIST: usize = 1 << 20;
/// The most values of an event that is kept. Arguments and results of jobs of ours have a few dozen.
const MOST: usize = 1_000;
/// The number of jobs in flight on a NAS that change permissions. Up to 25.10 it runs one at a time and lets
/// five wait; there is one place for an administrator.
const PERMITTING: usize = 5;

/// A job on the NAS, in a form that can be kept and found again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobId {
    number: i64,
    request: String,
    method: String,
    /// The path whose permissions it changes.
    path: Option<String>,
}

/// The state of a job, as far as it is known.
enum Seen {
    Running,
    Done(Followed),
    /// The NAS has no such job, or another one of that number.
    Gone,
}

/// The job that has ended.
enum Followed {
    /// The job.
    Ours(Result<(), Error>),
    /// The job of another path, whose number was answered instead.
    Another,
}

/// The places in the queues of permissions, by NAS.
static QUEUES: LazyLock<Mutex<HashMap<String, Arc<Semaphore>>>> = LazyLock::new(Mutex::default);

// === impl Client ===

impl Client {
    /// Starts a job and waits for its end.
    ///
    /// Where the queue of the NAS is full, it answers the number of another job of that queue. Its end is waited
    /// for then, and the job is started again.
    pub async fn run<R: JobRequest>(&self, request: &R) -> Result<(), Error> {
        let queue = request.permits().map(|_| self.permitting());
        let _place = match &queue {
            Some(queue) => queue.acquire().await.ok(),
            None => None,
        };
        loop {
            let link = self.link().await?;
            link.report_jobs().await;
            // Its end may be reported before its number is answered.
            let events = link.session.jobs();
            let job = self.start_on(&link, request).await?;
            match self.follow_from(link, job, Some(events)).await? {
                Followed::Ours(outcome) => return outcome,
                Followed::Another => tracing::debug!("the queue of permissions is full"),
            }
        }
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
            Ok(answered) => {
                let number = answered.read::<i64>(NUMBER);
                let number = number
                    .map_err(|_| Error::protocol("the NAS answers no job number").of(&method))?;
                Ok(JobId {
                    number,
                    request: id,
                    method,
                    path: request.permits().map(str::to_owned),
                })
            }
            Err(error) if error.kind() == Kind::UnknownOutcome => {
                let link = self.link_again(&error).await?;
                let path = request.permits().map(str::to_owned);
                let sent = JobId {
                    number: 0,
                    request: id,
                    method,
                    path,
                };
                let found = self.find(&link, &sent).await;
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
        match self.follow_from(link, job.clone(), None).await? {
            Followed::Ours(outcome) => outcome,
            Followed::Another => Err(unknown(job)),
        }
    }

    /// Follows a job from socket to socket. `events` were listened to since before its start.
    async fn follow_from(
        &self,
        mut link: Arc<Link>,
        mut job: JobId,
        mut events: Option<broadcast::Receiver<Value>>,
    ) -> Result<Followed, Error> {
        loop {
            let outcome = self.follow_on(&link, &mut job, events.take()).await;
            match outcome {
                Ok(Followed::Ours(outcome)) => {
                    let outcome = outcome.map_err(|error| error.of(&job.method));
                    return Ok(Followed::Ours(outcome));
                }
                Ok(Followed::Another) => return Ok(Followed::Another),
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
    ) -> Result<Followed, Error> {
        // Who listened from the start need not ask first.
        let mut informed = events.is_some() && link.report_jobs().await;
        let mut events = events.unwrap_or_else(|| link.session.jobs());
        link.report_jobs().await;
        loop {
            if !informed {
                match self.ask(link, job).await? {
                    Seen::Running => {}
                    Seen::Done(outcome) => return Ok(outcome),
                    Seen::Gone => match self.find(link, job).await? {
                        Some(found) if found != *job => {
                            *job = found;
                            continue;
                        }
                        _ => return Ok(Followed::Ours(Err(unknown(job)))),
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
        Ok(ours.map_or(Seen::Gone, |entry| job.read(entry)))
    }

    /// Looks for the job that a request has made. A full queue notes the request at the job of another path.
    async fn find(&self, link: &Link, job: &JobId) -> Result<Option<JobId>, Error> {
        let newest = json!({"order_by": ["-id"], "limit": SEARCHED});
        let of_method = json!([["method", "=", job.method]]);
        let found = self.jobs(link, &of_method, &newest).await?;
        let made = |entry: &&Value| made_by(entry, &job.request) == Some(true);
        let ours = found.iter().filter(made).find(|entry| job.permits(entry));
        let number = ours.and_then(|entry| entry["id"].as_i64());
        Ok(number.map(|number| JobId {
            number,
            ..job.clone()
        }))
    }

    /// The places in the queue of permissions of this NAS.
    fn permitting(&self) -> Arc<Semaphore> {
        let mut queues = QUEUES.lock().unwrap_or_else(PoisonError::into_inner);
        let queue = queues.entry(self.address());
        let new = || Arc::new(Semaphore::new(PERMITTING));
        Arc::clone(queue.or_insert_with(new))
    }

    async fn jobs(
        &self,
        link: &Link,
        filters: &Value,
        options: &Value,
    ) -> Result<Vec<Value>, Error> {
        let mut options = options.clone();
        options["select"] = json!(READ);
        let call = Call::new(JOBS, vec![filters.clone(), options]);
        let answered = self.send(link, None, &call).await?;
        let jobs = answered.read(LIST);
        jobs.map_err(|_| Error::protocol("the NAS answers no list of jobs").of(JOBS))
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
            path: None,
        })
    }

    /// Whether an entry of the list of jobs is this job.
    ///
    /// On the socket that started it the number is enough: a restart ends the socket. It also must
    /// be, because the NAS may have answered the number of an equal job that was queued already.
    /// Elsewhere the request must be ours; generations that do not name it leave only the method.
    ///
    /// The job of another path whose number was answered instead may be of another method, too.
    fn is(&self, entry: &Value, same_socket: bool) -> bool {
        let ours = || made_by(entry, &self.request).unwrap_or(true);
        let method = entry["method"] == self.method.as_str() || self.path.is_some();
        method && (same_socket || ours())
    }

    /// Whether an entry is a job of this method and, where that counts, of this path. What hides its arguments
    /// leaves only the method.
    fn permits(&self, entry: &Value) -> bool {
        let path = entry["arguments"][0]["path"].as_str();
        let same = |ours: &String| path.is_none_or(|path| path == ours);
        entry["method"] == self.method.as_str() && self.path.as_ref().is_none_or(same)
    }

    /// The state of the job, from an entry of its number.
    fn read(&self, entry: &Value) -> Seen {
        match read(entry) {
            Seen::Done(_) if !self.permits(entry) => Seen::Done(Followed::Another),
            seen => seen,
        }
    }
}

impl fmt::Display for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}", self.number, self.request, self.method)
    }
}

/// Waits until an event reports the end of the job; `None` if events were lost.
async fn end_of(events: &mut broadcast::Receiver<Value>, job: &JobId) -> Option<Followed> {
    loop {
        match events.recv().await {
            // Its socket has seen no restart.
            Ok(entry) if entry["id"] == job.number && job.is(&entry, true) => {
                if let Seen::Done(outcome) = job.read(&entry) {
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
        "SUCCESS" => done(Ok(())),
        "FAILED" => done(Err(Error::from_job(text, &entry["exc_info"]))),
        "ABORTED" => done(Err(Error::new(
            Kind::Refused,
            format!("the job was aborted {text}"),
        ))),
        _ => Seen::Running,
    }
}

fn done(outcome: Result<(), Error>) -> Seen {
    Seen::Done(Followed::Ours(outcome))
}

/// The part of an event about a job that is kept: the fields that are read of jobs, and no more of it than jobs have.
pub(crate) fn of_event(fields: Value) -> Option<Value> {
    let Value::Object(mut fields) = fields else {
        return None;
    };
    fields.retain(|name, _| READ.contains(&name.as_str()));
    let fields = Value::Object(fields);
    (size(&fields) <= MOST).then_some(fields)
}

/// The number of values in a value.
fn size(value: &Value) -> usize {
    let inner: usize = match value {
        Value::Array(all) => all.iter().map(size).sum(),
        Value::Object(all) => all.values().map(size).sum(),
        _ => 0,
    };
    inner + 1
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
            path: None,
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

    #[test]
    fn the_job_of_another_path_is_not_ours_whatever_its_number() {
        let job = JobId {
            path: Some("/mnt/a".to_owned()),
            ..job()
        };
        let entry = |method: &str, path: &str| {
            json!({
                "id": 7, "method": method, "state": "SUCCESS", "message_ids": ["csi-1-2"],
                "arguments": [{"path": path}],
            })
        };
        let ours = |entry: &Value| matches!(job.read(entry), Seen::Done(Followed::Ours(Ok(()))));
        assert!(ours(&entry("filesystem.setperm", "/mnt/a")));
        for other in [
            entry("filesystem.setperm", "/mnt/b"),
            entry("filesystem.chown", "/mnt/a"),
        ] {
            assert!(job.is(&other, true));
            assert!(matches!(job.read(&other), Seen::Done(Followed::Another)));
        }
        let hidden = json!({"id": 7, "method": "filesystem.setperm", "state": "SUCCESS"});
        assert!(ours(&hidden));
    }

    #[test]
    fn an_event_of_more_than_a_job_has_is_not_kept() {
        let kept = of_event(json!({"id": 7, "state": "RUNNING", "progress": {"percent": 1}}));
        assert_eq!(kept, Some(json!({"id": 7, "state": "RUNNING"})));
        assert_eq!(of_event(json!({"arguments": vec![0; 2 * MOST]})), None);
    }
}
