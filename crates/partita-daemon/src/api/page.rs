//! `GET /`: the page for browsers, and the files that it consists of.
//!
//! They are in the program, so the page needs no other machine and no build step. It asks for the
//! token, and its scripts send it as programs do: no cookie, so no other page can use it.

use std::hash::{DefaultHasher, Hash, Hasher};

use axum::extract::Path;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};

use super::extract::short;
use crate::problem::{Kind, Problem};

/// What the page may do: run and load what this daemon serves, and nothing else.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// A file of the page.
struct File {
    name: &'static str,
    kind: &'static str,
    text: &'static str,
}

macro_rules! files {
    ($($kind:literal: $($name:literal)*;)*) => {
        &[$($(File { name: $name, kind: $kind, text: include_str!(concat!("../../page/", $name)) },)*)*]
    };
}

static FILES: &[File] = files! {
    "text/html; charset=utf-8": "index.html";
    "text/css; charset=utf-8": "page.css" "uplot/uPlot.min.css";
    "image/svg+xml": "icon.svg";
    "text/plain; charset=utf-8": "uplot/LICENSE";
    "text/javascript; charset=utf-8":
        "main.js" "stream.js" "tenants.js" "map.js" "charts.js" "events.js" "resize.js" "look.js"
        "uplot/uPlot.iife.min.js";
};

/// The page.
pub(super) async fn index(headers: HeaderMap) -> Response {
    served("index.html", &headers)
}

/// One of its files.
pub(super) async fn file(Path(name): Path<String>, headers: HeaderMap) -> Response {
    served(&name, &headers)
}

fn served(name: &str, headers: &HeaderMap) -> Response {
    let Some(file) = FILES.iter().find(|file| file.name == name) else {
        let detail = format!("the page has no file {:?}; it begins at /", short(name));
        return Problem::new(Kind::NoRoute, detail).into_response();
    };
    let mark = mark(file.text);
    let is_known = headers
        .get_all(header::IF_NONE_MATCH)
        .iter()
        .any(|known| known.to_str().is_ok_and(|known| known.split(',').any(|one| one.trim() == mark)));
    let mut response = if is_known {
        StatusCode::NOT_MODIFIED.into_response()
    } else {
        ([(header::CONTENT_TYPE, file.kind)], file.text).into_response()
    };
    let headers = response.headers_mut();
    let fixed = [
        // A browser asks each time whether it changed: a new daemon may have another page.
        (header::CACHE_CONTROL, "no-cache"),
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::X_FRAME_OPTIONS, "DENY"),
        (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
        (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    ];
    headers.extend(fixed.map(|(name, value)| (name, HeaderValue::from_static(value))));
    if let Ok(mark) = HeaderValue::from_str(&mark) {
        headers.insert(header::ETAG, mark);
    }
    response
}

/// The `ETag` of a text.
fn mark(text: &str) -> String {
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    format!("\"{:016x}\"", hasher.finish())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// With all that it loads.
    const BYTES_MAX: usize = 300_000;

    #[test]
    fn the_page_is_small() {
        let bytes: usize = FILES.iter().map(|file| file.text.len()).sum();
        assert!(bytes <= BYTES_MAX, "{bytes} bytes");
    }

    #[test]
    fn the_page_loads_nothing_from_elsewhere_and_has_nothing_inline() {
        let index = FILES[0].text;
        for loaded in ["src=\"", "href=\""] {
            for rest in index.split(loaded).skip(1) {
                let target = rest.split('"').next().unwrap();
                let known =
                    target.strip_prefix("/page/").map(|name| FILES.iter().any(|file| file.name == name));
                assert!(known.unwrap_or(["/docs", "/openapi.json"].contains(&target)), "{target}");
            }
        }
        for inline in ["<style", "style=", " onclick", " onload", "javascript:"] {
            assert!(!index.contains(inline), "{inline}");
        }
        assert_eq!(index.matches("<script").count(), index.matches("></script>").count());
    }

    #[test]
    fn every_module_that_is_imported_is_served() {
        for file in FILES.iter().filter(|file| file.kind.starts_with("text/javascript")) {
            for rest in file.text.split(" from \"./").skip(1) {
                let name = rest.split('"').next().unwrap();
                assert!(FILES.iter().any(|file| file.name == name), "{} imports {name}", file.name);
            }
        }
    }
}
