//! Runners around runners: what they count and what they hold back.

use std::fs;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use exec::{
    Command, Effect, Limited, Local, Observation, Observed, Observer, Program, RunError,
    RunOutcome, Runner,
};

fn sh(script: &str) -> Command {
    Command::new(Program::constant("sh")).arg("-c").arg(script)
}

#[derive(Debug, Default)]
struct Recorder(Mutex<Vec<(usize, RunOutcome)>>);

impl Observer for Recorder {
    fn observe(&self, observation: &Observation<'_>) {
        self.0
            .lock()
            .unwrap()
            .push((observation.commands.len(), observation.outcome));
    }
}

#[tokio::test]
async fn an_observer_hears_of_every_exchange_and_how_it_ended() {
    let recorder = Arc::new(Recorder::default());
    let runner = Observed::new(Local::new(), Arc::clone(&recorder));
    runner.perform(&sh("exit 0")).await.unwrap();
    runner.perform(&sh("exit 1")).await.unwrap_err();
    runner
        .perform(&Command::new(Program::constant("no-such-program")))
        .await
        .unwrap_err();
    let hangs = sh("exec sleep 100").within(Duration::from_millis(50));
    runner.perform(&hangs).await.unwrap_err();
    let _ = runner.run_all(&[sh("exit 0"), hangs]).await;
    let recorder = recorder.0.lock().unwrap().clone();
    let expected = [
        (1, RunOutcome::Done),
        (1, RunOutcome::Failed),
        (1, RunOutcome::NotStarted),
        (1, RunOutcome::Unknown),
        (2, RunOutcome::Unknown),
    ];
    assert_eq!(recorder, expected);
}

#[tokio::test]
async fn a_limited_runner_runs_no_more_at_once_and_gives_up_without_an_effect() {
    let folder = tempfile::tempdir().unwrap();
    let gate = folder.path().join("gate").to_str().unwrap().to_owned();
    let runner = Limited::new(Local::new(), 1);
    let first = {
        let (runner, gate) = (runner.clone(), gate.clone());
        let wait = "until [ -e \"$1\" ]; do sleep 0.01; done";
        tokio::spawn(async move {
            runner
                .perform(&sh(wait).args(["sh".to_owned(), gate]))
                .await
        })
    };
    let second = sh("exit 0").within(Duration::from_millis(200));
    // The first may not have its turn yet; it has it once the second finds none.
    let error = loop {
        match runner.perform(&second).await {
            // On a busy machine it may have its turn and too little time.
            Ok(()) | Err(RunError::Deadline { .. }) => tokio::task::yield_now().await,
            Err(error) => break error,
        }
    };
    assert!(matches!(error, RunError::QueueTimeout { .. }), "{error:?}");
    assert_eq!(error.effect(), Effect::None);
    fs::write(&gate, "").unwrap();
    first.await.unwrap().unwrap();
    runner.perform(&sh("exit 0")).await.unwrap();
}
