{{- /*
The alerts, as groups of rules. docs/alerts.md says of each what to do. A queue's numbers come from the leader alone, so
there is one series a queue; `max by` drops the labels of the pod, which change with the leader. Words in {{ "{{ }}" }} are
Prometheus' own templates.
*/ -}}
{{- define "windlass.alerts" -}}
{{- $t := .Values.prometheusRule.thresholds -}}
{{- $operators := printf "{namespace=%q, service=%q}" .Release.Namespace (include "windlass.name" .) -}}
- name: windlass.tasks
  rules:
  - alert: WindlassTooManyRetries
    expr: |-
      max by (queue) (windlass_queue_retrying_ratio) > {{ $t.retryingRatio }}
      and max by (queue) (windlass_queue_retrying) >= {{ $t.retryingTasks }}
    for: 10m
    labels: {severity: warning}
    annotations:
      summary: "Many tasks of {{ "{{ $labels.queue }}" }} wait for a retry"
      description: "{{ "{{ $value | humanizePercentage }}" }} of the live tasks of {{ "{{ $labels.queue }}" }} wait for a retry, for ten minutes now."
  - alert: WindlassAttemptsFail
    expr: |-
      sum by (queue, type) (rate(windlass_attempts_failed_total[10m]))
      / sum by (queue, type) (rate(windlass_attempts_total[10m])) > {{ $t.failedAttemptsRatio }}
    for: 10m
    labels: {severity: warning}
    annotations:
      summary: "Attempts of {{ "{{ $labels.type }}" }} in {{ "{{ $labels.queue }}" }} fail"
      description: "{{ "{{ $value | humanizePercentage }}" }} of the attempts of tasks of the type {{ "{{ $labels.type }}" }} in {{ "{{ $labels.queue }}" }} failed in the last ten minutes."
  - alert: WindlassDeadLettersOfTenantGrow
    # A tenant's series appears with its first dead letters, which increase() does not count: one that was not there before
    # counts whole. Unless nothing was: then it is Prometheus that is new, and the dead letters may be old.
    expr: |-
      sum by (queue, tenant) (
        (windlass_dead_letters_total unless windlass_dead_letters_total offset 15m)
        and on (job) windlass_operator_leads offset 15m
        or increase(windlass_dead_letters_total[15m])
      ) > {{ $t.deadLettersPerTenant }}
    labels: {severity: warning}
    annotations:
      summary: "Tasks of one tenant of {{ "{{ $labels.queue }}" }} become dead letters"
      description: "{{ "{{ $value | humanize }}" }} tasks of the tenant {{ "{{ $labels.tenant }}" }} in {{ "{{ $labels.queue }}" }} became dead letters within 15 minutes."
  - alert: WindlassDeadLettersOfQueueGrow
    # Across a change of leaders, whose series are different ones; of a queue that is younger than that, since it was made.
    expr: |-
      (
        max by (queue) (windlass_queue_dead_lettered) - max by (queue) (windlass_queue_dead_lettered offset 15m)
        or max by (queue) (delta(windlass_queue_dead_lettered[15m]))
      ) > {{ $t.deadLettersPerQueue }}
    labels: {severity: warning}
    annotations:
      summary: "Dead letters of {{ "{{ $labels.queue }}" }} pile up"
      description: "{{ "{{ $labels.queue }}" }} has {{ "{{ $value | humanize }}" }} more dead letters that nobody has decided on than 15 minutes ago."
  - alert: WindlassDeadLettersNotRecorded
    expr: min by (queue) (min_over_time(windlass_queue_dlq_pending[10m])) > 0
    for: 5m
    labels: {severity: warning}
    annotations:
      summary: "Dead letters of {{ "{{ $labels.queue }}" }} are not recorded"
      description: "Tasks of {{ "{{ $labels.queue }}" }} wait in dlq_pending without a break. Usually the event log cannot be written."
  - alert: WindlassInvalidTransitions
    expr: max by (queue) (increase(windlass_invalid_transitions_total[5m])) > 0
    for: 5m
    labels: {severity: critical}
    annotations:
      summary: "Moves of tasks in {{ "{{ $labels.queue }}" }} are refused (WF_STATE_TRANSITION_INVALID)"
      description: "Somebody keeps asking for moves in {{ "{{ $labels.queue }}" }} that a task must not make; {{ "{{ $value | humanize }}" }} within five minutes. Nothing was changed by them."
