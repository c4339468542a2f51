//! Problem documents (RFC 9457): the bodies of failed requests.

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use utoipa::ToSchema;

/// The media type of problem documents.
pub const MEDIA_TYPE: &str = "application/problem+json";

/// The longest `detail`, in characters.
const DETAIL_CHARS_MAX: usize = 1200;

/// What kinds of problems there are: the end of `type`, the title and the status of each.
macro_rules! kinds {
    ($($(#[$doc:meta])* $kind:ident = $status:literal $slug:literal $title:literal;)*) => {
        /// A kind of problem.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Kind { $($(#[$doc])* $kind,)* }

        impl Kind {
            /// Every kind.
            pub const ALL: &[Self] = &[$(Self::$kind),*];

            /// Its status code.
            pub fn status(self) -> u16 {
                match self { $(Self::$kind => $status),* }
            }

            /// The last part of its `type`.
            pub fn slug(self) -> &'static str {
                match self { $(Self::$kind => $slug),* }
            }

            /// Its name for people.
            pub fn title(self) -> &'static str {
                match self { $(Self::$kind => $title),* }
            }
        }
    };
}

kinds! {
    /// The request is not of the form that this path takes: its query, its path, its headers.
    BadRequest = 400 "bad-request" "The request is malformed";
    /// The body is no JSON.
    BadJson = 400 "bad-json" "The body is not JSON";
    /// No token, or not this daemon's.
    Unauthorized = 401 "unauthorized" "The request carries no valid token";
    /// The token reads, and this changes something.
    ReadOnly = 403 "read-only" "This token only reads";
    /// A page of another origin has sent it.
    CrossOrigin = 403 "cross-origin" "A page of another origin has sent this";
    /// It belongs to another user.
    Forbidden = 403 "forbidden" "This belongs to another user";
    /// No such resource.
    NotFound = 404 "not-found" "There is no such thing";
    /// No such path.
    NoRoute = 404 "no-route" "There is no such path";
    /// The path has other methods.
    MethodNotAllowed = 405 "method-not-allowed" "The path does not take this method";
    /// The client did not send its request in time.
    RequestTimeout = 408 "request-timeout" "The request did not arrive in time";
    /// It contradicts what is there.
    Conflict = 409 "conflict" "This contradicts what is there";
    /// `If-Match` named another revision.
    PreconditionFailed = 412 "precondition-failed" "It has changed since it was read";
    /// The body is too large.
    BodyTooLarge = 413 "body-too-large" "The body is too large";
    /// The path is too long.
    UriTooLong = 414 "uri-too-long" "The path is too long";
    /// The body is of another type.
    UnsupportedMediaType = 415 "unsupported-media-type" "The body must be application/json";
    /// `Host` names another machine.
    WrongHost = 421 "wrong-host" "This daemon does not have that name";
    /// The body is JSON and not what this path takes.
    Invalid = 422 "invalid" "The request cannot be carried out as it is written";
    /// Too many at once.
    TooManyRequests = 429 "too-many-requests" "Too many requests at once";
    /// The headers are too large.
    HeadersTooLarge = 431 "headers-too-large" "The headers are too large";
    /// A fault of this daemon or of its machine.
    Internal = 500 "internal" "Something failed here";
    /// A part that it needs does not work now.
    Unavailable = 503 "unavailable" "A part that this needs does not work now";
    /// It took too long.
    TimedOut = 504 "timed-out" "This took too long";
}

/// A problem document.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct Problem {
    /// What kind of problem: `urn:partita:problem:` and a word.
    #[serde(rename = "type")]
    #[schema(example = "urn:partita:problem:not-found")]
    pub kind: String,
    /// The kind in words.
    #[schema(value_type = String)]
    pub title: &'static str,
    /// The status code of the answer.
    pub status: u16,
    /// The object, the reason and the remedy, in one line.
    pub detail: String,
    /// The member of the body that it is about, as a JSON pointer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub field: Option<String>,
    #[serde(skip)]
    code: Kind,
}

impl Problem {
    /// A problem of this kind; `detail` names the thing, the reason and the remedy.
    pub fn new(kind: Kind, detail: impl Into<String>) -> Self {
        Self {
            kind: format!("urn:partita:problem:{}", kind.slug()),
            title: kind.title(),
            status: kind.status(),
            detail: one_line(&detail.into()),
            field: None,
            code: kind,
        }
    }

