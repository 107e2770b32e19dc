//! Pages of lists that DSM returns as a whole: sorted by id, so that objects that exist during the whole
//! listing are neither lost nor repeated. A token says where the last page ended.

use driver_core::paging::{MAX_KEY, MAX_PAGE, key};
use driver_core::{Error, Kind, Page, PageRequest, PageToken};

/// One page of `all`. `list` is a letter for the list that tokens belong to.
pub(crate) fn page<T>(
    mut all: Vec<T>,
    id: impl Fn(&T) -> &str,
    list: char,
    request: &PageRequest,
) -> Result<Page<T>, Error> {
    let prefix = format!("{list}1/");
    if let Some(PageToken(token)) = &request.after {
        let after = token
            .strip_prefix(&prefix)
            .filter(|after| !after.is_empty() && after.len() <= MAX_KEY);
        let after = after.ok_or_else(|| {
            Error::new(Kind::Pending, "list from a token")
                .because("the token is not one that this list gave")
        })?;
        all.retain(|entry| *key(id(entry)) > *after);
    }
    all.sort_unstable_by(|one, other| key(id(one)).cmp(&key(id(other))));
    let max = request.max.unwrap_or(MAX_PAGE).clamp(1, MAX_PAGE);
    let next = all
        .get(max - 1)
        .filter(|_| all.len() > max)
        .map(|last| PageToken(format!("{prefix}{}", key(id(last)))));
    all.truncate(max);
    Ok(Page { entries: all, next })
}
