//! `/livez`, `/readyz`, `/metrics` and `/debug/config`.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;
use axum::routing::get;
use prometheus::{Registry, TextEncoder};
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use super::{Readiness, connections};

/// What the endpoints show.
#[derive(Clone)]
pub struct Endpoints {
    /// Counters for `/metrics`.
    pub registry: Registry,
    /// What `/readyz` waits for.
    pub readiness: Readiness,
    /// The configuration in force, for `/debug/config`; `None` while the process still waits for its cluster.
    pub config: Arc<dyn Fn() -> Option<Value> + Send + Sync>,
}

/// The address cannot be listened on.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address}: {cause}; choose another address with --listen")]
pub struct ListenError {
    address: SocketAddr,
    cause: std::io::Error,
}

/// Listens on `address` and serves until `stop` in a task of its own. Returns the address in use,
/// which tells the port if port 0 was asked for.
///
/// # Errors
/// The address cannot be listened on.
#[allow(clippy::unused_async, reason = "it needs the runtime that it is awaited in")]
pub async fn serve(
    address: SocketAddr,
    endpoints: Endpoints,
    stop: CancellationToken,
) -> Result<(SocketAddr, tokio::task::JoinHandle<()>), ListenError> {
    let error = |cause| ListenError { address, cause };
    let listener = connections::bind(address).map_err(error)?;
    let bound = listener.local_addr().map_err(error)?;
    let routes = Router::new()
        .route("/livez", get(|| async { "ok\n" }))
        .route("/readyz", get(readyz))
        .route("/metrics", get(metrics))
        .route("/debug/config", get(config))
        .with_state(endpoints);
    let task = tokio::spawn(connections::serve(listener, routes, stop));
    Ok((bound, task))
}

async fn readyz(State(endpoints): State<Endpoints>) -> (StatusCode, String) {
    let reasons = endpoints.readiness.reasons();
    let (status, mut text) = if reasons.is_empty() {
        (StatusCode::OK, "ok\n".to_owned())
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, reasons.join("\n") + "\n")
    };
    for note in endpoints.readiness.notes() {
        text.push_str(&note);
        text.push('\n');
    }
    (status, text)
}

async fn config(State(endpoints): State<Endpoints>) -> impl IntoResponse {
    match (endpoints.config)() {
        Some(config) => {
            (StatusCode::OK, [(CONTENT_TYPE, "application/json")], format!("{config:#}\n"))
        }
        None => (
            StatusCode::SERVICE_UNAVAILABLE,
            [(CONTENT_TYPE, "text/plain")],
            "no configuration is in force yet: this process waits for the API server\n".to_owned(),
        ),
    }
}

async fn metrics(State(endpoints): State<Endpoints>) -> impl IntoResponse {
    match TextEncoder::new().encode_to_string(&endpoints.registry.gather()) {
        Ok(text) => (StatusCode::OK, [(CONTENT_TYPE, prometheus::TEXT_FORMAT)], text),
        Err(error) => (
            StatusCode::INTERNAL_SERVER_ERROR,
            [(CONTENT_TYPE, "text/plain")],
            format!("cannot encode the metrics: {error}\n"),
        ),
    }
}
