//! Connections for which this node proves by a key who it is: DH-CHAP.
//!
//! `nvme connect` takes the key as an argument, and every user of the machine may read the arguments of a process. So
//! such a connection is made as that program makes it: by one line that is written to the kernel's
//! `/dev/nvme-fabrics`. Source: the kernel's `drivers/nvme/host/fabrics.c`.

use std::fs::{File, Permissions};
use std::io::{self, Read as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use rustix::io::Errno;
use secrecy::ExposeSecret as _;
use tokio::time::Instant;
use tracing::warn;

use super::NvmeFacts;
use super::controller::Controller;
use super::request::{KEY, Request, key_of, may_be_key};
use crate::blocking::{self, Doing, Limits};
use crate::device::look;
use crate::kernel::{self, Kernel};
use crate::tools::Tools;
use csi_types::DhchapKey;
use csi_types::attachment::Transport;
use csi_types::error::{Error, Kind};

/// No file of a key is longer.
const LONGEST: u64 = 4096;

/// Whether a volume says a key itself: then it is the same for all nodes.
pub(super) fn has_key(way: &Transport) -> bool {
    let mut options = way.options.iter();
    options.any(|option| key_of(&option.name) == Some(KEY))
}

/// Whether a volume may say a key, of either side: no argument of a program then.
pub(super) fn has_secret(way: &Transport) -> bool {
    let mut options = way.options.iter();
    options.any(|option| may_be_key(&option.name))
}

/// The key of this node; `None` if it has none. Read for each attach: it may have been changed.
pub(super) async fn own_key(tools: &Tools, deadline: Instant) -> Result<Option<DhchapKey>, Error> {
    let Some(path) = tools.nvme_key().map(Path::to_owned) else {
        return Ok(None);
    };
    let doing = format!("read the NVMe key of this node in `{}`", path.display());
    let about = doing.clone();
    look(deadline, &doing, move || read(&path, &about)).await
}

/// Reads the file of a key. One that is not there is no error: most targets ask for no key.
fn read(path: &Path, doing: &str) -> Result<Option<DhchapKey>, Error> {
    // A fault of this node, not of the volume.
    let refused = || Error::new(Kind::Unreachable, doing);
    let unreadable = |error: io::Error| {
        refused()
            .because(error)
            .advise("put the key of this node there, or unset OMNIBUS_CSI_NVME_KEY_FILE")
    };
    let file = match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let path = path.display();
            warn!(%path, "this node has no NVMe key there: targets that ask for one refuse it");
            return Ok(None);
        }
        result => result.map_err(unreadable)?,
    };
    let metadata = file.metadata().map_err(unreadable)?;
    if metadata.permissions().mode() & 0o077 != 0 {
        return Err(refused()
            .because("other users have access to it")
            .advise("give it the mode 0600"));
    }
    let mut text = String::new();
    let mut file = file.take(LONGEST);
    file.read_to_string(&mut text).map_err(unreadable)?;
    let key = DhchapKey::parse(text.trim()).map_err(|error| refused().because(error))?;
    Ok(Some(key))
}

/// Connects as it is requested.
pub(super) async fn connect(
    kernel: &Kernel,
    facts: &NvmeFacts,
    request: Request,
    doing: &str,
    deadline: Instant,
) -> Result<(), Error> {
    // The kernel writes a key that it does not understand into its log.
    if let Some((name, why)) = request.wrong_key() {
        return Err(Error::invalid(doing)
            .because(format!("`{name}` {why}"))
            .advise("correct it in the transport of the volume"));
    }
    let (device, about) = (kernel.dev("nvme-fabrics"), doing.to_owned());
    let (kernel, nqn) = (kernel.clone(), facts.nqn().clone());
    let work = move || {
        let failed = |kind| Error::new(kind, about.clone());
        // A word that the kernel does not know ends up in its log, also if it is a key.
        let words = kernel::read(&device).ok().flatten().unwrap_or_default();
        if !words.contains("dhchap_secret=") {
            return Err(failed(Kind::Unreachable)
                .because(
                    "the kernel of this node has no DH-CHAP (CONFIG_NVME_HOST_AUTH, Linux 6.0 or newer)",
                )
                .advise(
                    "use one that has it; where no target asks for a key, unset OMNIBUS_CSI_NVME_KEY_FILE and remove `dhchap-secret` \
                     from the transport",
                ));
        }
        if let Some(name) = request.unknown(&words) {
            return Err(failed(Kind::Invalid)
                .because(format!(
                    "a connection with a key is made by the kernel alone, and it takes no `{name}` like this one"
                ))
                .advise(
                    "use in the transport of the volume only options that `cat /dev/nvme-fabrics` shows on the node, by \
                     their full names; `nvme`, which knows more, connects only without a key",
                ));
        }
        match kernel::write(&device, request.line().expose_secret()) {
            Ok(true) => {
                // Here, because its caller may have stopped to wait.
                if let Ok(controllers) = Controller::of(&kernel, &nqn) {
                    hide(&kernel, &controllers);
                }
                Ok(())
            }
            Ok(false) => Err(failed(Kind::Unreachable)),
            Err(error) => Err(failed(kind_of(&error)).because(error)),
        }
    };
    let limits = Limits::until(deadline);
    blocking::run(limits, Doing::changing(doing.to_owned()), work).await
}

