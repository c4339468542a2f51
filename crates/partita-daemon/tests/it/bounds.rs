//! What the OpenAPI document says that may be sent is what the daemon takes: requests that follow
//! from each bound of the document, at it and beyond it.

use crate::common;

use common::{Daemon, World, definition};
use serde_json::{Map, Value, json};

/// A value that a schema bounds, and whether it is within its bounds.
type Case = (Value, bool);

struct Document(Value);

impl Document {
    /// A schema that is no reference and not one of several of which one is null.
    fn resolve<'d>(&'d self, schema: &'d Value) -> &'d Value {
        if let Some(reference) = schema["$ref"].as_str() {
            return self.resolve(self.0.pointer(reference.strip_prefix('#').unwrap()).unwrap());
        }
        match schema["oneOf"].as_array() {
            Some(several) => self.resolve(several.iter().find(|one| one["type"] != "null").unwrap()),
            None => schema,
        }
    }

    /// Values at each bound of a schema and beyond it. `good`: one that is taken.
    fn cases(&self, schema: &Value, good: &Value) -> Vec<Case> {
        let schema = self.resolve(schema);
        let mut cases = Vec::new();
        let number = |key: &str| schema[key].as_f64();
        // As JSON has them in requests: whole ones without a point.
        let json = |number: f64| if number.fract() == 0.0 { json!(number as i64) } else { json!(number) };
        if let Some(least) = number("minimum") {
            cases.extend([(json(least), true), (json(least - 1.0), false)]);
        }
        if let Some(bound) = number("exclusiveMinimum") {
            cases.extend([(json(bound), false), (json(bound - 1.0), false)]);
        }
        if let Some(most) = number("maximum") {
            cases.extend([(json(most), true), (json(most + 1.0), false)]);
        }
        if schema["minLength"].as_u64().is_some_and(|least| least > 0) {
            cases.extend([(good.clone(), true), (json!(""), false)]);
        }
        if let Some(most) = schema["maxLength"].as_u64() {
            cases.extend(
                [(most, true), (most + 1, false)].map(|(length, is_taken)| {
                    (json!("n".repeat(usize::try_from(length).unwrap())), is_taken)
                }),
            );
        }
        if schema["pattern"].is_string() {
            cases.extend([(good.clone(), true), (json!("\u{e9} \u{7f}"), false)]);
        }
        for (key, step) in [("minItems", -1), ("maxItems", 1)] {
            if let Some(bound) = schema[key].as_i64() {
                cases.extend([(items(good, bound), true), (items(good, bound + step), false)]);
            }
        }
        if let Some(words) = schema["enum"].as_array() {
            cases.extend(words.iter().map(|word| (word.clone(), true)));
            cases.push((json!("none-of-these"), false));
        }
        cases
    }

    /// Bodies that differ from a good one in one member each.
    fn bodies(&self, schema: &Value, good: &Value) -> Vec<Case> {
        let schema = self.resolve(schema);
        let mut bodies = Vec::new();
        for (name, of_member) in schema["properties"].as_object().unwrap_or(&Map::new()) {
            let of_good = good.get(name).unwrap_or(&of_member["example"]);
            for (value, is_taken) in self.cases(of_member, of_good) {
                bodies.push((with(good, name, value), is_taken));
            }
            // Members of the items of a list.
            if let Some(first) = of_good.get(0).filter(|first| first.is_object()) {
                for (item, is_taken) in self.bodies(&self.resolve(of_member)["items"], first) {
                    let mut list = of_good.clone();
                    list[0] = item;
                    bodies.push((with(good, name, list), is_taken));
                }
            }
        }
        bodies
    }
}

fn with(object: &Value, member: &str, value: Value) -> Value {
    let mut object = object.clone();
    object[member] = value;
    object
}

/// A list of that many items like those of `good`, each with a name of its own.
fn items(good: &Value, count: i64) -> Value {
    let item = |at| match &good[0] {
        Value::Object(_) => with(&good[0], "name", json!(format!("n{at}"))),
        other => other.clone(),
    };
    (0..count).map(item).collect()
}

