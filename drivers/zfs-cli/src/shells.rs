//! Runs scripts of this crate in every shell of this machine.

use std::path::Path;

use exec::{Command, Local, Output, Program, Runner as _};

use crate::first_try::DESTROY;
use crate::freed::{FREED, RUNS_ZDB};
use crate::query::{HEALTH, NAMED_LOOK};
use crate::steps::GUARD;

const SHELLS: [&[&str]; 3] = [&["/bin/dash"], &["/bin/bash"], &["/bin/busybox", "sh"]];

/// Runs a function with these arguments in each shell; `zfs` is a script in its own folder.
async fn by_each_shell(text: &str, zfs: &str, arguments: &[&str]) -> Vec<(String, Output)> {
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("zfs");
    exec::testing::write_program(&program, &format!("#!/bin/sh\n{zfs}\n"));
    let program = program.to_str().unwrap();
    let mut outputs = Vec::new();
    for shell in SHELLS.iter().filter(|shell| Path::new(shell[0]).exists()) {
        let text = text.replace("ZFS -", &format!("{program} -"));
        let function = format!("f() {{\n{text}\n}}\nf \"$@\"");
        let arguments = arguments.iter().map(|word| word.replace("ZFS", program));
        let command = Command::new(Program::parse(shell[0]).unwrap())
            .args(shell[1..].iter().copied())
            .args(["-c", &function, "sh"])
            .args(arguments);
        let output = Local::new().run(&command).await.unwrap();
        outputs.push((shell.join(" "), output));
    }
    assert!(!outputs.is_empty(), "no shell");
    outputs
}

#[tokio::test]
async fn identities_are_compared_in_whatever_order_zfs_prints_them() {
    let zfs = "printf 'tank/a b\\t7\\ntank/a b@s\\t71\\n'";
    for (expected, fine) in [
        ("tank/a b@s\t71\ntank/a b\t7\n", true),
        ("tank/a b\t7\n", true),
        ("tank/a b\t71\n", false),
        ("tank/a b@s\t7\n", false),
        ("b\t7\n", false),
        ("tank/a b\t7\ntank/c\t7\n", false),
    ] {
        for (shell, output) in by_each_shell(GUARD, zfs, &[expected, "ZFS", "get"]).await {
            let is_fine = output.status.code() == Some(0);
            assert_eq!(is_fine, fine, "{shell}: {expected:?}: {output:?}");
        }
    }
    for (shell, output) in by_each_shell(GUARD, "exit 1", &["a\t7\n", "ZFS", "get"]).await {
        assert_eq!(output.status.code(), Some(1), "{shell}");
    }
}

#[tokio::test]
async fn a_name_is_asked_of_the_kernel_and_looked_for_everywhere_where_that_is_refused() {
    let arguments = |detached| {
        let name = ["s", detached, "tank/v", "1", "ZFS"];
        let look = ["", "1", "tank\n", "", "", "ZFS", "scan"];
        [name.as_slice(), look.as_slice()].concat()
    };
    let answers = r#"printf '{"return":"[][tank/v/b c@s][tank/s/d/s]"}\n'"#;
    for (detached, asked, program, found) in [
        (
            "tank/s",
            "program -jn tank - s tank/v tank/s",
            answers,
            "tank/v/b c@s\ntank/s/d/s\n",
        ),
        (
            "",
            "program -jn tank - s tank/v",
            r#"printf '{"return":"[]"}\n'"#,
            "",
        ),
        (
            "tank/s",
            "program -jn tank - s tank/v tank/s",
            "exit 1",
            "scanned\n",
        ),
        (
            "tank/s",
            "program -jn tank - s tank/v tank/s",
            "echo other",
            "scanned\n",
        ),
        ("dozer/s", "never", answers, "scanned\n"),
    ] {
        let zfs = format!(
            "case \"$*\" in scan) echo scanned ;; '{asked}') cat >/dev/null; {program} ;; *) exit 2 ;; esac"
        );
        let outputs = by_each_shell(NAMED_LOOK, &zfs, &arguments(detached)).await;
        for (shell, output) in outputs {
            assert_eq!(
                output.text(),
                found,
                "{shell}: {detached} {program}: {output:?}"
            );
        }
    }
}

#[tokio::test]
async fn a_snapshot_that_may_be_destroyed_is_never_said_to_be_there() {
    let arguments = [
        "ZFS", "program", "-j", "tank", "-", "tank/v@s", "own", "group",
    ];
    let done = r#"printf '{"return":"done"}\n'"#;
    for (zfs, code, printed, error) in [
        (done.to_owned(), 0, "done\n", ""),
        (format!("echo noise >&2; {done}"), 0, "done\n", "noise"),
        (done.replace("done", "other"), 0, "other\n", ""),
        (format!("{done}; exit 1"), 1, "", ""),
        ("echo refused >&2; exit 3".to_owned(), 3, "", "refused"),
        ("kill -9 $$".to_owned(), 137, "", ""),
        // A wrapper keeps the answer to itself.
        (format!("{done} >/dev/null"), 1, "", "does not print"),
    ] {
        for (shell, output) in by_each_shell(DESTROY, &zfs, &arguments).await {
            let said = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(code), "{shell}: {zfs}: {said}");
            assert_eq!(output.text(), printed, "{shell}: {zfs}");
            assert!(said.contains(error), "{shell}: {zfs}: {said}");
        }
    }
}

