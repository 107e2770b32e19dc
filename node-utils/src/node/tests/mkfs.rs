//! Filesystems as the tools of this machine know them: just enough for the tests of the verbs.

use exec::{Accept, Command, Output, Program};

use super::super::filesystems::{Filesystems, Ready};
use super::*;
use crate::capability::FsType;
use crate::device::BlockDevice;

#[derive(Debug)]
pub(super) struct Mkfs(pub(super) Tools);

impl Mkfs {
    async fn run(&self, command: Command) -> Result<Output, Error> {
        let name = command.to_string();
        let done = self.0.here().run_checked(&command).await;
        done.map_err(|error| Error::new(Kind::Internal, name).because(error))
    }

    /// What is on the device; `None` for nothing at all.
    async fn look(&self, device: &BlockDevice) -> Result<Option<String>, Error> {
        let node = text_of(device);
        let command = Command::new(Program::constant("blkid"))
            .args(["-p", "-o", "value", "-s", "TYPE", &node])
            .accepting(Accept::Codes(vec![2]));
        let found = self.run(command).await?.text().trim().to_owned();
        if found.is_empty() {
            let bytes = fs::read(&node).expect("read");
            if bytes.iter().any(|byte| *byte != 0) {
                return Ok(Some("something that nobody knows".to_owned()));
            }
        }
        Ok((!found.is_empty()).then_some(found))
    }
}

fn text_of(device: &BlockDevice) -> String {
    let node = device.node(&Kernel::here());
    node.to_str().expect("text").to_owned()
}

#[async_trait]
impl Filesystems for Mkfs {
    async fn prepare(
        &self,
        device: &BlockDevice,
        wanted: Option<&FsType>,
        deadline: Instant,
    ) -> Result<Ready, Error> {
        if self.look(device).await?.is_none() {
            let program = match wanted.map(FsType::as_str) {
                Some("xfs") => "mkfs.xfs",
                _ => "mkfs.ext4",
            };
            let command = Command::new(Program::constant(program));
            let made = self.run(command.args(["-q", &text_of(device)])).await?;
            drop(made);
        }
        self.find(device, deadline).await
    }

    async fn find(&self, device: &BlockDevice, _: Instant) -> Result<Ready, Error> {
        let found = self.look(device).await?.unwrap_or_default();
        if !["ext3", "ext4", "xfs"].contains(&&*found) {
            let doing = format!("use {device}, which holds {found:?}");
            return Err(Error::new(Kind::Busy, doing));
        }
        Ok(Ready {
            device: device.clone(),
            kind: FsType::parse(&found).expect("name"),
        })
    }

    async fn grow(
        &self,
        device: &BlockDevice,
        path: &AbsolutePath,
        _: Instant,
    ) -> Result<(), Error> {
        let command = match self.look(device).await?.as_deref() {
            Some("xfs") => Command::new(Program::constant("xfs_growfs")).arg(path.as_str()),
            _ => Command::new(Program::constant("resize2fs")).arg(text_of(device)),
        };
        self.run(command).await.map(drop)
    }
}
