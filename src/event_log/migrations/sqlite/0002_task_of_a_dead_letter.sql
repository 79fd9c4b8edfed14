-- The events of a task stay for as long as its dead letter: each that is old is asked about.
CREATE INDEX dlq_items_task ON dlq_items (queue, task_id);
