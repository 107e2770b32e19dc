//! Pages of a collection: sorted, so that none of what exists all the while is lost or repeated.
//!
//! A token says where the last page ended and nothing else, so it outlives this process and the
//! object it was made of. It carries the sort of list: no token of another list passes.

use std::ffi::CStr;
use std::os::fd::{AsFd, BorrowedFd};

use driver_core::paging::{MAX_KEY, MAX_PAGE, key};
use driver_core::{Error, Kind, PageRequest, PageToken};
use rustix::fs::FileType;
use rustix::io::Errno;

use crate::collection::Collection;
use crate::disk;
use crate::failure::failed;
use crate::id::SnapshotDir;

/// The directories in a collection whose names pass `ours`, and `more` names, from `page.after` on, and where the
/// next page begins. Without a collection there is nothing.
pub(crate) fn page(
    on: Option<BorrowedFd<'_>>,
    collection: Collection,
    page: &PageRequest,
    ours: impl Fn(&str) -> bool,
    more: &[String],
) -> Result<(Vec<String>, Option<PageToken>), Error> {
    page_by(disk::is_dir, on, collection, page, ours, more)
}

/// The same, with the question whether something is a directory.
fn page_by(
    is_dir: impl Fn(BorrowedFd<'_>, &CStr, FileType) -> Result<bool, Errno>,
    on: Option<BorrowedFd<'_>>,
    collection: Collection,
    page: &PageRequest,
    ours: impl Fn(&str) -> bool,
    more: &[String],
) -> Result<(Vec<String>, Option<PageToken>), Error> {
    let fail = |errno| failed(format!("listing {}s", collection.noun()), errno);
    let after = page.after.as_ref();
    let after = after
        .map(|token| read_token(collection, token))
        .transpose()?;
    let Some(on) = on else {
        return Ok((Vec::new(), None));
    };
    let dir = disk::open_dir(on, ".").map_err(fail)?;
    let mut names: Vec<String> = Vec::new();
    for (name, kind) in disk::entries(dir.as_fd()).map_err(fail)? {
        let Ok(text) = name.to_str() else { continue };
        if ours(text)
            && after.is_none_or(|after| *key(text) > *after)
            // What cannot be seen may be one: to leave it out would say that it is gone.
            && is_dir(dir.as_fd(), &name, kind).map_err(fail)?
        {
            names.push(text.to_owned());
        }
    }
    let listed = |name: &&String| ours(name) && after.is_none_or(|after| *key(name) > *after);
    names.extend(more.iter().filter(listed).cloned());
    names.sort_unstable_by(|one, other| key(one).cmp(&key(other)));
    names.dedup();
    let max = page.max.unwrap_or(MAX_PAGE).clamp(1, MAX_PAGE);
    let next = (names.len() > max).then(|| write_token(collection, &names[max - 1]));
    names.truncate(max);
    Ok((names, next))
}

fn write_token(collection: Collection, name: &str) -> PageToken {
    PageToken(format!("{}1/{}", collection.dir(), key(name)))
}

fn read_token(collection: Collection, token: &PageToken) -> Result<&str, Error> {
    token
        .0
        .strip_prefix(collection.dir())
        .and_then(|rest| rest.strip_prefix("1/"))
        // The alphabet of snapshots holds that of volumes.
        .filter(|key| key.len() <= MAX_KEY && SnapshotDir::new(key).is_some())
        .ok_or_else(|| {
            Error::new(Kind::Pending, format!("listing {}s", collection.noun()))
                .because("the token is not one that this list gave")
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;
    use std::path::Path;

    #[test]
    fn a_page_with_something_whose_type_cannot_be_read_fails() {
        let top = tempfile::tempdir().expect("folder");
        for name in ["one", "two"] {
            std::fs::create_dir(top.path().join(name)).expect("folder");
        }
        let on = std::fs::File::open(top.path()).expect("open");
        let unreadable = |parent: BorrowedFd<'_>, name: &CStr, kind| match name.to_bytes() {
            b"two" => Err(Errno::STALE),
            _ => disk::is_dir(parent, name, kind),
        };
        let list = |ours: fn(&str) -> bool| {
            let (on, request) = (Some(on.as_fd()), PageRequest::default());
            page_by(unreadable, on, Collection::Volumes, &request, ours, &[])
        };
        let error = list(|_| true).expect_err("one is missing");
        assert_eq!(error.kind(), Kind::Unreachable);
        let (names, _) = list(|name| name == "one").expect("not of this list");
        assert_eq!(names, ["one"]);
    }

    fn walk(top: &Path, max: usize, delete: bool) -> Vec<String> {
        let on = std::fs::File::open(top).expect("open");
        let (mut seen, mut after) = (Vec::new(), None);
        loop {
            let request = PageRequest {
                max: Some(max),
                after,
            };
            let (names, next) = page(
                Some(on.as_fd()),
                Collection::Snapshots,
                &request,
                |_| true,
                &[],
            )
            .expect("page");
            if delete {
                // The place of a page survives the objects it was made of.
                for name in &names {
                    std::fs::remove_dir(top.join(name)).expect("delete");
                }
            }
            seen.extend(names);
            let Some(token) = next else { return seen };
            assert!(
                token.0.len() <= 128 - 28,
                "room for what callers add: {}",
                token.0
            );
            after = Some(token);
        }
    }

    #[test]
    fn long_names_are_paged_with_tokens_that_fit() {
        let top = tempfile::tempdir().expect("folder");
        let mut wanted = BTreeSet::new();
        for length in [1, 63, 64, 65, 94, 95, 96, 97, 128, 200, 255] {
            for last in ["a", "b", "c"] {
                let name = format!("{}{last}", "n".repeat(length - 1));
                std::fs::create_dir(top.path().join(&name)).expect("folder");
                wanted.insert(name);
            }
        }
        for (max, delete) in [(1, false), (2, false), (7, false), (2, true)] {
            let seen = walk(top.path(), max, delete);
            assert_eq!(seen.len(), wanted.len());
            assert_eq!(seen.into_iter().collect::<BTreeSet<_>>(), wanted);
        }
    }

    proptest! {
        #[test]
        fn every_key_is_a_token_that_is_read_back(name in "[A-Za-z0-9][A-Za-z0-9_:.+-]{0,254}") {
            let token = write_token(Collection::Snapshots, &name);
            prop_assert_eq!(read_token(Collection::Snapshots, &token).expect("own"), &*key(&name));
            prop_assert!(read_token(Collection::Volumes, &token).is_err());
        }
    }
}
