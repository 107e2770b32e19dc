//! The blocks that were freed since a snapshot that is gone: only the pointers of a zvol say that, and only `zdb`
//! shows them.

use std::ops::Range;
use std::time::Duration;

use driver_core::config::Finding;
use driver_core::{Call, Effect, Error, Kind};
use driver_zfs::name::SnapshotRef;
use exec::{Command, RunError, Runner};

use super::{COMMAND, Cli, ZfsTools, failure};

/// Prints them: see there.
pub(super) const FREED: &str = include_str!("script/freed.sh");
/// Prints whether zdb can be run: see there.
pub(super) const RUNS_ZDB: &str = include_str!("script/runs_zdb.sh");
/// Its answer if so.
const YES: &str = "yes";
/// The longest reason that is passed on, in characters.
const REASON: usize = 200;
/// The last line of a complete answer.
const ALL: &str = "all";
/// The time that `zdb` may take. It reads all pointers, which are a thousandth of the data; those who ask give up after
/// ten minutes.
const LOOKING: Duration = Duration::from_mins(9);
/// The largest answer.
const OUTPUT: usize = 8 << 20;
/// The size of a pointer.
const POINTER: u64 = 128;

const ADVICE: &str = "make a full backup; for incremental ones keep the base until the next backup, or let the login \
                      run zdb on the storage host: see docs/groups-and-changes.md";

fn runs_zdb(tools: &ZfsTools) -> Command {
    Command::function(RUNS_ZDB).args([tools.sudo.as_str()])
}

impl<R: Runner> Cli<R> {
    /// What a check says if the login cannot run zdb. All else works without it, and so do deltas whose base still exists.
    pub(super) async fn lacks_zdb(&self, call: &Call) -> Option<Finding> {
        let command = runs_zdb(&self.tools).within(COMMAND.min(call.remaining()));
        // A host that does not answer is found by all the other looks.
        let output = self.runner.run_checked(&command).await.ok()?;
        let text = output.text();
        let said = text.trim();
        if said == YES {
            return None;
        }
        let why: String = said.chars().take(REASON).collect();
        Some(Finding::lacking(
            "changed blocks",
            format!(
                "a delta from a deleted snapshot is not known where blocks were freed, as zdb cannot be run there as root: {why}"
            ),
            "needed only for incremental backups that delete their base: log in as root, or add /usr/sbin/zdb to the rules of \
             sudo, see docs/groups-and-changes.md",
        ))
    }

    pub(super) async fn freed(
        &self,
        call: &Call,
        of: &SnapshotRef,
        txg: u64,
        block: u64,
    ) -> Result<Vec<Range<u64>>, Error> {
        let doing = format!("look for freed blocks of {of}");
        let command = Command::function(FREED)
            .args([self.tools.sudo.as_str(), &txg.to_string(), &of.to_string()])
            .with_output_cap(OUTPUT)
            .within(LOOKING.min(call.remaining()));
        let unknown = |why: String| {
            Error::new(Kind::Busy, doing.clone())
                .because(why)
                .advise(ADVICE)
        };
        let output = match self.runner.run_checked(&command).await {
            Ok(output) => output,
            Err(error @ RunError::Unreachable { .. }) => {
                return Err(failure::of(&error, &doing, Effect::None).error);
            }
            Err(error) => return Err(unknown(error.to_string())),
        };
        let ranges = ranges(&output.text(), block);
        ranges.ok_or_else(|| unknown("the answer of zdb is not understood".to_owned()))
    }
}

/// The ranges of an answer, those that touch as one; `None` if it cannot be read.
fn ranges(text: &str, block: u64) -> Option<Vec<Range<u64>>> {
    let lines = text.trim_end().strip_suffix(ALL)?;
    let mut all: Vec<Range<u64>> = Vec::new();
    for line in lines.lines() {
        let mut words = line.split(' ');
        let start = u64::from_str_radix(words.next()?, 16).ok()?;
        let level: u32 = words.next()?.parse().ok()?;
        let size = u64::from_str_radix(words.next()?, 16).ok()?;
        let length = if level == 0 {
            size
        } else {
            block.checked_mul((size / POINTER).checked_pow(level)?)?
        };
        let end = start.checked_add(length).filter(|end| *end > start)?;
        match all.last_mut() {
            Some(last) if start < last.end => return None,
            Some(last) if start == last.end => last.end = end,
            _ => all.push(start..end),
        }
    }
    Some(all)
}

#[cfg(test)]
mod tests {
    use driver_core::BackendIdentity;
    use driver_core::config::Severity;
    use driver_zfs::backend::Backend as _;
    use driver_zfs::observed::VolumeKind;
    use exec::testing::{Reply, Scripted};

    use super::*;

    const BLOCK: u64 = 16 << 10;

    #[tokio::test]
    async fn a_check_of_disks_names_a_zdb_that_cannot_be_run_and_no_other_check_does() {
        let tools = ZfsTools::new(None, None, false).unwrap();
        let call = Call::within(Duration::from_mins(1));
        let described = async |reply: Reply, kind| {
            let runner = Scripted::new().expect(runs_zdb(&tools).to_string(), reply);
            let cli = Cli::new(runner, tools.clone(), BackendIdentity("test".into()));
            cli.describe(&call, kind).await
        };
        for refused in ["sh: 1: zdb: not found\n", "sudo: a password is required\n"] {
            let found = described(Reply::printing(refused), VolumeKind::Zvol).await;
            let [lack] = found.as_slice() else {
                panic!("{refused}: {found:?}");
            };
            assert_eq!(lack.severity, Severity::Remark);
            assert!(lack.message.ends_with(refused.trim()), "{lack}");
            assert!(
                lack.advice
                    .as_deref()
                    .is_some_and(|advice| advice.contains("/usr/sbin/zdb"))
            );
            let of_files = described(Reply::printing(refused), VolumeKind::Filesystem).await;
            assert!(of_files.is_empty(), "{of_files:?}");
        }
        for reply in [Reply::printing("yes\n"), Reply::lost()] {
            let found = described(reply, VolumeKind::Zvol).await;
            assert!(found.is_empty(), "{found:?}");
        }
    }

    #[test]
    fn an_answer_becomes_ranges() {
        let text = "10000 0 4000\n14000 0 4000\n2000000 1 20000\nall\n";
        let expected = vec![0x10000..0x18000, 0x0200_0000..0x0300_0000];
        assert_eq!(ranges(text, BLOCK), Some(expected));
        assert_eq!(ranges("all\n", BLOCK), Some(Vec::new()));
        for text in [
            "",
            "10000 0 4000\n",
            "10000 0\nall\n",
            "x 0 4000\nall\n",
            "10000 0 0\nall\n",
            "14000 0 4000\n10000 0 4000\nall\n",
            "0 9 20000\nall\n",
        ] {
            assert_eq!(ranges(text, BLOCK), None, "{text:?}");
        }
    }
}
