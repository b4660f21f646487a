{{- define "rtj.name" -}}
{{- .Values.nameOverride | default .Chart.Name | trunc 50 | trimSuffix "-" -}}
{{- end -}}

{{/* Leaves room for "-heartbeat" in 63 characters. */}}
{{- define "rtj.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 50 | trimSuffix "-" -}}
{{- else if contains (include "rtj.name" .) .Release.Name -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "rtj.name" .) | trunc 50 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "rtj.selectorLabels" -}}
app.kubernetes.io/name: {{ include "rtj.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: operator
{{- end -}}

{{- define "rtj.labels" -}}
{{ include "rtj.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/part-of: rtj
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* Metadata of an object: name, labels and annotations. Takes (dict "root" $ "name" "…"), and "namespace" when it has one. */}}
{{- define "rtj.metadata" -}}
name: {{ .name | quote }}
{{- with .namespace }}
namespace: {{ . | quote }}
{{- end }}
labels: {{- include "rtj.labels" .root | nindent 2 }}
{{- with .root.Values.commonAnnotations }}
annotations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- define "rtj.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- .Values.serviceAccount.name | default (include "rtj.fullname" .) -}}
{{- else -}}
{{- required "serviceAccount.name is needed when serviceAccount.create is false" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{- define "rtj.heartbeatService" -}}
{{- printf "%s-heartbeat" (include "rtj.fullname" .) -}}
{{- end -}}

{{- define "rtj.heartbeatSecret" -}}
{{- .Values.heartbeat.tls.existingSecret | default (printf "%s-heartbeat-tls" (include "rtj.fullname" .)) -}}
{{- end -}}

{{- define "rtj.image" -}}
{{- if .Values.image.digest -}}
{{- printf "%s@%s" .Values.image.repository .Values.image.digest -}}
{{- else -}}
{{- printf "%s:%s" .Values.image.repository (.Values.image.tag | default .Chart.AppVersion) -}}
{{- end -}}
{{- end -}}

{{/* "true" when the operator may write nodes. */}}
{{- define "rtj.cordons" -}}
{{- if and .Values.remediation.nodeAccess (eq .Values.remediation.mode "Cordon") -}}true{{- end -}}
{{- end -}}

{{/* What the operator does in the namespaces of the jobs. No update or patch of jobs, pods or services, no secrets, no logs, no exec. */}}
{{- define "rtj.jobRules" -}}
- apiGroups: [rtj.dev]
  resources: [resilienttrainingjobs]
  verbs: [get, list, watch, delete]  # delete: ttlSecondsAfterFinished
- apiGroups: [rtj.dev]
  resources: [resilienttrainingjobs/status]
  verbs: [patch]
- apiGroups: [""]
  resources: [pods]
  verbs: [get, list, watch, create, delete]
- apiGroups: [""]
  resources: [services]
  verbs: [get, create]
- apiGroups: [""]
  resources: [events]
  verbs: [create, patch]
{{- end -}}

{{/* Where the credentials of the manifest store at that place in the list lie in the pod. */}}
{{- define "rtj.storeCredentials" -}}
/etc/rtj/stores/{{ . }}
{{- end -}}

{{/* The manifest stores as the operator reads them: a secret's name becomes the directory where it is mounted. */}}
{{- define "rtj.manifestStores" -}}
{{- $stores := list -}}
{{- range $place, $store := .Values.manifestStores -}}
{{- $read := omit $store "secret" -}}
{{- if $store.secret -}}
{{- $read = set $read "credentials" (include "rtj.storeCredentials" $place) -}}
{{- end -}}
{{- $stores = append $stores $read -}}
{{- end -}}
{{- toJson $stores -}}
{{- end -}}
