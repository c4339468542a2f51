//! What handlers get of a request, refused with a problem document if it is not of its form.

use std::marker::PhantomData;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::path::ErrorKind;
use axum::extract::rejection::{FailedToDeserializePathParams, PathRejection, QueryRejection};
use axum::extract::{FromRequest, FromRequestParts, Path, Query, Request};
use axum::http::request::Parts;
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse, Response};
use partita::registry::check_name;
use serde::de::value::MapAccessDeserializer;
use serde::de::{DeserializeOwned, DeserializeSeed, IgnoredAny, IntoDeserializer, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::error::Category;

use super::Shared;
use crate::caller::Caller;
use crate::problem::{Kind, Problem};

/// Bytes of a body.
pub(super) const BODY_BYTES_MAX: usize = 256 << 10;

impl<S: Sync> FromRequestParts<S> for Caller {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, Problem> {
        // `guard::who` has stored it there.
        let caller = parts.extensions.get().copied();
        caller.ok_or_else(|| {
            Problem::new(
                Kind::Unauthorized,
                "the client is unknown; use the daemon's \
                socket",
            )
        })
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

/// No body: one would have no effect.
#[derive(Debug)]
pub(super) struct NoBody;

impl FromRequest<Shared> for NoBody {
    type Rejection = Problem;

    async fn from_request(request: Request, app: &Shared) -> Result<Self, Problem> {
        let (parts, body) = request.into_parts();
        match read(&parts.headers, body, app.body_limit()).await?.is_empty() {
            true => Ok(Self),
            false => {
                let detail =
                    "the body: this path takes none, so it would have no effect; send the request without it";
                Err(Problem::new(Kind::Invalid, detail))
            }
        }
    }
}

async fn body(request: Request, limit: Duration) -> Result<Bytes, Problem> {
    let (parts, body) = request.into_parts();
    let mut kinds = parts.headers.get_all(header::CONTENT_TYPE).iter();
    let kind = kinds.next().and_then(|value| value.to_str().ok()).unwrap_or_default();
    if kinds.next().is_some() {
        return Err(Problem::new(
            Kind::UnsupportedMediaType,
            "the body has several content types; send one `Content-Type: application/json`",
        ));
    }
    let essence = kind.split(';').next().unwrap_or_default().trim();
    if !essence.eq_ignore_ascii_case("application/json") {
        return Err(Problem::new(
            Kind::UnsupportedMediaType,
            format!("the body is {:?}; send JSON with `Content-Type: application/json`", short(kind)),
        ));
    }
    if let Some(coding) = parts.headers.get(header::CONTENT_ENCODING)
        && !coding.as_bytes().eq_ignore_ascii_case(b"identity")
    {
        return Err(Problem::new(
            Kind::UnsupportedMediaType,
            "the body has a `Content-Encoding`; send it without one, as it is",
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
    if let Err(error) = std::str::from_utf8(bytes) {
        return Err(Problem::new(Kind::BadJson, format!("the body: {error}; send JSON in UTF-8")));
    }
    let mut member = None;
    let mut json = serde_json::Deserializer::from_slice(bytes);
    let parsed = json.deserialize_map(Members { member: &mut member, value: PhantomData });
    let parsed = parsed.and_then(|value| json.end().map(|()| value));
    parsed.map_err(|error| {
        // serde reports an invalid word as a syntax error.
        let is_json = || serde_json::from_slice::<IgnoredAny>(bytes).is_ok();
        if error.classify() == Category::Data || is_json() {
            let detail = format!("the body: {}; see /docs for its form", short(&error.to_string()));
            match member {
                Some(name) => Problem::invalid(pointer(&name), detail),
                None => Problem::new(Kind::Invalid, detail),
            }
        } else {
            Problem::new(Kind::BadJson, format!("the body: {}; send JSON", short(&error.to_string())))
        }
    })
}

/// The pointer to a member of the body, which escapes these two (RFC 6901).
pub(super) fn pointer(member: &str) -> String {
    format!("/{}", short(member).replace('~', "~0").replace('/', "~1"))
}

/// A value that is written as an object. serde also accepts an array of its members' values, which
/// this refuses.
#[derive(Debug)]
pub(super) struct Object<T>(pub T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(Members { member: &mut None, value: PhantomData }).map(Object)
    }
}

/// Reads an object, and has the name of the member at which that fails.
struct Members<'m, T> {
    member: &'m mut Option<String>,
    value: PhantomData<T>,
}

impl<'de, T: Deserialize<'de>> Visitor<'de> for Members<'_, T> {
    type Value = T;

    fn expecting(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, members: A) -> Result<T, A::Error> {
        T::deserialize(MapAccessDeserializer::new(Named { members, member: self.member }))
    }
}

/// The members of an object, with the name of the present one.
struct Named<'m, A> {
    members: A,
    member: &'m mut Option<String>,
}

impl<'de, A: MapAccess<'de>> MapAccess<'de> for Named<'_, A> {
    type Error = A::Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, A::Error> {
        *self.member = self.members.next_key()?;
        self.member.as_ref().map(|name| seed.deserialize(name.as_str().into_deserializer())).transpose()
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, A::Error> {
        self.members.next_value_seed(seed)
    }
}

/// A name in a path. One that nothing can have names nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Name(pub String);

impl<'de> Deserialize<'de> for Name {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
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
                Err(Problem::not_found(short(&path_reason(error)).to_owned()))
            }
            Err(error) => Err(Problem::new(Kind::BadRequest, error.body_text())),
        }
    }
}

/// Why a part of the path names nothing, without the words of the library.
fn path_reason(error: FailedToDeserializePathParams) -> String {
    match error.into_kind() {
        ErrorKind::Message(reason) | ErrorKind::DeserializeError { message: reason, .. } => reason,
        ErrorKind::ParseError { value, .. }
        | ErrorKind::ParseErrorAtKey { value, .. }
        | ErrorKind::ParseErrorAtIndex { value, .. } => format!("nothing here has the number {value:?}"),
        ErrorKind::InvalidUtf8InPathParam { .. } => "the path is not UTF-8 text".to_owned(),
        other => other.to_string(),
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
                format!("the query: {}; see /docs for its form", short(query_reason(&error.body_text()))),
            )),
            Err(error) => Err(Problem::new(Kind::BadRequest, error.body_text())),
        }
    }
}

