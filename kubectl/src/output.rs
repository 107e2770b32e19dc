//! The output of a command in a pod: passed on while it comes, and watched for silence.

use std::cell::Cell;
use std::io;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::{Instant, sleep_until};

/// The length of the end of an output that is kept.
const END: usize = 4 << 10;

/// The moment at which a command was last heard of.
pub(crate) struct Heard {
    at: Cell<Instant>,
    /// Outputs that wait for their reader.
    writes: Cell<usize>,
}

// === impl Heard ===

impl Heard {
    pub(crate) fn now() -> Self {
        Self {
            at: Cell::new(Instant::now()),
            writes: Cell::new(0),
        }
    }

    /// Ends once the command was silent for so long. Until then each `part` of a silence is reported by `report`, which
    /// gets its length.
    pub(crate) async fn silence(&self, limit: Duration, part: Duration, report: impl Fn(Duration)) {
        let mut reported = 0;
        loop {
            let next = part * (reported + 1);
            sleep_until(self.at.get() + next.min(limit)).await;
            if self.writes.get() > 0 {
                // It may have to wait for its reader, too.
                self.at.set(Instant::now());
            }
            let silent = self.at.get().elapsed();
            if silent >= limit {
                return;
            }
            if silent >= next {
                report(silent);
                reported += 1;
            } else {
                // It was heard of.
                reported = 0;
            }
        }
    }

    /// Does a write, which may wait for a reader such as a pager: no silence of the command.
    async fn writing<T>(&self, write: impl Future<Output = T>) -> T {
        self.writes.set(self.writes.get() + 1);
        let done = write.await;
        self.writes.set(self.writes.get() - 1);
        self.at.set(Instant::now());
        done
    }
}

/// Passes on all that is read, and returns its end.
pub(crate) async fn pass(
    from: Option<impl AsyncRead + Unpin>,
    mut to: impl AsyncWrite + Unpin,
    heard: &Heard,
) -> io::Result<Vec<u8>> {
    let mut end = Vec::new();
    let Some(mut from) = from else {
        return Ok(end);
    };
    let mut part = vec![0; 16 << 10];
    loop {
        let length = from.read(&mut part).await?;
        if length == 0 {
            return Ok(end);
        }
        let read = part.get(..length).unwrap_or_default();
        let write = async {
            to.write_all(read).await?;
            to.flush().await
        };
        heard.writing(write).await?;
        end.extend_from_slice(read);
        end.drain(..end.len().saturating_sub(END));
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use tokio::io::duplex;
    use tokio::time::sleep;

    use super::*;

    const LIMIT: Duration = Duration::from_secs(10);

    #[tokio::test(start_paused = true)]
    async fn a_command_that_is_silent_is_given_up() {
        let (_open, from) = duplex(64);
        let heard = Heard::now();
        tokio::select! {
            _ = pass(Some(from), Vec::<u8>::new(), &heard) => panic!("it has not ended"),
            () = heard.silence(LIMIT, LIMIT, |_| {}) => {}
        }
    }

    #[tokio::test(start_paused = true)]
    async fn each_part_of_a_silence_is_reported_from_what_was_heard_last() {
        let (mut said, from) = duplex(64);
        let heard = Heard::now();
        let reported = RefCell::new(Vec::new());
        let speak = async move {
            sleep(LIMIT / 2).await;
            said.write_all(b"a").await.expect("a reader");
            sleep(LIMIT * 2).await;
        };
        let all = async { tokio::join!(pass(Some(from), Vec::<u8>::new(), &heard), speak) };
        let report = |silent: Duration| reported.borrow_mut().push(silent.as_secs());
        tokio::select! {
            _ = all => panic!("it has not ended"),
            () = heard.silence(LIMIT, Duration::from_secs(3), report) => {}
        }
        assert_eq!(reported.into_inner(), [3, 3, 6, 9]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_command_that_speaks_now_and_then_is_heard_to_its_end() {
        let (mut said, from) = duplex(64);
        let speak = async move {
            for _ in 0..8 {
                sleep(LIMIT / 5).await;
                said.write_all(b"a").await.expect("a reader");
            }
        };
        let heard = Heard::now();
        let done = async { tokio::join!(pass(Some(from), Vec::<u8>::new(), &heard), speak) };
        tokio::select! {
            (end, ()) = done => assert_eq!(end.expect("all"), b"aaaaaaaa"),
            () = heard.silence(LIMIT, LIMIT, |_| {}) => panic!("it was heard"),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_reader_that_waits_is_no_silence_of_the_command() {
        let (to, mut reader) = duplex(1);
        let read = async move {
            sleep(LIMIT * 2).await;
            let mut all = Vec::new();
            reader.read_to_end(&mut all).await.expect("all");
            all
        };
        let heard = Heard::now();
        let done = async { tokio::join!(pass(Some(b"four".as_slice()), to, &heard), read) };
        tokio::select! {
            (end, all) = done => assert_eq!((end.expect("all"), all), (b"four".to_vec(), b"four".to_vec())),
            () = heard.silence(LIMIT, LIMIT, |_| {}) => panic!("its reader is slow"),
        }
    }
}
