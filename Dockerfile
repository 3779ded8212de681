# Images of the three programs: csi-controller, csi-node and escached, one target each.
#
#   buildah build --target csi-node --tag csi-node .          (or docker build)
#
# Both bases are arguments: pin them by digest, and take them of the same release, because csi-controller is linked with the base's librbd.
#   --build-arg BASE=docker.io/library/debian@sha256:…
# go-ceph's build tag follows from the librbd that BUILD_BASE has (hack/ceph-tags.sh). With SOURCE_DATE_EPOCH set to the commit's time and the
# same bases, the programs are the same byte for byte (hack/reproduce.sh). /usr/share/escache/NAME.cdx.json lists what is in a program.
ARG BASE=docker.io/library/debian:12-slim
ARG BUILD_BASE=docker.io/library/golang:1.26-bookworm

FROM ${BUILD_BASE} AS build
RUN apt-get update -q && \
    DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends ca-certificates gcc git libc6-dev librados-dev librbd-dev
ARG GOPROXY
ARG VERSION=unknown
ARG SOURCE_DATE_EPOCH
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
RUN hack/release.sh /out "${VERSION}"

# csi-controller needs librbd and nothing else; it runs as any user but root.
FROM ${BASE} AS csi-controller
RUN apt-get update -q && \
    DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends ca-certificates librados2 librbd1 && \
    rm -rf /var/lib/apt/lists/* /var/cache/* /var/log/*
COPY --from=build /out/csi-controller /usr/local/bin/csi-controller
COPY --from=build /out/csi-controller.cdx.json /usr/share/escache/
USER 65532:65532
ENTRYPOINT ["/usr/local/bin/csi-controller"]

# csi-node formats, checks, grows and mounts.
FROM ${BASE} AS csi-node
RUN apt-get update -q && \
    DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends ca-certificates e2fsprogs mount util-linux xfsprogs && \
    rm -rf /var/lib/apt/lists/* /var/cache/* /var/log/*
COPY --from=build /out/csi-node /usr/local/bin/csi-node
COPY --from=build /out/csi-node.cdx.json /usr/share/escache/
ENTRYPOINT ["/usr/local/bin/csi-node"]

# escached is installed on its host from here, and runs there with the host's tools: the image needs cp, sed and chroot only.
FROM ${BASE} AS escached
COPY --from=build /out/escached /out/escache-cache /usr/local/bin/
COPY --from=build /out/escached.cdx.json /out/escache-cache.cdx.json /usr/share/escache/
ENTRYPOINT ["/usr/local/bin/escached"]
