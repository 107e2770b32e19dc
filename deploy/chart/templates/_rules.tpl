{{/* What the sidecar of csi-addons needs in the whole cluster: (root). */}}
{{- define "omnibus-csi.addonsClusterRules" -}}
# csi-addons
- apiGroups: [""]
  resources: [persistentvolumes]
  verbs: [get]
- apiGroups: [authentication.k8s.io]
  resources: [tokenreviews]
  verbs: [create, get]
{{- end }}

{{/* And in the namespace of the release: (root). */}}
{{- define "omnibus-csi.addonsRules" -}}
# csi-addons
- apiGroups: [csiaddons.openshift.io]
  resources: [csiaddonsnodes]
  verbs: [get, list, watch, create, update, delete]
- apiGroups: [""]
  resources: [pods]
  verbs: [get]
- apiGroups: [apps]
  resources: [replicasets]
  verbs: [get]
{{- end }}

{{/* What the sidecars that are there need, and nothing else. In the whole cluster: (root). */}}
{{- define "omnibus-csi.clusterRules" -}}
{{- $c := .Values.controller }}
{{- if or $c.externalProvisioner.enabled (include "omnibus-csi.legacyNeeds" (list . "provisioner")) }}
# external-provisioner
- apiGroups: [""]
  resources: [persistentvolumes]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [""]
  resources: [persistentvolumeclaims]
  verbs: [get, list, watch, update]
- apiGroups: [""]
  resources: [nodes]
  verbs: [get, list, watch]
- apiGroups: [storage.k8s.io]
  resources: [storageclasses, csinodes, volumeattachments, volumeattributesclasses]
  verbs: [get, list, watch]
- apiGroups: [snapshot.storage.k8s.io]
  resources: [volumesnapshots]
  verbs: [get, list, watch, update]
- apiGroups: [snapshot.storage.k8s.io]
  resources: [volumesnapshotcontents]
  verbs: [get, list]
{{- end }}
{{- if or (include "omnibus-csi.withAttacher" .) (include "omnibus-csi.legacyNeeds" (list . "attach")) }}
# external-attacher
- apiGroups: [""]
  resources: [persistentvolumes]
  verbs: [get, list, watch, patch]
- apiGroups: [storage.k8s.io]
  resources: [csinodes]
  verbs: [get, list, watch]
- apiGroups: [storage.k8s.io]
  resources: [volumeattachments]
  verbs: [get, list, watch, patch]
- apiGroups: [storage.k8s.io]
  resources: [volumeattachments/status]
  verbs: [patch]
{{- end }}
{{- if or (include "omnibus-csi.withResizer" .) (include "omnibus-csi.legacyNeeds" (list . "resizer")) }}
# external-resizer
- apiGroups: [""]
  resources: [persistentvolumes]
  verbs: [get, list, watch, patch]
- apiGroups: [""]
  resources: [persistentvolumeclaims, pods]
  verbs: [get, list, watch]
- apiGroups: [""]
  resources: [persistentvolumeclaims/status]
  verbs: [patch]
- apiGroups: [storage.k8s.io]
  resources: [volumeattributesclasses]
  verbs: [get, list, watch]
{{- end }}
{{- if or $c.externalSnapshotter.enabled (include "omnibus-csi.legacyNeeds" (list . "snapshots")) }}
# external-snapshotter
- apiGroups: [snapshot.storage.k8s.io]
  resources: [volumesnapshotclasses]
  verbs: [get, list, watch]
- apiGroups: [snapshot.storage.k8s.io]
  resources: [volumesnapshotcontents]
  verbs: [get, list, watch, update, patch]
- apiGroups: [snapshot.storage.k8s.io]
  resources: [volumesnapshotcontents/status]
  verbs: [update, patch]
- apiGroups: [groupsnapshot.storage.k8s.io]
  resources: [volumegroupsnapshotclasses]
  verbs: [get, list, watch]
- apiGroups: [groupsnapshot.storage.k8s.io]
  resources: [volumegroupsnapshotcontents]
  verbs: [get, list, watch, update, patch]
