//! The command line of every kind, and the error of each failure.

use std::sync::Arc;
use std::time::Duration;

use exec::Runner;
use exec::testing::{Reply, Scripted};

use super::*;
use csi_types::attachment::VolumeContext;
use csi_types::capability::MountFlags;

/// The time of a mount.
const LIMIT: Duration = Duration::from_secs(30);

fn attachment(pairs: &[(&str, &str)]) -> Attachment {
    let context: VolumeContext = pairs
        .iter()
        .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
        .collect();
    Attachment::parse(&context).expect("a context")
}

fn access(flags: &[&str]) -> MountAccess {
    MountAccess {
        flags: MountFlags::parse(flags).expect("flags"),
        ..MountAccess::default()
    }
}

fn staging() -> AbsolutePath {
    AbsolutePath::parse("/var/lib/kubelet/x/globalmount").expect("a path")
}

fn nowhere() -> Tools {
    Tools::all_through(Arc::new(Scripted::new()))
}

/// The command line with its options, which are hidden elsewhere, and its environment.
fn planned(
    attachment: &Attachment,
    access: &MountAccess,
    secrets: &StageSecrets,
) -> (String, Vec<String>) {
    let (tools, staging) = (nowhere(), staging());
    let request = MountRequest {
        attachment,
        access,
        secrets,
        staging: &staging,
    };
    let plan =
        command::plan(&tools, &request, LIMIT).unwrap_or_else(|error| panic!("{}", error.chain()));
    let mut line = plan.command.program().as_str().to_owned();
    for argument in plan.command.arguments() {
        line += " ";
        line += argument.expose();
    }
    let env = plan.command.environment().iter();
    let env = env.map(|(name, value)| format!("{}={}", name.as_str(), value.expose()));
    (line.replace(staging.as_str(), "STAGING"), env.collect())
}

#[test]
fn shares_are_mounted_with_the_flags_in_their_order() {
    let none = StageSecrets::default();
    let nfs = attachment(&[
        ("node_attach_driver", "nfs"),
        ("server", "10.0.0.1"),
        ("share", "/mnt/a"),
    ]);
    let line = planned(&nfs, &access(&["nfsvers=4,noatime"]), &none).0;
    assert_eq!(
        line,
        "mount -t nfs -o nfsvers=4,noatime,defaults 10.0.0.1:/mnt/a STAGING"
    );
    let lustre = attachment(&[
        ("node_attach_driver", "lustre"),
        ("server", "10.0.0.1@tcp"),
        ("share", "/fs/a"),
    ]);
    let line = planned(&lustre, &access(&[]), &none).0;
    assert_eq!(
        line,
        "mount -t lustre -o defaults 10.0.0.1@tcp:/fs/a STAGING"
    );
}

#[test]
fn the_user_of_an_smb_server_is_on_no_command_line() {
    let smb = attachment(&[
        ("node_attach_driver", "smb"),
        ("server", "nas"),
        ("share", "/share/v/a"),
    ]);
    let none = StageSecrets::default();
    let with = |flags: &[&str]| planned(&smb, &access(flags), &none);
    let head = "mount -t cifs -o";
    for (flags, options, env) in [
        (&[][..], "defaults,guest", &[][..]),
        (&["vers=3.0", "guest"], "vers=3.0,guest,defaults", &[]),
        (
            &["vers=3.0,username=me", "password=pa%ss\"w"][..1],
            "vers=3.0,defaults",
            &["USER=me"],
        ),
        (
            &["username=me,password=secret"],
            "defaults",
            &["USER=me", "PASSWD=secret"],
        ),
        (
            &["user=lab/me%secret", "uid=7"],
            "uid=7,defaults,domain=lab",
            &["USER=me", "PASSWD=secret"],
        ),
        (
            &["Username=me", "pass=secret", "workgroup=lab"],
            "defaults,domain=lab",
            &["USER=me", "PASSWD=secret"],
        ),
        (
            &["credentials=/etc/smb"],
            "credentials=/etc/smb,defaults",
            &[],
        ),
    ] {
        let (line, found) = with(flags);
        assert_eq!(
            line,
            format!("{head} {options} //nas/share/v/a STAGING"),
            "{flags:?}"
        );
        assert_eq!(found, env, "{flags:?}");
    }
    let (line, env) = with(&["username=me", "password=\"a,b\""]);
    assert_eq!(line, format!("{head} defaults //nas/share/v/a STAGING"));
    assert_eq!(env, ["USER=me", "PASSWD=a,b"]);
    // Quotes that hold no comma are part of the password, as for mount.cifs.
    for (flag, password) in [
        ("password=\"ab\"", "PASSWD=\"ab\""),
        ("password=\"a\"b", "PASSWD=\"a\"b"),
        ("password=a\"b\"", "PASSWD=a\"b\""),
        ("password=\"\"", "PASSWD=\"\""),
    ] {
        let (_, env) = with(&["username=me", flag]);
        assert_eq!(env, ["USER=me", password], "{flag}");
    }
    for (flags, options) in [
        (
            &["guest"][..],
            "guest,defaults,gid=1000,file_mode=0775,dir_mode=02775",
        ),
        (
            &["guest", "dir_mode=0770"],
            "guest,dir_mode=0770,defaults,gid=1000,file_mode=0775",
        ),
        (
            &["guest", "dmask=0770", "file_mode=0660"],
            "guest,dmask=0770,file_mode=0660,defaults,gid=1000",
        ),
    ] {
        let mut group = access(flags);
        group.group = Some(1000);
        let line = planned(&smb, &group, &none).0;
        assert!(line.contains(&format!("{options} ")), "{line}");
    }
}

