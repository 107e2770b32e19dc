//! The same rules for lists of commands, whether they run one by one or as one script.

use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use exec::script::{Script, Shell};
use exec::testing::{OneByOne, RunOne};
use exec::{
    Accept, Command, Effect, Local, Lock, Locked, Program, RunError, Runner, Status, Step, Variable,
};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

const SH: Program = Program::constant("sh");
const CAT: Program = Program::constant("cat");
const PRINTF: Program = Program::constant("printf");

fn sh(script: &str) -> Command {
    Command::new(SH).arg("-c").arg(script)
}

/// Replaces `sh` by a shell of choice, to try scripts on more than one.
#[derive(Debug)]
struct Through(&'static str, &'static [&'static str]);

#[async_trait::async_trait]
impl RunOne for Through {
    async fn run_one(&self, command: &Command) -> Result<exec::Output, RunError> {
        let shell = Command::new(Program::constant(self.0))
            .args(self.1.iter().copied())
            .secret_stdin(command.input().bytes())
            .within(command.deadline())
            .with_output_cap(command.output_cap());
        Local::new().run(&shell).await
    }
}

/// No test waits for a lock of another one.
static LOCKS: AtomicU32 = AtomicU32::new(0);

/// Every runner that is to keep the rules, and that can be had on this machine.
fn runners() -> Vec<Box<dyn Runner>> {
    let mut runners: Vec<Box<dyn Runner>> =
        vec![Box::new(Local::new()), Box::new(Shell::new(Local::new()))];
    let shells: [(&str, &[&str]); 3] = [
        ("/bin/dash", &["-s"]),
        ("/bin/bash", &["-s"]),
        ("/bin/busybox", &["sh", "-s"]),
    ];
    for (shell, arguments) in shells {
        if Path::new(shell).exists() {
            runners.push(Box::new(Shell::new(OneByOne(Through(shell, arguments)))));
            let lock = Lock::object(&format!(
                "{shell} {}",
                LOCKS.fetch_add(1, Ordering::Relaxed)
            ))
            .within_folder(env!("CARGO_TARGET_TMPDIR"));
            let through = Shell::new(OneByOne(Through(shell, arguments)));
            runners.push(Box::new(Locked::new(through, lock)));
        }
    }
    assert!(runners.len() >= 4, "too few shells to prove anything");
    runners
}

#[tokio::test]
async fn a_list_answers_each_command_with_its_own_output() {
    for runner in runners() {
        let commands = [
            sh("printf 'no end of line'; echo e1 >&2"),
            sh("exit 0"),
            sh("printf '\\n\\n'; printf e3 >&2"),
            Command::new(CAT).stdin("-v a\0b%s\\n'\u{e9}"),
            Command::new(CAT),
            Command::new(PRINTF).args(["%s|", "a b", "", "'\n!$x`id`", "-n"]),
        ];
        let outputs = runner.run_all(&commands).await.into_outputs().unwrap();
        let stdout: Vec<&[u8]> = outputs.iter().map(|output| &output.stdout[..]).collect();
        let expected: [&[u8]; 6] = [
            b"no end of line",
            b"",
            b"\n\n",
            "-v a\0b%s\\n'\u{e9}".as_bytes(),
            b"",
            b"a b||'\n!$x`id`|-n|",
        ];
        assert_eq!(stdout, expected, "{runner:?}");
        let stderr: Vec<&[u8]> = outputs.iter().map(|output| &output.stderr[..]).collect();
        assert_eq!(
            stderr,
            [&b"e1\n"[..], b"", b"e3", b"", b"", b""],
            "{runner:?}"
        );
    }
}

#[tokio::test]
async fn a_script_in_a_list_has_its_own_arguments_and_leaves_nothing_behind() {
    const FIRST: &str = "\
left=behind; cd /usr; set -u; omnibus_left() { echo never; }; exec 6>&1; word=$1; shift
printf '%s,' \"$word\" \"$@\"
case $# in 2) exit 3 ;; esac # nothing after it";
    const SECOND: &str =
        "printf '%s:' \"${left-}\" \"$#\" \"$value\" \"$-\"; omnibus_left 2>/dev/null; cat";
    const VALUE: Variable = Variable::constant("value");
    for runner in runners() {
        let commands = [
            Command::script(FIRST)
                .args(["a b", "it's", "$(id)\n"])
                .accepting(Accept::Codes(vec![3])),
            Command::script(SECOND)
                .env(VALUE, "`id`")
                .stdin("read\0%s")
                .accepting(Accept::AnyExit),
            Command::script("printf '%s' \"${value-}$PWD\"; exit \"$1\"").arg("4"),
            sh("echo never"),
        ];
        let batch = runner.run_all(&commands).await;
        let [
            Step::Done(first),
            Step::Done(second),
            Step::Failed(third),
            Step::NotStarted,
        ] = batch.steps()
        else {
            panic!("{runner:?}: {batch:?}")
        };
        assert_eq!(first.text(), "a b,it's,$(id)\n,", "{runner:?}");
        assert_eq!(first.status, Status::Exit(3), "{runner:?}");
        let said = second.text();
        assert!(said.starts_with(":0:`id`:"), "{runner:?}: {said}");
        assert!(
            !said.contains('u') && said.ends_with("read\0%s"),
            "{runner:?}: {said}"
        );
        assert_eq!(third.exit_code(), Some(4), "{runner:?}");
    }
}

#[tokio::test]
async fn a_script_finds_the_lines_before_it_alone_and_below_a_lock() {
    const SAY: &str =
        "printf '%s:%s:%s\\n' \"$word\" \"$1\" \"$#\"; cat; sh -c 'echo \"${word-}\"'";
    for runner in runners() {
        let lock = LOCKS.fetch_add(1, Ordering::Relaxed);
        let lock = Lock::object(&format!("nested {lock}"))
            .waiting(Duration::from_secs(2))
            .within_folder(env!("CARGO_TARGET_TMPDIR"));
        // A holder of an object lock may take the lock of a stack.
        let stack = Lock::stack("lists").within_folder(env!("CARGO_TARGET_TMPDIR"));
        let say = |word: &str| {
            let lines = format!("word={}\n", exec::quote(word).unwrap());
            Command::script_with_prelude(&lines, SAY).args(["it's $1", ""])
        };
        let commands = [
            say("a 'b'"),
            stack.around_script(&say("c\n%s")),
            stack.around(&say("d")),
        ];
        let list = Script::of(&commands).unwrap();
        let outputs = [
            runner.run_all(&commands).await.into_outputs().unwrap(),
            vec![
                runner
                    .run(&lock.around_script(&list.command()))
                    .await
                    .unwrap(),
            ],
        ];
        let said: Vec<_> = outputs[0]
            .iter()
            .map(|output| String::from_utf8_lossy(&output.stdout).into_owned())
            .collect();
        // What another process finds in its environment is not among it.
        let expected = [
            "a 'b':it's $1:2\n\n",
            "c\n%s:it's $1:2\n\n",
            "d:it's $1:2\n\n",
        ];
        assert_eq!(said, expected, "{runner:?}");
        let all = String::from_utf8_lossy(&outputs[1][0].stdout).into_owned();
        for said in expected {
            assert!(all.contains(said), "{runner:?}: {all}");
        }
    }
}

#[tokio::test]
async fn the_shell_that_runs_a_list_runs_its_scripts_itself() {
    let commands = [
        Command::script("echo $$"),
        Command::script("echo $$; exit 0"),
    ];
    let outputs = Shell::new(Local::new()).run_all(&commands).await;
    let outputs = outputs.into_outputs().unwrap();
    assert_eq!(outputs[0].text(), outputs[1].text());
}

#[tokio::test]
async fn a_list_stops_at_the_first_failure_and_starts_nothing_after_it() {
    for runner in runners() {
        let folder = tempfile::tempdir().unwrap();
        let touch = |name: &str| {
            let path = folder.path().join(name).to_str().unwrap().to_owned();
            Command::new(Program::constant("touch")).arg(path)
        };
        let failing = sh("echo 'dataset s3cret is busy' >&2; exit 1").hiding("s3cret".into());
        let batch = runner
            .run_all(&[touch("first"), failing, touch("third")])
            .await;
        assert!(matches!(
            batch.steps(),
            [Step::Done(_), Step::Failed(_), Step::NotStarted]
        ));
        assert_eq!(batch.effect(), Effect::Possible);
        assert!(folder.path().join("first").exists(), "{runner:?}");
        assert!(!folder.path().join("third").exists(), "{runner:?}");
        let error = batch.into_outputs().unwrap_err();
        assert_eq!((error.step, error.source.exit_code()), (1, Some(1)));
        assert_eq!(error.source.stderr(), "dataset **** is busy");
    }
}

#[tokio::test]
async fn a_list_goes_on_after_an_accepted_exit_code() {
    for runner in runners() {
        let commands = [
            sh("exit 2").accepting(Accept::Codes(vec![2])),
            sh("exit 77").accepting(Accept::AnyExit),
            sh("exit 3").accepting(Accept::Codes(vec![2])),
        ];
        let batch = runner.run_all(&commands).await;
        let steps = batch.steps();
        let Step::Done(two) = &steps[0] else {
            panic!("{runner:?}: {batch:?}")
        };
        assert_eq!(two.status, Status::Exit(2));
        let Step::Done(any) = &steps[1] else {
            panic!("{runner:?}: {batch:?}")
        };
        assert_eq!(any.status, Status::Exit(77));
        assert!(matches!(&steps[2], Step::Failed(error) if error.exit_code() == Some(3)));
    }
}

#[tokio::test]
async fn a_missing_program_in_a_list_is_distinguished_from_a_failure() {
    for runner in runners() {
        let commands = [
            sh("exit 0"),
            Command::new(Program::constant("no-such-program")),
            sh(""),
        ];
        let batch = runner.run_all(&commands).await;
        let [Step::Done(_), Step::Failed(error), Step::NotStarted] = batch.steps() else {
            panic!("{runner:?}: {batch:?}");
        };
        assert!(
            matches!(error, RunError::NotFound { .. }),
            "{runner:?}: {error:?}"
        );
    }
}

#[tokio::test]
async fn a_signal_ends_a_list_and_a_single_command_alike() {
    for runner in runners() {
        let killed = sh("echo last; kill -KILL $$").accepting(Accept::AnyExit);
        let output = runner.run(&killed).await.unwrap();
        assert_eq!(
            (output.status, output.text().as_ref()),
            (Status::Signal(9), "last\n")
        );
        let batch = runner.run_all(&[killed, sh("exit 0")]).await;
        assert!(
            matches!(batch.steps(), [Step::Failed(_), Step::NotStarted]),
            "{runner:?}"
        );
    }
}

#[tokio::test]
async fn variables_reach_their_command_and_no_other() {
    for runner in runners() {
        let show = sh("printf %s \"${SHOWN-unset}\"");
        let with = show
            .clone()
            .env(Variable::constant("SHOWN"), "first")
            .secret_env(Variable::constant("SHOWN"), "it's\n$HOME".into());
        let outputs = runner.run_all(&[with, show]).await.into_outputs().unwrap();
        assert_eq!(outputs[0].text(), "it's\n$HOME", "{runner:?}");
        assert_eq!(outputs[1].text(), "unset", "{runner:?}");
    }
}

/// A `sh` whose input stays open after the script, as over a connection.
#[derive(Debug)]
struct HeldOpen;

#[async_trait::async_trait]
impl RunOne for HeldOpen {
    async fn run_one(&self, command: &Command) -> Result<exec::Output, RunError> {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("pipe").to_str().unwrap().to_owned();
        let script = "exec 3<&0; mkfifo \"$1\"; { cat <&3; exec sleep 100; } >\"$1\" & \
                      sh -s <\"$1\"; status=$?; kill $!; exit $status";
        let held = sh(script)
            .args(["sh".to_owned(), pipe])
            .secret_stdin(command.input().bytes())
            .within(command.deadline());
        Local::new().run(&held).await
    }
}

#[tokio::test]
async fn neither_a_command_nor_the_script_waits_for_the_end_of_the_scripts_input() {
    let briefly = |command: Command| command.within(Duration::from_secs(5));
    let commands = [
        briefly(Command::new(CAT)),
        briefly(sh("cat; exec cat")),
        briefly(sh(":")),
    ];
    let batch = Shell::new(OneByOne(HeldOpen)).run_all(&commands).await;
    let outputs = batch.into_outputs().unwrap();
    assert!(outputs.iter().all(|output| output.stdout.is_empty()));
}

#[tokio::test]
async fn a_command_that_ignores_a_large_input_neither_fails_nor_complains() {
    for runner in runners() {
        let commands = [sh("exit 0").stdin(vec![b'x'; 1 << 20]), sh("exit 0")];
        let outputs = runner.run_all(&commands).await.into_outputs().unwrap();
        assert_eq!(
            String::from_utf8_lossy(&outputs[0].stderr),
            "",
            "{runner:?}"
        );
    }
}

#[tokio::test]
async fn a_list_with_a_nul_byte_starts_nothing_of_a_script() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("made").to_str().unwrap().to_owned();
    let commands = [
        Command::new(Program::constant("touch")).arg(&file),
        sh("a\0b"),
    ];
    let batch = Shell::new(Local::new()).run_all(&commands).await;
    assert_eq!(batch.effect(), Effect::None);
    assert!(!Path::new(&file).exists());
}

#[tokio::test]
async fn an_empty_list_is_done() {
    for runner in runners() {
        assert!(runner.run_all(&[]).await.is_done(), "{runner:?}");
    }
}

#[tokio::test]
async fn no_prefix_of_a_script_runs_anything() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("made");
    let touched = file.to_str().unwrap();
    let commands = [
        Command::new(Program::constant("touch")).arg(touched),
        Command::script_with_prelude("word=1\n", "touch \"$1\"").arg(touched),
        Command::function("touch \"$1\"").arg(touched),
    ];
    let script = Script::of(&commands).unwrap();
    // Without the last line end the last line is whole, so that is where the prefixes stop.
    let whole = std::str::from_utf8(script.expose()).unwrap().trim_end();
    for length in (0..whole.len())
        .rev()
        .take(40)
        .chain((0..whole.len()).step_by(29))
    {
        let cut = Command::new(SH)
            .arg("-s")
            .stdin(&whole.as_bytes()[..length]);
        let _ = Local::new().run(&cut).await.unwrap();
        assert!(
            !file.exists(),
            "the first {length} of {} bytes did something",
            whole.len()
        );
    }
    Local::new().perform(&script.command()).await.unwrap();
    assert!(file.exists());
}

