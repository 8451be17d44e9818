{{- define "coppice.name" -}}
{{- .Values.name | default .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- end }}

{{- define "coppice.image" -}}
{{- $tag := .Values.image.tag | default .Chart.AppVersion -}}
{{ .Values.image.repository }}{{ ternary "@" ":" (hasPrefix "sha256:" $tag) }}{{ $tag }}
{{- end }}

{{- define "coppice.labels" -}}
app.kubernetes.io/name: coppice
app.kubernetes.io/instance: {{ include "coppice.name" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- define "coppice.spec" -}}
image:
  repository: {{ .Values.image.repository | quote }}
  tag: {{ .Values.image.tag | default .Chart.AppVersion | quote }}
  pullPolicy: {{ .Values.image.pullPolicy }}
  {{- with .Values.image.pullSecrets }}
  pullSecrets: {{- toYaml . | nindent 4 }}
  {{- end }}
nodes:
  count: {{ .Values.nodes.count }}
  storage:
    size: {{ .Values.nodes.storage.size | quote }}
    {{- with .Values.nodes.storage.class }}
    class: {{ . }}
    {{- end }}
  {{- with .Values.nodes.coldStorage }}
  {{- if .size }}
  coldStorage:
    size: {{ .size | quote }}
    {{- with .class }}
    class: {{ . }}
    {{- end }}
    {{- if not (kindIs "invalid" .hotValueBytes) }}
    hotValueBytes: {{ int64 .hotValueBytes }}
    {{- end }}
  {{- end }}
  {{- end }}
  resources: {{- toYaml .Values.nodes.resources | nindent 4 }}
{{- with .Values.readers }}
{{- if gt (int .count) 0 }}
readers:
  count: {{ .count }}
  {{- with .zone }}
  zone: {{ . | quote }}
  {{- end }}
  storage:
    size: {{ .storage.size | quote }}
    {{- with .storage.class }}
    class: {{ . }}
    {{- end }}
  resources: {{- toYaml .resources | nindent 4 }}
  {{- with .pim }}
  pim: {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end }}
{{- end }}
shards:
  {{- if .Values.shards.splits }}
  count: {{ add1 (len .Values.shards.splits) }}
  splits: {{- toYaml .Values.shards.splits | nindent 4 }}
  {{- else }}
  count: {{ .Values.shards.count }}
  {{- end }}
journals: {{ .Values.journals }}
ledgers: {{ .Values.ledgers }}
{{- if .Values.oneProcess }}
oneProcess: true
{{- else }}
coordinators:
  count: {{ .Values.coordinators.count }}
  {{- with .Values.coordinators.zone }}
  zone: {{ . | quote }}
  {{- end }}
  resources: {{- toYaml .Values.coordinators.resources | nindent 4 }}
{{- end }}
service:
  type: {{ .Values.service.type }}
  {{- with .Values.service.annotations }}
  annotations: {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.service.dnsNames }}
  dnsNames: {{- toYaml . | nindent 4 }}
  {{- end }}
{{- with .Values.etcd }}
{{- if .endpoints }}
etcd:
  external:
    endpoints: {{- toYaml .endpoints | nindent 6 }}
    {{- with .tlsSecret }}
    tlsSecret: {{ . }}
    {{- end }}
{{- end }}
{{- end }}
{{- with .Values.tls.issuer }}
tls:
  certManager:
    issuer: {{ . }}
{{- end }}
{{- with .Values.signingKeySecret }}
signingKey:
  secret: {{ . }}
{{- end }}
{{- if or .Values.retention.versions .Values.retention.hours }}
retention:
  {{- with .Values.retention.versions }}
  versions: {{ int64 . }}
  {{- end }}
  {{- with .Values.retention.hours }}
  hours: {{ int64 . }}
  {{- end }}
{{- end }}
{{- with .Values.telemetry }}
{{- if .otlpEndpoint }}
telemetry:
  otlpEndpoint: {{ .otlpEndpoint | quote }}
  traceRatio: {{ .traceRatio }}
{{- end }}
{{- end }}
volumePolicy: {{ .Values.volumePolicy }}
{{- end }}
