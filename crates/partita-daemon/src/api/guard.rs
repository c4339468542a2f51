//! What every request goes through: it is counted and logged, its caller is known, and it is
//! bounded in number, size and time.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::Instant;

use axum::extract::{MatchedPath, Request, State};
use axum::http::{HeaderValue, Method, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use tokio::sync::Semaphore;

use super::Shared;
use super::extract::short;
use super::work::{OfUser, WORK_OF_USER};
use crate::caller::{Caller, Peer};
use crate::problem::{Kind, Problem};
use crate::token::Rights;

/// Concurrent requests of all users but root and the daemon's own: fewer than there are threads for
/// blocking work.
const REQUESTS_MAX: usize = 256;
/// Requests at once of one of these users.
const REQUESTS_OF_USER_MAX: usize = 64;
/// Bytes of all headers of a request.
const HEADER_BYTES_MAX: usize = 16 << 10;
/// Bytes of a path with its query.
const URI_BYTES_MAX: usize = 4 << 10;

/// Paths that need no token: the page, which asks for it, the API document, and the health.
const OPEN_PATHS: [&str; 5] = ["/", "/page", "/healthz", "/openapi.json", "/docs"];

/// Numbers, counts and logs a request.
pub(super) async fn account(State(app): State<Shared>, request: Request, next: Next) -> Response {
    static NUMBER: AtomicU64 = AtomicU64::new(1);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let begin = Instant::now();
    let method = request.method().clone();
    let path = request.uri().path().to_owned();
    let route = request.extensions().get::<MatchedPath>().map(|path| path.as_str().to_owned());
    let peer = request.extensions().get::<Peer>().copied();

    let in_flight = InFlight::count(&app);
    let mut response = explained(next.run(request).await, &path);
    drop(in_flight);

    let status = response.status().as_u16();
    let took = begin.elapsed();
    let route = route.unwrap_or_else(|| "none".to_owned());
    app.metrics.request(&method, &route, status, took);
    let problem = response.extensions().get::<Problem>().map(|problem| problem.detail.clone());
    let took_ms = took.as_secs_f64() * 1e3;
    // What strangers wrote is shown escaped.
    let path = short(&path);
    match status {
        500.. => tracing::error!(number, %method, ?path, ?peer, status, took_ms, problem, "request"),
        400.. => tracing::info!(number, %method, ?path, ?peer, status, took_ms, problem, "request"),
        _ if method == Method::GET => {
            tracing::debug!(number, %method, ?path, ?peer, status, took_ms, "request")
        }
        _ => tracing::info!(number, %method, ?path, ?peer, status, took_ms, "request"),
    }
    let headers = response.headers_mut();
    if let Ok(value) = HeaderValue::from_str(&number.to_string()) {
        headers.insert("x-request-id", value);
    }
    // So that a client can separate the daemon's time from that of the network.
    if let Ok(value) = HeaderValue::from_str(&format!("total;dur={took_ms:.3}")) {
        headers.insert("server-timing", value);
    }
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    response
}

/// A running request, counted until this is dropped: if a client disconnects, its request ends at
/// any await.
struct InFlight(Shared);

impl InFlight {
    fn count(app: &Shared) -> Self {
        app.in_flight().fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(app))
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.in_flight().fetch_sub(1, Ordering::Relaxed);
    }
}

/// Failures that are not of our making, as of a file of the reference page that is not there, in
/// the form of all others.
fn explained(response: Response, path: &str) -> Response {
    let status = response.status().as_u16();
    let is_json = |value: &HeaderValue| value.as_bytes().ends_with(b"json");
    if status < 400 || response.headers().get(header::CONTENT_TYPE).is_some_and(is_json) {
        return response;
    }
    let kind = match status {
        404 => Kind::NoRoute,
        400..500 => Kind::BadRequest,
        _ => Kind::Internal,
    };
    Problem::new(kind, format!("{:?}: {}; /docs shows every path", short(path), response.status()))
        .into_response()
}

/// Identifies the client, or refuses it.
pub(super) async fn who(State(app): State<Shared>, mut request: Request, next: Next) -> Response {
    let caller = match request.extensions().get::<Peer>() {
        Some(Peer::Process { user, .. }) => Some(Caller { user: *user, rights: Rights::All }),
        Some(Peer::Network(_)) => match token(&app, &request) {
            Ok(rights) => Some(Caller { user: app.user(), rights }),
            Err(_) if is_read(request.method()) && is_open(request.uri().path()) => None,
            Err(problem) => return problem.into_response(),
        },
        None => None,
    };
    if !is_read(request.method()) && caller.is_some_and(|caller| caller.rights == Rights::Read) {
        let detail = "the token of --read-token-file changes nothing; send the token of --token-file";
        return Problem::new(Kind::ReadOnly, detail).into_response();
    }
    if let Some(caller) = caller {
        request.extensions_mut().insert(caller);
    }
    next.run(request).await
}

