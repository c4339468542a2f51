//! How the shared library is linked.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // Where another crate of the build enables `libc/std`, the crate `libc` leaves linking the C
    // library to `std`, which is not here. The library would then need no C library by name, and
    // the linker would bind its names to whichever version it meets first.
    println!("cargo::rustc-cdylib-link-arg=-lc");
    // The table of hooks holds the hooks, whatever names the program or a library before this one
    // defines. It also saves the loader a search for each of some hundred names.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-Bsymbolic");
}
