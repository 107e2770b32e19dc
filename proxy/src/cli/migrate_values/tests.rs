#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use driver_core::config;

use super::*;

mod shapes;

const NFS: &str = "
csiDriver: {name: org.old.nfs, fsGroupPolicy: File}
csiProxy: {enabled: true}
driver:
  config:
    driver: zfs-generic-nfs
    sshConnection: {host: nas, password: 'on'}
storageClasses:
- {name: nfs, defaultClass: true, parameters: {fsType: nfs, empty: }}
volumeSnapshotClasses: [{name: snapshots}]
controller:
  externalProvisioner: {extraArgs: [--strict-topology=true]}
  driver: {image: {tag: next}, logLevel: debug}
node:
  tolerations: [{operator: Exists}]
  driver: {extraEnv: [{name: A, value: a}]}
";
const ISCSI: &str = "
csiDriver: {name: org.old.iscsi, attachRequired: false}
driver: {config: {driver: zfs-generic-iscsi, service: {node: {}}}}
storageClasses:
- {name: iscsi, defaultClass: true, secrets: {node-stage-secret: {k: v}, provisioner-secret: }}
- {name: nfs}
volumeSnapshotClasses: [{name: snapshots}]
controller: {driver: {logLevel: info}}
node:
  tolerations: [{operator: Exists}, {key: storage}]
  driver: {extraEnv: [{name: B, value: b}]}
";

fn input(name: &str, text: &str) -> Input {
    let Ok(Value::Object(values)) = config::plain_yaml(text) else {
        panic!("no map: {text}");
    };
    Input {
        name: name.to_owned(),
        values,
        ..Input::default()
    }
}

fn flags(csi_name: Option<&str>, take_over: Option<&str>) -> MigrateValuesFlags {
    MigrateValuesFlags {
        files: Vec::new(),
        csi_name: csi_name.map(str::to_owned),
        take_over: take_over.map(str::to_owned),
        legacy_names: false,
    }
}

fn of(inputs: &[Input], flags: &MigrateValuesFlags) -> (Value, Vec<String>, Vec<String>) {
    let mut merged = migrate(inputs, flags).unwrap();
    // The configurations of these tests are short; what a check finds in whole ones is tried with the shapes.
    merged
        .problems
        .retain(|problem| !problem.contains(": check: "));
    (Value::Object(merged.values), merged.notes, merged.problems)
}

#[test]
fn two_releases_become_two_connections_whose_classes_name_them() {
    let inputs = [input("nas", NFS), input("disks", ISCSI)];
    let (values, notes, problems) = of(&inputs, &flags(Some("org.new"), None));
    assert_eq!(problems, Vec::<String>::new());
    assert_eq!(values["csiDriver"]["name"], "org.new");
    assert_eq!(values["csiDriver"]["fsGroupPolicy"], "File");
    assert_eq!(
        values["connections"]["nas"]["sshConnection"]["password"],
        "on"
    );
    assert_eq!(
        values["connections"]["disks"]["driver"],
        "zfs-generic-iscsi"
    );
    let classes = values["storageClasses"].as_array().unwrap();
    let shown: Vec<_> = classes
        .iter()
        .map(|class| {
            (
                class["name"].as_str().unwrap(),
                class["parameters"]["connection"].as_str().unwrap(),
                class["defaultClass"] == true,
            )
        })
        .collect();
    let expected = [
        ("nfs", "nas", true),
        ("iscsi", "disks", false),
        ("nfs-disks", "disks", false),
    ];
    assert_eq!(shown, expected);
    assert_eq!(
        classes[0]["parameters"],
        json!({"fsType": "nfs", "connection": "nas"})
    );
    assert_eq!(classes[1]["secrets"]["node-stage-secret"]["k"], "v");
    assert_eq!(
        values["volumeSnapshotClasses"],
        json!([{"name": "snapshots"}])
    );
    assert_eq!(
        values["node"]["tolerations"],
        json!([{"operator": "Exists"}, {"key": "storage"}])
    );
    assert_eq!(
        values["node"]["driver"]["extraEnv"]
            .as_array()
            .unwrap()
            .len(),
        2
    );
    assert_eq!(
        values["controller"],
        json!({"driver": {"logLevel": "debug"}})
    );
    assert!(values.get("csiProxy").is_none() && values.get("driver").is_none());
    for said in [
        "nas: controller.externalProvisioner.extraArgs is left out",
        "nas: controller.driver.image is left out",
        "nas: csiProxy is left out",
        "disks: the old release has iscsi, nfs still",
        "disks: service counts in driver.config only",
        "iscsi: nfs is the default class already",
        "nfs is there already; this one is called nfs-disks",
        "disks: controller.driver.logLevel is another there",
    ] {
        assert!(
            notes.iter().any(|note| note.contains(said)),
            "{said}: {notes:#?}"
        );
    }
}

