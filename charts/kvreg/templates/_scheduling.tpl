{{/* Scheduling constraints of a pod. Call it with the values of the engine or the operator. */}}
{{- define "kvreg.placement" -}}
{{- $parts := dict -}}
{{- range $key := list "nodeSelector" "affinity" "tolerations" -}}
{{- with get $ $key -}}{{- $_ := set $parts $key . -}}{{- end -}}
{{- end -}}
{{- with $parts -}}{{- toYaml . -}}{{- end -}}
{{- end -}}

{{/* Resources of the engine, with its GPUs. The request of an extended resource equals its limit, so only the limit is set. */}}
{{- define "kvreg.engineResources" -}}
{{- $resources := deepCopy .Values.engine.resources -}}
{{- if gt (int .Values.gpu.count) 0 -}}
{{- $gpus := dict .Values.gpu.resourceName (.Values.gpu.count | int) -}}
{{- $_ := set $resources "limits" (merge $gpus ($resources.limits | default dict)) -}}
{{- end -}}
{{- toYaml $resources -}}
{{- end -}}
