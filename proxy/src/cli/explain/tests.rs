use std::fs;

use csi_types::{Attachment, VolumeContext, said};
use node_utils::kernel::Kernel;

use super::chain::State;
use super::node::session;

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
