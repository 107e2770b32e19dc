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
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- define "omnibus-csi.image" -}}
{{- $root := index . 0 }}
{{- $own := index . 1 | default dict }}
{{- printf "%s:%s" ($own.registry | default $root.Values.image.registry) ($own.tag | default $root.Values.image.tag | default $root.Chart.AppVersion) }}
{{- end }}

{{- define "omnibus-csi.hasConnections" -}}
{{- if or .Values.connections .Values.existingConnectionsSecret }}true{{ end }}
{{- end }}

{{- define "omnibus-csi.connectionsSecret" -}}
{{- .Values.existingConnectionsSecret | default (printf "%s-connections" (include "omnibus-csi.fullname" .)) }}
{{- end }}

{{/* Where the connections are mounted: what the main file says, or ours. */}}
{{- define "omnibus-csi.connectionsFolder" -}}
{{- $folder := dig "proxy" "configFolder" "" .Values.driver.config | default "/connections" }}
{{- if kindIs "slice" $folder }}{{ first $folder }}{{ else }}{{ $folder }}{{ end }}
{{- end }}

{{/* The main file, with what connections need filled in. */}}
{{- define "omnibus-csi.config" -}}
{{- $config := deepCopy .Values.driver.config }}
{{- if include "omnibus-csi.hasConnections" . }}
{{- $proxy := merge (dict) ($config.proxy | default dict) }}
{{- if not $proxy.configFolder }}{{ $_ := set $proxy "configFolder" (include "omnibus-csi.connectionsFolder" .) }}{{ end }}
{{- if include "omnibus-csi.withInline" . }}{{ $_ := set $proxy "inlineVolumes" true }}{{ end }}
{{- $_ := set $config "driver" "proxy" }}
{{- $_ := set $config "proxy" $proxy }}
{{- end }}
{{- toYaml $config }}
{{- end }}

{{/* The kind of each driver. */}}
{{- define "omnibus-csi.kinds" -}}
{{- $kinds := list }}
{{- range .Values.connections }}{{ $kinds = append $kinds (.driver | default "") }}{{ end }}
{{- if not $kinds }}{{ $kinds = list (.Values.driver.config.driver | default "proxy") }}{{ end }}
{{- join " " $kinds }}
{{- end }}

{{/* Whether pods describe volumes themselves: "true" or nothing. */}}
{{- define "omnibus-csi.withInline" -}}
{{- $with := dig "proxy" "inlineVolumes" false .Values.driver.config }}
{{- range splitList " " (include "omnibus-csi.kinds" .) }}{{ if hasSuffix "-ephemeral-inline" . }}{{ $with = true }}{{ end }}{{ end }}
{{- if $with }}true{{ end }}
{{- end }}

{{/* Whether there are no other volumes, and no controller for them: "true" or nothing. */}}
{{- define "omnibus-csi.onlyInline" -}}
{{- $only := true }}
{{- range splitList " " (include "omnibus-csi.kinds" .) }}{{ if not (hasSuffix "-ephemeral-inline" .) }}{{ $only = false }}{{ end }}{{ end }}
{{- if $only }}true{{ end }}
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
{{- $local := list "local-hostpath" "zfs-local-dataset" "zfs-local-zvol" }}
{{- $strategy := "node" }}
{{- range splitList " " (include "omnibus-csi.kinds" .) }}
{{- if not (or (has . $local) (hasSuffix "-ephemeral-inline" .)) }}{{ $strategy = "deployment" }}{{ end }}
{{- end }}
{{- $strategy }}
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

{{- define "omnibus-csi.serviceAccount" -}}
{{- $root := index . 0 }}
{{- printf "%s-%s-sa" (include "omnibus-csi.fullname" $root) (index . 1) }}
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

{{/* What no template can do without. */}}
{{- define "omnibus-csi.validate" -}}
{{- if not .Values.csiDriver.name }}
{{- fail "csiDriver.name is required: one name in the cluster that never changes, such as org.example.csi" }}
{{- end }}
{{- $kind := .Values.driver.config.driver }}
{{- if include "omnibus-csi.hasConnections" . }}
{{- if and $kind (ne $kind "proxy") }}
{{- fail (printf "driver.config.driver is %s, but there are connections: make it one of them, or set driver: proxy" $kind) }}
{{- end }}
{{- if .Values.driver.existingConfigSecret }}
{{- if not (dig "proxy" "configFolder" "" .Values.driver.config) }}
{{- fail "with driver.existingConfigSecret and connections, repeat driver.config.proxy.configFolder: the chart mounts the connections there" }}
{{- end }}
{{- end }}
{{- else if not $kind }}
{{- fail "no storage is configured: set connections, or driver.config.driver" }}
{{- end }}
{{- range list .Values.controller.driver.image .Values.node.driver.image }}
{{- if contains "democratic-csi/democratic-csi" (.registry | default "") }}
{{- fail "controller.driver.image or node.driver.image names the image of democratic-csi: leave it out" }}
{{- end }}
{{- end }}
{{- if and .Values.connections .Values.existingConnectionsSecret }}
{{- fail "connections and existingConnectionsSecret exclude each other" }}
{{- end }}
{{- if and (eq (include "omnibus-csi.strategy" .) "node") (not .Values.node.enabled) .Values.controller.enabled }}
{{- fail "controller.strategy node runs the controller in the node pods, but node.enabled is false" }}
{{- end }}
{{- end }}