#[test]
fn one_release_keeps_its_name_and_its_volumes() {
    let (values, _, problems) = of(&[input("nas", NFS)], &flags(None, None));
    assert_eq!(problems, Vec::<String>::new());
    assert_eq!(values["csiDriver"]["name"], "org.old.nfs");
    assert_eq!(values["csiDriver"]["attachRequired"], true);
    let proxy = json!({"driver": "proxy", "proxy": {"legacyConnection": "nas"}});
    assert_eq!(values["driver"]["config"], proxy);
}

#[test]
fn secrets_of_classes_keep_the_names_that_volumes_hold() {
    let (values, ..) = of(&[input("nas", NFS)], &flags(None, None));
    assert_eq!(values["nameOverride"], "democratic-csi");
    assert!(values.get("fullnameOverride").is_none());
    let named = format!("{NFS}\nnameOverride: csi\nfullnameOverride: store\n");
    let (values, ..) = of(&[input("nas", &named)], &flags(None, None));
    assert_eq!(values["nameOverride"], "csi");
    assert_eq!(values["fullnameOverride"], "store");
    // Added to later, they stay.
    let made = yaml::document(values.as_object().unwrap());
    let inputs = [input("values", &made), input("disks", ISCSI)];
    let (values, ..) = of(&inputs, &flags(None, None));
    assert_eq!(values["nameOverride"], "csi");
    // A new name of the driver has no volumes yet.
    let (values, ..) = of(&[input("nas", NFS)], &flags(Some("org.new"), None));
    assert!(values.get("nameOverride").is_none());
    // The classes of the one whose volumes go on are not renamed.
    let inputs = [input("nas", NFS), input("disks", ISCSI)];
    let (values, ..) = of(&inputs, &flags(None, Some("disks")));
    let classes = values["storageClasses"].as_array().unwrap();
    let names: Vec<_> = classes.iter().map(|class| &class["name"]).collect();
    assert_eq!(names, ["iscsi", "nfs", "nfs-nas"]);
}

#[test]
fn of_several_releases_one_is_taken_over_or_none_and_that_must_be_said() {
    let inputs = [input("nas", NFS), input("disks", ISCSI)];
    let (values, ..) = of(&inputs, &flags(None, Some("disks")));
    assert_eq!(values["csiDriver"]["name"], "org.old.iscsi");
    assert_eq!(values["csiDriver"]["attachRequired"], false);
    assert_eq!(
        values["driver"]["config"]["proxy"]["legacyConnection"],
        "disks"
    );
    let refused = migrate(&inputs, &flags(None, None)).unwrap_err();
    assert!(refused[0].contains("--csi-name"), "{refused:?}");
    assert!(migrate(&inputs, &flags(None, Some("other"))).is_err());
}

#[test]
fn a_release_is_added_to_a_file_that_was_made_before() {
    let (mut first, ..) = of(&[input("nas", NFS)], &flags(None, None));
    // What has been set in it since.
    first["csiDriver"]["version"] = json!("1.13.0");
    first["driver"]["config"]["nfs"] = json!({"shareHost": "nas"});
    first["commonLabels"] = json!({"team": "storage"});
    let made = yaml::document(first.as_object().unwrap());
    let inputs = [input("values", &made), input("disks", ISCSI)];
    let (values, _, problems) = of(&inputs, &flags(None, None));
    assert_eq!(problems, Vec::<String>::new());
    assert_eq!(values["csiDriver"]["name"], "org.old.nfs");
    assert_eq!(values["csiDriver"]["version"], "1.13.0");
    assert_eq!(values["driver"], first["driver"]);
    assert_eq!(values["commonLabels"], first["commonLabels"]);
    assert_eq!(values["connections"]["nas"], first["connections"]["nas"]);
    assert!(values["connections"]["disks"].is_object());
    assert_eq!(values["storageClasses"][0], first["storageClasses"][0]);
}

#[test]
fn of_a_file_of_ours_no_key_of_the_chart_is_left_out() {
    let schema = schema::schema();
    let keys = schema["properties"].as_object().unwrap().keys();
    // Two have an effect in the old chart only.
    let without_effect = ["csiProxy", "enablePSP"];
    for key in keys.filter(|key| !without_effect.contains(&key.as_str())) {
        let values = json!({key: {"a": 1}});
        let (_, left_out) = only_settings(values.as_object().unwrap(), true);
        assert_eq!(left_out, Vec::<String>::new());
    }
}

