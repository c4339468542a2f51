//! Which hosts and origins a request may name, so that no page but the daemon's own uses the
//! daemon.

use axum::extract::{Request, State};
use axum::http::{Version, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::Shared;
use super::extract::short;
use crate::caller::Peer;
use crate::problem::{Kind, Problem};

/// Refuses a request whose `Host` is missing, repeated or malformed (RFC 9112, section 3.2), or is
/// not this machine's; and one that a page of another origin has sent.
pub(super) async fn origin(State(app): State<Shared>, request: Request, next: Next) -> Response {
    match check_host(&request).and_then(|host| {
        // The kernel knows who uses the Unix socket, and no browser reaches it.
        if let Some(Peer::Network(_)) = request.extensions().get::<Peer>() {
            check_name(host.unwrap_or_default(), app.hosts())?;
        }
        check_origin(&request, host.unwrap_or_default())
    }) {
        Ok(()) => next.run(request).await,
        Err(problem) => problem.into_response(),
    }
}

/// The `Host` of a request; `None` if it needs none.
fn check_host(request: &Request) -> Result<Option<&str>, Problem> {
    let mut hosts = request.headers().get_all(header::HOST).iter();
    let reason = match (hosts.next(), hosts.next()) {
        (None, _) if request.version() < Version::HTTP_11 => return Ok(None),
        (None, _) => "it is missing",
        (Some(_), Some(_)) => "it occurs more than once",
        (Some(host), None) => match host.to_str() {
            Ok(host) if is_host(host) => return Ok(Some(host)),
            _ => "it is not a host with an optional port",
        },
    };
    let detail = format!("Host: {reason}; send one, such as `Host: partitad`");
    Err(Problem::new(Kind::BadRequest, detail))
}

/// Refuses a name that is not this machine's. A page can have its own name resolve to this machine
/// (DNS rebinding), and the browser then counts the daemon to the page's origin. An address cannot
/// be another's, and neither can `localhost`.
fn check_name(host: &str, names: &[String]) -> Result<(), Problem> {
    let (name, _) = split(host);
    let name = name.to_ascii_lowercase();
    let name = name.strip_suffix('.').unwrap_or(&name);
    let is_address = name.starts_with('[') || name.parse::<std::net::Ipv4Addr>().is_ok();
    let is_local = name.is_empty() || name == "localhost" || name.ends_with(".localhost");
    if is_address || is_local || names.iter().any(|own| own == name) {
        return Ok(());
    }
    Err(Problem::new(
        Kind::WrongHost,
        format!(
            "Host: {:?} is not a name of this machine; use its address or {}, or start partitad with \
             --allow-host {}",
            short(name),
            names.first().map_or("localhost", String::as_str),
            short(name),
        ),
    ))
}

/// Refuses what a page of another origin has sent. Programs send no `Origin`.
fn check_origin(request: &Request, host: &str) -> Result<(), Problem> {
    for origin in request.headers().get_all(header::ORIGIN) {
        let origin = origin.to_str().unwrap_or_default();
        let of = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"));
        if !of.is_some_and(|of| of.eq_ignore_ascii_case(host)) {
            return Err(Problem::new(
                Kind::CrossOrigin,
                format!(
                    "Origin: {:?} is not the daemon's; use the daemon's own page, or a program",
                    short(origin)
                ),
            ));
        }
    }
    Ok(())
}

/// A host and its port.
fn split(host: &str) -> (&str, &str) {
    match host.rfind(':') {
        // The colons of an IPv6 address are in brackets.
        Some(at) if !host.ends_with(']') => (&host[..at], &host[at + 1..]),
        _ => (host, ""),
    }
}

/// Whether this is a host as in URIs, with an optional port, or empty, as clients without a name
/// send it.
fn is_host(value: &str) -> bool {
    let (host, port) = split(value);
    let is_address = |inner: &[u8]| {
        let text = std::str::from_utf8(inner).unwrap_or_default();
        text.parse::<std::net::Ipv6Addr>().is_ok()
    };
    let is_name = || {
        let mut left = host.as_bytes();
        while let Some((&byte, rest)) = left.split_first() {
            left = match (byte, rest) {
                (b'%', [high, low, rest @ ..]) if high.is_ascii_hexdigit() && low.is_ascii_hexdigit() => rest,
                (byte, rest) if byte.is_ascii_alphanumeric() || b"-._~!$&'()*+,;=".contains(&byte) => rest,
                _ => return false,
            };
        }
        true
    };
    let is_host = match host.as_bytes() {
        [b'[', inner @ .., b']'] => is_address(inner),
        _ => is_name(),
    };
    is_host && port.bytes().all(|byte| byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_those_of_uris() {
        for host in
            ["", "x", "a.b-c_d:80", "x:", "127.0.0.1:7878", "[::1]", "[::1]:1", "%41b", "a,b", "~$&'()"]
        {
            assert!(is_host(host), "{host}");
        }
        for host in [
            "a b", "x:8a", "x:-1", "u@x", "::1", "[::1", "[x]", "[::1]x:1", "[::1]:x", "x/y", "x?", "%4",
            "%zz", "é", "a\tb", "<x>",
        ] {
            assert!(!is_host(host), "{host}");
        }
    }

    #[test]
    fn a_name_that_can_be_anothers_is_refused() {
        let names = ["gpu7".to_owned(), "gpus.example.org".to_owned()];
        for host in [
            "",
            "127.0.0.1:7878",
            "10.1.2.3",
            "[::1]:7878",
            "localhost",
            "LOCALHOST:1",
            "a.localhost",
            "gpu7:7878",
            "GPUs.example.org.:443",
        ] {
            check_name(host, &names).unwrap_or_else(|problem| panic!("{host}: {}", problem.detail));
        }
        for host in ["evil.example", "127.0.0.1.evil.example:7878", "localhost.evil", "gpu77", "x.gpu7", "1"]
        {
            let problem = check_name(host, &names).unwrap_err();
            assert_eq!(problem.status, 421, "{host}");
            assert!(problem.detail.contains("--allow-host"), "{}", problem.detail);
        }
    }

    #[test]
    fn only_the_daemons_own_origin_may_send() {
        let check = |origins: &[&str]| {
            let mut request = Request::new(axum::body::Body::empty());
            for origin in origins {
                request.headers_mut().append(header::ORIGIN, origin.parse().unwrap());
            }
            check_origin(&request, "127.0.0.1:7878")
        };
        check(&[]).unwrap();
        check(&["http://127.0.0.1:7878"]).unwrap();
        check(&["https://127.0.0.1:7878"]).unwrap();
        for origin in ["null", "http://127.0.0.1", "http://127.0.0.1:78780", "http://evil.example", "", "x"] {
            assert_eq!(check(&[origin]).unwrap_err().status, 403, "{origin}");
        }
        assert!(check(&["http://127.0.0.1:7878", "http://evil.example"]).is_err());
    }
}