    /// What cannot be carried out as it is written, in the member `field` of the body.
    pub fn invalid(field: impl Into<String>, detail: impl Into<String>) -> Self {
        Self { field: Some(field.into()), ..Self::new(Kind::Invalid, detail) }
    }

    /// Something of this name is not there.
    pub fn not_found(detail: impl Into<String>) -> Self {
        Self::new(Kind::NotFound, detail)
    }

    /// Its kind.
    pub fn code(&self) -> Kind {
        self.code
    }
}

/// Problems are one line, even if a library's message or a client's name is not, and short: the
/// beginning names the object, the end the remedy.
pub(crate) fn one_line(text: &str) -> String {
    let line = text
        .split(char::is_control)
        .map(str::trim)
        .filter(|line| !line.is_empty())
        .collect::<Vec<_>>()
        .join(" ");
    let chars = line.chars().count();
    if chars <= DETAIL_CHARS_MAX {
        return line;
    }
    let begin: String = line.chars().take(DETAIL_CHARS_MAX / 3).collect();
    let end: String = line.chars().skip(chars - DETAIL_CHARS_MAX / 2).collect();
    format!("{begin}…{end}")
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let code = self.code;
        let mut response = (status, Json(&self)).into_response();
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(MEDIA_TYPE));
        match code {
            Kind::Unauthorized => {
                headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            }
            Kind::TooManyRequests | Kind::Unavailable => {
                headers.insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
            }
            // What is left of such a request is not read, so nothing can follow it.
            Kind::BodyTooLarge | Kind::RequestTimeout => {
                headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
            }
            _ => {}
        }
        // For the log: the client's answer.
        response.extensions_mut().insert(self);
        response
    }
}

impl From<partita::Error> for Problem {
    fn from(error: partita::Error) -> Self {
        use partita::Error;
        let kind = match &error {
            Error::NoSuchGpu { .. }
            | Error::NotOnGpu { .. }
            | Error::NoSuchTenant { .. }
            | Error::NoTenantOfProcess { .. } => Kind::NotFound,
            Error::NotYours { .. } => Kind::Forbidden,
            Error::Plan { .. }
            | Error::MemoryPromised { .. }
            | Error::NameInUse { .. }
            | Error::Queued { .. }
            | Error::Waits { .. }
            | Error::WaitedInVain { .. }
            | Error::SeveralTenants { .. }
            | Error::DamagedTenant { .. } => Kind::Conflict,
            Error::GpuSelector { .. }
            | Error::GpuTwice { .. }
            | Error::Refused { .. }
            | Error::QuotaAboveDevice { .. }
            | Error::QuotaZero
            | Error::Name { .. }
            | Error::NotOffered { .. }
            | Error::OtherGroup { .. }
            | Error::Restrict { .. }
            | Error::NoProgram { .. }
            | Error::Program { .. }
            | Error::Unenforceable { .. } => Kind::Invalid,
            Error::PartMissing { .. }
            | Error::Driver { .. }
            | Error::Unproved { .. }
            | Error::RunDirectory { .. }
            | Error::Mps(_)
            | Error::Interrupted { .. } => Kind::Unavailable,
            _ => Kind::Internal,
        };
        Self::new(kind, error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_distinguished_by_their_type() {
        for (at, kind) in Kind::ALL.iter().enumerate() {
            assert!(StatusCode::from_u16(kind.status()).is_ok_and(|status| !status.is_success()));
            assert!(Kind::ALL[..at].iter().all(|other| other.slug() != kind.slug()), "{}", kind.slug());
        }
    }

    #[test]
    fn a_problem_is_one_line_and_of_the_documented_form() {
        let problem = Problem::invalid("/components/0/name", "name \"\": it is empty\r\u{1b}\n  use another");
        let json = serde_json::to_value(&problem).unwrap();
        assert_eq!(
            json,
            serde_json::json!({
                "type": "urn:partita:problem:invalid",
                "title": "The request cannot be carried out as it is written",
                "status": 422,
                "detail": "name \"\": it is empty use another",
                "field": "/components/0/name",
            })
        );
        let long =
            Problem::invalid("/name", format!("name {:?}: it is too long; use 63", "é".repeat(100_000)));
        assert!(long.detail.len() < 3000 && long.detail.ends_with("use 63"), "{}", long.detail);
        let response = problem.into_response();
        assert_eq!(response.status(), 422);
        assert_eq!(response.headers()[header::CONTENT_TYPE], MEDIA_TYPE);
    }
}
