{{- /*
What a schema cannot say in a sentence. Rendered with the Deployment, so that nothing is installed with values like these.
*/ -}}
{{- define "windlass.validate" -}}
{{- include "windlass.validate.redis" . -}}
{{- include "windlass.validate.log" . -}}
{{- if and (not .Values.serviceAccount.create) (not .Values.serviceAccount.name) -}}
{{- fail "serviceAccount.create is false: say in serviceAccount.name which ServiceAccount the operator is to use" -}}
{{- end -}}
{{- include "windlass.validate.budget" . -}}
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

{{- /* A host, or an address in brackets, and perhaps a port: as a part of a regular expression. */ -}}
{{- define "windlass.validate.host" -}}
(\[[0-9A-Fa-f:.]+\]|[0-9A-Za-z._-]+)(:[0-9]+)?
{{- end -}}

{{- /* Whether a URL holds a user or a password. A slash in a password ends no host, so any @ counts. */ -}}
{{- define "windlass.validate.secret" -}}
{{- if or (contains "@" .) (regexMatch "[?&](user|username|pass|password)=" .) -}}true{{- end -}}
{{- end -}}

{{- define "windlass.validate.redis" -}}
{{- $url := .Values.redis.url -}}
{{- if and $url .Values.redis.existingSecret -}}
{{- fail "redis.url and redis.existingSecret both name the operator's Redis: give one of them" -}}
{{- end -}}
{{- if include "windlass.validate.secret" $url -}}
{{- fail "redis.url holds a user or a password, which everybody who may read Deployments would see: put the URL into a Secret (kubectl create secret generic windlass-operator-redis --from-literal=url=redis://USER:PASSWORD@HOST:PORT) and name it in redis.existingSecret" -}}
{{- end -}}
{{- $host := include "windlass.validate.host" . -}}
{{- $several := printf "%s(,%s)*" $host $host -}}
{{- if contains "+sentinel://" $url -}}
{{- if not (regexMatch (printf "://%s(/|$)" $several) $url) -}}
{{- fail "redis.url names no Sentinel: write redis+sentinel://HOST:PORT,…/MASTER" -}}
{{- else if not (regexMatch "://[^/]+/[^/]" $url) -}}
{{- fail "redis.url does not say which master the Sentinels are asked for: write redis+sentinel://HOST:PORT,…/MASTER" -}}
{{- end -}}
{{- else if contains "+cluster://" $url -}}
{{- if not (regexMatch (printf "://%s/?$" $several) $url) -}}
{{- fail "redis.url names no node of the Cluster, or more than nodes: write redis+cluster://HOST:PORT,…" -}}
{{- end -}}
{{- else if and $url (not (regexMatch (printf "://%s([/?#]|$)" $host) $url)) -}}
{{- fail "redis.url does not name one server: write redis://HOST:PORT; for several redis+sentinel://HOST:PORT,…/MASTER or redis+cluster://HOST:PORT,…" -}}
{{- end -}}
{{- end -}}

{{- define "windlass.validate.log" -}}
{{- $url := .Values.eventLog.url -}}
{{- if and $url .Values.eventLog.existingSecret -}}
{{- fail "eventLog.url and eventLog.existingSecret both name the event log: give one of them" -}}
{{- end -}}
{{- if include "windlass.validate.secret" $url -}}
{{- fail "eventLog.url holds a user or a password, which everybody who may read Deployments would see: put the URL into a Secret (kubectl create secret generic windlass-event-log --from-literal=url=postgres://USER:PASSWORD@HOST:PORT/DATABASE) and name it in eventLog.existingSecret" -}}
{{- end -}}
{{- if hasPrefix "sqlite:" $url -}}
{{- if gt (int .Values.replicaCount) 1 -}}
{{- fail "eventLog.url names an SQLite file, which operators on two nodes cannot share: use PostgreSQL, or replicaCount 1" -}}
{{- end -}}
{{- if not .Values.extraVolumeMounts -}}
{{- fail "eventLog.url names an SQLite file, and the pod has no place that outlives it: give a volume in extraVolumes and extraVolumeMounts, or use PostgreSQL" -}}
{{- end -}}
{{- $path := regexReplaceAll "[?#].*$" (trimPrefix "sqlite://" $url) "" -}}
{{- $mounted := false -}}
{{- range .Values.extraVolumeMounts -}}
{{- if hasPrefix (printf "%s/" (trimSuffix "/" .mountPath)) (clean $path) -}}{{- $mounted = true -}}{{- end -}}
{{- end -}}
{{- if or (not $mounted) (hasSuffix "/" $path) -}}
{{- fail "eventLog.url names no file on a volume of extraVolumeMounts: write sqlite:// and the whole path, like sqlite:///history/events.db where a volume is mounted at /history" -}}
{{- end -}}
{{- else if and $url (not (regexMatch (printf "://%s([/?]|$)" (include "windlass.validate.host" .)) $url)) -}}
{{- fail "eventLog.url names no host: write postgres://HOST:PORT/DATABASE" -}}
{{- end -}}
{{- end -}}

{{- define "windlass.validate.budget" -}}
{{- $budget := .Values.podDisruptionBudget -}}
{{- if and (not (kindIs "invalid" $budget.minAvailable)) (not (kindIs "invalid" $budget.maxUnavailable)) -}}
{{- fail "podDisruptionBudget.minAvailable and podDisruptionBudget.maxUnavailable exclude each other: set one of them to null" -}}
{{- end -}}
{{- if and $budget.enabled (kindIs "invalid" $budget.minAvailable) (kindIs "invalid" $budget.maxUnavailable) -}}
{{- fail "podDisruptionBudget is enabled: say podDisruptionBudget.minAvailable or podDisruptionBudget.maxUnavailable" -}}
{{- end -}}
{{- $replicas := int .Values.replicaCount -}}
{{- if and $budget.enabled (gt $replicas 1) -}}
{{- $least := $budget.minAvailable -}}
{{- if kindIs "string" $least -}}
{{- /* Kubernetes rounds up. */ -}}
{{- $least = div (add (mul (trimSuffix "%" $least | int) $replicas) 99) 100 -}}
{{- end -}}
{{- if and (not (kindIs "invalid" $least)) (ge (int $least) $replicas) -}}
{{- fail (printf "podDisruptionBudget.minAvailable is %v of %d operators, so no node with one of them could ever be drained: leave at least one out" $budget.minAvailable $replicas) -}}
{{- end -}}
{{- if regexMatch "^0+%$" (toString $budget.maxUnavailable) -}}
{{- fail "podDisruptionBudget.maxUnavailable is 0%, so no node with an operator could ever be drained: let at least one be away" -}}
{{- end -}}
{{- end -}}
{{- end -}}
