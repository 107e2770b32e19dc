//! Texts that people write and what an orchestrator sends, on its way through every script and tool, by
//! every shell and awk that this machine has: carried to the letter or refused, and nothing is run.

use std::fmt::Write as _;

use crate::common::{Host, Volume};
use driver_core::config::{Document, NoEnvironment};
use driver_core::{Parameters, VolumeName};
use driver_zfs::Export;
use driver_zfs::export::{Asked, Subject};
use driver_zfs_generic::DiskExport;
use proptest::prelude::*;
use serde_json::Value;

const SHELLS: [&str; 4] = ["/bin/dash", "/bin/bash", "/bin/ksh", "/usr/local/bin/bash"];
const AWKS: [&str; 4] = [
    "/usr/bin/mawk",
    "/usr/bin/gawk",
    "/usr/bin/original-awk",
    "/bin/awk",
];

/// Pieces that a shell, an awk, JSON, `printf` or a tool could take for something else.
const PIECES: [&str; 22] = [
    "'",
    "\"",
    "\\",
    "\\\\",
    "$(touch {canary})",
    "`touch {canary}`",
    "; touch {canary} ;",
    "%s%n",
    "&&",
    "|",
    "$IFS",
    "${x}",
    "*",
    "[a-z]",
    "\\n",
    "\\c",
    "END",
    "#",
    "{\"a\":[",
    "é",
    " ",
    "-n",
];

fn lio(password: &str) -> String {
    let password = password.replace('\'', "''");
    format!(
        "driver: zfs-generic-iscsi
iscsi:
  targetPortal: 192.0.2.1
  shareStrategy: lio
  shareStrategyLio:
    basename: iqn.2003-01.org.example
    configPath: '{{etc}}/saved.json'
    tpg: {{auth: {{userid: me, password: '{password}'}}}}
"
    )
}

/// Every pair of a shell and an awk that are here, each with a host of its own.
fn hosts() -> Vec<(Host, String)> {
    let mut hosts = Vec::new();
    for shell in SHELLS {
        for awk in AWKS {
            let host = Host::new();
            if host.takes("sh", shell) && host.takes("awk", awk) {
                hosts.push((host, format!("{shell} {awk}")));
            }
        }
    }
    assert!(!hosts.is_empty(), "no shell and no awk");
    hosts
}

fn is_untouched(host: &Host) -> bool {
    host.tree("")
        .iter()
        .all(|(path, _)| !path.contains("canary"))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    #[test]
    fn secrets_of_chap_are_carried_to_the_letter(
        pieces in prop::collection::vec(prop::sample::select(PIECES.to_vec()), 1..6),
    ) {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        for (host, with) in hosts() {
            let canary = host.path("canary").to_str().unwrap().to_owned();
            let secret = pieces.concat().replace("{canary}", &canary).trim().to_owned();
            prop_assume!(!secret.is_empty() && secret.len() < 250 && !secret.contains("${"));
            let export = host.export(&lio(&secret));
            let volume = Volume::new("tank/k8s v", "pvc-1", 7);
            runtime.block_on(async {
                host.ensure(&export, &volume).await.unwrap().unwrap();
                let auth = "cfg/target/iscsi/iqn.2003-01.org.example:pvc-1/tpgt_1/auth";
                assert_eq!(host.text(&format!("{auth}/password")), secret, "{with}");
                let config: Value = serde_json::from_str(&host.text("etc/saved.json")).unwrap();
                let saved = &config["targets"][0]["tpgs"][0]["chap_password"];
                assert_eq!(saved, &Value::from(secret.as_str()), "{with}");
                assert_eq!(host.facts(&export, &volume).await.missing, [""; 0], "{with}");
                host.remove(&export, &volume).await.unwrap();
                assert_eq!(host.facts(&export, &volume).await.present, [""; 0], "{with}");
            });
            assert!(is_untouched(&host), "{with}");
        }
    }

    #[test]
    fn secrets_that_targetcli_would_misread_are_refused_and_the_others_carried(
        secret in "[ -~]{1,30}",
    ) {
        let text = |secret: &str| {
            let quoted = secret.replace('\'', "''");
            lio("x").replace("shareStrategy: lio", "shareStrategy: targetCli")
                .replace("shareStrategyLio", "shareStrategyTargetCli")
                .replace("    configPath: '{etc}/saved.json'\n", "")
                .replace("password: 'x'", &format!("password: '{quoted}'"))
        };
        prop_assume!(!secret.contains("${"));
        let host = Host::new();
        let document = Document::parse(&text(&secret), &NoEnvironment).unwrap();
        let Ok(export) = driver_zfs_generic::iscsi::export(&document, host.places()) else {
            let quoting = |c: char| matches!(c, ' ' | '\'' | '"' | '`' | '|' | '{' | '}' | '^');
            prop_assert!(secret.contains(quoting) || secret.starts_with("NULL"), "{secret:?}");
            return Ok(());
        };
        let runtime = tokio::runtime::Runtime::new().unwrap();
        runtime.block_on(async {
            let volume = Volume::new("tank/v", "pvc-1", 7);
            host.ensure(&export, &volume).await.unwrap().unwrap();
            let auth = "cfg/target/iscsi/iqn.2003-01.org.example:pvc-1/tpgt_1/auth";
            assert_eq!(host.text(&format!("{auth}/password")).trim_end(), secret);
        });
    }

    #[test]
    fn names_and_templates_give_plain_names_or_none(
        template in "[ -~]{0,12}(\\{\\{name\\}\\}|\\{\\{\\{parameters\\.x\\}\\}\\})?[ -~]{0,12}",
        name in "\\PC{1,20}",
        parameter in "[ -~\\n\\t]{0,20}",
    ) {
        let quoted = template.replace('\'', "''");
        let text = format!("{}  nameTemplate: '{quoted}'\n", lio("x"));
        let Ok(document) = Document::parse(&text, &NoEnvironment) else { return Ok(()) };
        let Ok(export) = driver_zfs_generic::iscsi::export(&document, Host::new().places()) else {
            return Ok(());
        };
        let Ok(name) = VolumeName::parse(&name) else { return Ok(()) };
        let parameters = Parameters::new([("x".to_owned(), parameter)].into());
        let volume = Volume::new("tank/v", "pvc-1", 7);
        let request = Some(Asked { name: &name, parameters: &parameters });
        let subject = Subject { request, ..volume.subject() };
        if let Ok(export_name) = export.export_name(&subject) {
            let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "-._:".contains(c);
            prop_assert!(export_name.as_str().chars().all(plain), "{export_name}");
            prop_assert!(!export_name.as_str().starts_with(['.', '-']), "{export_name}");
        }
    }
}

