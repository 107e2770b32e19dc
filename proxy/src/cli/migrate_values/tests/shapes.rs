//! Values files as people keep them: of different tools, drivers and habits. Written for these tests in the
//! shapes that are found in public repositories.

use std::fs;

use super::*;

/// A file, and what becomes of it.
struct Shape {
    about: &'static str,
    text: String,
    /// The connections that it becomes.
    connections: &'static [&'static str],
    /// Words of which each is in some note.
    notes: &'static [&'static str],
    /// Words of which each is in some problem; without any there is no problem.
    problems: &'static [&'static str],
    /// Pointers into the new values, and what is there.
    holds: &'static [(&'static str, &'static str)],
}

const SSH: &str = "
    driver: zfs-generic-nfs
    sshConnection: {host: nas.lan, port: 22, username: root, password: geheim}
    zfs: {datasetParentName: tank/k8s/v, detachedSnapshotsDatasetParentName: tank/k8s/s}
    nfs:
      shareHost: nas.lan
      shareStrategy: setDatasetProperties
      shareStrategySetDatasetProperties: {properties: {sharenfs: 'on'}}
";
const API: &str = "
    driver: freenas-api-nfs
    httpConnection: {protocol: https, host: nas.lan, port: 443, apiKey: 1-geheim, allowInsecure: true}
    zfs: {datasetParentName: tank/k8s/v, detachedSnapshotsDatasetParentName: tank/k8s/s}
    nfs: {shareHost: nas.lan, shareAllowedNetworks: [10.0.0.0/8], shareMaprootUser: root, shareMaprootGroup: root}
";
const API_ISCSI: &str = "
    driver: freenas-api-iscsi
    httpConnection: {protocol: https, host: nas.lan, port: 443, apiKey: 1-geheim, allowInsecure: true}
    zfs: {datasetParentName: tank/k8s/i, detachedSnapshotsDatasetParentName: tank/k8s/is, zvolBlocksize: 16K}
    iscsi:
      targetPortal: nas.lan:3260
      targetGroups: [{targetGroupPortalGroup: 1, targetGroupInitiatorGroup: 1, targetGroupAuthType: None}]
";
const SYNOLOGY: &str = "
    driver: synology-iscsi
    httpConnection: {protocol: https, host: dsm.lan, port: 5001, username: csi, password: geheim, allowInsecure: true}
    synology: {volume: /volume1}
    iscsi:
      targetPortal: dsm.lan
      baseiqn: 'iqn.2000-01.com.synology:csi.'
      lunTemplate: {type: BLUN}
";
const NFS_CLIENT: &str = "
    driver: nfs-client
    nfs: {shareHost: nas.lan, shareBasePath: /export/csi, controllerBasePath: /storage}
";
const SMB_CLIENT: &str = "
    driver: smb-client
    smb: {shareHost: nas.lan, shareBasePath: csi, controllerBasePath: /storage}
";
const LOCAL: &str = "
    driver: local-hostpath
    local-hostpath: {shareBasePath: /var/lib/csi, controllerBasePath: /var/lib/csi}
";

/// Values of the chart.
fn values(name: &str, config: &str, more: &str) -> String {
    format!("csiDriver:\n  name: org.old.{name}\ndriver:\n  config:{config}{more}")
}

/// Text that stands deeper.
fn deeper(text: &str, by: usize) -> String {
    let line = |line: &str| format!("{}{line}\n", " ".repeat(by));
    text.lines().map(line).collect()
}

fn manifest(head: &str, indent: usize, values: &str) -> String {
    format!("{head}\n{}", deeper(values, indent))
}

