//! There is no controller half, and the drivers say so whatever they are asked.

use std::sync::Arc;

use driver_core::NodeId;
use driver_core::config::{Document, NoEnvironment};
use driver_core::contract::{Fresh, keep_contract};
use driver_inline::{KINDS, from_document};
use exec::Runner as _;
use exec::testing::{OneByOne, Reply, RunOne, Scripted};
use node_utils::Tools;

#[tokio::test]
async fn inline_drivers_have_no_verb_of_a_controller() {
    for kind in KINDS {
        keep_contract(|| async {
            let text = format!("driver: {kind}\nzfs: {{datasetParentName: tank/inline}}\n");
            let document = Document::parse(&text, &NoEnvironment).expect("yaml");
            let node = NodeId::parse("node-1").expect("a node");
            let answer = Reply::printing("");
            let tools = Tools::all_through(Arc::new(OneByOne(Anything(answer))));
            let driver = from_document(&document, &node, &tools).expect("a driver");
            assert_eq!(driver.kind(), kind);
            Fresh::new(driver, ())
        })
        .await;
    }
}

/// Answers whatever is run.
#[derive(Debug)]
struct Anything(Reply);

#[async_trait::async_trait]
impl RunOne for Anything {
    async fn run_one(&self, command: &exec::Command) -> Result<exec::Output, exec::RunError> {
        let script = Scripted::new().expect(command.to_string(), self.0.clone());
        script.run(command).await
    }
}