#[tokio::test]
async fn a_script_that_hangs_is_unknown_from_beginning_to_end() {
    let hangs = sh("exec sleep 100").within(Duration::from_millis(100));
    let quick = sh("exit 0").within(Duration::from_millis(100));
    let batch = Shell::new(Local::new()).run_all(&[hangs, quick]).await;
    assert!(
        matches!(batch.steps(), [Step::Unknown, Step::Unknown]),
        "{batch:?}"
    );
    assert!(!batch.into_outputs().unwrap_err().source.outcome_known());
}

#[test]
fn neither_a_script_nor_its_command_shows_a_secret() {
    let commands = [Command::new(CAT)
        .secret_arg("arg-s3cret".into())
        .secret_stdin("in-s3cret")];
    let script = Script::of(&commands).unwrap();
    let shown = format!("{script:?} {} {:?}", script.command(), script.command());
    assert!(!shown.contains("s3cret"), "{shown}");
    assert!(String::from_utf8_lossy(script.expose()).contains("arg-s3cret"));
}

#[test]
fn any_arguments_and_input_pass_through_a_script_unchanged() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let argument = any::<String>().prop_map(|text| text.replace('\0', ""));
    let arguments = prop::collection::vec(argument, 0..5);
    let input = prop::collection::vec(any::<u8>(), 1..300);
    for runner in runners() {
        let mut tests = TestRunner::new(Config {
            cases: 24,
            ..Config::default()
        });
        let tried = tests.run(&(arguments.clone(), input.clone()), |(arguments, input)| {
            let words = Command::new(PRINTF).arg("%s\\0").args(arguments.clone());
            let commands = [words, Command::new(CAT).stdin(input.clone())];
            let outputs = runtime
                .block_on(runner.run_all(&commands))
                .into_outputs()
                .unwrap();
            // printf prints its format once when there are no arguments.
            let shown = if arguments.is_empty() {
                vec![String::new()]
            } else {
                arguments
            };
            let shown = shown.join("\0") + "\0";
            prop_assert_eq!(&outputs[0].stdout, &shown.into_bytes());
            prop_assert_eq!(&outputs[1].stdout, &input);
            Ok(())
        });
        tried.unwrap_or_else(|failure| panic!("{runner:?}: {failure}"));
    }
}
