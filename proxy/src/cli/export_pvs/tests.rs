use std::collections::BTreeSet;

use clap::Parser;
use csi_types::Attachment;
use driver_core::text::GroupSnapshotId;
use driver_core::{MadeFor, SnapshotId, Topology, VolumeId};
use serde_json::{Map, Value, json};

use super::*;
use crate::testing::keeper::{Held, Keeper};

#[derive(Debug, Parser)]
struct Line {
    #[command(flatten)]
    flags: ExportPvsFlags,
}

fn flags(more: &[&str]) -> ExportPvsFlags {
    let start = [
        "x",
        "--driver-config-file=/c.yaml",
        "--csi-name=org.example.csi",
    ];
    let line = Line::try_parse_from([&start[..], more].concat());
    line.expect("good flags").flags
}

fn volume(id: &str, claim: Option<&str>, context: &[(&str, &str)]) -> Volume {
    let context = context.iter();
    let context = context.map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
    Volume {
        id: VolumeId::parse(id).expect("an id"),
        capacity: Some(1 << 30),
        attachment: Attachment::parse(&context.collect()).expect("an attachment"),
        source: None,
        topology: Vec::new(),
        made_for: MadeFor::read(claim, claim.map(|_| "pv-of-then")),
        published_to: Vec::new(),
    }
}

const NFS: [(&str, &str); 3] = [
    ("node_attach_driver", "nfs"),
    ("server", "nas"),
    ("share", "/tank/v/a"),
];
const DISK: [(&str, &str); 4] = [
    ("node_attach_driver", "iscsi"),
    ("portal", "nas:3260"),
    ("iqn", "iqn.2005-10.org.example:b"),
    ("lun", "0"),
];
const LOCAL: [(&str, &str); 2] = [("node_attach_driver", "hostpath"), ("path", "/data/v/c")];

fn listed(name: &str, volumes: Vec<Volume>, snapshots: Vec<Snapshot>) -> Listed {
    Listed {
        connection: Keeper::of(Held::default()).connection(name),
        volumes,
        snapshots,
        problem: None,
    }
}

fn snapshot(id: &str, source: &str, ready: bool) -> Snapshot {
    Snapshot {
        id: SnapshotId::parse(id).expect("an id"),
        source: VolumeId::parse(source).expect("an id"),
        size: 1,
        created: std::time::SystemTime::UNIX_EPOCH,
        ready,
        topology: Vec::new(),
        group: None,
    }
}

/// The provisioner named it so, and its claim has that name on record, too.
#[test]
fn a_recorded_name_goes_to_the_volume_that_it_is_recorded_of_and_to_no_other() {
    let all = [listed(
        "nas",
        vec![
            volume("pv-of-then", None, &NFS),
            volume("pvc-1", Some("shop/data"), &DISK),
            volume("pvc-2", Some("shop/other"), &LOCAL),
        ],
        vec![],
    )];
    let written = objects_of(&flags(&[]), &all);
    let volumes: Vec<(&str, &str)> = written
        .objects
        .iter()
        .filter(|object| object["kind"] == "PersistentVolume")
        .map(|object| {
            let handle = object["spec"]["csi"]["volumeHandle"].as_str();
            (handle.expect("a handle"), name_of(object).expect("a name"))
        })
        .collect();
    let [(_, first), (second, named), (_, third)] = volumes[..] else {
        panic!("{volumes:?}");
    };
    assert_eq!(named, "pv-of-then", "{volumes:?}");
    assert!(second.ends_with("pvc-1"), "{volumes:?}");
    // Two that are recorded by one name: the first listed has it.
    assert!(
        first != named && third != named && first != third,
        "{volumes:?}"
    );
}

fn names(written: &Written) -> Vec<&str> {
    written.objects.iter().filter_map(name_of).collect()
}

fn name_of(object: &Map<String, Value>) -> Option<&str> {
    object["metadata"]["name"].as_str()
}

