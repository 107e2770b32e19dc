//! The commands of the pages about installing and migrating: a test runs each, or the page says that none does.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::path::Path;

use omnibus_csi::cli::args::{self, Invocation};

/// The rows: page, file or `never`, text or reason, command.
const TABLE: &str = include_str!("commands_documented/table");
const PAGES: [&str; 2] = ["docs/install.md", "docs/migrate.md"];
/// The words by which a page says it, in small letters.
const MARKS: [&str; 3] = ["never run", "no test runs", "run by hand"];
/// The programs of commands that are not in blocks, and how many words a command of each has at least: `helm upgrade` alone
/// is only spoken of.
const PROGRAMS: [(&str, usize); 20] = [
    ("apk", 2),
    ("apt-get", 2),
    ("ctr", 2),
    ("dnf", 2),
    ("docker", 3),
    ("echo", 2),
    ("helm", 3),
    ("k0s", 2),
    ("k3s", 2),
    ("kind", 2),
    ("kubectl", 3),
    ("microk8s", 2),
    ("minikube", 2),
    ("modprobe", 2),
    ("mpathconf", 2),
    ("oc", 3),
    ("skopeo", 2),
    ("systemctl", 2),
    ("zfs", 3),
    ("zypper", 2),
];

/// A command, on one line and without its remark.
struct Command {
    line: String,
    /// The text from the heading before it to the next.
    section: String,
}

