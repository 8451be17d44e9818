# The image of all programs: `docker buildx build --platform linux/amd64,linux/arm64 --tag NAME:TAG .`
# scripts/image.py makes one of the same form without a container engine, from programs that are built already.
FROM docker.io/library/rust:1.95-slim-bookworm AS build
# For jemalloc.
RUN apt-get update && apt-get install --yes --no-install-recommends make && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY . .
RUN --mount=type=cache,target=/usr/local/cargo/registry --mount=type=cache,target=/src/target,id=target-$TARGETPLATFORM \
    # Kernels for arm64 have pages of up to 64 KiB, and jemalloc must know it when it is built.
    if [ "$(uname -m)" = aarch64 ]; then export JEMALLOC_SYS_WITH_LG_PAGE=16; fi \
    && cargo build --release --locked --bin coppice --bin coppice-shard-node --bin coppice-coordinator --bin coppice-operator --bin coppice-bench \
    && mkdir /programs && cd target/release && cp coppice coppice-shard-node coppice-coordinator coppice-operator coppice-bench /programs/

# The C library and nothing else; its user `nonroot` is 65532.
FROM gcr.io/distroless/cc-debian12:nonroot
COPY --from=build /programs/ /usr/local/bin/
ENV PATH=/usr/local/bin
USER 65532:65532
