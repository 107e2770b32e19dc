//! Content from one connection to another: here from a driver to itself, which does not notice.

use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;

use super::{Fresh, call, expect, expect_kind};
use crate::call::Call;
use crate::driver::Driver;
use crate::error::{Error, Kind};
use crate::request::FindVolume;
use crate::text::VolumeId;
use crate::transfer::{Bookmark, Bytes, CopyTag, ExportInfo, ExportStream, Stream, TransferFormat};
use crate::volume::{CreateVolume, Elsewhere, Source, Volume};

/// The number of retries an interrupted stream may need before this counts as a defect.
const TRIES: usize = 64;

/// A source that must not be used: it fails with a unique error.
#[derive(Debug)]
struct Silent;

/// A source that fails after that many pieces.
#[derive(Debug)]
struct Cut<'a> {
    inner: Box<dyn ExportStream + 'a>,
    left: AtomicUsize,
}

/// Its stream.
#[derive(Debug)]
struct CutBytes {
    inner: Box<dyn Bytes>,
    left: usize,
}

#[async_trait]
impl ExportStream for Silent {
    async fn info(&self, _: &Call) -> Result<ExportInfo, Error> {
        Err(Error::not_found("a source that is gone"))
    }

    async fn open(&self, _: &Call, _: Option<&Bookmark>) -> Result<Stream, Error> {
        Err(Error::not_found("a source that is gone"))
    }

    async fn close(&self, _: &Call) -> Result<(), Error> {
        Ok(())
    }
}

fn cut() -> Error {
    Error::new(Kind::Unreachable, "read what the suite has cut")
}

#[async_trait]
impl ExportStream for Cut<'_> {
    async fn info(&self, call: &Call) -> Result<ExportInfo, Error> {
        self.inner.info(call).await
    }

    async fn open(&self, call: &Call, from: Option<&Bookmark>) -> Result<Stream, Error> {
        let left = self.left.load(Ordering::Relaxed);
        if left == 0 {
            return Err(cut());
        }
        Ok(match self.inner.open(call, from).await? {
            Stream::Bytes(inner) => Stream::Bytes(Box::new(CutBytes { inner, left })),
            // It has no pieces: the call is interrupted.
            tree @ Stream::Tree(_) => tree,
        })
    }

    async fn close(&self, call: &Call) -> Result<(), Error> {
        self.inner.close(call).await
    }
}

#[async_trait]
impl Bytes for CutBytes {
    async fn next(&mut self) -> Result<Option<Vec<u8>>, Error> {
        self.left = self.left.checked_sub(1).ok_or_else(cut)?;
        self.inner.next().await
    }
}

/// The handle of a volume of another connection.
fn elsewhere(id: &VolumeId) -> Elsewhere {
    let handle = VolumeId::parse(&format!("v:elsewhere/{id}")).expect("a handle");
    Elsewhere::Volume(handle)
}

fn wanted(fresh: &Fresh, name: &str, of: &VolumeId) -> CreateVolume {
    fresh.request(name, Some(Source::Elsewhere(elsewhere(of))))
}

fn tag(name: &str) -> CopyTag {
    CopyTag::of(format!("v:here/{name}"))
}

/// The export of a volume of the driver itself.
fn given<'a>(driver: &'a dyn Driver, id: &VolumeId, name: &str) -> Box<dyn ExportStream + 'a> {
    let outflow = driver.export(&Source::Volume(id.clone()), &tag(name));
    expect("give a volume", outflow)
}

/// Whether there is something to test: a format that the driver both exports and imports.
fn flows(fresh: &Fresh) -> bool {
    let takes = fresh.driver.import_formats();
    fresh
        .driver
        .export_formats()
        .iter()
        .any(|form| takes.contains(form))
}

async fn taken(fresh: &Fresh, name: &str, of: &VolumeId) -> Result<Volume, Error> {
    let from = given(&*fresh.driver, of, name);
    let request = wanted(fresh, name, of);
    let made = fresh.driver.import(&call(), &request, &*from).await?;
    expect("close the source", from.close(&call()).await);
    Ok(made)
}

