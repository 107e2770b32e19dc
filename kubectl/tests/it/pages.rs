//! The pages that messages name: each is there, and so is the heading.

use std::fs;
use std::path::{Path, PathBuf};

/// The text of each source file, with its name; the tests in it included.
fn sources(folder: &Path, found: &mut Vec<(PathBuf, String)>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, found);
        } else {
            found.push((path.clone(), fs::read_to_string(&path).unwrap()));
        }
    }
}

/// The heading before ` in docs/`, if it is quoted: `\"A heading\" in docs/page.md`.
fn heading(before: &str) -> Option<&str> {
    let quoted = before.strip_suffix("\\\" in ")?;
    quoted.rsplit_once("\\\"").map(|(_, heading)| heading)
}

#[test]
fn each_page_that_a_message_names_is_there_with_its_heading() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut found = Vec::new();
    sources(&root.join("src"), &mut found);
    let (mut pages, mut headings) = (0, 0);
    for (path, text) in found {
        // Long texts are broken into lines.
        let text = text.replace("\\\n", "\n");
        let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
        let mut parts = text.split("docs/");
        let mut before = parts.next().unwrap_or_default();
        for part in parts {
            if let Some((name, _)) = part.split_once(".md") {
                let page = root.join(format!("../docs/{name}.md"));
                let page = fs::read_to_string(&page)
                    .unwrap_or_else(|error| panic!("{}: docs/{name}.md: {error}", path.display()));
                pages += 1;
                if let Some(heading) = heading(before) {
                    let is_there = page.lines().any(|line| {
                        line.trim_start_matches('#').trim() == heading && line.starts_with('#')
                    });
                    assert!(
                        is_there,
                        "{}: no {heading} in docs/{name}.md",
                        path.display()
                    );
                    headings += 1;
                }
            }
            before = part;
        }
    }
    assert!(
        pages >= 8 && headings >= 6,
        "{pages} pages, {headings} headings"
    );
}
