{{/* As the "restricted" pod security standard requires. The platform may set the uid. */}}
{{- define "kvreg.podSecurityContext" -}}
runAsNonRoot: true
{{- range $name := list "runAsUser" "runAsGroup" "fsGroup" }}
{{- with get ($.Values.podSecurityContext | default dict) $name }}
{{ $name }}: {{ . | int64 }}
{{- end }}
{{- end }}
# Do not change the owner of every file of a large model at each start.
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
