//! The limits of a tenant in bodies and in their document, from the table of limits.

use std::sync::LazyLock;

use partita::limits::{Form, Given, LIMITS, Limit, Members, Shown};
use utoipa::openapi::schema::{
    AdditionalProperties, KnownFormat, ObjectBuilder, OneOfBuilder, Schema, SchemaFormat, SchemaType, Type,
};
use utoipa::openapi::{OpenApi, Ref, RefOr};

/// The members of a change that are not limits.
const OTHERS: [&str; 2] = ["gpu", "compact"];

fn changeable() -> impl Iterator<Item = &'static Limit> {
    LIMITS.iter().filter(|limit| limit.change.is_some())
}

/// Reads the limits in a change of a tenant's: those that can change while it runs.
pub(super) fn changes() -> Members {
    static EXPECTED: LazyLock<Vec<&'static str>> = LazyLock::new(|| {
        let members = changeable().map(|limit| limit.member);
        let written = changeable().filter(|limit| matches!(limit.form, Form::Size { .. }));
        OTHERS.into_iter().chain(members).chain(written.map(|limit| limit.name)).collect()
    });
    Members { may: |limit| limit.change.is_some(), expected: &EXPECTED }
}

/// The member of a change that an option of `partita set` is, by the name under which it came.
pub(super) fn member_of(option: &str, given: &Given) -> Option<&'static str> {
    let limit = || changeable().find(|limit| limit.name == option).map(|limit| limit.member);
    let other = || OTHERS.into_iter().find(|other| *other == option);
    given.name_of(option).or_else(limit).or_else(other)
}

/// Writes the limits into the document: into the schemas `change` and `part`, and a schema for each
/// limit whose value is a word.
pub(super) fn describe(document: &mut OpenApi, change: &str, part: &str) {
    let Some(components) = &mut document.components else { return };
    for limit in changeable() {
        if let Form::Words { about, words, .. } = limit.form {
            let schema = ObjectBuilder::new()
                .schema_type(Type::String)
                .description(Some(about))
                .enum_values(Some(words.iter().copied()));
            components.schemas.insert(schema_name(limit), RefOr::T(Schema::Object(schema.build())));
        }
    }
    if let Some(RefOr::T(Schema::Object(object))) = components.schemas.get_mut(change) {
        let members = changeable().filter_map(|limit| Some((limit, changed(limit, limit.change?.about))));
        object.properties.extend(members.map(|(limit, schema)| (limit.member.to_owned(), schema)));
        let written = changeable().filter_map(|limit| Some((limit.name.to_owned(), written(limit)?)));
        object.properties.extend(written);
        object.additional_properties = Some(Box::new(AdditionalProperties::FreeForm(false)));
    }
    if let Some(RefOr::T(Schema::Object(object))) = components.schemas.get_mut(part) {
        for limit in LIMITS {
            if let Shown::InRest(about) = limit.shown {
                let schema = match limit.form {
                    Form::Size { .. } => size(0),
                    _ => nullable(Type::String),
                };
                let schema = schema.description(Some(about)).build();
                object.properties.insert(limit.member.to_owned(), RefOr::T(Schema::Object(schema)));
            }
        }
    }
}

/// The schema of a limit's words: its member in capitals, as `TimePolicy`.
fn schema_name(limit: &Limit) -> String {
    let capital = |word: &str| word[..1].to_ascii_uppercase() + &word[1..];
    limit.member.split('_').map(capital).collect()
}

/// The schema of a limit in a change.
fn changed(limit: &Limit, about: &str) -> RefOr<Schema> {
    let (object, example) = match limit.form {
        Form::Words { .. } => {
            let mut words = Ref::from_schema_name(schema_name(limit));
            words.description = about.to_owned();
            let null = ObjectBuilder::new().schema_type(Type::Null);
            return RefOr::T(Schema::OneOf(OneOfBuilder::new().item(words).item(null).build()));
        }
        Form::Share => (nullable(Type::String).min_length(Some(1)), Some("50%")),
        Form::Size { least } => (size(least), None),
        Form::Target => (nullable(Type::String).min_length(Some(1)), Some("p99=2.5ms")),
        Form::Percent => (nullable(Type::String).pattern(Some("^[0-9]{1,3}([.][0-9])?%$")), Some("30%")),
    };
    let mut object = object.description(Some(about)).build();
    object.example = example.map(Into::into);
    RefOr::T(Schema::Object(object))
}

/// The schema of a size as a text, under the name of its option; `None` for other limits.
fn written(limit: &Limit) -> Option<RefOr<Schema>> {
    let Form::Size { .. } = limit.form else { return None };
    let about = format!("The same as `{}`, as `--{}` takes it.", limit.member, limit.name);
    let mut object = nullable(Type::String).min_length(Some(1)).description(Some(about)).build();
    object.example = Some("20GiB".into());
    Some(RefOr::T(Schema::Object(object)))
}

fn nullable(kind: Type) -> ObjectBuilder {
    ObjectBuilder::new().schema_type(SchemaType::Array(vec![kind, Type::Null]))
}

fn size(least: u64) -> ObjectBuilder {
    nullable(Type::Integer)
        .format(Some(SchemaFormat::KnownFormat(KnownFormat::Int64)))
        .minimum(Some(least as f64))
}
