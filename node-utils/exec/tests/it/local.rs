//! The local runner, with real processes.

use std::fs;
use std::path::Path;
use std::time::Duration;

use exec::{Accept, Command, Effect, Local, Program, RunError, Runner, Status, Step, Variable};
use tokio::time::{Instant, timeout};

const SH: Program = Program::constant("sh");

/// Long enough that a test which waits for it has failed.
const SOON: Duration = Duration::from_secs(20);

fn sh(script: &str) -> Command {
    Command::new(SH).arg("-c").arg(script).within(SOON)
}

/// A text that stands in the arguments of no process but those of one test of this run: another run of
/// these tests may go on beside it. `sleep` takes it for a number.
fn unique(test: u32) -> String {
    format!("100.{:07}{test}", std::process::id())
}

/// The live processes that were started with this text in an argument.
fn processes_with(text: &str) -> Vec<u32> {
    let entries = fs::read_dir("/proc").unwrap();
    let pids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok());
    let matching = pids.filter(|pid| {
        // A zombie has no arguments any more, so it is not counted.
        fs::read(format!("/proc/{pid}/cmdline"))
            .is_ok_and(|line| String::from_utf8_lossy(&line).contains(text))
    });
    matching.filter(|pid| *pid != std::process::id()).collect()
}

async fn until(what: &str, condition: impl Fn() -> bool) {
    let waited = timeout(SOON, async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    });
    waited
        .await
        .unwrap_or_else(|_| panic!("waited in vain until {what}"));
}

#[tokio::test]
async fn a_command_gets_its_arguments_unchanged_and_its_status_is_seen() {
    let command =
        sh("printf '%s|' \"$@\"; echo oops >&2; exit 3").args(["sh", "a b", "$(id)", "'", ""]);
    let output = Local::new().run(&command).await.unwrap();
    assert_eq!(output.status, Status::Exit(3));
    assert_eq!(output.text(), "a b|$(id)|'||");
    assert_eq!(output.stderr, b"oops\n");
}

#[tokio::test]
async fn the_environment_is_ours_alone() {
    let command = Command::new(Program::constant("env"))
        .env(Variable::constant("ADDED"), "one")
        .env(Variable::constant("LC_ALL"), "C");
    let output = Local::new().run_checked(&command).await.unwrap();
    let mut lines: Vec<String> = output.text().lines().map(str::to_owned).collect();
    lines.sort();
    let path = format!("PATH={}", exec::DIRECTORIES.join(":"));
    assert_eq!(lines, ["ADDED=one".to_owned(), "LC_ALL=C".to_owned(), path]);
}

#[tokio::test]
async fn without_input_a_command_reads_nothing() {
    let output = Local::new()
        .run_checked(&Command::new(Program::constant("cat")))
        .await
        .unwrap();
    assert_eq!(output.stdout, b"");
}

#[tokio::test]
async fn a_large_input_flows_while_the_output_flows_back() {
    let input: Vec<u8> = (0..4 << 20)
        .map(|at: u32| at.to_le_bytes()[at as usize % 3])
        .collect();
    let command = Command::new(Program::constant("cat"))
        .stdin(input.clone())
        .within(SOON);
    let output = Local::new().run_checked(&command).await.unwrap();
    assert!(
        output.stdout == input,
        "{} bytes came back",
        output.stdout.len()
    );
}

#[tokio::test]
async fn a_command_that_does_not_read_its_input_is_not_a_failure() {
    let command = sh("exit 0").stdin(vec![b'x'; 4 << 20]);
    assert_eq!(
        Local::new().run(&command).await.unwrap().status,
        Status::Exit(0)
    );
}

#[tokio::test]
async fn a_child_dies_of_sigpipe_as_it_would_in_a_shell() {
    let command = sh("yes | head -n 1");
    assert_eq!(
        Local::new().run_checked(&command).await.unwrap().text(),
        "y\n"
    );
}

#[tokio::test]
async fn at_the_deadline_the_whole_group_is_killed() {
    // The number marks the processes of this test.
    let seconds = unique(1);
    let command = sh(&format!("sleep {seconds} & exec sleep {seconds}"));
    let command = command.within(Duration::from_millis(300));
    let started = Instant::now();
    let error = Local::new().run(&command).await.unwrap_err();
    assert!(
        matches!(
            error,
            RunError::Deadline {
                still_running: false,
                ..
            }
        ),
        "{error:?}"
    );
    assert!(!error.outcome_known());
    assert_eq!(error.effect(), Effect::Possible);
    assert!(
        started.elapsed() < Duration::from_mins(1),
        "{:?}",
        started.elapsed()
    );
    until("no process is left", || processes_with(&seconds).is_empty()).await;
}

