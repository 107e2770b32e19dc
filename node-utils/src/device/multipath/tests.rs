//! Maps in trees that look like sysfs, and a daemon that is a thread.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixListener;
use std::sync::Arc;

use exec::testing::{Reply, Scripted};

use super::*;
use crate::kernel::testing::Tree;

const LISTENING: &str = "\
Num       RefCount Protocol Flags    Type St Inode Path
0000000039503f7a: 00000002 00000000 00010000 0001 01  4119 @/org/kernel/linux/storage/multipathd
";

fn tree() -> Tree {
    let tree = Tree::new();
    for (home, name, number) in [("host2", "sda", "8:0"), ("host3", "sdb", "8:16")] {
        tree.disk(home, name, number, 4096).file(
            &format!("sys/devices/{home}/block/{name}/device/wwid"),
            "naa.1\n",
        );
    }
    tree
}

fn device(tree: &Tree, name: &str) -> BlockDevice {
    let found = BlockDevice::by_name(&tree.kernel(), name);
    found.expect("look").expect("device")
}

fn paths(tree: &Tree) -> Vec<BlockDevice> {
    vec![device(tree, "sda"), device(tree, "sdb")]
}

fn soon() -> Instant {
    Instant::now() + Duration::from_mins(1)
}

/// A daemon on the file in `tree` that answers "ok" to each order, after `act` has seen it.
fn daemon(tree: &Arc<Tree>, act: impl Fn(&Tree, &str) + Send + 'static) {
    tree.file("host/run/x", "");
    let listener = UnixListener::bind(tree.path("host/run/multipathd.socket")).expect("bind");
    let tree = Arc::downgrade(tree);
    std::thread::spawn(move || {
        while let Ok((mut stream, _)) = listener.accept() {
            let mut length = [0; size_of::<usize>()];
            if stream.read_exact(&mut length).is_err() {
                continue;
            }
            let mut order = vec![0; usize::from_ne_bytes(length)];
            stream.read_exact(&mut order).expect("order");
            let Some(tree) = tree.upgrade() else { return };
            act(
                &tree,
                String::from_utf8_lossy(&order).trim_end_matches('\0'),
            );
            let mut answer = 4_usize.to_ne_bytes().to_vec();
            answer.extend_from_slice(b"ok\n\0");
            let _ = stream.write_all(&answer);
        }
    });
}

#[test]
fn only_a_map_of_the_multipath_daemon_is_one() {
    let tree = tree();
    tree.map("dm-0", "253:0", "CRYPT-LUKS2-x", &["sda"]);
    let kernel = tree.kernel();
    assert_eq!(map_over(&kernel, &paths(&tree)).expect("look"), None);
    tree.map("dm-1", "253:1", "mpath-36001", &["sdb"]);
    let map = map_over(&kernel, &paths(&tree)).expect("look");
    assert_eq!(map, Some(device(&tree, "dm-1")));
}

#[test]
fn paths_that_lead_to_two_volumes_are_an_error() {
    let tree = tree();
    let kernel = tree.kernel();
    let identity = identity_of(&kernel, &paths(&tree)).expect("same");
    assert_eq!(identity, Identity::parse("naa.1"));
    tree.file("sys/devices/host3/block/sdb/device/wwid", "naa.2\n");
    assert!(identity_of(&kernel, &paths(&tree)).is_err());
    tree.map("dm-0", "253:0", "mpath-1", &["sda"]);
    tree.map("dm-1", "253:1", "mpath-2", &["sdb"]);
    assert!(map_over(&kernel, &paths(&tree)).is_err());
}

#[tokio::test(start_paused = true)]
async fn without_a_daemon_one_path_is_used_without_a_wait() {
    let tree = tree();
    let began = Instant::now();
    let used = assemble(&tree.kernel(), &paths(&tree), soon()).await;
    assert_eq!(used.expect("device").name(), "sda");
    assert_eq!(began.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn with_a_daemon_the_map_over_several_paths_is_waited_for() {
    let tree = tree();
    tree.file("proc/net/unix", LISTENING);
    let (kernel, paths) = (tree.kernel(), paths(&tree));
    let comes = async {
        tokio::time::sleep(Duration::from_secs(7)).await;
        tree.map("dm-0", "253:0", "mpath-1", &["sda", "sdb"]);
    };
    let (used, ()) = tokio::join!(assemble(&kernel, &paths, soon()), comes);
    assert_eq!(used.expect("device").name(), "dm-0");
}

#[tokio::test(start_paused = true)]
async fn a_map_that_never_comes_is_an_error_and_not_a_single_path() {
    let tree = tree();
    tree.file("proc/net/unix", LISTENING);
    let error = assemble(&tree.kernel(), &paths(&tree), soon()).await;
    assert_eq!(error.expect_err("no map").kind(), Kind::Timeout);
}

#[tokio::test(start_paused = true)]
async fn a_single_path_is_used_unless_udev_says_that_the_daemon_takes_it() {
    let tree = tree();
    tree.file("proc/net/unix", LISTENING);
    let kernel = tree.kernel();
    let one = [device(&tree, "sda")];
    // udev is out of sight.
    let used = assemble(&kernel, &one, soon()).await.expect("device");
    assert_eq!(used.name(), "sda");
    // udev speaks late, and says no; then yes.
    tree.file("run/udev/control", "");
    let speaks = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        tree.file("run/udev/data/b8:0", "I:1\nE:DM_MULTIPATH_DEVICE_PATH=0\n");
    };
    let (used, ()) = tokio::join!(assemble(&kernel, &one, soon()), speaks);
    assert_eq!(used.expect("device").name(), "sda");
    tree.file("run/udev/data/b8:0", "I:1\nE:DM_MULTIPATH_DEVICE_PATH=1\n");
    let comes = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        tree.map("dm-0", "253:0", "mpath-1", &["sda"]);
    };
    let (used, ()) = tokio::join!(assemble(&kernel, &one, soon()), comes);
    assert_eq!(used.expect("device").name(), "dm-0");
}

