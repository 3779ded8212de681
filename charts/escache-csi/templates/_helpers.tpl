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

{{- /* image: takes root and image; the chart's version is the tag of our own images. */}}
{{- define "escache.image" -}}
{{- $registry := .image.registry | default .root.Values.image.registry }}
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
