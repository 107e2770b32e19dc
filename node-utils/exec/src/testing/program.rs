//! Programs that tests write and then run.

use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

/// Writes a program with this text, or panics.
///
/// A child writes it. Where this process has the file open for writing while another thread starts a child, that child
/// has it open too until it is another program, and the kernel refuses to run the file ("text file busy").
#[expect(clippy::disallowed_methods, reason = "a test's own child")]
pub fn write_program(path: &Path, text: &str) {
    let mut child = Command::new("sh")
        .args(["-c", r#"cat >"$0" && chmod 755 "$0""#])
        .arg(path)
        .stdin(Stdio::piped())
        .spawn()
        .expect("a shell");
    let mut input = child.stdin.take().expect("its input");
    input.write_all(text.as_bytes()).expect("written");
    drop(input);
    assert!(
        child.wait().expect("its end").success(),
        "{}",
        path.display()
    );
}
