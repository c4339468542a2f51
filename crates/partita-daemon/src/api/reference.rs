//! `GET /docs`: the OpenAPI document as a page for people.

use std::fmt::Write;

use serde_json::{Map, Value};

const HEAD: &str = "<!doctype html><html lang=en><meta charset=utf-8><title>partitad</title>\
<style>body{font:16px/1.5 sans-serif;max-width:60em;margin:2em auto;padding:0 1em}\
code,pre{background:#f3f3f3}pre{padding:.5em;overflow-x:auto}h3 code{font-size:1.1em}\
table{border-collapse:collapse}td{padding:.2em 1em .2em 0;vertical-align:top}</style>";

/// The page of a document. It needs nothing from elsewhere.
pub(super) fn page(document: &Value) -> String {
    let mut page = HEAD.to_owned();
    let info = &document["info"];
    // Writing to a string cannot fail.
    let _ = write!(page, "<h1>{}</h1><p>{}</p>", escaped(&info["title"]), escaped(&info["description"]));
    let _ = write!(page, "<p>For programs: <a href=/openapi.json>/openapi.json</a></p>");
    for tag in document["tags"].as_array().into_iter().flatten() {
        let _ = write!(page, "<h2>{}</h2><p>{}</p>", escaped(&tag["name"]), escaped(&tag["description"]));
        for (path, methods) in members(&document["paths"]) {
            for (method, operation) in members(methods) {
                if operation["tags"].as_array().is_some_and(|tags| tags.contains(&tag["name"])) {
                    write_operation(&mut page, method, path, operation);
                }
            }
        }
    }
    page.push_str("<h2>Forms</h2>");
    for (name, schema) in members(&document["components"]["schemas"]) {
        let text = escape(&format!("{schema:#}"));
        let _ = write!(page, "<h3 id={0}><code>{0}</code></h3><pre>{text}</pre>", escape(name));
    }
    page
}

fn write_operation(page: &mut String, method: &str, path: &str, operation: &Value) {
    let _ = write!(page, "<h3><code>{} {}</code></h3>", method.to_uppercase(), escape(path));
    let _ = write!(
        page,
        "<p>{}</p><p>{}</p>",
        escaped(&operation["summary"]),
        escaped(&operation["description"])
    );
    page.push_str("<table>");
    for parameter in operation["parameters"].as_array().into_iter().flatten() {
        let place = escaped(&parameter["in"]);
        write_row(page, &format!("<code>{}</code>, {place}", escaped(&parameter["name"])), parameter);
    }
    if operation["requestBody"].is_object() {
        write_row(page, "body", &operation["requestBody"]);
    }
    for (status, answer) in members(&operation["responses"]) {
        write_row(page, &escape(status), answer);
    }
    page.push_str("</table>");
}

/// A row: its subject, its text, and links to its schemas.
fn write_row(page: &mut String, about: &str, what: &Value) {
    let text = what.to_string();
    let mut forms: Vec<&str> =
        text.split("#/components/schemas/").skip(1).filter_map(|rest| rest.split('"').next()).collect();
    forms.dedup();
    let links: String = forms.iter().map(|form| format!(" <a href=#{0}>{0}</a>", escape(form))).collect();
    let _ = write!(page, "<tr><td>{about}<td>{}{links}", escaped(&what["description"]));
}

fn members(value: &Value) -> impl Iterator<Item = (&String, &Value)> {
    value.as_object().into_iter().flat_map(Map::iter)
}

fn escaped(value: &Value) -> String {
    escape(value.as_str().unwrap_or_default())
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
