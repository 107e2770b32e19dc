//! Nothing is parsed and ignored: every flag, variable, key and parameter of this build, each with
//! two values and the subject in which the program then differs.
//!
//! The lists of what there is come from the program: `--help`, the environment variables that it
//! declares, the structs of its configuration. An entry that is missing here fails, and so does one
//! whose change changes nothing.

mod commands;
mod settings;

use std::collections::{BTreeMap, BTreeSet};

use integration::observe::Seen;
use integration::place::Place;
use integration::{keys, requirement, tools};
use omnibus_csi::cli::args::{Effect, VARIABLES};
use settings::{Change, SETTINGS, Setting, apply};

/// Flags in `--help` and `version --environment` that are not settings.
const NO_SETTINGS: [&str; 2] = ["--help", "--version"];

/// Variables that only show with another program or an appliance: `node_manual`, the tests of driver-tls
/// and those of `truenas setup-user` test them.
const ELSEWHERE: [&str; 5] = [
    "USE_HOST_MOUNT_TOOLS",
    "NODE_EXTRA_CA_CERTS",
    "OMNIBUS_CSI_TRUENAS_ADMIN_USER",
    "OMNIBUS_CSI_TRUENAS_ADMIN_PASSWORD",
    "OMNIBUS_CSI_TRUENAS_ADMIN_API_KEY",
];

/// Keys that only show with restic, kopia, a base that was used before or a filesystem that has quotas: the tests of
/// driver-directory test them.
const IN_DRIVER: [&str; 4] = ["snapshots.restic.", "snapshots.kopia.", "quota", "baseId"];

async fn flags_of(arguments: &[&str]) -> BTreeSet<String> {
    let output = tools::omnibus(arguments, &[]).await;
    let text = String::from_utf8(output.stdout).expect("text");
    let before_examples = text.split("\nExamples:").next().unwrap_or_default();
    before_examples
        .lines()
        .map(str::trim_start)
        .filter(|line| line.starts_with('-'))
        .filter_map(|line| line.split([' ', ',']).find(|word| word.starts_with("--")))
        .filter(|flag| !NO_SETTINGS.contains(flag))
        .map(str::to_owned)
        .collect()
}

fn named(of: impl Fn(&Setting) -> bool) -> BTreeSet<String> {
    let settings = SETTINGS.iter().filter(|setting| of(setting));
    settings.map(|setting| setting.name.to_owned()).collect()
}

fn same(known: &BTreeSet<String>, listed: &BTreeSet<String>, what: &str) {
    let missing: Vec<_> = known.difference(listed).collect();
    assert!(
        missing.is_empty(),
        "{what} that no entry of the table tests: {missing:?}"
    );
    let stale: Vec<_> = listed.difference(known).collect();
    assert!(
        stale.is_empty(),
        "{what} in the table that the program does not know: {stale:?}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_flag_variable_and_key_of_the_program_is_in_the_table() {
    let listed = named(|setting| setting.name.starts_with("--"));
    same(&flags_of(&["--help"]).await, &listed, "flags");
    for command in commands::COMMANDS {
        let known = flags_of(&[command, "--help"]).await;
        let tested = commands::flags_of(command);
        same(&known, &tested, command);
    }
    let variables: BTreeSet<_> = VARIABLES
        .iter()
        .filter(|variable| !commands::tests(variable.name) && !ELSEWHERE.contains(&variable.name))
        .map(|variable| variable.name.to_owned())
        .collect();
    let listed = named(|setting| matches!(setting.changes[0], Change::Env(_)));
    same(&variables, &listed, "variables");

    let mut known = keys::known::<driver_core::config::CommonConfig>();
    let section = keys::known::<driver_directory::DirectoryConfig>();
    known.extend(
        section
            .into_iter()
            .filter(|key| !IN_DRIVER.iter().any(|head| key.starts_with(head)))
            .map(|key| format!("local-hostpath.{key}")),
    );
    let listed = named(|setting| {
        matches!(
            setting.changes[0],
            Change::Config(_) | Change::Section(_) | Change::Driver(_)
        )
    });
    same(&known, &listed, "keys");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_setting_makes_the_difference_that_the_table_says() {
    if !requirement::root("what settings do to mounts and owners") {
        return;
    }
    let mut wrong = BTreeMap::new();
    for setting in SETTINGS {
        let mut runs: Vec<Seen> = Vec::new();
        for change in &setting.changes {
            let place = Place::new();
            let setup = apply(setting, change, &place);
            runs.push(setup.observe(&place).await);
        }
        let differ: Vec<_> = runs[0]
            .iter()
            .filter(|(subject, text)| runs[1].get(*subject) != Some(text))
            .chain(
                runs[1]
                    .iter()
                    .filter(|(subject, _)| !runs[0].contains_key(*subject)),
            )
            .map(|(subject, _)| *subject)
            .collect();
        if !differ.contains(&setting.subject) {
            wrong.insert(
                setting.name,
                format!("{differ:?} instead of {:?}", setting.subject),
            );
        }
    }
    assert!(
        wrong.is_empty(),
        "settings without the effect that they should have: {wrong:#?}"
    );
}

#[test]
fn variables_that_do_nothing_say_why() {
    for variable in VARIABLES {
        if let Effect::None(why) = variable.effect {
            assert!(!why.is_empty(), "{}", variable.name);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_flags_of_the_other_commands_make_a_difference() {
    commands::all_differ().await;
}
