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
{{- include "omnibus-csi.validateLegacy" . }}
{{- include "omnibus-csi.validateClassDrivers" . }}
{{- include "omnibus-csi.validateLegacyArguments" . }}
{{- include "omnibus-csi.validateLegacySecrets" . }}
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
{{- include "omnibus-csi.validateSnapshotMetadata" . }}
{{- if and .Values.controller.externalHealthMonitorController.enabled (not (include "omnibus-csi.mayTellHealth" .)) }}
{{- fail "controller.externalHealthMonitorController needs a driver that tells the health of its volumes, without which that sidecar ends at once: see docs/health.md, and leave it out for these" }}
{{- end }}
{{- if and .Values.podMonitor.enabled (not .Values.metrics.enabled) }}
{{- fail "podMonitor.enabled needs metrics.enabled: there would be nothing to scrape" }}
{{- end }}
{{- if and .Values.console.enabled (eq (include "omnibus-csi.strategy" .) "node") }}
{{- fail "console.enabled needs a controller of its own, not controller.strategy node: the pods of the nodes may have the host's network, on whose loopback every user of the node would see the console" }}
{{- end }}
{{- end }}

{{/* Names of drivers that were before this one. */}}
{{- define "omnibus-csi.validateLegacy" -}}
{{- $proxy := include "omnibus-csi.proxy" . | fromYaml }}
{{- if $proxy.legacyNames }}
{{- fail "driver.config.proxy.legacyNames is made of legacyNames: write it there, so that each name has its sidecars" }}
{{- end }}
{{- $connections := .Values.connections | default dict }}
{{- range $name, $own := .Values.legacyNames }}
{{- if not (include "omnibus-csi.hasConnections" $) }}
{{- fail (printf "legacyNames.%s needs connections: each name has one" $name) }}
{{- end }}
{{- if $.Values.driver.existingConfigSecret }}
{{- fail "legacyNames and driver.existingConfigSecret exclude each other: the chart writes the names into the main file" }}
{{- end }}
{{- if eq $name $.Values.csiDriver.name }}
{{- fail (printf "legacyNames.%s is csiDriver.name: set driver.config.proxy.legacyConnection to its connection, or take another csiDriver.name" $name) }}
{{- end }}
{{- $connection := get ($proxy.aliases | default dict) $own.connection | default $own.connection }}
{{- if and $connections (not (hasKey $connections $connection)) }}
{{- fail (printf "legacyNames.%s: there is no connection %s: connections are %s" $name $own.connection (keys $connections | sortAlpha | join ", ")) }}
{{- end }}
{{- $kind := include "omnibus-csi.legacyKind" (list $ $own) }}
{{- if hasSuffix "-ephemeral-inline" $kind }}
{{- fail (printf "legacyNames.%s: the volumes of connection %s are described by pods, and a legacy name has none of those: keep a release of its own for them" $name $own.connection) }}
{{- end }}
{{- if has $kind (list "node-manual" "objectivefs") }}
{{- range $key := list "resizer" "snapshots" }}
{{- if get $own $key }}
{{- fail (printf "legacyNames.%s.%s: %s has nothing for that sidecar, which would end at once: leave it out" $name $key $kind) }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{/* A Secret of a legacy name that the chart makes for something else, too. */}}
{{- define "omnibus-csi.validateLegacySecrets" -}}
{{- $root := . }}
{{- $there := dict }}
{{- if not .Values.existingConnectionsSecret }}{{ $_ := set $there (include "omnibus-csi.connectionsSecret" .) "the connections" }}{{ end }}
{{- $_ := set $there (printf "%s-driver-config" (include "omnibus-csi.fullname" .)) "the main file" }}
{{- if .Values.controller.externalSnapshotMetadata.enabled }}{{ $_ := set $there (include "omnibus-csi.snapshotMetadataSecret" .) "external-snapshot-metadata" }}{{ end }}
{{- range $class := concat (.Values.storageClasses | default list) (.Values.volumeSnapshotClasses | default list) }}
{{- range $kind, $_ := $class.secrets }}
{{- $_ := set $there (include "omnibus-csi.classSecret" (list $root $class.name $kind)) (printf "the class %s" $class.name) }}
{{- end }}
{{- end }}
{{- range $name, $own := .Values.legacyNames }}
{{- range $secret, $_ := $own.secrets }}
{{- with get $there $secret }}
{{- fail (printf "legacyNames.%s.secrets.%s: %s has a Secret of this name already" $name $secret .) }}
{{- end }}
{{- $_ := set $there $secret (printf "legacyNames.%s" $name) }}
{{- end }}
{{- end }}
{{- end }}

