#!/bin/sh
# An exec handler in plain shell.
#
#     windlass worker -q shop/pages --exec -- ./exec_handler.sh
#
# The task is JSON on standard input; what scripts need most is in the
# environment (WINDLASS_TASK_ID, WINDLASS_TYPE, WINDLASS_ATTEMPT, …). Standard
# output is the result. What is written to standard error goes to the worker's
# log, and its end becomes the task's error if the exit status is not 0.
set -eu

# Whatever this starts is in its process group and ends with it. The trap is for
# what lives elsewhere: here, a scratch directory.
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
trap 'exit 143' TERM

cat >"$scratch/task.json"
echo "attempt $WINDLASS_ATTEMPT at $WINDLASS_TASK_ID" >&2

case "$WINDLASS_TYPE" in
size)
    wc -c <"$scratch/task.json" # a number is JSON
    ;;
checksum)
    cksum <"$scratch/task.json" | cut -d ' ' -f 1
    ;;
limited)
    # 75: not now. This costs no attempt; the queue's maxReleases bounds it.
    echo "retry-after: 1" >&2
    exit 75
    ;;
*)
    # 65: this will never work. The task goes to the dead letters at once.
    echo "no such type: $WINDLASS_TYPE" >&2
    exit 65
    ;;
esac
