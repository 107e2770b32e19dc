{{/*
Requests and limits of the container of the program: (root, those of the values). restic and kopia run in the
container, and their memory grows with the index of the repository.
*/}}
{{- define "omnibus-csi.driverResources" -}}
{{- if index . 1 }}
{{- toYaml (index . 1) }}
{{- else }}
{{- $root := index . 0 }}
{{- /* What a Secret of the user configures is not seen here. */}}
{{- $unseen := or $root.Values.existingConnectionsSecret $root.Values.driver.existingConfigSecret }}
{{- $limit := ternary "1Gi" "256Mi" (not (empty $unseen)) }}
{{- range $config := include "omnibus-csi.configs" $root | fromYamlArray }}
{{- range list "local-hostpath" "nfs" "smb" "lustre" }}
{{- $snapshots := (index $config . | default dict).snapshots | default dict }}
{{- if or $snapshots.restic $snapshots.kopia (has $snapshots.default_driver (list "restic" "kopia")) }}{{ $limit = "1Gi" }}{{ end }}
{{- end }}
{{- end }}
{{- toYaml (dict "requests" (dict "cpu" "10m" "memory" "32Mi") "limits" (dict "memory" $limit)) }}
{{- end }}
{{- end }}

{{/*
GOMEMLIMIT for a program in Go: nine tenths of its container's limit, so that its collector works harder before the
kernel ends it. Nothing for a limit in other units.
*/}}
{{- define "omnibus-csi.goMemoryLimit" -}}
{{- $limit := ((. | default dict).limits | default dict).memory | toString }}
{{- if regexMatch "^[0-9]+Mi$" $limit }}
{{- printf "%dMiB" (div (mul (trimSuffix "Mi" $limit | int) 9) 10) }}
{{- else if regexMatch "^[0-9]+Gi$" $limit }}
{{- printf "%dMiB" (div (mul (trimSuffix "Gi" $limit | int) 9216) 10) }}
{{- end }}
{{- end }}
