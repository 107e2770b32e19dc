//! gRPC reflection (v1 and v1alpha) over the descriptors of CSI and of csi-addons.
//!
//! The descriptor is decoded on the first request, which most servers never get. It costs neither
//! start-up time nor memory before that.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};

use tonic::body::Body;
use tonic::server::NamedService;
use tonic::service::Routes;
use tower::{Service, ServiceExt};

/// The reflection service under the name of version 1.
#[derive(Debug, Clone)]
pub struct V1(Lazy);

/// The reflection service under the name that older clients ask for.
#[derive(Debug, Clone)]
pub struct V1Alpha(Lazy);

#[derive(Debug, Clone)]
struct Lazy {
    services: Arc<[&'static str]>,
    decoded: Arc<OnceLock<Routes>>,
}

type Answer = Pin<Box<dyn Future<Output = Result<http::Response<Body>, Infallible>> + Send>>;

/// Adds both versions to what is served, and lists themselves and `services`: the descriptor knows
/// more than is served.
pub fn add_to(routes: Routes, services: &[&'static str]) -> Routes {
    let lazy = Lazy {
        services: [services, &[V1::NAME, V1Alpha::NAME]].concat().into(),
        decoded: Arc::default(),
    };
    routes
        .add_service(V1(lazy.clone()))
        .add_service(V1Alpha(lazy))
}

// === impl Lazy ===

impl Lazy {
    fn answer(&self, request: http::Request<Body>) -> Answer {
        let routes = self.decoded.get_or_init(|| decode(&self.services)).clone();
        Box::pin(routes.oneshot(request))
    }
}

/// Without a readable descriptor the routes are empty, and the answer is UNIMPLEMENTED; a test
/// proves that ours is readable.
fn decode(services: &[&str]) -> Routes {
    let builder = || {
        let builder = tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(csi_proto::FILE_DESCRIPTOR_SET)
            .register_encoded_file_descriptor_set(csi_proto::ADDONS_DESCRIPTOR_SET)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET);
        services
            .iter()
            .fold(builder, |builder, name| builder.with_service_name(*name))
    };
    let mut routes = Routes::default();
    if let (Ok(v1), Ok(v1alpha)) = (builder().build_v1(), builder().build_v1alpha()) {
        routes = routes.add_service(v1).add_service(v1alpha);
    }
    routes.prepare()
}

// === impl V1 ===

impl NamedService for V1 {
    const NAME: &'static str = "grpc.reflection.v1.ServerReflection";
}

impl Service<http::Request<Body>> for V1 {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Answer;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Answer {
        self.0.answer(request)
    }
}

// === impl V1Alpha ===

impl NamedService for V1Alpha {
    const NAME: &'static str = "grpc.reflection.v1alpha.ServerReflection";
}

impl Service<http::Request<Body>> for V1Alpha {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Answer;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Answer {
        self.0.answer(request)
    }
}
