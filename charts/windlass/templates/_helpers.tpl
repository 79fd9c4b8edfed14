{{- /* The name of everything that the chart makes. Names of the operator's Lease and ServiceAccount follow it. */ -}}
{{- define "windlass.name" -}}
{{- $chart := default "windlass" .Values.nameOverride -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 52 | trimSuffix "-" -}}
{{- else if contains $chart .Release.Name -}}
{{- .Release.Name | trunc 52 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $chart | trunc 52 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "windlass.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "windlass.name" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{- define "windlass.lease" -}}
{{- default (include "windlass.name" .) .Values.leaderElection.leaseName -}}
{{- end -}}

{{- /* What never changes of a release: selectors must not. */ -}}
{{- define "windlass.identity" -}}
app.kubernetes.io/name: {{ default "windlass" .Values.nameOverride | quote }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end -}}

{{- define "windlass.labels" -}}
{{ include "windlass.labels.and" (list . nil) }}
{{- end -}}

{{- /* The labels of an object: the chart's, the common ones and its own, of which the last wins. Takes the root, and a map or nil. */ -}}
{{- define "windlass.labels.and" -}}
{{- $root := index . 0 -}}
{{- $chart := printf "%s-%s" $root.Chart.Name $root.Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" -}}
{{- $labels := include "windlass.identity" $root | fromYaml -}}
{{- $_ := set $labels "app.kubernetes.io/version" $root.Chart.AppVersion -}}
{{- $_ := set $labels "app.kubernetes.io/managed-by" $root.Release.Service -}}
{{- $_ := set $labels "app.kubernetes.io/part-of" "windlass" -}}
{{- $_ := set $labels "helm.sh/chart" $chart -}}
{{ mergeOverwrite $labels $root.Values.commonLabels (default (dict) (index . 1)) | toYaml }}
{{- end -}}

{{- define "windlass.selector" -}}
{{ include "windlass.identity" . }}
app.kubernetes.io/component: operator
{{- end -}}

{{- define "windlass.redis.selector" -}}
{{ include "windlass.identity" . }}
app.kubernetes.io/component: redis
{{- end -}}

{{- /* The annotations of an object: the common ones and its own. Takes the root, a map or nil, and how far to indent. */ -}}
{{- define "windlass.annotations" -}}
{{- $root := index . 0 -}}
{{- $indent := index . 2 -}}
{{- with mergeOverwrite (dict) $root.Values.commonAnnotations (default (dict) (index . 1)) -}}
{{- dict "annotations" . | toYaml | nindent $indent -}}
{{- end -}}
{{- end -}}

{{- /* registry/repository@digest or registry/repository:tag. Takes a map of an image, and the tag where it has none. */ -}}
{{- define "windlass.image.of" -}}
{{- $image := index . 0 -}}
{{- $name := $image.repository -}}
{{- if $image.registry -}}{{- $name = printf "%s/%s" $image.registry $image.repository -}}{{- end -}}
{{- if $image.digest -}}
{{ $name }}@{{ $image.digest }}
{{- else -}}
{{ $name }}:{{ default (index . 1) $image.tag }}
{{- end -}}
{{- end -}}

{{- define "windlass.image" -}}
{{- include "windlass.image.of" (list .Values.image .Chart.AppVersion) -}}
{{- end -}}

{{- /* Whether the Redis for trying it out is installed. */ -}}
{{- define "windlass.redis.small" -}}
{{- if and .Values.redis.enabled (not .Values.redis.url) (not .Values.redis.existingSecret) -}}true{{- end -}}
{{- end -}}

{{- /* Whether the operator has a Redis of its own. */ -}}
{{- define "windlass.redis.any" -}}
{{- if or (include "windlass.redis.small" .) .Values.redis.url .Values.redis.existingSecret -}}true{{- end -}}
{{- end -}}

{{- /* The environment variables that tell of the operator's Redis. */ -}}
{{- define "windlass.redis.env" -}}
{{- if .Values.redis.existingSecret }}
# A file, because a running pod sees a new password there.
- {name: WINDLASS_REDIS_URL, value: {{ printf "file:///etc/windlass/redis/%s" .Values.redis.existingSecretKey | quote }}}
{{- else if .Values.redis.url }}
- {name: WINDLASS_REDIS_URL, value: {{ .Values.redis.url | quote }}}
{{- else if include "windlass.redis.small" . }}
- {name: WINDLASS_REDIS_URL, value: "redis://{{ include "windlass.name" . }}-redis.{{ .Release.Namespace }}.svc:6379"}
{{- end }}
{{- if .Values.redis.caExistingSecret }}
- {name: WINDLASS_REDIS_CA_FILE, value: {{ printf "/etc/windlass/redis-ca/%s" .Values.redis.caExistingSecretKey | quote }}}
{{- end }}
{{- end -}}

{{- /* The files that those name. */ -}}
{{- define "windlass.redis.mounts" -}}
{{- if .Values.redis.existingSecret }}
- {name: redis-url, mountPath: /etc/windlass/redis, readOnly: true}
{{- end }}
{{- if .Values.redis.caExistingSecret }}
- {name: redis-ca, mountPath: /etc/windlass/redis-ca, readOnly: true}
{{- end }}
{{- end -}}

{{- define "windlass.redis.volumes" -}}
{{- if .Values.redis.existingSecret }}
- name: redis-url
  secret:
    secretName: {{ .Values.redis.existingSecret | quote }}
    items: [{key: {{ .Values.redis.existingSecretKey | quote }}, path: {{ .Values.redis.existingSecretKey | quote }}}]
{{- end }}
{{- if .Values.redis.caExistingSecret }}
- name: redis-ca
  secret:
    secretName: {{ .Values.redis.caExistingSecret | quote }}
    items: [{key: {{ .Values.redis.caExistingSecretKey | quote }}, path: {{ .Values.redis.caExistingSecretKey | quote }}}]
{{- end }}
{{- end -}}

{{- /* What the operator does with the objects that it looks after; in every namespace, or in those that are named. */ -}}
{{- define "windlass.rules" -}}
# The objects themselves. Specs are never written; a finalizer is.
- apiGroups: [windlass.dev]
  resources: [taskqueues]
  verbs: [get, list, watch, patch]
- apiGroups: [windlass.dev]
  resources: [workerpools]
  verbs: [list, watch]
- apiGroups: [windlass.dev]
  resources: [taskqueues/status, workerpools/status]
  verbs: [patch]
# Only those that objects name, one by one: never listed, never watched.
- apiGroups: [""]
  resources: [secrets]
  verbs: [get]
- apiGroups: [events.k8s.io]
  resources: [events]
  verbs: [create, patch]
# What a WorkerPool is made of.
- apiGroups: [apps]
  resources: [deployments]
  verbs: [get, list, watch, create, patch]
# Which of them died, and what each is worth when some have to go.
- apiGroups: [""]
  resources: [pods]
  verbs: [get, list, watch, patch]
{{- end -}}
