{{/*
One sidecar: a dict with root, name, values, args (a YAML list) and, if asked for, mounts, more fields of the container, the
socket, the volume that it is on, and the path that a registrar tells the kubelet.
`args` of the values takes the place of ours; both may be templates, which see .csiSocketAddress.
*/}}
{{- define "omnibus-csi.sidecar" -}}
{{- $root := .root }}
{{- $registrationPath := .registrationPath | default "" }}
{{- $_ := set $root "csiSocketAddress" (.socket | default "/csi-data/csi.sock") }}
- name: {{ .name }}
  image: "{{ .values.image.registry }}:{{ .values.image.tag }}"
  imagePullPolicy: {{ .values.image.pullPolicy | default $root.Values.image.pullPolicy }}
  args:
  {{- range concat (.values.args | default (fromYamlArray .args)) (.values.extraArgs | default list) }}
  {{- $argument := tpl . $root }}
  {{- if and $registrationPath (regexMatch "^--?kubelet-registration-path=" $argument) }}
  {{- /* The values know the own name only. */}}
  {{- $argument = printf "--kubelet-registration-path=%s" $registrationPath }}
  {{- end }}
  - {{ quote $argument }}
  {{- end }}
  env:
  - name: NODE_NAME
    valueFrom: {fieldRef: {fieldPath: spec.nodeName}}
  - name: NAMESPACE
    valueFrom: {fieldRef: {fieldPath: metadata.namespace}}
  - name: POD_NAME
    valueFrom: {fieldRef: {fieldPath: metadata.name}}
  {{- if .podUid }}
  - name: POD_UID
    valueFrom: {fieldRef: {fieldPath: metadata.uid}}
  {{- end }}
  {{- $resources := .values.resources | default $root.Values.sidecarResources }}
  {{- with include "omnibus-csi.goMemoryLimit" $resources }}
  - name: GOMEMLIMIT
    value: {{ . }}
  {{- end }}
  securityContext:
    allowPrivilegeEscalation: false
    readOnlyRootFilesystem: true
    capabilities: {drop: [ALL]}
  {{- with $resources }}
  resources:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .more }}
  {{- . | nindent 2 }}
  {{- end }}
  volumeMounts:
  - name: {{ .volume | default "socket-dir" }}
    mountPath: /csi-data
  {{- with .mounts }}
  {{- . | nindent 2 }}
  {{- end }}
{{- end }}

{{- define "omnibus-csi.sidecarArgs" -}}
- --v={{ .values.verbosityLevel }}
- --csi-address={{ .socket | default "/csi-data/csi.sock" }}
{{- if .onNodes }}
- --leader-election=false
{{- else }}
- --leader-election
- --leader-election-namespace={{ .root.Release.Namespace }}
{{- end }}
- --timeout=90s
# The default of five requests a second is what many claims at once wait for.
- --kube-api-qps=20
- --kube-api-burst=40
{{- end }}

{{/* The sidecar of csi-addons: (root, controller or node). With a controller on each node one sidecar serves both halves. */}}
{{- define "omnibus-csi.addonsSidecar" -}}
{{- $root := index . 0 }}
{{- $half := index . 1 }}
{{- with $root.Values.csiAddons }}{{ if .enabled }}
{{- $port := ternary .controllerPort .nodePort (eq $half "controller") }}
{{- $args := printf "- --csi-addons-address=/csi-data/csi-addons.sock\n- --node-id=$(NODE_NAME)\n- --pod=$(POD_NAME)\n- --namespace=$(NAMESPACE)\n- --pod-uid=$(POD_UID)\n- --controller-port=%v\n- --stagingpath=%s/plugins/kubernetes.io/csi/\n- --leader-election-namespace=$(NAMESPACE)" $port $root.Values.node.kubeletHostPath }}
{{ include "omnibus-csi.sidecar" (dict "root" $root "name" "csi-addons" "values" . "args" $args "podUid" true) }}
{{- end }}{{ end }}
{{- end }}