#[test]
fn a_volume_of_a_claim_becomes_both_objects_and_each_names_the_other() {
    let all = [listed(
        "nas",
        vec![volume("pvc-1", Some("shop/data"), &NFS)],
        vec![],
    )];
    let flags = flags(&[
        "--storage-class=fast",
        "--mount-option=nfsvers=4.2",
        "--node-secret=kube-system/login",
    ]);
    let written = objects_of(&flags, &all);
    assert_eq!(written.remarks, Vec::<String>::new());
    let [volume, claim] = &written.objects[..] else {
        panic!("{:?}", names(&written));
    };
    let reference = json!({"name": "login", "namespace": "kube-system"});
    let expected = json!({
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {
            "annotations": {"pv.kubernetes.io/provisioned-by": "org.example.csi"},
            "name": "pv-of-then",
        },
        "spec": {
            "accessModes": ["ReadWriteMany"],
            "capacity": {"storage": "1073741824"},
            "claimRef": {
                "apiVersion": "v1", "kind": "PersistentVolumeClaim", "name": "data", "namespace": "shop",
            },
            "csi": {
                "driver": "org.example.csi",
                "nodePublishSecretRef": reference,
                "nodeStageSecretRef": reference,
                "volumeAttributes": {
                    "node_attach_driver": "nfs", "server": "nas", "share": "/tank/v/a",
                    "provisioner_driver": "keeper",
                },
                "volumeHandle": "v:nas/pvc-1",
            },
            "mountOptions": ["nfsvers=4.2"],
            "persistentVolumeReclaimPolicy": "Retain",
            "storageClassName": "fast",
            "volumeMode": "Filesystem",
        },
    });
    assert_eq!(Value::Object(volume.clone()), expected);
    assert_eq!(
        claim["metadata"],
        json!({"name": "data", "namespace": "shop"})
    );
    assert_eq!(claim["spec"]["volumeName"], "pv-of-then");
    assert_eq!(claim["spec"]["storageClassName"], "fast");
    let text = text_of(&written, &flags.objects);
    assert!(
        text.contains("# Namespaces that have to exist first: shop\n"),
        "{text}"
    );
    assert!(text.contains("storage: \"1073741824\"\n"), "{text}");
}

#[test]
fn disks_and_storage_of_a_node_are_written_as_such() {
    let mut local = volume("c", None, &LOCAL);
    local.topology = vec![Topology::node("node-1")];
    local.capacity = None;
    let all = [listed("nas", vec![volume("b", None, &DISK), local], vec![])];
    let written = objects_of(&flags(&["--block", "--reclaim-policy=delete"]), &all);
    let [disk, local] = &written.objects[..] else {
        panic!("{:?}", names(&written));
    };
    assert_eq!(disk["spec"]["volumeMode"], "Block");
    assert_eq!(disk["spec"]["accessModes"], json!(["ReadWriteOnce"]));
    assert_eq!(disk["spec"]["persistentVolumeReclaimPolicy"], "Delete");
    assert_eq!(disk["spec"].get("nodeAffinity"), None);
    assert_eq!(local["spec"]["volumeMode"], "Filesystem");
    assert_eq!(local["spec"]["capacity"]["storage"], "1Gi");
    let terms = &local["spec"]["nodeAffinity"]["required"]["nodeSelectorTerms"];
    let expressions = &terms[0]["matchExpressions"];
    assert_eq!(expressions[0]["values"], json!(["node-1"]), "{terms}");
    let written = objects_of(&flags(&["--fs-type=xfs", "--storage-class=fast"]), &all);
    // A claim of the class that is new would get it.
    assert_eq!(written.objects[0]["spec"].get("storageClassName"), None);
    assert_eq!(written.objects[0]["spec"]["csi"]["fsType"], "xfs");
    assert_eq!(written.objects[1]["spec"]["csi"].get("fsType"), None);
}

#[test]
fn a_claim_that_two_volumes_were_made_for_is_given_to_neither_unless_it_is_named() {
    let claimed = |id| volume(id, Some("shop/data"), &NFS);
    let all = [
        listed("nas", vec![claimed("a")], vec![]),
        listed("old", vec![claimed("a"), volume("b", None, &NFS)], vec![]),
    ];
    let written = objects_of(&flags(&[]), &all);
    assert_eq!((written.volumes, written.claims), (3, 0));
    let remark =
        "claim shop/data: v:nas/a, v:old/a were made for it; name the right one by --claim";
    assert_eq!(written.remarks, [remark]);
    let names: BTreeSet<_> = names(&written).into_iter().collect();
    assert_eq!(names.len(), 3, "each has a name of its own: {names:?}");

    let named = ["--claim=v:old/a=shop/data", "--claim=v:old/b=web/logs"];
    let written = objects_of(&flags(&named), &all);
    assert_eq!((written.volumes, written.claims), (3, 2));
    assert_eq!(written.remarks, Vec::<String>::new());
    let of = |handle: &str| {
        let mut objects = written.objects.iter();
        let found = objects.find(|object| object["spec"]["csi"]["volumeHandle"] == handle);
        found.expect("a volume")["spec"]["claimRef"]["name"].clone()
    };
    assert_eq!([of("v:old/a"), of("v:old/b")], ["data", "logs"]);
    assert_eq!(of("v:nas/a"), Value::Null);

    let written = objects_of(&flags(&["--claim=v:nas/z=shop/data"]), &all);
    let missing = "--claim: there is no volume `v:nas/z` for shop/data";
    assert!(
        written.remarks.contains(&missing.to_owned()),
        "{:?}",
        written.remarks
    );
}

