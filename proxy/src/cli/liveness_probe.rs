//! `liveness-probe`: asks a running server whether it is ready, as a kubelet's exec probe does.
//!
//! It has its own clock: a server that accepts and never answers is as dead as one that is gone.
//! compat: "Command line".

use std::process::ExitCode;
use std::time::Duration;

use csi_proto::v1::ProbeRequest;
use csi_proto::v1::identity_client::IdentityClient;
use tonic::transport::Endpoint;

use crate::cli::args::{EX_USAGE, LivenessFlags};
use crate::process::{self, complain};

/// Why a server counts as not alive.
#[derive(Debug, thiserror::Error)]
pub enum NotAlive {
    /// The flags make no sense.
    #[error("{0}")]
    Usage(String),
    /// Nothing listens there, or the server speaks no gRPC.
    #[error("connect to {address}")]
    Connect {
        /// The address.
        address: String,
        /// Why not.
        #[source]
        source: tonic::transport::Error,
    },
    /// The answer is an error.
    #[error("the server at {address} answers {code}: {message}")]
    Refused {
        /// The address.
        address: String,
        /// The gRPC code.
        code: tonic::Code,
        /// The message.
        message: String,
    },
    /// The server says so itself.
    #[error("the server at {0} says that it is not ready")]
    NotReady(String),
    /// No answer in time.
    #[error("the server at {address} does not answer within {within:?}")]
    Late {
        /// The address.
        address: String,
        /// The time that was waited.
        within: Duration,
    },
}

/// Asks once, and says on standard error why the answer is no.
/// The kubelet shows it in the events of the pod.
pub fn run(flags: &LivenessFlags) -> ExitCode {
    for warning in &flags.warnings {
        complain(&format!("liveness-probe: {warning}"));
    }
    let answer = match process::small_runtime() {
        Ok(runtime) => runtime.block_on(probe(flags)),
        Err(error) => {
            complain(&format!("liveness-probe: {error}"));
            return ExitCode::FAILURE;
        }
    };
    match answer {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            complain(&format!("liveness-probe: {}", process::chain(&error)));
            match error {
                NotAlive::Usage(_) => ExitCode::from(EX_USAGE),
                _ => ExitCode::FAILURE,
            }
        }
    }
}

/// Asks once. `Ok` only if the server answers and does not deny being ready.
pub async fn probe(flags: &LivenessFlags) -> Result<(), NotAlive> {
    let within = flags.timeout().map_err(NotAlive::Usage)?;
    flags.check_version().map_err(NotAlive::Usage)?;
    let address = flags.csi_address.clone();
    match tokio::time::timeout(within, ask(&address)).await {
        Ok(answer) => answer,
        Err(_) => Err(NotAlive::Late { address, within }),
    }
}

async fn ask(address: &str) -> Result<(), NotAlive> {
    let failed = |source| NotAlive::Connect {
        address: address.to_owned(),
        source,
    };
    let endpoint = Endpoint::from_shared(uri(address)).map_err(failed)?;
    let channel = endpoint.connect().await.map_err(failed)?;
    let answer = IdentityClient::new(channel).probe(ProbeRequest {}).await;
    let answer = answer.map_err(|status| NotAlive::Refused {
        address: address.to_owned(),
        code: status.code(),
        message: status.message().escape_debug().to_string(),
    })?;
    // Unset means ready (CSI specification, Probe).
    match answer.into_inner().ready {
        Some(false) => Err(NotAlive::NotReady(address.to_owned())),
        _ => Ok(()),
    }
}

/// A path with or without `unix://` is a socket; `host:port` is TCP.
fn uri(address: &str) -> String {
    let path = address.strip_prefix("unix:").unwrap_or(address);
    let is_path = path.len() < address.len() || path.contains('/') || !path.contains(':');
    if is_path {
        let path = if path.starts_with("///") {
            &path[2..]
        } else {
            path
        };
        format!("unix:{path}")
    } else {
        format!("http://{address}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_as_democratic_csi_reads_them() {
        for (address, expected) in [
            ("/csi-data/csi.sock", "unix:/csi-data/csi.sock"),
            ("unix:///csi-data/csi.sock", "unix:/csi-data/csi.sock"),
            ("unix:/csi-data/csi.sock", "unix:/csi-data/csi.sock"),
            ("unix://csi.sock", "unix://csi.sock"),
            ("csi.sock", "unix:csi.sock"),
            ("127.0.0.1:10000", "http://127.0.0.1:10000"),
        ] {
            assert_eq!(uri(address), expected, "{address}");
        }
    }
}
