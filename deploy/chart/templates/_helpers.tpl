{{- define "omnibus-csi.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
{{- end }}

{{/* As democratic-csi's chart makes it. */}}
{{- define "omnibus-csi.longname" -}}
{{- $name := include "omnibus-csi.name" . }}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 63 | trimSuffix "-" }}
{{- else if contains $name .Release.Name }}
{{- .Release.Name | trunc 63 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name $name | trunc 63 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{/* With space for what is put behind it. */}}
{{- define "omnibus-csi.fullname" -}}
{{- include "omnibus-csi.longname" . | trunc 52 | trimSuffix "-" }}
{{- end }}

{{- define "omnibus-csi.selector" -}}
app.kubernetes.io/name: {{ include "omnibus-csi.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "omnibus-csi.labels" -}}
{{ include "omnibus-csi.selector" . }}
app.kubernetes.io/part-of: omnibus-csi
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{- with .Values.commonLabels }}
{{ include "omnibus-csi.texts" . }}
{{- end }}
{{- end }}

{{/* Labels or annotations: only texts are allowed there, and the values may have numbers. */}}
{{- define "omnibus-csi.texts" -}}
{{- $texts := dict }}
{{- range $key, $value := . }}
{{- if kindIs "string" $value }}{{ $_ := set $texts $key $value }}
{{- else if not (kindIs "invalid" $value) }}{{ $_ := set $texts $key (toYaml $value) }}{{ end }}
{{- end }}
{{- toYaml $texts }}
{{- end }}

{{- define "omnibus-csi.image" -}}
{{- $root := index . 0 }}
{{- $own := index . 1 | default dict }}
{{- printf "%s:%s" ($own.registry | default $root.Values.image.registry) ($own.tag | default $root.Values.image.tag | default $root.Chart.AppVersion) }}
{{- end }}

{{- define "omnibus-csi.hasConnections" -}}
{{- if or .Values.connections .Values.existingConnectionsSecret }}true{{ end }}
{{- end }}

{{/*
Not `-connections`, as once: that one was written as stringData, and helm never removes a key that such a Secret had.
*/}}
{{- define "omnibus-csi.connectionsSecret" -}}
{{- .Values.existingConnectionsSecret | default (printf "%s-connection-files" (include "omnibus-csi.fullname" .)) }}
{{- end }}

{{/* Where the connections are mounted: what the main file says, or ours. */}}
{{- define "omnibus-csi.connectionsFolder" -}}
{{- $folder := (include "omnibus-csi.proxy" . | fromYaml).configFolder | default "/connections" }}
{{- if kindIs "slice" $folder }}{{ first $folder }}{{ else }}{{ $folder }}{{ end }}
{{- end }}

{{/* The proxy's part of the main file. Each level may be blank. */}}
{{- define "omnibus-csi.proxy" -}}
{{- toYaml ((.Values.driver.config | default dict).proxy | default dict) }}
{{- end }}

{{/*
The legacy names, each with its settings filled in: a map. `id` is short and goes into names of objects; `socket` is where
the sidecars of the controller find its socket.
*/}}
{{- define "omnibus-csi.legacy" -}}
{{- $root := . }}
{{- $names := dict }}
{{- range $name, $own := .Values.legacyNames }}
{{- $id := sha256sum $name | trunc 8 }}
{{- $attach := eq (include "omnibus-csi.strategy" $root) "deployment" }}
{{- if kindIs "bool" $own.attachRequired }}{{ $attach = $own.attachRequired }}{{ end }}
{{- $podInfo := true }}
{{- if kindIs "bool" $own.podInfoOnMount }}{{ $podInfo = $own.podInfoOnMount }}{{ end }}
{{- $socket := ternary "/csi-data/csi.sock" (printf "/csi-data/%s/csi.sock" $name) (eq (include "omnibus-csi.strategy" $root) "node") }}
{{- $kind := include "omnibus-csi.legacyKind" (list $root $own) }}
{{- /* Those sidecars end at once where a driver has nothing for them. */}}
{{- $resizer := not (has $kind (list "node-manual" "objectivefs")) }}
{{- if kindIs "bool" $own.resizer }}{{ $resizer = $own.resizer }}{{ end }}
{{- $filled := dict "id" $id "attach" $attach "podInfo" $podInfo "snapshots" ($own.snapshots | default false) "socket" $socket }}
{{- $_ := merge $filled (dict "provisioner" (ne $kind "node-manual") "resizer" $resizer) }}
{{- $_ := set $names $name (merge $filled $own) }}
{{- end }}
{{- toYaml $names }}
{{- end }}

{{/* The kind of the connection of a legacy name, if the values have it: (root, its settings). */}}
{{- define "omnibus-csi.legacyKind" -}}
{{- $root := index . 0 }}
{{- $name := (index . 1).connection }}
{{- $name = get ((include "omnibus-csi.proxy" $root | fromYaml).aliases | default dict) $name | default $name }}
{{- (get ($root.Values.connections | default dict) $name | default dict).driver | default "" }}
{{- end }}

{{/* Whether a legacy name has a sidecar: (root, key of its settings). "true" or nothing. */}}
{{- define "omnibus-csi.legacyNeeds" -}}
{{- $key := index . 1 }}
{{- $needs := false }}
{{- range include "omnibus-csi.legacy" (index . 0) | fromYaml }}{{ if get . $key }}{{ $needs = true }}{{ end }}{{ end }}
{{- if $needs }}true{{ end }}
{{- end }}

{{/* The main file, with what connections need filled in. */}}
{{- define "omnibus-csi.config" -}}
{{- $config := deepCopy (.Values.driver.config | default dict) }}
{{- if include "omnibus-csi.hasConnections" . }}
{{- $proxy := merge (dict) ($config.proxy | default dict) }}
{{- if not $proxy.configFolder }}{{ $_ := set $proxy "configFolder" (include "omnibus-csi.connectionsFolder" .) }}{{ end }}
{{- if include "omnibus-csi.withInline" . }}{{ $_ := set $proxy "inlineVolumes" true }}{{ end }}
{{- /* Without it every connection with storage of the nodes is refused. */}}
{{- if and (eq (include "omnibus-csi.strategy" .) "node") (not $proxy.nodeTopology) }}
{{- $_ := set $proxy "nodeTopology" (dict "type" (list "cluster" "node")) }}
{{- end }}
{{- if .Values.legacyNames }}
{{- $legacy := dict }}
{{- range $name, $own := .Values.legacyNames }}{{ $_ := set $legacy $name $own.connection }}{{ end }}
{{- $_ := set $proxy "legacyNames" $legacy }}
{{- end }}
{{- $_ := set $config "driver" "proxy" }}
{{- $_ := set $config "proxy" $proxy }}
{{- end }}
{{- toYaml $config }}
{{- end }}

{{/* Each configuration: those of the connections, and the main one. A list. */}}
{{- define "omnibus-csi.configs" -}}
{{- toYaml (append (values (.Values.connections | default dict)) (.Values.driver.config | default dict)) }}
{{- end }}

{{/* The kind of each driver. */}}
{{- define "omnibus-csi.kinds" -}}
{{- $kinds := list }}
{{- range .Values.connections }}{{ $kinds = append $kinds (.driver | default "") }}{{ end }}
{{- if not $kinds }}{{ $kinds = list ((.Values.driver.config | default dict).driver | default "proxy") }}{{ end }}
{{- join " " $kinds }}
{{- end }}

{{/* Whether a driver may tell the health of its volumes: "true" or nothing. A kind that is not known here may. */}}
{{- define "omnibus-csi.mayTellHealth" -}}
{{- $may := false }}
{{- range splitList " " (include "omnibus-csi.kinds" .) }}
{{- if not (or (hasSuffix "-ephemeral-inline" .) (has . (list "node-manual" "objectivefs"))) }}{{ $may = true }}{{ end }}
{{- end }}
{{- if $may }}true{{ end }}
{{- end }}

{{/* Where storage is, each once: `local` on the nodes, `inline` for the pods of a node, `network` for the rest. */}}
{{- define "omnibus-csi.places" -}}
{{- $places := list }}
{{- range splitList " " (include "omnibus-csi.kinds" .) }}
{{- if hasSuffix "-ephemeral-inline" . }}{{ $places = append $places "inline" }}
{{- else if has . (list "local-hostpath" "zfs-local-dataset" "zfs-local-zvol") }}{{ $places = append $places "local" }}
{{- else }}{{ $places = append $places "network" }}{{ end }}
{{- end }}
{{- $places | uniq | sortAlpha | join " " }}
{{- end }}

{{/* Whether classes of attributes change volumes of the nodes: a connection lists a parameter that is not for new volumes alone. */}}
{{- define "omnibus-csi.changesLocal" -}}
{{- $may := false }}
{{- range $config := include "omnibus-csi.configs" . | fromYamlArray }}
{{- if has ($config.driver | default "") (list "zfs-local-dataset" "zfs-local-zvol") }}
{{- $all := ($config.zfs | default dict).volumeParameters | default list }}
{{- if and (kindIs "slice" $all) (without $all "datasetChild" "quotaMode" "volblocksize") }}{{ $may = true }}{{ end }}
{{- end }}
{{- end }}
{{- if $may }}true{{ end }}
{{- end }}

{{/* Whether pods describe volumes themselves: "true" or nothing. */}}
{{- define "omnibus-csi.withInline" -}}
{{- if or (include "omnibus-csi.proxy" . | fromYaml).inlineVolumes (contains "inline" (include "omnibus-csi.places" .)) }}true{{ end }}
{{- end }}

{{/* Whether there are no other volumes, and no controller for them: "true" or nothing. */}}
{{- define "omnibus-csi.onlyInline" -}}
{{- if eq (include "omnibus-csi.places" .) "inline" }}true{{ end }}
{{- end }}

{{/* What the CSIDriver lists. Nothing: the default of Kubernetes, Persistent. */}}
{{- define "omnibus-csi.lifecycleModes" -}}
{{- if .Values.csiDriver.volumeLifecycleModes }}
{{- toYaml .Values.csiDriver.volumeLifecycleModes }}
{{- else if include "omnibus-csi.withInline" . }}
{{- if not (include "omnibus-csi.onlyInline" .) }}- Persistent
{{ end }}- Ephemeral
{{- end }}
{{- end }}

{{/* deployment or node; nothing where there is no controller half */}}
{{- define "omnibus-csi.strategy" -}}
{{- if .Values.controller.strategy }}
{{- .Values.controller.strategy }}
{{- else if not (include "omnibus-csi.onlyInline" .) }}
{{- ternary "deployment" "node" (contains "network" (include "omnibus-csi.places" .)) }}
{{- end }}
{{- end }}

{{/* The controller beside the node half: "true" or nothing. */}}
{{- define "omnibus-csi.controllerOnNodes" -}}
{{- if and .Values.controller.enabled (eq (include "omnibus-csi.strategy" .) "node") }}true{{ end }}
{{- end }}

{{/* node-manual has no controller half, but its trivial mode lets the attacher keep count. */}}
{{- define "omnibus-csi.controllerDeployed" -}}
{{- if and .Values.controller.enabled (eq (include "omnibus-csi.strategy" .) "deployment") }}true{{ end }}
{{- end }}

{{- define "omnibus-csi.attachRequired" -}}
{{- if kindIs "bool" .Values.csiDriver.attachRequired }}{{ .Values.csiDriver.attachRequired }}
{{- else }}{{ eq (include "omnibus-csi.strategy" .) "deployment" }}{{ end }}
{{- end }}

{{- define "omnibus-csi.storageCapacity" -}}
{{- if kindIs "bool" .Values.csiDriver.storageCapacity }}{{ .Values.csiDriver.storageCapacity }}
{{- else }}{{ eq (include "omnibus-csi.strategy" .) "node" }}{{ end }}
{{- end }}

{{/* Whether a sidecar is there: (root, its values, default). "true" or nothing. */}}
{{- define "omnibus-csi.sidecarEnabled" -}}
{{- $own := index . 1 }}
{{- if kindIs "bool" $own.enabled }}{{ if $own.enabled }}true{{ end }}
{{- else if eq (index . 2) "true" }}true{{ end }}
{{- end }}

{{- define "omnibus-csi.withAttacher" -}}
{{- include "omnibus-csi.sidecarEnabled" (list . .Values.controller.externalAttacher (include "omnibus-csi.attachRequired" .)) }}
{{- end }}

{{- define "omnibus-csi.withResizer" -}}
{{- include "omnibus-csi.sidecarEnabled" (list . .Values.controller.externalResizer "true") }}
{{- end }}

{{/*
The ServiceAccount of a half: (root, controller or node). Where neither the chart makes one nor the values name it, that of
the namespace; in words, since a Deployment that once named another keeps it if the field goes.
*/}}
{{- define "omnibus-csi.serviceAccount" -}}
{{- $root := index . 0 }}
{{- $half := index . 1 }}
{{- $own := index $root.Values $half }}
{{- if $own.serviceAccount.name }}{{ $own.serviceAccount.name }}
{{- else if and $own.serviceAccount.create $own.rbac.enabled }}{{ printf "%s-%s-sa" (include "omnibus-csi.fullname" $root) $half }}
{{- else }}default{{ end }}
{{- end }}

{{- define "omnibus-csi.probe" -}}
livenessProbe:
  exec:
    command:
    - omnibus-csi
    - liveness-probe
    - --csi-address=/csi-data/csi.sock
  initialDelaySeconds: {{ .initialDelaySeconds }}
  timeoutSeconds: {{ .timeoutSeconds }}
  periodSeconds: {{ .periodSeconds }}
  failureThreshold: {{ .failureThreshold }}
{{- end }}

{{/* Secrets of a class: their name, as democratic-csi's chart makes it. Volumes hold it for ever. */}}
{{- define "omnibus-csi.classSecret" -}}
{{- $root := index . 0 }}
{{- printf "%s-%s-%s" (index . 2) (index . 1) (include "omnibus-csi.longname" $root) | trunc 63 | trimSuffix "-" }}
{{- end }}
