{{/* What a namespace with the "restricted" pod security standard asks for. Who runs it may be the platform's to say. */}}
{{- define "kvreg.podSecurityContext" -}}
runAsNonRoot: true
{{- range $name := list "runAsUser" "runAsGroup" "fsGroup" }}
{{- with get ($.Values.podSecurityContext | default dict) $name }}
{{ $name }}: {{ . | int64 }}
{{- end }}
{{- end }}
# A model of 20 GB is not walked through at each start.
fsGroupChangePolicy: OnRootMismatch
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{- define "kvreg.containerSecurityContext" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end -}}
