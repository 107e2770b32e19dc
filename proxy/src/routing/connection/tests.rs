//! The driver a configuration builds, and what it refuses.

use driver_core::DeleteVolume;
use driver_core::config::NoEnvironment;
use node_utils::blocking::spawn_on_account;

use super::kinds::{NOT_YET, built};
use super::*;

#[test]
fn configurations_of_the_pages_about_drivers_are_right_to_the_last_key() {
    let is_inline = |kind: &&str| kind.ends_with("-ephemeral-inline");
    let (inline, others): (Vec<_>, Vec<_>) = built().into_iter().partition(is_inline);
    let zfs: Vec<_> = others
        .into_iter()
        .filter(|kind| kind.starts_with("zfs-"))
        .collect();
    page_has("zfs.md", &zfs);
    page_has("zfs-reference.md", &["zfs-generic-iscsi"]);
    page_has("inline.md", &inline);
    page_has("objectivefs.md", &["objectivefs"]);
}

/// The page has a whole configuration of each kind, and no other ones.
fn page_has(name: &str, wanted: &[&str]) {
    let page = format!("{}/../docs/{name}", env!("CARGO_MANIFEST_DIR"));
    let page = std::fs::read_to_string(page).expect("the page");
    let blocks = page.split("```yaml\n").skip(1);
    let blocks = blocks.filter_map(|block| block.split("```").next());
    let mut kinds = Vec::new();
    // The others are for the orchestrator.
    for block in blocks.filter(|block| !block.starts_with("apiVersion: ")) {
        let document = Document::parse(block, &NoEnvironment).expect(block);
        for name in ["", "nas"] {
            let name = match name {
                "" => ConnectionName::unnamed(),
                name => ConnectionName::parse(name).expect("a name"),
            };
            Connection::open(name, &document, &ConnectionContext::for_tests()).expect(block);
        }
        assert!(document.findings().is_empty(), "{:?}", document.findings());
        kinds.push(document.driver().expect(block).to_owned());
    }
    for kind in wanted {
        assert!(
            kinds.iter().any(|found| found == kind),
            "no example of {kind} in {name}"
        );
    }
}

#[test]
fn a_file_without_a_section_of_its_driver_is_answered_with_the_least_that_has_to_be_there() {
    let open = |text: &str| {
        let document = Document::parse(text, &NoEnvironment).expect(text);
        Connection::open(
            ConnectionName::unnamed(),
            &document,
            &ConnectionContext::for_tests(),
        )
    };
    let mut refused = 0;
    for kind in built() {
        if let Err(error) = open(&format!("driver: {kind}")) {
            let advice = error.advice().expect(kind);
            let example = least(kind).expect(kind);
            let first = example.lines().nth(1).expect("a section");
            assert!(advice.contains(first), "{kind}: {advice}");
            assert!(!advice.contains('\n'), "{kind}: {advice}");
            refused += 1;
        }
    }
    assert_eq!(
        refused,
        built().len() - 2,
        "all but those that need no section"
    );
    let error = open("{driver: nfs-client, nfs: {shareHost: nas.example}}").expect_err("a base");
    assert_eq!(error.advice(), None, "what is there is not written anew");
}

#[test]
fn the_examples_of_all_kinds_are_read_without_a_remark() {
    for kind in built() {
        let path = format!("{}/../examples/{kind}.yaml", env!("CARGO_MANIFEST_DIR"));
        // `truenas-*` are other names of `freenas-*`.
        let Ok(text) = std::fs::read_to_string(&path) else {
            assert!(kind.starts_with("truenas-"), "no {path}");
            continue;
        };
        let everything = text
            .replace("# inline:", "inline:")
            .replace("#   namespaces", "  namespaces");
        for text in [text, everything] {
            let document = Document::parse(&text, &NoEnvironment).expect(&path);
            let connection = Connection::open(
                ConnectionName::unnamed(),
                &document,
                &ConnectionContext::for_tests(),
            );
            assert_eq!(connection.expect(&path).driver().kind(), kind);
            assert_eq!(document.findings(), [], "{path}");
        }
    }
}

