//! Jobs: their order, their locks, their events (`middlewared/job.py`).

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::task::AbortHandle;

use crate::failure::{EBUSY, Failure};
use crate::faults::Action;
use crate::methods::{self, Call};
use crate::nas::Nas;
use crate::validate;

/// Jobs that may wait for one lock.
const QUEUE: usize = 5;

/// All jobs since the start of the middleware.
#[derive(Debug, Default)]
pub(crate) struct Jobs {
    inner: Mutex<Inner>,
    changes: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct Inner {
    last: i64,
    jobs: BTreeMap<i64, Job>,
    locks: BTreeMap<String, VecDeque<i64>>,
}

#[derive(Debug)]
struct Job {
    entry: Value,
    owner: String,
    lock: Option<String>,
    outcome: Option<Result<Value, Failure>>,
    task: Option<AbortHandle>,
}

/// The job that a method runs as.
#[derive(Clone)]
pub(crate) struct Running {
    pub(crate) id: i64,
    nas: Arc<Nas>,
}

impl Running {
    /// Tells how far the job is.
    pub(crate) fn progress(&self, percent: u64, description: &str) {
        let progress = json!({"percent": percent, "description": description, "extra": null});
        self.nas.jobs.change(&self.nas, self.id, true, |entry| {
            entry["progress"] = progress;
        });
    }
}

impl Jobs {
    /// Queues a job; the event that it was added is sent before this returns.
    pub(crate) fn start(
        &self,
        call: Call,
        message_id: &Value,
        action: Option<Action>,
    ) -> Result<i64, Failure> {
        let nas = Arc::clone(&call.nas);
        let lock = call
            .method
            .job
            .as_ref()
            .and_then(|lock| lock.key(&call.params));
        let owner = call
            .session
            .login()
            .map(|login| login.user)
            .unwrap_or_default();
        let (id, entry) = {
            let mut inner = self.lock();
            let limited = call
                .session
                .login()
                .is_some_and(|login| login.roles.is_some());
            let own = limited.then_some(owner.as_str());
            if let Some(queue) = lock.as_ref().and_then(|lock| inner.full_queue(lock)) {
                let queued = queue.iter().rev().find(|id| inner.may_see(**id, own));
                let Some(queued) = queued.copied() else {
                    let text = "This job is already being performed by another user";
                    return Err(Failure::call(EBUSY, text));
                };
                drop(inner);
                // The last job that waits is taken for this one, whatever its arguments are.
                self.change(&nas, queued, true, |entry| {
                    if let Value::Array(ids) = &mut entry["message_ids"] {
                        ids.push(message_id.clone());
                    }
                });
                return Ok(queued);
            }
            inner.last += 1;
            let id = inner.last;
            let entry = entry(id, &call, message_id, &nas);
            if let Some(lock) = &lock {
                inner.locks.entry(lock.clone()).or_default().push_back(id);
            }
            let job = Job {
                entry: entry.clone(),
                owner: owner.clone(),
                lock,
                outcome: None,
                task: None,
            };
            inner.jobs.insert(id, job);
            inner.forget_old(nas.faults.settings().job_history);
            (id, entry)
        };
        if action != Some(Action::JobEventsLost) {
            nas.emit(
                "added",
                "core.get_jobs",
                &json!(id),
                Some(&entry),
                Some(&owner),
            );
        }
        let task = tokio::spawn(work(nas, call, id, action));
        if let Some(job) = self.lock().jobs.get_mut(&id) {
            job.task = Some(task.abort_handle());
        }
        Ok(id)
    }

    /// The result of a job, once it has one.
    pub(crate) async fn wait(&self, id: i64) -> Result<Value, Failure> {
        let mut changes = self.changes.subscribe();
        loop {
            match self.lock().jobs.get(&id) {
                None => return Err(missing(id)),
                Some(Job {
                    outcome: Some(outcome),
                    ..
                }) => return outcome.clone(),
                Some(_) => {}
            }
            if changes.changed().await.is_err() {
                return Err(missing(id));
            }
        }
    }

    /// The entries that a user may see.
    pub(crate) fn entries(&self, owner: Option<&str>) -> Vec<Value> {
        let inner = self.lock();
        let seen = inner
            .jobs
            .values()
            .filter(|job| owner.is_none_or(|owner| job.owner == owner));
        seen.map(|job| job.entry.clone()).collect()
    }

    pub(crate) fn abort(&self, nas: &Nas, id: i64) -> Result<(), Failure> {
        let running = match self.lock().jobs.get(&id) {
            None => return Err(missing(id)),
            Some(job) => job.outcome.is_none(),
        };
        if running {
            if let Some(task) = self
                .lock()
                .jobs
                .get_mut(&id)
                .and_then(|job| job.task.take())
            {
                task.abort();
            }
            self.finish(nas, id, Err(aborted()), true);
        }
        Ok(())
    }

    /// Removes a job from the list, as the middleware does with the oldest ones.
    pub(crate) fn evict(&self, id: i64) {
        self.lock().jobs.remove(&id);
    }

    /// The middleware restarts: jobs end, and ids start again.
    pub(crate) fn clear(&self) {
        let jobs = std::mem::take(&mut *self.lock()).jobs;
        for task in jobs.into_values().filter_map(|job| job.task) {
            task.abort();
        }
        self.changes.send_modify(|count| *count += 1);
    }

    fn change(&self, nas: &Nas, id: i64, event: bool, change: impl FnOnce(&mut Value)) {
        let changed = self.lock().jobs.get_mut(&id).map(|job| {
            change(&mut job.entry);
            (job.entry.clone(), job.owner.clone())
        });
        if let Some((entry, owner)) = changed.filter(|_| event) {
            nas.emit(
                "changed",
                "core.get_jobs",
                &json!(id),
                Some(&entry),
                Some(&owner),
            );
        }
    }