#[tokio::test]
async fn a_map_is_resized_by_the_daemon_and_only_if_its_paths_have_grown() {
    let tree = Arc::new(tree());
    tree.map("dm-0", "253:0", "mpath-1", &["sda", "sdb"])
        .file("sys/class/block/dm-0/size", "4096\n");
    let map = device(&tree, "dm-0");
    let runner = Scripted::new();
    resize(&runner, &tree.kernel(), &map, soon())
        .await
        .expect("fits already");
    for disk in ["sda", "sdb"] {
        tree.file(&format!("sys/class/block/{disk}/size"), "8192\n");
    }
    daemon(&tree, |tree, order| {
        assert_eq!(order, "resize map dm-0");
        tree.file("sys/class/block/dm-0/size", "8192\n");
    });
    resize(&runner, &tree.kernel(), &map, soon())
        .await
        .expect("resized");
    assert_eq!(map.size(&tree.kernel()).expect("size"), 8192 * 512);
}

#[tokio::test(start_paused = true)]
async fn a_map_that_does_not_grow_although_the_tool_says_ok_is_an_error() {
    let tree = tree();
    tree.map("dm-0", "253:0", "mpath-1", &["sda", "sdb"])
        .file("sys/class/block/dm-0/dm/name", "mpatha\n");
    let host = Scripted::new().expect("multipath -r mpatha", Reply::empty());
    let error = resize(&host, &tree.kernel(), &device(&tree, "dm-0"), soon()).await;
    assert_eq!(error.expect_err("no growth").kind(), Kind::Unreachable);
    host.finish();
}

#[tokio::test]
async fn a_map_is_removed_when_sysfs_no_longer_shows_it() {
    let tree = Arc::new(tree());
    tree.map("dm-0", "253:0", "mpath-1", &["sda", "sdb"]);
    let map = device(&tree, "dm-0");
    daemon(&tree, |tree, order| {
        assert_eq!(order, "remove map dm-0");
        // The first answer is "ok" while udev still holds the map open.
        if tree.path("asked").exists() {
            tree.remove("sys/class/block/dm-0");
        }
        tree.file("asked", "");
    });
    let runner = Scripted::new();
    remove(&runner, &tree.kernel(), &map, soon())
        .await
        .expect("removed");
    remove(&runner, &tree.kernel(), &map, soon())
        .await
        .expect("gone already");
}

#[tokio::test(start_paused = true)]
async fn a_map_in_use_is_not_touched() {
    let tree = tree();
    tree.map("dm-0", "253:0", "mpath-1", &["sda", "sdb"]);
    tree.map("dm-1", "253:1", "LVM-x", &["dm-0"]);
    let runner = Scripted::new();
    let error = remove(&runner, &tree.kernel(), &device(&tree, "dm-0"), soon()).await;
    let error = error.expect_err("held");
    assert_eq!(error.kind(), Kind::Busy);
    assert!(error.chain().contains("held by dm-1"), "{}", error.chain());
}

#[tokio::test(start_paused = true)]
async fn without_a_daemon_the_tool_of_the_host_removes_the_map() {
    let tree = tree();
    tree.map("dm-0", "253:0", "mpath-1", &["sda"])
        .file("sys/class/block/dm-0/dm/name", "mpatha\n");
    // Not installed there: an error that says so, after some patience.
    let mut host = Scripted::new();
    for _ in 0..100 {
        host = host.expect("multipath -f mpatha", Reply::missing());
    }
    let error = remove(&host, &tree.kernel(), &device(&tree, "dm-0"), soon()).await;
    let error = error.expect_err("still there");
    assert_eq!(error.kind(), Kind::Busy);
    assert!(
        error.chain().contains("find program `multipath`"),
        "{}",
        error.chain()
    );
}
