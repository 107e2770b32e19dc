use std::fs;
use std::path::Path;

use csi_types::{Attachment, VolumeContext, said};
use node_utils::kernel::Kernel;
use node_utils::mount::MountTable;

use super::chain::State;
use super::node::{is_another, listed, session};

fn attachment(pairs: &[(&str, &str)]) -> Attachment {
    let context = pairs
        .iter()
        .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
    Attachment::parse(&context.collect::<VolumeContext>()).expect("an attachment")
}

#[test]
fn a_session_counts_where_the_kernel_says_that_it_is_up() {
    let root = tempfile::tempdir().expect("a folder");
    let kernel = Kernel::at(root.path());
    let disk = attachment(&[
        ("node_attach_driver", "iscsi"),
        ("portal", "10.0.0.5:3260"),
        ("iqn", "iqn.2005-10.org.example:pvc-1"),
        ("lun", "0"),
    ]);
    let namespace = attachment(&[
        ("node_attach_driver", "nvmeof"),
        ("transport", "tcp://10.0.0.5:4420"),
        ("nqn", "nqn.2005-10.org.example:pvc-1"),
        ("nsid", "1"),
    ]);
    for (class, entry, key, name, good, bad, of) in [
        (
            "class/iscsi_session",
            "session1",
            "targetname",
            "iqn.2005-10.org.example:pvc-1",
            "LOGGED_IN",
            "FAILED",
            &disk,
        ),
        (
            "class/nvme",
            "nvme0",
            "subsysnqn",
            "nqn.2005-10.org.example:pvc-1",
            "live",
            "connecting",
            &namespace,
        ),
    ] {
        let state = |kernel: &Kernel| session(kernel, of).expect("a link").state;
        let folder = kernel.sys(class).join(entry);
        fs::create_dir_all(&folder).expect("a folder");
        fs::write(folder.join(key), format!("{name}-2\n")).expect("a file");
        fs::write(folder.join("state"), format!("{good}\n")).expect("a file");
        assert_eq!(state(&kernel), State::Broken, "another's session");
        fs::write(folder.join(key), format!("{name}\n")).expect("a file");
        assert_eq!(state(&kernel), State::Holds);
        fs::write(folder.join("state"), format!("{bad}\n")).expect("a file");
        let broken = session(&kernel, of).expect("a link");
        assert_eq!(broken.state, State::Broken);
        assert!(broken.text.contains(bad), "{}", broken.text);
        let sentence = said::not_connected(name);
        assert!(broken.text.starts_with(&sentence), "{}", broken.text);
        assert!(broken.remedy.is_some());
    }
    let share = attachment(&[
        ("node_attach_driver", "nfs"),
        ("server", "10.0.0.5"),
        ("share", "/mnt/a"),
    ]);
    assert!(session(&kernel, &share).is_none());
}

#[test]
fn the_topmost_mount_of_a_path_says_whether_it_is_read_only_and_not_its_filesystem() {
    let table = MountTable::from_text(
        "30 1 8:1 / / rw - ext4 /dev/sda1 rw\n\
         31 30 8:2 / /a ro,relatime - ext4 /dev/sdb rw\n\
         32 30 8:2 / /b rw,relatime - ext4 /dev/sdb ro\n\
         33 30 8:2 / /c ro - ext4 /dev/sdb rw\n\
         34 33 8:2 / /c rw - ext4 /dev/sdb rw\n\
         35 30 0:40 / /d ro - nfs4 10.0.0.5:/a rw\n",
    );
    for (path, expected) in [
        ("/a", true),
        ("/b", false),
        ("/c", false),
        ("/d", true),
        ("/a/b", false),
    ] {
        let top = listed(&table, Path::new(path));
        assert_eq!(top.is_some_and(|top| top.is_read_only), expected, "{path}");
    }
}

#[test]
fn a_directory_is_another_one_if_it_was_made_again_and_not_if_it_is_reached_by_another_path() {
    let top = tempfile::tempdir().expect("a folder");
    let [path, old, link] = ["v", "old", "link"].map(|name| top.path().join(name));
    fs::create_dir(&path).expect("a folder");
    std::os::unix::fs::symlink(top.path(), &link).expect("a link");
    assert!(!is_another(&path, &link.join("v")));
    fs::rename(&path, &old).expect("moved");
    assert!(!is_another(&old, &path), "it is not there");
    fs::create_dir(&path).expect("made again");
    assert!(is_another(&old, &path));
}
