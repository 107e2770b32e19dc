//! Streams of `zfs send` and `zfs receive` that go through this process.
//!
//! `receive -s` keeps what it has when its input ends early, and a stream marks its own end: so an
//! interrupted stream is never taken for a complete one. The resume point is a token, which is used
//! only for the snapshots that were requested: it comes from another host, and could name anything.

use std::fmt;

use async_trait::async_trait;
use driver_core::transfer::{Bookmark, Bytes};
use driver_core::{Call, Effect, Error, Kind};
use exec::stream::InputAborted;
use exec::{Command, InputStream, Lock, Locked, OutputStream, RunError, Runner};

use super::steps::receive;
use super::{Cli, failure};
use driver_zfs::backend::{Base, Incoming, Interrupted};
use driver_zfs::name::{Since, SnapshotRef};
use driver_zfs::observed::Guid;

/// The sent stream, as this process reads it.
struct Sent {
    flow: Box<dyn OutputStream>,
    snapshot: SnapshotRef,
}

/// The data to receive, as the command reads it. It keeps the error that interrupted it for the
/// caller.
struct Fed<'a> {
    stream: &'a mut dyn Bytes,
    error: Option<Error>,
}

impl fmt::Debug for Sent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sent")
            .field("snapshot", &self.snapshot)
            .finish_non_exhaustive()
    }
}

#[async_trait]
impl Bytes for Sent {
    async fn next(&mut self) -> Result<Option<Vec<u8>>, Error> {
        let piece = self.flow.next().await;
        piece.map_err(|error| sending(&error, &self.snapshot))
    }
}

#[async_trait]
impl InputStream for Fed<'_> {
    async fn next(&mut self) -> Result<Option<Vec<u8>>, InputAborted> {
        self.stream.next().await.map_err(|error| {
            self.error = Some(error);
            InputAborted
        })
    }
}

fn sending(error: &RunError, snapshot: &SnapshotRef) -> Error {
    failure::of(error, &format!("send {snapshot}"), Effect::None).error
}

/// Whether the description of a token names that snapshot, and no other one, and the one that its stream starts from.
fn is_of(said: &str, snapshot: &SnapshotRef, since: Option<Guid>) -> bool {
    let is_named = values(said, "toname") == [snapshot.to_string()];
    // Without a line the stream starts from nothing.
    let from = values(said, "fromguid").into_iter().map(number);
    let expected = since.into_iter().map(|guid| Some(guid.0));
    is_named && from.eq(expected)
}

fn values<'s>(said: &'s str, key: &str) -> Vec<&'s str> {
    let lines = said.lines().map(str::trim);
    lines
        .filter_map(|line| line.strip_prefix(key)?.strip_prefix(" = "))
        .collect()
}

