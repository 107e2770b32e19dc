//! The number of calls of `zfs` a call of the driver costs, on a host with a `zfs` that pretends.

use std::collections::BTreeMap;
use std::path::Path;

use crate::bare::{Bare, settings};
use crate::fake::{call, host};
use driver_core::{
    CreateSnapshot, DeleteSnapshot, ExpandVolume, Expander as _, Parameters, SizeRange,
    SnapshotName, Snapshots as _, VolumeId,
};
use driver_zfs::ZfsDriver;
use driver_zfs::observed::VolumeKind;

/// One volume of 1 GiB, and a snapshot where it was taken. Only the kernel looks through volumes.
const ONE_VOLUME: &str = r#"
echo "$*" >>"${0%/*}/calls"
row() { printf '%s\t%s\t%s\t%s\n' "$@"; }
show() {
    case $1 in
    tank/v/pvc-1)
        row "$1" type volume -; row "$1" guid 7 -; row "$1" volsize 1073741824 local
        row "$1" volblocksize 16384 -; row "$1" democratic-csi:managed_resource true local
        row "$1" democratic-csi:csi_share_volume_context '{"node_attach_driver":"zfs-local","zfs_asset_name":"tank/v/pvc-1"}' local ;;
    tank/v/pvc-1@*)
        [ -e "${0%/*}/taken" ] || { echo "cannot open '$1': dataset does not exist" >&2; bad=1; return; }
        row "$1" type snapshot -; row "$1" guid 8 -; row "$1" creation 1 -
        row "$1" defer_destroy off -
        row "$1" democratic-csi:csi_snapshot_name "${1#*@}" local
        row "$1" democratic-csi:managed_resource true local
        row "$1" democratic-csi:provision_success true local ;;
    *) echo "cannot open '$1': dataset does not exist" >&2; bad=1 ;;
    esac
}
case "$*" in
"get -Hp -o name,property,value,source "*) shift 5; for n; do show "$n"; done; exit ${bad-0} ;;
"program -j tank - tank/v/pvc-1@"*" democratic-csi:csi_snapshot_name")
    cat >/dev/null; rm "${0%/*}/taken"; printf '{"return":"done"}\n' ;;
"program -jn tank - s1 tank/v tank/s") cat >/dev/null; printf '{"return":"[]"}\n' ;;
"set volsize=2147483648 tank/v/pvc-1") ;;
"snapshot "*" tank/v/pvc-1@"*) : >"${0%/*}/taken" ;;
*) echo "unexpected: $*" >&2; exit 2 ;;
esac"#;

fn driver(folder: &Path) -> ZfsDriver {
    let kind = VolumeKind::Zvol;
    let settings = settings(kind, "tank/v", "tank/s", "");
    ZfsDriver::new(settings, host(folder, ONE_VOLUME), Bare { kind })
}

/// The number of times that `zfs` was called since the last time. Each call names what it looks at and never all that
/// is below the parents: so the number of volumes, of which the host here says nothing, has no part in it.
fn calls(folder: &Path) -> usize {
    let path = folder.join("calls");
    let calls = std::fs::read_to_string(&path).unwrap();
    std::fs::remove_file(path).unwrap();
    for line in calls.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        let walks = words[0] == "list" || words.contains(&"-r") || words.contains(&"-d");
        assert!(
            !walks || words[0] == "destroy",
            "it walks over volumes: {line}"
        );
    }
    calls.lines().count()
}

#[tokio::test(flavor = "multi_thread")]
async fn no_call_about_one_volume_needs_more_than_a_few_calls_of_zfs() {
    let folder = tempfile::tempdir().unwrap();
    let (folder, id) = (folder.path(), VolumeId::parse("pvc-1").unwrap());
    let driver = driver(folder);

    let size = SizeRange::new(2 << 30, 0).unwrap();
    let grown = driver
        .expand_volume(&call(), ExpandVolume::new(&id, size))
        .await
        .unwrap();
    assert_eq!(grown.capacity, 2 << 30);
    // A look and the size.
    assert_eq!(calls(folder), 2);

    // A look at both, the snapshot, a look; and one for other snapshots of a name that others may have.
    let unique = "snapshot-0aa4ba5c-6ee9-4d3b-9cf3-0f1e2d3c4b5a";
    for (name, to_take) in [(unique, 3), ("s1", 4)] {
        let request = CreateSnapshot {
            name: SnapshotName::parse(name).unwrap(),
            source: id.clone(),
            parameters: Parameters::default(),
            secrets: BTreeMap::new(),
        };
        let taken = driver.create_snapshot(&call(), &request).await.unwrap();
        assert_eq!(calls(folder), to_take, "{name}");

        driver
            .delete_snapshot(&call(), DeleteSnapshot::new(&taken.id))
            .await
            .unwrap();
        // The kernel looks and destroys.
        assert_eq!(calls(folder), 1, "{name}");
    }
}
