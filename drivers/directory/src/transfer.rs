//! Copies between two connections whose volumes are directories of this machine.
//!
//! Both are local, so nothing is written as a stream: the source gives an open directory, and the target
//! walks it as it walks one of its own. The work runs on threads of the target; one
//! that was cut leaves nothing under the volume's name, and begins again. compat: "The proxy".

use std::sync::Arc;

use async_trait::async_trait;
use driver_core::transfer::{Bookmark, ExportInfo, ExportStream, Stream, TransferFormat, Tree};
use driver_core::{Call, CreateVolume, Error, Source, Volume};

use crate::driver::DirectoryDriver;
use crate::failure::failed;
use crate::volumes::Directories;

/// The only form that directories come in.
pub(crate) const FORMS: &[TransferFormat] = &[TransferFormat::Tree];

/// A volume or a snapshot of one connection, for a copy in another one.
#[derive(Debug)]
pub(crate) struct ExportSource<'a> {
    driver: &'a DirectoryDriver,
    source: Source,
}

// === impl ExportSource ===

impl<'a> ExportSource<'a> {
    pub(crate) fn new(driver: &'a DirectoryDriver, source: Source) -> Self {
        Self { driver, source }
    }
}

#[async_trait]
impl ExportStream for ExportSource<'_> {
    async fn info(&self, call: &Call) -> Result<ExportInfo, Error> {
        let source = self.source.clone();
        let look = move |directories: &Directories, _: &Call| directories.copy_source(&source);
        let copy_source = self.driver.run(call, "looking at a source", look).await?;
        Ok(ExportInfo {
            format: TransferFormat::Tree,
            minimum_size: copy_source.least,
            // To count it would be to walk it.
            bytes: None,
        })
    }

    async fn open(&self, call: &Call, _: Option<&Bookmark>) -> Result<Stream, Error> {
        let (source, owner) = (self.source.clone(), Arc::clone(&self.driver.directories));
        let open = move |directories: &Directories, _: &Call| {
            let copy_source = directories.copy_source(&source)?;
            let known = copy_source.dir.try_clone().map_err(|error| {
                let errno = rustix::io::Errno::from_io_error(&error);
                failed("opening a source", errno.unwrap_or(rustix::io::Errno::IO))
            })?;
            let still_exists = move || {
                owner
                    .store
                    .still_exists(copy_source.collection, &copy_source.name, &known)
            };
            Ok(Tree::new(copy_source.dir, still_exists))
        };
        let tree = self.driver.run(call, "opening a source", open).await?;
        Ok(Stream::Tree(tree))
    }

    async fn close(&self, _: &Call) -> Result<(), Error> {
        // It is the live directory: nothing was made.
        Ok(())
    }
}

impl DirectoryDriver {
    /// Makes a volume of the directory that another connection gives.
    pub(crate) async fn filled_from(
        &self,
        call: &Call,
        request: &CreateVolume,
        from: &dyn ExportStream,
    ) -> Result<Volume, Error> {
        let asked = request.clone();
        let known = self.run(call, "looking for a volume", move |directories, _| {
            directories.known(&directories.spec(&asked)?)
        });
        if let Some(known) = known.await? {
            return Ok(known);
        }
        let doing = || format!("creating volume {}", request.id);
        let least = from.info(call).await?.minimum_size;
        let Stream::Tree(tree) = from.open(call, None).await? else {
            return Err(
                Error::invalid(doing()).because("what it is filled with are no directories")
            );
        };
        let asked = request.clone();
        self.run(call, "filling a volume", move |directories, call| {
            directories.fill(call, directories.spec(&asked)?, &tree, least)
        })
        .await
    }
}
