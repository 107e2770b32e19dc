use super::*;

fn context(pairs: &[(&str, &str)]) -> VolumeContext {
    pairs
        .iter()
        .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
        .collect()
}

/// What democratic-csi writes for every kind, and in which form it comes back.
const CONTEXTS: &[(&str, &[(&str, &str)])] = &[
    ("hostpath", &[("path", "/data/v/a")]),
    ("nfs", &[("server", "10.0.0.1"), ("share", "/mnt/tank/v/a")]),
    ("smb", &[("server", "nas.lan"), ("share", "a share/v/a")]),
    (
        "lustre",
        &[
            ("server", "10.0.0.1@tcp:10.0.0.2@tcp"),
            ("share", "/fs/v/a"),
        ],
    ),
    (
        "iscsi",
        &[
            ("iqn", "iqn.2005-10.org.freenas.ctl:csi-a"),
            ("lun", "0"),
            ("portal", "10.0.0.1:3260"),
            ("portals", "[fe80::1%eth0]:3260,nas.lan:3261"),
            ("interface", "eth0"),
        ],
    ),
    (
        "nvmeof",
        &[
            ("nqn", "nqn.2003-01.org.linux-nvme:a"),
            ("nsid", "1"),
            (
                "transport",
                "tcp://10.0.0.1:4420?ctrl-loss-tmo=-1&hdr-digest",
            ),
            ("transports", "rdma://[fd00::1]:4421,fc://[nn-0x1:pn-0x2]"),
            ("storage_fences_nodes", "true"),
        ],
    ),
    ("zfs-local", &[("zfs_asset_name", "tank/csi/v/a b")]),
    (
        "objectivefs",
        &[("filesystem", "s3://bucket/a"), ("env.AWS_SECRET", "s")],
    ),
    (
        "oneclient",
        &[
            ("server", "one.lan"),
            ("space_names", "a b,c"),
            ("space_ids", "1"),
            ("token", "t"),
        ],
    ),
];

#[test]
fn a_context_written_is_the_context_read_and_foreign_keys_are_ignored() {
    assert_eq!(CONTEXTS.len(), Attachment::KINDS.len());
    for ((kind, pairs), known) in CONTEXTS.iter().zip(Attachment::KINDS) {
        assert_eq!(*kind, known);
        let mut text = context(pairs);
        text.insert(KIND_KEY.to_owned(), (*kind).to_owned());
        let attachment = Attachment::parse(&text).unwrap_or_else(|error| panic!("{kind}: {error}"));
        assert_eq!(attachment.kind(), *kind);
        assert_eq!(attachment.to_context(), text, "{kind}");
        for foreign in [
            "storage.kubernetes.io/csiProvisionerIdentity",
            "csi.storage.k8s.io/pod.name",
            "provisioner_driver",
            "provisioner_driver_instance_id",
            "object_store",
        ] {
            text.insert(foreign.to_owned(), "x".to_owned());
        }
        assert_eq!(Attachment::parse(&text), Ok(attachment), "{kind}");
    }
}

#[test]
fn a_context_without_what_it_needs_says_which_key() {
    assert_eq!(
        Attachment::parse(&context(&[])),
        Err(ContextError::Missing(KIND_KEY))
    );
    for (kind, pairs) in CONTEXTS {
        for (missing, _) in *pairs {
            let optional = [
                "portals",
                "transports",
                "interface",
                "space_names",
                "space_ids",
                "token",
                "storage_fences_nodes",
            ];
            if optional.contains(missing) || missing.starts_with("env.") {
                continue;
            }
            let mut text = context(pairs);
            text.insert(KIND_KEY.to_owned(), (*kind).to_owned());
            text.insert((*missing).to_owned(), String::new());
            let read = Attachment::parse(&text);
            if matches!(*missing, "portal" | "transport") {
                assert!(read.is_ok(), "the others are enough: {read:?}");
            } else {
                assert_eq!(read, Err(ContextError::Missing(missing)), "{kind}");
            }
        }
    }
    let mut text = context(CONTEXTS[4].1);
    text.insert(KIND_KEY.to_owned(), "iscsi".to_owned());
    text.extend(context(&[("portal", ""), ("portals", " , ")]));
    assert_eq!(
        Attachment::parse(&text),
        Err(ContextError::Missing("portal"))
    );
}

