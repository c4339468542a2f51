//! The OpenAPI document.

use utoipa::OpenApi;
use utoipa::openapi::{ContentBuilder, Ref, RefOr, ResponseBuilder};

use crate::problem::{MEDIA_TYPE, Problem};

#[derive(OpenApi)]
#[openapi(
    info(
        title = "partitad",
        description = "Chains, memory and partitions of a machine's NVIDIA GPUs. Whoever asks over the Unix socket is known by the kernel; over \
                       TCP every request but those for this document and /healthz carries `Authorization: Bearer TOKEN`. A thing may be changed by \
                       its owner and by root. Every request that fails is answered with a problem document (RFC 9457), and one that is answered with \
                       4xx has changed nothing.",
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
            let problem = ContentBuilder::new().schema(Some(Ref::from_schema_name("Problem"))).build();
            let response =
                ResponseBuilder::new().description("It failed").content(MEDIA_TYPE, problem).build();
            operation.responses.responses.insert("default".to_owned(), RefOr::T(response));
        }
    }
    document
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
