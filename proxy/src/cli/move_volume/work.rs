//! The rounds of a move, its end, and what is said of them.

use std::fmt::Write as _;
use std::sync::Arc;

use driver_core::{CreateVolume, Kind, Moment, MoveSource as _, MoveState, Mover, Round, Volume};
use tokio::time::Instant;

use super::progress::{Counted, Progress};
use super::{Ends, LITTLE, MoveFlags, ROUND, ROUNDS};
use crate::cli::connections::size;
use crate::cli::selection::{CHANGE, QUESTION, within};
use crate::message::{self, printable};
use crate::process;

/// The hint after a failure.
const AGAIN: &str = "what has come stays: the same command goes on";

/// One move.
pub(super) struct Move<'a> {
    pub(super) ends: &'a Ends,
    pub(super) flags: &'a MoveFlags,
    pub(super) to: &'a dyn Mover,
    pub(super) request: CreateVolume,
    pub(super) source: Counted<'a>,
    pub(super) progress: &'a Arc<Progress>,
}

// === impl Move ===

impl Move<'_> {
    fn handle(&self) -> String {
        printable(&self.ends.handle())
    }

    /// The handle of the volume that it becomes.
    fn new_handle(&self) -> String {
        printable(&self.ends.target.volume_handle(&self.request.id))
    }

    async fn state(&self) -> Result<MoveState, String> {
        let state = within(QUESTION, "look at what has come", async |call| {
            self.to.move_state(call, &self.request).await
        });
        state.await.map_err(|error| message::of(&error))
    }

    /// About how many bytes were written to the volume since a moment.
    async fn written(&self, since: Moment) -> Result<u64, String> {
        let written = within(QUESTION, "measure what was written", async |call| {
            self.source.written_since(call, since).await
        });
        written.await.map_err(|error| message::of(&error))
    }

    async fn round(&self, number: usize) -> Result<Round, String> {
        self.progress.begin(number);
        let started = Instant::now();
        let ended = within(ROUND, "carry a round", async |call| {
            self.to.move_in(call, &self.request, &self.source).await
        });
        let ended = ended.await;
        self.progress.begin(0);
        let ended = ended.map_err(|error| match error.kind() {
            // Nothing goes on there.
            Kind::NotFound | Kind::Conflict => message::of(&error),
            _ => format!("{}\nomnibus-csi: {AGAIN}", message::of(&error)),
        })?;
        let (bytes, seconds) = (size(ended.bytes), started.elapsed().as_secs());
        process::complain(&format!("round {number}: {bytes} in {seconds} s"));
        Ok(ended)
    }

    /// Carries rounds until one of them is short.
    pub(super) async fn rounds(&self) -> Result<(), String> {
        let mut last = self.round(1).await?;
        for number in 2..=ROUNDS {
            if last.bytes < LITTLE {
                break;
            }
            last = self.round(number).await?;
        }
        let written = self.written(last.moment).await?;
        let (from, to) = (self.handle(), self.new_handle());
        process::say(&format!(
            "{from} is on its way to `{to}`: {} were written to it since the last round.\n\
             It is the volume until the end. When you are ready: its pods to zero, and the same command with --finish.\n",
            size(written)
        ));
        Ok(())
    }

    /// Refuses the end while the volume is in use.
    async fn check_unused(&self) -> Result<(), String> {
        if self.flags.while_attached {
            return Ok(());
        }
        let Some(volume) = self.ends.volume(false).await? else {
            return Ok(());
        };
        let handle = self.handle();
        let remedy = "scale its pods to zero and wait until it is detached";
        let anyway = "--while-attached finishes all the same, and what they write after the last round is lost";
        if !self.ends.source.can().published_nodes {
            let kind = self.ends.source.driver().kind();
            return Err(format!(
                "{handle}: the driver `{kind}` does not record which nodes use a volume: {remedy}, and say \
                 --while-attached"
            ));
        }
        let connected = within(QUESTION, "look for clients of the volume", async |call| {
            self.source.connected(call).await
        });
        let connected = connected.await.map_err(|error| message::of(&error))?;
        let nodes: Vec<_> = volume
            .published_to
            .iter()
            .map(ToString::to_string)
            .collect();
        let in_use = match (nodes.as_slice(), connected.as_slice()) {
            ([], []) => return Ok(()),
            ([], clients) => format!("connected is {}", clients.join(", ")),
            (nodes, _) => format!("it is attached to {}", nodes.join(", ")),
        };
        let in_use = printable(&in_use);
        Err(format!("{handle}: {in_use}: {remedy} ({anyway})"))
    }

    /// Rounds until nothing was written after the last of them.
    async fn last_rounds(&self) -> Result<(), String> {
        for number in 1..=ROUNDS {
            let round = self.round(number).await?;
            // A pod may have come while it ran.
            self.check_unused().await?;
            if self.flags.while_attached || self.written(round.moment).await? == 0 {
                return Ok(());
            }
        }
        Err(format!(
            "{}: it is written to after each round, by whatever uses it: end that, or say --while-attached",
            self.handle()
        ))
    }

    /// Carries the last round, and makes a volume of what has come.
    pub(super) async fn finish(&self) -> Result<Volume, String> {
        let new = self.new_handle();
        match self.state().await? {
            MoveState::Volume(volume) => {
                let moved = format!(
                    "{} was moved: the volume is `{new}`, and has nothing of what was written to the old one since",
                    self.handle()
                );
                let unused = self.check_unused().await;
                unused.map_err(|why| format!("{moved}\nomnibus-csi: {why}"))?;
                process::complain(&moved);
                self.close().await;
                return Ok(*volume);
            }
            MoveState::Ending(moment) if !self.flags.while_attached => {
                self.check_unused().await?;
                let written = self.written(moment).await?;
                if written > 0 {
                    return Err(format!(
                        "{}: {} were written since the end was started, and no round can follow: --give-up, and start \
                         anew, or say --while-attached and lose that",
                        self.handle(),
                        size(written)
                    ));
                }
            }
            MoveState::Ending(_) => {}
            MoveState::Nothing | MoveState::Part | MoveState::At(_) => {
                self.check_unused().await?;
                self.last_rounds().await?;
            }
        }
        let made = within(CHANGE, "make a volume of what has come", async |call| {
            self.to.moved_in(call, &self.request).await
        });
        let made = made
            .await
            .map_err(|error| format!("{}\nomnibus-csi: {AGAIN}", message::of(&error)))?;
        process::complain(&format!(
            "{} is now `{new}`; the old volume stays",
            self.handle()
        ));
        self.close().await;
        Ok(made)
    }

    /// Removes the snapshots at the source. The volume is complete without that.
    async fn close(&self) {
        let closed = within(CHANGE, "remove the snapshots of the move", async |call| {
            self.source.close(call).await
        });
        if let Err(error) = closed.await {
            let why = message::of(&error);
            process::complain(&format!(
                "the snapshots of the move are left at the old volume: {why}; the same command removes them"
            ));
        }
    }

    /// Removes what the move has left at both ends.
    pub(super) async fn give_up(&self) -> Result<(), String> {
        let given_up = within(CHANGE, "give the move up", async |call| {
            self.to.give_up_move(call, &self.request).await?;
            self.source.close(call).await
        });
        given_up.await.map_err(|error| message::of(&error))?;
        let handle = self.handle();
        process::say(&format!(
            "nothing is left of the move; {handle} is as it was\n"
        ));
        Ok(())
    }

    /// Says what would be done.
    pub(super) async fn explain(&self) -> Result<(), String> {
        let (from, to) = (self.handle(), self.new_handle());
        let mut text = match self.state().await? {
            MoveState::Volume(_) => format!("{from} was moved: the volume is `{to}`\n"),
            MoveState::Ending(_) => {
                format!("`{to}` is being made of {from}: --finish goes on\n")
            }
            MoveState::Nothing => {
                let info = within(QUESTION, "measure the volume", async |call| {
                    self.source.info(call).await
                });
                let info = info.await.map_err(|error| message::of(&error))?;
                let bytes = info
                    .bytes
                    .map_or_else(String::new, |bytes| format!(", about {}", size(bytes)));
                format!("{from} would become `{to}`:\n  send all of it{bytes}\n{REST}")
            }
            MoveState::Part => {
                format!("{from} would become `{to}`:\n  go on with the first round\n{REST}")
            }
            MoveState::At(moment) => {
                let written = self.written(moment).await;
                let since =
                    written.map_or_else(|why| why, |bytes| format!("about {}", size(bytes)));
                format!(
                    "{from} would become `{to}`:\n  send what was written since the last round: {since}\n{REST}"
                )
            }
        };
        if let Err(why) = self.check_unused().await {
            let _ = writeln!(text, "note: {why}");
        }
        process::say(&text);
        Ok(())
    }
}

/// The steps after the first.
const REST: &str = "  send what was written since, until that is little\n  \
                    with --finish: send the rest, make it a volume, and write its objects\n";