#[test]
fn what_cannot_be_moved_is_a_problem_and_not_silence() {
    let secret = "driver: {existingConfigSecret: elsewhere, config: {driver: zfs-generic-nfs}}";
    let local = "driver: {config: {driver: local-hostpath}}";
    let inputs = [
        input("secret", secret),
        input("nothing", "{}"),
        input("local", local),
        input("nas", NFS),
    ];
    let (values, _, problems) = of(&inputs, &flags(Some("org.new"), None));
    for said in [
        "Secret elsewhere",
        "not from both",
        "nothing: it has no driver.config.driver",
        "make two",
    ] {
        assert!(
            problems.iter().any(|problem| problem.contains(said)),
            "{said}: {problems:#?}"
        );
    }
    assert_eq!(
        values["driver"]["config"]["proxy"]["nodeTopology"]["type"],
        json!(["cluster", "node"])
    );
}

#[test]
fn what_is_written_is_read_as_it_was_by_yaml_1_1_too() {
    let value = json!({
        "words": ["on", "Yes", "n", "null", "~", "0770", "1e3", "1:30", "", " a", "a: b", "a # b", "- a",
            "two\nlines\n", "é", "plain/word-1.2", "{{ name }}", "*a", "&a", "'", "\"", "0x1f", "=", "<<", ".inf"],
        "on": {"empty": {}, "none": null, "yes": true, "list": [], "deep": [{"a": [1, {"b": 2.5}]}, [[1], ["on"]]]},
    });
    let written = yaml::document(value.as_object().unwrap());
    assert_eq!(config::plain_yaml(&written).unwrap(), value, "{written}");
    for bare in ["- on\n", "- Yes\n", "- 0770\n", "- 1:30\n", "\non:"] {
        assert!(!written.contains(bare), "{bare:?} in {written}");
    }
    assert!(written.contains("- plain/word-1.2\n"), "{written}");
}

#[test]
fn no_note_holds_a_value() {
    let other = ISCSI.replace("logLevel: info", "logLevel: hunter2");
    let (_, notes, problems) = of(
        &[input("nas", NFS), input("disks", &other)],
        &flags(Some("n"), None),
    );
    assert!(!format!("{notes:?}{problems:?}").contains("hunter2"));
}

#[test]
fn the_driver_names_of_all_releases_are_kept_with_what_their_volumes_need() {
    let inputs = [input("nas", NFS), input("disks", ISCSI)];
    let all = MigrateValuesFlags {
        legacy_names: true,
        ..flags(Some("org.new"), None)
    };
    let (values, notes, problems) = of(&inputs, &all);
    assert_eq!(problems, Vec::<String>::new());
    let expected = json!({
        "org.old.nfs": {
            "connection": "nas", "attachRequired": true, "fsGroupPolicy": "File", "snapshots": true,
        },
        "org.old.iscsi": {
            "connection": "disks", "attachRequired": false, "snapshots": true,
            "secrets": {
                "node-stage-secret-iscsi-disks-democratic-csi": {"k": "v"},
                "provisioner-secret-iscsi-disks-democratic-csi": {},
            },
        },
    });
    assert_eq!(values["legacyNames"], expected);
    assert!(values["driver"]["config"]["proxy"]["legacyConnection"].is_null());
    let said = notes.join("\n");
    assert!(
        said.contains("node-stage-secret-iscsi-disks-democratic-csi"),
        "{said}"
    );
    assert!(
        said.contains("in the namespace of the old release"),
        "{said}"
    );
    assert!(
        !said.contains("the old release has"),
        "its classes go with it: {said}"
    );

    // One of them may keep its name as the own one.
    let heir = MigrateValuesFlags {
        legacy_names: true,
        ..flags(None, Some("nas"))
    };
    let (values, _, problems) = of(&inputs, &heir);
    assert_eq!(problems, Vec::<String>::new());
    assert_eq!(values["csiDriver"]["name"], "org.old.nfs");
    let names: Vec<_> = values["legacyNames"].as_object().unwrap().keys().collect();
    assert_eq!(names, ["org.old.iscsi"]);

    // A further release is added to what was made before.
    let before = values.to_string();
    let more = [
        input("values", &before),
        input("more", &NFS.replace("org.old.nfs", "org.old.more")),
    ];
    let (values, _, problems) = of(
        &more,
        &MigrateValuesFlags {
            legacy_names: true,
            ..flags(None, None)
        },
    );
    assert_eq!(problems, Vec::<String>::new());
    let names: Vec<_> = values["legacyNames"].as_object().unwrap().keys().collect();
    assert_eq!(names, ["org.old.iscsi", "org.old.more"]);
    assert_eq!(values["csiDriver"]["name"], "org.old.nfs");
}

