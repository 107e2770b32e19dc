//! What only some drivers have, over a simulated NAS: the part of the conformance suite that mounts nothing.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use integration::conformance::Target;
use integration::conformance::optional::Optional;
use integration::conformance::proxied::Proxied;
use integration::place::Place;
use integration::server::Launch;
use integration::tree::{Entry, Tree};
use serde_json::{Value, json};
use truenas_sim::{Generation, Options, Simulator};

use crate::truenas::{by_key, config, nas};

/// Shares of a NAS that let in nodes by their addresses.
struct Shares(Simulator);

impl Shares {
    async fn new(generation: Generation) -> Self {
        let nas = nas(Options::new(generation)).await;
        // So that a kill finds a call between two requests.
        nas.faults().set(|settings| settings.round_trip_ms = 10);
        Self(nas)
    }

    /// The rows of a table. The thread of the caller is not one to wait on.
    fn rows(&self, method: &str) -> Vec<Value> {
        let rows = thread::scope(|scope| {
            let asked = scope.spawn(|| {
                let runtime = tokio::runtime::Builder::new_current_thread()
                    .enable_all()
                    .build();
                let runtime = runtime.expect("a runtime");
                runtime.block_on(self.0.call(method, vec![]))
            });
            asked.join().expect("a thread")
        });
        rows.expect("rows").as_array().cloned().unwrap_or_default()
    }
}

impl Target for Shares {
    fn name(&self) -> &'static str {
        "truenas-api-nfs"
    }

    fn launch(&self, _: &Place) -> Launch {
        // A NAS refuses the 21st login of a minute, and a program that is killed again and again comes to that.
        self.0.clock().advance(Duration::from_mins(2));
        let mut config = config(&self.0, "truenas-api-nfs", by_key(&self.0));
        config["zfs"]["volumeParameters"] = json!(["compression"]);
        let section = config["nfs"].as_object_mut().expect("a section");
        // It would let in others.
        section.remove("shareAllowedNetworks");
        section.insert("nodes".to_owned(), json!({"names": {"node-a": "10.0.0.1"}}));
        Launch::new(config.to_string())
    }

    /// What the driver sets of datasets below the parent of volumes, and of shares.
    fn backend(&self, _: &Place) -> Tree {
        let mut tree = Tree::default();
        for row in self.rows("pool.dataset.query") {
            let id = row["id"].as_str().unwrap_or_default();
            if id.starts_with("tank/csi/v/") {
                let keys = ["compression", "sync", "refquota", "user_properties"];
                let set = keys.map(|key| row[key].to_string()).join("\n");
                tree.0.insert(PathBuf::from(id), Entry::of_text(&set));
            }
        }
        for row in self.rows("sharing.nfs.query") {
            let path = format!("share of {}", row["path"]);
            let set = format!("{} {}", row["hosts"], row["networks"]);
            tree.0.insert(PathBuf::from(path), Entry::of_text(&set));
        }
        tree
    }

    fn optional(&self) -> BTreeSet<Optional> {
        let all = [Optional::Publish, Optional::Fence, Optional::Modify];
        all.into_iter().chain([Optional::Health]).collect()
    }
}

macro_rules! without_mounts {
    ($target:expr) => {
        integration::suite! { @tests $target;
            optional: publishing_is_done_once_and_undone_and_wrong_requests_change_nothing,
            optional: sixty_four_callers_publish_or_unpublish_and_the_last_has_its_way,
            optional: publishing_and_unpublishing_killed_in_the_middle_are_completed_or_undone,
            optional: a_fence_is_set_once_and_lifted_and_wrong_requests_change_nothing,
            optional: sixty_four_callers_fence_or_unfence_and_the_last_has_its_way,
            optional: fencing_and_unfencing_killed_in_the_middle_are_completed_or_undone,
            optional: a_volume_is_modified_once_and_back_and_wrong_requests_change_nothing,
            optional: sixty_four_callers_modify_a_volume_and_the_last_has_its_way,
            optional: a_modification_killed_in_the_middle_is_completed_or_undone,
            health: the_storage_tells_the_health_of_a_volume_however_many_ask_also_after_a_kill,
        }
    };
}

without_mounts!(Shares::new(Generation::V25_10).await);

/// The same on an older release, as one of two connections.
mod behind_the_proxy {
    use super::*;

    without_mounts!(Proxied::beside_folders(
        Shares::new(Generation::V24_10).await
    ));
}
