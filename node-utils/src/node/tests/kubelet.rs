//! Folders of a kubelet that is itself mounted twice, as on machines with a disk for data.

use super::*;
use crate::testing::share;

#[test]
fn a_single_writer_is_published_once_where_the_kubelets_folder_is_a_bind_mount() {
    bench(|bench| {
        share(&bench.base);
        fs::create_dir_all(bench.path("data/kubelet")).expect("dir");
        // From now on what is mounted below one of them is mounted below both.
        bench.bind("data/kubelet", "k");
        bench.stage("one", "s").expect("stage");
        assert_eq!(
            (bench.layers("k/s"), bench.layers("data/kubelet/s")),
            (1, 1)
        );
        let only = |target: &str| PublishRequest {
            capability: capability(AccessMode::SingleNodeSingleWriter, ""),
            ..bench.request(target)
        };
        bench.publish(only("t")).expect("publish");
        bench.publish(only("t")).expect("the same again");
        refused(bench.publish(only("t2")), Kind::Busy);
        bench.unpublish("t").expect("unpublish");
        bench.publish(only("t2")).expect("publish");
        bench.unpublish("t2").expect("unpublish");
        bench.unstage("s").expect("unstage");
        assert_eq!(bench.layers("data/kubelet/s"), 0);
    });
}
