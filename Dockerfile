# syntax=docker/dockerfile:1

# The image contains one static binary and the public CA certificates: no shell and no libc. RUST_IMAGE
# is any Alpine image with a Rust toolchain, whose native target is static musl.
ARG RUST_IMAGE=rust:1.95-alpine

FROM ${RUST_IMAGE} AS build
RUN apk add --no-cache ca-certificates gcc musl-dev
WORKDIR /src
COPY . .
RUN --mount=type=cache,target=/usr/local/cargo/registry \
    --mount=type=cache,target=/src/target \
    cargo build --release --locked --no-default-features --bin ostrakon && cp target/release/ostrakon /ostrakon

FROM scratch
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
COPY --from=build /ostrakon /usr/bin/ostrakon
USER 65532:65532
EXPOSE 8080
ENTRYPOINT ["/usr/bin/ostrakon"]
CMD ["run", "--listen=0.0.0.0:8080"]
