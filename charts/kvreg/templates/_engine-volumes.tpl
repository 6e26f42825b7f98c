{{/* Volumes of an engine's pod, and their mounts. The StatefulSet adds the claims of each pod. */}}
{{- define "kvreg.engineVolumes" -}}
- name: tmp
  emptyDir: {}
{{- with .Values.engine.sharedMemory }}
- name: shared-memory
  emptyDir:
    medium: Memory
    sizeLimit: {{ . | quote }}
{{- end }}
{{- if eq .Values.model.source "pvc" }}
- name: model
  persistentVolumeClaim:
    claimName: {{ .Values.model.claimName | quote }}
    readOnly: true
{{- else if eq .Values.model.source "hostPath" }}
- name: model
  hostPath:
    path: {{ .Values.model.hostPath | quote }}
    type: Directory
{{- end }}
{{- with .Values.apiKeys.existingSecret }}
- name: api-keys
  secret:
    secretName: {{ . | quote }}
    defaultMode: 0440
{{- end }}
{{- if .Values.requestLog.enabled }}
{{- if eq .Values.requestLog.volume "emptyDir" }}
- name: request-log
  emptyDir:
    sizeLimit: {{ .Values.requestLog.size | quote }}
{{- else if eq .Values.requestLog.volume "hostPath" }}
- name: request-log
  hostPath:
    path: {{ .Values.requestLog.hostPath | quote }}
    # A folder that the kubelet creates belongs to root, and the engine could not write to it.
    type: Directory
{{- end }}
{{- end }}
{{- with .Values.engine.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "kvreg.engineVolumeMounts" -}}
- name: tmp
  mountPath: /tmp
{{- if .Values.engine.sharedMemory }}
- name: shared-memory
  mountPath: /dev/shm
{{- end }}
{{- if ne .Values.model.source "bundled" }}
- name: model
  mountPath: /models
  readOnly: true
{{- end }}
{{- if .Values.apiKeys.existingSecret }}
- name: api-keys
  mountPath: /etc/kvreg/api-keys
  readOnly: true
{{- end }}
{{- if .Values.requestLog.enabled }}
- name: request-log
  mountPath: /var/log/kvreg
{{- end }}
{{- with .Values.engine.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end -}}
