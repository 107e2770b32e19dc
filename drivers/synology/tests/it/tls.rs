//! HTTPS: which certificates are accepted.

use base64::Engine as _;
use csi_types::hex;
use driver_core::{FindVolume, Kind};
use sha2::{Digest, Sha256};
use synology_sim::{Options, Version};

use crate::nas::{Nas, call, config, id, open};

/// A configuration for HTTPS with these keys of `httpConnection`.
fn secure(nas: &Nas, keys: &str) -> String {
    let http = format!("{{{keys}protocol: https,");
    config(&nas.sim, "").replace("{protocol: http,", &http)
}

async fn outcome(nas: &Nas, keys: &str) -> (Kind, String) {
    let driver = open(&secure(nas, keys));
    let found = driver
        .find_volume(&call(), FindVolume::new(&id("pvc-1")))
        .await;
    let error = found.expect_err("there is no such volume");
    (error.kind(), error.chain())
}

#[tokio::test]
async fn a_certificate_is_checked_unless_the_settings_say_otherwise() {
    let mut options = Options::new(Version::V7_2);
    options.tls = true;
    let nas = Nas::with(options, "").await;
    let der = nas.sim.certificate();
    let text = base64::engine::general_purpose::STANDARD.encode(der);
    let pem = format!("-----BEGIN CERTIFICATE-----\\n{text}\\n-----END CERTIFICATE-----\\n");
    let pin = hex(&Sha256::digest(der));
    // Its name is `localhost`, and the address is another.
    for refused in [
        String::new(),
        format!("tls: {{certificateSha256: '{}'}}, ", "00".repeat(32)),
        format!("tls: {{ca: \"{pem}\"}}, "),
        format!("tls: {{ca: \"{pem}\", serverName: other}}, "),
        format!(
            "allowInsecure: true, tls: {{certificateSha256: '{}'}}, ",
            "00".repeat(32)
        ),
    ] {
        let (kind, text) = outcome(&nas, &refused).await;
        assert_eq!(kind, Kind::Unreachable, "{text}");
        assert!(text.contains("ertificate"), "{text}");
        assert!(text.contains("tls"), "{text}");
    }
    assert_eq!(nas.sim.count("SYNO.API.Auth/login"), 0, "nothing was sent");
    for accepted in [
        format!("tls: {{ca: \"{pem}\", serverName: localhost}}, "),
        format!("tls: {{certificateSha256: '{pin}'}}, "),
        "allowInsecure: true, ".to_owned(),
    ] {
        let (kind, text) = outcome(&nas, &accepted).await;
        assert_eq!(kind, Kind::NotFound, "{text}");
    }
}

#[tokio::test]
async fn plain_http_to_a_port_of_https_is_no_answer() {
    let mut options = Options::new(Version::V7_2);
    options.tls = true;
    let nas = Nas::with(options, "").await;
    let error = nas
        .driver
        .find_volume(&call(), FindVolume::new(&id("pvc-1")))
        .await;
    assert_eq!(error.expect_err("no HTTP").kind(), Kind::Unreachable);
}