/// Whether a request is refused for what was written in it.
fn is_refused(daemon: &Daemon, method: &str, path: &str, header: Option<(&str, &str)>, body: &Value) -> bool {
    let body = if body.is_null() { String::new() } else { body.to_string() };
    let header = header.map_or_else(String::new, |(name, value)| format!("\r\n{name}: {value}"));
    let head = format!(
        "{method} {path} HTTP/1.1{header}\r\ncontent-type: application/json\r\ncontent-length: {}",
        body.len()
    );
    let (status, _, text) = daemon.send(&head, body.as_bytes());
    assert!(status < 500, "{head}: {status} {text}");
    // A name that nothing can have names nothing.
    status == 400 || status == 422 || text.contains("nothing is named")
}

#[test]
fn the_document_has_the_bounds_that_the_daemon_checks() {
    let world = World::new();
    let daemon = world.start();
    daemon.ok("POST", "/v1/chains", Some(definition("c")));
    let document = Document(daemon.get("/openapi.json"));
    let mut checked = 0;
    let mut check = |method: &str, path: &str, header: Option<(&str, &str)>, body: &Value, is_taken: bool| {
        let shown: String = body.to_string().chars().take(200).collect();
        let refused = is_refused(&daemon, method, path, header, body);
        assert_eq!(!refused, is_taken, "{method} {path} {header:?} {shown}");
        checked += 1;
        // Each definition is another one's beginning.
        if method == "POST" && path == "/v1/chains" && is_taken {
            // One with a key may have been defined and deleted already.
            let path = format!("/v1/chains/{}", body["name"].as_str().unwrap());
            let deleted = daemon.ask("DELETE", &path, None).status;
            assert!([204, 404].contains(&deleted), "{path}: {deleted}");
        }
    };
    for (path, item) in document.0["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            let method = method.to_uppercase();
            // Bounds of a running chain are those of its own; a stream has no end.
            if path.contains("sm-configuration") && method == "PUT"
                || path.ends_with("/optimizer/events")
                || path == "/v1/live"
            {
                continue;
            }
            let good = match &*format!("{method} {path}") {
                "POST /v1/chains" => definition("d"),
                "PUT /v1/chains/{chain}" => definition("c"),
                "PATCH /v1/tenants/{tenant}" => json!({ "priority": "low" }),
                "PUT /v1/chains/{chain}/optimizer" => json!({ "algorithm": "none" }),
                "POST /v1/keepers/{keeper}/leases" => json!({ "bytes": 1, "tenant": "t" }),
                _ => Value::Null,
            };
            let concrete = |name: &str, value: &str| {
                let path = path.replace(&format!("{{{name}}}"), value);
                path.replace("{chain}", "c")
                    .replace("{tenant}", "t")
                    .replace("{gpu}", "0")
                    .replace("{keeper}", "1")
                    .replace(['{', '}'], "")
            };
            for parameter in operation["parameters"].as_array().unwrap_or(&Vec::new()) {
                let name = parameter["name"].as_str().unwrap();
                for (value, is_taken) in document.cases(&parameter["schema"], &json!("good")) {
                    let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
                    let plain = !text.is_empty() && text.is_ascii();
                    match parameter["in"].as_str().unwrap() {
                        "query" => check(
                            &method,
                            &format!("{}?{name}={text}", concrete("", "")),
                            None,
                            &good,
                            is_taken,
                        ),
                        "header" => check(&method, &concrete("", ""), Some((name, &text)), &good, is_taken),
                        // No number of a path is refused, and without a name it is another path.
                        "path" if plain && value.is_string() => {
                            let body = if good["name"].is_string() {
                                with(&good, "name", value.clone())
                            } else {
                                good.clone()
                            };
                            // Names of chains are shorter than those of tenants.
                            if is_taken && body["name"].is_string() && text.len() > 31 {
                                continue;
                            }
                            check(&method, &concrete(name, &text), None, &body, is_taken);
                        }
                        _ => {}
                    }
                }
            }
            let schema = &operation["requestBody"]["content"]["application/json"]["schema"];
            for (body, is_taken) in document.bodies(schema, &good) {
                // A chain keeps its name.
                if method == "PUT" && body["name"] != good["name"] {
                    continue;
                }
                check(&method, &concrete("", ""), None, &body, is_taken);
            }
        }
    }
    assert!(checked > 100, "{checked}");
}