#[test]
fn classes_of_an_old_name_are_kept_for_its_snapshots_and_copies() {
    let annotated = NFS.replace(
        "- {name: nfs, defaultClass: true",
        "- {name: nfs, annotations: {storageclass.kubernetes.io/is-default-class: 'true', a: b}, defaultClass: true",
    );
    let without = ISCSI
        .replace("org.old.iscsi", "org.old.none")
        .replace("volumeSnapshotClasses: [{name: snapshots}]", "");
    let inputs = [
        input("nas", &annotated),
        input("disks", ISCSI),
        input("none", &without),
    ];
    let all = MigrateValuesFlags {
        legacy_names: true,
        ..flags(Some("org.new"), None)
    };
    let (values, notes, problems) = of(&inputs, &all);
    assert_eq!(problems, Vec::<String>::new());
    let expected = json!([
        {"name": "snapshots"},
        {"name": "snapshots-old", "csiDriver": "org.old.nfs"},
        {"name": "snapshots-old-disks", "csiDriver": "org.old.iscsi"},
    ]);
    assert_eq!(values["volumeSnapshotClasses"], expected);
    let of_old = |class: &&Value| class.get("csiDriver").is_some();
    let classes = values["storageClasses"].as_array().unwrap();
    let kept: Vec<_> = classes.iter().filter(of_old).cloned().collect();
    let secrets = json!({"node-stage-secret": {"k": "v"}, "provisioner-secret": null});
    let expected = [
        json!({
            "name": "nfs-old", "csiDriver": "org.old.nfs", "annotations": {"a": "b"}, "parameters": {"fsType": "nfs"},
        }),
        json!({"name": "iscsi-old", "csiDriver": "org.old.iscsi", "secrets": secrets}),
        json!({"name": "nfs-old-disks", "csiDriver": "org.old.iscsi"}),
    ];
    assert_eq!(kept, expected);
    let said = notes.join("\n");
    assert!(
        said.contains("disks: its volumes are snapshotted, restored and cloned with the classes snapshots-old-disks, iscsi-old"),
        "{said}"
    );

    // Without the old names there is nothing to snapshot under them.
    let (values, ..) = of(&inputs, &flags(Some("org.new"), None));
    assert!(!values.to_string().contains("-old\""), "{values}");
}

#[test]
fn sidecars_for_what_a_driver_cannot_do_are_left_out() {
    let all = MigrateValuesFlags {
        legacy_names: true,
        ..flags(Some("org.new"), None)
    };
    for (config, grows, snapshots) in [
        ("driver: objectivefs", false, false),
        ("driver: node-manual", false, false),
        ("driver: zfs-generic-nfs", true, true),
        (
            "driver: zfs-generic-nfs, service: {controller: {capabilities: {rpc: [EXPAND_VOLUME]}}}",
            true,
            false,
        ),
        (
            "driver: zfs-generic-nfs, service: {controller: {capabilities: {rpc: [CREATE_DELETE_SNAPSHOT]}}}",
            false,
            true,
        ),
    ] {
        let text = format!(
            "csiDriver: {{name: org.old}}\ndriver: {{config: {{{config}}}}}\nvolumeSnapshotClasses: [{{name: s}}]\n"
        );
        let (values, ..) = of(&[input("old", &text), input("nas", NFS)], &all);
        let own = &values["legacyNames"]["org.old"];
        assert_eq!(own["resizer"] != false, grows, "{config}: {values}");
        assert_eq!(own["snapshots"] == true, snapshots, "{config}: {values}");
        let classes = values["volumeSnapshotClasses"].to_string();
        assert_eq!(
            classes.contains("\"s-old\""),
            snapshots,
            "{config}: {classes}"
        );
    }
}

/// Fields of the old driver object that the new one does not have.
const LOST: [&str; 6] = [
    "enabled",
    "volumeLifecycleModes",
    "storageCapacity",
    "requiresRepublish",
    "tokenRequests",
    "seLinuxMount",
];