#[tokio::test]
async fn a_call_that_is_dropped_kills_the_whole_group() {
    let seconds = unique(2);
    let command = sh(&format!("sleep {seconds} & exec sleep {seconds}"));
    let runner = Local::new();
    {
        let mut call = std::pin::pin!(runner.run(&command));
        let both_run = until("both run", || processes_with(&seconds).len() >= 2);
        tokio::select! {
            ended = &mut call => panic!("{ended:?}"),
            () = both_run => {}
        }
    }
    until("no process is left", || processes_with(&seconds).is_empty()).await;
}

#[tokio::test]
async fn a_grandchild_that_holds_the_pipes_does_not_hold_the_call_nor_dies_of_its_end() {
    let folder = tempfile::tempdir().unwrap();
    let gate = folder.path().join("gate");
    let done = folder.path().join("done");
    // It talks after the command has ended, as a FUSE daemon would, and must survive that.
    let script = "(until [ -e \"$1\" ]; do sleep 0.01; done; echo late; echo late >&2; : >\"$2\") & echo early";
    let path = |path: &Path| path.to_str().unwrap().to_owned();
    let command = sh(script).args(["sh".to_owned(), path(&gate), path(&done)]);
    let output = Local::new().run_checked(&command).await.unwrap();
    assert_eq!(output.text(), "early\n");
    assert!(!done.exists());
    fs::write(&gate, "").unwrap();
    until("the grandchild has finished its work", || done.exists()).await;
}

#[tokio::test]
async fn a_grandchild_that_never_stops_talking_does_not_hold_the_call() {
    let word = unique(3);
    let command = sh(&format!("yes {word} & sleep 0.05; exit 7"));
    let ended = timeout(SOON, Local::new().run(&command))
        .await
        .expect("the call returned");
    // Over the cap or not is a race; both are answers, and neither is success.
    assert!(ended.map_or(true, |output| output.status == Status::Exit(7)));
    for pid in processes_with(&word) {
        let kill = Command::new(Program::constant("kill"))
            .arg("-9")
            .arg(pid.to_string());
        // It may be gone already.
        let _ = Local::new().perform(&kill).await;
    }
    until("it is gone", || processes_with(&word).is_empty()).await;
}

#[tokio::test]
async fn output_over_the_cap_kills_the_command_and_is_no_answer() {
    let word = unique(4);
    let command = sh(&format!("exec yes {word}")).with_output_cap(100_000);
    let error = Local::new().run(&command).await.unwrap_err();
    assert!(
        matches!(error, RunError::OutputTooLarge { cap: 100_000, .. }),
        "{error:?}"
    );
    assert!(!error.outcome_known());
    until("it is gone", || processes_with(&word).is_empty()).await;
}

#[tokio::test]
async fn output_of_exactly_the_cap_is_an_answer_and_one_byte_more_is_not() {
    let zeros = |count: &str| {
        sh("head -c \"$1\" /dev/zero")
            .args(["sh", count])
            .with_output_cap(70_000)
    };
    let output = Local::new().run_checked(&zeros("70000")).await.unwrap();
    assert_eq!(output.stdout.len(), 70_000);
    let error = Local::new().run(&zeros("70001")).await.unwrap_err();
    assert!(
        matches!(error, RunError::OutputTooLarge { .. }),
        "{error:?}"
    );
}

#[tokio::test]
async fn of_an_endless_complaint_the_end_is_kept_and_the_command_goes_on() {
    let command = sh("yes complaint | head -c 20000000 >&2; echo last words >&2; exit 1");
    let error = Local::new().run_checked(&command).await.unwrap_err();
    assert!(
        error.stderr().ends_with("last words"),
        "{}",
        error.stderr().len()
    );
    assert!(error.stderr().len() <= 4096);
}

#[tokio::test]
async fn a_missing_program_is_an_error_that_names_it_and_had_no_effect() {
    for missing in ["no-such-program", "/no/such/program"] {
        let command = Command::new(Program::constant(missing));
        let error = Local::new().run(&command).await.unwrap_err();
        assert!(matches!(error, RunError::NotFound { .. }), "{error:?}");
        assert!(error.to_string().contains(missing));
        assert_eq!(error.effect(), Effect::None);
    }
}

