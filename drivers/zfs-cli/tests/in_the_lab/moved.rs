//! What real ZFS does with a volume that moves: rounds that are cut, what differs on top of what has come, and the end.

use driver_core::transfer::CopyTag;
use driver_core::{
    CreateVolume, DeleteVolume, Driver, Elsewhere, Kind, MoveSource, MoveState, Mover as _, Source,
    VolumeId,
};
use driver_zfs::observed::VolumeKind;

use crate::ground::{Ground, RealDriver, zfs};
use crate::resumed::{Content, Shears, one};
use crate::{call, request};

const SIZE: i64 = 64 << 20;

fn wanted(id: &str) -> CreateVolume {
    let source = VolumeId::parse("v:nas/a").unwrap();
    request(id, SIZE, Some(Source::Elsewhere(Elsewhere::Volume(source))))
}

fn source<'a>(from: &'a RealDriver, to: &str) -> Box<dyn MoveSource + 'a> {
    let tag = CopyTag::of(format!("v:ssd/{to}"));
    from.move_out(&VolumeId::parse("a").unwrap(), &tag).unwrap()
}

/// Two parents on the pool, the streams of one of which can be cut.
struct Ends {
    ground: Ground,
    other: Ground,
    shears: Shears,
    content: Content,
    from: RealDriver,
    to: RealDriver,
}

impl Ends {
    async fn new(kind: VolumeKind) -> Self {
        let (ground, other, shears) = (Ground::new(), Ground::new(), Shears::new());
        let from = ground.driver_with(Some(&shears.program()), kind, "");
        let to = other.driver(kind, "  datasetEnableQuotas: true\n");
        let made = request("a", SIZE, None);
        from.create_volume(&call(), &made).await.unwrap();
        let content = Content(kind.word());
        content.write(&ground, "a");
        Self {
            ground,
            other,
            shears,
            content,
            from,
            to,
        }
    }

    fn target(&self, id: &str) -> String {
        format!("{}/v/{id}", self.other.root)
    }

    async fn round(&self, id: &str) -> u64 {
        let from = source(&self.from, id);
        let ended = self.to.move_in(&call(), &wanted(id), &*from).await;
        ended
            .unwrap_or_else(|error| panic!("{}", error.chain()))
            .bytes
    }

    /// A round whose stream is cut. Returns the token that it leaves.
    async fn cut_round(&self, id: &str) -> String {
        self.shears.cut(true);
        let from = source(&self.from, id);
        let error = self.to.move_in(&call(), &wanted(id), &*from).await;
        self.shears.cut(false);
        let token = one("receive_resume_token", &self.target(id));
        let said = error.unwrap_err().chain();
        assert!(
            token.starts_with("1-") && !said.contains(&token),
            "{token}: {said}"
        );
        token
    }

    async fn state(&self, id: &str) -> MoveState {
        self.to.move_state(&call(), &wanted(id)).await.unwrap()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
#[ignore = "changes a pool of this machine"]
async fn a_volume_moves_in_rounds_that_may_be_cut_and_has_the_content_of_its_source() {
    for kind in [VolumeKind::Filesystem, VolumeKind::Zvol] {
        let ends = Ends::new(kind).await;
        ends.cut_round("b").await;
        let first = one("guid", &ends.target("b"));
        assert_eq!(one("inconsistent", &ends.target("b")), "1");
        assert_eq!(ends.state("b").await, MoveState::Part);
        ends.round("b").await;
        assert_eq!(one("guid", &ends.target("b")), first, "{kind}");

        ends.content.write(&ends.ground, "a");
        ends.cut_round("b").await;
        assert_eq!(one("inconsistent", &ends.target("b")), "0");
        assert!(matches!(ends.state("b").await, MoveState::At(_)));
        // Of the moment of the cut, whatever is written since.
        ends.content.write(&ends.ground, "a");
        let rest = ends.round("b").await;
        assert!(
            (1 << 20..11 << 20).contains(&rest),
            "{kind}: {rest} bytes went on"
        );
        let MoveState::At(moment) = ends.state("b").await else {
            panic!("a round has ended");
        };
        zfs_pool_sync();
        let from = source(&ends.from, "b");
        let written = from.written_since(&call(), moment).await.unwrap();
        assert!(written > 11 << 20, "{kind}: {written}");
        assert!(ends.round("b").await > 11 << 20);
        let little = ends.round("b").await;
        assert!(little < 1 << 20, "{kind}: {little} bytes for nothing");
        let MoveState::At(moment) = ends.state("b").await else {
            panic!("a round has ended");
        };
        zfs_pool_sync();
        assert_eq!(from.written_since(&call(), moment).await.unwrap(), 0);

        let made = ends.to.moved_in(&call(), &wanted("b")).await.unwrap();
        assert_eq!(made.capacity, Some(64 << 20));
        from.close(&call()).await.unwrap();
        let now = ends.content.read(&ends.ground, "a");
        assert!(ends.content.read(&ends.other, "b") == now, "{kind}");
        let again = ends.to.moved_in(&call(), &wanted("b")).await.unwrap();
        assert_eq!(again, made);
        for left in [ends.ground.list(), ends.other.list()] {
            assert!(!left.contains('@'), "{left}");
        }
        let id = made.id;
        ends.to
            .delete_volume(&call(), DeleteVolume::new(&id))
            .await
            .unwrap();
    }
}

fn zfs_pool_sync() {
    let synced = std::process::Command::new("zpool")
        .args(["sync", "tank"])
        .output();
    assert!(synced.unwrap().status.success());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
#[ignore = "changes a pool of this machine"]
async fn what_has_come_and_was_changed_takes_no_more_and_a_part_of_a_round_is_given_up() {
    for kind in [VolumeKind::Filesystem, VolumeKind::Zvol] {
        let ends = Ends::new(kind).await;
        ends.round("c").await;
        ends.content.write(&ends.ground, "a");
        ends.cut_round("c").await;
        // A deletion as well as giving up ends the part.
        ends.to.give_up_move(&call(), &wanted("c")).await.unwrap();
        let left = ends.other.list();
        assert!(!left.contains("/v/c"), "{left}");
        ends.round("c").await;
        ends.content.write(&ends.ground, "a");
        ends.cut_round("c").await;
        let id = VolumeId::parse("c").unwrap();
        ends.to
            .delete_volume(&call(), DeleteVolume::new(&id))
            .await
            .unwrap();

        ends.round("c").await;
        if kind == VolumeKind::Filesystem {
            zfs(&["mount", &ends.target("c")]);
            std::fs::write(format!("/{}/theirs", ends.target("c")), "theirs").unwrap();
            zfs(&["unmount", &ends.target("c")]);
        } else {
            ends.content.write(&ends.other, "c");
        }
        ends.content.write(&ends.ground, "a");
        let from = source(&ends.from, "c");
        let refused = ends.to.move_in(&call(), &wanted("c"), &*from).await;
        let refused = refused.unwrap_err();
        assert_eq!(
            refused.kind(),
            Kind::Conflict,
            "{kind}: {}",
            refused.chain()
        );
        assert!(refused.chain().contains("modified"), "{}", refused.chain());
        ends.to.give_up_move(&call(), &wanted("c")).await.unwrap();
        from.close(&call()).await.unwrap();
        for left in [ends.ground.list(), ends.other.list()] {
            assert!(!left.contains('@') && !left.contains("/v/c"), "{left}");
        }
    }
}
