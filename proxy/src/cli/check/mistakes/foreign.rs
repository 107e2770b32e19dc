//! Files that are something else, and text that was copied from elsewhere.

use std::fs;

use super::{ISCSI, Mistake, NFS, TRUENAS, changed, check, flags, whole};

pub(super) const MISTAKES: &[Mistake] = &[
    whole(
        "csiDriver: {name: a}\ndriver: {config: {driver: node-manual}}",
        "this is a values file of the chart: give what is under driver.config",
    ),
    whole(
        "apiVersion: v1\nkind: Secret\nstringData: {driver-config-file.yaml: ''}",
        "this is a manifest of the kind Secret",
    ),
    whole("a: 1\n---\nb: 2", "remove what follows the line `---`"),
    whole("driver: x\n  nfs: {}\n", "look at the indent of this line"),
    whole(
        "\u{feff}driver: zfs-nsf\n",
        "driver: there is no driver `zfs-nsf`",
    ),
    whole("driver: zfs-nfs", "is one of these meant: zfs-generic-nfs?"),
    whole(
        "driver: truenas-nfs-api",
        "is one of these meant: freenas-api-nfs",
    ),
    changed(
        NFS,
        "password: x",
        "privateKey: ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJ csi@example",
        "this is a public key: give the private one",
    ),
    changed(
        NFS,
        "password: x",
        "privateKey: \"-----BEGIN OPENSSH PRIVATE KEY-----\\n...\\n-----END OPENSSH PRIVATE KEY-----\"",
        "this is a placeholder for a private key",
    ),
    changed(
        ISCSI,
        "lio\n",
        "lio\n  nameTemplate: '{{ parameters.name | lower }}'\n",
        "Handlebars has no `|`",
    ),
    changed(
        TRUENAS,
        "apiKey: 1-x",
        "apiKey: 1-x, tls: {certificateSha256: 'AB:CD'}",
        "a SHA-256 fingerprint is 64 hexadecimal digits",
    ),
];

#[test]
fn warnings_are_counted_in_the_last_line_and_one_key_is_complained_of_once() {
    let file = tempfile::NamedTempFile::new().expect("a file");
    fs::write(file.path(), TRUENAS.replace("https", "http")).expect("a file");
    let table = check(&flags(file.path())).table();
    let last = table.lines().last().unwrap_or_default();
    let warnings = table.matches("WARNING ").count();
    assert!(
        warnings > 0 && last.contains(&format!("{warnings} warning")),
        "{table}"
    );
    let example = TRUENAS.replace("host: nas.example", "host: server address");
    fs::write(file.path(), example).expect("a file");
    let table = check(&flags(file.path())).table();
    assert_eq!(
        table.matches(" httpConnection.host: ").count(),
        1,
        "{table}"
    );
}

#[test]
fn connections_in_the_main_file_are_said_to_be_files() {
    let dir = tempfile::tempdir().expect("a folder");
    let file = dir.path().join("proxy.yaml");
    let yaml = format!(
        "{{driver: proxy, proxy: {{configFolder: {}}}, connections: {{a: {{driver: node-manual}}}}}}",
        dir.path().join("none").display()
    );
    fs::write(&file, yaml).expect("a file");
    let table = check(&flags(&file)).table();
    for said in ["each is a file in `proxy.configFolder`", "make the folder"] {
        assert!(table.contains(said), "{said}: {table}");
    }
}