#[test]
fn nothing_that_could_lead_elsewhere_is_read() {
    let hostile = [
        "-x",
        "a\nb",
        "a\0b",
        "a b'\"",
        "$(id)",
        "`id`",
        "a;b",
        "a\\b",
        "\u{7f}",
        "a\u{1b}[0m",
        "#",
        "'",
    ];
    for (kind, pairs) in CONTEXTS {
        for (key, _) in *pairs {
            // Free text, as their owners like it: they are whole arguments or never arguments.
            if matches!(
                *key,
                "share" | "path" | "space_names" | "space_ids" | "token"
            ) || key.starts_with("env.")
            {
                continue;
            }
            for value in hostile {
                let mut text = context(pairs);
                text.insert(KIND_KEY.to_owned(), (*kind).to_owned());
                text.insert((*key).to_owned(), value.to_owned());
                let read = Attachment::parse(&text);
                // No node uses it, so an old volume is not kept from its pod; it goes no further.
                if let ("interface", Ok(Attachment::Iscsi(iscsi))) = (*key, &read) {
                    assert_eq!(iscsi.interface, None, "{value:?}");
                    continue;
                }
                assert!(read.is_err(), "{kind}: {key} = {value:?}: {read:?}");
            }
        }
    }
    for share in ["-o", "a\nb", "a\0b", "", "///"] {
        let text = context(&[(KIND_KEY, "smb"), ("server", "a"), ("share", share)]);
        assert!(Attachment::parse(&text).is_err(), "{share:?}");
    }
}

#[test]
fn portals_are_read_in_every_spelling_and_each_counts_once() {
    for (text, read) in [
        ("10.0.0.1", "10.0.0.1:3260"),
        ("10.0.0.1:3261", "10.0.0.1:3261"),
        ("nas.lan", "nas.lan:3260"),
        ("[fd00::1]", "[fd00::1]:3260"),
        ("[fd00::1]:3261", "[fd00::1]:3261"),
        ("fd00::1", "[fd00::1]:3260"),
        ("fe80::1%eth0", "[fe80::1%eth0]:3260"),
    ] {
        let portal = Portal::parse(text, Portal::ISCSI).unwrap_or_else(|e| panic!("{text}: {e}"));
        assert_eq!(portal.to_string(), read);
    }
    for bad in [
        "", ":3260", "a:", "a:0", "a:65536", "a:+1", "[::1", "[::1]x", "a b", "a/b", "[a]",
    ] {
        assert!(Portal::parse(bad, 1).is_err(), "{bad:?}");
    }
    let text = context(&[
        (KIND_KEY, "iscsi"),
        ("iqn", "iqn.a"),
        ("lun", "300"),
        ("portal", "10.0.0.1"),
        ("portals", "10.0.0.2, 10.0.0.1:3260 ,,10.0.0.2"),
    ]);
    let Ok(Attachment::Iscsi(iscsi)) = Attachment::parse(&text) else {
        panic!("iscsi");
    };
    let portals: Vec<String> = iscsi.portals.iter().map(Portal::to_string).collect();
    assert_eq!(portals, ["10.0.0.1:3260", "10.0.0.2:3260"]);
    assert_eq!(iscsi.lun.get(), 300);
}

#[test]
fn that_a_storage_fences_nodes_is_true_or_false() {
    let with = |word| {
        let pairs = [
            (KIND_KEY, "nvmeof"),
            ("nqn", "nqn.a"),
            ("nsid", "1"),
            ("transport", "tcp://10.0.0.1"),
            ("storage_fences_nodes", word),
        ];
        match Attachment::parse(&context(&pairs)) {
            Ok(Attachment::Nvmeof(volume)) => Some(volume.is_fenced),
            _ => None,
        }
    };
    let read = ["true", "false", "", "yes", "True"].map(with);
    assert_eq!(read, [Some(true), Some(false), Some(false), None, None]);
}

