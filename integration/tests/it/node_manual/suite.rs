//! The conformance suite, as far as it needs no controller, over directories that were made by hand.

use std::fs;

use csi_proto::v1 as csi;
use integration::conformance::Target;
use integration::conformance::proxied::Proxied;
use integration::place::Place;
use integration::server::Launch;
use integration::tree::Tree;

struct NodeManual;

impl Target for NodeManual {
    fn name(&self) -> &'static str {
        "node-manual"
    }

    fn launch(&self, _: &Place) -> Launch {
        Launch::new("driver: node-manual\n")
    }

    fn backend(&self, place: &Place) -> Tree {
        Tree::read(&place.base())
    }

    fn by_hand(&self, place: &Place, name: &str) -> Option<csi::Volume> {
        let path = place.base().join(name);
        fs::create_dir_all(&path).expect("a folder");
        let context = [
            ("node_attach_driver", "hostpath".to_owned()),
            ("path", path.display().to_string()),
        ];
        Some(csi::Volume {
            volume_id: name.to_owned(),
            volume_context: context.map(|(key, value)| (key.to_owned(), value)).into(),
            ..Default::default()
        })
    }

    fn end_by_hand(&self, place: &Place, volume_id: &str) {
        fs::remove_dir_all(place.base().join(volume_id)).expect("it is there");
    }
}

/// The tests that need no controller, of whatever target.
macro_rules! without_a_controller {
    ($target:expr) => {
        integration::suite! { @tests $target;
            codes: a_call_that_is_not_advertised_is_unimplemented,
            codes: capabilities_name_exactly_the_calls_that_work,
            node: staging_and_publishing_twice_is_doing_it_once,
            node: another_capability_on_the_same_path_already_exists,
            node: pods_of_a_node_share_a_volume_unless_they_ask_to_be_alone,
            node: a_single_writer_is_alone,
            node: read_only_is_enforced_by_the_kernel,
            node: unpublishing_removes_the_target_whatever_it_is,
            node: statistics_count_what_is_there,
            concurrency: sixty_four_callers_publish_once,
            health: the_node_tells_the_health_of_what_it_has,
            hostile: bytes_that_are_no_message_are_refused_and_the_server_lives,
        }
    };
}

without_a_controller!(NodeManual);

/// The same as one of two connections.
mod behind_the_proxy {
    use super::*;

    without_a_controller!(Proxied::beside_folders(NodeManual));
}
