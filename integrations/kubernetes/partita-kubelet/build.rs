//! Rust from the wire's definitions; no `protoc`.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let files = protox::compile(["registration.proto", "dra.proto", "podresources.proto"], ["proto"])?;
    tonic_prost_build::configure().compile_fds(files)?;
    println!("cargo:rerun-if-changed=proto");
    Ok(())
}
