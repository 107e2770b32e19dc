//! Texts that people and orchestrators send that a shell, `zfs`, a target stack or a file of the storage
//! host could take for something else: refused, or carried to the letter, and nothing is run.
//!
//! A canary tree lies on the storage host, and every text would change it if it were run.

use csi_proto::v1 as csi;
use csi_proto::v1::volume_capability::access_mode::Mode;
use serde_json::Value;
use tonic::{Code, Status};

use super::cuts::state::{difference, state};
use super::{ROOT, Served};
use crate::lab::calls::{Node, within};
use crate::lab::command::{attempt, run};
use crate::lab::fixture::capability;
use crate::lab::life::step;
use crate::place::Place;
use crate::server::Launch;
use crate::tree::Tree;
use crate::volume;

/// A user property that holds a parameter of the class.
const PROPERTY: &str = "org.lab:carried";
const SIZE: i64 = 64 << 20;
/// The codes of a refusal that names the caller's mistake, or of something that there is not.
const REFUSALS: [Code; 3] = [Code::InvalidArgument, Code::NotFound, Code::OutOfRange];
const AUTH: &str = "/sys/kernel/config/target/iscsi/iqn.2026-01.lab.served:pvc-chap/tpgt_1/auth";

/// With the path of a canary in place of `{}`.
const TEXTS: [&str; 16] = [
    "$(touch {})",
    "`touch {}`",
    "; touch {} ;",
    "'; touch {}; '",
    "\"; touch {}; \"",
    "'\"'$(touch {})'\"'",
    "\\'; touch {} #",
    "x\ntouch {}\n",
    "x && touch {} || touch {}",
    "| touch {} &",
    "-o mountpoint=/{}",
    "../../{}",
    "@x {}",
    "%s%n\\c$IFS*[a-z] {}",
    "${HOME}{}!",
    "é ✓ {}",
];

struct Trial {
    served: Served,
    place: Place,
    before: Vec<String>,
    canary: Tree,
    tank: String,
}

/// Names, ids, parameters and secrets of every text.
///
/// # Panics
/// If a text was run, or is carried otherwise, or leaves something.
pub async fn nothing_is_run(served: Served) {
    let place = Place::new();
    let launch = served.start_on(&place);
    let launch = carrying(launch);
    let node = Node::start_with(launch.clone()).await;
    create(&node, served, "pvc-first", &[]).await.expect("made");
    let trial = Trial {
        served,
        canary: Tree::read(&place.canary()),
        tank: others(),
        place,
        before: state(),
    };
    let canary = trial.place.canary().join("run").display().to_string();
    for text in TEXTS {
        let text = text.replace("{}", &canary);
        step(&format!("{text:?}"));
        trial.names(&node, &text).await;
        trial.ids(&node, &text).await;
        trial.parameters(&node, &text).await;
    }
    delete(&node, "pvc-first").await.expect("deleted");
    node.end().await;
    if served.has_secrets() {
        trial.secrets(&launch, &canary).await;
    }
    trial.is_untouched("in the end");
}

/// Every volume has a property that holds a parameter of its class.
fn carrying(mut launch: Launch) -> Launch {
    let properties =
        format!("zfs:\n  datasetProperties: {{'{PROPERTY}': '{{{{{{parameters.carried}}}}}}'}}\n");
    launch.config = launch.config.replacen("zfs:\n", &properties, 1);
    launch
}

/// The datasets of the pool that do not belong to this test.
fn others() -> String {
    let list = run(&[
        "zfs",
        "get",
        "-Hpr",
        "-s",
        "local",
        "-o",
        "name,property,value",
        "all",
        "tank",
    ]);
    let others = list.lines().filter(|line| !line.starts_with(ROOT));
    others.collect::<Vec<_>>().join("\n")
}

// === impl Trial ===

impl Trial {
    async fn names(&self, node: &Node, text: &str) {
        if let Some(id) = self.ends(create(node, self.served, text, &[]).await, text) {
            let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
            assert!(id.chars().all(plain), "{text:?} became {id:?}");
            let again = create(node, self.served, text, &[]).await.expect("again");
            assert_eq!(again, id, "{text:?}");
            delete(node, &id).await.expect("deleted");
        }
        self.is_as_before(&format!("a volume of the name {text:?}"));
        if let Some(id) = self.ends(cut(node, text).await, text) {
            delete_snapshot(node, &id).await.expect("deleted");
        }
        self.is_as_before(&format!("a snapshot of the name {text:?}"));
    }

    async fn ids(&self, node: &Node, text: &str) {
        for id in [text.to_owned(), format!("pvc-first{text}")] {
            self.ends(delete(node, &id).await, &id);
            self.ends(expand(node, self.served, &id).await, &id);
        }
        for id in [text.to_owned(), format!("pvc-first@{text}")] {
            self.ends(delete_snapshot(node, &id).await, &id);
        }
        self.is_as_before(&format!("the id {text:?}"));
    }

    async fn parameters(&self, node: &Node, text: &str) {
        let outcome = create(node, self.served, "pvc-carried", &[("carried", text)]).await;
        if let Some(id) = self.ends(outcome, text) {
            let name = format!("{ROOT}/v/{id}");
            let found = run(&["zfs", "get", "-H", "-o", "value", PROPERTY, &name]);
            assert_eq!(found.strip_suffix('\n'), Some(text), "the parameter");
            delete(node, &id).await.expect("deleted");
        }
        for (key, value) in [("config", text), (text, "true"), ("fsType", text)] {
            let outcome = create(node, self.served, "pvc-other", &[(key, value)]).await;
            if let Some(id) = self.ends(outcome, text) {
                delete(node, &id).await.expect("deleted");
            }
        }
        self.is_as_before(&format!("the parameter {text:?}"));
    }