#[test]
fn a_second_smb_password_is_refused_and_on_no_command_line() {
    let smb = attachment(&[
        ("node_attach_driver", "smb"),
        ("server", "nas"),
        ("share", "a"),
    ]);
    let (tools, staging, secrets) = (nowhere(), staging(), StageSecrets::default());
    for flag in ["password2=c4n4ry", "Pass2=c4n4ry"] {
        let access = access(&["username=me", "password=secret", flag]);
        let request = MountRequest {
            attachment: &smb,
            access: &access,
            secrets: &secrets,
            staging: &staging,
        };
        let plan = command::plan(&tools, &request, LIMIT).map(|plan| plan.source);
        let error = plan.expect_err("it would be seen");
        assert_eq!(error.kind(), Kind::Invalid);
        assert!(!error.chain().contains("c4n4ry"), "{}", error.chain());
    }
}

#[test]
fn a_password_or_a_token_is_never_an_argument() {
    let kinds: [&[(&str, &str)]; 4] = [
        &[
            ("node_attach_driver", "nfs"),
            ("server", "a"),
            ("share", "/a"),
        ],
        &[
            ("node_attach_driver", "lustre"),
            ("server", "a"),
            ("share", "/a"),
        ],
        &[
            ("node_attach_driver", "objectivefs"),
            ("filesystem", "s3://a/b"),
        ],
        &[("node_attach_driver", "oneclient"), ("server", "a")],
    ];
    let (tools, staging, secrets) = (nowhere(), staging(), StageSecrets::default());
    for pairs in kinds {
        let attachment = attachment(pairs);
        for flag in [
            "password=c4n4ry",
            "Pass=c4n4ry",
            "--token=c4n4ry",
            "-tc4n4ry",
        ] {
            let access = access(&["ro", flag]);
            let request = MountRequest {
                attachment: &attachment,
                access: &access,
                secrets: &secrets,
                staging: &staging,
            };
            let plan = command::plan(&tools, &request, LIMIT).map(|plan| plan.source);
            let error = plan.expect_err("it would be seen");
            assert_eq!(error.kind(), Kind::Invalid);
            assert!(!error.chain().contains("c4n4ry"), "{}", error.chain());
        }
    }
}

#[test]
fn options_are_masked_in_every_text_of_a_command() {
    let none = StageSecrets::default();
    for pairs in [
        &[
            ("node_attach_driver", "nfs"),
            ("server", "a"),
            ("share", "/a"),
        ][..],
        &[
            ("node_attach_driver", "objectivefs"),
            ("filesystem", "s3://a/b"),
        ],
        &[("node_attach_driver", "oneclient"), ("server", "a")],
    ] {
        let (attachment, access) = (attachment(pairs), access(&["key=c4n4ry", "ro"]));
        let (tools, staging) = (nowhere(), staging());
        let request = MountRequest {
            attachment: &attachment,
            access: &access,
            secrets: &none,
            staging: &staging,
        };
        let plan =
            command::plan(&tools, &request, LIMIT).unwrap_or_else(|error| panic!("{error:?}"));
        let shown = format!("{} {:?}", plan.command, plan.command);
        assert!(!shown.contains("c4n4ry"), "{shown}");
    }
}

