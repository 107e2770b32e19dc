//! The query of the address of a request.

use std::borrow::Cow;

/// More of a text is not looked for.
const MAX_TEXT: usize = 512;

/// The query of an address.
#[derive(Debug)]
pub(super) struct Query<'a>(Vec<(Cow<'a, str>, Cow<'a, str>)>);

// === impl Query ===

impl<'a> Query<'a> {
    pub(super) fn read(text: &'a str) -> Self {
        Self(form_urlencoded::parse(text.as_bytes()).collect())
    }

    /// All values of a name.
    pub(super) fn all(&self, name: &str) -> impl Iterator<Item = &str> {
        let named = move |(given, _): &&(Cow<'_, str>, Cow<'_, str>)| given == name;
        self.0.iter().filter(named).map(|(_, value)| value.as_ref())
    }

    /// The value of a name, if there is one that is not empty.
    pub(super) fn text(&self, name: &str) -> Option<&str> {
        let fits = |value: &&str| !value.is_empty() && value.len() <= MAX_TEXT;
        self.all(name).find(fits)
    }

    /// A word to look for, in small letters.
    pub(super) fn search(&self) -> Option<String> {
        let word = self.text("search")?.trim().to_lowercase();
        (!word.is_empty()).then_some(word)
    }

    /// The number of rows of a page.
    pub(super) fn limit(&self, usual: usize, most: usize) -> usize {
        let given = self.text("limit").and_then(|text| text.parse().ok());
        given.unwrap_or(usual).clamp(1, most)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_is_read_as_a_browser_writes_it_and_bounded() {
        let query = Query::read("search=+A%3Cimg%3E&volume=v%3Anas%2Fa&volume=b&limit=999999&x");
        assert_eq!(query.search().as_deref(), Some("a<img>"));
        assert_eq!(query.all("volume").collect::<Vec<_>>(), ["v:nas/a", "b"]);
        assert_eq!(query.limit(50, 200), 200);
        assert_eq!(query.text("x"), None);
        let long = format!("search={}&limit=-1", "x".repeat(MAX_TEXT + 1));
        let query = Query::read(&long);
        assert_eq!((query.search(), query.limit(50, 200)), (None, 50));
    }
}
