//! Documents: budgets, leniency, paths, and what is said about unknown keys.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use driver_core::config::{
    CommonConfig, ConfigError, DeleteStrategy, Document, Finding, IdHash, NoEnvironment,
    NodeCapability, Severity, Unusable, plain_yaml,
};
use proptest::prelude::*;
use secrecy::{ExposeSecret, SecretString};
use serde::Deserialize;

const CANARY: &str = "c4n4ry-hunter2";

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Zfs {
    dataset_parent_name: String,
    #[serde(default)]
    enable_quotas: bool,
    #[serde(default)]
    retries: u8,
    #[serde(default)]
    properties: BTreeMap<String, String>,
    #[serde(default)]
    password: Option<SecretString>,
    #[serde(default)]
    hosts: Vec<Host>,
}

#[derive(Debug, Deserialize)]
struct Host {
    port: u16,
}

fn parse(text: &str) -> Result<Document, ConfigError> {
    Document::parse(text, &NoEnvironment)
}

fn zfs(body: &str) -> Result<Zfs, ConfigError> {
    parse(&format!("driver: z\nzfs:\n{body}"))?.section("zfs")
}

/// The time of this thread, because other tests run beside this one.
fn time_of<T>(work: impl FnOnce() -> T) -> (T, Duration) {
    let now = || {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
        Duration::try_from(time).expect("a time after zero")
    };
    let start = now();
    let done = work();
    (done, now().saturating_sub(start))
}

fn refused_fast(text: &str) -> ConfigError {
    let (parsed, time) = time_of(|| parse(text));
    let error = parsed.map(drop).expect_err("has to be refused");
    // A bomb that is not refused takes minutes, or all memory.
    assert!(time < Duration::from_secs(1), "{time:?} for {error}");
    error
}

#[test]
fn bombs_are_refused_at_once() {
    let mut aliases = String::from("a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n");
    for level in 1..10 {
        let inner = vec![format!("*a{}", level - 1); 10].join(",");
        writeln!(aliases, "a{level}: &a{level} [{inner}]").expect("text");
    }
    refused_fast(&aliases);
    refused_fast(&format!(
        "a: &a {}\nb: [{}]\n",
        "x".repeat(500_000),
        "*a,".repeat(1_000)
    ));
    refused_fast(&"[".repeat(100_000));
    refused_fast(&"{a: ".repeat(100_000));
    refused_fast(&"[".repeat(1_000));
    refused_fast(&format!("{}{}", "a: [".repeat(499), "x,".repeat(500_000)));
    refused_fast(&format!("{}{}", "{a: ".repeat(990), "x,".repeat(30_000)));
    refused_fast(&"- ".repeat(100_000));
    assert!(
        refused_fast("a: 1\nb:\n  c: 2\n  c: 3\n")
            .to_string()
            .contains("`c` appears twice")
    );
}

#[test]
fn a_document_of_any_kind_up_to_the_limit_is_judged_within_a_second() {
    let keys = |count: usize| {
        (0..count).fold(String::from("driver: z\n"), |mut text, key| {
            writeln!(text, "k{key}: v").expect("text");
            text
        })
    };
    let line = |piece: &str| piece.repeat(1_048_500 / piece.len());
    let large = [
        ("a mebibyte of small keys", keys(80_000)),
        ("as many keys as there may be", keys(9_990)),
        ("one key again and again", line("a: x\n")),
        ("a list", format!("a:\n{}", line("- x\n"))),
        ("a list in brackets", format!("a: [{}]", line("x,"))),
        ("anchors", format!("a: [{}]", line("&a x,"))),
        ("comments", line("#\n")),
        ("line ends", line("\n")),
        ("one long text", format!("a: {}", line("x "))),
        ("text in quotes", format!("a: \"{}\"", line("\\n"))),
        ("what looks like tags", format!("a: '{}'", line("!!"))),
        (
            "variables",
            format!("driver: z\na: {}", "${a}".repeat(1_000)),
        ),
        (
            "brackets",
            format!("{}{}", "{a: ".repeat(180), "x,".repeat(39_000)),
        ),
    ];
    for (what, text) in large {
        assert!(text.len() <= 1 << 20, "{what}: {}", text.len());
        let judge = || {
            let document = parse(&text)?;
            let _ = document.common();
            Ok::<_, ConfigError>(document.findings().len())
        };
        let (judged, time) = time_of(judge);
        assert!(
            time < Duration::from_secs(1),
            "{what}: {time:?}, {judged:?}"
        );
    }
}

