{{/* Name of the StatefulSet and prefix of all other names: that of the release, with "kvreg" in it. It is never truncated, because a
     profile refers to it. */}}
{{- define "kvreg.fullname" -}}
{{- if contains "kvreg" .Release.Name -}}{{ .Release.Name }}{{- else -}}{{ .Release.Name }}-kvreg{{- end -}}
{{- end -}}

{{- define "kvreg.operatorName" -}}
{{ include "kvreg.fullname" . }}-operator
{{- end -}}

{{- define "kvreg.podsServiceName" -}}
{{ include "kvreg.fullname" . }}-pods
{{- end -}}

{{/* Selector labels; they are immutable. Call it with (list . "engine") or (list . "operator"). */}}
{{- define "kvreg.selectorLabels" -}}
{{- $top := index . 0 -}}
app.kubernetes.io/name: kvreg
app.kubernetes.io/instance: {{ $top.Release.Name | quote }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end -}}

{{/* The value of a variable, in which Kubernetes would expand $(NAME). */}}
{{- define "kvreg.verbatim" -}}
{{ . | toString | replace "$" "$$" | quote }}
{{- end -}}

{{/* Labels of objects other than pods: a new version of the chart alone must not replace a pod. */}}
{{- define "kvreg.labels" -}}
{{- $top := index . 0 -}}
{{ include "kvreg.selectorLabels" . }}
app.kubernetes.io/version: {{ $top.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ $top.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" $top.Chart.Name $top.Chart.Version | replace "+" "_" }}
{{- end -}}

{{/* Call it with (list . <image values>). */}}
{{- define "kvreg.image" -}}
{{- $top := index . 0 -}}{{- $image := index . 1 -}}
{{- if $image.digest -}}
{{ $image.repository }}@{{ $image.digest }}
{{- else -}}
{{ $image.repository }}:{{ $image.tag | default $top.Chart.AppVersion }}
{{- end -}}
{{- end -}}

{{/* Namespaces that the operator watches, separated by commas. */}}
{{- define "kvreg.watchNamespaces" -}}
{{ .Values.operator.watchNamespaces | default (list .Release.Namespace) | uniq | join "," }}
{{- end -}}

{{/* Namespace of the operator that manages the engines; empty if there is none. */}}
{{- define "kvreg.rulingNamespace" -}}
{{- if .Values.operator.enabled -}}{{ .Release.Namespace }}{{- else -}}{{ .Values.operator.elsewhereNamespace }}{{- end -}}
{{- end -}}