#[test]
fn nodes_learn_of_an_object_store_what_is_no_secret() {
    let text = "driver: objectivefs\nobjectivefs:\n  pool: csi\n  env: {OBJECTSTORE: 's3://', ENDPOINT: \
                'http://minio', SECRET_KEY: hunter2, OBJECTIVEFS_PASSPHRASE: hunter3}\n\
                node: {mount: {mount_flags: mt}}\n";
    let document = Document::parse(text, &NoEnvironment).expect("yaml");
    let name = ConnectionName::parse("archive").expect("a name");
    let connection =
        Connection::open(name, &document, &ConnectionContext::for_tests()).expect("a connection");
    let attachment = connection
        .driver()
        .longest_attachment()
        .expect("an attachment");
    let context = connection.context(&attachment);
    assert_eq!(context["env.ENDPOINT"], "http://minio");
    assert_eq!(
        context["omnibus-csi/node"],
        r#"{"mount":{"mount_flags":"mt"}}"#
    );
    assert!(!format!("{context:?}").contains("hunter"), "{context:?}");
}

#[test]
fn how_disks_are_formatted_is_checked_where_they_are_configured() {
    let text = format!(
        "{}node: {{format: {{ext4: {{customOptions: ['']}}}}}}",
        least("zfs-generic-iscsi").expect("an example")
    );
    let document = Document::parse(&text, &NoEnvironment).expect("yaml");
    let name = ConnectionName::parse("disks").expect("a name");
    let error =
        Connection::open(name, &document, &ConnectionContext::for_tests()).expect_err("refused");
    assert_eq!(error.path(), Some("node.format.ext4.customOptions[0]"));
}

fn open(yaml: &str) -> Result<Connection, ConfigError> {
    let document = Document::parse(yaml, &NoEnvironment).expect("yaml");
    Connection::open(
        ConnectionName::unnamed(),
        &document,
        &ConnectionContext::for_tests(),
    )
}

#[test]
fn a_local_hostpath_connection_is_built_without_its_storage() {
    let connection = open(
        "
        driver: local-hostpath
        local-hostpath:
          shareBasePath: /no/such/place
          controllerBasePath: /no/such/place",
    )
    .expect("a connection");
    assert_eq!(connection.driver().kind(), "local-hostpath");
    assert!(!connection.name().is_named());
}

#[test]
fn errors_distinguish_unknown_unbuilt_and_misspelt_drivers() {
    let refusal = |name: &str| {
        open(&format!("driver: {name}"))
            .expect_err(name)
            .to_string()
    };
    let misspelt = refusal("local-hostpaht");
    assert!(
        misspelt.contains("misspelling of `local-hostpath`"),
        "{misspelt}"
    );
    let misspelt = refusal("zfs-generic-isci");
    assert!(
        misspelt.contains("misspelling of `zfs-generic-iscsi`"),
        "{misspelt}"
    );
    let nested = refusal("proxy");
    assert!(nested.contains("no proxy behind a proxy"), "{nested}");
    let misspelt = refusal("porxy");
    assert!(misspelt.contains("misspelling of `proxy`"), "{misspelt}");
    let foreign = refusal("carrier-pigeon");
    assert!(
        foreign.contains("there is no driver `carrier-pigeon`"),
        "{foreign}"
    );
    assert!(!foreign.contains("misspelling"), "{foreign}");
    for name in NOT_YET {
        let later = refusal(name);
        assert!(later.contains("does not have the driver"), "{later}");
        assert!(
            later.contains("it has: local-hostpath, nfs-client"),
            "{later}"
        );
    }
    assert!(open("instance_id: x").is_err());
}

#[test]
fn a_context_that_no_orchestrator_could_store_is_refused_before_there_is_a_volume() {
    let file = |base: usize, flags: usize| {
        let base = "b".repeat(base);
        let flags = "f".repeat(flags);
        let text = format!(
            "driver: local-hostpath
local-hostpath: {{shareBasePath: /{base}, controllerBasePath: /b}}
node: {{mount: {{mount_flags: {flags}}}}}"
        );
        let document = Document::parse(&text, &NoEnvironment).expect("yaml");
        let name = ConnectionName::parse("one").expect("a name");
        Connection::open(name, &document, &ConnectionContext::for_tests())
    };
    assert!(file(1_700, 2_000).is_ok());
    let error = file(2_000, 2_000).expect_err("more than 4 KiB");
    assert!(error.to_string().contains("4096"), "{error}");
}

#[test]
fn what_one_of_several_lacks_is_a_wrong_request_and_as_uncertain_as_before() {
    let driver = crate::testing::Memory::new();
    let document = Document::parse("driver: memory", &NoEnvironment).expect("yaml");
    let name = ConnectionName::parse("one").expect("a name");
    let connection = Connection::among(name, driver, &document);
    let error = Error::unsupported("copy").with_effect(driver_core::Effect::Possible);
    let explained = connection.explain(error);
    assert_eq!(
        (explained.kind(), explained.effect()),
        (Kind::Invalid, driver_core::Effect::Possible)
    );
}

