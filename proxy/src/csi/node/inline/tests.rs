//! The connection a pod's own volume goes to, what is refused, and what becomes of one without a pod.

use std::collections::BTreeMap;
use std::sync::Mutex;

use csi_proto::v1::node_server::Node as _;
use csi_proto::v1::volume_capability::{AccessMode, AccessType, MountVolume, access_mode::Mode};
use driver_core::config::{Document, NoEnvironment};
use driver_core::{
    AccessRules, BackendIdentity, CreateVolume, DeleteVolume, Driver, InlineFound, InlineVolumes,
    Kind, NodeId, Parameters, Volume, VolumeName,
};
use node_utils::Tools;
use secrecy::ExposeSecret as _;
use tonic::{Code, Request};

use super::*;
use crate::app::App;
use crate::csi::environment::Environment;
use crate::csi::node::NodeHandler;
use crate::csi::spec_version::CsiVersion;
use crate::routing::connections::{Connections, Names};
use crate::testing::serve;

/// A driver whose volumes are remembered as those of a node are: outside of it.
#[derive(Debug, Default)]
struct Pods {
    volumes: Mutex<BTreeMap<VolumeId, AbsolutePath>>,
    secrets: Mutex<Vec<String>>,
    refuse: Mutex<bool>,
}

#[async_trait::async_trait]
impl Driver for Pods {
    fn kind(&self) -> &'static str {
        "pods"
    }

    fn access_rules(&self) -> AccessRules {
        AccessRules::filesystem(&[])
    }

    fn backend_identity(&self) -> BackendIdentity {
        BackendIdentity(format!("pods {:p}", &raw const self.volumes))
    }

    fn makes_volumes(&self) -> bool {
        false
    }

    fn name_volume(&self, _: &VolumeName, _: &Parameters) -> Result<VolumeId, Error> {
        Err(Error::unsupported("name volume"))
    }

    async fn probe(&self, _: &Call) -> Vec<Error> {
        Vec::new()
    }

    async fn create_volume(&self, _: &Call, _: &CreateVolume) -> Result<Volume, Error> {
        Err(Error::unsupported("create volume"))
    }

    async fn delete_volume(&self, _: &Call, _: DeleteVolume<'_>) -> Result<(), Error> {
        Err(Error::unsupported("delete volume"))
    }

    fn inline(&self) -> Option<&dyn InlineVolumes> {
        Some(self)
    }
}

#[async_trait::async_trait]
impl InlineVolumes for Pods {
    async fn make_inline(
        &self,
        call: &Call,
        wanted: &InlineVolume<'_>,
    ) -> Result<InlineMount, Error> {
        call.changing();
        let given = wanted
            .secrets
            .values()
            .map(|secret| secret.expose_secret().to_owned());
        self.secrets.lock().expect("secrets").extend(given);
        let mut volumes = self.volumes.lock().expect("volumes");
        volumes.insert(wanted.id.clone(), wanted.target.clone());
        Ok(InlineMount::Mounted)
    }

    async fn remove_inline(
        &self,
        call: &Call,
        id: &VolumeId,
        _: &AbsolutePath,
    ) -> Result<(), Error> {
        if *self.refuse.lock().expect("refuse") {
            return Err(Error::new(Kind::Unreachable, "ask the pool"));
        }
        call.changing();
        self.volumes.lock().expect("volumes").remove(id);
        Ok(())
    }

    async fn list_inline(&self, _: &Call) -> Result<Vec<InlineFound>, Error> {
        let volumes = self.volumes.lock().expect("volumes");
        let found = volumes.iter().map(|(id, target)| InlineFound {
            id: id.clone(),
            target: target.clone(),
        });
        Ok(found.collect())
    }
}

// === impl Pods ===

impl Pods {
    fn has(&self, id: &str) -> bool {
        let id = VolumeId::parse(id).expect("an id");
        self.volumes.lock().expect("volumes").contains_key(&id)
    }
}

/// As the kubelet calls them.
fn id(digit: char) -> String {
    format!("csi-{}", std::iter::repeat_n(digit, 64).collect::<String>())
}

/// A process with these connections, by name; one without a name is the only one.
fn process(drivers: &[(&str, &Arc<Pods>, &str)]) -> Arc<Plugin> {
    let root = "driver: proxy\nproxy: {configFolder: /none, inlineVolumes: true}\n";
    let root = Document::parse(root, &NoEnvironment).expect("yaml");
    let at = Environment {
        node: NodeId::parse("node-1").expect("a node"),
        version: CsiVersion::minor(12),
        tools: Tools::of_this_machine(),
        modes: None,
    };
    let (_, mut app) = App::open(root, &at).expect("an app");
    let connection = |name: &ConnectionName, driver: &Arc<Pods>, yaml: &str| {
        let text = format!("driver: pods\n{yaml}");
        let document = Document::parse(&text, &NoEnvironment).expect("yaml");
        let driver: Arc<dyn Driver> = Arc::clone(driver) as _;
        Connection::over(name.clone(), driver, &document, &App::context(&at)).expect("a connection")
    };
    app.connections = match drivers {
        [("", driver, yaml)] => {
            Connections::single(connection(&ConnectionName::unnamed(), driver, yaml))
        }
        _ => Connections::named(Names::default()),
    };
    for (name, driver, yaml) in drivers.iter().filter(|(name, ..)| !name.is_empty()) {
        let name = ConnectionName::parse(name).expect("a name");
        app.connections
            .put(LazyConnection::fixed(connection(&name, driver, yaml)));
    }
    serve(app)
}

