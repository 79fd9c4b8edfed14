#!/usr/bin/env bash
# Shows what Windlass does, on this machine, in less than a minute:
#
#   examples/demo/run.sh            starts everything, gives it work, sums up, ends (make demo)
#   examples/demo/run.sh --stay     starts everything and leaves it running        (make dev)
#
# It needs the built binary (WINDLASS, default target/debug/windlass), and gets redis-server and
# Python 3 if they are not there. It ends with status 0 only if every task ended as it should.
set -euo pipefail

here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
root="$(cd "$here/../.." && pwd)"
windlass="${WINDLASS:-$root/target/debug/windlass}"
# How long all of it may take once everything is there, in seconds.
limit="${DEMO_LIMIT:-50}"

say() { printf '\n\033[1m▶ %s\033[0m\n' "$*" | plain; }
plain() { if [[ -t 1 && -z ${NO_COLOR:-} ]]; then cat; else sed 's/\x1b\[[0-9;]*m//g'; fi; }
die() { echo "demo: $*" >&2; exit 1; }

stay=no
case "$#:${1:-}" in
  0:) ;;
  1:--stay) stay=yes ;;
  *) echo "demo: usage: examples/demo/run.sh [--stay]" >&2; exit 2 ;;
esac

[[ -x $windlass ]] || die "$windlass is not there: run make demo, or cargo build first."
cache="${WINDLASS_CACHE:-$HOME/.cache/windlass}"
has_redis() {
  command -v redis-server >/dev/null || command -v valkey-server >/dev/null \
    || [[ -n ${WINDLASS_REDIS_SERVER:-} || -x $cache/servers/redis-7.0/redis-server ]]
}
if ! has_redis || ! command -v python3 >/dev/null; then
  echo "demo: getting redis-server and Python 3, as far as they are missing (no service is started)"
  "$root/tests/servers/install.sh" --redis
fi
# Bash counts from here on what the limit is about: not how long the installation took.
SECONDS=0

if [[ $stay == yes ]]; then
  cd "$root"
  exec "$windlass" dev -f "$here"
fi

# A place of its own, so that the demo begins with nothing and leaves nothing.
data="$(mktemp -d "${TMPDIR:-/tmp}/windlass-demo.XXXXXX")"
dev=
end() {
  local status=$?
  if [[ -n $dev ]] && kill -0 "$dev" 2>/dev/null; then
    kill -INT "$dev"
    wait "$dev" || true
  fi
  rm -rf "$data"
  exit "$status"
}
trap end EXIT
trap 'exit 130' INT TERM

say "windlass dev -f examples/demo   (two queues, two pools, a redis-server of its own)"
"$windlass" dev -f "$here" --data-dir "$data/windlass" &
dev=$!
until [[ -e $data/windlass/env ]]; do
  kill -0 "$dev" 2>/dev/null || die "windlass dev did not start."
  [[ $SECONDS -lt $limit ]] || die "windlass dev took too long to start."
  sleep 0.1
done
source "$data/windlass/env"

# enqueue WHAT QUEUE ARGUMENTS…: puts a task into a queue and says what it is for.
enqueue() {
  say "$1"
  shift
  local queue="$1"
  shift
  local shown="" word
  for word in "$@"; do
    if [[ $word == *[\{\ ]* ]]; then shown+=" '$word'"; else shown+=" $word"; fi
  done
  echo "  \$ windlass task enqueue -q $queue$shown"
  "$windlass" task enqueue -q "$queue" "$@" >/dev/null
}

enqueue "Work that succeeds: three receipts, one of them urgent" mail --type receipt --payload '{"to":"ada"}' -n 2
enqueue "… the urgent one" mail --type receipt --payload '{"to":"grace"}' --priority 10
enqueue "Work that waits: a newsletter, in six seconds" mail --type newsletter --payload '{"issue":7}' --delay 6s
enqueue "The same charge twice: the key makes it one task" orders \
  --type charge --payload '{"order":1}' --idempotency-key order-1
enqueue "… the second time" orders --type charge --payload '{"order":1}' --idempotency-key order-1
enqueue "Work that fails twice and then succeeds" orders --type charge --payload '{"order":2,"bank":"busy"}'
enqueue "Work that is told to come back later; that costs no retry" orders \
  --type charge --payload '{"order":3,"bank":"slow down"}'
enqueue "Work that kills its worker: the task runs again elsewhere" orders --type pack --payload '{"order":1}'
enqueue "Work that is wrong for good: straight to the dead letters" orders --type charge --payload '{"order":-1}'
enqueue "Work that never succeeds: retried, then a dead letter" orders --type export --payload '{"to":"ftp"}' -n 2

say "Now it runs. Every line with a │ is windlass dev telling what happens."
# count QUEUE: succeeded, dead, and not yet finished.
count() {
  "$windlass" task list -q "$1" -o json >"$data/tasks.json"
  python3 - "$data/tasks.json" <<'PY'
import json, sys
text = open(sys.argv[1]).read().strip()
tasks = json.loads(text) if text.startswith("[") else [json.loads(line) for line in text.splitlines()]
states = [task["state"] for task in tasks]
print(states.count("succeeded"), states.count("failed"), len([s for s in states if s not in ("succeeded", "failed")]))
PY
}
while :; do
  orders="$(count orders)"
  mail="$(count mail)"
  [[ $orders != "4 3 0" || $mail != "4 0 0" ]] || break
  [[ $SECONDS -lt $limit ]] || break
  sleep 0.5
done

say "What became of it: windlass queue list"
"$windlass" queue list
for queue in orders mail; do
  say "windlass task list -q $queue"
  "$windlass" task list -q "$queue"
done
say "Dead letters by cause: windlass dlq list -q orders"
"$windlass" dlq list -q orders

say "Ending: workers finish what they hold, then Redis writes its data"
kill -INT "$dev"
wait "$dev" || die "windlass dev did not end well."
dev=

[[ $orders == "4 3 0" ]] || die "of the orders, 4 should have succeeded and 3 died; it was: $orders (unfinished last)."
[[ $mail == "4 0 0" ]] || die "all 4 mails should have succeeded; it was: $mail."
say "8 tasks succeeded (one after two failures, one after a pause, one after its worker was killed), 3 became dead
  letters, none was lost. It took $SECONDS s. Next: make dev, and edit examples/demo/*.yaml while it runs."
