{{/* Rejects values that cannot work, by name, before anything is installed. */}}
{{- define "kvreg.check" -}}
{{- $name := include "kvreg.fullname" . -}}
{{- if gt (len $name) 52 -}}
{{- fail (printf "the StatefulSet would be named %q, which is %d characters; the limit is 52: use a shorter release name" $name (len $name)) -}}
{{- end -}}
{{- if contains "." $name -}}
{{- fail (printf "the Service would be named %q, and its name may not contain a dot: use a release name without one" $name) -}}
{{- end -}}
{{- if regexMatch "^[0-9]" $name -}}
{{- fail (printf "the Service would be named %q, and older versions of Kubernetes reject a name that begins with a digit: use a release name that begins with a letter" $name) -}}
{{- end -}}
{{- if and .Values.operator.enabled .Values.operator.elsewhereNamespace -}}
{{- fail "operator.enabled and operator.elsewhereNamespace exclude each other: one operator manages the engines" -}}
{{- end -}}
{{- if and (eq .Values.model.source "pvc") (not .Values.model.claimName) -}}
{{- fail "model.source is pvc: set model.claimName to an existing claim" -}}
{{- end -}}
{{- if and (eq .Values.model.source "hostPath") (not .Values.model.hostPath) -}}
{{- fail "model.source is hostPath: set model.hostPath to a folder on the nodes" -}}
{{- end -}}
{{- if and .Values.operator.enabled .Values.apiKeys.existingSecret (not .Values.operator.adminKey.existingSecret) -}}
{{- fail "apiKeys.existingSecret is set: the operator needs the API key of an administrator, operator.adminKey.existingSecret, or engines reject its requests" -}}
{{- end -}}
{{- range .Values.engine.extraEnv -}}
{{- if hasPrefix "KVREG_" (upper .name) -}}
{{- fail (printf "engine.extraEnv: %s is a setting of the engine: set engine.settings.%s" .name (lower .name | trimPrefix "kvreg_")) -}}
{{- end -}}
{{- end -}}
{{- include "kvreg.checkSettings" . -}}
{{- include "kvreg.checkExtras" . -}}
{{- end -}}

{{/* Extra variables, volumes and mounts must not override those of the chart or the operator. */}}
{{- define "kvreg.checkExtras" -}}
{{- $names := list -}}
{{- range .Values.engine.extraEnv -}}
{{- if has .name (list "HOME" "POD_NAME" "POD_NAMESPACE") -}}
{{- fail (printf "engine.extraEnv: %s is set by the chart: leave it out" .name) -}}
{{- end -}}
{{- if has .name $names -}}
{{- fail (printf "engine.extraEnv: %s is set twice" .name) -}}
{{- end -}}
{{- $names = append $names .name -}}
{{- end -}}
{{- range .Values.engine.extraVolumes -}}
{{- if eq (toString .name) "kvreg-profile" -}}
{{- fail "engine.extraVolumes: kvreg-profile is the volume that the operator adds: use another name" -}}
{{- end -}}
{{- if has .name (list "tmp" "shared-memory" "model" "api-keys" "request-log") -}}
{{- fail (printf "engine.extraVolumes: %s is a volume of the chart: use another name" .name) -}}
{{- end -}}
{{- end -}}
{{- range .Values.engine.extraVolumeMounts -}}
{{- if eq (toString .mountPath | trimSuffix "/") "/etc/kvreg/profile" -}}
{{- fail (printf "engine.extraVolumeMounts: the operator mounts the profile at %s: use another path" .mountPath) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "kvreg.checkSettings" -}}
{{- $elsewhere := dict
  "host" "the chart: engines listen on all addresses of their pod"
  "port" "the chart: it is 8000"
  "model" "model.source and model.path"
  "served_model_name" "model.servedName"
  "device" "gpu.count"
  "tp" "gpu.count"
  "drain_timeout_s" "engine.drainTimeoutSeconds"
  "api_keys" "apiKeys.existingSecret: values must not contain keys"
  "api_keys_file" "apiKeys.existingSecret"
  "request_log" "requestLog.enabled"
  "request_log_salt" "requestLog.salt.existingSecret: values must not contain a salt"
  "config_file" "the operator: it mounts the file of the profile"
  "profile" "the operator: it is the name of the profile"
-}}
{{- $managed := include "kvreg.rulingNamespace" . -}}
{{- range $key := keys .Values.engine.settings | sortAlpha -}}
{{- with get $elsewhere $key -}}
{{- fail (printf "engine.settings.%s is set by %s" $key .) -}}
{{- end -}}
{{- if and $managed (has $key (list "lanes" "entries" "current_state" "anchors")) -}}
{{- fail (printf "engine.settings.%s is set by the KVRegistryProfile, which a variable would override: set it there, or set operator.enabled to false" $key) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* A value as the engine reads it. Helm parses numbers as floats, and would write large ones with an exponent. */}}
{{- define "kvreg.settingText" -}}
{{- if and (kindIs "float64" .) (eq . (floor .)) -}}{{ int64 . }}{{- else -}}{{ . }}{{- end -}}
{{- end -}}

{{/* Environment variables of an engine. */}}
{{- define "kvreg.engineEnv" -}}
- name: POD_NAME
  valueFrom:
    fieldRef:
      fieldPath: metadata.name
- name: POD_NAMESPACE
  valueFrom:
    fieldRef:
      fieldPath: metadata.namespace
# The root filesystem is read-only, and libraries store compiled kernels in the home directory.
- name: HOME
  value: /tmp
- name: KVREG_HOST
  value: "0.0.0.0"
- name: KVREG_PORT
  value: "8000"
- name: KVREG_DRAIN_TIMEOUT_S
  value: {{ .Values.engine.drainTimeoutSeconds | int64 | quote }}
{{- if ne .Values.model.source "bundled" }}
- name: KVREG_MODEL
  value: {{ include "kvreg.verbatim" (list "/models" .Values.model.path | compact | join "/") }}
{{- end }}
{{- with .Values.model.servedName }}
- name: KVREG_SERVED_MODEL_NAME
  value: {{ include "kvreg.verbatim" . }}
{{- end }}
{{- if gt (int .Values.gpu.count) 0 }}
- name: KVREG_DEVICE
  value: cuda
- name: KVREG_TP
  value: {{ .Values.gpu.count | int64 | quote }}
{{- end }}
{{- if .Values.apiKeys.existingSecret }}
- name: KVREG_API_KEYS_FILE
  value: {{ printf "/etc/kvreg/api-keys/%s" .Values.apiKeys.key | quote }}
{{- end }}
{{- if .Values.requestLog.enabled }}
# Pods of other namespaces may write to the same folder on the node.
- name: KVREG_REQUEST_LOG
  value: /var/log/kvreg/requests.$(POD_NAMESPACE).$(POD_NAME).jsonl
{{- with .Values.requestLog.salt }}
{{- if .existingSecret }}
- name: KVREG_REQUEST_LOG_SALT
  valueFrom:
    secretKeyRef:
      name: {{ .existingSecret | quote }}
      key: {{ .key | quote }}
{{- end }}
{{- end }}
{{- end }}
{{- range $name := keys .Values.engine.settings | sortAlpha }}
- name: KVREG_{{ upper $name }}
  value: {{ include "kvreg.settingText" (get $.Values.engine.settings $name) | include "kvreg.verbatim" }}
{{- end }}
{{- with .Values.engine.extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end -}}