fn shape(about: &'static str, text: String, connections: &'static [&'static str]) -> Shape {
    Shape {
        about,
        text,
        connections,
        notes: &[],
        problems: &[],
        holds: &[],
    }
}

/// The manifests that install the chart.
#[expect(clippy::too_many_lines, reason = "a table of files")]
fn of_tools() -> Vec<Shape> {
    let flux = "apiVersion: helm.toolkit.fluxcd.io/v2\nkind: HelmRelease\nmetadata: {name: csi-nfs, namespace: storage}\n\
                spec:\n  interval: 1h\n  chart: {spec: {chart: democratic-csi, version: 0.15.1}}";
    let k3s = "apiVersion: helm.cattle.io/v1\nkind: HelmChart\nmetadata: {name: disks, namespace: kube-system}\n\
               spec:\n  chart: democratic-csi\n  targetNamespace: democratic-csi";
    let argo = "apiVersion: argoproj.io/v1alpha1\nkind: Application\nmetadata: {name: truenas, namespace: argocd}\nspec:\n  \
                destination: {namespace: csi}";
    let classes =
        "\nstorageClasses:\n- {name: nfs, defaultClass: true, parameters: {fsType: nfs}}\n";
    vec![
        Shape {
            notes: &["release csi-nfs in the namespace storage"],
            holds: &[
                ("/csiDriver/name", "org.old.nfs"),
                ("/storageClasses/0/parameters/connection", "csi-nfs"),
            ],
            ..shape(
                "a HelmRelease of Flux",
                manifest(
                    &format!("{flux}\n  values:"),
                    4,
                    &values("nfs", SSH, classes),
                ),
                &["csi-nfs"],
            )
        },
        Shape {
            notes: &["spec.postRenderers is not read"],
            problems: &["spec.valuesFrom is not read"],
            ..shape(
                "a HelmRelease with a Secret of values beside it, after its repository",
                format!(
                    "---\napiVersion: source.toolkit.fluxcd.io/v1\nkind: HelmRepository\nmetadata: {{name: x}}\n---\n{}",
                    manifest(
                        &format!(
                            "{flux}\n  valuesFrom: [{{kind: Secret, name: nas}}]\n  postRenderers: [{{kustomize: {{}}}}, 1]\n  values:"
                        ),
                        4,
                        &values("nfs", API, classes)
                    )
                ),
                &["csi-nfs"],
            )
        },
        Shape {
            notes: &["release disks in the namespace democratic-csi"],
            ..shape(
                "a HelmChart of k3s",
                manifest(
                    &format!("{k3s}\n  valuesContent: |-"),
                    4,
                    &values("disks", API_ISCSI, ""),
                ),
                &["disks"],
            )
        },
        shape(
            "a HelmChart of k3s with a map of values",
            manifest(
                &format!("{k3s}\n  values:"),
                4,
                &values("disks", SYNOLOGY, ""),
            ),
            &["disks"],
        ),
        Shape {
            holds: &[("/connections/truenas/driver", "freenas-api-nfs")],
            ..shape(
                "an Application of Argo CD with values as text",
                manifest(
                    &format!(
                        "{argo}\n  source:\n    chart: democratic-csi\n    helm:\n      values: |"
                    ),
                    8,
                    &values("t", API, ""),
                ),
                &["truenas"],
            )
        },
        Shape {
            notes: &["release nas in the namespace csi"],
            problems: &["helm.parameters is not read"],
            ..shape(
                "an Application with a map of values and parameters, among several sources",
                manifest(
                    &format!(
                        "{argo}\n  sources:\n  - {{repoURL: x, path: y}}\n  - chart: democratic-csi\n    helm:\n      \
                         releaseName: nas\n      parameters: [{{name: a, value: b}}]\n      valuesObject:"
                    ),
                    8,
                    &values("t", API, ""),
                ),
                &["nas"],
            )
        },
        Shape {
            notes: &["was a subchart, `democratic-csi`"],
            ..shape(
                "an umbrella chart beside a snapshot controller",
                manifest(
                    "snapshot-controller: {controller: {replicaCount: 2}}\ndemocratic-csi:",
                    2,
                    &values("u", SSH, ""),
                ),
                &["file"],
            )
        },
        Shape {
            notes: &[
                "was a subchart, `nfs`",
                "was a subchart, `iscsi`",
                "iscsi: the old release has disks still",
            ],
            holds: &[("/driver/config/proxy/legacyConnection", "nfs")],
            ..shape(
                "an umbrella chart that has it twice",
                format!(
                    "nfs:\n{}iscsi:\n{}",
                    deeper(&values("nfs", SSH, ""), 2),
                    deeper(
                        &values("iscsi", API_ISCSI, "\nstorageClasses: [{name: disks}]\n"),
                        2
                    )
                ),
                &["iscsi", "nfs"],
            )
        },
        shape(
            "a Kustomization that inflates the chart",
            manifest(
                "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\nhelmCharts:\n- name: democratic-csi\n  \
                 releaseName: zfs\n  valuesInline:",
                4,
                &values("z", SSH, ""),
            ),
            &["zfs"],
        ),
        shape(
            "a file with a byte order mark and the end of a document",
            format!("\u{feff}---\n{}\n---\n", values("bom", SSH, "")),
            &["file"],
        ),
    ]
}

/// The settings that people set.
#[expect(clippy::too_many_lines, reason = "a table of files")]
fn of_habits() -> Vec<Shape> {
    vec![
        Shape {
            problems: &["is in the Secret nas-config, which is not read: make the Secret omnibus-csi-connections with the key file.yaml"],
            holds: &[("/existingConnectionsSecret", "omnibus-csi-connections")],
            ..shape(
                "the configuration in a Secret",
                "csiDriver: {name: org.old.s}\ndriver: {existingConfigSecret: nas-config, config: {driver: freenas-api-nfs}}\n".into(),
                &[],
            )
        },
        Shape {
            notes: &["controller.driver.imagePullPolicy is left out", "node.driver.image is left out", "image is left out"],
            ..shape(
                "imagePullPolicy beside the image, and an image for both",
                values("p", SSH, "\nimage: x\ncontroller: {driver: {image: a, imagePullPolicy: Always}}\nnode: {driver: {image: {tag: next}}}\n"),
                &["file"],
            )
        },
        Shape {
            notes: &["storageClasses[0].detachedVolumesFromSnapshots is left out"],
            ..shape(
                "a parameter beside the parameters",
                values("d", SSH, "\nstorageClasses: [{name: a, detachedVolumesFromSnapshots: true}]\n"),
                &["file"],
            )
        },
        Shape {
            notes: &["parameters.detachedSnapshots is left out"],
            ..shape(
                "a map among the parameters",
                values("d", SSH, "\nvolumeSnapshotClasses: [{name: a, parameters: {detachedSnapshots: {enabled: false}}}]\n"),
                &["file"],
            )
        },
        Shape {
            notes: &["driver.resources is left out"],
            ..shape("resources beside the configuration", values("r", SSH, "\n  resources: {limits: {cpu: 1}}\n"), &["file"])
        },
        Shape {
            notes: &["node.driver.localtimeHostPath is left out"],
            ..shape("false where a path or null is meant", values("l", SSH, "\nnode: {driver: {localtimeHostPath: false}}\n"), &["file"])
        },
        Shape {
            notes: &["controller.externalProvisioner.args is left out", "node.driverRegistrar is left out", "node.cleanup is left out", "csiProxy is left out"],
            ..shape(
                "the whole values.yaml of the old chart, with some of it changed",
                values(
                    "w",
                    SSH,
                    "\nextraCaCerts:\ncontroller:\n  strategy: deployment\n  externalProvisioner: {enabled: true, args: [--v=5]}\n  \
                     clusterDriverRegistrar: {enabled: false}\n  driver: {lifecycle: , resources: , extraEnv: []}\nnode:\n  \
                     windows: {enabled: false}\n  linux: {enabled: true}\n  cleanup: {image: {tag: 1.37.0}}\n  \
                     driverRegistrar: {image: {tag: v2}}\ncsiProxy: {enabled: true}\nenablePSP: false\nstorageClasses: []\n",
                ),
                &["file"],
            )
        },
        Shape {
            holds: &[("/controller/externalSnapshotter/enabled", "false"), ("/controller/externalResizer/enabled", "false"), ("/controller/externalProvisioner/enabled", "false")],
            ..shape(
                "node-manual without the sidecars that it does not need",
                values(
                    "m",
                    "\n    driver: node-manual\n",
                    "\ncontroller:\n  externalProvisioner: {enabled: false}\n  externalResizer: {enabled: false}\n  \
                     externalSnapshotter: {enabled: false}\n",
                ),
                &["file"],
            )
        },
        Shape {
            problems: &["check: zfs.zvolBlockSize"],
            ..shape(
                "a key that a blog has misspelt",
                values("b", &API_ISCSI.replace("zvolBlocksize", "zvolBlockSize"), ""),
                &["file"],
            )
        },
        Shape {
            notes: &["service counts in driver.config only"],
            ..shape(
                "settings of the service in the configuration",
                values("c", &format!("{SSH}    service: {{node: {{}}}}\n"), ""),
                &["file"],
            )
        },
    ]
}

/// The settings that some drivers need.
#[expect(clippy::too_many_lines, reason = "a table of files")]
fn of_drivers() -> Vec<Shape> {
    let storage = "\n  extraVolumes: [{name: s, hostPath: {path: /mnt/s}}]\n";
    let mounted = format!(
        "\ncontroller:\n  driver: {{extraVolumeMounts: [{{name: s, mountPath: /storage}}]}}{storage}"
    );
    let hook = "\ncontroller:\n  externalResizer: {enabled: false}\n  hostNetwork: true\n  driver:\n    securityContext: {privileged: true}\n    \
                lifecycle: {postStart: {exec: {command: [/bin/sh, -c, mount a b]}}}\n";
    vec![
        Shape {
            notes: &["runs privileged and as root"],
            holds: &[
                ("/controller/podSecurityContext/runAsUser", "0"),
                ("/controller/driver/securityContext/privileged", "true"),
            ],
            ..shape(
                "nfs-client whose controller mounts the share",
                values("n", NFS_CLIENT, ""),
                &["file"],
            )
        },
        Shape {
            notes: &["runs privileged and as root"],
            holds: &[
                ("/controller/podSecurityContext/runAsUser", "0"),
                ("/controller/driver/securityContext/privileged", "true"),
                ("/controller/externalResizer/enabled", "false"),
                ("/controller/hostNetwork", "true"),
            ],
            ..shape(
                "nfs-client with a hook that mounts",
                values("n", NFS_CLIENT, hook),
                &["file"],
            )
        },
        Shape {
            notes: &["runs as root, as the old one did"],
            holds: &[
                ("/controller/podSecurityContext/runAsUser", "0"),
                (
                    "/controller/driver/securityContext/allowPrivilegeEscalation",
                    "false",
                ),
            ],
            ..shape(
                "smb-client on a mounted folder",
                values("s", SMB_CLIENT, &mounted),
                &["file"],
            )
        },
        Shape {
            holds: &[("/controller/strategy", "node")],
            ..shape(
                "nfs-client with the controller on the nodes",
                values(
                    "n",
                    NFS_CLIENT,
                    "\ncontroller: {strategy: node}\nnode:\n  driver: {extraVolumeMounts: [{name: s, mountPath: /storage}]}\n  \
                     extraVolumes: [{name: s, hostPath: {path: /mnt/s}}]\n",
                ),
                &["file"],
            )
        },
        Shape {
            notes: &["runs privileged and as root"],
            ..shape(
                "lustre-client",
                values(
                    "l",
                    "\n    driver: lustre-client\n    lustre: {shareHost: mgs@tcp, shareBasePath: /scratch, controllerBasePath: /storage}\n",
                    "",
                ),
                &["file"],
            )
        },
        Shape {
            holds: &[
                ("/driver/config/proxy/nodeTopology/type/1", "node"),
                ("/controller/strategy", "node"),
            ],
            ..shape(
                "local-hostpath",
                values(
                    "h",
                    LOCAL,
                    "\ncontroller: {strategy: node}\nnode:\n  driver: {extraVolumeMounts: [{name: h, mountPath: /var/lib/csi}]}\n  \
                     extraVolumes: [{name: h, hostPath: {path: /var/lib/csi}}]\n",
                ),
                &["file"],
            )
        },
        Shape {
            notes: &["it stays a driver of its own"],
            holds: &[("/driver/config/driver", "zfs-local-ephemeral-inline")],
            ..shape(
                "volumes that pods describe",
                values(
                    "e",
                    "\n    driver: zfs-local-ephemeral-inline\n    zfs: {datasetParentName: tank/inline}\n",
                    "\ncontroller: {enabled: false}\n",
                ),
                &[],
            )
        },
        Shape {
            notes: &["it stays a driver of its own"],
            problems: &["file: check: zfs.datasetParentName"],
            ..shape(
                "volumes that pods describe, without their dataset",
                values(
                    "e",
                    "\n    driver: zfs-local-ephemeral-inline\n",
                    "\ncontroller: {enabled: false}\n",
                ),
                &[],
            )
        },
        Shape {
            holds: &[(
                "/storageClasses/0/secrets/node-stage-secret/node-db.node.session.auth.username",
                "foo",
            )],
            ..shape(
                "CHAP in the secrets of a class, and tolerations",
                values(
                    "i",
                    API_ISCSI,
                    "\nnode:\n  tolerations: [{operator: Exists}]\n  hostPID: true\n  driver:\n    \
                     extraEnv: [{name: ISCSIADM_HOST_STRATEGY, value: nsenter}]\n    iscsiDirHostPath: /etc/iscsi\n    \
                     iscsiDirHostPathType: ''\nstorageClasses:\n- name: i\n  mountOptions: []\n  secrets:\n    provisioner-secret:\n    \
                     node-stage-secret: {node-db.node.session.auth.username: foo}\n",
                ),
                &["file"],
            )
        },
    ]
}

#[test]
fn values_of_many_makes_become_values_that_the_chart_takes() {
    let all: Vec<_> = [of_tools(), of_habits(), of_drivers()]
        .into_iter()
        .flatten()
        .collect();
    assert!(all.len() >= 25, "{}", all.len());
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file.yaml");
    for one in all {
        fs::write(&file, &one.text).unwrap();
        let about = one.about;
        let inputs = read(&[file.display().to_string()])
            .unwrap_or_else(|error| panic!("{about}: {error:?}"));
        let take_over = (inputs.len() > 1).then_some("nfs");
        let merged = migrate(&inputs, &flags(None, take_over))
            .unwrap_or_else(|error| panic!("{about}: {error:?}"));
        let (notes, problems) = (merged.notes, merged.problems);
        let mut values = merged.values;
        let connections = values.get("connections").and_then(Value::as_object);
        let mut names: Vec<_> = connections
            .into_iter()
            .flatten()
            .map(|(name, _)| name.as_str())
            .collect();
        names.sort_unstable();
        assert_eq!(names, one.connections, "{about}");
        for (said, found) in [(one.notes, &notes), (one.problems, &problems)] {
            for words in said {
                assert!(
                    found.iter().any(|one| one.contains(words)),
                    "{about}: {words}: {found:#?}"
                );
            }
        }
        assert_eq!(
            problems.is_empty(),
            one.problems.is_empty(),
            "{about}: {problems:#?}"
        );
        assert!(
            !format!("{notes:?}{problems:?}").contains("geheim"),
            "{about}"
        );
        for (pointer, expected) in one.holds {
            let whole = Value::Object(values.clone());
            let found = whole.pointer(pointer).unwrap_or(&Value::Null);
            let shown = found
                .as_str()
                .map_or_else(|| found.to_string(), str::to_owned);
            assert_eq!(&shown, expected, "{about}: {pointer}");
        }
        // What is printed is read as it was, and the chart takes it.
        let printed = yaml::document(&values);
        assert_eq!(
            config::plain_yaml(&printed).unwrap(),
            Value::Object(values.clone()),
            "{about}"
        );
        let (left_out, wrong) = schema::fit(&mut values);
        assert_eq!((left_out, wrong), (Vec::new(), Vec::new()), "{about}");
        if let Some(out) = std::env::var_os("OMNIBUS_MIGRATED") {
            let name = about.replace(|c: char| !c.is_ascii_alphanumeric(), "-");
            fs::write(Path::new(&out).join(format!("{name}.yaml")), printed).unwrap();
        }
    }
}
