//! The way each state comes about, mostly as in real life.

use std::any::Any;
use std::os::unix::fs::symlink;

use super::super::silent::fuse;
use super::super::*;
use super::{State, Verb, Volume, act, publish_request, stage_request};
use crate::mount::{self, Place};

macro_rules! states {
    ($($volume:ident, $name:literal => $prepare:expr;)*) => {
        pub(super) const STATES: &[State] = &[$(
            State { volume: Volume::$volume, name: $name, prepare: $prepare }
        ),*];
    };
}

states! {
    Directory, "nothing is there" => |_| none();
    Directory, "the volume is staged" => |b| after(b, Volume::Directory, &[Verb::Stage]);
    Directory, "staged and published" => |b| after(b, Volume::Directory, &[Verb::Stage, Verb::Publish]);
    Directory, "the staging path is an empty directory" => |b| dir(b, "k/s");
    Directory, "the staging path is a directory with content" => |b| content(b, "k/s");
    Directory, "the staging path is a file" => |b| file(b, "k/s");
    Directory, "the staging path is a link to a directory" => |b| link(b, "k/s");
    Directory, "another volume is staged there" => |b| binds(b, &[("v/two", "k/s")]);
    Directory, "staged three times, one over the other" => |b| binds(b, &[("v/one", "k/s"); 3]);
    Directory, "staged, then the volume was deleted" => |b| {
        after(b, Volume::Directory, &[Verb::Stage]);
        delete_volume(b)
    };
    Directory, "staged and published, then the volume was deleted" => |b| {
        after(b, Volume::Directory, &[Verb::Stage, Verb::Publish]);
        delete_volume(b)
    };
    Directory, "the volume does not exist" => delete_volume;
    Directory, "the volume is a link" => |b| {
        delete_volume(b);
        symlink(b.path("v/two"), b.path("v/one")).expect("link");
        none()
    };
    Directory, "staged; the target is an empty directory" => |b| { staged(b); dir(b, "k/t") };
    Directory, "staged; the target is a directory with content" => |b| { staged(b); content(b, "k/t") };
    Directory, "staged; the target is a file" => |b| { staged(b); file(b, "k/t") };
    Directory, "staged; the target is a link to a directory" => |b| { staged(b); link(b, "k/t") };
    Directory, "staged; another volume is at the target" => |b| { staged(b); binds(b, &[("v/two", "k/t")]) };
    Directory, "staged; published twice at the target" => |b| { staged(b); binds(b, &[("k/s", "k/t"); 2]) };
    Directory, "staged; published read-only" => |b| { staged(b); read_only(b, Volume::Directory) };
    Directory, "published; the staging path was unmounted by hand" => |b| {
        after(b, Volume::Directory, &[Verb::Stage, Verb::Publish]);
        mount::unmount(&b.path("k/s")).expect("unmount");
        none()
    };
    Directory, "published; a process has a file open there" => |b| {
        after(b, Volume::Directory, &[Verb::Stage, Verb::Publish]);
        Box::new(fs::File::open(b.path("k/t/name")).expect("open"))
    };
    Directory, "staged; a process has a file open there" => |b| {
        staged(b);
        Box::new(fs::File::open(b.path("k/s/name")).expect("open"))
    };
    Directory, "published; the filesystem turned read-only" => |b| {
        own_filesystem(b);
        after(b, Volume::Directory, &[Verb::Stage, Verb::Publish]);
        crate::testing::remount(&b.path("v"), true);
        none()
    };
    Directory, "a mount whose process died is at the staging path" => |b| dead(b, "k/s");
    Directory, "staged; a mount whose process died is at the target" => |b| { staged(b); dead(b, "k/t") };
    Directory, "a mount that does not answer is at the staging path" => |b| silent(b, "k/s");
    Directory, "staged; a mount that does not answer is at the target" => |b| { staged(b); silent(b, "k/t") };

    Filesystem, "nothing is there" => |_| none();
    Filesystem, "the volume is staged" => |b| after(b, Volume::Filesystem, &[Verb::Stage]);
    Filesystem, "staged and published" => |b| after(b, Volume::Filesystem, &[Verb::Stage, Verb::Publish]);
    Filesystem, "recorded and attached, not mounted" => |b| { record(b); attach(b, "one") };
    Filesystem, "attached without a record" => |b| attach(b, "one");
    Filesystem, "recorded, not attached" => record;
    Filesystem, "staged by an older driver, without a record" => |b| {
        after(b, Volume::Filesystem, &[Verb::Stage]);
        without_record(b, "k/s");
        none()
    };
    Filesystem, "staged twice, one over the other" => |b| {
        after(b, Volume::Filesystem, &[Verb::Stage]);
        binds(b, &[("k/s", "k/s")])
    };
    Filesystem, "another device is mounted at the staging path" => |b| other_device(b);
    Filesystem, "another filesystem than asked for is on the device" => |b| make(b, "one", "mkfs.ext3");
    Filesystem, "unknown bytes are on the device" => |b| write(b, "one", 4096, &[0x5A; 512]);
    Filesystem, "an encrypted volume is on the device" => |b| write(b, "one", 0, LUKS);
    Filesystem, "a raw device is staged there" => |b| after(b, Volume::Raw, &[Verb::Stage]);
    Filesystem, "staged and published; the filesystem gave up" => |b| {
        after(b, Volume::Filesystem, &[Verb::Stage, Verb::Publish]);
        give_up(b)
    };
    Filesystem, "staged; the filesystem gave up" => |b| {
        after(b, Volume::Filesystem, &[Verb::Stage]);
        give_up(b)
    };
    Filesystem, "staged and published; the filesystem has stopped" => |b| {
        after(b, Volume::Filesystem, &[Verb::Stage, Verb::Publish]);
        stop(b)
    };
    Filesystem, "staged; the filesystem has stopped" => |b| {
        after(b, Volume::Filesystem, &[Verb::Stage]);
        stop(b)
    };
    Filesystem, "staged and published; the device is gone" => |b| {
        after(b, Volume::Filesystem, &[Verb::Stage, Verb::Publish]);
        gone(b)
    };
    Filesystem, "staged; the device is gone" => |b| {
        after(b, Volume::Filesystem, &[Verb::Stage]);
        gone(b)
    };
    Filesystem, "the volume does not exist on the storage" => |b| {
        fs::remove_file(b.storage.file("one")).expect("remove");
        none()
    };
    Filesystem, "the storage fails after the device has come" => |b| {
        b.storage.fails_after_attach.store(true, Ordering::Relaxed);
        none()
    };
    Filesystem, "published; the device is read by another process" => |b| {
        after(b, Volume::Filesystem, &[Verb::Stage, Verb::Publish]);
        let node = b.storage.device("one").node(&Kernel::here());
        Box::new(fs::File::open(node).expect("open"))
    };

    Raw, "nothing is there" => |_| none();
    Raw, "the volume is staged" => |b| after(b, Volume::Raw, &[Verb::Stage]);
    Raw, "staged and published" => |b| after(b, Volume::Raw, &[Verb::Stage, Verb::Publish]);
    Raw, "staged; published read-only" => |b| {
        after(b, Volume::Raw, &[Verb::Stage]);
        read_only(b, Volume::Raw)
    };
    Raw, "staged; a read-only device was made and not shown" => |b| {
        after(b, Volume::Raw, &[Verb::Stage]);
        file_of(b, "k/t", "");
        let label = crate::loops::Label::of(&b.text("k/t"));
        Loop::over(&Kernel::here(), &b.storage.device("one"), &label).expect("face");
        none()
    };
    Raw, "staged four times, published twice, by an older driver" => |b| {
        after(b, Volume::Raw, &[Verb::Stage]);
        file_of(b, "k/t", "");
        let node = b.storage.device("one").node(&Kernel::here());
        for (count, path) in [(3, "k/s/block_device"), (2, "k/t")] {
            for _ in 0..count {
                bind_plainly(&node, &b.path(path));
            }
        }
        without_record(b, "k/s");
        none()
    };
    Raw, "the file for the device is there, nothing shown" => |b| {
        dir(b, "k/s");
        file_of(b, "k/s/block_device", "")
    };
    Raw, "a file with content is in its place" => |b| {
        dir(b, "k/s");
        file(b, "k/s/block_device")
    };
    Raw, "recorded and attached, not shown" => |b| { record(b); attach(b, "one") };
    Raw, "a filesystem of the volume is staged there" => |b| after(b, Volume::Filesystem, &[Verb::Stage]);
    Raw, "staged; the target is a directory" => |b| {
        after(b, Volume::Raw, &[Verb::Stage]);
        dir(b, "k/t")
    };
    Raw, "staged; another device is at the target" => |b| {
        after(b, Volume::Raw, &[Verb::Stage]);
        attach(b, "two");
        file_of(b, "k/t", "");
        bind_plainly(&b.storage.device("two").node(&Kernel::here()), &b.path("k/t"));
        none()
    };
    Raw, "staged and published; the device is gone" => |b| {
        after(b, Volume::Raw, &[Verb::Stage, Verb::Publish]);
        gone(b)
    };
    Raw, "staged; the device is gone" => |b| {
        after(b, Volume::Raw, &[Verb::Stage]);
        gone(b)
    };
    Raw, "published; a process has the device open" => |b| {
        after(b, Volume::Raw, &[Verb::Stage, Verb::Publish]);
        Box::new(fs::File::open(b.path("k/t")).expect("open"))
    };
}