fn read(path: &str) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    fs::read_to_string(root.join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The rows of a page, without the page.
fn rows(page: &str) -> Vec<[&'static str; 3]> {
    let lines = TABLE.lines().filter(|line| !line.starts_with('#'));
    let rows = lines.map(|line| {
        let fields: Vec<_> = line.split('\t').collect();
        <[&str; 4]>::try_from(fields).unwrap_or_else(|_| panic!("not four fields: {line}"))
    });
    let (known, unknown): (Vec<_>, Vec<_>) = rows.partition(|[of, ..]| PAGES.contains(of));
    assert_eq!(unknown, [[""; 4]; 0], "rows of other pages");
    let of_page = known.into_iter().filter(|[of, ..]| *of == page);
    of_page
        .map(|[_, by, text, line]| [by, text, line])
        .collect()
}

/// The commands of the blocks without a language, which are for a shell, and those in the text and in tables.
fn commands(page: &str) -> Vec<Command> {
    let (mut found, mut here, mut section) = (Vec::new(), Vec::new(), String::new());
    let mut block: Option<&str> = None;
    // The end of the document that a command reads, and the command that goes on in the next line.
    let (mut document, mut so_far) = (None::<String>, String::new());
    for line in page.lines() {
        let text = line.trim();
        if let Some(language) = text.strip_prefix("```") {
            assert!(document.is_none() && so_far.is_empty(), "cut off: {line}");
            block = block.is_none().then_some(language);
        } else if block == Some("") {
            if let Some(end) = &document {
                document = (text != end).then(|| end.clone());
                continue;
            }
            so_far.push_str(text.split(" #").next().unwrap_or_default().trim_end());
            if let Some(first) = so_far.strip_suffix('\\') {
                so_far = first.to_owned();
                continue;
            }
            document = so_far
                .split_once("<<'")
                .map(|(_, end)| end.trim_end_matches('\'').to_owned());
            here.push(std::mem::take(&mut so_far));
        } else if block.is_none() && text.starts_with('#') {
            found.extend(here.drain(..).map(|line| (line, section.clone())));
            section.clear();
        } else if block.is_none() {
            let spans = text.split('`').skip(1).step_by(2);
            here.extend(spans.filter(|span| is_command(span)).map(str::to_owned));
        }
        section.push_str(line);
        section.push('\n');
    }
    found.extend(here.drain(..).map(|line| (line, section.clone())));
    let found = found.into_iter().filter(|(line, _)| !line.is_empty());
    found
        .map(|(line, section)| Command { line, section })
        .collect()
}

/// Whether what stands in a text between backquotes is a command.
fn is_command(span: &str) -> bool {
    let words: Vec<_> = span.split_whitespace().collect();
    let known = |(program, _): &&(&str, usize)| words.first() == Some(program);
    let least = PROGRAMS.iter().find(known).map(|(_, least)| *least);
    least.is_some_and(|least| words.len() >= least) && !span.contains('…')
}

/// The command lines of the program in a command. `run` is what the page makes of its function of that name.
fn of_program(line: &str, run: Option<&str>) -> Vec<String> {
    if let (Some(words), Some(run)) = (line.strip_prefix("run "), run) {
        return vec![run.replace("\"$@\"", words)];
    }
    let parts = line.split('|').map(str::trim);
    let ours = parts.filter(|part| part.starts_with("omnibus-csi "));
    ours.filter_map(|part| part.split(" >").next())
        .map(str::to_owned)
        .collect()
}

#[test]
fn each_command_of_a_page_has_a_row_and_each_row_a_command() {
    for page in PAGES {
        let (commands, rows) = (commands(&read(page)), rows(page));
        let written: BTreeSet<_> = commands
            .iter()
            .map(|command| command.line.as_str())
            .collect();
        let known: BTreeSet<_> = rows.iter().map(|[.., line]| *line).collect();
        assert!(written.len() >= 15, "{page}: {written:#?}");
        assert_eq!(known.len(), rows.len(), "{page}: a command has two rows");
        let new: Vec<_> = written.difference(&known).collect();
        assert!(new.is_empty(), "{page}: commands without a row: {new:#?}");
        let gone: Vec<_> = known.difference(&written).collect();
        assert!(gone.is_empty(), "{page}: rows without a command: {gone:#?}");
    }
}

#[test]
fn a_command_is_in_the_test_that_its_row_names_or_the_page_says_beside_it_that_there_is_none() {
    for page in PAGES {
        let commands = commands(&read(page));
        for [by, text, line] in rows(page) {
            assert!(!text.is_empty(), "{page}: {line}");
            if by != "never" {
                let is_there = read(by).contains(text);
                assert!(is_there, "{page}: {line}: {by} has no {text:?}");
                continue;
            }
            for command in commands.iter().filter(|command| command.line == line) {
                let section = command.section.to_lowercase();
                let is_said = MARKS.iter().any(|mark| section.contains(mark));
                assert!(is_said, "{page}: {line}: the section does not say it");
            }
        }
    }
}

#[test]
fn the_program_takes_the_flags_that_the_pages_give_it() {
    for (page, least) in PAGES.into_iter().zip([6, 4]) {
        let commands = commands(&read(page));
        let run = commands.iter().find_map(|command| {
            let (_, body) = command.line.strip_prefix("run() {")?.split_once(" -- ")?;
            body.split(';').next()
        });
        let lines = commands
            .iter()
            .flat_map(|command| of_program(&command.line, run));
        let lines: Vec<_> = lines.collect();
        assert!(lines.len() >= least, "{page}: {lines:#?}");
        for line in lines {
            let words = line.split_whitespace().map(OsString::from).collect();
            let read = args::parse(words, &|_| None);
            assert!(
                matches!(read, Ok(Invocation::Command(_))),
                "{page}: {line}: {read:?}"
            );
        }
    }
}

#[test]
fn commands_are_read_as_a_shell_does() {
    let page = "# A\nrun by hand\n```\na  # b\ncat <<'END'\nd # e\nEND\nf \\\n  | omnibus-csi g > h\n```\n## B\n\
                ```yaml\ni: j\n```\n   ```\n   k\n   ```\n\
                Not `helm upgrade`, but | `helm upgrade l`, `apk add m` | `ctr …` |\n";
    let found = commands(page);
    let lines: Vec<_> = found.iter().map(|command| command.line.as_str()).collect();
    assert_eq!(
        lines,
        [
            "a",
            "cat <<'END'",
            "f | omnibus-csi g > h",
            "k",
            "helm upgrade l",
            "apk add m"
        ]
    );
    assert!(found[0].section.contains("run by hand"));
    assert!(!found[3].section.contains("run by hand"));
    assert_eq!(of_program(lines[2], None), ["omnibus-csi g"]);
    let run = Some("omnibus-csi \"$@\" --x");
    assert_eq!(of_program("run y z", run), ["omnibus-csi y z --x"]);
}
