//! The OpenAPI document.

use utoipa::OpenApi;
use utoipa::openapi::path::{Parameter, ParameterIn};
use utoipa::openapi::schema::{ObjectBuilder, Schema, Type};
use utoipa::openapi::{ContentBuilder, Ref, RefOr, ResponseBuilder};

use crate::problem::{MEDIA_TYPE, Problem};

/// The form of names of tenants, chains and components, beside their length.
const NAME_PATTERN: &str = "^[A-Za-z0-9][A-Za-z0-9._-]*$";
/// The longest name in a path; names of chains and components are shorter.
const NAME_BYTES_MAX: usize = 63;

#[derive(OpenApi)]
#[openapi(
    info(
        title = "partitad",
        description = "Chains, memory and partitions of a machine's NVIDIA GPUs. On the Unix socket the \
                       kernel identifies the caller. Over TCP every request carries `Authorization: Bearer \
                       TOKEN`, except for this document and /healthz. The owner of a resource and root may \
                       change it. Every failed request gets a problem document (RFC 9457); a request with a \
                       4xx status has changed nothing.",
        license(name = "MIT OR Apache-2.0", identifier = "MIT OR Apache-2.0")
    ),
    servers((url = "/")),
    tags(
        (name = "machine", description = "The daemon and the GPUs"),
        (name = "tenants", description = "Programs that share a GPU, and what they hold of it"),
        (name = "chains", description = "Components that pass frames on, one to the next"),
        (name = "sm", description = "The interfaces between optimizer and components: SM configuration and SM suggestion"),
        (name = "memory", description = "Device memory on lease")
    ),
    components(schemas(Problem))
)]
pub(super) struct Document;

/// The document of every route. Of every operation it says what it is answered with when it fails.
pub(super) fn openapi() -> utoipa::openapi::OpenApi {
    let mut document = super::routes().into_openapi();
    for item in document.paths.paths.values_mut() {
        let operations = [&mut item.get, &mut item.put, &mut item.post, &mut item.delete, &mut item.patch];
        for operation in operations.into_iter().flatten() {
            operation.parameters.iter_mut().flatten().for_each(bound_name);
            let problem = ContentBuilder::new().schema(Some(Ref::from_schema_name("Problem"))).build();
            let response =
                ResponseBuilder::new().description("It failed").content(MEDIA_TYPE, problem).build();
            operation.responses.responses.insert("default".to_owned(), RefOr::T(response));
        }
    }
    super::limits::describe(&mut document, "TenantChange", "TenantPart");
    document
}

/// Documents the form of names in paths.
fn bound_name(parameter: &mut RefOr<Parameter>) {
    if let RefOr::T(parameter) = parameter
        && parameter.parameter_in == ParameterIn::Path
        && ["tenant", "chain", "component"].contains(&&*parameter.name)
    {
        let name = ObjectBuilder::new()
            .schema_type(Type::String)
            .min_length(Some(1))
            .max_length(Some(NAME_BYTES_MAX))
            .pattern(Some(NAME_PATTERN))
            .build();
        parameter.schema = Some(RefOr::T(Schema::Object(name)));
    }
}

/// The document as it is committed, `docs/partitad.openapi.json`.
///
/// # Panics
/// Never: the document is made of strings.
pub fn openapi_text() -> String {
    let mut text = openapi().to_pretty_json().expect("strings have a JSON form");
    text.push('\n');
    text
}
