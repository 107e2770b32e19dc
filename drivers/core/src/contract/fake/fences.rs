//! The fences of the fake driver.

use async_trait::async_trait;
use csi_types::Network;

use super::{FakeDriver, Verb};
use crate::call::Call;
use crate::driver::Fencer;
use crate::error::Error;
use crate::fence::{FenceClient, FenceNetworks};

#[async_trait]
impl Fencer for FakeDriver {
    async fn fence_networks(&self, call: &Call, request: FenceNetworks<'_>) -> Result<(), Error> {
        let work = || {
            self.state.fence(request);
            Ok(())
        };
        self.change(call, Verb::FenceNode, work).await
    }

    async fn unfence_networks(&self, call: &Call, request: FenceNetworks<'_>) -> Result<(), Error> {
        let work = || {
            self.state.unfence(request.networks);
            Ok(())
        };
        self.change(call, Verb::FenceNode, work).await
    }

    async fn fenced_networks(&self, call: &Call) -> Result<Vec<Network>, Error> {
        self.look(call, Verb::ListVolumes, || Ok(self.state.fenced()))
            .await
    }

    async fn fence_clients(&self, call: &Call) -> Result<Vec<FenceClient>, Error> {
        let client = |(_, node): (_, csi_types::NodeIdentity)| FenceClient {
            node: node.reported,
            addresses: Vec::new(),
        };
        let work = || Ok(self.state.published().into_iter().map(client).collect());
        self.look(call, Verb::ListVolumes, work).await
    }

    async fn check_fence(&self, call: &Call) -> Result<(), Error> {
        self.look(call, Verb::CheckFence, || Ok(())).await
    }
}
