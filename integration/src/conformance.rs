//! The conformance suite: what the CSI specification demands and csi-sanity does not look at.
//!
//! Every check is a function over a [`Target`], which describes one kind of connection; the macro
//! [`suite!`](crate::suite) makes tests of all of them. A check runs the real program in a folder
//! of its own and ends with [`World::end`], which proves that nothing is left.

pub mod codes;
pub mod concurrency;
pub mod content;
pub mod crash;
pub mod health;
pub mod hostile;
pub mod idempotency;
pub mod interrupted;
pub mod limits;
pub mod load;
pub mod local_hostpath;
pub mod messages;
pub mod node;
pub mod optional;
pub mod paging;
pub mod proxied;
pub mod ranges;
pub mod secrets;
pub mod strings;
pub mod trace;
pub mod world;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use csi_proto::v1::Volume;
use csi_proto::v1::volume_capability::access_mode::Mode;

use crate::place::Place;
use crate::server::Launch;
use crate::tree::Tree;

use optional::Optional;
pub use world::World;

/// What a filesystem, and the way to it, can hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Holds {
    /// Files, folders and their bytes.
    Bytes,
    /// Links, owners, modes and times besides.
    Owners,
    /// Attributes and ACLs besides.
    Everything,
}

/// One kind of connection, as the suite needs to know it.
pub trait Target: Send + Sync {
    /// Its name in messages.
    fn name(&self) -> &'static str;

    /// The way to start the program in `place`, whose folders exist and are empty.
    fn launch(&self, place: &Place) -> Launch;

    /// The state of the backend: volumes, snapshots and incomplete ones. Equal before and after
    /// means that nothing was changed; what the driver keeps at hand for itself is left out.
    fn backend(&self, place: &Place) -> Tree;

    /// Parameters that its volumes need.
    fn parameters(&self) -> BTreeMap<String, String> {
        BTreeMap::new()
    }

    /// Parameters that its snapshots need.
    fn snapshot_parameters(&self) -> BTreeMap<String, String> {
        BTreeMap::new()
    }

    /// Parameters that its groups of snapshots need.
    fn group_parameters(&self) -> BTreeMap<String, String> {
        BTreeMap::new()
    }

    /// All of what only some drivers have that this one has to tell.
    fn optional(&self) -> BTreeSet<Optional> {
        BTreeSet::new()
    }

    /// Two classes of attributes, of which it can change a volume from one to the other.
    fn classes(&self) -> [Vec<(&'static str, &'static str)>; 2] {
        ["lz4", "gzip"].map(|to| vec![("compression", to)])
    }

    /// The secrets that staging needs.
    fn secrets(&self) -> BTreeMap<String, String> {
        BTreeMap::new()
    }

    /// What its filesystems can hold.
    fn holds(&self) -> Holds {
        Holds::Everything
    }

    /// Of the hostile strings one of so many is tried in each place: all five hundred took ten minutes.
    fn one_string_of(&self) -> usize {
        5
    }

    /// A topology that its volumes cannot have, if they are bound to a place.
    fn elsewhere(&self) -> Option<BTreeMap<String, String>> {
        None
    }

    /// The number of folders of a hundred files a copy takes a while for. Where it is made as a whole, a few are
    /// as many as any.
    fn folders_of_a_large_volume(&self) -> usize {
        30
    }

    /// The number of volumes and snapshots that are listed in pages.
    fn in_pages(&self) -> usize {
        60
    }

    /// In which mode several pods of a node write.
    fn many_writers(&self) -> Mode {
        Mode::MultiNodeMultiWriter
    }

    /// The longest name of a volume of which snapshots can be taken, where the id of a snapshot has that of
    /// its volume in it: a longer one leaves them no room.
    fn longest_name_with_snapshots(&self) -> Option<usize> {
        None
    }

    /// The time that a connection beside the tested one may take until it answers for the first time, where
    /// all of them log in to something at once, on a slow machine.
    fn patience(&self) -> Duration {
        Duration::ZERO
    }

    /// Connections of the same process that get calls at the same time.
    fn beside(&self) -> Vec<&'static str> {
        Vec::new()
    }

    /// A volume of that name, made by hand, where the driver makes none; the one that is there if it is
    /// asked for again.
    fn by_hand(&self, _place: &Place, _name: &str) -> Option<Volume> {
        None
    }

    /// The end of a volume that was made by hand.
    fn end_by_hand(&self, _place: &Place, _volume_id: &str) {}

    /// The system calls by which the program changes its backend and its mounts on this machine:
    /// it is killed at each of them.
    fn steps(&self) -> &'static [&'static str] {
        &[]
    }
}