pub(super) async fn advertised_forms_are_those_that_are_there(fresh: &Fresh) {
    let driver = &fresh.driver;
    let missing = fresh.id("contract-missing");
    let outflow = driver.export(&Source::Volume(missing.clone()), &tag("x"));
    let refused = matches!(&outflow, Err(error) if error.kind() == Kind::Unsupported);
    assert_eq!(refused, driver.export_formats().is_empty(), "{outflow:?}");
    if let Ok(outflow) = outflow {
        expect_kind(
            "measure nothing",
            outflow.info(&call()).await,
            &[Kind::NotFound, Kind::Invalid],
        );
        expect_kind(
            "open nothing",
            outflow.open(&call(), None).await,
            &[Kind::NotFound, Kind::Invalid],
        );
        // There is nothing to be removed.
        expect("close nothing", outflow.close(&call()).await);
    }
    let request = wanted(fresh, "contract-inflow", &missing);
    let taken = driver.import(&call(), &request, &Silent).await;
    let kind = if driver.import_formats().is_empty() {
        Kind::Unsupported
    } else {
        Kind::NotFound
    };
    expect_kind("fill from nothing", taken, &[kind]);
    // A source elsewhere is not copied without an import.
    let made = driver.create_volume(&call(), &request).await;
    let kinds = [Kind::Invalid, Kind::Unsupported];
    expect_kind("make of what is elsewhere", made, &kinds);
    assert!(!fresh.exists(&request.id).await, "made of nothing");
    let all = [
        TransferFormat::Tree,
        TransferFormat::ZfsFilesystem,
        TransferFormat::ZfsVolume,
    ];
    for forms in [driver.export_formats(), driver.import_formats()] {
        assert!(forms.iter().all(|form| all.contains(form)));
    }
}

pub(super) async fn what_flows_in_is_a_volume_that_stands_on_its_own(fresh: &Fresh) {
    if !flows(fresh) {
        return;
    }
    let source = fresh.create("contract-source").await;
    let made = expect("fill", taken(fresh, "contract-copy", &source.id).await);
    assert_eq!(made.id, fresh.id("contract-copy"));
    assert_eq!(made.source, Some(Source::Elsewhere(elsewhere(&source.id))));
    assert!(made.capacity >= source.capacity, "smaller than its source");
    // The source may be deleted by then, and is not used.
    let request = wanted(fresh, "contract-copy", &source.id);
    let again = fresh.driver.import(&call(), &request, &Silent).await;
    assert_eq!(expect("the same again", again), made);
    let other = wanted(fresh, "contract-copy", &fresh.id("contract-other"));
    let other = fresh.driver.import(&call(), &other, &Silent).await;
    expect_kind("of another source", other, &[Kind::Conflict]);
    // The copy does not keep the source, and the source does not keep the copy.
    fresh.delete(&source.id).await;
    assert!(fresh.exists(&made.id).await, "it went with its source");
    fresh.delete(&made.id).await;
    assert!(!fresh.exists(&made.id).await);
}

/// A stream of bytes is interrupted at every piece, a tree by the clock.
pub(super) async fn a_flow_that_is_cut_leaves_nothing_that_is_ready(fresh: &Fresh) {
    if !flows(fresh) {
        return;
    }
    let source = fresh.create("contract-source").await;
    let request = wanted(fresh, "contract-copy", &source.id);
    let late = Call::within(std::time::Duration::ZERO);
    let from = given(&*fresh.driver, &source.id, "contract-copy");
    let outcome = fresh.driver.import(&late, &request, &*from).await;
    expect_kind("without time", outcome, &[Kind::Timeout]);
    assert!(!fresh.exists(&request.id).await);
    drop(from);
    for pieces in 0..TRIES {
        let from = Cut {
            inner: given(&*fresh.driver, &source.id, "contract-copy"),
            left: AtomicUsize::new(pieces),
        };
        match fresh.driver.import(&call(), &request, &from).await {
            Ok(made) => {
                assert!(pieces > 0, "made of a source that did not open");
                assert_eq!(made.id, request.id);
                expect("close", from.close(&call()).await);
                // Nothing is left of it at the source.
                fresh.delete(&made.id).await;
                fresh.delete(&source.id).await;
                return;
            }
            Err(error) => {
                let kinds = [Kind::Unreachable, Kind::Pending];
                expect_kind::<()>("cut", Err(error), &kinds);
                assert!(!fresh.exists(&request.id).await, "ready after {pieces}");
            }
        }
    }
    panic!("the copy does not come to its end in {TRIES} attempts");
}

pub(super) async fn what_is_given_up_is_deleted(fresh: &Fresh) {
    if !flows(fresh) {
        return;
    }
    let source = fresh.create("contract-source").await;
    for pieces in 0..4 {
        let from = Cut {
            inner: given(&*fresh.driver, &source.id, "contract-copy"),
            left: AtomicUsize::new(pieces),
        };
        let request = wanted(fresh, "contract-copy", &source.id);
        drop(fresh.driver.import(&call(), &request, &from).await);
        fresh.delete(&request.id).await;
        let found = fresh
            .driver
            .find_volume(&call(), FindVolume::new(&request.id))
            .await;
        expect_kind("find what was deleted", found, &[Kind::NotFound]);
        expect("close", from.close(&call()).await);
    }
    fresh.delete(&source.id).await;
}