#[tokio::test]
async fn a_file_that_is_no_program_is_an_error_not_a_panic() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_str().unwrap();
    // Written by a child: see "text file busy" in execve(2).
    let write =
        r#"cd "$1" && printf '\177ELF\1\2\3' >elf && echo '#!/no/such/interpreter' >script"#;
    let chmod = format!("{write} && chmod 755 elf script");
    Local::new()
        .perform(&sh(&chmod).args(["sh", path]))
        .await
        .unwrap();
    let runner = Local::searching([path]);
    let error = runner
        .run(&Command::new(Program::constant("elf")))
        .await
        .unwrap_err();
    assert!(matches!(error, RunError::Spawn { .. }), "{error:?}");
    assert_eq!(error.effect(), Effect::None);
    let error = runner
        .run(&Command::new(Program::constant("script")))
        .await
        .unwrap_err();
    assert!(matches!(error, RunError::NotFound { .. }), "{error:?}");
}

#[tokio::test]
async fn a_nul_byte_is_refused_before_anything_starts() {
    let error = Local::new()
        .run(&sh("exit 0").arg("a\0b"))
        .await
        .unwrap_err();
    assert!(matches!(error, RunError::Invalid { .. }), "{error:?}");
    assert_eq!(error.effect(), Effect::None);
}

#[tokio::test]
async fn a_signal_is_a_failure_even_where_any_exit_code_is_an_answer() {
    let command = sh("kill -TERM $$").accepting(Accept::AnyExit);
    let output = Local::new().run(&command).await.unwrap();
    assert_eq!(output.status, Status::Signal(15));
    let error = output.check(&command).unwrap_err();
    assert!(error.outcome_known());
    assert_eq!(error.exit_code(), None);
}

#[tokio::test]
async fn accepted_exit_codes_are_answers() {
    let two = |accept| sh("exit 2").accepting(accept);
    let local = Local::new();
    assert!(local.perform(&two(Accept::Success)).await.is_err());
    assert!(local.perform(&two(Accept::Codes(vec![1]))).await.is_err());
    assert!(local.perform(&two(Accept::Codes(vec![2]))).await.is_ok());
    assert!(local.perform(&two(Accept::AnyExit)).await.is_ok());
}

#[tokio::test]
async fn no_error_shows_a_secret_that_the_tool_repeats() {
    let secret = "chap-s3cret-\u{e9}";
    let script =
        "echo \"bad $1 and $TOKEN and $(cat)\" >&2; [ \"$2\" = sleep ] && exec sleep 100; exit 1";
    for (behaviour, within) in [("exit", SOON), ("sleep", Duration::from_millis(200))] {
        let command = sh(script)
            .arg("sh")
            .secret_arg(secret.into())
            .arg(behaviour)
            .secret_env(Variable::constant("TOKEN"), "token-s3cret".into())
            .secret_stdin(b"input-s3cret\n".to_vec())
            .within(within);
        let error = Local::new().run_checked(&command).await.unwrap_err();
        let shown = format!("{error} {error:?}");
        assert!(!shown.contains("s3cret"), "{shown}");
        if behaviour == "exit" {
            assert_eq!(error.stderr(), "bad **** and **** and ****");
        }
    }
}

#[tokio::test]
async fn a_secret_at_the_cut_of_a_long_complaint_leaves_no_end_behind() {
    let secret = "0123456789abcdef";
    // The last 4 KiB begin within the secret.
    let script = "printf %s \"$1\" >&2; head -c 4090 /dev/zero | tr '\\0' z >&2; exit 1";
    let command = sh(script).arg("sh").secret_arg(secret.into());
    let error = Local::new().run_checked(&command).await.unwrap_err();
    assert!(
        !error.stderr().contains("abcdef"),
        "{}",
        &error.stderr()[..32]
    );
    assert!(error.stderr().ends_with("zzz"));
}

#[tokio::test]
async fn a_list_with_a_command_that_hangs_is_unknown_there_and_not_started_after() {
    let commands = [
        sh("exit 0"),
        sh("exec sleep 100").within(Duration::from_millis(200)),
        sh("exit 0"),
    ];
    let batch = Local::new().run_all(&commands).await;
    assert!(
        matches!(
            batch.steps(),
            [Step::Done(_), Step::Unknown, Step::NotStarted]
        ),
        "{batch:?}"
    );
    assert!(matches!(batch.cut(), Some(RunError::Deadline { .. })));
    let error = batch.into_outputs().unwrap_err();
    assert_eq!((error.step, error.of), (1, 3));
}

#[tokio::test]
async fn many_commands_at_once_do_not_mix_their_output() {
    let calls = (0..40).map(|number: u32| {
        tokio::spawn(async move {
            let command = sh("sleep 0.01; echo \"$1\"").args(["sh".to_owned(), number.to_string()]);
            let output = Local::new().run_checked(&command).await.unwrap();
            assert_eq!(output.text(), format!("{number}\n"));
        })
    });
    for call in calls.collect::<Vec<_>>() {
        call.await.unwrap();
    }
}
