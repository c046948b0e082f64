# A worker for one NVIDIA GPU; run one container per GPU (docs/how-to/scale.md):
#   docker build -f docker/worker-cuda.Dockerfile -t calibrd-worker-cuda:0.1.0 .
#   docker run --gpus device=0 -e CALIBRD_DATABASE_URL=... -e CALIBRD_BLOBS_URL=... calibrd-worker-cuda:0.1.0
# The wheels of torch include the CUDA libraries. The machine needs the driver and NVIDIA's container toolkit.

FROM python:3.11-slim-bookworm AS base
LABEL org.opencontainers.image.title="calibrd-worker-cuda" \
      org.opencontainers.image.description="Calibrated probabilities as a versioned, tested contract." \
      org.opencontainers.image.version="0.1.0" \
      org.opencontainers.image.licenses="Apache-2.0"
RUN useradd --uid 10001 --no-create-home --home-dir /tmp calibrd \
    && install -d -o calibrd -g calibrd /data
ENV PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PIP_ROOT_USER_ACTION=ignore \
    HOME=/tmp \
    TMPDIR=/data \
    CALIBRD_DATA_DIR=/data \
    CALIBRD_LOG_FORMAT=json \
    NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility
WORKDIR /build

FROM base AS wheel
COPY constraints.txt ./
RUN pip install --no-cache-dir -c constraints.txt setuptools
COPY pyproject.toml README.md LICENSE ./
COPY calibrators calibrators
COPY calibrd calibrd
COPY service service
COPY distributions distributions
RUN pip wheel --no-cache-dir -c constraints.txt --no-deps --no-build-isolation --wheel-dir /wheels \
    . ./distributions/server

FROM base AS worker-cuda
COPY pyproject.toml constraints.txt docker/requirements.py ./
# URL of PyTorch's wheel index for a CUDA version other than the one on PyPI; usually not needed
ARG TORCH_INDEX=
RUN python requirements.py train service charts onnx > requirements.txt \
    && pip install --no-cache-dir -c constraints.txt \
       ${TORCH_INDEX:+--extra-index-url "$TORCH_INDEX"} -r requirements.txt
WORKDIR /app
RUN --mount=type=bind,from=wheel,source=/wheels,target=/wheels \
    pip install --no-cache-dir -c /build/constraints.txt --no-deps /wheels/*.whl
USER 10001:10001
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=30s --timeout=15s --start-period=120s --retries=3 \
    CMD ["python", "-m", "service", "workers", "--here"]
ENTRYPOINT ["python", "-m", "service"]
# because the device is named, a container without a GPU exits instead of using the CPU
CMD ["worker", "--device", "cuda"]
