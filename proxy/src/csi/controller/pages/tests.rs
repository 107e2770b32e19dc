//! Tokens, the sizes of pages, and lists of which a part is missing.

use super::*;

#[test]
fn a_page_that_is_too_large_is_asked_for_again_until_it_fits_or_has_one_entry() {
    let mut sizes = Sizes::new(PageRequest::default());
    assert_eq!(sizes.page.max, Some(MAX_ENTRIES));
    let mut tries = 0;
    // Entries that grow: the worst case for a guess in proportion.
    let weight = |n: usize| n * n * 10;
    let mut entries = MAX_ENTRIES;
    while !sizes.fits(entries, weight(entries)) {
        let next = sizes.page.max.expect("a size");
        assert!(next < entries);
        entries = next;
        tries += 1;
    }
    assert!(weight(entries) <= MAX_REPLY && tries < 10, "{tries} tries");
    assert!(sizes.fits(1, 5 * MAX_REPLY));
}

#[test]
fn a_page_is_limited_by_the_request_and_by_the_message_size() {
    let asked = |max| Sizes::new(PageRequest { max, after: None }).page.max;
    assert_eq!(asked(Some(3)), Some(3));
    assert_eq!(asked(Some(1_000_000)), Some(MAX_ENTRIES));
    assert_eq!(asked(None), Some(MAX_ENTRIES));
}

#[test]
fn a_token_says_where_to_go_on_and_what_is_missing_and_fits_whatever_the_names() {
    let name = ConnectionName::parse(&"n".repeat(48)).expect("a name");
    let code = Code::of(&name);
    let inner = PageToken("v1/".to_owned() + &"k".repeat(96));
    let place = Place {
        failed: Some(Code(1)),
        at: Some((code, Some(inner))),
    };
    let text = place.write().expect("a token");
    assert!(text.len() <= 128, "{}", text.len());
    assert_eq!(Place::read(&PageToken(text)).expect("ours"), place);
    let end = Place {
        failed: Some(code),
        at: None,
    };
    let text = end.write().expect("a token");
    assert_eq!(Place::read(&PageToken(text)).expect("ours"), end);
    assert_eq!(Place::default().write().expect("the end"), "");
    for foreign in [
        "x",
        "v1/a",
        "!",
        "!zzzzzzzzzzzz",
        "00000000000/a",
        "!000000000001x",
        "é/a",
    ] {
        let error = Place::read(&PageToken(foreign.to_owned())).expect_err(foreign);
        assert_eq!(error.kind(), Kind::Pending, "{foreign}");
    }
}
