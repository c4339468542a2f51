//! How the shared library is linked.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libsmctrl.so");
    // `alloc` is compiled for unwinding and names what resumes it. A C compiler links this library by itself; rustc does not.
    println!("cargo::rustc-cdylib-link-arg=-Wl,--as-needed,-lgcc_s");
}
