//! The lines that a test logs, kept apart from what others log at the same time.

use std::cell::RefCell;
use std::io::Write;
use std::sync::Once;

thread_local! {
    /// The lines of this thread. Each test has a thread of its own.
    static LINES: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

struct Lines;

impl Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        LINES.with_borrow_mut(|lines| lines.extend_from_slice(bytes));
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Begins to listen to this thread.
pub(crate) fn listen() {
    // One subscriber for all tests: with one for each, what a test hears depends on the others.
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let subscriber = tracing_subscriber::fmt()
            .with_max_level(tracing::Level::TRACE)
            .with_writer(|| Lines)
            .with_ansi(false)
            .finish();
        tracing::subscriber::set_global_default(subscriber).expect("the first subscriber");
    });
    LINES.take();
}

/// The lines since then.
pub(crate) fn heard() -> String {
    String::from_utf8(LINES.take()).expect("text")
}
