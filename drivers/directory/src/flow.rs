//! Copies between two connections whose volumes are directories of this machine.
//!
//! Both are local, so nothing is written as a stream: the source gives an open directory, and the target
//! walks it as it walks one of its own. Whoever takes it, the work runs on threads of the target; one
//! that was cut leaves nothing under the volume's name, and begins again. compat: "The proxy".

use std::sync::Arc;

use async_trait::async_trait;
use driver_core::flow::{Bookmark, Form, Measure, Outflow, Stream, Tree};
use driver_core::{Call, CreateVolume, Error, Source, Volume};

use crate::driver::DirectoryDriver;
use crate::failure::failed;
use crate::store::{Shelf, Store};
use crate::volumes::{Content, Directories, Wanted};

/// The only form that directories come in.
pub(crate) const FORMS: &[Form] = &[Form::Tree];

/// A volume or a snapshot of one connection, for a copy in another one.
#[derive(Debug)]
pub(crate) struct Origin<'a> {
    driver: &'a DirectoryDriver,
    source: Source,
}

// === impl Origin ===

impl<'a> Origin<'a> {
    pub(crate) fn new(driver: &'a DirectoryDriver, source: Source) -> Self {
        Self { driver, source }
    }
}

#[async_trait]
impl Outflow for Origin<'_> {
    async fn measure(&self, call: &Call) -> Result<Measure, Error> {
        let source = self.source.clone();
        let look = move |directories: &Directories, _: &Call| directories.filling(&source);
        let filling = self.driver.run(call, "looking at a source", look).await?;
        Ok(Measure {
            form: Form::Tree,
            least: filling.least,
            // To count it would be to walk it.
            bytes: None,
        })
    }

    async fn open(&self, call: &Call, _: Option<&Bookmark>) -> Result<Stream, Error> {
        let (source, owner) = (self.source.clone(), Arc::clone(&self.driver.directories));
        let open = move |directories: &Directories, _: &Call| {
            let filling = directories.filling(&source)?;
            let known = filling.dir.try_clone().map_err(|error| {
                let errno = rustix::io::Errno::from_io_error(&error);
                failed("opening a source", errno.unwrap_or(rustix::io::Errno::IO))
            })?;
            let is_still = move || owner.store.is_still(filling.shelf, &filling.name, &known);
            Ok(Tree::new(filling.dir, is_still))
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
        from: &dyn Outflow,
    ) -> Result<Volume, Error> {
        let asked = request.clone();
        let known = self.run(call, "looking for a volume", move |directories, _| {
            directories.known(&directories.wanted(&asked)?)
        });
        if let Some(known) = known.await? {
            return Ok(known);
        }
        let doing = || format!("creating volume {}", request.id);
        let least = from.measure(call).await?.least;
        let Stream::Tree(tree) = from.open(call, None).await? else {
            return Err(
                Error::invalid(doing()).because("what it is filled with are no directories")
            );
        };
        let asked = request.clone();
        self.run(call, "filling a volume", move |directories, call| {
            directories.fill(call, directories.wanted(&asked)?, &tree, least)
        })
        .await
    }
}

impl Directories {
    /// A volume that is there already, if it is what is wanted.
    fn known(&self, wanted: &Wanted) -> Result<Option<Volume>, Error> {
        let shelf = self.store.shelf_or_make(Shelf::Volumes)?;
        let found = Store::find(&shelf, Shelf::Volumes, wanted.dir.as_str())?;
        found.map(|found| self.existing(wanted, &found)).transpose()
    }

    fn fill(&self, call: &Call, wanted: Wanted, tree: &Tree, least: u64) -> Result<Volume, Error> {
        let shelf = self.store.shelf_or_make(Shelf::Volumes)?;
        if let Some(found) = Store::find(&shelf, Shelf::Volumes, wanted.dir.as_str())? {
            return self.existing(&wanted, &found);
        }
        let called = match &wanted.record.source {
            Some(Source::Elsewhere(source)) => source.to_string(),
            _ => "another connection".to_owned(),
        };
        let content = Content {
            dir: tree.dir(),
            is_still: &|| tree.is_still_there(),
            least,
            called,
        };
        self.make_of(call, &shelf, wanted, &content)
    }
}
