# Convoy on the CPU:            docker build -t convoy .
# Convoy on an NVIDIA GPU:      docker build -t convoy:cuda13 --build-arg EXTRA=cuda13 .
# From a mirror of the base:    docker build -t convoy --build-arg BASE=registry.example/python:3.12-slim .
# The digest is the index of all platforms as it was in October 2026 (3.12.15 on Debian 13); to renew:
#                               docker buildx imagetools inspect python:3.12-slim
ARG BASE=docker.io/library/python:3.12-slim@sha256:05cda9777409a9c3ffddd94a4c476b79f0769a0b4857f0c7ed9226b6800b0d6f

# The build stage has pip and the sources. It makes two trees: /opt/convoy, an environment with the
# pinned dependencies, and /app, what Convoy itself adds to it. As two layers they let a new version
# of Convoy travel without its dependencies.
FROM ${BASE} AS build
# The name of one of pyproject.toml's optional dependencies that deploy/locks has; empty for the CPU.
ARG EXTRA=
WORKDIR /src

# pip lives in an environment of its own, so that none has to be removed from the one that ships.
# It installs only files whose hashes the locks have, and never runs another package's build.
# Tests inside packages, a seventh of all bytes, do not ship.
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
RUN /tools/bin/pip wheel --no-cache-dir --no-index --no-deps --no-build-isolation --wheel-dir /wheels . \
 && /tools/bin/pip --python /opt/convoy/bin/python install \
    --no-cache-dir --no-compile --no-index --no-deps --no-warn-script-location --root /app /wheels/*


FROM ${BASE}
ARG BASE
LABEL org.opencontainers.image.title="Convoy" \
      org.opencontainers.image.description="Serves ONNX image classifiers with its own convolution kernels and low-latency dynamic batching" \
      org.opencontainers.image.base.name="${BASE}"

# The id is fixed and numeric below, so that a volume can be given to it and Kubernetes can see that
# it is not root.
RUN useradd --uid 10001 --user-group --no-log-init --no-create-home --home-dir /tmp \
    --shell /usr/sbin/nologin convoy \
 && mkdir /models \
 && rm -rf /usr/local/lib/python3*/site-packages/pip* /usr/local/lib/python3*/ensurepip /usr/local/bin/pip*

COPY --from=build /opt/convoy /opt/convoy
COPY --from=build /app /
COPY deploy/healthcheck.py /opt/convoy/

# Inside the container every interface is its own; which of the host's is published is `docker run
# -p`'s business. HOME is /tmp because nothing else is writable under a read-only root. ONNX Runtime
# reports its use to Microsoft unless it is told not to.
ENV PATH=/opt/convoy/bin:$PATH \
    HOME=/tmp \
    CONVOY_HOST=0.0.0.0 \
    CONVOY_PORT=8000 \
    ORT_DISABLE_TELEMETRY=1

# An image that cannot classify its own samples, become ready and stop as it should is not built. What
# that imported stays behind as bytecode, which a read-only root could never write: start-up needs it.
RUN export CONVOY_HOST=127.0.0.1 CONVOY_PORT=18000 \
 && convoy classify digits /opt/convoy/lib/python3*/site-packages/models/digits/samples \
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
