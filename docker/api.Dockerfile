# The control plane: REST, pages, conductor. Build from the root of the checkout:
#   docker build -f docker/api.Dockerfile -t gonogo-api .
ARG PYTHON_IMAGE=python:3.11-slim-bookworm@sha256:a36c24f9cbdf4fd0f52d67f0823eeac19c2028c637cecc392d97f980d4fec56b
FROM ${PYTHON_IMAGE}

ENV PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1

WORKDIR /opt/gonogo

# Dependencies first: they change less often than the code.
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY gonogo/__init__.py gonogo/py.typed gonogo/
RUN pip install -c constraints.txt -e ".[server,postgres]"

COPY gonogo gonogo
COPY service service
COPY nsa/configs nsa/configs
COPY migrations migrations
COPY alembic.ini docker/health.py ./

RUN useradd --create-home --uid 10001 gonogo \
    && install -d -o gonogo -g gonogo -m 0700 /var/lib/gonogo /var/lib/gonogo/runs
USER 10001:10001
ENV GONOGO_HOME=/var/lib/gonogo
VOLUME /var/lib/gonogo

EXPOSE 8750
HEALTHCHECK --interval=5s --timeout=5s --start-period=30s --retries=6 \
    CMD ["python", "health.py", "http://127.0.0.1:8750/healthz"]
STOPSIGNAL SIGTERM
CMD ["gonogo", "serve", "--host", "0.0.0.0", "--port", "8750"]