#[test]
fn sixty_four_levels_are_read_and_one_more_is_not() {
    let nested = |levels: usize| format!("a: {}{}", "[".repeat(levels - 1), "]".repeat(levels - 1));
    assert!(parse(&nested(64)).is_ok());
    assert!(parse(&nested(65)).is_err());
}

#[test]
fn tags_are_refused_and_text_that_looks_like_one_is_not() {
    for tagged in [
        "!!binary aGk=",
        "!x 1",
        "!!str 5",
        "!<tag:yaml.org,2002:str> 5",
        "! x",
        "!!map {}",
    ] {
        assert!(parse(&format!("a: {tagged}\n")).is_err(), "{tagged}");
        assert!(parse(&format!("a: [b, {tagged}]\n")).is_err(), "{tagged}");
    }
    assert!(parse("%TAG ! tag:yaml.org,2002:\n---\na: !binary x\n").is_err());
    for text in [
        "'!!binary x'",
        "wow!!",
        "a !!binary b",
        "x # !!str",
        "|\n  !!str\n",
    ] {
        assert!(parse(&format!("a: {text}\n")).is_ok(), "{text}");
    }
}

#[test]
fn merge_keys_are_applied_and_what_stands_there_wins() {
    let document = parse(
        "base: &b {datasetParentName: tank, retries: 5}\ndriver: z\nzfs:\n  <<: *b\n  retries: 7\n",
    );
    let zfs: Zfs = document.unwrap().section("zfs").unwrap();
    assert_eq!((zfs.dataset_parent_name.as_str(), zfs.retries), ("tank", 7));
    assert!(parse("a: {<<: 5}\n").is_err());
}

#[test]
fn scalars_are_taken_in_either_notation() {
    let zfs = zfs(
        "  datasetParentName: 5\n  enableQuotas: \"true\"\n  retries: \"7\"\n  \
         properties: {copies: 2, compression: on, atime: true, x: 1.5, y: 0777, z: 3.0}\n  password: 12345\n  hosts: [{port: \"22\"}]\n",
    )
    .unwrap();
    assert_eq!(zfs.dataset_parent_name, "5");
    assert!(zfs.enable_quotas);
    assert_eq!(zfs.retries, 7);
    assert_eq!(zfs.hosts[0].port, 22);
    let properties: Vec<_> = zfs
        .properties
        .iter()
        .map(|(k, v)| format!("{k}={v}"))
        .collect();
    assert_eq!(
        properties,
        [
            "atime=true",
            "compression=on",
            "copies=2",
            "x=1.5",
            "y=0777",
            "z=3"
        ]
    );
    assert_eq!(zfs.password.unwrap().expose_secret(), "12345");
}

#[test]
fn an_error_names_the_path_and_never_the_value() {
    for (body, path) in [
        ("  retries: 5\n", "zfs.datasetParentName"),
        (
            "  datasetParentName: a\n  retries: c4n4ry-hunter2\n",
            "zfs.retries",
        ),
        ("  datasetParentName: a\n  retries: 300\n", "zfs.retries"),
        (
            "  datasetParentName: a\n  enableQuotas: c4n4ry-hunter2\n",
            "zfs.enableQuotas",
        ),
        (
            "  datasetParentName: a\n  password: [c4n4ry-hunter2]\n",
            "zfs.password",
        ),
        (
            "  datasetParentName: a\n  properties: c4n4ry-hunter2\n",
            "zfs.properties",
        ),
        (
            "  datasetParentName: a\n  hosts: [{port: 1}, {port: c4n4ry-hunter2}]\n",
            "zfs.hosts[1].port",
        ),
        (
            "  datasetParentName: a\n  hosts: [{port: 1}, {}]\n",
            "zfs.hosts[1].port",
        ),
        (
            "  datasetParentName: a\n  properties: {a.b: {c4n4ry-hunter2: 1}}\n",
            "zfs.properties[\"a.b\"]",
        ),
        ("  [c4n4ry-hunter2]\n", "zfs"),
        ("  c4n4ry-hunter2\n", "zfs"),
    ] {
        let error = zfs(body).expect_err(body);
        assert_eq!(error.path(), Some(path), "{error}");
        assert!(!format!("{error} {error:?}").contains(CANARY), "{error}");
    }
    let broken = [
        "a: \"c4n4ry-hunter2",
        "p: c4n4ry-hunter2: x",
        "p: *c4n4ry-hunter2",
        "p: &c4n4ry-hunter2 [",
        "p: @c4n4ry-hunter2",
        "p: \"\\c4n4ry-hunter2\"",
        "p: {c4n4ry-hunter2",
        "p: 99999999999999999999999",
    ];
    for text in broken {
        let error = parse(text).map(drop).expect_err(text).to_string();
        assert!(
            !error.contains("hunter2") && error.contains("line"),
            "{error}"
        );
    }
}