/// The first bytes of an encrypted volume.
const LUKS: &[u8] = b"LUKS\xba\xbe\x00\x02";

fn none() -> Box<dyn Any> {
    Box::new(())
}

fn after(bench: &Bench, volume: Volume, verbs: &[Verb]) -> Box<dyn Any> {
    for verb in verbs {
        act(bench, volume, *verb).unwrap_or_else(|error| panic!("{verb:?}: {}", error.chain()));
    }
    none()
}

fn staged(bench: &Bench) {
    after(bench, Volume::Directory, &[Verb::Stage]);
}

fn read_only(bench: &Bench, volume: Volume) -> Box<dyn Any> {
    let request = PublishRequest {
        readonly: true,
        ..publish_request(bench, volume)
    };
    bench.publish(request).expect("publish");
    none()
}

fn dir(bench: &Bench, path: &str) -> Box<dyn Any> {
    fs::create_dir(bench.path(path)).expect("dir");
    none()
}

fn content(bench: &Bench, path: &str) -> Box<dyn Any> {
    dir(bench, path);
    file(bench, &format!("{path}/keep"))
}

fn file(bench: &Bench, path: &str) -> Box<dyn Any> {
    file_of(bench, path, "content")
}

fn file_of(bench: &Bench, path: &str, text: &str) -> Box<dyn Any> {
    fs::write(bench.path(path), text).expect("file");
    none()
}

