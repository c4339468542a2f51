//! What the chart uses of Helm's templates, so that the chart is tested without Helm: values, `if`,
//! and `toYaml | nindent`. Anything else is an error, and so does not get into the chart.

use serde_json::Value;

/// Text, or the inside of an action.
#[derive(Debug)]
enum Part {
    Text(String),
    Action(String),
}

/// Splits a template. `{{-` takes the white space before it, `-}}` that after it.
fn parts(template: &str) -> Vec<Part> {
    let (mut all, mut rest) = (Vec::new(), template);
    while let Some(begin) = rest.find("{{") {
        let length = rest[begin..].find("}}").expect("an action has an end");
        let (mut text, mut inside) = (&rest[..begin], &rest[begin + 2..begin + length]);
        rest = &rest[begin + length + 2..];
        if let Some(trimmed) = inside.strip_prefix("- ") {
            (text, inside) = (text.trim_end(), trimmed);
        }
        if let Some(trimmed) = inside.strip_suffix(" -") {
            (rest, inside) = (rest.trim_start(), trimmed);
        }
        all.push(Part::Text(text.to_owned()));
        all.push(Part::Action(inside.trim().to_owned()));
    }
    all.push(Part::Text(rest.to_owned()));
    all
}

fn is_true(value: &Value) -> bool {
    match value {
        Value::Null => false,
        Value::Bool(is_on) => *is_on,
        Value::Number(number) => number.as_f64() != Some(0.0),
        Value::String(text) => !text.is_empty(),
        Value::Array(all) => !all.is_empty(),
        Value::Object(all) => !all.is_empty(),
    }
}

fn scalar(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Bool(_) | Value::Number(_) => value.to_string(),
        other => panic!("{other} is no text"),
    }
}

/// A value as lines of YAML. JSON's quotes are YAML's too.
fn yaml(value: &Value) -> Vec<String> {
    let nested = |lines: Vec<String>, first: &str, rest: &str| {
        let at = |(which, line): (usize, String)| format!("{}{line}", if which == 0 { first } else { rest });
        lines.into_iter().enumerate().map(at).collect::<Vec<_>>()
    };
    match value {
        Value::Array(all) if !all.is_empty() => {
            all.iter().flat_map(|one| nested(yaml(one), "- ", "  ")).collect()
        }
        Value::Object(all) if !all.is_empty() => all
            .iter()
            .flat_map(|(key, one)| match one {
                Value::Array(inner) if !inner.is_empty() => [vec![format!("{key}:")], yaml(one)].concat(),
                Value::Object(inner) if !inner.is_empty() => {
                    [vec![format!("{key}:")], nested(yaml(one), "  ", "  ")].concat()
                }
                _ => vec![format!("{key}: {}", yaml(one)[0])],
            })
            .collect(),
        other => vec![other.to_string()],
    }
}

/// Renders a template. `context` has `Values` and `Release`.
pub fn render(template: &str, context: &Value) -> String {
    let find = |path: &str| {
        let path = path.strip_prefix('.').unwrap_or_else(|| panic!("{path:?} is no value"));
        path.split('.').fold(context, |value, key| {
            value.get(key).unwrap_or_else(|| panic!("the values have no .{path}"))
        })
    };
    let (mut out, mut conditions) = (String::new(), Vec::new());
    for part in parts(template) {
        let is_shown = conditions.iter().all(|&is_met| is_met);
        match part {
            Part::Text(text) if is_shown => out += &text,
            Part::Text(_) => {}
            Part::Action(action) => match action.split(' ').collect::<Vec<_>>()[..] {
                ["if", path] => conditions.push(is_true(find(path))),
                ["end"] => drop(conditions.pop().expect("an `end` has an `if`")),
                ["toYaml", path, "|", "nindent", width] => {
                    let indent = " ".repeat(width.parse().expect("a width"));
                    let lines = yaml(find(path)).into_iter().map(|line| format!("\n{indent}{line}"));
                    out += &if is_shown { lines.collect() } else { String::new() };
                }
                [path] if is_shown => out += &scalar(find(path)),
                [path] => drop(find(path)),
                _ => panic!("the chart uses {action:?}, which its test does not render"),
            },
        }
    }
    assert!(conditions.is_empty(), "an `if` without its `end`");
    out
}

#[test]
fn the_subset_is_helms() {
    let context = serde_json::json!({"Values": {"a": {"b": "x", "n": 3, "no": false, "empty": {}},
        "all": {"k": [{"p": "v", "q": ["1"]}], "s": "t: u"}}});
    for (template, text) in [
        ("a: {{ .Values.a.b }}-{{ .Values.a.n }}\n", "a: x-3\n"),
        ("a\n{{- if .Values.a.no }}\nb\n{{- end }}\nc", "a\nc"),
        ("a\n{{- if .Values.a.b }}\nb\n{{- end }}\nc", "a\nb\nc"),
        ("{{- if .Values.a.empty }}\nb{{- if .Values.a.b }}c{{- end }}\n{{- end }}d", "d"),
        ("e:\n  {{- toYaml .Values.a.empty | nindent 2 }}\n", "e:\n  {}\n"),
        (
            "e:\n  {{- toYaml .Values.all | nindent 2 }}\n",
            "e:\n  k:\n  - p: \"v\"\n    q:\n    - \"1\"\n  s: \"t: u\"\n",
        ),
    ] {
        assert_eq!(render(template, &context), text, "{template}");
    }
    for template in
        ["{{ .Values.none }}", "{{ include \"x\" . }}", "{{ if .Values.a.b }}", "{{ range .Values.a }}"]
    {
        assert!(std::panic::catch_unwind(|| render(template, &context)).is_err(), "{template}");
    }
}
