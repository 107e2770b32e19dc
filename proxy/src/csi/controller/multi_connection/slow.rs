//! A copy that takes longer than the deadline of a call.

use driver_zfs::testing::InMemory as _;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use async_trait::async_trait;
use driver_core::transfer::{
    Bookmark, Bytes, CopyTag, ExportInfo, ExportStream, Stream, TransferFormat,
};
use driver_core::{
    AccessRules, BackendIdentity, Call, CapacityReporter, CreateVolume, DeleteVolume, Driver,
    Error, Expander, FindVolume, Found, Lister, PageRequest, Parameters, Publisher, Snapshots,
    Source, Transfer, Volume, VolumeId, VolumeName,
};
use driver_zfs::observed::VolumeKind;

use super::carried::{Host, dataset, host, of_volume};
use super::*;
use crate::testing::log::{heard, listen};
use crate::testing::multi_of;

/// The time between two pieces.
const PACE: Duration = Duration::from_secs(20);
/// The time that a copy may take, as documented.
const DEADLINE: Duration = Duration::from_hours(24);

/// A host whose stream never ends while it is slow.
#[derive(Debug)]
struct Slow {
    host: Host,
    is_slow: AtomicBool,
}

#[derive(Debug)]
struct SlowExport<'a>(Box<dyn ExportStream + 'a>);

/// The first piece, again and again, until the sender is out of time.
#[derive(Debug)]
struct SlowBytes {
    inner: Box<dyn Bytes>,
    first: Option<Vec<u8>>,
    call: Call,
}

#[async_trait]
impl Driver for Slow {
    fn kind(&self) -> &str {
        self.host.kind()
    }

    fn access_rules(&self) -> AccessRules {
        self.host.access_rules()
    }

    fn backend_identity(&self) -> BackendIdentity {
        self.host.backend_identity()
    }

    fn name_volume(&self, name: &VolumeName, parameters: &Parameters) -> Result<VolumeId, Error> {
        self.host.name_volume(name, parameters)
    }

    async fn probe(&self, call: &Call) -> Vec<Error> {
        self.host.probe(call).await
    }

    async fn create_volume(&self, call: &Call, request: &CreateVolume) -> Result<Volume, Error> {
        self.host.create_volume(call, request).await
    }

    async fn delete_volume(&self, call: &Call, request: DeleteVolume<'_>) -> Result<(), Error> {
        self.host.delete_volume(call, request).await
    }

    async fn find_volume(&self, call: &Call, request: FindVolume<'_>) -> Result<Found, Error> {
        self.host.find_volume(call, request).await
    }

    fn clones_volumes(&self) -> bool {
        self.host.clones_volumes()
    }

    fn lister(&self) -> Option<&dyn Lister> {
        self.host.lister()
    }

    fn snapshots(&self) -> Option<&dyn Snapshots> {
        self.host.snapshots()
    }

    fn expander(&self) -> Option<&dyn Expander> {
        self.host.expander()
    }

    fn capacity_reporter(&self) -> Option<&dyn CapacityReporter> {
        self.host.capacity_reporter()
    }

    fn publisher(&self) -> Option<&dyn Publisher> {
        self.host.publisher()
    }

    fn transfer(&self) -> Option<&dyn Transfer> {
        Some(self)
    }
}

#[async_trait]
impl Transfer for Slow {
    fn export_formats(&self) -> &'static [TransferFormat] {
        self.host.export_formats()
    }

    fn import_formats(&self) -> &'static [TransferFormat] {
        self.host.import_formats()
    }

    fn export(&self, source: &Source, tag: &CopyTag) -> Result<Box<dyn ExportStream + '_>, Error> {
        let inner = self.host.export(source, tag)?;
        if self.is_slow.load(Ordering::Relaxed) {
            return Ok(Box::new(SlowExport(inner)));
        }
        Ok(inner)
    }

    async fn import(
        &self,
        call: &Call,
        request: &CreateVolume,
        from: &dyn ExportStream,
    ) -> Result<Volume, Error> {
        self.host.import(call, request, from).await
    }
}

#[async_trait]
impl ExportStream for SlowExport<'_> {
    async fn info(&self, call: &Call) -> Result<ExportInfo, Error> {
        self.0.info(call).await
    }

    async fn open(&self, call: &Call, from: Option<&Bookmark>) -> Result<Stream, Error> {
        let Stream::Bytes(inner) = self.0.open(call, from).await? else {
            panic!("no stream");
        };
        Ok(Stream::Bytes(Box::new(SlowBytes {
            inner,
            first: None,
            call: call.clone(),
        })))
    }

    async fn close(&self, call: &Call) -> Result<(), Error> {
        self.0.close(call).await
    }
}

#[async_trait]
impl Bytes for SlowBytes {
    async fn next(&mut self) -> Result<Option<Vec<u8>>, Error> {
        tokio::time::sleep(PACE).await;
        self.call.check("send a snapshot")?;
        if self.first.is_none() {
            self.first = self.inner.next().await?;
        }
        Ok(self.first.clone())
    }
}

#[tokio::test(start_paused = true)]
async fn a_copy_says_every_minute_how_far_it_is_and_one_that_takes_too_long_goes_on_at_the_retry() {
    let hosts = [(); 2].map(|()| host(VolumeKind::Filesystem));
    let source = Arc::new(Slow {
        host: hosts[0].clone(),
        is_slow: AtomicBool::new(true),
    });
    let (from, to): (Arc<dyn Driver>, Arc<dyn Driver>) = (source.clone(), hosts[1].clone());
    let service = ControllerHandler(multi_of(&[("a", from), ("b", to)]));
    let made_there = made(&service, create("x", &[("connection", "a")])).await;
    made_there.expect("made");
    hosts[0].backend().state().pool.write(&dataset("x"));
    let request = of_volume("copy", "b", "v:a/x");
    listen();
    let start = tokio::time::Instant::now();
    let status = made(&service, request.clone()).await.expect_err("too long");
    assert_eq!(status.code(), Code::DeadlineExceeded);
    assert_eq!(start.elapsed(), DEADLINE);
    let log = heard();
    let progress = log.lines().filter(|line| line.contains("copying"));
    let progress = progress.filter(|line| line.contains("bytes=") && line.contains("ended=false"));
    let minutes = usize::try_from(DEADLINE.as_secs() / 60).expect("a number");
    let count = progress.count();
    assert!((minutes - 1..=minutes).contains(&count), "{count} lines");
    // It is not a volume for any query.
    let get = v1::ControllerGetVolumeRequest {
        volume_id: "v:b/copy".into(),
    };
    let found = service.controller_get_volume(Request::new(get)).await;
    assert_eq!(found.expect_err("not ready").code(), Code::NotFound);
    let (call, page) = (Call::within(DEADLINE), PageRequest::default());
    let there = hosts[1].list_volumes(&call, &page);
    assert!(there.await.expect("a list").entries.is_empty());
    // A retry resumes the existing part.
    source.is_slow.store(false, Ordering::Relaxed);
    made(&service, request).await.expect("copied");
    let content = |host: &Host, id| host.backend().state().pool.content(&dataset(id));
    assert_eq!(content(&hosts[1], "copy"), content(&hosts[0], "x"));
}