fn publish_request(
    id: &str,
    target: &str,
    attributes: &[(&str, &str)],
) -> v1::NodePublishVolumeRequest {
    let pairs = attributes.iter();
    v1::NodePublishVolumeRequest {
        volume_id: id.to_owned(),
        target_path: target.to_owned(),
        volume_capability: Some(v1::VolumeCapability {
            access_mode: Some(AccessMode {
                mode: Mode::SingleNodeWriter.into(),
            }),
            access_type: Some(AccessType::Mount(MountVolume::default())),
        }),
        volume_context: pairs
            .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
            .collect(),
        secrets: [("token".to_owned(), "t0ken".to_owned())].into(),
        ..Default::default()
    }
}

async fn published(
    plugin: &Arc<Plugin>,
    request: v1::NodePublishVolumeRequest,
) -> Result<(), tonic::Status> {
    let handler = NodeHandler(Arc::clone(plugin));
    handler
        .node_publish_volume(Request::new(request))
        .await
        .map(drop)
}

async fn unpublished(plugin: &Arc<Plugin>, id: &str, target: &str) -> Result<(), tonic::Status> {
    let request = v1::NodeUnpublishVolumeRequest {
        volume_id: id.to_owned(),
        target_path: target.to_owned(),
    };
    let handler = NodeHandler(Arc::clone(plugin));
    handler
        .node_unpublish_volume(Request::new(request))
        .await
        .map(drop)
}

/// The attributes that the kubelet adds of a pod.
const POD: [(&str, &str); 2] = [
    ("csi.storage.k8s.io/ephemeral", "true"),
    ("csi.storage.k8s.io/pod.namespace", "build"),
];

fn of_pod(more: &[(&'static str, &'static str)]) -> Vec<(&'static str, &'static str)> {
    POD.iter().chain(more).copied().collect()
}

#[tokio::test]
async fn alone_every_volume_is_a_pods_own_and_goes_when_it_is_unpublished() {
    let driver = Arc::new(Pods::default());
    let plugin = process(&[("", &driver, "")]);
    let folder = tempfile::tempdir().expect("a folder");
    let target = folder.path().join("mount").display().to_string();
    let request = publish_request(&id('a'), &target, &[]);
    published(&plugin, request.clone())
        .await
        .expect("published");
    published(&plugin, request)
        .await
        .expect("published already");
    assert!(driver.has(&id('a')));
    assert_eq!(
        driver.secrets.lock().expect("secrets").as_slice(),
        ["t0ken", "t0ken"]
    );
    *driver.refuse.lock().expect("refuse") = true;
    let status = unpublished(&plugin, &id('a'), &target)
        .await
        .expect_err("no pool");
    assert_eq!(status.code(), Code::Unavailable, "{}", status.message());
    *driver.refuse.lock().expect("refuse") = false;
    unpublished(&plugin, &id('a'), &target)
        .await
        .expect("unpublished");
    unpublished(&plugin, &id('a'), &target)
        .await
        .expect("unpublished already");
    assert!(!driver.has(&id('a')));
}

