//! What the script that destroys says of what nfsd keeps, by every shell and awk that this machine has.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use driver_core::Effect;
use driver_core::config::{Document, NoEnvironment};
use exec::{Local, Runner as _, Variable};

use super::*;
use crate::failure;
use driver_zfs::step::Next;

const SHELLS: [&[&str]; 3] = [&["/bin/dash"], &["/bin/bash"], &["/bin/busybox", "sh"]];
const AWKS: [&str; 4] = [
    "/usr/bin/mawk",
    "/usr/bin/gawk",
    "/usr/bin/original-awk",
    "/bin/busybox",
];
const PATH: Variable = Variable::constant("PATH");

/// A host whose kernel is a folder.
struct Host<'a> {
    /// The text of `/proc/self/mounts`.
    mounts: &'a str,
    /// The second of nfsd, from now on.
    ahead: Option<i64>,
    /// The exports of nfsd.
    exported: Option<&'a str>,
}

const PLAIN: Host<'static> = Host {
    mounts: "proc /proc proc rw 0 0\ntank/v/a /tank/v/a zfs rw 0 0\ntank/v/b /tank/v/b zfs rw 0 0\n",
    ahead: Some(40),
    exported: Some("#path domain(flags)\n/tank/v/a\t192.0.2.1(rw)\n"),
};

impl Host<'_> {
    /// For how long nfsd keeps a dataset, or nothing if it was destroyed.
    async fn kept(&self, shell: &[&str], awk: &str, text: &str, dataset: &str) -> Option<Duration> {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        fs::write(folder.join("mounts"), self.mounts).unwrap();
        if let Some(ahead) = self.ahead {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
            let second = i64::try_from(now.as_secs()).unwrap() + ahead;
            fs::write(folder.join("flush"), format!("{second}\n")).unwrap();
        }
        if let Some(exported) = self.exported {
            fs::write(folder.join("content"), exported).unwrap();
        }
        symlink(awk, folder.join("awk")).unwrap();
        program(
            &folder.join("zfs"),
            &format!("touch {}/tried", folder.display()),
        );
        let at = folder.to_str().unwrap();
        let text = text
            .replace("/proc/net/rpc/nfsd.export", at)
            .replace("/proc/self/", &format!("{at}/"));
        let zfs = format!("{at}/zfs");
        let sudo = if text.contains("sudo=") {
            "sudo"
        } else {
            "env"
        };
        let command = Command::new(Program::parse(shell[0]).unwrap())
            .args(shell[1..].iter().copied())
            .args([
                "-c",
                &format!("f() {{\n{text}\n}}\nf \"$@\""),
                "sh",
                "fine",
                "other",
            ])
            .args([sudo, &zfs, "destroy", "-f", dataset])
            .env(PATH, format!("{at}:/usr/bin:/bin"));
        let output = Local::new().run(&command).await.unwrap();
        let tried = folder.join("tried").exists();
        let Err(error) = output.check(&command) else {
            assert!(tried, "{shell:?} {awk}: nothing was done");
            return None;
        };
        assert!(!tried, "{shell:?} {awk}: {}", error.stderr());
        match failure::of(&error, "destroy it", Effect::Possible).next {
            Next::WaitFor(known) => Some(known),
            other => panic!("{shell:?} {awk}: {other:?}: {}", error.stderr()),
        }
    }
}

fn program(path: &Path, script: &str) {
    exec::testing::write_program(path, &format!("#!/bin/sh\n{script}\n"));
}

/// What there is, what of it is to be destroyed, and whether nfsd keeps that.
fn cases() -> Vec<(&'static str, Host<'static>, &'static str, bool)> {
    let own = |exported| Host {
        exported: Some(exported),
        ..PLAIN
    };
    let odd = Host {
        mounts: "my\\040pool/v/a\\040b /mnt/a\\040b zfs rw 0 0\n",
        exported: Some("/mnt/a\\040b\t*(rw)\n"),
        ..PLAIN
    };
    let disk = Host {
        mounts: "tank/v/a /tank/v/a ext4 rw 0 0\n",
        ..PLAIN
    };
    vec![
        ("what a client has used", PLAIN, "tank/v/a", true),
        (
            "that is to be forgotten",
            own("# /tank/v/a\t*(rw)\n"),
            "tank/v/a",
            true,
        ),
        ("what has blanks", odd, "my pool/v/a b", true),
        ("what is unused", PLAIN, "tank/v/b", false),
        ("what is not mounted", PLAIN, "tank/v/zvol", false),
        (
            "what is called alike",
            own("/tank/v/a/b\t*(rw)\n"),
            "tank/v/a",
            false,
        ),
        ("another filesystem there", disk, "tank/v/a", false),
        (
            "just now",
            Host {
                ahead: Some(-2),
                ..PLAIN
            },
            "tank/v/a",
            false,
        ),
        (
            "long since",
            Host {
                ahead: Some(-900),
                ..PLAIN
            },
            "tank/v/a",
            false,
        ),
        (
            "without nfsd",
            Host {
                ahead: None,
                exported: None,
                ..PLAIN
            },
            "tank/v/a",
            false,
        ),
        (
            "what cannot be seen",
            Host {
                exported: None,
                ..PLAIN
            },
            "tank/v/a",
            false,
        ),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn what_nfsd_keeps_is_not_tried_before_it_lets_go() {
    let pairs = SHELLS
        .iter()
        .flat_map(|shell| AWKS.map(|awk| (*shell, awk)));
    let here =
        |(shell, awk): &(&[&str], &str)| Path::new(shell[0]).exists() && Path::new(awk).exists();
    let pairs: Vec<_> = pairs.filter(here).collect();
    assert!(!pairs.is_empty(), "no shell and no awk");
    for (what, host, dataset, kept) in cases() {
        for (shell, awk) in &pairs {
            for text in DESTROY {
                let found = host.kept(shell, awk, text, dataset).await;
                assert_eq!(found.is_some(), kept, "{what}: {shell:?} {awk}: {found:?}");
                // From the beginning of the second after it; a busy machine reads two clocks at two times.
                let near = |found: Duration| (35..=45).contains(&found.as_secs());
                assert!(found.is_none_or(near), "{what}: {found:?}");
            }
        }
    }
}

fn configured(extra: &str) -> Result<ZfsTools, ConfigError> {
    let text = format!("driver: d\nzfs:\n  datasetParentName: tank/v\n  {extra}\n");
    let document = Document::parse(&text, &NoEnvironment)?;
    ZfsTools::from_config(&ZfsConfig::read(&document)?)
}

#[test]
fn access_control_lists_are_set_by_the_configured_tool_or_by_setfacl() {
    assert_eq!(configured("").unwrap().acl.as_str(), "setfacl");
    let tools = configured("datasetPermissionsAclsBinary: nfs4xdr_setfacl").unwrap();
    assert_eq!(tools.acl.as_str(), "nfs4xdr_setfacl");
}

#[test]
fn what_is_no_program_is_refused_with_its_key() {
    for (extra, key) in [
        (
            "datasetPermissionsAclsBinary: \"a/b\"",
            "zfs.datasetPermissionsAclsBinary",
        ),
        ("cli: {paths: {zfs: \"-x\"}}", "zfs.cli.paths"),
    ] {
        let error = configured(extra).expect_err("must be refused");
        assert_eq!(error.path(), Some(key), "{error}");
    }
}