/// The reason without the words of the library before it.
fn query_reason(text: &str) -> &str {
    text.strip_prefix("Failed to deserialize query string: ").unwrap_or(text)
}

/// A header's text; `None` if it is missing.
///
/// # Errors
/// [`Kind::BadRequest`] if it is repeated, or not text.
pub(super) fn header_text(headers: &HeaderMap, name: &str) -> Result<Option<String>, Problem> {
    match header_texts(headers, name)?.as_slice() {
        [] => Ok(None),
        [text] => Ok(Some((*text).to_owned())),
        several => Err(Problem::new(
            Kind::BadRequest,
            format!("{name}: the header occurs {} times; send it once", several.len()),
        )),
    }
}

/// The text of a header that holds a list, possibly on several lines; `None` if it is missing.
///
/// # Errors
/// [`Kind::BadRequest`] if it is not text.
pub(super) fn header_list(headers: &HeaderMap, name: &str) -> Result<Option<String>, Problem> {
    let texts = header_texts(headers, name)?;
    Ok((!texts.is_empty()).then(|| texts.join(", ")))
}

fn header_texts<'h>(headers: &'h HeaderMap, name: &str) -> Result<Vec<&'h str>, Problem> {
    let texts = headers.get_all(name).iter().map(|value| value.to_str());
    texts.collect::<Result<_, _>>().map_err(|_| {
        Problem::new(Kind::BadRequest, format!("{name}: it is not plain text; send printable ASCII"))
    })
}

/// A client's text, cut to the length of a message.
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
