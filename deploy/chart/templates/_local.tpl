{{/*
Directories of the nodes: a list of the base directories of local-hostpath, each with the folder of the host and the
place in the container. Without them volumes would be in the container's own layer, and go with the pod.
Arguments: root, and the extraVolumeMounts of the container, which may have them already.
*/}}
{{- define "omnibus-csi.localBases" -}}
{{- $root := index . 0 }}
{{- $covered := list $root.Values.node.kubeletHostPath }}
{{- range index . 1 }}{{ $covered = append $covered .mountPath }}{{ end }}
{{- $bases := dict }}
{{- range $config := include "omnibus-csi.configs" $root | fromYamlArray }}
{{- if eq ($config.driver | default "") "local-hostpath" }}
{{- $own := index $config "local-hostpath" | default dict }}
{{- $host := $own.shareBasePath | default "" | trimSuffix "/" }}
{{- range list $host ($own.controllerBasePath | default "" | trimSuffix "/") }}
{{- if and . (not (contains "$" (print $host .))) (not (include "omnibus-csi.isCovered" (list . $covered))) }}
{{- if and (hasKey $bases .) (ne (get $bases .) $host) }}
{{- fail (printf "two connections use %s for different folders of the nodes" .) }}
{{- end }}
{{- $_ := set $bases . $host }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- range $mount, $host := $bases }}
- name: base-{{ sha256sum $host | trunc 8 }}
  host: {{ $host | quote }}
  mount: {{ $mount | quote }}
{{- end }}
{{- end }}

{{/* Whether a path is one of some folders or below: (path, folders). "true" or nothing. */}}
{{- define "omnibus-csi.isCovered" -}}
{{- $path := index . 0 }}
{{- range index . 1 }}
{{- $folder := trimSuffix "/" . }}
{{- if or (eq $path $folder) (hasPrefix (print $folder "/") $path) }}true{{ end }}
{{- end }}
{{- end }}

{{- define "omnibus-csi.localMounts" -}}
{{- range include "omnibus-csi.localBases" . | fromYamlArray }}
- name: {{ .name }}
  mountPath: {{ .mount }}
  # A disk that is mounted there later is seen.
  mountPropagation: HostToContainer
{{- end }}
{{- end }}

{{- define "omnibus-csi.localVolumes" -}}
{{- $hosts := dict }}
{{- range include "omnibus-csi.localBases" . | fromYamlArray }}{{ $_ := set $hosts .name .host }}{{ end }}
{{- range $name, $host := $hosts }}
- name: {{ $name }}
  hostPath: {path: {{ $host }}, type: DirectoryOrCreate}
{{- end }}
{{- end }}
