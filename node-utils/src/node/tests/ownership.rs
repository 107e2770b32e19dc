//! What is released and what is not ours: mounts, directories, links and files that others made.

use std::os::unix::fs::symlink;

use super::*;
use crate::mount;

impl Bench {
    /// A path that is not below the folder of the orchestrator.
    fn outside(&self, name: &str) -> AbsolutePath {
        AbsolutePath::parse(&self.text(&format!("x/{name}"))).expect("path")
    }

    fn unpublish_outside(&self, name: &str) -> Result<(), Error> {
        let target = TargetPath::new(self.outside(name)).expect("path");
        self.runtime.block_on(self.node.unpublish(soon(), target))
    }

    fn unstage_outside(&self, name: &str) -> Result<(), Error> {
        let staging = StagingPath::new(self.outside(name)).expect("path");
        self.runtime.block_on(self.node.unstage(soon(), staging))
    }

    fn publish_outside(&self, name: &str) -> Result<(), Error> {
        self.publish(PublishRequest {
            target: TargetPath::new(self.outside(name)).expect("path"),
            ..self.request("t")
        })
    }
}

#[test]
fn what_this_driver_did_not_mount_stays_outside_of_the_orchestrators_folder() {
    bench(|bench| {
        fs::create_dir_all(bench.path("x/empty")).expect("dir");
        fs::write(bench.path("x/file"), "").expect("file");
        symlink(bench.path("v/one"), bench.path("x/link")).expect("link");
        bench.bind("v/one", "x/mount");
        fs::create_dir(bench.path("x/volume")).expect("dir");
        let before = bench.mounts();
        for name in ["empty", "file", "link", "mount", "volume"] {
            let error = refused(bench.unpublish_outside(name), Kind::Busy);
            assert_eq!(error.effect(), Effect::None);
            // Of what was never staged, and where nothing is mounted, there is nothing to undo.
            if name == "mount" {
                refused(bench.unstage_outside(name), Kind::Busy);
            } else {
                bench.unstage_outside(name).expect("nothing is staged");
            }
            assert!(
                bench.path("x").join(name).symlink_metadata().is_ok(),
                "{name}"
            );
        }
        assert_eq!(bench.mounts(), before);
        bench.unpublish_outside("nothing").expect("nothing there");
        bench
            .unstage_outside("empty/nothing")
            .expect("nothing there");
        bench
            .unstage_outside("file/nothing")
            .expect("nothing can be there");
    });
}

#[test]
fn what_this_driver_published_is_unpublished_at_every_path() {
    bench(|bench| {
        bench.stage("one", "s").expect("stage");
        fs::create_dir_all(bench.path("x/there")).expect("dir");
        for name in ["new", "there"] {
            bench.publish_outside(name).expect("publish");
            bench.unpublish_outside(name).expect("unpublish");
            assert!(!bench.path("x").join(name).exists(), "{name}");
        }
        bench.publish_outside("killed").expect("publish");
        mount::unmount(&bench.path("x/killed")).expect("as a killed call leaves it");
        bench.unpublish_outside("killed").expect("unpublish");
        assert!(!bench.path("x/killed").exists());
    });
}

#[test]
fn what_this_driver_staged_is_unstaged_at_every_path() {
    bench(|bench| {
        let staging = StagingPath::new(bench.outside("s")).expect("path");
        let request = StageRequest {
            staging: staging.clone(),
            attachment: bench.attachment("one"),
            capability: capability(AccessMode::SingleNodeMultiWriter, ""),
            secrets: StageSecrets::default(),
        };
        let stage = bench.node.stage(soon(), request);
        bench.runtime.block_on(stage).expect("stage");
        bench.unstage_outside("s").expect("unstage");
        assert!(!bench.path("x/s").exists());
    });
}

#[test]
fn a_refused_publication_leaves_no_claim_on_a_directory_of_others() {
    bench(|bench| {
        bench.stage("one", "s").expect("stage");
        fs::create_dir_all(bench.path("x/full")).expect("dir");
        fs::write(bench.path("x/full/file"), "data").expect("file");
        refused(bench.publish_outside("full"), Kind::Busy);
        fs::remove_file(bench.path("x/full/file")).expect("remove");
        refused(bench.unpublish_outside("full"), Kind::Busy);
        assert!(bench.path("x/full").exists());
    });
}

#[test]
fn below_the_orchestrators_folder_mounts_of_others_go_and_links_and_content_stay() {
    bench(|bench| {
        bench.bind("v/one", "k/mount");
        bench.unpublish("mount").expect("unpublish");
        assert!(!bench.path("k/mount").exists());
        symlink(bench.path("v/one"), bench.path("k/link")).expect("link");
        refused(bench.unpublish("link"), Kind::Busy);
        refused(bench.unstage("link"), Kind::Busy);
        assert!(bench.path("k/link").is_symlink());
        // A path with a link on the way is where that leads to.
        fs::create_dir_all(bench.path("x/empty")).expect("dir");
        symlink(bench.path("x"), bench.path("k/elsewhere")).expect("link");
        refused(bench.unpublish("elsewhere/empty"), Kind::Busy);
        assert!(bench.path("x/empty").exists());
    });
}

#[test]
fn a_path_built_like_one_of_the_kubelet_is_released_in_any_folder() {
    bench(|bench| {
        let name = "plugins/kubernetes.io/csi/driver/abc/globalmount";
        bench.bind("v/one", &format!("x/{name}"));
        bench.unstage_outside(name).expect("unstage");
        assert!(!bench.path("x").join(name).exists());
    });
}

#[test]
fn a_volume_is_not_published_over_a_directory_with_content() {
    bench(|bench| {
        bench.stage("one", "s").expect("stage");
        fs::create_dir(bench.path("k/t")).expect("dir");
        fs::write(bench.path("k/t/file"), "data").expect("file");
        let error = refused(bench.publish(bench.request("t")), Kind::Busy);
        assert_eq!(error.effect(), Effect::None);
        assert_eq!(bench.layers("k/t"), 0);
        assert_eq!(fs::read(bench.path("k/t/file")).expect("read"), b"data");
        fs::remove_file(bench.path("k/t/file")).expect("remove");
        bench
            .publish(bench.request("t"))
            .expect("an empty directory");
        bench.unpublish("t").expect("unpublish");
    });
}