{{/* All sidecars of the controller: (root). */}}
{{- define "omnibus-csi.controllerSidecars" -}}
{{- $root := . }}
{{- $onNodes := include "omnibus-csi.controllerOnNodes" . }}
{{- $c := .Values.controller }}
{{- with $c.externalProvisioner }}{{ if .enabled }}
{{- $args := include "omnibus-csi.sidecarArgs" (dict "root" $root "values" . "onNodes" $onNodes) }}
{{- $args = printf "%s\n- --worker-threads=10\n- --extra-create-metadata" $args }}
{{- if $onNodes }}
{{- $args = printf "%s\n- --node-deployment=true\n- --strict-topology=true" $args }}
{{- end }}
{{- if eq (include "omnibus-csi.storageCapacity" $root) "true" }}
{{- /* The owner is the DaemonSet of the pod, or the Deployment above its ReplicaSet. */}}
{{- $args = printf "%s\n- --enable-capacity=true\n- --capacity-ownerref-level=%d" $args (ternary 1 2 (eq $onNodes "true")) }}
{{- /* The default writes one object a second, and claims wait for that. */}}
{{- $args = printf "%s\n- --kube-api-capacity-qps=20\n- --kube-api-capacity-burst=40" $args }}
{{- end }}
{{ include "omnibus-csi.sidecar" (dict "root" $root "name" "external-provisioner" "values" . "args" $args) }}
{{- end }}{{ end }}
{{- with $c.externalAttacher }}{{ if include "omnibus-csi.withAttacher" $root }}
{{- $args := include "omnibus-csi.sidecarArgs" (dict "root" $root "values" . "onNodes" $onNodes) }}
{{ include "omnibus-csi.sidecar" (dict "root" $root "name" "external-attacher" "values" . "args" (printf "%s\n- --worker-threads=10" $args)) }}
{{- end }}{{ end }}
{{- with $c.externalResizer }}{{ if include "omnibus-csi.withResizer" $root }}
{{- /* One for the cluster, also with a controller on each node: it hands the new size to the kubelet of the
       node that has the volume. Several at once would contradict each other. */}}
{{- $args := include "omnibus-csi.sidecarArgs" (dict "root" $root "values" . "onNodes" "") }}
{{ include "omnibus-csi.sidecar" (dict "root" $root "name" "external-resizer" "values" . "args" (printf "%s\n- --workers=10" $args)) }}
{{- end }}{{ end }}
{{- with $c.externalSnapshotter }}{{ if .enabled }}
{{- $args := include "omnibus-csi.sidecarArgs" (dict "root" $root "values" . "onNodes" $onNodes) }}
{{- $args = printf "%s\n- --worker-threads=10" $args }}
{{- if $onNodes }}{{ $args = printf "%s\n- --node-deployment=true" $args }}{{ end }}
{{ include "omnibus-csi.sidecar" (dict "root" $root "name" "external-snapshotter" "values" . "args" $args) }}
{{- end }}{{ end }}
{{- with $c.externalHealthMonitorController }}{{ if .enabled }}
{{- $args := include "omnibus-csi.sidecarArgs" (dict "root" $root "values" . "onNodes" $onNodes) }}
{{ include "omnibus-csi.sidecar" (dict "root" $root "name" "external-health-monitor-controller" "values" . "args" (printf "%s\n- --worker-threads=10" $args)) }}
{{- end }}{{ end }}
{{- with $c.externalSnapshotMetadata }}{{ if .enabled }}
{{ include "omnibus-csi.sidecar" (dict "root" $root "name" "external-snapshot-metadata" "values" . "args" (include "omnibus-csi.snapshotMetadataArgs" .) "mounts" "- name: snapshot-metadata-tls\n  mountPath: /tls\n  readOnly: true" "more" (include "omnibus-csi.snapshotMetadataProbe" .)) }}
{{- end }}{{ end }}
{{- end }}