- apiGroups: [groupsnapshot.storage.k8s.io]
  resources: [volumegroupsnapshotcontents/status]
  verbs: [update, patch]
{{- end }}
{{- if $c.externalHealthMonitorController.enabled }}
# external-health-monitor-controller
- apiGroups: [""]
  resources: [persistentvolumes, persistentvolumeclaims, nodes, pods]
  verbs: [get, list, watch]
{{- end }}
{{- if $c.externalSnapshotMetadata.enabled }}
# external-snapshot-metadata
- apiGroups: [cbt.storage.k8s.io]
  resources: [snapshotmetadataservices]
  verbs: [get]
- apiGroups: [authentication.k8s.io]
  resources: [tokenreviews]
  verbs: [create]
- apiGroups: [authorization.k8s.io]
  resources: [subjectaccessreviews]
  verbs: [create]
- apiGroups: [snapshot.storage.k8s.io]
  resources: [volumesnapshots, volumesnapshotcontents]
  verbs: [get]
# whose secrets the driver gets
- apiGroups: [snapshot.storage.k8s.io]
  resources: [volumesnapshotclasses]
  verbs: [get, list]
{{- end }}
# events, of all of them
- apiGroups: [""]
  resources: [events]
  verbs: [list, watch, create, update, patch]
{{- if eq $c.rbac.secrets "cluster" }}
# secrets of classes
- apiGroups: [""]
  resources: [secrets]
  verbs: [get]
{{- end }}
{{- end }}

{{/*
Secrets of the release's namespace that sidecars read for the classes of the values: a list of names, `*` where a name is a
template. Those of the node half are read by the kubelet.
*/}}
{{- define "omnibus-csi.classSecrets" -}}
{{- $root := . }}
{{- $names := list }}
{{- range $class := concat (.Values.storageClasses | default list) (.Values.volumeSnapshotClasses | default list) }}
{{- range $kind, $_ := $class.secrets }}
{{- if not (hasPrefix "node-" $kind) }}{{ $names = append $names (include "omnibus-csi.classSecret" (list $root $class.name $kind)) }}{{ end }}
{{- end }}
{{- range $key, $value := $class.parameters }}
{{- if and $value (hasPrefix "csi.storage.k8s.io/" $key) (hasSuffix "-secret-name" $key) (not (hasPrefix "csi.storage.k8s.io/node-" $key)) }}
{{- $namespace := get $class.parameters (printf "%s-namespace" (trimSuffix "-name" $key)) | default "" | toString }}
{{- if or (contains "$" (toString $value)) (contains "$" $namespace) }}{{ $names = append $names "*" }}
{{- else if eq $namespace $root.Release.Namespace }}{{ $names = append $names (toString $value) }}{{ end }}
{{- end }}
{{- end }}
{{- end }}
{{- range $names | uniq | sortAlpha }}
- {{ quote . }}
{{- end }}
{{- end }}

{{/* In the namespace of the release: (root). */}}
{{- define "omnibus-csi.namespaceRules" -}}
{{- if or (not (include "omnibus-csi.controllerOnNodes" .)) (include "omnibus-csi.withResizer" .) .Values.legacyNames }}
# leader election
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  verbs: [get, list, watch, create, update, patch, delete]
{{- end }}
{{- $which := .Values.controller.rbac.secrets }}
{{- $secrets := include "omnibus-csi.classSecrets" . | fromYamlArray }}
{{- range $name, $own := .Values.legacyNames }}{{ range $secret, $_ := $own.secrets }}
{{- if not (hasPrefix "node-" $secret) }}{{ $secrets = append $secrets $secret }}{{ end }}
{{- end }}{{ end }}
{{- /*
Not only of the classes in the values: a PersistentVolume names its secrets also when its class is gone. But a controller on
each node gives each node this right, and hardly any storage of the nodes needs a secret.
*/}}
{{- if not $which }}{{ $which = ternary "namespace" "named" (or (not (empty $secrets)) (not (include "omnibus-csi.controllerOnNodes" .))) }}{{ end }}
{{- if or (eq $which "namespace") (and $secrets (eq $which "named")) }}
# secrets of classes
- apiGroups: [""]
  resources: [secrets]
  {{- if and (eq $which "named") (not (has "*" $secrets)) }}
  resourceNames:
  {{- range $secrets }}
  - {{ . }}
  {{- end }}
  {{- end }}
  verbs: [get]
{{- end }}
# who owns a CSIStorageCapacity: the pod, and what made it
- apiGroups: [""]
  resources: [pods]
  verbs: [get]
{{- if eq (include "omnibus-csi.storageCapacity" .) "true" }}
- apiGroups: [apps]
  resources: [replicasets, deployments, daemonsets]
  verbs: [get]