{{/* Arguments of a sidecar go to its copy for each legacy name, too. */}}
{{- define "omnibus-csi.validateLegacyArguments" -}}
{{- $c := .Values.controller }}
{{- $all := dict }}
{{- if .Values.legacyNames }}
{{- if include "omnibus-csi.legacyNeeds" (list . "provisioner") }}{{ $_ := set $all "controller.externalProvisioner" $c.externalProvisioner }}{{ end }}
{{- if include "omnibus-csi.legacyNeeds" (list . "resizer") }}{{ $_ := set $all "controller.externalResizer" $c.externalResizer }}{{ end }}
{{- if include "omnibus-csi.legacyNeeds" (list . "attach") }}{{ $_ := set $all "controller.externalAttacher" $c.externalAttacher }}{{ end }}
{{- if include "omnibus-csi.legacyNeeds" (list . "snapshots") }}{{ $_ := set $all "controller.externalSnapshotter" $c.externalSnapshotter }}{{ end }}
{{- if .Values.node.driverRegistrar.enabled }}{{ $_ := set $all "node.driverRegistrar" .Values.node.driverRegistrar }}{{ end }}
{{- end }}
{{- range $path, $own := $all }}
{{- $isRegistrar := eq $path "node.driverRegistrar" }}
{{- if and $own.args (not $isRegistrar) (not (contains ".csiSocketAddress" (join " " $own.args))) }}
{{- fail (printf "%s.args: with legacyNames it needs --csi-address={{ .csiSocketAddress }}: each name has a socket of its own" $path) }}
{{- end }}
{{- range $argument := concat ($own.args | default list) ($own.extraArgs | default list) }}
{{- if and (not $isRegistrar) (regexMatch "^--?csi-address=" $argument) (not (contains ".csiSocketAddress" $argument)) }}
{{- fail (printf "%s: with legacyNames %s has to be --csi-address={{ .csiSocketAddress }}: each name has a socket of its own" $path $argument) }}
{{- end }}
{{- if regexMatch "^--?(http-endpoint|metrics-address)(=|$)" $argument }}
{{- fail (printf "%s: leave %s out with legacyNames: the sidecar of each name would listen there" $path $argument) }}
{{- end }}
{{- if regexMatch "^--?kubelet-registration-path$" $argument }}
{{- fail (printf "%s: with legacyNames write %s=<path> in one argument: it is another one for each name" $path $argument) }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{/* Classes of another driver than the own one. */}}
{{- define "omnibus-csi.validateClassDrivers" -}}
{{- $own := .Values.csiDriver.name }}
{{- $legacy := .Values.legacyNames | default dict }}
{{- range $kind, $classes := dict "StorageClass" .Values.storageClasses "VolumeSnapshotClass" .Values.volumeSnapshotClasses }}
{{- range $classes }}
{{- if and .csiDriver (ne .csiDriver $own) }}
{{- if not (hasKey $legacy .csiDriver) }}
{{- fail (printf "%s %s: csiDriver is %s, which is neither csiDriver.name nor one of legacyNames" $kind .name .csiDriver) }}
{{- end }}
{{- if and (eq $kind "VolumeSnapshotClass") (not (get $legacy .csiDriver).snapshots) }}
{{- fail (printf "VolumeSnapshotClass %s: nothing makes its snapshots without legacyNames.%s.snapshots: true" .name .csiDriver) }}
{{- end }}
{{- $parameters := .parameters | default dict }}
{{- if and (eq $kind "StorageClass") (or $parameters.connection $parameters.connections) }}
{{- fail (printf "StorageClass %s: volumes of %s are made in the connection of that name: leave parameters.connection and connections out" .name .csiDriver) }}
{{- end }}
{{- end }}
{{- end }}
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
{{- if and (not $named) (or (not .csiDriver) (eq .csiDriver $.Values.csiDriver.name)) }}
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
