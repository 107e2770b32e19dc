//! Requests of csi-addons.

use std::collections::BTreeMap;
use std::path::Path;

use csi_proto::{fence, reclaimspace};
use csi_types::{AbsolutePath, Access, Network, hex};
use driver_core::volume::Secrets;
use driver_core::{Parameters, VolumeId};
use node_utils::StagingPath;
use sha2::{Digest as _, Sha256};

use crate::csi::decode::{DecodeError, Reason, capability, maps, path, volume_handle};
use crate::routing::connections::VolumeHandle;

/// Networks to be shut out, or let in again.
#[derive(Debug)]
pub(crate) struct FenceRequest {
    /// Each once; never none.
    pub(crate) networks: Vec<Network>,
    pub(crate) parameters: Parameters,
}

/// A volume whose storage is to have its unused space back.
#[derive(Debug)]
pub(crate) struct ReclaimRequest {
    pub(crate) volume: VolumeHandle,
    pub(crate) secrets: Secrets,
}

/// The same on the node where it is staged.
#[derive(Debug)]
pub(crate) struct NodeReclaimRequest {
    pub(crate) volume: VolumeHandle,
    pub(crate) path: AbsolutePath,
    /// Whether it is used as a raw device.
    pub(crate) is_raw: bool,
}

type Map = BTreeMap<String, String>;

/// The parameters of a question about fences. Its secrets are needed by none, and must be right all the same.
pub(crate) fn fence_query(parameters: Map, secrets: Map) -> Result<Parameters, DecodeError> {
    maps::secrets(secrets)?;
    Ok(Parameters::new(maps::map("parameters", parameters)?))
}

// === impl FenceRequest ===

impl FenceRequest {
    fn read(parameters: Map, secrets: Map, cidrs: &[fence::Cidr]) -> Result<Self, DecodeError> {
        const FIELD: &str = "cidrs";
        let parameters = fence_query(parameters, secrets)?;
        if cidrs.is_empty() {
            return Err(DecodeError::missing(FIELD));
        }
        let mut networks = Vec::new();
        for fence::Cidr { cidr } in cidrs {
            let wrong =
                |_| DecodeError::new(FIELD, Reason::Network(cidr.chars().take(64).collect()));
            let network: Network = cidr.parse().map_err(wrong)?;
            if !networks.contains(&network) {
                networks.push(network);
            }
        }
        Ok(Self {
            networks,
            parameters,
        })
    }
}

impl TryFrom<fence::FenceClusterNetworkRequest> for FenceRequest {
    type Error = DecodeError;

    fn try_from(request: fence::FenceClusterNetworkRequest) -> Result<Self, DecodeError> {
        Self::read(request.parameters, request.secrets, &request.cidrs)
    }
}

impl TryFrom<fence::UnfenceClusterNetworkRequest> for FenceRequest {
    type Error = DecodeError;

    fn try_from(request: fence::UnfenceClusterNetworkRequest) -> Result<Self, DecodeError> {
        Self::read(request.parameters, request.secrets, &request.cidrs)
    }
}

// === impl ReclaimRequest ===

impl TryFrom<reclaimspace::ControllerReclaimSpaceRequest> for ReclaimRequest {
    type Error = DecodeError;

    fn try_from(request: reclaimspace::ControllerReclaimSpaceRequest) -> Result<Self, DecodeError> {
        maps::map("parameters", request.parameters)?;
        Ok(Self {
            volume: volume_handle("volume_id", &request.volume_id)?,
            secrets: maps::secrets(request.secrets)?,
        })
    }
}

// === impl NodeReclaimRequest ===

impl TryFrom<reclaimspace::NodeReclaimSpaceRequest> for NodeReclaimRequest {
    type Error = DecodeError;

    fn try_from(request: reclaimspace::NodeReclaimSpaceRequest) -> Result<Self, DecodeError> {
        const STAGING: &str = "staging_target_path";
        maps::secrets(request.secrets)?;
        let volume = volume_handle("volume_id", &request.volume_id)?;
        let capability = request.volume_capability.map(capability::one).transpose()?;
        let is_raw = capability.is_some_and(|one| matches!(one.access, Access::Block));
        // The sidecar sends the staging path alone.
        let path = if request.staging_target_path.is_empty() {
            match request.volume_path.as_str() {
                "" => return Err(DecodeError::missing(STAGING)),
                given => path("volume_path", given)?,
            }
        } else {
            let staging = StagingPath::parse(&request.staging_target_path);
            let staging = staging.map_err(|error| DecodeError::new(STAGING, error))?;
            if is_of_another(staging.path().as_path(), volume.whole()) {
                return Err(DecodeError::new(STAGING, Reason::OtherVolume));
            }
            staging.path().clone()
        };
        Ok(Self {
            volume,
            path,
            is_raw,
        })
    }
}

/// Whether a path is where the kubelet stages another volume: `…/<SHA-256 of the handle>/globalmount`. Other orchestrators
/// have other paths, which say nothing.
fn is_of_another(staging: &Path, volume: &VolumeId) -> bool {
    if !staging.ends_with("globalmount") {
        return false;
    }
    let folder = staging.parent().and_then(Path::file_name);
    let Some(folder) = folder.and_then(|name| name.to_str()) else {
        return false;
    };
    let is_digest = folder.len() == 64 && folder.bytes().all(|b| b.is_ascii_hexdigit());
    let digest = Sha256::digest(volume.as_str().as_bytes());
    is_digest && !folder.eq_ignore_ascii_case(&hex(&digest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_are_read_once_each_and_any_that_is_wrong_refuses_all() {
        let read = |texts: &[&str]| {
            let cidr = |text: &&str| fence::Cidr {
                cidr: (*text).to_owned(),
            };
            let cidrs: Vec<_> = texts.iter().map(cidr).collect();
            FenceRequest::read(Map::new(), Map::new(), &cidrs)
        };
        let networks = read(&["10.0.0.1/8", "10.0.0.0/8", "fd00::/64"])
            .expect("read")
            .networks;
        let texts: Vec<_> = networks.iter().map(ToString::to_string).collect();
        assert_eq!(texts, ["10.0.0.0/8", "fd00::/64"]);
        for wrong in [
            &[][..],
            &["10.0.0.0/8", "10.0.0.1"],
            &["node-1"],
            &["::/129"],
            &[""],
        ] {
            let error = driver_core::Error::from(read(wrong).expect_err("refused"));
            assert!(error.chain().contains("cidrs"), "{}", error.chain());
        }
    }

    #[test]
    fn a_path_that_the_kubelet_made_for_another_volume_is_refused() {
        let request = |path: &str| reclaimspace::NodeReclaimSpaceRequest {
            volume_id: "v:nas/pvc-1".into(),
            staging_target_path: path.into(),
            ..Default::default()
        };
        let own = hex(&Sha256::digest(b"v:nas/pvc-1"));
        let other = "0".repeat(64);
        for good in [
            format!("/k/csi/{own}/globalmount"),
            "/s".into(),
            format!("/k/{other}/mount"),
        ] {
            let read = NodeReclaimRequest::try_from(request(&good)).expect("read");
            assert_eq!(read.path.as_str(), good);
        }
        for bad in [
            format!("/k/csi/{other}/globalmount"),
            "s".into(),
            "/".into(),
            String::new(),
        ] {
            let error = NodeReclaimRequest::try_from(request(&bad)).expect_err("refused");
            let error = driver_core::Error::from(error);
            assert!(
                error.chain().contains("staging_target_path"),
                "{}",
                error.chain()
            );
        }
    }
}
