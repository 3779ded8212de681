{{- define "escache.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" }}
{{- end }}

{{- define "escache.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" }}
{{- else }}
{{- .Release.Name | trunc 40 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{- /* Labels that select pods: they never change in the life of a release. */}}
{{- define "escache.selector" -}}
app.kubernetes.io/name: {{ include "escache.name" .root }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{- define "escache.labels" -}}
{{ include "escache.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
app.kubernetes.io/part-of: escache-csi
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
{{- with .root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- /* image: takes root and image; the chart's appVersion is the tag of our own images. */}}
{{- define "escache.image" -}}
{{- $registry := get (.root.Values.global | default dict) "imageRegistry" | default .image.registry | default .root.Values.image.registry }}
{{- $name := ternary .image.repository (printf "%s/%s" $registry .image.repository) (empty $registry) }}
{{- if .image.digest }}{{ $name }}@{{ .image.digest }}
{{- else }}{{ $name }}:{{ .image.tag | default .root.Chart.AppVersion }}
{{- end }}
{{- end }}

{{- define "escache.pullSecrets" -}}
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- end }}

{{- define "escache.controllerTLS" -}}
{{- if eq .Values.tls.mode "existing" }}{{ .Values.tls.controllerSecret }}{{ else }}{{ include "escache.fullname" . }}-controller-tls{{ end }}
{{- end }}

{{- define "escache.escachedTLS" -}}
{{- if eq .Values.tls.mode "existing" }}{{ .Values.tls.escachedSecret }}{{ else }}{{ include "escache.fullname" . }}-escached-tls{{ end }}
{{- end }}

{{- /* Who may call escached, by the names in their certificates, as a JSON list. The chart issues csi-controller's for the first. */}}
{{- define "escache.clientNames" -}}
{{ .Values.tls.clientNames | default (list "csi-controller") | toJson }}
{{- end }}

{{- define "escache.clientName" -}}
{{ include "escache.clientNames" . | fromJsonArray | first }}
{{- end }}

{{- /* "true" if csi-node asks for its host's certificate and csi-controller signs it. */}}
{{- define "escache.signs" -}}
{{- if and (eq .Values.escached.mode "daemonset") (ne .Values.tls.mode "existing") (not .Values.tls.shared) }}true{{ end }}
{{- end }}

{{- /* Until when hosts may show the certificate that served all of them, or "none". The ConfigMap of escached keeps it: one without
       the annotation is of a release in which there was such a certificate. Whole hours, so that one rendering gives one value. */}}
{{- define "escache.formerMark" -}}
{{- $config := lookup "v1" "ConfigMap" .Release.Namespace (printf "%s-escached" (include "escache.fullname" .)) }}
{{- $mark := get (dig "metadata" "annotations" dict ($config | default dict)) "escache.io/former-until" }}
{{- if .Values.tls.former.until }}{{ .Values.tls.former.until }}
{{- else if $mark }}{{ $mark }}
{{- else if $config }}{{ dateInZone "2006-01-02T15:04:05Z" (mul 3600 (add 25 (div (now | unixEpoch | int64) 3600)) | int64) "UTC" }}
{{- else }}none
{{- end }}
{{- end }}

{{- /* The same while it is not over, else empty. */}}
{{- define "escache.formerUntil" -}}
{{- if include "escache.signs" . }}
{{- $mark := include "escache.formerMark" . }}
{{- $there := or (eq .Values.tls.mode "certManager") (lookup "v1" "Secret" .Release.Namespace (printf "%s-escached-tls" (include "escache.fullname" .))) }}
{{- if and $there (ne $mark "none") }}
{{- if lt (now | unixEpoch | int64) (toDate "2006-01-02T15:04:05Z" $mark | unixEpoch | int64) }}{{ $mark }}{{ end }}
{{- end }}
{{- end }}
{{- end }}

{{- define "escache.replicationSecret" -}}
{{ .Values.replication.existingSecret | default (printf "%s-replication" (include "escache.fullname" .)) }}
{{- end }}

{{- define "escache.cephVolume" -}}
projected:
  defaultMode: 0440
  sources:
    - configMap:
        name: {{ include "escache.fullname" .root }}-ceph
        items: [{key: ceph.conf, path: {{ .dir }}ceph.conf}]
    - secret:
        name: {{ .secret }}
        items: [{key: keyring, path: {{ .dir }}keyring}]
        {{- if .optional }}
        optional: true
        {{- end }}
{{- end }}

{{- define "escache.restricted" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{- /* CSI's sidecars beside csi-controller, with commas between them. */}}
{{- define "escache.sidecars" -}}
provisioner,attacher,resizer{{ if .Values.snapshots.enabled }},snapshotter{{ end }}
{{- end }}