/// Lets only root read the keys of connections: the kernel shows them to every user, also in containers.
pub(super) fn hide(kernel: &Kernel, controllers: &[Controller]) {
    let names = ["dhchap_secret", "dhchap_ctrl_secret"];
    let directories = controllers.iter().map(|one| one.directory(kernel));
    for path in directories.flat_map(|directory| names.map(|name| directory.join(name))) {
        match std::fs::set_permissions(&path, Permissions::from_mode(0o600)) {
            Err(error) if !kernel::is_absence(&error) => {
                let path = path.display();
                warn!(%path, %error, "every user of this machine can read an NVMe key");
            }
            _ => {}
        }
    }
}

/// What the kernel means. Older ones do not say that a key was refused.
fn kind_of(error: &io::Error) -> Kind {
    match Errno::from_io_error(error) {
        Some(Errno::KEYREJECTED | Errno::NOKEY | Errno::ACCESS) => Kind::Denied,
        _ => Kind::Unreachable,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "DHHC-1:00:AQIDBAUGBwgJCgsMDQ4PEBESExQVFhcYGRobHB0eHyAl7OaH:";

    fn file(mode: u32, text: &str) -> tempfile::TempDir {
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join("key");
        std::fs::write(&path, text).expect("write");
        let mode = Permissions::from_mode(mode);
        std::fs::set_permissions(&path, mode).expect("mode");
        folder
    }

    fn read_in(folder: &tempfile::TempDir) -> Result<Option<DhchapKey>, Error> {
        read(&folder.path().join("key"), "read it")
    }

    #[test]
    fn the_key_of_a_node_is_read_from_a_file_that_only_it_can_read() {
        for mode in [0o600, 0o400] {
            let key = read_in(&file(mode, &format!("{TEXT}\n"))).expect("read");
            assert_eq!(key.expect("key").secret().expose_secret(), TEXT);
        }
    }

    #[test]
    fn a_file_that_is_not_there_is_no_key() {
        let folder = tempfile::tempdir().expect("folder");
        assert_eq!(read_in(&folder).expect("read"), None);
    }

    #[test]
    fn a_key_that_is_unreadable_open_to_others_or_wrong_is_an_error_that_does_not_show_it() {
        let folder = tempfile::tempdir().expect("folder");
        std::fs::create_dir(folder.path().join("key")).expect("directory");
        let mode = Permissions::from_mode(0o700);
        std::fs::set_permissions(folder.path().join("key"), mode).expect("mode");
        let unreadable = read_in(&folder).expect_err("a directory");
        assert!(unreadable.chain().contains("OMNIBUS_CSI_NVME_KEY_FILE"));
        let open = read_in(&file(0o640, TEXT)).expect_err("open");
        assert!(open.chain().contains("0600"), "{}", open.chain());
        let mistyped = TEXT.replace("AQID", "AQIE");
        let twice = format!("{TEXT}\n{TEXT}");
        for text in [String::new(), mistyped, TEXT[..40].to_owned(), twice] {
            let error = read_in(&file(0o600, &text)).expect_err("no key");
            assert_eq!(error.kind(), Kind::Unreachable);
            assert!(!error.chain().contains("BAUGBwgJ"), "{}", error.chain());
        }
    }

    #[test]
    fn a_volume_with_a_key_of_its_own_is_known_by_each_spelling() {
        for (option, has, may_have) in [
            ("dhchap-secret=x", true, true),
            ("dhchap_secret=x", true, true),
            ("--dhchap-s=x", true, true),
            ("dhchap-ctrl-secret=x", false, true),
            ("dhchap=x", false, true),
            ("tls", false, false),
        ] {
            let way = Transport::parse(&format!("tcp://10.0.0.1?{option}")).expect("way");
            assert_eq!(has_key(&way), has, "{option}");
            assert_eq!(has_secret(&way), may_have, "{option}");
        }
    }

    #[test]
    fn a_key_that_was_refused_is_told_from_a_target_that_is_not_there() {
        let kind = |errno: Errno| kind_of(&io::Error::from_raw_os_error(errno.raw_os_error()));
        assert_eq!(kind(Errno::KEYREJECTED), Kind::Denied);
        assert_eq!(kind(Errno::NOKEY), Kind::Denied);
        assert_eq!(kind(Errno::CONNREFUSED), Kind::Unreachable);
        assert_eq!(kind(Errno::IO), Kind::Unreachable);
    }
}