fn is_read(method: &Method) -> bool {
    [Method::GET, Method::HEAD].contains(method)
}

fn is_open(path: &str) -> bool {
    let below =
        |open: &str| path.strip_prefix(open).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
    OPEN_PATHS.iter().any(|open| below(open))
}

fn token(app: &Shared, request: &Request) -> Result<Rights, Problem> {
    let refuse = |reason: &str| {
        Problem::new(
            Kind::Unauthorized,
            format!(
                "{reason}; send `Authorization: Bearer TOKEN` with the token of the daemon's \
                --token-file or --read-token-file"
            ),
        )
    };
    let Some(given) = request.headers().get(header::AUTHORIZATION) else {
        return Err(refuse("there is no token"));
    };
    let given = given.as_bytes();
    let is_bearer = given.len() > 7 && given[..7].eq_ignore_ascii_case(b"bearer ");
    let rights = if is_bearer { app.tokens().rights(given[7..].trim_ascii()) } else { None };
    rights.ok_or_else(|| refuse("the token is not this daemon's"))
}

/// Bounds a request.
pub(super) async fn bounds(State(app): State<Shared>, request: Request, next: Next) -> Response {
    let uri = request.uri().path_and_query().map_or(0, |uri| uri.as_str().len());
    if uri > URI_BYTES_MAX {
        let detail = format!("the path has {uri} bytes; {URI_BYTES_MAX} are the most");
        return Problem::new(Kind::UriTooLong, detail).into_response();
    }
    let headers: usize =
        request.headers().iter().map(|(name, value)| name.as_str().len() + value.as_bytes().len()).sum();
    if headers > HEADER_BYTES_MAX {
        let detail = format!("the headers have {headers} bytes; {HEADER_BYTES_MAX} are the most");
        return Problem::new(Kind::HeadersTooLarge, detail).into_response();
    }
    let place = match Place::take(&app, request.extensions().get().copied()) {
        Ok(place) => place,
        Err(problem) => return problem.into_response(),
    };
    let limit = app.answer_limit();
    let answer = next.run(request);
    let answer = async {
        match &place.work {
            Some(work) => WORK_OF_USER.scope(Arc::clone(work), answer).await,
            None => answer.await,
        }
    };
    match tokio::time::timeout(limit, answer).await {
        Ok(response) => response,
        Err(_) => Problem::new(
            Kind::TimedOut,
            format!(
                "no answer within {} s; the request may still take effect, so check before you send it \
                 again",
                limit.as_secs()
            ),
        )
        .into_response(),
    }
}

/// A place among the requests, released on drop. Root and the daemon's own user need none. Neither
/// do unidentified clients, who only get answers from memory: their connections are limited.
struct Place {
    app: Shared,
    user: Option<u32>,
    work: Option<Arc<Semaphore>>,
}

impl Place {
    fn take(app: &Shared, caller: Option<Caller>) -> Result<Self, Problem> {
        let user = caller.map(|caller| caller.user).filter(|user| ![0, app.user()].contains(user));
        let app = Arc::clone(app);
        let Some(user) = user else { return Ok(Self { app, user, work: None }) };
        let mut users = users(&app);
        users.retain(|_, one| !one.is_idle());
        let all: usize = users.values().map(|one| one.running).sum();
        let of_user = users.entry(user).or_default();
        let (whose, most) = match of_user.running {
            REQUESTS_OF_USER_MAX.. => ("of this user", REQUESTS_OF_USER_MAX),
            _ if all >= REQUESTS_MAX => ("of all users", REQUESTS_MAX),
            _ => {
                of_user.running += 1;
                let work = Some(Arc::clone(&of_user.work));
                drop(users);
                return Ok(Self { app, user: Some(user), work });
            }
        };
        let detail =
            format!("{whose} {most} requests are running, which is the maximum; try again in a moment");
        Err(Problem::new(Kind::TooManyRequests, detail))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let Some(user) = self.user else { return };
        if let Some(of_user) = users(&self.app).get_mut(&user) {
            of_user.running -= 1;
        }
    }
}

fn users(app: &Shared) -> MutexGuard<'_, HashMap<u32, OfUser>> {
    app.users.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What no route has.
pub(super) async fn no_route(request: Request) -> Problem {
    Problem::new(
        Kind::NoRoute,
        format!("there is no {:?} here; /docs shows every path", short(request.uri().path())),
    )
}

/// A path without this method; the router lists its methods.
pub(super) async fn no_method(request: Request) -> Problem {
    Problem::new(
        Kind::MethodNotAllowed,
        format!(
            "{:?} does not take {}; /docs shows what it takes",
            short(request.uri().path()),
            request.method()
        ),
    )
}