fn link(bench: &Bench, path: &str) -> Box<dyn Any> {
    dir(bench, "k/elsewhere");
    symlink(bench.path("k/elsewhere"), bench.path(path)).expect("link");
    none()
}

fn binds(bench: &Bench, binds: &[(&str, &str)]) -> Box<dyn Any> {
    for (from, to) in binds {
        bench.bind(from, to);
    }
    none()
}

fn delete_volume(bench: &Bench) -> Box<dyn Any> {
    fs::remove_dir_all(bench.path("v/one")).expect("remove");
    none()
}

fn silent(bench: &Bench, path: &str) -> Box<dyn Any> {
    dir(bench, path);
    Box::new(fuse(&bench.path(path)).expect("fuse"))
}

fn dead(bench: &Bench, path: &str) -> Box<dyn Any> {
    drop(silent(bench, path));
    none()
}

fn attach(bench: &Bench, volume: &str) -> Box<dyn Any> {
    let attachment = LoopStorage::attachment(volume);
    let secrets = StageSecrets::default();
    let attached = bench.run(bench.storage.attach(&attachment, &secrets, Instant::now()));
    attached.expect("attach");
    none()
}

fn record(bench: &Bench) -> Box<dyn Any> {
    dir(bench, "k/s");
    let place = Place::open(&bench.path("k/s")).expect("open");
    let facts = bench
        .storage
        .facts(&LoopStorage::attachment("one"))
        .expect("facts");
    assert!(super::super::super::record::add(&place, &facts).expect("record"));
    none()
}

/// Clears the record below what is mounted, through a copy of the tree without it.
fn without_record(bench: &Bench, path: &str) {
    let aside = bench.path("aside");
    fs::create_dir(&aside).expect("dir");
    bind_plainly(&bench.path("k"), &aside);
    let name = bench.path(path);
    let below = aside.join(name.file_name().expect("name"));
    let place = Place::open(&below).expect("open");
    super::super::super::record::clear(&place).expect("clear");
    drop(place);
    mount::unmount(&aside).expect("unmount");
    fs::remove_dir(&aside).expect("remove");
}

fn other_device(bench: &Bench) -> Box<dyn Any> {
    let request = StageRequest {
        attachment: LoopStorage::attachment("two"),
        ..stage_request(bench, Volume::Filesystem)
    };
    bench.run(bench.node.stage(soon(), request)).expect("stage");
    none()
}