#[test]
fn snapshots_of_volumes_with_a_claim_are_in_its_namespace() {
    let volumes = vec![
        volume("a", Some("shop/data"), &NFS),
        volume("b", None, &NFS),
    ];
    let snapshots = vec![
        snapshot("a@snapshot-1", "a", true),
        snapshot("a@snapshot-2", "a", false),
        snapshot("b@snapshot-1", "b", true),
    ];
    let all = [listed("nas", volumes, snapshots)];
    let written = objects_of(&flags(&["--snapshot-class=nas"]), &all);
    assert_eq!(written.snapshots, 1);
    let [.., content, snapshot] = &written.objects[..] else {
        panic!("{:?}", names(&written));
    };
    assert_eq!(content["kind"], "VolumeSnapshotContent");
    assert_eq!(
        content["spec"]["source"]["snapshotHandle"],
        "s:nas/a@snapshot-1"
    );
    assert_eq!(content["spec"]["deletionPolicy"], "Retain");
    let reference = json!({"name": "snapshot-1", "namespace": "shop"});
    assert_eq!(content["spec"]["volumeSnapshotRef"], reference);
    assert_eq!(snapshot["metadata"], reference);
    let source = &snapshot["spec"]["source"]["volumeSnapshotContentName"];
    assert_eq!(*source, content["metadata"]["name"]);
    let remark = "2 snapshots are left out: their volume has no claim here, or they are not ready";
    assert_eq!(written.remarks, [remark]);
}

/// Beside the controllers of nodes, the snapshotter of a node sees no other contents.
#[test]
fn snapshots_on_a_node_are_labelled_for_its_snapshotter() {
    let label = |nodes: &[&str]| {
        let mut local = volume("c", Some("shop/data"), &LOCAL);
        local.topology = nodes.iter().copied().map(Topology::node).collect();
        let all = [listed(
            "disk",
            vec![local],
            vec![snapshot("s-1", "c", true)],
        )];
        let written = objects_of(&flags(&["--snapshot-class=disk"]), &all);
        let mut objects = written.objects.iter();
        let content = objects.find(|object| object["kind"] == "VolumeSnapshotContent");
        let metadata = content.expect("a content")["metadata"].clone();
        metadata["labels"]["snapshot.storage.kubernetes.io/managed-by"].clone()
    };
    assert_eq!(label(&["node-1"]), "node-1");
    assert_eq!(label(&[]), Value::Null);
    assert_eq!(label(&["node-1", "node-2"]), Value::Null);
    assert_eq!(label(&["n".repeat(64).as_str()]), Value::Null);
}

#[test]
fn snapshots_of_groups_are_left_out_with_a_remark() {
    let volumes = vec![volume("a", Some("shop/data"), &NFS)];
    let mut member = snapshot("a@group-1", "a", true);
    member.group = GroupSnapshotId::parse("group-1+0123456789abcdef").ok();
    let all = [listed("nas", volumes, vec![member])];
    let written = objects_of(&flags(&["--snapshot-class=nas"]), &all);
    assert_eq!(written.snapshots, 0);
    let remark = "1 snapshots are left out: write the objects of their groups by hand";
    assert_eq!(written.remarks, [remark]);
}

#[test]
fn a_name_that_no_object_can_have_is_made_of_the_handle() {
    let odd = |id| volume(id, None, &NFS);
    let all = [listed(
        "nas",
        vec![odd("A_b"), odd("a-b"), odd("A.b")],
        vec![],
    )];
    let written = objects_of(&flags(&[]), &all);
    assert_eq!(names(&written), ["v-nas-a-b", "a-b", "v-nas-a-b-2"]);
}

#[test]
fn neither_a_volume_nor_a_claim_is_named_twice() {
    let twice = |claims: &[&str]| named_twice(&flags(claims).claim);
    assert_eq!(
        twice(&["--claim=v:nas/a=shop/a", "--claim=v:nas/b=shop/b"]),
        None
    );
    for second in ["--claim=v:nas/b=shop/a", "--claim=v:nas/a=shop/b"] {
        let said = twice(&["--claim=v:nas/a=shop/a", second]).expect("refused");
        assert_eq!(format!("--claim={said}"), second);
    }
}

#[test]
fn what_no_reader_of_yaml_takes_is_escaped() {
    let values = json!({"path": "/a\u{7f}\u{9b}\u{2028}b"});
    let text = yaml::document(values.as_object().expect("an object"));
    assert_eq!(text, "path: \"/a\\u007f\\u009b\\u2028b\"\n");
}

#[tokio::test]
async fn what_a_connection_has_up_to_its_failure_is_written_and_the_failure_is_said() {
    let held = |pages| Held {
        volumes: vec!["a", "b", "c"],
        pages,
        ..Held::default()
    };
    let chosen = Chosen {
        connections: vec![
            Keeper::of(held(None)).connection("nas"),
            Keeper::of(held(Some(1))).connection("old"),
        ],
        problems: Vec::new(),
    };
    let (written, problems) = export(chosen, &flags(&[])).await;
    assert_eq!(written.volumes, 5);
    assert_eq!(problems, ["unknown: old: list\n"]);
}
