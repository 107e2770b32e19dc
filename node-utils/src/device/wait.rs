//! Polls the kernel with a growing pause until the deadline.
//!
//! sysfs sends no event that reaches a container reliably, and udev may not run in it. The first
//! polls follow each other fast, because most devices appear within milliseconds.

use tokio::time::Instant;

use super::BlockDevice;
use crate::blocking::{self, Doing, Limits};
use crate::kernel::Kernel;
use csi_types::backoff::Backoff;
use csi_types::error::{Error, Kind};

/// Polls with `look` until it finds something, or the deadline; `None` if it never did. Each poll runs
/// on a thread that may block; an error of one ends the wait.
pub async fn until<T: Send + 'static>(
    deadline: Instant,
    doing: &str,
    look: impl Fn() -> Result<Option<T>, Error> + Clone + Send + 'static,
) -> Result<Option<T>, Error> {
    let mut backoff = Backoff::of_polls();
    loop {
        let limits = Limits::until(deadline);
        let found = blocking::run(limits, Doing::reading(doing.to_owned()), look.clone()).await;
        let found = match found {
            // The deadline passed during a poll.
            Err(error) if error.kind() == Kind::Timeout && Instant::now() >= deadline => {
                return Ok(None);
            }
            found => found?,
        };
        if found.is_some() {
            return Ok(found);
        }
        let next = Instant::now() + backoff.pause();
        if next >= deadline {
            return Ok(None);
        }
        tokio::time::sleep_until(next).await;
    }
}

impl BlockDevice {
    /// Waits until the device node is there, which udev or devtmpfs makes a moment after the device.
    pub async fn wait_for_node(&self, kernel: &Kernel, deadline: Instant) -> Result<(), Error> {
        let doing = format!("wait for the device node of {self}");
        let look = {
            let (device, kernel) = (self.clone(), kernel.clone());
            move || Ok(device.has_node(&kernel)?.then_some(()))
        };
        until(deadline, &doing, look).await?.ok_or_else(|| {
            Error::new(Kind::Timeout, doing)
                .advise("is the host's `/dev` mounted into the container?")
        })
    }

    /// Waits until the device is gone from sysfs; `false` if it is still there at the deadline.
    pub async fn wait_until_gone(&self, kernel: &Kernel, deadline: Instant) -> Result<bool, Error> {
        let (device, of) = (self.clone(), kernel.clone());
        let look = move || Ok((!device.exists(&of)?).then_some(()));
        let doing = format!("wait until {self} is gone");
        Ok(until(deadline, &doing, look).await?.is_some())
    }
}