/// A number as ZFS writes it there.
fn number(text: &str) -> Option<u64> {
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

impl<R: Runner> Cli<R> {
    pub(super) async fn sent(
        &self,
        call: &Call,
        of: &SnapshotRef,
        since: Option<&Base>,
        resume: Option<&Bookmark>,
    ) -> Result<Box<dyn Bytes>, Error> {
        let sent = of.to_string();
        let command = match (resume, since) {
            (None, None) => self.tools.zfs(["send", &sent]),
            (None, Some(base)) => {
                let base = base.name.to_string();
                self.tools.zfs(["send", "-i", &base, &sent])
            }
            (Some(token), _) => {
                let since = since.map(|base| base.guid);
                self.check_token(call, of, since, token).await?;
                self.tools.zfs(["send", "-t", token.as_str()])
            }
        };
        self.streamed(call, command, of).await
    }

    /// Raw, which is what is on the disks: compressed, in large blocks, with small ones in their records, and without
    /// the key of an encrypted dataset.
    pub(super) async fn sent_records(
        &self,
        call: &Call,
        of: &SnapshotRef,
        since: Option<&Since>,
    ) -> Result<Box<dyn Bytes>, Error> {
        let mut arguments = vec!["send".to_owned(), "-w".to_owned()];
        arguments.extend(
            since
                .into_iter()
                .flat_map(|s| ["-i".to_owned(), s.to_string()]),
        );
        arguments.push(of.to_string());
        self.streamed(call, self.tools.zfs(arguments), of).await
    }

    async fn streamed(
        &self,
        call: &Call,
        command: Command,
        of: &SnapshotRef,
    ) -> Result<Box<dyn Bytes>, Error> {
        let command = command.within(call.remaining());
        let flow = self.runner.stream_output(&command).await;
        Ok(Box::new(Sent {
            flow: flow.map_err(|error| sending(&error, of))?,
            snapshot: of.clone(),
        }))
    }

    /// Rejects a token that is not of this snapshot and of the one that it starts from, or whose data no longer exists.
    async fn check_token(
        &self,
        call: &Call,
        from: &SnapshotRef,
        since: Option<Guid>,
        token: &Bookmark,
    ) -> Result<(), Error> {
        let refused = || Error::not_found(format!("resume sending {from}"));
        let command = self.tools.zfs(["send", "-nvt", token.as_str()]);
        let command = super::bounded(call, vec![command]).remove(0);
        match self.runner.run_checked(&command).await {
            // Which of the two contains it differs between versions.
            Ok(said) if is_of(&said.text(), from, since) => Ok(()),
            Ok(said) if is_of(&String::from_utf8_lossy(&said.stderr), from, since) => Ok(()),
            Ok(_) => Err(refused().because("the partial copy is of another snapshot")),
            Err(error @ RunError::Failed { .. }) => {
                let failed = sending(&error, from);
                match failed.kind() {
                    Kind::Unreachable | Kind::Denied => Err(failed),
                    _ => Err(refused().because(failed)),
                }
            }
            Err(error) => Err(sending(&error, from)),
        }
    }

    pub(super) async fn received(
        &self,
        call: &Call,
        incoming: &Incoming,
        stream: &mut dyn Bytes,
    ) -> Result<(), Interrupted> {
        let dataset = &incoming.to.dataset;
        let mut lock = Lock::object(dataset.as_str());
        if let Some(folder) = &self.locks {
            lock = lock.within_folder(folder);
        }
        let command: Command = receive(&self.tools, incoming).within(call.remaining());
        call.changing();
        let mut fed = Fed {
            stream,
            error: None,
        };
        let locked = Locked::new(&self.runner, lock);
        let received = locked.run_with_input(&command, &mut fed).await;
        if let Some(error) = fed.error {
            return Err(Interrupted::Source(error));
        }
        let done = received.and_then(|output| output.check(&command));
        match done {
            Ok(_) => Ok(()),
            Err(error) => {
                let doing = format!("receive {}", incoming.to);
                let failed = failure::of(&error, &doing, Effect::Possible);
                Err(Interrupted::Here(failed))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Read in `libzfs_sendrecv.c` of OpenZFS 2.3 (`zfs_send_resume_impl_cb_impl`, `dump_nvlist`); not
    /// captured.
    const SAID: &str = "resume token contents:\nnvlist version: 0\n\tobject = 0x2\n\toffset = 0x40000\n\
                        \tbytes = 0x5e3d8\n\ttoguid = 0x1\n\ttoname = tank/v/a@s\n\
                        full send of tank/v/a@s estimated size is 1.01M\n";

    #[test]
    fn a_token_is_of_one_snapshot() {
        let of = |name: &str| is_of(SAID, &SnapshotRef::parse(name).unwrap(), None);
        assert!(of("tank/v/a@s"));
        assert!(!of("tank/v/a@s2"));
        assert!(!of("tank/v/a@t"));
        let sent = SnapshotRef::parse("tank/v/a@s").unwrap();
        assert!(!is_of("", &sent, None));
        let two = format!("{SAID}\ttoname = tank/v/b@s\n");
        assert!(!is_of(&two, &sent, None));
    }

    #[test]
    fn a_token_of_what_differs_is_of_both_snapshots() {
        let sent = SnapshotRef::parse("tank/v/a@s").unwrap();
        let since = |guid| Some(Guid(guid));
        assert!(!is_of(SAID, &sent, since(26)), "it starts from nothing");
        let said = SAID.replace("\tobject", "\tfromguid = 0x1a\n\tobject");
        assert!(is_of(&said, &sent, since(26)));
        assert!(!is_of(&said, &sent, since(27)));
        assert!(!is_of(&said, &sent, None));
        let unread = said.replace("0x1a", "0xzz");
        assert!(!is_of(&unread, &sent, since(26)));
    }
}
