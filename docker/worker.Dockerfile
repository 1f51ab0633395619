# A GPU host's worker, and the workload it starts. Build from the root of the checkout:
#   docker build -f docker/worker.Dockerfile -t gonogo-worker .
# Run it with an init (`--init`, `init: true`): the ranks' processes are reaped by it. The wheel of
# torch on PyPI brings its own CUDA libraries, so the host needs the NVIDIA driver and its container
# toolkit only. `--build-arg TORCH_INDEX=https://download.pytorch.org/whl/cpu` makes a CPU image.
ARG PYTHON_IMAGE=python:3.11-slim-bookworm@sha256:a36c24f9cbdf4fd0f52d67f0823eeac19c2028c637cecc392d97f980d4fec56b
FROM ${PYTHON_IMAGE}

ENV PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1

WORKDIR /opt/gonogo

# Triton compiles a launcher for each kernel, and inductor its CPU code. The base holds Debian's
# newest within one release, so versions are not pinned again.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends g++ libc6-dev \
    && rm -rf /var/lib/apt/lists/*

# The largest layer by far, and the one that changes least.
ARG TORCH_VERSION=2.13.0
ARG TORCH_INDEX=https://pypi.org/simple
RUN pip install --index-url "${TORCH_INDEX}" "torch==${TORCH_VERSION}"

COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY gonogo/__init__.py gonogo/py.typed gonogo/
RUN pip install -c constraints.txt -e ".[worker,nsa,kubernetes]"

COPY gonogo gonogo
COPY worker worker
COPY nsa nsa
COPY docker/health.py ./

RUN useradd --create-home --uid 10001 gonogo \
    && install -d -o gonogo -g gonogo -m 0700 /var/lib/gonogo /var/lib/gonogo/runs
USER 10001:10001
# In a container the keepers end with the worker, so a stop must end runs with a checkpoint.
# HOME: compiled kernels and downloaded data are kept in the volume (~/.triton, ~/.cache).
ENV GONOGO_HOME=/var/lib/gonogo GONOGO_WORKER_ON_STOP=checkpoint HOME=/var/lib/gonogo
VOLUME /var/lib/gonogo

EXPOSE 8751
HEALTHCHECK --interval=5s --timeout=5s --start-period=30s --retries=6 \
    CMD ["python", "health.py", "http://127.0.0.1:8751/metrics"]
STOPSIGNAL SIGTERM
CMD ["gonogo", "worker"]
