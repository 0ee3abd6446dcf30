# Convoy on the CPU:            docker build -t convoy .
# Convoy on an NVIDIA GPU:      docker build -t convoy:cuda13 --build-arg EXTRA=cuda13 .
# From a mirror of the base:    docker build -t convoy --build-arg BASE=registry.example/python:3.12-slim .
# The digest is the multi-platform index of October 2026 (3.12.15 on Debian 13). To renew it:
#                               docker buildx imagetools inspect python:3.12-slim
ARG BASE=docker.io/library/python:3.12-slim@sha256:05cda9777409a9c3ffddd94a4c476b79f0769a0b4857f0c7ed9226b6800b0d6f

# The build stage has pip and the sources. It makes two trees, which become two layers: /opt/convoy, an
# environment with the pinned dependencies, and /app, the files of Convoy itself. A new version of
# Convoy then needs no download of its dependencies.
FROM ${BASE} AS build
# The name of an extra in pyproject.toml that has a lock in deploy/locks; empty for the CPU.
ARG EXTRA=
WORKDIR /src

# pip has a separate environment, so it need not be removed from the shipped one. It installs only
# files whose hashes are locked, and builds no other package. Tests inside packages, a seventh of
# all bytes, are removed.
COPY deploy/locks deploy/locks
RUN python3 -m venv /tools \
 && python3 -m venv --without-pip /opt/convoy \
 && /tools/bin/pip install \
    --no-cache-dir --require-hashes --only-binary :all: -r deploy/locks/build.txt \
 && /tools/bin/pip --python /opt/convoy/bin/python install \
    --no-cache-dir --no-compile --require-hashes --only-binary :all: \
    -r "deploy/locks/${EXTRA:-cpu}.txt" \
 && find /opt/convoy -type d \( -name test -o -name tests \) -prune -exec rm -rf {} +

COPY . .
# The SBOM lists the packages in /opt/convoy that the locks name; SOURCE_DATE_EPOCH is its date.
RUN mkdir -p /app/opt/convoy \
 && /tools/bin/cyclonedx-py environment --pyproject pyproject.toml --output-reproducible \
    --output-file /app/opt/convoy/sbom.cdx.json /opt/convoy/bin/python \
 && /tools/bin/pip wheel --no-cache-dir --no-index --no-deps --no-build-isolation --wheel-dir /wheels . \
 && /tools/bin/pip --python /opt/convoy/bin/python install \
    --no-cache-dir --no-compile --no-index --no-deps --no-warn-script-location --root /app /wheels/*


FROM ${BASE}
ARG BASE
# docker build --build-arg REVISION="$(git rev-parse HEAD)" --build-arg CREATED="$(date -u +%FT%TZ)"
ARG VERSION=0.1.0
ARG REVISION=
ARG CREATED=
LABEL org.opencontainers.image.title="Convoy" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.created="${CREATED}" \
      org.opencontainers.image.description="Serves ONNX image classifiers with its own convolution kernels and low-latency dynamic batching" \
      org.opencontainers.image.base.name="${BASE}"

# The id is fixed, so that it can own volumes. Below it is a number, so that Kubernetes can check that it
# is not root.
# A volume that is mounted on the cache gets its owner from the image.
RUN useradd --uid 10001 --user-group --no-log-init --no-create-home --home-dir /tmp \
    --shell /usr/sbin/nologin convoy \
 && mkdir /models \
 && mkdir -p /tmp/.cache/convoy && chown -R convoy: /tmp/.cache \
 && rm -rf /usr/local/lib/python3*/site-packages/pip* /usr/local/lib/python3*/ensurepip /usr/local/bin/pip*

COPY --from=build /opt/convoy /opt/convoy
COPY --from=build /app /
COPY deploy/healthcheck.py /opt/convoy/

# Listening on all interfaces is safe inside the container: `docker run -p` decides what is published.
# HOME is /tmp because nothing else is writable with a read-only root. ONNX Runtime reports usage to
# Microsoft unless this is disabled.
ENV PATH=/opt/convoy/bin:$PATH \
    HOME=/tmp \
    CONVOY_HOST=0.0.0.0 \
    CONVOY_PORT=8000 \
    ORT_DISABLE_TELEMETRY=1

# The build fails if the image cannot classify the samples, become ready and stop. This also writes the
# bytecode of all imported modules, which would be impossible later on a read-only root.
RUN export CONVOY_HOST=127.0.0.1 CONVOY_PORT=18000 \
 && convoy classify digits /opt/convoy/lib/python3*/site-packages/convoy_inference/models/digits/samples \
 && { convoy serve & } \
 && until python /opt/convoy/healthcheck.py; do kill -0 $! || exit 1; sleep 0.5; done \
 && kill -TERM $! \
 && wait $!
ENV PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1

USER 10001:10001
WORKDIR /models
EXPOSE 8000
STOPSIGNAL SIGTERM

HEALTHCHECK --interval=5s --timeout=3s --start-period=60s --retries=3 \
    CMD ["python", "/opt/convoy/healthcheck.py"]

ENTRYPOINT ["convoy"]
CMD ["serve"]
