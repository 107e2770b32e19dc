//! A volume for one writer has one place, and who may only read does not write.

use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::path::Path;

use csi_proto::v1::NodePublishVolumeRequest;
use csi_proto::v1::volume_capability::access_mode::Mode;
use rustix::fs::StatVfsMountFlags as Flags;
use tonic::Code;

use crate::lab::calls::{Node, refused};
use crate::lab::command::run;
use crate::lab::content;
use crate::lab::life::{LENGTH, read, step, write};
use crate::lab::remains::Remains;
use crate::lab::supply::{Access, Supply, Way};

/// A volume for a single writer is published to two pods, before and after a crash.
///
/// # Panics
/// If the second has it, or the first has lost it.
pub async fn a_single_writer_stays_single(way: Way, access: Access) {
    let supply = way
        .supply("single", access)
        .in_mode(Mode::SingleNodeSingleWriter);
    let before = Remains::read();
    let mut node = Node::start().await;
    let (first, second) = (node.pod("first"), node.pod("second"));
    node.stage(&supply).await.expect("staged");
    node.publish(&supply, &first).await.expect("published");
    for round in ["at once", "after a crash"] {
        step(round);
        let answer = node.publish(&supply, &second).await;
        refused(answer, &[Code::FailedPrecondition], "a second writer");
        node.publish(&supply, &first)
            .await
            .expect("published already");
        write(&supply, &first, &content::bytes(1, LENGTH));
        node.crash().await;
    }
    step("the second may have it when the first has gone");
    node.unpublish(&supply, &first).await.expect("unpublished");
    node.publish(&supply, &second).await.expect("published");
    let found = read(&supply, &second);
    content::same(&content::bytes(1, LENGTH), &found, "the second pod");
    node.take_away(&supply, &[&second]).await;
    Remains::back_to(&before, "a single writer").await;
    node.end().await;
}

/// One pod may write and the other only read.
///
/// # Panics
/// If the reader can write.
pub async fn a_reader_cannot_write(way: Way, access: Access) {
    let supply = way.supply("reader", access);
    let before = Remains::read();
    let node = Node::start().await;
    let (writer, reader) = (node.pod("writer"), node.pod("reader"));
    node.stage(&supply).await.expect("staged");
    node.publish(&supply, &writer).await.expect("published");
    write(&supply, &writer, &content::bytes(1, LENGTH));
    let readonly = NodePublishVolumeRequest {
        readonly: true,
        ..node.publish_request(&supply, &reader)
    };
    node.publish_as(readonly).await.expect("published");
    step("the reader tries to write");
    try_to_write(&supply, &reader);
    let found = read(&supply, &reader);
    content::same(&content::bytes(1, LENGTH), &found, "the reader");
    write(&supply, &writer, &content::bytes(2, LENGTH));
    node.take_away(&supply, &[&reader, &writer]).await;
    Remains::back_to(&before, "a reader").await;
    node.end().await;
}

/// A dataset says of itself that nothing in it may be run, be a device or lend rights, and then that
/// it may not be written. The kernel alone would take no notice of the first three.
///
/// # Panics
/// If a mount of it does not say so, too.
pub async fn the_switches_of_a_dataset_hold() {
    let supply = Way::Dataset.supply("switches", Access::Mount("zfs"));
    let name = &supply.volume.volume_context["zfs_asset_name"];
    let before = Remains::read();
    let node = Node::start().await;
    let restrictions = Flags::NOSUID | Flags::NOEXEC | Flags::NODEV | Flags::NOATIME;
    for (switches, held) in [
        (
            &["setuid=off", "exec=off", "devices=off", "atime=off"][..],
            restrictions,
        ),
        (
            &["readonly=on", "setuid=on", "exec=on", "devices=on"],
            Flags::RDONLY | Flags::NOATIME,
        ),
        (&["readonly=off", "atime=on"], Flags::empty()),
    ] {
        step(&switches.join(" "));
        for switch in switches {
            run(&["zfs", "set", switch, name]);
        }
        node.stage(&supply).await.expect("staged");
        let shown = rustix::fs::statvfs(node.staging(&supply)).expect("statistics");
        let all = restrictions | Flags::RDONLY;
        assert_eq!(shown.f_flag & all, held, "{switches:?}");
        node.unstage(&supply).await.expect("unstaged");
    }
    Remains::back_to(&before, "a dataset with switches").await;
    node.end().await;
}

fn try_to_write(supply: &Supply, pod: &Path) {
    match supply.access {
        Access::Mount(_) => {
            let made = File::create(pod.join("new")).map(drop);
            let errno = made.expect_err("a reader makes no file").raw_os_error();
            assert_eq!(errno, Some(30), "a read-only file system");
            let opened = OpenOptions::new().append(true).open(pod.join("content"));
            assert!(opened.is_err(), "a reader opens no file to write");
        }
        Access::Block => {
            let device = OpenOptions::new().write(true).open(pod);
            let written = device.and_then(|mut device| {
                device.write_all(&[1; 4096])?;
                device.sync_all()
            });
            assert!(written.is_err(), "a reader writes to no device");
        }
    }
}
