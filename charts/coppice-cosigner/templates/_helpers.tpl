{{- define "coppice-cosigner.name" -}}
{{- .Release.Name | trunc 52 | trimSuffix "-" -}}
{{- end }}

{{- define "coppice-cosigner.selector" -}}
app.kubernetes.io/name: coppice-cosigner
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "coppice-cosigner.labels" -}}
{{ include "coppice-cosigner.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- define "coppice-cosigner.image" -}}
{{- $tag := .Values.image.tag | default .Chart.AppVersion -}}
{{ .Values.image.repository }}{{ ternary "@" ":" (hasPrefix "sha256:" $tag) }}{{ $tag }}
{{- end }}

{{- define "coppice-cosigner.dir" -}}
/var/lib/coppice-cosigner
{{- end }}

{{- /* Texts are written as JSON strings, which are TOML strings, too. */ -}}
{{- define "coppice-cosigner.config" -}}
ledger_key = {{ .Values.ledgerKey | toJson }}
logs = [
{{- range .Values.logs }}
  {{ . | toJson }},
{{- end }}
]
listen = "0.0.0.0:7600"
key_changes = {{ .Values.keyChanges | toJson }}
floor_peers = {{ int64 .Values.floorPeers }}
gossip_seconds = {{ int64 .Values.gossipSeconds }}
{{- if or .Values.ca.secret .Values.ca.configMap }}
ca = "/etc/coppice-cosigner/ca/ca.crt"
{{- end }}
peers = [
{{- range .Values.peers }}
  { url = {{ .url | toJson }}, vkey = {{ .vkey | toJson }} },
{{- end }}
]
{{- end }}

{{- define "coppice-cosigner.mounts" -}}
- name: data
  mountPath: {{ include "coppice-cosigner.dir" . }}
- name: config
  mountPath: {{ include "coppice-cosigner.dir" . }}/cosigner.toml
  subPath: cosigner.toml
  readOnly: true
- name: key
  mountPath: {{ include "coppice-cosigner.dir" . }}/witness.key
  subPath: witness.key
  readOnly: true
{{- if or .Values.ca.secret .Values.ca.configMap }}
- name: ca
  mountPath: /etc/coppice-cosigner/ca
  readOnly: true
{{- end }}
{{- end }}

{{- define "coppice-cosigner.security" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}
