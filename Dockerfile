FROM debian:bookworm-slim AS build
RUN apt-get update \
 && apt-get install -y --no-install-recommends python3-venv python3-dev gcc libc6-dev \
 && rm -rf /var/lib/apt/lists/*
# A bundle of certificates for pip, for networks that sign TLS anew. It does not get into the image.
ARG PIP_CERT
WORKDIR /src
COPY pyproject.toml hatch_build.py README.md ./
COPY proxy proxy
RUN python3 -m venv /opt/pgtrident && /opt/pgtrident/bin/pip install --no-cache-dir .

FROM debian:bookworm-slim
RUN apt-get update \
 && apt-get install -y --no-install-recommends python3 ca-certificates \
 && rm -rf /var/lib/apt/lists/* \
 && useradd --uid 10001 --user-group --no-create-home --shell /usr/sbin/nologin pgtrident
COPY --from=build /opt/pgtrident /opt/pgtrident
ENV PATH=/opt/pgtrident/bin:$PATH
USER 10001:10001
WORKDIR /
EXPOSE 6432 9632
HEALTHCHECK --interval=10s --timeout=3s --start-period=5s \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:9632/healthz', timeout=2)"]
ENTRYPOINT ["pgtrident"]
CMD ["serve", "-c", "/etc/pgtrident/pgtrident.toml"]
