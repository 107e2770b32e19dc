//! Runners around runners: what they count and what they hold back.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use exec::stream::InputAborted;
use exec::{
    Command, InputStream, Local, Observation, Observed, Observer, OutputStream, Program, RunError,
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

/// Gives its chunks, one after another.
struct Chunks(Vec<&'static str>);

#[async_trait::async_trait]
impl InputStream for Chunks {
    async fn next(&mut self) -> Result<Option<Vec<u8>>, InputAborted> {
        let next = (!self.0.is_empty()).then(|| self.0.remove(0));
        Ok(next.map(|chunk| chunk.as_bytes().to_vec()))
    }
}

async fn drain(mut stream: Box<dyn OutputStream>) -> Result<Vec<u8>, RunError> {
    let mut output = Vec::new();
    while let Some(chunk) = stream.next().await? {
        output.extend(chunk);
    }
    Ok(output)
}

#[tokio::test]
async fn an_observed_runner_carries_streams_and_reports_each_once_it_has_ended() {
    let recorder = Arc::new(Recorder::default());
    let runner: Arc<dyn Runner> = Arc::new(Observed::new(Local::new(), Arc::clone(&recorder)));
    let seen = || recorder.0.lock().unwrap().clone();

    let stream = runner.stream_output(&sh("echo some")).await.unwrap();
    assert_eq!(seen(), [], "it has not ended");
    assert_eq!(drain(stream).await.unwrap(), b"some\n");
    let stream = runner.stream_output(&sh("echo x; exit 1")).await.unwrap();
    drain(stream).await.unwrap_err();
    let missing = Command::new(Program::constant("no-such-program"));
    runner.stream_output(&missing).await.unwrap_err();
    drop(runner.stream_output(&sh("exec sleep 100")).await.unwrap());

    let mut input = Chunks(vec!["a", "b"]);
    let output = runner.run_with_input(&sh("exec cat"), &mut input).await;
    assert_eq!(output.unwrap().text(), "ab");
    let expected = [
        RunOutcome::Done,
        RunOutcome::Failed,
        RunOutcome::NotStarted,
        RunOutcome::Unknown,
        RunOutcome::Done,
    ];
    assert_eq!(seen(), expected.map(|outcome| (1, outcome)));
}
