# Two images from one source. BASE is yours: any image with Python 3.11 or newer, its venv module and pip.
#   docker build --target operator --build-arg BASE=python:3.11-slim --tag rtj-operator .
#   docker build --target runtime --build-arg BASE=YOUR-TRAINING-IMAGE --tag YOUR-TRAINING-IMAGE-with-rtj .
# pip's settings, if your network needs any, come in as secrets (ids pip_conf and ca) and stay out of the image.
ARG BASE=python:3.11-slim

# What each half needs, taken from pyproject.toml. Torch is left out: the training image's torch stays as it is.
FROM ${BASE} AS requirements
COPY pyproject.toml /requirements/
RUN cd /requirements && python3 -c 'import tomllib; \
extras = tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]; \
lines = lambda *names: "".join(f"{need}\n" for name in names for need in extras[name] if not need.startswith("torch>")); \
open("operator.txt", "w").write(lines("operator", "s3")); \
open("runtime.txt", "w").write(lines("runtime", "s3"))'

FROM ${BASE} AS wheel
RUN --mount=type=secret,id=pip_conf,target=/etc/pip.conf --mount=type=secret,id=ca,target=/run/secrets/ca \
    python3 -m venv /opt/build && /opt/build/bin/pip install --no-cache-dir hatchling
COPY pyproject.toml README.md LICENSE /src/
COPY operator /src/operator
COPY trainer_runtime /src/trainer_runtime
RUN /opt/build/bin/pip wheel --no-deps --no-build-isolation --no-index --wheel-dir /wheel /src

# The operator: no torch, no build tool, and an ordinary user. Dependencies come before the code, so that a change of code does not install
# them again.
FROM ${BASE} AS operator
COPY --from=requirements /requirements/operator.txt /tmp/rtj/
RUN --mount=type=secret,id=pip_conf,target=/etc/pip.conf --mount=type=secret,id=ca,target=/run/secrets/ca \
    python3 -m venv /opt/rtj && /opt/rtj/bin/pip install --no-cache-dir --requirement /tmp/rtj/operator.txt
COPY --from=wheel /wheel /tmp/rtj/
RUN /opt/rtj/bin/pip install --no-deps --no-index /tmp/rtj/*.whl && rm -r /tmp/rtj
USER 65532:65532
ENV PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
ENTRYPOINT ["/opt/rtj/bin/rtj-operator"]

# The runtime, in the Python of a training image, beside its torch.
FROM ${BASE} AS runtime
COPY --from=requirements /requirements/runtime.txt /tmp/rtj/
RUN --mount=type=secret,id=pip_conf,target=/etc/pip.conf --mount=type=secret,id=ca,target=/run/secrets/ca \
    PIP_BREAK_SYSTEM_PACKAGES=1 python3 -m pip install --no-cache-dir --requirement /tmp/rtj/runtime.txt
COPY --from=wheel /wheel /tmp/rtj/
RUN PIP_BREAK_SYSTEM_PACKAGES=1 python3 -m pip install --no-deps --no-index /tmp/rtj/*.whl && rm -r /tmp/rtj
