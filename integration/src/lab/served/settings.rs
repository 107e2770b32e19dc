//! The settings of a configuration for new volumes, as ZFS and the filesystem show it afterwards.

use super::life::{cut, delete, make, make_as, remove_snapshot};
use super::{Served, storage};
use crate::lab::calls::Node;
use crate::lab::command::run;
use crate::lab::fixture::{Backing, Fixture, SIZE};
use crate::lab::leftovers::Leftovers;
use crate::lab::life::step;
use crate::place::Place;
use crate::volume;

/// Of both kinds.
const ALL: &str = "  snapshotProperties: {'org.example:cut': 'for {{parameters.team}}'}
";
/// Of filesystems, but for what every cell sets.
const FILESYSTEM: &str = "  datasetEnableReservation: true
  datasetPermissionsUser: 1234
  datasetPermissionsGroup: 1235
  datasetPermissionsAcls: ['-m u:1236:rwx', '-m d:u:1236:r-x']
  datasetProperties: {acltype: posix, xattr: sa, 'org.example:of': 'for {{parameters.team}}'}
";
/// Of zvols.
const ZVOL: &str = "  zvolBlocksize: 32K
  zvolCompression: lz4
  zvolDedup: verify
  zvolEnableReservation: true
  datasetProperties: {'org.example:of': 'for {{parameters.team}}'}
";
const TEAM: (&str, &str) = ("team", "a & b");

/// Each key, on a volume, on its snapshot, on a clone and on a full copy; and a class that wants it otherwise, once.
///
/// # Panics
/// At whatever is wrong in it.
pub async fn are_kept(served: Served) {
    let of_kind = if served.is_device() { ZVOL } else { FILESYSTEM };
    let place = Place::new();
    let node = Node::start_with(served.launch_with(&place, &format!("{ALL}{of_kind}"))).await;
    let before = (Leftovers::read(), storage());

    step("make, cut, clone, copy");
    let first = make_as(&node, served, "first", SIZE, None, &[TEAM]).await;
    as_configured(served, &first);
    let cut = cut(&node, &first, &[TEAM]).await;
    let (_, leaf) = cut.split_once('@').expect("the id of a snapshot");
    let snapshot = format!("{}@{leaf}", dataset(&first));
    assert_eq!(shown("org.example:cut", &snapshot), "for a &amp; b");
    let source = volume::from_snapshot(&cut);
    let clone = make_as(&node, served, "clone", SIZE, source.clone(), &[TEAM]).await;
    let whole = [TEAM, ("detachedVolumesFromSnapshots", "true")];
    let copy = make_as(&node, served, "copy", SIZE, source, &whole).await;
    assert_eq!(shown("origin", &dataset(&clone)), snapshot);
    for other in [&clone, &copy] {
        as_configured(served, other);
    }

    if served.is_device() {
        step("a class of its own");
        let class = [TEAM, ("config", "zfs: {zvolBlocksize: 64K}")];
        let other = make_as(&node, served, "other", SIZE, None, &class).await;
        assert_eq!(shown("volblocksize", &dataset(&other)), "65536");
        let next = make(&node, served, "next", SIZE, None).await;
        assert_eq!(shown("volblocksize", &dataset(&next)), "32768");
        for fixture in [&other, &next] {
            delete(&node, fixture).await;
        }
    }

    step("take away");
    for other in [&clone, &copy] {
        delete(&node, other).await;
    }
    remove_snapshot(&node, &cut).await;
    delete(&node, &first).await;
    Leftovers::back_to(&before.0, "the settings").await;
    assert_eq!(storage(), before.1, "the storage is as before");
    node.end().await;
}

fn as_configured(served: Served, fixture: &Fixture) {
    let dataset = dataset(fixture);
    // As democratic-csi's templates do it, for HTML.
    assert_eq!(shown("org.example:of", &dataset), "for a &amp; b");
    let size = SIZE.to_string();
    if served.is_device() {
        for (property, value) in [
            ("volblocksize", "32768"),
            ("compression", "lz4"),
            ("dedup", "verify"),
            ("volsize", &size),
        ] {
            assert_eq!(shown(property, &dataset), value, "{property}");
        }
        let kept: u64 = shown("refreservation", &dataset).parse().expect("a number");
        assert!(kept >= SIZE, "{kept} of {SIZE} bytes are kept free");
    } else {
        for (property, value) in [
            ("refquota", size.as_str()),
            ("refreservation", &size),
            ("acltype", "posix"),
        ] {
            assert_eq!(shown(property, &dataset), value, "{property}");
        }
        permitted(fixture);
    }
}

/// Owner, mode and lists of a volume's directory.
fn permitted(fixture: &Fixture) {
    let path = shown("mountpoint", &dataset(fixture));
    assert_eq!(
        run(&["stat", "-c", "%u:%g %a", &path]).trim(),
        "1234:1235 777"
    );
    let lists = run(&["getfacl", "-cpn", &path]);
    for entry in ["user:1236:rwx", "default:user:1236:r-x"] {
        assert!(lists.lines().any(|line| line == entry), "{entry}: {lists}");
    }
}

/// The dataset of a volume.
pub(super) fn dataset(fixture: &Fixture) -> String {
    let Backing::Dataset(dataset) = &fixture.backing else {
        panic!("a volume that is served has a dataset")
    };
    dataset.name.clone()
}

/// A property, as `zfs get` shows it.
pub(super) fn shown(property: &str, object: &str) -> String {
    let words = ["zfs", "get", "-Hp", "-o", "value", property, object];
    run(&words).trim_end().to_owned()
}
