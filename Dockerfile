# syntax=docker/dockerfile:1
#
# The image of the operator, of workers beside HTTP handlers, and of the init
# container that copies the program into containers with an Exec handler. It
# has to run there, in any image: hence static, and hence musl.
#
#   docker build -t REGISTRY/windlass:TAG .
#   docker buildx build --platform linux/amd64,linux/arm64 -t REGISTRY/windlass:TAG --push .
#
# `make image` builds it without Docker and without a registry, and checks it.

# The version is Cargo.toml's rust-version; a test compares them.
ARG RUST_IMAGE=docker.io/library/rust:1.95-slim-bookworm

# It compiles on the builder's own processor, for the target's: no emulation.
FROM --platform=$BUILDPLATFORM ${RUST_IMAGE} AS builder
# BuildKit, Buildah and Podman set it. Without it the image is for the builder's processor.
ARG TARGETARCH

# ring and SQLite are C: they need the target's compiler and musl's headers.
RUN set -eu; \
    arch="${TARGETARCH:-$(dpkg --print-architecture)}"; \
    case "$arch" in \
        amd64) cpu=x86_64 compiler=gcc-x86-64-linux-gnu ;; \
        arm64) cpu=aarch64 compiler=gcc-aarch64-linux-gnu ;; \
        *) echo "There is no image for $arch, only for amd64 and arm64." >&2; exit 1 ;; \
    esac; \
    if command -v "$cpu-linux-gnu-gcc" >/dev/null; then compiler=; fi; \
    dpkg --add-architecture "$arch"; \
    apt-get -qq update; \
    DEBIAN_FRONTEND=noninteractive apt-get -qq install --no-install-recommends $compiler "musl-dev:$arch" >/dev/null; \
    rm -rf /var/lib/apt/lists/*; \
    printf '#!/bin/sh\nexec %s-linux-gnu-gcc "$@" -specs /usr/lib/%s-linux-musl/musl-gcc.specs\n' "$cpu" "$cpu" \
        >/usr/local/bin/target-cc; \
    chmod +x /usr/local/bin/target-cc; \
    echo "$cpu-unknown-linux-musl" >/target; \
    rustup target add "$(cat /target)"

# Rust brings its own musl to link with; a compiler of the target is enough.
ENV TARGET_CC=target-cc \
    CARGO_TARGET_X86_64_UNKNOWN_LINUX_MUSL_LINKER=x86_64-linux-gnu-gcc \
    CARGO_TARGET_AARCH64_UNKNOWN_LINUX_MUSL_LINKER=aarch64-linux-gnu-gcc \
    CARGO_PROFILE_RELEASE_DEBUG=false \
    CARGO_PROFILE_RELEASE_STRIP=symbols

WORKDIR /source
COPY Cargo.toml Cargo.lock ./
COPY src src
# What cargo fetched and built for the last image is reused. The touch is for
# files that carry an older time than what was built from their predecessors.
RUN --mount=type=cache,id=windlass-registry,target=/usr/local/cargo/registry,sharing=locked \
    --mount=type=cache,id=windlass-target,target=/source/target,sharing=locked \
    set -eu; \
    touch src/lib.rs src/main.rs; \
    cargo build --locked --release --bin windlass --target "$(cat /target)"; \
    install -D "target/$(cat /target)/release/windlass" /image/windlass

FROM scratch
# A test compares it with Cargo.toml's.
ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="windlass" \
      org.opencontainers.image.description="Kubernetes-native task queues on Redis Streams" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.licenses="Apache-2.0"
# For handlers behind https. Redis, PostgreSQL and the API server need none:
# their roots are in the program, or come from the cluster.
COPY --from=builder /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
COPY LICENSE /LICENSE
# Where PATH finds it: kubectl exec deploy/windlass -- windlass dlq list
COPY --from=builder /image/windlass /usr/bin/windlass
# A number, so that runAsNonRoot can be checked without /etc/passwd.
USER 65532:65532
ENTRYPOINT ["/usr/bin/windlass"]
