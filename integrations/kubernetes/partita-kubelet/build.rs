//! Rust from the wire's definitions; no `protoc`.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let files =
        ["registration.proto", "dra.proto", "drahealth.proto", "deviceplugin.proto", "podresources.proto"];
    let files = protox::compile(files, ["proto"])?;
    tonic_prost_build::configure().compile_fds(files)?;
    println!("cargo:rerun-if-changed=proto");
    Ok(())
}