#[test]
fn settings_that_count_in_the_main_file_only_are_findings_in_a_file_of_a_connection() {
    let yaml = "
        driver: local-hostpath
        local-hostpath: {shareBasePath: /a, controllerBasePath: /a}
        service: {controller: {capabilities: {rpc: []}}}
        _private: {volume_context: {pvc-1: {node_attach_driver: hostpath, path: /a}}}";
    let document = Document::parse(yaml, &NoEnvironment).expect("yaml");
    let findings = |document: &Document| {
        let findings = document.findings().into_iter().map(|found| found.path);
        let mut paths: Vec<_> = findings.collect();
        paths.sort();
        paths
    };
    Connection::open(
        ConnectionName::unnamed(),
        &document,
        &ConnectionContext::for_tests(),
    )
    .expect("a connection");
    assert_eq!(findings(&document), [""; 0], "alone it counts");
    let name = ConnectionName::parse("nas").expect("a name");
    Connection::open(name, &document, &ConnectionContext::for_tests()).expect("a connection");
    assert_eq!(findings(&document), ["_private.volume_context", "service"]);
}

fn nas(driver: Arc<dyn Driver>) -> Connection {
    let document = Document::parse("driver: memory", &NoEnvironment).expect("yaml");
    let name = ConnectionName::parse("nas").expect("a name");
    Connection::among(name, driver, &document)
}

#[tokio::test(start_paused = true)]
async fn copies_that_take_hours_leave_threads_to_questions() {
    let connection = nas(crate::testing::Memory::new());
    let gate = Arc::<crate::testing::Gate>::default();
    let shut = gate.shut();
    let copy = async || {
        let gate = gate.clone();
        let copy = spawn_on_account("copy", move || gate.pass());
        let soon = Duration::ZERO;
        connection.run_limited(WorkClass::Copy, soon, copy).await
    };
    let first = copy().await.expect("a thread");
    let next = copy().await.expect_err("as many as there may be");
    assert_eq!(next.kind(), Kind::Pending);
    let question = spawn_on_account("ask", || ());
    let question = connection.run_limited(WorkClass::Short, Duration::ZERO, question);
    question.await.expect("a thread").await.expect("an answer");
    let deletion = spawn_on_account("delete", || ());
    let deletion = connection.run_limited(WorkClass::Deletion, Duration::ZERO, deletion);
    deletion.await.expect("a thread").await.expect("an end");
    drop(shut);
    first.await.expect("copied");
}

/// Reports the thread that dropped it.
#[derive(Debug)]
struct DropReporter(std::sync::mpsc::Sender<std::thread::ThreadId>);

impl Drop for DropReporter {
    fn drop(&mut self) {
        let _ = self.0.send(std::thread::current().id());
    }
}

#[async_trait::async_trait]
impl Driver for DropReporter {
    fn kind(&self) -> &'static str {
        "drop-reporter"
    }

    fn access_rules(&self) -> AccessRules {
        AccessRules::filesystem(&[])
    }

    fn backend_identity(&self) -> driver_core::BackendIdentity {
        driver_core::BackendIdentity("drop-reporter".to_owned())
    }

    fn name_volume(&self, _: &VolumeName, _: &Parameters) -> Result<VolumeId, Error> {
        Err(self.unsupported("name volume"))
    }

    async fn probe(&self, _: &Call) -> Vec<Error> {
        Vec::new()
    }

    fn makes_volumes(&self) -> bool {
        false
    }

    async fn create_volume(
        &self,
        _: &Call,
        _: &driver_core::CreateVolume,
    ) -> Result<driver_core::Volume, Error> {
        Err(self.unsupported("create volume"))
    }

    async fn delete_volume(&self, _: &Call, _: DeleteVolume<'_>) -> Result<(), Error> {
        Err(self.unsupported("delete volume"))
    }
}

#[tokio::test]
async fn a_driver_whose_last_call_has_ended_goes_where_no_calls_are_run() {
    let (sender, dropped) = std::sync::mpsc::channel();
    drop(nas(Arc::new(DropReporter(sender))));
    let there = dropped.recv().expect("dropped");
    assert_ne!(there, std::thread::current().id());
}