    fn finish(&self, nas: &Nas, id: i64, outcome: Result<Value, Failure>, event: bool) {
        self.change(nas, id, event, |entry| {
            entry["time_finished"] = nas.clock.date();
            match &outcome {
                Ok(result) => {
                    entry["state"] = json!("SUCCESS");
                    entry["result"] = result.clone();
                    entry["progress"]["percent"] = json!(100);
                }
                Err(failure) if *failure == aborted() => {
                    entry["state"] = json!("ABORTED");
                }
                Err(failure) => {
                    entry["state"] = json!("FAILED");
                    entry["error"] = json!(failure.reason());
                    entry["exception"] =
                        json!(format!("{}: {}", failure.class(), failure.reason()));
                    entry["exc_info"] = failure.job();
                }
            }
        });
        let mut inner = self.lock();
        if let Some(job) = inner.jobs.get_mut(&id) {
            job.outcome = Some(outcome);
            if let Some(lock) = job.lock.clone()
                && let Some(queue) = inner.locks.get_mut(&lock)
            {
                queue.retain(|each| *each != id);
            }
        }
        drop(inner);
        self.changes.send_modify(|count| *count += 1);
    }

    async fn turn(&self, id: i64) {
        let mut changes = self.changes.subscribe();
        loop {
            if self.lock().is_first(id) || changes.changed().await.is_err() {
                return;
            }
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    /// The jobs that wait for a lock, if there are as many as may.
    fn full_queue(&self, lock: &str) -> Option<Vec<i64>> {
        // The first one runs; the others wait.
        let queue = self.locks.get(lock)?.iter().skip(1);
        let waiting: Vec<i64> = queue.copied().collect();
        (waiting.len() >= QUEUE).then_some(waiting)
    }

    fn may_see(&self, id: i64, owner: Option<&str>) -> bool {
        let job = self.jobs.get(&id);
        job.is_some_and(|job| owner.is_none_or(|owner| job.owner == owner))
    }

    fn is_first(&self, id: i64) -> bool {
        let lock = self.jobs.get(&id).and_then(|job| job.lock.as_ref());
        lock.and_then(|lock| self.locks.get(lock))
            .is_none_or(|queue| queue.front() == Some(&id))
    }

    fn forget_old(&mut self, keep: usize) {
        while self.jobs.len() > keep {
            let oldest = self
                .jobs
                .iter()
                .find(|(_, job)| job.outcome.is_some())
                .map(|(id, _)| *id);
            let Some(oldest) = oldest else { return };
            self.jobs.remove(&oldest);
        }
    }
}

async fn work(nas: Arc<Nas>, call: Call, id: i64, action: Option<Action>) {
    let jobs = &nas.jobs;
    jobs.turn(id).await;
    let silent = action == Some(Action::JobEventsLost);
    let shows_running = !silent && action != Some(Action::JobEventWithoutRunning);
    jobs.change(&nas, id, shows_running, |entry| {
        entry["state"] = json!("RUNNING");
    });
    if action == Some(Action::JobHold) {
        nas.faults.hold().await;
    }
    let running = Running {
        id,
        nas: Arc::clone(&nas),
    };
    let outcome = match &action {
        Some(Action::JobFails { errno, reason }) => Err(Failure::call(*errno, reason)),
        Some(Action::JobAborts) => Err(aborted()),
        _ => match validate::arguments(call.generation, call.method, &call.params) {
            Ok(params) => {
                methods::run(Call {
                    params,
                    job: Some(running),
                    ..call
                })
                .await
            }
            Err(failure) => Err(failure),
        },
    };
    if action == Some(Action::JobResultLost) {
        jobs.change(&nas, id, false, |entry| {
            entry["result_encoding_error"] =
                json!("Object of type object is not JSON serializable");
        });
        jobs.finish(&nas, id, Ok(Value::Null), true);
        return;
    }
    jobs.finish(&nas, id, outcome, !silent);
    if action == Some(Action::JobEventTwice) {
        jobs.change(&nas, id, true, |_| {});
    }
    if action == Some(Action::JobEvicted) {
        jobs.evict(id);
    }
}

/// The fields and their order of meaning were recorded on 25.10.6.
fn entry(id: i64, call: &Call, message_id: &Value, nas: &Nas) -> Value {
    let login = call.session.login();
    let kind = if login.as_ref().is_some_and(|login| login.key.is_some()) {
        "API_KEY"
    } else {
        "LOGIN_PASSWORD"
    };
    json!({
        "id": id,
        "message_ids": [message_id],
        "method": call.method.name,
        "arguments": call.params,
        "transient": false,
        "description": null,
        "abortable": call.method.name == "core.job_wait" || call.method.name == "core.bulk",
        "logs_path": null,
        "logs_excerpt": null,
        "progress": {"percent": 0, "description": "", "extra": null},
        "result": null,
        "result_encoding_error": null,
        "error": null,
        "exception": null,
        "exc_info": null,
        "state": "WAITING",
        "time_started": nas.clock.date(),
        "time_finished": null,
        "credentials": login.map(|login| json!({"type": kind, "data": {"username": login.user}})),
    })
}

fn aborted() -> Failure {
    Failure::Exception {
        class: "CancelledError".to_owned(),
        text: "Job was aborted".to_owned(),
    }
}

pub(crate) fn missing(id: i64) -> Failure {
    Failure::not_found(None, format!("Job with id {id} does not exist"))
}
