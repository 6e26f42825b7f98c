{{/* Where a pod runs. Call it with the values of the engine or the operator. */}}
{{- define "kvreg.placement" -}}
{{- $parts := dict -}}
{{- range $key := list "nodeSelector" "affinity" "tolerations" -}}
{{- with get $ $key -}}{{- $_ := set $parts $key . -}}{{- end -}}
{{- end -}}
{{- with $parts -}}{{- toYaml . -}}{{- end -}}
{{- end -}}

{{/* The engine's resources, with its cards. A request for cards is their limit, so only that is written. */}}
{{- define "kvreg.engineResources" -}}
{{- $resources := deepCopy .Values.engine.resources -}}
{{- if gt (int .Values.gpu.count) 0 -}}
{{- $cards := dict .Values.gpu.resourceName (.Values.gpu.count | int) -}}
{{- $_ := set $resources "limits" (merge $cards ($resources.limits | default dict)) -}}
{{- end -}}
{{- toYaml $resources -}}
{{- end -}}
