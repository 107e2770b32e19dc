//! fio on a volume: blocks with checksums, each on the storage before the next, and all of them read back.
#![expect(
    clippy::disallowed_methods,
    reason = "the load is a process of its own, like that of a pod"
)]

use std::fs::{self, File};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// The time to write and to read what it has yet to, on an emulated processor.
const LIMIT: Duration = Duration::from_mins(15);
/// The writes of a second, of 2048: enough that the outage comes before their end.
const RATE: &str = "--rate_iops=30";

/// The files that it reports in, and in which it says which block is wrong.
const REPORT: &str = "/var/lib/lab/fio";
const WRONG: &str = "/var/lib/lab/fio-wrong";

/// A running fio.
#[derive(Debug)]
pub struct Fio(Child);

// === impl Fio ===

impl Fio {
    /// Begins to write into a folder.
    ///
    /// # Panics
    /// If there is no fio.
    pub fn start(folder: &Path) -> Self {
        let folder = format!("--directory={}", folder.display());
        let wrong = File::create(WRONG).expect("a file for what it says");
        let child = Command::new("fio")
            .args(["--name=outage", &folder, "--size=32M", "--bs=16k"])
            .args(["--rw=randwrite", "--ioengine=psync", RATE])
            // What only a cache has is lost with the power, as it may be.
            .args(["--direct=1", "--sync=1"])
            .args(["--verify=crc32c", "--do_verify=1", "--verify_fatal=1"])
            .args(["--verify_state_save=0", "--output", REPORT])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(wrong)
            .spawn()
            .expect("the lab's machines have fio");
        Self(child)
    }

    /// Whether it still runs.
    pub fn is_running(&mut self) -> bool {
        matches!(self.0.try_wait(), Ok(None))
    }

    /// Waits until it has read back everything.
    ///
    /// # Panics
    /// If it met an error, found a wrong block, or takes too long.
    pub async fn end(mut self) {
        let status = self.gone().await;
        let [report, wrong] =
            [REPORT, WRONG].map(|path| fs::read_to_string(path).unwrap_or_default());
        assert!(status.success(), "fio: {status}: {wrong}{report}");
    }

    /// Kills it, as a pod that is replaced.
    ///
    /// # Panics
    /// If it stays.
    pub async fn kill(mut self) {
        // One that has ended already is fine.
        let _ = self.0.kill();
        self.gone().await;
    }

    async fn gone(&mut self) -> ExitStatus {
        let deadline = Instant::now() + LIMIT;
        loop {
            if let Some(status) = self.0.try_wait().expect("a child can be waited for") {
                return status;
            }
            assert!(Instant::now() < deadline, "fio does not end");
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }
}
