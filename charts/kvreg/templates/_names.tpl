{{/* Name of the engines' StatefulSet and beginning of all other names: the release's, with "kvreg" in it. It is never cut, because a
     profile names it. */}}
{{- define "kvreg.fullname" -}}
{{- if contains "kvreg" .Release.Name -}}{{ .Release.Name }}{{- else -}}{{ .Release.Name }}-kvreg{{- end -}}
{{- end -}}

{{- define "kvreg.operatorName" -}}
{{ include "kvreg.fullname" . }}-operator
{{- end -}}

{{- define "kvreg.podsServiceName" -}}
{{ include "kvreg.fullname" . }}-pods
{{- end -}}

{{/* What objects are chosen by; it may never change. Call it with (list . "engine") or (list . "operator"). */}}
{{- define "kvreg.selectorLabels" -}}
{{- $top := index . 0 -}}
app.kubernetes.io/name: kvreg
app.kubernetes.io/instance: {{ $top.Release.Name | quote }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end -}}

{{/* Text for a variable's value, into which Kubernetes would fill what is written as $(NAME). */}}
{{- define "kvreg.verbatim" -}}
{{ . | toString | replace "$" "$$" | quote }}
{{- end -}}

{{/* Labels of an object, the pods' excepted: another version of the chart alone must not replace a pod. */}}
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

{{/* Namespaces that the operator watches, as a comma list. */}}
{{- define "kvreg.watchNamespaces" -}}
{{ .Values.operator.watchNamespaces | default (list .Release.Namespace) | uniq | join "," }}
{{- end -}}

{{/* Namespace of the operator in charge of the engines; nothing where nobody is. */}}
{{- define "kvreg.rulingNamespace" -}}
{{- if .Values.operator.enabled -}}{{ .Release.Namespace }}{{- else -}}{{ .Values.operator.elsewhereNamespace }}{{- end -}}
{{- end -}}