#[test]
fn a_misspelt_required_key_is_named_with_the_one_that_is_missing() {
    let error = zfs("  datasetparentname: tank\n").unwrap_err();
    assert_eq!(error.path(), Some("zfs.datasetParentName"));
    assert!(
        error.advice().unwrap().contains("`datasetparentname`"),
        "{error}"
    );
    let error = parse("driver: z\nzsf: {datasetParentName: a}\n")
        .unwrap()
        .section::<Zfs>("zfs")
        .unwrap_err();
    assert!(error.advice().unwrap().contains("`zsf`"), "{error}");
    let error = parse("drivr: z\n").unwrap().common().unwrap_err();
    assert_eq!(
        error.to_string(),
        "driver: is required and missing (is `drivr` a misspelling of it?)"
    );
    let error = parse("drive\trc: z\n").unwrap().common().unwrap_err();
    assert!(error.to_string().contains("`drive\\trc`"), "{error:?}");
    let error = zfs("  datasetparent\tname: tank\n").unwrap_err();
    assert!(!error.to_string().contains('\t'), "{error:?}");
}

#[test]
fn a_key_is_unknown_only_if_nobody_knows_it_and_the_nearest_is_named() {
    let document = parse(
        "driver: z\nnode: {mount: {mountflags: ro}, format: {ext4: {customOption: [x]}}}\n\
         zfs: {datasetParentName: a, retrys: 1, properties: {free: 1}, hosts: [{port: 1, prot: 2}]}\n\
         enableQuotas: true\nextra: {deep: {er: 1}}\n",
    )
    .unwrap();
    document.common().unwrap();
    let _: Zfs = document.section("zfs").unwrap();
    let findings = document.findings();
    let said: Vec<_> = findings
        .iter()
        .map(|f| (f.path.as_str(), f.advice.as_deref().unwrap_or("")))
        .collect();
    assert_eq!(
        said,
        [
            ("enableQuotas", "is `zfs.enableQuotas` meant?"),
            ("extra", ""),
            ("node.format.ext4.customOption", "is `customOptions` meant?"),
            ("node.mount.mountflags", "is `mount_flags` meant?"),
            ("zfs.hosts[0].prot", ""),
            ("zfs.retrys", "is `retries` meant?"),
        ]
    );
    assert!(findings.iter().all(|f| f.severity == Severity::UnknownKey));
}

#[test]
fn keys_that_change_nothing_for_a_driver_are_findings_with_a_reason() {
    let document =
        parse("driver: z\nnode: {format: {ext4: {}}, csiProxy: {enabled: false}}\n").unwrap();
    document.common().unwrap();
    document.without_effect(&[
        ("node.format", "a directory is never formatted"),
        ("node.csiProxy", "there is no Windows node"),
        ("node.mount", "never said: it is not set"),
    ]);
    let findings = document.findings();
    assert_eq!(findings.len(), 2);
    assert!(findings.iter().all(|f| f.severity == Severity::NoEffect));
    assert!(
        findings[0]
            .to_string()
            .starts_with("node.format: has no effect: a directory")
    );
}

