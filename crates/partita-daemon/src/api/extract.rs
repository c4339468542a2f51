//! What handlers get of a request, refused with a problem document if it is not of its form.

use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{FromRequest, FromRequestParts, Path, Query, Request};
use axum::http::request::Parts;
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse, Response};
use partita::registry::check_name;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::error::Category;

use super::Shared;
use crate::problem::{Kind, Problem};

/// Bytes of a body.
pub(super) const BODY_BYTES_MAX: usize = 256 << 10;

/// Who asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Caller {
    /// The user; over TCP, where the token is what counts, the daemon's own.
    pub user: u32,
}

impl Caller {
    /// Refuses to touch what is another user's. Root may.
    ///
    /// # Errors
    /// [`Kind::Forbidden`](crate::Kind::Forbidden).
    pub fn check(self, what: &str, owner: u32) -> Result<(), Problem> {
        if self.user == owner || self.user == 0 {
            return Ok(());
        }
        let name = partita::process::user_name(owner);
        Err(Problem::new(
            Kind::Forbidden,
            format!("{what} belongs to {name}: only {name} and root may change or end it"),
        ))
    }
}

impl<S: Sync> FromRequestParts<S> for Caller {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, Problem> {
        // `guard::who` has put it there.
        let caller = parts.extensions.get().copied();
        caller
            .ok_or_else(|| Problem::new(Kind::Unauthorized, "nobody knows who asks; use the daemon's socket"))
    }
}

/// A body of JSON.
#[derive(Debug)]
pub(super) struct Input<T>(pub T);

/// The same with its bytes, by which a repeated request is known.
#[derive(Debug)]
pub(super) struct InputWithBytes<T>(pub T, pub Bytes);

impl<T: DeserializeOwned> FromRequest<Shared> for Input<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, app: &Shared) -> Result<Self, Problem> {
        let bytes = body(request, app.body_limit()).await?;
        Ok(Self(parse(&bytes)?))
    }
}

impl<T: DeserializeOwned> FromRequest<Shared> for InputWithBytes<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, app: &Shared) -> Result<Self, Problem> {
        let bytes = body(request, app.body_limit()).await?;
        Ok(Self(parse(&bytes)?, bytes))
    }
}

async fn body(request: Request, limit: Duration) -> Result<Bytes, Problem> {
    let (parts, body) = request.into_parts();
    let kind =
        parts.headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let essence = kind.split(';').next().unwrap_or_default().trim();
    if !essence.eq_ignore_ascii_case("application/json") {
        return Err(Problem::new(
            Kind::UnsupportedMediaType,
            format!("the body is {:?}; send JSON with `Content-Type: application/json`", short(kind)),
        ));
    }
    read(&parts.headers, body, limit).await
}

async fn read(headers: &HeaderMap, body: Body, limit: Duration) -> Result<Bytes, Problem> {
    let too_large = || {
        Problem::new(
            Kind::BodyTooLarge,
            format!("the body has more than {BODY_BYTES_MAX} bytes; nothing that this takes is as long"),
        )
    };
    let length =
        headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
    if length.is_some_and(|length| length > BODY_BYTES_MAX as u64) {
        return Err(too_large());
    }
    match tokio::time::timeout(limit, axum::body::to_bytes(body, BODY_BYTES_MAX)).await {
        Err(_) => Err(Problem::new(
            Kind::RequestTimeout,
            format!("the body did not arrive within {} s; send it again, all of it at once", limit.as_secs()),
        )),
        Ok(Ok(bytes)) => Ok(bytes),
        Ok(Err(error)) => {
            // The limit is the only error of ours that it wraps.
            let mut cause: Option<&dyn std::error::Error> = Some(&error);
            while let Some(one) = cause {
                if one.to_string().contains("length limit exceeded") {
                    return Err(too_large());
                }
                cause = one.source();
            }
            Err(Problem::new(Kind::BadRequest, format!("the body did not arrive: {error}; send it again")))
        }
    }
}

fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Problem> {
    serde_json::from_slice(bytes).map_err(|error| match error.classify() {
        Category::Data => Problem::new(
            Kind::Invalid,
            format!("the body: {}; see /docs for its form", short(&error.to_string())),
        ),
        Category::Syntax | Category::Eof | Category::Io => {
            Problem::new(Kind::BadJson, format!("the body: {}; send JSON", short(&error.to_string())))
        }
    })
}

/// A name in a path. One that nothing can have names nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Name(pub String);

impl<'de> Deserialize<'de> for Name {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let name = String::deserialize(deserializer)?;
        match check_name(&name) {
            Ok(()) => Ok(Self(name)),
            Err(_) => Err(serde::de::Error::custom(format!(
                "nothing is named {:?}: names have 1 to 63 of A-Z a-z 0-9 . _ - and begin with a letter or a digit",
                short(&name)
            ))),
        }
    }
}

/// Parts of the path.
#[derive(Debug)]
pub(super) struct Segments<T>(pub T);

impl<T: DeserializeOwned + Send, S: Send + Sync> FromRequestParts<S> for Segments<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        match Path::<T>::from_request_parts(parts, state).await {
            Ok(Path(value)) => Ok(Self(value)),
            Err(PathRejection::FailedToDeserializePathParams(error)) => {
                Err(Problem::not_found(short(&error.body_text()).to_owned()))
            }
            Err(error) => Err(Problem::new(Kind::BadRequest, error.body_text())),
        }
    }
}

/// The query.
#[derive(Debug)]
pub(super) struct Asked<T>(pub T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for Asked<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        match Query::<T>::from_request_parts(parts, state).await {
            Ok(Query(value)) => Ok(Self(value)),
            Err(QueryRejection::FailedToDeserializeQueryString(error)) => Err(Problem::new(
                Kind::BadRequest,
                format!("the query: {}; see /docs for its form", short(&error.body_text())),
            )),
            Err(error) => Err(Problem::new(Kind::BadRequest, error.body_text())),
        }
    }
}

/// A header's text; none if it is missing.
pub(super) fn header_text(headers: &HeaderMap, name: &str) -> Result<Option<String>, Problem> {
    let Some(value) = headers.get(name) else { return Ok(None) };
    match value.to_str() {
        Ok(text) => Ok(Some(text.to_owned())),
        Err(_) => {
            Err(Problem::new(Kind::BadRequest, format!("{name}: it is not plain text; send printable ASCII")))
        }
    }
}

/// What strangers wrote, cut to what a message can hold.
pub(super) fn short(text: &str) -> &str {
    match text.char_indices().nth(300) {
        Some((end, _)) => &text[..end],
        None => text,
    }
}

/// JSON, as every success is answered.
#[derive(Debug)]
pub(super) struct Output<T>(pub T);

impl<T: serde::Serialize> IntoResponse for Output<T> {
    fn into_response(self) -> Response {
        axum::Json(self.0).into_response()
    }
}
