# Stand-ins for the images of docker-compose.yml, from Debian's packages: for where no registry can
# be reached. docker/without-registry/run.sh builds each stage and says it under its setting
# (PYTHON_IMAGE, REDIS_IMAGE, …). They try the project out; they are no replacement for pinned images.
ARG DEBIAN_IMAGE=debian:bookworm-slim
FROM ${DEBIAN_IMAGE} AS python
RUN apt-get update \
    && apt-get install -y --no-install-recommends ca-certificates python3 python3-pip \
    && rm -rf /var/lib/apt/lists/* /usr/lib/python3*/EXTERNALLY-MANAGED \
    && ln -s python3 /usr/bin/python

FROM ${DEBIAN_IMAGE} AS redis
RUN apt-get update \
    && apt-get install -y --no-install-recommends redis-server redis-tools \
    && rm -rf /var/lib/apt/lists/*
CMD ["redis-server"]

FROM ${DEBIAN_IMAGE} AS postgres
RUN apt-get update \
    && apt-get install -y --no-install-recommends postgresql \
    && rm -rf /var/lib/apt/lists/* /var/lib/postgresql/* \
    && usermod -u 70 postgres \
    && groupmod -g 70 postgres \
    && install -d -o 70 -g 70 -m 0700 /var/lib/postgresql/data \
    && install -d -o 70 -g 70 -m 3777 /var/run/postgresql \
    && ln -s /usr/lib/postgresql/15/bin/* /usr/local/bin/
ENV PGDATA=/var/lib/postgresql/data
COPY postgres-entrypoint.sh /usr/local/bin/docker-entrypoint.sh
VOLUME /var/lib/postgresql/data
STOPSIGNAL SIGINT
ENTRYPOINT ["docker-entrypoint.sh"]
CMD ["postgres"]

FROM ${DEBIAN_IMAGE} AS prometheus
RUN apt-get update \
    && apt-get install -y --no-install-recommends prometheus wget \
    && rm -rf /var/lib/apt/lists/* \
    && install -d -o 65534 -g 65534 /prometheus
USER 65534
VOLUME /prometheus
ENTRYPOINT ["/usr/bin/prometheus"]

FROM ${DEBIAN_IMAGE} AS alertmanager
RUN apt-get update \
    && apt-get install -y --no-install-recommends prometheus-alertmanager wget \
    && rm -rf /var/lib/apt/lists/* \
    && install -d -o 65534 -g 65534 /alertmanager
USER 65534
VOLUME /alertmanager
ENTRYPOINT ["/usr/bin/prometheus-alertmanager"]