fn make(bench: &Bench, volume: &str, program: &'static str) -> Box<dyn Any> {
    let file = bench.storage.file(volume);
    let command = exec::Command::new(exec::Program::constant(program))
        .arg("-q")
        .arg(file.to_str().expect("text"));
    let made = bench.run(exec::Runner::perform(&exec::Local::new(), &command));
    made.expect("mkfs");
    none()
}

fn write(bench: &Bench, volume: &str, at: u64, bytes: &[u8]) -> Box<dyn Any> {
    use std::os::unix::fs::FileExt as _;
    let file = fs::File::options()
        .write(true)
        .open(bench.storage.file(volume));
    file.expect("volume")
        .write_all_at(bytes, at)
        .expect("write");
    none()
}

/// Puts the volumes on a filesystem of their own.
fn own_filesystem(bench: &Bench) {
    #[expect(clippy::disallowed_methods, reason = "only this test sees it")]
    rustix::mount::mount(
        "v",
        bench.path("v"),
        "tmpfs",
        rustix::mount::MountFlags::empty(),
        None,
    )
    .expect("tmpfs");
    for volume in ["one", "two"] {
        dir(bench, &format!("v/{volume}"));
    }
}

/// The device of the volume disappears and the volume would come back as another one: a loop device
/// cannot be taken away while it is mounted, so it is hidden.
fn gone(bench: &Bench) -> Box<dyn Any> {
    let lost = bench.storage.device("one");
    let (file, aside) = (bench.storage.file("one"), bench.storage.file("gone"));
    fs::rename(&file, &aside).expect("rename");
    fs::copy(&aside, &file).expect("copy");
    let root = bench.path("blind");
    for directory in ["sys/dev/block", "sys/class/block", "sys/block"] {
        fs::create_dir_all(root.join(directory)).expect("dir");
    }
    symlink("/dev", root.join("dev")).expect("link");
    for minor in 0..256 {
        let name = format!("loop{minor}");
        if name == lost.name() {
            continue;
        }
        let device = format!("/sys/devices/virtual/block/{name}");
        for link in [
            format!("sys/dev/block/7:{minor}"),
            format!("sys/class/block/{name}"),
            format!("sys/block/{name}"),
        ] {
            symlink(&device, root.join(link)).expect("link");
        }
    }
    let tools = counted(&bench.children);
    let storage = Box::new(bench.storage.clone());
    let blind = Node::with(NodeConfig::default(), tools, Kernel::at(&root), storage);
    assert!(bench.blind.set(blind).is_ok());
    none()
}

/// Lets ext4 find an error, after which it is read-only.
fn give_up(bench: &Bench) -> Box<dyn Any> {
    let name = bench.storage.device("one").name().to_owned();
    let command = exec::Command::new(exec::Program::constant("mount"))
        .arg("-o")
        .arg("remount,errors=remount-ro")
        .arg(bench.text("k/s"));
    let remounted = bench.run(exec::Runner::perform(&exec::Local::new(), &command));
    remounted.expect("remount");
    meet_an_error(&name);
    none()
}

/// Lets ext4 find an error.
fn meet_an_error(device: &str) {
    let trigger = format!("/sys/fs/ext4/{device}/trigger_fs_error");
    fs::write(trigger, "a test").expect("error");
}

/// Lets ext4 stop after an error (`EXT4_IOC_SHUTDOWN`), as when its journal cannot be written: its mount does not
/// become read-only.
fn stop(bench: &Bench) -> Box<dyn Any> {
    meet_an_error(bench.storage.device("one").name());
    let ioctl = "import fcntl, os, struct, sys\n\
                 fcntl.ioctl(os.open(sys.argv[1], os.O_RDONLY), 0x8004587d, struct.pack('I', 2))";
    let command = exec::Command::new(exec::Program::constant("python3"))
        .arg("-c")
        .arg(ioctl)
        .arg(bench.text("k/s"));
    let stopped = bench.run(exec::Runner::perform(&exec::Local::new(), &command));
    stopped.expect("ext4 stops");
    none()
}

/// Takes everything away, so that loop devices can go.
pub(super) fn clean(bench: &Bench) {
    for path in ["k/t", "k/s/block_device", "k/s"] {
        // Below a mount that is dead nothing can be looked for.
        let _ = mount::unmount_all_layers(&bench.path(path));
    }
}