#[test]
fn an_option_that_would_become_several_is_refused() {
    let nfs = attachment(&[
        ("node_attach_driver", "nfs"),
        ("server", "a"),
        ("share", "/a"),
    ]);
    let (tools, staging, secrets) = (nowhere(), staging(), StageSecrets::default());
    for (flag, right) in [
        (r#"x="a,suid""#, false),
        (r#"context="u:r:t:s0:c1,c2""#, true),
    ] {
        let access = access(&[flag]);
        let request = MountRequest {
            attachment: &nfs,
            access: &access,
            secrets: &secrets,
            staging: &staging,
        };
        assert_eq!(
            command::plan(&tools, &request, LIMIT).is_ok(),
            right,
            "{flag}"
        );
    }
}

#[test]
fn daemons_get_their_secrets_from_the_environment() {
    use exec::Variable;
    use secrecy::SecretString;
    let secret = |text: &str| SecretString::from(text.to_owned());
    let secrets = StageSecrets {
        env: [
            (Variable::constant("AWS_KEY"), secret("of the secret")),
            (
                Variable::constant("OBJECTIVEFS_LICENSE"),
                secret("0123456789012345678901234567890"),
            ),
        ]
        .into(),
        token: Some(secret("of the secret")),
        ..StageSecrets::default()
    };
    let objectivefs = attachment(&[
        ("node_attach_driver", "objectivefs"),
        ("filesystem", "s3://bucket/a"),
        ("env.AWS_KEY", "of the volume"),
    ]);
    let (line, env) = planned(&objectivefs, &access(&["mt", "noatime"]), &secrets);
    assert_eq!(line, "mount.objectivefs -o mt,noatime bucket/a STAGING");
    assert_eq!(
        env,
        [
            "AWS_KEY=of the volume",
            "OBJECTIVEFS_LICENSE=012345678901234567890123",
            "OBJECTSTORE=s3://"
        ]
    );
    let oneclient = attachment(&[
        ("node_attach_driver", "oneclient"),
        ("server", "one"),
        ("space_names", "a,b"),
        ("space_ids", "7"),
        ("token", "of the volume"),
    ]);
    let (line, env) = planned(&oneclient, &access(&["--force-direct-io"]), &secrets);
    let called = "29 oneclient -H one --force-direct-io --space a --space b --space-id 7 STAGING";
    assert!(line.ends_with(called), "{line}");
    assert_eq!(env, ["ONECLIENT_ACCESS_TOKEN=of the secret"]);
}

#[test]
fn a_mount_is_known_by_what_the_kernel_shows() {
    // Captured from a kernel 6.12 with nfs-utils 2.8 and cifs-utils 7.
    let table = MountTable::from_text(
        "137 40 0:54 / /a rw,relatime shared:98 - nfs4 localhost:/tank/a/v/x rw,vers=4.2\n\
         138 40 0:54 / /b rw,relatime shared:98 - nfs4 [::1]:/tank/a rw,vers=4.2\n\
         131 40 0:48 / /c rw,relatime shared:98 - cifs //127.0.0.1/tank_a/v/y rw,vers=3.0\n\
         57 58 0:47 / /d rw,noatime shared:93 - zfs tank/a rw,xattr,noacl
         58 58 0:48 / /e rw - fuse.objectivefs s3://xfs rw\n",
    );
    let share = |kind, server, share| {
        attachment(&[
            ("node_attach_driver", kind),
            ("server", server),
            ("share", share),
        ])
    };
    let zfs = |name| {
        attachment(&[
            ("node_attach_driver", "zfs-local"),
            ("zfs_asset_name", name),
        ])
    };
    let objectivefs = |filesystem| {
        attachment(&[
            ("node_attach_driver", "objectivefs"),
            ("filesystem", filesystem),
        ])
    };
    for (request, path, right) in [
        (share("nfs", "localhost", "/tank/a/v/x/"), "/a", true),
        (share("nfs", "localhost", "/tank/a/v/y"), "/a", false),
        (share("smb", "localhost", "/tank/a/v/x"), "/a", false),
        (share("nfs", "::1", "/tank/a"), "/b", true),
        (share("smb", "127.0.0.1", "tank_a/v/y"), "/c", true),
        (share("smb", "127.0.0.1", "tank_a"), "/c", false),
        (zfs("tank/a"), "/d", true),
        (zfs("tank/b"), "/d", false),
        (objectivefs("xfs"), "/e", true),
        (objectivefs("fs"), "/e", false),
    ] {
        assert_eq!(
            is_mount_of(
                &request,
                &table
                    .layers(std::path::Path::new(path))
                    .last()
                    .expect("a mount")
            ),
            right,
            "{request:?} at {path}"
        );
    }
}

async fn fails(kind: &str, code: i32, said: &str) -> Error {
    let volume = attachment(&[
        ("node_attach_driver", kind),
        ("server", "nas"),
        ("share", "/a"),
    ]);
    let (access, secrets, staging) = (access(&[]), StageSecrets::default(), staging());
    let request = MountRequest {
        attachment: &volume,
        access: &access,
        secrets: &secrets,
        staging: &staging,
    };
    let plan_tools = nowhere();
    let plan = command::plan(&plan_tools, &request, LIMIT).expect("a plan");
    let runner = Scripted::new().expect(plan.command.masked().as_str(), Reply::exit(code, said));
    let error = runner
        .run_checked(&plan.command)
        .await
        .expect_err("it failed");
    failure::to_error(&request, &plan.source, error)
}

#[tokio::test]
async fn an_error_of_a_server_says_what_to_do() {
    for (kind, said, expected, advice) in [
        (
            "nfs",
            "mount.nfs: access denied by server while mounting nas:/a",
            Kind::Denied,
            "does not export",
        ),
        (
            "nfs",
            "mount.nfs: No route to host",
            Kind::Unreachable,
            "reached",
        ),
        (
            "nfs",
            "mount.nfs: Connection timed out",
            Kind::Unreachable,
            "answer",
        ),
        (
            "smb",
            "mount error(13): Permission denied\nRefer to",
            Kind::Denied,
            "password",
        ),
        (
            "smb",
            "mount error(2): No such file or directory",
            Kind::NotFound,
            "no such share",
        ),
        (
            "smb",
            "mount error(112): Host is down",
            Kind::Unreachable,
            "down",
        ),
        (
            "nfs",
            "mount: /x: bad option; for several filesystems (e.g. nfs, cifs) you might need a \
             /sbin/mount.<type> helper program.",
            Kind::Internal,
            "helper is missing",
        ),
    ] {
        let error = fails(kind, 32, said).await;
        assert_eq!(error.kind(), expected, "{said}: {}", error.chain());
        assert!(
            error.advice().is_some_and(|text| text.contains(advice)),
            "{}",
            error.chain()
        );
        assert_eq!(error.effect(), Effect::Possible);
    }
    let other = fails("nfs", 32, "something new").await;
    assert_eq!(other.kind(), Kind::Internal);
    assert!(other.chain().contains("something new"), "{}", other.chain());
}

#[tokio::test]
async fn what_a_program_prints_on_several_lines_is_one_line_of_an_error() {
    // As mount of util-linux 2.41 ends each failure.
    let said = "mount: /x: fsconfig() failed: nas: no.\n       dmesg(1) may have more information after failed mount system call.\n";
    let error = fails("nfs", 32, said).await.chain();
    let line =
        "failed: nas: no. dmesg(1) may have more information after failed mount system call.";
    assert!(error.contains(line), "{error}");
    assert!(!error.contains("\\n"), "{error}");
}

#[test]
fn what_is_mounted_is_found_through_a_link_on_the_way() {
    crate::testing::with_own_mounts(|base| {
        for name in ["real/s", "other"] {
            std::fs::create_dir_all(base.join(name)).expect("a folder");
        }
        std::os::unix::fs::symlink(base.join("real"), base.join("link")).expect("a link");
        crate::testing::bind_plainly(&base.join("other"), &base.join("real/s"));
        let text = base.join("link/s").display().to_string();
        let staging = AbsolutePath::parse(&text).expect("a path");
        let attachment = attachment(&[
            ("node_attach_driver", "nfs"),
            ("server", "nas"),
            ("share", "/a"),
        ]);
        let request = MountRequest {
            attachment: &attachment,
            access: &access(&[]),
            secrets: &StageSecrets::default(),
            staging: &staging,
        };
        // Its blocking threads are made by this one and so share its mounts.
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime");
        let soon = Instant::now() + Duration::from_mins(1);
        let tools = nowhere();
        let error = runtime
            .block_on(mount(&tools, request, soon))
            .expect_err("something else is there");
        assert_eq!(error.kind(), Kind::Conflict, "{}", error.chain());
    });
}

#[tokio::test]
async fn zfs_is_asked_what_a_name_stands_for() {
    use csi_types::attachment::DatasetName;
    let name = DatasetName::parse("tank/a").expect("a name");
    let line = format!("zfs get -Hp -o property,value,source {} tank/a", zfs::ASKED);
    let soon = Instant::now() + Duration::from_mins(1);
    for (printed, expected) in [
        (
            "type\tfilesystem\nmountpoint\t/tank/a\n",
            Some(Asset::Dataset {
                legacy: false,
                options: Vec::new(),
            }),
        ),
        (
            "type\tfilesystem\nmountpoint\tlegacy\n",
            Some(Asset::Dataset {
                legacy: true,
                options: Vec::new(),
            }),
        ),
        ("type\tvolume\nmountpoint\t-\n", Some(Asset::Zvol)),
        ("type\tsnapshot\nmountpoint\t-\n", None),
        ("", None),
    ] {
        let runner = Scripted::new().expect(&line, Reply::printing(printed));
        let tools = Tools::all_through(Arc::new(runner));
        assert_eq!(
            asset(&tools, &name, soon).await.ok(),
            expected,
            "{printed:?}"
        );
    }
    let said = "cannot open 'tank/a': dataset does not exist";
    let runner = Scripted::new().expect(&line, Reply::exit(1, said));
    let tools = Tools::all_through(Arc::new(runner));
    let gone = asset(&tools, &name, soon).await.expect_err("gone");
    assert_eq!(gone.kind(), Kind::NotFound);
}
