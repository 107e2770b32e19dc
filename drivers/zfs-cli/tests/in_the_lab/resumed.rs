//! What real ZFS keeps of a copy that was cut, and how that goes on.

use driver_core::{DeleteSnapshot, DeleteVolume, Driver, Kind, Snapshots as _, Source, VolumeId};
use driver_zfs::observed::VolumeKind;

use crate::ground::{Ground, zfs};
use crate::{call, request, snapshot, with};

/// A `zfs` whose streams are cut after three million bytes, for as long as there is a file that says so.
pub(crate) struct Shears {
    folder: tempfile::TempDir,
}

impl Shears {
    pub(crate) fn new() -> Self {
        use std::os::unix::fs::PermissionsExt as _;
        let folder = tempfile::tempdir().unwrap();
        let script = format!(
            "#!/bin/sh\ncase $1 in send) [ -e {}/cut ] && {{ /usr/sbin/zfs \"$@\" | head -c 3000000; exit 1; }} ;; esac\n\
             exec /usr/sbin/zfs \"$@\"\n",
            folder.path().display()
        );
        let program = folder.path().join("zfs");
        std::fs::write(&program, script).unwrap();
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
        Self { folder }
    }

    pub(crate) fn program(&self) -> String {
        self.folder.path().join("zfs").to_str().unwrap().to_owned()
    }

    pub(crate) fn cut(&self, cuts: bool) {
        let says = self.folder.path().join("cut");
        if cuts {
            std::fs::write(says, "").unwrap();
        } else {
            std::fs::remove_file(says).unwrap();
        }
    }
}

/// Writes what does not become small, and reads it back.
pub(crate) struct Content(pub(crate) &'static str);

impl Content {
    pub(crate) fn path(&self, ground: &Ground, volume: &str) -> String {
        let root = &ground.root;
        match self.0 {
            "filesystem" => format!("/{root}/v/{volume}/file"),
            _ => format!("/dev/zvol/{root}/v/{volume}"),
        }
    }

    pub(crate) fn write(&self, ground: &Ground, volume: &str) {
        let to = format!("of={}", self.path(ground, volume));
        let arguments = ["if=/dev/urandom", &to, "bs=1M", "count=12", "conv=fsync"];
        let dd = std::process::Command::new("dd").args(arguments).output();
        assert!(dd.unwrap().status.success());
    }

    pub(crate) fn read(&self, ground: &Ground, volume: &str) -> Vec<u8> {
        use std::io::Read as _;
        let file = std::fs::File::open(self.path(ground, volume)).unwrap();
        let mut all = Vec::new();
        file.take(12 << 20).read_to_end(&mut all).unwrap();
        assert_eq!(all.len(), 12 << 20);
        all
    }
}

pub(crate) fn one(property: &str, of: &str) -> String {
    let text = zfs(&["get", "-Hp", "-o", "value", property, of]);
    text.trim().to_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
#[ignore = "changes a pool of this machine"]
async fn a_copy_that_was_cut_goes_on_or_begins_again_where_its_source_is_another_one() {
    for kind in [VolumeKind::Filesystem, VolumeKind::Zvol] {
        let (ground, shears) = (Ground::new(), Shears::new());
        let content = Content(kind.word());
        let program = shears.program();
        let driver = ground.driver_with(Some(&program), kind, "");
        let made = request("a", 64 << 20, None);
        driver.create_volume(&call(), &made).await.unwrap();
        content.write(&ground, "a");
        let helper = format!("{}/v/a@volume-source-for-volume-c", ground.root);
        let part = format!("{}/v/c", ground.root);
        let of_a = Some(Source::Volume(VolumeId::parse("a").unwrap()));
        let copy = with(request("c", 64 << 20, of_a), "detachedVolumesFromVolumes");
        // What ZFS says of a source is the same for both kinds.
        let ways: &[&str] = match kind {
            VolumeKind::Filesystem => &["nothing", "gone", "another one"],
            VolumeKind::Zvol => &["nothing"],
        };
        for &change in ways {
            shears.cut(true);
            let error = driver.create_volume(&call(), &copy).await.unwrap_err();
            assert_ne!(error.kind(), Kind::Pending, "{}", error.chain());
            assert_eq!(one("inconsistent", &part), "1", "{}", error.chain());
            let token = one("receive_resume_token", &part);
            assert!(token.starts_with("1-"), "{token}: {}", error.chain());
            assert!(!error.chain().contains(&token), "{}", error.chain());
            let first = one("guid", &part);
            let before = content.read(&ground, "a");
            if change != "nothing" {
                zfs(&["destroy", &helper]);
            }
            if change == "another one" {
                content.write(&ground, "a");
                zfs(&["snapshot", &helper]);
            }
            shears.cut(false);
            driver.create_volume(&call(), &copy).await.unwrap();
            assert_eq!(one("guid", &part) == first, change == "nothing");
            let now = content.read(&ground, "a");
            assert_eq!(now == before, change != "another one");
            assert!(content.read(&ground, "c") == now, "{kind}: {change}");
            driver
                .delete_volume(&call(), DeleteVolume::new(&copy.id))
                .await
                .unwrap();
            assert!(!ground.list().contains('@'), "{}", ground.list());
        }

        // A detached snapshot, and a part that is deleted.
        let taken = snapshot("a", "s", true);
        shears.cut(true);
        driver.create_snapshot(&call(), &taken).await.unwrap_err();
        let part = format!("{}/s/a/s", ground.root);
        let first = one("guid", &part);
        shears.cut(false);
        let made = driver.create_snapshot(&call(), &taken).await.unwrap();
        assert_eq!(one("guid", &part), first);
        driver
            .delete_snapshot(&call(), DeleteSnapshot::new(&made.id))
            .await
            .unwrap();
        shears.cut(true);
        driver.create_volume(&call(), &copy).await.unwrap_err();
        shears.cut(false);
        driver
            .delete_volume(&call(), DeleteVolume::new(&copy.id))
            .await
            .unwrap();
        driver
            .delete_volume(&call(), DeleteVolume::new(&request("a", 0, None).id))
            .await
            .unwrap();
        let left = ground.list();
        assert!(!left.contains("/v/"), "{left}");
    }
}