/// What `zdb -ddddd tank/zz@b 1` of OpenZFS 2.3.9 printed. The base was taken in the transaction 487.
const SHOWN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/zdb.txt");

#[tokio::test]
async fn blocks_that_were_freed_are_those_that_zdb_shows_if_it_shows_all() {
    let pool = r#"zpool get -H -o value feature@hole_birth "${of%%[/@]*}""#;
    assert!(FREED.contains(pool));
    let with = |hole_birth: &str| {
        FREED
            .replace("zdb -", "ZFS -")
            .replace(pool, &format!("echo {hole_birth}"))
    };
    let scripts = ["active", "enabled"].map(with);
    let answer_of = async |script: &str, zfs: &str, since: &str| {
        let arguments = ["ZFS", since, "tank/zz@b"];
        let outputs = by_each_shell(script, zfs, &arguments).await;
        let (_, first) = &outputs[0];
        let (code, text) = (first.status.code(), first.text().into_owned());
        for (shell, output) in &outputs {
            assert_eq!(output.status.code(), code, "{shell}: {output:?}");
            assert_eq!(output.text(), text, "{shell}");
        }
        (code, text)
    };
    let answer = async |zfs: &str, since: &str| answer_of(&scripts[0], zfs, since).await;
    let cat = format!("cat '{SHOWN}'");
    // No pointer says when it was freed.
    let unknown = answer_of(&scripts[1], &cat, "487").await;
    assert_eq!(unknown, (Some(1), String::new()));
    let freed = "10000 0 4000\n1000000 1 20000\nall\n".to_owned();
    assert_eq!(answer(&cat, "487").await, (Some(0), freed));
    assert_eq!(answer(&cat, "491").await, (Some(0), "all\n".to_owned()));
    let mut partial = vec![
        format!("{cat}; exit 1"),
        format!("grep -v 'zvol object' '{SHOWN}'"),
    ];
    // A block, a pointer block and what is below it, the end.
    let lost = ["'^ *c000 '", "'^ *2ee0000 '", "'^ *964000 '"];
    partial.extend(lost.map(|line| format!("grep -v {line} '{SHOWN}'")));
    for zfs in partial {
        let (code, text) = answer(&zfs, "487").await;
        assert_eq!(code, Some(1), "{zfs}: {text}");
        assert!(!text.contains("all"), "{zfs}: {text}");
    }
}

#[tokio::test]
async fn zdb_can_be_run_if_it_says_how_it_is_used() {
    let script = RUNS_ZDB.replace("zdb '-?'", "ZFS -?");
    assert_ne!(script, RUNS_ZDB);
    let usage = "printf 'zdb: invalid option\\nUsage:\\tzdb [-A] pool\\n\\tmore\\n' >&2; exit 1";
    for (zfs, printed) in [
        (usage, "yes\n"),
        (
            "echo sudo: a password is required >&2; exit 1",
            "sudo: a password is required\n",
        ),
        (
            "printf 'a banner\\nzdb: not found\\n'; exit 127",
            "zdb: not found\n",
        ),
        ("exit 1", "\n"),
    ] {
        for (shell, output) in by_each_shell(&script, zfs, &["ZFS"]).await {
            assert_eq!(output.status.code(), Some(0), "{shell}: {output:?}");
            assert_eq!(output.text(), printed, "{shell}: {zfs}");
        }
    }
}

#[tokio::test]
async fn a_pool_says_how_it_is_and_one_that_is_suspended_lets_nothing_else_be_asked() {
    let says = |word: &str| format!("[ \"$*\" = 'list -H -o health tank' ] && echo {word}");
    for (zpool, alone, code, text, error) in [
        (says("ONLINE"), "no", 0, "ONLINE\n", ""),
        (says("DEGRADED"), "yes", 0, "DEGRADED\n", ""),
        (says("SUSPENDED"), "yes", 0, "SUSPENDED\n", ""),
        (
            format!("echo 'unable to resolve host x' >&2; {}", says("ONLINE")),
            "no",
            0,
            "ONLINE\n",
            "",
        ),
        (says("SUSPENDED"), "no", 4, "", "is currently suspended"),
        (
            "echo \"cannot open 'tank': no such pool\" >&2; exit 1".to_owned(),
            "no",
            4,
            "",
            "its pool is not imported",
        ),
        (
            "echo no rights >&2; exit 2".to_owned(),
            "no",
            4,
            "",
            "no rights\nzpool does not tell how the pool is",
        ),
    ] {
        let arguments = ["tank", alone, "/bin/false", "ZFS"];
        for (shell, output) in by_each_shell(HEALTH, &zpool, &arguments).await {
            assert_eq!(output.status.code(), Some(code), "{shell}: {output:?}");
            assert_eq!(output.text(), text, "{shell}: {zpool}");
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(said.contains(error), "{shell}: {said}");
        }
    }
}
