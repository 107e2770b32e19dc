{{/* What can never work is refused here, in words, before anything is installed. */}}
{{- define "omnibus-csi.validate" -}}
{{- if not .Values.csiDriver.name }}
{{- fail "csiDriver.name is required: one name in the cluster that never changes, such as org.example.csi" }}
{{- end }}
{{- $kind := (.Values.driver.config | default dict).driver }}
{{- if include "omnibus-csi.hasConnections" . }}
{{- if and $kind (ne $kind "proxy") }}
{{- fail (printf "driver.config.driver is %s, but there are connections: make it one of them, or set driver: proxy" $kind) }}
{{- end }}
{{- if .Values.driver.existingConfigSecret }}
{{- if not (include "omnibus-csi.proxy" . | fromYaml).configFolder }}
{{- fail "with driver.existingConfigSecret and connections, repeat driver.config.proxy.configFolder: the chart mounts the connections there" }}
{{- end }}
{{- end }}
{{- include "omnibus-csi.validateClasses" . }}
{{- else if not $kind }}
{{- fail "no storage is configured: set connections, or driver.config.driver" }}
{{- end }}
{{- range list .Values.image .Values.controller.driver.image .Values.node.driver.image }}
{{- if regexMatch "(^|/)democratic-csi([:@]|$)" ((. | default dict).registry | default "") }}
{{- fail (printf "%s is the image of democratic-csi, which does not know the arguments of this chart: leave it out" .registry) }}
{{- end }}
{{- end }}
{{- if and .Values.connections .Values.existingConnectionsSecret }}
{{- fail "connections and existingConnectionsSecret exclude each other" }}
{{- end }}
{{- if and (eq (include "omnibus-csi.strategy" .) "node") (not .Values.node.enabled) .Values.controller.enabled }}
{{- fail "controller.strategy node runs the controller in the node pods, but node.enabled is false" }}
{{- end }}
{{- $places := include "omnibus-csi.places" . }}
{{- if and (contains "local" $places) (contains "network" $places) }}
{{- fail "storage of the nodes needs a controller on each node, storage of a network one for all: make two releases, each with a csiDriver.name of its own" }}
{{- end }}
{{- include "omnibus-csi.validateBases" . }}
{{- include "omnibus-csi.validateShares" . }}
{{- if and .Values.controller.externalHealthMonitorController.enabled (semverCompare ">=1.13.0" (toString .Values.csiDriver.version)) }}
{{- fail (printf "controller.externalHealthMonitorController needs csiDriver.version 1.12.0 or older, not %s: CSI 1.13 has no VOLUME_CONDITION, without which that sidecar ends at once" (toString .Values.csiDriver.version)) }}
{{- end }}
{{- if and .Values.podMonitor.enabled (not .Values.metrics.enabled) }}
{{- fail "podMonitor.enabled needs metrics.enabled: there would be nothing to scrape" }}
{{- end }}
{{- if and .Values.console.enabled (eq (include "omnibus-csi.strategy" .) "node") }}
{{- fail "console.enabled needs a controller of its own, not controller.strategy node: the pods of the nodes may have the host's network, on whose loopback every user of the node would see the console" }}
{{- end }}
{{- end }}

{{/* Behind the proxy a class says where its volumes are made. */}}
{{- define "omnibus-csi.validateClasses" -}}
{{- $proxy := include "omnibus-csi.proxy" . | fromYaml }}
{{- $connections := .Values.connections | default dict }}
{{- $folders := $proxy.configFolder }}
{{- /* A further folder, or a Secret that the chart does not make, may have any connection. */}}
{{- $known := and $connections (not (and (kindIs "slice" $folders) (gt (len ($folders | default list)) 1))) }}
{{- range $class := .Values.storageClasses }}
{{- $parameters := .parameters | default dict }}
{{- $named := list }}
{{- with $parameters.connection }}{{ $named = append $named (toString .) }}{{ end }}
{{- with $parameters.connections }}{{ range splitList "," (toString .) }}{{ $named = append $named (trim .) }}{{ end }}{{ end }}
{{- if not $named }}
{{- fail (printf "StorageClass %s: parameters.connection is required: which of %s makes its volumes" .name (ternary (keys $connections | sortAlpha | join ", ") "the connections" (gt (len $connections) 0))) }}
{{- end }}
{{- range ternary $named list (not (empty $known)) }}
{{- $config := get $connections (get ($proxy.aliases | default dict) . | default .) }}
{{- if not $config }}
{{- fail (printf "StorageClass %s: there is no connection %s: connections are %s" $class.name . (keys $connections | sortAlpha | join ", ")) }}
{{- end }}
{{- if hasSuffix "-ephemeral-inline" $config.driver }}
{{- fail (printf "StorageClass %s: the volumes of connection %s are described by pods, it makes none for claims" $class.name .) }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{/* Directories of the nodes that the chart cannot mount, since it does not see them. */}}
{{- define "omnibus-csi.validateBases" -}}
{{- if not .Values.node.driver.extraVolumeMounts }}
{{- range $config := include "omnibus-csi.configs" . | fromYamlArray }}
{{- if eq ($config.driver | default "") "local-hostpath" }}
{{- $own := index $config "local-hostpath" | default dict }}
{{- range $key := list "shareBasePath" "controllerBasePath" }}
{{- $path := get $own $key }}
{{- if not (hasPrefix "/" ($path | default "" | toString)) }}
{{- fail (printf "local-hostpath.%s is %s, and the chart cannot mount that folder: give it as a path that begins with /, also beside existingConfigSecret, or mount it with node.extraVolumes and node.driver.extraVolumeMounts" $key ($path | default "not there")) }}
{{- end }}
{{- if contains "$" $path }}
{{- fail (printf "local-hostpath.%s has a variable, %s: mount that folder with node.extraVolumes and node.driver.extraVolumeMounts" $key $path) }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{/* A share that no volume of the controller's pod is: the controller mounts it, and may do so. */}}
{{- define "omnibus-csi.validateShares" -}}
{{- if include "omnibus-csi.controllerDeployed" . }}
{{- $pod := .Values.controller.podSecurityContext | default dict }}
{{- $own := .Values.controller.driver.securityContext | default dict }}
{{- $root := eq (toString (dig "runAsUser" (dig "runAsUser" 0 $pod) $own)) "0" }}
{{- $mounts := or $own.privileged (has "SYS_ADMIN" (($own.capabilities | default dict).add | default list)) }}
{{- $covered := list }}
{{- range .Values.controller.driver.extraVolumeMounts }}{{ $covered = append $covered .mountPath }}{{ end }}
{{- range $config := include "omnibus-csi.configs" . | fromYamlArray }}
{{- range $section := list "nfs" "smb" "lustre" }}
{{- if eq (print $section "-client") ($config.driver | default "") }}
{{- $path := (index $config $section | default dict).controllerBasePath | default "" }}
{{- if and (not (and $root $mounts)) (not (include "omnibus-csi.isCovered" (list $path $covered))) }}
{{- fail (printf "%s-client: the controller has to mount the share, and may not: set controller.podSecurityContext {runAsNonRoot: false, runAsUser: 0, runAsGroup: 0} and controller.driver.securityContext {privileged: true}; or make the share a volume of its pod at controllerBasePath, with controller.extraVolumes and controller.driver.extraVolumeMounts" $section) }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
