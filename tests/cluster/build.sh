#!/usr/bin/env bash
# Builds the Kubernetes that the tests run on, from its published Go modules:
#
#   tests/cluster/build.sh            everything that is missing; minutes the first time, then nothing
#   tests/cluster/build.sh --where    only print the folder that the programs are in
#
# The folder lies under $WINDLASS_CACHE (default: ~/.cache/windlass) and is named by the content of
# the modules and of this script, so that two checkouts never mix. A program is put there when it is
# whole: an interrupted build goes on where it was.
set -euo pipefail

here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
cache="${WINDLASS_CACHE:-$HOME/.cache/windlass}"

# Where there is no Go, or one too old to fetch a newer one by itself. From the proxy that the modules
# come from as well; the sums are those of the zips.
GO=1.26.8
declare -A GO_SUM=(
  [amd64]=30c2b1bf7dcc88d3eb0a1364e47ddd9128edb3110a30e8a0ef61cd5856b31de7
  [arm64]=02b36b6787b3ac767668f630e2998df45a3b1f9ffee08d1bf3ef6487cd658d99
)

# What is built, in the order in which a test can use it: MODULE PROGRAM PACKAGE.
programs=(
  "etcd etcd go.etcd.io/etcd/server/v3"
  "kubernetes kube-apiserver k8s.io/kubernetes/cmd/kube-apiserver"
  "kubernetes kube-controller-manager k8s.io/kubernetes/cmd/kube-controller-manager"
  "kubernetes kubectl k8s.io/kubernetes/cmd/kubectl"
  "kubernetes kube-scheduler k8s.io/kubernetes/cmd/kube-scheduler"
  "kubernetes kubelet k8s.io/kubernetes/cmd/kubelet"
  "kubernetes kube-proxy k8s.io/kubernetes/cmd/kube-proxy"
  "coredns coredns ."
  "helm helm helm.sh/helm/v4/cmd/helm"
)

say() { echo "cluster: $*"; }
die() { echo "cluster: $*" >&2; exit 1; }

key="$(cat "$here"/go/*/go.mod "$here"/go/*/go.sum "$here"/go/*/*.go "$here"/{build.sh,pause.c} | sha256sum)"
target="$cache/cluster/${key:0:16}"
bin="$target/bin"

case "$#:${1:-}" in
  0:) ;;
  1:--where) echo "$bin"; exit 0 ;;
  *) echo "cluster: usage: tests/cluster/build.sh [--where]" >&2; exit 2 ;;
esac

mkdir -p "$bin"

missing=()
for line in "${programs[@]}"; do
  read -r _ program _ <<<"$line"
  [[ -x $bin/$program ]] || missing+=("$line")