{{/*
The sidecars of legacy names: (root). What their volumes and snapshots need, and no more. Claims of the old names get volumes
only while there are classes of those names.
*/}}
{{- define "omnibus-csi.legacySidecars" -}}
{{- $root := . }}
{{- $onNodes := include "omnibus-csi.controllerOnNodes" . }}
{{- $c := .Values.controller }}
{{- range $name, $own := include "omnibus-csi.legacy" . | fromYaml }}
{{- $volume := ternary (printf "legacy-%s" $own.id) "socket-dir" (eq $onNodes "true") }}
{{- $all := list }}
{{- if $own.provisioner }}
{{- $all = append $all (dict "name" "external-provisioner" "values" $c.externalProvisioner "more" "- --worker-threads=10\n- --extra-create-metadata" "onNodes" $onNodes) }}
{{- end }}
{{- if $own.attach }}
{{- /* As of the resizer, one for the cluster: it is about all nodes, and several would answer for each other. */}}
{{- $all = append $all (dict "name" "external-attacher" "values" $c.externalAttacher "more" "- --worker-threads=10" "onNodes" "") }}
{{- end }}
{{- if $own.resizer }}
{{- $all = append $all (dict "name" "external-resizer" "values" $c.externalResizer "more" "- --workers=10" "onNodes" "") }}
{{- end }}
{{- if $own.snapshots }}
{{- $all = append $all (dict "name" "external-snapshotter" "values" $c.externalSnapshotter "more" "- --worker-threads=10" "onNodes" $onNodes) }}
{{- end }}
{{- range $all }}
{{- $args := include "omnibus-csi.sidecarArgs" (dict "root" $root "values" .values "onNodes" .onNodes "socket" $own.socket) }}
{{- $args = printf "%s\n%s" $args .more }}
{{- if .onNodes }}
{{- $args = printf "%s\n- --node-deployment=true" $args }}
{{- if eq .name "external-provisioner" }}{{ $args = printf "%s\n- --strict-topology=true" $args }}{{ end }}
{{- end }}
{{ include "omnibus-csi.sidecar" (dict "root" $root "name" (printf "%s-%s" .name $own.id) "values" .values "args" $args "socket" $own.socket "volume" $volume) }}
{{- end }}
{{- end }}
{{- end }}

{{/* Volumes of the pod that runs the controller, whichever it is. */}}
{{- define "omnibus-csi.controllerVolumes" -}}
{{- if include "omnibus-csi.hasConnections" . }}
- name: connections
  secret:
    secretName: {{ include "omnibus-csi.connectionsSecret" . }}
{{- end }}
{{- if .Values.controller.externalSnapshotMetadata.enabled }}
- name: snapshot-metadata-tls
  secret:
    secretName: {{ include "omnibus-csi.snapshotMetadataSecret" . }}
{{- end }}
{{- end }}

{{- define "omnibus-csi.commonVolumes" -}}
- name: config
  secret:
    secretName: {{ .Values.driver.existingConfigSecret | default (printf "%s-driver-config" (include "omnibus-csi.fullname" .)) }}
{{- if .Values.extraCaCerts }}
- name: extra-ca-certs
  configMap:
    name: {{ include "omnibus-csi.fullname" . }}-ca
{{- end }}
{{- end }}

{{- define "omnibus-csi.commonMounts" -}}
- name: config
  mountPath: /config
  readOnly: true
{{- if .Values.extraCaCerts }}
- name: extra-ca-certs
  mountPath: /tmp/certs
  readOnly: true
{{- end }}
{{- end }}

{{- define "omnibus-csi.caEnv" -}}
{{- if .Values.extraCaCerts }}
- name: NODE_EXTRA_CA_CERTS
  value: /tmp/certs/extra-ca-certs.crt
{{- end }}
{{- end }}

{{- define "omnibus-csi.configChecksums" -}}
{{- if not .Values.driver.existingConfigSecret }}
checksum/config: {{ include "omnibus-csi.config" . | sha256sum }}
{{- end }}
{{- if .Values.extraCaCerts }}
checksum/ca: {{ .Values.extraCaCerts | sha256sum }}
{{- end }}
{{- end }}
