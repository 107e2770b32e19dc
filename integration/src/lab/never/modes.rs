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
use crate::lab::fixture::{Access, ExportKind, Fixture};
use crate::lab::leftovers::Leftovers;
use crate::lab::life::{LENGTH, read, step, write};

/// A volume for a single writer is published to two pods, before and after a crash.
///
/// # Panics
/// If the second has it, or the first has lost it.
pub async fn a_single_writer_stays_single(export_kind: ExportKind, access: Access) {
    let fixture = export_kind
        .fixture("single", access)
        .in_mode(Mode::SingleNodeSingleWriter);
    let before = Leftovers::read();
    let mut node = Node::start().await;
    let (first, second) = (node.pod("first"), node.pod("second"));
    node.stage(&fixture).await.expect("staged");
    node.publish(&fixture, &first).await.expect("published");
    for round in ["at once", "after a crash"] {
        step(round);
        let answer = node.publish(&fixture, &second).await;
        refused(answer, &[Code::FailedPrecondition], "a second writer");
        node.publish(&fixture, &first)
            .await
            .expect("published already");
        write(&fixture, &first, &content::bytes(1, LENGTH));
        node.crash().await;
    }
    step("the second may have it when the first has gone");
    node.unpublish(&fixture, &first).await.expect("unpublished");
    node.publish(&fixture, &second).await.expect("published");
    let found = read(&fixture, &second);
    content::same(&content::bytes(1, LENGTH), &found, "the second pod");
    node.take_away(&fixture, &[&second]).await;
    Leftovers::back_to(&before, "a single writer").await;
    node.end().await;
}

/// One pod may write and the other only read.
///
/// # Panics
/// If the reader can write.
pub async fn a_reader_cannot_write(export_kind: ExportKind, access: Access) {
    let fixture = export_kind.fixture("reader", access);
    let before = Leftovers::read();
    let node = Node::start().await;
    let (writer, reader) = (node.pod("writer"), node.pod("reader"));
    node.stage(&fixture).await.expect("staged");
    node.publish(&fixture, &writer).await.expect("published");
    write(&fixture, &writer, &content::bytes(1, LENGTH));
    let readonly = NodePublishVolumeRequest {
        readonly: true,
        ..node.publish_request(&fixture, &reader)
    };
    node.publish_as(readonly).await.expect("published");
    step("the reader tries to write");
    try_to_write(&fixture, &reader);
    let found = read(&fixture, &reader);
    content::same(&content::bytes(1, LENGTH), &found, "the reader");
    write(&fixture, &writer, &content::bytes(2, LENGTH));
    node.take_away(&fixture, &[&reader, &writer]).await;
    Leftovers::back_to(&before, "a reader").await;
    node.end().await;
}

/// A dataset says of itself that nothing in it may be run, be a device or lend rights, and then that
/// it may not be written. The kernel alone would take no notice of the first three.
///
/// # Panics
/// If a mount of it does not say so, too.
pub async fn the_switches_of_a_dataset_hold() {
    let fixture = ExportKind::Dataset.fixture("switches", Access::Mount("zfs"));
    let name = &fixture.volume.volume_context["zfs_asset_name"];
    let before = Leftovers::read();
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
        node.stage(&fixture).await.expect("staged");
        let shown = rustix::fs::statvfs(node.staging(&fixture)).expect("statistics");
        let all = restrictions | Flags::RDONLY;
        assert_eq!(shown.f_flag & all, held, "{switches:?}");
        node.unstage(&fixture).await.expect("unstaged");
    }
    Leftovers::back_to(&before, "a dataset with switches").await;
    node.end().await;
}

fn try_to_write(fixture: &Fixture, pod: &Path) {
    match fixture.access {
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
