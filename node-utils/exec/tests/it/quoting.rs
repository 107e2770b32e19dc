//! Quoting, tried on the shells that read it.

use std::path::Path;
use std::time::Duration;

use exec::script::REMOTE_COMMAND;
use exec::{Command, Local, Program, Runner, quote};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

/// Those that are here; two of them always are. With csh as the login shell a server of SSH runs the
/// constant command by it, and the words never meet it.
fn shells() -> Vec<(&'static str, Vec<&'static str>)> {
    let known: [(&str, &[&str]); 5] = [
        ("/bin/sh", &["-s"]),
        ("/bin/dash", &["-s"]),
        ("/bin/bash", &["-s"]),
        ("/bin/busybox", &["sh", "-s"]),
        ("/bin/csh", &["-c", REMOTE_COMMAND]),
    ];
    let here = known
        .into_iter()
        .filter(|(path, _)| Path::new(path).exists());
    here.map(|(path, arguments)| (path, arguments.to_vec()))
        .collect()
}

/// Texts that the shells are likely to trip over, and anything else.
fn text() -> impl Strategy<Value = String> {
    let nasty = prop::sample::select(vec![
        "'", "''", "\"", "\\", "\\'", "!", "!!", "$", "$(id)", "`id`", "\n", "\n\n", "\r\n", "\t",
        "*", "~", "-n", "%s", "\\n", "\\0", "#", ";", "&&", "|", "{a,b}", "é", "\u{fffd}",
        "\u{2028}", "\u{1}", "\u{7f}", "\u{85}", "🐘", "\u{202e}", " ",
    ]);
    let nasty = prop::collection::vec(nasty, 0..12).prop_map(|parts| parts.concat());
    let any = any::<String>().prop_map(|text| text.replace('\0', ""));
    prop_oneof![nasty, any]
}

async fn read_back(shell: &str, arguments: &[&str], words: &[String]) -> Vec<String> {
    let mut script = String::from("printf '%s\\0'");
    for word in words {
        script.push(' ');
        script.push_str(&quote(word).unwrap());
    }
    let command = Command::new(Program::parse(shell).unwrap())
        .args(arguments.iter().copied())
        .stdin(script)
        .within(Duration::from_mins(1));
    let output = Local::new().run_checked(&command).await.unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    text.split_terminator('\0').map(str::to_owned).collect()
}

#[test]
fn any_text_comes_back_from_every_shell_unchanged() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let shells = shells();
    assert!(
        shells.len() >= 2,
        "too few shells to prove anything: {shells:?}"
    );
    for (shell, arguments) in shells {
        let mut runner = TestRunner::new(Config {
            cases: 64,
            ..Config::default()
        });
        let words = prop::collection::vec(text(), 1..8);
        let tried = runner.run(&words, |words| {
            prop_assert_eq!(
                runtime.block_on(read_back(shell, &arguments, &words)),
                words
            );
            Ok(())
        });
        tried.unwrap_or_else(|failure| panic!("{shell}: {failure}"));
    }
}
