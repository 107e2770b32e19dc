//! The examples of the documentation: every file that it shows can be used as it stands.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use integration::place::Place;
use integration::tools;

/// The YAML blocks of the page.
fn blocks() -> Vec<String> {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/proxy.md");
    let page = fs::read_to_string(page).expect("the page");
    let blocks = page.split("```yaml\n").skip(1);
    let texts = blocks.filter_map(|block| block.split("```").next());
    texts.map(str::to_owned).collect()
}

/// The connections that a main file names.
fn named(main: &str) -> Vec<String> {
    let legacy = main.lines().filter_map(|line| {
        let name = line.trim().strip_prefix("legacyConnection: ");
        name.filter(|name| *name != "none")
    });
    let listed = ["  aliases:\n", "  legacyNames:\n"]
        .into_iter()
        .flat_map(|key| {
            let (_, list) = main.split_once(key).unwrap_or_default();
            let list = list.lines().map_while(|line| line.strip_prefix("    "));
            list.filter_map(|line| Some(line.split_once(": ")?.1))
        });
    legacy.chain(listed).map(str::to_owned).collect()
}

#[tokio::test]
async fn files_of_the_page_pass_a_check_to_the_last_key() {
    let (mut mains, mut files) = (Vec::new(), Vec::new());
    for block in blocks() {
        if block.starts_with("driver: proxy") {
            mains.push(block);
        } else if let Some(rest) = block.strip_prefix("# connection: ") {
            let (name, _) = rest.split_once('\n').expect("more than a name");
            files.push((name.to_owned(), block));
        }
    }
    assert!(
        mains.len() >= 5 && files.len() >= 4,
        "{} and {}",
        mains.len(),
        files.len()
    );
    for main in mains {
        let place = Place::new();
        let folder = place.path().join("connections");
        fs::create_dir(&folder).expect("a folder");
        // What has an alias must not be there any more.
        let renamed = |name: &str| {
            let old = name.trim_end_matches(".yaml");
            main.contains(&format!("    {old}: "))
        };
        let mut written = BTreeSet::new();
        for (name, text) in files.iter().filter(|(name, _)| !renamed(name)) {
            fs::write(folder.join(name), text).expect("a file");
            written.insert(name.clone());
        }
        // What it names has a file: that of another one will do.
        for name in named(&main) {
            let name = format!("{name}.yaml");
            fs::write(folder.join(&name), &files[0].1).expect("a file");
            written.insert(name);
        }
        assert!(main.contains("/mnt/connections/"), "{main}");
        let text = main.replace("/mnt/connections/", &folder.display().to_string());
        fs::write(place.config(), text).expect("a file");
        let config = format!("--driver-config-file={}", place.config().display());
        let checked = tools::omnibus(&["check", "--offline", &config], &[]).await;
        let report = String::from_utf8_lossy(&checked.stdout).into_owned();
        assert!(checked.status.success(), "{main}\n{report}");
        assert!(!report.contains("WARNING"), "{main}\n{report}");
        assert!(
            report.contains(&format!("{} connections", written.len())),
            "{report}"
        );
    }
}

/// The pages that say what became of a limit or a statement name tests: each row has one, or says
/// why not, and each is there.
#[test]
fn tests_that_the_pages_about_limits_and_statements_name_exist() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut sources = String::new();
    for folder in ["proxy/src", "drivers", "integration"] {
        read(&root.join(folder), &mut sources);
    }
    for (page, least) in [("proxy-limits.md", 30), ("proxy-statements.md", 50)] {
        let text = fs::read_to_string(root.join("docs").join(page)).expect(page);
        let rows = text.lines().filter(|line| line.starts_with("| "));
        let rows: Vec<_> = rows.filter(|row| !row.contains("| test |")).collect();
        assert!(rows.len() >= least, "{page} has {} rows", rows.len());
        for row in rows {
            let cells: Vec<_> = row.trim_matches('|').split('|').map(str::trim).collect();
            let [_, here, tests] = cells[..] else {
                panic!("{page}: {row}");
            };
            let names = tests.split('`').filter(|word| word.contains('_'));
            let names: Vec<_> = names.filter(|word| !word.contains('/')).collect();
            let excused = tests == "—" || tests == "the same" || here == "not yet";
            assert!(
                excused || !names.is_empty() || tests.contains('/'),
                "{page}: {row}"
            );
            for name in names {
                let is_test = sources.contains(&format!("fn {name}("));
                assert!(is_test, "{page}: `{name}` is no test");
            }
        }
    }
}

fn read(folder: &Path, into: &mut String) {
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            read(&path, into);
        } else if path.extension().is_some_and(|ending| ending == "rs") {
            into.push_str(&fs::read_to_string(path).expect("a source"));
        }
    }
}