    /// What the configuration says is refused at the start, or it is what the kernel has.
    async fn secrets(&self, launch: &Launch, canary: &str) {
        for text in TEXTS {
            let secret = text.replace("{}", canary);
            let quoted = serde_json::to_string(&secret).expect("a text");
            let mut launch = launch.clone();
            let auth = format!("auth: {{userid: me, password: {quoted}}}");
            launch.config = served_with(&launch.config, &auth);
            let place = Place::new();
            if is_refused(&launch, &place) {
                step(&format!("refused: {secret:?}"));
                continue;
            }
            let node = Node::start_with(launch).await;
            create(&node, self.served, "pvc-chap", &[])
                .await
                .expect("made");
            let kept = std::fs::read_to_string(format!("{AUTH}/password")).expect("a target");
            assert_eq!(kept.trim_end_matches('\n'), secret);
            let saved = std::fs::read_to_string("/etc/rtslib-fb-target/saveconfig.json");
            let saved: Value = serde_json::from_str(&saved.expect("saved")).expect("JSON");
            let mut groups = saved["targets"].as_array().into_iter().flatten();
            let of_ours = groups.find(|target| {
                let wwn = target["wwn"].as_str();
                wwn.is_some_and(|wwn| wwn.ends_with(":pvc-chap"))
            });
            let group = &of_ours.expect("saved")["tpgs"][0];
            assert_eq!(group["chap_password"], secret.as_str());
            delete(&node, "pvc-chap").await.expect("deleted");
            node.end().await;
            self.is_untouched(&format!("the secret {secret:?}"));
        }
    }

    /// The volume that was made, if one was.
    fn ends<T>(&self, outcome: Result<T, Status>, text: &str) -> Option<T> {
        self.is_untouched(text);
        match outcome {
            Ok(made) => Some(made),
            Err(status) => {
                assert!(REFUSALS.contains(&status.code()), "{text:?}: {status:?}");
                None
            }
        }
    }

    fn is_untouched(&self, what: &str) {
        let canary = Tree::read(&self.place.canary());
        assert_eq!(canary, self.canary, "{what}: the canary");
    }

    fn is_as_before(&self, what: &str) {
        let difference = difference(&self.before, &state());
        assert!(difference.is_empty(), "{what}: {difference:#?}");
        assert_eq!(others(), self.tank, "{what}: the datasets of others");
    }
}

/// The configuration with a secret in the group of portals of its target.
fn served_with(config: &str, auth: &str) -> String {
    let groups = [
        (
            "shareStrategyLio: {",
            format!("shareStrategyLio: {{tpg: {{{auth}}}, "),
        ),
        ("    tpg: {", format!("    tpg: {{{auth}, ")),
    ];
    let here = groups.iter().find(|(group, _)| config.contains(group));
    let (group, secret) = here.expect("a target");
    config.replacen(group, secret, 1)
}

/// Whether the program does not start with this.
fn is_refused(launch: &Launch, place: &Place) -> bool {
    std::fs::write(place.config(), &launch.config).expect("a file in a new folder");
    let config = format!("--driver-config-file={}", place.config().display());
    let program = crate::binary::omnibus_csi().display().to_string();
    // Where a variable is set, its value is what is checked.
    attempt(&["env", "-i", &program, "check", "--offline", &config]).is_err()
}

async fn create(
    node: &Node,
    served: Served,
    name: &str,
    parameters: &[(&str, &str)],
) -> Result<String, Status> {
    // What is made of nothing is no property.
    let parameters = [&[("carried", "plain")], parameters].concat();
    let request = csi::CreateVolumeRequest {
        volume_capabilities: vec![capability(served.access, Mode::SingleNodeWriter)],
        ..volume::create(name, &volume::parameters(&parameters))
    };
    let mut controller = node.server.client().controller;
    let reply = within("create", controller.create_volume(request)).await?;
    Ok(reply.into_inner().volume.expect("a volume").volume_id)
}

async fn delete(node: &Node, id: &str) -> Result<(), Status> {
    let mut controller = node.server.client().controller;
    let call = controller.delete_volume(volume::delete(id));
    within("delete", call).await.map(drop)
}

async fn cut(node: &Node, name: &str) -> Result<String, Status> {
    let mut controller = node.server.client().controller;
    let call = controller.create_snapshot(volume::snapshot(name, "pvc-first"));
    let reply = within("snapshot", call).await?.into_inner();
    Ok(reply.snapshot.expect("a snapshot").snapshot_id)
}

async fn delete_snapshot(node: &Node, id: &str) -> Result<(), Status> {
    let mut controller = node.server.client().controller;
    let call = controller.delete_snapshot(volume::delete_snapshot(id));
    within("delete a snapshot", call).await.map(drop)
}

async fn expand(node: &Node, served: Served, id: &str) -> Result<(), Status> {
    let request = csi::ControllerExpandVolumeRequest {
        volume_capability: Some(capability(served.access, Mode::SingleNodeWriter)),
        ..volume::expand(id, 2 * SIZE)
    };
    let mut controller = node.server.client().controller;
    let call = controller.controller_expand_volume(request);
    within("expand", call).await.map(drop)
}