/// Makes a test of every check of the suite: `suite!(LocalHostpath);` in a file under `tests`.
#[macro_export]
macro_rules! suite {
    ($target:expr) => {
        $crate::suite! { @every @tests $target }
    };
    (@every @$then:ident $target:expr) => {
        $crate::suite! { @$then $target;
            codes: a_request_without_what_it_needs_is_invalid,
            codes: what_does_not_exist_is_not_found_and_is_gone_already,
            codes: a_call_that_is_not_advertised_is_unimplemented,
            codes: a_size_that_makes_no_sense_is_refused,
            codes: a_use_that_is_not_offered_is_refused,
            codes: a_place_that_cannot_be_reached_is_exhausted,
            codes: a_token_that_was_never_given_is_aborted,
            codes: capabilities_name_exactly_the_calls_that_work,
            limits: what_is_longer_than_the_specification_allows_is_refused_before_anything_changes,
            limits: every_reply_keeps_the_limits_itself,
            idempotency: the_same_volume_asked_for_twice_is_the_same_volume,
            idempotency: another_volume_of_the_same_name_already_exists,
            idempotency: the_same_snapshot_asked_for_twice_is_the_same_snapshot,
            idempotency: a_snapshot_outlives_its_volume_or_holds_it,
            idempotency: a_volume_only_grows,
            node: staging_and_publishing_twice_is_doing_it_once,
            node: another_capability_on_the_same_path_already_exists,
            node: pods_of_a_node_share_a_volume_unless_they_ask_to_be_alone,
            node: a_single_writer_is_alone,
            node: read_only_is_enforced_by_the_kernel,
            node: unpublishing_removes_the_target_whatever_it_is,
            node: statistics_count_what_is_there,
            node: the_group_of_a_mount_can_write,
            concurrency: sixty_four_equal_callers_make_one_volume,
            concurrency: sixty_four_conflicting_callers_make_one_volume,
            concurrency: sixty_four_callers_make_one_snapshot,
            concurrency: sixty_four_callers_publish_once,
            concurrency: creating_and_deleting_at_once_leaves_one_or_none,
            interrupted: a_source_that_is_being_copied_is_not_deleted,
            interrupted: work_goes_on_without_the_client_that_asked_for_it,
            interrupted: a_call_that_timed_out_is_completed_by_its_retry,
            content: a_restored_snapshot_is_the_volume_at_the_time_of_the_cut,
            content: a_clone_is_its_source_and_then_its_own,
            paging: pages_neither_lose_nor_repeat_while_others_come_and_go,
            crash: a_volume_killed_at_any_step_is_completed_or_removed,
            crash: a_restored_volume_killed_at_any_step_is_completed_or_removed,
            crash: a_cloned_volume_killed_at_any_step_is_completed_or_removed,
            crash: a_snapshot_killed_at_any_step_is_completed_or_removed,
            crash: a_deletion_killed_at_any_step_is_completed,
            crash: a_snapshot_deletion_killed_at_any_step_is_completed,
            crash: an_expansion_killed_at_any_step_is_completed,
            crash: staging_and_publishing_killed_at_any_step_are_completed_or_undone,
            crash: everything_survives_a_kill_at_rest,
            hostile: hostile_strings_are_refused_or_kept_exactly_and_change_nothing_else,
            hostile: bytes_that_are_no_message_are_refused_and_the_server_lives,
            optional: publishing_is_done_once_and_undone_and_wrong_requests_change_nothing,
            optional: sixty_four_callers_publish_or_unpublish_and_the_last_has_its_way,
            optional: publishing_and_unpublishing_killed_in_the_middle_are_completed_or_undone,
            optional: a_fence_is_set_once_and_lifted_and_wrong_requests_change_nothing,
            optional: sixty_four_callers_fence_or_unfence_and_the_last_has_its_way,
            optional: fencing_and_unfencing_killed_in_the_middle_are_completed_or_undone,
            optional: a_group_is_taken_once_and_deleted_and_wrong_requests_change_nothing,
            optional: sixty_four_callers_take_or_delete_a_group_and_the_last_has_its_way,
            optional: a_group_killed_in_the_middle_is_completed_or_removed,
            optional: a_volume_is_modified_once_and_back_and_wrong_requests_change_nothing,
            optional: sixty_four_callers_modify_a_volume_and_the_last_has_its_way,
            optional: a_modification_killed_in_the_middle_is_completed_or_undone,
            ranges: ranges_are_in_order_and_the_same_from_any_place_also_after_a_kill,
            ranges: wrong_questions_for_ranges_are_refused_and_change_nothing,
            health: the_storage_tells_the_health_of_a_volume_however_many_ask_also_after_a_kill,
            health: the_node_tells_the_health_of_what_it_has,
            secrets: no_secret_reaches_a_log_a_message_a_metric_or_an_argument,
        }
    };
    // The names of the checks, and what each does.
    (@list $target:expr; $($module:ident: $check:ident,)*) => {
        [$((
            stringify!($check),
            ::std::boxed::Box::pin($crate::conformance::$module::$check($target))
                as ::std::pin::Pin<::std::boxed::Box<dyn Future<Output = ()> + '_>>,
        )),*]
    };
    (@tests $target:expr; $($module:ident: $check:ident,)*) => {
        $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $check() {
                $crate::conformance::$module::$check(&$target).await;
            }
        )*
    };
}
