{{/* What the Service of external-snapshot-metadata is called: at most 63 characters. */}}
{{- define "omnibus-csi.snapshotMetadata" -}}
{{- printf "%s-snapshot-metadata" (include "omnibus-csi.fullname" . | trunc 45 | trimSuffix "-") }}
{{- end }}

{{/* The Secret with its certificate: that of the values, or the one that the chart makes. */}}
{{- define "omnibus-csi.snapshotMetadataSecret" -}}
{{- .Values.controller.externalSnapshotMetadata.tlsSecret | default (printf "%s-tls" (include "omnibus-csi.snapshotMetadata" .)) }}
{{- end }}

{{/* The arguments of external-snapshot-metadata: its values. The audience is not one of them: 1.1.0 reads that of the object only. */}}
{{- define "omnibus-csi.snapshotMetadataArgs" -}}
- --v={{ .verbosityLevel }}
- --csi-address=/csi-data/csi.sock
- --port={{ .port }}
- --http-endpoint=:{{ .healthPort }}
- --max-streaming-duration-min={{ .maxStreamingDurationMinutes }}
- --tls-cert=/tls/tls.crt
- --tls-key=/tls/tls.key
- --kube-api-qps=20
- --kube-api-burst=40
{{- end }}

{{/* What else its container has, below a dict with its values. */}}
{{- define "omnibus-csi.snapshotMetadataProbe" -}}
# Clients are sent to it when it has found the driver.
readinessProbe:
  httpGet: {path: /health, port: {{ .healthPort }}}
{{- end }}

{{/* Drivers that tell changed blocks: zvols, by ZFS itself. */}}
{{- define "omnibus-csi.changedBlocksKinds" -}}
zfs-generic-iscsi zfs-generic-nvmeof zfs-local-zvol freenas-iscsi freenas-nvmeof truenas-iscsi truenas-nvmeof
{{- end }}

{{/* What cannot work with external-snapshot-metadata. */}}
{{- define "omnibus-csi.validateSnapshotMetadata" -}}
{{- $c := .Values.controller }}
{{- $own := $c.externalSnapshotMetadata }}
{{- if $own.enabled }}
{{- if not (or (include "omnibus-csi.controllerDeployed" .) (include "omnibus-csi.controllerOnNodes" .)) }}
{{- fail "controller.externalSnapshotMetadata.enabled needs a controller: without one there are no snapshots" }}
{{- end }}
{{- if not (or $c.externalSnapshotter.enabled $c.extraContainers) }}
{{- fail "controller.externalSnapshotMetadata.enabled needs controller.externalSnapshotter.enabled: it tells about VolumeSnapshots, and nothing would make them" }}
{{- end }}
{{- if semverCompare "<1.10.0" (toString .Values.csiDriver.version) }}
{{- fail (printf "controller.externalSnapshotMetadata.enabled needs csiDriver.version 1.10.0 or newer, not %s: before, CSI has no SNAPSHOT_METADATA_SERVICE, without which that sidecar ends at once" (toString .Values.csiDriver.version)) }}
{{- end }}
{{- include "omnibus-csi.validateChangedBlocks" . }}
{{- if and $own.caCert (not $own.tlsSecret) }}
{{- fail "controller.externalSnapshotMetadata.caCert is that of tlsSecret: set both, or neither, and the chart makes a certificate" }}
{{- end }}
{{- range $argument := concat ($own.args | default list) ($own.extraArgs | default list) }}
{{- range $flag, $key := dict "port" "port" "http-endpoint" "healthPort" "audience" "audience" }}
{{- if regexMatch (printf "^--?%s(=|$)" $flag) $argument }}
{{- fail (printf "controller.externalSnapshotMetadata: leave %s out, and set %s: the objects beside the sidecar have it, too" $argument $key) }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{/* Whether any connection that the values have tells changed blocks. A Secret of yours, or a further folder, may have one. */}}
{{- define "omnibus-csi.validateChangedBlocks" -}}
{{- $folders := (include "omnibus-csi.proxy" . | fromYaml).configFolder }}
{{- $unseen := and (kindIs "slice" $folders) (gt (len ($folders | default list)) 1) }}
{{- $kinds := splitList " " (include "omnibus-csi.kinds" .) }}
{{- if not (or $unseen (has "proxy" $kinds)) }}
{{- $able := splitList " " (include "omnibus-csi.changedBlocksKinds" .) }}
{{- $some := false }}
{{- range $kinds }}{{ if has . $able }}{{ $some = true }}{{ end }}{{ end }}
{{- if not $some }}
{{- fail (printf "controller.externalSnapshotMetadata.enabled needs a driver that tells changed blocks, without which that sidecar ends at once: %s. Here is %s" ($able | join ", ") ($kinds | uniq | sortAlpha | join ", ")) }}
{{- end }}
{{- end }}
{{- end }}
