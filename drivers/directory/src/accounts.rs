//! Users and groups of the configuration: numbers, or names looked up in `/etc/passwd` and
//! `/etc/group`.
//!
//! Only those two files are read. Name services that libc would ask (LDAP, NIS) are not: a static
//! binary in a container has none, and a number always works.

use std::path::Path;

/// Why an owner of the configuration is not usable.
#[derive(Debug, thiserror::Error)]
pub enum AccountError {
    /// No line of the file has that name.
    #[error("no account `{name}` in {file}")]
    Unknown {
        /// The name that was looked for.
        name: String,
        /// The file that was read.
        file: String,
    },
    /// A number that no account can have.
    #[error("`{0}` is not a user or group number")]
    Number(String),
    /// The file could not be read.
    #[error("reading {file}")]
    Unreadable {
        /// The file.
        file: String,
        /// What the system said.
        source: std::io::Error,
    },
}

/// The number of user `value`: itself if it is one, else from `/etc/passwd`.
pub fn user(value: &str) -> Result<u32, AccountError> {
    number_or_name(value, Path::new("/etc/passwd"))
}

/// The number of group `value`: itself if it is one, else from `/etc/group`.
pub fn group(value: &str) -> Result<u32, AccountError> {
    number_or_name(value, Path::new("/etc/group"))
}

fn number_or_name(value: &str, file: &Path) -> Result<u32, AccountError> {
    if value.bytes().all(|b| b.is_ascii_digit()) {
        // The largest number means "leave it" to chown.
        return match value.parse() {
            Ok(number) if number != u32::MAX => Ok(number),
            _ => Err(AccountError::Number(value.to_owned())),
        };
    }
    let shown = || file.display().to_string();
    let text = std::fs::read(file).map_err(|source| AccountError::Unreadable {
        file: shown(),
        source,
    })?;
    find(&String::from_utf8_lossy(&text), value).ok_or_else(|| AccountError::Unknown {
        name: value.to_owned(),
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
        for nobody in ["broken", "odd", "www", "", "0"] {
            assert_eq!(find(PASSWD, nobody), None, "{nobody:?}");
        }
    }

    #[test]
    fn numbers_are_taken_as_they_are_and_the_one_that_means_nobody_is_refused() {
        assert_eq!(user("0").expect("number"), 0);
        assert_eq!(group("4294967294").expect("number"), 4_294_967_294);
        assert!(matches!(user("4294967295"), Err(AccountError::Number(_))));
        assert!(matches!(user(""), Err(AccountError::Number(_))));
        assert!(matches!(
            user("no such user"),
            Err(AccountError::Unknown { .. })
        ));
        assert_eq!(user("root").expect("every system has it"), 0);
    }
}
