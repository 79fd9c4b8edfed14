-- Times are RFC 3339 in UTC with three decimals, so that their order as text is their order in time.

-- Every move of every task, and every decision about a dead letter.
CREATE TABLE event_log (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    queue TEXT NOT NULL,
    event_type TEXT NOT NULL,
    task_id TEXT NOT NULL,
    epoch INTEGER NOT NULL,
    from_state TEXT,
    to_state TEXT,
    task_type TEXT NOT NULL,
    retry_count INTEGER NOT NULL,
    tenant_id TEXT,
    trace_id TEXT,
    consumer TEXT,
    message_id TEXT,
    detail TEXT,
    idempotency_key TEXT,
    task_created_at TEXT,
    occurred_at TEXT NOT NULL,
    recorded_at TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now'))
) STRICT;

-- A move is recorded once; an id that is used again is another task, created at another time.
-- Decisions move no task, so their to_state is null, and nulls differ.
CREATE UNIQUE INDEX event_log_move ON event_log (queue, task_id, task_created_at, epoch, to_state);

-- An outside effect is recorded once a key. Moves carry no key.
CREATE UNIQUE INDEX event_log_side_effect ON event_log (queue, COALESCE(tenant_id, ''), idempotency_key)
    WHERE idempotency_key IS NOT NULL;

CREATE INDEX event_log_time ON event_log (queue, occurred_at, id);
CREATE INDEX event_log_trace ON event_log (queue, trace_id) WHERE trace_id IS NOT NULL;

-- Dead letters, with what was decided about each.
CREATE TABLE dlq_items (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    queue TEXT NOT NULL,
    dlq_id TEXT NOT NULL,
    task_id TEXT NOT NULL,
    task_type TEXT NOT NULL,
    payload TEXT NOT NULL,
    priority INTEGER NOT NULL,
    error TEXT NOT NULL,
    error_code TEXT NOT NULL,
    fingerprint TEXT NOT NULL,
    retry_count INTEGER NOT NULL,
    crash_count INTEGER NOT NULL,
    release_count INTEGER NOT NULL,
    max_retries INTEGER,
    idempotency_key TEXT,
    tenant_id TEXT,
    trace_id TEXT,
    extras TEXT NOT NULL,
    history TEXT NOT NULL,
    replayed_from TEXT,
    created_at TEXT NOT NULL,
    failed_at TEXT NOT NULL,
    decision TEXT NOT NULL DEFAULT 'open',
    decided_at TEXT,
    replayed_as TEXT,
    recorded_at TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now')),
    UNIQUE (queue, dlq_id)
) STRICT;

CREATE INDEX dlq_items_time ON dlq_items (queue, failed_at, id);
CREATE INDEX dlq_items_cause ON dlq_items (queue, fingerprint, failed_at, id);
CREATE INDEX dlq_items_retention ON dlq_items (queue, COALESCE(decided_at, failed_at));

-- Who said what about a dead letter, whether or not that is (still) here. review_key makes recording it
-- twice recording it once.
CREATE TABLE dlq_reviews (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    queue TEXT NOT NULL,
    dlq_id TEXT NOT NULL,
    review_key TEXT NOT NULL,
    action TEXT NOT NULL,
    person TEXT NOT NULL,
    reason TEXT,
    new_task_id TEXT,
    reviewed_at TEXT NOT NULL,
    recorded_at TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now')),
    UNIQUE (queue, dlq_id, review_key)
) STRICT;

CREATE INDEX dlq_reviews_time ON dlq_reviews (queue, reviewed_at);

-- A queue in numbers, one row a sample.
CREATE TABLE task_queue_metrics (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    queue TEXT NOT NULL,
    sampled_at TEXT NOT NULL,
    tasks_created INTEGER NOT NULL,
    tasks_completed INTEGER NOT NULL,
    tasks_failed INTEGER NOT NULL,
    average_latency_ms INTEGER,
    worker_heartbeat_delay_ms INTEGER,
    retrying_ratio REAL NOT NULL,
    invalid_transitions INTEGER NOT NULL,
    error_rates_per_type TEXT NOT NULL,
    dlq_growth_per_tenant TEXT NOT NULL,
    UNIQUE (queue, sampled_at)
) STRICT;
