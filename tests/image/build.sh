#!/usr/bin/env bash
# Builds the real Dockerfile without Docker and without a registry, and checks what came out:
#
#   tests/image/build.sh          for this machine's processor
#   tests/image/build.sh arm64    for another one (amd64 or arm64)
#
# Buildah from Debian's packages builds it. The one thing that would come from a registry, Rust's
# official image, is made here in the same shape: Debian, a C compiler, and Rust by rustup under
# /usr/local. Everything the Dockerfile does runs as it would anywhere: apt-get, rustup, cargo.
#
# It all lands under $WINDLASS_CACHE/image (default: ~/.cache/windlass/image): Buildah's storage, what
# cargo fetched and built, and the archive windlass-ARCH.tar. Remove the folder to start afresh.
set -euo pipefail

tree="$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)"
cache="${WINDLASS_CACHE:-$HOME/.cache/windlass}/image"

say() { echo "image: $*"; }
die() { echo "image: $*" >&2; exit 1; }

command -v apt-get >/dev/null || die "This needs a Debian-like system. Elsewhere: docker build -t windlass ."
[[ $EUID -eq 0 ]] || die "This needs root: it makes a Debian system and runs commands in it. With Docker: docker build -t windlass ."
command -v rustup >/dev/null || die "This needs rustup, which brings Rust for the builder."

arch="${1:-$(dpkg --print-architecture)}"
[[ $# -le 1 && $arch =~ ^(amd64|arm64)$ ]] || { echo "image: usage: tests/image/build.sh [amd64 | arm64]" >&2; exit 2; }

mkdir -p "$cache/tmp"
cache="$(cd "$cache" && pwd)"
exec 9>"$cache/.lock"
flock --nonblock 9 || { say "waiting for another run of this script to end"; flock 9; }

missing=()
for program in buildah mmdebstrap; do
  command -v "$program" >/dev/null || missing+=("$program")
done
if [[ ${#missing[@]} -gt 0 ]]; then
  say "installing ${missing[*]} with apt (up to a minute)"
  apt-get -qq update || say "apt-get update failed; trying with the lists at hand"
  DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=300 \
    install --no-install-recommends "${missing[@]}" >/dev/null || die "apt-get could not install ${missing[*]}."
fi

# Buildah keeps what `RUN --mount=type=cache` mounts under TMPDIR.
export TMPDIR="$cache/tmp"
# Storage of its own: whatever else this machine does with containers is left alone.
buildah() { command buildah --root "$cache/storage" --runroot "$cache/run" "$@"; }

# The image that the Dockerfile names, as name:VERSION-slim-SUITE.
official="$(sed -n 's/^ARG RUST_IMAGE=//p' "$tree/Dockerfile")"
[[ $official =~ :([0-9.]+)-slim-([a-z]+)$ ]] || die "The Dockerfile's RUST_IMAGE is $official; I cannot make such an image."
rust="${BASH_REMATCH[1]}" suite="${BASH_REMATCH[2]}"
base="localhost/rust:$rust-slim-$suite"

# Where this machine gets its packages is where the builder gets them.
apt_sources() {
  local file
  for file in /etc/apt/sources.list /etc/apt/sources.list.d/{debian.sources,debian.list}; do
    if [[ -s $file ]] && grep -q "$suite" "$file"; then echo "$file"; fi
  done
}

make_base() {
  say "making $base in the place of $official (about a minute)"
  local work container root sources
  work="$(mktemp -d)"
  mapfile -t sources < <(apt_sources)
  apt-config dump | grep '^Acquire::' >"$work/apt.conf"
  # Without sources for that suite it asks Debian's own mirror.
  mmdebstrap --quiet --mode=root --variant=minbase --include=ca-certificates,gcc,libc6-dev --aptopt="$work/apt.conf" \
    "$suite" "$work/debian.tar" "${sources[@]}" || die "Debian could not be installed into an image."
  container="$(buildah from scratch)"
  buildah add --quiet "$container" "$work/debian.tar" / >/dev/null
  root="$(buildah mount "$container")"
  mkdir -p "$root/usr/local/cargo/bin"
  cp -L "$(command -v rustup)" "$root/usr/local/cargo/bin/rustup"
  local program
  for program in cargo rustc; do ln "$root/usr/local/cargo/bin/rustup" "$root/usr/local/cargo/bin/$program"; done
  (
    export RUSTUP_HOME="$root/usr/local/rustup" CARGO_HOME="$root/usr/local/cargo"
    unset RUSTUP_TOOLCHAIN
    rustup --quiet toolchain install "$rust" --profile minimal --no-self-update >/dev/null
    rustup --quiet default "$rust"
  ) || die "Rust $rust could not be installed into an image."
  buildah umount "$container" >/dev/null
  buildah config --env RUSTUP_HOME=/usr/local/rustup --env CARGO_HOME=/usr/local/cargo \
    --env PATH=/usr/local/cargo/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin "$container"
  buildah commit --quiet --rm "$container" "$base" >/dev/null
  rm -rf "$work"
}

buildah inspect --type image "$base" >/dev/null 2>&1 || make_base

version="$(sed -n 's/^version = "\(.*\)"/\1/p' "$tree/Cargo.toml" | head -1)"
revision="$(git -C "$tree" describe --always --abbrev=40 --exclude '*' --dirty 2>/dev/null || echo unknown)"
name="localhost/windlass:$version"
archive="$cache/windlass-$arch.tar"

# The certificates that this machine trusts are for the build alone: a mount is in no layer.
certificates="${SSL_CERT_FILE:-/etc/ssl/certs/ca-certificates.crt}"
mounts=()
if [[ -s $certificates ]]; then mounts=(--volume "$certificates:/etc/ssl/certs/ca-certificates.crt:ro"); fi

# The revision is a label here and no build argument: Buildah would reuse a layer with the last one.
say "building $name for $arch (the first time up to a quarter of an hour on two cores, afterwards what changed)"
started=$SECONDS
nice -n 10 buildah --root "$cache/storage" --runroot "$cache/run" build --isolation chroot --pull-never --layers "${mounts[@]}" \
  --arch "$arch" --build-arg "TARGETARCH=$arch" --build-arg "BUILDPLATFORM=linux/$(dpkg --print-architecture)" --build-arg "RUST_IMAGE=$base" \
  --label "org.opencontainers.image.revision=$revision" --tag "$name" --file "$tree/Dockerfile" "$tree"
say "built in $((SECONDS - started)) s"

rm -f "$archive"
buildah push --quiet "$name" "docker-archive:$archive:$name"
python3 "$tree/tests/image/check.py" "$archive" --arch "$arch" --name "$name" --version "$version" --revision "$revision"
say "$archive"
say "onto the nodes of \`make cluster\`: tests/cluster/cluster.py load $archive"
