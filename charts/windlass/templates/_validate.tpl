{{- /*
What a schema cannot say in a sentence. Rendered with the Deployment, so that nothing is installed with values like these.
*/ -}}
{{- define "windlass.validate" -}}
{{- if and .Values.redis.url .Values.redis.existingSecret -}}
{{- fail "redis.url and redis.existingSecret both name the operator's Redis: give one of them" -}}
{{- end -}}
{{- if regexMatch "://[^/]*@" .Values.redis.url -}}
{{- fail "redis.url holds a user or a password, which everybody who may read Deployments would see: put the URL into a Secret (kubectl create secret generic windlass-redis --from-literal=url=redis://USER:PASSWORD@HOST:PORT) and name it in redis.existingSecret" -}}
{{- end -}}
{{- if and .Values.eventLog.url .Values.eventLog.existingSecret -}}
{{- fail "eventLog.url and eventLog.existingSecret both name the event log: give one of them" -}}
{{- end -}}
{{- if regexMatch "://[^/]*@" .Values.eventLog.url -}}
{{- fail "eventLog.url holds a user or a password, which everybody who may read Deployments would see: put the URL into a Secret (kubectl create secret generic windlass-event-log --from-literal=url=postgres://USER:PASSWORD@HOST:PORT/DATABASE) and name it in eventLog.existingSecret" -}}
{{- end -}}
{{- if hasPrefix "sqlite:" .Values.eventLog.url -}}
{{- if gt (int .Values.replicaCount) 1 -}}
{{- fail "eventLog.url names an SQLite file, which operators on two nodes cannot share: use PostgreSQL, or replicaCount 1" -}}
{{- end -}}
{{- if not .Values.extraVolumeMounts -}}
{{- fail "eventLog.url names an SQLite file, and the pod has no place that outlives it: give a volume in extraVolumes and extraVolumeMounts, or use PostgreSQL" -}}
{{- end -}}
{{- end -}}
{{- if and (not .Values.serviceAccount.create) (not .Values.serviceAccount.name) -}}
{{- fail "serviceAccount.create is false: say in serviceAccount.name which ServiceAccount the operator is to use" -}}
{{- end -}}
{{- $budget := .Values.podDisruptionBudget -}}
{{- if and (not (kindIs "invalid" $budget.minAvailable)) (not (kindIs "invalid" $budget.maxUnavailable)) -}}
{{- fail "podDisruptionBudget.minAvailable and podDisruptionBudget.maxUnavailable exclude each other: set one of them to null" -}}
{{- end -}}
{{- if and $budget.enabled (kindIs "invalid" $budget.minAvailable) (kindIs "invalid" $budget.maxUnavailable) -}}
{{- fail "podDisruptionBudget is enabled: say podDisruptionBudget.minAvailable or podDisruptionBudget.maxUnavailable" -}}
{{- end -}}
{{- if and .Values.helmTest.namespace .Values.watchNamespaces (not (has .Values.helmTest.namespace .Values.watchNamespaces)) -}}
{{- fail (printf "helmTest.namespace is %s, which is not among watchNamespaces: nobody would look after the queue of the test" .Values.helmTest.namespace) -}}
{{- end -}}
{{- range $name, $_ := .Values.commonLabels -}}
{{- if or (hasPrefix "app.kubernetes.io/" $name) (hasPrefix "helm.sh/" $name) -}}
{{- fail (printf "commonLabels has %s, which the chart sets itself: choose another label" $name) -}}
{{- end -}}
{{- end -}}
{{- range $name, $_ := .Values.podLabels -}}
{{- if hasPrefix "app.kubernetes.io/" $name -}}
{{- fail (printf "podLabels has %s, by which the Deployment finds its pods: choose another label" $name) -}}
{{- end -}}
{{- end -}}
{{- end -}}