#[test]
fn volumes_of_pods_have_no_legacy_name_and_what_a_csidriver_loses_is_said() {
    const INLINE: &str = "
csiDriver: {name: org.old.images}
driver: {config: {driver: containerd-oci-ephemeral-inline}}
";
    let all = MigrateValuesFlags {
        legacy_names: true,
        ..flags(Some("org.new"), None)
    };
    let inputs = [input("nas", NFS), input("images", INLINE)];
    let (values, _, problems) = of(&inputs, &all);
    assert!(
        problems
            .join("\n")
            .contains("images: its volumes are described by pods"),
        "{problems:?}"
    );
    let names: Vec<_> = values["legacyNames"].as_object().unwrap().keys().collect();
    assert_eq!(names, ["org.old.nfs"]);
    let (.., problems) = of(&inputs[1..], &all);
    assert!(
        problems.join("\n").contains("leave --csi-name out"),
        "{problems:?}"
    );
    let keep = MigrateValuesFlags {
        legacy_names: true,
        ..flags(None, None)
    };
    let (values, _, problems) = of(&inputs[1..], &keep);
    assert_eq!(problems, Vec::<String>::new());
    assert_eq!(values["csiDriver"]["name"], "org.old.images");

    let said = |more: &str| {
        let text = NFS.replace("fsGroupPolicy: File", more);
        let (_, notes, _) = of(&[input("nas", &text), input("disks", ISCSI)], &all);
        let is_said = |key: &&str| {
            notes
                .iter()
                .any(|note| note.contains(&format!("nas: csiDriver.{key}: ")))
        };
        LOST.into_iter().filter(is_said).collect::<Vec<_>>()
    };
    assert_eq!(
        said(
            "enabled: false, volumeLifecycleModes: [Persistent, Ephemeral], storageCapacity: true, requiresRepublish: true, \
              tokenRequests: [{audience: a}], seLinuxMount: true"
        ),
        LOST
    );
    assert_eq!(
        said(
            "enabled: true, volumeLifecycleModes: [Persistent], storageCapacity: false, tokenRequests: []"
        ),
        Vec::<&str>::new()
    );
}

#[test]
fn names_that_cannot_be_kept_are_problems() {
    let keep = |csi_name| MigrateValuesFlags {
        legacy_names: true,
        ..flags(Some(csi_name), None)
    };
    let twice = [input("a", NFS), input("b", NFS)];
    let (_, _, problems) = of(&twice, &keep("org.new"));
    assert!(
        problems
            .iter()
            .any(|problem| problem.contains("another file has a driver")),
        "{problems:?}"
    );
    // A file of our chart has a driver of its own, too.
    let ours = "csiDriver: {name: org.ours}\nconnections: {one: {driver: nfs-client}}\n";
    let (_, _, problems) = of(&[input("ours", ours), input("a", NFS)], &keep("org.new"));
    assert!(
        problems
            .join("\n")
            .contains("ours: nothing would serve the volumes of its driver org.ours"),
        "{problems:?}"
    );
    let (_, _, problems) = of(&[input("ours", ours), input("a", NFS)], &keep("org.ours"));
    assert_eq!(problems, Vec::<String>::new());
    // Releases of one full name, from two namespaces.
    let full = format!("{ISCSI}\nfullnameOverride: store\n");
    let twin = full.replace("org.old.iscsi", "org.old.twin");
    let (_, _, problems) = of(&[input("a", &full), input("b", &twin)], &keep("org.new"));
    assert!(
        problems.iter().any(|problem| problem
            .contains("b: a secret of its volumes is called as one of org.old.iscsi")),
        "{problems:?}"
    );
    // Names are cut, and may be the same then.
    let long = "l".repeat(60);
    let two = format!(
        "
csiDriver: {{name: org.long}}
driver: {{config: {{driver: zfs-generic-nfs}}}}
storageClasses:
- {{name: {long}-a, secrets: {{node-stage-secret: {{k: v}}}}}}
- {{name: {long}-b, secrets: {{node-stage-secret: {{k: w}}}}}}
"
    );
    let (_, _, problems) = of(&[input("a", &two), input("b", NFS)], &keep("org.new"));
    assert!(
        problems
            .iter()
            .any(|problem| problem
                .contains("a: two of its classes have a secret node-stage-secret-lll")),
        "{problems:?}"
    );
    let same = [input("a", NFS), input("b", ISCSI)];
    let (_, _, problems) = of(&same, &keep("org.old.nfs"));
    assert!(
        problems
            .iter()
            .any(|problem| problem.contains("--take-over")),
        "{problems:?}"
    );
}
