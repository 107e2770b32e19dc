//! Strings that have broken drivers: traversal, encodings, separators, quotes, terminal codes,
//! invisible characters, banned ones, every limit and the byte beyond it.

use std::collections::BTreeSet;

const UP: &[&str] = &[
    "../",
    "..\\",
    "./",
    "/../",
    "//",
    "%2e%2e%2f",
    "%2e%2e/",
    "..%2f",
    "..%5c",
    "%252e%252e%252f",
    "..%c0%af",
    "....//",
    "..;/",
    "\u{ff0e}\u{ff0e}/",
    "..\u{2215}",
    "v/../",
    "s/../",
    "v:../",
    "%00/",
    "~/",
];
const GOALS: &[&str] = &["", "s", "v/scene", "etc/passwd"];
const WORDS: &[&str] = &["scene"];
const INSIDE: &[&str] = &[
    ",",
    "=",
    " ",
    "\n",
    "\r",
    "\r\n",
    "\t",
    "\u{0}",
    "'",
    "\"",
    "`",
    ";",
    "|",
    "&",
    "&&",
    "$",
    "$(id)",
    "${HOME}",
    "`id`",
    ">",
    "<",
    "*",
    "?",
    "[",
    "]",
    "{",
    "}",
    "{{name}}",
    "{{{name}}}",
    "!",
    "#",
    "%",
    "%s%n",
    "\\",
    "\\n",
    "^",
    "~",
    ":",
    "@",
    "\u{7f}",
    "\u{80}",
    "\u{85}",
    "\u{9f}",
    "\u{1b}[31m",
    "\u{1b}]0;x\u{7}",
    "\u{8}",
    "\u{b}",
    "\u{c}",
    "\u{202e}",
    "\u{2066}",
    "\u{200b}",
    "\u{feff}",
    "\u{ad}",
    "\u{301}",
    "\u{e000}",
    "\u{fdd0}",
    "\u{10ffff}",
    "\u{1f4a9}",
    "é",
    "Ω",
    "ı",
    "ſ",
    "\u{2028}",
    "\u{2029}",
    "/",
    "//",
    "/./",
    "/../",
    "..",
    ".",
];
const WHOLE: &[&str] = &[
    "-",
    "--",
    "-rf",
    "--help",
    "-o",
    "ro,exec,suid",
    "x\nFORGED line in the log",
    "x\r\n{\"level\":\"ERROR\",\"forged\":true}",
    "null",
    "true",
    "0",
    "-1",
    "NaN",
    "1e308",
    "0x10",
    "9223372036854775808",
    "CON",
    "nul",
    ".snapshots",
    ".",
    "..",
    "...",
    "v:a/b",
    "v:a//b",
    "s:a/b",
    "v:%2e%2e",
    "v:v:a/b",
    "v:",
    "/",
    "//",
    "a/b",
    "/a",
    "a/",
    "scene/",
    "/scene",
    "snapshot_driver=filecopy",
    "snapshot_driver=filecopy&snapshot_id=..%2Fv",
    "snapshot_driver=restic&snapshot_id=a",
    "snapshot_driver=filecopy&snapshot_id=scene-cut%00",
    "snapshot_id=a-b",
    "scene@cut",
    "scene/cut",
    "/lun/1/2",
    "'; DROP TABLE volumes; --",
    "<script>alert(1)</script>",
    "() { :;}; id",
    "file:///etc/passwd",
    "//server/share",
    "C:\\x",
    "\u{feff}scene",
    "SCENE",
    "scene ",
    " scene",
    "scene\u{0}",
    "*",
    "v",
    "s",
    "lost+found",
    "|id",
    "0:0",
    "\\\\?\\x",
];
const LENGTHS: &[usize] = &[127, 128, 129, 255, 256, 257, 512, 513, 4095, 4096, 4097];

/// At least five hundred distinct strings.
pub fn strings() -> Vec<String> {
    let mut all: BTreeSet<String> = WHOLE.iter().map(|text| (*text).to_owned()).collect();
    for (up, goal) in UP
        .iter()
        .flat_map(|up| GOALS.iter().map(move |goal| (up, goal)))
    {
        all.extend([format!("{up}{goal}"), format!("{up}{up}{up}{goal}")]);
    }
    for (word, middle) in WORDS
        .iter()
        .flat_map(|word| INSIDE.iter().map(move |middle| (word, middle)))
    {
        all.insert((*middle).to_owned());
        all.extend([
            format!("{middle}{word}"),
            format!("{word}{middle}"),
            format!("{word}{middle}{word}"),
        ]);
    }
    let banned = (0..0x20).chain(0x7f..0xa0).filter_map(char::from_u32);
    all.extend(banned.map(|c| format!("a{c}b")));
    for length in LENGTHS {
        all.extend([
            "a".repeat(*length),
            "é".repeat(length / 2),
            format!("{}/..", "a/".repeat(length / 2)),
        ]);
    }
    all.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_five_hundred_at_least() {
        assert!(strings().len() >= 500, "{}", strings().len());
    }
}