- apiGroups: [storage.k8s.io]
  resources: [csistoragecapacities]
  verbs: [get, list, watch, create, update, patch, delete]
{{- end }}
{{- end }}

{{/* Which SecurityContextConstraints a pod may use: (root, name or nothing). */}}
{{- define "omnibus-csi.sccRule" -}}
- apiGroups: [security.openshift.io]
  resources: [securitycontextconstraints]
  resourceNames: [{{ . }}]
  verbs: [use]
{{- end }}

{{/* A ServiceAccount and its bindings: a dict with root, half, controller, scc. */}}
{{- define "omnibus-csi.rbac" -}}
{{- $root := .root }}
{{- $name := printf "%s-%s" (include "omnibus-csi.fullname" $root) .half }}
{{- $account := include "omnibus-csi.serviceAccount" (list $root .half) }}
{{- $own := (index $root.Values .half).serviceAccount }}
{{- if $own.create }}
apiVersion: v1
kind: ServiceAccount
metadata:
  name: {{ $account }}
  namespace: {{ $root.Release.Namespace }}
  {{- with $own.annotations }}
  annotations:
    {{- include "omnibus-csi.texts" . | nindent 4 }}
  {{- end }}
  labels:
    {{- include "omnibus-csi.labels" $root | nindent 4 }}
{{- end }}
{{- $addons := $root.Values.csiAddons.enabled }}
{{- if or .controller .scc $addons }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata:
  # Of no namespace: two releases of one name must not share it.
  name: {{ $root.Release.Namespace }}-{{ $name }}
  labels:
    {{- include "omnibus-csi.labels" $root | nindent 4 }}
rules:
{{- if .controller }}
{{ include "omnibus-csi.clusterRules" $root | trim }}
{{- end }}
{{- if $addons }}
{{ include "omnibus-csi.addonsClusterRules" $root }}
{{- end }}
{{- if .scc }}
{{ include "omnibus-csi.sccRule" .scc }}
{{- end }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata:
  name: {{ $root.Release.Namespace }}-{{ $name }}
  labels:
    {{- include "omnibus-csi.labels" $root | nindent 4 }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: ClusterRole
  name: {{ $root.Release.Namespace }}-{{ $name }}
subjects:
- kind: ServiceAccount
  name: {{ $account }}
  namespace: {{ $root.Release.Namespace }}
{{- end }}
{{- if or .controller $addons }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata:
  name: {{ $name }}
  namespace: {{ $root.Release.Namespace }}
  labels:
    {{- include "omnibus-csi.labels" $root | nindent 4 }}
rules:
{{- if .controller }}
{{ include "omnibus-csi.namespaceRules" $root | trim }}
{{- end }}
{{- if $addons }}
{{ include "omnibus-csi.addonsRules" $root }}
{{- if .controller }}
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  verbs: [get, list, watch, create, update, patch, delete]
{{- end }}
{{- if and $root.Values.csiAddons.nodeSecrets (eq .half "node") }}
- apiGroups: [""]
  resources: [secrets]
  verbs: [get]
{{- end }}
{{- end }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata:
  name: {{ $name }}
  namespace: {{ $root.Release.Namespace }}
  labels:
    {{- include "omnibus-csi.labels" $root | nindent 4 }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: Role
  name: {{ $name }}
subjects:
- kind: ServiceAccount
  name: {{ $account }}
  namespace: {{ $root.Release.Namespace }}
{{- end }}
{{- end }}