#[tokio::test]
async fn among_others_the_attributes_name_the_connection_and_its_file_lets_the_namespace_in() {
    let [scratch, closed] = [(); 2].map(|()| Arc::new(Pods::default()));
    let plugin = process(&[
        ("scratch", &scratch, "inline: {namespaces: [build]}"),
        ("closed", &closed, ""),
    ]);
    let folder = tempfile::tempdir().expect("a folder");
    let target = folder.path().join("mount").display().to_string();
    let connection = |name| ("connection", name);
    let good = of_pod(&[connection("scratch")]);
    for (id, attributes, says) in [
        (
            id('a'),
            of_pod(&[connection("closed")]),
            "inline.namespaces",
        ),
        (
            id('a'),
            vec![POD[0], connection("scratch")],
            "podInfoOnMount",
        ),
        (
            id('a'),
            vec![
                POD[0],
                ("csi.storage.k8s.io/pod.namespace", "other"),
                connection("scratch"),
            ],
            "namespace `other`",
        ),
        (id('a'), of_pod(&[connection("none")]), "none"),
        (id('a'), of_pod(&[connection("../x")]), "connection"),
        ("pvc-1".to_owned(), good.clone(), "handle"),
        // Without a connection it goes the way of all others, and gets no further.
        (
            id('a'),
            of_pod(&[("node_attach_driver", "hostpath"), ("path", "/etc")]),
            "stage",
        ),
    ] {
        let request = publish_request(&id, &target, &attributes);
        let status = published(&plugin, request).await.expect_err(says);
        assert!(
            status.message().contains(says),
            "{says}: {}",
            status.message()
        );
    }
    let mut with_flags = publish_request(&id('a'), &target, &good);
    let capability = with_flags.volume_capability.as_mut().expect("a capability");
    capability.access_type = Some(AccessType::Mount(MountVolume {
        mount_flags: vec!["exec".to_owned()],
        ..MountVolume::default()
    }));
    let status = published(&plugin, with_flags)
        .await
        .expect_err("mount options");
    assert_eq!(status.code(), Code::InvalidArgument);
    assert!(
        !scratch.has(&id('a')) && !closed.has(&id('a')),
        "nothing was made"
    );
    published(&plugin, publish_request(&id('a'), &target, &good))
        .await
        .expect("published");
    assert!(scratch.has(&id('a')) && !closed.has(&id('a')));
    // Nothing in this call says whose it is.
    unpublished(&plugin, &id('a'), &target)
        .await
        .expect("unpublished");
    assert!(!scratch.has(&id('a')));
    // While one that may have it does not answer, it is not said to be gone.
    *closed.refuse.lock().expect("refuse") = true;
    let status = unpublished(&plugin, &id('a'), &target)
        .await
        .expect_err("it may be there");
    assert_eq!(status.code(), Code::Unavailable);
    // Volumes of others do not wait for that.
    unpublished(&plugin, "v:nas/pvc-1", &target)
        .await
        .expect("unpublished");
}

#[tokio::test]
async fn a_connection_whose_file_cannot_be_read_may_have_the_volume() {
    let driver = Arc::new(Pods::default());
    let plugin = process(&[("scratch", &driver, "inline: {namespaces: [build]}")]);
    let folder = tempfile::tempdir().expect("a folder");
    let target = folder.path().join("mount").display().to_string();
    let request = publish_request(&id('a'), &target, &of_pod(&[("connection", "scratch")]));
    published(&plugin, request).await.expect("published");
    let name = ConnectionName::parse("broken").expect("a name");
    let refused = LazyConnection::refused(name.clone(), "zfs: expected a section");
    plugin.connections.put(refused);
    let status = unpublished(&plugin, &id('b'), &target)
        .await
        .expect_err("it may be of the other connection");
    assert_eq!(status.code(), Code::Unavailable, "{}", status.message());
    for word in ["`broken`", "zfs: expected a section", "repair its file"] {
        assert!(status.message().contains(word), "{}", status.message());
    }
    // What another connection has, and what no connection can have, does not wait for it.
    unpublished(&plugin, &id('a'), &target)
        .await
        .expect("unpublished");
    assert!(!driver.has(&id('a')));
    unpublished(&plugin, "v:nas/pvc-1", &target)
        .await
        .expect("unpublished");
    plugin
        .connections
        .put(LazyConnection::being_read(name.clone()));
    let status = unpublished(&plugin, &id('b'), &target)
        .await
        .expect_err("its file is being read");
    assert_eq!(status.code(), Code::Aborted, "{}", status.message());
    plugin.connections.remove(&name);
    unpublished(&plugin, &id('b'), &target)
        .await
        .expect("nothing can have it");
}

#[tokio::test]
async fn a_volume_whose_pod_is_gone_is_unpublished_and_no_other_one() {
    let driver = Arc::new(Pods::default());
    let plugin = process(&[("scratch", &driver, "inline: {namespaces: ['*']}")]);
    let kubelet = tempfile::tempdir().expect("a folder");
    let target = |uid: &str| {
        let volume = kubelet
            .path()
            .join("pods")
            .join(uid)
            .join("volumes/kubernetes.io~csi/s");
        std::fs::create_dir_all(&volume).expect("a folder");
        volume.join("mount").display().to_string()
    };
    for (digit, uid) in [('a', "gone"), ('b', "there")] {
        let request = publish_request(
            &id(digit),
            &target(uid),
            &of_pod(&[
                ("connection", "scratch"),
                ("csi.storage.k8s.io/pod.uid", uid),
            ]),
        );
        published(&plugin, request).await.expect("published");
    }
    reap_once(&plugin).await;
    assert!(
        driver.has(&id('a')) && driver.has(&id('b')),
        "their pods are there"
    );
    std::fs::remove_dir_all(kubelet.path().join("pods/gone")).expect("gone");
    *driver.refuse.lock().expect("refuse") = true;
    reap_once(&plugin).await;
    assert!(driver.has(&id('a')), "what cannot be done waits");
    *driver.refuse.lock().expect("refuse") = false;
    reap_once(&plugin).await;
    assert!(!driver.has(&id('a')) && driver.has(&id('b')));
    std::fs::remove_dir_all(kubelet.path().join("pods")).expect("gone");
    reap_once(&plugin).await;
    assert!(
        driver.has(&id('b')),
        "a kubelet that shows no pod at all proves nothing"
    );
}
