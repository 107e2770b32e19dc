//! Images made by the tests: one layer with one file, as an OCI archive and as a registry serves it.

use std::collections::BTreeMap;
use std::path::Path;

use csi_types::hex;
use serde_json::json;
use sha2::{Digest as _, Sha256};

/// An image.
pub(crate) struct Image {
    /// Its parts, by digest.
    pub(crate) blobs: BTreeMap<String, Vec<u8>>,
    /// The digest of its manifest.
    pub(crate) manifest: String,
}

fn digest(bytes: &[u8]) -> String {
    format!("sha256:{}", hex(&Sha256::digest(bytes)))
}

/// A tar archive (POSIX.1-1988) of regular files.
fn tar<'a>(files: impl IntoIterator<Item = (&'a str, &'a [u8])>) -> Vec<u8> {
    let mut archive = Vec::new();
    for (name, content) in files {
        let mut head = [0_u8; 512];
        let mut put =
            |at: usize, text: &str| head[at..at + text.len()].copy_from_slice(text.as_bytes());
        put(0, name);
        put(100, "0000644\0");
        put(108, "0000000\0");
        put(116, "0000000\0");
        put(124, &format!("{:011o}\0", content.len()));
        put(136, "00000000000\0");
        put(148, "        ");
        put(156, "0");
        put(257, "ustar\x0000");
        let sum: u32 = head.iter().map(|byte| u32::from(*byte)).sum();
        head[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        archive.extend_from_slice(&head);
        archive.extend_from_slice(content);
        archive.resize(archive.len().next_multiple_of(512), 0);
    }
    archive.resize(archive.len() + 1024, 0);
    archive
}

// === impl Image ===

impl Image {
    /// An image for this machine with the file `hello` of this content.
    pub(crate) fn saying(hello: &str) -> Self {
        let layer = tar([("hello", hello.as_bytes())]);
        let architecture = match std::env::consts::ARCH {
            "aarch64" => "arm64",
            _ => "amd64",
        };
        let config = json!({
            "architecture": architecture, "os": "linux", "config": {},
            "rootfs": {"type": "layers", "diff_ids": [digest(&layer)]},
        });
        let config = config.to_string().into_bytes();
        let manifest = json!({
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": {
                "mediaType": "application/vnd.oci.image.config.v1+json",
                "digest": digest(&config), "size": config.len(),
            },
            "layers": [{
                "mediaType": "application/vnd.oci.image.layer.v1.tar",
                "digest": digest(&layer), "size": layer.len(),
            }],
        });
        let manifest = manifest.to_string().into_bytes();
        Self {
            manifest: digest(&manifest),
            blobs: [layer, config, manifest]
                .into_iter()
                .map(|blob| (digest(&blob), blob))
                .collect(),
        }
    }

    /// Writes it as an archive that `ctr images import` takes.
    pub(crate) fn write(&self, path: &Path, name: &str) {
        let index = json!({
            "schemaVersion": 2,
            "manifests": [{
                "mediaType": MANIFEST,
                "digest": self.manifest,
                "size": self.blobs[&self.manifest].len(),
                "annotations": {"io.containerd.image.name": name},
            }],
        });
        let index = index.to_string();
        let path_of = |digest: &String| format!("blobs/{}", digest.replace(':', "/"));
        let blobs: Vec<(String, &Vec<u8>)> = self
            .blobs
            .iter()
            .map(|(digest, blob)| (path_of(digest), blob))
            .collect();
        let files = [
            ("oci-layout", &br#"{"imageLayoutVersion":"1.0.0"}"#[..]),
            ("index.json", index.as_bytes()),
        ];
        let blobs = blobs
            .iter()
            .map(|(path, blob)| (path.as_str(), blob.as_slice()));
        std::fs::write(path, tar(files.into_iter().chain(blobs))).expect("an archive");
    }
}

/// The media type of a manifest.
pub(crate) const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
