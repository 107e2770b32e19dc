//! A server that does not answer delays only the calls for its own volumes.

use std::sync::Arc;
use std::time::Duration;

use csi_proto::v1::ProbeRequest;
use tokio::time::{Instant, timeout};

use crate::lab::calls::{Node, until_done};
use crate::lab::content;
use crate::lab::fixture::{Access, ExportKind};
use crate::lab::leftovers::Leftovers;
use crate::lab::life::{LENGTH, read, step, write};
use crate::lab::storage::cut::Cut;

/// The time limit of a volume of another kind from stage to unstage during the hang. Alone it takes a
/// few seconds on the machine of the lab.
const OTHERS: Duration = Duration::from_mins(2);
/// The time that an answer to a probe may take on a busy machine whose processor is emulated.
const PROBE: Duration = Duration::from_secs(5);

/// An NFS server falls silent; statistics, unpublish and unstage of its volume hang, and a volume
/// over iSCSI lives its whole life during that.
///
/// # Panics
/// If the other volume or a probe has to wait, or the silent one never goes.
pub async fn a_silent_server_delays_no_other_volume() {
    let silent = ExportKind::Nfs.fixture("silent", Access::Mount("nfs"));
    let other = ExportKind::Iscsi.fixture("other", Access::Mount("ext4"));
    let before = Leftovers::read();
    let node = Arc::new(Node::start().await);
    let (hung, pod) = (node.pod("hung"), node.pod("other"));
    node.stage(&silent).await.expect("staged");
    node.publish(&silent, &hung).await.expect("published");
    write(&silent, &hung, &content::bytes(1, LENGTH));

    step("the server falls silent, and is asked for again and again");
    let cut = Cut::ports(&[2049]);
    let silent = Arc::new(silent);
    let calls: Vec<_> = (0..12)
        .map(|number| {
            let (node, silent, hung) = (Arc::clone(&node), Arc::clone(&silent), hung.clone());
            tokio::spawn(async move {
                match number % 3 {
                    0 => drop(node.stats(&silent, &hung).await),
                    1 => drop(node.unpublish(&silent, &hung).await),
                    _ => drop(node.stage(&silent).await),
                }
            })
        })
        .collect();

    step("another volume lives during the hang");
    let life = async {
        node.stage(&other).await.expect("staged");
        node.publish(&other, &pod).await.expect("published");
        write(&other, &pod, &content::bytes(2, LENGTH));
        node.stats(&other, &pod).await.expect("statistics");
        content::same(&content::bytes(2, LENGTH), &read(&other, &pod), "the other");
        let asked = Instant::now();
        let mut identity = node.server.client().identity;
        identity.probe(ProbeRequest {}).await.expect("it lives");
        assert!(
            asked.elapsed() < PROBE,
            "a probe took {:?}",
            asked.elapsed()
        );
        node.unpublish(&other, &pod).await.expect("unpublished");
        node.unstage(&other).await.expect("unstaged");
    };
    let life = timeout(OTHERS, life).await;
    life.expect("the other volume was held up");

    step("every call about the silent one ends");
    for call in calls {
        call.await.expect("it ended");
    }
    step("the server answers again");
    cut.mend();
    until_done("unpublish", || node.unpublish(&silent, &hung)).await;
    until_done("unstage", || node.unstage(&silent)).await;
    Leftovers::back_to(&before, "the silent server").await;
    let node = Arc::into_inner(node).expect("the only owner");
    node.end().await;
}
