//! What the simulator does on its model.

mod recorded;
mod strict;

use synology_sim::{Options, Simulator, Version};

async fn nas(version: Version) -> Simulator {
    Simulator::start(Options::new(version))
        .await
        .expect("a NAS")
}

strict::tests!(nas);
