//! The nodes that volumes are published to, as the storage shows them.

use csi_types::{AccessMode, NodeIdentity};

use super::{Fresh, call, expect};
use crate::error::{Error, Kind};
use crate::request::{PublishVolume, UnpublishVolume};
use crate::text::{NodeId, VolumeId};
use crate::volume::PageRequest;

/// How many parts of its work a verb has at most before it is no longer cut.
const PARTS: usize = 64;

/// A node that its backend knows by another id than the one that it reports.
fn node(name: &str) -> NodeIdentity {
    let id = NodeId::parse(name).expect("an id");
    NodeIdentity {
        reported: NodeId::parse(&format!("n={name}/a=10.0.0.1,fd00::1")).expect("an id"),
        name: Some(name.to_owned()),
        ..NodeIdentity::of(id)
    }
}

impl Fresh {
    /// For a volume of several nodes.
    async fn publish(&self, id: &VolumeId, node: &NodeIdentity) -> Result<(), Error> {
        let is_shared = |mode: AccessMode| mode != AccessMode::Unknown && !mode.is_of_one_node();
        self.publish_in(is_shared, id, node).await
    }

    /// For a volume of one node.
    async fn publish_alone(&self, id: &VolumeId, node: &NodeIdentity) -> Result<(), Error> {
        self.publish_in(AccessMode::is_of_one_node, id, node).await
    }

    async fn publish_in(
        &self,
        is_wanted: impl Fn(AccessMode) -> bool,
        id: &VolumeId,
        node: &NodeIdentity,
    ) -> Result<(), Error> {
        let capability = self.capability_in(is_wanted).expect("such an access mode");
        let request = PublishVolume::new(id, node, &capability, false);
        let published = self.driver.publish_volume(&call(), request).await;
        published.map(drop)
    }

    async fn unpublish(&self, id: &VolumeId, node: Option<&NodeIdentity>) -> Result<(), Error> {
        let request = UnpublishVolume::new(id, node);
        self.driver.unpublish_volume(&call(), request).await
    }

    /// The nodes of a volume; the list and the volume by itself say the same.
    async fn published_to(&self, id: &VolumeId) -> Vec<String> {
        let listed = self.volumes(&PageRequest::default()).await.entries;
        let listed = listed.into_iter().find(|volume| volume.id == *id);
        let listed = listed.expect("it is listed").published_to;
        let one = self.driver.get_volume(&call(), id).await;
        assert_eq!(expect("get", one).published_to, listed, "{id}");
        listed.iter().map(ToString::to_string).collect()
    }
}

pub(super) async fn lists_show_the_nodes_that_volumes_are_published_to(fresh: &Fresh) {
    if !fresh.driver.capabilities().published_nodes {
        return;
    }
    let (a, b) = (node("node-a"), node("node-b"));
    let reported = |node: &NodeIdentity| node.reported.to_string();
    let id = fresh.create("contract-published").await.id;
    let other = fresh.create("contract-other").await.id;
    assert!(fresh.published_to(&id).await.is_empty());
    for _ in 0..2 {
        expect("publish", fresh.publish(&id, &b).await);
        assert_eq!(fresh.published_to(&id).await, [reported(&b)]);
    }
    expect("publish", fresh.publish(&id, &a).await);
    assert_eq!(fresh.published_to(&id).await, [reported(&a), reported(&b)]);
    assert!(fresh.published_to(&other).await.is_empty());
    let again = fresh.create("contract-published").await;
    assert_eq!(again.published_to, [a.reported.clone(), b.reported.clone()]);
    for _ in 0..2 {
        expect("unpublish", fresh.unpublish(&id, Some(&b)).await);
        assert_eq!(fresh.published_to(&id).await, [reported(&a)]);
    }
    expect("publish", fresh.publish(&id, &b).await);
    expect("publish", fresh.publish(&other, &b).await);
    expect("unpublish", fresh.unpublish(&id, None).await);
    assert!(fresh.published_to(&id).await.is_empty());
    assert_eq!(fresh.published_to(&other).await, [reported(&b)]);
    fresh.delete(&id).await;
    expect(
        "unpublish what is gone",
        fresh.unpublish(&id, Some(&b)).await,
    );
    let anew = fresh.create("contract-published").await;
    assert!(anew.published_to.is_empty(), "it is another volume");
    // A node of which only the id is known is shown by that.
    let plain = NodeIdentity::of(NodeId::parse("node-c").expect("an id"));
    expect("publish", fresh.publish(&id, &plain).await);
    assert_eq!(fresh.published_to(&id).await, ["node-c"]);
}

pub(super) async fn a_publish_that_is_cut_converges(fresh: &Fresh) {
    let Some(cut) = &fresh.cut else {
        return;
    };
    if !fresh.driver.capabilities().published_nodes {
        return;
    }
    let (a, b) = (node("node-a"), node("node-b"));
    let id = fresh.create("contract-cut").await.id;
    expect("publish", fresh.publish(&id, &a).await);
    for parts in 0..PARTS {
        cut(Some(parts));
        let published = fresh.publish(&id, &b).await;
        cut(None);
        let was_cut = published.is_err();
        // A node with access is never missing in the list, and the other one stays.
        let seen = fresh.published_to(&id).await;
        assert!(seen.contains(&a.reported.to_string()), "{parts}: {seen:?}");
        expect("publish again", fresh.publish(&id, &b).await);
        assert_eq!(fresh.published_to(&id).await.len(), 2, "{parts}");
        cut(Some(parts));
        let unpublished = fresh.unpublish(&id, Some(&b)).await;
        cut(None);
        let is_over = !was_cut && unpublished.is_ok();
        expect("unpublish again", fresh.unpublish(&id, Some(&b)).await);
        assert_eq!(
            fresh.published_to(&id).await,
            [a.reported.to_string()],
            "{parts}"
        );
        if is_over {
            return;
        }
    }
    panic!("a publish has more than {PARTS} parts");
}

/// Either a record lets in none by itself, and every node gets the volume, or a second node is refused until the first one
/// is out.
pub(super) async fn a_volume_of_one_node_is_held_by_it_or_by_none(fresh: &Fresh) {
    if !fresh.driver.capabilities().published_nodes {
        return;
    }
    let (a, b) = (node("node-a"), node("node-b"));
    let reported = |node: &NodeIdentity| node.reported.to_string();
    let id = fresh.create("contract-held").await.id;
    for _ in 0..2 {
        expect("publish", fresh.publish_alone(&id, &a).await);
    }
    let second = fresh.publish_alone(&id, &b).await;
    if !fresh.holds {
        expect("publish", second);
        assert_eq!(fresh.published_to(&id).await, [reported(&a), reported(&b)]);
        return;
    }
    let refused = second.expect_err("another node has it");
    assert_eq!(refused.kind(), Kind::Busy, "{}", refused.chain());
    let has_name = refused.chain().contains(a.reported.as_str());
    assert!(has_name, "who has it: {}", refused.chain());
    assert_eq!(fresh.published_to(&id).await, [reported(&a)]);
    expect("publish again", fresh.publish_alone(&id, &a).await);
    expect("unpublish", fresh.unpublish(&id, Some(&a)).await);
    expect("publish", fresh.publish_alone(&id, &b).await);
    assert_eq!(fresh.published_to(&id).await, [reported(&b)]);
}
