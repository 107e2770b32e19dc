//! Users and groups of the configuration: numbers, or names looked up in `/etc/passwd` and
//! `/etc/group`.
//!
//! Only those two files are read. Name services that libc would ask (LDAP, NIS) are not: a static
//! binary in a container has none, and a number always works.

use std::path::Path;

use driver_core::config::scalar::Owner;

/// Why an owner of the configuration is not usable.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AccountError {
    /// No line of the file has that name.
    #[error(
        "no account `{name}` in {file} of the machine or container of this process; {}",
        hint(name)
    )]
    Unknown {
        /// The name that was looked for.
        name: String,
        /// The file that was read.
        file: String,
    },
    /// The file could not be read.
    #[error("reading {file}")]
    Unreadable {
        /// The file.
        file: String,
        /// The error of the system.
        source: std::io::Error,
    },
}

/// The number of a user: itself if it is one, else from `/etc/passwd`.
pub(crate) fn user(owner: &Owner) -> Result<u32, AccountError> {
    number(owner, Path::new("/etc/passwd"))
}

/// The number of a group: itself if it is one, else from `/etc/group`.
pub(crate) fn group(owner: &Owner) -> Result<u32, AccountError> {
    number(owner, Path::new("/etc/group"))
}

/// A number that works everywhere. democratic-csi's examples name a group of Red Hat and BSD.
fn hint(name: &str) -> &'static str {
    match name {
        "wheel" => "give a number, 0 for `wheel`",
        _ => "give its number",
    }
}

fn number(owner: &Owner, file: &Path) -> Result<u32, AccountError> {
    let name = match owner {
        Owner::Id(id) => return Ok(*id),
        Owner::Name(name) => name,
    };
    let shown = || file.display().to_string();
    let text = std::fs::read(file).map_err(|source| AccountError::Unreadable {
        file: shown(),
        source,
    })?;
    find(&String::from_utf8_lossy(&text), name).ok_or_else(|| AccountError::Unknown {
        name: name.clone(),
        file: shown(),
    })
}

/// The third field of the line whose first field is `name`; both files put the number there.
fn find(text: &str, name: &str) -> Option<u32> {
    text.lines()
        .map(|line| line.split(':').collect::<Vec<_>>())
        .filter(|fields| fields.len() >= 4 && fields[0] == name)
        .find_map(|fields| fields[2].parse().ok())
        .filter(|number| *number != u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASSWD: &str = "root:x:0:0:root:/root:/bin/sh\n\
                          # comment:x:1:1\n\
                          broken:x\n\
                          odd:x:many:1::/:\n\
                          www-data:x:33:33:www:/var/www:/usr/sbin/nologin\n";

    #[test]
    fn names_are_found_in_lines_that_are_whole() {
        assert_eq!(find(PASSWD, "www-data"), Some(33));
        assert_eq!(find(PASSWD, "root"), Some(0));
        for name in ["broken", "odd", "www", "", "0"] {
            assert_eq!(find(PASSWD, name), None, "{name:?}");
        }
    }

    #[test]
    fn names_of_this_system_are_found() {
        assert_eq!(
            user(&Owner::Name("root".into())).expect("every system has it"),
            0
        );
        assert_eq!(group(&Owner::Id(7)).expect("a number"), 7);
        assert!(matches!(
            group(&Owner::Name("no-such-group".into())),
            Err(AccountError::Unknown { .. })
        ));
    }
}
