//! How the shared library is linked.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libsmctrl.so");
    // Where another crate of the build enables `libc/std`, the crate `libc` leaves linking the C
    // library to `std`, which is not here; names without a version would then be bound to the
    // oldest functions that the C library keeps for old programs.
    println!("cargo::rustc-cdylib-link-arg=-lc");
    // `alloc` is compiled for unwinding and names what resumes it. A C compiler links this library
    // by itself; rustc does not.
    println!("cargo::rustc-cdylib-link-arg=-Wl,--as-needed,-lgcc_s");
}