done
[[ -x $bin/pause ]] || missing+=("c pause pause.c")
if [[ ${#missing[@]} -eq 0 ]]; then
  touch "$target"
  exit 0
fi

# One build at a time: two would only slow each other down.
exec 8>"$cache/cluster/.build.lock"
if ! flock --nonblock 8; then
  say "waiting for another build to end"
  flock 8
fi

# Whatever the environment says, these modules are built as they are, by the Go that they ask for.
export GOTOOLCHAIN=auto GOWORK=off

# fetch URL FILE
fetch() {
  if command -v curl >/dev/null; then
    curl -fsSL -o "$2" "$1"
  else
    python3 -c 'import sys, urllib.request; urllib.request.urlretrieve(*sys.argv[1:])' "$1" "$2"
  fi
}

# fetch_module NAME VERSION FILE: from the first proxy of GOPROXY that has it.
fetch_module() {
  local proxies proxy
  IFS=',|' read -ra proxies <<<"${GOPROXY:-https://proxy.golang.org}"
  for proxy in "${proxies[@]}"; do
    # What remains is `direct`, which this module has no place for, and `off`.
    [[ $proxy == *://* ]] || continue
    if fetch "${proxy%/}/$1/@v/$2.zip" "$3"; then return 0; fi
  done
  return 1
}

# need_go: a Go on the PATH that is at least 1.21, which fetches the version that the modules ask for.
need_go() {
  local minor=0
  if command -v go >/dev/null && [[ "$(go env GOVERSION)" =~ ^go1\.([0-9]+) ]]; then minor="${BASH_REMATCH[1]}"; fi
  [[ $minor -lt 21 ]] || return 0
  local arch
  case "$(uname -m)" in
    x86_64) arch=amd64 ;;
    aarch64) arch=arm64 ;;
    *) die "There is no Go 1.21 or newer here, and none to fetch for $(uname -m); please install one." ;;
  esac
  local name="golang.org/toolchain@v0.0.1-go$GO.linux-$arch"
  local place="$cache/cluster/go-$GO"
  if [[ ! -x $place/bin/go ]]; then
    say "fetching Go $GO"
    local tmp
    tmp="$(mktemp -d "$cache/cluster/.go.XXXXXX")"
    # shellcheck disable=SC2064 # the folder's name is known now
    trap "rm -rf '$tmp'" EXIT
    fetch_module "${name%@*}" "${name#*@}" "$tmp/go.zip" \
      || die "Go could not be fetched from ${GOPROXY:-proxy.golang.org}; please install Go 1.21 or newer."
    echo "${GO_SUM[$arch]}  $tmp/go.zip" | sha256sum --check --quiet || die "What was fetched is not Go $GO."
    python3 -m zipfile -e "$tmp/go.zip" "$tmp"
    chmod -R a+rX,u+w "$tmp/$name"
    chmod a+x "$tmp/$name"/bin/* "$tmp/$name"/pkg/tool/*/*
    rm -rf "$place"
    mv "$tmp/$name" "$place"
  fi
  export PATH="$place/bin:$PATH"
}

# A builder that runs for minutes without a word looks dead.
build() {
  local module="$1" program="$2" package="$3" number="$4" started=$SECONDS
  local flags="-s -w"
  if [[ $module == kubernetes ]]; then
    # Kubernetes learns its version from its linker; without one the apiserver says 0.0.0.
    local version variable=k8s.io/component-base/version
    version="$(sed -n 's/.*k8s.io\/kubernetes v\([0-9.]*\).*/\1/p' "$here/go/kubernetes/go.mod" | head -n 1)"
    local minor="${version#*.}"
    flags+=" -X $variable.gitVersion=v$version -X $variable.gitMajor=1 -X $variable.gitMinor=${minor%%.*}"
  fi
  say "building $program ($number)"
  (
    # It dies with us. What it has started goes on for a moment, and keeps the lock for as long.
    cd "$here/go/$module"
    exec env CGO_ENABLED=0 GOFLAGS=-mod=readonly setpriv --pdeathsig KILL -- \
      go build -trimpath -buildvcs=false -ldflags="$flags" -o "$bin/.$program.new" "$package"
  ) &
  local builder=$!
  while kill -0 "$builder" 2>/dev/null; do
    local waited=$((SECONDS - started))
    if [[ $waited -gt 0 && $((waited % 60)) -eq 0 ]]; then say "still building $program (${waited} s)"; fi
    sleep 1
  done
  wait "$builder" || die "go could not build $program."
  mv "$bin/.$program.new" "$bin/$program"
  say "built $program in $((SECONDS - started)) s"
}

say "Kubernetes is built once, which takes about a quarter of an hour on two cores"
started=$SECONDS
number=0
for line in "${missing[@]}"; do
  read -r module program package <<<"$line"
  number=$((number + 1))
  [[ ! -x $bin/$program ]] || continue # by the build that we waited for
  if [[ $module == c ]]; then
    cc -static -Os -Wall -o "$bin/.$program.new" "$here/$package" || die "cc could not build $program."
    mv "$bin/.$program.new" "$bin/$program"
  else
    need_go
    build "$module" "$program" "$package" "$number of ${#missing[@]}"
  fi
done
say "done in $((SECONDS - started)) s, in $bin"

# Folders of older versions that nobody used for two weeks.
find "$cache/cluster" -mindepth 1 -maxdepth 1 -type d -regex '.*/[0-9a-f]+' -mtime +14 -not -path "$target" -exec rm -rf {} +
