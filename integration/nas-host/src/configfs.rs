//! The objects of LIO and nvmet in configfs: objects in the order in which they are made.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use crate::{Answer, Failed};

/// One thing in configfs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Object {
    /// An object of the kernel.
    Folder(PathBuf),
    /// An attribute, which goes with its folder.
    Value(PathBuf, String),
    /// An attribute that is 1, and 0 before its folder goes.
    Switch(PathBuf),
    /// A link, and the object that it leads to.
    Link(PathBuf, PathBuf),
}

// === impl Object ===

impl Object {
    /// The attributes of a folder.
    pub fn values<'a>(
        folder: &Path,
        values: impl IntoIterator<Item = (&'a str, String)>,
    ) -> Vec<Self> {
        let values = values.into_iter();
        values
            .map(|(name, value)| Self::Value(folder.join(name), value))
            .collect()
    }

    fn path(&self) -> &Path {
        match self {
            Self::Folder(path)
            | Self::Value(path, _)
            | Self::Switch(path)
            | Self::Link(path, _) => path,
        }
    }

    fn make(&self) -> Answer<()> {
        let made = match self {
            Self::Folder(path) => fs::create_dir_all(path),
            Self::Value(path, value) => fs::write(path, value),
            Self::Switch(path) => fs::write(path, "1"),
            Self::Link(path, to) => symlink(to, path),
        };
        match (made, self) {
            (Ok(()), _) => Ok(()),
            (Err(error), Self::Link(path, to))
                if error.kind() == ErrorKind::AlreadyExists
                    && fs::read_link(path).is_ok_and(|there| there == *to) =>
            {
                Ok(())
            }
            (Err(error), _) => Err(self.failed(&error)),
        }
    }

    fn undo(&self) -> Answer<()> {
        let undone = match self {
            Self::Folder(path) => fs::remove_dir(path),
            Self::Value(..) => Ok(()),
            Self::Switch(path) => fs::write(path, "0"),
            Self::Link(path, _) => fs::remove_file(path),
        };
        match undone {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(self.failed(&error)),
            _ => Ok(()),
        }
    }

    /// Without the value, which may be a secret.
    fn failed(&self, error: &std::io::Error) -> Failed {
        Failed(format!("{}: {error}", self.path().display()))
    }
}

/// Makes of what is there what is wanted: the last one made is undone first.
pub fn converge(there: &mut Vec<Object>, wanted: Vec<Object>) -> Answer<()> {
    for index in (0..there.len()).rev() {
        if !wanted.contains(&there[index]) {
            there[index].undo()?;
            there.remove(index);
        }
    }
    for object in &wanted {
        if !there.contains(object) {
            object.make()?;
            there.push(object.clone());
        }
    }
    *there = wanted;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_wanted_goes_and_what_stays_is_not_touched() {
        let name = format!("nas-host-{}", std::process::id());
        let root = std::env::temp_dir().join(name);
        let folder = |name: &str| Object::Folder(root.join(name));
        let link = Object::Link(root.join("b/link"), root.join("a"));
        let value = |value: &str| Object::Value(root.join("value"), value.to_owned());
        let mut there = Vec::new();
        let all = vec![folder("a"), folder("b"), link.clone(), value("1")];
        converge(&mut there, all.clone()).expect("made");
        assert!(root.join("b/link").exists());

        fs::write(root.join("value"), "of another").expect("written");
        converge(&mut there, vec![folder("b"), value("1")]).expect("changed");
        assert!(!root.join("a").exists() && !root.join("b/link").is_symlink());
        let kept = fs::read_to_string(root.join("value")).expect("a value");
        assert_eq!(kept, "of another");

        fs::write(root.join("b/foreign"), "").expect("written");
        let refused = converge(&mut there, vec![]).expect_err("it is not empty");
        assert!(refused.to_string().contains("/b: "), "{refused}");
        assert!(there.contains(&folder("b")), "it is still known");
        fs::remove_dir_all(root).expect("removed");
    }
}
