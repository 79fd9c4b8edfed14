#!/bin/sh
# Runs one task of the queue `mail`. A handler can be as small as this: read the
# task, do the work, print the result.
task=$(cat)
[ -n "$task" ] || { echo "there is no task" >&2; exit 65; }
sleep 0.3
echo "{\"sent\": \"$WINDLASS_TYPE\", \"from\": \"$FROM\"}"
