#!/bin/sh
# A handler that misbehaves at its first attempt, as its payload says.
read -r task
behave() { case $task in *"\"behave\":\"$1\""*) return 0 ;; esac; return 1; }
if behave badly; then
  echo "this order is not acceptable" >&2
  exit 65
fi
if [ "$WINDLASS_ATTEMPT" -gt 1 ]; then exit 0; fi
if behave fail; then exit 1; fi
if behave crash; then kill -9 $$; fi
if behave hang; then trap '' TERM; sleep 600; fi
# The grandchild holds the output open and would live for ten minutes.
if behave fork; then sleep 600 & fi
exit 0