#[test]
fn what_may_be_secret_is_not_printed() {
    for (kind, pairs) in CONTEXTS {
        let mut text = context(pairs);
        text.insert(KIND_KEY.to_owned(), (*kind).to_owned());
        for key in ["token", "env.AWS_SECRET"] {
            if text.contains_key(key) {
                text.insert(key.to_owned(), "canary".to_owned());
            }
        }
        if text.contains_key("transport") {
            let uri = "tcp://10.0.0.1?dhchap-secret=canary";
            text.insert("transport".to_owned(), uri.to_owned());
        }
        let attachment = Attachment::parse(&text).expect("a context");
        assert!(!format!("{attachment:?}").contains("canary"), "{kind}");
    }
}

#[test]
fn options_of_a_transport_cannot_choose_another_target_or_another_output() {
    for option in [
        "nqn=nqn.x",
        "--traddr=1.2.3.4",
        "output-format=json",
        "a",
        "",
        "=",
        "x y=1",
        "keep-alive-tmo=-x",
        "keep-alive-tmo=a b",
        "-=1",
    ] {
        let read = ConnectOption::parse(option);
        assert!(read.is_err(), "{option:?}: {read:?}");
    }
    let read = ConnectOption::parse("--ctrl-loss-tmo=-1").expect("an option");
    assert_eq!((&*read.name, &*read.value), ("ctrl-loss-tmo", "-1"));
}

mod properties {
    use proptest::prelude::*;

    use super::super::*;

    proptest! {
        #[test]
        fn whatever_is_read_is_written_as_what_is_read_again(
            kind in prop::sample::select(&Attachment::KINDS[..]),
            values in prop::collection::vec("[ -~]{0,24}|[a-z./:@,]{0,24}|\\PC{0,12}", 8),
        ) {
            let keys = [
                "server", "share", "path", "portal", "portals", "zfs_asset_name", "filesystem", "token",
            ];
            let mut context: VolumeContext = keys
                .iter()
                .zip(values)
                .map(|(key, value)| ((*key).to_owned(), value))
                .collect();
            context.insert(KIND_KEY.to_owned(), kind.to_owned());
            for (key, value) in [("iqn", "iqn.a"), ("lun", "1"), ("nqn", "nqn.a"), ("nsid", "1")] {
                context.insert(key.to_owned(), value.to_owned());
            }
            if let Ok(attachment) = Attachment::parse(&context) {
                let written = attachment.to_context();
                prop_assert_eq!(Attachment::parse(&written), Ok(attachment));
                for (key, value) in &written {
                    prop_assert!(!value.contains(['\0', '\n']) || key.starts_with("env."));
                }
            }
        }

        #[test]
        fn no_text_makes_reading_panic(text in "\\PC{0,64}") {
            let _ = Portal::parse(&text, 1);
            let _ = Transport::parse(&text);
            let _ = Transport::parse(&format!("tcp://{text}"));
            let _ = Iqn::parse(&text);
            let _ = Iqn::parse(&format!("iqn{text}"));
            let _ = DatasetName::parse(&text);
            let _ = ObjectivefsName::parse(&text);
            let _ = DeviceId::parse(&text);
        }
    }
}

#[test]
fn a_volume_cannot_have_the_daemon_run_other_code() {
    for key in ["env.LD_PRELOAD", "env.PATH", "env.HOME", "env.BASH_ENV"] {
        let with = |key| {
            Attachment::parse(&context(&[
                ("node_attach_driver", "objectivefs"),
                ("filesystem", "s3://pool/a"),
                (key, "/tmp/x"),
            ]))
        };
        assert!(with(key).is_err(), "{key}");
        with("env.CACHE_PATH").expect("harmless");
    }
}