/// The words of a command that every user of the host can read.
fn seen_by_all(export: &DiskExport, volume: &Volume) -> String {
    let subject = volume.subject();
    let export_name = export.export_name(&subject).unwrap();
    let looks = export.observe(&subject, &export_name);
    let facts = driver_zfs_generic::Facts {
        missing: vec!["backstore".to_owned()],
        ..Default::default()
    };
    let acts = export.ensure(&subject, &export_name, &facts).unwrap();
    let commands = acts.into_iter().filter_map(|act| match act {
        driver_zfs::export::Act::Do(command) => Some(command),
        _ => None,
    });
    let mut text = String::new();
    for command in looks.into_iter().chain(commands) {
        for word in command.arguments() {
            text += word.expose();
            text.push('\n');
        }
        let _ = writeln!(text, "{command:?}");
    }
    text
}

#[test]
fn no_secret_is_an_argument_or_is_shown() {
    let host = Host::new();
    let volume = Volume::new("tank/v", "pvc-1", 7);
    let targetcli = lio("geheim")
        .replace("shareStrategy: lio", "shareStrategy: targetCli")
        .replace("shareStrategyLio", "shareStrategyTargetCli")
        .replace("    configPath: '{etc}/saved.json'\n", "");
    for text in [lio("geheim"), targetcli] {
        let seen = seen_by_all(&host.export(&text), &volume);
        assert!(seen.contains("pvc-1") && !seen.contains("geheim"), "{seen}");
    }
}

#[tokio::test]
async fn what_is_saved_is_for_root_alone_and_a_link_stays_a_link() {
    use std::os::unix::fs::PermissionsExt as _;
    let host = Host::new();
    let (export, volume) = (
        host.export(&lio("geheim")),
        Volume::new("tank/v", "pvc-1", 7),
    );
    std::fs::create_dir(host.path("kept")).unwrap();
    std::fs::write(host.path("kept/saved.json"), "{\"fabric_modules\": []}").unwrap();
    std::os::unix::fs::symlink("../kept/saved.json", host.path("etc/saved.json")).unwrap();
    host.ensure(&export, &volume).await.unwrap().unwrap();
    let kept = host.path("kept/saved.json");
    assert!(
        host.path("etc/saved.json")
            .symlink_metadata()
            .unwrap()
            .is_symlink()
    );
    assert!(std::fs::read_to_string(&kept).unwrap().contains("geheim"));
    assert_eq!(kept.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(host.facts(&export, &volume).await.missing, [""; 0]);
}

#[tokio::test]
async fn without_a_tool_that_reads_it_nothing_is_said_of_what_is_saved() {
    for tool in ["awk", "grep"] {
        let host = Host::new();
        let (export, volume) = (host.export(&lio("x")), Volume::new("tank/v", "pvc-1", 7));
        host.ensure(&export, &volume).await.unwrap().unwrap();
        host.starts_again();
        host.program(tool, "#!/bin/sh\nexit 127\n");
        let subject = volume.subject();
        let export_name = export.export_name(&subject).unwrap();
        for look in export.observe(&subject, &export_name) {
            let error = host.run(&look).await.unwrap_err();
            assert!(error.stderr().contains(tool), "{error}");
        }
    }
}