#[test]
fn a_block_that_a_driver_has_no_use_for_is_a_finding_with_a_reason_and_not_unknown() {
    let document =
        parse("driver: z\nzfs: {datasetParentName: a, restic: {bin: x}, kopia: {}}\n").unwrap();
    document.without_effect(&[("zfs.restic", "not in this build")]);
    document.common().unwrap();
    let _: Zfs = document.section("zfs").unwrap();
    let findings = document.findings();
    let said: Vec<_> = findings
        .iter()
        .map(|f| (f.severity, f.path.as_str()))
        .collect();
    assert_eq!(
        said,
        [
            (Severity::UnknownKey, "zfs.kopia"),
            (Severity::NoEffect, "zfs.restic")
        ]
    );
}

#[test]
fn after_an_error_nothing_is_said_of_sections_that_were_not_reached() {
    let document = parse(
        "driver: z\n_private: {csi: {volume: {deleteStrategy: burn, idTmplate: x}}}\n\
         zfs: {datasetParentName: a}\nextra: 1\n",
    )
    .unwrap();
    document.common().expect_err("an unknown strategy");
    let paths = |findings: Vec<Finding>| -> Vec<_> {
        findings.into_iter().map(|finding| finding.path).collect()
    };
    let known = ["_private.csi.volume.idTmplate"];
    assert_eq!(paths(document.findings_so_far()), known);
    let document = parse("drivr: z\nzfs: {}\n").unwrap();
    document.common().expect_err("no driver");
    assert_eq!(document.findings_so_far(), []);
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Export {
    #[serde(default)]
    strategy: Option<String>,
    #[serde(default)]
    strategy_one: Option<Strategy>,
    portal: String,
    mask: u8,
}

#[derive(Debug, Deserialize)]
struct Strategy {
    name: String,
}

/// As drivers do: section by section, each with its own rules.
fn driver(document: &Document) -> Result<(), ConfigError> {
    document.common()?;
    let zfs: Zfs = document.section("zfs")?;
    if zfs.dataset_parent_name.starts_with('/') {
        return Err(ConfigError::at("zfs.datasetParentName", "is a path"));
    }
    let export: Export = document.section("export")?;
    if export.strategy.as_deref() != Some("one") {
        return Err(ConfigError::at("export.strategy", "is needed"));
    }
    let missing = || ConfigError::at("export.strategyOne", "is missing");
    let one = export.strategy_one.ok_or_else(missing)?;
    if one.name == export.portal && export.mask > 0 {
        return Err(ConfigError::new("two names of one thing"));
    }
    Ok(())
}

const EXAMPLE: &str = "{driver: z, zfs: {datasetParentName: a}, \
     export: {portal: h, mask: 1, strategy: one, strategyOne: {name: x}}}";

#[test]
fn everything_that_is_wrong_is_in_one_error_and_nothing_that_only_follows_from_it() {
    let good = "export: {portal: h, mask: 1, strategy: one, strategyOne: {name: x}}";
    for (text, wrong) in [
        (
            format!(
                "zfs: {{enableQuotas: maybe, hosts: [{{port: ssh}}, {{port: 1}}, {{}}], \
                 retries: 300, properties: [a]}}\n{good}"
            ),
            &[
                "zfs.enableQuotas",
                "zfs.hosts[0].port",
                "zfs.hosts[2].port",
                "zfs.properties",
                "zfs.retries",
                "zfs.datasetParentName",
            ][..],
        ),
        (
            format!("zfs: {{datasetParentName: [a]}}\n{good}"),
            &["zfs.datasetParentName"],
        ),
        (
            format!("zfs: {{datasetParentName: /a, hosts: {{}}}}\n{good}"),
            &["zfs.hosts", "zfs.datasetParentName"],
        ),
        (
            format!("zfs: [a]\n{good}\nnode: {{mount: 5}}"),
            &["node.mount", "zfs"],
        ),
        (
            String::new(),
            &[
                "zfs.datasetParentName",
                "export.portal",
                "export.mask",
                "export.strategy",
            ],
        ),
        (
            "zfs: {datasetParentName: /a}\nexport: {mask: 300, strategy: two, strategyOne: {}}"
                .to_owned(),
            &[
                "zfs.datasetParentName",
                "export.mask",
                "export.strategyOne.name",
                "export.portal",
                "export.strategy",
            ],
        ),
        (
            "zfs: {datasetParentName: [a]}\nexport: {portal: x, mask: 1, strategy: one}".to_owned(),
            &["zfs.datasetParentName", "export.strategyOne", ""],
        ),
    ] {
        let document = Arc::new(parse(&format!("driver: z\n{text}\n")).unwrap());
        let example = || plain_yaml(EXAMPLE).ok();
        let read = document.read_whole(example, |document| driver(document));
        let Unusable { error, rest } = read.expect_err(&text);
        let all = std::iter::once(&error).chain(error.further());
        let all: Vec<_> = all.map(|error| error.path().unwrap_or_default()).collect();
        assert_eq!(all, wrong, "{text}");
        // Where a key is to blame the rest can be read.
        assert_eq!(rest.is_some(), !wrong.contains(&""), "{text}");
        let keys = wrong.iter().all(|key| error.to_string().contains(key));
        assert!(keys, "{error}");
    }
    let sound = Arc::new(parse(EXAMPLE).unwrap());
    sound
        .read_whole(
            || panic!("a sound file needs no example"),
            |document| driver(document),
        )
        .expect("it is sound");
}

fn common(text: &str) -> Result<CommonConfig, ConfigError> {
    let document = parse(&format!("driver: z\n{text}"))?;
    let config = document.common()?;
    assert_eq!(document.findings(), [], "every key of the test is known");
    Ok(config)
}

#[test]
fn every_common_key_is_read() {
    let config = common(
        "instance_id: 7\n\
         csi: {access_modes: [SINGLE_NODE_WRITER]}\n\
         service:\n\
         \x20 identity: {capabilities: {service: [CONTROLLER_SERVICE], volume_expansion: [ONLINE]}}\n\
         \x20 controller: {capabilities: {rpc: [LIST_VOLUMES, VOLUME_CONDITION]}}\n\
         \x20 node: {capabilities: {rpc: [VOLUME_MOUNT_GROUP]}}\n\
         _private:\n\
         \x20 csi: {volume: {idTemplate: '{{name}}-x', idHash: {strategy: MD5}, deleteStrategy: retain, volumeContext: {driver: memory}}}\n\
         \x20 volume_context: {v1: {path: /a}}\n\
         node:\n\
         \x20 mount: {mount_flags: 'ro,noatime', checkFilesystem: {ext4: {enabled: 'true', customOptions: [-y], customFilesystemOptions: [5]}, xfs: }}\n\
         \x20 format: {ext4: {customOptions: [-m, 0]}}\n\
         \x20 kata: {directVolumes: 'true'}\n\
         \x20 csiProxy: {enabled: true, services: {disk: {version: v1, connection: x}}}\n",
    )
    .unwrap();
    assert_eq!(config.instance_id.as_deref(), Some("7"));
    assert_eq!(config.csi.access_modes.unwrap().len(), 1);
    let service = config.service;
    assert_eq!(service.identity.capabilities.service.unwrap().len(), 1);
    assert_eq!(
        service
            .identity
            .capabilities
            .volume_expansion
            .unwrap()
            .len(),
        1
    );
    assert_eq!(service.controller.capabilities.rpc.unwrap().len(), 2);
    assert_eq!(
        service.node.capabilities.rpc,
        Some(vec![NodeCapability::VolumeMountGroup])
    );
    let volume = config.private.csi.volume;
    assert_eq!(volume.id_template.unwrap().source(), "{{name}}-x");
    assert_eq!(volume.id_hash.strategy, Some(IdHash::Md5));
    assert_eq!(volume.delete_strategy, DeleteStrategy::Retain);
    assert!(volume.volume_context.driver.is_some());
    assert_eq!(config.private.volume_context["v1"]["path"], "/a");
    let mount = config.node.mount;
    assert_eq!(
        mount.mount_flags.iter().collect::<Vec<_>>(),
        ["ro", "noatime"]
    );
    let ext4 = mount
        .check_filesystem
        .iter()
        .find(|(k, _)| k.as_str() == "ext4")
        .unwrap()
        .1;
    assert!(ext4.enabled);
    assert_eq!(
        (
            ext4.custom_options.len(),
            ext4.custom_filesystem_options[0].as_str()
        ),
        (1, "5")
    );
    assert_eq!(mount.check_filesystem.len(), 2);
    assert_eq!(config.node.format.len(), 1);
    assert!(config.node.kata.direct_volumes);
    assert_eq!(
        config.node.csi_proxy.services["disk"].version.as_deref(),
        Some("v1")
    );
}

#[test]
fn absent_and_null_common_keys_are_the_same() {
    for text in [
        "",
        "csi:\nservice: ~\nnode:\n_private:\n",
        "instance_id: ''\ncsi: {access_modes: }\nnode: {mount: {mount_flags: ''}}\n",
        "instance_id: 0\n",
        "_private: {csi: {volume: {idTemplate: '', idHash: {strategy: ''}}}}\n",
    ] {
        let config = common(text).expect(text);
        assert_eq!(config.instance_id, None);
        assert!(config.csi.access_modes.is_none());
        assert!(config.node.mount.mount_flags.is_empty());
        assert!(config.private.csi.volume.id_template.is_none());
        assert!(config.private.csi.volume.id_hash.strategy.is_none());
        assert_eq!(
            config.private.csi.volume.delete_strategy,
            DeleteStrategy::Delete
        );
    }
}

#[test]
fn unknown_choices_are_errors_with_the_nearest_name() {
    for (text, path, nearest) in [
        (
            "csi: {access_modes: [SINGLE_NODE_WRITR]}",
            "csi.access_modes",
            "SINGLE_NODE_WRITER",
        ),
        (
            "service: {node: {capabilities: {rpc: [VOLUME_MOUNT_GROUPS]}}}",
            "service.node.capabilities.rpc[0]",
            "VOLUME_MOUNT_GROUP",
        ),
        (
            "service: {controller: {capabilities: {rpc: [list_volumes]}}}",
            "service.controller.capabilities.rpc[0]",
            "LIST_VOLUMES",
        ),
        (
            "_private: {csi: {volume: {deleteStrategy: Retain}}}",
            "_private.csi.volume.deleteStrategy",
            "retain",
        ),
        (
            "_private: {csi: {volume: {idHash: {strategy: crc-32}}}}",
            "_private.csi.volume.idHash.strategy",
            "crc32",
        ),
    ] {
        let error = common(text).expect_err(text);
        assert_eq!(error.path(), Some(path), "{error}");
        assert_eq!(
            error.advice(),
            Some(format!("is `{nearest}` meant?").as_str()),
            "{error}"
        );
    }
}

#[test]
fn a_bad_template_fails_when_the_configuration_is_read() {
    let error = common("_private: {csi: {volume: {idTemplate: '{{name'}}}").unwrap_err();
    assert_eq!(error.path(), Some("_private.csi.volume.idTemplate"));
    let error = common("node: {mount: {mount_flags: 'a c4n4ry-hunter2'}}").unwrap_err();
    assert_eq!(error.path(), Some("node.mount.mount_flags"));
    assert!(!error.to_string().contains(CANARY));
    assert!(common("node: {format: {../x: {}}}").is_err());
}

#[test]
fn a_document_never_prints_its_values() {
    let document =
        parse("driver: z\nzfs: {datasetParentName: a, password: c4n4ry-hunter2}\n").unwrap();
    let zfs: Zfs = document.section("zfs").unwrap();
    assert!(!format!("{document:?} {zfs:?}").contains(CANARY));
}

#[test]
fn documents_that_are_no_maps_are_refused_and_an_empty_one_has_no_driver() {
    for text in [
        "5",
        "[a]",
        "text",
        "a: 1\n---\nb: 2\n",
        "? [a]\n: b\n",
        "~: a\n",
        "a: .inf\n",
        "a: 18446744073709551616\n",
    ] {
        assert!(parse(text).is_err(), "{text}");
    }
    assert_eq!(
        parse("").unwrap().driver().unwrap_err().path(),
        Some("driver")
    );
    assert!(parse("driver: 5\n").unwrap().driver().is_err());
}

proptest! {
    #[test]
    fn no_text_panics(text in "[a-c0-9:\\-\\[\\]{}&*!<>|'\"#%@, \n\t~?.]{0,200}") {
        if let Ok(document) = parse(&text) {
            let _ = document.common();
            let _ = document.section::<Zfs>("a");
            let _ = document.findings();
        }
    }

    #[test]
    fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = parse(&String::from_utf8_lossy(&bytes));
    }

    #[test]
    fn no_section_panics(body in "(  [a-zA-Z]{1,4}: [a-z0-9\\[\\]{}\",:']{0,10}\n){0,6}") {
        let _ = zfs(&body);
    }
}
