# shellcheck shell=bash
# The configuration of containerd, its network of pods, and the kubelet of a node. Sourced, never run.

# Writes it into a folder; STATE is the same folder as the node sees it.
node_settings() { # state, network of pods, control group [where to write]
    local to=${4:-$1}
    mkdir -p "$to/cni" "$to/containerd" "$to/flexvolume"
    cat >"$to/cni/10-pods.conflist" <<END
{"cniVersion": "0.4.0", "name": "pods", "plugins": [{
  "type": "bridge", "bridge": "pods", "isGateway": true, "ipMasq": false,
  "ipam": {"type": "host-local", "ranges": [[{"subnet": "$2"}]], "routes": [{"dst": "0.0.0.0/0"}]}}]}
END
    # restrict_oom_score_adj: without CAP_SYS_RESOURCE runc fails otherwise ("can't get final child's PID").
    cat >"$to/containerd.toml" <<END
version = 2
root = "$1/containerd"
state = "/run/containerd"
disabled_plugins = ["io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.zfs", "io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.devmapper"]
[grpc]
  address = "/run/containerd/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "omnibus.test/pause:1"
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "$1/cni"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
END
    echo "nameserver 127.0.0.1" >"$to/resolv.conf"
    cat >"$to/kubelet.yaml" <<END
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication: {anonymous: {enabled: true}, webhook: {enabled: false}}
authorization: {mode: AlwaysAllow}
clusterDNS: [10.96.0.10]
clusterDomain: cluster.local
cgroupDriver: cgroupfs
cgroupRoot: $3
failCgroupV1: false
failSwapOn: false
containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
resolvConf: $1/resolv.conf
volumePluginDir: $1/flexvolume
evictionHard: {memory.available: 100Mi, nodefs.available: 1%, nodefs.inodesFree: 1%, imagefs.available: 1%}
imageGCHighThresholdPercent: 100
imageGCLowThresholdPercent: 99
maxPods: 200
# How soon it sees that a mounted volume is to grow.
syncFrequency: 10s
volumeStatsAggPeriod: 10s
END
}
