# The service as two images that share layers:
#   docker build --target api -t calibrd-api:0.1.0 .          the API, without workers
#   docker build --target worker -t calibrd-worker:0.1.0 .    a worker that runs fits on the CPU
# docker/worker-cuda.Dockerfile builds the worker with torch and CUDA; docker-compose.yml runs everything together.

FROM python:3.11-slim-bookworm AS base
LABEL org.opencontainers.image.title="calibrd" \
      org.opencontainers.image.description="Calibrated probabilities as a versioned, tested contract." \
      org.opencontainers.image.version="0.1.0" \
      org.opencontainers.image.licenses="Apache-2.0"
# only /data (incoming uploads, or everything in embedded mode) and /tmp are written to, so the rest of
# the file system may be read-only
RUN useradd --uid 10001 --no-create-home --home-dir /tmp calibrd \
    && install -d -o calibrd -g calibrd /data
ENV PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PIP_ROOT_USER_ACTION=ignore \
    HOME=/tmp \
    TMPDIR=/data \
    CALIBRD_HOST=0.0.0.0 \
    CALIBRD_PORT=8000 \
    CALIBRD_DATA_DIR=/data \
    CALIBRD_LOG_FORMAT=json

FROM base AS wheel
WORKDIR /build
COPY constraints.txt ./
RUN pip install --no-cache-dir -c constraints.txt setuptools
COPY pyproject.toml README.md LICENSE ./
COPY calibrators calibrators
COPY calibrd calibrd
COPY service service
COPY distributions distributions
RUN pip wheel --no-cache-dir -c constraints.txt --no-deps --no-build-isolation --wheel-dir /wheels \
    . ./distributions/server

FROM base AS packages
WORKDIR /build
COPY pyproject.toml constraints.txt docker/requirements.py ./
RUN python requirements.py service charts onnx > requirements.txt \
    && pip install --no-cache-dir -c constraints.txt -r requirements.txt

FROM packages AS api
WORKDIR /app
RUN --mount=type=bind,from=wheel,source=/wheels,target=/wheels \
    pip install --no-cache-dir -c /build/constraints.txt --no-deps /wheels/*.whl
USER 10001:10001
EXPOSE 8000
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=5s --timeout=4s --start-period=60s --retries=3 \
    CMD ["python", "-c", "import http.client, os; asked = http.client.HTTPConnection('127.0.0.1', int(os.environ['CALIBRD_PORT']), timeout=3); asked.request('GET', '/healthz'); raise SystemExit(asked.getresponse().status != 200)"]
ENTRYPOINT ["python", "-m", "service"]
CMD ["serve", "--workers", "0"]

FROM packages AS worker
WORKDIR /app
RUN --mount=type=bind,from=wheel,source=/wheels,target=/wheels \
    pip install --no-cache-dir -c /build/constraints.txt --no-deps /wheels/*.whl
USER 10001:10001
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=30s --timeout=15s --start-period=90s --retries=3 \
    CMD ["python", "-m", "service", "workers", "--here"]
ENTRYPOINT ["python", "-m", "service"]
CMD ["worker"]
