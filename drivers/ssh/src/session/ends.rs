//! Both ends of one channel of a connection.
//!
//! Whatever becomes of a run, its channel is closed, and a script that still runs is asked to stop.

use std::time::Duration;

use exec::script::REMOTE_COMMAND;
use futures_util::FutureExt as _;
use russh::client::Msg;
use russh::{Channel, ChannelMsg, ChannelReadHalf, ChannelWriteHalf, Sig};
use tokio::runtime::Handle;
use tokio::time::timeout;

/// How long saying goodbye to a channel may take.
const FAREWELL: Duration = Duration::from_secs(1);

/// Both ends of a channel. Dropped, it is closed.
pub(super) struct Ends {
    pub(super) reader: ChannelReadHalf,
    pub(super) line: Line,
}

/// The way to a script. Dropped half-way, it closes its channel all the same.
pub(super) struct Line(pub(super) Option<ChannelWriteHalf<Msg>>);

// === impl Ends ===

impl Ends {
    pub(super) fn of(channel: Channel<Msg>) -> Self {
        let (reader, writer) = channel.split();
        let line = Line(Some(writer));
        Self { reader, line }
    }

    /// Whether the shell has not ended. What a login printed before its script is dropped: only what
    /// a script prints behind its own start is read.
    pub(super) fn still_waits(&mut self) -> bool {
        loop {
            match self.reader.wait().now_or_never() {
                None => return true,
                Some(Some(message)) if is_idle(&message) => {}
                Some(_) => return false,
            }
        }
    }
}

/// Whether a shell may say so before its script.
pub(super) fn is_idle(message: &ChannelMsg) -> bool {
    matches!(
        message,
        ChannelMsg::WindowAdjusted { .. }
            | ChannelMsg::Data { .. }
            | ChannelMsg::ExtendedData { .. }
    )
}

// === impl Line ===

impl Line {
    /// Starts the shell.
    pub(super) async fn begin(&self) -> Result<(), russh::Error> {
        match &self.0 {
            Some(writer) => writer.exec(true, REMOTE_COMMAND).await,
            None => Err(russh::Error::Disconnect),
        }
    }

    /// Closes the channel; a script that still runs is asked to stop.
    pub(super) async fn part(mut self) {
        if let Some(writer) = self.0.take() {
            farewell(writer).await;
        }
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        if let (Some(writer), Ok(runtime)) = (self.0.take(), Handle::try_current()) {
            runtime.spawn(farewell(writer));
        }
    }
}

async fn farewell(writer: ChannelWriteHalf<Msg>) {
    let bye = async {
        // To a script that has ended this means nothing.
        let _ = writer.signal(Sig::TERM).await;
        let _ = writer.close().await;
    };
    let _ = timeout(FAREWELL, bye).await;
}
