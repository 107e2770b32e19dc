//! Streams against a real OpenSSH server.

use std::time::Duration;

use async_trait::async_trait;
use driver_ssh::Ssh;
use exec::stream::InputAborted;
use exec::{Command, InputStream, OutputStream, Program, RunError, Runner, Status};

use crate::common::{Sshd, WireTo};

const SH: Program = Program::constant("sh");

fn shell(script: &str) -> Command {
    Command::new(SH).args(["-c", script])
}

/// This many pieces, and then the end or a cut.
struct Pieces(usize, bool);

#[async_trait]
impl InputStream for Pieces {
    async fn next(&mut self) -> Result<Option<Vec<u8>>, InputAborted> {
        match self.0.checked_sub(1) {
            Some(left) => self.0 = left,
            None if self.1 => return Err(InputAborted),
            None => return Ok(None),
        }
        Ok(Some(vec![b'\n'; 100_000]))
    }
}

async fn all(flow: &mut dyn OutputStream) -> Result<Vec<u8>, RunError> {
    let mut bytes = Vec::new();
    while let Some(piece) = flow.next().await? {
        bytes.extend_from_slice(&piece);
    }
    Ok(bytes)
}

#[tokio::test]
async fn what_a_command_prints_comes_whole_and_so_does_its_end() {
    let Some(server) = Sshd::start("") else {
        return;
    };
    let ssh = Ssh::new(server.settings());
    let command = shell("echo noise >&2; head -c 5000000 /dev/zero; printf '%s' \"it's\"");
    let mut flow = ssh.stream_output(&command).await.expect("a stream");
    let bytes = all(&mut *flow).await.expect("all of it");
    assert_eq!(bytes.len(), 5_000_004);
    assert!(bytes.ends_with(b"\0it's"));
    let mut flow = ssh
        .stream_output(&shell("echo x; echo no >&2; exit 3"))
        .await
        .expect("a stream");
    let error = all(&mut *flow).await.expect_err("it failed");
    assert_eq!((error.exit_code(), error.stderr()), (Some(3), "no"));
    let gone = Command::new(Program::constant("omnibus-is-not-there"));
    let mut flow = ssh.stream_output(&gone).await.expect("a stream");
    let error = all(&mut *flow).await.expect_err("it is not there");
    assert!(matches!(error, RunError::NotFound { .. }), "{error:?}");
}

#[tokio::test]
async fn a_command_reads_all_that_it_is_given_and_its_end_is_seen() {
    let Some(server) = Sshd::start("") else {
        return;
    };
    let ssh = Ssh::new(server.settings());
    let output = ssh
        .run_with_input(&shell("wc -c; exit 4"), &mut Pieces(30, false))
        .await;
    let output = output.expect("an end");
    assert_eq!(output.status, Status::Exit(4));
    assert_eq!(output.text().trim(), "3000000");
    let output = ssh
        .run_with_input(&shell("wc -c"), &mut Pieces(3, true))
        .await;
    assert_eq!(output.expect("an end").text().trim(), "300000");
    // One that wants no more says so, and an endless feed does not keep it.
    let endless = &mut Pieces(usize::MAX, false);
    let output = ssh
        .run_with_input(&shell("head -c 5 >/dev/null; exit 7"), endless)
        .await;
    assert_eq!(output.expect("an end").status, Status::Exit(7));
}

#[tokio::test]
async fn a_stream_whose_connection_is_cut_is_no_end_and_one_that_stalls_is_given_up() {
    let Some(server) = Sshd::start("") else {
        return;
    };
    let wire = WireTo::new(server.port()).await;
    let ssh = Ssh::new(server.settings_over(&wire));
    let mut flow = ssh
        .stream_output(&shell("echo x; exec sleep 60"))
        .await
        .expect("a stream");
    assert_eq!(flow.next().await.expect("a piece"), Some(b"x\n".to_vec()));
    wire.cut();
    let error = flow.next().await.expect_err("cut");
    assert!(!error.outcome_known(), "{error:?}");
    let stalls = shell("echo x; exec sleep 60").within(Duration::from_secs(15));
    let mut flow = ssh.stream_output(&stalls).await.expect("a stream");
    flow.next().await.expect("a piece");
    let error = flow.next().await.expect_err("late");
    assert!(matches!(error, RunError::Deadline { .. }), "{error:?}");
}

#[tokio::test]
async fn an_unread_stream_blocks_no_script() {
    let Some(server) = Sshd::start("MaxSessions 2") else {
        return;
    };
    let ssh = Ssh::new(server.settings());
    let endless = shell("while head -c 1000000 /dev/zero; do :; done");
    let mut flows = Vec::new();
    for _ in 0..3 {
        flows.push(ssh.stream_output(&endless).await.expect("a stream"));
    }
    let output = ssh.run_checked(&shell("echo well")).await;
    assert_eq!(output.expect("an answer").text().trim(), "well");
}