- name: windlass.queues
  rules:
  - alert: WindlassTaskWaitsTooLong
    expr: |-
      max by (queue) (windlass_queue_oldest_task_age_seconds) > {{ $t.oldestTaskSeconds }}
      unless on (queue) max by (queue) (windlass_queue_paused) == 1
    for: 5m
    labels: {severity: warning}
    annotations:
      summary: "Ready tasks of {{ "{{ $labels.queue }}" }} wait too long"
      description: "The oldest ready task of {{ "{{ $labels.queue }}" }} has waited for {{ "{{ $value | humanizeDuration }}" }}."
  - alert: WindlassNoWorkers
    expr: |-
      max by (queue) (windlass_queue_backlog) > 0
      and max by (queue) (windlass_queue_workers) == 0
      unless on (queue) max by (queue) (windlass_queue_paused) == 1
    for: 10m
    labels: {severity: warning}
    annotations:
      summary: "Nobody works on {{ "{{ $labels.queue }}" }}"
      description: "{{ "{{ $value }}" }} tasks of {{ "{{ $labels.queue }}" }} are ready and no worker has been there for ten minutes."
  - alert: WindlassOutboxFilling
    expr: max by (queue) (windlass_queue_outbox / windlass_queue_outbox_bound) > {{ $t.outboxRatio }}
    for: 5m
    labels: {severity: critical}
    annotations:
      summary: "The outbox of {{ "{{ $labels.queue }}" }} fills"
      description: "The outbox of {{ "{{ $labels.queue }}" }} is {{ "{{ $value | humanizePercentage }}" }} full. When it is full new tasks are refused; what is there goes on."
- name: windlass.operator
  rules:
  - alert: WindlassOperatorAbsent
    expr: absent(windlass_operator_leads{{ $operators }})
    for: 5m
    labels: {severity: critical}
    annotations:
      summary: "No operator of Windlass is seen"
      description: "No operator in {{ .Release.Namespace }} shows its metrics. Workers go on; retries after lost workers, delays without a claim, history and statuses wait."
  - alert: WindlassNoLeader
    expr: sum(windlass_operator_leads{{ $operators }}) < 1
    for: 2m
    labels: {severity: critical}
    annotations:
      summary: "No operator of Windlass leads"
      description: "Operators run in {{ .Release.Namespace }} and none of them has held the Lease for two minutes."
  - alert: WindlassReconciliationFails
    expr: sum by (kind) (rate(windlass_operator_reconciliations_total{outcome="failed"}[10m])) > 0
    for: 15m
    labels: {severity: warning}
    annotations:
      summary: "Objects of the kind {{ "{{ $labels.kind }}" }} cannot be reconciled"
      description: "Reconciliations of the kind {{ "{{ $labels.kind }}" }} have failed for 15 minutes."
  - alert: WindlassLoopFails
    expr: |-
      sum by (loop) (rate(windlass_loop_errors_total[5m]))
      / sum by (loop) (rate(windlass_loop_runs_total[5m])) > 0.5
    for: 10m
    labels: {severity: warning}
    annotations:
      summary: "The leader's loop {{ "{{ $labels.loop }}" }} fails"
      description: "{{ "{{ $value | humanizePercentage }}" }} of the steps of the loop {{ "{{ $labels.loop }}" }} fail."
  - alert: WindlassLoopLate
    expr: histogram_quantile(0.99, sum by (loop, le) (rate(windlass_loop_lateness_seconds_bucket[10m]))) > {{ $t.loopLatenessSeconds }}
    for: 10m
    labels: {severity: warning}
    annotations:
      summary: "The leader's loop {{ "{{ $labels.loop }}" }} is late"
      description: "One in a hundred steps of the loop {{ "{{ $labels.loop }}" }} begins {{ "{{ $value | humanizeDuration }}" }} after it was due."
{{- end -}}
